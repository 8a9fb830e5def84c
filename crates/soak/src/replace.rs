//! The campaign of a UPF that is replaced, again and again, under traffic of all its sessions: no packet is lost.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::census::Census;
use crate::course::Course;
use crate::crowd::{Act, Crowd, caught};
use crate::outcome::{Outcome, Times};

/// Of the UPF's addresses.
const NET: u8 = 72;
/// Before each replacement, and after it.
const BETWEEN: Duration = Duration::from_millis(200);

/// Runs the campaign with a UPF that is `program`, and has so many sessions. Events are replacements.
pub fn run(course: &Course, program: &Path, sessions: u32) -> Result<Outcome> {
    caught(|| campaign(course, program, sessions))
}

fn campaign(course: &Course, program: &Path, sessions: u32) -> Result<Outcome> {
    let mut outcome = Outcome::new("replace");
    let mut crowd = Crowd::begin(program, NET, sessions)?;
    crowd.settle();
    crowd.traffic.begin(Act::Steady);
    let recovery = crowd.stage.recovery();
    let own = || vec![std::process::id() as i32];
    let before = Census::at_rest(&own());

    let (mut times, mut silences, mut said) = (Times::default(), Times::default(), Instant::now());
    while course.goes_on(outcome.events) {
        crowd.play(BETWEEN);
        crowd.traffic.silence();
        let begin = Instant::now();
        crowd.stage.hand_over(|stage| crowd.traffic.turn(stage));
        times.add(begin.elapsed());
        silences.add(crowd.traffic.silence());
        crowd.play(BETWEEN);
        outcome.events += 1;
        if crowd.stage.recovery() != recovery {
            outcome.failures.push(format!("after replacement {} it says that it has restarted", outcome.events));
        }
        course.say(&mut said, || format!("replace: {}; {}", outcome.events, crowd.traffic.tally()));
    }
    crowd.settle();
    let ([sent, missing], refused) = (crowd.traffic.sent_and_missing(), crowd.traffic.refused());
    outcome.tally = crowd.traffic.tally();
    // Those that nothing came after have left no gap; those that came again are not missing for it.
    outcome.tally.lost = missing + outcome.tally.duplicated;
    // First, as the session manager answers heartbeats only while it waits for something else.
    outcome.failures.extend(crowd.check_usage(true));
    let (leaked, what) = before.settle(own, Duration::from_secs(20));
    outcome.tally.leaked = leaked;
    outcome.notes.extend(what.into_iter().map(|what| format!("leaked: {what}")));
    outcome.notes.push(format!("{sessions} sessions; {sent} packets; {refused} times a port had no room"));
    outcome.notes.push(format!("from a new process's exec until the old one has ended: {times}"));
    outcome.notes.push(format!("longest time without a packet in each: {silences}"));
    Ok(outcome)
}
