//! What a run is doing, for a person who waits: one line on the terminal that is overwritten.

use std::io::{IsTerminal, Write};

/// The line. Silent where standard error is no terminal.
pub struct Progress {
    terminal: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// A line on standard error.
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal() }
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
