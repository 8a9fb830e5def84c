//! Keeps what a packet can cause at small expense to its sender from becoming a burden: so many a second, no more.

use crate::tables::{BUCKETS, Bucket};

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

/// Limiters for what packets of sessions cause: whoever causes more than its share has not the others' as well.
#[derive(Clone, Debug)]
pub struct Shares([Limiter; SHARES]);

const SHARES: usize = 16;

impl Shares {
    /// Lets `per_second` events pass in all, `burst` of them at once.
    pub fn new(per_second: u64, burst: u64) -> Self {
        Self(std::array::from_fn(|_| Limiter::new(per_second / SHARES as u64, burst / SHARES as u64)))
    }

    /// Whether an event may pass that a session with this home bucket causes, as [`Limiter::allow`] says.
    pub fn allow(&mut self, home: Bucket, now: u64) -> bool {
        // Buckets next to each other are mostly different workers'.
        self.0[usize::from(home) % BUCKETS / (BUCKETS / SHARES)].allow(now)
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

    #[test]
    fn whoever_has_used_up_its_share_has_not_used_up_another_s() {
        let mut shares = Shares::new(1_600, 160);
        assert_eq!((0..100).filter(|_| shares.allow(3, 0)).count(), 10);
        assert_eq!((0..100).filter(|_| shares.allow(8, 0)).count(), 10);
        assert_eq!((0..100).filter(|_| shares.allow(3, 100_000_000)).count(), 10);
        assert_eq!(
            (0..BUCKETS).filter(|&home| shares.allow(home as Bucket, 0)).count(),
            BUCKETS - 2 * (BUCKETS / SHARES)
        );
    }
}
