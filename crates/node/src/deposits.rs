//! Segments of links that the keeper holds, so that the next daemon can go on with them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::keeper::Keeper;

/// What the keeper has of the broker's links.
pub(crate) struct Deposits {
    keeper: Arc<Keeper>,
    /// Links that the broker knows: only of these are segments worth keeping. Of each whether it is a pool's.
    links: Mutex<BTreeMap<String, bool>>,
}

impl Deposits {
    pub(crate) fn new(keeper: Arc<Keeper>) -> Self {
        Self { keeper, links: Mutex::default() }
    }

    /// Segments of this link are worth keeping from now on.
    pub(crate) fn begin(&self, link: &str, of_pool: bool) {
        self.links().insert(link.to_owned(), of_pool);
    }

    /// Whether the broker is to wait until segments are kept. Who owns what in a pool stands nowhere else; any other link can do
    /// without them, and is not to wait for a keeper that is stopped.
    pub(crate) fn are_waited_for(&self, link: &str) -> bool {
        self.links().get(link).is_some_and(|of_pool| *of_pool)
    }

    /// Nor is this link any more, nor its segments.
    pub(crate) fn end(&self, link: &str) {
        let mut links = self.links();
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
        let links = self.links();
        if !links.contains_key(link) {
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

    fn links(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Label prefix of a link's segments at the keeper.
fn prefix(link: &str) -> String {
    format!("segment {link} ")
}
