//! The receiving end of one zero-copy channel: takes descriptors, lends their frames out, and returns a buffer for each.
//!
//! A return is written when its frame is taken, and shown to the sender with the tail when the frame has been dealt with.
//! In between, a port that sends the frame on keeps its buffer and writes an empty one there ([`crate::packet::Lease`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64 as Word, Ordering};

use crate::arena::{Buffers, Descriptor, Entries, HolderId, View};
use crate::latency::Histogram;
use crate::layout::Heads;
use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, Lease, Slot};
use crate::reader::{Filled, Wanted};
use crate::ring::Violation;
use crate::stamp::{Stopwatch, Unit};
use crate::sync::AtomicU64;

/// A position in a ring of descriptors, and what is known of the sender's.
#[derive(Debug)]
pub(crate) struct Taker {
    entries: Entries,
    /// The next descriptor.
    tail: u64,
    /// The last head seen, checked.
    head: u64,
    /// The tail that the sender knows of.
    released: u64,
    /// Up to where frames were asked for.
    asked: u64,
    broken: Option<Violation>,
    stopwatch: Stopwatch,
    arena: View,
    /// Holds what was sent and not yet taken.
    own: HolderId,
    /// Holds what was taken.
    sender: HolderId,
    descriptors: *const Word,
    head_word: *const AtomicU64,
    stamp_word: *const AtomicU64,
    returns: *const AtomicU32,
    /// What the pointers point into.
    _keep: [Arc<Mapping>; 3],
}

// SAFETY: the pointers are into mappings, which belong to no thread, and which are kept.
unsafe impl Send for Taker {}

/// How many frames ahead of the one at hand memory is asked for.
const AHEAD: u64 = 24;
/// Buffers that follow each other are often neighbours, whose holders share a line.
const ASK_HOLDER_EVERY: u64 = 4;

impl Taker {
    /// Takes what `peer` sends to `own`. The descriptors begin at `offset` of the sender's records, the returns at that of
    /// the receiver's own; the heads are words of the sender's index segment.
    ///
    /// # Panics
    /// If one of them lies outside.
    pub(crate) fn new(
        entries: Entries,
        arena: View,
        (own, sender): (HolderId, HolderId),
        (descriptors, descriptors_at): (&Arc<Mapping>, usize),
        (index, heads): (&Arc<Mapping>, impl Fn(&Mapping) -> Heads<'_>),
        (returns, returns_at): (&Arc<Mapping>, usize),
    ) -> Self {
        let count = entries.count() as usize;
        let Heads { head: head_word, stamp: stamp_word, .. } = heads(index);
        Self {
            entries,
            tail: 0,
            head: 0,
            released: 0,
            asked: 0,
            broken: None,
            stopwatch: Stopwatch::new(Unit::Descriptors),
            arena,
            own,
            sender,
            descriptors: descriptors.area(descriptors_at, count * size_of::<u64>()).cast(),
            head_word,
            stamp_word,
            returns: returns.area_mut(returns_at, count * size_of::<u32>()).cast(),
            _keep: [descriptors.clone(), index.clone(), returns.clone()],
        }
    }

    /// Counts how long frames were on their way.
    pub(crate) fn with_latency(mut self, histogram: Histogram) -> Self {
        self.stopwatch = self.stopwatch.into(histogram);
        self
    }

    /// As [`crate::reader::Reader::fill`].
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        slots: &mut [Slot],
        peek: usize,
        mut wanted: impl FnMut(&Slot, u64) -> Wanted,
    ) -> Filled {
        let mut filled = Filled::default();
        if self.broken.is_some() {
            return filled;
        }
        if self.head.wrapping_sub(self.tail) < slots.len() as u64 {
            self.look_for_more();
        }
        // In registers: what is written to shared memory could be this taker itself, for all that the compiler knows.
        let rings = self.rings();
        let (mut tail, head, own, sender) = (self.tail, self.head, self.own, self.sender);
        // A burst of unwanted frames must not keep the caller for a whole ring.
        let mut budget = 4 * BURST_MAX;
        let mut asked = rings.ask(self.asked, head, tail.wrapping_add(AHEAD));
        while filled.packets < slots.len() && tail != head && budget > 0 {
            asked = rings.ask(asked, head, tail.wrapping_add(AHEAD + 1));
            let frame = match rings.check(tail, own) {
                Ok(frame) => frame,
                Err(violation) => {
                    self.broken = Some(violation);
                    break;
                }
            };
            let slot = &mut slots[filled.packets];
            let back = rings.lend(tail, frame, peek, slot);
            match wanted(slot, tail) {
                Wanted::Yes => {
                    filled.packets += 1;
                    filled.bytes += u64::from(frame.len);
                }
                Wanted::No => filled.unwanted += 1,
                Wanted::NotYet => break,
            }
            back.store(frame.buffer, Ordering::Relaxed);
            rings.buffers.set_holder(frame.buffer, sender);
            tail = tail.wrapping_add(1);
            budget -= 1;
        }
        self.stopwatch.turn(self.tail..tail, head);
        (self.tail, self.asked) = (tail, asked);
        filled
    }

