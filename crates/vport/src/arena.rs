//! The buffers that the ports of one trust group share, and who holds each: what zero-copy links pass on instead of bytes.
//!
//! All members of the group may write an arena. Every buffer stands in the *holder table* with the id of whoever may use it
//! next: an end of one generation of one link, or 0 for the broker's stock. A buffer changes hands by a store there that
//! comes before the descriptor or the return is published, so that at any time, and whoever dies, each belongs to one.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::fstat;

use crate::mapping::Mapping;
use crate::packet::{FRAME_MAX, HEADROOM};
use crate::prefetch;
use crate::ring::Violation;
use crate::segment::{HUGE_PAGE, PAGE, check_shared};

/// Distance of buffers in bytes: an odd number of lines, so that frames spread over all sets of a cache.
pub const BUFFER_BYTES: usize = 155 * 64;
/// Where a frame is put into an empty buffer. A function may put headers before it, and so may the next: a received frame
/// begins [`HEADROOM`] or more behind its buffer's start.
pub const FRAME_OFFSET: usize = 256;

const _: () = assert!(FRAME_OFFSET + FRAME_MAX <= BUFFER_BYTES && BUFFER_BYTES / 64 % 2 == 1);

/// Most buffers of an arena.
pub(crate) const BUFFERS_MAX: u32 = 1 << 17;
/// Bytes of an entry of the holder table.
pub(crate) const HOLDER_BYTES: usize = 2;

/// Bytes of an arena's segment, and of its holder table's.
pub(crate) fn segment_bytes(buffers: u32) -> (usize, usize) {
    let bytes = |each: usize| buffers as usize * each;
    (bytes(BUFFER_BYTES).next_multiple_of(HUGE_PAGE), bytes(HOLDER_BYTES).next_multiple_of(PAGE))
}

/// Buffers that change hands together where they are neighbours.
const RUN: usize = 8;
/// Whether each entry of the holder table is loaded and stored as such, which those who check accesses understand.
const BY_ENTRY: bool = cfg!(tsan);

/// Whoever may use a buffer next. 0 is the broker.
pub(crate) type HolderId = u16;

/// Where a frame lies in an arena. As a word: the buffer in bits 0-31, the offset in bits 32-47, the length in bits 48-63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Number of the buffer.
    pub buffer: u32,
    /// Bytes from the buffer's start to the frame.
    pub offset: u16,
    /// Bytes of the frame.
    pub len: u16,
}

impl Descriptor {
    /// The word.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.buffer as u64 | (self.offset as u64) << 32 | (self.len as u64) << 48
    }

    /// What a word says, checked.
    #[inline(always)]
    pub const fn check(word: u64, buffers: u32) -> Result<Self, Violation> {
        if Self::is_lawful(word, buffers) { Ok(Self::of(word)) } else { Err(Violation::BadDescriptor) }
    }

    /// What a word says.
    #[inline(always)]
    pub(crate) const fn of(word: u64) -> Self {
        Self { buffer: word as u32, offset: (word >> 32) as u16, len: (word >> 48) as u16 }
    }

    /// Whether a word names a frame of a length that frames have, with headroom, inside one of `buffers` buffers. Without
    /// branches, so that many words are looked at at once.
    #[inline(always)]
    pub(crate) const fn is_lawful(word: u64, buffers: u32) -> bool {
        let (buffer, offset, len) = (word & 0xffff_ffff, word >> 32 & 0xffff, word >> 48);
        (buffer < buffers as u64)
            & (len.wrapping_sub(1) < FRAME_MAX as u64)
            & (offset >= HEADROOM as u64)
            & (offset + len <= BUFFER_BYTES as u64)
    }

    /// Bytes of the frames that words name.
    #[inline(always)]
    pub(crate) fn frame_bytes(words: &[u64]) -> u64 {
        let mut bytes = 0;
        for word in words {
            bytes += word >> 48;
        }
        bytes
    }
}

/// A mapped arena with its holder table.
#[derive(Debug)]
pub(crate) struct Arena {
    /// None where only the holders are looked at.
    frames: Option<Mapping>,
    holders: Mapping,
    buffers: u32,
}

