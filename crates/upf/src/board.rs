//! What a worker, or a dispatcher, shows of itself, for others to read: what its ports have passed, what waits, and how long it was
//! idle. It alone writes, now and then; it never waits for a reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use port::steering::BucketCounts;
use port::{RxCounters, TxCounters};

use crate::elastic::{Sample, Timed};
use crate::side::PortId;

/// The board.
#[derive(Clone, Debug)]
pub struct Board(Arc<Shown>);

#[derive(Debug)]
struct Shown {
    ports: Box<[PortShown]>,
    buffered_packets: AtomicU64,
    idle_ns: AtomicU64,
    /// When the present pause began; 0 while there is none.
    idle_since_ns: AtomicU64,
    /// Polls that found packets, and that found as many as fit a burst.
    polls: AtomicU64,
    full_polls: AtomicU64,
    /// Packets in a poll by the burst size, averaged: the bits of the number.
    fill: AtomicU32,
    /// Rounds that found packets, and the packets in them.
    rounds: AtomicU64,
    round_packets: AtomicU64,
    timed: TimedShown,
    /// Packets of each bucket, where these are counted.
    packets: BucketCounts,
}

/// [`Timed`].
#[derive(Debug, Default)]
struct TimedShown {
    rounds: AtomicU64,
    packets: AtomicU64,
    squares: AtomicU64,
    ns: AtomicU64,
    packets_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct PortShown {
    rx_packets: AtomicU64,
    rx_bytes: AtomicU64,
    tx_packets: AtomicU64,
    tx_bytes: AtomicU64,
    nat_bindings: AtomicU64,
    nat_blocks: AtomicU64,
}

/// Frames of a port, and what source NAT has in use there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Frames received.
    pub rx_packets: u64,
    /// Their octets.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Their octets.
    pub tx_bytes: u64,
    /// Bindings of source NAT.
    pub nat_bindings: u64,
    /// Port blocks that UEs have.
    pub nat_blocks: u64,
}

impl PortCounts {
    /// These and others together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            rx_packets: self.rx_packets + other.rx_packets,
            rx_bytes: self.rx_bytes + other.rx_bytes,
            tx_packets: self.tx_packets + other.tx_packets,
            tx_bytes: self.tx_bytes + other.tx_bytes,
            nat_bindings: self.nat_bindings + other.nat_bindings,
            nat_blocks: self.nat_blocks + other.nat_blocks,
        }
    }
}

impl Board {
    /// A board for a worker with so many ports.
    pub fn new(ports: usize) -> Self {
        Self(Arc::new(Shown {
            ports: (0..ports).map(|_| PortShown::default()).collect(),
            buffered_packets: AtomicU64::new(0),
            idle_ns: AtomicU64::new(0),
            idle_since_ns: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            full_polls: AtomicU64::new(0),
            fill: AtomicU32::new(0),
            rounds: AtomicU64::new(0),
            round_packets: AtomicU64::new(0),
            timed: TimedShown::default(),
            packets: BucketCounts::default(),
        }))
    }

    // The worker's side.

    /// Shows what the queues of all ports have counted, and how many packets wait.
    pub fn publish(&self, ports: impl IntoIterator<Item = (RxCounters, TxCounters)>, buffered_packets: usize) {
        for (shown, (rx, tx)) in self.0.ports.iter().zip(ports) {
            shown.rx_packets.store(rx.packets, Relaxed);
            shown.rx_bytes.store(rx.bytes, Relaxed);
            shown.tx_packets.store(tx.packets, Relaxed);
            shown.tx_bytes.store(tx.bytes, Relaxed);
        }
        self.0.buffered_packets.store(buffered_packets as u64, Relaxed);
    }

    /// Shows what source NAT has in use: bindings and blocks, by port.
    pub fn publish_nat(&self, in_use: impl Iterator<Item = (PortId, (usize, usize))>) {
        for (port, (bindings, blocks)) in in_use {
            let Some(shown) = self.0.ports.get(port.number()) else { continue };
            shown.nat_bindings.store(bindings as u64, Relaxed);
            shown.nat_blocks.store(blocks as u64, Relaxed);
        }
    }

    /// Shows how full polls were.
    pub fn publish_polls(&self, polls: u64, full_polls: u64, fill: f32) {
        self.0.polls.store(polls, Relaxed);
        self.0.full_polls.store(full_polls, Relaxed);
        self.0.fill.store(fill.to_bits(), Relaxed);
    }

