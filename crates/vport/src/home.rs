//! The steering of one port within its function: its present table, and where the senders of each generation read it.

use std::ops::RangeInclusive;
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
    /// Whether the broker writes its table, which other processes share.
    pooled: bool,
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
    /// Written by the broker, not here, where the port is a pool's.
    pub(crate) table: Option<Arc<Mapping>>,
    /// Number that the first queue has in its pool; 0 elsewhere.
    pub(crate) first: usize,
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
        Self { pooled: false, ..Self::of_pool(name, cells, FIRST, table) }
    }

    /// Of a member of a pool, which may be in a later epoch.
    pub(crate) fn of_pool(name: &str, cells: Vec<Arc<Cell>>, epoch: u64, table: BucketTable) -> Self {
        let state = State { epoch, table, living: Vec::new(), taken: false };
        Self { name: name.to_owned(), cells, state: Mutex::new(state), pooled: true }
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// Writes the table into a new generation, and lets `deliver` give that to the queues. They are told the epoch that
    /// it begins in.
    pub(crate) fn renew<T>(&self, newest: Living, deliver: impl FnOnce(u64) -> T) -> T {
        let mut state = self.lock();
        newest.table.iter().for_each(|segment| table::write(segment, state.epoch, &state.table));
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

    /// Members of the peer, a pool, are gone in these generations: queues with a bit each.
    pub(crate) fn bury(&self, numbers: RangeInclusive<u64>, queues: u64) {
        let state = self.lock();
        let concerned = state.living.iter().filter(|living| numbers.contains(&living.generation.number));
        concerned.for_each(|living| living.generation.bury(queues));
    }

    /// Queue `queue` sends nothing more in generations before this one.
    pub(crate) fn close_before(&self, generation: u64, queue: usize) {
        let state = self.lock();
        for living in state.living.iter().filter(|living| living.generation.number < generation) {
            let layout = living.layouts.0;
            if let Some(index) = living.indices.get(queue) {
                (0..living.peers.len())
                    .for_each(|to| layout.close(index, to, layout.head(index, to).load(Ordering::Acquire)));
            }
        }
    }

    /// Tells senders of a new table.
    pub(crate) fn publish(&self, epoch: u64, table: &BucketTable) {
        let mut state = self.lock();
        (state.epoch, state.table) = (epoch, *table);
        let tables = state.living.iter().filter_map(|living| living.table.as_ref());
        tables.for_each(|segment| table::write(segment, epoch, table));
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
        for Living { generation, first, indices, peers, layouts: (layout, peer_layout), .. } in &state.living {
            let Some(index) = indices.get(queue) else { continue };
            unread.extend(peers.iter().enumerate().map(|(to, peer)| Unread {
                generation: generation.clone(),
                head: layout.head(index, to).load(Ordering::Acquire),
                peer: peer.clone(),
                peer_layout: *peer_layout,
                to,
                queue: *first + queue,
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
    /// Queue of the peer, and the number that the peer has for the sending one.
    to: usize,
    queue: usize,
}

impl Unread {
    /// Whether the peer has read them all, or reads no more.
    pub(crate) fn is_over(&self) -> bool {
        let tail = self.peer_layout.tail(&self.peer, self.queue).load(Ordering::Acquire);
        reaches(tail, self.head) || self.generation.is_dead(self.to)
    }
}
