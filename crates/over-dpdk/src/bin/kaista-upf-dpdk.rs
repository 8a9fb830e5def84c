//! The User Plane Function as an executable whose ports may be DPDK's.

use std::path::PathBuf;

use clap::Parser;

/// 5G User Plane Function over DPDK: as kaista-upf, and its ports may be `dpdk:DEVICE[,ARGUMENT=VALUE...]`
///
/// A worker whose ports are DPDK's polls: it has its core to itself. Hugepages are needed, and the right to use the devices.
#[derive(Parser)]
#[command(name = "kaista-upf-dpdk", version)]
struct Arguments {
    /// The configuration, see docs/upf.md; names of ports are in docs/dpdk.md.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    dpdk::add_to_ports();
    upf::program::run(&arguments.config)
}
