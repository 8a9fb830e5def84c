//! The restart campaign: the daemon is killed over and over while packets flow. Its keeper starts another, which gets the
//! segments back: no packet is lost.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::census::Census;
use crate::course::{self, Course};
use crate::outcome::{Outcome, Times};
use crate::pair::Pair;
use crate::site::Kind;

/// After so long a life a daemon is replaced at once when it dies.
const STABLE: Duration = Duration::from_secs(11);

/// Runs the campaign with processes of `program`, over a link of each kind. Events are restarts.
pub fn run(course: &Course, program: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::new("restarts");
    for kind in Kind::ALL.into_iter().take_while(|_| !course::is_stopped()) {
        outcome.absorb(kind, over(kind, &course.part(Kind::ALL.len() as u32), program)?);
    }
    Ok(outcome)
}

fn over(kind: Kind, course: &Course, program: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::new("restarts");
    let mut pair = Pair::start(program, kind)?;
    restart(&mut pair, &mut Times::default())?;
    let (before, resumed) = (pair.tidy_census()?, pair.site.resumed());

    let (mut away, mut said) = (Times::default(), Instant::now());
    let done = (|| -> Result<()> {
        while course.goes_on(outcome.events) {
            let ups = pair.site.ups();
            pair.listen(|pair| {
                restart(pair, &mut away)?;
                pair.until("both ends are back", |pair| pair.site.ups() > ups)
            })?;
            outcome.events += 1;
            course.say(&mut said, || format!("restarts: {}", outcome.events));
        }
        Ok(())
    })();
    outcome.failures.extend(done.err().map(|error| format!("{error:#}")));
    if outcome.failures.is_empty() {
        let resumed = pair.site.resumed() - resumed;
        let (leaked, what) = left_behind(&mut pair, &before, &mut away)?;
        outcome.tally = pair.finish()?;
        outcome.tally.leaked = leaked;
        outcome.failures.extend(pair.site.quarantines());
        let packets: u64 = pair.received().iter().map(|(_, received)| received).sum();
        outcome.notes.push(format!(
            "{packets} packets; {resumed} of {} times an end went on with the segments it had; until a daemon answered: {away}; \
             longest time without a packet: {}",
            2 * outcome.events,
            pair.silences
        ));
        outcome.notes.extend(what);
    }
    Ok(outcome)
}

/// What is there that was not before, in number and words; after one more restart, for which the keeper does not wait any more:
/// both ends wake up to what they have retired.
fn left_behind(pair: &mut Pair, before: &Census, away: &mut Times) -> Result<(u64, Vec<String>)> {
    if !course::sleep(STABLE) {
        return Ok((0, vec!["ended early: what is left behind was not counted".into()]));
    }
    let ups = pair.site.ups();
    restart(pair, away)?;
    pair.until("both ends are back", |pair| pair.site.ups() > ups)?;
    let (leaked, what) = before.settle(|| pair.pids(), Duration::from_secs(20));
    Ok((leaked, what.into_iter().map(|what| format!("leaked: {what}")).collect()))
}

/// Kills the daemon and waits for the next, and for packets meanwhile.
fn restart(pair: &mut Pair, away: &mut Times) -> Result<()> {
    let before = pair.site.status()?.daemon_pid;
    let (received, start) = (pair.received(), Instant::now());
    kill(Pid::from_raw(before), Signal::SIGKILL)?;
    pair.flows("packets while the daemon is away", &received)?;
    pair.until("another daemon", |pair| pair.site.status().is_ok_and(|status| status.daemon_pid != before))?;
    away.add(start.elapsed());
    Ok(())
}
