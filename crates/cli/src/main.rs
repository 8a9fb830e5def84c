//! `kaista`: describe a slice, run it, look into it.

mod args;
mod check;
mod diagnostics;
mod down;
mod exec;
mod follow;
mod list;
mod logs;
mod out;
mod outcome;
mod pcap;
mod publish;
mod replace;
mod scale;
mod top;
mod up;
mod upf;

use args::{Arguments, Command};
use clap::Parser;
use outcome::Outcome;
use std::process::ExitCode;

fn main() -> ExitCode {
    outcome::exit_code(run(Arguments::parse().command))
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Check(args) => check::run(&args),
        Command::Up(args) => up::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Replace(args) => replace::run(&args),
        Command::Down(args) => down::run(&args),
        Command::Ls(args) => list::slices(&args),
        Command::Ps(args) => list::processes(&args),
        Command::Top(args) => top::run(&args),
        Command::Pcap(args) => pcap::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Status(args) => list::status(&args),
        Command::Upf(args) => upf::run(&args),
        Command::Bench(args) => Ok(bench::cli::run(&args).map(|()| ExitCode::SUCCESS)?),
        Command::Schema => publish::schema(),
        Command::Completions(args) => publish::completions(args.shell),
        Command::Man(args) => publish::man_pages(&args.directory),
        Command::Version(args) => publish::version(&args),
    }
}
