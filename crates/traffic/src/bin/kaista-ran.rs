//! `kaista-ran`: a gNB with its UEs, and the session manager that gives them sessions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use tracing_subscriber::EnvFilter;
use traffic::ran::config::Config;
use traffic::ran::run::run;

/// RAN simulator: carries the packets of any program on the UE's interface through GTP-U, over sessions that it
/// establishes with real PFCP.
///
/// Runs until SIGTERM, and then deletes its sessions. KAISTA_LOG sets what is logged (info by default).
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/kaista/ran.yaml")]
    config: PathBuf,
    /// Check the configuration and end
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    run_as("kaista-ran")
}

/// What the program does, under one of its names; the other is `kaista-ran-dpdk`.
pub fn run_as(name: &'static str) -> ExitCode {
    let cli = Cli::from_arg_matches(&Cli::command().name(name).get_matches()).unwrap_or_else(|error| error.exit());
    let filter = EnvFilter::try_from_env("KAISTA_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    let done = Config::read(&cli.config).and_then(|config| if cli.check { Ok(()) } else { run(&config) });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
