//! The receiving end of one zero-copy channel: takes descriptors, lends their frames out, and returns a buffer for each.
//!
//! A return is written when its frame is taken, and shown to the sender with the tail when the frame has been dealt with.
//! In between, a port that sends the frame on keeps its buffer and writes an empty one there ([`crate::packet::Lease`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64 as Word, Ordering};

use crate::arena::{Buffers, Descriptor, Entries, HolderId, View};
use crate::epoch::reaches;
use crate::latency::Histogram;
use crate::layout::Heads;
use crate::lent::{Lent, Place};
use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, Lease, Slot, copy_bytes};
use crate::prefetch;
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
    /// Up to where holders and frames were asked for.
    asked: u64,
    /// Up to where lines of the rings were asked for.
    asked_lines: u64,
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

/// How many frames ahead of those at hand memory is asked for.
const AHEAD: u64 = 32;
/// How many further ahead the descriptors are that say which memory that is.
const AHEAD_LINES: u64 = 32;
/// Descriptors of a cache line.
const TOGETHER: u64 = 8;

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
            asked_lines: 0,
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
        let mut asked = rings.ask(later(self.asked, tail), head, tail.wrapping_add(AHEAD), true);
        while (filled.packets as usize) < slots.len() && tail != head && budget > 0 {
            asked = rings.ask(asked, head, tail.wrapping_add(AHEAD + 1), true);
            let frame = match rings.check(tail, own) {
                Ok(frame) => frame,
                Err(violation) => {
                    self.broken = Some(violation);
                    break;
                }
            };
            let slot = &mut slots[filled.packets as usize];
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

    /// As [`Taker::fill`], for a caller that wants every frame: without slots.
    #[inline(always)]
    pub(crate) fn lend(&mut self, lent: &mut Lent, peek: usize) -> Filled {
        if self.broken.is_some() {
            return Filled::default();
        }
        let most = lent.most();
        if self.head.wrapping_sub(self.tail) < most as u64 {
            self.look_for_more();
        }
        let count = self.head.wrapping_sub(self.tail).min(most as u64) as usize;
        if count == 0 {
            return Filled::default();
        }
        match count {
            // Of a length that the compiler knows.
            BURST_MAX => self.lend_all(lent, BURST_MAX, peek),
            _ => self.lend_all(lent, count, peek),
        }
    }

    #[inline(always)]
    fn lend_all(&mut self, lent: &mut Lent, count: usize, peek: usize) -> Filled {
        let (rings, tail, head) = (self.rings(), self.tail, self.head);
        let asked = later(self.asked, tail);
        self.asked = rings.ask(asked, head, tail.wrapping_add(count as u64 + AHEAD), false);
        self.asked_lines = rings.ask_lines(self.asked_lines, head, tail.wrapping_add(count as u64 + AHEAD));
        let not_asked_for = lent.not_asked_for(tail, count);
        let words = &mut lent.words_mut()[..count];
        rings.copy(tail, words);
        for word in &words[not_asked_for] {
            rings.buffers.expect_frame(*word as u32, (word >> 32) as u16 as usize);
        }
        let held = rings.hand_over(words, self.own, self.sender);
        if held < count {
            let lawful = Descriptor::is_lawful(words[held], rings.buffers.count());
            self.broken = Some(if lawful { Violation::ForeignBuffer } else { Violation::BadDescriptor });
        }
        let words = &words[..held];
        rings.give_back(tail, words);
        let bytes = Descriptor::frame_bytes(words);
        let Rings { entries, returns, buffers, descriptors } = rings;
        let place = Place { buffers, returns, entries, first: tail, descriptors, head, sender: self.sender };
        // SAFETY: checked; mapped and this end's as in `Rings::lend`.
        unsafe { lent.fill(held, peek, place) };
        self.tail = tail.wrapping_add(held as u64);
        self.stopwatch.turn(tail..self.tail, head);
        Filled { packets: held as u32, bytes, unwanted: 0 }
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
                // What was there stays there.
                self.head = later(self.head, head);
                // SAFETY: the mapping is kept.
                self.stopwatch.stamp = unsafe { &*self.stamp_word }.load(Ordering::Relaxed);
            }
            // What was checked before is still taken.
            Err(violation) if self.head == self.tail => self.broken = Some(violation),
            Err(_) => {}
        }
    }

    /// As [`crate::reader::Reader::read_up_to`].
    pub(crate) fn read_up_to(&mut self, position: u64) {
        if self.broken.is_some() || reaches(self.head, position) {
            return;
        }
        match self.entries.check_head(self.tail, position) {
            Ok(()) => self.head = position,
            Err(violation) => self.broken = Some(violation),
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

/// The later of two positions.
#[inline(always)]
fn later(one: u64, other: u64) -> u64 {
    if one.wrapping_sub(other) > u64::MAX / 2 { other } else { one }
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
    /// Asks for holders, and `frames` where these will be looked at, of descriptors up to `until`, as far as these are
    /// published: so many at a time. Returns up to where it has.
    #[inline(always)]
    fn ask(self, mut asked: u64, head: u64, until: u64, frames: bool) -> u64 {
        let until = self.published(head, until);
        while until.wrapping_sub(asked).wrapping_sub(TOGETHER) < self.entries.count() {
            let words = |n: u64| self.descriptor(asked.wrapping_add(n));
            self.buffers.expect_holders::<TOGETHER>(|n| words(n) as u32);
            if frames {
                for n in 0..TOGETHER {
                    self.buffers.expect_frame(words(n) as u32, (words(n) >> 32) as u16 as usize);
                }
            }
            asked = asked.wrapping_add(TOGETHER);
        }
        asked
    }

    /// Asks for descriptors behind `until`, as far as they are published, and for where returns will be written.
    #[inline(always)]
    fn ask_lines(self, mut asked: u64, head: u64, until: u64) -> u64 {
        let until = self.published(head, until.wrapping_add(AHEAD_LINES));
        while asked.wrapping_sub(until) > u64::MAX / 2 {
            let at = self.entries.index(asked);
            prefetch::to_read(self.descriptors.wrapping_add(at).cast());
            prefetch::to_write(self.returns.wrapping_add(at).cast());
            asked = asked.wrapping_add(TOGETHER);
        }
        asked
    }

    /// A position, or the head, if that comes before it.
    #[inline(always)]
    fn published(self, head: u64, until: u64) -> u64 {
        if until.wrapping_sub(head) <= self.entries.count() { head } else { until }
    }

    /// Copies the descriptors from a position on.
    #[inline(always)]
    fn copy(self, at: u64, words: &mut [u64]) {
        let [first, second] = self.entries.pieces(at, words.len());
        let to = words.as_mut_ptr();
        // SAFETY: the pieces are within the ring, which the taker keeps, and as many words as there are. Whatever the sender
        // does meanwhile, any words will do.
        unsafe {
            copy_bytes(self.descriptors.add(first.start).cast(), to.cast(), first.len() * size_of::<u64>());
            copy_bytes(self.descriptors.cast(), to.add(first.len()).cast(), second.len() * size_of::<u64>());
            // What was copied must be what is checked and sent on: without this the compiler may read the source again.
            core::arch::asm!("", options(nostack, preserves_flags));
        }
    }

    /// Lets buffers that `own` holds go back to `sender`. Returns how many: up to the first descriptor that is not lawful,
    /// or whose sender did not hold its buffer and give it to this end.
    #[inline(always)]
    fn hand_over(self, words: &[u64], own: HolderId, sender: HolderId) -> usize {
        let count = self.buffers.count();
        let mut all_lawful = true;
        for word in words {
            all_lawful &= Descriptor::is_lawful(*word, count);
        }
        let lawful = if all_lawful {
            words
        } else {
            let lawful = words.iter().take_while(|word| Descriptor::is_lawful(**word, count)).count();
            &words[..lawful]
        };
        self.buffers.hand_over(lawful.len(), |n| lawful[n] as u32, own, sender)
    }

    /// Writes the returns of descriptors from a position on.
    #[inline(always)]
    fn give_back(self, at: u64, words: &[u64]) {
        let [first, second] = self.entries.pieces(at, words.len());
        let (before, behind) = words.split_at(first.len());
        for (piece, words) in [(first, before), (second, behind)] {
            for (at, word) in piece.zip(words) {
                // SAFETY: as above; the sender does not look at them before the tail is published.
                unsafe { self.returns.add(at).cast_mut().cast::<u32>().write(*word as u32) };
            }
        }
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