    #[inline(always)]
    fn rings(&self) -> Rings {
        let Self { entries, descriptors, returns, .. } = *self;
        Rings { entries, descriptors, returns, buffers: self.arena.buffers() }
    }

    #[inline(always)]
    fn look_for_more(&mut self) {
        let head = self.published();
        match self.entries.check_head(self.tail, head) {
            Ok(()) => {
                self.head = head;
                // SAFETY: the mapping is kept.
                self.stopwatch.stamp = unsafe { &*self.stamp_word }.load(Ordering::Relaxed);
            }
            // What was checked before is still taken.
            Err(violation) if self.head == self.tail => self.broken = Some(violation),
            Err(_) => {}
        }
    }

    /// The head that the sender has published.
    #[inline(always)]
    pub(crate) fn published(&self) -> u64 {
        // SAFETY: the mapping is kept.
        unsafe { &*self.head_word }.load(Ordering::Acquire)
    }

    /// As [`crate::reader::Reader::release`]: how many buffers have been returned, if it is to be published.
    #[inline(always)]
    pub(crate) fn release(&mut self, now: bool) -> Option<u64> {
        let taken = self.tail.wrapping_sub(self.released);
        let due = if now { taken > 0 } else { taken >= self.entries.count() / 8 };
        due.then(|| {
            self.released = self.tail;
            self.tail
        })
    }

    /// Whether there is something to take.
    pub(crate) fn has_more(&self) -> bool {
        self.broken.is_none() && (self.head != self.tail || self.published() != self.tail)
    }

    /// The rule that the sender broke, if it did.
    #[inline(always)]
    pub(crate) fn broken(&self) -> Option<Violation> {
        self.broken
    }

    /// The next descriptor.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }
}

/// The rings and buffers of a taker, for the time of a burst.
#[derive(Clone, Copy)]
struct Rings {
    entries: Entries,
    descriptors: *const Word,
    returns: *const AtomicU32,
    buffers: Buffers,
}

impl Rings {
    /// Asks for frames and holders of descriptors up to `until`, as far as these are published. Returns up to where it has.
    #[inline(always)]
    fn ask(self, mut asked: u64, head: u64, until: u64) -> u64 {
        let until = if until.wrapping_sub(head) <= self.entries.count() { head } else { until };
        while asked.wrapping_sub(until) > u64::MAX / 2 {
            let word = self.descriptor(asked);
            self.buffers.expect_frame(word as u32, (word >> 32) as u16 as usize);
            if asked.is_multiple_of(ASK_HOLDER_EVERY) {
                self.buffers.expect_holder(word as u32);
            }
            asked = asked.wrapping_add(1);
        }
        asked
    }

    /// The frame at a position. Its sender must have held its buffer, and given it to this end.
    #[inline(always)]
    fn check(self, at: u64, own: HolderId) -> Result<Descriptor, Violation> {
        let frame = Descriptor::check(self.descriptor(at), self.buffers.count())?;
        if self.buffers.holder(frame.buffer) == own { Ok(frame) } else { Err(Violation::ForeignBuffer) }
    }

    /// Puts the frame into a slot. Returns where its return is to be written.
    #[inline(always)]
    fn lend<'a>(self, at: u64, frame: Descriptor, peek: usize, slot: &mut Slot) -> &'a AtomicU32 {
        let head = frame.len.min(peek as u16);
        let rest = u32::from(frame.len - head);
        // SAFETY: an index is within the ring, which the taker keeps.
        let back = unsafe { &*self.returns.add(self.entries.index(at)) };
        let lease = Lease { buffer: frame.buffer, back };
        // SAFETY: the frame is within its buffer, and the buffer this end's until the frame is sent on. Arena and returns
        // are mapped until the queue that owns the slots has received again.
        unsafe { slot.lend(self.buffers.start(frame.buffer), frame.offset, head, rest, lease) };
        back
    }

    #[inline(always)]
    fn descriptor(self, at: u64) -> u64 {
        // SAFETY: as above. Atomic, so that it is read once whatever the sender does.
        unsafe { &*self.descriptors.add(self.entries.index(at)) }.load(Ordering::Relaxed)
    }
}
