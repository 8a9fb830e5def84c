//! The highest rate that a path passes with no more loss than is allowed, found by bisection.
//!
//! As the throughput of RFC 2544, 26.1, but that rates are halved in between rather than lowered step by step, and that a trial
//! is as long as one likes. A result is a rate that passed; that no higher one does was tried as often as the report says.

use serde::Serialize;

use crate::generator::Pace;
use crate::trial::{Outcome, Trial};

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The highest rate to try, in packets a second. Where absent, a first trial offers as much as the port takes; the search
    /// begins at [`ABOVE`] of that, and goes on upwards as long as rates pass.
    pub most_pps: Option<f64>,
    /// Trials at most, with that one.
    pub trials: u32,
}

/// Where the search begins, in parts of what a port takes.
pub const ABOVE: f64 = 1.2;

/// What a search found.
#[derive(Clone, Debug, Serialize)]
pub struct Searched {
    /// The highest rate that passed, in packets a second; 0 if none did.
    pub pps: f64,
    /// The lowest that did not, if any: the limit is between the two.
    pub failed_pps: Option<f64>,
    /// What stood in the way of more.
    pub limit: Limit,
    /// The largest loss that passes, as part of the packets offered.
    pub loss: f64,
    /// All trials, in their order.
    pub trials: Vec<Trial>,
}

/// What stood in the way of a higher rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The path: above, it loses more than is allowed.
    Loss,
    /// This process: it cannot offer more.
    Sender,
    /// The highest rate that was to be tried passed.
    HighestRate,
    /// Rates passed until all trials were used up.
    Trials,
    /// The search was interrupted.
    Interrupted,
}

