//! When a record was published, of one burst in many: a word beside the head, which comes with it.
//!
//! One word, so that no reader can take one record's time for another's: the time in nanoseconds of the monotonic clock in
//! bits 0-39, the record's position in bits 40-63, in units of the ring's alignment. Both wrap, after 18 minutes and at
//! least twice a ring. 0 is no stamp.
//!
//! A peer can write anything there: that makes what is said of its frames' latency wrong, and nothing else.

use core::ops::Range;

use crate::latency::Histogram;
use crate::reader::NOWHERE;

const TIME_BITS: u32 = 40;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
const PLACE_MASK: u64 = u64::MAX >> TIME_BITS;

/// Every how many bursts one is stamped. Prime, so that stamps fall on all parts of a ring.
const EVERY: u32 = 1_021;

/// What positions of a channel are multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes of records: of 8.
    Records,
    /// Descriptors: of 1.
    Descriptors,
}

impl Unit {
    const fn shift(self) -> u32 {
        match self {
            Self::Records => 3,
            Self::Descriptors => 0,
        }
    }

    /// As much of a position as a stamp holds.
    const fn place(self, position: u64) -> u64 {
        (position >> self.shift()) & PLACE_MASK
    }

    /// The stamp of a record that is published now.
    pub(crate) fn stamp(self, position: u64) -> u64 {
        self.stamp_at(position, now_ns())
    }

    const fn stamp_at(self, position: u64, time_ns: u64) -> u64 {
        self.place(position) << TIME_BITS | (time_ns & TIME_MASK)
    }
}

/// The monotonic clock, as [`std::time::Instant`] reads it: no system call, where the kernel maps a clock for processes.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a place of ours. Every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How a sender counts its bursts.
#[derive(Debug)]
pub(crate) struct Sampling {
    left: u32,
}

impl Sampling {
    /// The first burst is stamped.
    pub(crate) const fn new() -> Self {
        Self { left: 1 }
    }

    /// Counts a burst. True if it is to be stamped.
    #[inline(always)]
    pub(crate) fn count(&mut self) -> bool {
        self.left -= 1;
        let due = self.left == 0;
        if due {
            self.left = EVERY;
        }
        due
    }
}

/// What a receiver makes of stamps.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    unit: Unit,
    /// The stamp that came with the last head. Looked at when the receiver has filled what it was given to fill.
    pub(crate) stamp: u64,
    /// The last one that was looked at.
    seen: u64,
    /// The same, until its record's latency is known; or 0.
    open: u64,
    /// Position of a record with a stamp, which was not taken yet.
    due: u64,
    histogram: Option<Histogram>,
}

impl Stopwatch {
    pub(crate) const fn new(unit: Unit) -> Self {
        Self { unit, stamp: 0, seen: 0, open: 0, due: NOWHERE, histogram: None }
    }

    /// Counts into a histogram.
    pub(crate) fn into(self, histogram: Histogram) -> Self {
        Self { histogram: Some(histogram), ..self }
    }

    /// The receiver took everything from the range's start to its end, and knows of more up to `head`.
    #[inline(always)]
    pub(crate) fn turn(&mut self, records: Range<u64>, head: u64) {
        if (self.stamp != self.seen) | (records.end > self.due) {
            self.look(records, head);
        }
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self, records: Range<u64>, head: u64) {
        if self.stamp != self.seen {
            self.find(records.start, head);
        }
        if records.end > self.due {
            self.due = NOWHERE;
            let stamp = std::mem::take(&mut self.open);
            self.record(stamp, now_ns());
        }
    }

    /// Finds the stamped record between `tail` and `head`.
    fn find(&mut self, tail: u64, head: u64) {
        let place = self.stamp >> TIME_BITS;
        let ahead = place.wrapping_sub(self.unit.place(tail)) & PLACE_MASK;
        if ahead < head.wrapping_sub(tail) >> self.unit.shift() {
            self.due = tail.wrapping_add(ahead << self.unit.shift());
        } else if ahead <= PLACE_MASK / 2 {
            // Its head is still to come.
            return;
        }
        (self.seen, self.open) = (self.stamp, self.stamp);
    }

