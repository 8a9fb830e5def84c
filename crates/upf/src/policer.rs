//! Maximum bit rates: token buckets whose arithmetic is exact.
//!
//! A token is a billionth of a bit. A rate in bit/s is then the same number in tokens per nanosecond, so refilling is one
//! multiplication of whole numbers: nothing is rounded, and over any time no bit too many passes and none too few.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use port::FRAME_MAX;
use vport::tally::{LINE_WORDS, Tallies};

/// Tokens that a byte costs.
const TOKENS_PER_BYTE: u64 = 8 * 1_000_000_000;
/// No bucket holds more, so that sums of buckets and refills fit 64 bits.
const BURST_MAX: u64 = 1 << 62;

/// A maximum bit rate that packets count towards, with its token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Meter<'t> {
    /// Bit/s.
    rate: u64,
    /// Size of the bucket in tokens.
    burst: u64,
    tokens: &'t Tokens,
    /// Of a bucket that sessions share.
    generation: Option<Generation<'t>>,
}

/// The tokens in a bucket, and when they were right in nanoseconds.
///
/// Those of one session are in the session's block, in the line of the rule where it is one rule that takes from the bucket: so
/// they cost a packet no line of memory. They belong to the worker that owns the session's home bucket, and go with it:
/// nobody else writes them, and one worker hands them to the next by the message that brings the home bucket.
pub(crate) type Tokens = [AtomicU64; 2];
const HELD: usize = 0;
const AT: usize = 1;

/// A bucket that nobody has taken from yet: there is no more in it than it can hold.
pub(crate) const FULL: [u64; 2] = [u64::MAX, 0];

/// By which a bucket that others have shared before starts anew: the one that its tokens are of, and that of who shares it now.
#[derive(Clone, Copy, Debug)]
struct Generation<'t> {
    seen: &'t AtomicU64,
    own: NonZeroU32,
}

/// Words of a state that sessions share: tokens, and the generation that they are of.
const SHARED_WORDS: usize = LINE_WORDS / 2;
const GENERATION: usize = 2;

/// What policers let pass at once, and the states of those that sessions share. They take no memory before they are used. Clones
/// are the same.
#[derive(Clone, Debug)]
pub struct Policers {
    burst_ns: u64,
    shared: Arc<Tallies>,
}

impl Policers {
    /// Policers that let `burst_ms` milliseconds' worth of their rates pass at once, at least the longest frame; so many of them are
    /// shared at most.
    pub fn new(burst_ms: u32, shared: usize) -> io::Result<Self> {
        let shared = Tallies::private(shared.div_ceil(LINE_WORDS / SHARED_WORDS))?;
        Ok(Self { burst_ns: u64::from(burst_ms) * 1_000_000, shared: Arc::new(shared) })
    }

    /// One for `rate` bit/s with these tokens, which one worker takes from. A rate of zero lets nothing pass.
    #[inline(always)]
    pub(crate) fn own<'t>(&self, rate: u64, tokens: &'t Tokens) -> Meter<'t> {
        Meter { rate, burst: self.burst(rate), tokens, generation: None }
    }

    /// The one with this index that sessions share, for `rate` bit/s. `generation` distinguishes it from former ones.
    pub(crate) fn shared(&self, rate: u64, index: u32, generation: NonZeroU32) -> Option<Meter<'_>> {
        let state = self.shared.lines().as_flattened().get(index as usize * SHARED_WORDS..)?;
        let generation = Some(Generation { seen: state.get(GENERATION)?, own: generation });
        Some(Meter { rate, burst: self.burst(rate), tokens: state.first_chunk()?, generation })
    }

    #[inline(always)]
    fn burst(&self, rate: u64) -> u64 {
        const LONGEST: u64 = FRAME_MAX as u64 * TOKENS_PER_BYTE;
        match rate {
            0 => 0,
            _ => rate.saturating_mul(self.burst_ns).clamp(LONGEST, BURST_MAX),
        }
    }
}

