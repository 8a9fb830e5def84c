//! Maximum bit rates: token buckets whose arithmetic is exact.
//!
//! A token is a billionth of a bit. A rate in bit/s is then the same number in tokens per nanosecond, so refilling is one
//! multiplication of whole numbers: nothing is rounded, and over any time no bit too many passes and none too few.

use std::num::NonZeroU32;

use port::FRAME_MAX;

/// Tokens that a byte costs.
const TOKENS_PER_BYTE: u64 = 8 * 1_000_000_000;
/// No bucket holds more, so that sums of buckets and refills fit 64 bits.
const BURST_MAX: u64 = 1 << 62;

/// The fixed half of a policer: how fast, and where its state is. Part of the compiled rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Bit/s.
    rate: u64,
    /// Size of the bucket in tokens.
    burst: u64,
    /// Which state.
    index: u32,
    /// Distinguishes it from the state's former users.
    generation: NonZeroU32,
}

/// The changing half. Belongs to the worker that owns the session's home bucket.
#[derive(Clone, Copy, Debug)]
struct State {
    tokens: u64,
    /// When `tokens` was right, in nanoseconds.
    at: u64,
    generation: u32,
}

/// The states of all policers of a worker: tokens, time and generation. As numbers they take no memory before they are used.
#[derive(Debug)]
pub struct Policers(Vec<[u64; 3]>);

impl Meter {
    /// A meter for `rate` bit/s that lets `burst_ms` milliseconds' worth pass at once, at least the longest frame. A rate
    /// of zero lets nothing pass. `generation` is over 0.
    pub fn new(rate: u64, burst_ms: u32, index: u32, generation: u32) -> Self {
        let longest = FRAME_MAX as u64 * TOKENS_PER_BYTE;
        let burst = match rate {
            0 => 0,
            _ => rate.saturating_mul(u64::from(burst_ms) * 1_000_000).clamp(longest, BURST_MAX),
        };
        Self { rate, burst, index, generation: NonZeroU32::new(generation).unwrap_or(NonZeroU32::MIN) }
    }

    /// Which state it uses.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Rate, size of the bucket, index and generation.
    pub(crate) fn parts(&self) -> (u64, u64, u32, u32) {
        (self.rate, self.burst, self.index, self.generation.get())
    }

    /// The meter with these parts.
    #[inline(always)]
    pub(crate) fn of_parts(rate: u64, burst: u64, index: u32, generation: u32) -> Self {
        Self { rate, burst, index, generation: NonZeroU32::new(generation).unwrap_or(NonZeroU32::MIN) }
    }
}

impl State {
    #[inline(always)]
    fn of([tokens, at, generation]: [u64; 3]) -> Self {
        Self { tokens, at, generation: generation as u32 }
    }

    #[inline(always)]
    fn parts(self) -> [u64; 3] {
        [self.tokens, self.at, self.generation.into()]
    }

    #[inline(always)]
    fn refill(&mut self, meter: &Meter, now: u64) {
        if self.generation != meter.generation.get() {
            *self = Self { tokens: meter.burst, at: now, generation: meter.generation.get() };
            return;
        }
        // Workers take the time once a burst, so it may seem to stand still; it never counts twice.
        let elapsed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let refill = meter.rate.saturating_mul(elapsed);
        self.tokens = self.tokens.saturating_add(refill).min(meter.burst);
    }
}

impl Policers {
    /// States for meters with an index under `capacity`.
    pub fn new(capacity: usize) -> Self {
        Self(vec![[0; 3]; capacity])
    }

    /// Whether a packet of `len` bytes conforms to the only meter that it counts towards, at time `now` (nanoseconds). If so
    /// it is charged.
    #[inline(always)]
    pub fn admit(&mut self, meter: &Meter, len: usize, now: u64) -> bool {
        let Some(state) = self.0.get_mut(meter.index as usize) else { return true };
        let mut refilled = State::of(*state);
        refilled.refill(meter, now);
        let left = refilled.tokens.checked_sub(cost(len));
        refilled.tokens = left.unwrap_or(refilled.tokens);
        *state = refilled.parts();
        left.is_some()
    }

    /// The same for several. It is charged to all of them, or to none.
    #[inline(never)]
    pub fn admit_all(&mut self, meters: impl Iterator<Item = Meter> + Clone, len: usize, now: u64) -> bool {
        for meter in meters.clone() {
            let Some(state) = self.0.get_mut(meter.index as usize) else { continue };
            let mut refilled = State::of(*state);
            refilled.refill(&meter, now);
            *state = refilled.parts();
            if refilled.tokens < cost(len) {
                return false;
            }
        }
        for meter in meters {
            if let Some([tokens, ..]) = self.0.get_mut(meter.index as usize) {
                *tokens = tokens.saturating_sub(cost(len));
            }
        }
        true
    }

    /// A packet of `len` bytes that was admitted will come again: what it was charged is given back.
    #[cold]
    pub fn give_back(&mut self, meters: impl Iterator<Item = Meter>, len: usize) {
        for meter in meters {
            let Some([tokens, _, generation]) = self.0.get_mut(meter.index as usize) else { continue };
            if *generation == u64::from(meter.generation.get()) {
                *tokens = tokens.saturating_add(cost(len)).min(meter.burst);
            }
        }
    }
}

