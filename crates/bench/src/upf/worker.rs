//! One worker of the UPF beside the plain forwarder, with frames of the same size: over shared memory, with a second core that feeds
//! and drains them, and over synthetic ports, where no second core takes part.
//!
//! Time over shared memory is busy time, that of the rounds in which the worker found packets: a forwarder is faster than the
//! core that feeds it, and would else be charged with waiting.

use std::time::Duration;

use anyhow::{anyhow, ensure};
use serde_json::{Value, json};

use super::clock::nanoseconds;
use crate::fed::{self, Fed};
use crate::link::BUSY_ENOUGH;
use crate::metric::Samples;
use crate::rig::{Load, Plain, Subject, Upf, Way};
use crate::rounds::{Rounds, Taken};

/// The two functions, or figures of theirs.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Pair<F, U = F> {
    forwarder: F,
    upf: U,
}

/// What was found in a round.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Round {
    way: &'static str,
    shared_memory: Option<Pair<fed::Found>>,
    synthetic_ns: Pair<f64>,
}

/// Measures both ways, the functions in turns; over shared memory too where there are two cores.
pub(super) fn measure(
    rounds: &Rounds<'_>,
    window: Duration,
    load: Load,
    how: &mut Value,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let mut runs = vec![];
    let measured = Way::BOTH.into_iter().try_for_each(|way| {
        // On a thread of its own, so that this one is never bound to a core.
        std::thread::scope(|scope| scope.spawn(|| of_way(way, rounds, window, load, &mut runs, samples)).join())
            .unwrap_or_else(|_| Err(anyhow!("a measurement panicked")))
    });
    *how = json!({
        "sessions": load.sessions,
        "active": load.active,
        "payload_bytes": load.payload.largest(),
        "what": "nanoseconds of a packet in the UPF and in a plain forwarder that swaps Ethernet addresses, frames of active sessions in an order at random",
        "upf.WAY.ns, .forwarder_ns, .added_ns, .vs_forwarder": match rounds.cores {
            Some(_) => "over shared-memory ports; busy time of the worker, that is of rounds that found packets, by the packets of these rounds; vs_forwarder is the ratio of the rates that follow",
            None => "not measurable here: one core",
        },
        "upf.WAY.busy, .mpps": "part of the time that the UPF's worker was busy; packets a second that came out, where that was 95 % at least",
        "upf.synthetic.WAY.*": "over synthetic ports: the same rings and validation over private memory, input in every poll by construction",
        "limit": "the worker's core; where busy is less than 95 %, no rate is given",
        "runs": runs,
    });
    measured
}

fn of_way(
    way: Way,
    rounds: &Rounds<'_>,
    window: Duration,
    load: Load,
    all: &mut Vec<Value>,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let pair = rounds.cores;
    rounds.progress.step(&format!("worker, {}: {} sessions are installed", way.name(), load.sessions))?;
    traffic::cores::pin(pair.map_or(0, |pair| pair[1]))?;
    let mut over_memory = Pair { forwarder: Plain::new(way, load)?, upf: Upf::new(way, load)? };
    let fed = |subject| Fed::new(subject, way, load);
    let mut over_links = match pair {
        Some(_) => Some(Pair { forwarder: fed(Subject::Forwarder)?, upf: fed(Subject::Upf)? }),
        None => None,
    };
    let measure = |_: &mut Vec<f64>| {
        let shared_memory = match (&mut over_links, pair) {
            (Some(fed), Some(pair)) => {
                Some(Pair { forwarder: fed.forwarder.run(window, pair)?, upf: fed.upf.run(window, pair)? })
            }
            _ => None,
        };
        Ok(Round { way: way.name(), shared_memory, synthetic_ns: synthetic(&mut over_memory, window)? })
    };
    let take = |samples: &mut Samples, run: &Taken<Round>| {
        if !run.moved {
            add(&run.value, samples);
        }
        all.push(json!(run));
    };
    rounds.each(&format!("worker, {}", way.name()), samples, measure, take).map(drop)
}

/// Nanoseconds of a packet, one after the other on the same core.
fn synthetic(Pair { forwarder, upf }: &mut Pair<Plain, Upf>, window: Duration) -> anyhow::Result<Pair<f64>> {
    let forwarder_ns = nanoseconds(window, || {
        forwarder.turn();
        forwarder.sent()
    });
    let upf_ns = nanoseconds(window, || {
        upf.turn();
        upf.sent()
    });
    ensure!(upf.drops().is_empty(), "the UPF dropped packets: {:?}", upf.drops());
    Ok(Pair { forwarder: forwarder_ns, upf: upf_ns })
}

fn add(round: &Round, samples: &mut Samples) {
    let Pair { forwarder, upf } = round.synthetic_ns;
    add_ns(&format!("upf.synthetic.{}", round.way), upf, forwarder, samples);
    samples.add(format!("upf.synthetic.{}.mpps", round.way), 1e3 / upf, "Mpps");
    let Some(Pair { forwarder, upf }) = round.shared_memory else { return };
    let prefix = format!("upf.{}", round.way);
    add_ns(&prefix, upf.ns, forwarder.ns, samples);
    samples.add(format!("{prefix}.busy"), upf.busy, "1");
    if upf.busy >= BUSY_ENOUGH {
        samples.add(format!("{prefix}.mpps"), upf.mpps, "Mpps");
    }
}

fn add_ns(prefix: &str, upf_ns: f64, forwarder_ns: f64, samples: &mut Samples) {
    samples.add(format!("{prefix}.ns"), upf_ns, "ns");
    samples.add(format!("{prefix}.forwarder_ns"), forwarder_ns, "ns");
    samples.add(format!("{prefix}.added_ns"), upf_ns - forwarder_ns, "ns");
    samples.add(format!("{prefix}.vs_forwarder"), forwarder_ns / upf_ns, "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_given_only_where_the_worker_was_busy() {
        let found = |ns, busy| fed::Found { ns, busy, mpps: 11.0 };
        let mut samples = Samples::default();
        for busy in [0.99, 0.5] {
            let shared_memory = Some(Pair { forwarder: found(20.0, 0.4), upf: found(80.0, busy) });
            let synthetic_ns = Pair { forwarder: 10.0, upf: 60.0 };
            let round = Round { way: "uplink", shared_memory, synthetic_ns };
            add(&round, &mut samples);
        }
        assert_eq!(samples.of("upf.uplink.added_ns"), [60.0, 60.0]);
        assert_eq!(samples.of("upf.uplink.vs_forwarder"), [0.25, 0.25]);
        assert_eq!(samples.of("upf.uplink.mpps"), [11.0]);
        assert_eq!(samples.of("upf.synthetic.uplink.added_ns"), [50.0, 50.0]);
    }
}
