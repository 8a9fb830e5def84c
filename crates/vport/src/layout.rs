//! Where things lie in the segments of a port. Version 2; documented for others in `docs/ports.md`.
//!
//! Each queue pair of each port has two segments, and its function is the only writer of both. The *index* segment has
//! one line for every word that another core polls. The *record* segment has one byte ring for every queue of the peer.
//! A line is 128 bytes, since processors fetch cache lines in pairs. The *table* segment of a port says which of its
//! queues owns which bucket.

use core::sync::atomic::Ordering;

use crate::info::QUEUES_MAX;
use crate::latency::BUCKETS as LATENCY_BUCKETS;
use crate::lone;
use crate::mapping::Mapping;
use crate::steering::BUCKETS;
use crate::sync::AtomicU64;

/// Version of layout and handshake.
pub const VERSION: u16 = 2;
/// Version of the handshake of zero-copy links: the same, and more. Ports of other links need not know it.
pub const VERSION_ZERO_COPY: u16 = 3;
/// Version of the handshake of links to a pool: the same as [`VERSION`], and more.
pub const VERSION_POOL: u16 = 4;
/// Version of the handshake of links whose ends can write the records that they read: the same as [`VERSION`], and more. With a
/// port that does not know it, such a link is as any direct one.
pub const VERSION_SHARED: u16 = 5;
/// The newest of all these.
pub const VERSION_NEWEST: u16 = VERSION_SHARED;
/// Distance of independent words.
pub const LINE: usize = 128;
/// What may be read, never used, behind the last ring: receivers copy short heads in whole blocks.
pub const RECORDS_PAD: usize = 4096;

const PAGE: usize = 4096;
const SLEEP_LINE: usize = 0;
const RX_COUNTERS_LINE: usize = 1;
const TX_COUNTERS_LINE: usize = 2;
const HEADS_LINE: usize = 3;
/// Counters of a receiving half, and of a sending one.
const COUNTERS: usize = 6;

/// The index segment of a queue pair whose peer has `peer_queues` queues.
#[derive(Clone, Copy, Debug)]
pub struct Index {
    peer_queues: usize,
}

impl Index {
    /// # Panics
    /// If `peer_queues` is 0 or over [`QUEUES_MAX`].
    pub fn new(peer_queues: usize) -> Self {
        assert!((1..=QUEUES_MAX).contains(&peer_queues));
        Self { peer_queues }
    }

    /// Size in bytes, whole pages.
    pub fn bytes(self) -> usize {
        (self.further_line() * LINE).next_multiple_of(PAGE)
    }

    /// The first line behind those that every queue has.
    fn further_line(self) -> usize {
        HEADS_LINE + 2 * self.peer_queues + 1
    }

    /// Odd while the owner sleeps.
    #[inline]
    pub(crate) fn sleep(self, segment: &Mapping) -> &AtomicU64 {
        segment.word(SLEEP_LINE * LINE)
    }

    /// Head of what this queue sends to queue `peer` of the other port.
    pub(crate) fn head(self, segment: &Mapping, peer: usize) -> &AtomicU64 {
        self.heads(segment, peer).head
    }

