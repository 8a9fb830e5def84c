//! The sending end of one zero-copy channel. A frame that lies in a buffer of the arena is sent with its buffer, and an
//! empty one goes back in its place; any other frame is copied into an empty one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64 as Word, Ordering};

use crate::arena::{BUFFER_BYTES, Buffers, Descriptor, Entries, FRAME_OFFSET, HolderId, View};
use crate::layout::Heads;
use crate::lent::Place;
use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, HEADROOM, LONG_BURST_MAX, PacketRef, copy_bytes};
use crate::prefetch;
use crate::ring::Violation;
use crate::stamp::{Sampling, Unit};
use crate::sync::AtomicU64;
use crate::writer::{Pushed, is_sendable};

/// A ring of descriptors, of which this is the only writer, and the ring of returns that goes with it.
#[derive(Debug)]
pub(crate) struct Giver {
    entries: Entries,
    /// Where the next descriptor goes, and its empty buffer stands.
    head: u64,
    /// The head that the receiver knows of.
    published: u64,
    /// The last tail seen, checked.
    tail: u64,
    /// Up to where empty buffers were asked for.
    asked: u64,
    /// Up to where lines of the rings were asked for.
    asked_lines: u64,
    broken: Option<Violation>,
    sampling: Sampling,
    arena: View,
    /// Holds what is empty.
    own: HolderId,
    /// Holds what was sent.
    receiver: HolderId,
    descriptors: *const Word,
    head_word: *const AtomicU64,
    stamp_word: *const AtomicU64,
    returns: *const AtomicU32,
    tail_word: *const AtomicU64,
    /// What the pointers point into.
    _keep: [Arc<Mapping>; 4],
}

// SAFETY: the pointers are into mappings, which belong to no thread, and which are kept.
unsafe impl Send for Giver {}

/// How many frames ahead empty buffers are asked for.
const AHEAD: u64 = 16;
/// How much further ahead the returns are asked for that say which ones.
const AHEAD_RETURNS: u64 = 64;
/// Descriptors of a cache line.
const TOGETHER: u64 = 8;

