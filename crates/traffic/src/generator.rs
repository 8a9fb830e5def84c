//! An open-loop generator: packets leave at the times they are due, whether or not anyone keeps up.
//!
//! Flows take turns, or come in an order laid out before. A packet that the port refuses was offered and not accepted: it is
//! counted, and its sequence number is used by the next packet of its flow, so that what the sink finds missing was lost on
//! the way.
//!
//! The headers of a flow are kept, in two cache lines. A packet is put together in one of as many frames as a burst has, which
//! stay in the cache, and whose payload is always the same: that way a flow may come more than once in a burst, and packets of a
//! flow may differ in length. Where neither happens and frames are small, each flow has a frame of its own: it does with
//! another stamp, which is quicker than copying headers.

use port::{BURST_MAX, PacketRef, TxQueue, prefetch};

use crate::frame::{self, ETHERNET, IPV4, UDP};
use crate::sizes::Sizes;
use crate::spread::are_apart;
use crate::stamp::Stamp;

pub use crate::flow::{Flow, SINK_PORT, SOURCE_PORT, Tunnel, packet};

/// How many packets to offer, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Packets a second, over all flows.
    PerSecond(f64),
    /// As many as the port takes.
    Unlimited,
}

/// Bytes of the longest headers with the stamp behind them: Ethernet, and IPv4 and UDP twice, with GTP-U and a PDU session
/// container in between.
const HEAD: usize = ETHERNET + IPV4 + UDP + GTPU + IPV4 + UDP + Stamp::LEN;
const GTPU: usize = 16;

/// What changes of a flow from packet to packet, and where.
struct State {
    /// The flow's own frame, if flows have their own.
    frame: Box<[u8]>,
    /// Of the next packet.
    sequence: u64,
    /// Where the payload begins in its frames.
    payload_at: u8,
}

/// The headers of a flow's frames, and zeros behind them.
#[repr(align(64))]
struct Head([u8; HEAD]);

fn prepare(flow: &Flow, number: u32, payload_len: usize, macs: Macs) -> (State, Head) {
    let mut frame = frame::ethernet(macs.to, macs.from, frame::ETHERTYPE_IPV4).to_vec();
    frame.extend(packet(flow, number, payload_len));
    let payload_at = frame.len() - payload_len;
    let mut head = [0; HEAD];
    head[..payload_at].copy_from_slice(&frame[..payload_at]);
    (State { frame: Box::default(), sequence: 0, payload_at: payload_at as u8 }, Head(head))
}

/// Frames up to this length are worth keeping for each flow, in bytes.
const OWN_MAX: usize = 256;

/// The generator of one queue.
pub struct Generator {
    flows: Vec<State>,
    heads: Vec<Head>,
    first_number: u32,
    /// The flow of each packet, over and over.
    order: Vec<u32>,
    next: usize,
    sizes: Sizes,
    /// Those of a burst.
    frames: Vec<Box<[u8]>>,
    /// Whether flows have frames of their own, and the burst has none.
    has_own: bool,
    pace: Pace,
    begin_ns: u64,
    /// Offered before `begin_ns`.
    before: u64,
    offered: u64,
    refused: u64,
    /// Due before the pace changed, and not offered by then.
    unoffered: u64,
    accepted_bytes: u64,
}

impl Generator {
    /// A generator for `flows`, numbered from 0, which take turns, with `payload_len` bytes of (inner) UDP payload, from and
    /// to the given Ethernet addresses. Packets are due from `begin_ns` on.
    ///
    /// # Panics
    /// If there is no flow, or the payload has no room for a [`Stamp`] or is too long.
    pub fn new(flows: &[Flow], payload_len: usize, macs: Macs, pace: Pace, begin_ns: u64) -> Self {
        let sizes = Sizes::fixed(payload_len).unwrap_or_else(|error| panic!("{error}"));
        Self::of(flows, sizes, macs, pace, begin_ns)
    }

