//! `kaista bench`: arguments, and where the results go.

use std::path::PathBuf;

use clap::Subcommand;

use crate::metric::Report;
use crate::{count, link, upf};

/// Measure this machine and print figures with their conditions.
#[derive(Clone, Debug, clap::Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Direct links beside testpmd over vhost-user and memif
    ///
    /// Two processes, each on a core of its own, forward between two ports; packets circulate. The systems take turns, and
    /// a cache line's round trip between the cores is measured before each run.
    Link {
        #[command(flatten)]
        args: link::Args,
        #[command(flatten)]
        output: Output,
    },
    /// One worker of the UPF beside a plain forwarder
    ///
    /// Both take the same frames from memory, uplink and downlink, in turns. What the UPF's packet work costs is the
    /// difference.
    Upf {
        #[command(flatten)]
        args: upf::Args,
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
    #[command(hide = true)]
    Counted(count::Counted),
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
        What::Link { args, output } => output.take(&link::run(args)?),
        What::Upf { args, output } => output.take(&upf::run(args)?),
        What::Instructions { args, output } => output.take(&count::run(args)?),
        What::Counted(counted) => count::be_counted(counted),
    }
}

impl Output {
    fn take(&self, report: &Report) -> anyhow::Result<()> {
        report.print(&mut std::io::stdout().lock())?;
        self.json.as_ref().map_or(Ok(()), |path| report.write_json(path))
    }
}
