//! What one receive queue shares with its port's steering, within the function: the buckets that it owns and awaits, the
//! epoch that it is to cross, and how many packets of each bucket it has delivered.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::handover::Handover;
use crate::rx::RxHalf;
use crate::steering::{BUCKETS, BucketCounts, BucketTable};
use crate::sync::AtomicU64;

/// A set of buckets that several threads look at.
#[derive(Debug, Default)]
struct Set([AtomicU64; BUCKETS / 64]);

impl Set {
    #[inline(always)]
    fn has(&self, bucket: u8) -> bool {
        has(&self.words(), bucket)
    }

    #[inline(always)]
    fn words(&self) -> [u64; BUCKETS / 64] {
        self.0.each_ref().map(
            #[inline(always)]
            |word| word.load(Ordering::Acquire),
        )
    }

    fn insert(&self, bucket: u8) {
        self.0[usize::from(bucket) / 64 % 2].fetch_or(1 << (bucket % 64), Ordering::AcqRel);
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    fn remove(&self, bucket: u8) {
        self.0[usize::from(bucket) / 64 % 2].fetch_and(!(1 << (bucket % 64)), Ordering::AcqRel);
    }
}

/// Whether a bucket is in a set that was loaded.
#[inline(always)]
pub(crate) fn has(words: &[u64; BUCKETS / 64], bucket: u8) -> bool {
    words[usize::from(bucket) / 64 % 2] >> (bucket % 64) & 1 == 1
}

/// Shared by a receive queue, whoever decides over its port, and the owner of its buckets.
#[derive(Debug)]
pub(crate) struct Cell {
    owned: Set,
    /// Buckets that the queue gets in `epoch`, and does not have yet.
    awaited: Set,
    /// The epoch of `awaited`. Set before any sender can know of it.
    epoch: AtomicU64,
    /// The epoch that the queue is to cross. Set when every sender that is not in a burst will know of it.
    asked: AtomicU64,
    crossed: AtomicU64,
    load: BucketCounts,
    mailbox: Arc<Handover<RxHalf>>,
}

impl Cell {
    /// For queue `queue`, with the buckets that it owns at first.
    pub(crate) fn new(queue: usize, table: &BucketTable, mailbox: Arc<Handover<RxHalf>>) -> Self {
        let cell = Self {
            owned: Set::default(),
            awaited: Set::default(),
            epoch: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            crossed: AtomicU64::new(0),
            load: BucketCounts::default(),
            mailbox,
        };
        (0..BUCKETS as u8).filter(|&bucket| table.queue(bucket) == queue).for_each(|bucket| cell.owned.insert(bucket));
        cell
    }

    // The queue.

    #[inline(always)]
    pub(crate) fn owns(&self, bucket: u8) -> bool {
        self.owned.has(bucket)
    }

    /// All buckets that are the queue's.
    #[inline(always)]
    pub(crate) fn owned(&self) -> [u64; BUCKETS / 64] {
        self.owned.words()
    }

    /// Whether the bucket will be the queue's, and was not when [`Cell::owns`] said so.
    pub(crate) fn awaits(&self, bucket: u8) -> bool {
        self.awaited.has(bucket)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Counts a packet. Only the queue does.
    #[inline(always)]
    pub(crate) fn count(&self, bucket: u8) {
        self.load.count(bucket);
    }

    /// The epoch that is to be crossed, if there is one.
    pub(crate) fn to_cross(&self) -> Option<u64> {
        let asked = self.asked.load(Ordering::Acquire);
        (asked > self.crossed.load(Ordering::Relaxed)).then_some(asked)
    }

    /// The queue has delivered, and its user is done with, everything of earlier epochs.
    pub(crate) fn cross(&self, epoch: u64) {
        self.crossed.store(epoch, Ordering::Release);
    }

    // The decider.

    /// No bucket is on its way. Of an epoch that was prepared and never published some may seem to be.
    pub(crate) fn await_none(&self) {
        self.awaited.clear();
    }

    /// A new epoch will make `bucket` the queue's.
    pub(crate) fn await_bucket(&self, bucket: u8) {
        self.awaited.insert(bucket);
    }

    /// The number of the new epoch, before it is published.
    pub(crate) fn prepare(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
    }

    /// The new epoch is published, with a full fence after it.
    pub(crate) fn ask(&self, epoch: u64) {
        self.asked.store(epoch, Ordering::Release);
        self.mailbox.nudge();
    }

    /// Packets of `bucket` that were delivered so far.
    pub(crate) fn load(&self, bucket: u8) -> u64 {
        self.load.of(bucket)
    }

    // The owner.

    #[inline]
    pub(crate) fn has_crossed(&self, epoch: u64) -> bool {
        self.crossed.load(Ordering::Acquire) >= epoch
    }

    pub(crate) fn lose(&self, bucket: u8) {
        self.owned.remove(bucket);
    }

    /// In this order: at every moment the queue finds the bucket owned or awaited.
    pub(crate) fn gain(&self, bucket: u8) {
        self.owned.insert(bucket);
        self.awaited.remove(bucket);
    }

    /// Something came for the owner of the queue's buckets.
    pub(crate) fn nudge(&self) {
        self.mailbox.nudge();
    }
}

#[cfg(all(test, loom))]
impl Cell {
    /// What others than the queue's own worker read or write, of buckets 0 to 63.
    pub(crate) fn words(&self) -> impl Iterator<Item = (&'static str, &dyn crate::sync::Atom)> {
        let words: [(_, &dyn crate::sync::Atom); 3] =
            [("cell.awaited", &self.awaited.0[0]), ("cell.epoch", &self.epoch), ("cell.asked", &self.asked)];
        words.into_iter().chain(self.mailbox.words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell() -> Cell {
        Cell::new(1, &BucketTable::fixed(2), Handover::new().unwrap())
    }

    #[test]
    fn a_queue_begins_with_the_buckets_of_the_fixed_table() {
        let cell = cell();
        assert!((0..BUCKETS as u8).all(|bucket| cell.owns(bucket) == (bucket % 2 == 1)));
    }

    #[test]
    fn a_bucket_is_lost_and_gained_alone() {
        let cell = cell();
        cell.lose(65);
        cell.await_bucket(64);
        assert!(!cell.owns(65) && cell.owns(1) && cell.owns(67) && cell.awaits(64) && !cell.awaits(0));
        cell.gain(64);
        assert!(cell.owns(64) && !cell.awaits(64) && !cell.owns(0));
    }

    #[test]
    fn an_epoch_is_asked_for_until_it_is_crossed() {
        let cell = cell();
        assert_eq!(cell.to_cross(), None);
        cell.ask(2);
        assert_eq!(cell.to_cross(), Some(2));
        cell.cross(2);
        assert!(cell.to_cross().is_none() && cell.has_crossed(2) && !cell.has_crossed(3));
    }
}