    /// The same with payloads of these sizes.
    ///
    /// # Panics
    /// If there is no flow.
    pub fn of(flows: &[Flow], sizes: Sizes, macs: Macs, pace: Pace, begin_ns: u64) -> Self {
        assert!(!flows.is_empty(), "a generator needs a flow");
        let prepared = |(number, flow)| prepare(flow, number as u32, sizes.largest(), macs);
        let (flows, heads): (Vec<State>, Vec<Head>) = flows.iter().enumerate().map(prepared).unzip();
        let order = (0..flows.len() as u32).collect();
        Self {
            flows,
            heads,
            first_number: 0,
            order: vec![],
            next: 0,
            frames: vec![],
            has_own: false,
            sizes,
            pace,
            begin_ns,
            before: 0,
            offered: 0,
            refused: 0,
            unoffered: 0,
            accepted_bytes: 0,
        }
        .in_order(order)
    }

    /// The same with its flows numbered from `first` on in their stamps, where another generator has the numbers before.
    pub fn numbered_from(mut self, first: u32) -> Self {
        self.first_number = first;
        self
    }

    /// The same, but that flows come in this order, over and over, in place of taking turns.
    ///
    /// # Panics
    /// If the order is empty, or names a flow that is not there.
    pub fn in_order(mut self, order: Vec<u32>) -> Self {
        assert!(!order.is_empty(), "somebody has to send");
        assert!(order.iter().all(|flow| (*flow as usize) < self.flows.len()), "only flows that are there can send");
        let len = HEAD + self.sizes.largest();
        self.has_own = len <= OWN_MAX && self.sizes.only().is_some() && are_apart(&order, BURST_MAX);
        let frame = |len| vec![0; len].into_boxed_slice();
        self.frames = if self.has_own { vec![] } else { (0..BURST_MAX).map(|_| frame(len)).collect() };
        for (flow, head) in self.flows.iter_mut().zip(&self.heads) {
            flow.frame = frame(if self.has_own { len } else { 0 });
            flow.frame.iter_mut().zip(&head.0).for_each(|(to, from)| *to = *from);
        }
        (self.order, self.next) = (order, 0);
        self
    }

    /// Goes on at another pace from `now_ns` on. What was due before and not offered yet never is, and counts as
    /// [unoffered](Generator::unoffered).
    pub fn set_pace(&mut self, pace: Pace, now_ns: u64) {
        self.stop(now_ns);
        (self.pace, self.begin_ns) = (pace, now_ns);
    }

    /// Has nothing due from `now_ns` on. What was due before and not offered yet counts as [unoffered](Generator::unoffered).
    pub fn stop(&mut self, now_ns: u64) {
        if let Pace::PerSecond(_) = self.pace {
            // The packet that is due at this very moment is the new pace's.
            self.unoffered += self.due(now_ns.saturating_sub(1));
        }
        (self.pace, self.begin_ns, self.before) = (Pace::PerSecond(0.0), u64::MAX, self.offered);
    }

    /// Offers to `tx` what is due at `now_ns`, at most one burst. Returns how many packets it offered.
    pub fn turn(&mut self, tx: &mut dyn TxQueue, now_ns: u64) -> usize {
        match self.due(now_ns).min(BURST_MAX as u64) as usize {
            0 => 0,
            count if self.has_own => self.offer::<true>(tx, count, now_ns),
            count => self.offer::<false>(tx, count, now_ns),
        }
    }

    /// Offers `count` packets, put together in frames of flows' own or of the burst.
    #[inline(always)]
    fn offer<const OWN: bool>(&mut self, tx: &mut dyn TxQueue, count: usize, now_ns: u64) -> usize {
        let mut numbers = [0; BURST_MAX];
        for number in &mut numbers[..count] {
            *number = self.next_flow();
            if !OWN {
                prefetch(&self.flows[*number as usize]);
                prefetch(&self.heads[*number as usize]);
            }
        }
        let (mut lens, mut bytes, first) = ([0; BURST_MAX], 0, self.offered - self.before);
        for (i, number) in numbers[..count].iter().enumerate() {
            let due_ns = due_ns(self.pace, self.begin_ns, first + i as u64, now_ns);
            lens[i] = self.put_together::<OWN>(i, *number, due_ns);
            bytes += lens[i];
        }
        let mut packets = [PacketRef::from_slice(&[]); BURST_MAX];
        for (i, packet) in packets[..count].iter_mut().enumerate() {
            let frame = if OWN { &self.flows[numbers[i] as usize].frame } else { &self.frames[i] };
            *packet = PacketRef::from_slice(&frame[..lens[i]]);
        }
        let accepted = tx.send(&packets[..count]);
        for (number, len) in numbers[accepted..count].iter().zip(&lens[accepted..count]) {
            self.flows[*number as usize].sequence -= 1;
            bytes -= len;
        }
        self.offered += count as u64;
        self.refused += (count - accepted) as u64;
        self.accepted_bytes += bytes as u64;
        count
    }

