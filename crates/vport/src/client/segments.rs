//! From descriptors to queue halves: maps the segments of a generation, and makes the channels that run over them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::control::{Control, Halves, Lost, ROOM_WITHIN};
use crate::arena::Entries;
use crate::channel::{Inlet, Outlet};
use crate::doorbell::{Bell, Doorbell};
use crate::giver::Giver;
use crate::handover::Generation;
use crate::home::Living;
use crate::latency::Histogram;
use crate::layout::{Exchange, Index, TABLE_BYTES};
use crate::mapping::Mapping;
use crate::reader::Reader;
use crate::rx::{RxChannel, RxHalf};
use crate::segment;
use crate::source::Mapped;
use crate::stake::Stake;
use crate::steering::Steering;
use crate::sync::fence_threads;
use crate::taker::Taker;
use crate::tx::{PeerTable, TxChannel, TxHalf};
use crate::wire::FDS_PER_QUEUE;
use crate::writer::Writer;

pub(super) struct Own {
    pub(super) generation: Arc<Generation>,
    /// Until when the broker's question whether they are mapped may stay unanswered. None once it is answered.
    pub(super) answer_by: Option<Instant>,
    /// In an arena, where the link is zero-copy.
    pub(super) stake: Option<Arc<Stake>>,
    queues: Vec<OwnQueue>,
    /// The records of the peer's queues, mapped for writing; none where that was not to be.
    pub(super) shared: Vec<Mapping>,
    /// None of a member of a pool: the broker has that table.
    table: Option<Arc<Mapping>>,
}

struct OwnQueue {
    index: Arc<Mapping>,
    records: Arc<Mapping>,
    doorbell: OwnedFd,
}

pub(super) struct Peer {
    queues: Vec<PeerQueue>,
    table: Arc<Mapping>,
    steering: Steering,
}

struct PeerQueue {
    index: Arc<Mapping>,
    records: Arc<Mapping>,
    bell: OwnedFd,
}

impl Control {
    pub(super) fn map_own(&mut self, generation: u64, records_bytes: usize, fds: Vec<OwnedFd>) -> Result<Own, Lost> {
        let index_bytes = Index::new(self.peer_queues).bytes();
        let stake = self.stake.take().filter(|stake| stake.generation() == generation);
        self.check_records(records_bytes, self.peer_queues, stake.is_some())?;
        if stake.is_some() && self.entries().is_none() {
            return Err(Lost);
        }
        let (triples, table) = sort(fds, self.boxes.len())?;
        if table.is_some() != self.place.is_none() {
            return Err(Lost);
        }
        let table = table.map(|table| Mapping::writable(table.as_fd(), TABLE_BYTES).map(Arc::new)).transpose()?;
        let queues = triples.into_iter().map(|[index, records, doorbell]| {
            Ok(OwnQueue {
                index: Arc::new(Mapping::writable(index.as_fd(), index_bytes)?),
                records: Arc::new(Mapping::writable(records.as_fd(), records_bytes)?),
                doorbell,
            })
        });
        Ok(Own {
            generation: Generation::new(generation),
            answer_by: Some(Instant::now() + ROOM_WITHIN),
            stake,
            queues: queues.collect::<io::Result<_>>()?,
            shared: Vec::new(),
            table,
        })
    }

    /// Maps the peer's records for writing, though nothing is ever written there: a processor (Zen 4) that reads a line of a page which
    /// it can write takes it for itself where it can, and its writer gets it back sooner. None where the peer has seen to it that
    /// this is not possible: they are read all the same.
    pub(super) fn map_shared(&self, records_bytes: usize, fds: Vec<OwnedFd>) -> Result<Vec<Mapping>, Lost> {
        self.check_records(records_bytes, self.end_queues(), false)?;
        if fds.len() != self.peer_queues {
            return Err(Lost);
        }
        let mapped = fds.iter().map(|records| Mapping::writable(records.as_fd(), records_bytes));
        Ok(mapped.collect::<io::Result<_>>().unwrap_or_default())
    }

    /// With what [`Control::map_shared`] has mapped, where that is of the same size.
    pub(super) fn map_peer(
        &self,
        records_bytes: usize,
        steering: Steering,
        zero_copy: bool,
        shared: Vec<Mapping>,
        fds: Vec<OwnedFd>,
    ) -> Result<Peer, Lost> {
        let index_bytes = self.peer_layout().bytes();
        self.check_records(records_bytes, self.end_queues(), zero_copy)?;
        let (triples, table) = sort(fds, self.peer_queues)?;
        let table = table.ok_or(Lost)?;
        let mut shared = shared.into_iter().filter(|mapping| mapping.bytes() == records_bytes);
        let queues = triples.into_iter().map(|[index, records, bell]| {
            segment::check(index.as_fd(), index_bytes).map_err(|_| Lost)?;
            segment::check(records.as_fd(), records_bytes).map_err(|_| Lost)?;
            let records = match shared.next() {
                Some(mapping) => mapping,
                None => Mapping::read_only(records.as_fd(), records_bytes)?,
            };
            Ok(PeerQueue {
                index: Arc::new(Mapping::read_only(index.as_fd(), index_bytes)?),
                records: Arc::new(records),
                bell,
            })
        });
        let queues = queues.collect::<Result<_, Lost>>()?;
        segment::check(table.as_fd(), TABLE_BYTES).map_err(|_| Lost)?;
        let table = Arc::new(Mapping::read_only(table.as_fd(), TABLE_BYTES)?);
        Ok(Peer { queues, table, steering })
    }

