//! A sandbox: a user namespace and a network namespace owned by it, held by two bind mounts.
//!
//! The namespaces are mounted at `<run>/<slice>/<function>/ns/{user,net}`, so they need no process and outlive every restart
//! of the container, of the daemon and of the keeper.

use crate::net::Namespace;
use crate::{FunctionId, IdRange, Layout, Result};

/// The namespaces of one function.
#[derive(Debug)]
pub struct Sandbox {
    id: FunctionId,
    ids: IdRange,
}

impl Sandbox {
    /// Makes the function's sandbox, or opens the one that is there. A half-made one is made anew.
    ///
    /// Inside: loopback up, unprivileged ICMP sockets for every gid, every TCP and UDP port bindable, no duplicate address
    /// detection, no router advertisements accepted.
    pub fn create(_layout: &Layout, _id: &FunctionId) -> Result<Self> {
        todo!()
    }

    /// The function's sandbox, if both namespaces are there.
    pub fn open(_layout: &Layout, _id: &FunctionId) -> Result<Option<Self>> {
        todo!()
    }

    /// Takes everything of the function away: container, processes in its namespaces, mounts, cgroups, directories.
    ///
    /// Needs no sandbox to be there and does not mind what is missing. The uid range and the state directory stay: see
    /// [`IdRanges::release`](crate::IdRanges::release).
    pub fn delete(_layout: &Layout, _id: &FunctionId) -> Result<()> {
        todo!()
    }

    /// Functions that have anything below `<run>`, whole or half-made: what a restarted daemon compares with its slices.
    pub fn list(_layout: &Layout) -> Result<Vec<FunctionId>> {
        todo!()
    }

    /// Whose it is.
    pub fn id(&self) -> &FunctionId {
        &self.id
    }

    /// Its uid range.
    pub fn ids(&self) -> IdRange {
        self.ids
    }

    /// Its network namespace, for [`crate::net`].
    pub fn net(&self) -> Result<Namespace> {
        todo!()
    }
}
