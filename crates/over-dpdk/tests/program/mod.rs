//! The programs under test, each by its name.

use std::os::unix::process::CommandExt;
use std::process::Command;

pub fn program(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kaista-dpdk"));
    command.arg0(name);
    command
}
