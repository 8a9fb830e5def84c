//! What session managers that are in wide use ask for, octet by octet as they build it: a session that waits for the gNB's end
//! of its downlink tunnel, which is told by a modification, and buffers when the UE's connection is released.
//!
//! They name the data network on all interfaces, so N3's port has no network instances.

use std::net::IpAddr;

use crate::support::*;
use pfcp::report::{DownlinkDataReport, SessionReport};
use pfcp::rule::FTeid;
use pfcp::session::Established;
use pfcp::{Header, IeType, MessageType, Request, Response};
use upf::alarms::Alarm;
use upf::n4::Config;
use upf::rules::{Buffering, FarAction, Interface, OuterHeaderCreation, Session};

const SMF_NODE: [u8; 5] = [0, 10, 4, 0, 2];
const SMF_SEID: u64 = 0x5001;

fn ie(kind: IeType, value: &[u8]) -> Vec<u8> {
    let (kind, len) = (kind as u16, value.len() as u16);
    [&kind.to_be_bytes()[..], &len.to_be_bytes(), value].concat()
}

fn group(kind: IeType, elements: &[Vec<u8>]) -> Vec<u8> {
    ie(kind, &elements.concat())
}

fn message(message_type: MessageType, seid: u64, sequence: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    let body = elements.concat();
    let sequence = (sequence << 8).to_be_bytes();
    let rest = [&seid.to_be_bytes()[..], &sequence, &body].concat();
    [&[0x21, message_type.0][..], &(rest.len() as u16).to_be_bytes(), &rest].concat()
}

/// With an association of a session manager that is known by its address; N3 has an IPv4 address alone.
fn bench() -> Bench {
    let config = Config { access_instances: vec![], ..config() };
    let mut bench = Bench::with(config, &[IpAddr::V4(N3)]);
    let body = [ie(IeType::NodeId, &SMF_NODE), ie(IeType::RecoveryTimeStamp, &[0xe9, 0, 0, 1])].concat();
    let setup = [&[0x20, 5, 0, body.len() as u8 + 4, 0, 0, 1, 0][..], &body].concat();
    bench.octets(&setup).expect("an answer");
    bench
}

fn answer(bench: &mut Bench, message_type: MessageType, seid: u64, elements: &[Vec<u8>]) -> Response {
    bench.sequence += 1;
    let answer = bench.octets(&message(message_type, seid, bench.sequence, elements)).expect("an answer");
    bench.check();
    let (header, body) = Header::parse(&answer).unwrap();
    assert_eq!(header.seid, Some(SMF_SEID));
    Response::parse(&header, body).unwrap()
}

fn established(bench: &mut Bench, elements: &[Vec<u8>]) -> Established {
    match answer(bench, MessageType::SESSION_ESTABLISHMENT_REQUEST, 0, elements) {
        Response::SessionEstablishment(response) => response.outcome.expect("a session"),
        other => panic!("{other:?}"),
    }
}

fn modified(bench: &mut Bench, seid: u64, elements: &[Vec<u8>]) {
    match answer(bench, MessageType::SESSION_MODIFICATION_REQUEST, seid, elements) {
        Response::SessionModification(response) => drop(response.outcome.expect("it is done")),
        other => panic!("{other:?}"),
    }
}

fn far(session: &Session, id: u32) -> FarAction {
    session.fars.iter().find(|far| far.id == id).unwrap().action.clone()
}

/// The tunnel that the FAR leads to, on this interface.
fn tunnel(session: &Session, id: u32) -> (Interface, Option<OuterHeaderCreation>) {
    match far(session, id) {
        FarAction::Forward(forwarding) => (forwarding.destination_interface, forwarding.outer_header_creation),
        other => panic!("{other:?}"),
    }
}

/// A packet waits by the PDR, and that is told.
fn is_paged(bench: &mut Bench, up_seid: u64, pdr: u16) {
    let report = bench.node.alarm(Alarm::Data { up_seid, pdr }, bench.now).pop().expect("a report");
    let (header, body) = Header::parse(&report.octets).unwrap();
    let Ok(Request::SessionReport(SessionReport { downlink_data, .. })) = Request::parse(&header, body) else {
        panic!()
    };
    assert_eq!((header.seid, downlink_data), (Some(SMF_SEID), Some(DownlinkDataReport { pdr_ids: vec![pdr] })));
}

const GNB_TUNNEL: OuterHeaderCreation = OuterHeaderCreation { teid: 0x77, address: IpAddr::V4(GNB) };

/// GTP-U over UDP and IPv4.
fn creation(teid: u8, to: [u8; 4]) -> Vec<u8> {
    ie(IeType::OuterHeaderCreation, &[&[1, 0, 0, 0, 0, teid][..], &to].concat())
}

