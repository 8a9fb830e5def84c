//! A burst from a zero-copy link, as long as nobody has changed where its frames begin and end: descriptors. What is only
//! sent on needs no more, and takes less of the processor than the lines that move.

use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arena::{Buffers, Descriptor, Entries, HolderId};
use crate::packet::{BURST_MAX, LONG_BURST_MAX, Lease, PacketRef, Rest, Slot, copy_bytes};

/// Frames in buffers that are the receiving function's, with what stands for them in the list of those that go back.
pub(crate) struct Lent {
    words: [u64; LONG_BURST_MAX],
    /// Bit *i* of them all: packet *i* is what its word says, and not what its slot says.
    whole: [Cell<u64>; LONG_BURST_MAX / 64],
    /// How many packets a burst has at most.
    most: usize,
    /// A packet was looked at.
    looked: Cell<bool>,
    place: Place,
    /// A whole word: compilers load small neighbours together, and then wait for what was stored to one.
    peek: usize,
}

/// Where the frames of a burst are, and what stands for them.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) buffers: Buffers,
    /// Returns of the channel by which they came.
    pub(crate) returns: *const AtomicU32,
    pub(crate) entries: Entries,
    /// Position of the first.
    pub(crate) first: u64,
    /// Descriptors of the channel.
    pub(crate) descriptors: *const AtomicU64,
    /// Up to which position descriptors are published.
    pub(crate) head: u64,
    /// To whom their buffers go back.
    pub(crate) sender: HolderId,
}

// SAFETY: the pointers are only followed through a `Burst`, which borrows the queue that owns this and the mappings.
unsafe impl Send for Lent {}

impl Lent {
    pub(crate) fn new() -> Self {
        Self {
            words: [0; LONG_BURST_MAX],
            whole: Default::default(),
            most: BURST_MAX,
            looked: Cell::new(true),
            place: Place::NONE,
            peek: 0,
        }
    }

    /// Itself, if any packet is here.
    #[inline(always)]
    pub(crate) fn if_any(&self) -> Option<&Self> {
        (self.whole() != 0).then_some(self)
    }

