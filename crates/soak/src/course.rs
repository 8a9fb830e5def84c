//! How long a campaign goes on, and what it says meanwhile.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Set once somebody wants everything to end.
static STOP: AtomicBool = AtomicBool::new(false);

/// Ends all campaigns soon, as if their time were over.
pub fn stop() {
    STOP.store(true, Ordering::Relaxed);
}

/// Whether [`stop`] was called.
pub fn is_stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// A campaign's length: it ends when both its time is over and its events have happened.
#[derive(Clone, Debug)]
pub struct Course {
    /// How long at least.
    pub lasts: Duration,
    /// How many events at least.
    pub events: u64,
    /// Whether it says on standard error how far it is.
    pub talks: bool,
    begun: Instant,
}

impl Course {
    /// Begins now.
    pub fn begin(lasts: Duration, events: u64, talks: bool) -> Self {
        Self { lasts, events, talks, begun: Instant::now() }
    }

    /// Whether another event is to happen after so many.
    pub fn goes_on(&self, events: u64) -> bool {
        !is_stopped() && (self.begun.elapsed() < self.lasts || events < self.events)
    }

    /// Says how far it is: on a terminal in one line that is overwritten, else twice a minute.
    pub fn say(&self, said: &mut Instant, text: impl FnOnce() -> String) {
        let terminal = std::io::stderr().is_terminal();
        let every = if terminal { Duration::from_millis(500) } else { Duration::from_secs(30) };
        if !self.talks || said.elapsed() < every {
            return;
        }
        *said = Instant::now();
        let (text, seconds) = (text(), self.begun.elapsed().as_secs());
        if terminal {
            eprint!("\r\x1b[K{seconds} s: {text}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{seconds} s: {text}");
        }
    }
}
