//! Segments of links that the keeper holds, so that the next daemon can go on with them; and who owns what in pools, which is a file
//! for each: it is needed where the keeper has ended, too.
//!
//! The broker waits for no keeper: a thread of the node's own gives it what has come. Until that is done it has segments of a former
//! generation, or of none wholly. Any other link can do with those; a pool would lose what is sent to a replica that has not come back. So
//! a file says which generation a pool's link has, before anybody uses it, and the next daemon takes that one or none: without segments a
//! pool goes on by who owns what.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use runtime::Layout;
use vport::broker::{EndSpec, Ownership};

use crate::keeper::Keeper;
use crate::pools::replica_id;

/// What the keeper has of the broker's links.
pub(crate) struct Deposits {
    keeper: Arc<Keeper>,
    layout: Layout,
    /// Links that the broker knows: only of these are segments worth keeping. Held while the keeper is asked.
    links: Mutex<BTreeSet<String>>,
    /// Of those that are pools', where it stands which generation each has. Never held while the keeper is asked: the broker looks here,
    /// and into the next.
    of_pools: Mutex<BTreeMap<String, PathBuf>>,
    /// The newest segments of links, as long as the keeper was not given them.
    coming: Mutex<BTreeMap<String, New>>,
    wake: Sender<()>,
}

/// Segments of one generation, with labels.
struct New {
    generation: u64,
    segments: Vec<(String, OwnedFd)>,
}

impl Deposits {
    /// With what [`run`] listens to.
    pub(crate) fn new(keeper: Arc<Keeper>, layout: Layout) -> (Self, Receiver<()>) {
        let (wake, woken) = channel();
        let (links, of_pools, coming) = (Mutex::default(), Mutex::default(), Mutex::default());
        (Self { keeper, layout, links, of_pools, coming, wake }, woken)
    }

    /// Segments of this link are worth keeping from now on. `pool`: its end that is a pool.
    pub(crate) fn begin(&self, link: &str, pool: Option<&EndSpec>) {
        if let Some(path) = pool.and_then(|pool| self.generation_path(pool)) {
            lock(&self.of_pools).insert(link.to_owned(), path);
        }
        lock(&self.links).insert(link.to_owned());
    }

    /// Nor is this link any more, nor its segments.
    pub(crate) fn end(&self, link: &str) {
        let mut links = lock(&self.links);
        links.remove(link);
        lock(&self.coming).remove(link);
        self.keeper.discard_all(&prefix(link));
        // Last: as long as segments are there, it is to be known which are of use.
        if let Some(path) = lock(&self.of_pools).remove(link) {
            let _ = fs::remove_file(path);
        }
    }

    /// Nor are any of a slice's.
    pub(crate) fn end_all(&self, slice: &str) {
        self.keeper.discard_all(&format!("segment {slice}/"));
    }

    /// Has these segments of a link, with their labels, kept in the place of those before, and does not wait for it.
    pub(crate) fn replace(&self, link: &str, generation: u64, segments: Vec<(String, OwnedFd)>) {
        let path = lock(&self.of_pools).get(link).cloned();
        // Where there are none, none of this generation are of use either.
        let noted = path.map(|path| (note(&path, if segments.is_empty() { 0 } else { generation }), path));
        lock(&self.coming).insert(link.to_owned(), New { generation, segments });
        match noted {
            Some((Err(e), path)) => {
                tracing::error!("{}: {e}; the keeper is waited for", path.display());
                self.keep(link);
            }
            _ => drop(self.wake.send(())),
        }
    }

    /// Gives the keeper what has come.
    fn keep_all(&self) {
        while let Some(link) = self.next() {
            self.keep(&link);
        }
    }

    fn next(&self) -> Option<String> {
        lock(&self.coming).keys().next().cloned()
    }