    /// The same, with what stands beside it.
    pub(crate) fn heads(self, segment: &Mapping, peer: usize) -> Heads<'_> {
        assert!(peer < self.peer_queues);
        Heads::at(segment, (HEADS_LINE + peer) * LINE)
    }

    /// Not 0 once this queue will never move that head again.
    pub(crate) fn closed(self, segment: &Mapping, peer: usize) -> &AtomicU64 {
        assert!(peer < self.peer_queues);
        segment.word((HEADS_LINE + peer) * LINE + 8)
    }

    /// Says that nothing more comes behind this head.
    pub(crate) fn close(self, segment: &Mapping, peer: usize, head: u64) {
        self.closed(segment, peer).store(head.max(1), Ordering::Release);
    }

    /// The head at which the epoch begins that this queue has begun last, of what it sends to queue `peer`.
    pub(crate) fn mark(self, segment: &Mapping, peer: usize) -> &AtomicU64 {
        assert!(peer < self.peer_queues);
        segment.word((HEADS_LINE + peer) * LINE + 16)
    }

    /// Odd while this queue is within a burst.
    pub(crate) fn burst(self, segment: &Mapping) -> &AtomicU64 {
        segment.word((HEADS_LINE + 2 * self.peer_queues) * LINE)
    }

    /// The epoch that this queue has begun last.
    pub(crate) fn epoch(self, segment: &Mapping) -> &AtomicU64 {
        segment.word((HEADS_LINE + 2 * self.peer_queues) * LINE + 8)
    }

    /// Tail of what this queue receives from queue `peer` of the other port.
    #[inline]
    pub(crate) fn tail(self, segment: &Mapping, peer: usize) -> &AtomicU64 {
        assert!(peer < self.peer_queues);
        segment.word((HEADS_LINE + self.peer_queues + peer) * LINE)
    }

    /// Receive counters: packets, bytes, polls, empty polls, invalid, sleeps.
    #[inline(always)]
    pub(crate) fn rx_counters(self, segment: &Mapping) -> &[AtomicU64; COUNTERS] {
        segment.words(RX_COUNTERS_LINE * LINE)
    }

    /// Longest latency counted, in nanoseconds.
    pub(crate) fn latency_max(self, segment: &Mapping) -> &AtomicU64 {
        segment.word(RX_COUNTERS_LINE * LINE + 48)
    }

    /// Stamps without a latency that can be.
    pub(crate) fn latency_invalid(self, segment: &Mapping) -> &AtomicU64 {
        segment.word(RX_COUNTERS_LINE * LINE + 56)
    }

    /// How many latencies were counted in bucket `n`. Behind all other lines; where these leave too little of the last page,
    /// behind the tails, of which there are many then.
    pub(crate) fn latency(self, segment: &Mapping, n: usize) -> &AtomicU64 {
        const BEHIND_TAIL: usize = LINE / 8 - 1;
        assert!(n < LATENCY_BUCKETS);
        let further = self.further_line() * LINE;
        if further + LATENCY_BUCKETS * 8 <= self.bytes() {
            return segment.word(further + n * 8);
        }
        let line = HEADS_LINE + self.peer_queues + n / BEHIND_TAIL;
        segment.word(line * LINE + 8 + n % BEHIND_TAIL * 8)
    }

    /// Send counters: packets, bytes, refused, no peer, doorbells, discarded.
    #[inline(always)]
    pub(crate) fn tx_counters(self, segment: &Mapping) -> &[AtomicU64; COUNTERS] {
        segment.words(TX_COUNTERS_LINE * LINE)
    }
}

/// Words that say how far a ring is written, all but the end of the last in one cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads<'a> {
    /// Everything before it is written.
    pub(crate) head: &'a AtomicU64,
    /// When a record was published ([`crate::stamp`]).
    pub(crate) stamp: &'a AtomicU64,
    /// What was sent last, if it was one small frame ([`crate::lone`]).
    pub(crate) lone: &'a lone::Words,
}

impl<'a> Heads<'a> {
    /// In the line at `offset` of a segment.
    pub(crate) fn at(segment: &'a Mapping, offset: usize) -> Self {
        Self { head: segment.word(offset), stamp: segment.word(offset + 32), lone: segment.words(offset + 40) }
    }
}

/// Size of a table segment in bytes.
pub const TABLE_BYTES: usize = PAGE;
const TABLE_EPOCH: usize = 0;
const TABLE_MEMBERS: usize = 8;
const TABLE_STANDING: usize = 16;
const TABLE_COPIES: usize = LINE;

/// The epoch of the table that senders are to use; 0 before there is one.
#[inline]
pub(crate) fn table_epoch(segment: &Mapping) -> &AtomicU64 {
    segment.word(TABLE_EPOCH)
}

/// Of a pool's table: the epoch that the pool is in, also before senders may know of it.
pub(crate) fn table_standing(segment: &Mapping) -> &AtomicU64 {
    segment.word(TABLE_STANDING)
}

/// Of a pool's table: the members that have the generation, a bit each.
pub(crate) fn table_members(segment: &Mapping) -> &AtomicU64 {
    segment.word(TABLE_MEMBERS)
}

