//! Usage reports against a counter outside the UPF: what left its ports, to the octet.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Instant;

use crate::stage::ipv4;
use crate::support::{GNB, N3, SMF, config, establishment, setup, ue};
use pfcp::report::{SessionReportResponse, UsageReport};
use pfcp::rule::{BitRate, CreateUrr, FTeid, MeasurementMethod, ReportingTriggers, UrrTerms};
use pfcp::{Header, MessageType, Request, Response, Volume};
use port::Steering;
use port::synthetic::{Captured, Synthetic};
use upf::drops::DropReason;
use upf::function::{Plan, Upf};
use upf::n4::Node;
use upf::side::PortId;
use upf::tables::Tables;

const SESSIONS: u8 = 3;
/// Packets of each session and direction.
const PACKETS: u32 = 7_000;

fn ethernet(packet: &[u8]) -> Vec<u8> {
    [&crate::sessions::MAC[..], &[2; 6], &[8, 0], packet].concat()
}

fn gpdu(teid: u32, packet: &[u8]) -> Vec<u8> {
    let len = packet.len() as u16;
    let mut udp = vec![0x08, 0x68, 0x08, 0x68];
    udp.extend((16 + len).to_be_bytes());
    udp.extend([0, 0, 0x30, 0xff]);
    udp.extend(len.to_be_bytes());
    udp.extend(teid.to_be_bytes());
    udp.extend(packet);
    ipv4(GNB, N3, &udp)
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 2);

/// Packets of all sessions in turn, of all lengths from 20 to 1,500 octets, in an order that does not repeat soon.
fn packets(make: impl Fn(u8, &[u8]) -> Vec<u8>) -> Vec<Vec<u8>> {
    let mut frames = vec![];
    for number in 0..PACKETS * u32::from(SESSIONS) {
        let session = 1 + (number % u32::from(SESSIONS)) as u8;
        let len = (number.wrapping_mul(0x9e37_79b9) >> 16) % 1_481;
        frames.push(ethernet(&make(session, &vec![session; len as usize])));
    }
    frames
}

/// The session manager: it answers reports, and keeps what they say.
struct Manager {
    node: Node<Tables>,
    sequence: u32,
    reports: Vec<(u64, UsageReport)>,
}

impl Manager {
    fn ask(&mut self, seid: u64, request: &Request) -> Response {
        self.sequence += 1;
        let from = (SMF, pfcp::PORT).into();
        let answer = self.node.handle(&request.encode(seid, self.sequence), from, Instant::now()).unwrap();
        let (header, body) = Header::parse(&answer.octets).unwrap();
        Response::parse(&header, body).unwrap()
    }

    fn take_in(&mut self, octets: &[u8]) {
        let (header, body) = Header::parse(octets).unwrap();
        assert_eq!(header.message_type, MessageType::SESSION_REPORT_REQUEST);
        let Request::SessionReport(report) = Request::parse(&header, body).unwrap() else { panic!() };
        self.reports.extend(report.usage.into_iter().map(|usage| (header.seid.unwrap(), usage)));
        let answer = Response::SessionReport(SessionReportResponse::new(Ok(()))).encode(0x77, header.sequence);
        assert_eq!(self.node.handle(&answer, (SMF, pfcp::PORT).into(), Instant::now()), None);
    }
}

/// Two rules that count alike: one reports every 100,000 octets, the other in the end.
fn urrs() -> Vec<CreateUrr> {
    let volume_threshold = Some(Volume { total: Some(100_000), ..Volume::default() });
    let often = UrrTerms { volume_threshold, ..UrrTerms::default() };
    [(1, ReportingTriggers::VOLTH, often), (2, ReportingTriggers::default(), UrrTerms::default())]
        .map(|(id, triggers, terms)| CreateUrr {
            id,
            method: Some(MeasurementMethod::VOLUM),
            triggers: Some(triggers),
            terms: UrrTerms { measurement_information: Some(0x10), ..terms },
            others: vec![],
        })
        .into()
}

/// Octets and packets of users, by session and by direction.
type Totals = BTreeMap<(u8, bool), (u64, u64)>;

/// What left the UPF, by a look at the frames alone.
fn outside(to_n3: &Captured, to_n6: &Captured) -> Totals {
    let mut totals = Totals::new();
    // Behind Ethernet; and IPv4, UDP and GTP-U with a PDU session container.
    for (captured, at, uplink) in [(to_n6, 14, true), (to_n3, 14 + 20 + 8 + 16, false)] {
        for frame in captured.take() {
            let packet = &frame[at..];
            assert_eq!(packet.len(), usize::from(u16::from_be_bytes([packet[2], packet[3]])));
            let ue_at = if uplink { 12 } else { 16 };
            let total = totals.entry((packet[ue_at + 3], uplink)).or_default();
            *total = (total.0 + packet.len() as u64, total.1 + 1);
        }
    }
    totals
}

