//! `kaista bench upf`: one worker of the UPF beside the plain forwarder, both over synthetic ports, in turns.
//!
//! Afterwards both run over shared memory, with a second core that feeds and drains them.
//!
//! Over synthetic ports the worker finds input in every poll, by construction: the limit is its own core, and nothing
//! waits for another one. What is compared is the time of a packet; the port's own work is in both.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;

use crate::fed::{self, Fed};
use crate::link::BUSY_ENOUGH;
use crate::metric::{Report, Samples};
use crate::progress::Progress;
use crate::rig::{Load, Plain, Subject, Upf, Way, frame_len};
use crate::{conditions, cores};

/// Turns between two looks at the clock.
const TURNS: usize = 512;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rounds; in each, forwarder and UPF run once each way
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Length of each run in seconds
    #[arg(long, default_value_t = 0.5)]
    pub seconds: f64,
    /// Sessions in force, all of them with traffic
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sessions: u32,
    /// Bytes of inner UDP payload
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(22..=9_000))]
    pub payload: u16,
}

/// Measures and returns the report.
pub fn run(args: &Args) -> anyhow::Result<Report> {
    let load = Load { sessions: args.sessions, payload: args.payload.into(), pdrs: 1 };
    let window = Duration::from_secs_f64(args.seconds);
    let conditions = conditions::of_this_machine();
    let mut samples = Samples::default();
    let mut runs = Vec::new();
    let progress = Progress::new();
    let pair = cores::pair();
    for round in 1..=args.rounds {
        if let Ok(pair) = pair {
            samples.add("link.rtt_ns", cores::round_trip_ns(pair)?, "ns");
        }
        for way in Way::BOTH {
            progress.show(&format!("round {round} of {}: {}", args.rounds, way.name()));
            // On a thread of its own, so that this one is never bound to a core.
            let core = pair.as_ref().map_or(0, |pair| pair[1]);
            let (plain, upf) = std::thread::spawn(move || measure(way, load, window, core))
                .join()
                .map_err(|_| anyhow::anyhow!("a measurement panicked"))??;
            let name = |metric: &str| format!("upf.{}.{metric}", way.name());
            samples.add(name("ns"), upf, "ns");
            samples.add(name("forwarder_ns"), plain, "ns");
            samples.add(name("added_ns"), upf - plain, "ns");
            samples.add(name("vs_forwarder"), plain / upf, "1");
            samples.add(name("mpps"), 1e3 / upf, "Mpps");
            if let Ok(pair) = pair {
                progress.show(&format!("round {round} of {}: {} over shared memory", args.rounds, way.name()));
                runs.extend(shared_memory(round, way, load, window, pair, &mut samples)?);
            }
        }
    }
    drop(progress);
    Ok(report(conditions, &samples, load, &runs))
}

/// The same over shared memory, as far as the worker finds enough to do.
fn shared_memory(
    round: u32,
    way: Way,
    load: Load,
    window: Duration,
    pair: [usize; 2],
    samples: &mut Samples,
) -> anyhow::Result<[serde_json::Value; 2]> {
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
fn measure(way: Way, load: Load, window: Duration, core: usize) -> anyhow::Result<(f64, f64)> {
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

/// Time of a packet, after a warm-up of a tenth of the window. `turn` returns the packets sent so far.
fn nanoseconds(window: Duration, mut turn: impl FnMut() -> u64) -> f64 {
    let mut run = |time: Duration| {
        let before = turn();
        let begin = Instant::now();
        let mut sent = before;
        while begin.elapsed() < time {
            for _ in 0..TURNS {
                sent = turn();
            }
        }
        begin.elapsed().as_nanos() as f64 / (sent - before).max(1) as f64
    };
    run(window / 10);
    run(window)
}

fn report(mut conditions: serde_json::Value, samples: &Samples, load: Load, runs: &[serde_json::Value]) -> Report {
    let metrics = samples.summaries();
    conditions["placement"] = metrics.get("link.rtt_ns").map_or("one core", conditions::placement).into();
    conditions["sessions"] = load.sessions.into();
    conditions["payload_bytes"] = load.payload.into();
    conditions["frame_bytes"] =
        json!({"uplink": frame_len(Way::Uplink, load), "downlink": frame_len(Way::Downlink, load)});
    conditions["ports"] = "synthetic: the same rings and validation over private memory".into();
    conditions["forwarder"] = "swaps Ethernet addresses, validation on".into();
    conditions["limit"] = "the worker's core: input in 100 % of its polls, by construction".into();
    conditions["shared_memory_runs"] = json!(runs);
    Report { conditions, metrics }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_a_way_is_there() {
        let args = Args { rounds: 1, seconds: 0.01, sessions: 20, payload: 64 };
        let report = run(&args).expect("a run");
        for way in ["uplink", "downlink"] {
            for metric in ["added_ns", "vs_forwarder", "ns", "forwarder_ns"] {
                assert!(report.metrics.contains_key(&format!("upf.{way}.{metric}")), "{way} {metric}");
            }
        }
        assert!(report.metrics["upf.uplink.vs_forwarder"].median > 0.0);
    }
}
