//! Packets as a function sees them: a private copy of the first bytes, and the rest unread.
//!
//! The first [`HEAD_MAX`] bytes of a received frame are copied out of shared memory before anyone looks at them, so a
//! peer that rewrites its memory afterwards changes nothing that was decided. What lies beyond is a [`Rest`]: it can be
//! measured, shortened and copied onward, never borrowed as a slice.
//!
//! Frames of zero-copy links lie in one buffer of an arena, head and rest, and are looked at and changed there: ports of
//! one trust group trust each other so far. Such a packet has a [`Lease`] by which it is sent on without a copy.

use core::borrow::Borrow;
use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::lent::{Lent, Place};

/// Longest frame that a port carries, in bytes, Ethernet header included, frame check sequence excluded.
pub const FRAME_MAX: usize = 9_600;
/// Most bytes of a frame that are copied to private memory on receive.
pub const HEAD_MAX: usize = 256;
/// Room before the head in which a function can prepend headers without moving bytes.
pub const HEADROOM: usize = 128;
/// Most packets in one burst.
pub const BURST_MAX: usize = 32;

/// The bytes of a frame behind its private head, still where the sender put them.
///
/// A peer may write these bytes at any time, so they are only ever copied, and never twice with the expectation of the
/// same result.
#[derive(Clone, Copy)]
pub struct Rest<'a> {
    ptr: *const u8,
    len: u32,
    // The parts of a `Lease`, here without padding.
    buffer: u32,
    back: *const AtomicU32,
    borrowed: PhantomData<&'a ()>,
}

// Bursts of packets are arrays: their size is part of what a packet costs.
const _: () = assert!(size_of::<PacketRef<'_>>() == 40);

/// The buffer that a received frame lies in, with what stands for it in the list of those that go back to whoever sent it: a
/// port that sends the frame on keeps the buffer, and lets another number stand there.
///
/// Buffers of arenas have numbers below [`Lease::FOREIGN`]. A backend of another crate whose frames lie in buffers of its own
/// numbers these from there on, and finds by `back` what it has lent: no port of this crate follows that.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Number of the buffer.
    pub buffer: u32,
    /// The buffer that goes back; null where the frame is in none.
    pub back: *const AtomicU32,
}

impl Lease {
    /// The first number that no arena has.
    pub const FOREIGN: u32 = 1 << 31;

    pub(crate) const NONE: Self = Self { buffer: 0, back: core::ptr::null() };
}

const _: () = assert!(crate::arena::BUFFERS_MAX <= Lease::FOREIGN);

impl<'a> Rest<'a> {
    /// No bytes.
    pub const EMPTY: Self = Self::new(core::ptr::null(), 0, Lease::NONE);

    /// Names `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must stay mapped for `'a`, and what the lease points to too. Others may write the bytes meanwhile.
    pub(crate) unsafe fn from_raw(ptr: *const u8, len: u32, lease: Lease) -> Self {
        Self::new(ptr, len, lease)
    }

    #[inline(always)]
    const fn new(ptr: *const u8, len: u32, lease: Lease) -> Self {
        Self { ptr, len, buffer: lease.buffer, back: lease.back, borrowed: PhantomData }
    }

    /// Bytes of this process's own memory.
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        debug_assert!(bytes.len() <= FRAME_MAX);
        Self::new(bytes.as_ptr(), bytes.len() as u32, Lease::NONE)
    }

    /// The buffer that the bytes are in, as far as they came by a zero-copy link or a backend that lends its buffers.
    #[inline(always)]
    pub fn lease(&self) -> Lease {
        Lease { buffer: self.buffer, back: self.back }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes are; for the kernel or a copy, never for a reference.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Keeps the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u32);
    }

    /// Copies all bytes to the start of `to`.
    ///
    /// # Panics
    /// If `to` is shorter than the rest.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) {
        assert!(to.len() >= self.len());
        if !self.is_empty() {
            // SAFETY: the source is mapped for 'a (contract of `from_raw`), `to` is private and long enough. A peer may
            // write the source during the copy; the bytes are opaque, so any mixture is as good as any other.
            unsafe { core::ptr::copy_nonoverlapping(self.ptr, to.as_mut_ptr(), self.len()) }
        }
    }
}

