//! The UPF as a host on its links, while somebody floods it with what it has to answer.

use std::time::{Duration, Instant};

use port::synthetic::{Captured, Synthetic};
use port::{PortInfo, Steering};
use upf::drops::DropReason;
use upf::function::{Plan, Upf};
use upf::nat::SourceNat;
use upf::side::PortId;
use upf::tables::SessionUpdate;

use crate::sessions::{MAC, info, session, stop, ue};

/// More than there is room for on the way to the slow path.
const FLOOD: usize = 5_000;

/// A packet of this protocol for the port's own address.
fn packet(protocol: u8, from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let [l0, l1] = (20 + payload.len() as u16).to_be_bytes();
    let mut packet = vec![0x45, 0, l0, l1, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend([from, to].concat());
    let checksum = upf::ip::checksum(upf::ip::sum(&packet));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&MAC, &[2; 6][..], &[8, 0], &packet, payload].concat()
}

fn ping(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let mut icmp = [[8, 0, 0, 0], [0, 1, 0, 1]].concat();
    let checksum = upf::ip::checksum(upf::ip::sum(&icmp));
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet(1, from, to, &icmp)
}

fn gtpu_echo(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let gtpu = [0x32, 1, 0, 4, 0, 0, 0, 0, 0, 7, 0, 0];
    let udp = [[8, 0x68, 8, 0x68], [0, 8 + gtpu.len() as u8, 0, 0]].concat();
    packet(17, from, to, &[&udp, &gtpu[..]].concat())
}

fn outer_fragment(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    fragment(packet(17, from, to, &[0; 64]), 0, FIRST)
}

/// Flags and offset of a packet's first fragment, and of the last one, behind 8 octets.
const FIRST: u16 = 0x2000;
const LAST: u16 = 1;