impl Arena {
    /// # Panics
    /// If a mapping is too small for `buffers`, or not writable.
    pub(crate) fn new(frames: Mapping, holders: Mapping, buffers: u32) -> Self {
        frames.area_mut(0, buffers as usize * BUFFER_BYTES);
        holders.area_mut(0, buffers as usize * HOLDER_BYTES);
        Self { frames: Some(frames), holders, buffers }
    }

    /// The holder table alone.
    ///
    /// # Panics
    /// As [`Arena::new`].
    pub(crate) fn of_holders(holders: Mapping, buffers: u32) -> Self {
        holders.area_mut(0, buffers as usize * HOLDER_BYTES);
        Self { frames: None, holders, buffers }
    }

    /// The arena of these segments, with `present` of `buffers` buffers there. It has one place in a process, whichever
    /// ports use it, so that a frame which came by one can leave by another as it is.
    pub(crate) fn open(frames: &OwnedFd, holders: &OwnedFd, buffers: u32, present: u32) -> io::Result<Arc<Self>> {
        static OPEN: Mutex<Vec<(Identity, Weak<Arena>)>> = Mutex::new(Vec::new());
        let (frames_bytes, holders_bytes) = segment_bytes(buffers);
        let present = present.min(buffers) as usize * BUFFER_BYTES;
        check_shared(frames.as_fd(), frames_bytes).map_err(io::Error::other)?;
        check_shared(holders.as_fd(), holders_bytes).map_err(io::Error::other)?;
        let stat = fstat(frames)?;
        let identity = (stat.st_dev, stat.st_ino);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, arena)| arena.strong_count() > 0);
        let known = open.iter().find(|(known, _)| *known == identity);
        if let Some(arena) = known.and_then(|(_, arena)| arena.upgrade()) {
            arena.frames.iter().try_for_each(|frames| frames.populate(present))?;
            return Ok(arena);
        }
        let frames = Mapping::sparse(frames.as_fd(), frames_bytes, present)?;
        let holders = Mapping::writable(holders.as_fd(), holders_bytes)?;
        let arena = Arc::new(Self::new(frames, holders, buffers));
        open.push((identity, Arc::downgrade(&arena)));
        Ok(arena)
    }

    /// The arena for the packet path, for as long as `keep` (which must keep the arena) is used.
    pub(crate) fn view(&self, keep: Arc<dyn Any + Send + Sync>) -> View {
        let holders = self.holders.area(0, 0).cast();
        let frames = self.frames.as_ref().map_or(core::ptr::null_mut(), |frames| frames.area_mut(0, 0));
        View { buffers: Buffers { frames, holders, count: self.buffers }, _keep: keep }
    }
}

/// Device and inode of a segment.
type Identity = (u64, u64);

/// An arena as the packet path sees it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    buffers: Buffers,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointers are into mappings, which belong to no thread, and which are kept.
unsafe impl Send for View {}

impl View {
    /// The buffers. They must not be used longer than the view.
    #[inline(always)]
    pub(crate) fn buffers(&self) -> Buffers {
        self.buffers
    }
}

/// The buffers of an arena that is kept elsewhere: small enough for registers. Every look is one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    frames: *mut u8,
    holders: *const AtomicU16,
    count: u32,
}

impl Buffers {
    /// None at all.
    pub(crate) const NONE: Self = Self { frames: core::ptr::null_mut(), holders: core::ptr::null(), count: 0 };

    /// Whether these are the same buffers, at the same place.
    #[inline(always)]
    pub(crate) fn is(self, other: Self) -> bool {
        self.frames == other.frames
    }

    #[inline(always)]
    pub(crate) fn count(self) -> u32 {
        self.count
    }

    /// Start of a buffer. Of one that the arena does not have, an address that must not be followed.
    #[inline(always)]
    pub(crate) fn start(self, buffer: u32) -> *mut u8 {
        self.frames.wrapping_add(buffer as usize * BUFFER_BYTES)
    }

