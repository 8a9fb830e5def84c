//! `kaista bench link`: what our links cost, part by part, each beside what it is compared with, and with a cache
//! line's round trip between the two cores measured before and after.
//!
//! - [`throughput`]: two forwarders, beside testpmd over vhost-user and memif;
//! - [`raw`]: one way, beside a bare copy of the same records;
//! - [`latency`]: one packet at a time, beside half a round trip and beside a bare eventfd;
//! - [`chain`]: functions in a row on one core, beside testpmd as the switch between them;
//! - [`idle`]: what functions cost that have nothing to do.

use anyhow::anyhow;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value, json};
use vport::broker::{RING_BYTES_DEFAULT, RING_BYTES_MAX, RING_BYTES_MIN};

use crate::metric::{Outcome, Report, Samples};
use crate::progress::Progress;
use crate::rounds::{Rounds, Taken};
use crate::{conditions, cores, hugepages, testpmd};

pub mod chain;
pub mod idle;
pub mod latency;
pub mod partner;
pub mod raw;
pub mod throughput;

pub use throughput::{BUSY_ENOUGH, Kind, RETRIES};

/// Hugepages for our links, beside those of testpmd: the record areas of nine links at most, or the buffers of two zero-copy
/// ones (20 of 2 MiB).
const OUR_HUGEPAGES: u64 = 2 * 9 + 6;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rounds; in each, everything is measured once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Length of each run in seconds
    #[arg(long, default_value_t = 1.0, value_parser = crate::cli::seconds)]
    pub seconds: f64,
    /// Frame sizes in bytes, without the check sequence, of the throughput
    #[arg(long, value_delimiter = ',', default_values_t = [64, 512, 1518], value_parser = clap::value_parser!(u16).range(64..=2_000))]
    pub frames: Vec<u16>,
    /// Kinds of link whose throughput is measured; all unless some are named
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub kind: Vec<Kind>,
    /// Sizes of our links' rings in bytes, for the throughput: the best counts, as of testpmd's settings
    #[arg(long, value_delimiter = ',', default_values_t = [RING_BYTES_DEFAULT], value_name = "BYTES", value_parser = ring_bytes)]
    pub ring_bytes: Vec<u32>,
    /// Measure our links only, without testpmd
    #[arg(long)]
    pub alone: bool,
    /// Measure only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    pub only: Vec<Part>,
    /// Latency samples of each kind over all rounds
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub samples: u64,
    /// Length of idleness in seconds, before a first packet and for the cost of idle functions
    #[arg(long, default_value_t = 10.0, value_parser = crate::cli::seconds)]
    pub idle_seconds: f64,
}

fn ring_bytes(word: &str) -> Result<u32, String> {
    let bytes = word.parse().ok().filter(|bytes: &u32| bytes.is_power_of_two());
    bytes
        .filter(|bytes| (RING_BYTES_MIN..=RING_BYTES_MAX).contains(bytes))
        .ok_or_else(|| format!("a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX} is needed"))
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Packets a second of two forwarders
    Throughput,
    /// Packets a second one way, as a share of a bare copy
    Raw,
    /// Time of one packet from function to function
    Latency,
    /// Time of a packet in each of several functions in a row
    Chain,
    /// CPU time of functions that have nothing to do
    Idle,
}

impl Part {
    const ALL: [Self; 5] = [Self::Throughput, Self::Raw, Self::Latency, Self::Chain, Self::Idle];

    /// As in the arguments.
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn measure(self, bench: &Bench, args: &Args, found: &mut Found) -> anyhow::Result<()> {
        match self {
            Self::Throughput => throughput::measure(bench, args, found),
            Self::Raw => raw::measure(bench, args, found),
            Self::Latency => latency::measure(bench, args, found),
            Self::Chain => chain::measure(bench, args, found),
            Self::Idle => idle::measure(bench, args, found),
        }
    }
}

/// Measures. A part that fails keeps no other from being measured.
///
/// # Errors
/// If nothing can be measured here.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let bench = Bench {
        progress: Progress::interruptible()?,
        pages: hugepages::Reservation::at_least(2 * testpmd::HUGEPAGES + OUR_HUGEPAGES),
        cores: cores::pair()?,
    };
    let mut found = Found { conditions: conditions::of_this_machine(), ..Found::default() };
    found.conditions["hugepages_during"] = bench.pages.pages.into();
    let mut failures = Vec::new();
    for part in Part::ALL.into_iter().filter(|part| args.only.is_empty() || args.only.contains(part)) {
        let measured = part.measure(&bench, args, &mut found);
        // What a part says that was ended means nothing.
        if bench.progress.is_interrupted() {
            bench.progress.note("interrupted: what follows was measured before");
            break;
        }
        if let Err(error) = measured {
            let failure = format!("{}: {error:#}", part.name());
            bench.progress.note(&format!("failed: {failure}"));
            failures.push(failure);
        }
    }
    let metrics = found.samples.summaries();
    let mut conditions = found.conditions;
    conditions["interrupted"] = bench.progress.is_interrupted().into();
    conditions["placement"] = conditions::placement(&metrics).into();
    if let Some(conditions) = conditions.as_object_mut() {
        conditions.extend(found.parts);
        conditions.insert("failures".into(), json!(failures));
    }
    let failure = (!failures.is_empty()).then(|| anyhow!("not all could be measured: {}", failures.join("; ")));
    Ok(Outcome { report: Report { conditions, metrics }, failure })
}

/// What the parts share.
pub struct Bench {
    progress: Progress,
    pages: hugepages::Reservation,
    /// The two cores of every measurement.
    cores: [usize; 2],
}

/// What the parts have found.
#[derive(Default)]
pub struct Found {
    samples: Samples,
    conditions: Value,
    /// How each part was run.
    parts: Map<String, Value>,
}

impl Bench {
    /// Measures once a round, and again where the cores were moved meanwhile.
    fn each_round<T>(
        &self,
        rounds: u32,
        what: &str,
        found: &mut Found,
        measure: impl FnMut(&mut Vec<f64>) -> anyhow::Result<T>,
        take: impl FnMut(&mut Samples, &Taken<T>),
    ) -> anyhow::Result<Vec<Taken<T>>> {
        let rounds = Rounds { count: rounds, cores: Some(self.cores), progress: &self.progress };
        rounds.each(what, &mut found.samples, measure, take)
    }
}

/// What a part says of how it was run.
fn part(how: Value, runs: &impl Serialize) -> Value {
    json!({"how": how, "runs": runs})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_the_sizes_that_links_may_have() {
        assert_eq!(["131072", "1048576", "67108864"].map(ring_bytes), [Ok(1 << 17), Ok(1 << 20), Ok(1 << 26)]);
        for word in ["0", "65536", "1000000", "134217728", "4294967296", "-1", "1MiB", ""] {
            assert!(ring_bytes(word).is_err_and(|error| error.contains("a power of two from")), "{word}");
        }
    }
}
