//! The pipeline: a dispatcher receives for all workers, and hands packets to them by rings. A worker does the rest as it does where it
//! receives by itself: to it, a ring from the dispatcher is a queue like any other.
//!
//! ```text
//! n3 ─┐              ┌─ ring ─> worker 0 ─> its queue pair of each port
//! n6 ─┼─ dispatcher ─┤
//! n9 ─┘   by bucket  └─ ring ─> worker 1 ─> its queue pair of each port
//! ```
//!
//! With a sender, workers have rings to it in place of queue pairs of their own, and ports need one each:
//!
//! ```text
//! worker 0 ─> a ring for each port ─┐          ┌─> n3
//!                                   ├─ sender ─┼─> n6
//! worker 1 ─> a ring for each port ─┘          └─> n9
//! ```
//!
//! Where a port allows that, the dispatcher copies nothing: it tells a worker where a packet lies, and gives that back to the port's
//! peer when the worker has dealt with it.
//!
//! - `chart` says which worker gets the packets of which bucket.
//! - `dispatcher` is the thread; `tenure` is what it holds of a port.
//! - `sender` is the thread that sends, where there is one.

mod chart;
mod dispatcher;
mod sender;
mod tenure;

pub(crate) use chart::Chart;
pub use dispatcher::Dispatcher;
pub(crate) use dispatcher::Intake;
pub(crate) use sender::Outbound;
pub use sender::Sender;

use std::io;

use port::relay::{Ford, RelayRx, RelayTx, relay};

/// Bytes of a ring from the dispatcher to a worker. It holds what comes while a worker is put aside for a moment; in one that fits a
/// core's own caches the dispatcher writes no faster, but slower.
const RELAY_RING: u64 = 2 << 20;

/// What connects the dispatcher with one worker: a ring for each port.
pub(crate) fn relays(ports: usize, peek: usize) -> io::Result<(Vec<RelayTx>, Vec<RelayRx>, Vec<Ford>)> {
    let ends: Vec<_> = (0..ports).map(|_| relay(RELAY_RING, peek)).collect::<io::Result<_>>()?;
    let (tx, rx): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    let fords = rx.iter().map(RelayRx::ford).collect();
    Ok((tx, rx, fords))
}