impl Meter<'_> {
    /// Bit/s.
    pub fn rate_bps(&self) -> u64 {
        self.rate
    }

    /// Whether a packet of `len` bytes conforms at time `now` (nanoseconds). If so it is charged.
    #[inline(always)]
    pub fn admit(&self, len: usize, now: u64) -> bool {
        if let Some(generation) = &self.generation {
            return self.admit_shared(generation, len, now);
        }
        // Workers take the time once a burst, so it may seem to stand still; it never counts twice.
        let at = self.tokens[AT].load(Relaxed);
        let since = now.saturating_sub(at);
        self.tokens[AT].store(at + since, Relaxed);
        let tokens = self.filled(self.tokens[HELD].load(Relaxed), self.rate.saturating_mul(since));
        let left = tokens.checked_sub(cost(len));
        self.tokens[HELD].store(left.unwrap_or(tokens), Relaxed);
        left.is_some()
    }

    /// The same where other workers may do so at this moment. None of them waits for another.
    #[inline(never)]
    fn admit_shared(&self, generation: &Generation<'_>, len: usize, now: u64) -> bool {
        self.refill_shared(generation, now);
        self.tokens[HELD].fetch_update(Relaxed, Relaxed, |held| held.checked_sub(cost(len))).is_ok()
    }

    /// Whoever moves the time on refills for it.
    fn refill_shared(&self, generation: &Generation<'_>, now: u64) {
        let (seen, own) = (generation.seen.load(Relaxed), u64::from(generation.own.get()));
        if seen != own {
            // A packet of another worker may find the former tokens for a moment.
            if generation.seen.compare_exchange(seen, own, Relaxed, Relaxed).is_ok() {
                self.tokens[AT].store(now, Relaxed);
                self.tokens[HELD].store(self.burst, Relaxed);
            }
            return;
        }
        let at = self.tokens[AT].load(Relaxed);
        if now > at && self.tokens[AT].compare_exchange(at, now, Relaxed, Relaxed).is_ok() {
            self.put_back(self.rate.saturating_mul(now - at));
        }
    }

    /// Tokens with these besides.
    #[inline(always)]
    fn filled(&self, held: u64, tokens: u64) -> u64 {
        held.saturating_add(tokens).min(self.burst)
    }

    /// Puts tokens into the bucket.
    fn put_back(&self, tokens: u64) {
        // Whatever it holds, it is filled.
        let _ = self.tokens[HELD].fetch_update(Relaxed, Relaxed, |held| Some(self.filled(held, tokens)));
    }
}

/// Two are equal that let the same pass, since they are one.
impl PartialEq for Meter<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.rate, self.burst) == (other.rate, other.burst) && std::ptr::eq(self.tokens, other.tokens)
    }
}

/// Whether a packet of `len` bytes conforms to all of these at time `now`. It is charged to all of them, or to none.
#[inline(never)]
pub fn admit_all<'t>(meters: impl Iterator<Item = Meter<'t>> + Clone, len: usize, now: u64) -> bool {
    let Some(refused) = meters.clone().position(|meter| !meter.admit(len, now)) else { return true };
    give_back(meters.take(refused), len);
    false
}

/// A packet of `len` bytes that was admitted will come again: what it was charged is given back.
#[cold]
pub fn give_back<'t>(meters: impl Iterator<Item = Meter<'t>>, len: usize) {
    let is_charged =
        |meter: &Meter<'_>| meter.generation.is_none_or(|of| of.seen.load(Relaxed) == u64::from(of.own.get()));
    meters.filter(is_charged).for_each(|meter| meter.put_back(cost(len)));
}

/// The bucket is as if nobody had taken from it.
pub(crate) fn fill(tokens: &Tokens) {
    tokens.iter().zip(FULL).for_each(|(to, full)| to.store(full, Relaxed));
}

