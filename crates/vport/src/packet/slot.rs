//! Private memory for a received packet's first bytes, and what a function may do with the packet.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use super::{FRAME_MAX, HEAD_MAX, HEADROOM, Lease, PacketRef, Rest};
use crate::lent::Lent;

/// Heads are copied in blocks of so many bytes.
pub(crate) const BLOCK: usize = 64;

const _: () = assert!(HEAD_MAX == 4 * BLOCK);

/// What says of a slot that the head is in its own memory, with the rest elsewhere, and what that all is in a buffer.
const OWN: u16 = 0;
const LENT: u16 = 1;

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
    rest_len: u16,
    /// [`LENT`] or [`OWN`].
    lent: u16,
    rest_ptr: *const u8,
    /// Start of that buffer, if there is one.
    base: *mut u8,
    /// Of that buffer.
    lease: Lease,
}

// Start, end, length of the rest and where all is are written as one word.
const _: () = assert!(
    offset_of!(Slot, start).is_multiple_of(8)
        && offset_of!(Slot, end) == offset_of!(Slot, start) + 2
        && offset_of!(Slot, rest_len) == offset_of!(Slot, start) + 4
        && offset_of!(Slot, lent) == offset_of!(Slot, start) + 6
        && FRAME_MAX <= u16::MAX as usize
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
            lent: OWN,
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
        self.set_shape(HEADROOM, len, 0, OWN);
        &mut self.head[HEADROOM..HEADROOM + len]
    }

    /// Copies a head of `len` bytes in [`BLOCK`]s, of which the last may run over the head's end, and names the `rest` bytes
    /// behind it.
    ///
    /// # Safety
    /// `len` must be at most [`HEAD_MAX`]. `from` and `len` bytes behind it, rounded up to whole blocks, must be mapped, and
    /// the rest until the queue that owns this slot receives again or is dropped. Others may write them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn copy_head(&mut self, from: *const u8, len: usize, rest: usize) {
        debug_assert!(len <= HEAD_MAX);
        let to = self.head[HEADROOM..].as_mut_ptr();
        // Written out: a loop over heads that are alike is then made for each number of blocks, and has none in it.
        for at in [0, BLOCK, 2 * BLOCK, 3 * BLOCK] {
            if at > 0 && len <= at {
                break;
            }
            // Behind the head may stand what is being written: nobody looks at it, but the thread sanitizer would say so.
            let block = if cfg!(tsan) { BLOCK.min(len - at) } else { BLOCK };
            // SAFETY: source by contract; the buffer has HEAD_MAX bytes, a multiple of BLOCK.
            unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), block) };
        }
        // What was copied must be what is looked at and sent on: without this the compiler may read the source again.
        // SAFETY: no instructions.
        unsafe { core::arch::asm!("", options(nostack, preserves_flags)) };
        self.set_shape(HEADROOM, len, rest, OWN);
        if rest > 0 {
            // SAFETY: by contract.
            self.rest_ptr = unsafe { from.add(len) };
        }
    }

    /// Sets where the head begins, how long head and rest are, and where they are, with one store: stores are what a small packet
    /// costs most.
    #[inline(always)]
    fn set_shape(&mut self, start: usize, len: usize, rest: usize, lent: u16) {
        let shape = start as u64 | ((start + len) as u64) << 16 | (rest as u64) << 32 | u64::from(lent) << 48;
        // SAFETY: these fields are one word, as is asserted above.
        unsafe { (&raw mut *self).byte_add(offset_of!(Self, start)).cast::<u64>().write(shape) };
    }

    /// The same, where they stay where they are.
    #[inline(always)]
    fn set_extent(&mut self, start: usize, len: usize, rest: usize) {
        let extent = start as u32 | ((start + len) as u32) << 16;
        // SAFETY: these fields are half a word, as is asserted above.
        unsafe { (&raw mut *self).byte_add(offset_of!(Self, start)).cast::<u32>().write(extent) };
        self.rest_len = rest as u16;
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
        self.set_shape(offset.into(), head.into(), rest as usize, LENT);
        // SAFETY: within the frame.
        self.rest_ptr = unsafe { base.add(usize::from(offset + head)) };
    }

    /// The private first bytes.
    #[inline(always)]
    pub fn head(&self) -> &[u8] {
        let base = if !self.is_lent() { self.head.as_ptr() } else { self.base.cast_const() };
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
        let base = if !self.is_lent() { self.head.as_mut_ptr() } else { self.base };
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
    fn is_lent(&self) -> bool {
        self.lent == LENT
    }

    #[inline(always)]
    fn head_len(&self) -> usize {
        usize::from(self.end - self.start)
    }

    /// Whether the frame was sent on with its buffer.
    #[inline(always)]
    fn is_gone(&self) -> bool {
        // SAFETY: mapped as long as the slot is looked at (contract of `lend`).
        self.is_lent() && unsafe { &*self.lease.back }.load(Ordering::Relaxed) != self.lease.buffer
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
        self.lent = OWN;
    }

    /// Where the frame stands, if that is in a buffer: there the rest always follows the head.
    #[inline(always)]
    pub(super) fn placed(&self) -> Option<Placed> {
        let len = self.frame_len();
        self.is_lent().then_some(Placed { lease: self.lease, offset: self.start, len })
    }

    /// Length of the whole frame in bytes.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.head_len() + usize::from(self.rest_len)
    }

    /// Sets what follows the head.
    ///
    /// # Safety
    /// The bytes, at most [`FRAME_MAX`], must stay mapped until the queue that owns this slot receives again or is dropped.
    #[inline]
    pub(crate) unsafe fn set_rest(&mut self, ptr: *const u8, len: u32) {
        debug_assert!(len as usize <= FRAME_MAX);
        self.rest_ptr = ptr;
        self.rest_len = len as u16;
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

impl<'b> PacketMut<'b> {
    /// Packet `i` of a burst, in its slot or in `lent`.
    #[inline(always)]
    pub(super) fn new(slot: &'b mut Slot, lent: Option<&'b Lent>, i: usize) -> Self {
        Self { slot, lent, i }
    }

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
        let rest = usize::from(slot.rest_len).min((strip + keep).saturating_sub(head));
        slot.set_extent(start, end - start, rest);
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
            slot.rest_len = usize::from(slot.rest_len).min(len - head) as u16;
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

/// The packet in a slot, to send or look at.
#[inline(always)]
pub(super) fn slot_ref(slot: &Slot) -> PacketRef<'_> {
    let lease = if !slot.is_lent() { Lease::NONE } else { slot.lease };
    PacketRef {
        head: slot.head(),
        // SAFETY: the caller holds the slot through a `Burst`, which borrows the queue whose mapping this is
        // (contracts of `set_rest` and `lend`).
        rest: unsafe { Rest::from_raw(slot.rest_ptr, slot.rest_len.into(), lease) },
    }
}

#[cfg(test)]
mod tests {
    use super::super::Burst;
    use super::*;

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
}