    /// Gives the keeper what has come of a link, in the place of what was before. Wherever this is interrupted, all of one or of the
    /// other are there.
    fn keep(&self, link: &str) {
        let links = lock(&self.links);
        let Some(New { generation, segments }) = lock(&self.coming).remove(link) else { return };
        if !links.contains(link) {
            return;
        }
        let prefix = prefix(link);
        let mut former = self.keeper.labels(&prefix);
        for (label, fd) in segments {
            let label = format!("{prefix}{label}");
            if let Err(e) = self.keeper.store(&label, fd.as_fd()) {
                tracing::error!("link {link}, generation {generation}: a segment is not kept: {e}");
            }
            former.retain(|other| *other != label);
        }
        former.iter().for_each(|label| self.keeper.discard(label));
    }

    /// What is kept of a link, with labels. Of a pool's link what is void is kept no longer: a later generation may have its number.
    pub(crate) fn of(&self, link: &str) -> Vec<(String, OwnedFd)> {
        let prefix = prefix(link);
        let noted = lock(&self.of_pools).get(link).and_then(|path| noted(path));
        let wanted = noted.map_or_else(|| prefix.clone(), |generation| format!("{prefix}vport/{generation}/"));
        let is_void = |label: &mut String| !label.starts_with(&wanted);
        let mut labels = self.keeper.labels(&prefix);
        labels.extract_if(.., is_void).for_each(|label| self.keeper.discard(&label));
        let kept = |label: String| Some((label[prefix.len()..].to_owned(), self.keeper.fetch(&label)?));
        labels.into_iter().filter_map(kept).collect()
    }

    /// In the directory of the pool's first replica, and gone with it.
    fn generation_path(&self, pool: &EndSpec) -> Option<PathBuf> {
        let directory = self.layout.function_dir(&replica_id(pool.functions.first()?)?);
        Some(directory.join(format!("generation-of-{}", pool.port.name)))
    }

    /// Keeps who owns what in a pool, by the broker's name of its first replica, or that the pool is no more.
    pub(crate) fn keep_ownership(&self, replica: &str, ownership: Option<Ownership>) {
        let Some(path) = self.ownership_path(replica) else { return };
        let kept = match ownership {
            Some(ownership) => store(&path, &ownership),
            None => fs::remove_file(&path),
        };
        if let Err(e) = kept
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::error!("{}: {e}", path.display());
        }
    }

    /// Who owned what in a pool when it was changed last.
    pub(crate) fn ownership(&self, replica: &str) -> Option<Ownership> {
        let text = fs::read(self.ownership_path(replica)?).ok()?;
        let (epoch, owners, before): (u64, Vec<u8>, Vec<u8>) = serde_json::from_slice(&text).ok()?;
        Some(Ownership { epoch, owners: owners.try_into().ok()?, before: before.try_into().ok()? })
    }

    /// In the replica's directory, and gone with it.
    fn ownership_path(&self, replica: &str) -> Option<PathBuf> {
        Some(self.layout.function_dir(&replica_id(replica)?).join("owners.json"))
    }
}

/// Has the keeper given what comes, until there are no deposits any more.
pub(crate) fn run(heir: &Weak<Deposits>, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        let Some(deposits) = heir.upgrade() else { return };
        deposits.keep_all();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn store(path: &Path, Ownership { epoch, owners, before }: &Ownership) -> io::Result<()> {
    write(path, &serde_json::to_vec(&(epoch, &owners[..], &before[..]))?)
}

/// The generation that a pool's link has.
fn note(path: &Path, generation: u64) -> io::Result<()> {
    write(path, generation.to_string().as_bytes())
}

/// None where nothing was noted, as by daemons that waited for the keeper. What cannot be read leaves no generation.
fn noted(path: &Path) -> Option<u64> {
    match fs::read_to_string(path) {
        Ok(text) => Some(text.parse().unwrap_or_default()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(_) => Some(0),
    }
}

/// All of it, or what was there before.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(".new");
    fs::write(&next, content)?;
    fs::rename(next, path)
}

/// Label prefix of a link's segments at the keeper.
fn prefix(link: &str) -> String {
    format!("segment {link} ")
}