/// A packet to look at or to send: private head, opaque rest.
#[derive(Clone, Copy)]
pub struct PacketRef<'a> {
    /// The first bytes, private to this process.
    pub head: &'a [u8],
    /// What follows them.
    pub rest: Rest<'a>,
}

impl<'a> PacketRef<'a> {
    /// A packet that lies wholly in private memory.
    pub fn from_slice(frame: &'a [u8]) -> Self {
        Self { head: frame, rest: Rest::EMPTY }
    }

    /// Length of the whole frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.rest.len()
    }

    /// Whether the frame has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the frame to a device or socket, with one call. Returns how many bytes were taken.
    pub fn write_to(&self, to: BorrowedFd<'_>) -> io::Result<usize> {
        let parts = [
            libc::iovec { iov_base: self.head.as_ptr().cast_mut().cast(), iov_len: self.head.len() },
            libc::iovec { iov_base: self.rest.ptr.cast_mut().cast(), iov_len: self.rest.len() },
        ];
        let count = if self.rest.is_empty() { 1 } else { 2 };
        // SAFETY: both parts are mapped while `self` is borrowed; the kernel only reads them, once.
        let written = unsafe { libc::writev(to.as_raw_fd(), parts.as_ptr(), count) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// Copies the frame to the start of `to` and returns its length.
    ///
    /// # Panics
    /// If `to` is shorter than the frame.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        to[..self.head.len()].copy_from_slice(self.head);
        self.rest.copy_to(&mut to[self.head.len()..]);
        self.len()
    }
}

/// Where a frame stands that lies as a whole in the buffer that it was received in.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// The buffer.
    pub lease: Lease,
    /// Its first byte, from the beginning of the buffer as [`Slot::lend`] was told it.
    pub offset: u16,
    /// Length of the frame in bytes. It ends where it did when it was lent, or before.
    pub len: usize,
}

/// One received packet's private memory. Receive queues own an array of these and fill them; functions see
/// [`PacketMut`].
#[repr(C, align(64))]
pub struct Slot {
    head: [u8; HEADROOM + HEAD_MAX],
    start: u16,
    end: u16,
    rest_len: u32,
    rest_ptr: *const u8,
    /// Start of the arena's buffer that the whole frame lies in; null where the head is in `head`.
    base: *mut u8,
    /// Of that buffer, if there is one.
    lease: Lease,
}

// Start, end and length of the rest are written as one word.
const _: () = assert!(
    offset_of!(Slot, start).is_multiple_of(8)
        && offset_of!(Slot, end) == offset_of!(Slot, start) + 2
        && offset_of!(Slot, rest_len) == offset_of!(Slot, start) + 4
        && cfg!(target_endian = "little")
);

// SAFETY: the pointers are only followed through a `Burst`, which borrows the queue that owns slot and mappings.
unsafe impl Send for Slot {}

impl Slot {
    /// An empty slot.
    pub const fn new() -> Self {
        Self {
            head: [0; HEADROOM + HEAD_MAX],
            start: HEADROOM as u16,
            end: HEADROOM as u16,
            rest_len: 0,
            rest_ptr: core::ptr::null(),
            base: core::ptr::null_mut(),
            lease: Lease::NONE,
        }
    }

