//! The life of a shared segment: created full, sealed so that it keeps its size, given to its one writer, sealed so that
//! nobody else can ever write it, and only then shown to readers.
//!
//! The order is what makes it safe:
//! 1. [`Segment::create`]: pages present; `SHRINK` and `GROW` sealed before anyone else has the descriptor.
//! 2. The writer maps it.
//! 3. [`Segment::close_to_writers`]: `FUTURE_WRITE` and `SEAL`. The writer's mapping goes on to work; no new one, no
//!    `write`, no hole, no reopening through `/proc` does.
//! 4. It allocates again: the writer could have punched holes between 2 and 3. They read as zeros, which a reader
//!    refuses, but a missing page could kill a reader that cannot allocate it.
//! 5. It checks size and seals. Only now may a reader have the descriptor.
//!
//! Where a link's ends share records, their reader gets the descriptor between 2 and 3, and maps them for writing, too: then 3 to 5
//! hold for both.
//!
//! Whoever has a segment can keep it, and its pages with it, for as long as it likes. The broker lends each opened anew, and
//! nobody else can open it: so it learns from the kernel whether what it has lent is back ([`Segment::is_lent`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fchmod, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create, open,
};

/// Size of a huge page in bytes.
pub const HUGE_PAGE: usize = 2 << 20;
/// Size of an ordinary page in bytes.
pub const PAGE: usize = 4 << 10;

const OF_WRITER: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const OF_READER: SealFlags = OF_WRITER.union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

const OF_SHARED: SealFlags = OF_WRITER.union(SealFlags::SEAL);

/// Of `<asm-generic/fcntl.h>`: which signal says that a lease is wanted back.
const F_SETSIG: libc::c_int = 10;

/// A memfd of fixed size.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    len: usize,
}

