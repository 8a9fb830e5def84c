//! The User Plane Function as an executable.

use std::path::PathBuf;

use clap::Parser;

/// 5G User Plane Function: forwards between the RAN (N3, GTP-U) and a data network (N6) what session managers (N4, PFCP)
/// tell it to.
#[derive(Parser)]
#[command(name = "kaista-upf", version)]
struct Arguments {
    /// The configuration, see docs/upf.md.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> anyhow::Result<()> {
    upf::program::run(&Arguments::parse().config)
}
