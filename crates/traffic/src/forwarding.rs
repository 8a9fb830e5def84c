//! A timed run of the forwarder: warm up, count over a window, say what was found.

use std::time::{Duration, Instant};

use port::{Leave, RxCounters, Sleep, Waiter};
use serde::{Deserialize, Serialize};

use crate::forwarder::Forwarder;
use crate::interrupt::Interrupt;

/// How to run a forwarder.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Frames to send out of each port at the start.
    pub send_first: usize,
    /// Their length in bytes.
    pub size: usize,
    /// Time before counting begins.
    pub warm_up: Duration,
    /// Time to count for; for ever where absent.
    pub window: Option<Duration>,
    /// Poll without pause.
    pub poll: bool,
}

/// What a forwarder did in its window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forwarded {
    /// Length of the window in seconds.
    pub seconds: f64,
    /// Received, port by port.
    pub ports: Vec<Received>,
    /// Share of the worker's polls, each a look at all of its ports, that found packets; or of its time that it did not
    /// spend waiting for some after a poll that did not: whichever is less.
    pub busy: f64,
    /// Packets discarded since the start because the port to send them to did not take them.
    pub refused: u64,
}

/// What one port received in the window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Received {
    /// Name of the port.
    pub port: String,
    /// Packets.
    pub packets: u64,
    /// Packets discarded because the peer broke the rules.
    pub invalid: u64,
    /// Polls.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Packets a second, in millions.
    pub mpps: f64,
}

/// Polls between two looks at the clock.
const TURNS: usize = 256;
/// Pauses of the processor after a poll that found nothing: a microsecond or a few.
const BACK_OFF: u32 = 100;
/// How long to wait for the peers of all ports at the start.
const PEER_WAIT: Duration = Duration::from_secs(10);
/// Time between two tries to send the first frames.
const FIRST_RETRY: Duration = Duration::from_millis(1);

/// Runs `forwarder` by `plan`; `names` are those of its ports.
pub fn run(forwarder: &mut Forwarder, names: &[String], plan: Plan) -> anyhow::Result<Forwarded> {
    run_until(None, forwarder, names, plan)
}

/// The same, but that it ends when it is interrupted, with what waits handled: another process may have taken the ports over.
pub fn run_until(
    interrupt: Option<&Interrupt>,
    forwarder: &mut Forwarder,
    names: &[String],
    plan: Plan,
) -> anyhow::Result<Forwarded> {
    send_first(forwarder, names.len(), plan);
    let mut waiter = Waiter::new(Sleep::After(Duration::from_micros(50)));
    forward_for(interrupt, forwarder, &mut waiter, plan.poll, Some(plan.warm_up))?;
    let before = forwarder.received();
    let begin = Instant::now();
    let polls = forward_for(interrupt, forwarder, &mut waiter, plan.poll, plan.window)?;
    let time = begin.elapsed();
    let seconds = time.as_secs_f64();
    let after = forwarder.received();

    let ports: Vec<Received> = names
        .iter()
        .zip(before.iter().zip(&after))
        .map(|(name, (b, a))| Received::between(name, b, a, seconds))
        .collect();
    Ok(Forwarded { seconds, ports, busy: polls.busy(time), refused: forwarder.refused() })
}

/// Sends the first frames out of each port, as soon as its peer is there to take them.
fn send_first(forwarder: &mut Forwarder, ports: usize, plan: Plan) {
    let give_up = Instant::now() + PEER_WAIT;
    for port in 0..ports {
        while plan.send_first > 0
            && forwarder.send_first(port, plan.send_first, plan.size) == 0
            && Instant::now() < give_up
        {
            std::thread::sleep(FIRST_RETRY);
        }
    }
}

/// A worker's polls, each a look at all of its ports.
#[derive(Clone, Copy, Debug, Default)]
struct Polls {
    all: u64,
    found: u64,
    /// Time spent waiting after polls that found nothing.
    waited: Duration,
}

impl Polls {
    fn busy(self, time: Duration) -> f64 {
        if self.all == 0 {
            return 0.0;
        }
        let of_polls = self.found as f64 / self.all as f64;
        let of_time = 1.0 - self.waited.as_secs_f64() / time.as_secs_f64();
        of_polls.min(of_time)
    }
}

