//! What a port holds of an arena in one generation of a zero-copy link. The broker takes the buffers of a generation back
//! when both ends have let go of it: when the last queue of the port no longer uses it, or the process is gone.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::arena::{Arena, HolderId, View};
use crate::handover::Complaints;

/// Kept by every channel of the generation.
#[derive(Debug)]
pub(crate) struct Stake {
    generation: u64,
    arena: Arc<Arena>,
    /// Ids of this end and of its peer.
    pub(crate) ids: (HolderId, HolderId),
    stakes: Weak<Stakes>,
}

impl Stake {
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The arena for the packet path. Keeps the stake.
    pub(crate) fn view(self: &Arc<Self>) -> View {
        self.arena.view(self.clone())
    }
}

impl Drop for Stake {
    fn drop(&mut self) {
        if let Some(stakes) = self.stakes.upgrade() {
            stakes.let_go(self.generation);
        }
    }
}

/// All stakes of a port.
#[derive(Debug)]
pub(crate) struct Stakes {
    state: Mutex<State>,
    complaints: Arc<Complaints>,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<u64>,
    released: Vec<u64>,
}

impl Stakes {
    pub(crate) fn new(complaints: Arc<Complaints>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), complaints })
    }

    /// Takes part in a generation. `fds` are the arena's and the holder table's, `buffers` and `present` as in
    /// [`crate::wire::Reply::Arena`].
    pub(crate) fn take(
        self: &Arc<Self>,
        generation: u64,
        ids: (HolderId, HolderId),
        (buffers, present): (u32, u32),
        fds: &[OwnedFd],
    ) -> std::io::Result<Arc<Stake>> {
        let [frames, holders] = fds else { return Err(std::io::ErrorKind::InvalidInput.into()) };
        let arena = Arena::open(frames, holders, buffers, present)?;
        self.lock().held.push(generation);
        Ok(Arc::new(Stake { generation, arena, ids, stakes: Arc::downgrade(self) }))
    }

    /// Generations that are used.
    pub(crate) fn held(&self) -> Vec<u64> {
        self.lock().held.clone()
    }

    /// Generations that have been let go of since the last call.
    pub(crate) fn released(&self) -> Vec<u64> {
        std::mem::take(&mut self.lock().released)
    }

    fn let_go(&self, generation: u64) {
        let mut state = self.lock();
        state.held.retain(|held| *held != generation);
        state.released.push(generation);
        drop(state);
        // Tells the control thread.
        self.complaints.ring();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
