//! Counters of the two halves of a queue pair. Private to the worker that counts.

use crate::writer::Pushed;

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
    /// Packets taken and discarded: no frame has their length.
    pub discarded: u64,
}

impl TxCounters {
    /// Counts one send; returns how many packets the caller is rid of.
    #[inline(always)]
    pub(crate) fn count(&mut self, pushed: Pushed) -> usize {
        self.packets += u64::from(pushed.packets);
        self.bytes += pushed.bytes;
        self.discarded += u64::from(pushed.discarded);
        pushed.done()
    }
}
