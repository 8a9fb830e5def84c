//! `kaista bench upf`: the UPF's packet work beside a plain forwarder's and beside bare loops, against the size of packets and the
//! number of sessions.
//!
//! What is compared is the time of a packet; the port's own work is in both. Over synthetic ports the worker finds input in every
//! poll, by construction: the limit is its own core, and nothing waits for another one.

use std::time::Duration;

use serde_json::Value;

use crate::metric::{Report, Samples};
use crate::progress::Progress;
use crate::rig::{Load, Way, frame_len};
use crate::{conditions, cores};

mod bare_misses;
mod clock;
mod crew;
mod models;
mod payload;
mod ridden;
mod scaling;
mod search;
mod sessions;
mod skew;
mod throttle;
mod whole;
mod worker;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rounds; in each, everything is measured once
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Length of each run in seconds
    #[arg(long, default_value_t = 0.5)]
    pub seconds: f64,
    /// Sessions in force, where their number is not what is varied [default: 100000 for `worker`, 1000 for others]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sessions: Option<u32>,
    /// How many of them have traffic, at most [default: 65536 for `worker`, all for others]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub active: Option<u32>,
    /// Bytes of inner UDP payload, where they are not what is varied
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(22..=9_000))]
    pub payload: u16,
    /// Measure only these parts
    #[arg(long, value_enum, value_name = "PART")]
    pub only: Vec<Part>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// One worker beside a plain forwarder, over synthetic ports and over shared memory
    Worker,
    /// Throughput against the size of payloads
    Payload,
    /// Cost of a packet against the number of sessions, beside a bare loop that misses the caches as often
    Sessions,
    /// What a packet costs in a pipeline, beside run to completion
    Models,
    /// Workers come and go while the load steps up and down
    Scaling,
    /// Buckets move away from a worker that has become hot
    Skew,
}

impl Args {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Of all parts but the first.
    fn load(&self) -> Load {
        let sessions = self.sessions.unwrap_or(1_000);
        self.load_of(sessions, self.active.unwrap_or(sessions))
    }

    /// Of the first part: as in the published experiments.
    fn worker_load(&self) -> Load {
        self.load_of(self.sessions.unwrap_or(100_000), self.active.unwrap_or(65_536))
    }

    fn load_of(&self, sessions: u32, active: u32) -> Load {
        Load { sessions, active: active.min(sessions), payload: self.payload.into(), pdrs: 1 }
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Measures and returns the report.
pub fn run(args: &Args) -> anyhow::Result<Report> {
    let conditions = conditions::of_this_machine();
    let mut samples = Samples::default();
    let progress = Progress::new();
    let pair = cores::pair().ok();
    let core = pair.map_or(0, |pair| pair[1]);
    let (load, window) = (args.load(), args.window());
    let mut parts: Vec<(&str, Value)> = vec![];
    if args.wants(Part::Worker) {
        parts
            .push(("worker", worker::measure(args.rounds, window, args.worker_load(), pair, &mut samples, &progress)?));
    }
    if args.wants(Part::Payload) {
        parts.push(("payload", payload::measure(args.rounds, window, load, core, &mut samples, &progress)?));
    }
    if args.wants(Part::Sessions) {
        parts.push(("sessions", sessions::measure(args.rounds, window, load.payload, core, &mut samples, &progress)?));
    }
    if args.wants(Part::Models) {
        parts.push(("models", models::measure(args.rounds, window, load, pair, &mut samples, &progress)?));
    }
    if args.wants(Part::Scaling) {
        parts.push(("scaling", scaling::measure(load, pair, &mut samples, &progress)?));
    }
    if args.wants(Part::Skew) {
        parts.push(("skew", skew::measure(args.rounds, load, &mut samples, &progress)?));
    }
    drop(progress);
    Ok(report(conditions, &samples, load, parts))
}

fn report(mut conditions: Value, samples: &Samples, load: Load, parts: Vec<(&str, Value)>) -> Report {
    let metrics = samples.summaries();
    conditions["placement"] = metrics.get("link.rtt_ns").map_or("one core", conditions::placement).into();
    conditions["sessions"] = load.sessions.into();
    conditions["active"] = load.active.into();
    conditions["payload_bytes"] = load.payload.into();
    conditions["frame_bytes"] =
        serde_json::json!({"uplink": frame_len(Way::Uplink, load), "downlink": frame_len(Way::Downlink, load)});
    conditions["ports"] =
        "synthetic (the same rings and validation over private memory), where a part does not say otherwise".into();
    conditions["forwarder"] = "swaps Ethernet addresses, validation on".into();
    conditions["limit"] =
        "the worker's core, where a part does not say otherwise: input in 100 % of its polls, by construction".into();
    for (name, part) in parts {
        conditions[name] = part;
    }
    Report { conditions, metrics }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_a_way_is_there() {
        let only = vec![Part::Worker, Part::Payload];
        let args = Args { rounds: 1, seconds: 0.01, sessions: Some(20), active: None, payload: 64, only };
        let report = run(&args).expect("a run");
        for way in ["uplink", "downlink"] {
            for metric in ["added_ns", "vs_forwarder", "ns", "forwarder_ns"] {
                let is_there = |prefix: &str| report.metrics.contains_key(&format!("{prefix}.{way}.{metric}"));
                assert!(is_there("upf.synthetic"), "{way} {metric}");
                assert!(is_there("upf") || cores::pair().is_err(), "{way} {metric}");
            }
            assert!(report.metrics.contains_key(&format!("upf.payload.{way}.1400B.mpps")), "{way}");
        }
        assert!(report.metrics["upf.synthetic.uplink.vs_forwarder"].median > 0.0);
    }

    #[test]
    fn as_many_sessions_are_active_as_are_said_and_there() {
        let args = |sessions, active| Args { rounds: 1, seconds: 0.01, sessions, active, payload: 64, only: vec![] };
        let of = |load: Load| (load.sessions, load.active);
        assert_eq!(of(args(None, None).worker_load()), (100_000, 65_536));
        assert_eq!(of(args(None, None).load()), (1_000, 1_000));
        assert_eq!(of(args(Some(500), None).worker_load()), (500, 500));
        assert_eq!(of(args(Some(500), Some(40)).load()), (500, 40));
    }
}