/// What is left in one bucket is what is in another from now on, which takes its place.
pub(crate) fn carry_over(from: &Tokens, to: &Tokens) {
    from.iter().zip(to).for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
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

    /// Tokens that nobody has taken from.
    fn full() -> Tokens {
        FULL.map(AtomicU64::new)
    }

    fn policers(burst_ms: u32) -> Policers {
        Policers::new(burst_ms, 1).unwrap()
    }

    fn shared(policers: &Policers, rate: u64, generation: u32) -> Meter<'_> {
        policers.shared(rate, 0, NonZeroU32::new(generation).unwrap()).unwrap()
    }

    /// Sends packets of the given lengths and gaps over and over for `time` ns; returns the bytes sent and passed.
    fn pass(meter: &Meter<'_>, packets: &[(usize, u64)], time: u64) -> (u64, u64) {
        let (mut now, mut sent, mut passed) = (0, 0, 0);
        for &(len, gap) in packets.iter().cycle() {
            if now > time {
                break;
            }
            sent += len as u64;
            if meter.admit(len, now) {
                passed += len as u64;
            }
            now += gap;
        }
        (sent, passed)
    }

    #[test]
    fn a_rate_of_zero_lets_nothing_pass() {
        assert_eq!(pass(&policers(50).own(0, &full()), &[(1, 1_000)], SECOND / 100).1, 0);
    }

    #[test]
    fn the_highest_rate_that_pfcp_can_state_does_not_overflow() {
        let (policers, tokens) = (policers(1_000), full());
        let meter = policers.own(((1 << 40) - 1) * 1_000, &tokens);
        for now in [0, 1, SECOND, u64::MAX / 2, u64::MAX] {
            assert!(meter.admit(FRAME_MAX, now));
        }
    }

    #[test]
    fn a_packet_is_charged_to_all_meters_or_to_none() {
        let (policers, wide, narrow) = (policers(1), full(), full());
        let meters = [policers.own(8_000_000_000, &wide), policers.own(8, &narrow)];
        assert!(admit_all(meters.into_iter(), FRAME_MAX, 0));
        let before = wide[HELD].load(Relaxed);
        assert!(!admit_all(meters.into_iter(), 100, 0));
        assert_eq!(wide[HELD].load(Relaxed), before);
    }

    /// However workers' packets fall together, no more passes than one bucket.
    #[test]
    fn workers_that_share_a_meter_charge_each_packet_once() {
        const LEN: usize = 500;
        let policers = policers(1);
        let meter = shared(&policers, 8, 1);
        let worker = || (0..1_000).filter(|_| meter.admit(LEN, 1)).count();
        let passed: usize = std::thread::scope(|scope| {
            let workers = [(); 4].map(|()| scope.spawn(worker));
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        // Who comes in the moment of the first packet may find an empty bucket.
        assert!((1..=FRAME_MAX / LEN).contains(&passed), "{passed}");
        assert!(!admit_all([meter, meter].into_iter(), LEN, 2));
        assert!(admit_all([meter, meter].into_iter(), LEN, SECOND * 10_000));
    }

    #[test]
    fn a_bucket_with_new_users_is_full_and_one_with_a_new_rate_is_not() {
        let (policers, tokens) = (policers(1), full());
        let own = |rate| policers.own(rate, &tokens);
        assert!(own(8).admit(FRAME_MAX, 0) && !own(80).admit(FRAME_MAX, 1));
        let shared = |rate, generation| shared(&policers, rate, generation);
        assert!(shared(8, 1).admit(FRAME_MAX, 0) && !shared(80, 1).admit(FRAME_MAX, 1));
        assert!(shared(80, 2).admit(FRAME_MAX, 1));
    }

    #[test]
    fn what_is_left_is_carried_over() {
        let (policers, former, next) = (policers(1), full(), full());
        assert!(policers.own(8, &former).admit(FRAME_MAX, 0));
        carry_over(&former, &next);
        assert!(!policers.own(8, &next).admit(1, 0));
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
            let (policers, tokens) = (policers(burst_ms), full());
            let meter = policers.own(rate, &tokens);
            let (sent, passed) = pass(&meter, &packets, time);
            let fair = (u128::from(rate) * u128::from(time) / 8 / u128::from(SECOND)) as u64;
            prop_assert!(passed <= fair + meter.burst / TOKENS_PER_BYTE + 1, "{passed} over {fair}");
            // At the end at most one packet's worth is left unused.
            prop_assert!(passed + 1_500 >= fair.min(sent), "{passed} under {fair}");
        }

        /// Below the rate nothing is ever dropped, provided that no packet exceeds the bucket.
        #[test]
        fn conforming_traffic_always_passes(rate in 1_000_000u64..=5_000_000_000, len in 40usize..1_500) {
            let gap = len as u64 * 8 * SECOND / rate + 1;
            let (policers, tokens) = (policers(10), full());
            for i in 0..50_000 {
                prop_assert!(policers.own(rate, &tokens).admit(len, i * gap));
            }
        }

        /// In any window of time no more passes than the rate allows plus one bucket.
        #[test]
        fn no_window_exceeds_rate_and_bucket(
            rate in 1_000_000u64..=5_000_000_000,
            packets in proptest::collection::vec((40usize..9_600, 0u64..10_000_000), 2..200),
        ) {
            let (policers, tokens) = (policers(5), full());
            let meter = policers.own(rate, &tokens);
            let mut now = 0;
            let mut passed = vec![];
            for (len, gap) in packets {
                now += gap;
                if meter.admit(len, now) {
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