/// Searches with `trial`, which allows so much `loss`.
pub fn search(plan: &Plan, loss: f64, mut trial: impl FnMut(Pace) -> Trial) -> Searched {
    let mut found = Searched { pps: 0.0, failed_pps: None, limit: Limit::Trials, loss, trials: vec![] };
    let mut rate = plan.most_pps.unwrap_or_else(|| {
        let all = trial(Pace::Unlimited);
        let taken_pps = all.offered_pps * (all.offered - all.refused) as f64 / all.offered.max(1) as f64;
        if all.outcome == Outcome::Interrupted {
            found.limit = Limit::Interrupted;
        }
        found.trials.push(all);
        ABOVE * taken_pps
    });
    while found.limit != Limit::Interrupted && found.trials.len() < plan.trials as usize && rate > 0.0 {
        let done = trial(Pace::PerSecond(rate));
        let outcome = done.outcome;
        found.trials.push(done);
        match outcome {
            Outcome::Passed => found.pps = rate,
            Outcome::Lossy => (found.failed_pps, found.limit) = (Some(rate), Limit::Loss),
            Outcome::SenderBehind => (found.failed_pps, found.limit) = (Some(rate), Limit::Sender),
            Outcome::Interrupted => found.limit = Limit::Interrupted,
        }
        rate = match (found.failed_pps, plan.most_pps) {
            (Some(failed), _) => (found.pps + failed) / 2.0,
            (None, None) => 2.0 * rate,
            (None, Some(_)) => {
                found.limit = if outcome == Outcome::Passed { Limit::HighestRate } else { found.limit };
                break;
            }
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::Ipv4Addr;
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex, MutexGuard};

    use port::{
        BURST_MAX, Burst, PacketRef, Port, PortInfo, QueuePair, RxCounters, RxQueue, Slot, TxCounters, TxQueue,
    };

    use super::*;
    use crate::generator::{Flow, Generator, Macs};
    use crate::path::{End, Path};
    use crate::sink::Sink;
    use crate::station::Station;
    use crate::trial::Trials;

    /// Of the bottleneck, in packets a second.
    const CAPACITY: f64 = 1e6;
    /// Packets that wait before the bottleneck at most.
    const ROOM: usize = 2 * BURST_MAX;
    const TRIAL_NS: u64 = 10_000_000;
    /// What a trial passes above the capacity: at its end the room is full.
    const OVER: f64 = ROOM as f64 / (TRIAL_NS as f64 / 1e9);

    const NEVER: u64 = u64::MAX;

    /// A path with a bottleneck, in a time of its own.
    #[derive(Default)]
    struct Bottleneck {
        now_ns: u64,
        waiting: VecDeque<(u64, Vec<u8>)>,
        free_ns: u64,
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Bottleneck>>);

    impl Shared {
        fn lock(&self) -> MutexGuard<'_, Bottleneck> {
            self.0.lock().expect("nobody panics with it")
        }

        /// A station that sends into this path, and receives from the other one.
        fn station(&self, from: &Self) -> Station {
            let slots = std::iter::repeat_with(Slot::default).take(BURST_MAX).collect();
            let queue = QueuePair { rx: Box::new(Out { path: from.clone(), slots }), tx: Box::new(self.clone()) };
            Station::on(Port::new(PortInfo::named("bottleneck"), vec![queue])).expect("it has a queue")
        }
    }

    impl TxQueue for Shared {
        fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
            let mut path = self.lock();
            let accepted = packets.len().min(ROOM - path.waiting.len().min(ROOM));
            for packet in &packets[..accepted] {
                let mut frame = vec![0; packet.len()];
                packet.copy_to(&mut frame);
                path.free_ns = path.free_ns.max(path.now_ns) + (1e9 / CAPACITY) as u64;
                let leaves = path.free_ns;
                path.waiting.push_back((leaves, frame));
            }
            accepted
        }

        fn counters(&self) -> TxCounters {
            TxCounters::default()
        }
    }

    struct Out {
        path: Shared,
        slots: Vec<Slot>,
    }

    impl RxQueue for Out {
        fn recv(&mut self) -> Burst<'_> {
            let mut path = self.path.lock();
            let now = path.now_ns;
            let mut count = 0;
            while count < BURST_MAX && path.waiting.front().is_some_and(|(leaves, _)| *leaves <= now) {
                let (_, frame) = path.waiting.pop_front().expect("it was there");
                self.slots[count].fill_head(frame.len()).copy_from_slice(&frame);
                count += 1;
            }
            Burst::new(&mut self.slots[..count])
        }

        fn arm(&mut self) -> bool {
            false
        }

        fn disarm(&mut self) {}

        fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
            vec![]
        }

        fn counters(&self) -> RxCounters {
            RxCounters::default()
        }
    }

    /// Searches on a path with the bottleneck, until `stop_ns`; `turn_ns` passes with every look at the clock.
    fn searched(plan: &Plan, loss: f64, turn_ns: u64, stop_ns: u64) -> Searched {
        let (bottleneck, back) = (Shared::default(), Shared::default());
        let (into, out) = (bottleneck.station(&back), back.station(&bottleneck));
        let flow = Flow { from: Ipv4Addr::LOCALHOST, to: Ipv4Addr::BROADCAST, tunnel: None };
        let macs = Macs { from: [2; 6], to: [4; 6] };
        let mut clock = || {
            let mut path = bottleneck.lock();
            path.now_ns += turn_ns;
            path.now_ns
        };
        let mut trials = Trials {
            path: Path { into, end: End::At(out) },
            generator: Generator::new(&[flow; 7], 64, macs, Pace::Unlimited, 0),
            sink: Sink::expecting(7),
            trial_ns: TRIAL_NS,
            loss,
            clock: &mut clock,
            stop: &|| bottleneck.lock().now_ns >= stop_ns,
        };
        search(plan, loss, |pace| trials.run(pace))
    }

    #[test]
    fn the_capacity_of_a_bottleneck_is_found() {
        let found = searched(&Plan { most_pps: None, trials: 14 }, 0.0, 2_000, NEVER);
        assert_eq!((found.limit, found.trials.len()), (Limit::Loss, 14));
        assert!((found.pps - (CAPACITY + OVER)).abs() < 0.002 * CAPACITY, "{}", found.pps);
        let failed = found.failed_pps.expect("some rate failed");
        assert!(failed > found.pps && failed - found.pps < 0.001 * CAPACITY, "{failed}");
        for trial in &found.trials {
            assert_eq!(trial.offered - trial.refused, trial.received, "{trial:?}");
            assert_eq!((trial.duplicates, trial.reordered), (0, 0));
            assert_eq!(trial.outcome == Outcome::Passed, trial.loss == 0.0, "{trial:?}");
        }
    }

    #[test]
    fn the_rate_at_a_stated_loss_is_found() {
        let found = searched(&Plan { most_pps: Some(4e6), trials: 14 }, 0.1, 2_000, NEVER);
        assert_eq!(found.limit, Limit::Loss);
        let expected = (CAPACITY + OVER) / 0.9;
        assert!((found.pps - expected).abs() < 0.003 * CAPACITY, "{} not {expected}", found.pps);
        assert!(found.trials.iter().any(|trial| trial.outcome == Outcome::Passed && trial.loss > 0.09));
    }

    #[test]
    fn a_sender_that_cannot_offer_more_is_named_as_the_limit() {
        // A burst of 64 in 200 us.
        let found = searched(&Plan { most_pps: Some(2e6), trials: 12 }, 0.0, 200_000, NEVER);
        assert_eq!(found.limit, Limit::Sender);
        assert!((300_000.0..=325_000.0).contains(&found.pps), "{}", found.pps);
    }

    #[test]
    fn a_highest_rate_that_passes_ends_the_search() {
        let found = searched(&Plan { most_pps: Some(5e5), trials: 9 }, 0.0, 2_000, NEVER);
        assert_eq!((found.limit, found.trials.len(), found.pps, found.failed_pps), (Limit::HighestRate, 1, 5e5, None));
    }

    #[test]
    fn an_interrupted_search_ends_with_what_it_has() {
        for most_pps in [None, Some(1e5)] {
            let found = searched(&Plan { most_pps, trials: 9 }, 0.0, 2_000, 0);
            assert_eq!((found.limit, found.trials.len(), found.pps), (Limit::Interrupted, 1, 0.0));
        }
    }

    #[test]
    fn what_is_not_waited_for_any_more_does_not_make_a_rate_fail() {
        let plan = Plan { most_pps: Some(CAPACITY + 0.9 * OVER), trials: 9 };
        assert_eq!(searched(&plan, 0.0, 2_000, NEVER).limit, Limit::HighestRate);
        let found = searched(&plan, 0.0, 2_000, TRIAL_NS + 10_000);
        assert!(found.trials[0].loss > 0.0, "{found:?}");
        assert_eq!((found.limit, found.failed_pps), (Limit::Interrupted, None));
    }
}
