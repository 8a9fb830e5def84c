//! Uid ranges: every sandbox has 65536 host uids and gids that no other has.
//!
//! The ranges lie from 0x7000_0000 up, which systemd, `/etc/subuid` and directory services leave unused. A function keeps
//! its range until it is released, so that its state directory stays its own across `down` and `up`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Attempt;
use crate::{Error, FunctionId, Layout, Result};

/// The first range's first id.
const FIRST: u32 = 0x7000_0000;
/// Ranges below 0x7ffe_0000, where systemd's foreign ids begin.
const RANGES: u32 = 0x0ffe;

/// Host ids `first .. first + 65536`, seen inside as `0 .. 65536`; the same for uids and gids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The host id that is 0 inside.
    pub first: u32,
}

impl IdRange {
    /// How many ids a sandbox has.
    pub const SIZE: u32 = 65536;

    /// The line for `/proc/<pid>/uid_map`.
    pub(crate) fn map(self) -> String {
        format!("0 {} {}", self.first, Self::SIZE)
    }
}

/// The ranges given to functions, remembered in `<state>/id-ranges.json`.
#[derive(Debug)]
pub struct IdRanges;

type Taken = BTreeMap<String, IdRange>;

impl IdRanges {
    /// The function's range, the same every time until it is released.
    pub fn allocate(layout: &Layout, id: &FunctionId) -> Result<IdRange> {
        let book = Book::open(layout)?;
        let mut taken = book.read()?;
        if let Some(range) = taken.get(&id.to_string()) {
            return Ok(*range);
        }
        let range = first_free(&taken).ok_or(Error::NoIds(RANGES))?;
        taken.insert(id.to_string(), range);
        book.write(&taken)?;
        Ok(range)
    }

    /// Forgets the function's range. Call it only when nothing of the function is left, its state directory included.
    pub fn release(layout: &Layout, id: &FunctionId) -> Result<()> {
        let book = Book::open(layout)?;
        let mut taken = book.read()?;
        if taken.remove(&id.to_string()).is_some() {
            book.write(&taken)?;
        }
        Ok(())
    }
}

fn first_free(taken: &Taken) -> Option<IdRange> {
    (0..RANGES)
        .map(|n| IdRange { first: FIRST + n * IdRange::SIZE })
        .find(|range| taken.values().all(|other| other != range))
}

/// The file of ranges, locked against other processes for as long as this lives.
struct Book {
    path: PathBuf,
    _lock: File,
}

impl Book {
    fn open(layout: &Layout) -> Result<Self> {
        let (path, lock) = (layout.state().join("id-ranges.json"), layout.state().join("id-ranges.lock"));
        fs::create_dir_all(layout.state()).attempt(|| format!("making {}", layout.state().display()))?;
        let lock_file = File::create(&lock).attempt(|| format!("opening {}", lock.display()))?;
        lock_file.lock().attempt(|| format!("locking {}", lock.display()))?;
        Ok(Self { path, _lock: lock_file })
    }

    fn read(&self) -> Result<Taken> {
        match fs::read(&self.path) {
            Ok(text) => Ok(serde_json::from_slice(&text)
                .map_err(std::io::Error::other)
                .attempt(|| format!("reading {}", self.path.display()))?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Taken::new()),
            Err(error) => Err(error).attempt(|| format!("reading {}", self.path.display())),
        }
    }

    /// Written aside, flushed and renamed: a crash leaves the old file or the new one.
    fn write(&self, taken: &Taken) -> Result<()> {
        let aside = self.path.with_extension("new");
        let text = serde_json::to_vec_pretty(taken).expect("a map of numbers is JSON");
        fs::write(&aside, text)
            .and_then(|()| File::open(&aside)?.sync_all())
            .and_then(|()| fs::rename(&aside, &self.path))
            .attempt(|| format!("writing {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_keeps_its_range_until_it_is_released_and_shares_it_with_nobody() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path().join("run"), dir.path().join("state"));
        let id = |function| FunctionId::new("slice", function).expect("a name");
        let (a, b) = (id("a"), id("b"));

        let first = IdRanges::allocate(&layout, &a).expect("a range");
        let second = IdRanges::allocate(&layout, &b).expect("a range");
        assert_ne!(first, second);
        assert_eq!(IdRanges::allocate(&layout, &a).expect("the same"), first);

        IdRanges::release(&layout, &a).expect("released");
        IdRanges::release(&layout, &a).expect("releasing twice is no error");
        assert_eq!(IdRanges::allocate(&layout, &id("c")).expect("the freed one"), first);
    }

    #[test]
    fn every_range_ends_below_the_ids_that_systemd_calls_foreign() {
        let last = FIRST + (RANGES - 1) * IdRange::SIZE;
        assert!(last + (IdRange::SIZE - 1) < 0x7ffe_0000);
    }
}
