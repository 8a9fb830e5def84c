//! The plain forwarder: a function on the public port API that does as little as a function can.
//!
//! With one port it sends every frame back where it came from; with two, out of the other one. Ethernet addresses are
//! swapped on request. It is what the UPF's work is measured against, and what a link is measured with.

use port::pool::Member;
use port::{BURST_MAX, Buckets, LONG_BURST_MAX, PacketRef, QueuePair, RxCounters, RxQueue, TxCounters, TxQueue};

/// What to do with the Ethernet addresses of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Addresses {
    /// Source becomes destination, and the other way round.
    Swap,
    /// As they are.
    Keep,
}

/// One worker of the forwarder, over one queue pair of one or two ports.
pub struct Forwarder {
    rx: Vec<Box<dyn RxQueue>>,
    tx: Vec<Box<dyn TxQueue>>,
    addresses: Addresses,
    retries: u32,
    refused: u64,
    member: Option<Member>,
}

impl Forwarder {
    /// A forwarder within one port.
    pub fn within(port: QueuePair, addresses: Addresses) -> Self {
        Self::new(vec![port.rx], vec![port.tx], addresses)
    }

    /// A forwarder between two ports.
    pub fn between(first: QueuePair, second: QueuePair, addresses: Addresses) -> Self {
        Self::new(vec![first.rx, second.rx], vec![second.tx, first.tx], addresses)
    }

    /// What `rx[i]` receives is sent on by `tx[i]`, in bursts as long as ports have them.
    fn new(mut rx: Vec<Box<dyn RxQueue>>, tx: Vec<Box<dyn TxQueue>>, addresses: Addresses) -> Self {
        rx.iter_mut().for_each(|rx| rx.set_burst_max(LONG_BURST_MAX));
        Self { rx, tx, addresses, retries: 0, refused: 0, member: None }
    }

    /// Gives buckets away and takes them as this member of a pool, whose queues its ports are.
    pub fn as_member(mut self, member: Member) -> Self {
        self.member = Some(member);
        self
    }

    /// Offers what a port refuses this many times again before it is discarded.
    pub fn retrying(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Forwards one burst from every port, and returns the number of packets found. The same code for whoever calls it, so that figures
    /// of different programs stand beside each other.
    #[inline(never)]
    pub fn turn(&mut self) -> usize {
        let mut found = 0;
        for (rx, tx) in self.rx.iter_mut().zip(&mut self.tx) {
            let (received, refused) = forward(rx.as_mut(), tx.as_mut(), self.addresses, self.retries);
            found += received;
            self.refused += refused;
        }
        if let Some(member) = &mut self.member {
            member.settle(&mut Stateless);
        }
        found
    }

    /// Sends `count` frames of `len` bytes out of port `port`, to circulate from then on. Returns how many it accepted.
    pub fn send_first(&mut self, port: usize, count: usize, len: usize) -> usize {
        let frame = vec![0x42; len];
        let out = self.tx.len() - 1 - port;
        let mut left = count;
        while left > 0 {
            let burst = [PacketRef::from_slice(&frame); BURST_MAX];
            let sent = self.tx[out].send(&burst[..left.min(BURST_MAX)]);
            if sent == 0 {
                break;
            }
            left -= sent;
        }
        count - left
    }

    /// Counters of the receiving halves, port by port.
    pub fn received(&self) -> Vec<RxCounters> {
        self.rx.iter().map(|rx| rx.counters()).collect()
    }

    /// Counters of the sending halves, in the order of the ports that were received from.
    pub fn sent(&self) -> Vec<TxCounters> {
        self.tx.iter().map(|tx| tx.counters()).collect()
    }

    /// Packets discarded because the port to send them to did not take them.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The receiving halves, to look at.
    pub fn receiving(&self) -> impl Iterator<Item = &dyn RxQueue> {
        self.rx.iter().map(|rx| rx.as_ref() as &dyn RxQueue)
    }

    /// The receiving halves, to wait for.
    pub fn queues(&mut self) -> Vec<&mut dyn RxQueue> {
        self.rx.iter_mut().map(|rx| rx.as_mut() as &mut dyn RxQueue).collect()
    }
}

/// A forwarder remembers nothing of its packets.
struct Stateless;

impl Buckets for Stateless {
    type State = Vec<u8>;

