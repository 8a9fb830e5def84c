//! The kill campaign: producer, consumer, daemon and keeper are killed, or stopped for a while, at random moments in
//! traffic and at named points of the handshake and of a change of owners. The others go on; what died comes back; nothing
//! is lost but what was on its way to the dead.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::census::Census;
use crate::course::{self, Course};
use crate::end;
use crate::hand;
use crate::journal::{Field, now_ns};
use crate::outcome::{Outcome, Times};
use crate::pair::Pair;
use crate::random::Random;
use crate::site::{Kind, Side};

/// What can happen, and how often among a hundred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// An end is killed in traffic.
    Kill,
    /// An end is stopped in traffic, and goes on.
    Stop,
    /// One end is stopped, the other killed and replaced, and the first goes on.
    StopAndKill,
    /// An end is killed at a point of the handshake or of its first burst.
    HandKilled,
    /// It is stopped there, and goes on.
    HandStopped,
    /// While it is stopped there, the daemon is killed.
    HandAndDaemon,
    /// While it is stopped there, the keeper is killed.
    HandAndKeeper,
    /// The consumer is killed at a point of a change of owners.
    OwnerKilled,
    /// It is stopped there, and goes on.
    OwnerStopped,
    /// The daemon is killed in traffic.
    DaemonKilled,
    /// The daemon is stopped, and goes on.
    DaemonStopped,
    /// The keeper is killed in traffic.
    KeeperKilled,
    /// The keeper is stopped, and goes on.
    KeeperStopped,
}

const EVENTS: [(Event, usize); 13] = [
    (Event::Kill, 20),
    (Event::Stop, 14),
    (Event::StopAndKill, 6),
    (Event::HandKilled, 16),
    (Event::HandStopped, 10),
    (Event::HandAndDaemon, 2),
    (Event::HandAndKeeper, 2),
    (Event::OwnerKilled, 10),
    (Event::OwnerStopped, 6),
    (Event::DaemonKilled, 3),
    (Event::DaemonStopped, 4),
    (Event::KeeperKilled, 3),
    (Event::KeeperStopped, 4),
];

/// How soon after its connection a new process should have packets both ways, and how long others may have none meanwhile. What
/// takes longer is told with what was going on; on a machine that does nothing else it is a failure.
const SOON: Duration = Duration::from_millis(100);

/// Runs the campaign with processes of `program`, over a link of each kind. Each event is a kill or a stop.
pub fn run(course: &Course, program: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::new("kills");
    for kind in Kind::ALL.into_iter().take_while(|_| !course::is_stopped()) {
        outcome.absorb(kind, over(kind, &course.part(Kind::ALL.len() as u32), program)?);
    }
    Ok(outcome)
}

fn over(kind: Kind, course: &Course, program: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::new("kills");
    let mut pair = Pair::start(program, kind)?;
    // The node's first daemon and keeper had other descriptors by birth than those that come after.
    let mut random = Random::new(7);
    for event in [Event::KeeperKilled, Event::DaemonKilled] {
        happen(event, &mut pair, &mut random)?;
        outcome.events += 1;
    }
    let before = pair.tidy_census()?;

    let mut counts = [0_u64; EVENTS.len()];
    let done = events(course, &mut pair, &mut random, &mut counts, &mut outcome);
    outcome.failures.extend(done.err().map(|error| format!("{error:#}")));
    if outcome.failures.is_empty() {
        conclude(course, &mut pair, &before, &mut outcome)?;
    }
    let named: Vec<String> =
        EVENTS.iter().zip(counts).map(|((event, _), count)| format!("{event:?} {count}")).collect();
    outcome.notes.push(format!("times that each happened: {}", named.join(", ")));
    Ok(outcome)
}

