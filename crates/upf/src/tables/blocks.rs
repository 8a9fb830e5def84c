//! Where compiled rules lie: blocks of cache lines in memory that may outlive the process, so that the next one forwards by
//! them at once.
//!
//! Both versions of the tables lead to the same blocks. A block that workers can see is never changed, but for the tokens of its
//! policers, which are the owner's: a session that changes gets a new block, and the old one is used again once no worker looks at
//! it. Whoever dies in between leaves at most two of one session, of which the later one counts.
//!
//! The first line of a block is its head and the beginning of its record, which says what the block is for. Then comes its body,
//! and then the rest of the record, if there is any. Blocks lie one behind the other, and behind the last one is a head of zero.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use vport::tally::{LINE_WORDS, Line, Tallies};

use super::Bucket;

/// Lines for each session that may be held, on the average. A usual one has three, one with 64 PDRs and filters less than 400. What is
/// not used takes no memory.
const LINES_PER_SESSION: usize = 512;
/// Lines besides.
const LINES_LEAST: usize = 1 << 16;

/// Begins a file of blocks.
const MAGIC: u64 = u64::from_le_bytes(*b"kaistabl");
/// Of the layout of blocks and of what is in them.
const VERSION: u64 = 7;
/// Word of the first line, behind [`MAGIC`] and [`VERSION`]: what the blocks fit.
const FITS: usize = 2;

/// Words of a head: kind, bucket and length of the record, number of lines.
const HEAD: usize = 0;
/// Which of two blocks is the later one.
const SERIAL: usize = 1;
/// Where in the head's line the record begins.
pub(super) const RECORD: usize = 2;
const RECORD_FIRST_BYTES: usize = (LINE_WORDS - RECORD) * 8;
/// Lines of a block before its body.
pub(super) const BEFORE_BODY: usize = 1;

/// A line that is not yet anywhere.
pub(super) type Words = [u64; LINE_WORDS];

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Free = 1,
    Session = 2,
    Path = 3,
}

/// All blocks.
#[derive(Debug)]
pub struct Blocks {
    lines: Arc<Tallies>,
    /// The head behind the last block.
    next: u32,
    /// Free blocks by their number of lines.
    free: BTreeMap<u32, Vec<u32>>,
    serial: u64,
    /// Of the store whose sessions they are of.
    name: u64,
}

/// What was written down.
#[derive(Clone, Copy, Debug)]
struct Head {
    kind: u8,
    home: Bucket,
    /// Below 2^24, as is the number of lines.
    record_len: u32,
    lines: u32,
}

const LENGTH_MASK: u32 = (1 << 24) - 1;

impl Head {
    fn read(line: &Line) -> Self {
        let word = line[HEAD].load(Relaxed);
        let record_len = (word >> 16) as u32 & LENGTH_MASK;
        Self { kind: word as u8, home: (word >> 8) as u8, record_len, lines: (word >> 40) as u32 }
    }

    fn write(self, line: &Line) {
        let Self { kind, home, record_len, lines } = self;
        let word = u64::from(kind) | u64::from(home) << 8 | u64::from(record_len) << 16 | u64::from(lines) << 40;
        // Whoever finds it finds what it is the head of.
        line[HEAD].store(word, Release);
    }
}

/// A block that an earlier process left.
pub(super) struct Found {
    pub block: u32,
    pub kind: Kind,
    pub serial: u64,
    pub record: Vec<u8>,
}

impl Blocks {
    /// Blocks of this process alone, for so many sessions.
    pub fn private(sessions: usize) -> io::Result<Self> {
        Self::of(Tallies::private(line_count(sessions))?)
    }

    /// Blocks in `file`, of which there may be some.
    pub fn in_file(file: File, sessions: usize) -> io::Result<Self> {
        let found = (file.metadata()?.len() / (8 * LINE_WORDS as u64)).min(u64::from(u32::MAX));
        Self::of(Tallies::in_file(file, line_count(sessions).max(found as usize))?)
    }

    /// A copy in `to`, which is empty, of what another process has in `from`.
    pub fn copied(from: File, to: File, sessions: usize) -> io::Result<Self> {
        // Of theirs nothing is provided: what fails here must not touch it.
        let (from, to) = (Tallies::in_file(from, line_count(sessions))?, Self::in_file(to, sessions)?);
        let theirs = from.lines();
        let end = theirs.len().min(to.lines.lines().len()) - 1;
        let mut next = 1;
        while let Some(head) = theirs.get(next).map(Head::read)
            && head.kind != 0
            && head.lines > 0
            && next + head.lines as usize <= end
        {
            next += head.lines as usize;
        }
        let to = to.lines.provide(next + 1).map(|()| to).or_else(|error| {
            tracing::warn!(%error, "no room for rules: the next process will take those of all sessions from the store");
            Self::private(sessions)
        })?;
        let words = theirs[..next].as_flattened().iter().map(|word| word.load(Relaxed));
        to.lines.lines().as_flattened().iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
        Ok(to)
    }