    /// Shows how many rounds found packets, how many these were, and what rounds that were timed have cost.
    pub fn publish_rounds(&self, rounds: u64, packets: u64, timed: &Timed) {
        self.0.rounds.store(rounds, Relaxed);
        self.0.round_packets.store(packets, Relaxed);
        let shown = &self.0.timed;
        shown.rounds.store(timed.rounds, Relaxed);
        shown.packets.store(timed.packets, Relaxed);
        shown.squares.store(timed.squares, Relaxed);
        shown.ns.store(timed.ns, Relaxed);
        shown.packets_ns.store(timed.packets_ns, Relaxed);
    }

    /// Packets of each bucket: counted by whoever finds that of a packet first, if anybody needs it.
    #[inline]
    pub fn packets(&self) -> &BucketCounts {
        &self.0.packets
    }

    /// There has been nothing to do since `from_ns`.
    pub fn pauses(&self, from_ns: u64) {
        // 0 says that there is no pause.
        self.0.idle_since_ns.store(from_ns.max(1), Relaxed);
    }

    /// The pause lasted until `now_ns`.
    pub fn paused(&self, now_ns: u64) {
        let lasted = now_ns.saturating_sub(self.0.idle_since_ns.load(Relaxed));
        self.0.idle_ns.store(self.0.idle_ns.load(Relaxed) + lasted, Relaxed);
        self.0.idle_since_ns.store(0, Relaxed);
    }

    // The readers' side.

    /// Frames of the port with this number, in the order of the worker's.
    pub fn port(&self, number: usize) -> PortCounts {
        self.0.ports.get(number).map_or_else(PortCounts::default, |shown| PortCounts {
            rx_packets: shown.rx_packets.load(Relaxed),
            rx_bytes: shown.rx_bytes.load(Relaxed),
            tx_packets: shown.tx_packets.load(Relaxed),
            tx_bytes: shown.tx_bytes.load(Relaxed),
            nat_bindings: shown.nat_bindings.load(Relaxed),
            nat_blocks: shown.nat_blocks.load(Relaxed),
        })
    }

    /// Packets that wait for their UEs.
    pub fn buffered_packets(&self) -> u64 {
        self.0.buffered_packets.load(Relaxed)
    }

    /// The worker's load, until `now_ns`.
    pub fn sample(&self, now_ns: u64) -> Sample {
        Sample {
            at_ns: now_ns,
            idle_ns: self.idle_ns(now_ns),
            polls: self.0.polls.load(Relaxed),
            full_polls: self.0.full_polls.load(Relaxed),
            fill: f32::from_bits(self.0.fill.load(Relaxed)),
            rounds: self.0.rounds.load(Relaxed),
            packets: self.0.round_packets.load(Relaxed),
            timed: self.timed(),
        }
    }

    fn timed(&self) -> Timed {
        let shown = &self.0.timed;
        Timed {
            rounds: shown.rounds.load(Relaxed),
            packets: shown.packets.load(Relaxed),
            squares: shown.squares.load(Relaxed),
            ns: shown.ns.load(Relaxed),
            packets_ns: shown.packets_ns.load(Relaxed),
        }
    }

    /// Whether the worker has nothing to do.
    pub fn is_pausing(&self) -> bool {
        self.0.idle_since_ns.load(Relaxed) != 0
    }

    /// How long the worker has had nothing to do, until `now_ns`.
    pub fn idle_ns(&self, now_ns: u64) -> u64 {
        // In this order a pause that ends meanwhile counts at most once too little.
        let idle = self.0.idle_ns.load(Relaxed);
        match self.0.idle_since_ns.load(Relaxed) {
            0 => idle,
            since => idle + now_ns.saturating_sub(since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_add_up_and_the_present_one_counts() {
        let board = Board::new(2);
        board.pauses(100);
        assert_eq!(board.idle_ns(150), 50);
        board.paused(300);
        assert_eq!((board.idle_ns(400), board.idle_ns(900)), (200, 200));
        board.pauses(1_000);
        assert_eq!(board.idle_ns(1_010), 210);
    }

    #[test]
    fn a_port_that_is_not_there_has_counted_nothing() {
        assert_eq!(Board::new(0).port(3), PortCounts::default());
    }
}
