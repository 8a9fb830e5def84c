//! Shared memory as words that others write at any time. The one file of this crate with unsafe code: an edge to the kernel.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping, undone on drop.
#[derive(Debug)]
pub struct Words {
    start: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: the memory belongs to no thread; all access is through atomics.
#[allow(unsafe_code)]
unsafe impl Send for Words {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Words {}

impl Words {
    /// Maps all `len` bytes of a file or segment.
    pub fn map(of: impl AsFd, len: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses.
        #[allow(unsafe_code)]
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, of, 0)? };
        Ok(Self { start: start.cast(), len, writable })
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it was mapped for writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The word at byte `offset`, to write.
    ///
    /// # Panics
    /// If it is misaligned, outside, or not to be written.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(self.writable);
        self.at(offset)
    }

    /// The word at byte `offset` as it is now. What was written before it is visible afterwards.
    ///
    /// # Panics
    /// If it is misaligned or outside.
    pub fn load(&self, offset: usize) -> u64 {
        self.at(offset).load(Ordering::Acquire)
    }

    fn at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: in bounds, aligned, and mapped as long as `self`; used only through atomics.
        #[allow(unsafe_code)]
        unsafe {
            AtomicU64::from_ptr(self.start.add(offset).cast())
        }
    }

    /// The byte at `offset`, to write.
    ///
    /// # Panics
    /// If it is outside, or not to be written.
    pub fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(self.writable && offset < self.len);
        // SAFETY: in bounds, and mapped as long as `self`; used only through atomics.
        #[allow(unsafe_code)]
        unsafe {
            AtomicU8::from_ptr(self.start.add(offset))
        }
    }

    /// Writes a record of a frame at byte `offset`, which is a multiple of 8.
    pub fn write_record(&self, offset: usize, frame: &[u8]) {
        self.word(offset).store(frame.len() as u64, Ordering::Relaxed);
        self.write(offset + 8, frame);
    }

    /// Writes bytes, and zeros up to the next word, at byte `offset`, which is a multiple of 8.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (n, bytes) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.word(offset + 8 * n).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        #[allow(unsafe_code)]
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
