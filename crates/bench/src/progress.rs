//! What a run is doing, for a person who waits: one line on the terminal that is overwritten. And whether that person has waited
//! long enough.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::ensure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use traffic::interrupt::Interrupt;

/// The line. Silent where standard error is no terminal.
pub struct Progress {
    terminal: bool,
    interrupt: Option<Interrupt>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// A line on standard error.
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), interrupt: None }
    }

    /// The same of a run that Ctrl-C, SIGTERM and the end of the terminal end at its next step, so that all is put back that it has changed. Call it before
    /// another thread is started.
    pub fn interruptible() -> anyhow::Result<Self> {
        Ok(Self { interrupt: Some(Interrupt::take()?), ..Self::new() })
    }

    /// Whether the run is to end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(Interrupt::has_come)
    }

    /// Fails where the run is to end.
    pub fn go_on(&self) -> anyhow::Result<()> {
        ensure!(!self.is_interrupted(), "interrupted");
        Ok(())
    }

    /// Replaces the line; fails where the run is to end.
    pub fn step(&self, text: &str) -> anyhow::Result<()> {
        self.go_on()?;
        self.show(text);
        Ok(())
    }

    /// Replaces the line.
    pub fn show(&self, text: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{text}");
            let _ = std::io::stderr().flush();
        }
    }

    /// Prints a line that stays.
    pub fn note(&self, text: &str) {
        self.clear();
        eprintln!("{text}");
    }

    /// Does nothing for so long, and takes no time for that; fails at once where the run is to end.
    pub fn sleep(&self, time: Duration) -> anyhow::Result<()> {
        let bell = self.interrupt.as_ref().map(Interrupt::fd);
        let mut bells: Vec<_> = bell.iter().map(|bell| PollFd::new(bell, PollFlags::IN)).collect();
        match poll(&mut bells, Some(&time.try_into()?)) {
            Ok(_) | Err(Errno::INTR) => self.go_on(),
            Err(error) => Err(error.into()),
        }
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
