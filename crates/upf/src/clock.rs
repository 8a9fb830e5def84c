//! The clock that workers and N4 share: nanoseconds since the UPF began, and what they are as network time.

use std::time::{Duration, Instant};

use pfcp::RecoveryTimeStamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The clock. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    /// Network time at the start, in seconds since 1900.
    start_ntp_s: u32,
}

/// A clock as another process on the same host can go on with it, while the host has not been started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The host's monotonic clock at the start.
    monotonic_ns: u64,
    start_ntp_s: u32,
}

impl Clock {
    /// A clock that begins now.
    pub fn new() -> Self {
        Self { start: Instant::now(), start_ntp_s: RecoveryTimeStamp::now().0 }
    }

    /// A clock that began in another process; none if that has not happened yet.
    pub fn since(origin: &Origin) -> Option<Self> {
        let ago_ns = monotonic_ns().checked_sub(origin.monotonic_ns)?;
        let start = Instant::now().checked_sub(Duration::from_nanos(ago_ns))?;
        Some(Self { start, start_ntp_s: origin.start_ntp_s })
    }

    /// When it began.
    pub fn origin(&self) -> Origin {
        Origin { monotonic_ns: monotonic_ns().saturating_sub(self.now_ns()), start_ntp_s: self.start_ntp_s }
    }

    /// The time, in nanoseconds since the start.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Nanoseconds from the start to `at`; 0 for what was before.
    pub fn ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_nanos() as u64
    }

    /// When it is so many nanoseconds since the start.
    pub fn instant(&self, ns: u64) -> Instant {
        self.start + Duration::from_nanos(ns)
    }

    /// The network time (seconds since 1900; the count begins anew in 2036) so many nanoseconds after the start.
    pub fn ntp_s(&self, ns: u64) -> u32 {
        self.start_ntp_s.wrapping_add((ns / 1_000_000_000) as u32)
    }

    /// Nanoseconds since the start at which network time is `ntp_s`; 0 if that was before.
    pub fn ns_of_ntp(&self, ntp_s: u32) -> u64 {
        let seconds = ntp_s.wrapping_sub(self.start_ntp_s) as i32;
        u64::try_from(seconds).unwrap_or(0) * 1_000_000_000
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_goes_on_with_the_clock() {
        let clock = Clock { start: Instant::now() - Duration::from_secs(100), start_ntp_s: 7 };
        let next = Clock::since(&clock.origin()).unwrap();
        assert!(next.now_ns().abs_diff(clock.now_ns()) < 1_000_000_000);
        assert_eq!(next.ntp_s(0), 7);
        assert_eq!(
            Clock::since(&Origin { monotonic_ns: u64::MAX, start_ntp_s: 7 }).map(|clock| clock.start_ntp_s),
            None
        );
    }

    #[test]
    fn network_time_goes_on_when_its_count_begins_anew() {
        let clock = Clock { start: Instant::now(), start_ntp_s: u32::MAX };
        assert_eq!(clock.ntp_s(2_500_000_000), 1);
        assert_eq!(clock.ns_of_ntp(1), 2_000_000_000);
        assert_eq!(clock.ns_of_ntp(u32::MAX - 5), 0);
    }
}
