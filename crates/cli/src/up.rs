//! `kaista up`: a slice as its descriptor says, and a wait until it runs.

use crate::{
    args::Up,
    check::{Descriptor, host_facts},
    follow::{self, Next, strange},
    out::{self, Paint, counted, plain},
    outcome::{Failure, Outcome, printed},
};
use node::{
    control::{
        CallError, Client, Event, FunctionRef, Process, ProcessKind, ProcessState, Reply, Request, ensure_daemon,
    },
    paths::Paths,
};
use std::{
    process::ExitCode,
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How long a process must have run before it is believed.
const SETTLING: Duration = Duration::from_millis(250);
/// Lines of a function's output that are shown when it does not run.
const LAST_LINES: usize = 5;

pub fn run(args: &Up) -> Outcome {
    let begin = Instant::now();
    let descriptor = Descriptor::read(&args.file)?;
    let slice = descriptor.require(&host_facts())?;
    let paths = Paths::from_env();
    let client = Client::new(paths.clone());
    let request = Request::Up { descriptor: descriptor.text, base: descriptor.directory };
    let (_, changes) = bring_up(&paths, &client, &request)?;
    wait_until_well(&client, slice.name(), begin, args.timeout)?;

    let name = Paint::stdout().bold(slice.name());
    let functions = counted(slice.spec.functions.len(), "function");
    let links = counted(slice.spec.links.len(), "link");
    let seconds = begin.elapsed().as_secs_f64();
    out::line(&match changes {
        0 => format!("{name} is up as described; nothing to change"),
        _ => format!("{name} is up: {functions}, {links}, {seconds:.1} s"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until everything in the slice does what it should; an error if that takes longer than the timeout, unless it is 0.
pub fn wait_until_well(client: &Client, slice: &str, begin: Instant, timeout: Duration) -> Result<(), Failure> {
    let processes = wait(client, slice, begin + timeout)?;
    let lame: Vec<_> = processes.iter().filter(|p| !is_well(p)).collect();
    if lame.is_empty() || timeout.is_zero() {
        return Ok(());
    }
    let details = lame.iter().flat_map(|process| why(client, process)).collect();
    let message = format!("{} of {} functions and pumps do not run", lame.len(), processes.len());
    Err(Failure::Failed { message, details })
}

/// Has the daemon make a slice, or change it, telling what it does; gives its name and the number of changes.
pub fn bring_up(paths: &Paths, client: &Client, request: &Request) -> Result<(String, usize), Failure> {
    ensure_daemon(paths)?;
    match ask(client, request) {
        // A daemon that was just ending: the next one takes it.
        Err(Asked::NotTaken) => {
            ensure_daemon(paths)?;
            ask(client, request).map_err(|_| CallError::HungUp.into())
        }
        Err(Asked::Failed(failure)) => Err(failure),
        Ok(made) => Ok(made),
    }
}

/// Why the request was not answered.
enum Asked {
    /// The daemon was gone before it did anything.
    NotTaken,
    Failed(Failure),
}

fn ask(client: &Client, request: &Request) -> Result<(String, usize), Asked> {
    let mut heard = false;
    let mut unwritten = Ok(());
    let reply = client.call(request, |event| {
        heard = true;
        if unwritten.is_ok() {
            unwritten = printed(tell(&event));
        }
    });
    match reply {
        Err(CallError::NotRunning | CallError::HungUp) if !heard => Err(Asked::NotTaken),
        Err(error) => Err(Asked::Failed(error.into())),
        Ok(Reply::Up { slice, changes }) => unwritten.map(|()| (slice, changes)).map_err(Asked::Failed),
        Ok(other) => Err(Asked::Failed(strange(&other))),
    }
}

/// Shows progress and notices as they come.
pub fn tell(event: &Event) -> std::io::Result<()> {
    match event {
        Event::Progress { subject, action } => {
            out::line(&format!("  {} {}", Paint::stdout().green(&plain(action)), plain(subject)))
        }
        Event::Notice { message } => {
            out::say(&format!("{} {}", Paint::stderr().yellow("note:"), plain(message)));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Waits until everything in the slice runs, or the deadline is past; gives its processes as they are then.
fn wait(client: &Client, slice: &str, deadline: Instant) -> Result<Vec<Process>, Failure> {
    loop {
        let processes = match client.call(&Request::Processes { slice: Some(slice.into()) }, |_| {}) {
            Ok(Reply::Processes { processes }) => processes,
            Ok(other) => return Err(strange(&other)),
            // The keeper restarts a daemon that died; what it was asked for stays true.
            Err(CallError::NotRunning | CallError::HungUp) if Instant::now() < deadline => {
                sleep(Duration::from_millis(50));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let settled = processes.iter().all(|process| is_well(process) && !is_fresh(process));
        if settled || Instant::now() >= deadline {
            return Ok(processes);
        }
        sleep(Duration::from_millis(50));
    }
}

/// Whether a process does what it should: it runs, as a replica with its share, or ended as its restart policy allows.
fn is_well(process: &Process) -> bool {
    match process.state {
        ProcessState::Running => process.replica_of.is_none() || process.share.is_some(),
        ProcessState::Ended => process.last_exit.as_deref() == Some("exit 0"),
        ProcessState::Waiting => false,
    }
}

/// Whether a process has run so shortly that it may still find something missing, and end.
fn is_fresh(process: &Process) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
    let fresh = |started: u64| now.saturating_sub(started.into()) < SETTLING.as_millis();
    process.state == ProcessState::Running && process.started_ms.is_some_and(fresh)
}

/// What is known of a process that does not run: how it ended, and what it said last.
fn why(client: &Client, process: &Process) -> Vec<String> {
    let ended = match (process.state, process.last_exit.as_deref()) {
        (ProcessState::Running, _) => "runs, and has not taken its place in its pool",
        (_, ended) => ended.unwrap_or("it was never started"),
    };
    let Process { slice, name, restarts, .. } = process;
    let mut lines = vec![format!("{slice}/{name}: {}, {restarts} restarts", plain(ended))];
    if process.kind == ProcessKind::Function {
        let last = last_lines(client, process);
        lines.extend(last.into_iter().map(|line| format!("  {}", plain(&line))));
        lines.push(format!("see `kaista logs {slice}/{name}`"));
    }
    lines
}

fn last_lines(client: &Client, process: &Process) -> Vec<String> {
    let function = FunctionRef { slice: Some(process.slice.clone()), function: process.name.clone() };
    let request = Request::Logs { function, lines: Some(LAST_LINES), follow: false };
    let mut lines = Vec::new();
    let Ok(mut stream) = client.start(&request, &[]) else { return lines };
    let deadline = Instant::now() + Duration::from_secs(2);
    while let Ok(Next::Event(Event::Line { text, .. })) = follow::next(&mut stream, None, Some(deadline)) {
        lines.push(text);
    }
    lines
}
