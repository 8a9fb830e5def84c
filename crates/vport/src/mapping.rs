//! Mapped memory, with bounds.

use core::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::prefetch::{self, CacheLevel};
use crate::sync::AtomicU64;

/// Memory of this process, or shared with others; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: *mut c_void,
    len: usize,
    writable: bool,
    #[cfg(tsan)]
    whole: Option<std::sync::Arc<Mapping>>,
}

// SAFETY: the memory belongs to no thread; all access is through atomics, or through raw pointers whose users state who
// else may touch the bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a segment that this process writes, with every page present.
    pub fn writable(segment: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::shared(segment, len, ProtFlags::READ | ProtFlags::WRITE, Advice::LinuxPopulateWrite)
    }

    /// Maps `len` bytes of a segment that another process writes, with every page present.
    pub fn read_only(segment: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::shared(segment, len, ProtFlags::READ, Advice::LinuxPopulateRead)
    }

    /// Maps `len` bytes of a segment that several processes write, of which only the first `present` need be there.
    pub fn sparse(segment: BorrowedFd<'_>, len: usize, present: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(core::ptr::null_mut(), len, protection, flags, segment, 0)? };
        let mapping = Self::of(start, len, true);
        mapping.populate(present)?;
        Ok(mapping)
    }

    /// Makes the first `len` bytes present. They must be allocated.
    pub fn populate(&self, len: usize) -> io::Result<()> {
        self.populate_from(0, len)
    }

    /// The same from the byte `from` on.
    pub(crate) fn populate_from(&self, from: usize, end: usize) -> io::Result<()> {
        let from = from / crate::segment::PAGE * crate::segment::PAGE;
        let len = end.next_multiple_of(crate::segment::PAGE).min(self.len) - from;
        // SAFETY: within the mapping; populating changes no byte.
        unsafe { madvise(self.start.cast::<u8>().add(from).cast(), len, Advice::LinuxPopulateWrite)? };
        Ok(())
    }

    /// Private memory, zeroed, of which only what is used counts.
    pub fn reserved(len: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(core::ptr::null_mut(), len, protection, flags)? };
        // What is used here and there is found sooner through large pages. Where there are none, small ones do.
        // SAFETY: the mapping that was just made.
        let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
        Ok(Self::of(start, len, true))
    }

    /// Puts private memory, zeroed, in the place of everything from the byte `from` on, which nobody has used.
    ///
    /// # Panics
    /// If `from` is not at a page, or not within the mapping.
    pub(crate) fn detach(&self, from: usize) -> io::Result<()> {
        assert!(from.is_multiple_of(crate::segment::PAGE) && from < self.len);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the range is this mapping's own, and stays mapped: whoever looks there finds the same zeros as before.
        unsafe {
            let start = self.start.cast::<u8>().add(from).cast();
            mmap_anonymous(start, self.len - from, protection, flags | MapFlags::FIXED)?;
        }
        Ok(())
    }

    /// Private memory, zeroed.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        Ok(Self::of(start, len, true))
    }

    fn of(start: *mut c_void, len: usize, writable: bool) -> Self {
        Self {
            start,
            len,
            writable,
            #[cfg(tsan)]
            whole: None,
        }
    }

    #[cfg(not(tsan))]
    fn shared(segment: BorrowedFd<'_>, len: usize, protection: ProtFlags, populate: Advice) -> io::Result<Self> {
        Self::mapped(segment, len, protection, populate)
    }

    /// The thread sanitizer takes two mappings of a page for different memory, and would see neither a race nor what
    /// orders two accesses. In a build for it (`--cfg tsan`) all who use a segment in this process use the mapping of
    /// the one who writes it.
    #[cfg(tsan)]
    fn shared(segment: BorrowedFd<'_>, len: usize, protection: ProtFlags, populate: Advice) -> io::Result<Self> {
        use std::sync::{Arc, Mutex, PoisonError, Weak};
        static OPEN: Mutex<Vec<((u64, u64), Weak<Mapping>)>> = Mutex::new(Vec::new());
        let stat = rustix::fs::fstat(segment)?;
        let identity = (stat.st_dev, stat.st_ino);
        let writable = protection.contains(ProtFlags::WRITE);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, mapping)| mapping.strong_count() > 0);
        let known = open.iter().find(|(known, _)| *known == identity).and_then(|(_, mapping)| mapping.upgrade());
        let whole = match known {
            Some(mapping) if mapping.len >= len => mapping,
            _ => Arc::new(Self::mapped(segment, len, protection, populate)?),
        };
        if writable {
            open.push((identity, Arc::downgrade(&whole)));
        }
        Ok(Self { start: whole.start, len, writable, whole: Some(whole) })
    }

    fn mapped(segment: BorrowedFd<'_>, len: usize, protection: ProtFlags, populate: Advice) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(core::ptr::null_mut(), len, protection, MapFlags::SHARED, segment, 0)? };
        let mapping = Self::of(start, len, protection.contains(ProtFlags::WRITE));
        // SAFETY: the range is the mapping just made; populating changes no byte.
        unsafe { madvise(start, len, populate)? };
        Ok(mapping)
    }

    /// The word at `offset`. In a read-only mapping only loads are possible.
    ///
    /// # Panics
    /// If the word is misaligned or not within the mapping.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: in bounds, aligned (mappings begin at a page), and mapped as long as `self`. Atomic access is lawful
        // whatever other processes do.
        unsafe { AtomicU64::from_ptr(self.start.cast::<u8>().add(offset).cast()) }
    }

    /// `N` words from `offset` on.
    ///
    /// # Panics
    /// As [`Mapping::word`].
    pub(crate) fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(8) && offset + 8 * N <= self.len);
        // SAFETY: as there.
        unsafe { &*self.start.cast::<u8>().add(offset).cast() }
    }

    /// Start of `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not within the mapping.
    #[inline]
    pub fn area(&self, offset: usize, len: usize) -> *const u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: in bounds.
        unsafe { self.start.cast::<u8>().add(offset) }
    }

    /// How many bytes are mapped.
    pub(crate) fn bytes(&self) -> usize {
        self.len
    }

    /// Asks for the line at `offset`, which will soon be read. Any will do.
    #[inline(always)]
    pub fn ask(&self, offset: usize, level: CacheLevel) {
        prefetch::into(level, self.start.cast::<u8>().wrapping_add(offset));
    }

    /// Start of `len` bytes at `offset`, to write.
    ///
    /// # Panics
    /// If they are not within the mapping, or the mapping is read-only.
    #[inline]
    pub fn area_mut(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(self.writable);
        self.area(offset, len).cast_mut()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(tsan)]
        if self.whole.is_some() {
            return;
        }
        // SAFETY: the mapping is ours, and nothing borrows from it any more. Failure is impossible for a whole mapping.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}
