//! The highest rate that a UPF takes in open loop.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use super::crew::drain;
use super::ridden::{Reins, Tally};
use crate::progress::Progress;

/// How long a rate is tried.
pub(super) const TRIAL: Duration = Duration::from_millis(100);
/// How long the rate that is found is tried once more, if not longer: it may have passed in a good moment (RFC 2544, 24).
pub(super) const LONG_TRIAL: Duration = Duration::from_secs(1);
/// Of a rate that does not pass that, the one that is tried next, so often at most.
const LOWER: f64 = 0.95;
const LOWERED_MAX: usize = 40;
const TRIALS: usize = 8;
/// How often a rate is tried before it is too high: a trial may have been disturbed.
const TRIES: usize = 3;
/// How often it is looked whether a trial has failed already.
const LOOK: Duration = Duration::from_millis(10);
/// What may wait at the end of a trial, by the time in which as much is due: in the source, which is behind then, or on its way.
const WAITING_MAX: Duration = Duration::from_millis(1);

/// The highest rate that is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Highest {
    /// In packets a second.
    pub pps: f64,
    /// Why no more.
    pub limit: Limit,
}

/// What kept a rate from being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Packets waited in the UPF's ports, or were refused by them.
    Workers,
    /// Packets waited in the source: one thread at a time has its lock.
    Source,
}

impl Limit {
    /// As in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Workers => "the cores of the UPF's threads, on which source and sink ride",
            Self::Source => "source and sink, which one thread at a time rides (their lock)",
        }
    }
}

/// The highest rate at which ports refuse no larger part than `loss` for a time as `long`, and of which hardly anything waits when
/// a trial ends: a ring that only fills is no loss yet.
pub(super) fn highest(reins: &Reins, loss: f64, long: Duration, progress: &Progress) -> anyhow::Result<Highest> {
    let before = reins.tally();
    reins.wait();
    std::thread::sleep(TRIAL);
    let mut high = reins.tally().since(before).received as f64 / TRIAL.as_secs_f64();
    drain(reins);
    ensure!(high > 0.0, "nothing comes out of the UPF");
    let (mut low, mut limit) = (0.0, Limit::Workers);
    while tried(reins, high, loss, TRIAL).is_ok() {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..TRIALS {
        let middle = (low + high) / 2.0;
        match tried(reins, middle, loss, TRIAL) {
            Ok(()) => low = middle,
            Err(why) => (high, limit) = (middle, why),
        }
    }
    for _ in 0..LOWERED_MAX {
        ensure!(low > 0.0, "no rate is without loss: the cores are not this program's");
        progress.go_on()?;
        match tried(reins, low, loss, long) {
            Ok(()) => return Ok(Highest { pps: low, limit }),
            Err(why) => (low, limit) = (LOWER * low, why),
        }
    }
    bail!("no rate is without loss for {long:?}: the cores are not this program's")
}

/// Tries a rate, in packets a second. Fails with what it was in the last of several tries.
pub(super) fn tried(reins: &Reins, pps: f64, loss: f64, time: Duration) -> Result<(), Limit> {
    let mut outcome = Ok(());
    for _ in 0..TRIES {
        outcome = trial(reins, pps, loss, time);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn trial(reins: &Reins, pps: f64, loss: f64, time: Duration) -> Result<(), Limit> {
    let (before, begin) = (reins.tally(), Instant::now());
    let refused_max = loss * pps * time.as_secs_f64();
    reins.set_rate(pps);
    let (tally, due) = loop {
        std::thread::sleep(LOOK);
        let (tally, elapsed) = (reins.tally().since(before), begin.elapsed());
        if elapsed >= time || tally.refused_in_all() as f64 > refused_max {
            break (tally, pps * elapsed.as_secs_f64());
        }
    };
    drain(reins);
    judged(pps, loss, due, tally)
}

/// What became of `due` packets at the end of a trial.
fn judged(pps: f64, loss: f64, due: f64, tally: Tally) -> Result<(), Limit> {
    let waiting = [due - tally.offered as f64, tally.missing() as f64];
    let is_too_much = |refused: u64| refused as f64 > loss * tally.offered as f64;
    if !is_too_much(tally.refused_in_all()) && waiting.iter().sum::<f64>() <= pps * WAITING_MAX.as_secs_f64() {
        return Ok(());
    }
    Err(if !is_too_much(tally.refused) && waiting[0] > waiting[1] { Limit::Source } else { Limit::Workers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_too_high_where_packets_are_refused_or_wait_and_the_source_is_to_blame_if_they_wait_there() {
        let tally =
            |offered, refused, received| Tally { offered, refused, received, distinct: received, ..Tally::default() };
        let of = |tally| judged(1e6, 0.01, 100_000.0, tally);
        assert_eq!(of(tally(99_900, 0, 99_600)), Ok(()));
        assert_eq!(of(tally(100_000, 900, 99_000)), Ok(()));
        assert_eq!(of(tally(90_000, 0, 89_000)), Err(Limit::Source));
        assert_eq!(of(tally(99_000, 0, 89_000)), Err(Limit::Workers));
        assert_eq!(of(tally(90_000, 5_000, 85_000)), Err(Limit::Workers));
        assert_eq!(of(Tally { overdue: 900, ..tally(99_990, 0, 99_900) }), Ok(()));
        assert_eq!(of(Tally { overdue: 1_100, ..tally(99_990, 0, 99_980) }), Err(Limit::Workers));
    }
}
