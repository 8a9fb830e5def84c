//! Maximum bit rates: token buckets whose arithmetic is exact.
//!
//! A token is a billionth of a bit. A rate in bit/s is then the same number in tokens per nanosecond, so refilling is one
//! multiplication of whole numbers: nothing is rounded, and over any time no bit too many passes and none too few.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use port::{CacheLevel, FRAME_MAX};
use vport::tally::{LINE_WORDS, Tallies};

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
    /// Which state; [`SHARED`] besides, where sessions of several workers may use it.
    index: u32,
    /// Distinguishes it from the state's former users.
    generation: NonZeroU32,
}

/// Beyond all indices, so that what is shared is found out where an index is checked.
const SHARED: u32 = 1 << 31;

/// The changing half: tokens, when they were right in nanoseconds, and generation. Two are on a cache line, nearly always those of
/// one session both ways, as they are given out one after the other: what all of them take decides how often a packet waits for
/// memory, and for its page's address.
///
/// That of one session belongs to the worker that owns the session's home bucket, and goes with the bucket: nobody else
/// writes it, and one worker hands it to the next by the message that brings the bucket.
const TOKENS: usize = 0;
const AT: usize = 1;
const GENERATION: usize = 2;
const STATE_WORDS: usize = LINE_WORDS / 2;
/// One of these halves.
type PolicerState = [AtomicU64; STATE_WORDS];

/// The states of all policers. They take no memory before they are used. Clones are the same.
#[derive(Clone, Debug)]
pub struct Policers(Arc<Tallies>);

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

    /// The same for sessions of several workers.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { index: self.index | SHARED, ..self }
    }

    /// Which state it uses.
    pub fn index(&self) -> u32 {
        self.index & !SHARED
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

    /// Fills the bucket with what has come since, and returns the tokens that it has then.
    #[inline(always)]
    fn refill(&self, state: &PolicerState, now: u64) -> u64 {
        if state[GENERATION].load(Relaxed) != u64::from(self.generation.get()) {
            state[AT].store(now, Relaxed);
            state[GENERATION].store(self.generation.get().into(), Relaxed);
            return self.burst;
        }
        // Workers take the time once a burst, so it may seem to stand still; it never counts twice.
        let at = state[AT].load(Relaxed);
        let since = now.saturating_sub(at);
        state[AT].store(at + since, Relaxed);
        let refill = self.rate.saturating_mul(since);
        state[TOKENS].load(Relaxed).saturating_add(refill).min(self.burst)
    }

    /// The same where other workers may do so at this moment: whoever moves the time on refills for it.
    fn refill_shared(&self, state: &PolicerState, now: u64) {
        let (seen, own) = (state[GENERATION].load(Relaxed), u64::from(self.generation.get()));
        if seen != own {
            // A packet of another worker may find the former tokens for a moment.
            if state[GENERATION].compare_exchange(seen, own, Relaxed, Relaxed).is_ok() {
                state[AT].store(now, Relaxed);
                state[TOKENS].store(self.burst, Relaxed);
            }
            return;
        }
        let at = state[AT].load(Relaxed);
        if now > at && state[AT].compare_exchange(at, now, Relaxed, Relaxed).is_ok() {
            let refill = self.rate.saturating_mul(now - at);
            self.put_back(state, refill);
        }
    }

    /// Puts tokens into the bucket of several workers.
    fn put_back(&self, state: &PolicerState, tokens: u64) {
        let fill = |held: u64| Some(held.saturating_add(tokens).min(self.burst));
        // Whatever it holds, it is filled.
        let _ = state[TOKENS].fetch_update(Relaxed, Relaxed, fill);
    }
}

impl Policers {
    /// States for meters with an index under `capacity`.
    pub fn new(capacity: usize) -> io::Result<Self> {
        Ok(Self(Arc::new(Tallies::private(capacity.div_ceil(2))?)))
    }

    #[inline(always)]
    fn state(&self, index: u32) -> Option<&PolicerState> {
        self.0.lines().as_flattened().get(index as usize * STATE_WORDS..)?.first_chunk()
    }

    /// Asks for the state of the meter with this index, which will soon be needed.
    #[inline(always)]
    pub(crate) fn ask(&self, index: u32, level: CacheLevel) {
        self.0.ask((index & !SHARED) as usize * STATE_WORDS / LINE_WORDS, level);
    }

