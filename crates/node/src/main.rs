//! `kaistad`, the node daemon: `kaistad` starts it in the background, `kaistad --foreground` under a service manager. The
//! other subcommands are the parts that it is made of; it starts them itself.

use std::io::IsTerminal;

use clap::{Parser, Subcommand};
use node::keeper::{self, Begin};
use node::{daemon, launch, pump};

/// Keeps slices running on this host. `kaista up` starts it where it does not run.
#[derive(Parser)]
#[command(name = "kaistad", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Stay in the foreground and keep the node running, also while there is no slice
    #[arg(long)]
    foreground: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// Parent of containers and pumps
    #[command(hide = true)]
    Keeper {
        /// Standard input is the daemon's socket, not the node's lock
        #[arg(long)]
        resume: bool,
        /// The daemon stays when no slice is left
        #[arg(long)]
        stay: bool,
    },
    /// The daemon itself
    #[command(hide = true)]
    Daemon {
        /// Stay when no slice is left
        #[arg(long)]
        stay: bool,
    },
    /// Moves frames between a port and a kernel interface
    #[command(hide = true)]
    Pump(pump::Options),
}

fn main() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // They would go to standard error as well, and a thread that cannot write there panics.
        .log_internal_errors(false)
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_env("KAISTA_LOG").unwrap_or_else(|_| "info".into()))
        .init();
    let arguments = Arguments::parse();
    let result = match arguments.part {
        None if arguments.foreground => launch::foreground(),
        None => launch::background(),
        Some(Part::Keeper { resume, stay }) => {
            keeper::run(if resume { Begin::WithDaemon } else { Begin::WithLock }, stay)
        }
        Some(Part::Daemon { stay }) => daemon::run(stay),
        Some(Part::Pump(options)) => pump::run(&options),
    };
    if let Err(e) = result {
        eprintln!("kaistad: {e:#}");
        std::process::exit(1);
    }
}
