//! An open-loop generator: packets leave at the times they are due, whether or not anyone keeps up.
//!
//! Flows take turns. A packet that the port refuses was offered and not accepted: it is counted, and its sequence number
//! is used by the next packet of its flow, so that what the sink finds missing was lost on the way.

use std::net::Ipv4Addr;

use gtpu::{Direction, GpduHeader, PduSession};
use port::{BURST_MAX, PacketRef, TxQueue};

use crate::frame;
use crate::stamp::Stamp;

/// UDP port that stamped packets go to.
pub const SINK_PORT: u16 = 9_000;
/// UDP port that the first flow's packets come from; flow n has this plus n modulo 1,024.
pub const SOURCE_PORT: u16 = 10_000;

/// One flow: where its packets come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source address; of the UE, where the flow goes uplink.
    pub from: Ipv4Addr,
    /// Destination address.
    pub to: Ipv4Addr,
    /// The tunnel that it goes through.
    pub tunnel: Option<Tunnel>,
}

/// A GTP-U tunnel with a PDU session container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// This side's address.
    pub from: Ipv4Addr,
    /// The other side's address.
    pub to: Ipv4Addr,
    /// TEID of the other side.
    pub teid: u32,
    /// QoS flow identifier.
    pub qfi: u8,
    /// The way that the packets go.
    pub direction: Direction,
}

/// A frame of `flow` with `payload_len` bytes of inner UDP payload, from the IP header on.
pub fn packet(flow: &Flow, number: u32, payload_len: usize) -> Vec<u8> {
    let source_port = SOURCE_PORT + (number % 1_024) as u16;
    let inner = frame::udp_packet((flow.from, source_port), (flow.to, SINK_PORT), &vec![0; payload_len]);
    match flow.tunnel {
        None => inner,
        Some(tunnel) => {
            let container = PduSession { direction: tunnel.direction, qfi: tunnel.qfi, rqi: false };
            frame::gtpu_packet(tunnel.from, tunnel.to, &GpduHeader::new(tunnel.teid, Some(container)), &inner)
        }
    }
}

/// How many packets to offer, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Packets a second, over all flows.
    PerSecond(f64),
    /// As many as the port takes.
    Unlimited,
}

struct Prepared {
    frame: Vec<u8>,
    stamp_at: usize,
    sequence: u64,
}

/// The generator of one queue.
pub struct Generator {
    flows: Vec<Prepared>,
    first_number: u32,
    next_flow: usize,
    pace: Pace,
    begin_ns: u64,
    /// Offered before `begin_ns`.
    before: u64,
    offered: u64,
    refused: u64,
}

impl Generator {
    /// A generator for `flows`, numbered from 0, with `payload_len` bytes of (inner) UDP payload, from and to the given
    /// Ethernet addresses. Packets are due from `begin_ns` on.
    ///
    /// # Panics
    /// If there is no flow, or the payload has no room for a [`Stamp`].
    pub fn new(flows: &[Flow], payload_len: usize, macs: Macs, pace: Pace, begin_ns: u64) -> Self {
        assert!(!flows.is_empty(), "a generator needs a flow");
        assert!(payload_len >= Stamp::LEN, "a payload needs room for a stamp");
        let prepared = |(number, flow): (usize, &Flow)| {
            let mut frame = frame::ethernet(macs.to, macs.from, frame::ETHERTYPE_IPV4).to_vec();
            frame.extend(packet(flow, number as u32, payload_len));
            let stamp_at = frame.len() - payload_len;
            Stamp { flow: number as u32, sequence: 0, due_ns: 0 }.write(&mut frame[stamp_at..]);
            Prepared { frame, stamp_at, sequence: 0 }
        };
        let flows = flows.iter().enumerate().map(prepared).collect();
        Self { flows, first_number: 0, next_flow: 0, pace, begin_ns, before: 0, offered: 0, refused: 0 }
    }

    /// The same with its flows numbered from `first` on in their stamps, where another generator has the numbers before.
    pub fn numbered_from(mut self, first: u32) -> Self {
        self.first_number = first;
        self
    }

    /// Goes on at another pace from `now_ns` on. What was due before and not offered yet never is.
    pub fn set_pace(&mut self, pace: Pace, now_ns: u64) {
        (self.pace, self.begin_ns, self.before) = (pace, now_ns, self.offered);
    }