    /// Puts the next packet of the flow of this number together, as number `i` of its burst. Returns its length in bytes.
    #[inline(always)]
    fn put_together<const OWN: bool>(&mut self, i: usize, number: u32, due_ns: u64) -> usize {
        let flow = &mut self.flows[number as usize];
        let only = self.sizes.only();
        let payload_len = only.unwrap_or_else(|| self.sizes.of(number, flow.sequence));
        let payload_at = usize::from(flow.payload_at);
        let frame = if OWN { &mut flow.frame } else { &mut self.frames[i] };
        if !OWN {
            frame[..HEAD].copy_from_slice(&self.heads[number as usize].0);
            if only.is_none() {
                frame::set_payload_len(frame, payload_at, payload_len);
            }
        }
        Stamp { flow: self.first_number + number, sequence: flow.sequence, due_ns }.write(&mut frame[payload_at..]);
        flow.sequence += 1;
        payload_at + payload_len
    }

    /// Packets offered so far.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// Packets that the port refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Packets that were due when the pace changed or it was stopped, and that never were offered: it was behind.
    pub fn unoffered(&self) -> u64 {
        self.unoffered
    }

    /// Bytes of the packets that the port accepted, whole frames.
    pub fn accepted_bytes(&self) -> u64 {
        self.accepted_bytes
    }

    /// When the next packet is due, in nanoseconds of the clock that [`Generator::turn`] is given.
    pub fn next_due_ns(&self) -> u64 {
        due_ns(self.pace, self.begin_ns, self.offered - self.before, self.begin_ns)
    }

    #[inline]
    fn next_flow(&mut self) -> u32 {
        let flow = self.order[self.next];
        self.next = if self.next + 1 < self.order.len() { self.next + 1 } else { 0 };
        flow
    }

