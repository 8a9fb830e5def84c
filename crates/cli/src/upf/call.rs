//! A question to a running UPF: of a slice, by way of the daemon, or one without a slice.

use crate::{args::UpfOf, follow::Signals, outcome::Failure};
use node::{
    control::{CallError, Client, Event as NodeEvent, Request as NodeRequest},
    paths::Paths,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::{Duration, Instant},
};
use upf::control::{Address, DEFAULT, Event, Request};

/// Longest line of an answer: a session with as many rules as there may be.
const LINE_MAX: usize = 4 << 20;
/// How long a UPF may take to go on with an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A question that was asked.
pub struct Call {
    stream: UnixStream,
    unread: Vec<u8>,
}

/// What comes next.
pub enum Heard {
    /// A line of the answer.
    Event(Event),
    /// A signal, or the end of the time.
    Enough,
}

impl Call {
    /// Asks the UPF that `of` names.
    pub fn start(of: &UpfOf, request: &Request) -> Result<Self, Failure> {
        let mut stream = connect(of)?;
        let broken = |error| Failure::failed(format!("the UPF does not listen: {error}"));
        let line = serde_json::to_string(request).map_err(|error| Failure::failed(error.to_string()))?;
        writeln!(stream, "{line}").map_err(broken)?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// Shows every event but the last to `seen`, which gives back what it does not expect.
    pub fn each(mut self, mut seen: impl FnMut(Event) -> Option<Event>) -> Result<(), Failure> {
        self.stream.set_read_timeout(Some(PATIENCE)).map_err(unreadable)?;
        loop {
            match self.event()? {
                Some(Event::Done) => return Ok(()),
                Some(event) => {
                    if let Some(unexpected) = seen(event) {
                        return Err(strange(&unexpected));
                    }
                }
                None => self.fill()?,
            }
        }
    }

    /// The next event but [`Event::Done`], which is the UPF's end here.
    pub fn next(&mut self, signals: &Signals, deadline: Option<Instant>) -> Result<Heard, Failure> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // However much there is to hear.
            if left == Some(Duration::ZERO) {
                return Ok(Heard::Enough);
            }
            if let Some(event) = self.event()? {
                return Ok(Heard::Event(event));
            }
            let timeout =
                left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            let mut ends = [
                PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut ends, timeout.as_ref()) {
                Err(Errno::INTR) => continue,
                Err(error) => return Err(unreadable(error.into())),
                Ok(0) => return Ok(Heard::Enough),
                Ok(_) if !ends[1].revents().is_empty() => return Ok(Heard::Enough),
                Ok(_) => self.fill()?,
            }
        }
    }

    /// The next event among what was read.
    fn event(&mut self) -> Result<Option<Event>, Failure> {
        let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
        let line: Vec<u8> = self.unread.drain(..=end).collect();
        match serde_json::from_slice(&line) {
            Ok(Event::Failed { message }) => Err(Failure::failed(crate::out::plain(&message))),
            Ok(event) => Ok(Some(event)),
            Err(error) => {
                Err(Failure::failed(format!("the UPF's answer is not understood (is it of another version?): {error}")))
            }
        }
    }

    fn fill(&mut self) -> Result<(), Failure> {
        let mut chunk = [0; 16 << 10];
        if self.unread.len() > LINE_MAX {
            return Err(Failure::failed("the UPF's answer has no end"));
        }
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(Failure::failed("the UPF ended before it had answered, or does not let this user ask")),
            Ok(count) => {
                self.unread.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Failure::failed("the UPF does not answer")),
            Err(error) => Err(unreadable(error)),
        }
    }
}

/// What the UPF should not have said.
pub fn strange(event: &Event) -> Failure {
    Failure::failed(format!("the UPF answers another question: {event:?}"))
}

fn unreadable(error: io::Error) -> Failure {
    Failure::failed(format!("cannot read the UPF's answer: {error}"))
}

/// To the UPF that is named; to the only one there is where none is.
fn connect(of: &UpfOf) -> Result<UnixStream, Failure> {
    if let Some(socket) = &of.socket {
        let refused = |error| Failure::failed(format!("no UPF listens at {socket}: {error}"));
        return Address::parse(socket).connect().map_err(refused);
    }
    let by_daemon = by_daemon(of);
    match by_daemon {
        Err(CallError::NotRunning) if of.function.is_none() => {
            let none = |error| {
                Failure::failed(format!("no kaistad runs here, and no UPF without a slice ({DEFAULT}: {error})"))
            };
            Address::parse(DEFAULT).connect().map_err(none)
        }
        // A UPF without a slice may run beside a daemon that has none.
        Err(error) if of.function.is_none() => Address::parse(DEFAULT).connect().map_err(|_| error.into()),
        other => Ok(other?),
    }
}

fn by_daemon(of: &UpfOf) -> Result<UnixStream, CallError> {
    let request = NodeRequest::Upf { function: of.function.clone() };
    let mut stream = Client::new(Paths::from_env()).start(&request, &[])?;
    loop {
        match stream.next()? {
            (NodeEvent::Connected, fds) => {
                return fds.into_iter().next().map(UnixStream::from).ok_or(CallError::HungUp);
            }
            (NodeEvent::Done(_), _) => return Err(CallError::HungUp),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;

    #[test]
    fn what_is_said_without_end_is_not_heard_beyond_the_deadline() {
        let (stream, mut upf) = UnixStream::pair().unwrap();
        let line = serde_json::to_string(&Event::Done).unwrap();
        let mut say = || (0..10).for_each(|_| writeln!(upf, "{line}").unwrap());
        let signals = Signals::take(&[Signal::SIGUSR1]).unwrap();
        let mut call = Call { stream, unread: Vec::new() };
        let (now, later) = (Instant::now(), Instant::now() + PATIENCE);
        say();
        assert!(matches!(call.next(&signals, Some(now)).unwrap(), Heard::Enough), "what has come");
        assert!(matches!(call.next(&signals, Some(later)).unwrap(), Heard::Event(_)));
        assert!(matches!(call.next(&signals, Some(now)).unwrap(), Heard::Enough), "what was read");
    }
}
