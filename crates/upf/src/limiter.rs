//! Keeps what a packet can cause at small expense to its sender from becoming a burden: so many a second, no more.

/// Lets a number of events a second pass, and some at once after a pause.
#[derive(Clone, Debug)]
pub struct Limiter {
    /// Nanoseconds in which one event is earned.
    every: u64,
    /// Events earned at most.
    burst: u64,
    earned: u64,
    /// Up to when events are earned, in nanoseconds.
    at: u64,
}

impl Limiter {
    /// Lets `per_second` events pass, `burst` of them at once.
    pub fn new(per_second: u64, burst: u64) -> Self {
        Self { every: 1_000_000_000 / per_second, burst, earned: burst, at: 0 }
    }

    /// Whether an event at time `now` (nanoseconds) may pass. It is counted if so.
    pub fn allow(&mut self, now: u64) -> bool {
        let fresh = now.saturating_sub(self.at) / self.every;
        self.earned = self.earned.saturating_add(fresh).min(self.burst);
        self.at += fresh * self.every;
        let passes = self.earned > 0;
        self.earned -= u64::from(passes);
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut limiter = Limiter::new(100, 5);
        let passed =
            |limiter: &mut Limiter, from: u64, to: u64| (from..to).filter(|ms| limiter.allow(ms * 1_000_000)).count();
        assert_eq!((0..100).filter(|_| limiter.allow(0)).count(), 5);
        assert_eq!(passed(&mut limiter, 1, 1_001), 100);
        assert_eq!((0..100).filter(|_| limiter.allow(3_600_000_000_000)).count(), 5);
    }
}
