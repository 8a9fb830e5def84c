//! What is kept on disk: for each slice the descriptor that shall hold, and a record of what was made for it.
//!
//! Descriptors lie in the state directory and outlive a reboot. Records lie in the run directory: they name processes
//! and are void after one. Both are replaced whole, so a reader finds an old or a new one, never half of one.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use runtime::{Image, OciRuntime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slice::Slice;

use crate::logs::now_ns;
use crate::paths::Paths;
use crate::process::ProcessId;

/// What was made for a slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// The functions and links that exist, as they were described when they were made. At times one more than exists,
    /// since it is written before things are made and after they are taken away.
    pub actual: Slice,
    /// When the slice was first brought up, milliseconds since 1970.
    pub since_ms: u64,
    /// By function.
    pub functions: BTreeMap<String, ProcessRecord>,
    /// What functions were started of, by function.
    #[serde(default)]
    pub images: BTreeMap<String, Image>,
    /// By link.
    pub pumps: BTreeMap<String, ProcessRecord>,
    /// What containers are made with.
    #[serde(default)]
    pub runtime: Option<OciRuntime>,
}

/// The history of a supervised process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessRecord {
    /// The process that runs, or ran last.
    pub process: Option<ProcessId>,
    /// When it was started, milliseconds since 1970.
    pub started_ms: Option<u64>,
    /// Times it was started again.
    pub restarts: u64,
    /// How it last ended.
    pub last_exit: Option<String>,
    /// It ended, and its policy leaves it so.
    pub ended: bool,
    /// It runs in the function's second container.
    #[serde(default)]
    pub second: bool,
    /// The process in the other container, which has what the function had: the former one is to end.
    #[serde(default)]
    pub heir: Option<ProcessId>,
    /// Starts since it last ran well, by which the next delay is chosen.
    #[serde(default)]
    pub quick_ends: u32,
    /// When it is to be started again, milliseconds since 1970.
    #[serde(default)]
    pub start_at_ms: Option<u64>,
}

impl Record {
    /// The slice's record; none if nothing was made for it since the machine started.
    pub(crate) fn load(paths: &Paths, slice: &str) -> io::Result<Option<Self>> {
        load(&file(&paths.records(), slice))
    }

    /// What can be said where there is no record to be read: this may exist, and nothing is known of its processes.
    pub(crate) fn of_unknown(actual: Slice) -> Self {
        let since_ms = now_ns() / 1_000_000;
        Self {
            actual,
            since_ms,
            functions: BTreeMap::new(),
            images: BTreeMap::new(),
            pumps: BTreeMap::new(),
            runtime: None,
        }
    }

    /// Keeps it.
    pub(crate) fn store(&self, paths: &Paths) -> io::Result<()> {
        // Void after a crash of the host, so not worth waiting for a disk.
        store(&file(&paths.records(), self.actual.name()), self, false)
    }

    /// Forgets it.
    pub(crate) fn remove(paths: &Paths, slice: &str) -> io::Result<()> {
        remove(&file(&paths.records(), slice))
    }
}

/// The descriptor that shall hold; none if the slice shall not be.
pub(crate) fn load_descriptor(paths: &Paths, slice: &str) -> io::Result<Option<Slice>> {
    load(&file(&paths.descriptors(), slice))
}

/// Keeps the descriptor, its paths absolute.
pub(crate) fn store_descriptor(paths: &Paths, slice: &Slice) -> io::Result<()> {
    store(&file(&paths.descriptors(), slice.name()), slice, true)
}

/// The slice shall be no more.
pub(crate) fn remove_descriptor(paths: &Paths, slice: &str) -> io::Result<()> {
    remove(&file(&paths.descriptors(), slice))
}

/// Every slice that shall be, or of which something is.
pub(crate) fn all_slices(paths: &Paths) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for directory in [paths.descriptors(), paths.records()] {
        for entry in fs::read_dir(directory)? {
            names.extend(entry?.file_name().to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_owned));
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn file(directory: &Path, slice: &str) -> PathBuf {
    directory.join(format!("{slice}.json"))
}

/// None only if there is no such file: what cannot be read is not taken for what is not there.
fn load<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let failed = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|e| failed(e.into())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

fn store(path: &Path, value: &impl Serialize, outlives_crashes: bool) -> io::Result<()> {
    let next = path.with_extension("json.new");
    // Environments and files of functions may hold what only they are to know.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    file.write_all(&serde_json::to_vec_pretty(value)?)?;
    if outlives_crashes {
        file.sync_data()?;
    }
    fs::rename(next, path)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_kept_is_read_by_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.json");
        store(&path, &"secret", true).unwrap();
        assert_eq!(load::<String>(&path).unwrap().as_deref(), Some("secret"));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_read_is_not_absent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.json");
        assert_eq!(load::<String>(&path).unwrap(), None);
        fs::write(&path, "another version's words").unwrap();
        let said = load::<String>(&path).unwrap_err().to_string();
        assert!(said.contains("s.json"), "{said}");
        assert!(load::<String>(directory.path()).is_err(), "no file at all");
    }
}
