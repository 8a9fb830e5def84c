//! What one run found, whether it counts, and the metrics of all that do.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::metric::Samples;
use crate::rounds::have_moved;

/// Of the bursts offered so many at least must find the function's ring full: then it is the function that is the limit.
pub(super) const FULL_ENOUGH: f64 = 0.02;
/// Of the frames accepted so many at most may not come out.
pub(super) const LOST_AT_MOST: f64 = 0.01;

/// What takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum System {
    Upf,
    /// The same process; only few of its sessions have traffic.
    UpfFewActive,
    Forwarder,
    Macswap,
    Io,
}

impl System {
    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Upf => "upf",
            Self::UpfFewActive => "upf_few_active",
            Self::Forwarder => "forwarder",
            Self::Macswap => "macswap",
            Self::Io => "io",
        }
    }

    /// One of testpmd's modes, which others are held against: every rate counts that it reached, whoever was the limit, so that it is
    /// never made out to be slower than it is.
    pub fn is_testpmd(self) -> bool {
        matches!(self, Self::Macswap | Self::Io)
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub round: u32,
    pub attempt: u32,
    pub system: System,
    pub way: &'static str,
    /// Packets handled at once; of testpmd.
    pub burst: Option<usize>,
    pub mpps: f64,
    /// Share of bursts that found the function's ring full.
    pub full: f64,
    /// Share of the frames accepted that did not come out.
    pub lost: f64,
    /// A cache line's round trip before the run, and after it.
    pub rtt_ns: [f64; 2],
    /// Why it counts, or does not.
    pub limit: String,
}

impl Run {
    /// The function was the limit.
    fn is_full(&self) -> bool {
        self.full >= FULL_ENOUGH
    }

    fn has_moved(&self) -> bool {
        have_moved(&self.rtt_ns)
    }

    fn counts(&self) -> bool {
        (self.system.is_testpmd() || self.is_full()) && self.lost <= LOST_AT_MOST && !self.has_moved()
    }

    /// Who was the limit, and whether the run counts.
    pub fn limit(&self) -> String {
        match () {
            () if self.has_moved() => "does not count: the cores were moved meanwhile".to_owned(),
            () if self.lost > LOST_AT_MOST => {
                format!("does not count: {:.1} % did not come out, the load takes too little", self.lost * 100.0)
            }
            () if !self.is_full() => {
                let found = format!("the load's core, the ring was full for {:.1} % of bursts only", self.full * 100.0);
                if self.counts() { found } else { format!("does not count: {found}") }
            }
            () => format!("the function's core: its ring was full for {:.0} % of bursts", self.full * 100.0),
        }
    }
}

/// What a system did in one turn.
struct Rate {
    mpps: f64,
    /// Its ring was full in one of its runs.
    was_full: bool,
    rtt_ns: Vec<f64>,
}

impl Rate {
    /// By all of its runs, with the best of its settings. None where one of them does not count: it might have been the best.
    fn of(runs: &[&Run]) -> Option<Self> {
        let rtt_ns: Vec<f64> = runs.iter().flat_map(|run| run.rtt_ns).collect();
        let all_count = !runs.is_empty() && runs.iter().all(|run| run.counts()) && !have_moved(&rtt_ns);
        all_count.then(|| Self {
            mpps: runs.iter().map(|run| run.mpps).fold(0.0, f64::max),
            was_full: runs.iter().any(|run| run.is_full()),
            rtt_ns,
        })
    }

    /// Its part of the other's, if the cores were in one place all the time.
    fn by(&self, other: &Self) -> Option<f64> {
        let trips = [&self.rtt_ns[..], &other.rtt_ns].concat();
        (!have_moved(&trips)).then_some(self.mpps / other.mpps)
    }
}

/// What was done in one turn, by system.
struct Rates(BTreeMap<System, Rate>);

impl Rates {
    fn of(runs: &[&Run]) -> Self {
        let mut systems: BTreeMap<System, Vec<&Run>> = BTreeMap::new();
        for run in runs {
            systems.entry(run.system).or_default().push(run);
        }
        Self(systems.into_iter().filter_map(|(system, runs)| Some((system, Rate::of(&runs)?))).collect())
    }

    fn ratio(&self, of: System, to: System) -> Option<f64> {
        self.0.get(&of)?.by(self.0.get(&to)?)
    }

    fn was_full(&self, system: System) -> bool {
        self.0.get(&system).is_some_and(|rate| rate.was_full)
    }
}

/// Whether the UPF and `macswap` can be compared in a turn: all that it was taken for.
pub(super) fn is_conclusive(turn: &[Run]) -> bool {
    let turn: Vec<&Run> = turn.iter().collect();
    Rates::of(&turn).ratio(System::Upf, System::Macswap).is_some()
}