    fn check_records(&self, bytes: usize, rings: usize, zero_copy: bool) -> Result<(), Lost> {
        let ring_bytes = self.ring.size() as usize;
        let needed = if zero_copy {
            Exchange::new(ring_bytes, rings).bytes()
        } else {
            crate::layout::records_bytes(ring_bytes, rings, segment::PAGE)
        };
        if bytes < needed { Err(Lost) } else { Ok(()) }
    }

    /// Gives every queue its halves of the new generation.
    pub(super) fn hand_over(&mut self, own: Own, peer: &Peer) -> Result<(), Lost> {
        let newest = Living {
            generation: own.generation.clone(),
            table: own.table.clone(),
            indices: own.queues.iter().map(|queue| queue.index.clone()).collect(),
            peers: peer.queues.iter().map(|queue| queue.index.clone()).collect(),
            first: self.first_queue(),
            layouts: (Index::new(self.peer_queues), self.peer_layout()),
        };
        let halves = own.queues.into_iter().enumerate().map(|(queue, own_queue)| {
            let sending = self.tx_half(&own.generation, own.stake.as_ref(), queue, &own_queue, peer)?;
            Ok((self.rx_half(&own.generation, own.stake.as_ref(), queue, own_queue, peer), sending))
        });
        let halves: Vec<_> = halves.collect::<io::Result<_>>()?;
        let home = self.home.clone();
        home.renew(newest, |epoch| {
            let mut halves = halves;
            halves.iter_mut().for_each(|(receiving, _)| receiving.epoch = epoch);
            if self.waits_to_inherit { self.waiting.push(halves) } else { self.deliver(halves) }
        });
        self.current = Some(own.generation);
        if !self.waits_to_inherit {
            self.await_bursts();
        }
        Ok(())
    }

    /// Whoever had the port before is gone.
    pub(super) fn inherit(&mut self) {
        self.waits_to_inherit = false;
        for halves in std::mem::take(&mut self.waiting) {
            self.deliver(halves);
        }
        self.await_bursts();
        self.shared.has_port.store(true, Ordering::Release);
    }

    /// As [`Control::inherit`], of a broker that came after the one which gave it the port. Where it has not the generation still,
    /// somebody else may have had one since, and what was sent in that which waits is lost.
    pub(super) fn inherit_late(&mut self, has_generation: bool) {
        if !has_generation {
            let overtaken = std::mem::take(&mut self.waiting).into_iter().flatten();
            overtaken.for_each(|(_, mut sending)| sending.close());
        }
        self.inherit();
    }

    /// What was delivered last is what queues will use, unless they are within a burst.
    fn await_bursts(&mut self) {
        // Without such a fence channels are closed when their queue next sends.
        let all = if fence_threads() { self.boxes.len() } else { 0 };
        self.unclosed = (0..all).collect();
    }

    fn deliver(&self, halves: Vec<Halves>) {
        for ((receiving, sending), (rx, tx)) in halves.into_iter().zip(&self.boxes) {
            // What was not begun is closed here, so that the peer does not wait for it.
            let unused = std::iter::from_fn(|| tx.next()).collect::<Vec<_>>();
            unused.into_iter().chain(tx.deliver(sending)).for_each(|mut unused| unused.close());
            drop(rx.deliver(receiving));
        }
    }

    fn rx_half(
        &self,
        generation: &Arc<Generation>,
        stake: Option<&Arc<Stake>>,
        queue: usize,
        own: OwnQueue,
        peer: &Peer,
    ) -> RxHalf {
        let queue = self.first_queue() + queue;
        let channels = peer.queues.iter().enumerate().map(|(from, peer)| {
            let inlet = self.inlet(stake, (queue, &own), (from, peer));
            RxChannel::new(inlet, from, peer.index.clone(), self.peer_layout(), queue)
        });
        RxHalf {
            generation: generation.clone(),
            channels: channels.collect(),
            next_channel: 0,
            index: own.index,
            layout: Index::new(self.peer_queues),
            doorbell: Doorbell::new(own.doorbell),
            epoch: 0,
        }
    }

