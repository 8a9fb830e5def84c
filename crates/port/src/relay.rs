//! Channels between threads of one process, the receiving end a queue as any other.

use std::os::fd::BorrowedFd;

pub use vport::relay::{Ford, Outflow, RelayRx, RelayTx, relay};

use crate::{Burst, RxCounters, RxQueue};

/// Whoever sends wakes the receiver by other means.
impl RxQueue for RelayRx {
    fn recv(&mut self) -> Burst<'_> {
        Self::recv(self)
    }

    fn arm(&mut self) -> bool {
        !self.look()
    }

    fn disarm(&mut self) {}

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }

    fn is_over(&self) -> bool {
        Self::is_over(self)
    }

    fn counters(&self) -> RxCounters {
        Self::counters(self)
    }
}