    /// Offers to `tx` what is due at `now_ns`, at most one burst. Returns how many packets it offered.
    pub fn turn(&mut self, tx: &mut dyn TxQueue, now_ns: u64) -> usize {
        let count = self.due(now_ns).min(BURST_MAX as u64).min(self.flows.len() as u64) as usize;
        if count == 0 {
            return 0;
        }
        for i in 0..count {
            let due_ns = self.due_ns(self.offered + i as u64, now_ns);
            let number = self.flow(i);
            let flow = &mut self.flows[number];
            Stamp { flow: self.first_number + number as u32, sequence: flow.sequence, due_ns }
                .write(&mut flow.frame[flow.stamp_at..]);
        }
        let mut packets = [PacketRef::from_slice(&[]); BURST_MAX];
        for (i, packet) in packets[..count].iter_mut().enumerate() {
            *packet = PacketRef::from_slice(&self.flows[self.flow(i)].frame);
        }
        let accepted = tx.send(&packets[..count]);
        for i in 0..accepted {
            let number = self.flow(i);
            self.flows[number].sequence += 1;
        }
        self.offered += count as u64;
        self.refused += (count - accepted) as u64;
        self.next_flow = self.flow(count);
        count
    }

    /// Packets offered so far.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// Packets that the port refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// When the next packet is due, in nanoseconds of the clock that [`Generator::turn`] is given.
    pub fn next_due_ns(&self) -> u64 {
        self.due_ns(self.offered, self.begin_ns)
    }

    #[inline]
    fn flow(&self, ahead: usize) -> usize {
        let flow = self.next_flow + ahead;
        if flow < self.flows.len() { flow } else { flow - self.flows.len() }
    }

    #[inline]
    fn due(&self, now_ns: u64) -> u64 {
        match self.pace {
            Pace::Unlimited => BURST_MAX as u64,
            // The packet of number n is due at n / rate; at time 0 that is one.
            Pace::PerSecond(rate) => {
                let elapsed = now_ns.saturating_sub(self.begin_ns) as f64 / 1e9;
                ((elapsed * rate) as u64 + u64::from(now_ns >= self.begin_ns))
                    .saturating_sub(self.offered - self.before)
            }
        }
    }

    #[inline]
    fn due_ns(&self, number: u64, now_ns: u64) -> u64 {
        match self.pace {
            Pace::Unlimited => now_ns,
            Pace::PerSecond(rate) => self.begin_ns + ((number - self.before) as f64 / rate * 1e9) as u64,
        }
    }
}

/// Ethernet addresses of a generator's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macs {
    /// Source.
    pub from: [u8; 6],
    /// Destination.
    pub to: [u8; 6],
}

/// What a generator did.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Sent {
    /// Packets that were due and offered to the port.
    pub offered: u64,
    /// Of these, accepted by the port.
    pub accepted: u64,
    /// Of these, refused by the port.
    pub refused: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Accepted packets a second, in millions.
    pub mpps: f64,
}

impl Sent {
    /// The result of `generator` after `seconds`.
    pub fn of(generator: &Generator, seconds: f64) -> Self {
        let accepted = generator.offered - generator.refused;
        let mpps = if seconds > 0.0 { accepted as f64 / seconds / 1e6 } else { 0.0 };
        Self { offered: generator.offered, accepted, refused: generator.refused, seconds, mpps }
    }
}

#[cfg(test)]
mod tests {
    use port::TxCounters;
    use port::synthetic::{Captured, Synthetic};

    use super::*;

    /// A sending half that takes nothing.
    struct Full;

    impl TxQueue for Full {
        fn send(&mut self, _: &[PacketRef<'_>]) -> usize {
            0
        }

        fn counters(&self) -> TxCounters {
            TxCounters::default()
        }
    }

    const MACS: Macs = Macs { from: [2; 6], to: [4; 6] };
    const PLAIN: Flow = Flow { from: Ipv4Addr::new(10, 0, 0, 1), to: Ipv4Addr::new(10, 0, 0, 2), tunnel: None };

    fn sender() -> (Box<dyn TxQueue>, Captured) {
        let (port, captured) = Synthetic::new(vec![]).open_captured();
        (port.queues.into_iter().next().expect("a queue").tx, captured)
    }

