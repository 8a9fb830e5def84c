//! `kaista bench upf`: the UPF's packet work beside a plain forwarder's, bare loops' and testpmd's, against the size of packets and the
//! number of sessions; its execution models beside each other; workers that come and go, and buckets that move. Each part is a file.
//!
//! What is compared is the time of a packet; the port's own work is in both. Over synthetic ports the worker finds input in every
//! poll, by construction: the limit is its own core, and nothing waits for another one. Where threads on two cores are measured, rounds
//! in which these were moved do not count.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::ValueEnum;
use serde_json::Value;

use crate::metric::{Outcome, Report, Samples};
use crate::progress::Progress;
use crate::rig::{Load, Way, frame_len};
use crate::rounds::Rounds;
use crate::{conditions, cores};

mod bare_misses;
mod clock;
mod container;
mod crew;
mod dpdk;
mod latency;
mod models;
mod payload;
mod plots;
mod published;
mod ridden;
mod scaling;
mod search;
mod sessions;
mod skew;
mod slowed;
mod stillness;
mod throttle;
mod turns;
mod whole;
mod worker;
mod workers;

pub use container::{Contained, be_contained};
pub(crate) use whole::Whole;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rounds; in each, everything is measured once; of `scaling`, whose load goes up and down ten times, there is one
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Length of each run in seconds; those of `workers`, `scaling` and `skew` are as long as they have to be
    #[arg(long, default_value_t = 0.5, value_parser = crate::cli::seconds)]
    pub seconds: f64,
    /// Sessions in force, where their number is not what is varied [default: 100000 for `worker` and `dpdk`, 1000 for others]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sessions: Option<u32>,
    /// How many of them have traffic, at most [default: 65536 for `worker` and `dpdk`, all for others]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub active: Option<u32>,
    /// Bytes of inner UDP payload, where they are not what is varied
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(22..=9_000))]
    pub payload: u16,
    /// Measure only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    pub only: Vec<Part>,
    /// Draw a picture (SVG) of each part into this folder
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
    /// Measure nothing: print and draw what an earlier run wrote with --json
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
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
    /// Throughput against the number of workers
    Workers,
    /// Latency against load
    Latency,
    /// What a packet costs in a pipeline, beside run to completion
    Models,
    /// Workers come and go while the load steps up and down
    Scaling,
    /// Buckets move away from a worker that has become hot
    Skew,
    /// The UPF over ports of DPDK, beside testpmd
    Dpdk,
    /// One worker in an unprivileged container, beside the same bare on the host
    Container,
}

impl Args {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Of most parts.
    fn load(&self) -> Load {
        let sessions = self.sessions.unwrap_or(1_000);
        self.load_of(sessions, self.active.unwrap_or(sessions))
    }

    /// Of `worker` and `dpdk`: as in the published experiments.
    fn many(&self) -> Load {
        self.load_of(self.sessions.unwrap_or(100_000), self.active.unwrap_or(65_536))
    }

    fn load_of(&self, sessions: u32, active: u32) -> Load {
        Load::of(sessions, active.min(sessions), self.payload.into())
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Measures, or reads what was measured. A part that fails keeps no other from being measured; Ctrl-C and SIGTERM do.
///
/// # Errors
/// If there is no report to read.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    if let Some(file) = &args.from {
        return Ok(Outcome { report: Report::read_json(file)?, failure: None });
    }
    let mut conditions = conditions::of_this_machine();
    let mut samples = Samples::default();
    let progress = Progress::interruptible()?;
    let mut failures = vec![];
    for part in Part::value_variants().iter().filter(|part| args.wants(**part)) {
        let mut how = Value::Null;
        let measured = part.measure(args, &mut how, &mut samples, &progress);
        if !how.is_null() {
            conditions[part.key()] = how;
        }
        // What a part says that was ended means nothing.
        if progress.is_interrupted() {
            progress.note("interrupted: what follows was measured before");
            break;
        }
        if let Err(error) = measured {
            let failure = format!("{}: {error:#}", part.name());
            progress.note(&format!("failed: {failure}"));
            failures.push(failure);
        }
    }
    conditions["interrupted"] = progress.is_interrupted().into();
    drop(progress);
    let failure = (!failures.is_empty()).then(|| anyhow!("not all could be measured: {}", failures.join("; ")));
    conditions["failures"] = failures.into();
    Ok(Outcome { report: report(conditions, &samples, args.load()), failure })
}

/// Prints what was published beside the report.
pub fn print_published(report: &Report) -> anyhow::Result<()> {
    Ok(published::print(&report.conditions["published"], &mut std::io::stdout().lock())?)
}

/// Draws the report, where that is asked for.
pub fn draw(args: &Args, report: &Report) -> anyhow::Result<()> {
    let Some(folder) = &args.plots else { return Ok(()) };
    let files = plots::draw(report, folder)?;
    if files.is_empty() {
        eprintln!("nothing of this report can be drawn");
    }
    Ok(())
}

impl Part {
    /// As in the arguments.
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Where conditions say how it was measured: under its name, but that `sessions` there are how many.
    fn key(self) -> String {
        if self == Self::Sessions { "against_sessions".to_owned() } else { self.name() }
    }