fn forward_for(
    interrupt: Option<&Interrupt>,
    forwarder: &mut Forwarder,
    waiter: &mut Waiter,
    poll: bool,
    time: Option<Duration>,
) -> anyhow::Result<Polls> {
    let begin = Instant::now();
    let mut polls = Polls::default();
    while time.is_none_or(|time| begin.elapsed() < time) {
        if interrupt.is_some_and(Interrupt::has_come) {
            work_off(forwarder);
            break;
        }
        if poll {
            (0..TURNS).for_each(|_| turn_or_back_off(forwarder, &mut polls));
            continue;
        }
        let before = polls.found;
        // At the first poll that finds nothing the core is left to whoever shares it.
        let all_found = (0..TURNS).all(|_| turn(forwarder, &mut polls));
        if polls.found > before {
            waiter.worked();
        }
        if !all_found {
            let left = time.map(|time| time.saturating_sub(begin.elapsed()));
            let since = Instant::now();
            let bell = interrupt.map(Interrupt::fd);
            waiter.wait(&mut forwarder.queues(), bell.as_slice(), left)?;
            polls.waited += since.elapsed();
        }
    }
    Ok(polls)
}

/// Forwards what waits, until all peers have closed what they sent by, or send nothing.
fn work_off(forwarder: &mut Forwarder) {
    let mut leave = Leave::begin();
    loop {
        let found = forwarder.turn() > 0;
        if leave.is_done_or_pauses(found, forwarder.receiving()) {
            return;
        }
    }
}

/// One poll. True if it found packets.
#[inline]
fn turn(forwarder: &mut Forwarder, polls: &mut Polls) -> bool {
    let found = forwarder.turn() > 0;
    polls.all += 1;
    polls.found += u64::from(found);
    found
}

/// One poll. After one that found nothing, packets are left to gather for a moment: polling an empty ring takes from the
/// producer the line that it is about to write.
#[inline]
fn turn_or_back_off(forwarder: &mut Forwarder, polls: &mut Polls) {
    if !turn(forwarder, polls) {
        let since = Instant::now();
        (0..BACK_OFF).for_each(|_| std::hint::spin_loop());
        polls.waited += since.elapsed();
    }
}

impl Received {
    fn between(name: &str, before: &RxCounters, after: &RxCounters, seconds: f64) -> Self {
        let packets = after.packets - before.packets;
        Self {
            port: name.to_owned(),
            packets,
            invalid: after.invalid - before.invalid,
            polls: after.polls - before.polls,
            empty_polls: after.empty_polls - before.empty_polls,
            mpps: packets as f64 / seconds / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use port::synthetic::Synthetic;

    use super::*;
    use crate::forwarder::Addresses;

    #[test]
    fn a_worker_is_as_busy_as_the_lesser_of_its_two_shares() {
        let window = Duration::from_millis(100);
        let busy = |all, found, waited| Polls { all, found, waited: Duration::from_millis(waited) }.busy(window);
        assert_eq!(busy(0, 0, 0), 0.0);
        assert_eq!(busy(4, 4, 0), 1.0);
        assert_eq!(busy(4, 3, 10), 0.75);
        assert_eq!(busy(100, 99, 50), 0.5);
    }

    #[test]
    fn the_window_counts_what_came_within_it() {
        let queue = Synthetic::new(vec![vec![0; 64]]).open().queues.remove(0);
        let mut forwarder = Forwarder::within(queue, Addresses::Swap);
        let window = Duration::from_millis(5);
        let plan =
            Plan { send_first: 0, size: 64, warm_up: Duration::from_millis(1), window: Some(window), poll: true };
        let forwarded = run(&mut forwarder, &["only".to_owned()], plan).expect("a synthetic port never fails");
        assert!(forwarded.seconds >= window.as_secs_f64());
        assert_eq!(forwarded.ports.len(), 1);
        assert!(forwarded.ports[0].packets > 0 && forwarded.busy == 1.0, "{forwarded:?}");
    }
}