/// Word `n` of the table of `epoch`: the owners of eight buckets, a byte each. Two epochs in a row lie in different places.
pub(crate) fn table_word(segment: &Mapping, epoch: u64, n: usize) -> &AtomicU64 {
    assert!(n < BUCKETS / 8);
    segment.word(TABLE_COPIES + (epoch % 2) as usize * BUCKETS + n * 8)
}

/// Size of a record segment with one ring for each queue of the peer, in whole pages of `page` bytes.
pub fn records_bytes(ring_bytes: usize, peer_queues: usize, page: usize) -> usize {
    (ring_bytes * peer_queues + RECORDS_PAD).next_multiple_of(page)
}

/// Bytes of a link's ring size for each buffer that a zero-copy channel has.
const RING_BYTES_PER_BUFFER: usize = 1024;
const DESCRIPTOR_BYTES: usize = 8;
const RETURN_BYTES: usize = 4;

/// The record segment of a queue pair with zero-copy channels to and from each queue of the peer: for each the ring of
/// descriptors that are sent to it, then for each the ring of returns for what it sends.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Buffers of each channel, and entries of each ring.
    pub buffers: usize,
    peer_queues: usize,
}

impl Exchange {
    /// Of a link with rings of `ring_bytes`, a power of two of at least 1,024.
    pub fn new(ring_bytes: usize, peer_queues: usize) -> Self {
        Self { buffers: ring_bytes / RING_BYTES_PER_BUFFER, peer_queues }
    }

    /// Size in bytes, whole pages.
    pub fn bytes(self) -> usize {
        (self.buffers * self.peer_queues * (DESCRIPTOR_BYTES + RETURN_BYTES)).next_multiple_of(PAGE)
    }

    /// Where the descriptors begin that are sent to queue `peer`.
    pub fn descriptors(self, peer: usize) -> usize {
        assert!(peer < self.peer_queues);
        self.buffers * peer * DESCRIPTOR_BYTES
    }

    /// Where the returns begin for what queue `peer` sends.
    pub fn returns(self, peer: usize) -> usize {
        assert!(peer < self.peer_queues);
        self.buffers * (self.peer_queues * DESCRIPTOR_BYTES + peer * RETURN_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polled_words_never_share_a_line() {
        for queues in 1..=QUEUES_MAX {
            let index = Index::new(queues);
            let segment = Mapping::anonymous(index.bytes()).unwrap();
            let mut lines: Vec<usize> = vec![index.sleep(&segment).as_ptr() as usize];
            for peer in 0..queues {
                lines.push(index.head(&segment, peer).as_ptr() as usize);
                lines.push(index.tail(&segment, peer).as_ptr() as usize);
            }
            lines.push(index.rx_counters(&segment).as_ptr() as usize);
            lines.push(index.tx_counters(&segment).as_ptr() as usize);
            lines.push(index.burst(&segment).as_ptr() as usize);
            let count = lines.len();
            lines.iter_mut().for_each(|address| *address /= LINE);
            lines.sort_unstable();
            lines.dedup();
            assert_eq!(lines.len(), count);
        }
    }

    #[test]
    fn latencies_share_no_word_with_anything_else_and_end_with_the_segment() {
        for queues in 1..=QUEUES_MAX {
            let index = Index::new(queues);
            let segment = Mapping::anonymous(index.bytes()).unwrap();
            let mut words = vec![index.sleep(&segment), index.burst(&segment), index.epoch(&segment)];
            for peer in 0..queues {
                let Heads { head, stamp, lone } = index.heads(&segment, peer);
                words.extend([head, stamp, index.closed(&segment, peer), index.mark(&segment, peer)]);
                words.extend(lone);
                words.push(index.tail(&segment, peer));
            }
            words.extend(index.rx_counters(&segment).iter().chain(index.tx_counters(&segment)));
            words.extend([index.latency_max(&segment), index.latency_invalid(&segment)]);
            words.extend((0..LATENCY_BUCKETS).map(|n| index.latency(&segment, n)));
            let mut addresses: Vec<usize> = words.iter().map(|word| word.as_ptr() as usize).collect();
            addresses.sort_unstable();
            addresses.dedup();
            assert_eq!(addresses.len(), words.len());
        }
    }
}