    /// Whether a packet of `len` bytes conforms to the only meter that it counts towards, at time `now` (nanoseconds). If so
    /// it is charged.
    #[inline(always)]
    pub fn admit(&self, meter: &Meter, len: usize, now: u64) -> bool {
        let Some(state) = self.state(meter.index) else { return self.admit_shared(meter, len, now) };
        let tokens = meter.refill(state, now);
        let left = tokens.checked_sub(cost(len));
        state[TOKENS].store(left.unwrap_or(tokens), Relaxed);
        left.is_some()
    }

    /// The same for a meter of sessions of several workers. None of them waits for another.
    #[inline(never)]
    fn admit_shared(&self, meter: &Meter, len: usize, now: u64) -> bool {
        let Some(state) = self.state(meter.index()) else { return true };
        meter.refill_shared(state, now);
        state[TOKENS].fetch_update(Relaxed, Relaxed, |held| held.checked_sub(cost(len))).is_ok()
    }

    /// The same for several. It is charged to all of them, or to none.
    #[inline(never)]
    pub fn admit_all(&self, meters: impl Iterator<Item = Meter> + Clone, len: usize, now: u64) -> bool {
        let Some(refused) = meters.clone().position(|meter| !self.admit(&meter, len, now)) else { return true };
        self.give_back(meters.take(refused), len);
        false
    }

    /// A packet of `len` bytes that was admitted will come again: what it was charged is given back.
    #[cold]
    pub fn give_back(&self, meters: impl Iterator<Item = Meter>, len: usize) {
        for meter in meters {
            let Some(state) = self.state(meter.index()) else { continue };
            if state[GENERATION].load(Relaxed) == u64::from(meter.generation.get()) {
                meter.put_back(state, cost(len));
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
    fn pass(meter: &Meter, policers: &Policers, packets: &[(usize, u64)], time: u64) -> (u64, u64) {
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
        assert_eq!(pass(&meter, &Policers::new(1).unwrap(), &[(1, 1_000)], SECOND / 100).1, 0);
    }

    #[test]
    fn the_highest_rate_that_pfcp_can_state_does_not_overflow() {
        let meter = Meter::new(((1 << 40) - 1) * 1_000, 1_000, 0, 1);
        let policers = Policers::new(1).unwrap();
        for now in [0, 1, SECOND, u64::MAX / 2, u64::MAX] {
            assert!(policers.admit(&meter, FRAME_MAX, now));
        }
    }

    #[test]
    fn a_packet_is_charged_to_all_meters_or_to_none() {
        let (wide, narrow) = (Meter::new(8_000_000_000, 1, 0, 1), Meter::new(8, 1, 1, 1));
        let policers = Policers::new(2).unwrap();
        assert!(policers.admit_all([wide, narrow].into_iter(), FRAME_MAX, 0));
        let before = policers.0.lines()[0][TOKENS].load(Relaxed);
        assert!(!policers.admit_all([wide, narrow].into_iter(), 100, 0));
        assert_eq!(policers.0.lines()[0][TOKENS].load(Relaxed), before);
    }

    /// However workers' packets fall together, no more passes than one bucket.
    #[test]
    fn workers_that_share_a_meter_charge_each_packet_once() {
        const LEN: usize = 500;
        let meter = Meter::new(8, 1, 0, 1).shared();
        let policers = Policers::new(1).unwrap();
        let worker = || (0..1_000).filter(|_| policers.admit(&meter, LEN, 1)).count();
        let passed: usize = std::thread::scope(|scope| {
            let workers = [(); 4].map(|()| scope.spawn(worker));
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        // Who comes in the moment of the first packet may find an empty bucket.
        assert!((1..=FRAME_MAX / LEN).contains(&passed), "{passed}");
        assert!(!policers.admit_all([meter, meter].into_iter(), LEN, 2));
        assert!(policers.admit_all([meter, meter].into_iter(), LEN, SECOND * 10_000));
    }

    #[test]
    fn a_new_generation_starts_with_a_full_bucket_and_a_new_rate_does_not() {
        let policers = Policers::new(1).unwrap();
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
            let (sent, passed) = pass(&meter, &Policers::new(1).unwrap(), &packets, time);
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
            let policers = Policers::new(1).unwrap();
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
            let policers = Policers::new(1).unwrap();
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
