//! The sending half of a queue pair: one channel to each queue of the peer, chosen by the peer's steering.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::channel::Outlet;
use crate::counters::TxCounters;
use crate::doorbell::Bell;
use crate::handover::{Complaint, Complaints, Fate, Generation, Handover};
use crate::layout::Index;
use crate::mapping::Mapping;
use crate::packet::{Burst, PacketRef, Packets};
use crate::registers::{self, Registers};
use crate::ring::Violation;
use crate::steering::{BucketTable, KEY_WITHIN, Steering};
use crate::sync::full_fence;
use crate::table;
use crate::writer::{Pushed, is_sendable};

/// One generation of the sending half.
#[derive(Debug)]
pub(crate) struct TxHalf {
    pub(crate) generation: Arc<Generation>,
    pub(crate) channels: Vec<TxChannel>,
    /// Own index segment.
    pub(crate) index: Arc<Mapping>,
    pub(crate) layout: Index,
    /// How the peer wants its frames spread.
    pub(crate) steering: Steering,
    pub(crate) table: PeerTable,
    /// Odd within a burst.
    pub(crate) burst: u64,
}

/// Which queue of the peer gets which bucket: its table, and the copy of it that is in use.
#[derive(Debug)]
pub(crate) struct PeerTable {
    segment: Arc<Mapping>,
    /// Epoch of the copy.
    epoch: u64,
    copy: BucketTable,
    broken: Option<Violation>,
}

/// No peer gets so far; one that says so has given all its buckets to queue 0.
const NONE: u64 = u64::MAX;

impl PeerTable {
    pub(crate) fn new(segment: Arc<Mapping>) -> Self {
        Self { segment, epoch: NONE, copy: BucketTable::fixed(1), broken: None }
    }

    /// Whether one is in use.
    #[inline(always)]
    fn is_there(&self) -> bool {
        self.epoch != NONE
    }

    /// Takes another table over. False while the peer has none, or one that cannot be used.
    #[cold]
    fn follow(&mut self, epoch: u64, queues: usize) -> bool {
        if epoch == 0 || self.broken.is_some() {
            return false;
        }
        match table::read(&self.segment, epoch, queues) {
            Ok(copy) => (self.epoch, self.copy) = (epoch, copy),
            Err(violation) => self.broken = Some(violation),
        }
        self.broken.is_none()
    }
}

/// What goes to one queue of the peer.
#[derive(Debug)]
pub(crate) struct TxChannel {
    pub(crate) outlet: Outlet,
    pub(crate) bell: Bell,
    /// The peer's index segment, for its sleep word.
    pub(crate) peer: Arc<Mapping>,
    pub(crate) peer_layout: Index,
}

impl TxChannel {
    /// Wakes the peer if it sleeps, after a fence behind what was published; returns how many doorbells were rung.
    #[inline(always)]
    fn ring(&mut self) -> u64 {
        let word = self.peer_layout.sleep(&self.peer).load(Ordering::Relaxed);
        u64::from(self.bell.answer(word))
    }
}

/// The sending half of a queue pair over shared memory.
pub struct TxRing {
    half: Option<TxHalf>,
    queue: usize,
    counters: TxCounters,
    handover: Arc<Handover<TxHalf>>,
    seen: u64,
    complaints: Arc<Complaints>,
    registers: Registers,
    /// Keeps the port attached.
    _port: Arc<dyn Any + Send + Sync>,
}

impl TxRing {
    pub(crate) fn new(
        queue: usize,
        handover: Arc<Handover<TxHalf>>,
        complaints: Arc<Complaints>,
        port: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let (counters, registers) = (TxCounters::default(), Registers::here());
        Self { half: None, queue, counters, handover, seen: 0, complaints, registers, _port: port }
    }

