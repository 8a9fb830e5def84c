//! Where the counters of usage reporting rules lie, so that they outlive the process: one line of a mapped file for each rule.
//!
//! A line is used again when nobody has it any more, and when the store knows that its rule is gone: otherwise the next
//! process would find the counts of another one.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use vport::tally::{LINE_WORDS, Tallies, Tally};

use crate::config::MAX_SESSIONS;

/// Lines for each session that may be held, on the average. There are fewer rules that count than a session may have.
const LINES_PER_SESSION: usize = 8;

/// Begins a file of counters.
const MAGIC: u64 = u64::from_le_bytes(*b"kaistact");
const VERSION: u64 = 1;

/// Words of the first line, behind [`MAGIC`] and [`VERSION`].
const NAME: usize = 2;
/// Lines of the file.
const LINES: usize = 3;
/// Number of the last change to the store that is durable.
const COMMITTED: usize = 4;

/// All lines.
#[derive(Debug)]
pub struct Counters {
    tallies: Arc<Tallies>,
    /// Lines from here on were never used.
    next: u32,
    given_back: Arc<GivenBack>,
}

/// Lines that nobody has any more.
#[derive(Debug, Default)]
struct GivenBack {
    /// With the number of the change to the store that must be durable before they are used again.
    lines: Mutex<VecDeque<(u64, u32)>>,
    /// The number of the changes that are being made.
    change: AtomicU64,
}

/// A line, until it is dropped.
#[derive(Debug)]
pub struct Line {
    tally: Tally,
    /// Where it is and where it goes, if it is one of many.
    home: Option<(u32, Arc<GivenBack>)>,
}

/// The line that says whose counters the others are.
#[derive(Debug)]
pub struct Head(Tally);

impl Head {
    /// They belong to the store `name`, from now on.
    pub fn set(&self, name: u64) {
        self.0[NAME].store(name, Relaxed);
    }

    /// The changes with this number, and those before, are in the store.
    pub fn commit(&self, number: u64) {
        self.0[COMMITTED].store(number, Relaxed);
    }
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
    /// Counters of this process alone, for so many sessions.
    pub fn private(sessions: usize) -> io::Result<Self> {
        Ok(Self::of(Tallies::private(capacity(sessions))?))
    }

    /// Counters in a file without any, which gets the name `name`.
    pub fn create(file: File, sessions: usize, name: u64) -> io::Result<Self> {
        file.set_len(0)?;
        let lines = capacity(sessions);
        let tallies = Tallies::in_file(file, lines)?;
        let head = tallies.line(0)?.ok_or(io::ErrorKind::InvalidInput)?;
        let values = [MAGIC, VERSION, name, lines as u64];
        head.iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
        Ok(Self::of(tallies))
    }

    /// The counters that an earlier process left in `file`, if they are those of the store `name`.
    pub fn find(file: File, sessions: usize, name: u64) -> io::Result<Option<Self>> {
        let found = file.metadata()?.len() / LINE_BYTES;
        let lines = capacity(sessions).max(found.min(LINES_MOST) as usize);
        let tallies = Tallies::in_file(file, lines)?;
        let head = tallies.line(0)?.ok_or(io::ErrorKind::InvalidInput)?;
        let values = [MAGIC, VERSION, name, found];
        let is_it = head.iter().zip(values).all(|(word, value)| word.load(Relaxed) == value);
        head[LINES].store(lines as u64, Relaxed);
        Ok(is_it.then(|| Self::of(tallies)))
    }

    /// The number of the last change to the store that was durable.
    pub fn committed(&self) -> io::Result<u64> {
        Ok(self.head()?.0[COMMITTED].load(Relaxed))
    }

