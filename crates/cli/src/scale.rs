//! `kaista scale`: how many replicas a pool has.

use crate::{
    args::Scale,
    out::{self, Paint, counted},
    outcome::Outcome,
    up,
};
use node::{
    control::{Client, Request},
    paths::Paths,
};
use std::{process::ExitCode, time::Instant};

pub fn run(args: &Scale) -> Outcome {
    let begin = Instant::now();
    let paths = Paths::from_env();
    let client = Client::new(paths.clone());
    let request = Request::Scale { function: args.pool.clone(), replicas: args.replicas };
    let (slice, changes) = up::bring_up(&paths, &client, &request)?;
    up::wait_until_well(&client, &slice, begin, args.timeout)?;
    let name = Paint::stdout().bold(&format!("{slice}/{}", args.pool.function));
    let replicas = counted(args.replicas.into(), "replica");
    let seconds = begin.elapsed().as_secs_f64();
    out::line(&match changes {
        0 => format!("{name} has {replicas}; nothing to change"),
        _ => format!("{name} has {replicas}, {seconds:.1} s"),
    })?;
    Ok(ExitCode::SUCCESS)
}