    #[inline(always)]
    pub(crate) fn holder(self, buffer: u32) -> HolderId {
        debug_assert!(buffer < self.count);
        // SAFETY: callers have checked the number; the table has an entry for each buffer and is kept.
        unsafe { &*self.holders.add(buffer as usize) }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_holder(self, buffer: u32, id: HolderId) {
        debug_assert!(buffer < self.count);
        // SAFETY: as above.
        unsafe { &*self.holders.add(buffer as usize) }.store(id, Ordering::Relaxed);
    }

    /// Lets `to` hold `count` buffers that `from` holds. How many: up to the first that it does not hold. Of an end with several
    /// queues two may do so with one buffer at the same moment: an exchange at one stroke would cost all others too much.
    #[inline(always)]
    pub(crate) fn hand_over(self, count: usize, buffers: impl Fn(usize) -> u32, from: HolderId, to: HolderId) -> usize {
        for first in (0..count).step_by(RUN) {
            if let Some(run) = self.run(count - first, |n| buffers(first + n)) {
                // SAFETY: callers have checked the numbers; the table has an entry for each buffer and is kept. Whatever
                // others write there meanwhile, any will do.
                unsafe {
                    if run.read() == [from; RUN] {
                        run.write([to; RUN]);
                        continue;
                    }
                }
            }
            for n in first..count.min(first + RUN) {
                if self.holder(buffers(n)) != from {
                    return n;
                }
                self.set_holder(buffers(n), to);
            }
        }
        count
    }

    /// Lets `id` hold `count` buffers.
    #[inline(always)]
    pub(crate) fn set_holders(self, count: usize, buffers: impl Fn(usize) -> u32, id: HolderId) {
        for first in (0..count).step_by(RUN) {
            match self.run(count - first, |n| buffers(first + n)) {
                // SAFETY: as above.
                Some(run) => unsafe { run.write([id; RUN]) },
                None => {
                    for n in first..count.min(first + RUN) {
                        self.set_holder(buffers(n), id);
                    }
                }
            }
        }
    }

    /// The entries of the first buffers, where these are neighbours, as those are that were sent together.
    #[inline(always)]
    fn run(self, count: usize, buffers: impl Fn(usize) -> u32) -> Option<*mut [HolderId; RUN]> {
        if BY_ENTRY || count < RUN {
            return None;
        }
        let first = buffers(0);
        let mut neighbours = true;
        for n in 1..RUN {
            neighbours &= buffers(n).wrapping_sub(first) == n as u32;
        }
        neighbours.then(|| self.holders.wrapping_add(first as usize).cast_mut().cast())
    }

    /// Soon the holders of `COUNT` buffers, which need not exist, will change. Where they are neighbours, one line has them all,
    /// or two.
    #[inline(always)]
    pub(crate) fn expect_holders<const COUNT: u64>(self, buffers: impl Fn(u64) -> u32) {
        let (first, last) = (buffers(0), buffers(COUNT - 1));
        self.expect_holder(first);
        if u64::from(last.wrapping_sub(first)) == COUNT - 1 {
            self.expect_holder(last);
        } else {
            for n in 1..COUNT {
                self.expect_holder(buffers(n));
            }
        }
    }

    /// Soon the holder of a buffer, which need not exist, will change.
    #[inline(always)]
    pub(crate) fn expect_holder(self, buffer: u32) {
        prefetch::to_write(self.holders.wrapping_add(buffer as usize).cast());
    }

    /// Soon bytes at `offset` of a buffer, which need not exist, will be looked at and changed.
    #[inline(always)]
    pub(crate) fn expect_frame(self, buffer: u32, offset: usize) {
        prefetch::to_write(self.start(buffer).wrapping_add(offset));
    }
}

/// A ring of descriptors and the ring of returns that goes with it, both of the same power of two of entries. The buffer
/// returned at a position is the one that whoever sends uses at the same position a ring later; so a channel has as many
/// buffers as entries, neither ring can run over, and what was returned is what there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entries {
    mask: u64,
}

impl Entries {
    /// A ring of one entry.
    pub(crate) const ONE: Self = Self { mask: 0 };

    /// None unless `count` is a power of two.
    pub(crate) const fn new(count: u64) -> Option<Self> {
        if count.is_power_of_two() { Some(Self { mask: count - 1 }) } else { None }
    }

    #[inline(always)]
    pub(crate) const fn count(self) -> u64 {
        self.mask + 1
    }

