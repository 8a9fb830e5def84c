//! How long a campaign goes on, and what it says meanwhile.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Since when somebody wants everything to end.
static STOP: OnceLock<Instant> = OnceLock::new();
/// Who still waits then for what may never come has waited long enough.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Ends all campaigns soon, as if their time were over.
pub fn stop() {
    STOP.get_or_init(Instant::now);
}

/// Whether [`stop`] was called.
pub fn is_stopped() -> bool {
    STOP.get().is_some()
}

/// Whether that was so long ago that nobody should wait any more for what may never come.
pub fn is_overdue() -> bool {
    STOP.get().is_some_and(|since| since.elapsed() > END_WITHIN)
}

/// Sleeps. False, and early, if everything is to end.
pub fn sleep(time: Duration) -> bool {
    let begin = Instant::now();
    while !is_stopped() && begin.elapsed() < time {
        std::thread::sleep(Duration::from_millis(10).min(time));
    }
    !is_stopped()
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
    /// Whether what takes too long is a failure: the machine does nothing else.
    pub is_timely: bool,
    begun: Instant,
}

impl Course {
    /// Begins now.
    pub fn begin(lasts: Duration, events: u64, talks: bool) -> Self {
        Self { lasts, events, talks, is_timely: false, begun: Instant::now() }
    }

    /// One of so many parts, which begins now.
    pub fn part(&self, of: u32) -> Self {
        let (lasts, events) = (self.lasts / of, self.events.div_ceil(of.into()));
        Self { lasts, events, begun: Instant::now(), ..*self }
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
