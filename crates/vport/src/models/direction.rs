//! One direction of a link, with all that its two ends share: the parts of which models are made.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::channel::{Inlet, Outlet};
use crate::doorbell::{Bell, Doorbell};
use crate::handover::{Complaints, Generation, Handover};
use crate::home::Living;
use crate::latency::Histogram;
use crate::layout::{Heads, Index, RECORDS_PAD, TABLE_BYTES};
use crate::lone;
use crate::mapping::Mapping;
use crate::reader::Reader;
use crate::ring::Ring;
use crate::rx::{Ownership, RxChannel, RxHalf, RxRing};
use crate::source::Mapped;
use crate::steering::{BucketTable, Steering};
use crate::table;
use crate::tx::{PeerTable, TxChannel, TxHalf, TxRing};
use crate::writer::Writer;

/// Bytes of a head that are copied before anything looks at them.
const PEEK: usize = 64;

/// Queues that send, and queues that receive.
pub(super) struct Direction {
    ring: Ring,
    steering: Steering,
    /// Layout and index segments of the sending queues; of the receiving ones.
    pub(super) from: (Index, Vec<Arc<Mapping>>),
    pub(super) to: (Index, Vec<Arc<Mapping>>),
    /// Of each sending queue.
    pub(super) records: Vec<Arc<Mapping>>,
    /// Of the receiving port.
    pub(super) table: Arc<Mapping>,
    /// As the receiving port sees it.
    pub(super) generation: Arc<Generation>,
    /// Both ends of each receiving queue's pipe.
    doorbells: Vec<(OwnedFd, OwnedFd)>,
}

impl Direction {
    pub(super) fn new(ring_bytes: usize, senders: usize, receivers: usize, steering: Steering) -> Self {
        let side = |queues, peers| {
            let layout = Index::new(peers);
            (layout, (0..queues).map(|_| memory(layout.bytes())).collect())
        };
        let records = (0..senders).map(|_| memory(receivers * ring_bytes + RECORDS_PAD)).collect();
        let doorbells = (0..receivers).map(|_| pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap()).collect();
        let segment = memory(TABLE_BYTES);
        if receivers == 1 {
            // Of ports with several queues, models write it as ports do.
            table::write(&segment, 1, &BucketTable::fixed(1));
        }
        Self {
            ring: Ring::new(ring_bytes as u64).unwrap(),
            steering,
            from: side(senders, receivers),
            to: side(receivers, senders),
            records,
            table: segment,
            generation: Generation::new(1),
            doorbells,
        }
    }

    /// What the steering of the receiving port knows of it.
    pub(super) fn at_receiver(&self) -> Living {
        let (table, generation) = (self.table.clone(), self.generation.clone());
        let (indices, peers) = (self.to.1.clone(), self.from.1.clone());
        Living { generation, table: Some(table), first: 0, indices, peers, layouts: (self.to.0, self.from.0) }
    }

    /// What the steering of the sending port knows of it. Nobody sends to that.
    pub(super) fn at_sender(&self) -> Living {
        let (table, generation) = (memory(TABLE_BYTES), self.generation.clone());
        let (indices, peers) = (self.from.1.clone(), self.to.1.clone());
        Living { generation, table: Some(table), first: 0, indices, peers, layouts: (self.from.0, self.to.0) }
    }

    /// Sending queue `queue`, which will take the direction over with its first burst.
    pub(super) fn sender(&self, queue: usize) -> TxRing {
        let handover = Handover::new().unwrap();
        assert!(handover.deliver(self.tx_half(queue)).is_none());
        sender_by(queue, handover)
    }

    /// What sending queue `queue` takes over.
    pub(super) fn tx_half(&self, queue: usize) -> TxHalf {
        let (layout, index) = (self.from.0, &self.from.1[queue]);
        TxHalf {
            generation: Generation::new(1),
            channels: (0..self.to.1.len()).map(|to| self.tx_channel(queue, to)).collect(),
            index: index.clone(),
            layout,
            steering: self.steering,
            table: PeerTable::new(self.table.clone()),
            burst: 0,
        }
    }

    /// A receiving queue that owns what `ownership` says, and will take the direction over with its first receive.
    pub(super) fn receiver(&self, ownership: Ownership, handover: &Arc<Handover<RxHalf>>, epoch: u64) -> RxRing {
        let queue = ownership.queue;
        let half = RxHalf {
            generation: self.generation.clone(),
            channels: (0..self.from.1.len()).map(|from| self.rx_channel(from, queue)).collect(),
            next_channel: 0,
            index: self.to.1[queue].clone(),
            layout: self.to.0,
            doorbell: Doorbell::new(self.doorbells[queue].0.try_clone().unwrap()),
            epoch,
        };
        assert!(handover.deliver(half).is_none());
        RxRing::new(PEEK, ownership, handover.clone(), Arc::new(Complaints::new().unwrap()), Arc::new(()))
    }

    fn tx_channel(&self, from: usize, to: usize) -> TxChannel {
        let (layout, peer_layout, peer) = (self.from.0, self.to.0, &self.to.1[to]);
        let writer = Writer::new(
            self.ring,
            (&self.records[from], to * self.ring.size() as usize),
            (&self.from.1[from], |index: &Mapping| layout.heads(index, to)),
            (peer, |peer: &Mapping| peer_layout.tail(peer, from)),
        );
        let bell = Bell::new(self.doorbells[to].1.try_clone().unwrap());
        TxChannel { outlet: Outlet::Records(writer), bell, peer: peer.clone(), peer_layout }
    }

    fn rx_channel(&self, from: usize, to: usize) -> RxChannel {
        let (layout, peer) = (self.from.0, &self.from.1[from]);
        let offset = to * self.ring.size() as usize;
        let inlet = Inlet::Records {
            reader: Reader::new(self.ring).with_latency(Histogram::new(self.to.0, &self.to.1[to])),
            source: Mapped::new(self.ring, &self.records[from], offset, peer, |index| heads(layout, index, to)),
        };
        RxChannel::new(inlet, from, peer.clone(), layout, to)
    }
}

/// A sending queue that takes over what comes by a mailbox.
pub(super) fn sender_by(queue: usize, handover: Arc<Handover<TxHalf>>) -> TxRing {
    TxRing::new(queue, handover, Arc::new(Complaints::new().unwrap()), Arc::new(()))
}

/// Where a reader looks. Under loom, of lone frames there is a model of its own: readers of all others read records.
fn heads(layout: Index, index: &Mapping, to: usize) -> Heads<'_> {
    let heads = layout.heads(index, to);
    if cfg!(loom) { Heads { lone: index.words(layout.bytes() - size_of::<lone::Words>()), ..heads } } else { heads }
}

fn memory(bytes: usize) -> Arc<Mapping> {
    Arc::new(Mapping::anonymous(bytes).unwrap())
}