/// A segment is not what it has to be.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// Wrong number of bytes.
    #[error("the segment has {found} bytes instead of {expected}")]
    Size {
        /// Bytes it has.
        found: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// Seals are missing.
    #[error("the segment lacks seals (it has {0:#x})")]
    Seals(u32),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for SegmentError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl Segment {
    /// Creates a segment of `len` bytes (whole pages), every page present, of ordinary or huge pages.
    pub fn create(name: &str, len: usize, huge: bool) -> Result<Self, SegmentError> {
        let segment = Self::sized(name, len, huge)?;
        segment.allocate(0, len)?;
        fcntl_add_seals(&segment.fd, OF_WRITER)?;
        Ok(segment)
    }

    /// Creates a segment that several processes will write: it keeps its size, and nobody can seal it any further. No page
    /// is there before [`Segment::allocate`].
    pub fn create_shared(name: &str, len: usize, huge: bool) -> Result<Self, SegmentError> {
        let segment = Self::sized(name, len, huge)?;
        fcntl_add_seals(&segment.fd, OF_SHARED)?;
        Ok(segment)
    }

    /// A segment of [`Segment::create_shared`] that comes back from a keeper or a broker.
    pub fn adopt_shared(fd: OwnedFd, len: usize) -> Result<Self, SegmentError> {
        check_shared(fd.as_fd(), len)?;
        Ok(Self { fd, len })
    }

    /// Makes pages present.
    pub fn allocate(&self, offset: usize, len: usize) -> Result<(), SegmentError> {
        Ok(fallocate(&self.fd, FallocateFlags::empty(), offset as u64, len as u64)?)
    }

    fn sized(name: &str, len: usize, huge: bool) -> Result<Self, SegmentError> {
        let kind = if huge { MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB } else { MemfdFlags::empty() };
        let fd = match memfd_create(
            name,
            kind | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL,
        ) {
            // Before Linux 6.3.
            Err(rustix::io::Errno::INVAL) => {
                memfd_create(name, kind | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?
            }
            other => other?,
        };
        ftruncate(&fd, len as u64)?;
        fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { fd: reopened(fd.as_fd())?, len })
    }

    /// The segment for somebody else, until [`Segment::is_lent`] says that it is back.
    pub fn lend(&self) -> io::Result<OwnedFd> {
        reopened(self.as_fd())
    }

    /// Whether somebody has what was lent still: as a descriptor, copies of it and those on their way included, or mapped. False
    /// where the kernel does not tell (`fs.leases-enable` is 0).
    pub fn is_lent(&self) -> bool {
        // The kernel gives a lease for writing to the only one that has a file open for writing. A signal that is ignored, if
        // somebody opens it before the lease is given back: the usual one would end the process.
        let set = |command: libc::c_int, value: libc::c_int| {
            // SAFETY: an open descriptor; none of these commands takes a pointer.
            unsafe { libc::fcntl(self.fd.as_raw_fd(), command, value) }
        };
        if set(F_SETSIG, libc::SIGURG) != 0 {
            return false;
        }
        if set(libc::F_SETLEASE, libc::F_WRLCK) != 0 {
            return io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
        }
        set(libc::F_SETLEASE, libc::F_UNLCK);
        false
    }

    /// Steps 3 to 5: from here on nobody can open the segment for writing, and readers may have it.
    pub fn close_to_writers(&self) -> Result<(), SegmentError> {
        fcntl_add_seals(&self.fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        fallocate(&self.fd, FallocateFlags::empty(), 0, self.len as u64)?;
        check(self.as_fd(), self.len)
    }

    /// A closed segment that comes back from a keeper or a broker, checked as in step 5.
    pub fn adopt(fd: OwnedFd, len: usize) -> Result<Self, SegmentError> {
        check(fd.as_fd(), len)?;
        Ok(Self { fd: reopened(fd.as_fd())?, len })
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the segment has no bytes, which none has.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Another descriptor of the same segment.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opened once more: memfds are not counted among what is open for writing until then.
fn reopened(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether a descriptor is a segment of `len` bytes that nobody can open for writing.
pub fn check(segment: BorrowedFd<'_>, len: usize) -> Result<(), SegmentError> {
    check_seals(segment, len, OF_READER)
}

/// Whether a descriptor is a segment of `len` bytes that keeps its size and can be written.
pub fn check_shared(segment: BorrowedFd<'_>, len: usize) -> Result<(), SegmentError> {
    check_seals(segment, len, OF_SHARED)
}

fn check_seals(segment: BorrowedFd<'_>, len: usize, wanted: SealFlags) -> Result<(), SegmentError> {
    let found = fstat(segment)?.st_size as u64;
    if found != len as u64 {
        return Err(SegmentError::Size { found, expected: len as u64 });
    }
    let seals = fcntl_get_seals(segment)?;
    if !seals.contains(wanted) {
        return Err(SegmentError::Seals(seals.bits()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn the_broker_knows_whether_what_it_has_lent_is_back() {
        let segment = Segment::create("kaista-test", PAGE, false).unwrap();
        assert!(!segment.is_lent());
        let [lent, other] = [(); 2].map(|()| segment.lend().unwrap());
        let mapping = Mapping::writable(lent.as_fd(), PAGE).unwrap();
        segment.close_to_writers().unwrap();
        let copy = lent.try_clone().unwrap();
        drop(lent);
        assert!(segment.is_lent(), "two have it");
        drop(other);
        assert!(segment.is_lent(), "a copy of the descriptor");
        drop(copy);
        assert!(segment.is_lent(), "a mapping");
        drop(mapping);
        assert!(!segment.is_lent());
    }

    #[test]
    fn what_the_broker_has_itself_is_not_lent() {
        let segment = Segment::create("kaista-test", PAGE, false).unwrap();
        let (_copy, _mapping) = (segment.try_clone().unwrap(), Mapping::read_only(segment.as_fd(), PAGE).unwrap());
        assert!(!segment.is_lent());
    }

    #[test]
    fn the_next_broker_knows_too() {
        let segment = Segment::create("kaista-test", PAGE, false).unwrap();
        segment.close_to_writers().unwrap();
        let (lent, deposited) = (segment.lend().unwrap(), segment.try_clone().unwrap());
        drop(segment);
        let adopted = Segment::adopt(deposited, PAGE).unwrap();
        assert!(adopted.is_lent());
        drop(lent);
        assert!(!adopted.is_lent());
    }
}
