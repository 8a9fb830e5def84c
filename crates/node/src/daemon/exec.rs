//! Programs run in a function's container beside its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use runtime::{CommandLine, Exec, Terminal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::Daemon;
use super::serve::{Answer, find, refuse};
use crate::control::{Event, Failure, FunctionRef, Reply, wire};
use crate::process::{self, Process, ProcessId};

/// How long the runtime may take to start the program.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the program until it ends, or until the client hangs up; then it is hung up, too.
pub(super) fn serve(
    daemon: &Daemon,
    stream: &UnixStream,
    function: &FunctionRef,
    exec: Exec,
    terminal: bool,
    fds: Vec<OwnedFd>,
) -> Answer {
    if exec.args.is_empty() {
        return Err(refuse("no command is given"));
    }
    let (_, view) = find(daemon, function)?;
    let container =
        view.containers.get(&function.function).ok_or_else(|| refuse(format!("there is no function {function}")))?;
    if terminal {
        return with_terminal(daemon, stream, container, exec);
    }
    let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(fds) else {
        return Err(refuse("three descriptors belong to this request: standard input, output and error"));
    };
    let files = Files::new(daemon);
    let mut command = container.exec_command(&exec).map_err(anyhow::Error::from)?;
    log_to(&mut command, &files.log());
    let pid = daemon.node.keeper.spawn(&command, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
    drop((stdin, stdout, stderr));
    if let Some(process) = ProcessId::of(pid).and_then(Process::open)
        && hung_up_before_end(stream, &process)?
    {
        end_runtime_and_program(&process);
    }
    let status = end_of(daemon, pid);
    Ok(Reply::Exited { status: not_started(status, &files.log()).unwrap_or(status) })
}

/// Keeps the runtime's log off the program's standard error, where it says once more why a program did not start.
fn log_to(command: &mut CommandLine, log: &Path) {
    let verb = command.args.iter().position(|argument| argument == "exec").unwrap_or(0);
    command.args.splice(verb..verb, ["--log".into(), log.into()]);
}

/// What a shell would say where the runtime says 255: 127 for a program that is not there, 126 for one that may not run.
fn not_started(status: i32, log: &Path) -> Option<i32> {
    let log = std::fs::read_to_string(log).ok().filter(|_| status == 255)?;
    let has = |words: &[&str]| words.iter().any(|words| log.contains(words));
    if has(&["executable file not found", "no such file or directory"]) {
        Some(127)
    } else {
        has(&["permission denied"]).then_some(126)
    }
}

/// With a terminal the runtime detaches from the program and hands over the terminal's controlling end; the program becomes
/// the keeper's child.
fn with_terminal(daemon: &Daemon, stream: &UnixStream, container: &runtime::Container, exec: Exec) -> Answer {
    let files = Files::new(daemon);
    let listener = UnixListener::bind(files.socket())?;
    let exec = Exec { terminal: Terminal::Sent { socket: files.socket(), pid_file: files.pid() }, ..exec };
    let command = container.exec_command(&exec).map_err(anyhow::Error::from)?;
    let (complaints, said) = io::pipe()?;
    let null = daemon.node.null();
    let status = daemon.node.keeper.run(&command, [null, null, said.as_fd()])?;
    drop(said);
    if status != 0 {
        let text = io::read_to_string(complaints)?;
        return Err(refuse(text.trim().to_owned()));
    }
    let console = console(&listener)?;
    let pid: i32 = std::fs::read_to_string(files.pid())?
        .trim()
        .parse()
        .map_err(|_| refuse("the runtime wrote no process number"))?;
    wire::send(stream, &Event::Console, &[console.as_fd()])?;
    drop(console);
    if let Some(process) = ProcessId::of(pid).and_then(Process::open)
        && hung_up_before_end(stream, &process)?
    {
        hang_up(&process);
    }
    Ok(Reply::Exited { status: end_of(daemon, pid) })
}

/// The runtime connects and sends one descriptor beside the terminal's name.
fn console(listener: &UnixListener) -> Result<OwnedFd, Failure> {
    if !readable(listener, PATIENCE) {
        return Err(refuse("the runtime handed over no terminal"));
    }
    let (stream, _) = listener.accept()?;
    wire::receive_descriptor(&stream)?.ok_or_else(|| refuse("the runtime handed over no terminal"))
}

fn readable(fd: impl AsFd, patience: Duration) -> bool {
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    matches!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)), Ok(n) if n > 0)
}

/// Waits for the end of the program or of the client's interest; true for the latter.
fn hung_up_before_end(stream: &UnixStream, process: &Process) -> io::Result<bool> {
    loop {
        let mut fds = [PollFd::new(process.fd(), PollFlags::IN), PollFd::new(stream, PollFlags::RDHUP)];
        match poll(&mut fds, None) {
            Ok(_) => return Ok(fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// As a terminal that is closed: asked first, then made to end.
fn hang_up(process: &Process) {
    process.signal(Signal::HUP);
    if !readable(process.fd(), Duration::from_secs(1)) {
        process.signal(Signal::KILL);
        readable(process.fd(), PATIENCE);
    }
}

/// In the foreground the runtime passes signals on to the program, its child; except the last one.
fn end_runtime_and_program(runtime: &Process) {
    let pid = runtime.id.pid;
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let programs: Vec<Process> = children
        .split_whitespace()
        .filter_map(|pid| ProcessId::of(pid.parse().ok()?).and_then(Process::open))
        .collect();
    runtime.signal(Signal::HUP);
    if !readable(runtime.fd(), Duration::from_secs(1)) {
        programs.iter().for_each(|program| program.signal(Signal::KILL));
        if !readable(runtime.fd(), Duration::from_secs(1)) {
            runtime.signal(Signal::KILL);
            readable(runtime.fd(), PATIENCE);
        }
    }
}

/// How a child of the keeper ended, as a shell reports it.
fn end_of(daemon: &Daemon, pid: i32) -> i32 {
    // What has ended before anybody looked has left its status with the keeper all the same.
    if let Ok(fd) = process::open(pid) {
        readable(&fd, PATIENCE);
    }
    // Where nobody knows, as after a kill.
    let status = daemon.node.keeper.reap(pid).unwrap_or(-9);
    if status < 0 { 128 - status } else { status }
}

/// What the names of files of executions begin with.
const PREFIX: &str = ".exec-";

/// Removes the files of executions of former daemons, which were killed before they could.
pub(super) fn sweep(run: &Path) {
    for entry in std::fs::read_dir(run).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Files of one execution, gone with it.
struct Files(PathBuf);

impl Files {
    fn new(daemon: &Daemon) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(daemon.node.paths.run.join(name))
    }

    fn log(&self) -> PathBuf {
        self.0.with_extension("log")
    }

    fn socket(&self) -> PathBuf {
        self.0.with_extension("sock")
    }

    fn pid(&self) -> PathBuf {
        self.0.with_extension("pid")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let remove = |path: &Path| drop(std::fs::remove_file(path));
        remove(&self.socket());
        remove(&self.pid());
        remove(&self.log());
    }
}