/// Each event once, then any, until the campaign is over.
fn events(
    course: &Course,
    pair: &mut Pair,
    random: &mut Random,
    counts: &mut [u64; EVENTS.len()],
    outcome: &mut Outcome,
) -> Result<()> {
    let mut first = 0..EVENTS.len();
    let (mut last, mut said) = (pair.tally(), Instant::now());
    while course.goes_on(outcome.events) {
        let which = first.next().unwrap_or_else(|| choose(random));
        let event = EVENTS[which].0;
        std::thread::sleep(Duration::from_millis(random.below(40) as u64));
        let (reattached, silences) = (pair.reattached.len(), pair.silences.len());
        outcome.events += happen(event, pair, random)?;
        counts[which] += 1;
        let now = pair.tally();
        let late = late(&pair.reattached, reattached).or(late(&pair.silences, silences));
        if now != last || late.is_some() {
            let story = format!("after event {} ({event:?}: {}): {now}", outcome.events, pair.story.join(", "));
            eprintln!("{story}, late {late:?}\n{}\n{}", pair.picture(), pair.site.last_words());
            outcome.notes.push(story);
        }
        last = now;
        course.say(&mut said, || format!("kills: {} events, {event:?}", outcome.events));
    }
    Ok(())
}

/// A time that has come to so many others, if it is long.
fn late(times: &Times, others: usize) -> Option<Duration> {
    times.last().filter(|time| times.len() > others && *time > SOON)
}

/// An event by its weight.
fn choose(random: &mut Random) -> usize {
    let mut left = random.below(EVENTS.iter().map(|(_, weight)| weight).sum());
    for (which, (_, weight)) in EVENTS.iter().enumerate() {
        if left < *weight {
            return which;
        }
        left -= weight;
    }
    0
}

fn conclude(course: &Course, pair: &mut Pair, before: &Census, outcome: &mut Outcome) -> Result<()> {
    let (late, silent) = (pair.reattached.over(SOON), pair.silences.over(SOON));
    outcome.notes.push(format!(
        "{} new processes had packets both ways after {}; {late} later than {SOON:?}",
        pair.reattached.len(),
        pair.reattached,
    ));
    outcome.notes.push(format!(
        "longest time without a packet, {} times that keeper or daemon was killed or stopped: {}; {silent} longer than {SOON:?}",
        pair.silences.len(),
        pair.silences
    ));
    if course.is_timely && late + silent > 0 {
        outcome
            .failures
            .push(format!("packets both ways took longer than {SOON:?}: {late} times; none came: {silent} times"));
    }
    outcome.notes.push(format!(
        "{} changes of owners; {} packets were on their way to processes that died",
        pair.journal(Side::Consumer).get(Field::Changes),
        pair.held()
    ));
    pair.tidy()?;
    let (leaked, what) = before.settle(|| pair.pids(), Duration::from_secs(20));
    outcome.notes.extend(what.into_iter().map(|what| format!("leaked: {what}")));
    outcome.tally = pair.finish()?;
    outcome.tally.leaked = leaked;
    outcome.failures.extend(pair.site.quarantines());
    Ok(())
}

/// Makes it happen, and waits until everything is as it should be again. Returns how many kills and stops it was.
fn happen(event: Event, pair: &mut Pair, random: &mut Random) -> Result<u64> {
    let side = *random.pick(&Side::BOTH);
    pair.story = vec![side.name().to_owned()];
    match event {
        Event::Kill => {
            let dead = pair.kill(side)?;
            pair.replace(&[dead], side)?;
            Ok(1)
        }
        Event::Stop => {
            pair.signal(side, Signal::SIGSTOP)?;
            doze(random, 300);
            pair.signal(side, Signal::SIGCONT)?;
            let received = pair.received();
            pair.flows("packets after a stop", &received)?;
            Ok(1)
        }
        Event::StopAndKill => {
            pair.signal(side.other(), Signal::SIGSTOP)?;
            doze(random, 50);
            let dead = pair.kill(side)?;
            if random.once_in(2) {
                pair.signal(side.other(), Signal::SIGCONT)?;
                pair.replace(&[dead], side)?;
            } else {
                // The new one attaches while the other cannot answer.
                let received = pair.journal(side).get(Field::Received);
                pair.spawn(side)?;
                doze(random, 300);
                let since = now_ns();
                pair.signal(side.other(), Signal::SIGCONT)?;
                pair.settle(&[dead], side, received)?;
                pair.note_reattached(side, since);
            }
            Ok(2)
        }
        Event::HandKilled | Event::HandStopped | Event::HandAndDaemon | Event::HandAndKeeper => {
            by_hand(event, side, pair, random)
        }
        Event::OwnerKilled | Event::OwnerStopped => at_a_change(event, pair, random),
        Event::DaemonKilled | Event::DaemonStopped | Event::KeeperKilled | Event::KeeperStopped => {
            of_the_node(event, pair, random)?;
            Ok(1)
        }
    }
}