    /// What queue `queue` of the end receives from queue `from` of the peer.
    fn inlet(
        &self,
        stake: Option<&Arc<Stake>>,
        (queue, own): (usize, &OwnQueue),
        (from, peer): (usize, &PeerQueue),
    ) -> Inlet {
        let peer_layout = self.peer_layout();
        let latency = Histogram::new(Index::new(self.peer_queues), &own.index);
        let Some((stake, entries)) = stake.and_then(|stake| Some((stake, self.entries()?))) else {
            let offset = queue * self.ring.size() as usize;
            let source =
                Mapped::new(self.ring, &peer.records, offset, &peer.index, |index| peer_layout.heads(index, queue));
            return Inlet::Records { reader: Reader::new(self.ring).with_latency(latency), source };
        };
        let (theirs, ours) = (self.exchange(self.end_queues()), self.exchange(self.peer_queues));
        let taker = Taker::new(
            entries,
            stake.view(),
            stake.ids,
            (&peer.records, theirs.descriptors(queue)),
            (&peer.index, |index: &Mapping| peer_layout.heads(index, queue)),
            (&own.records, ours.returns(from)),
        );
        Inlet::Buffers(taker.with_latency(latency))
    }

    /// What queue `queue` of the end sends to queue `to` of the peer.
    fn outlet(
        &self,
        stake: Option<&Arc<Stake>>,
        (queue, own): (usize, &OwnQueue),
        (to, peer): (usize, &PeerQueue),
    ) -> Outlet {
        let (layout, peer_layout) = (Index::new(self.peer_queues), self.peer_layout());
        let Some((stake, entries)) = stake.and_then(|stake| Some((stake, self.entries()?))) else {
            return Outlet::Records(Writer::new(
                self.ring,
                (&own.records, to * self.ring.size() as usize),
                (&own.index, |index: &Mapping| layout.heads(index, to)),
                (&peer.index, |index: &Mapping| peer_layout.tail(index, queue)),
            ));
        };
        let (theirs, ours) = (self.exchange(self.end_queues()), self.exchange(self.peer_queues));
        Outlet::Buffers(Giver::new(
            entries,
            stake.view(),
            stake.ids,
            (&own.records, ours.descriptors(to)),
            (&own.index, |index: &Mapping| layout.heads(index, to)),
            (&peer.records, theirs.returns(queue)),
            (&peer.index, |index: &Mapping| peer_layout.tail(index, queue)),
        ))
    }

    /// Number that the first queue has among those of its end.
    fn first_queue(&self) -> usize {
        self.place.map_or(0, |place| usize::from(place.first_queue))
    }

    /// Queues of this end, as its peer sees it.
    fn end_queues(&self) -> usize {
        self.place.map_or(self.boxes.len(), |place| usize::from(place.queues))
    }

    /// The layout of the peer's index segments.
    fn peer_layout(&self) -> Index {
        Index::new(self.end_queues())
    }

    /// The layout of records of a port whose peer has `peer_queues` queues, on a zero-copy link.
    fn exchange(&self, peer_queues: usize) -> Exchange {
        Exchange::new(self.ring.size() as usize, peer_queues)
    }

    fn entries(&self) -> Option<Entries> {
        Entries::new(self.exchange(1).buffers as u64)
    }

    fn tx_half(
        &self,
        generation: &Arc<Generation>,
        stake: Option<&Arc<Stake>>,
        queue: usize,
        own: &OwnQueue,
        peer: &Peer,
    ) -> io::Result<TxHalf> {
        let (layout, peer_layout) = (Index::new(self.peer_queues), self.peer_layout());
        let channels = peer.queues.iter().enumerate().map(|(to, peer)| {
            let outlet = self.outlet(stake, (self.first_queue() + queue, own), (to, peer));
            let bell = Bell::new(peer.bell.try_clone()?);
            Ok(TxChannel { outlet, bell, peer: peer.index.clone(), peer_layout })
        });
        Ok(TxHalf {
            generation: generation.clone(),
            channels: channels.collect::<io::Result<_>>()?,
            index: own.index.clone(),
            layout,
            steering: peer.steering,
            table: PeerTable::new(peer.table.clone()),
            burst: 0,
        })
    }
}

/// The descriptors of `count` queues, and that of the table if there is one.
fn sort(mut fds: Vec<OwnedFd>, count: usize) -> Result<(Vec<[OwnedFd; FDS_PER_QUEUE]>, Option<OwnedFd>), Lost> {
    let table = if fds.len() == count * FDS_PER_QUEUE + 1 { fds.pop() } else { None };
    if fds.len() != count * FDS_PER_QUEUE {
        return Err(Lost);
    }
    let mut fds = fds.into_iter();
    Ok((std::iter::from_fn(|| Some([fds.next()?, fds.next()?, fds.next()?])).collect(), table))
}
