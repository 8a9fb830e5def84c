//! Throughput of one worker against the size of what is in its packets, and both models beside each other. The worker is alone on its
//! core over private memory, wherever others are; the models are compared in rounds in which the cores stay where they are.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};

use super::clock::nanoseconds;
use super::models::Both;
use crate::metric::Samples;
use crate::rig::{Load, Payload, Upf, Way};
use crate::rounds::Rounds;

const PAYLOADS: [Payload; 8] = [
    Payload::Bytes(22),
    Payload::Bytes(64),
    Payload::Bytes(128),
    Payload::Bytes(256),
    Payload::Bytes(512),
    Payload::Bytes(1_024),
    Payload::Bytes(1_400),
    Payload::Mix,
];

/// Measures both ways, the worker on the second of two cores.
pub(super) fn measure(
    rounds: &Rounds<'_>,
    window: Duration,
    load: Load,
    how: &mut Value,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let mut runs = vec![];
    let core = rounds.cores.map_or(0, |pair| pair[1]);
    let each = (1..=rounds.count).flat_map(|round| Way::BOTH.map(|way| (round, way)));
    let mut each = each.flat_map(|(round, way)| PAYLOADS.map(|payload| (round, way, payload)));
    let outcome = each.try_for_each(|(round, way, payload)| {
        let size = match payload {
            Payload::Bytes(bytes) => format!("{bytes}B"),
            Payload::Mix => "mix".into(),
        };
        let what = format!("payload, round {round} of {}: {} with {size}", rounds.count, way.name());
        rounds.progress.step(&what)?;
        let load = Load { payload, ..load };
        let ns = std::thread::spawn(move || cost(way, load, window, core))
            .join()
            .map_err(|_| anyhow::anyhow!("a measurement panicked"))??;
        let prefix = format!("upf.payload.{}.{size}", way.name());
        samples.add(format!("{prefix}.mpps"), 1e3 / ns, "Mpps");
        samples.add(format!("{prefix}.payload_gbps"), payload.mean() * 8.0 / ns, "Gb/s");
        let models = Both::new(1, way, load)?.compare((rounds, round), window, &prefix, samples)?;
        runs.push(json!({"round": round, "way": way.name(), "payload": size, "payload_bytes": payload.mean(), "ns": ns, "models": models}));
        Ok(())
    });
    *how = json!({
        "what": "synthetic ports, payload copied once; models: busy nanoseconds of a packet in all threads, again where the cores were moved",
        "sessions": load.sessions,
        "active": load.active,
        "runs": runs,
    });
    outcome
}

fn cost(way: Way, load: Load, window: Duration, core: usize) -> anyhow::Result<f64> {
    traffic::cores::pin(core)?;
    let mut upf = Upf::new(way, load)?;
    let ns = nanoseconds(window, || {
        upf.turn();
        upf.sent()
    });
    ensure!(upf.drops().is_empty(), "the UPF dropped packets: {:?}", upf.drops());
    Ok(ns)
}