    /// Packets that are due at `now_ns` and were not offered; a burst where as many are as the port takes.
    #[inline]
    pub fn due(&self, now_ns: u64) -> u64 {
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
}

/// When the packet of this number, from 0 at `begin_ns`, is due.
#[inline]
fn due_ns(pace: Pace, begin_ns: u64, number: u64, now_ns: u64) -> u64 {
    match pace {
        Pace::Unlimited => now_ns,
        Pace::PerSecond(rate) => begin_ns + (number as f64 / rate * 1e9) as u64,
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
    /// Packets that were due and not offered before the end: the sender was behind.
    #[serde(default)]
    pub unoffered: u64,
    /// Bytes of those accepted, whole frames.
    pub bytes: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Accepted packets a second, in millions.
    pub mpps: f64,
    /// Their bits a second, whole frames, in thousands of millions.
    pub gbps: f64,
}

impl Sent {
    /// The result of `generator` after `seconds`.
    pub fn of(generator: &Generator, seconds: f64) -> Self {
        let (accepted, bytes) = (generator.offered - generator.refused, generator.accepted_bytes);
        let each_second = |number: f64| if seconds > 0.0 { number / seconds } else { 0.0 };
        Self {
            offered: generator.offered,
            accepted,
            refused: generator.refused,
            unoffered: generator.unoffered,
            bytes,
            seconds,
            mpps: each_second(accepted as f64 / 1e6),
            gbps: each_second(bytes as f64 * 8.0 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use gtpu::{Direction, PduSession};
    use port::TxCounters;
    use port::synthetic::{Captured, Synthetic};

    use super::*;
    use crate::share::Share;

    /// A sending half that takes so many packets of each call.
    struct Taking(usize);

    impl TxQueue for Taking {
        fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
            packets.len().min(self.0)
        }

        fn counters(&self) -> TxCounters {
            TxCounters::default()
        }
    }

    const MACS: Macs = Macs { from: [2; 6], to: [4; 6] };
    const PLAIN: Flow = Flow { from: Ipv4Addr::new(10, 0, 0, 1), to: Ipv4Addr::new(10, 0, 0, 2), tunnel: None };
    const UPLINK: Tunnel = Tunnel {
        from: Ipv4Addr::new(10, 3, 0, 2),
        to: Ipv4Addr::new(10, 3, 0, 1),
        teid: 0x1234,
        qfi: 9,
        direction: Direction::Uplink,
    };

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
    fn what_was_due_and_not_offered_when_the_pace_changes_is_counted() {
        let (mut tx, _) = sender();
        let mut generator = Generator::new(&[PLAIN; 8], 64, MACS, Pace::PerSecond(1_000_000.0), 0);
        assert_eq!(generator.turn(tx.as_mut(), 1_000), 2);
        generator.set_pace(Pace::PerSecond(500_000.0), 9_000);
        assert_eq!(generator.unoffered(), 7, "those of 2,000 to 8,000 ns");
        assert_eq!(generator.turn(tx.as_mut(), 11_000), 2);
        generator.stop(13_500);
        assert_eq!(generator.unoffered(), 8);
        generator.stop(1_000_000);
        assert_eq!(generator.turn(tx.as_mut(), 1_000_000), 0);
        generator.set_pace(Pace::Unlimited, 2_000_000);
        generator.stop(3_000_000);
        assert_eq!(generator.unoffered(), 8, "nothing was due in between, nor at a pace without limit");
    }

    fn seen(captured: &Captured) -> Vec<(u32, u64)> {
        stamps(captured).iter().map(|stamp| (stamp.flow, stamp.sequence)).collect()
    }

    #[test]
    fn flows_take_turns_and_count_for_themselves() {
        let (mut tx, captured) = sender();
        let mut generator = Generator::new(&[PLAIN; 3], 64, MACS, Pace::Unlimited, 0);
        generator.turn(tx.as_mut(), 0);
        assert_eq!(seen(&captured)[..6], [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);
        generator.turn(tx.as_mut(), 0);
        assert_eq!(seen(&captured)[..2], [(1, 21), (2, 21)]);
    }

    #[test]
    fn two_generators_share_the_numbers() {
        let (mut tx, captured) = sender();
        Generator::new(&[PLAIN; 2], 64, MACS, Pace::Unlimited, 0).numbered_from(7).turn(tx.as_mut(), 0);
        assert_eq!(seen(&captured)[..3], [(7, 0), (8, 0), (7, 1)]);
    }

    #[test]
    fn a_refused_packet_is_counted_and_leaves_no_gap() {
        let (mut tx, captured) = sender();
        let mut generator = Generator::new(&[PLAIN; 2], 64, MACS, Pace::Unlimited, 0);
        assert_eq!(generator.turn(&mut Taking(5), 0), BURST_MAX);
        assert_eq!((generator.offered(), generator.refused()), (64, 59));
        assert_eq!(generator.accepted_bytes(), 5 * (42 + 64));
        generator.turn(tx.as_mut(), 0);
        assert_eq!(seen(&captured)[..3], [(0, 3), (1, 2), (0, 4)]);
    }

    #[test]
    fn flows_have_frames_of_their_own_where_none_comes_twice_in_a_burst() {
        let of_flows = |flows: usize, payload, order: Option<Vec<u32>>| {
            let flows = vec![PLAIN; flows];
            let generator = Generator::new(&flows, payload, MACS, Pace::Unlimited, 0);
            let generator = match order {
                Some(order) => generator.in_order(order),
                None => generator,
            };
            generator.has_own
        };
        assert!(of_flows(64, 64, None) && !of_flows(63, 64, None) && !of_flows(64, 1_000, None));
        let then_the_first = |others: u32| Some((0..others).chain([0]).chain(70..140).collect());
        assert!(of_flows(140, 64, then_the_first(64)) && !of_flows(140, 64, then_the_first(63)));
        // From the end to the beginning.
        assert!(!of_flows(140, 64, Some((0..140).chain([30]).collect())));
    }

    #[test]
    fn a_skewed_load_has_its_shares_on_the_wire_and_every_flow_its_sequence() {
        let (mut tx, captured) = sender();
        let order = Share::HotUes { count: 1, times: 20 }.order(13, |_| 0).expect("an order");
        let mut generator = Generator::new(&[PLAIN; 13], 64, MACS, Pace::Unlimited, 0).in_order(order);
        (0..5).for_each(|_| _ = generator.turn(tx.as_mut(), 0));
        let mut next = [0; 13];
        for (flow, sequence) in seen(&captured) {
            assert_eq!(sequence, next[flow as usize], "flow {flow}");
            next[flow as usize] += 1;
        }
        assert_eq!(next, [200, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10]);
    }

    #[test]
    fn every_size_has_right_lengths_and_checksums_in_all_headers() {
        // Frames of the burst and of the flows.
        let (several, one) = ("18..1600/113", "70");
        for (tunnel, sizes) in [None, Some(UPLINK)].into_iter().flat_map(|tunnel| [(tunnel, several), (tunnel, one)]) {
            let (mut tx, captured) = sender();
            let sizes: Sizes = sizes.parse().expect("sizes");
            let flow = Flow { tunnel, ..PLAIN };
            let mut generator = Generator::of(&[flow; 33], sizes.clone(), MACS, Pace::Unlimited, 0);
            (0..4).for_each(|_| _ = generator.turn(tx.as_mut(), 0));
            let frames = captured.take();
            assert_eq!(generator.accepted_bytes(), frames.iter().map(Vec::len).sum::<usize>() as u64);
            for frame in frames {
                let stamp = frame::innermost_payload(&frame).and_then(Stamp::read).expect("a stamp");
                // Made anew with this length, beginning with its stamp.
                let payload_len = sizes.of(stamp.flow, stamp.sequence);
                let mut expected = frame::ethernet(MACS.to, MACS.from, frame::ETHERTYPE_IPV4).to_vec();
                expected.extend(packet(&flow, stamp.flow, payload_len));
                let at = expected.len() - payload_len;
                stamp.write(&mut expected[at..]);
                assert_eq!(frame, expected, "{payload_len} bytes");
                for at in [Some(ETHERNET), tunnel.map(|_| at - UDP - IPV4)].into_iter().flatten() {
                    assert_eq!(frame::ones_complement_sum(&frame[at..at + IPV4]), 0xffff);
                }
            }
        }
    }

    #[test]
    fn imix_is_on_the_wire_in_its_shares() {
        let (mut tx, captured) = sender();
        let mut generator = Generator::of(&[PLAIN; 12], Sizes::imix(), MACS, Pace::Unlimited, 0);
        (0..18).for_each(|_| _ = generator.turn(tx.as_mut(), 0));
        let frames = captured.take();
        // Without the check sequence.
        let shares = [60, 590, 1_514].map(|len| frames.iter().filter(|frame| frame.len() == len).count());
        assert_eq!(shares, [672, 384, 96]);
    }

    #[test]
    fn uplink_flows_go_through_their_tunnels() {
        let (mut tx, captured) = sender();
        let mut generator = Generator::new(&[Flow { tunnel: Some(UPLINK), ..PLAIN }], 64, MACS, Pace::Unlimited, 0);
        generator.turn(tx.as_mut(), 0);
        let frame = captured.take().remove(0);
        let outer = frame::datagram(&frame, frame::ETHERNET).expect("a datagram");
        assert_eq!((outer.to_port, outer.payload_len), (gtpu::UDP_PORT, 16 + 20 + 8 + 64));
        let header = gtpu::parse(&frame[outer.payload..], outer.payload_len).expect("a GTP-U header");
        assert_eq!(header.teid, 0x1234);
        assert_eq!(header.pdu_session, Some(PduSession { direction: Direction::Uplink, qfi: 9, rqi: false }));
    }
}
