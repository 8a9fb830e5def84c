//! Encodings held against two implementations that were not written here: Wireshark's and scapy's.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pfcp::node::*;
use pfcp::report::*;
use pfcp::rule::*;
use pfcp::session::*;
use pfcp::{Cause, Fault, Header, IeType, NodeId, RecoveryTimeStamp, Request, Response, RuleId};
use pfcp::{DroppedThreshold, Volume, VolumeMeasurement, version_not_supported};

const PYTHON: &str = "/usr/bin/python3";
const SMF: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 4, 0, 2));
const SEID: u64 = 0x0102_0304_0506_0708;
const SEQUENCE: u32 = 0x0a_0b0c;

fn smf() -> NodeId {
    NodeId::Fqdn("smf".into())
}

fn pdi(interface: Interface) -> Pdi {
    Pdi::from_interface(interface)
}

fn uplink_pdr() -> CreatePdr {
    CreatePdr {
        id: 1,
        precedence: 101,
        pdi: Pdi {
            f_teid: Some(FTeid::Choose { v4: true, v6: false, id: Some(7) }),
            network_instance: Some("access".into()),
            ue_ip: Some(UeIp { v4: Some([10, 60, 0, 1].into()), ..UeIp::default() }),
            sdf_filters: vec![SdfFilter::flow("permit out 17 from 203.0.113.0/24 53 to assigned")],
            qfis: vec![9],
            ..pdi(Interface::Access)
        },
        outer_header_removal: Some(OuterHeaderRemoval::GTPU_UDP_IPV4),
        far_id: Some(1),
        qer_ids: vec![1],
        ..CreatePdr::default()
    }
}

fn downlink_pdr() -> CreatePdr {
    CreatePdr {
        id: 2,
        precedence: 102,
        pdi: Pdi {
            network_instance: Some("internet".into()),
            ue_ip: Some(UeIp { v4: Some([10, 60, 0, 1].into()), destination: true, ..UeIp::default() }),
            ..pdi(Interface::SgiLan)
        },
        far_id: Some(2),
        qer_ids: vec![1],
        ..CreatePdr::default()
    }
}

fn far(id: u32, destination_interface: Interface, tunnel: Option<OuterHeaderCreation>) -> CreateFar {
    CreateFar {
        id,
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(ForwardingParameters {
            destination_interface,
            network_instance: (destination_interface == Interface::SgiLan).then(|| "internet".into()),
            outer_header_creation: tunnel,
            transport_level_marking: None,
            others: vec![],
        }),
        duplicating_parameters: vec![],
        bar_id: None,
        others: vec![],
    }
}

fn copy_to(tunnel: OuterHeaderCreation) -> ForwardingParameters {
    ForwardingParameters {
        destination_interface: Interface::Other(4),
        network_instance: None,
        outer_header_creation: Some(tunnel),
        transport_level_marking: None,
        others: vec![],
    }
}

fn create_qer() -> CreateQer {
    CreateQer {
        id: 1,
        gate_status: GateStatus { uplink_open: true, downlink_open: false },
        mbr: Some(BitRate { uplink_kbps: 50_000, downlink_kbps: 200_000 }),
        gbr: None,
        qfi: Some(9),
        reflective: None,
        correlation_id: None,
        others: vec![],
    }
}

fn gnb_tunnel(teid: u32) -> OuterHeaderCreation {
    OuterHeaderCreation::gtpu(teid, [10, 3, 0, 2].into())
}

fn establishment() -> Establishment {
    Establishment {
        node_id: smf(),
        cp_f_seid: FSeid::new(0x5001, SMF),
        pdn_type: Some(1),
        create_pdrs: vec![uplink_pdr(), downlink_pdr()],
        create_fars: vec![far(1, Interface::SgiLan, None), far(2, Interface::Access, Some(gnb_tunnel(0x7001)))],
        create_qers: vec![create_qer()],
        create_urrs: vec![],
        create_bars: vec![],
        create_endpoints: vec![],
        inactivity_timer_s: None,
        others: vec![],
    }
}

fn modification() -> Modification {
    Modification {
        remove_pdrs: vec![3],
        update_fars: vec![UpdateFar {
            id: 2,
            apply_action: Some(ApplyAction::DROP),
            forwarding_parameters: Some(UpdateForwardingParameters {
                outer_header_creation: Some(gnb_tunnel(5)),
                ..Default::default()
            }),
            duplicating_parameters: vec![],
            bar_id: None,
            others: vec![],
        }],
        ..Default::default()
    }
}