    /// None of the packets is here.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.set_whole(0);
    }

    /// Room for descriptors, of which [`Lent::fill`] says how many there are.
    #[inline(always)]
    pub(crate) fn words_mut(&mut self) -> &mut [u64; LONG_BURST_MAX] {
        &mut self.words
    }

    /// From here on the first `count` words, which must have been checked, are the packets of the burst.
    ///
    /// # Safety
    /// Arena and returns must stay mapped until the queue that owns this receives again or is dropped, and the buffers be
    /// nobody else's until their frames are sent on.
    #[inline(always)]
    pub(crate) unsafe fn fill(&mut self, count: usize, peek: usize, place: Place) {
        debug_assert!(count <= self.most);
        self.set_whole(ones(count));
        (self.place, self.peek) = (place, peek);
    }

    /// Which of `count` packets that follow nobody has asked for, where they will be looked at as those before were.
    #[inline(always)]
    pub(crate) fn not_asked_for(&mut self, tail: u64, count: usize) -> Range<usize> {
        if !self.looked.replace(false) {
            return count..count;
        }
        let asked = self.place.head.wrapping_sub(tail) as i64;
        asked.clamp(0, count as i64) as usize..count
    }

    /// Whether packet `i` is here.
    #[inline(always)]
    pub(crate) fn has(&self, i: usize) -> bool {
        self.whole[i / 64 % self.whole.len()].get() >> (i % 64) & 1 != 0
    }

    #[inline(always)]
    fn whole(&self) -> u128 {
        let [first, second] = &self.whole;
        u128::from(first.get()) | u128::from(second.get()) << 64
    }

    #[inline(always)]
    fn set_whole(&mut self, bits: u128) {
        self.whole = [Cell::new(bits as u64), Cell::new((bits >> 64) as u64)];
    }

    /// How many packets a burst has at most.
    #[inline(always)]
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// See [`Lent::most`]. At most [`LONG_BURST_MAX`].
    pub(crate) fn set_most(&mut self, packets: usize) {
        self.most = packets.min(LONG_BURST_MAX);
    }

    /// Where packets are, if all of a range are here.
    #[inline(always)]
    pub(crate) fn all(&self, range: Range<usize>) -> Option<(&[u64], Place)> {
        let words = self.words.get(range.clone())?;
        let wanted = ones(range.end) & !ones(range.start);
        let place = self.place;
        (self.whole() & wanted == wanted)
            .then_some((words, Place { first: place.first.wrapping_add(range.start as u64), ..place }))
    }

    /// Packet `i`, where it is here.
    #[inline(always)]
    pub(crate) fn packet(&self, i: usize) -> Option<PacketRef<'_>> {
        if !self.has(i) {
            return None;
        }
        let Descriptor { buffer, offset, len } = Descriptor::of(self.words[i]);
        let place = self.place;
        let (len, offset) = (usize::from(len), usize::from(offset));
        let head = len.min(self.peek);
        // SAFETY: the frame was checked to lie within its buffer; mapped by the contract of `fill`.
        unsafe {
            let start = place.buffers.start(buffer).add(offset);
            let rest = start.add(head);
            let lease = Lease { buffer, back: place.back(i) };
            Some(PacketRef {
                head: core::slice::from_raw_parts(start, head),
                rest: Rest::from_raw(rest, (len - head) as u32, lease),
            })
        }
    }

    /// Packet `i` is looked at, and so will be the one [`BURST_MAX`] behind it: its first line is asked for now, since all of
    /// a burst's at once would be more than a core waits for at a time.
    #[inline(always)]
    pub(crate) fn look(&self, i: usize) {
        self.looked.set(true);
        let Place { head, descriptors, entries, buffers, .. } = self.place;
        let next = self.place.first.wrapping_add((i + BURST_MAX) as u64);
        if head.wrapping_sub(next).wrapping_sub(1) < entries.count() {
            // SAFETY: an index is within the ring, which is mapped by the contract of `fill`.
            let word = unsafe { &*descriptors.add(entries.index(next)) }.load(Ordering::Relaxed);
            buffers.expect_frame(word as u32, (word >> 32) as u16 as usize);
        }
    }

    /// The head of packet `i`, to rewrite. None where it is not here, or was sent on.
    ///
    /// # Safety
    /// Nobody else may look at the head as long as it is used.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "of what the pointers point to")]
    pub(crate) unsafe fn head_mut(&self, i: usize) -> Option<&mut [u8]> {
        let packet = self.packet(i)?;
        let Lease { buffer, back } = packet.rest.lease();
        // SAFETY: mapped by the contract of `fill`; a buffer that was not sent on is nobody else's, and the caller's alone by
        // contract.
        unsafe {
            let gone = (*back).load(Ordering::Relaxed) != buffer;
            (!gone).then(|| core::slice::from_raw_parts_mut(packet.head.as_ptr().cast_mut(), packet.head.len()))
        }
    }

    /// From here on what packet `i` is stands in its slot. Not inlined, so that it costs whoever receives by copies nothing.
    #[inline(never)]
    pub(crate) fn settle(&self, i: usize, slot: &mut Slot) {
        if !self.has(i) {
            return;
        }
        let place = self.place;
        let whole = &self.whole[i / 64];
        whole.set(whole.get() & !(1 << (i % 64)));
        let Descriptor { buffer, offset, len } = Descriptor::of(self.words[i]);
        let head = len.min(self.peek as u16);
        let lease = Lease { buffer, back: place.back(i) };
        // SAFETY: the frame was checked to lie within its buffer; the rest by the contract of `fill`.
        unsafe { slot.lend(place.buffers.start(buffer), offset, head, u32::from(len - head), lease) };
    }
}

/// So many bits.
#[inline(always)]
fn ones(count: usize) -> u128 {
    u128::MAX.checked_shr(u128::BITS - count as u32).unwrap_or(0)
}

impl Place {
    const NONE: Self = Self {
        buffers: Buffers::NONE,
        returns: core::ptr::null(),
        entries: Entries::ONE,
        first: 0,
        descriptors: core::ptr::null(),
        head: 0,
        sender: 0,
    };

    /// Whether none of these packets, from the first on, was sent on.
    #[inline(always)]
    pub(crate) fn is_still_here(&self, words: &[u64]) -> bool {
        let mut all = true;
        for (back, words) in self.pieces(words) {
            // SAFETY: mapped as long as the burst is borrowed, and this function's own.
            let backs = unsafe { core::slice::from_raw_parts(back, words.len()) };
            for (back, word) in backs.iter().zip(words) {
                all &= *back == *word as u32;
            }
        }
        all
    }

    /// Lets these buffers go back in the place of those in which packets from the first on are.
    #[inline(always)]
    pub(crate) fn give_back(&self, empty: &[u32]) {
        for (back, empty) in self.pieces(empty) {
            // SAFETY: as above; the sender does not look at them before the tail is published.
            unsafe { copy_bytes(empty.as_ptr().cast(), back.cast(), size_of_val(empty)) };
        }
    }

    /// Where the returns of packets from the first on are, in one piece or two.
    #[inline(always)]
    fn pieces<'a, T>(&self, of: &'a [T]) -> [(*mut u32, &'a [T]); 2] {
        let [first, second] = self.entries.pieces(self.first, of.len());
        let (before, behind) = of.split_at(first.len());
        let at = |index| self.returns.wrapping_add(index).cast_mut().cast();
        [(at(first.start), before), (at(second.start), behind)]
    }

    /// What stands for packet `i`.
    #[inline(always)]
    fn back(&self, i: usize) -> *const AtomicU32 {
        self.returns.wrapping_add(self.entries.index(self.first.wrapping_add(i as u64)))
    }
}