    /// The buffer for a head of `len` bytes, which becomes the whole packet.
    ///
    /// # Panics
    /// If `len` is over [`HEAD_MAX`].
    #[inline]
    pub fn fill_head(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= HEAD_MAX);
        self.start = HEADROOM as u16;
        self.end = (HEADROOM + len) as u16;
        self.rest_len = 0;
        self.base = core::ptr::null_mut();
        &mut self.head[HEADROOM..HEADROOM + len]
    }

    /// Copies a head of `len` bytes in blocks of 64, of which the last may run over the head's end, and names the `rest` bytes
    /// behind it.
    ///
    /// # Safety
    /// `len` must be at most [`HEAD_MAX`]. `from` and `len` bytes behind it, rounded up to a multiple of 64, must be mapped, and
    /// the rest until the queue that owns this slot receives again or is dropped. Others may write them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn copy_head(&mut self, from: *const u8, len: usize, rest: usize) {
        const BLOCK: usize = 64;
        debug_assert!(len <= HEAD_MAX);
        let to = self.head[HEADROOM..].as_mut_ptr();
        let mut done = 0;
        loop {
            // Behind the head may stand what is being written: nobody looks at it, but the thread sanitizer would say so.
            let block = if cfg!(tsan) { BLOCK.min(len - done) } else { BLOCK };
            // SAFETY: source by contract; the buffer has HEAD_MAX bytes, a multiple of BLOCK.
            unsafe { core::ptr::copy_nonoverlapping(from.add(done), to.add(done), block) };
            done += BLOCK;
            if done >= len {
                break;
            }
        }
        // What was copied must be what is looked at and sent on: without this the compiler may read the source again.
        // SAFETY: no instructions.
        unsafe { core::arch::asm!("", options(nostack, preserves_flags)) };
        self.set_shape(HEADROOM, len, rest);
        // SAFETY: by contract.
        self.rest_ptr = unsafe { from.add(len) };
        self.base = core::ptr::null_mut();
    }

    /// Sets where the head begins and how long head and rest are, with one store: stores are what a small packet costs most.
    #[inline(always)]
    fn set_shape(&mut self, start: usize, len: usize, rest: usize) {
        let shape = start as u64 | ((start + len) as u64) << 16 | (rest as u64) << 32;
        // SAFETY: these fields are one word, as is asserted above.
        unsafe { (&raw mut *self).byte_add(offset_of!(Self, start)).cast::<u64>().write(shape) };
    }

    /// Names a frame that lies in a buffer, of an arena or of another backend: `head` bytes (at most [`HEAD_MAX`]) at `offset` of
    /// the buffer at
    /// `base`, and `rest` bytes behind them.
    ///
    /// # Safety
    /// The bytes from `base` to the frame's end, and what the lease points to, must stay mapped for writing until the queue
    /// that owns this slot receives again or is dropped, and be nobody else's until the frame is sent on.
    #[inline(always)]
    pub unsafe fn lend(&mut self, base: *mut u8, offset: u16, head: u16, rest: u32, lease: Lease) {
        debug_assert!(usize::from(head) <= HEAD_MAX);
        (self.base, self.lease) = (base, lease);
        self.set_shape(offset.into(), head.into(), rest as usize);
        // SAFETY: within the frame.
        self.rest_ptr = unsafe { base.add(usize::from(offset + head)) };
    }

    /// The private first bytes.
    #[inline(always)]
    pub fn head(&self) -> &[u8] {
        let base = if self.base.is_null() { self.head.as_ptr() } else { self.base.cast_const() };
        // SAFETY: start and end are in order and within the array, or within the buffer (contract of `lend`).
        unsafe { core::slice::from_raw_parts(base.add(usize::from(self.start)), self.head_len()) }
    }

    /// The same, to rewrite.
    #[inline(always)]
    fn head_mut(&mut self) -> &mut [u8] {
        self.make_own();
        self.own_head_mut()
    }

    /// The same, of one that nobody else may look at.
    #[inline(always)]
    fn own_head_mut(&mut self) -> &mut [u8] {
        let base = if self.base.is_null() { self.head.as_mut_ptr() } else { self.base };
        // SAFETY: as above; a buffer that was not sent on is nobody else's.
        unsafe { core::slice::from_raw_parts_mut(base.add(usize::from(self.start)), self.head_len()) }
    }

    /// From here on changes are not seen by whoever has what was sent.
    #[inline(always)]
    fn make_own(&mut self) {
        if self.is_gone() {
            self.keep_head();
        }
    }

    #[inline(always)]
    fn head_len(&self) -> usize {
        usize::from(self.end - self.start)
    }

    /// Whether the frame was sent on with its buffer.
    #[inline(always)]
    fn is_gone(&self) -> bool {
        // SAFETY: mapped as long as the slot is looked at (contract of `lend`).
        !self.base.is_null() && unsafe { &*self.lease.back }.load(Ordering::Relaxed) != self.lease.buffer
    }

    /// Copies the head to private memory, so that it can be changed without changing what was sent.
    #[cold]
    #[inline(never)]
    fn keep_head(&mut self) {
        let len = self.head_len();
        let start = self.head.len() - len;
        // SAFETY: `prepend` lets no head be longer than the array; the source is mapped. Others may write it meanwhile.
        unsafe {
            let from = self.base.add(usize::from(self.start));
            core::ptr::copy_nonoverlapping(from.cast_const(), self.head[start..].as_mut_ptr(), len);
        }
        (self.start, self.end) = (start as u16, self.head.len() as u16);
        self.base = core::ptr::null_mut();
    }

    /// Where the frame stands, if that is in a buffer: there the rest always follows the head.
    #[inline(always)]
    fn placed(&self) -> Option<Placed> {
        let len = self.head_len() + self.rest_len as usize;
        (!self.base.is_null()).then_some(Placed { lease: self.lease, offset: self.start, len })
    }

    /// Length of the whole frame in bytes.
    #[inline]
    pub fn frame_len(&self) -> usize {
        usize::from(self.end - self.start) + self.rest_len as usize
    }

    /// Sets what follows the head.
    ///
    /// # Safety
    /// The bytes must stay mapped until the queue that owns this slot receives again or is dropped.
    #[inline]
    pub(crate) unsafe fn set_rest(&mut self, ptr: *const u8, len: u32) {
        self.rest_ptr = ptr;
        self.rest_len = len;
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// A received packet in the hands of a function: headers can be read, rewritten, taken off and put before.
pub struct PacketMut<'b> {
    slot: &'b mut Slot,
    /// Where the packet stands, as its number says, as long as its shape was not changed; else in the slot.
    lent: Option<&'b Lent>,
    i: usize,
}

