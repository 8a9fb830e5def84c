//! Where usage reporting rules count, so that it outlives the process: two lines of a mapped file for each rule. The worker
//! that owns the session writes the first, N4 the second ([`crate::usage`]).
//!
//! A rule's lines are used again when nobody has them any more, and when the store knows that the rule is gone: otherwise the
//! next process would find the counts of another one.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use port::CacheLevel;
use vport::tally::{LINE_BYTES, Line, Tallies};

use crate::config::MAX_SESSIONS;

/// Rules for each session that may be held, on the average. There are fewer rules that count than a session may have.
const RULES_PER_SESSION: usize = 8;

/// Begins a file of counters.
const MAGIC: u64 = u64::from_le_bytes(*b"kaistact");
const VERSION: u64 = 2;

/// Words of the first line, behind [`MAGIC`] and [`VERSION`].
const NAME: usize = 2;
/// Lines of the file.
const LINES: usize = 3;
/// Number of the last change to the store that is durable.
const COMMITTED: usize = 4;
/// How far a process has got that restores the store.
const PROGRESS: usize = 5;

/// All counters. Clones are the same.
#[derive(Clone, Debug)]
pub struct Counters(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Two for each rule; the first two are the file's own.
    lines: Tallies,
    /// One for each rule, of dropped packets. They do not outlive the process.
    dropped: Tallies,
    places: Mutex<Places>,
    /// The number of the changes that are being made.
    change: AtomicU64,
}

#[derive(Debug)]
struct Places {
    /// Places from here on were never used.
    next: u32,
    /// Those that nobody has any more, with the number of the change to the store that must be durable before they are used
    /// again.
    given_back: VecDeque<(u64, u32)>,
}

/// The lines of a rule, until it is dropped.
#[derive(Debug)]
pub struct Place {
    counters: Counters,
    index: u32,
}

/// What a rule counts by.
#[derive(Clone, Copy, Debug)]
pub struct Words<'c> {
    /// Written by the worker alone.
    pub counted: &'c Line,
    /// Written by N4 alone.
    pub terms: &'c Line,
}

/// The line that says whose counters the others are.
#[derive(Debug)]
pub struct Head(Counters);

impl Head {
    /// They belong to the store `name`, from now on.
    pub fn set(&self, name: u64) {
        self.0.head_line()[NAME].store(name, Relaxed);
    }

    /// So much of the store is restored.
    pub fn progress(&self, sessions: u64) {
        self.0.head_line()[PROGRESS].store(sessions, Relaxed);
    }

    /// The changes with this number, and those before, are in the store.
    pub fn commit(&self, number: u64) {
        self.0.head_line()[COMMITTED].store(number, Relaxed);
    }
}

/// How far the last process got that restored the store which the counters at `path` belong to.
pub fn progress(path: &Path) -> io::Result<u64> {
    let mut word = [0; 8];
    File::open(path)?.read_exact_at(&mut word, PROGRESS as u64 * 8)?;
    Ok(u64::from_ne_bytes(word))
}

/// No counters are left.
#[derive(Debug, thiserror::Error)]
pub enum NoCounters {
    /// As many are in use as may be.
    #[error("all counters are in use")]
    Full,
    /// The system refused.
    #[error("no room for counters: {0}")]
    Io(#[from] io::Error),
}

impl Counters {
    /// Asks for the lines of a place that will soon be needed. Any number will do.
    #[inline(always)]
    pub(crate) fn ask(&self, index: u32, level: CacheLevel) {
        let at = line_of(index);
        self.0.lines.ask(at, level);
        self.0.lines.ask(at + 1, level);
    }

    /// Counters of this process alone, for so many sessions.
    pub fn private(sessions: usize) -> io::Result<Self> {
        Self::of(Tallies::private(line_count(sessions))?)
    }

    /// Counters in a file without any, which gets the name `name`.
    pub fn create(file: File, sessions: usize, name: u64) -> io::Result<Self> {
        file.set_len(0)?;
        let count = line_count(sessions);
        let lines = Tallies::in_file(file, count)?;
        lines.provide(2)?;
        let values = [MAGIC, VERSION, name, count as u64];
        lines.lines()[0].iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
        Self::of(lines)
    }

    /// The counters that an earlier process left in `file`, if they are those of the store `name`.
    pub fn find(file: File, sessions: usize, name: u64) -> io::Result<Option<Self>> {
        let found = file.metadata()?.len() / LINE_BYTES as u64;
        let count = line_count(sessions).max(found.min(LINES_MOST) as usize);
        let lines = Tallies::in_file(file, count)?;
        lines.provide(2)?;
        let head = &lines.lines()[0];
        let values = [MAGIC, VERSION, name, found];
        let is_it = head.iter().zip(values).all(|(word, value)| word.load(Relaxed) == value);
        head[LINES].store(count as u64, Relaxed);
        is_it.then(|| Self::of(lines)).transpose()
    }

    fn of(lines: Tallies) -> io::Result<Self> {
        let dropped = Tallies::private(lines.lines().len() / 2)?;
        let places = Mutex::new(Places { next: 1, given_back: VecDeque::new() });
        Ok(Self(Arc::new(Shared { lines, dropped, places, change: AtomicU64::new(0) })))
    }

    /// The number of the last change to the store that was durable.
    pub fn committed(&self) -> u64 {
        self.head_line()[COMMITTED].load(Relaxed)
    }

    /// The line that says whose counters they are.
    pub fn head(&self) -> Head {
        Head(self.clone())
    }

