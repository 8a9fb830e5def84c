//! One worker of the UPF beside the plain forwarder, over synthetic ports, and then over shared memory with a second core that
//! feeds and drains them.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};

use super::clock::nanoseconds;
use crate::cores;
use crate::fed::{self, Fed};
use crate::link::BUSY_ENOUGH;
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::{Load, Plain, Subject, Upf, Way};

/// Measures both ways in turns; over shared memory too where there are two cores.
pub(super) fn measure(
    rounds: u32,
    window: Duration,
    load: Load,
    pair: Option<[usize; 2]>,
    samples: &mut Samples,
    progress: &Progress,
) -> anyhow::Result<Value> {
    let mut runs = Vec::new();
    for round in 1..=rounds {
        if let Some(pair) = pair {
            samples.add("link.rtt_ns", cores::round_trip_ns(pair)?, "ns");
        }
        for way in Way::BOTH {
            progress.show(&format!("worker, round {round} of {rounds}: {}", way.name()));
            // On a thread of its own, so that this one is never bound to a core.
            let core = pair.map_or(0, |pair| pair[1]);
            let (plain, upf) = std::thread::spawn(move || synthetic(way, load, window, core))
                .join()
                .map_err(|_| anyhow::anyhow!("a measurement panicked"))??;
            let name = |metric: &str| format!("upf.{}.{metric}", way.name());
            samples.add(name("ns"), upf, "ns");
            samples.add(name("forwarder_ns"), plain, "ns");
            samples.add(name("added_ns"), upf - plain, "ns");
            samples.add(name("vs_forwarder"), plain / upf, "1");
            samples.add(name("mpps"), 1e3 / upf, "Mpps");
            if let Some(pair) = pair {
                progress.show(&format!("worker, round {round} of {rounds}: {} over shared memory", way.name()));
                runs.extend(shared_memory(round, way, load, window, pair, samples)?);
            }
        }
    }
    Ok(json!({"shared_memory_runs": runs}))
}

/// The same over shared memory, as far as the worker finds enough to do.
fn shared_memory(
    round: u32,
    way: Way,
    load: Load,
    window: Duration,
    pair: [usize; 2],
    samples: &mut Samples,
) -> anyhow::Result<[Value; 2]> {
    let plain = fed::measure(Subject::Forwarder, way, load, window, pair)?;
    let upf = fed::measure(Subject::Upf, way, load, window, pair)?;
    let counts = |fed: &Fed| fed.busy >= BUSY_ENOUGH;
    let name = |metric: &str| format!("upf.shm.{}.{metric}", way.name());
    if counts(&upf) {
        samples.add(name("mpps"), upf.mpps, "Mpps");
    }
    if counts(&plain) {
        samples.add(name("forwarder_mpps"), plain.mpps, "Mpps");
    }
    if counts(&upf) && counts(&plain) {
        samples.add(name("vs_forwarder"), upf.mpps / plain.mpps, "1");
    }
    Ok([("forwarder", plain), ("upf", upf)].map(|(subject, fed)| {
        let limit = if counts(&fed) { "the worker's core" } else { "does not count: the feeding core" };
        json!({"round": round, "subject": subject, "way": way.name(), "mpps": fed.mpps, "busy": fed.busy, "limit": limit})
    }))
}

/// Nanoseconds of a packet in the forwarder and in the UPF, one after the other on the same core.
fn synthetic(way: Way, load: Load, window: Duration, core: usize) -> anyhow::Result<(f64, f64)> {
    traffic::cores::pin(core)?;
    let mut plain = Plain::new(way, load)?;
    let plain_ns = nanoseconds(window, || {
        plain.turn();
        plain.sent()
    });
    let mut upf = Upf::new(way, load)?;
    let upf_ns = nanoseconds(window, || {
        upf.turn();
        upf.sent()
    });
    ensure!(upf.drops().is_empty(), "the UPF dropped packets: {:?}", upf.drops());
    Ok((plain_ns, upf_ns))
}