/// The metrics of all runs that count.
pub(super) fn sample(runs: &[Run], samples: &mut Samples) {
    let mut turns: BTreeMap<(u32, u32, &str), Vec<&Run>> = BTreeMap::new();
    for run in runs {
        samples.add("link.rtt_ns", run.rtt_ns[0], "ns");
        turns.entry((run.round, run.attempt, run.way)).or_default().push(run);
    }
    for ((_, _, way), runs) in turns {
        let rates = Rates::of(&runs);
        for (system, rate) in &rates.0 {
            samples.add(format!("upf.dpdk.{way}.{}_mpps", system.name()), rate.mpps, "Mpps");
        }
        let mut ratio = |name: String, of: System, to: System, at_most: bool| {
            if let Some(ratio) = rates.ratio(of, to).filter(|_| at_most || rates.was_full(to)) {
                samples.add(name, ratio, "1");
            }
        };
        ratio(format!("upf.{way}.vs_macswap_at_most"), System::Upf, System::Macswap, true);
        ratio(format!("upf.{way}.vs_macswap"), System::Upf, System::Macswap, false);
        ratio(format!("upf.{way}.vs_io"), System::Upf, System::Io, false);
        ratio(format!("upf.dpdk.{way}.few_active_vs_macswap"), System::UpfFewActive, System::Macswap, false);
        ratio(format!("upf.dpdk.{way}.forwarder_vs_macswap"), System::Forwarder, System::Macswap, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(system: System, mpps: f64, full: f64, lost: f64) -> Run {
        Run {
            round: 1,
            attempt: 1,
            system,
            way: "uplink",
            burst: None,
            mpps,
            full,
            lost,
            rtt_ns: [50.0, 55.0],
            limit: String::new(),
        }
    }

    fn samples(runs: &[Run]) -> Samples {
        let mut samples = Samples::default();
        sample(runs, &mut samples);
        samples
    }

    #[test]
    fn the_ratio_is_to_the_better_of_testpmds_settings() {
        let (slower, faster) = (run(System::Macswap, 8.0, 0.5, 0.0), run(System::Macswap, 10.0, 0.5, 0.0));
        let samples = samples(&[run(System::Upf, 7.0, 0.5, 0.0), slower, faster, run(System::Io, 14.0, 0.5, 0.0)]);
        assert_eq!(samples.of("upf.uplink.vs_macswap"), [0.7]);
        assert_eq!(samples.of("upf.uplink.vs_io"), [0.5]);
        assert_eq!(samples.of("upf.dpdk.uplink.macswap_mpps"), [10.0]);
    }

    #[test]
    fn a_run_counts_where_the_function_is_the_limit_and_the_cores_stay() {
        let starved = run(System::Forwarder, 9.0, 0.0, 0.0);
        let overrun = run(System::Upf, 9.0, 0.5, 0.1);
        let moved = Run { rtt_ns: [50.0, 350.0], ..run(System::Io, 9.0, 0.5, 0.0) };
        assert!([&starved, &overrun, &moved].iter().all(|run| run.limit().starts_with("does not count")));
        let samples = samples(&[starved, overrun, moved]);
        assert!(samples.of("upf.dpdk.uplink.forwarder_mpps").is_empty());
        assert!(samples.of("upf.dpdk.uplink.upf_mpps").is_empty());
        assert!(samples.of("upf.dpdk.uplink.io_mpps").is_empty());
        assert_eq!(samples.of("link.rtt_ns").len(), 3);
    }

    #[test]
    fn what_ran_near_is_not_held_against_what_ran_far() {
        let far = Run { rtt_ns: [350.0, 340.0], ..run(System::Macswap, 4.0, 0.5, 0.0) };
        let turn = [run(System::Upf, 8.0, 0.5, 0.0), far, run(System::Io, 12.0, 0.5, 0.0)];
        assert!(!is_conclusive(&turn));
        let samples = samples(&turn);
        assert!(
            samples.of("upf.uplink.vs_macswap").is_empty() && samples.of("upf.uplink.vs_macswap_at_most").is_empty()
        );
        assert_eq!(samples.of("upf.dpdk.uplink.macswap_mpps"), [4.0]);
        assert_eq!(samples.of("upf.uplink.vs_io"), [8.0 / 12.0]);
    }

    #[test]
    fn a_setting_that_was_not_seen_where_the_others_were_leaves_no_best() {
        let moved = Run { rtt_ns: [50.0, 350.0], ..run(System::Macswap, 9.0, 0.5, 0.0) };
        let turn = [run(System::Upf, 8.0, 0.5, 0.0), run(System::Macswap, 10.0, 0.5, 0.0), moved];
        assert!(!is_conclusive(&turn) && is_conclusive(&turn[..2]));
        assert!(samples(&turn).of("upf.uplink.vs_macswap").is_empty());
    }

    #[test]
    fn what_the_upf_is_held_against_is_no_slower_than_it_was_seen_to_be() {
        let (starved, full) = (run(System::Macswap, 10.0, 0.0, 0.0), run(System::Macswap, 8.0, 0.5, 0.0));
        assert!(starved.limit().starts_with("the load's core"));
        let samples = samples(&[run(System::Upf, 5.0, 0.5, 0.0), starved, full]);
        assert_eq!(samples.of("upf.uplink.vs_macswap"), [0.5]);
    }

    #[test]
    fn nothing_is_held_against_what_was_never_at_its_limit() {
        let samples = samples(&[run(System::Upf, 5.0, 0.5, 0.0), run(System::Macswap, 6.0, 0.0, 0.0)]);
        assert!(samples.of("upf.uplink.vs_macswap").is_empty());
        assert_eq!(samples.of("upf.dpdk.uplink.macswap_mpps"), [6.0]);
    }

    #[test]
    fn the_ratio_at_most_is_of_every_turn_whoever_was_the_limit() {
        let of_round = |round, run: Run| Run { round, ..run };
        let samples = samples(&[
            of_round(1, run(System::Upf, 5.0, 0.5, 0.0)),
            of_round(1, run(System::Macswap, 10.0, 0.0, 0.0)),
            of_round(2, run(System::Upf, 6.0, 0.5, 0.0)),
            of_round(2, run(System::Macswap, 8.0, 0.5, 0.0)),
        ]);
        assert_eq!(samples.of("upf.uplink.vs_macswap_at_most"), [0.5, 0.75]);
        assert_eq!(samples.of("upf.uplink.vs_macswap"), [0.75]);
    }
}