    fn record(&self, stamp: u64, at_ns: u64) {
        if let Some(histogram) = &self.histogram {
            // A time to come is one of long ago.
            histogram.record(at_ns.wrapping_sub(stamp) & TIME_MASK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::latency::{LATENCY_MAX_NS, Latency};
    use crate::layout::Index;
    use crate::mapping::Mapping;

    struct Watch {
        stopwatch: Stopwatch,
        index: Arc<Mapping>,
    }

    impl Watch {
        fn new(unit: Unit) -> Self {
            let layout = Index::new(1);
            let index = Arc::new(Mapping::anonymous(layout.bytes()).unwrap());
            Self { stopwatch: Stopwatch::new(unit).into(Histogram::new(layout, &index)), index }
        }

        fn latency(&self) -> Latency {
            Latency::read(Index::new(1), &self.index)
        }

        fn count(&self) -> u64 {
            self.latency().count()
        }
    }

    #[test]
    fn the_first_burst_is_stamped_and_one_in_many_from_then_on() {
        let mut sampling = Sampling::new();
        let stamped: Vec<u32> = (0..3 * EVERY).filter(|_| sampling.count()).collect();
        assert_eq!(stamped, [0, EVERY, 2 * EVERY]);
    }

    #[test]
    fn a_record_is_timed_when_it_is_taken_and_not_when_its_stamp_is_seen() {
        let mut watch = Watch::new(Unit::Records);
        watch.stopwatch.stamp = Unit::Records.stamp(160);
        for records in [80..80, 80..120, 120..160] {
            watch.stopwatch.turn(records, 400);
            assert_eq!(watch.count(), 0);
        }
        for records in [160..240, 240..320, 320..400] {
            watch.stopwatch.turn(records, 400);
        }
        assert_eq!((watch.count(), watch.latency().invalid), (1, 0));
    }

    /// The sender may be about to publish it, when the head before it is seen.
    #[test]
    fn a_stamp_whose_head_is_still_to_come_waits_for_it() {
        let mut watch = Watch::new(Unit::Descriptors);
        watch.stopwatch.stamp = Unit::Descriptors.stamp(8);
        watch.stopwatch.turn(5..8, 8);
        assert_eq!(watch.count(), 0);
        watch.stopwatch.turn(8..9, 10);
        assert_eq!(watch.count(), 1);
    }

    #[test]
    fn a_record_is_never_timed_by_the_stamp_of_another() {
        let mut watch = Watch::new(Unit::Records);
        for stamp in [0, 1 << 20, 64, 144].map(|position| Unit::Records.stamp(position)) {
            watch.stopwatch.stamp = stamp;
            watch.stopwatch.turn(72..144, 144);
        }
        assert_eq!((watch.count(), watch.latency().invalid), (0, 0));
    }

    /// So far behind each other, two positions look the same in a stamp.
    #[test]
    fn a_stamp_is_used_once() {
        let mut watch = Watch::new(Unit::Records);
        watch.stopwatch.stamp = Unit::Records.stamp(80);
        watch.stopwatch.turn(80..160, 160);
        let again = 80 + ((PLACE_MASK + 1) << 3);
        watch.stopwatch.turn(again..again + 80, again + 80);
        assert_eq!(watch.count(), 1);
    }

    #[test]
    fn stamps_are_right_where_they_wrap() {
        for unit in [Unit::Records, Unit::Descriptors] {
            let lap = (PLACE_MASK + 1) << unit.shift();
            let step = 1 << unit.shift();
            for position in [0, lap - 2 * step, lap - step, lap, 5 * lap - step, 5 * lap] {
                let mut watch = Watch::new(unit);
                let tail = position.saturating_sub(step);
                watch.stopwatch.stamp = unit.stamp(position);
                watch.stopwatch.turn(tail..tail, tail + lap / 2);
                assert_eq!(watch.stopwatch.due, position);
            }
        }
        for (sent, taken) in [(TIME_MASK - 5, TIME_MASK + 4), (7 * (TIME_MASK + 1) - 3, 7 * (TIME_MASK + 1) + 6)] {
            let watch = Watch::new(Unit::Records);
            watch.stopwatch.record(Unit::Records.stamp_at(0, sent), taken);
            assert_eq!((watch.count(), watch.latency().max_ns()), (1, 9));
        }
    }

    #[test]
    fn times_to_come_or_of_long_ago_are_counted_apart() {
        let watch = Watch::new(Unit::Records);
        for sent in [1_001, 1_000_000, 1_000_u64.wrapping_sub(LATENCY_MAX_NS)] {
            watch.stopwatch.record(Unit::Records.stamp_at(0, sent), 1_000);
        }
        assert_eq!((watch.count(), watch.latency().invalid), (0, 3));
    }

    proptest! {
        /// A ring's position only grows; everything else is what a peer may write.
        #[test]
        fn whatever_a_peer_writes_a_look_counts_once_at_most(
            looks in prop::collection::vec((any::<u64>(), 0..=1_u64 << 26, 0..=1_u64 << 26), 1..100),
            begin in any::<u32>(),
        ) {
            let mut watch = Watch::new(Unit::Records);
            let mut tail = u64::from(begin) * 8;
            for (n, (stamp, head, taken)) in looks.into_iter().enumerate() {
                watch.stopwatch.stamp = stamp;
                let next = tail + head.min(taken) / 8 * 8;
                watch.stopwatch.turn(tail..next, tail + head / 8 * 8);
                tail = next;
                let latency = watch.latency();
                prop_assert!(latency.count() + latency.invalid <= n as u64 + 1);
                prop_assert!(latency.max_ns() < LATENCY_MAX_NS);
            }
        }
    }
}
