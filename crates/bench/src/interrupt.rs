//! Ctrl-C and SIGTERM end a measurement early: what was measured until then is reported.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The two signals, taken over.
pub struct Interrupt(SignalFd);

impl Interrupt {
    /// Takes them over from now on. Call it before another thread is started.
    pub fn take() -> anyhow::Result<Self> {
        let set: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Whether one of them came since the last call.
    pub fn came(&self) -> bool {
        matches!(self.0.read_signal(), Ok(Some(_)))
    }
}
