//! Counters that outlive the process: lines of eight words in a file that is mapped, so that what was stored is there for
//! the next process the moment it was stored, whatever becomes of this one. (A host that dies takes them along.)
//!
//! Whoever opens the file says that nobody else shrinks it while it is mapped: an access beyond its end would kill the
//! process. What a file held before is anybody's guess, and every value of a word is one that its reader must bear.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, fallocate, ftruncate};

use crate::mapping::Mapping;
use crate::sync::AtomicU64;

/// Words of a line. It fills a cache line, so that lines have different writers without disturbing each other.
pub const LINE_WORDS: usize = 8;

const LINE_BYTES: usize = LINE_WORDS * 8;
/// Lines that are made present at a time.
const STEP: usize = (1 << 20) / LINE_BYTES;

/// An array of lines.
#[derive(Debug)]
pub struct Tallies {
    mapping: Mapping,
    capacity: usize,
    file: Option<File>,
    /// Lines that are present.
    present: Mutex<usize>,
}

/// One line. It stays where it is as long as anybody has it.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Keeps the words mapped.
    _tallies: Arc<Tallies>,
    words: NonNull<[AtomicU64; LINE_WORDS]>,
}

// SAFETY: the words are atomics in a mapping that `_tallies` keeps alive, and which may be used from any thread.
unsafe impl Send for Tally {}
// SAFETY: as above.
unsafe impl Sync for Tally {}

impl Tallies {
    /// Lines of this process alone, all zero. No memory is used before lines are.
    pub fn private(capacity: usize) -> io::Result<Arc<Self>> {
        let mapping = Mapping::anonymous(capacity.max(1) * LINE_BYTES)?;
        Ok(Arc::new(Self { mapping, capacity, file: None, present: Mutex::new(capacity) }))
    }

    /// Lines in `file`, which becomes so long. Those that it held before keep their values; others are zero.
    pub fn in_file(file: File, capacity: usize) -> io::Result<Arc<Self>> {
        let len = capacity.max(1) * LINE_BYTES;
        ftruncate(&file, len as u64)?;
        let mapping = Mapping::sparse(file.as_fd(), len, 0)?;
        Ok(Arc::new(Self { mapping, capacity, file: Some(file), present: Mutex::new(0) }))
    }

    /// Number of lines.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The line with this index, present in memory. None beyond the capacity.
    ///
    /// Fails if there is no room on the file system; nothing is changed then.
    pub fn line(self: &Arc<Self>, index: usize) -> io::Result<Option<Tally>> {
        if index >= self.capacity {
            return Ok(None);
        }
        self.provide(index + 1)?;
        let words = NonNull::from(self.mapping.words::<LINE_WORDS>(index * LINE_BYTES));
        Ok(Some(Tally { _tallies: self.clone(), words }))
    }

    /// Makes the first `count` lines present. A store to a page that the file system has no room for would kill the process.
    fn provide(&self, count: usize) -> io::Result<()> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = self.file.as_ref().filter(|_| count > *present) {
            let wanted = count.next_multiple_of(STEP).min(self.capacity);
            let len = wanted * LINE_BYTES;
            fallocate(file, FallocateFlags::empty(), 0, len as u64)?;
            self.mapping.populate(len)?;
            *present = wanted;
        }
        Ok(())
    }
}

impl Deref for Tally {
    type Target = [AtomicU64; LINE_WORDS];

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        // SAFETY: within the mapping, aligned, and mapped as long as `_tallies` lives; shared access to atomics is lawful
        // whatever other threads and processes do.
        unsafe { self.words.as_ref() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn file(path: &std::path::Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    #[test]
    fn what_was_stored_is_there_for_the_next_one_without_any_goodbye() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("counters");
        let first = Tallies::in_file(file(&path), 100_000).unwrap();
        let line = first.line(70_000).unwrap().unwrap();
        line[7].store(42, Relaxed);
        let second = Tallies::in_file(file(&path), 100_000).unwrap();
        assert_eq!(second.line(70_000).unwrap().unwrap()[7].load(Relaxed), 42);
        line[0].store(1, Relaxed);
        assert_eq!(second.line(70_000).unwrap().unwrap()[0].load(Relaxed), 1);
    }

    #[test]
    fn a_file_of_any_length_becomes_one_of_so_many_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("counters");
        std::fs::write(&path, [0xff; 100]).unwrap();
        let tallies = Tallies::in_file(file(&path), 3).unwrap();
        let word = |line: usize, word: usize| tallies.line(line).unwrap().unwrap()[word].load(Relaxed);
        assert_eq!((word(0, 7), word(1, 0), word(1, 5), word(2, 0)), (u64::MAX, u64::MAX, 0, 0));
        assert!(tallies.line(3).unwrap().is_none());
    }

    #[test]
    fn a_line_outlives_the_array_that_it_is_of() {
        let tallies = Tallies::private(10).unwrap();
        let line = tallies.line(9).unwrap().unwrap();
        drop(tallies);
        line[3].store(5, Relaxed);
        assert_eq!(line[3].load(Relaxed), 5);
    }
}