    /// What the rule with this place counts by. None where there is no such place.
    #[inline(always)]
    pub fn words(&self, index: u32) -> Option<Words<'_>> {
        // The first lines are the file's own.
        let at = Some(line_of(index)).filter(|&at| at > 0)?;
        let [counted, terms] = self.0.lines.lines().get(at..at + 2)? else { return None };
        Some(Words { counted, terms })
    }

    /// Where its dropped packets are counted.
    #[cold]
    pub fn dropped(&self, index: u32) -> &Line {
        &self.0.dropped.lines()[index as usize]
    }

    /// A place with lines of zeros. What was given back with a change that is `durable` may be used again.
    pub fn open(&self, durable: u64) -> Result<Place, NoCounters> {
        let mut places = self.places();
        let again = places.given_back.front().is_some_and(|&(change, _)| change <= durable);
        let index = if again { places.given_back.pop_front().map(|(_, index)| index) } else { None };
        let index = index.unwrap_or(places.next);
        let Words { counted, terms } = self.words(index).ok_or(NoCounters::Full)?;
        self.0.lines.provide(line_of(index) + 2)?;
        places.next = places.next.max(index + 1);
        [counted, terms].into_iter().flatten().for_each(|word| word.store(0, Relaxed));
        // Few rules have these, and lines that nobody has written to take no memory.
        let used = self.dropped(index).iter().filter(|word| word.load(Relaxed) != 0);
        used.for_each(|word| word.store(0, Relaxed));
        Ok(Place { counters: self.clone(), index })
    }

    /// The place that a rule had in an earlier process, as it was left. None if there is no such place.
    ///
    /// It is the caller's to claim each place once, and all of them before [`Counters::settle`].
    pub fn claim(&self, index: u32) -> io::Result<Option<Place>> {
        if index == 0 || self.words(index).is_none() {
            return Ok(None);
        }
        self.0.lines.provide(line_of(index) + 2)?;
        let mut places = self.places();
        places.next = places.next.max(index + 1);
        Ok(Some(Place { counters: self.clone(), index }))
    }

    /// All places that are not `claimed` (in ascending order) may be used.
    pub fn settle(&self, claimed: &[u32]) {
        let mut places = self.places();
        let mut claimed = claimed.iter().copied().peekable();
        let free = (1..places.next).filter(|index| claimed.next_if_eq(index).is_none()).map(|index| (0, index));
        places.given_back = free.collect();
    }

    /// All places may be used, and they belong to the store `name` from now on, in which nothing is. Nobody has any.
    pub fn begin_anew(&self, name: u64) {
        *self.places() = Places { next: 1, given_back: VecDeque::new() };
        self.head().set(name);
        self.head().commit(0);
    }

    /// What is given back from now on can be used again when the change with this number is durable.
    pub fn change(&self, number: u64) {
        self.0.change.store(number, Relaxed);
    }

    fn head_line(&self) -> &Line {
        &self.0.lines.lines()[0]
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No file of counters is longer.
const LINES_MOST: u64 = line_count(MAX_SESSIONS) as u64;

const fn line_count(sessions: usize) -> usize {
    2 * (1 + sessions * RULES_PER_SESSION)
}

/// The first line of a place.
#[inline(always)]
const fn line_of(index: u32) -> usize {
    2 * index as usize
}

impl Place {
    /// Which it is.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// All counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What the rule counts by.
    pub fn words(&self) -> Words<'_> {
        self.counters.words(self.index).expect("opened here")
    }

    /// Where its dropped packets are counted.
    pub fn dropped(&self) -> &Line {
        self.counters.dropped(self.index)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let change = self.counters.0.change.load(Relaxed);
        self.counters.places().given_back.push_back((change, self.index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_once_the_end_of_its_rule_is_durable() {
        let counters = Counters::private(10).unwrap();
        counters.change(7);
        let first = counters.open(0).unwrap();
        first.words().counted[0].store(5, Relaxed);
        first.words().terms[7].store(6, Relaxed);
        let index = first.index();
        drop(first);
        let second = counters.open(6).unwrap();
        assert_ne!(second.index(), index);
        let third = counters.open(7).unwrap();
        let words = third.words();
        assert_eq!((third.index(), words.counted[0].load(Relaxed), words.terms[7].load(Relaxed)), (index, 0, 0));
    }

    #[test]
    fn all_places_can_be_in_use() {
        let counters = Counters::private(1).unwrap();
        let places: Vec<_> = std::iter::from_fn(|| counters.open(0).ok()).collect();
        assert_eq!(places.len(), RULES_PER_SESSION);
    }

    #[test]
    fn the_next_process_claims_what_there_is_and_uses_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("counters");
        let file = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let before = Counters::create(file(), 10, 99).unwrap();
        let places: Vec<_> = (0..4).map(|_| before.open(0).unwrap()).collect();
        places[2].words().counted[1].store(17, Relaxed);
        assert!(Counters::find(file(), 10, 98).unwrap().is_none(), "another store's");
        let after = Counters::find(file(), 10, 99).unwrap().unwrap();
        let claimed = after.claim(3).unwrap().unwrap();
        assert_eq!(claimed.words().counted[1].load(Relaxed), 17);
        assert!(after.claim(0).unwrap().is_none() && after.claim(1_000).unwrap().is_none());
        after.settle(&[3]);
        let opened: Vec<_> = (0..4).map(|_| after.open(0).unwrap().index()).collect();
        assert!(!opened.contains(&3), "{opened:?}");
    }
}
