//! The embedded database: a few kinds of things, each by number.

use std::fs::File;
use std::path::Path;

use redb::{ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::backend::Unsynced;

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// What the store is; key 0.
    Preface,
    /// Numbers that N4 counts on from; key 0.
    Numbers,
    /// Associations, by their number.
    Association,
    /// Sessions, by the UPF's SEID.
    Session,
    /// The TEID last given out, by its slot.
    Teid,
    /// Answers to requests that may come again.
    Answer,
    /// Reports that are not answered, by their sequence number.
    Report,
    /// Applications with their descriptions, all together; key 0.
    Applications,
}

/// One thing is now so, or is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What kind of thing.
    pub kind: Kind,
    /// Its number.
    pub key: u64,
    /// What it is; none if it is no more.
    pub value: Option<Box<[u8]>>,
}

/// A thing and its number.
pub type Entry = (u64, Box<[u8]>);

/// The database cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(String);

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self(error.into().to_string())
    }
}

type Table = ReadOnlyTable<u64, &'static [u8]>;

/// The database.
#[derive(Debug)]
pub struct Database(redb::Database);

/// Octets of pages kept in memory; the kernel has the others.
const CACHE: usize = 64 << 20;

impl Kind {
    fn table(self) -> TableDefinition<'static, u64, &'static [u8]> {
        TableDefinition::new(match self {
            Self::Preface => "preface",
            Self::Numbers => "numbers",
            Self::Association => "associations",
            Self::Session => "sessions",
            Self::Teid => "teids",
            Self::Answer => "answers",
            Self::Report => "reports",
            Self::Applications => "applications",
        })
    }
}

impl Database {
    /// An empty database. What the file held is gone.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        Self::on(file.map_err(|error| StoreError(error.to_string()))?)
    }

    /// The database in a file. If nobody has closed it, all its checksums are verified.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::on(File::options().read(true).write(true).open(path).map_err(|error| StoreError(error.to_string()))?)
    }

    fn on(file: File) -> Result<Self, StoreError> {
        Ok(Self(redb::Builder::new().set_cache_size(CACHE).create_with_backend(Unsynced(file))?))
    }

    /// Makes all changes or none. They are durable against the end of the process when this returns.
    pub fn commit<'c>(&self, changes: impl IntoIterator<Item = &'c Change>) -> Result<(), StoreError> {
        let mut changes: Vec<_> = changes.into_iter().collect();
        // One table after the other, and in each the last word on a key.
        changes.sort_by_key(|change| (change.kind, change.key));
        let transaction = self.0.begin_write()?;
        for of_kind in changes.chunk_by(|a, b| a.kind == b.kind) {
            let mut table = transaction.open_table(of_kind[0].kind.table())?;
            for of_key in of_kind.chunk_by(|a, b| a.key == b.key) {
                let Some(change) = of_key.last() else { continue };
                match &change.value {
                    Some(value) => table.insert(change.key, &**value)?,
                    None => table.remove(change.key)?,
                };
            }
        }
        Ok(transaction.commit()?)
    }

    /// How many there are of a kind.
    pub fn count(&self, kind: Kind) -> Result<u64, StoreError> {
        let Some(table) = self.table(kind)? else { return Ok(0) };
        Ok(table.len()?)
    }

    /// One thing.
    pub fn get(&self, kind: Kind, key: u64) -> Result<Option<Box<[u8]>>, StoreError> {
        let found = match self.table(kind)? {
            Some(table) => table.get(key)?,
            None => None,
        };
        Ok(found.map(|value| value.value().into()))
    }

    /// Calls `with` for each thing of a kind, by ascending number.
    pub fn each(&self, kind: Kind, mut with: impl FnMut(u64, &[u8])) -> Result<(), StoreError> {
        let Some(table) = self.table(kind)? else { return Ok(()) };
        for entry in table.iter()? {
            let (key, value) = entry?;
            with(key.value(), value.value());
        }
        Ok(())
    }

    /// The things of a kind as they are now; none if there never were any.
    fn table(&self, kind: Kind) -> Result<Option<Table>, StoreError> {
        match self.0.begin_read()?.open_table(kind.table()) {
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            other => Ok(Some(other?)),
        }
    }

    /// All of a kind, by ascending number.
    pub fn all(&self, kind: Kind) -> Result<Vec<Entry>, StoreError> {
        let mut all = vec![];
        self.each(kind, |key, value| all.push((key, value.into())))?;
        Ok(all)
    }
}