impl PacketMut<'_> {
    /// Length of the whole frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// Whether the frame has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The private first bytes.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.as_ref().head
    }

    /// The private first bytes, to rewrite. What was sent before is not changed by it.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        if let Some(lent) = self.lent {
            // SAFETY: whoever changes a packet has borrowed its burst for it.
            if let Some(head) = unsafe { lent.head_mut(self.i) } {
                return head;
            }
        }
        self.slot_mut().head_mut()
    }

    /// Takes `n` bytes off the front. False, and nothing done, where the head is shorter.
    #[inline]
    #[must_use]
    pub fn strip(&mut self, n: usize) -> bool {
        let slot = self.slot_mut();
        let fits = n <= slot.head_len();
        if fits {
            slot.start += n as u16;
        }
        fits
    }

    /// Opens `n` bytes before the front for the caller to fill. None, and nothing done, where the headroom is used up.
    #[inline]
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let slot = self.slot_mut();
        slot.make_own();
        let start = usize::from(slot.start).checked_sub(n)?;
        // As much as a head with all of its headroom has.
        if usize::from(slot.end) - start > HEADROOM + HEAD_MAX {
            return None;
        }
        slot.start = start as u16;
        slot.own_head_mut().get_mut(..n)
    }

    /// Takes `strip` bytes off the front, keeps `keep` bytes behind them, and opens `open` bytes before these for the caller to
    /// fill: another header in one step. None, and nothing done, where the head is shorter than what is to be stripped or the
    /// headroom is used up.
    #[inline(always)]
    pub fn reshape(&mut self, strip: usize, keep: usize, open: usize) -> Option<&mut [u8]> {
        let slot = self.slot_mut();
        slot.make_own();
        let head = slot.head_len();
        let kept = usize::from(slot.start) + strip;
        let end = usize::from(slot.end).min(kept + keep);
        let start = kept.checked_sub(open)?;
        if strip > head || end - start > HEADROOM + HEAD_MAX {
            return None;
        }
        let rest = slot.rest_len.min((strip + keep).saturating_sub(head) as u32);
        slot.set_shape(start, end - start, rest as usize);
        slot.own_head_mut().get_mut(..open)
    }

    /// Keeps the first `len` bytes of the frame.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        let slot = self.slot_mut();
        let head = slot.head_len();
        if len < head {
            slot.end = slot.start + len as u16;
            slot.rest_len = 0;
        } else {
            slot.rest_len = slot.rest_len.min((len - head) as u32);
        }
    }

    /// The packet as it now is, to send.
    #[inline]
    pub fn as_ref(&self) -> PacketRef<'_> {
        match self.lent {
            None => slot_ref(self.slot),
            Some(lent) => lent.packet(self.i).unwrap_or_else(|| slot_ref(self.slot)),
        }
    }

    /// The slot, in which from here on everything stands.
    #[inline(always)]
    fn slot_mut(&mut self) -> &mut Slot {
        if let Some(lent) = self.lent.take() {
            lent.settle(self.i, self.slot);
        }
        self.slot
    }
}

