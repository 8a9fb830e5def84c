//! Ports over shared memory: the trait on `vport`'s queues.

use std::os::fd::BorrowedFd;

use vport::client::{AttachError, Coming, attach_as};
use vport::packet::{Burst, PacketRef};
use vport::{RxRing, TxRing};

use crate::{
    Control, Held, OpenError, OpenOptions, Port, QueuePair, RxCounters, RxQueue, Steering, Succession, TxCounters,
    TxQueue,
};

pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<Port, OpenError> {
    let coming = match options.succession {
        Succession::No => Coming::Alone,
        Succession::AtOnce | Succession::WhenReady => Coming::ToSucceed,
    };
    let attached = attach_as(coming, &options.socket, name, options.timeout, options.peek_bytes);
    let attached = attached.map_err(|error| match error {
        AttachError::NoBroker(reason) => OpenError::NoBroker { socket: options.socket.clone(), reason },
        AttachError::Refused(reason) => OpenError::Refused { port: name.to_owned(), reason },
        AttachError::Io(error) => OpenError::Io(error),
    })?;
    if options.succession == Succession::AtOnce {
        attached.succession.take_over();
    }
    let pair = |(rx, tx)| QueuePair { rx: Box::new(rx), tx: Box::new(tx) };
    Ok(Port {
        info: attached.info,
        queues: attached.queues.into_iter().map(pair).collect(),
        control: Control(Some((attached.reporter, attached.succession))),
        steering: Some(attached.steering),
    })
}

impl RxQueue for RxRing {
    fn recv(&mut self) -> Burst<'_> {
        Self::recv(self)
    }

    fn set_burst_max(&mut self, packets: usize) {
        Self::set_burst_max(self, packets);
    }

    fn recv_held(&mut self, steering: Steering) -> Option<Held<'_>> {
        Self::recv_held(self, steering)
    }

    fn give_back(&mut self, position: u64) {
        Self::give_back(self, position);
    }

    fn arm(&mut self) -> bool {
        Self::arm(self)
    }

    fn disarm(&mut self) {
        Self::disarm(self);
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Self::poll_fds(self)
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

impl TxQueue for TxRing {
    fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        Self::send(self, packets)
    }

    fn send_burst(&mut self, burst: &Burst<'_>, from: usize) -> usize {
        Self::send_burst(self, burst, from)
    }

    fn counters(&self) -> TxCounters {
        Self::counters(self)
    }
}
