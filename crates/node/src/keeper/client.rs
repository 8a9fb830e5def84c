//! The daemon's side of the keeper: asks it, holds copies of all that it holds, and replaces it when it dies.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::protocol::{Answer, Ask};
use crate::control::wire::{self, Lines};
use crate::process::{self, Process, ProcessId};

/// How long the daemon waits before it starts another keeper when that has just failed.
const RETRY: Duration = Duration::from_millis(500);

/// How long the OCI runtime may take to make a container or to start a program in one.
const PATIENCE: Duration = Duration::from_secs(20);

/// The keeper, whichever process that is at the moment. Any thread may ask.
pub(crate) struct Keeper {
    inner: Mutex<Inner>,
}

struct Inner {
    lines: Lines,
    pid: i32,
    restarts: u64,
    stay: bool,
    /// Copies of what the keeper holds.
    held: BTreeMap<String, OwnedFd>,
    /// Present if it is this process's child, which it is when this process had to replace it.
    child: Option<Child>,
    stopped: bool,
}

impl Keeper {
    /// The keeper that started this process with its socket as standard input. Takes copies of what it holds.
    pub(crate) fn from_stdin() -> io::Result<Arc<Self>> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut inner = Inner {
            lines: Lines::new(stream),
            pid: 0,
            restarts: 0,
            stay: false,
            held: BTreeMap::new(),
            child: None,
            stopped: false,
        };
        inner.greet()?;
        let Answer::Labels { labels } = inner.exchange(&Ask::Labels, &[])?.0 else { return Err(confused()) };
        for label in labels {
            if let (Answer::Done, Some(fd)) = inner.exchange(&Ask::Fetch { label: label.clone() }, &[])? {
                inner.held.insert(label, fd);
            }
        }
        let keeper = Arc::new(Self { inner: Mutex::new(inner) });
        keeper.clone().watch();
        Ok(keeper)
    }

    /// Replaces the keeper as soon as it dies, not only when it is needed.
    fn watch(self: Arc<Self>) {
        std::thread::spawn(move || {
            loop {
                let Ok(stream) = self.lock().lines.stream().try_clone() else { return };
                let _ = poll(&mut [PollFd::new(&stream, PollFlags::RDHUP)], None);
                let mut inner = self.lock();
                if inner.stopped {
                    return;
                }
                let answered = inner.ask(&Ask::Hello, &[]);
                drop(inner);
                if let Err(e) = answered {
                    tracing::error!("there is no keeper: {e}; it is tried again");
                    std::thread::sleep(RETRY);
                }
            }
        });
    }

    /// Holds a copy of the descriptor until it is discarded, over restarts of daemon or keeper.
    pub(crate) fn store(&self, label: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut inner = self.lock();
        inner.held.insert(label.to_owned(), fd.try_clone_to_owned()?);
        inner.ask(&Ask::Store { label: label.to_owned() }, &[fd]).map(drop)
    }

    /// Closes what is held under the label, if anything.
    pub(crate) fn discard(&self, label: &str) {
        let mut inner = self.lock();
        if inner.held.remove(label).is_some() {
            let _ = inner.ask(&Ask::Discard { label: label.to_owned() }, &[]);
        }
    }

    /// Discards everything whose label starts so.
    pub(crate) fn discard_all(&self, prefix: &str) {
        for label in self.labels(prefix) {
            self.discard(&label);
        }
    }

    /// Labels that start so.
    pub(crate) fn labels(&self, prefix: &str) -> Vec<String> {
        self.lock().held.keys().filter(|label| label.starts_with(prefix)).cloned().collect()
    }

    /// A copy of what is held.
    pub(crate) fn fetch(&self, label: &str) -> Option<OwnedFd> {
        self.lock().held.get(label).and_then(|fd| fd.try_clone().ok())
    }

    /// Runs the OCI runtime as the keeper's child to its end: exit code or minus the signal. It is killed if that takes too long, as it
    /// may where an image has made it wait for something; what it began is then to be taken away.
    pub(crate) fn run(&self, command: &runtime::CommandLine, streams: [BorrowedFd<'_>; 3]) -> io::Result<i32> {
        let pid = self.spawn(command, streams)?;
        // Gone already is as good as ended.
        let ended = ProcessId::of(pid).and_then(Process::open).is_none_or(|process| ends_within(&process, PATIENCE));
        let status = self.reap(pid);
        if !ended {
            let limit = PATIENCE.as_secs();
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the OCI runtime has not ended within {limit} s"),
            ));
        }
        status.ok_or_else(died)
    }

    /// Starts a program as the keeper's child.
    pub(crate) fn spawn(&self, command: &runtime::CommandLine, streams: [BorrowedFd<'_>; 3]) -> io::Result<i32> {
        match self.lock().ask(&Ask::Spawn { command: command.clone() }, &streams)? {
            Answer::Spawned { pid } => Ok(pid),
            Answer::Failed { message } => Err(io::Error::other(message)),
            _ => Err(confused()),
        }
    }

    /// How a child ended: exit code, or minus the signal; none where nobody knows, because it was another keeper's.
    pub(crate) fn reap(&self, pid: i32) -> Option<i32> {
        match self.lock().ask(&Ask::Reap { pid }, &[]) {
            Ok(Answer::Ended { status }) => status,
            _ => None,
        }
    }

    /// Makes the keeper end when this process does.
    pub(crate) fn stop(&self) {
        let mut inner = self.lock();
        inner.stopped = true;
        let _ = inner.exchange(&Ask::Stop, &[]);
    }

    /// Its process, how often it started the daemon again, how many descriptors it holds.
    pub(crate) fn status(&self) -> (i32, u64, usize) {
        let mut inner = self.lock();
        let _ = inner.ask(&Ask::Hello, &[]);
        (inner.pid, inner.restarts, inner.held.len())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Inner {
    /// Asks; where the keeper turns out to be dead, asks its successor. Only `Spawn` is not asked twice, since the first may
    /// have been heard.
    fn ask(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
        if let Ok((answer, _)) = self.exchange(ask, fds) {
            return Ok(answer);
        }
        if self.stopped {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.replace()?;
        if matches!(ask, Ask::Spawn { .. }) {
            return Err(died());
        }
        self.exchange(ask, fds).map(|(answer, _)| answer)
    }

    fn exchange(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> io::Result<(Answer, Option<OwnedFd>)> {
        wire::send(self.lines.stream(), ask, fds)?;
        let (answer, fds) = self.lines.next::<Answer>()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Answer::Hello { pid, restarts, stay } = answer {
            (self.pid, self.restarts, self.stay) = (pid, restarts, stay);
        }
        Ok((answer, fds.into_iter().next()))
    }

    fn greet(&mut self) -> io::Result<()> {
        self.exchange(&Ask::Hello, &[]).map(drop)
    }

    /// Starts a keeper and gives it everything to hold.
    fn replace(&mut self) -> io::Result<()> {
        tracing::warn!("the keeper (process {}) is gone; starting another", self.pid);
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(process::own_executable()?);
        command.args(["keeper", "--resume"]);
        if self.stay {
            command.arg("--stay");
        }
        let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn();
        // It has the keeper's end of the socket: nobody would hear it close if the new keeper died before it answered.
        drop(command);
        self.child = Some(child?);
        self.lines = Lines::new(ours);
        self.greet()?;
        let mut copies: Vec<(String, OwnedFd)> =
            self.held.iter().map(|(label, fd)| Ok((label.clone(), fd.try_clone()?))).collect::<io::Result<_>>()?;
        // The lock first: a keeper without it would give up.
        copies.sort_by_key(|(label, _)| label != super::LOCK);
        for (label, fd) in copies {
            self.exchange(&Ask::Store { label }, &[fd.as_fd()])?;
        }
        Ok(())
    }
}

#[cfg(test)]
impl Keeper {
    /// The keeper at the other end of this, which holds nothing yet.
    pub(crate) fn at(stream: UnixStream) -> Arc<Self> {
        let (held, lines) = (BTreeMap::new(), Lines::new(stream));
        let inner = Inner { lines, pid: 0, restarts: 0, stay: false, held, child: None, stopped: false };
        Arc::new(Self { inner: Mutex::new(inner) })
    }
}

/// Whether it ends by itself within so long. Else it is killed.
fn ends_within(process: &Process, patience: Duration) -> bool {
    let ended = |patience: Duration| {
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
        matches!(poll(&mut [PollFd::new(process.fd(), PollFlags::IN)], Some(&timeout)), Ok(n) if n > 0)
    };
    let by_itself = ended(patience);
    if !by_itself {
        process.signal(Signal::KILL);
        ended(patience);
    }
    by_itself
}

/// A program may or may not have been started.
fn died() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the keeper died while it started a program")
}

fn confused() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the keeper's answer does not fit the question")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keeper that is gone. The next one is this test's own program, which ends at once: it knows no such arguments.
    fn gone() -> Arc<Keeper> {
        let (ours, _) = UnixStream::pair().unwrap();
        Keeper::at(ours)
    }

    #[test]
    fn a_keeper_that_dies_before_it_answers_holds_nobody_up() {
        let (keeper, (done, end)) = (gone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let null = std::fs::File::open("/dev/null").unwrap();
            let _ = done.send(keeper.store("label", null.as_fd()).is_err());
        });
        assert_eq!(end.recv_timeout(Duration::from_secs(20)), Ok(true), "it is told, and nobody waits for it");
    }

    #[test]
    fn what_does_not_end_is_killed() {
        let begin = std::time::Instant::now();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = ProcessId::of(child.id() as i32).and_then(Process::open).unwrap();
        assert!(!ends_within(&process, Duration::from_millis(50)));
        assert!(!child.wait().unwrap().success() && begin.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn keepers_that_cannot_live_are_tried_again_without_haste() {
        let keeper = gone();
        keeper.clone().watch();
        let begin = std::time::Instant::now();
        let mut tried = std::collections::BTreeSet::new();
        while begin.elapsed() < 3 * RETRY {
            tried.extend(keeper.lock().child.as_ref().map(Child::id));
            std::thread::sleep(Duration::from_millis(1));
        }
        keeper.lock().stopped = true;
        assert!((2..=5).contains(&tried.len()), "{} were started", tried.len());
    }
}