    fn leave(&mut self, _bucket: u8, _to: usize) -> Vec<u8> {
        Vec::new()
    }

    fn arrive(&mut self, _bucket: u8, _from: usize, _state: Vec<u8>) {}
}

#[inline]
fn forward(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, addresses: Addresses, retries: u32) -> (usize, u64) {
    let mut burst = rx.recv();
    let count = burst.len();
    if count == 0 {
        return (0, 0);
    }
    if addresses == Addresses::Swap {
        for i in 0..count {
            swap(burst.get_mut(i).head_mut());
        }
    }
    let mut sent = tx.send_burst(&burst, 0);
    for _ in 0..retries {
        if sent == count {
            break;
        }
        std::hint::spin_loop();
        sent += tx.send_burst(&burst, sent);
    }
    (count, (count - sent) as u64)
}

#[inline]
fn swap(head: &mut [u8]) {
    if let Some(addresses) = head.first_chunk_mut::<12>() {
        let (destination, source) = addresses.split_at_mut(6);
        destination.swap_with_slice(source);
    }
}

#[cfg(test)]
mod tests {
    use port::synthetic::Synthetic;

    use super::*;

    fn queue(port: port::Port) -> QueuePair {
        port.queues.into_iter().next().expect("a port has a queue")
    }

    #[test]
    fn within_one_port_frames_go_back_with_their_addresses_swapped() {
        let (port, captured) = Synthetic::new(vec![b"DDDDDDSSSSSStype...payload".to_vec()]).once().open_captured();
        let mut forwarder = Forwarder::within(queue(port), Addresses::Swap);
        assert_eq!(forwarder.turn(), 1);
        assert_eq!(captured.take(), [b"SSSSSSDDDDDDtype...payload".to_vec()]);
        assert_eq!(forwarder.turn(), 0);
    }

    #[test]
    fn between_two_ports_each_frame_leaves_by_the_other() {
        let (first, from_first) = Synthetic::new(vec![vec![1; 64]]).once().open_captured();
        let (second, from_second) = Synthetic::new(vec![vec![2; 64]]).once().open_captured();
        let mut forwarder = Forwarder::between(queue(first), queue(second), Addresses::Keep);
        assert_eq!(forwarder.turn(), 2);
        assert_eq!(from_first.take(), [vec![2; 64]]);
        assert_eq!(from_second.take(), [vec![1; 64]]);
        assert_eq!(forwarder.refused(), 0);
    }

    /// A sending half that takes one packet at each call.
    struct Slow(usize);

    impl TxQueue for Slow {
        fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
            self.0 += packets.len().min(1);
            packets.len().min(1)
        }

        fn counters(&self) -> TxCounters {
            TxCounters::default()
        }
    }

    #[test]
    fn what_is_refused_is_offered_again_as_often_as_asked_for() {
        for (retries, refused) in [(0, 2), (1, 1), (2, 0), (9, 0)] {
            let port = queue(Synthetic::new(vec![vec![0; 64]; 3]).once().open());
            let slow = QueuePair { rx: port.rx, tx: Box::new(Slow(0)) };
            let mut forwarder = Forwarder::within(slow, Addresses::Keep).retrying(retries);
            forwarder.turn();
            assert_eq!(forwarder.refused(), refused, "{retries} retries");
        }
    }

    #[test]
    fn a_frame_too_short_for_addresses_is_sent_as_it_is() {
        let mut head = *b"short";
        swap(&mut head);
        assert_eq!(&head, b"short");
    }

    #[test]
    fn the_first_frames_leave_by_the_port_that_was_named() {
        let (first, from_first) = Synthetic::new(vec![]).open_captured();
        let (second, from_second) = Synthetic::new(vec![]).open_captured();
        let mut forwarder = Forwarder::between(queue(first), queue(second), Addresses::Keep);
        assert_eq!((forwarder.send_first(0, 40, 64), forwarder.send_first(1, 7, 64)), (40, 7));
        assert_eq!((from_first.take().len(), from_second.take().len()), (40, 7));
    }
}
