//! The port trait and its backends behind one `open`.

use std::os::fd::BorrowedFd;

pub use vport::packet::{BURST_MAX, Burst, FRAME_MAX, HEAD_MAX, HEADROOM, PacketMut, PacketRef, Rest};

/// The receiving half of a queue pair. One thread uses it.
pub trait RxQueue: Send {
    /// Takes up to [`BURST_MAX`] packets, and gives back to the sender what the last call returned. Empty when nothing
    /// waits. Never blocks, allocates or makes a system call while packets flow (kernel backends: one call a packet).
    fn recv(&mut self) -> Burst<'_>;

    /// Announces that the caller will sleep. True: nothing waits, sleep on [`RxQueue::poll_fds`]. False: receive first.
    fn arm(&mut self) -> bool;

    /// Takes the announcement back after waking, and drains the doorbell.
    fn disarm(&mut self);

    /// The file descriptors of which one becomes readable when an armed queue has something to do.
    fn poll_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// What this queue has counted.
    fn counters(&self) -> RxCounters;
}

/// The sending half of a queue pair. One thread uses it.
pub trait TxQueue: Send {
    /// Sends the packets in order and publishes them at once. Returns how many were accepted; the caller keeps those
    /// refused because the peer is full, slow or away.
    fn send(&mut self, packets: &[PacketRef<'_>]) -> usize;

    /// What this queue has counted.
    fn counters(&self) -> TxCounters;
}

/// Counters of a receiving half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxCounters {
    /// Packets delivered.
    pub packets: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// Calls of `recv`.
    pub polls: u64,
    /// Calls of `recv` that found nothing.
    pub empty_polls: u64,
    /// Packets discarded because a peer broke the rules (bad length, wrong bucket).
    pub invalid: u64,
    /// Times the caller slept.
    pub sleeps: u64,
}

/// Counters of a sending half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounters {
    /// Packets accepted.
    pub packets: u64,
    /// Bytes accepted.
    pub bytes: u64,
    /// Packets refused, peer full.
    pub refused: u64,
    /// Packets refused, no peer attached.
    pub no_peer: u64,
    /// Doorbells rung.
    pub doorbells: u64,
}
