//! What the two halves of a queue pair count.

/// Counters of a receiving half.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RxCounters {
    /// Packets received.
    pub packets: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Times that the port was looked at for packets.
    pub polls: u64,
    /// Times that there were none.
    pub empty_polls: u64,
    /// Packets discarded because the peer broke a rule.
    pub invalid: u64,
    /// Times that the receiver slept.
    pub sleeps: u64,
}

/// Counters of a sending half.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TxCounters {
    /// Packets accepted.
    pub packets: u64,
    /// Bytes accepted.
    pub bytes: u64,
    /// Packets refused because the peer's ring was full.
    pub refused: u64,
    /// Packets refused because there was no peer.
    pub no_peer: u64,
    /// Times that the peer was woken.
    pub doorbells: u64,
    /// Packets taken and discarded: empty, or longer than KAISTA_FRAME_MAX.
    pub discarded: u64,
}
