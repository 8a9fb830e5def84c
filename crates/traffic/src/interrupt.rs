//! Ctrl-C, SIGTERM and the end of the terminal (SIGHUP) end a measurement early: what was measured until then is reported.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::set_parent_process_death_signal;

/// Ends this process when the one that started it ends, however that is.
pub fn die_with_parent() {
    let _ = set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// The signals, taken over. To ask is a load.
pub struct Interrupt {
    came: Arc<AtomicBool>,
    bell: OwnedFd,
}

impl Interrupt {
    /// Takes them over from now on. Call it before another thread is started.
    pub fn take() -> anyhow::Result<Self> {
        let mut set: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        // Whoever was started with it ignored (nohup) is to outlive the terminal: a signal that waits to be taken is not ignored.
        if !is_ignored(Signal::SIGHUP) {
            set.add(Signal::SIGHUP);
        }
        set.thread_block().context("cannot block signals")?;
        let came = Arc::new(AtomicBool::new(false));
        let told = came.clone();
        let (bell, ringer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).context("cannot make a pipe")?;
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            while set.wait().is_ok() {
                told.store(true, Ordering::Relaxed);
                // A full pipe is a bell that rings already.
                let _ = rustix::io::write(&ringer, &[1]);
            }
        })?;
        Ok(Self { came, bell })
    }

    /// Whether one of them has come since the last call.
    #[inline]
    pub fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed) && self.came.swap(false, Ordering::Relaxed)
    }

    /// Whether one of them has ever come, and nobody has taken notice by [`came`](Self::came).
    #[inline]
    pub fn has_come(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }

    /// Becomes readable when one comes, for good.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
}
