//! Source NAT with several workers, and what is told of it. What becomes of packets is in `tests/packets`.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::sessions::{downlink, info, session, stop, ue};
use port::synthetic::{Captured, Synthetic};
use port::{PortInfo, Steering};
use upf::function::{AssemblyError, Place, Plan, Upf};
use upf::ip::{checksum, sum};
use upf::nat::SourceNat;
use upf::side::{PortId, PortKind};
use upf::tables::SessionUpdate;
use upf::trace::Traced;
use vport::steering::address_bucket;

const PEER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 53);

fn nat(addresses: &str) -> SourceNat {
    SourceNat::with(vec![addresses.to_owned().try_into().unwrap()])
}

/// A datagram without a checksum, in an Ethernet frame to the UPF.
fn datagram(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let mut frame = downlink(0, 0, 8);
    frame[26..30].copy_from_slice(&from.ip().octets());
    frame[30..34].copy_from_slice(&to.ip().octets());
    frame[34..36].copy_from_slice(&from.port().to_be_bytes());
    frame[36..42].copy_from_slice(&[(to.port() >> 8) as u8, to.port() as u8, 0, 8, 0, 0]);
    frame[24..26].fill(0);
    let checksum = checksum(sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// The ends of the datagram with which a frame ends.
fn ends(frame: &[u8]) -> (SocketAddrV4, SocketAddrV4) {
    let inner = &frame[frame.len() - 28..];
    let end = |address: usize, port: usize| {
        let octets: [u8; 4] = inner[address..address + 4].try_into().unwrap();
        SocketAddrV4::new(octets.into(), u16::from_be_bytes([inner[port], inner[port + 1]]))
    };
    (end(12, 20), end(16, 22))
}

/// A datagram of a UE from port 1,000, in its tunnel.
fn uplink(ue_number: u32, to: SocketAddrV4) -> Vec<u8> {
    let inner = &datagram(SocketAddrV4::new(ue(ue_number), 1_000), to)[14..];
    let (gnb, upf) = (Ipv4Addr::new(10, 3, 0, 2), Ipv4Addr::new(10, 3, 0, 1));
    let mut frame = datagram(SocketAddrV4::new(gnb, 2_152), SocketAddrV4::new(upf, 2_152));
    let len = 8 + 8 + inner.len() as u16;
    frame[16..18].copy_from_slice(&(20 + len).to_be_bytes());
    frame[24..26].fill(0);
    let checksum = checksum(sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[38..40].copy_from_slice(&len.to_be_bytes());
    frame.extend([0x30, 0xff, 0, inner.len() as u8]);
    frame.extend(ue_number.to_be_bytes());
    frame.extend(inner);
    frame
}

/// A UPF with two workers, the first of which gets all frames; with the sessions of these UEs.
fn upf(nat: SourceNat, ues: &[u32], n3: Vec<Vec<u8>>, n6: Vec<Vec<u8>>) -> (Upf, Captured, Captured) {
    let plan = Plan { nats: vec![(PortId::N6, nat)], max_sessions: 100, ..Plan::default() };
    let n3 = Synthetic::new(n3).once().info(info("n3", "10.3.0.1", 2, Steering::None));
    let on_link = vec![("192.0.2.2".parse().unwrap(), 24)];
    let n6 =
        Synthetic::new(n6).once().info(PortInfo { addresses: on_link, ..info("n6", "192.0.2.2", 2, Steering::None) });
    let ((n3, to_n3), (n6, to_n6)) = (n3.open_captured(), n6.open_captured());
    let place = |kind, port| Place { kind, network_instances: vec![], port };
    let upf = Upf::over(&plan, vec![place(PortKind::N3, n3), place(PortKind::N6, n6)]).unwrap();
    let known = [(PortId::N3, "10.3.0.2"), (PortId::N6, "192.0.2.1")];
    upf.tables.set_neighbours(&known.map(|(port, to)| (port, to.parse().unwrap(), Some([2; 6])))).unwrap();
    let updates = ues.iter().map(|&number| SessionUpdate::Put(session(number.into(), number, number)));
    upf.tables.apply(updates.collect()).unwrap();
    (upf, to_n3, to_n6)
}

fn work(upf: &mut Upf) {
    while upf.workers.iter_mut().fold(false, |worked, worker| worker.run_once() | worked) {}
}

/// A UE whose session this worker owns.
fn ue_of(worker: u8) -> u32 {
    (1..).find(|&number| address_bucket(ue(number).into()) % 2 == worker).unwrap()
}

#[test]
fn source_nat_needs_a_block_of_ports_for_each_worker() {
    let port = |name: &str, address: &str| Synthetic::new(vec![]).info(info(name, address, 2, Steering::None)).open();
    let with = |nat| {
        let plan = Plan { nats: vec![(PortId::N6, nat)], ..Plan::default() };
        Upf::new(&plan, port("n3", "10.3.0.1"), port("n6", "10.6.0.1"))
    };
    assert!(with(nat("203.0.113.0/28")).is_ok() && with(nat("203.0.113.1/32")).is_ok());
    let Err(refused) = with(SourceNat { ports_per_block: 40_000, ..nat("203.0.113.1/32") }) else {
        panic!("there is one block")
    };
    assert!(matches!(refused, AssemblyError::NatBlocks { workers: 2, .. }), "{refused}");
}

#[test]
fn what_comes_back_to_another_worker_is_handed_to_the_one_that_translated_it() {
    let number = ue_of(1);
    let many = nat("203.0.113.0/28");
    let steered = many.each_address().find(|&address| address_bucket(address.into()) % 2 == 1).unwrap();
    // With one address for both workers, each second block is the second worker's.
    let only = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 1), 1_024 + 256);
    for (nat, outside) in [(many, SocketAddrV4::new(steered, 1_024)), (nat("203.0.113.1/32"), only)] {
        let frames = (vec![uplink(number, PEER)], vec![datagram(PEER, outside)]);
        let (mut upf, to_n3, to_n6) = upf(nat, &[number], frames.0, frames.1);
        work(&mut upf);
        stop(&mut upf);
        let (out, back) = (to_n6.take(), to_n3.take());
        assert_eq!((out.len(), back.len()), (1, 1), "{:?}", upf.counts.all());
        assert_eq!(ends(&out[0]), (outside, PEER));
        assert_eq!(ends(&back[0]), (PEER, SocketAddrV4::new(ue(number), 1_000)));
        let in_use = upf.counts.ports().into_iter().map(|(_, port)| (port.nat_bindings, port.nat_blocks));
        assert_eq!(in_use.collect::<Vec<_>>(), [(0, 0), (1, 1)]);
    }
}

#[test]
fn ues_of_two_workers_send_to_each_other_by_what_they_are_outside() {
    let (first, second) = (ue_of(0), ue_of(1));
    let address = Ipv4Addr::new(203, 0, 113, 1);
    let (outside_first, outside_second) = (SocketAddrV4::new(address, 1_024), SocketAddrV4::new(address, 1_024 + 256));
    let from_ues = vec![uplink(first, outside_second), uplink(second, outside_first), uplink(first, outside_second)];
    let (mut upf, to_n3, to_n6) = upf(nat("203.0.113.1/32"), &[first, second], from_ues, vec![]);
    work(&mut upf);
    stop(&mut upf);
    let mut back: Vec<_> = to_n3.take().iter().map(|frame| ends(frame)).collect();
    back.sort();
    let to = |number| SocketAddrV4::new(ue(number), 1_000);
    let mut expected = vec![(outside_second, to(first)), (outside_first, to(second)), (outside_first, to(second))];
    expected.sort();
    assert_eq!(back, expected, "{:?}", upf.counts.all());
    assert!(to_n6.take().is_empty());
}

#[test]
fn a_trace_tells_of_a_ue_s_packets_as_it_sees_them_and_what_they_are_outside() {
    let number = ue_of(0);
    let outside = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 1), 1_024);
    let answer = datagram(PEER, outside);
    let (mut upf, ..) = upf(nat("203.0.113.1/32"), &[number], vec![uplink(number, PEER)], vec![answer]);
    let traces = upf.traces.clone();
    let mut watching = traces.watch().unwrap();
    watching.set(Some(ue(number).into()), Some(number.into()));
    work(&mut upf);
    let records = watching.take(10);
    let told: Vec<_> = records.iter().map(|record| (record.is_uplink, record.outside, record.fate)).collect();
    let sent = |port, frame_len| Traced::Sent { port, frame_len };
    assert_eq!(
        told,
        [(true, Some(outside), sent(PortId::N6, 14 + 28)), (false, Some(outside), sent(PortId::N3, 14 + 36 + 28))]
    );
    let ends: Vec<_> = records.iter().map(|record| record.inner.unwrap()).collect();
    assert_eq!((ends[0].source, ends[0].ports), (ue(number).into(), Some((1_000, 53))));
    assert_eq!((ends[1].destination, ends[1].ports), (ue(number).into(), Some((53, 1_000))));
}

