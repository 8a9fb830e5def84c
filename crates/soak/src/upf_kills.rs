//! The campaign of a UPF that is killed, again and again, under traffic of all its sessions: all of them forward again, soon, and
//! what they used is counted.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::census::Census;
use crate::course::Course;
use crate::crowd::{Act, Crowd, caught};
use crate::outcome::{Outcome, Times};
use crate::random::Random;

/// Of the UPF's addresses.
const NET: u8 = 70;
/// How soon after the new process's exec all sessions should forward.
const SOON: Duration = Duration::from_millis(500);

/// Runs the campaign with a UPF that is `program`, and has so many sessions. Events are kills.
pub fn run(course: &Course, program: &Path, sessions: u32) -> Result<Outcome> {
    caught(|| campaign(course, program, sessions))
}

fn campaign(course: &Course, program: &Path, sessions: u32) -> Result<Outcome> {
    let mut outcome = Outcome::new("upf-kills");
    let mut crowd = Crowd::begin(program, NET, sessions)?;
    let recovery = crowd.stage.recovery();
    let lap = lap(&mut crowd)?;
    let own = || vec![std::process::id() as i32];
    let before = Census::at_rest(&own());

    let (mut random, mut said) = (Random::new(7), Instant::now());
    let (mut firsts, mut alls) = (Times::default(), Times::default());
    let done = (|| -> Result<()> {
        while course.goes_on(outcome.events) {
            crowd.traffic.begin(Act::Steady);
            crowd.play(Duration::from_millis(50 + random.below(100) as u64));
            let [first, all] = kill(&mut crowd)?;
            outcome.events += 1;
            firsts.add(first);
            alls.add(all);
            if crowd.stage.recovery() != recovery {
                outcome.failures.push(format!("after kill {} it says that it has restarted", outcome.events));
            }
            course.say(&mut said, || format!("upf-kills: {}; all sessions forward after {alls}", outcome.events));
        }
        Ok(())
    })();
    outcome.tally = crowd.traffic.tally();
    if let Err(error) = done {
        outcome.tally.lost += crowd.traffic.left() as u64;
        outcome.failures.push(format!("{error:#}"));
        return Ok(outcome);
    }
    // First, as the session manager answers heartbeats only while it waits for something else.
    outcome.failures.extend(crowd.check_usage(false));
    let (leaked, what) = before.settle(own, Duration::from_secs(20));
    outcome.tally.leaked = leaked;
    outcome.notes.extend(what.into_iter().map(|what| format!("leaked: {what}")));
    outcome
        .notes
        .push(format!("{sessions} sessions; where nobody is killed a packet of each, both ways, takes {lap:.1?}"));
    outcome.notes.push(format!("from a new process's exec to the first session that forwards: {firsts}"));
    outcome.notes.push(format!(
        "from a new process's exec until all sessions forward, both ways: {alls}; {} times more than {SOON:?}",
        alls.over(SOON)
    ));
    let log = crowd.stage.log();
    outcome
        .notes
        .extend(log.lines().rfind(|line| line.contains("restored")).map(|line| format!("the last one: {line}")));
    Ok(outcome)
}

/// How long a packet of each session, both ways, takes.
fn lap(crowd: &mut Crowd) -> Result<Duration> {
    crowd.settle();
    crowd.traffic.begin(Act::Recovery);
    let [_, lap] = crowd.await_all(Instant::now())?;
    crowd.settle();
    Ok(lap)
}

/// Kills the process, and starts another. How long after that the first session, and all, forward.
fn kill(crowd: &mut Crowd) -> Result<[Duration; 2]> {
    crowd.stage.kill();
    crowd.traffic.begin(Act::Recovery);
    let exec = crowd.stage.spawn();
    let times = crowd.await_all(exec)?;
    crowd.settle();
    Ok(times)
}