    /// The line that says whose counters they are.
    pub fn head(&self) -> io::Result<Head> {
        self.tallies.line(0)?.map(Head).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    fn of(tallies: Arc<Tallies>) -> Self {
        Self { tallies, next: 1, given_back: Arc::default() }
    }

    /// A line of zeros. What was given back with a change that is `durable` may be used again.
    pub fn open(&mut self, durable: u64) -> Result<Line, NoCounters> {
        let mut given_back = self.given_back.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let again = given_back.front().is_some_and(|&(change, _)| change <= durable);
        let index = if again { given_back.pop_front().map(|(_, index)| index) } else { None };
        drop(given_back);
        let index = index.unwrap_or(self.next);
        let line = self.line(index)?.ok_or(NoCounters::Full)?;
        self.next = self.next.max(index + 1);
        line.tally.iter().for_each(|word| word.store(0, Relaxed));
        Ok(line)
    }

    /// The line that a rule had in an earlier process, as it was left. None if there is no such line.
    ///
    /// It is the caller's to claim each line once, and all of them before [`Counters::settle`].
    pub fn claim(&mut self, index: u32) -> io::Result<Option<Line>> {
        if index == 0 {
            return Ok(None);
        }
        let line = self.line(index)?;
        if line.is_some() {
            self.next = self.next.max(index + 1);
        }
        Ok(line)
    }

    /// All lines that are not `claimed` (in ascending order) may be used.
    pub fn settle(&mut self, claimed: &[u32]) {
        let mut claimed = claimed.iter().copied().peekable();
        let free = (1..self.next).filter(|index| claimed.next_if_eq(index).is_none()).map(|index| (0, index));
        let mut given_back = self.given_back.lines.lock().unwrap_or_else(PoisonError::into_inner);
        *given_back = free.collect();
    }

    /// What is given back from now on can be used again when the change with this number is durable.
    pub fn change(&self, number: u64) {
        self.given_back.change.store(number, Relaxed);
    }

    fn line(&self, index: u32) -> io::Result<Option<Line>> {
        let tally = self.tallies.line(index as usize)?;
        Ok(tally.map(|tally| Line { tally, home: Some((index, self.given_back.clone())) }))
    }
}

/// Octets of a line.
const LINE_BYTES: u64 = 8 * LINE_WORDS as u64;
/// No file of counters is longer.
const LINES_MOST: u64 = 1 + (MAX_SESSIONS * LINES_PER_SESSION) as u64;

fn capacity(sessions: usize) -> usize {
    1 + sessions * LINES_PER_SESSION
}

impl Line {
    /// A line for itself.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn lone() -> Self {
        let tallies = Tallies::private(1).expect("a page");
        Self { tally: tallies.line(0).ok().flatten().expect("the only line"), home: None }
    }

    /// Its place among all lines; 0 if it is for itself.
    pub fn index(&self) -> u32 {
        self.home.as_ref().map_or(0, |(index, _)| *index)
    }

    /// The words.
    #[inline(always)]
    pub fn words(&self) -> &Tally {
        &self.tally
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some((index, given_back)) = &self.home {
            let change = given_back.change.load(Relaxed);
            given_back.lines.lock().unwrap_or_else(PoisonError::into_inner).push_back((change, *index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_used_again_once_the_end_of_its_rule_is_durable() {
        let mut counters = Counters::private(10).unwrap();
        counters.change(7);
        let first = counters.open(0).unwrap();
        first.words()[0].store(5, Relaxed);
        let index = first.index();
        drop(first);
        let second = counters.open(6).unwrap();
        assert_ne!(second.index(), index);
        let third = counters.open(7).unwrap();
        assert_eq!((third.index(), third.words()[0].load(Relaxed)), (index, 0));
    }

    #[test]
    fn all_lines_can_be_in_use() {
        let mut counters = Counters::private(1).unwrap();
        let lines: Vec<_> = std::iter::from_fn(|| counters.open(0).ok()).collect();
        assert_eq!(lines.len(), LINES_PER_SESSION);
    }

    #[test]
    fn the_next_process_claims_what_there_is_and_uses_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("counters");
        let file = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let mut before = Counters::create(file(), 10, 99).unwrap();
        let lines: Vec<_> = (0..4).map(|_| before.open(0).unwrap()).collect();
        lines[2].words()[1].store(17, Relaxed);
        assert!(Counters::find(file(), 10, 98).unwrap().is_none(), "another store's");
        let mut after = Counters::find(file(), 10, 99).unwrap().unwrap();
        let claimed = after.claim(3).unwrap().unwrap();
        assert_eq!(claimed.words()[1].load(Relaxed), 17);
        assert!(after.claim(0).unwrap().is_none() && after.claim(1_000).unwrap().is_none());
        after.settle(&[3]);
        let opened: Vec<_> = (0..4).map(|_| after.open(0).unwrap().index()).collect();
        assert!(!opened.contains(&3), "{opened:?}");
    }
}