#[inline(always)]
fn slot_ref(slot: &Slot) -> PacketRef<'_> {
    let lease = if slot.base.is_null() { Lease::NONE } else { slot.lease };
    PacketRef {
        head: slot.head(),
        // SAFETY: the caller holds the slot through a `Burst`, which borrows the queue whose mapping this is
        // (contracts of `set_rest` and `lend`).
        rest: unsafe { Rest::from_raw(slot.rest_ptr, slot.rest_len, lease) },
    }
}

/// Packets to send, wherever they stand.
pub(crate) trait Packets {
    /// All of them, in order.
    fn each(&self) -> impl ExactSizeIterator<Item: Borrow<PacketRef<'_>>>;

    /// How many there are.
    #[inline(always)]
    fn count(&self) -> usize {
        self.each().len()
    }

    /// About how many bytes they have: those of a burst are often alike.
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.each().next().map_or(0, |first| first.borrow().len() * self.count())
    }
}

impl Packets for [PacketRef<'_>] {
    #[inline(always)]
    fn each(&self) -> impl ExactSizeIterator<Item: Borrow<PacketRef<'_>>> {
        self.iter()
    }
}

/// Packets as they were received.
pub(crate) struct Slots<'a>(&'a [Slot]);

impl Packets for Slots<'_> {
    #[inline(always)]
    fn each(&self) -> impl ExactSizeIterator<Item: Borrow<PacketRef<'_>>> {
        self.0.iter().map(slot_ref)
    }
}

/// Asks for the first cache line of something that will be read soon.
#[inline(always)]
pub fn prefetch<T: ?Sized>(soon: &T) {
    crate::prefetch::to_read(core::ptr::from_ref(soon).cast());
}

/// Copies `len` bytes: inline, since a call of the C library's copy for a length that the compiler does not know costs a
/// small frame more than the copy, and a large one, whose lines come from another core, up to half as much again.
///
/// # Safety
/// `from` must be mapped for `len` bytes, which others may write meanwhile, `to` for writing as many, and they must not
/// overlap.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // Two blocks that meet or overlap cover any length between one block and two.
    macro_rules! two_blocks {
        ($block:literal) => {{
            // SAFETY: len is at least a block; both blocks lie within the source, and within as much of `to`.
            unsafe {
                core::ptr::copy_nonoverlapping(from, to, $block);
                core::ptr::copy_nonoverlapping(from.add(len - $block), to.add(len - $block), $block);
            }
        }};
    }
    match len {
        32..=64 => two_blocks!(32),
        65..=128 => two_blocks!(64),
        16..=31 => two_blocks!(16),
        // SAFETY: by contract.
        0..=15 => unsafe { core::ptr::copy_nonoverlapping(from, to, len) },
        // SAFETY: by contract.
        _ => unsafe { copy_lines(from, to, len) },
    }
}

