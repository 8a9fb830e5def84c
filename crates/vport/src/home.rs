//! The steering of one port within its function: its present table, and where the senders of each generation read it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cell::Cell;
use crate::epoch::reaches;
use crate::handover::{Fate, Generation};
use crate::layout::Index;
use crate::mapping::Mapping;
use crate::steering::BucketTable;
use crate::table;

/// A port's own steering. Its table is in every new generation from the start.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) name: String,
    pub(crate) cells: Vec<Arc<Cell>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    epoch: u64,
    table: BucketTable,
    /// Generations that a queue still uses.
    living: Vec<Living>,
    /// Belongs to a group.
    taken: bool,
}

/// A generation of the port's link.
#[derive(Debug)]
pub(crate) struct Living {
    pub(crate) generation: Arc<Generation>,
    pub(crate) table: Arc<Mapping>,
    /// Own index segments, one a queue.
    pub(crate) indices: Vec<Arc<Mapping>>,
    /// The peer's, and the layouts of both.
    pub(crate) peers: Vec<Arc<Mapping>>,
    pub(crate) layouts: (Index, Index),
}

/// The epoch that a port begins with.
const FIRST: u64 = 1;

impl Home {
    pub(crate) fn new(name: &str, cells: Vec<Arc<Cell>>) -> Self {
        let table = BucketTable::fixed(cells.len());
        let state = State { epoch: FIRST, table, living: Vec::new(), taken: false };
        Self { name: name.to_owned(), cells, state: Mutex::new(state) }
    }

    /// Writes the table into a new generation, and lets `deliver` give that to the queues. They are told the epoch that
    /// it begins in.
    pub(crate) fn renew<T>(&self, newest: Living, deliver: impl FnOnce(u64) -> T) -> T {
        let mut state = self.lock();
        table::write(&newest.table, state.epoch, &state.table);
        state.living.push(newest);
        deliver(state.epoch)
    }

    /// Lets go of generations that no queue uses any more.
    pub(crate) fn forget_unused(&self) {
        self.lock().living.retain(Living::is_used);
    }

    /// A generation is over. Where its peer is dead, so are those before it.
    pub(crate) fn end(&self, number: u64, fate: Fate) {
        for Living { generation, .. } in &self.lock().living {
            if generation.number == number || generation.number < number && fate == Fate::Dead {
                generation.end(fate);
            }
        }
    }

    /// Tells senders of a new table.
    pub(crate) fn publish(&self, epoch: u64, table: &BucketTable) {
        let mut state = self.lock();
        (state.epoch, state.table) = (epoch, *table);
        state.living.iter().for_each(|living| table::write(&living.table, epoch, table));
    }

    /// The epoch and table in force.
    pub(crate) fn table(&self) -> (u64, BucketTable) {
        let state = self.lock();
        (state.epoch, state.table)
    }

    /// Makes the port part of a group. False if it is already.
    pub(crate) fn take(&self) -> bool {
        !std::mem::replace(&mut self.lock().taken, true)
    }

    pub(crate) fn give_back(&self) {
        self.lock().taken = false;
    }

    /// What queue `queue` has sent so far, and who is to read it.
    pub(crate) fn sent(&self, queue: usize, unread: &mut Vec<Unread>) {
        let state = self.lock();
        for Living { generation, indices, peers, layouts: (layout, peer_layout), .. } in &state.living {
            let Some(index) = indices.get(queue) else { continue };
            unread.extend(peers.iter().enumerate().map(|(to, peer)| Unread {
                generation: generation.clone(),
                head: layout.head(index, to).load(Ordering::Acquire),
                peer: peer.clone(),
                peer_layout: *peer_layout,
                queue,
            }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Living {
    /// Whether a queue still has its half of it, or the control thread takes it for the newest.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.generation) > 1
    }
}

/// Records that were sent on one channel, and may not have been read.
#[derive(Debug)]
pub(crate) struct Unread {
    generation: Arc<Generation>,
    head: u64,
    peer: Arc<Mapping>,
    peer_layout: Index,
    queue: usize,
}

impl Unread {
    /// Whether the peer has read them all, or reads no more.
    pub(crate) fn is_over(&self) -> bool {
        let tail = self.peer_layout.tail(&self.peer, self.queue).load(Ordering::Acquire);
        reaches(tail, self.head) || self.generation.fate() == Fate::Dead
    }
}
