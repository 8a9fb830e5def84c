//! How soon something that ended is started again: at once, then after 100 ms, doubling to 5 s; and at once again after
//! it has run well for 10 s.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);
pub(crate) const LONGEST: Duration = Duration::from_secs(5);
const STABLE: Duration = Duration::from_secs(10);

/// The history that decides the next delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// Starts since the last stable run.
    quick_ends: u32,
}

impl Backoff {
    /// With the history of one that was.
    pub(crate) fn after(quick_ends: u32) -> Self {
        Self { quick_ends }
    }

    /// Starts since the last stable run.
    pub(crate) fn quick_ends(&self) -> u32 {
        self.quick_ends
    }

    /// The delay before the next start of what ran from `started` to `ended`; none for `started` if it did not even start.
    pub(crate) fn ended(&mut self, started: Option<Instant>, ended: Instant) -> Duration {
        if started.is_some_and(|started| ended.saturating_duration_since(started) >= STABLE) {
            self.quick_ends = 0;
        }
        let delay = match self.quick_ends {
            0 => Duration::ZERO,
            n => FIRST.saturating_mul(1_u32.checked_shl(n - 1).unwrap_or(u32::MAX)).min(LONGEST),
        };
        self.quick_ends = self.quick_ends.saturating_add(1);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_immediate_then_delays_double_to_five_seconds() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        let delays: Vec<u128> = (0..9).map(|_| backoff.ended(Some(now), now).as_millis()).collect();
        assert_eq!(delays, [0, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    }

    #[test]
    fn ten_good_seconds_are_a_fresh_start_and_a_failed_start_is_not() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        backoff.ended(Some(now), now);
        backoff.ended(None, now);
        assert_eq!(backoff.ended(Some(now), now + Duration::from_secs(10)), Duration::ZERO);
        assert_eq!(backoff.ended(None, now), FIRST);
    }
}