/// The requests that the script builds too, in its order, with their SEIDs.
fn known_requests() -> Vec<(u64, Request)> {
    vec![
        (0, Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) })),
        (0, Request::AssociationSetup(AssociationSetup::new(smf(), RecoveryTimeStamp(1_000)))),
        (0, Request::AssociationRelease(AssociationRelease { node_id: smf() })),
        (0, Request::SessionEstablishment(establishment())),
        (SEID, Request::SessionModification(modification())),
        (SEID, Request::SessionDeletion),
    ]
}

/// A request with everything that a request can have.
fn whole_modification() -> Modification {
    let v6 = "2001:db8::1".parse().unwrap();
    let everything = SdfFilter {
        flow_description: Some("permit out ip from any to assigned".into()),
        tos: Some((0xb8, 0xfc)),
        spi: Some(0x1122_3344),
        flow_label: Some(0x0a_bcde),
        id: Some(77),
    };
    let ue_ip = UeIp { v4: Some([10, 60, 0, 1].into()), v6: Some((v6, 56)), destination: true, ..UeIp::default() };
    let given = FTeid::Given { teid: 0xdead_beef, v4: Some([10, 3, 0, 1].into()), v6: Some(v6) };
    let mut pdr = uplink_pdr();
    pdr.pdi.f_teid = Some(given);
    pdr.pdi.ue_ip = Some(ue_ip);
    pdr.pdi.sdf_filters.push(everything);
    pdr.outer_header_removal = Some(OuterHeaderRemoval::GTPU_UDP_IP);
    pdr.activate = vec!["video".into()];
    let mut choosing = downlink_pdr();
    choosing.pdi.ue_ip = Some(UeIp { choose_v4: true, choose_v6: Some(60), destination: true, ..UeIp::default() });
    let endpoint = TrafficEndpoint {
        id: 2,
        f_teid: Some(given),
        network_instance: Some("access".into()),
        ue_ip: Some(ue_ip),
        framed_routes: vec![([10, 9, 0, 0].into(), 16)],
        framed_routing: Some(0),
        qfis: vec![5],
        others: vec![],
    };
    choosing.pdi.traffic_endpoint_ids = vec![2];
    choosing.address_pools = vec!["gold".into(), "silver".into()];
    choosing.pdi.framed_routes = vec![([192, 168, 1, 0].into(), 24), (v6.into(), 48)];
    choosing.pdi.framed_routing = Some(0);
    Modification {
        cp_f_seid: Some(FSeid { seid: 9, v4: Some([10, 4, 0, 2].into()), v6: Some(v6) }),
        remove_pdrs: vec![1, 2],
        remove_fars: vec![3],
        remove_qers: vec![4],
        remove_urrs: vec![5],
        remove_bars: vec![2],
        create_pdrs: vec![pdr.clone(), choosing],
        create_fars: vec![CreateFar {
            duplicating_parameters: [7, 8].map(|teid| copy_to(OuterHeaderCreation::gtpu(teid, v6.into()))).into(),
            ..far(5, Interface::Access, Some(OuterHeaderCreation::gtpu(6, v6.into())))
        }],
        create_qers: vec![CreateQer {
            gbr: Some(BitRate { uplink_kbps: 1, downlink_kbps: 2 }),
            reflective: Some(true),
            correlation_id: Some(0x0102_0304),
            ..create_qer()
        }],
        create_urrs: vec![whole_urr()],
        create_bars: vec![whole_bar(1)],
        remove_endpoints: vec![1],
        create_endpoints: vec![endpoint.clone()],
        update_endpoints: vec![TrafficEndpoint { id: 3, ..endpoint }],
        update_pdrs: vec![UpdatePdr {
            precedence: Some(1),
            pdi: Some(pdr.pdi),
            outer_header_removal: pdr.outer_header_removal,
            far_id: Some(2),
            qer_ids: vec![3, 4],
            urr_ids: vec![5],
            activate: vec!["video".into(), "music".into()],
            deactivate: vec!["dns".into()],
            ..UpdatePdr::new(7)
        }],
        update_fars: vec![UpdateFar {
            id: 2,
            apply_action: Some(ApplyAction::FORW),
            forwarding_parameters: Some(UpdateForwardingParameters {
                destination_interface: Some(Interface::Core),
                network_instance: Some("internet".into()),
                outer_header_creation: Some(gnb_tunnel(8)),
                send_end_marker: true,
                transport_level_marking: Some((0xb8, 0xfc)),
                others: vec![],
            }),
            duplicating_parameters: vec![UpdateForwardingParameters {
                outer_header_creation: Some(gnb_tunnel(9)),
                ..Default::default()
            }],
            bar_id: Some(1),
            others: vec![],
        }],
        update_qers: vec![UpdateQer {
            id: 1,
            gate_status: Some(GateStatus { uplink_open: false, downlink_open: true }),
            mbr: Some(BitRate { uplink_kbps: (1 << 40) - 1, downlink_kbps: 0 }),
            gbr: Some(BitRate { uplink_kbps: 0, downlink_kbps: 1 }),
            qfi: Some(63),
            reflective: Some(false),
            correlation_id: Some(5),
            others: vec![],
        }],
        update_urrs: vec![UpdateUrr { id: 6, ..UpdateUrr::default() }],
        update_bars: vec![whole_bar(3)],
        query_urrs: vec![7],
        flags: Modification::QAURR | Modification::DROBU,
        inactivity_timer_s: Some(600),
        others: vec![],
    }
}

