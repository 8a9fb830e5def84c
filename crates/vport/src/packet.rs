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
use core::sync::atomic::AtomicU32;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

mod burst;
mod coming;
mod copy;
mod slot;

pub use burst::Burst;
pub(crate) use burst::Slots;
pub(crate) use coming::Coming;
pub(crate) use copy::{copy_asking, copy_bytes, copy_lines};
pub(crate) use slot::BLOCK;
pub use slot::{PacketMut, Placed, Slot};

/// Longest frame that a port carries, in bytes, Ethernet header included, frame check sequence excluded.
pub const FRAME_MAX: usize = 9_600;
/// Most bytes of a frame that are copied to private memory on receive.
pub const HEAD_MAX: usize = 256;
/// Room before the head in which a function can prepend headers without moving bytes.
pub const HEADROOM: usize = 128;
/// Most packets in one burst.
pub const BURST_MAX: usize = 64;
/// The same of a burst that stays where its sender put it, for receivers that have asked for long ones.
pub const LONG_BURST_MAX: usize = 128;

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

    /// The same bytes, which whoever sends them copies.
    #[inline(always)]
    pub fn without_lease(self) -> Self {
        Self::new(self.ptr, self.len, Lease::NONE)
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
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        to[..self.head.len()].copy_from_slice(self.head);
        self.rest.copy_to(&mut to[self.head.len()..]);
        self.len()
    }
}

/// Packets to send, wherever they stand.
pub(crate) trait Packets {
    /// All of them, in order.
    fn each(&self) -> impl ExactSizeIterator<Item: Borrow<PacketRef<'_>>> + Clone;

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
    fn each(&self) -> impl ExactSizeIterator<Item: Borrow<PacketRef<'_>>> + Clone {
        self.iter()
    }
}

/// Asks for the first cache line of something that will be read soon.
#[inline(always)]
pub fn prefetch<T: ?Sized>(soon: &T) {
    crate::prefetch::to_read(core::ptr::from_ref(soon).cast());
}

/// The same, into this cache.
#[inline(always)]
pub fn prefetch_into<T: ?Sized>(level: crate::prefetch::CacheLevel, soon: &T) {
    crate::prefetch::into(level, core::ptr::from_ref(soon).cast());
}

/// Asks for the line at an address that will be written soon, for this core alone. A hint: any address will do.
#[inline(always)]
pub fn prefetch_to_write(address: *const u8) {
    crate::prefetch::to_write(address);
}

#[cfg(test)]
mod tests {
    use super::*;

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
