//! `kaista bench`: arguments, and where the results go.

use std::path::PathBuf;

use clap::Subcommand;

use crate::metric::{Outcome, Report};
use crate::{count, link, n4, upf};

/// Measure this machine and print figures with their conditions.
#[derive(Clone, Debug, clap::Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Our links, direct and zero-copy, beside testpmd, bare copies and bare wake-ups
    ///
    /// Throughput of two forwarders in turns with testpmd over vhost-user and memif, the share that the port reaches of a
    /// bare copy, latency of one packet at a time, cost of a chain of functions, and cost of idle ones. A cache line's
    /// round trip between the cores is measured beside each.
    Link {
        #[command(flatten)]
        args: link::Args,
        #[command(flatten)]
        output: Output,
    },
    /// The UPF: its packet work, its execution models, workers that come and go
    ///
    /// One worker beside a plain forwarder, then against payloads, sessions and workers, latency, pipeline beside run to
    /// completion, dynamic scaling, skew, over DPDK's ports beside testpmd, and in a container. What was published stands beside it.
    Upf {
        #[command(flatten)]
        args: upf::Args,
        #[command(flatten)]
        output: Output,
    },
    /// Session establishments beside a worker that forwards, and the memory of a session
    ///
    /// The worker forwards at 80 % of the rate at which it loses nothing, fed by an open-loop source through a queue of 4,096
    /// packets. Every session accepted gets a packet each way at once.
    N4 {
        #[command(flatten)]
        args: n4::Args,
        #[command(flatten)]
        output: Output,
    },
    /// Instructions of a packet, counted by valgrind
    Instructions {
        #[command(flatten)]
        args: count::Args,
        #[command(flatten)]
        output: Output,
    },
    /// The program that `instructions` counts
    #[command(hide = true, subcommand)]
    Counted(count::Counted),
    /// The program that `upf` measures in a container
    #[command(hide = true)]
    Contained(upf::Contained),
    /// The program that `link` measures latency with
    #[command(hide = true)]
    Partner(link::partner::Partner),
}

/// Where the results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Output {
    /// Write the conditions and metrics to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs what the arguments say.
pub fn run(bench: &Bench) -> anyhow::Result<()> {
    match &bench.what {
        What::Link { args, output } => output.take(link::run(args)?, |_| Ok(())),
        What::Upf { args, output } => {
            let outcome = upf::run(args)?;
            let drawn = upf::draw(args, &outcome.report);
            first_of([drawn, output.take(outcome, upf::print_published)])
        }
        What::N4 { args, output } => output.take(n4::run(args)?, |_| Ok(())),
        What::Instructions { args, output } => output.take(count::run(args)?, |_| Ok(())),
        What::Counted(counted) => count::be_counted(counted),
        What::Contained(contained) => upf::be_contained(contained),
        What::Partner(partner) => link::partner::be_partner(partner),
    }
}

impl Output {
    /// Writes the file and prints, and fails where not all could be measured. The file comes first: it is there whoever closes the
    /// pipe.
    fn take(&self, outcome: Outcome, more: impl FnOnce(&Report) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let Outcome { report, failure } = outcome;
        let written = self.json.as_ref().map_or(Ok(()), |path| report.write_json(path));
        let printed = report.print(&mut std::io::stdout().lock()).map_err(anyhow::Error::from);
        let printed = printed.and_then(|()| more(&report));
        first_of([written, failure.map_or(Ok(()), Err), printed])
    }
}

/// The first error, if any: whatever of it failed, all was done.
fn first_of<const N: usize>(done: [anyhow::Result<()>; N]) -> anyhow::Result<()> {
    done.into_iter().collect()
}

/// Seconds of a run.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.001 to 86400".to_owned()),
    }
}
