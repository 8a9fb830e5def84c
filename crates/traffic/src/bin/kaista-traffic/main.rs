//! `kaista-traffic`: loads a path, judges what comes through, sends it back, or just forwards.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod common;
mod forward;
mod generate;
mod load;
mod reflect;
mod replay;
mod search;
mod take;

/// Traffic for ports of a slice: generate it, judge it, send it back, forward it, find the rate that a path passes.
///
/// Ports are named as functions name them: `n3` (shared memory, by the broker at $KAISTA_PORTS), `tap:NAME`,
/// `packet:INTERFACE`; for kaista-traffic-dpdk also `dpdk:DEVICE[,ARGUMENT=VALUE...]`, see docs/dpdk.md. docs/traffic.md has
/// examples.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Offer packets at a fixed rate, whether or not anyone keeps up
    ///
    /// SIGINT and SIGTERM end it early; what was sent and found until then is printed.
    Generate(generate::Generate),
    /// Find the highest rate that a path passes with no more than a stated loss
    ///
    /// Trial by trial (RFC 2544, 26.1, by bisection). Packets that the port refuses are lost, too. SIGINT and SIGTERM end it
    /// early; what was found until then is printed.
    Search(search::Search),
    /// Take generated packets and report loss, duplicates, reordering and latency
    ///
    /// SIGINT and SIGTERM end it early; what was found until then is printed.
    Sink(take::Take),
    /// Send generated packets back to where they came from, for `--mirrored`
    ///
    /// SIGINT and SIGTERM end it; what was counted until then is printed.
    Reflect(reflect::Reflect),
    /// Send every frame back, or out of a second port
    ///
    /// SIGINT and SIGTERM end it once what waits was sent on; what was counted until then is printed.
    Forward(forward::Forward),
    /// Send the frames of a capture over and over as fast as a port takes them, and count them at another one
    ///
    /// SIGINT and SIGTERM end it early; what was counted until then is printed.
    Replay(replay::Replay),
}

fn main() -> ExitCode {
    run_as("kaista-traffic")
}

/// What the program does, under one of its names; the other is `kaista-traffic-dpdk`.
pub fn run_as(name: &'static str) -> ExitCode {
    let cli = Cli::from_arg_matches(&Cli::command().name(name).get_matches()).unwrap_or_else(|error| error.exit());
    let done = match cli.command {
        Command::Generate(args) => generate::run(&args),
        Command::Search(args) => search::run(&args),
        Command::Sink(args) => take::run(&args),
        Command::Reflect(args) => reflect::run(&args),
        Command::Forward(args) => forward::run(&args),
        Command::Replay(args) => replay::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            if error.is::<common::Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
