//! The blocking client.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::{Event, Failure, Reply, Request, wire};
use crate::paths::Paths;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No daemon answers at the control socket.
    #[error("no kaistad runs here")]
    NotRunning,
    /// The socket is there and this user may not use it.
    #[error("{0}: permission denied; be root or in the group kaista")]
    Denied(std::path::PathBuf),
    /// The daemon refused or failed.
    #[error("{0}")]
    Failed(Failure),
    /// The daemon went away in the middle of the call.
    #[error("kaistad hung up before it had answered")]
    HungUp,
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A way to the daemon. Each call makes a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    paths: Paths,
}

impl Client {
    /// A client of the node with these directories; connects with the first call.
    pub fn new(paths: Paths) -> Self {
        Self { paths }
    }

    /// Sends a request, with descriptors where it takes some, and returns the stream of answers.
    pub fn start(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Stream, CallError> {
        let socket = self.paths.control_socket();
        let stream = UnixStream::connect(&socket).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => CallError::NotRunning,
            io::ErrorKind::PermissionDenied => CallError::Denied(socket),
            _ => e.into(),
        })?;
        // A daemon that is just ending resets what it has not accepted.
        wire::send(&stream, request, fds).map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => CallError::HungUp,
            _ => e.into(),
        })?;
        Ok(Stream { lines: wire::Lines::new(stream) })
    }

    /// Sends a request without descriptors, shows every event but the last to `seen`, and returns the last.
    pub fn call(&self, request: &Request, mut seen: impl FnMut(Event)) -> Result<Reply, CallError> {
        let mut stream = self.start(request, &[])?;
        loop {
            match stream.next()?.0 {
                Event::Done(reply) => return Ok(reply),
                event => seen(event),
            }
        }
    }

    /// Waits until keeper and daemon are gone, as they will be after [`Reply::Down`] with `stopping` and after
    /// `Shutdown`. False: they still run after `patience`.
    pub fn wait_stopped(&self, patience: Duration) -> io::Result<bool> {
        let start = Instant::now();
        loop {
            if !crate::lock::is_held(&self.paths.lock())? {
                return Ok(true);
            }
            if start.elapsed() > patience {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The answers to one request. Dropping it hangs up.
pub struct Stream {
    lines: wire::Lines,
}

impl Stream {
    /// The next event, and the descriptors beside it. [`Event::Failed`] comes as an error.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<(Event, Vec<OwnedFd>), CallError> {
        match self.lines.next::<Event>() {
            Ok(Some((Event::Failed(failure), _))) => Err(CallError::Failed(failure)),
            Ok(Some(event)) => Ok(event),
            Ok(None) => Err(CallError::HungUp),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Err(CallError::HungUp),
            Err(e) => Err(e.into()),
        }
    }

    /// Asks a running capture to end in good order; its last event follows.
    pub fn stop(&self) -> io::Result<()> {
        wire::send(self.lines.stream(), &serde_json::json!({"stop": true}), &[])
    }

    /// Whether the next event is here already, so that [`Stream::next`] does not wait and polling would.
    pub fn is_ready(&self) -> bool {
        self.lines.is_ready()
    }

    /// To poll for the next event.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.lines.stream().as_fd()
    }
}
