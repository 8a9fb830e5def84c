//! Maximum bit rates over ten seconds of virtual time, through the packet function: what passes is the rate.

use std::sync::Arc;

use crate::sessions::{downlink, info, qer, session, ue};
use port::{PortInfo, Steering};
use upf::alarms::{self, AlarmReceiver};
use upf::bell::Bell;
use upf::buffers::{Buffers, Room};
use upf::drops::DropReason;
use upf::packet::{Rare, classify, decide};
use upf::rules::{Endpoint, Qer, SdfFilter, Session};
use upf::side::{PortId, Side};
use upf::state::State;
use upf::tables::{Reader, SessionUpdate, Settings, Tables};

const SECOND_NS: u64 = 1_000_000_000;
const TEN_SECONDS_NS: u64 = 10 * SECOND_NS;

/// The packet function with its tables and its state. What time it is, the test says.
struct Upf {
    reader: Reader,
    state: State,
    _tables: Tables,
    _heard: AlarmReceiver,
}

impl Upf {
    fn new(sessions: Vec<Session>) -> Self {
        let settings = Settings { max_sessions: 10, policer_burst_ms: 50, workers: 1 };
        let n3 = Side::new(&info("n3", "10.3.0.1", 1, Steering::Teid), &[]);
        let n6 = PortInfo {
            addresses: vec![("192.0.2.2".parse().unwrap(), 24)],
            ..info("n6", "10.6.0.1", 1, Steering::UeAddress)
        };
        let (tables, mut readers) = Tables::new(&settings, n3, Side::new(&n6, &[]), Box::new(|_, _| {}));
        tables.apply(sessions.into_iter().map(SessionUpdate::Put).collect()).unwrap();
        let neighbours = [(PortId::N3, "10.3.0.2"), (PortId::N6, "192.0.2.1")];
        tables
            .set_neighbours(&neighbours.map(|(port, address)| (port, address.parse().unwrap(), Some([2; 6]))))
            .unwrap();
        let (alarms, heard) = alarms::channel(Arc::new(Bell::new().unwrap()));
        let state = State { buffers: Buffers::new(Room::new(0)), alarms };
        let mut reader = readers.remove(0);
        reader.refresh();
        Self { reader, state, _tables: tables, _heard: heard }
    }

    /// Whether a packet passes at this time. It is either sent on, or over the rate.
    fn passes(&mut self, packet: &Packet, now_ns: u64) -> bool {
        let tables = self.reader.version();
        let head = &packet.frame[..packet.frame.len().min(128)];
        let class = classify(tables, packet.from, head, packet.frame.len());
        match decide(tables, &mut self.state, &class, head, now_ns) {
            Ok(forward) => {
                assert_eq!(usize::from(forward.keep), packet.octets);
                true
            }
            Err(Rare::Drop(DropReason::MbrExceeded)) => false,
            other => panic!("{other:?}"),
        }
    }
}

struct Packet {
    from: PortId,
    frame: Vec<u8>,
    /// Of the user's packet.
    octets: usize,
}

/// To UE 1 from port `port`.
fn down(port: u16, octets: usize) -> Packet {
    let mut frame = downlink(1, u32::from(port) << 16 | 9, octets - 20);
    frame.truncate(14 + octets);
    Packet { from: PortId::N6, frame, octets }
}

/// From UE 1 to port `port`, in the tunnel 0x10.
fn up(port: u16, octets: usize) -> Packet {
    let mut inner = downlink(1, u32::from(9_u16) << 16 | u32::from(port), octets - 20).split_off(14);
    inner[12..16].copy_from_slice(&ue(1).octets());
    inner[16..20].copy_from_slice(&[192, 0, 2, 1]);
    let udp_len = (8 + 8 + octets) as u16;
    let mut outer = downlink(0, 0, udp_len.into());
    outer.truncate(14 + 20);
    outer[26..34].copy_from_slice(&[10, 3, 0, 2, 10, 3, 0, 1]);
    outer[24..26].fill(0);
    let checksum = upf::ip::checksum(upf::ip::sum(&outer[14..34]));
    outer[24..26].copy_from_slice(&checksum.to_be_bytes());
    outer.extend([0x08, 0x68, 0x08, 0x68]);
    outer.extend(udp_len.to_be_bytes());
    outer.extend([0, 0, 0x30, 0xff]);
    outer.extend((octets as u16).to_be_bytes());
    outer.extend(0x10_u32.to_be_bytes());
    outer.extend(inner);
    Packet { from: PortId::N3, frame: outer, octets }
}

/// A flow of packets that come at a rate, whatever becomes of them.
struct Flow {
    packets: Vec<Packet>,
    offered_bps: u64,
    next: usize,
    at_ns: u64,
    passed_octets: u64,
}

impl Flow {
    fn new(packets: Vec<Packet>, offered_bps: u64) -> Self {
        Self { packets, offered_bps, next: 0, at_ns: 0, passed_octets: 0 }
    }

    fn send(&mut self, upf: &mut Upf) {
        let packet = &self.packets[self.next];
        self.next = (self.next + 1) % self.packets.len();
        if upf.passes(packet, self.at_ns) {
            self.passed_octets += packet.octets as u64;
        }
        self.at_ns += packet.octets as u64 * 8 * SECOND_NS / self.offered_bps;
    }