    /// The entries of `count` positions from `from` on, which are no more than there are, in one piece or two.
    #[inline(always)]
    pub(crate) fn pieces(self, from: u64, count: usize) -> [Range<usize>; 2] {
        let at = self.index(from);
        let first = count.min(self.count() as usize - at);
        [at..at + first, 0..count - first]
    }

    /// Index of a position. Always less than the count.
    #[inline(always)]
    pub(crate) const fn index(self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    /// Checks a head that the sender published against the receiver's own tail.
    #[inline(always)]
    pub(crate) const fn check_head(self, tail: u64, head: u64) -> Result<(), Violation> {
        if head.wrapping_sub(tail) > self.count() { Err(Violation::HeadOutOfRange) } else { Ok(()) }
    }

    /// Checks a tail that the receiver published against the sender's own head.
    #[inline(always)]
    pub(crate) const fn check_tail(self, head: u64, tail: u64) -> Result<(), Violation> {
        if head.wrapping_sub(tail) > self.count() { Err(Violation::TailOutOfRange) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbours, buffers apart, and one that is named twice; each of them, and none, held by somebody else.
    #[test]
    fn buffers_change_hands_up_to_the_first_that_somebody_else_holds() {
        const COUNT: usize = 2 * RUN + 3;
        const BUFFERS: u32 = 100;
        let (own, other, next) = (7, 8, 9);
        let neighbours: [u32; COUNT] = std::array::from_fn(|n| 5 + n as u32);
        let apart = neighbours.map(|buffer| 3 * buffer);
        let twice = std::array::from_fn(|n| neighbours[n.min(RUN + 2)]);
        for (named, most) in [(neighbours, COUNT), (apart, COUNT), (twice, RUN + 3)] {
            for foreign in 0..=COUNT {
                let mapping = Mapping::anonymous(PAGE).unwrap();
                let arena = Arc::new(Arena::of_holders(mapping, BUFFERS));
                let buffers = arena.view(arena.clone()).buffers();
                buffers.set_holders(COUNT, |n| named[n], own);
                if let Some(buffer) = named.get(foreign) {
                    buffers.set_holder(*buffer, other);
                }
                let first = named.iter().position(|buffer| Some(buffer) == named.get(foreign)).unwrap_or(COUNT);
                let handed = buffers.hand_over(COUNT, |n| named[n], own, next);
                assert_eq!(handed, first.min(most), "{named:?}, {foreign}");
                for buffer in 0..BUFFERS {
                    let holder = match named.iter().position(|named| *named == buffer) {
                        None => 0,
                        Some(at) if at < handed => next,
                        Some(at) if at == first => other,
                        Some(_) => own,
                    };
                    assert_eq!(buffers.holder(buffer), holder, "{buffer} of {named:?}, {foreign}");
                }
            }
        }
    }

    #[test]
    fn descriptors_round_trip() {
        for (buffer, offset, len) in [(0, 128, 1), (7, 256, 9_600), (u32::MAX - 1, 9_919, 1), (1, 320, 9_600)] {
            let descriptor = Descriptor { buffer, offset, len };
            assert_eq!(Descriptor::check(descriptor.word(), u32::MAX), Ok(descriptor));
        }
    }

    /// Every offset, with every length at which something changes, in the first, the last and no buffer.
    #[test]
    fn no_descriptor_names_bytes_outside_its_buffer_or_without_headroom() {
        const BUFFERS: u32 = 9;
        for buffer in [0, BUFFERS - 1, BUFFERS, u32::MAX] {
            for offset in 0..=u16::MAX {
                let to_end = (BUFFER_BYTES as u16).wrapping_sub(offset);
                for len in [0, 1, 64, 9_599, 9_600, 9_601, to_end.wrapping_sub(1), to_end, to_end.wrapping_add(1)] {
                    let word = Descriptor { buffer, offset, len }.word();
                    let lawful = buffer < BUFFERS
                        && (1..=9_600).contains(&len)
                        && offset >= 128
                        && u32::from(offset) + u32::from(len) <= 9_920;
                    assert_eq!(Descriptor::check(word, BUFFERS).is_ok(), lawful, "{buffer} {offset} {len}");
                }
            }
        }
    }
}