fn node_and_seid() -> [Vec<u8>; 2] {
    let f_seid = [&[2][..], &SMF_SEID.to_be_bytes(), &SMF_NODE[1..]].concat();
    [ie(IeType::NodeId, &SMF_NODE), ie(IeType::Fseid, &f_seid)]
}

/// Session managers with a UP function that chooses F-TEIDs ask for both versions, and have one FAR for downlink packets
/// from N6 and from themselves.
mod open5gs {
    use super::*;

    const UE: [u8; 4] = [10, 45, 0, 2];
    const BAR: u8 = 1;

    fn instance() -> Vec<u8> {
        ie(IeType::NetworkInstance, b"\x08internet")
    }

    fn interface_type(value: u8) -> Vec<u8> {
        ie(IeType::TgppInterfaceType, &[value])
    }

    fn pdr(id: u8, precedence: u32, pdi: &[Vec<u8>], more: &[Vec<u8>]) -> Vec<u8> {
        let head =
            [ie(IeType::PdrId, &[0, id]), ie(IeType::Precedence, &precedence.to_be_bytes()), group(IeType::Pdi, pdi)];
        group(IeType::CreatePdr, &[&head[..], more].concat())
    }

    fn rules(far: u8, qer: bool, urr: bool) -> Vec<Vec<u8>> {
        let id = |kind, number| ie(kind, &[0, 0, 0, number]);
        let mut rules = vec![id(IeType::FarId, far)];
        rules.extend(urr.then(|| id(IeType::UrrId, 1)));
        rules.extend(qer.then(|| id(IeType::QerId, 1)));
        rules
    }

    /// Removal of the header for this type of session, in front.
    fn removing(removal: u8, rules: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        [vec![ie(IeType::OuterHeaderRemoval, &[removal])], rules].concat()
    }

    fn far(id: u8, action: u8, more: &[Vec<u8>]) -> Vec<u8> {
        let head = [ie(IeType::FarId, &[0, 0, 0, id]), ie(IeType::ApplyAction, &[action, 0])];
        group(IeType::CreateFar, &[&head[..], more].concat())
    }

    fn parameters(interface: u8, more: &[Vec<u8>]) -> Vec<u8> {
        let head = [ie(IeType::DestinationInterface, &[interface])];
        group(IeType::ForwardingParameters, &[&head[..], more].concat())
    }

    /// For a PDU session of this type, whose UE has such an address.
    fn establishment(pdn_type: u8, removal: u8, ue_ip: &[u8]) -> Vec<Vec<u8>> {
        let source = |interface| ie(IeType::SourceInterface, &[interface]);
        let (choose, choose_alone) = (ie(IeType::Fteid, &[0x0f, 5]), ie(IeType::Fteid, &[0x07]));
        let ue_ip = ie(IeType::UeIpAddress, ue_ip);
        let solicitation = b"permit out 58 from ff02::2/128 to assigned";
        let filter = ie(IeType::SdfFilter, &[&[1, 0, 0, solicitation.len() as u8][..], solicitation].concat());
        let mbr = [0, 0, 0, 0x3e, 0x80].repeat(2);
        let to_smf = creation(9, [10, 4, 0, 2]);
        [
            node_and_seid().to_vec(),
            vec![
                pdr(1, 65_535, &[source(1), instance(), ue_ip, interface_type(16)], &rules(1, true, true)),
                pdr(
                    2,
                    65_535,
                    &[source(0), choose.clone(), instance(), ie(IeType::Qfi, &[1]), interface_type(11)],
                    &removing(removal, rules(2, true, false)),
                ),
                pdr(3, 255, &[source(3), choose_alone], &removing(removal, rules(1, false, false))),
                pdr(
                    4,
                    255,
                    &[source(0), choose, instance(), filter, interface_type(11)],
                    &removing(removal, rules(3, false, false)),
                ),
                // Packets wait before the gNB is known.
                far(1, 4 | 8, &[ie(IeType::BarId, &[BAR])]),
                far(2, 2, &[parameters(1, &[instance(), interface_type(16)])]),
                far(3, 2, &[parameters(3, &[to_smf])]),
                group(
                    IeType::CreateUrr,
                    &[
                        ie(IeType::UrrId, &[0, 0, 0, 1]),
                        ie(IeType::MeasurementMethod, &[2]),
                        ie(IeType::ReportingTriggers, &[2, 0, 0]),
                        ie(IeType::VolumeThreshold, &[&[1][..], &(100_u64 << 20).to_be_bytes()].concat()),
                    ],
                ),
                group(
                    IeType::CreateQer,
                    &[
                        ie(IeType::QerId, &[0, 0, 0, 1]),
                        ie(IeType::GateStatus, &[0]),
                        ie(IeType::Mbr, &mbr),
                        ie(IeType::Qfi, &[1]),
                    ],
                ),
                group(IeType::CreateBar, &[ie(IeType::BarId, &[BAR])]),
                ie(IeType::PdnType, &[pdn_type]),
                ie(IeType::ApnDnn, b"\x08internet"),
                ie(IeType::Snssai, &[1, 0xff, 0xff, 0xff]),
            ],
        ]
        .concat()
    }