#[inline(always)]
fn cost(len: usize) -> u64 {
    len as u64 * TOKENS_PER_BYTE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Sends packets of the given lengths and gaps over and over for `time` ns; returns the bytes sent and passed.
    fn pass(meter: &Meter, policers: &mut Policers, packets: &[(usize, u64)], time: u64) -> (u64, u64) {
        let (mut now, mut sent, mut passed) = (0, 0, 0);
        for &(len, gap) in packets.iter().cycle() {
            if now > time {
                break;
            }
            sent += len as u64;
            if policers.admit(meter, len, now) {
                passed += len as u64;
            }
            now += gap;
        }
        (sent, passed)
    }

    #[test]
    fn a_rate_of_zero_lets_nothing_pass() {
        let meter = Meter::new(0, 50, 0, 1);
        assert_eq!(pass(&meter, &mut Policers::new(1), &[(1, 1_000)], SECOND / 100).1, 0);
    }

    #[test]
    fn the_highest_rate_that_pfcp_can_state_does_not_overflow() {
        let meter = Meter::new(((1 << 40) - 1) * 1_000, 1_000, 0, 1);
        let mut policers = Policers::new(1);
        for now in [0, 1, SECOND, u64::MAX / 2, u64::MAX] {
            assert!(policers.admit(&meter, FRAME_MAX, now));
        }
    }

    #[test]
    fn a_packet_is_charged_to_all_meters_or_to_none() {
        let (wide, narrow) = (Meter::new(8_000_000_000, 1, 0, 1), Meter::new(8, 1, 1, 1));
        let mut policers = Policers::new(2);
        assert!(policers.admit_all([wide, narrow].into_iter(), FRAME_MAX, 0));
        let before = policers.0[0][0];
        assert!(!policers.admit_all([wide, narrow].into_iter(), 100, 0));
        assert_eq!(policers.0[0][0], before);
    }

    #[test]
    fn a_new_generation_starts_with_a_full_bucket_and_a_new_rate_does_not() {
        let mut policers = Policers::new(1);
        assert!(policers.admit(&Meter::new(8, 1, 0, 1), FRAME_MAX, 0));
        assert!(!policers.admit(&Meter::new(80, 1, 0, 1), FRAME_MAX, 1));
        assert!(policers.admit(&Meter::new(80, 1, 0, 2), FRAME_MAX, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// With more offered than the rate, what passes is the rate times the time, up to one bucket and one packet.
        #[test]
        fn over_long_runs_the_rate_is_exact(
            rate in 1_000_000u64..=5_000_000_000,
            burst_ms in 1u32..200,
            lens in proptest::collection::vec(40usize..1_500, 1..20),
            excess in 2u64..4,
        ) {
            // Gaps that offer `excess` times the rate.
            let packets: Vec<_> = lens.iter().map(|&len| (len, len as u64 * 8 * SECOND / (rate * excess))).collect();
            // About 300,000 packets, however fast they are.
            let time = packets.iter().map(|&(_, gap)| gap).sum::<u64>() * 300_000 / packets.len() as u64;
            let meter = Meter::new(rate, burst_ms, 0, 1);
            let (sent, passed) = pass(&meter, &mut Policers::new(1), &packets, time);
            let fair = (u128::from(rate) * u128::from(time) / 8 / u128::from(SECOND)) as u64;
            prop_assert!(passed <= fair + meter.burst / TOKENS_PER_BYTE + 1, "{passed} over {fair}");
            // At the end at most one packet's worth is left unused.
            prop_assert!(passed + 1_500 >= fair.min(sent), "{passed} under {fair}");
        }

        /// Below the rate nothing is ever dropped, provided that no packet exceeds the bucket.
        #[test]
        fn conforming_traffic_always_passes(rate in 1_000_000u64..=5_000_000_000, len in 40usize..1_500) {
            let gap = len as u64 * 8 * SECOND / rate + 1;
            let meter = Meter::new(rate, 10, 0, 1);
            let mut policers = Policers::new(1);
            for i in 0..50_000 {
                prop_assert!(policers.admit(&meter, len, i * gap));
            }
        }

        /// In any window of time no more passes than the rate allows plus one bucket.
        #[test]
        fn no_window_exceeds_rate_and_bucket(
            rate in 1_000_000u64..=5_000_000_000,
            packets in proptest::collection::vec((40usize..9_600, 0u64..10_000_000), 2..200),
        ) {
            let meter = Meter::new(rate, 5, 0, 1);
            let mut policers = Policers::new(1);
            let mut now = 0;
            let mut passed = vec![];
            for (len, gap) in packets {
                now += gap;
                if policers.admit(&meter, len, now) {
                    passed.push((now, len as u128));
                }
            }
            for from in 0..passed.len() {
                let mut bytes = 0;
                for &(at, len) in &passed[from..] {
                    bytes += len;
                    let allowed = u128::from(rate) * u128::from(at - passed[from].0) + u128::from(meter.burst);
                    prop_assert!(bytes * u128::from(TOKENS_PER_BYTE) <= allowed);
                }
            }
        }
    }
}