/// A rule with everything that a usage reporting rule can have.
fn whole_urr() -> CreateUrr {
    let volume = |total| Some(Volume { total: Some(total), uplink: Some(2), downlink: Some(3) });
    CreateUrr {
        id: 5,
        method: Some(MeasurementMethod(0b111)),
        triggers: Some(ReportingTriggers(0x3_ffff)),
        terms: UrrTerms {
            period_s: Some(10),
            volume_threshold: volume(1_000_001),
            volume_quota: volume(1_000_002),
            time_threshold_s: Some(11),
            time_quota_s: Some(12),
            quota_holding_time_s: Some(13),
            quota_validity_time_s: Some(14),
            monitoring_time: Some(3_900_000_000),
            subsequent_volume_threshold: volume(1_000_003),
            subsequent_time_threshold_s: Some(15),
            subsequent_volume_quota: volume(1_000_004),
            subsequent_time_quota_s: Some(16),
            inactivity_detection_time_s: Some(17),
            linked_urr_ids: vec![8, 9],
            dropped_threshold: Some(DroppedThreshold { packets: Some(10), octets: Some(11) }),
            measurement_information: Some(0b1_1010),
            quota_action_far_id: Some(18),
        },
        others: vec![],
    }
}

fn whole_bar(id: u8) -> CreateBar {
    CreateBar { id, notification_delay: Some(4), suggested_packets: Some(200), ..CreateBar::default() }
}

fn usage_report() -> UsageReport {
    UsageReport {
        urr_id: 5,
        sequence: 3,
        trigger: UsageReportTrigger::VOLTH.and(UsageReportTrigger::TERMR).and(UsageReportTrigger::QUVTI),
        start: Some(3_900_000_000),
        end: Some(3_900_000_060),
        volume: Some(VolumeMeasurement {
            octets: Volume { total: Some(300), uplink: Some(100), downlink: Some(200) },
            packets: Volume { total: Some(3), uplink: Some(1), downlink: Some(2) },
        }),
        duration_s: Some(60),
        first_packet: Some(3_900_000_001),
        last_packet: Some(3_900_000_059),
        information: Some(2),
        others: vec![],
    }
}

/// Without what is younger than release 15.
fn former_usage_report() -> UsageReport {
    let whole = usage_report();
    let octets = whole.volume.unwrap_or_default().octets;
    let volume = Some(VolumeMeasurement { octets, packets: Volume::default() });
    UsageReport { trigger: UsageReportTrigger::VOLTH.and(UsageReportTrigger::TERMR), volume, ..whole }
}

fn session_report() -> Request {
    let downlink_data = Some(DownlinkDataReport { pdr_ids: vec![2] });
    Request::SessionReport(SessionReport {
        downlink_data,
        usage: vec![usage_report()],
        unknown_tunnels: vec![FTeid::Given { teid: 0x7001, v4: Some([10, 3, 0, 2].into()), v6: None }],
        inactive: true,
        others: vec![],
    })
}

