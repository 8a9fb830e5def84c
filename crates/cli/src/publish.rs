//! What the program says of itself: the descriptor's schema, completions, manual pages, versions.

use crate::{
    args::{Arguments, Version},
    out,
    outcome::{Failure, Outcome},
};
use clap::CommandFactory;
use node::{
    control::{Client, Reply, Request},
    paths::Paths,
};
use serde_json::json;
use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

pub fn schema() -> Outcome {
    out::json(&slice::schema())?;
    Ok(ExitCode::SUCCESS)
}

pub fn completions(shell: clap_complete::Shell) -> Outcome {
    // Into memory first: the generator panics when it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "kaista", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub fn man_pages(directory: &Path) -> Outcome {
    let unwritable = |error| Failure::failed(format!("cannot write manual pages to {}: {error}", directory.display()));
    fs::create_dir_all(directory).map_err(unwritable)?;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(unwritable)?;
    Ok(ExitCode::SUCCESS)
}

pub fn version(args: &Version) -> Outcome {
    let daemon = match Client::new(Paths::from_env()).call(&Request::Status, |_| {}) {
        Ok(Reply::Status(status)) => Some(status.version),
        _ => None,
    };
    let own = env!("CARGO_PKG_VERSION");
    if args.json {
        out::json(&json!({"kaista": own, "kaistad": daemon}))?;
    } else {
        out::line(&format!("kaista  {own}"))?;
        out::line(&format!("kaistad {}", daemon.as_deref().unwrap_or("does not run here")))?;
    }
    Ok(ExitCode::SUCCESS)
}