#[test]
fn reports_say_what_a_counter_outside_saw_to_the_octet() {
    let from_n3 = packets(|session, rest| gpdu(u32::from(session), &ipv4(ue(session), SERVER, rest)));
    let from_n6 = packets(|session, rest| ipv4(SERVER, ue(session), rest));
    let n3 = crate::sessions::info("n3", "10.3.0.1", 1, Steering::Teid);
    let n6 = crate::sessions::info("n6", "10.6.0.1", 1, Steering::UeAddress);
    let (n3, to_n3) = Synthetic::new(from_n3).once().info(n3).open_captured();
    let (n6, to_n6) = Synthetic::new(from_n6).once().info(n6).open_captured();
    let mut upf = Upf::new(&Plan { max_sessions: 10, ..Plan::default() }, n3, n6).unwrap();
    let neighbours = [(PortId::N3, GNB.into(), Some([2; 6])), (PortId::N6, SERVER.into(), Some([2; 6]))];
    upf.tables.set_neighbours(&neighbours).unwrap();
    let node = Node::new(config(), upf.tables.clone(), upf.meters.clock);
    let mut manager = Manager { node, sequence: 0, reports: vec![] };
    manager.ask(0, &setup("smf", 1_000));
    let mut seids = vec![];
    for number in 1..=SESSIONS {
        let mut request = establishment(number);
        request.create_urrs = urrs();
        // Policers drop most of what comes uplink, and nothing downlink, however fast the machine is.
        request.create_qers[0].mbr = Some(BitRate { uplink_kbps: 1_000, downlink_kbps: 100_000_000 });
        request.create_pdrs.iter_mut().for_each(|pdr| pdr.urr_ids = vec![1, 2]);
        let f_teid = FTeid::Given { teid: number.into(), v4: Some(N3), v6: None };
        request.create_pdrs[0].pdi.f_teid = Some(f_teid);
        let response = manager.ask(0, &Request::SessionEstablishment(request));
        let Response::SessionEstablishment(response) = response else { panic!() };
        seids.push(response.outcome.unwrap().up_f_seid.seid);
    }

    let worker = &mut upf.workers[0];
    while worker.run_once() {
        while let Some(alarm) = upf.meters.alarms[0].take() {
            let datagrams = Vec::from_iter(manager.node.alarm(alarm, Instant::now()));
            datagrams.iter().for_each(|datagram| manager.take_in(&datagram.octets));
        }
    }
    let told_meanwhile = manager.reports.len();
    let mut last = vec![];
    std::thread::scope(|scope| {
        // Rules change when the worker has seen that.
        let ending = scope.spawn(|| {
            for (number, &seid) in (1..).zip(&seids) {
                let Response::SessionDeletion(end) = manager.ask(seid, &Request::SessionDeletion) else { panic!() };
                last.extend(end.outcome.unwrap().into_iter().map(|report| (0x5000 + number, report)));
            }
        });
        while !ending.is_finished() {
            worker.run_once();
        }
    });
    manager.reports.extend(last);
    crate::sessions::stop(&mut upf);

    let seen = outside(&to_n3, &to_n6);
    for urr in [1, 2] {
        let mut told = Totals::new();
        for (seid, report) in manager.reports.iter().filter(|(_, report)| report.urr_id == urr) {
            let volume = report.volume.unwrap();
            for uplink in [true, false] {
                let of = |volume: Volume| if uplink { volume.uplink.unwrap() } else { volume.downlink.unwrap() };
                let total = told.entry(((seid - 0x5000) as u8, uplink)).or_default();
                *total = (total.0 + of(volume.octets), total.1 + of(volume.packets));
            }
        }
        assert_eq!(told, seen, "by rule {urr}");
    }
    let packets: u64 = seen.values().map(|(_, packets)| packets).sum();
    let dropped = upf.counts.dropped(DropReason::MbrExceeded);
    assert_eq!(packets + dropped, u64::from(PACKETS) * u64::from(SESSIONS) * 2);
    // On a machine that is slow enough nothing is above the sessions' rates.
    assert!(told_meanwhile > 50, "{dropped} dropped, {told_meanwhile} reports");
}