/// A process that stops itself at a named point takes an end's place, and then the next real one does.
fn by_hand(event: Event, side: Side, pair: &mut Pair, random: &mut Random) -> Result<u64> {
    // Another daemon may take seconds to come, and a sender may not stay in a burst for one.
    let brief = matches!(event, Event::HandKilled | Event::HandStopped);
    let points = if brief && side == Side::Producer { hand::POINTS.len() } else { hand::OF_HANDSHAKE };
    let mut dead = vec![pair.kill(side)?];
    let mut events = 1;
    let point = random.below(points);
    pair.story.push(hand::POINTS[point].to_owned());
    if pair.spawn_hand(side, point)? {
        events += 1;
        match event {
            Event::HandAndDaemon => of_the_node(Event::DaemonKilled, pair, random)?,
            Event::HandAndKeeper => of_the_node(Event::KeeperKilled, pair, random)?,
            _ => doze(random, 200),
        }
        if event == Event::HandKilled || random.once_in(4) {
            dead.push(pair.kill(side)?);
        } else {
            pair.signal(side, Signal::SIGCONT)?;
            dead.push(pair.wait(side)?);
        }
    } else {
        dead.push(pair.wait(side)?);
    }
    pair.replace(&dead, side)?;
    Ok(events)
}

/// The consumer stops itself while buckets move.
fn at_a_change(event: Event, pair: &mut Pair, random: &mut Random) -> Result<u64> {
    let side = Side::Consumer;
    let point = random.below(end::POINTS.len());
    pair.story.push(end::POINTS[point].to_owned());
    pair.journal(side).set(Field::StopAt, 1 + point as u64);
    if !pair.has_stopped(side, crate::rig::PATIENCE)? {
        bail!("the consumer does not come to a change of owners");
    }
    doze(random, 200);
    if event == Event::OwnerKilled {
        let dead = pair.kill(side)?;
        pair.replace(&[dead], side)?;
    } else {
        pair.signal(side, Signal::SIGCONT)?;
        let received = pair.received();
        pair.flows("packets after a stop", &received)?;
    }
    Ok(1)
}

/// Something happens to keeper or daemon. Where both ends are there, packets go on meanwhile.
fn of_the_node(event: Event, pair: &mut Pair, random: &mut Random) -> Result<()> {
    if pair.is_waiting() {
        to_the_node(event, false, pair, random)
    } else {
        pair.listen(|pair| to_the_node(event, true, pair, random))
    }
}

fn to_the_node(event: Event, flowing: bool, pair: &mut Pair, random: &mut Random) -> Result<()> {
    let status = pair.site.status()?;
    let daemon = matches!(event, Event::DaemonKilled | Event::DaemonStopped);
    let pid = Pid::from_raw(if daemon { status.daemon_pid } else { status.keeper_pid });
    let received = pair.received();
    if matches!(event, Event::DaemonStopped | Event::KeeperStopped) {
        kill(pid, Signal::SIGSTOP)?;
        doze(random, 300);
        if flowing {
            pair.flows("packets while the node is stopped", &received)?;
        }
        kill(pid, Signal::SIGCONT)?;
    } else {
        kill(pid, Signal::SIGKILL)?;
        if flowing {
            pair.flows("packets while the node is down", &received)?;
        }
    }
    pair.until("keeper and daemon are there", |pair| {
        pair.site.status().is_ok_and(|now| {
            let same = if daemon { now.daemon_pid } else { now.keeper_pid } == pid.as_raw();
            same == matches!(event, Event::DaemonStopped | Event::KeeperStopped)
        })
    })
}

fn doze(random: &mut Random, most_ms: usize) {
    std::thread::sleep(Duration::from_millis(random.below(most_ms + 1) as u64));
}
