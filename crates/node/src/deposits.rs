//! Segments of links that the keeper holds, so that the next daemon can go on with them; and who owns what in pools, which is a file
//! for each: it is needed where the keeper has ended, too.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::Layout;
use vport::broker::Ownership;

use crate::keeper::Keeper;
use crate::pools::replica_id;

/// What the keeper has of the broker's links.
pub(crate) struct Deposits {
    keeper: Arc<Keeper>,
    layout: Layout,
    /// Links that the broker knows: only of these are segments worth keeping. Held while the keeper is asked.
    links: Mutex<BTreeSet<String>>,
    /// Those that are pools'. Never held while the keeper is asked: the broker looks here.
    of_pools: Mutex<BTreeSet<String>>,
}

impl Deposits {
    pub(crate) fn new(keeper: Arc<Keeper>, layout: Layout) -> Self {
        Self { keeper, layout, links: Mutex::default(), of_pools: Mutex::default() }
    }

    /// Segments of this link are worth keeping from now on.
    pub(crate) fn begin(&self, link: &str, of_pool: bool) {
        if of_pool {
            lock(&self.of_pools).insert(link.to_owned());
        }
        lock(&self.links).insert(link.to_owned());
    }

    /// Whether the broker is to wait until segments are kept. Who owns what in a pool stands nowhere else; any other link can do
    /// without them, and is not to wait for a keeper that is stopped.
    pub(crate) fn are_waited_for(&self, link: &str) -> bool {
        lock(&self.of_pools).contains(link)
    }

    /// Nor is this link any more, nor its segments.
    pub(crate) fn end(&self, link: &str) {
        lock(&self.of_pools).remove(link);
        let mut links = lock(&self.links);
        links.remove(link);
        self.keeper.discard_all(&prefix(link));
    }

    /// Nor are any of a slice's.
    pub(crate) fn end_all(&self, slice: &str) {
        self.keeper.discard_all(&format!("segment {slice}/"));
    }

    /// Keeps these segments of a link, with their labels, in the place of those before. Wherever this is interrupted, all of
    /// one or of the other are there.
    pub(crate) fn replace(&self, link: &str, generation: u64, segments: Vec<(String, OwnedFd)>) {
        let links = lock(&self.links);
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

    /// What is kept of a link, with labels.
    pub(crate) fn of(&self, link: &str) -> Vec<(String, OwnedFd)> {
        let prefix = prefix(link);
        let labels = self.keeper.labels(&prefix).into_iter();
        labels.filter_map(|label| Some((label[prefix.len()..].to_owned(), self.keeper.fetch(&label)?))).collect()
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

fn lock(links: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    links.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All of it, or what was there before.
fn store(path: &Path, Ownership { epoch, owners, before }: &Ownership) -> io::Result<()> {
    let next = path.with_extension("json.new");
    fs::write(&next, serde_json::to_vec(&(epoch, &owners[..], &before[..]))?)?;
    fs::rename(next, path)
}

/// Label prefix of a link's segments at the keeper.
fn prefix(link: &str) -> String {
    format!("segment {link} ")
}
