//! How often somebody may have something done.

use std::time::Instant;

/// A token bucket: so many a second on average, and so many at once.
#[derive(Debug)]
pub struct Allowance {
    per_second: u32,
    at_once: u32,
    left: u32,
    filled: Instant,
}

impl Allowance {
    /// A full bucket.
    pub fn new(per_second: u32, at_once: u32) -> Self {
        Self { per_second, at_once, left: at_once, filled: Instant::now() }
    }

    /// Takes one token. False where none is left.
    pub fn take(&mut self) -> bool {
        if self.left == 0 {
            self.refill(Instant::now());
        }
        self.left.checked_sub(1).map(|left| self.left = left).is_some()
    }

    fn refill(&mut self, now: Instant) {
        let earned =
            now.saturating_duration_since(self.filled).as_nanos() * u128::from(self.per_second) / 1_000_000_000;
        if earned > 0 {
            self.left = earned.min(u128::from(self.at_once)) as u32;
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tokens_come_back_with_time() {
        let mut allowance = Allowance::new(1_000, 10);
        let start = allowance.filled;
        allowance.left = 0;
        allowance.refill(start + Duration::from_micros(500));
        assert_eq!(allowance.left, 0, "half a token stays half a token");
        allowance.refill(start + Duration::from_millis(3));
        assert_eq!(allowance.left, 3);
        allowance.refill(start + Duration::from_secs(9));
        assert_eq!(allowance.left, 10);
    }
}