    /// Measures; `how` becomes how that was done, whether or not it ends well.
    fn measure(self, args: &Args, how: &mut Value, samples: &mut Samples, progress: &Progress) -> anyhow::Result<()> {
        let pair = cores::pair().ok();
        let (rounds, load, window) = (args.rounds, args.load(), args.window());
        let taken = Rounds { count: rounds, cores: pair, progress };
        match self {
            Self::Worker => worker::measure(&taken, window, args.many(), how, samples),
            Self::Payload => payload::measure(&taken, window, load, how, samples),
            Self::Sessions => sessions::measure(&taken, window, load.payload.largest(), how, samples),
            Self::Workers => workers::measure(&taken, load, how, samples),
            Self::Latency => latency::measure(&taken, window, load, how, samples),
            Self::Models => models::measure(&taken, window, load, how, samples),
            Self::Scaling => scaling::measure(&taken, load, how, samples),
            Self::Skew => skew::measure(rounds, load, how, samples, progress),
            Self::Dpdk => dpdk::measure(rounds, window, args.many(), pair, how, samples, progress),
            Self::Container => {
                let core = pair.map_or(0, |pair| pair[1]);
                container::measure(&container::program()?, rounds, window, load, core, how, samples, progress)
            }
        }
    }
}

fn report(mut conditions: Value, samples: &Samples, load: Load) -> Report {
    let metrics = samples.summaries();
    conditions["placement"] = conditions::placement(&metrics).into();
    conditions["sessions"] = load.sessions.into();
    conditions["active"] = load.active.into();
    conditions["payload_bytes"] = load.payload.largest().into();
    conditions["frame_bytes"] =
        serde_json::json!({"uplink": frame_len(Way::Uplink, load), "downlink": frame_len(Way::Downlink, load)});
    conditions["ports"] =
        "synthetic (the same rings and validation over private memory), where a part does not say otherwise".into();
    conditions["forwarder"] = "swaps Ethernet addresses, validation on".into();
    conditions["limit"] =
        "the worker's core, where a part does not say otherwise: input in 100 % of its polls, by construction".into();
    conditions["published"] = published::beside(&metrics);
    Report { conditions, metrics }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Args {
        let (plots, from) = (None, None);
        Args { rounds: 1, seconds: 0.01, sessions: None, active: None, payload: 64, only: vec![], plots, from }
    }

    #[test]
    fn every_metric_of_a_way_is_there() {
        let only = vec![Part::Worker, Part::Payload];
        let args = Args { sessions: Some(20), only, ..args() };
        let report = run(&args).expect("a run").report;
        assert_eq!(report.conditions["interrupted"], false);
        for way in ["uplink", "downlink"] {
            for metric in ["added_ns", "vs_forwarder", "ns", "forwarder_ns"] {
                let is_there = |prefix: &str| report.metrics.contains_key(&format!("{prefix}.{way}.{metric}"));
                assert!(is_there("upf.synthetic"), "{way} {metric}");
                assert!(is_there("upf") || cores::pair().is_err(), "{way} {metric}");
            }
            assert!(report.metrics.contains_key(&format!("upf.payload.{way}.1400B.mpps")), "{way}");
            assert!(report.metrics.contains_key(&format!("upf.payload.{way}.22B.pipeline_over_rtc")), "{way}");
            assert!(report.metrics.contains_key(&format!("upf.payload.{way}.mix.pipeline_over_rtc")), "{way}");
        }
        assert!(report.metrics["upf.synthetic.uplink.vs_forwarder"].median > 0.0);
    }

    #[test]
    fn how_each_part_was_measured_has_a_place_of_its_own_in_the_conditions() {
        let conditions = report(serde_json::json!({}), &Samples::default(), args().load()).conditions;
        for part in Part::value_variants() {
            assert!(conditions.get(part.key()).is_none(), "{part:?}");
        }
    }

    #[test]
    fn what_was_written_is_drawn_without_measuring() {
        let folder = crate::folder::Folder::new().expect("a folder");
        let file = folder.path().join("report.json");
        let mut samples = Samples::default();
        samples.add("upf.uplink.ns", 90.0, "ns");
        report(serde_json::json!({}), &samples, args().load()).write_json(&file).expect("a file");
        let args = Args { from: Some(file), plots: Some(folder.path().join("plots")), ..args() };
        let outcome = run(&args).expect("a report");
        draw(&args, &outcome.report).expect("a picture");
        assert!(folder.path().join("plots/worker.svg").is_file());
        assert!(!folder.path().join("plots/skew.svg").exists());
    }

    #[test]
    fn as_many_sessions_are_active_as_are_said_and_there() {
        let args = |sessions, active| Args { sessions, active, ..args() };
        let of = |load: Load| (load.sessions, load.active);
        assert_eq!(of(args(None, None).many()), (100_000, 65_536));
        assert_eq!(of(args(None, None).load()), (1_000, 1_000));
        assert_eq!(of(args(Some(500), None).many()), (500, 500));
        assert_eq!(of(args(Some(500), Some(40)).load()), (500, 40));
    }
}
