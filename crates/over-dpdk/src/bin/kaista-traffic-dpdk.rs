//! `kaista-traffic` as an executable whose ports may be DPDK's: the same program, which knows one kind of port more.

#[path = "../../../traffic/src/bin/kaista-traffic/main.rs"]
mod program;

fn main() -> std::process::ExitCode {
    dpdk::add_to_ports();
    program::main()
}
