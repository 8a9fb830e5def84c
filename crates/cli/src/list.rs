//! `kaista ls`, `ps` and `status`: what there is, as tables or JSON.

use crate::{
    args::{Ls, Ps, Status},
    follow::strange,
    out::{self, age, bytes, plain},
    outcome::{Failure, Outcome},
};
use node::{
    control::{CallError, Client, Process, ProcessKind, ProcessState, Reply, Request, SliceState, SliceSummary},
    paths::Paths,
};
use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

pub fn slices(args: &Ls) -> Outcome {
    let slices = match call(&Request::List)? {
        Some(Reply::Slices { slices }) => slices,
        None => Vec::new(),
        Some(other) => return Err(strange(&other)),
    };
    if args.json {
        out::json(&slices)?;
    } else {
        let rows = slices.iter().map(slice_row).collect();
        out::print_table(&out::table(&["SLICE", "STATE", "FUNCTIONS", "LINKS", "AGE"], rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn processes(args: &Ps) -> Outcome {
    let processes = match call(&Request::Processes { slice: args.slice.clone() })? {
        Some(Reply::Processes { processes }) => processes,
        None => Vec::new(),
        Some(other) => return Err(strange(&other)),
    };
    if args.json {
        out::json(&processes)?;
    } else {
        let mut head =
            vec!["SLICE", "NAME", "KIND", "STATE", "PID", "CORES", "CPU", "MEMORY", "AGE", "RESTARTS", "LAST EXIT"];
        let mut rows: Vec<_> = processes.iter().map(process_row).collect();
        if processes.iter().any(|process| process.replica_of.is_some()) {
            head.insert(SHARE_AT, "SHARE");
            rows.iter_mut().zip(&processes).for_each(|(row, process)| row.insert(SHARE_AT, share(process)));
        }
        out::print_table(&out::table(&head, rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn status(args: &Status) -> Outcome {
    let reply = Client::new(Paths::from_env()).call(&Request::Status, |_| {})?;
    let Reply::Status(status) = reply else { return Err(strange(&reply)) };
    if args.json {
        out::json(&status)?;
        return Ok(ExitCode::SUCCESS);
    }
    let manner = if status.foreground { "as a service" } else { "until the last slice is down" };
    let rows = [
        ("kaistad", format!("{}, runs {manner}", status.version)),
        ("daemon", format!("pid {}, started again {} times", status.daemon_pid, status.daemon_restarts)),
        ("keeper", format!("pid {}, holds {} descriptors", status.keeper_pid, status.kept_descriptors)),
        ("slices", status.slices.to_string()),
        ("socket", Paths::from_env().control_socket().display().to_string()),
    ];
    for (name, value) in rows {
        out::line(&format!("{name:8} {value}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the daemon; none, and said so, if no daemon runs, for then nothing else does.
fn call(request: &Request) -> Result<Option<Reply>, Failure> {
    match Client::new(Paths::from_env()).call(request, |_| {}) {
        Ok(reply) => Ok(Some(reply)),
        Err(CallError::NotRunning) => {
            out::say("no kaistad runs here; `kaista up FILE` starts it");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn slice_row(slice: &SliceSummary) -> Vec<String> {
    let state = match slice.state {
        SliceState::Changing => "changing",
        SliceState::Up => "up",
        SliceState::Degraded => "degraded",
    };
    let functions = format!("{}/{}", slice.running, slice.functions);
    let links = format!("{}/{}", slice.connected, slice.links);
    vec![slice.name.clone(), state.into(), functions, links, since(slice.since_ms)]
}

/// Column of the share, where there is one.
const SHARE_AT: usize = 4;

fn share(process: &Process) -> String {
    process.share.map_or_else(|| "-".into(), |share| format!("{:.0} %", 100.0 * share))
}

fn process_row(process: &Process) -> Vec<String> {
    let kind = match process.kind {
        ProcessKind::Function => "function",
        ProcessKind::Pump => "pump",
    };
    let state = match process.state {
        ProcessState::Running => "running",
        ProcessState::Waiting => "waiting",
        ProcessState::Ended => "ended",
    };
    let dash = || "-".to_owned();
    vec![
        process.slice.clone(),
        process.name.clone(),
        kind.into(),
        state.into(),
        process.pid.map_or_else(dash, |pid| pid.to_string()),
        process.cpus.clone(),
        process.cpu_ns.map_or_else(dash, |ns| format!("{:.1} s", ns as f64 / 1e9)),
        process.memory_bytes.map_or_else(dash, bytes),
        process.started_ms.map_or_else(dash, since),
        process.restarts.to_string(),
        process.last_exit.as_deref().map_or_else(dash, plain),
    ]
}

/// The age of something that began at a time in milliseconds since 1970.
fn since(milliseconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
    age(u64::try_from(now).unwrap_or(u64::MAX).saturating_sub(milliseconds))
}