    fn stamps(captured: &Captured) -> Vec<Stamp> {
        let stamp = |frame: Vec<u8>| frame::innermost_payload(&frame).and_then(Stamp::read).expect("a stamped frame");
        captured.take().into_iter().map(stamp).collect()
    }

    #[test]
    fn packets_leave_when_they_are_due_and_say_when_that_was() {
        let (mut tx, captured) = sender();
        let mut generator = Generator::new(&[PLAIN; 8], 64, MACS, Pace::PerSecond(1_000_000.0), 5_000);
        assert_eq!(generator.turn(tx.as_mut(), 4_999), 0);
        assert_eq!(generator.turn(tx.as_mut(), 5_000), 1);
        assert_eq!(generator.turn(tx.as_mut(), 5_500), 0);
        assert_eq!(generator.turn(tx.as_mut(), 8_001), 3);
        let due: Vec<u64> = stamps(&captured).iter().map(|stamp| stamp.due_ns).collect();
        assert_eq!(due, [5_000, 6_000, 7_000, 8_000]);
        assert_eq!(generator.next_due_ns(), 9_000);
    }

    #[test]
    fn another_pace_begins_at_once() {
        let (mut tx, captured) = sender();
        let mut generator = Generator::new(&[PLAIN; 8], 64, MACS, Pace::PerSecond(1_000_000.0), 0);
        assert_eq!(generator.turn(tx.as_mut(), 1_000), 2);
        generator.set_pace(Pace::PerSecond(500_000.0), 9_000);
        assert_eq!(generator.turn(tx.as_mut(), 11_000), 2);
        let due: Vec<u64> = stamps(&captured).iter().map(|stamp| stamp.due_ns).collect();
        assert_eq!(due, [0, 1_000, 9_000, 11_000]);
    }

    #[test]
    fn flows_take_turns_and_count_for_themselves() {
        let (mut tx, captured) = sender();
        let mut generator = Generator::new(&[PLAIN; 3], 64, MACS, Pace::Unlimited, 0);
        generator.turn(tx.as_mut(), 0);
        generator.turn(tx.as_mut(), 0);
        let seen: Vec<(u32, u64)> = stamps(&captured).iter().map(|stamp| (stamp.flow, stamp.sequence)).collect();
        assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);
    }

    #[test]
    fn two_generators_share_the_numbers() {
        let (mut tx, captured) = sender();
        Generator::new(&[PLAIN; 2], 64, MACS, Pace::Unlimited, 0).numbered_from(7).turn(tx.as_mut(), 0);
        let seen: Vec<u32> = stamps(&captured).iter().map(|stamp| stamp.flow).collect();
        assert_eq!(seen, [7, 8]);
    }

    #[test]
    fn a_refused_packet_is_counted_and_leaves_no_gap() {
        let (mut tx, captured) = sender();
        let mut generator = Generator::new(&[PLAIN; 2], 64, MACS, Pace::Unlimited, 0);
        assert_eq!(generator.turn(&mut Full, 0), 2);
        assert_eq!((generator.offered(), generator.refused()), (2, 2));
        generator.turn(tx.as_mut(), 0);
        assert!(stamps(&captured).iter().all(|stamp| stamp.sequence == 0));
    }

    #[test]
    fn uplink_flows_go_through_their_tunnels() {
        let (mut tx, captured) = sender();
        let tunnel = Tunnel {
            from: Ipv4Addr::new(10, 3, 0, 2),
            to: Ipv4Addr::new(10, 3, 0, 1),
            teid: 0x1234,
            qfi: 9,
            direction: Direction::Uplink,
        };
        let mut generator = Generator::new(&[Flow { tunnel: Some(tunnel), ..PLAIN }], 64, MACS, Pace::Unlimited, 0);
        generator.turn(tx.as_mut(), 0);
        let frame = captured.take().remove(0);
        let outer = frame::datagram(&frame, frame::ETHERNET).expect("a datagram");
        assert_eq!((outer.to_port, outer.payload_len), (gtpu::UDP_PORT, 16 + 20 + 8 + 64));
        let header = gtpu::parse(&frame[outer.payload..], outer.payload_len).expect("a GTP-U header");
        assert_eq!(header.teid, 0x1234);
        assert_eq!(header.pdu_session, Some(PduSession { direction: Direction::Uplink, qfi: 9, rqi: false }));
    }
}
