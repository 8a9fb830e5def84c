//! `kaista upf`: a UPF without a slice.

use crate::{args::Upf, outcome::Outcome};
use std::process::ExitCode;

pub fn run(args: &Upf) -> Outcome {
    upf::program::run(&args.config)?;
    Ok(ExitCode::SUCCESS)
}
