//! Requests, one a connection.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use slice::Slice;
use vport::steering::BUCKETS;

use super::{Daemon, capture, exec, stats, upf};
use crate::control::wire::{self, Lines};
use crate::control::{
    Event, Failure, FunctionRef, Process, ProcessKind, ProcessState, Reply, Request, SliceSummary, Status,
};
use crate::logs;
use crate::pools;
use crate::record;
use crate::worker::{Command, Handle, Outcome, View};

/// How long a client may take to say what it wants, or to read what it is told.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a request ends.
pub(super) type Answer = Result<Reply, Failure>;

/// A sentence, as a failure.
pub(super) fn refuse(message: impl Into<String>) -> Failure {
    Failure { message: message.into(), details: Vec::new() }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        refuse(format!("{error:#}"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        refuse(error.to_string())
    }
}

impl From<slice::Report> for Failure {
    fn from(report: slice::Report) -> Self {
        Self {
            message: "the descriptor has mistakes".into(),
            details: report.mistakes().iter().map(ToString::to_string).collect(),
        }
    }
}

/// Serves one connection to its end.
pub(super) fn connection(daemon: &Arc<Daemon>, stream: UnixStream) {
    // Somebody who connects and says nothing does not hold the connection for ever.
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let mut lines = Lines::new(stream);
    let (request, fds) = match lines.next::<Request>() {
        Ok(Some(request)) => request,
        Ok(None) => return,
        Err(e) => {
            let _ = wire::send(lines.stream(), &Event::Failed(refuse(format!("not understood: {e}"))), &[]);
            return;
        }
    };
    let _ = lines.stream().set_read_timeout(None);
    let _ = lines.stream().set_write_timeout(patience(&request));
    let brief = is_brief(&request).then(|| daemon.brief.clone());
    let shutdown = matches!(request, Request::Shutdown { .. });
    let Some(answer) = answer(daemon, &mut lines, request, fds) else { return };
    // Where an attempt was the only slice, the daemon has nothing to stay for either.
    let ends = match &answer {
        Ok(Reply::Down { stopping, .. }) => *stopping,
        Ok(_) => shutdown,
        Err(_) => brief.is_some() && daemon.ends_with_last_slice(),
    };
    let event = match answer {
        Ok(reply) => Event::Done(reply),
        Err(failure) => Event::Failed(failure),
    };
    let _ = wire::send(lines.stream(), &event, &[]);
    drop(brief);
    if ends {
        daemon.end();
    }
}

/// How long the client may leave unread what it is told; none: as long as it likes, since a pager reads as somebody turns pages.
fn patience(request: &Request) -> Option<Duration> {
    match request {
        Request::Logs { .. } | Request::Stats { interval_ms: Some(_), .. } => None,
        _ => Some(PATIENCE),
    }
}

/// Whether a request ends by itself, soon enough for the daemon's end to wait for it.
fn is_brief(request: &Request) -> bool {
    match request {
        Request::Logs { follow, .. } => !follow,
        Request::Stats { interval_ms, .. } => interval_ms.is_none(),
        Request::Exec { .. } | Request::Pcap { .. } => false,
        _ => true,
    }
}

/// None: the daemon is ending, and the client is to ask the next one.
fn answer(daemon: &Arc<Daemon>, lines: &mut Lines, request: Request, fds: Vec<OwnedFd>) -> Option<Answer> {
    Some(match request {
        Request::Up { descriptor, base } => {
            let coming = daemon.coming()?;
            let answer = up(daemon, lines.stream(), &descriptor, &base);
            drop(coming);
            answer
        }
        Request::Scale { function, replicas } => scale(daemon, lines.stream(), &function, replicas),
        Request::Replace { function } => replace(daemon, lines.stream(), &function),
        Request::Down { slices } => down(daemon, lines.stream(), slices),
        Request::List => Ok(list(daemon)),
        Request::Processes { slice } => Ok(processes(daemon, slice.as_deref())),
        Request::Stats { slice, interval_ms } => {
            stats::serve(daemon, lines.stream(), slice.as_deref(), interval_ms.map(Duration::from_millis))
        }
        Request::Logs { function, lines: count, follow } => show_logs(daemon, lines.stream(), &function, count, follow),
        Request::Exec { function, command, env, directory, terminal } => {
            let exec =
                runtime::Exec { args: command, env: env.into_iter().collect(), cwd: directory, ..Default::default() };
            exec::serve(daemon, lines.stream(), &function, exec, terminal, fds)
        }
        Request::Pcap { function, port, snap_length, count } => {
            capture::serve(daemon, lines, &function, &port, snap_length, count, fds)
        }
        Request::Upf { function } => upf::serve(daemon, lines.stream(), function.as_ref()),
        Request::Status => Ok(status(daemon)),
        Request::Shutdown { leave_running } => shutdown(daemon, leave_running),
    })
}

/// Tells the client something on the way.
pub(super) fn tell(stream: &UnixStream, event: &Event) -> io::Result<()> {
    wire::send(stream, event, &[])
}

fn up(daemon: &Arc<Daemon>, stream: &UnixStream, text: &str, base: &Path) -> Answer {
    if !base.is_absolute() {
        return Err(refuse("the directory of the descriptor is not absolute"));
    }
    // Its own cores do not count against it, so its name is needed before its cores are looked at.
    let (slice, _) = slice::parse(text, base, &slice::HostFacts::default())?;
    let (slice, _) = slice::parse(text, base, &daemon.node.facts(Some(slice.name())))?;
    let notices = slice::unenforced(&slice).into_iter().map(|notice| notice.to_string());
    for message in notices.chain(no_hugepages(&slice)) {
        let _ = tell(stream, &Event::Notice { message });
    }
    let slice = Box::new(slice);
    let name = slice.name().to_owned();
    let (changes, handle) = command(daemon, stream, &name, |events, done| Command::Apply(slice.clone(), events, done))?;
    settle(stream, &handle);
    Ok(Reply::Up { slice: name, changes })
}

/// A fallback that somebody who looks for speed should know of.
fn no_hugepages(slice: &Slice) -> Option<String> {
    let shared = slice.spec.functions.iter().any(|function| function.ports.iter().any(|port| !port.is_kernel()));
    let none = runtime::HugePages::read().free == 0;
    (shared && none).then(|| {
        "no 2 MiB page is free: packets of shared-memory ports lie in ordinary pages, which costs some speed".into()
    })
}

/// A function that ends at once is not the daemon's failure, but nobody should have to find it by accident.
fn settle(stream: &UnixStream, handle: &Handle) {
    std::thread::sleep(Duration::from_millis(150));
    let processes = handle.view().processes.clone();
    for process in processes.iter().filter(|process| process.kind == ProcessKind::Function) {
        let ended =
            process.last_exit.as_deref().filter(|_| process.restarts > 0 || process.state != ProcessState::Running);
        let recent = process.started_ms.is_some_and(|at| logs::now_ns() / 1_000_000 < at + 1_000);
        if let Some(how) = ended.filter(|_| recent) {
            let message =
                format!("function {} ended at once ({how}); see `kaista logs {}`", process.name, process.name);
            let _ = tell(stream, &Event::Notice { message });
        }
    }
}

/// Gives a command to the slice's worker and passes its progress on.
fn command(
    daemon: &Arc<Daemon>,
    stream: &UnixStream,
    slice: &str,
    make: impl Fn(mpsc::Sender<Event>, mpsc::Sender<Outcome>) -> Command,
) -> Result<(usize, Handle), Failure> {
    for _ in 0..50 {
        let (events, progress) = mpsc::channel();
        let (done, outcome) = mpsc::channel();
        let command = make(events, done);
        let handle = daemon.worker(slice, command.begins())?;
        if !handle.tell(command) {
            // It failed and took itself away; the next one goes on from its record.
            daemon.forget(slice, &handle);
            continue;
        }
        while let Ok(event) = progress.recv() {
            // What was begun is brought to its end, whether or not anybody looks on.
            let _ = tell(stream, &event);
        }
        if let Ok(outcome) = outcome.recv() {
            return outcome.map(|changes| (changes, handle));
        }
        // It ended before it took the command; the next one will.
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(refuse(format!("slice {slice}: its worker does not live; see the daemon's log")))
}

fn scale(daemon: &Arc<Daemon>, stream: &UnixStream, pool: &FunctionRef, replicas: u16) -> Answer {
    let (slice, _) = described(daemon, pool)?;
    let name = &pool.function;
    let (changes, handle) =
        command(daemon, stream, &slice, |events, done| Command::Scale(name.clone(), replicas, events, done))?;
    settle(stream, &handle);
    Ok(Reply::Up { slice, changes })
}

fn replace(daemon: &Arc<Daemon>, stream: &UnixStream, function: &FunctionRef) -> Answer {
    let (slice, _) = find(daemon, function)?;
    let name = &function.function;
    let (_, handle) = command(daemon, stream, &slice, |events, done| Command::Replace(name.clone(), events, done))?;
    let view = handle.view();
    let process = view.processes.iter().find(|process| process.kind == ProcessKind::Function && process.name == *name);
    Ok(Reply::Replaced { slice, function: name.clone(), pid: process.and_then(|process| process.pid) })
}

/// The slice that has such a function, as it shall be.
fn described(daemon: &Daemon, wanted: &FunctionRef) -> Result<(String, Slice), Failure> {
    let (mut slices, mut unreadable) = (Vec::new(), None);
    for (name, _) in daemon.workers().into_iter().filter(|(name, _)| is_named(wanted, name)) {
        match record::load_descriptor(&daemon.node.paths, &name) {
            Ok(slice) => slices.extend(slice.map(|slice| (name, slice))),
            Err(e) => unreadable = Some(e),
        }
    }
    let found = choose(wanted, slices.into_iter(), |slice| slice.function(&wanted.function).is_some())?;
    found.ok_or_else(|| match unreadable {
        Some(e) => refuse(format!("it cannot be told whether there is a function {wanted}: {e}")),
        None => refuse(format!("there is no function {wanted}")),
    })
}

/// Whether the slice is not another one than that which is named.
fn is_named(wanted: &FunctionRef, slice: &str) -> bool {
    wanted.slice.as_ref().is_none_or(|named| named == slice)
}

/// The one slice of those named whose description has what is wanted, if any has.
fn choose<T>(
    wanted: &FunctionRef,
    slices: impl Iterator<Item = (String, T)>,
    has: impl Fn(&T) -> bool,
) -> Result<Option<(String, T)>, Failure> {
    let mut found: Vec<(String, T)> = slices.filter(|(name, slice)| is_named(wanted, name) && has(slice)).collect();
    if found.len() > 1 {
        let names: Vec<String> = found.iter().map(|(slice, _)| format!("{slice}/{}", wanted.function)).collect();
        let message = format!("several slices have a function {}: say which: {}", wanted.function, names.join(", "));
        return Err(refuse(message));
    }
    Ok(found.pop())
}

fn down(daemon: &Arc<Daemon>, stream: &UnixStream, wanted: Vec<String>) -> Answer {
    let there: Vec<String> = daemon.workers().into_iter().map(|(name, _)| name).collect();
    let chosen: Vec<String> =
        if wanted.is_empty() { there } else { wanted.into_iter().filter(|name| there.contains(name)).collect() };
    let mut gone = Vec::new();
    let mut failures = Vec::new();
    for name in chosen {
        match command(daemon, stream, &name, Command::Remove) {
            Ok(_) => gone.push(name),
            Err(failure) => failures.push(failure),
        }
    }
    if let Some(failure) = failures.pop() {
        let others = failures.into_iter().map(|failure| failure.to_string());
        return Err(Failure { details: failure.details.into_iter().chain(others).collect(), ..failure });
    }
    Ok(Reply::Down { slices: gone, stopping: daemon.ends_with_last_slice() })
}

fn list(daemon: &Daemon) -> Reply {
    let ports = daemon.node.broker.ports().unwrap_or_default();
    let summary = |(name, handle): (String, Handle)| {
        let view = handle.view().clone();
        let functions = || view.processes.iter().filter(|process| process.kind == ProcessKind::Function);
        let connected = view.actual.spec.links.iter().filter(|link| {
            let known = crate::link::broker_name(&name, link);
            ports.iter().filter(|port| port.link == known).all(|port| port.up)
        });
        SliceSummary {
            state: view.state,
            functions: functions().count(),
            running: functions().filter(|process| process.state == ProcessState::Running).count(),
            links: view.actual.spec.links.len(),
            connected: connected.count(),
            since_ms: view.since_ms,
            name,
        }
    };
    Reply::Slices { slices: daemon.workers().into_iter().map(summary).collect() }
}

fn processes(daemon: &Daemon, slice: Option<&str>) -> Reply {
    let mut processes: Vec<Process> = Vec::new();
    let shares = pools::shares(&daemon.node);
    for (name, handle) in daemon.workers() {
        if slice.is_some_and(|slice| slice != name) {
            continue;
        }
        let view = handle.view().clone();
        processes.extend(view.processes.iter().map(|process| {
            let buckets = shares.get(&format!("{name}/{}", process.name));
            let share = buckets.map(|buckets| f64::from(*buckets) / BUCKETS as f64);
            Process { share, ..stats::with_usage(process, &view) }
        }));
    }
    Reply::Processes { processes }
}

fn status(daemon: &Daemon) -> Reply {
    let (keeper_pid, daemon_restarts, kept_descriptors) = daemon.node.keeper.status();
    Reply::Status(Status {
        version: env!("CARGO_PKG_VERSION").into(),
        daemon_pid: std::process::id() as i32,
        keeper_pid,
        foreground: daemon.stay,
        slices: daemon.slices().workers.len(),
        kept_descriptors,
        daemon_restarts,
    })
}

fn shutdown(daemon: &Daemon, leave_running: bool) -> Answer {
    let mut slices = daemon.slices();
    let any = !slices.workers.is_empty() || slices.coming > 0;
    if any && !leave_running {
        let names: Vec<&str> = slices.workers.keys().map(String::as_str).collect();
        return Err(refuse(format!(
            "slices are up: {}; take them down first, or leave them running",
            names.join(", ")
        )));
    }
    slices.stopping = true;
    Ok(Reply::Done)
}

fn show_logs(
    daemon: &Daemon,
    stream: &UnixStream,
    function: &FunctionRef,
    lines: Option<usize>,
    follow: bool,
) -> Answer {
    let (slice, _) = find(daemon, function)?;
    let (mut reader, mut events) = logs::Reader::open(&daemon.node.paths.logs(&slice), &function.function, lines)?;
    loop {
        for event in &events {
            tell(stream, event)?;
        }
        if !follow || logs::hung_up(stream, Duration::from_millis(100)) {
            return Ok(Reply::Done);
        }
        events = reader.take()?;
    }
}

/// The slice of a container, and how it is.
pub(super) fn find(daemon: &Daemon, wanted: &FunctionRef) -> Result<(String, View), Failure> {
    let views = || daemon.workers().into_iter().map(|(name, handle)| (name, handle.view().clone()));
    if let Some(found) = choose(wanted, views(), |view| view.containers.contains_key(&wanted.function))? {
        return Ok(found);
    }
    let pool = |view: &View| view.actual.function(&wanted.function).map(slice::Function::containers);
    match choose(wanted, views(), |view| pool(view).is_some())? {
        Some((_, view)) => {
            let replicas = pool(&view).unwrap_or_default().join(", ");
            Err(refuse(format!("{wanted} is a pool: say which of its replicas: {replicas}")))
        }
        None => Err(refuse(format!("there is no function {wanted}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_a_stream_may_pause_and_nobody_else_holds_the_daemon_up() {
        let logs = |follow| Request::Logs { function: "f".parse().unwrap(), lines: None, follow };
        let stats = |interval_ms| Request::Stats { slice: None, interval_ms };
        for stream in [logs(false), logs(true), stats(Some(1_000))] {
            assert_eq!(patience(&stream), None, "{stream:?}");
        }
        for brief in [stats(None), Request::List, Request::Down { slices: Vec::new() }] {
            assert_eq!(patience(&brief), Some(PATIENCE), "{brief:?}");
        }
    }
}
