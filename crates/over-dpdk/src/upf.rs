//! The User Plane Function.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

/// 5G User Plane Function over DPDK: as kaista-upf, and its ports may be `dpdk:DEVICE[,ARGUMENT=VALUE...]`
///
/// A worker whose ports are DPDK's polls: it has its core to itself. Hugepages are needed, and the right to use the devices.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The configuration, see docs/upf.md; names of ports are in docs/dpdk.md.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// End when the process ends that started this one, however it ends.
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// What the program does.
pub fn run_as(name: &'static str) -> ExitCode {
    let arguments = Arguments::command().name(name).get_matches();
    let arguments = Arguments::from_arg_matches(&arguments).unwrap_or_else(|error| error.exit());
    if arguments.die_with_parent {
        ::traffic::interrupt::die_with_parent();
    }
    match ::upf::program::run(&arguments.config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