    /// Sends the packets in order, publishes them, and wakes the peer if it sleeps. Returns how many were accepted.
    #[inline]
    pub fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        registers::dispatch!(self.registers, self.send_all(packets))
    }

    #[inline(always)]
    fn send_all(&mut self, packets: &[PacketRef<'_>]) -> usize {
        let sent = self.send_unless_steered(
            packets.len(),
            #[inline(always)]
            |outlet| Some(outlet.push_burst(packets)),
        );
        sent.unwrap_or_else(|| self.send_by_table(packets))
    }

    /// As [`TxRing::send`], for the packets of a burst from number `from` on. What came by a zero-copy link and goes as it came by
    /// another costs least this way.
    #[inline]
    pub fn send_burst(&mut self, burst: &Burst<'_>, from: usize) -> usize {
        registers::dispatch!(self.registers, self.send_burst_all(burst, from))
    }

    #[inline(always)]
    fn send_burst_all(&mut self, burst: &Burst<'_>, from: usize) -> usize {
        let (lent, slots) = (burst.lent_from(from), burst.slots_from(from));
        let sent = self.send_unless_steered(
            burst.len().saturating_sub(from),
            #[inline(always)]
            |outlet| match (lent, &slots) {
                (Some((words, place)), _) => outlet.push_lent(words, place),
                (None, Some(slots)) => outlet.push_slots(slots),
                (None, None) => None,
            },
        );
        sent.unwrap_or_else(|| burst.send_views(from, |packets| self.send(packets)))
    }

    /// Sends so many packets by the only channel there is. None, and nothing sent, where that is not possible.
    #[inline(always)]
    fn send_unless_steered(&mut self, count: usize, push: impl FnOnce(&mut Outlet) -> Option<Pushed>) -> Option<usize> {
        self.handover.enter();
        if self.handover.version() != self.seen {
            self.look_for_changes();
        }
        let accepted = match &mut self.half {
            Some(half) => half.send_unless_steered(push, &mut self.counters),
            None => None,
        };
        self.handover.leave();
        Some(self.sent(accepted?, count))
    }

    /// Sends where the peer has several queues, has not shown its first table, or is not there. Apart, so that it costs those who send
    /// to one queue nothing.
    #[inline(never)]
    fn send_by_table(&mut self, packets: &[PacketRef<'_>]) -> usize {
        self.handover.enter();
        let accepted = registers::dispatch!(self.registers, self.spread(packets));
        self.handover.leave();
        self.sent(accepted, packets.len())
    }

    #[inline(always)]
    fn spread(&mut self, packets: &[PacketRef<'_>]) -> usize {
        loop {
            if self.handover.version() != self.seen {
                self.look_for_changes();
            }
            let Some(half) = &mut self.half else {
                self.counters.no_peer += packets.len() as u64;
                return 0;
            };
            if half.channels.len() == 1 {
                return half.send_all(packets, &mut self.counters);
            }
            let is_newest = || self.handover.version() == self.seen;
            if let Some(accepted) = half.send_by_bucket(packets, &mut self.counters, is_newest) {
                return accepted;
            }
        }
    }

    /// Ends a burst of which so many packets were accepted.
    #[inline(always)]
    fn sent(&mut self, accepted: usize, packets: usize) -> usize {
        if accepted < packets {
            self.counters.refused += (packets - accepted) as u64;
            self.check_peer();
        }
        if let Some(half) = &self.half {
            half.publish_counters(&self.counters);
        }
        accepted
    }

    #[cold]
    fn look_for_changes(&mut self) {
        self.seen = self.handover.version();
        while let Some(next) = self.handover.next() {
            self.replace(Some(next));
        }
        if self.half.as_ref().is_some_and(|half| half.generation.fate() != Fate::Present) {
            self.replace(None);
        }
    }

    fn replace(&mut self, next: Option<TxHalf>) {
        if let Some(mut old) = std::mem::replace(&mut self.half, next) {
            old.close();
            self.handover.retire(old);
            self.complaints.ring();
        }
    }

    /// A reader whose tail or table makes no sense gets nothing more.
    #[cold]
    fn check_peer(&mut self) {
        let Some(half) = &self.half else { return };
        let of_tails = half.channels.iter().find_map(|channel| channel.outlet.broken());
        let Some(violation) = of_tails.or(half.table.broken) else { return };
        self.complaints.add(Complaint { generation: half.generation.number, queue: self.queue as u16, violation });
        self.replace(None);
    }

    /// Publishes a burst and does not end it: what is left of a sender that is killed within one.
    #[cfg(test)]
    pub(crate) fn send_and_die(&mut self, packets: &[PacketRef<'_>]) {
        let half = self.half.as_mut().unwrap();
        half.enter_burst();
        assert!(half.follow_table());
        assert_eq!(half.spread(packets, &mut self.counters), packets.len());
        half.publish();
    }

    /// What this half has counted.
    pub fn counters(&self) -> TxCounters {
        self.counters
    }
}

impl Drop for TxRing {
    /// Tells the peer that nothing more comes.
    fn drop(&mut self) {
        self.handover.abandon().iter_mut().for_each(TxHalf::close);
        if let Some(half) = &mut self.half {
            half.close();
        }
        // Where it panicked within a burst, too, nobody waits for its end.
        self.handover.leave();
    }
}

impl TxHalf {
    /// To a peer with one queue. Its first table says that it has this generation: before that it might never have it, if the
    /// broker dies before it is told.
    #[inline(always)]
    fn send_all(&mut self, packets: &[PacketRef<'_>], counters: &mut TxCounters) -> usize {
        if !self.table.is_there() && !self.follow_table() {
            return 0;
        }
        let sent = self.send_unless_steered(
            #[inline(always)]
            |outlet| Some(outlet.push_burst(packets)),
            counters,
        );
        sent.unwrap_or(0)
    }

    /// To a peer with one queue and a table. None, and nothing sent, where there is no such peer, or it cannot be pushed so.
    #[inline(always)]
    fn send_unless_steered(
        &mut self,
        push: impl FnOnce(&mut Outlet) -> Option<Pushed>,
        counters: &mut TxCounters,
    ) -> Option<usize> {
        let [channel] = &mut self.channels[..] else { return None };
        if !self.table.is_there() {
            return None;
        }
        let pushed = push(&mut channel.outlet)?;
        if channel.outlet.publish() {
            // As in `ring`.
            full_fence();
            counters.doorbells += channel.ring();
        }
        Some(counters.count(pushed))
    }

    /// One burst by the peer's table. None, and nothing sent, if there is another generation: once this function has said that it
    /// has one, no burst begins in those before, whose tables are not changed any more where the peer is a pool.
    #[inline(always)]
    fn send_by_bucket(
        &mut self,
        packets: &[PacketRef<'_>],
        counters: &mut TxCounters,
        is_newest: impl Fn() -> bool,
    ) -> Option<usize> {
        self.enter_burst();
        if !is_newest() {
            self.leave_burst();
            return None;
        }
        let accepted = if self.follow_table() { self.spread(packets, counters) } else { 0 };
        let news = self.publish();
        self.leave_burst();
        if news {
            counters.doorbells += self.ring();
        }
        Some(accepted)
    }

    /// From here on whoever changes the table waits for the end of the burst, or the burst uses the new table.
    #[inline]
    fn enter_burst(&mut self) {
        self.burst = self.burst.wrapping_add(1);
        self.layout.burst(&self.index).store(self.burst, Ordering::Relaxed);
        full_fence();
    }

    #[inline]
    fn leave_burst(&mut self) {
        self.burst = self.burst.wrapping_add(1);
        self.layout.burst(&self.index).store(self.burst, Ordering::Release);
    }

    /// Whether there is a table that can be used.
    #[inline(always)]
    fn follow_table(&mut self) -> bool {
        let epoch = table::epoch(&self.table.segment);
        epoch == self.table.epoch || self.begin_epoch(epoch)
    }

    /// Shows on all channels where the epoch begins, before its table is used.
    #[cold]
    fn begin_epoch(&mut self, epoch: u64) -> bool {
        if !self.table.follow(epoch, self.channels.len()) {
            return false;
        }
        for (peer, channel) in self.channels.iter().enumerate() {
            self.layout.mark(&self.index, peer).store(channel.outlet.published(), Ordering::Relaxed);
        }
        self.layout.epoch(&self.index).store(epoch, Ordering::Release);
        true
    }

    fn spread(&mut self, packets: &[PacketRef<'_>], counters: &mut TxCounters) -> usize {
        let bytes = packets.bytes() / self.channels.len();
        self.channels.iter_mut().for_each(|channel| channel.outlet.expect(bytes));
        let mut pushed = Pushed::default();
        for packet in packets {
            if !is_sendable(packet.len()) {
                pushed.discarded += 1;
                continue;
            }
            let queue = self.table.copy.queue(bucket(self.steering, packet));
            if !self.channels[queue].outlet.push(packet) {
                break;
            }
            pushed.packets += 1;
            pushed.bytes += packet.len() as u64;
        }
        counters.count(pushed)
    }

    /// Publishes all channels. True if there was anything.
    #[inline(always)]
    fn publish(&mut self) -> bool {
        let mut news = false;
        for channel in &mut self.channels {
            news |= channel.outlet.publish();
        }
        news
    }

    /// Wakes those who sleep, after something was published; returns how many doorbells were rung.
    #[inline(always)]
    fn ring(&mut self) -> u64 {
        // Publish before reading the sleep words; see `doorbell`.
        full_fence();
        self.channels.iter_mut().map(TxChannel::ring).sum()
    }

    /// Marks all channels as complete, and wakes the peer to see it.
    pub(crate) fn close(&mut self) {
        self.publish();
        for (peer, channel) in self.channels.iter().enumerate() {
            self.layout.close(&self.index, peer, channel.outlet.published());
        }
        self.ring();
    }

    #[inline(always)]
    fn publish_counters(&self, counters: &TxCounters) {
        let TxCounters { packets, bytes, refused, no_peer, doorbells, discarded } = *counters;
        let words = self.layout.tx_counters(&self.index).iter();
        let values = [packets, bytes, refused, no_peer, doorbells, discarded];
        words.zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }
}

/// The bucket of a packet whose head need not hold all of its headers.
fn bucket(steering: Steering, packet: &PacketRef<'_>) -> u8 {
    if packet.head.len() >= KEY_WITHIN || packet.rest.is_empty() {
        return steering.bucket(packet.head);
    }
    let mut start = [0; KEY_WITHIN];
    let head = packet.head.len();
    let mut rest = packet.rest;
    rest.truncate(KEY_WITHIN - head);
    start[..head].copy_from_slice(packet.head);
    rest.copy_to(&mut start[head..]);
    steering.bucket(&start[..head + rest.len()])
}