#[test]
fn packets_wait_in_their_ports_while_more_are_turned_round_than_come_in_again() {
    let nowhere = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 1), 9);
    // From two ports at once, and each comes in once more.
    let (count, payload) = (2_000, 1_000);
    let frames = |ue_number: u32, own: [u8; 4]| {
        let mut frame = uplink(ue_number, nowhere);
        frame[30..34].copy_from_slice(&own);
        let padded = [&frame[..], &vec![0; payload]].concat();
        vec![lengthened(padded, payload as u16); count]
    };
    let n3 = Synthetic::new(frames(1, [10, 3, 0, 1])).once().info(info("n3", "10.3.0.1", 1, Steering::None)).open();
    let n9 = Synthetic::new(frames(2, [10, 9, 0, 1])).once().info(info("n9", "10.9.0.1", 1, Steering::None)).open();
    let n6 = Synthetic::new(vec![]).info(info("n6", "192.0.2.2", 1, Steering::None)).open();
    let plan = Plan { nats: vec![(PortId::N6, nat("203.0.113.1/32"))], max_sessions: 100, ..Plan::default() };
    let place = |kind, port| Place { kind, network_instances: vec![], port };
    let places = vec![place(PortKind::N3, n3), place(PortKind::N6, n6), place(PortKind::N9, n9)];
    let mut upf = Upf::over(&plan, places).unwrap();
    let mut sessions = [1, 2].map(|number| session(number.into(), number, number));
    sessions[1].pdrs[0].pdi.f_teid.as_mut().unwrap().v4 = Some(Ipv4Addr::new(10, 9, 0, 1));
    upf.tables.apply(sessions.map(SessionUpdate::Put).into()).unwrap();
    work(&mut upf);
    stop(&mut upf);
    assert_eq!(upf.counts.all(), [("drop.nat_no_binding", 2 * count as u64)]);
}

/// An uplink frame with lengths for so many octets more.
fn lengthened(mut frame: Vec<u8>, more: u16) -> Vec<u8> {
    // Of the outer IP packet, of UDP, of GTP-U, of the user's packet, and of its UDP.
    for at in [16, 38, 44, 50 + 2, 50 + 24] {
        let len = u16::from_be_bytes([frame[at], frame[at + 1]]) + more;
        frame[at..at + 2].copy_from_slice(&len.to_be_bytes());
    }
    for header in [14, 50] {
        frame[header + 10..header + 12].fill(0);
        let checksum = checksum(sum(&frame[header..header + 20]));
        frame[header + 10..header + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    frame
}