    fn of(lines: Tallies) -> io::Result<Self> {
        if lines.provide(2).is_err() {
            lines.detach()?;
        }
        Ok(Self { lines: Arc::new(lines), next: 1, free: BTreeMap::new(), serial: 1, name: 0 })
    }

    /// The same for sessions of the store with this name.
    #[must_use]
    pub fn of_store(self, name: u64) -> Self {
        Self { name, ..self }
    }

    pub(super) fn name(&self) -> u64 {
        self.name
    }

    /// The lines.
    pub(super) fn lines(&self) -> Arc<Tallies> {
        self.lines.clone()
    }

    /// What an earlier process left; nothing where it was one of other surroundings, that is if `fits` is another number.
    pub(super) fn take_over(&mut self, fits: u64) -> Vec<Found> {
        let lines = self.lines.clone();
        let lines = lines.lines();
        let own = [MAGIC, VERSION, fits];
        let is_own = lines[0].iter().zip(own).all(|(word, value)| word.load(Relaxed) == value);
        if !is_own {
            self.begin(fits);
            return vec![];
        }
        let (mut found, mut free) = (Vec::new(), Vec::<(u32, u32)>::new());
        let is_whole = |at: u32, head: Head| {
            let record_lines = record_lines(head.record_len as usize);
            head.lines >= record_lines && u64::from(at) + u64::from(head.lines) < lines.len() as u64
        };
        while let Some(head) = lines.get(self.next as usize).map(Head::read)
            && head.kind != 0
            && is_whole(self.next, head)
        {
            let (block, serial) = (self.next, lines[self.next as usize][SERIAL].load(Relaxed));
            let kind = [Kind::Session, Kind::Path].into_iter().find(|kind| *kind as u8 == head.kind);
            match kind {
                Some(kind) => found.push(Found { block, kind, serial, record: self.record(block) }),
                // Free blocks that lie side by side become one.
                None => match free.last_mut() {
                    Some((first, count)) if *first + *count == block && *count + head.lines <= LENGTH_MASK => {
                        *count += head.lines;
                        let head = Head { kind: Kind::Free as u8, home: 0, record_len: 0, lines: *count };
                        head.write(&lines[*first as usize]);
                    }
                    _ => free.push((block, head.lines)),
                },
            }
            self.serial = self.serial.max(serial.saturating_add(1)).min(u64::MAX / 2);
            self.next += head.lines;
        }
        free.into_iter().for_each(|(block, count)| self.free.entry(count).or_default().push(block));
        // They are there, so they can be made present; what comes behind them may have no room.
        let end = self.next as usize;
        let is_at_end = |blocks: &mut Self| blocks.lines.provide(end).and_then(|()| blocks.detach());
        if self.lines.provide(end + 1).is_err() && is_at_end(self).is_err() {
            (self.next, self.free) = (1, BTreeMap::new());
            self.begin(fits);
            return vec![];
        }
        lines[self.next as usize][HEAD].store(0, Relaxed);
        found
    }

    fn begin(&self, fits: u64) {
        let lines = self.lines.lines();
        // What there is counts for nothing before it counts as something else.
        lines[1][HEAD].store(0, Release);
        lines[0][FITS].store(fits, Relaxed);
        lines[0][1].store(VERSION, Relaxed);
        lines[0][0].store(MAGIC, Release);
    }

    /// Lines that blocks take. There are not so many blocks of any kind.
    pub(super) fn end(&self) -> u32 {
        self.next
    }

    /// Sees to it that blocks of so many lines in all can be put down. A full disk costs the next process time, and not this one
    /// its service.
    pub(super) fn provide(&mut self, count: usize) -> io::Result<()> {
        match self.lines.provide(self.next as usize + count + 1) {
            Err(error) if self.next as usize + count < self.lines.lines().len() => {
                self.detach()?;
                tracing::warn!(%error, "no room for rules: the next process will take those of further sessions from the store");
                self.lines.provide(self.next as usize + count + 1)
            }
            provided => provided,
        }
    }

    /// From here on further lines are this process's own. No block lies across: the next process would find half of it.
    fn detach(&mut self) -> io::Result<()> {
        let Some(first) = self.lines.detach()? else { return Ok(()) };
        let count = (first as u32).saturating_sub(self.next);
        if count > 0 {
            let block = self.room_behind(count);
            self.free.entry(count).or_default().push(block);
        }
        Ok(())
    }

