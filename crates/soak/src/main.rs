//! `kaista-soak` runs campaigns against the ports at full length, and ends with one line for each. Its hidden parts are the
//! processes that campaigns consist of; it starts them itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use nix::sys::signal::{SigSet, Signal};
use node::keeper::{self, Begin};
use node::{daemon, launch};
use soak::course::{self, Course};
use soak::outcome::Outcome;
use soak::site::Site;
use soak::{end, hand, hostile, kills, liar, member, pools, process, replace, restarts, steering, upf_kills, victim};

/// Kills, restarts, steers, pools and deceives ports for a long time, kills and replaces a UPF; says what was lost, reordered,
/// duplicated, corrupted, leaked.
#[derive(Parser)]
#[command(name = "kaista-soak", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// How long each campaign against ports takes at least; it goes on until its events have happened
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds_each: u64,
    /// How many events each campaign has at least, instead of as many as belong to it
    #[arg(long, value_name = "NUMBER")]
    events: Option<u64>,
    /// Have `kills` fail where packets take longer than 100 ms to flow again. For a machine that does nothing else
    #[arg(long)]
    timely: bool,
    /// How many sessions the UPF has
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    sessions: u32,
    /// Only these campaigns
    campaigns: Vec<Campaign>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Campaign {
    /// Producer, consumer, daemon and keeper are killed and stopped
    Kills,
    /// The daemon is replaced under load
    Restarts,
    /// Owners of buckets change under load
    Steering,
    /// Members of a pool are started, drained and killed under load
    Pools,
    /// A peer breaks every rule
    Hostile,
    /// A UPF is killed under traffic of all its sessions
    UpfKills,
    /// A UPF is replaced under traffic of all its sessions
    Replace,
}

#[derive(Subcommand)]
enum Part {
    /// Starts keeper and daemon
    #[command(hide = true)]
    Node,
    /// As of `kaistad`
    #[command(hide = true)]
    Keeper {
        #[arg(long)]
        resume: bool,
        #[arg(long)]
        stay: bool,
    },
    /// As of `kaistad`
    #[command(hide = true)]
    Daemon {
        #[arg(long)]
        stay: bool,
    },
    /// All that a campaign's containers do
    #[command(hide = true)]
    Idle,
    /// A process at an end of a link
    #[command(hide = true)]
    End(end::Options),
    /// One that speaks the handshake by hand
    #[command(hide = true)]
    Hand(hand::Options),
    /// Who is attacked
    #[command(hide = true)]
    Victim(victim::Options),
    /// Who attacks
    #[command(hide = true)]
    Liar(liar::Options),
    /// A member of a pool
    #[command(hide = true)]
    Member(member::Options),
    /// As `kaista-upf`
    #[command(hide = true)]
    Upf {
        #[arg(long)]
        config: PathBuf,
    },
}

impl Campaign {
    /// Full length, besides the time.
    fn events(self) -> u64 {
        match self {
            Self::Kills => 1_000,
            Self::Restarts => 100,
            // Of three parts together.
            Self::Steering => 30_000,
            Self::Pools => 1_000,
            Self::Hostile => 10_000,
            Self::UpfKills => 100,
            Self::Replace => 20,
        }
    }

    /// Whether its length is a matter of time, too.
    fn lasts(self) -> bool {
        !matches!(self, Self::UpfKills | Self::Replace)
    }

    fn missing(self) -> Option<String> {
        match self {
            Self::Kills | Self::Restarts => Site::missing(),
            Self::Steering | Self::Pools | Self::Hostile | Self::UpfKills | Self::Replace => None,
        }
    }

    fn run(self, arguments: &Arguments, program: &Path) -> Result<Outcome> {
        let seconds = if self.lasts() { arguments.seconds_each } else { 0 };
        let events = arguments.events.unwrap_or(self.events());
        let mut course = Course::begin(Duration::from_secs(seconds), events, true);
        course.is_timely = arguments.timely;
        match self {
            Self::Kills => kills::run(&course, program),
            Self::Restarts => restarts::run(&course, program),
            Self::Steering => steering::run(&course),
            Self::Pools => pools::run(&course, program),
            Self::Hostile => hostile::run(&course, program),
            Self::UpfKills => upf_kills::run(&course, program, arguments.sessions),
            Self::Replace => replace::run(&course, program, arguments.sessions),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kills => "kills",
            Self::Restarts => "restarts",
            Self::Steering => "steering",
            Self::Pools => "pools",
            Self::Hostile => "hostile",
            Self::UpfKills => "upf-kills",
            Self::Replace => "replace",
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    // It has a log of its own.
    if !matches!(arguments.part, Some(Part::Upf { .. })) {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    }
    let done = match arguments.part.take() {
        Some(Part::Node) => launch::background(),
        Some(Part::Keeper { resume, stay }) => {
            keeper::run(if resume { Begin::WithDaemon } else { Begin::WithLock }, stay)
        }
        Some(Part::Daemon { stay }) => daemon::run(stay),
        Some(Part::Idle) => idle(),
        Some(Part::End(options)) => end::run(&options),
        Some(Part::Hand(options)) => hand::run(&options),
        Some(Part::Victim(options)) => victim::run(&options),
        Some(Part::Liar(options)) => liar::run(&options),
        Some(Part::Member(options)) => member::run(&options),
        Some(Part::Upf { config }) => {
            process::die_with_parent();
            upf::program::run(&config)
        }
        None => return campaigns(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kaista-soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Waits to be ended.
fn idle() -> Result<()> {
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    signals.thread_block()?;
    signals.wait()?;
    Ok(())
}

/// Runs them one after the other; after Ctrl-C, no more of them.
fn campaigns(arguments: &Arguments) -> ExitCode {
    end_by_signals();
    let all = Campaign::value_variants();
    let chosen = if arguments.campaigns.is_empty() { all } else { arguments.campaigns.as_slice() };
    let program = std::env::current_exe().expect("a program has a name");
    let (mut lines, mut clean) = (Vec::new(), true);
    for campaign in chosen.iter().filter(|_| !course::is_stopped()) {
        if let Some(reason) = campaign.missing() {
            println!("SKIPPED {}: {reason}", campaign.name());
            continue;
        }
        let outcome = campaign
            .run(arguments, &program)
            .unwrap_or_else(|error| Outcome { failures: vec![format!("{error:#}")], ..Outcome::new(campaign.name()) });
        outcome.remarks().for_each(|remark| println!("{remark}"));
        clean &= outcome.is_clean();
        lines.push(outcome.to_string());
    }
    lines.iter().for_each(|line| println!("{line}"));
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// SIGINT and SIGTERM end the campaign that runs, and the lines so far are printed.
fn end_by_signals() {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    // Before any other thread: all of them inherit it.
    if signals.thread_block().is_ok() {
        std::thread::spawn(move || {
            while signals.wait().is_ok() {
                course::stop();
            }
        });
    }
}
