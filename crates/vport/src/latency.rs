//! How long frames were on their way: a histogram of few words, which a receiving queue keeps in its index segment for
//! everyone who has that.
//!
//! Buckets are the powers of two, each in four equal parts: what is said of a latency is at most a quarter too much.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::layout::Index;
use crate::mapping::Mapping;
use crate::sync::AtomicU64;

/// Buckets of a histogram.
pub const BUCKETS: usize = 128;
/// No frame is so many nanoseconds on its way: 8.6 s, at which the last bucket ends.
pub const LATENCY_MAX_NS: u64 = 1 << 33;

/// Parts of a power of two.
const PARTS: u64 = 4;

/// The bucket of a latency in nanoseconds. None for one that cannot be.
fn bucket(ns: u64) -> Option<usize> {
    if ns >= LATENCY_MAX_NS {
        return None;
    }
    if ns < PARTS {
        return Some(ns as usize);
    }
    let power = u64::from(ns.ilog2());
    Some(((power - 1) * PARTS + ((ns >> (power - 2)) & (PARTS - 1))) as usize)
}

/// The longest latency of a bucket, in nanoseconds.
fn longest(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    ((PARTS + bucket % PARTS + 1) << (bucket / PARTS - 1)) - 1
}

/// The histogram of a receiving queue, in its own index segment.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    index: Arc<Mapping>,
    layout: Index,
}

impl Histogram {
    /// In a segment of which this process is the only writer.
    pub(crate) fn new(layout: Index, index: &Arc<Mapping>) -> Self {
        Self { index: index.clone(), layout }
    }

    /// Counts one latency in nanoseconds.
    pub(crate) fn record(&self, ns: u64) {
        let Some(n) = bucket(ns) else { return increment(self.layout.latency_invalid(&self.index)) };
        let max = self.layout.latency_max(&self.index);
        if ns > max.load(Ordering::Relaxed) {
            max.store(ns, Ordering::Relaxed);
        }
        increment(self.layout.latency(&self.index, n));
    }
}

/// Of a word that nobody else writes.
fn increment(word: &AtomicU64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// Latencies of a port, from when a sender published a frame until the receiver was given it; of about one burst in a
/// thousand, since the link's generation began. A claim of the two functions, as all counters are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    buckets: [u64; BUCKETS],
    max_ns: u64,
    /// Stamps that said nothing: of a time to come, or long ago.
    pub invalid: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], max_ns: 0, invalid: 0 }
    }
}

impl Latency {
    /// What a queue has published.
    pub(crate) fn read(layout: Index, index: &Mapping) -> Self {
        Self {
            buckets: core::array::from_fn(|n| layout.latency(index, n).load(Ordering::Relaxed)),
            max_ns: layout.latency_max(index).load(Ordering::Relaxed),
            invalid: layout.latency_invalid(index).load(Ordering::Relaxed),
        }
    }

    /// Together with another queue's.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count = count.saturating_add(more);
        }
        self.max_ns = self.max_ns.max(other.max_ns);
        self.invalid = self.invalid.saturating_add(other.invalid);
        self
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The latency in nanoseconds that `share` (0 to 1) of all do not exceed, at most a quarter too much. None where none
    /// was counted.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let count = self.count();
        let wanted = ((count as f64 * share).ceil() as u64).max(1);
        let mut below = 0_u64;
        let reaches = |count: &u64| {
            below = below.saturating_add(*count);
            below >= wanted
        };
        let found = self.buckets.iter().position(reaches);
        // Of numbers over 2^53 the share can round to more than there are.
        let found = found.or_else(|| self.buckets.iter().rposition(|count| *count > 0));
        found.map(|bucket| longest(bucket).min(self.max_ns))
    }

    /// The longest, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram() -> Histogram {
        let layout = Index::new(1);
        Histogram::new(layout, &Arc::new(Mapping::anonymous(layout.bytes()).unwrap()))
    }

    impl Histogram {
        pub(crate) fn snapshot(&self) -> Latency {
            Latency::read(self.layout, &self.index)
        }
    }

    #[test]
    fn buckets_follow_each_other_without_gap_up_to_the_longest_latency() {
        for n in 0..BUCKETS - 1 {
            assert_eq!(bucket(longest(n)), Some(n));
            assert_eq!(bucket(longest(n) + 1), Some(n + 1));
        }
        assert_eq!(bucket(0), Some(0));
        assert_eq!(longest(BUCKETS - 1), LATENCY_MAX_NS - 1);
        assert_eq!((bucket(LATENCY_MAX_NS), bucket(u64::MAX)), (None, None));
    }

    proptest! {
        #[test]
        fn a_bucket_covers_its_latency_and_is_at_most_a_quarter_too_long(power in 0..33_u32, part in any::<u64>()) {
            let ns = (1 << power) | (part & ((1 << power) - 1));
            let said = longest(bucket(ns).unwrap());
            prop_assert!(said >= ns && said - ns <= ns / 4, "{said} of {ns}");
        }
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_latencies(mut all in prop::collection::vec(0..LATENCY_MAX_NS, 1..200)) {
            let histogram = histogram();
            all.iter().for_each(|ns| histogram.record(*ns));
            all.sort_unstable();
            let said = histogram.snapshot();
            prop_assert_eq!((said.count(), said.max_ns()), (all.len() as u64, *all.last().unwrap()));
            for share in [0.0, 0.5, 0.99, 0.999, 1.0] {
                let exact = all[((all.len() as f64 * share).ceil() as usize).max(1) - 1];
                let said = said.quantile_ns(share).unwrap();
                prop_assert!(said >= exact && said - exact <= exact / 4, "{share}: {said} of {exact}");
            }
        }
    }

    #[test]
    fn what_no_frame_can_take_is_counted_apart() {
        let histogram = histogram();
        [LATENCY_MAX_NS, u64::MAX].into_iter().for_each(|ns| histogram.record(ns));
        let said = histogram.snapshot();
        assert_eq!((said.count(), said.max_ns(), said.invalid), (0, 0, 2));
        assert_eq!(said.quantile_ns(0.5), None);
    }

    #[test]
    fn queues_are_counted_together() {
        let [a, b] = [10, 1_000].map(|ns| {
            let histogram = histogram();
            (0..3).for_each(|_| histogram.record(ns));
            histogram.snapshot()
        });
        let both = a.and(&b);
        assert_eq!((both.count(), both.max_ns()), (6, 1_000));
        assert_eq!((both.quantile_ns(0.5), both.quantile_ns(0.99)), (Some(11), Some(1_000)));
    }

    /// Who wrote the words need not have counted.
    #[test]
    fn any_words_can_be_read() {
        let wild = Latency { buckets: [u64::MAX; BUCKETS], max_ns: 5, invalid: u64::MAX };
        let both = wild.clone().and(&wild);
        assert_eq!((both.count(), both.invalid), (u64::MAX, u64::MAX));
        let said = [0.5, 0.99, 0.999].map(|share| both.quantile_ns(share).unwrap());
        assert!(said.is_sorted() && said[2] <= both.max_ns());
    }
}
