//! Waiting for what the daemon answers, with a deadline, and for the signals that end a command in good order.

use crate::outcome::Failure;
use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use node::control::{CallError, Event, Stream};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Instant,
};

/// What there is to do next.
pub enum Next {
    /// The daemon said something.
    Event(Event),
    /// A signal came, or what it came for can be read: the second of the two descriptors waited for.
    Other,
    /// The deadline is past.
    Late,
}

/// Waits for the next event of a stream, for `other` to be readable, or for the deadline, whichever comes first.
pub fn next(stream: &mut Stream, other: Option<BorrowedFd<'_>>, deadline: Option<Instant>) -> Result<Next, Failure> {
    if !stream.is_ready() {
        let mut waiting = vec![PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
        waiting.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let ready = loop {
            match poll(&mut waiting, remaining(deadline).as_ref()) {
                Err(Errno::INTR) => {}
                result => break result.map_err(|e| Failure::failed(format!("cannot wait for kaistad: {e}")))?,
            }
        };
        if ready == 0 {
            return Ok(Next::Late);
        }
        if waiting.get(1).is_some_and(|other| !other.revents().is_empty()) {
            return Ok(Next::Other);
        }
    }
    Ok(Next::Event(stream.next()?.0))
}

/// Waits until something can be read, no longer than to the deadline. Whether it can, which is never so once that is past.
pub fn is_readable(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    while Instant::now() < deadline {
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], remaining(Some(deadline)).as_ref()) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
    Ok(false)
}

fn remaining(deadline: Option<Instant>) -> Option<Timespec> {
    let left = deadline?.saturating_duration_since(Instant::now());
    Some(Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() })
}

/// Signals, read from a descriptor instead of ending the process.
pub struct Signals(SignalFd);

impl Signals {
    /// Takes these signals over from now on. Call it before another thread is started.
    pub fn take(signals: &[Signal]) -> Result<Self, Failure> {
        let set: SigSet = signals.iter().copied().collect();
        let taken = set
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK));
        taken.map(Self).map_err(|e| Failure::failed(format!("cannot receive signals: {e}")))
    }

    /// The signal that came, if one did.
    pub fn came(&self) -> Option<Signal> {
        let info = self.0.read_signal().ok().flatten()?;
        Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An answer that does not belong to what was asked: daemon and command are of different versions.
pub fn strange(event: &impl std::fmt::Debug) -> Failure {
    let mut text = format!("{event:?}");
    text.truncate(text.char_indices().nth(80).map_or(text.len(), |(end, _)| end));
    CallError::Io(io::Error::other(format!(
        "kaistad answered something else than was asked ({text}); is it of another version? See `kaista version`"
    )))
    .into()
}