    fn update(action: u8, more: &[Vec<u8>]) -> [Vec<u8>; 1] {
        let head = [ie(IeType::FarId, &[0, 0, 0, 1]), ie(IeType::ApplyAction, &[action, 0])];
        [group(IeType::UpdateFar, &[&head[..], more].concat())]
    }

    #[test]
    fn packets_go_from_one_gnb_to_the_next_while_a_ue_moves() {
        let mut bench = bench();
        let established = established(&mut bench, &establishment(1, 0, &[&[2 | 4][..], &UE].concat()));
        let up_seid = established.up_f_seid.seid;
        let source = ie(IeType::SourceInterface, &[0]);
        let pdi = [source, ie(IeType::Fteid, &[0x0f, 10]), instance(), ie(IeType::Qfi, &[1]), interface_type(11)];
        let to_next = [instance(), creation(0x77, GNB.octets()), interface_type(11)];
        let begin = [pdr(5, 4_096, &pdi, &removing(0, rules(4, true, false))), far(4, 2, &[parameters(0, &to_next)])];
        modified(&mut bench, up_seid, &begin);
        assert_eq!(tunnel(&bench.seen().sessions[&up_seid], 4), (Interface::Access, Some(GNB_TUNNEL)));
        let end = [
            group(IeType::RemovePdr, &[ie(IeType::PdrId, &[0, 5])]),
            group(IeType::RemoveFar, &[ie(IeType::FarId, &[0, 0, 0, 4])]),
        ];
        modified(&mut bench, up_seid, &end);
        assert_eq!(bench.seen().sessions[&up_seid].fars.len(), 3);
    }

    #[test]
    fn sessions_of_all_ip_types_are_established() {
        let v6 = [0x20, 1, 0xd, 0xb8, 0, 0x45, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1];
        let types = [(2, 1, [&[1 | 4][..], &v6].concat()), (3, 6, [&[3 | 4][..], &UE, &v6].concat())];
        // The header to remove is that of the session's type.
        for (pdn_type, removal, ue_ip) in types {
            established(&mut bench(), &establishment(pdn_type, removal, &ue_ip));
        }
    }

    #[test]
    fn sessions_as_open5gs_asks_for_them_are_established() {
        let mut bench = bench();
        let established = established(&mut bench, &establishment(1, 0, &[&[2 | 4][..], &UE].concat()));
        let up_seid = established.up_f_seid.seid;
        // By one CHOOSE ID there is one F-TEID, of the version that there is; the session manager's own tunnel has another.
        let f_teid = |id| established.created_pdrs.iter().find(|created| created.id == id).unwrap().f_teid.unwrap();
        let FTeid::Given { v4: Some(N3), v6: None, .. } = f_teid(2) else { panic!("{:?}", f_teid(2)) };
        assert!(f_teid(2) == f_teid(4) && f_teid(2) != f_teid(3));
        let waits = FarAction::Buffer(Buffering { notify: true, max_packets: 100, ..Buffering::default() });
        let session = bench.seen().sessions[&up_seid].clone();
        assert_eq!(super::far(&session, 1), waits);
        assert_eq!(tunnel(&session, 2), (Interface::SgiLan, None));
        assert_eq!(tunnel(&session, 3), (Interface::Core, Some(OuterHeaderCreation { teid: 9, address: SMF })));

        let destination = ie(IeType::DestinationInterface, &[0]);
        let to_gnb = [destination, instance(), creation(0x77, GNB.octets()), interface_type(11)];
        let connected = update(2, &[group(IeType::UpdateForwardingParameters, &to_gnb)]);
        for _ in 0..2 {
            modified(&mut bench, up_seid, &connected);
            assert_eq!(tunnel(&bench.seen().sessions[&up_seid], 1), (Interface::Access, Some(GNB_TUNNEL)));
            // The connection is released, and the UE paged, whoever has a packet for it.
            modified(&mut bench, up_seid, &update(4 | 8, &[ie(IeType::BarId, &[BAR])]));
            assert_eq!(super::far(&bench.seen().sessions[&up_seid], 1), waits);
            is_paged(&mut bench, up_seid, 1);
            is_paged(&mut bench, up_seid, 3);
        }
    }
}

/// Session managers that choose F-TEIDs themselves, and state a QFI in every QER.
mod free5gc {
    use super::*;

    const UE: [u8; 4] = [10, 60, 0, 1];

    fn instance() -> Vec<u8> {
        ie(IeType::NetworkInstance, b"internet")
    }

