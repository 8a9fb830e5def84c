//! Words that outlive the process: lines of eight words in a file that is mapped, so that what was stored is there for the
//! next process the moment it was stored, whatever becomes of this one. (A host that dies takes them along.)
//!
//! Whoever opens the file says that nobody else shrinks it while it is mapped: an access beyond its end would kill the
//! process. What a file held before is anybody's guess, and every value of a word is one that its reader must bear.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FallocateFlags, fallocate, ftruncate};

use crate::mapping::Mapping;
use crate::prefetch::CacheLevel;
use crate::segment::PAGE;
use crate::sync::AtomicU64;

/// Words of a line. It fills a cache line, so that lines have different writers without disturbing each other.
pub const LINE_WORDS: usize = 8;

/// Octets of a line.
pub const LINE_BYTES: usize = LINE_WORDS * 8;
/// Lines that are made present at a time.
const STEP: usize = (1 << 20) / LINE_BYTES;

/// One line.
pub type Line = [AtomicU64; LINE_WORDS];

/// An array of lines.
#[derive(Debug)]
pub struct Tallies {
    mapping: Mapping,
    capacity: usize,
    presence: Mutex<Presence>,
}

#[derive(Debug)]
struct Presence {
    /// None where all further lines are this process's own.
    file: Option<File>,
    /// Lines that are present.
    lines: usize,
}

impl Tallies {
    /// Lines of this process alone, all zero. No memory is used before lines are.
    pub fn private(capacity: usize) -> io::Result<Self> {
        let mapping = Mapping::reserved(capacity.max(1) * LINE_BYTES)?;
        Ok(Self { mapping, capacity, presence: Mutex::new(Presence { file: None, lines: capacity }) })
    }

    /// Lines in `file`, which becomes so long. Those that it held before keep their values; others are zero.
    pub fn in_file(file: File, capacity: usize) -> io::Result<Self> {
        let len = capacity.max(1) * LINE_BYTES;
        ftruncate(&file, len as u64)?;
        let mapping = Mapping::sparse(file.as_fd(), len, 0)?;
        Ok(Self { mapping, capacity, presence: Mutex::new(Presence { file: Some(file), lines: 0 }) })
    }

    /// All lines. Those that were not provided are zero, and not to be written to.
    #[inline(always)]
    pub fn lines(&self) -> &[Line] {
        // SAFETY: the mapping has `capacity` lines, and begins at a page; shared access to atomics is lawful whatever other
        // threads and processes do.
        unsafe { std::slice::from_raw_parts(self.mapping.area(0, 0).cast(), self.capacity) }
    }

    /// Asks for a line that will soon be looked at. Any number will do.
    #[inline(always)]
    pub fn ask(&self, line: usize, level: CacheLevel) {
        self.mapping.ask(line.wrapping_mul(LINE_BYTES), level);
    }

    /// Makes the first `count` lines present. A store to a page that the file system has no room for would kill the process.
    ///
    /// Fails if there is no room on the file system, or so many lines; nothing is changed then.
    pub fn provide(&self, count: usize) -> io::Result<()> {
        if count > self.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut presence = self.presence.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = presence.file.as_ref().filter(|_| count > presence.lines) {
            let wanted = count.next_multiple_of(STEP).min(self.capacity);
            let len = wanted * LINE_BYTES;
            fallocate(file, FallocateFlags::empty(), 0, len as u64)?;
            self.mapping.populate_from(presence.lines * LINE_BYTES, len)?;
            presence.lines = wanted;
        }
        Ok(())
    }

    /// All lines that are not present yet become this process's own: they are there, whatever room the file system has, and do
    /// not outlive the process. Of those the file has zeros. Which is the first; none if that was so before.
    pub fn detach(&self) -> io::Result<Option<usize>> {
        let mut presence = self.presence.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &presence.file else { return Ok(None) };
        let (from, end) = ((presence.lines * LINE_BYTES).next_multiple_of(PAGE), self.capacity * LINE_BYTES);
        if from < end {
            self.mapping.detach(from)?;
            // What a former process had put there. A file system that cannot make holes keeps it.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(file, hole, from as u64, (end - from) as u64);
        }
        *presence = Presence { file: None, lines: self.capacity };
        Ok(Some(from.min(end) / LINE_BYTES))
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
        first.provide(70_001).unwrap();
        first.lines()[70_000][7].store(42, Relaxed);
        let second = Tallies::in_file(file(&path), 100_000).unwrap();
        assert_eq!(second.lines()[70_000][7].load(Relaxed), 42);
        first.lines()[70_000][0].store(1, Relaxed);
        assert_eq!(second.lines()[70_000][0].load(Relaxed), 1);
    }

    #[test]
    fn a_file_of_any_length_becomes_one_of_so_many_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("counters");
        std::fs::write(&path, [0xff; 100]).unwrap();
        let tallies = Tallies::in_file(file(&path), 3).unwrap();
        let word = |line: usize, word: usize| tallies.lines()[line][word].load(Relaxed);
        assert_eq!((word(0, 7), word(1, 0), word(1, 5), word(2, 0)), (u64::MAX, u64::MAX, 0, 0));
        assert_eq!(tallies.lines().len(), 3);
        assert!(tallies.provide(4).is_err());
    }

    #[test]
    fn where_there_is_no_room_lines_are_this_process_s_own_from_there_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tables");
        // Somebody else's.
        std::fs::write(&path, vec![0xff; (STEP + 1) * LINE_BYTES]).unwrap();
        let first = Tallies::in_file(file(&path), 10 * STEP).unwrap();
        first.provide(1).unwrap();
        first.lines()[STEP - 1][0].store(1, Relaxed);
        assert_eq!((first.detach().unwrap(), first.detach().unwrap()), (Some(STEP), None));
        first.provide(10 * STEP).unwrap();
        [STEP, 10 * STEP - 1].iter().for_each(|line| first.lines()[*line][0].store(2, Relaxed));
        let second = Tallies::in_file(file(&path), 10 * STEP).unwrap();
        let values = |lines: &Tallies| [STEP - 1, STEP, 10 * STEP - 1].map(|line| lines.lines()[line][0].load(Relaxed));
        assert_eq!((values(&first), values(&second)), ([1, 2, 2], [1, 0, 0]));
    }

    #[test]
    fn lines_of_this_process_are_zero_and_take_no_memory_before_they_are_used() {
        // More than most hosts have.
        let tallies = Tallies::private(1 << 30).unwrap();
        let last = tallies.lines().last().unwrap();
        assert_eq!(last[7].load(Relaxed), 0);
        last[3].store(5, Relaxed);
        assert_eq!(last[3].load(Relaxed), 5);
    }
}