/// Copies whole cache lines of `to`, and what lies before the first and behind the last.
///
/// # Safety
/// As for [`copy_bytes`]; `len` must be at least 64.
#[inline(always)]
unsafe fn copy_lines(from: *const u8, to: *mut u8, len: usize) {
    const LINE: usize = 64;
    // SAFETY: every block begins at least a block before the end of both.
    let line = |at: usize| unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), LINE) };
    line(0);
    let mut at = LINE - to as usize % LINE;
    while at + LINE < len {
        line(at);
        at += LINE;
    }
    line(len - LINE);
}

/// The packets of one receive, held until the queue receives again.
pub struct Burst<'q> {
    slots: &'q mut [Slot],
    /// Where those stand whose shape was not changed; the others in their slots.
    lent: Option<&'q Lent>,
}

impl<'q> Burst<'q> {
    /// The filled slots of a queue.
    pub fn new(slots: &'q mut [Slot]) -> Self {
        Self { slots, lent: None }
    }

    /// Packets that stand in the slots of a queue or in `lent`.
    #[inline(always)]
    pub(crate) fn with_lent(slots: &'q mut [Slot], lent: Option<&'q Lent>) -> Self {
        Self { slots, lent }
    }

    /// The slots of packets that do not stand elsewhere.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &[Slot] {
        self.slots
    }

    /// Number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing was received.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Packet `i`, to send or look at.
    #[inline(always)]
    pub fn get(&self, i: usize) -> PacketRef<'_> {
        match self.lent {
            None => slot_ref(&self.slots[i]),
            Some(lent) => {
                lent.look(i);
                lent.packet(i).unwrap_or_else(|| slot_ref(&self.slots[i]))
            }
        }
    }

    /// Where packet `i` stands, if it lies in a buffer that a slot was lent: for a port that sends it on with its buffer, and
    /// needs to look at nothing else.
    #[inline(always)]
    pub fn placed(&self, i: usize) -> Option<Placed> {
        if self.lent.is_some() {
            return None;
        }
        self.slots[i].placed()
    }

    /// Packet `i`, to change.
    #[inline]
    pub fn get_mut(&mut self, i: usize) -> PacketMut<'_> {
        if let Some(lent) = self.lent {
            lent.look(i);
        }
        PacketMut { slot: &mut self.slots[i], lent: self.lent, i }
    }

    /// Packets from number `from` on, at most [`BURST_MAX`], to send.
    #[inline]
    pub fn with_views<R>(&self, from: usize, then: impl FnOnce(&[PacketRef<'_>]) -> R) -> R {
        let mut packets = [const { MaybeUninit::<PacketRef<'_>>::uninit() }; BURST_MAX];
        let count = self.len().saturating_sub(from).min(BURST_MAX);
        let packets = &mut packets[..count];
        if self.lent.is_some() {
            packets.iter_mut().zip(from..).for_each(|(packet, i)| _ = packet.write(self.get(i)));
        } else {
            let slots = self.slots.iter().skip(from);
            packets.iter_mut().zip(slots).for_each(|(packet, slot)| _ = packet.write(slot_ref(slot)));
        }
        // SAFETY: there are as many slots behind `from`, so each was written.
        let packets = unsafe { core::slice::from_raw_parts(packets.as_ptr().cast(), count) };
        then(packets)
    }

    /// The slots of packets from number `from` on, if they stand there.
    #[inline(always)]
    pub(crate) fn slots_from(&self, from: usize) -> Option<Slots<'_>> {
        self.lent.is_none().then(|| Slots(self.slots.get(from..).unwrap_or_default()))
    }

    /// Where packets from number `from` on stand, if that is not in slots.
    #[inline(always)]
    pub(crate) fn lent_from(&self, from: usize) -> Option<(&[u64], Place)> {
        self.lent?.all(from..self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_length_and_place() {
        let from: Vec<u8> = (0..700).map(|at| (at % 251) as u8).collect();
        for len in 0..=700 {
            for place in [1, 8, 63] {
                let mut to = [0xee_u8; 800];
                // SAFETY: at least 737 bytes are behind the pointer.
                unsafe { copy_bytes(from.as_ptr(), to.as_mut_ptr().add(place), len) };
                assert_eq!(to[place..place + len], from[..len]);
                let beside = to[..place].iter().chain(&to[place + len..]);
                assert!(beside.copied().all(|byte| byte == 0xee), "{len} at {place}");
            }
        }
    }

    #[test]
    fn a_head_is_copied_at_every_length() {
        let from: Vec<u8> = (0..=255).collect();
        let mut slot = Slot::new();
        for len in 1..=HEAD_MAX {
            // SAFETY: 256 bytes are behind the pointer, a multiple of 64.
            unsafe { slot.copy_head(from.as_ptr(), len, 0) };
            assert_eq!(slot.head(), &from[..len]);
        }
    }

    #[test]
    fn headers_are_stripped_prepended_and_cut() {
        let mut slots = [Slot::new()];
        slots[0].fill_head(60).copy_from_slice(&[7; 60]);
        let mut burst = Burst::new(&mut slots);
        let mut packet = burst.get_mut(0);
        assert!(packet.strip(14) && !packet.strip(47));
        packet.prepend(50).unwrap().fill(9);
        assert!(packet.prepend(HEADROOM).is_none());
        assert_eq!((packet.len(), packet.head()[49], packet.head()[50]), (96, 9, 7));
        packet.truncate(51);
        assert_eq!(packet.head().len(), 51);
    }

    proptest::proptest! {
        #[test]
        fn another_header_in_one_step_is_the_same_as_in_three(
            len in 0..=HEAD_MAX, rest in 0..300_usize, strip in 0..150_usize, keep in 0..500_usize, open in 0..=HEADROOM + 20,
        ) {
            let behind = [3; 300];
            let slots = [(); 2].map(|()| {
                let mut slot = Slot::new();
                slot.fill_head(len).copy_from_slice(&[7; HEAD_MAX][..len]);
                // SAFETY: it lives longer than the burst.
                unsafe { slot.set_rest(behind.as_ptr(), rest as u32) };
                slot
            });
            let [mut one, mut three] = slots.map(|slot| [slot]);
            let (mut one, mut three) = (Burst::new(&mut one), Burst::new(&mut three));
            let whole = three.get(0).len();
            let mut expected = three.get_mut(0);
            let opened = expected.strip(strip) && {
                expected.truncate(keep);
                expected.prepend(open).map(|front| front.fill(9)).is_some()
            };
            let mut packet = one.get_mut(0);
            assert_eq!(packet.reshape(strip, keep, open).map(|front| front.fill(9)).is_some(), opened);
            if opened {
                assert_eq!((packet.len(), packet.head()), (expected.len(), expected.head()));
            } else {
                assert_eq!((packet.len(), packet.head()), (whole, &[7; HEAD_MAX][..len]));
            }
        }
    }

    #[test]
    fn a_frame_is_written_to_a_descriptor_in_one_piece() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let rest = [2; 100];
        let packet = PacketRef { head: &[1; 20], rest: Rest::from_slice(&rest) };
        use std::os::fd::AsFd;
        assert_eq!(packet.write_to(writer.as_fd()).unwrap(), 120);
        let mut read = [0; 200];
        assert_eq!(rustix::io::read(&reader, &mut read).unwrap(), 120);
        assert_eq!((read[19], read[20], read[119]), (1, 2, 2));
    }
}