fn responses() -> Vec<Response> {
    let upf = || NodeId::Fqdn("upf.example.org".into());
    let v6 = "2001:db8:45::".parse().unwrap();
    let created = CreatedPdr {
        id: 1,
        f_teid: Some(FTeid::Given { teid: 7, v4: Some([10, 3, 0, 1].into()), v6: None }),
        ue_ip: Some(UeIp { v4: Some([10, 45, 0, 1].into()), v6: Some((v6, 64)), ..UeIp::default() }),
    };
    let endpoint = CreatedTrafficEndpoint { id: 4, f_teid: created.f_teid, ue_ip: created.ue_ip };
    let fault = Fault::of(Cause::MandatoryIeMissing, IeType::PdrId);
    let failed = |rule| Fault { offending_ie: Some(IeType::Fteid as u16), ..Fault::rule(rule) };
    let outcome = |outcome| NodeOutcome { node_id: upf(), outcome };
    let setup = |outcome, up_features| {
        let node_id = NodeId::Address("2001:db8::2".parse().unwrap());
        let response = AssociationSetupResponse::new(node_id, outcome, RecoveryTimeStamp(3_900_000_000));
        AssociationSetupResponse { up_features, ..response }
    };
    let established =
        Established { up_f_seid: FSeid::new(3, SMF), created_pdrs: vec![created], created_endpoints: vec![] };
    let establishment = |outcome| EstablishmentResponse { node_id: upf(), outcome };
    let modified = |outcome| Response::SessionModification(ModificationResponse { outcome });
    vec![
        Response::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1) }),
        Response::PfdManagement(Err(Fault::new(Cause::ServiceNotSupported))),
        Response::AssociationSetup(setup(
            Ok(()),
            Some(up_features(&[UpFeatures::FTUP, UpFeatures::EMPU, UpFeatures::UDBC])),
        )),
        Response::AssociationSetup(setup(Err(fault), None)),
        Response::AssociationUpdate(outcome(Ok(()))),
        Response::NodeReport(outcome(Ok(()))),
        Response::AssociationRelease(outcome(Err(Fault::new(Cause::NoEstablishedPfcpAssociation)))),
        Response::VersionNotSupported,
        Response::SessionSetDeletion(outcome(Err(Fault::new(Cause::ServiceNotSupported)))),
        Response::SessionEstablishment(establishment(Ok(established))),
        Response::SessionEstablishment(establishment(Err(failed(RuleId::Pdr(1))))),
        modified(Ok(Modified {
            created_pdrs: vec![created],
            created_endpoints: vec![endpoint],
            usage: vec![former_usage_report()],
        })),
        modified(Err(failed(RuleId::Far(2)))),
        modified(Err(failed(RuleId::Qer(3)))),
        modified(Err(Fault::rule(RuleId::Urr(4)))),
        modified(Err(Fault::rule(RuleId::Bar(5)))),
        Response::SessionDeletion(DeletionResponse { outcome: Ok(vec![former_usage_report()]) }),
        Response::SessionReport(SessionReportResponse::new(Ok(()))),
        Response::SessionReport(SessionReportResponse::new(Err(Fault::new(Cause::SessionContextNotFound)))),
        Response::SessionDeletion(DeletionResponse { outcome: Err(Fault::new(Cause::SessionContextNotFound)) }),
    ]
}

/// Requests between nodes, from either side, with everything that they can have.
fn node_requests() -> Vec<Request> {
    let manager = Manager {
        cp_features: Some(cp_features(&[CpFeatures::MPAS])),
        set_id: Some("set1.smf.example.org".into()),
        alternatives: vec!["10.4.0.3".parse().unwrap(), "2001:db8:4::3".parse().unwrap()],
    };
    let setup = AssociationSetup {
        manager: manager.clone(),
        retain: Some(vec![SMF, "2001:db8:4::2".parse().unwrap()]),
        ..AssociationSetup::new(smf(), RecoveryTimeStamp(1_000))
    };
    let by_upf = AssociationSetup {
        up_features: Some(up_features(&[UpFeatures::FTUP])),
        ..AssociationSetup::new(smf(), RecoveryTimeStamp(1_000))
    };
    let leaving = AssociationUpdate {
        up_features: Some(up_features(&[UpFeatures::FTUP])),
        release: true,
        graceful_release: Some(Duration::from_secs(30)),
        ..AssociationUpdate::new(smf())
    };
    let update = AssociationUpdate { manager, prepares_release: true, ..AssociationUpdate::new(smf()) };
    let peer = |text: &str| RemoteGtpuPeer { address: text.parse().unwrap() };
    let report = NodeReport {
        node_id: smf(),
        failed: vec![peer("10.3.0.2"), peer("2001:db8:3::2")],
        recovered: vec![peer("10.3.0.3")],
        others: vec![],
    };
    vec![
        Request::AssociationSetup(setup),
        Request::AssociationSetup(by_upf),
        Request::AssociationUpdate(leaving),
        Request::AssociationUpdate(update),
        Request::NodeReport(report),
    ]
}

