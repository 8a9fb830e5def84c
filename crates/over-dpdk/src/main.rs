//! `kaista-upf`, `kaista-ran` and `kaista-traffic` with one kind of port more, DPDK's: one executable that acts as the program
//! by whose name it is called. Three would each be linked with all of DPDK.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

#[path = "../../traffic/src/bin/kaista-ran.rs"]
#[expect(dead_code, reason = "that program's own main")]
mod ran;
#[path = "../../traffic/src/bin/kaista-traffic/main.rs"]
#[expect(dead_code, reason = "that program's own main")]
mod traffic;
mod upf;

/// What a program does, under the name that it is given.
type Run = fn(&'static str) -> ExitCode;

/// The programs, each by its name.
const PROGRAMS: [(&str, Run); 3] =
    [("kaista-upf-dpdk", upf::run_as), ("kaista-ran-dpdk", ran::run_as), ("kaista-traffic-dpdk", traffic::run_as)];

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let called = Path::new(&called).file_name().unwrap_or_default();
    let Some((name, run_as)) = PROGRAMS.into_iter().find(|(name, _)| OsStr::new(name) == called) else {
        let names = PROGRAMS.map(|(name, _)| name).join(", ");
        eprintln!("{}: acts as the program by whose name it is called: {names}", called.display());
        return ExitCode::FAILURE;
    };
    dpdk::add_to_ports();
    run_as(name)
}
