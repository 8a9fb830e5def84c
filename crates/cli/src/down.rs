//! `kaista down`: slices and everything that belonged to them taken away.

use crate::{
    args::Down,
    check::Descriptor,
    follow::strange,
    out,
    outcome::{Failure, Outcome},
    up::tell,
};
use node::{
    control::{CallError, Client, Reply, Request, ensure_daemon},
    paths::Paths,
};
use slice::HostFacts;
use std::{fs, path::Path, process::ExitCode, time::Duration};

/// How long daemon and keeper may take to end after the last slice.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: &Down) -> Outcome {
    let mut slices = args.slices.clone();
    if let Some(file) = &args.file {
        let slice = Descriptor::read(file)?.require(&HostFacts::default())?;
        slices.push(slice.name().into());
    }
    let paths = Paths::from_env();
    let client = Client::new(paths.clone());
    // With no daemon there may still be what a killed one left behind; a new one finds and removes it.
    if holds_something(&paths.descriptors()) || holds_something(&paths.records()) {
        ensure_daemon(&paths)?;
    }
    let mut closed = None;
    let request = Request::Down { slices: slices.clone() };
    let reply = client.call(&request, |event| {
        if let Err(error) = tell(&event) {
            closed.get_or_insert(error);
        }
    });
    let (gone, stopping) = match reply {
        Ok(Reply::Down { slices, stopping }) => (slices, stopping),
        Ok(other) => return Err(strange(&other)),
        Err(CallError::NotRunning) => (Vec::new(), false),
        Err(error) => return Err(error.into()),
    };
    if stopping && !client.wait_stopped(PATIENCE).unwrap_or(false) {
        let log = paths.daemon_log();
        return Err(Failure::failed(format!("the slices are gone, but kaistad does not end; see {}", log.display())));
    }
    if let Some(error) = closed {
        return Err(error.into());
    }
    for slice in &gone {
        out::line(&format!("{slice} is down"))?;
    }
    for slice in slices.iter().filter(|slice| !gone.contains(slice)) {
        out::say(&format!("{slice} was not up"));
    }
    if args.all && gone.is_empty() {
        out::say("no slice was up");
    }
    Ok(ExitCode::SUCCESS)
}

fn holds_something(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}