impl Giver {
    /// Sends from `own` to `receiver`. Descriptors and head are in the sender's own segments, returns and tail in the
    /// receiver's.
    ///
    /// # Panics
    /// If one of them lies outside.
    pub(crate) fn new(
        entries: Entries,
        arena: View,
        (own, receiver): (HolderId, HolderId),
        (descriptors, descriptors_at): (&Arc<Mapping>, usize),
        (index, heads): (&Arc<Mapping>, impl Fn(&Mapping) -> Heads<'_>),
        (returns, returns_at): (&Arc<Mapping>, usize),
        (peer, tail_word): (&Arc<Mapping>, impl Fn(&Mapping) -> &AtomicU64),
    ) -> Self {
        let count = entries.count() as usize;
        let Heads { head: head_word, stamp: stamp_word, .. } = heads(index);
        Self {
            entries,
            head: 0,
            published: 0,
            tail: 0,
            asked: 0,
            asked_lines: 0,
            broken: None,
            sampling: Sampling::new(),
            arena,
            own,
            receiver,
            descriptors: descriptors.area_mut(descriptors_at, count * size_of::<u64>()).cast(),
            head_word,
            stamp_word,
            returns: returns.area(returns_at, count * size_of::<u32>()).cast(),
            tail_word: tail_word(peer),
            _keep: [descriptors.clone(), index.clone(), returns.clone(), peer.clone()],
        }
    }

    /// As [`crate::writer::Writer::push_burst`].
    #[inline(always)]
    pub(crate) fn push_burst(&mut self, packets: &[PacketRef<'_>]) -> Pushed {
        self.push_all(packets)
    }

    #[inline(always)]
    fn push_all(&mut self, packets: &[PacketRef<'_>]) -> Pushed {
        // In registers: what is written to shared memory could be this giver itself, for all that the compiler knows.
        let rings = self.rings();
        let (mut head, mut end, mut asked) = (self.head, self.end(), self.asked);
        let (mut pushed, mut bytes, mut discarded) = (0, 0, 0);
        for packet in packets {
            let len = packet.len();
            if !is_sendable(len) {
                discarded += 1;
                continue;
            }
            if head == end {
                self.head = head;
                self.look_for_room();
                end = self.end();
                if head == end {
                    break;
                }
            }
            asked = rings.ask(asked, end, head.wrapping_add(AHEAD));
            if !rings.give(head, end, packet) {
                self.broken = Some(Violation::DoubleReturn);
                break;
            }
            head = head.wrapping_add(1);
            pushed += 1;
            bytes += len as u64;
        }
        (self.head, self.asked) = (head, asked);
        Pushed { packets: pushed, bytes, discarded }
    }

    /// As [`Giver::push_burst`], for frames of a burst that are sent as they were received. None, and nothing done, where
    /// that cannot be: they are in another arena, or were sent on before.
    #[inline(always)]
    pub(crate) fn push_lent(&mut self, words: &[u64], place: Place) -> Option<Pushed> {
        if !place.buffers.is(self.arena.buffers()) {
            return None;
        }
        if self.end().wrapping_sub(self.head) < words.len() as u64 {
            self.look_for_room();
        }
        let count = self.end().wrapping_sub(self.head).min(words.len() as u64) as usize;
        let head = self.head;
        let bytes = match count {
            // Of a length that the compiler knows.
            BURST_MAX => self.push_words(&words[..BURST_MAX], place),
            _ => self.push_words(&words[..count], place),
        }?;
        Some(Pushed { packets: self.head.wrapping_sub(head) as u32, discarded: 0, bytes })
    }

    /// Bytes of the packets that were sent, in registers as [`Pushed`] is.
    #[inline(always)]
    fn push_words(&mut self, words: &[u64], place: Place) -> Option<u64> {
        let (rings, head) = (self.rings(), self.head);
        prefetch::to_write(self.head_word.cast());
        let until = head.wrapping_add(words.len() as u64 + BURST_MAX as u64);
        self.asked = rings.ask(self.asked, self.end(), until);
        self.asked_lines = rings.ask_lines(self.asked_lines, until);
        if !place.is_still_here(words) {
            return None;
        }
        let mut empty = [0; LONG_BURST_MAX];
        let empty = &mut empty[..words.len()];
        rings.copy_returned(head, empty);
        let given = rings.exchange_all(words, empty, place.sender);
        if given < words.len() {
            self.broken = Some(Violation::DoubleReturn);
        }
        let words = &words[..given];
        place.give_back(&empty[..given]);
        rings.write(head, words);
        self.head = head.wrapping_add(given as u64);
        Some(Descriptor::frame_bytes(words))
    }

    /// Appends one frame of 1 to [`crate::packet::FRAME_MAX`] bytes. False while there is no empty buffer.
    #[inline(always)]
    pub(crate) fn push(&mut self, packet: &PacketRef<'_>) -> bool {
        self.push_all(core::slice::from_ref(packet)).packets == 1
    }

    /// The first position for which no buffer was returned. After a violation, the head.
    #[inline(always)]
    fn end(&self) -> u64 {
        if self.broken.is_some() { self.head } else { self.tail.wrapping_add(self.entries.count()) }
    }

    #[inline(always)]
    fn rings(&self) -> Rings {
        let Self { entries, own, receiver, descriptors, returns, .. } = *self;
        Rings { entries, own, receiver, descriptors, returns, buffers: self.arena.buffers() }
    }

    /// Lets the receiver see what was pushed. True if there was anything.
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> bool {
        let news = self.published != self.head;
        if news {
            if self.sampling.count() {
                self.stamp();
            }
            self.published = self.head;
            // SAFETY: the mapping is kept.
            unsafe { &*self.head_word }.store(self.head, Ordering::Release);
        }
        news
    }

    /// As [`crate::writer::Writer`] does.
    #[cold]
    #[inline(never)]
    fn stamp(&self) {
        // SAFETY: the mapping is kept.
        unsafe { &*self.stamp_word }.store(Unit::Descriptors.stamp(self.published), Ordering::Relaxed);
    }

    /// The rule that the receiver broke, if it did.
    #[inline(always)]
    pub(crate) fn broken(&self) -> Option<Violation> {
        self.broken
    }

    /// The head that the receiver knows of.
    pub(crate) fn published(&self) -> u64 {
        self.published
    }

    /// Takes over the receiver's tail, unless it makes no sense. Against what is published: nobody can have returned more.
    #[cold]
    #[inline(never)]
    fn look_for_room(&mut self) {
        if self.broken.is_some() {
            return;
        }
        // SAFETY: the mapping is kept.
        let tail = unsafe { &*self.tail_word }.load(Ordering::Acquire);
        match self.entries.check_tail(self.published, tail) {
            // Nor can it take back what it gave.
            Ok(()) if tail.wrapping_sub(self.tail) > self.entries.count() => {
                self.broken = Some(Violation::TailOutOfRange);
            }
            Ok(()) => self.tail = tail,
            Err(violation) => self.broken = Some(violation),
        }
    }
}

/// The rings and buffers of a giver, for the time of a burst.
#[derive(Clone, Copy)]
struct Rings {
    entries: Entries,
    own: HolderId,
    receiver: HolderId,
    descriptors: *const Word,
    returns: *const AtomicU32,
    buffers: Buffers,
}

impl Rings {
    /// Sends a packet at `head`, for which a buffer was returned. False where that is not this end's.
    #[inline(always)]
    fn give(self, head: u64, end: u64, packet: &PacketRef<'_>) -> bool {
        let empty = self.returned(head);
        if empty >= self.buffers.count() || self.buffers.holder(empty) != self.own {
            return false;
        }
        let frame = match self.whole(packet) {
            Some(frame) => self.exchange(packet, frame, empty),
            None => self.copy(packet, empty, head, end),
        };
        self.buffers.set_holder(frame.buffer, self.receiver);
        // SAFETY: an index is within the ring, which the giver keeps.
        unsafe { &*self.descriptors.add(self.entries.index(head)) }.store(frame.word(), Ordering::Relaxed);
        true
    }

    /// Copies what was returned for positions from `at` on.
    #[inline(always)]
    fn copy_returned(self, at: u64, empty: &mut [u32]) {
        let [first, second] = self.entries.pieces(at, empty.len());
        let to = empty.as_mut_ptr();
        // SAFETY: the pieces are within the ring, which the giver keeps, and as many entries as there are. Whatever the
        // receiver does meanwhile, any will do.
        unsafe {
            copy_bytes(self.returns.add(first.start).cast(), to.cast(), first.len() * size_of::<u32>());
            copy_bytes(self.returns.cast(), to.add(first.len()).cast(), second.len() * size_of::<u32>());
            // What was copied must be what is checked and used: without this the compiler may read the source again.
            core::arch::asm!("", options(nostack, preserves_flags));
        }
    }

    /// Gives the buffers of descriptors to the receiver, and an empty one for each to `sender`. Returns how many, up to an
    /// empty one that is not this end's.
    #[inline(always)]
    fn exchange_all(self, words: &[u64], empty: &[u32], sender: HolderId) -> usize {
        let count = self.buffers.count();
        let mut all_lawful = true;
        for empty in empty {
            all_lawful &= *empty < count;
        }
        let lawful =
            if all_lawful { empty } else { &empty[..empty.iter().take_while(|empty| **empty < count).count()] };
        let given = self.buffers.hand_over(lawful.len(), |n| lawful[n], self.own, sender);
        self.buffers.set_holders(given, |n| words[n] as u32, self.receiver);
        given
    }

    /// Writes descriptors from a position on.
    #[inline(always)]
    fn write(self, at: u64, words: &[u64]) {
        let [first, second] = self.entries.pieces(at, words.len());
        let from = words.as_ptr();
        // SAFETY: the pieces are within the ring, which the giver keeps and alone writes, and as many words as there are.
        // The receiver does not look at them before the head is published.
        unsafe {
            let to = self.descriptors.cast_mut();
            copy_bytes(from.cast(), to.add(first.start).cast(), first.len() * size_of::<u64>());
            copy_bytes(from.add(first.len()).cast(), to.cast(), second.len() * size_of::<u64>());
        }
    }

    /// Where a packet lies, if it is one frame in a buffer of this arena that was not sent on yet, with headroom left for
    /// the next function.
    #[inline(always)]
    fn whole(self, packet: &PacketRef<'_>) -> Option<Descriptor> {
        let lease = packet.rest.lease();
        if lease.back.is_null() {
            return None;
        }
        let start = packet.head.as_ptr();
        let offset = (start as usize).wrapping_sub(self.buffers.start(lease.buffer) as usize);
        let joined = packet.rest.is_empty() | (packet.rest.as_ptr() == start.wrapping_add(packet.head.len()));
        let inside = offset.wrapping_sub(HEADROOM) <= BUFFER_BYTES - HEADROOM - packet.len();
        // SAFETY: mapped as long as the packet is borrowed.
        let still = unsafe { &*lease.back }.load(Ordering::Relaxed) == lease.buffer;
        (joined & inside & still & (lease.buffer < self.buffers.count())).then_some(Descriptor {
            buffer: lease.buffer,
            offset: offset as u16,
            len: packet.len() as u16,
        })
    }

    /// Lets the empty buffer go back to where the packet came from.
    #[inline(always)]
    fn exchange(self, packet: &PacketRef<'_>, frame: Descriptor, empty: u32) -> Descriptor {
        self.buffers.set_holder(empty, self.buffers.holder(frame.buffer));
        // SAFETY: mapped as long as the packet is borrowed.
        unsafe { &*packet.rest.lease().back }.store(empty, Ordering::Relaxed);
        frame
    }

    #[inline(always)]
    fn copy(self, packet: &PacketRef<'_>, empty: u32, at: u64, end: u64) -> Descriptor {
        let start = self.buffers.start(empty);
        let inside = |part: *const u8| (part as usize).wrapping_sub(start as usize) < BUFFER_BYTES;
        let (head, rest) = (packet.head.as_ptr(), packet.rest.as_ptr());
        if inside(head) | inside(rest) {
            return self.copy_within(packet, empty);
        }
        // Where frames are copied to, the lines are best fetched beforehand.
        let soon = at.wrapping_add(AHEAD);
        if end.wrapping_sub(soon).wrapping_sub(1) < self.entries.count() {
            self.buffers.expect_frame(self.returned(soon), FRAME_OFFSET);
        }
        // SAFETY: the empty buffer is this end's alone, and any frame fits behind the offset (asserted there).
        unsafe {
            let to = start.add(FRAME_OFFSET);
            copy_bytes(head, to, packet.head.len());
            if !packet.rest.is_empty() {
                copy_bytes(rest, to.add(packet.head.len()), packet.rest.len());
            }
        }
        Descriptor { buffer: empty, offset: FRAME_OFFSET as u16, len: packet.len() as u16 }
    }

    /// A frame that was sent on before, and whose own buffer is the empty one by now. What is left of it is sent.
    #[cold]
    #[inline(never)]
    fn copy_within(self, packet: &PacketRef<'_>, empty: u32) -> Descriptor {
        let (head, rest) = (packet.head, packet.rest);
        // SAFETY: as above; source and target may overlap.
        unsafe {
            let to = self.buffers.start(empty).add(FRAME_OFFSET);
            if rest.as_ptr() == head.as_ptr().wrapping_add(head.len()) {
                core::ptr::copy(head.as_ptr(), to, packet.len());
            } else {
                // A head that was changed lies elsewhere: it would run over a rest that is still to be moved.
                core::ptr::copy(rest.as_ptr(), to.add(head.len()), rest.len());
                core::ptr::copy(head.as_ptr(), to, head.len());
            }
        }
        Descriptor { buffer: empty, offset: FRAME_OFFSET as u16, len: packet.len() as u16 }
    }

    /// Asks for the holders of empty buffers for positions up to `until`, as far as they were returned, so many at a time.
    /// Returns up to where it has.
    #[inline(always)]
    fn ask(self, mut asked: u64, end: u64, until: u64) -> u64 {
        let until = if until.wrapping_sub(end) <= self.entries.count() { end } else { until };
        while until.wrapping_sub(asked).wrapping_sub(TOGETHER) < self.entries.count() {
            self.buffers.expect_holders::<TOGETHER>(|n| self.returned(asked.wrapping_add(n)));
            asked = asked.wrapping_add(TOGETHER);
        }
        asked
    }

    /// Asks for where descriptors up to `until` will be written, and for what was returned behind them.
    #[inline(always)]
    fn ask_lines(self, mut asked: u64, until: u64) -> u64 {
        while asked.wrapping_sub(until) > u64::MAX / 2 {
            prefetch::to_write(self.descriptors.wrapping_add(self.entries.index(asked)).cast());
            let behind = self.entries.index(asked.wrapping_add(AHEAD_RETURNS));
            prefetch::to_read(self.returns.wrapping_add(behind).cast());
            asked = asked.wrapping_add(TOGETHER);
        }
        asked
    }

    #[inline(always)]
    fn returned(self, at: u64) -> u32 {
        // SAFETY: an index is within the ring, which is kept. Atomic, so that it is read once.
        unsafe { &*self.returns.add(self.entries.index(at)) }.load(Ordering::Relaxed)
    }
}