/// A response that sessions were kept.
fn retained() -> Response {
    let response = AssociationSetupResponse::new(smf(), Ok(()), RecoveryTimeStamp(3_900_000_000));
    let up_features = Some(up_features(&[UpFeatures::MPAS]));
    Response::AssociationSetup(AssociationSetupResponse { up_features, retained: true, ..response })
}

/// One of everything that this crate builds.
fn all_messages() -> Vec<Vec<u8>> {
    let mut messages: Vec<_> = known_requests().iter().map(|(seid, request)| request.encode(*seid, SEQUENCE)).collect();
    messages.push(Request::SessionModification(whole_modification()).encode(SEID, SEQUENCE));
    messages.push(session_report().encode(SEID, SEQUENCE));
    messages.extend(node_requests().iter().map(|request| request.encode(0, SEQUENCE)));
    messages.push(retained().encode(0, SEQUENCE));
    messages.extend(responses().iter().map(|response| response.encode(SEID, SEQUENCE)));
    messages.push(version_not_supported(SEQUENCE));
    messages
}

#[test]
fn what_is_built_is_parsed_as_the_same() {
    let mut requests = known_requests();
    requests.push((SEID, Request::SessionModification(whole_modification())));
    requests.extend(node_requests().into_iter().map(|request| (0, request)));
    requests.push((SEID, session_report()));
    for (seid, request) in requests {
        let datagram = request.encode(seid, SEQUENCE);
        let (header, body) = Header::parse(&datagram).unwrap();
        assert_eq!(Request::parse(&header, body), Ok(request));
    }
    for response in responses().into_iter().chain([retained()]) {
        let datagram = response.encode(SEID, SEQUENCE);
        let (header, body) = Header::parse(&datagram).unwrap();
        assert_eq!(Response::parse(&header, body), Ok(response));
    }
}

#[test]
fn wireshark_understands_every_message() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("SKIPPED wireshark_understands_every_message: no tshark");
        return;
    }
    let messages = all_messages();
    let capture = tempfile::NamedTempFile::new().unwrap();
    capture.as_file().write_all(&pcap(&messages)).unwrap();
    let tshark = |arguments: &[&str]| {
        let output = Command::new("tshark").arg("-r").arg(capture.path()).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let details = tshark(&["-V"]);
    for complaint in ["Malformed", "Expert Info", "Unknown", "not decoded", "undecoded"] {
        let found = details.lines().find(|line| line.contains(complaint));
        assert_eq!(found, None, "\n{details}");
    }
    let fields = ["-e", "pfcp.msg_type", "-e", "pfcp.seqno", "-e", "pfcp.length"];
    let seen = tshark(&[&["-T", "fields"][..], &fields].concat());
    let expected = messages.iter().map(|message| format!("{}\t{SEQUENCE}\t{}\n", message[1], message.len() - 4));
    assert_eq!(seen, expected.collect::<String>());

    // Wireshark's reading of what is easily got wrong.
    for reading in [
        "TEID: 0xdeadbeef",
        "Choose Id: 07",
        "Flow Description: permit out 17 from 203.0.113.0/24 53 to assigned",
        "ToS Traffic Class: 0xb8",
        "Security Parameter Index: 0x11223344",
        "Flow Label: 0xabcde",
        "SDF Filter ID: 77",
        "UL Gate: OPEN (0)",
        "DL Gate: CLOSED (1)",
        "UL MBR: 1099511627775",
        "FORW (Forward): True",
        "Failed Rule ID Type: FAR (1)",
        "Rule creation / modification Failure (73)",
        "FTUP: Supported",
        "Total Volume: 1000001",
        "Subsequent Time Quota: 16",
        "QUVTI (Quota Validity Time): True",
        "TERMR (Termination Report): True",
        "MPAS",
        "PSREI",
        "SARR",
        "PARPBS (PFCP Association Release Preparation Start): True",
        "Graceful Release Period : 30 s",
        "CP PFCP Entity IP Address : , IPv4 10.4.0.2",
        "UPRR (User Plane Path Recovery Report): True",
        "set1.smf.example.org",
        "Remote GTP-U Peer : IPv4",
        "UR-SEQN: 3",
        "IE Type: Transport Level Marking (30)",
        "IE Type: Error Indication Report (99)",
        "SNDEM (Send End Marker Packets): True",
        "DROBU (Drop Buffered Packets): True",
    ] {
        assert!(details.contains(reading), "{reading} is not in\n{details}");
    }
}