/// The packet as a fragment, with this identification.
fn fragment(mut frame: Vec<u8>, identification: u16, place: u16) -> Vec<u8> {
    frame[18..20].copy_from_slice(&identification.to_be_bytes());
    frame[20..22].copy_from_slice(&place.to_be_bytes());
    frame[24..26].fill(0);
    let checksum = upf::ip::checksum(upf::ip::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

fn arp_request(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let ethernet = [&[0xff; 6], &[2; 6][..], &[8, 6]].concat();
    [&ethernet, &[0, 1, 8, 0, 6, 4, 0, 1][..], &[2; 6], &from, &[0; 6], &to].concat()
}

const PEER: [u8; 4] = [10, 3, 0, 2];
const OWN: [u8; 4] = [10, 3, 0, 1];

/// A packet of UE `number` in the tunnel of that number.
fn uplink(number: u32, to: [u8; 4]) -> Vec<u8> {
    let inner = &packet(17, ue(number).octets(), to, &[0; 8])[14..];
    let gtpu = [&[0x30, 255, 0, inner.len() as u8][..], &number.to_be_bytes(), inner].concat();
    let udp = [[8, 0x68, 8, 0x68], [0, 8 + gtpu.len() as u8, 0, 0]].concat();
    packet(17, PEER, OWN, &[&udp, &gtpu[..]].concat())
}

/// A UPF at whose N3 these frames come, and what it sends there.
fn flooded(frames: Vec<Vec<u8>>) -> (Upf, Captured) {
    let n3 = Synthetic::new(frames).once().info(info("n3", "10.3.0.1", 1, Steering::None));
    let n6 = Synthetic::new(vec![]).info(info("n6", "10.6.0.1", 1, Steering::None)).open();
    let (n3, sent) = n3.open_captured();
    let mut upf = Upf::new(&Plan::default(), n3, n6).unwrap();
    while upf.workers[0].run_once() {}
    // The slow path takes turns with the worker until there is nothing left.
    for _ in 0..FLOOD / 100 {
        upf.slow_path.run_once(Instant::now());
        while upf.workers[0].run_once() {}
    }
    stop(&mut upf);
    (upf, sent)
}

fn is_arp_reply(frame: &[u8]) -> bool {
    frame[12..14] == [8, 6] && frame[20..22] == [0, 2]
}

fn is_gtpu_echo_response(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame[23] == 17 && frame[14 + 29] == 2
}

#[test]
fn whoever_floods_the_upf_with_pings_keeps_nobody_from_finding_it() {
    let mut frames = vec![ping(PEER, OWN); FLOOD];
    frames.extend([arp_request(PEER, OWN), gtpu_echo(PEER, OWN)]);
    let (upf, sent) = flooded(frames);
    let sent = sent.take();
    assert!(sent.iter().any(|frame| is_arp_reply(frame)), "{:?}", upf.counts.all());
    assert!(sent.iter().any(|frame| is_gtpu_echo_response(frame)), "{:?}", upf.counts.all());
    let answered = sent.iter().filter(|frame| frame[12..14] == [8, 0] && frame[23] == 1).count();
    assert!(answered >= 64, "some are answered");
    assert_eq!(upf.counts.dropped(DropReason::NotAnswered), (FLOOD - answered) as u64);
}

#[test]
fn whoever_floods_the_upf_with_gtp_u_messages_keeps_nobody_from_finding_it() {
    let mut frames = vec![gtpu_echo(PEER, OWN); FLOOD];
    frames.push(arp_request(PEER, OWN));
    let (upf, sent) = flooded(frames);
    let sent = sent.take();
    assert!(sent.iter().any(|frame| is_arp_reply(frame)), "{:?}", upf.counts.all());
    let answered = sent.iter().filter(|frame| is_gtpu_echo_response(frame)).count();
    assert_eq!(upf.counts.dropped(DropReason::SlowPathFull), (FLOOD - answered) as u64);
}

#[test]
fn whoever_floods_the_upf_with_fragments_keeps_neither_neighbours_nor_gtp_u_messages_from_it() {
    let mut frames = vec![outer_fragment(PEER, OWN); FLOOD];
    frames.extend([gtpu_echo(PEER, OWN), arp_request(PEER, OWN)]);
    let (upf, sent) = flooded(frames);
    let sent = sent.take();
    assert!(sent.iter().any(|frame| is_arp_reply(frame)), "{:?}", upf.counts.all());
    assert!(sent.iter().any(|frame| is_gtpu_echo_response(frame)), "{:?}", upf.counts.all());
    assert!(upf.counts.dropped(DropReason::FragmentsFull) > 0);
}

#[test]
fn however_many_fragments_come_from_the_data_network_there_is_room_for_those_of_gnbs() {
    let strangers = (0..FLOOD as u16).map(|number| {
        let from = [192, 0, 2, number.to_be_bytes()[1]];
        fragment(packet(17, from, [203, 0, 113, 1], &[0; 1_480]), number, FIRST)
    });
    // Behind all of these.
    let mut of_gnb = vec![arp_request(PEER, OWN); FLOOD];
    let ping = ping(PEER, OWN);
    of_gnb.push(fragment(packet(1, PEER, OWN, &ping[34..]), 1, FIRST));
    of_gnb.push(fragment(packet(1, PEER, OWN, &[0; 8]), 1, LAST));
    let n3 = Synthetic::new(of_gnb).once().info(info("n3", "10.3.0.1", 1, Steering::None));
    let n6 = Synthetic::new(strangers.collect()).once().info(info("n6", "10.6.0.1", 1, Steering::None)).open();
    let (n3, sent) = n3.open_captured();
    let nat = SourceNat::with(vec!["203.0.113.1/32".to_owned().try_into().unwrap()]);
    let plan = Plan { nats: vec![(PortId::N6, nat)], ..Plan::default() };
    let (mut upf, now) = (Upf::new(&plan, n3, n6).unwrap(), Instant::now());
    while upf.workers[0].run_once() {
        upf.slow_path.run_once(now);
    }
    stop(&mut upf);
    assert!(upf.counts.dropped(DropReason::FragmentsFull) > 0, "{:?}", upf.counts.all());
    assert!(sent.take().iter().any(|frame| frame[12..14] == [8, 0] && frame[23] == 1), "{:?}", upf.counts.all());
}

#[test]
fn switches_are_told_each_minute_of_the_groups_by_which_ipv6_addresses_are_asked_for() {
    let addresses = ["2001:db8:3::9", "2001:db8:4::9"].map(|address| (address.parse().unwrap(), 64));
    let n3 = PortInfo { addresses: addresses.into(), ..info("n3", "10.3.0.1", 1, Steering::None) };
    let (n3, sent) = Synthetic::new(vec![]).info(n3).open_captured();
    let (n6, sent_v4) = Synthetic::new(vec![]).info(info("n6", "10.6.0.1", 1, Steering::None)).open_captured();
    let mut upf = Upf::new(&Plan::default(), n3, n6).unwrap();
    let start = Instant::now();
    for second in [0, 1, 59, 60] {
        let now = start + Duration::from_secs(second);
        upf.slow_path.report_groups(now);
        upf.slow_path.run_once(now);
    }
    while upf.workers[0].run_once() {}
    stop(&mut upf);
    let reports = sent.take();
    assert_eq!((reports.len(), sent_v4.take().len()), (2, 0));
    let (ethernet, packet) = reports[0].split_at(14);
    assert_eq!(ethernet, [&[0x33, 0x33, 0, 0, 0, 0x16], &MAC[..], &[0x86, 0xdd]].concat());
    let (header, payload) = packet.split_at(40);
    // Hop-by-hop options, and a hop limit of 1; from a link-local address to all routers that speak MLDv2.
    assert_eq!((header[6], header[7], &header[8..10], &header[24..]), (0, 1, &[0xfe, 0x80][..], &ALL_MLD_ROUTERS[..]));
    let (options, message) = payload.split_at(8);
    assert_eq!(options, [58, 0, 5, 2, 0, 0, 1, 0]);
    // The group of the link-local address is the first one; both others have one.
    assert_eq!((message[0], &message[4..8], message.len()), (143, &[0, 0, 0, 2][..], 8 + 2 * 20));
    assert_eq!((message[8], &message[12..28]), (2, &[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1][..]));
    let pseudo = [&header[8..], &[0, 0, 0, message.len() as u8, 0, 0, 0, 58]].concat();
    assert_eq!(upf::ip::checksum(upf::ip::sum(&[&pseudo, message].concat())), 0);
}

const ALL_MLD_ROUTERS: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16];

#[test]
fn a_ue_that_sends_much_to_a_host_that_is_not_there_keeps_no_other_from_having_its_neighbour_asked_for() {
    let (absent, other) = ([10, 6, 0, 77], [10, 6, 0, 88]);
    let mut frames = vec![uplink(1, absent); 1_000];
    frames.push(uplink(100, other));
    let n3 = Synthetic::new(frames).once().info(info("n3", "10.3.0.1", 1, Steering::None)).open();
    let (n6, sent) = Synthetic::new(vec![]).info(info("n6", "10.6.0.1", 1, Steering::None)).open_captured();
    let mut upf = Upf::new(&Plan::default(), n3, n6).unwrap();
    let sessions = [1, 100].map(|number| SessionUpdate::Put(session(number.into(), number, number)));
    upf.tables.apply(sessions.into()).unwrap();
    while upf.workers[0].run_once() {}
    upf.slow_path.run_once(Instant::now());
    while upf.workers[0].run_once() {}
    let asked_for = |host: [u8; 4]| sent.take().iter().any(|frame| frame[12..14] == [8, 6] && frame[38..42] == host);
    assert!(asked_for(other), "{:?}", upf.counts.all());
    stop(&mut upf);
    assert!(upf.counts.dropped(DropReason::NeighbourUnresolved) > 500);
}