    /// Puts a block down, for which [`Blocks::provide`] has provided.
    pub(super) fn put(&mut self, kind: Kind, home: Bucket, record: &[u8], body: &[Words]) -> u32 {
        let count = record_lines(record.len()) + body.len() as u32;
        let block = self.room(count);
        let lines = &self.lines.lines()[block as usize..][..count as usize];
        let (first, rest) = record.split_at(record.len().min(RECORD_FIRST_BYTES));
        write_bytes(first, &lines[0][RECORD..]);
        let (lines_of_body, record_rest) = lines[BEFORE_BODY..].split_at(body.len());
        write_bytes(rest, record_rest.as_flattened());
        lines_of_body.as_flattened().iter().zip(body.as_flattened()).for_each(|(to, word)| to.store(*word, Relaxed));
        lines[0][SERIAL].store(self.serial, Relaxed);
        self.serial += 1;
        Head { kind: kind as u8, home, record_len: record.len() as u32, lines: count }.write(&lines[0]);
        block
    }

    /// A free block of so many lines, which is none of either kind yet.
    fn room(&mut self, count: u32) -> u32 {
        if let Some(block) = self.free.get_mut(&count).and_then(Vec::pop) {
            return block;
        }
        if let Some(block) = self.split(count) {
            return block;
        }
        self.room_behind(count)
    }

    /// The same, behind all others.
    fn room_behind(&mut self, count: u32) -> u32 {
        let (block, lines) = (self.next, self.lines.lines());
        self.next += count;
        lines[self.next as usize][HEAD].store(0, Release);
        Head { kind: Kind::Free as u8, home: 0, record_len: 0, lines: count }.write(&lines[block as usize]);
        block
    }

    /// A free block of so many lines, of a larger one.
    fn split(&mut self, count: u32) -> Option<u32> {
        let (&size, _) = self.free.range(count + 1..).find(|(_, blocks)| !blocks.is_empty())?;
        let block = self.free.get_mut(&size)?.pop()?;
        let rest = block + count;
        // Within a block that is free nobody sees the second head before the first one leads to it.
        for (at, lines) in [(rest, size - count), (block, count)] {
            Head { kind: Kind::Free as u8, home: 0, record_len: 0, lines }.write(self.line(at));
        }
        self.free.entry(size - count).or_default().push(rest);
        Some(block)
    }

    /// The block is not used any more.
    pub(super) fn free(&mut self, block: u32) {
        self.retire(block);
        let lines = Head::read(self.line(block)).lines;
        self.free.entry(lines).or_default().push(block);
    }

    /// The block counts for nothing in another process. What is in it stays, until it is freed.
    pub(super) fn retire(&self, block: u32) {
        let line = self.line(block);
        Head { kind: Kind::Free as u8, record_len: 0, ..Head::read(line) }.write(line);
    }

    /// The bucket that was written down with the block.
    pub(super) fn home(&self, block: u32) -> Bucket {
        Head::read(self.line(block)).home
    }

    /// The record of a block.
    pub(super) fn record(&self, block: u32) -> Vec<u8> {
        let head = Head::read(self.line(block));
        let len = head.record_len as usize;
        let (body, count) = self.body(block);
        let rest = self.lines.lines()[(body + count) as usize..].as_flattened();
        let mut bytes = Vec::with_capacity(len + 8);
        let words = self.line(block)[RECORD..].iter().chain(rest).take(len.div_ceil(8));
        words.for_each(|word| bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes()));
        bytes.truncate(len);
        bytes
    }

    /// Where the body of a block begins, and how many lines it has.
    pub(super) fn body(&self, block: u32) -> (u32, u32) {
        let head = Head::read(self.line(block));
        (block + BEFORE_BODY as u32, head.lines.saturating_sub(record_lines(head.record_len as usize)))
    }

    /// Whether this is the body of the block, but for words that change.
    pub(super) fn has_body(&self, block: u32, body: &[Words], changes: impl Fn(usize) -> bool) -> bool {
        let (words, body) = (self.words(block), body.as_flattened());
        let is_same = |(at, (word, other)): (usize, (&AtomicU64, &u64))| word.load(Relaxed) == *other || changes(at);
        words.len() == body.len() && words.iter().zip(body).enumerate().all(is_same)
    }

    /// The words of the body of a block.
    pub(super) fn words(&self, block: u32) -> &[AtomicU64] {
        let (at, count) = self.body(block);
        self.lines.lines()[at as usize..][..count as usize].as_flattened()
    }

    fn line(&self, block: u32) -> &Line {
        &self.lines.lines()[block as usize]
    }
}

/// Lines of a block with a record of so many octets, and a body of so many lines.
pub(super) fn lines_of(record_len: usize, body: usize) -> usize {
    record_lines(record_len) as usize + body
}

