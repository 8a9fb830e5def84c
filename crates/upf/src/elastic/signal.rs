//! What says how loaded a worker is.

use serde::Deserialize;

use super::effort::{Effort, Timed};

/// The signal that decisions are made by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// The part of the time for which the worker has had packets to treat, less what it would have saved with full bursts: twice
    /// the packets make twice the load.
    #[default]
    Busy,
    /// The part of polls that found packets which found as many as fit a burst, so that more wait behind them.
    Backlog,
    /// The average of packets in a poll by the burst size, each poll with weight 0.001: the published signal of run-to-completion UPFs.
    Ewma,
}

/// What a worker shows of its load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// When this was so, in nanoseconds.
    pub at_ns: u64,
    /// For how long there was nothing to do.
    pub idle_ns: u64,
    /// Polls that found packets.
    pub polls: u64,
    /// Polls that found as many as fit a burst.
    pub full_polls: u64,
    /// Packets in a poll by the burst size, averaged.
    pub fill: f32,
    /// Rounds that found packets.
    pub rounds: u64,
    /// Packets in them.
    pub packets: u64,
    /// Those of the rounds that were timed.
    pub timed: Timed,
}

impl Signal {
    /// The load of a worker between two samples, from 0 to 1; `effort` is what its rounds cost.
    pub fn level(self, before: &Sample, now: &Sample, effort: &Effort) -> f64 {
        let since = |of: fn(&Sample) -> u64| of(now).saturating_sub(of(before)) as f64;
        let (elapsed, idle) = (since(|sample| sample.at_ns), since(|sample| sample.idle_ns));
        let busy = if elapsed > 0.0 { (1.0 - idle / elapsed).clamp(0.0, 1.0) } else { 0.0 };
        match self {
            // Workers that sleep do not poll, and their average stands still.
            _ if busy == 0.0 => 0.0,
            Self::Busy => {
                let (packets, rounds) = (since(|sample| sample.packets), since(|sample| sample.rounds));
                // A worker whose rounds are long may not have shown any since.
                let is_known = packets > 0.0 && rounds > 0.0;
                busy * if is_known { effort.in_full_bursts(packets / rounds) } else { 1.0 }
            }
            Self::Backlog => (since(|sample| sample.full_polls) / since(|sample| sample.polls).max(1.0)).min(1.0),
            Self::Ewma => f64::from(now.fill).clamp(0.0, 1.0),
        }
    }
}

/// The weight of one poll in [`Sample::fill`].
pub const FILL_WEIGHT: f32 = 0.001;

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Sample = Sample {
        at_ns: 1_000,
        idle_ns: 500,
        polls: 10,
        full_polls: 2,
        fill: 0.9,
        rounds: 10,
        packets: 100,
        timed: Timed { rounds: 0, packets: 0, squares: 0, ns: 0, packets_ns: 0 },
    };

    #[test]
    fn each_signal_is_what_happened_between_two_samples() {
        let now = Sample { at_ns: 2_000, idle_ns: 750, polls: 20, full_polls: 4, fill: 0.3, ..BEFORE };
        let unknown = Effort::default();
        assert_eq!(Signal::Busy.level(&BEFORE, &now, &unknown), 0.75);
        assert_eq!(Signal::Backlog.level(&BEFORE, &now, &unknown), 0.2);
        assert!((Signal::Ewma.level(&BEFORE, &now, &unknown) - 0.3).abs() < 1e-6);
    }

    #[test]
    fn twice_the_packets_are_twice_the_load_however_they_come() {
        // 100 ns a round and 40 ns a packet: ever fuller rounds, of which some are timed, in 100 us.
        let loads = [(200, 1), (200, 2), (200, 4), (200, 8)].map(|(rounds, in_round)| {
            let mut now = Sample { at_ns: 101_000, rounds: 10 + rounds, packets: 100 + rounds * in_round, ..BEFORE };
            now.idle_ns = BEFORE.idle_ns + 100_000 - rounds * (100 + 40 * in_round);
            (0..rounds).for_each(|number| now.timed.add(in_round + number % 2, 100 + 40 * (in_round + number % 2)));
            let mut effort = Effort::default();
            effort.take(&BEFORE.timed, &now.timed);
            Signal::Busy.level(&BEFORE, &now, &effort)
        });
        for (few, many) in loads.iter().zip(&loads[1..]) {
            assert!((many / few - 2.0).abs() < 1e-6, "{loads:?}");
        }
    }

    #[test]
    fn a_busy_worker_that_has_shown_no_round_since_has_all_it_can_do() {
        let mut timed = Timed::default();
        (0..100).for_each(|number| timed.add(1 + number % 8, 100 + 40 * (1 + number % 8)));
        let mut effort = Effort::default();
        effort.take(&Timed::default(), &timed);
        assert!(effort.in_full_bursts(1.0) < 0.5);
        let unchanged = Sample { at_ns: 2_000, ..BEFORE };
        for now in [unchanged, Sample { rounds: 20, ..unchanged }] {
            assert_eq!(Signal::Busy.level(&BEFORE, &now, &effort), 1.0);
        }
    }

    #[test]
    fn a_worker_that_sleeps_has_no_load_whatever_its_average_was() {
        let now = Sample { at_ns: 2_000, idle_ns: 1_500, ..BEFORE };
        for signal in [Signal::Busy, Signal::Backlog, Signal::Ewma] {
            assert_eq!(signal.level(&BEFORE, &now, &Effort::default()), 0.0);
            assert_eq!(signal.level(&now, &now, &Effort::default()), 0.0);
        }
    }
}