    fn id(kind: IeType, number: u8) -> Vec<u8> {
        ie(kind, &[0, 0, 0, number])
    }

    fn pdr(number: u8, pdi: &[Vec<u8>], removal: Option<Vec<u8>>) -> Vec<u8> {
        let mut elements = vec![ie(IeType::PdrId, &[0, number]), ie(IeType::Precedence, &[0, 0, 0, 255])];
        elements.push(group(IeType::Pdi, pdi));
        elements.extend(removal);
        elements.extend([id(IeType::FarId, number), id(IeType::UrrId, 1), id(IeType::UrrId, 2)]);
        elements.extend([id(IeType::QerId, 2), id(IeType::QerId, 1)]);
        group(IeType::CreatePdr, &elements)
    }

    fn establishment() -> Vec<Vec<u8>> {
        let source = |interface| ie(IeType::SourceInterface, &[interface]);
        let ue_ip = |flags: u8| ie(IeType::UeIpAddress, &[&[flags][..], &UE].concat());
        let f_teid = ie(IeType::Fteid, &[&[1, 0, 0, 0, 1][..], &N3.octets()].concat());
        let forward = |number, parameters: &[Vec<u8>]| {
            let parameters = group(IeType::ForwardingParameters, parameters);
            group(IeType::CreateFar, &[id(IeType::FarId, number), ie(IeType::ApplyAction, &[2]), parameters])
        };
        let to = |interface| ie(IeType::DestinationInterface, &[interface]);
        let mbr = ie(IeType::Mbr, &[0, 0, 0x0f, 0x42, 0x40].repeat(2));
        let (gates, qfi) = (ie(IeType::GateStatus, &[0]), |qfi| ie(IeType::Qfi, &[qfi]));
        let removal = ie(IeType::OuterHeaderRemoval, &[0]);
        let threshold = [&[6][..], &1_000_u64.to_be_bytes(), &1_000_u64.to_be_bytes()].concat();
        let urr = |number, information: u8| {
            let elements = [
                id(IeType::UrrId, number),
                ie(IeType::MeasurementMethod, &[2]),
                ie(IeType::ReportingTriggers, &[3, 0]),
                ie(IeType::MeasurementPeriod, &[0, 0, 0, 10]),
                ie(IeType::VolumeThreshold, &threshold),
                ie(IeType::MeasurementInformation, &[information]),
            ];
            group(IeType::CreateUrr, &elements)
        };
        [
            node_and_seid().to_vec(),
            vec![
                pdr(1, &[source(0), f_teid, instance(), ue_ip(2)], Some(removal)),
                pdr(2, &[source(1), instance(), ue_ip(2 | 4)], None),
                forward(1, &[to(1), instance()]),
                // The gNB's end is not known yet.
                forward(2, &[to(0)]),
                // What is used before and after QoS enforcement, and packets.
                urr(1, 0x11),
                urr(2, 0x10),
                group(IeType::CreateQer, &[id(IeType::QerId, 1), gates.clone(), mbr, qfi(0)]),
                group(IeType::CreateQer, &[id(IeType::QerId, 2), gates, qfi(9)]),
                ie(IeType::PdnType, &[1]),
            ],
        ]
        .concat()
    }

    fn update(action: u8, parameters: Option<&[Vec<u8>]>) -> Vec<Vec<u8>> {
        let mut elements = vec![id(IeType::FarId, 2), ie(IeType::ApplyAction, &[action])];
        elements.extend(parameters.map(|parameters| group(IeType::UpdateForwardingParameters, parameters)));
        let [_, f_seid] = node_and_seid();
        vec![f_seid, group(IeType::UpdateFar, &elements)]
    }

    #[test]
    fn sessions_as_free5gc_asks_for_them_are_established() {
        let mut bench = bench();
        let up_seid = established(&mut bench, &establishment()).up_f_seid.seid;
        let session = bench.seen().sessions[&up_seid].clone();
        assert_eq!(tunnel(&session, 1), (Interface::SgiLan, None));
        assert_eq!(tunnel(&session, 2), (Interface::Access, None));
        assert_eq!(session.pdrs[0].pdi.f_teid.unwrap().teid, 1);

        let destination = ie(IeType::DestinationInterface, &[0]);
        let flags = ie(IeType::PfcpsmReqFlags, &[0]);
        let to_gnb = [destination, instance(), creation(0x77, GNB.octets()), flags];
        for _ in 0..2 {
            modified(&mut bench, up_seid, &update(2, Some(&to_gnb)));
            assert_eq!(tunnel(&bench.seen().sessions[&up_seid], 2), (Interface::Access, Some(GNB_TUNNEL)));
            modified(&mut bench, up_seid, &update(4 | 8, None));
            is_paged(&mut bench, up_seid, 2);
        }
    }
}