/// Lines that a record takes, its head included.
fn record_lines(len: usize) -> u32 {
    BEFORE_BODY as u32 + len.saturating_sub(RECORD_FIRST_BYTES).div_ceil(LINE_WORDS * 8) as u32
}

fn write_bytes(bytes: &[u8], to: &[AtomicU64]) {
    for (chunk, to) in bytes.chunks(8).zip(to) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        to.store(u64::from_le_bytes(word), Relaxed);
    }
}

fn line_count(sessions: usize) -> usize {
    (LINES_LEAST + sessions * LINES_PER_SESSION).min(u32::MAX as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(path: &std::path::Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn body(lines: usize, with: u64) -> Vec<Words> {
        vec![[with; LINE_WORDS]; lines]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// Blocks are put down until the disk is full, and then some more.
        #[test]
        fn what_another_process_finds_is_whole_though_the_disk_was_full(
            before in proptest::collection::vec(1usize..300, 1..80),
            // More than there was room for.
            after in proptest::collection::vec(100usize..300, 200..250),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("tables");
            let mut blocks = Blocks::in_file(file(&path), 1 << 16).unwrap();
            prop_assert!(blocks.take_over(1).is_empty());
            let mut there: Vec<(u32, Vec<Words>)> = vec![];
            for (number, lines) in before.iter().chain(&after).enumerate() {
                if number == before.len() {
                    blocks.detach().unwrap();
                }
                let body = body(*lines, 1 + number as u64);
                blocks.provide(1 + lines).unwrap();
                there.push((blocks.put(Kind::Session, 0, b"a", &body), body));
            }
            let mut next = Blocks::in_file(file(&path), 1 << 16).unwrap();
            let found = next.take_over(1);
            prop_assert!(found.len() >= before.len());
            for found in found {
                let (_, body) = there.iter().find(|(block, _)| *block == found.block).unwrap();
                prop_assert!(next.has_body(found.block, body, |_| false));
            }
            prop_assert!(there.iter().all(|(block, body)| blocks.has_body(*block, body, |_| false)), "this one has them all");
        }
    }

    proptest! {
        #[test]
        fn another_process_finds_what_was_put_down_and_not_freed(
            steps in proptest::collection::vec((0usize..200, 0usize..5, proptest::option::of(0usize..8)), 1..60),
            fits in 1u64..3,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("tables");
            let mut blocks = Blocks::in_file(file(&path), 1).unwrap();
            prop_assert!(blocks.take_over(1).is_empty());
            let mut there: Vec<(u32, Vec<u8>, Vec<Words>)> = vec![];
            for (number, (record, lines, gone)) in steps.into_iter().enumerate() {
                blocks.provide(record_lines(record) as usize + lines).unwrap();
                let (record, body) = (vec![number as u8; record], body(lines, number as u64));
                there.push((blocks.put(Kind::Session, number as u8, &record, &body), record, body));
                if let Some(gone) = gone.filter(|gone| *gone < there.len()) {
                    blocks.free(there.swap_remove(gone).0);
                }
            }
            // Nobody says goodbye.
            let mut next = Blocks::in_file(file(&path), 1).unwrap();
            let mut found = next.take_over(fits);
            if fits != 1 {
                prop_assert!(found.is_empty());
                return Ok(());
            }
            prop_assert_eq!(next.next, blocks.next);
            found.sort_by_key(|found| found.block);
            there.sort_by_key(|there| there.0);
            prop_assert_eq!(found.len(), there.len());
            for (found, (block, record, body)) in found.iter().zip(&there) {
                prop_assert_eq!((found.block, &found.record), (*block, record));
                prop_assert!(next.has_body(*block, body, |_| false) && next.home(*block) == blocks.home(*block));
            }
        }

        #[test]
        fn no_file_makes_it_panic(words in proptest::collection::vec(any::<u64>(), 0..200), small: bool) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("tables");
            let mut blocks = Blocks::in_file(file(&path), 1).unwrap();
            blocks.take_over(1);
            blocks.provide(100).unwrap();
            let lines = blocks.lines.lines()[1..].as_flattened();
            // Lengths that are possible at all get further.
            let value = |word: u64| if small { word & 0x0000_0300_0003_ff03 } else { word };
            lines.iter().zip(words).for_each(|(to, word)| to.store(value(word), Relaxed));
            let mut next = Blocks::in_file(file(&path), 1).unwrap();
            for found in next.take_over(1) {
                prop_assert_eq!(next.record(found.block), found.record);
                next.free(found.block);
            }
            next.provide(10).unwrap();
            let block = next.put(Kind::Session, 0, b"a", &body(3, 1));
            prop_assert!(next.has_body(block, &body(3, 1), |_| false));
        }
    }
}
