//! The keeper: a small process that parents containers and pumps, holds what must outlive the daemon, and starts the
//! daemon again when it dies.
//!
//! It does what the daemon asks, one thing at a time, over a socket pair. It decides nothing else, so it has no reason to
//! change or to fail. When the keeper dies the daemon starts another and gives it copies of everything it held.

mod client;
mod protocol;

pub(crate) use client::Keeper;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::backoff::Backoff;
use crate::control::wire::{self, Lines};
use crate::process;
use protocol::{Answer, Ask};

/// Whether something failed only because the keeper died on the way; its successor may be asked again.
pub(crate) fn died(error: &anyhow::Error) -> bool {
    let aborted = |e: &io::Error| e.kind() == io::ErrorKind::ConnectionAborted;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(aborted))
}

/// Label under which the node's lock is held.
pub(crate) const LOCK: &str = "lock";
/// How many ends of children are remembered for a daemon that has not asked yet.
const ENDS_MAX: usize = 4_096;

/// How a keeper comes into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With the node: standard input is the lock that was taken for it.
    WithLock,
    /// After another: standard input is the running daemon's socket.
    WithDaemon,
}

/// Runs the keeper until the daemon has asked it to stop. `stay`: the daemon shall stay when no slice is left.
pub fn run(begin: Begin, stay: bool) -> anyhow::Result<()> {
    // Not the leader of a session only where it was started by hand in one of its own, which is as good.
    let _ = rustix::process::setsid();
    process::allow_many_descriptors();
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))?;
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    children.thread_block()?;
    let signals = SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;

    let given = io::stdin().as_fd().try_clone_to_owned()?;
    let mut keeper = State {
        stay,
        daemon: None,
        start_at: None,
        backoff: Backoff::default(),
        restarts: 0,
        held: BTreeMap::new(),
        ends: VecDeque::new(),
        stopping: false,
    };
    match begin {
        Begin::WithLock => {
            keeper.held.insert(LOCK.to_owned(), given);
            keeper.start_daemon()?;
        }
        Begin::WithDaemon => {
            let stream = UnixStream::from(given);
            let peer = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero().get();
            keeper.daemon = Some(Daemon {
                process: process::open(peer)?,
                pid: peer,
                since: Instant::now(),
                lines: Lines::new(stream),
            });
        }
    }
    while !keeper.is_done() {
        keeper.turn(&signals)?;
    }
    keeper.end();
    Ok(())
}

/// The daemon as the keeper sees it.
struct Daemon {
    pid: i32,
    process: OwnedFd,
    since: Instant,
    lines: Lines,
}

struct State {
    stay: bool,
    daemon: Option<Daemon>,
    /// When to start the next daemon, while there is none.
    start_at: Option<Instant>,
    backoff: Backoff,
    restarts: u64,
    held: BTreeMap<String, OwnedFd>,
    /// Children that have ended, oldest first, with exit code or minus the signal.
    ends: VecDeque<(i32, i32)>,
    stopping: bool,
}

impl State {
    fn is_done(&self) -> bool {
        self.stopping && self.daemon.is_none()
    }

    /// Waits for something to do and does it.
    fn turn(&mut self, signals: &SignalFd) -> anyhow::Result<()> {
        let timeout = self.start_at.map(|at| at.saturating_duration_since(Instant::now()));
        let (signalled, asked) = {
            let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
            if let Some(daemon) = &self.daemon {
                fds.push(PollFd::new(daemon.lines.stream(), PollFlags::IN));
            }
            wait(&mut fds, timeout)?;
            (!fds[0].revents().is_empty(), fds.get(1).is_some_and(|fd| !fd.revents().is_empty()))
        };
        if signalled {
            while signals.read_signal()?.is_some() {}
            self.reap_children();
        }
        if asked {
            self.serve();
        }
        if self.start_at.is_some_and(|at| at <= Instant::now()) {
            self.start_at = None;
            self.restarts += 1;
            if let Err(e) = self.start_daemon() {
                tracing::error!("cannot start the daemon: {e}");
                self.start_later(None);
            }
        }
        Ok(())
    }