    fn passed_bps(&self) -> u64 {
        self.passed_octets * 8 / (TEN_SECONDS_NS / SECOND_NS)
    }
}

/// Sends all flows for ten seconds, each packet when its time has come.
fn ten_seconds(upf: &mut Upf, flows: &mut [Flow]) {
    while let Some(flow) = flows.iter_mut().min_by_key(|flow| flow.at_ns).filter(|flow| flow.at_ns < TEN_SECONDS_NS) {
        flow.send(upf);
    }
}

fn assert_within_a_percent(is: u64, should: u64, of: &str) {
    assert!(is.abs_diff(should) * 100 <= should, "{of}: {is} bit/s passed of {should}");
}

fn limited(mbr_bps: u64) -> Session {
    let mut session = session(1, 0x10, 1);
    session.qers = vec![qer(1, Some(mbr_bps))];
    session.pdrs.iter_mut().for_each(|pdr| pdr.qer_ids = vec![1]);
    session
}

/// Offers twice the rate for ten seconds, in packets of these lengths that `make` makes.
fn offer_twice(mbr_bps: u64, make: fn(u16, usize) -> Packet, lens: &[usize]) {
    let mut upf = Upf::new(vec![limited(mbr_bps)]);
    let mut flows = [Flow::new(lens.iter().map(|&len| make(1, len)).collect(), 2 * mbr_bps)];
    ten_seconds(&mut upf, &mut flows);
    assert_within_a_percent(flows[0].passed_bps(), mbr_bps, "the flow");
}

#[test]
fn twice_a_megabit_a_second_is_cut_to_one() {
    offer_twice(1_000_000, up, &[40, 576, 1_500]);
    offer_twice(1_000_000, down, &[40, 576, 1_500]);
}

#[test]
fn twice_a_hundred_megabits_a_second_are_cut_to_half() {
    offer_twice(100_000_000, up, &[40, 1_500, 576, 1_500]);
    offer_twice(100_000_000, down, &[40, 1_500, 576, 1_500]);
}

#[test]
fn twice_seven_hundred_megabits_a_second_are_cut_to_half() {
    offer_twice(700_000_000, up, &[1_500, 1_280, 1_400]);
}

#[test]
fn twice_five_gigabits_a_second_are_cut_to_half() {
    offer_twice(5_000_000_000, down, &[8_800, 1_400, 8_000, 8_900]);
}

/// The session's downlink PDR once for each port, with these QERs each.
fn flows_of(ports: u16, qers: impl Fn(u16) -> Vec<u32>) -> Session {
    let mut session = session(1, 0x10, 1);
    let template = session.pdrs.remove(1);
    for port in 1..=ports {
        let mut pdr = template.clone();
        (pdr.id, pdr.precedence) = (10 + port, u32::from(port));
        let any = Endpoint { prefix: None, ports: vec![] };
        let from = Endpoint { ports: vec![(port, port)], ..any.clone() };
        pdr.pdi.sdf_filters =
            vec![SdfFilter { protocol: Some(17), from, to: any, tos: None, spi: None, flow_label: None, id: None }];
        pdr.qer_ids = qers(port);
        session.pdrs.push(pdr);
    }
    session
}

/// Six flows that offer 10, 20, ..., 60 Mbit/s.
fn six_flows() -> Vec<Flow> {
    let lens = |port: u16| [[40, 1_500, 300], [1_000, 200, 1_400]][usize::from(port % 2)];
    let flow = |port: u16| {
        let packets = lens(port).iter().map(|&len| down(port, len)).collect();
        Flow::new(packets, u64::from(port) * 10_000_000)
    };
    (1..=6).map(flow).collect()
}

fn total_bps(flows: &[Flow]) -> u64 {
    flows.iter().map(Flow::passed_bps).sum()
}

#[test]
fn an_ambr_holds_for_all_flows_together_and_each_flow_s_own_rate_for_it() {
    const AMBR_BPS: u64 = 100_000_000;
    let mut session = flows_of(6, |port| vec![100, port.into()]);
    session.qers = (1..=6).map(|flow| qer(flow, Some(25_000_000))).chain([qer(100, Some(AMBR_BPS))]).collect();
    let mut upf = Upf::new(vec![session]);
    let mut flows = six_flows();
    ten_seconds(&mut upf, &mut flows);
    assert_within_a_percent(total_bps(&flows), AMBR_BPS, "all flows");
    for flow in &flows {
        // And half a percent for the bucket that was full at the start.
        assert!(flow.passed_bps() <= flow.offered_bps.min(25_000_000) * 1_006 / 1_000);
    }
}

#[test]
fn an_ambr_holds_for_the_flows_of_correlated_rules() {
    const AMBR_BPS: u64 = 100_000_000;
    let mut session = flows_of(6, |port| vec![port.into()]);
    session.qers = (1..=6).map(|id| Qer { correlation_id: Some(5), ..qer(id, Some(AMBR_BPS)) }).collect();
    let mut upf = Upf::new(vec![session]);
    let mut flows = six_flows();
    ten_seconds(&mut upf, &mut flows);
    assert_within_a_percent(total_bps(&flows), AMBR_BPS, "all flows");
}