/// A capture of the messages in UDP over IPv4.
fn pcap(messages: &[Vec<u8>]) -> Vec<u8> {
    const RAW_IP: u32 = 101;
    let mut file = vec![];
    for word in [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, RAW_IP] {
        file.extend_from_slice(&u32::to_le_bytes(word));
    }
    for message in messages {
        let length = 28 + message.len();
        for word in [0, 0, length as u32, length as u32] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&[0x45, 0]);
        file.extend_from_slice(&(length as u16).to_be_bytes());
        file.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0, 10, 4, 0, 2, 10, 4, 0, 1]);
        for word in [pfcp::PORT, pfcp::PORT, (length - 20) as u16, 0] {
            file.extend_from_slice(&word.to_be_bytes());
        }
        file.extend_from_slice(message);
    }
    file
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scapy/pfcp_messages.py")
}

/// Runs the script; `None` where there is no scapy.
fn scapy(command: &str, input: &str) -> Option<Vec<String>> {
    let import = Command::new(PYTHON).args(["-c", "import scapy.contrib.pfcp"]).stderr(Stdio::null()).status();
    if !import.is_ok_and(|status| status.success()) {
        return None;
    }
    let mut child =
        Command::new(PYTHON).arg(script()).arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

#[test]
fn what_scapy_builds_is_parsed_as_it_was_meant() {
    let Some(lines) = scapy("build", "") else {
        println!("SKIPPED what_scapy_builds_is_parsed_as_it_was_meant: no scapy");
        return;
    };
    let expected = known_requests();
    assert_eq!(lines.len(), expected.len());
    for (line, (seid, request)) in lines.iter().zip(expected) {
        let octets: Vec<u8> =
            (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap()).collect();
        let (header, body) = Header::parse(&octets).unwrap();
        assert_eq!(header.sequence, SEQUENCE);
        assert_eq!(header.seid, request.message_type().is_session_related().then_some(seid));
        assert_eq!(Request::parse(&header, body), Ok(request));
    }
}

#[test]
fn scapy_sees_in_a_message_what_was_put_into_it() {
    // Scapy knows an older release of the standard; what came later is left out here.
    let mut messages =
        known_requests().iter().map(|(seid, request)| request.encode(*seid, SEQUENCE)).collect::<Vec<_>>();
    messages.extend(responses().iter().map(|response| response.encode(SEID, SEQUENCE)));
    let input: String = messages.iter().map(|message| hex(message) + "\n").collect();
    let Some(lines) = scapy("dissect", &input) else {
        println!("SKIPPED scapy_sees_in_a_message_what_was_put_into_it: no scapy");
        return;
    };
    assert_eq!(lines.len(), messages.len());
    for (line, message) in lines.iter().zip(&messages) {
        assert!(!line.contains("not understood") && !line.contains("extra_data"), "{} is {line}", hex(message));
        assert!(line.contains(&format!("seq={SEQUENCE}")), "{line}");
    }
    let establishment = &lines[3];
    for seen in [
        "PFCPSessionEstablishmentRequest",
        "FSEID.seid=20481",
        "FSEID.ipv4=10.4.0.2",
        "CreatePDR/PDI/FTEID.CH=1",
        "CreatePDR/PDI/FTEID.choose_id=7",
        "CreatePDR/PDI/UE_IP_Address.SD=1",
        "CreatePDR/PDI/UE_IP_Address.ipv4=10.60.0.1",
        "CreatePDR/PDI/SDF_Filter.flow_description=permit out 17 from 203.0.113.0/24 53 to assigned",
        "CreatePDR/PDI/QFI.QFI=9",
        "CreatePDR/OuterHeaderRemoval.header=0",
        "CreateFAR/ApplyAction.FORW=1",
        "CreateFAR/ForwardingParameters/OuterHeaderCreation.TEID=28673",
        "CreateFAR/ForwardingParameters/OuterHeaderCreation.ipv4=10.3.0.2",
        "CreateQER/GateStatus.dl=1",
        "CreateQER/GateStatus.ul=0",
        "CreateQER/MBR.ul=50000",
        "CreateQER/MBR.dl=200000",
    ] {
        assert!(establishment.contains(&format!("\"{seen}\"")), "{seen} is not in {establishment}");
    }
}