    fn start_daemon(&mut self) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(process::own_executable()?);
        command.arg("daemon");
        if self.stay {
            command.arg("--stay");
        }
        let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0).spawn()?;
        let pid = child.id() as i32;
        self.daemon =
            Some(Daemon { process: process::open(pid)?, pid, since: Instant::now(), lines: Lines::new(ours) });
        Ok(())
    }

    fn start_later(&mut self, started: Option<Instant>) {
        let now = Instant::now();
        self.start_at = Some(now + self.backoff.ended(started, now));
    }

    /// Answers one request of the daemon; notices that it is gone.
    fn serve(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        match daemon.lines.next::<Ask>() {
            Ok(Some((ask, fds))) => {
                let (answer, fd) = self.answer(ask, fds);
                let fd: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
                // A daemon that does not take its answer is gone; the next turn finds it so.
                if let Some(daemon) = &self.daemon {
                    let _ = wire::send(daemon.lines.stream(), &answer, &fd);
                }
            }
            Ok(None) | Err(_) => self.daemon_is_gone(),
        }
    }

    fn answer(&mut self, ask: Ask, fds: Vec<OwnedFd>) -> (Answer, Option<OwnedFd>) {
        let refuse = |e: io::Error| (Answer::Failed { message: e.to_string() }, None);
        match ask {
            Ask::Hello => {
                (Answer::Hello { pid: std::process::id() as i32, restarts: self.restarts, stay: self.stay }, None)
            }
            Ask::Store { label } => match <[OwnedFd; 1]>::try_from(fds) {
                Ok([fd]) => {
                    self.held.insert(label, fd);
                    (Answer::Done, None)
                }
                Err(_) => refuse(io::Error::other("one descriptor is stored under one label")),
            },
            Ask::Discard { label } => {
                self.held.remove(&label);
                (Answer::Done, None)
            }
            Ask::Labels => (Answer::Labels { labels: self.held.keys().cloned().collect() }, None),
            Ask::Fetch { label } => match self.held.get(&label).map(OwnedFd::try_clone) {
                Some(Ok(fd)) => (Answer::Done, Some(fd)),
                Some(Err(e)) => refuse(e),
                None => refuse(io::Error::other("nothing is held under this label")),
            },
            Ask::Spawn { command } => match spawn(&command, fds) {
                Ok(pid) => {
                    // An earlier child of this number has nothing to do with it.
                    self.ends.retain(|(ended, _)| *ended != pid);
                    (Answer::Spawned { pid }, None)
                }
                Err(e) => refuse(e),
            },
            Ask::Reap { pid } => {
                self.reap_children();
                let at = self.ends.iter().position(|(ended, _)| *ended == pid);
                (Answer::Ended { status: at.and_then(|at| self.ends.remove(at)).map(|(_, status)| status) }, None)
            }
            Ask::Stop => {
                self.stopping = true;
                (Answer::Done, None)
            }
        }
    }

    fn reap_children(&mut self) {
        while let Ok(status) = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            let (pid, status) = match status {
                WaitStatus::Exited(pid, code) => (pid.as_raw(), code),
                WaitStatus::Signaled(pid, signal, _) => (pid.as_raw(), -(signal as i32)),
                WaitStatus::StillAlive => break,
                _ => continue,
            };
            if self.daemon.as_ref().is_some_and(|daemon| daemon.pid == pid) {
                self.daemon_is_gone();
                continue;
            }
            if self.ends.len() == ENDS_MAX {
                self.ends.pop_front();
            }
            self.ends.push_back((pid, status));
        }
    }

    /// Makes sure of it, and plans the next one.
    fn daemon_is_gone(&mut self) {
        let Some(daemon) = self.daemon.take() else { return };
        if !self.stopping {
            let _ = rustix::process::pidfd_send_signal(&daemon.process, rustix::process::Signal::KILL);
        }
        let _ = wait(&mut [PollFd::new(&daemon.process, PollFlags::IN)], Some(Duration::from_secs(5)));
        if self.stopping {
            return;
        }
        if self.held.contains_key(LOCK) {
            tracing::warn!("the daemon (process {}) is gone; starting another", daemon.pid);
            self.start_later(Some(daemon.since));
        } else {
            // It died while it made this its keeper. Without the lock there may be another node by now.
            self.stopping = true;
        }
    }

    /// Gives up everything but the lock, which the kernel takes back with the process: whoever finds it free finds nothing
    /// else of this node.
    fn end(mut self) {
        let lock = self.held.remove(LOCK);
        drop(self);
        std::mem::forget(lock);
    }
}

/// Starts a child with the three descriptors as its standard streams. Everything else that the keeper has open is closed
/// on exec.
fn spawn(command: &runtime::CommandLine, fds: Vec<OwnedFd>) -> io::Result<i32> {
    let [stdin, stdout, stderr] =
        <[OwnedFd; 3]>::try_from(fds).map_err(|_| io::Error::other("a child has three standard streams"))?;
    // A group of its own: what the kernel sends to groups that lose their last parent concerns it alone.
    let child = command.to_command().stdin(stdin).stdout(stdout).stderr(stderr).process_group(0).spawn()?;
    Ok(child.id() as i32)
}

/// `poll(2)` that is not ended by signals.
fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
