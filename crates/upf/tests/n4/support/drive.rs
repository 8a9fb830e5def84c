//! Any octets as a sequence of messages to a node, so that random tests and the fuzzer share one idea of what must hold.
//!
//! Messages are built from typed parts, right or wrong as the octets choose, so that they get deep into the rules; some are
//! then damaged, with their header put right again.

use std::net::Ipv6Addr;
use std::time::Duration;

use pfcp::node::{AssociationRelease, AssociationUpdate, Heartbeat};
use pfcp::report::SessionReportResponse;
use pfcp::rule::*;
use pfcp::session::{Establishment, FSeid, Modification};
use pfcp::{Cause, DroppedThreshold, Fault, Header, MessageType, NodeId, RecoveryTimeStamp, Request, Response, Volume};
use upf::tables::ApplyError;

use super::*;

/// Octets to choose by. At their end every choice is the first.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn octet(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&octet, rest)) => {
                self.0 = rest;
                octet
            }
            None => 0,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.octet()) % end
    }

    fn of<T: Clone>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())].clone()
    }

    /// Once in a while.
    fn rarely(&mut self) -> bool {
        self.octet() >= 0xf0
    }

    fn octets(&mut self, most: usize) -> Vec<u8> {
        let len = self.below(most + 1).min(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken.to_vec()
    }

    fn many<T>(&mut self, most: usize, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| one(self)).collect()
    }

    /// As many, but once in a while.
    fn few<T>(&mut self, most: usize, one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        if self.octet().is_multiple_of(4) { self.many(most, one) } else { vec![] }
    }

    fn maybe<T>(&mut self, one: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.octet() & 1 == 0 { None } else { Some(one(self)) }
    }
}

/// Carries out what `input` says, and checks after every message what must hold.
pub fn drive(input: &[u8]) {
    drive_on(&mut Bench::associated(), input, |_| {});
}

/// As [`drive`], with an association that there is already. After every message `then` has a look.
pub fn drive_on(bench: &mut Bench, input: &[u8], mut then: impl FnMut(&mut Bench)) {
    let mut choices = Choices(input);
    let mut last: Option<(Vec<u8>, Option<Vec<u8>>)> = None;
    for _ in 0..400 {
        if choices.0.is_empty() {
            break;
        }
        match choices.octet() % 16 {
            0 => last = send(bench, choices.octets(200)),
            1 => {
                tick(bench, &mut choices);
                // Answers are not kept for ever.
                last = None;
            }
            2 => repeat(bench, last.as_ref()),
            3 => {
                // What the tables refuse can only be what is put into them.
                let errors = [ApplyError::Full, ApplyError::Stopped, ApplyError::TeidInUse(1)];
                bench.node.tables().refuse_next(choices.of(&errors));
                let request = any_establishment(NodeId::Fqdn("smf".into()), &mut choices);
                bench.sequence += 1;
                let octets = Request::SessionEstablishment(request).encode(0, bench.sequence);
                last = send(bench, octets);
                bench.node.tables().refuse_none();
            }
            4..=6 => {
                let octets = request(bench, &mut choices);
                let octets = damage(octets, &mut choices);
                last = send(bench, octets);
            }
            _ => {
                let octets = request(bench, &mut choices);
                last = send(bench, octets);
            }
        }
        bench.check();
        then(bench);
    }
    bench.check_all();
}

fn tick(bench: &mut Bench, choices: &mut Choices) {
    bench.now += Duration::from_secs(choices.octet().into());
    let answered = !choices.rarely();
    for datagram in bench.node.tick(bench.now) {
        let (header, _) = Header::parse(&datagram.octets).expect("what is sent is well formed");
        if answered {
            let response = match header.message_type {
                MessageType::SESSION_REPORT_REQUEST => {
                    let lost = Fault::new(Cause::SessionContextNotFound);
                    let outcome = if choices.rarely() { Err(lost) } else { Ok(()) };
                    Response::SessionReport(SessionReportResponse::new(outcome))
                }
                _ => Response::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) }),
            };
            assert_eq!(bench.octets(&response.encode(header.seid.unwrap_or(0), header.sequence)), None);
        }
    }
}

/// The same octets get the same answer, and change nothing.
fn repeat(bench: &mut Bench, last: Option<&(Vec<u8>, Option<Vec<u8>>)>) {
    let Some((octets, answer)) = last else { return };
    let before = bench.seen();
    // A restart or release makes a peer's former requests new ones.
    let is_kept = Header::parse(octets).is_ok_and(|(header, _)| header.message_type.is_session_related());
    let again = bench.octets(octets);
    if is_kept {
        assert_eq!((&again, &bench.seen()), (answer, &before));
    }
}

fn send(bench: &mut Bench, octets: Vec<u8>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let before = bench.seen();
    let answer = bench.octets(&octets);
    let after = Seen { refuse: before.refuse.clone(), ..bench.seen() };
    match &answer {
        None => {
            let heartbeat = Header::parse(&octets).is_ok_and(|(header, _)| header.message_type.0 <= 2);
            assert!(heartbeat || after == before, "what is not answered changes nothing");
        }
        Some(answer) => check_answer(&octets, answer, after == before),
    }
    Some((octets, answer))
}

fn check_answer(request: &[u8], answer: &[u8], unchanged: bool) {
    let (header, body) = Header::parse(answer).expect("an answer is well formed");
    let Ok(response) = Response::parse(&header, body) else { panic!("an answer can be parsed") };
    let refused = match response {
        Response::VersionNotSupported => return assert!(unchanged && request[0] >> 5 != pfcp::VERSION),
        Response::Heartbeat(_) | Response::AssociationSetup(_) | Response::AssociationRelease(_) => false,
        Response::SessionEstablishment(response) => response.outcome.is_err(),
        Response::SessionModification(response) => response.outcome.is_err(),
        Response::SessionDeletion(response) => response.outcome.is_err(),
        _ => true,
    };
    assert!(!refused || unchanged, "what is refused changes nothing");
    assert_eq!(header.message_type, MessageType(request[1] + 1));
}

fn request(bench: &mut Bench, choices: &mut Choices) -> Vec<u8> {
    let held: Vec<u64> = bench.seen().sessions.keys().copied().collect();
    let seid = if held.is_empty() || choices.rarely() { u64::from(choices.octet()) } else { choices.of(&held) };
    bench.sequence = if choices.rarely() { bench.sequence } else { bench.sequence + 1 };
    let name = NodeId::Fqdn(choices.of(&["smf", "smf", "smf", "smf", "other"]).into());
    let request = match choices.octet() % 32 {
        0 => setup(choices.of(&["smf", "other", "a", "b", "c", "d"]), 1_000),
        1 => Request::AssociationRelease(AssociationRelease { node_id: name }),
        2 => Request::AssociationUpdate(AssociationUpdate::new(name)),
        3 => {
            Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(if choices.rarely() { 1_001 } else { 1_000 }) })
        }
        4..=6 => Request::SessionDeletion,
        7..=12 => Request::SessionEstablishment(establishment(choices.octet() % 40)),
        13..=19 => Request::SessionEstablishment(any_establishment(name, choices)),
        _ => Request::SessionModification(any_modification(choices)),
    };
    request.encode(seid, bench.sequence)
}

fn any_establishment(node_id: NodeId, choices: &mut Choices) -> Establishment {
    let ue = choices.octet() % 40;
    Establishment {
        node_id,
        cp_f_seid: FSeid::new(choices.octet().into(), SMF),
        pdn_type: choices.maybe(|choices| choices.of(&[1, 1, 2, 3, 3, 5, 0])),
        create_pdrs: choices.many(4, |choices| any_pdr(ue, choices)),
        create_fars: choices.many(4, any_far),
        create_qers: choices.many(3, any_qer),
        create_urrs: choices.many(2, any_urr),
        create_bars: choices.many(1, any_bar),
        create_endpoints: choices.few(1, any_endpoint),
        inactivity_timer_s: any_timer(choices),
        others: vec![],
    }
}

fn any_modification(choices: &mut Choices) -> Modification {
    let ue = choices.octet() % 40;
    Modification {
        cp_f_seid: choices.maybe(|choices| FSeid::new(choices.octet().into(), SMF)),
        remove_pdrs: choices.many(1, |choices| choices.below(6) as u16),
        remove_fars: choices.many(1, |choices| choices.below(6) as u32),
        remove_qers: choices.many(1, |choices| choices.below(6) as u32),
        remove_urrs: choices.many(1, |choices| choices.below(3) as u32),
        remove_bars: choices.many(1, |choices| choices.octet() % 3),
        remove_endpoints: choices.few(1, |choices| choices.octet() % 3),
        create_pdrs: choices.many(2, |choices| any_pdr(ue, choices)),
        create_fars: choices.many(2, any_far),
        create_qers: choices.many(1, any_qer),
        create_urrs: choices.many(1, any_urr),
        create_bars: choices.many(1, any_bar),
        create_endpoints: choices.few(1, any_endpoint),
        update_pdrs: choices.many(1, |choices| any_pdr_update(ue, choices)),
        update_fars: choices.many(1, any_far_update),
        update_qers: choices.many(1, any_qer_update),
        update_urrs: choices.many(1, any_urr_update),
        update_bars: choices.many(1, any_bar),
        update_endpoints: choices.few(1, any_endpoint),
        query_urrs: choices.many(1, |choices| choices.below(3) as u32),
        flags: choices.of(&[0, 0, Modification::QAURR, Modification::DROBU]),
        inactivity_timer_s: any_timer(choices),
        others: vec![],
    }
}

fn any_timer(choices: &mut Choices) -> Option<u32> {
    choices.rarely().then(|| choices.of(&[60, 1, 0, u32::MAX]))
}

fn any_pdr(ue: u8, choices: &mut Choices) -> CreatePdr {
    let id = choices.below(6) as u16;
    let f_teid = any_f_teid(choices);
    let mut pdr = if choices.octet() & 1 == 0 { uplink_pdr(id, ue, f_teid) } else { downlink_pdr(id, ue) };
    pdr.precedence = choices.octet().into();
    pdr.far_id = if choices.rarely() { None } else { pdr.far_id };
    pdr.qer_ids = choices.many(2, |choices| choices.below(3) as u32);
    pdr.urr_ids = choices.many(1, |choices| choices.below(3) as u32);
    pdr.activate = choices.few(2, any_predefined);
    pdr.pdi.sdf_filters = choices.many(1, any_filter);
    if choices.octet().is_multiple_of(4) {
        let (choose_v4, choose_v6) = choices.of(&[(true, None), (false, Some(64)), (true, Some(64)), (true, Some(56))]);
        let destination = pdr.pdi.source_interface == Interface::SgiLan;
        pdr.pdi.ue_ip = Some(UeIp { choose_v4, choose_v6, destination, ..UeIp::default() });
        pdr.address_pools = choices.many(1, |choices| choices.of(&["internet", "wide", "other"]).into());
    }
    pdr.pdi.qfis = choices.many(1, |choices| choices.octet() & 63);
    pdr.pdi.framed_routes = if choices.rarely() { choices.many(3, any_route) } else { vec![] };
    pdr.pdi.framed_routing = choices.rarely().then(|| choices.below(5) as u32);
    if choices.octet().is_multiple_of(8) {
        let pdi = Pdi::from_interface(pdr.pdi.source_interface);
        pdr.pdi = Pdi { traffic_endpoint_ids: choices.many(2, |choices| choices.octet() % 3), ..pdi };
    }
    if choices.rarely() {
        pdr.far_id = Some(choices.below(6) as u32);
        pdr.pdi.source_interface = any_interface(choices);
        pdr.pdi.ue_ip = choices.maybe(any_ue_ip);
        pdr.pdi.network_instance = choices.maybe(|choices| choices.of(&["access", "internet", "ims", ""]).into());
        pdr.outer_header_removal = choices.maybe(|choices| OuterHeaderRemoval { description: choices.octet() % 12 });
    }
    pdr
}

fn any_pdr_update(ue: u8, choices: &mut Choices) -> UpdatePdr {
    UpdatePdr {
        precedence: choices.maybe(|choices| choices.octet().into()),
        pdi: choices.maybe(|choices| any_pdr(ue, choices).pdi),
        far_id: choices.maybe(|choices| choices.below(4) as u32),
        qer_ids: choices.many(2, |choices| choices.below(3) as u32),
        urr_ids: choices.many(1, |choices| choices.below(3) as u32),
        outer_header_removal: choices.maybe(|choices| OuterHeaderRemoval { description: choices.octet() % 12 }),
        activate: choices.few(1, any_predefined),
        deactivate: choices.few(1, any_predefined),
        ..UpdatePdr::new(choices.below(6) as u16)
    }
}

fn any_predefined(choices: &mut Choices) -> String {
    choices.of(&["dns", "slow", "closed", "dns", "slow", "unknown"]).into()
}

fn any_f_teid(choices: &mut Choices) -> FTeid {
    match choices.octet() % 8 {
        0..=3 => CHOOSE,
        4 | 5 => {
            let (v4, v6) = choices.of(&[(true, false), (false, true), (true, true)]);
            FTeid::Choose { v4, v6, id: choices.maybe(|choices| choices.octet() % 3) }
        }
        6 => FTeid::Given { teid: choices.octet().into(), v4: Some(N3), v6: None },
        _ => FTeid::Given { teid: choices.octet().into(), v4: Some(choices.of(&[N3, GNB])), v6: None },
    }
}

fn any_interface(choices: &mut Choices) -> Interface {
    choices.of(&[Interface::Access, Interface::Core, Interface::SgiLan, Interface::Other(3), Interface::Other(9)])
}

fn any_ue_ip(choices: &mut Choices) -> UeIp {
    let v6 = |choices: &mut Choices| {
        let net = Ipv6Addr::new(0x2001, 0xdb8, u16::from(choices.octet() % 8), choices.below(4) as u16, 0, 0, 0, 1);
        (net, choices.of(&[64, 56, 128, 0, 129]))
    };
    UeIp {
        v4: choices.maybe(|choices| ue(choices.octet() % 40)),
        v6: choices.maybe(v6),
        destination: choices.octet() & 1 == 0,
        choose_v4: choices.rarely(),
        choose_v6: choices.rarely().then(|| choices.of(&[64, 56, 48])),
    }
}

fn any_route(choices: &mut Choices) -> (IpAddr, u8) {
    match choices.octet().is_multiple_of(2) {
        true => (ue(choices.octet()).into(), choices.of(&[0, 8, 24, 28, 31, 32])),
        false => {
            (Ipv6Addr::new(0x2001, 0xdb8, choices.below(8) as u16, 0, 0, 0, 0, 1).into(), choices.of(&[48, 64, 128]))
        }
    }
}

fn any_endpoint(choices: &mut Choices) -> TrafficEndpoint {
    let instances = ["access", "internet", "ims"];
    TrafficEndpoint {
        id: choices.octet() % 3,
        f_teid: choices.maybe(any_f_teid),
        network_instance: choices.maybe(|choices| choices.of(&instances).into()),
        ue_ip: choices.maybe(any_ue_ip),
        framed_routes: choices.few(2, any_route),
        framed_routing: choices.rarely().then_some(0),
        qfis: choices.few(1, |choices| choices.octet() & 63),
        others: vec![],
    }
}

fn any_filter(choices: &mut Choices) -> SdfFilter {
    let texts = [
        "permit out ip from any to assigned",
        "permit out 17 from 10.0.0.0/8 1-65535 to assigned 80,81",
        "permit out 6 from 2001:db8::/32 443 to any",
        "permit in ip from any to any",
        "permit out ip from any",
        "",
    ];
    match choices.octet() {
        0xf0.. => SdfFilter { tos: Some((choices.octet(), choices.octet())), ..SdfFilter::default() },
        0xc0.. => SdfFilter { id: Some(choices.below(3) as u32), ..SdfFilter::default() },
        0x90.. => SdfFilter { id: Some(choices.below(3) as u32), ..SdfFilter::flow(choices.of(&texts)) },
        _ => SdfFilter::flow(choices.of(&texts)),
    }
}

fn any_far(choices: &mut Choices) -> CreateFar {
    let id = choices.below(4) as u32;
    let mut far = if id & 1 == 1 { uplink_far(id) } else { downlink_far(id, choices.octet().into()) };
    if choices.rarely() {
        far.apply_action = ApplyAction(choices.octet().into());
        far.forwarding_parameters = choices.maybe(|choices| ForwardingParameters {
            destination_interface: any_interface(choices),
            network_instance: None,
            outer_header_creation: choices.maybe(|_| OuterHeaderCreation::gtpu(3, GNB.into())),
            transport_level_marking: None,
            others: vec![],
        });
        far.duplicating_parameters = choices.many(2, |choices| ForwardingParameters {
            destination_interface: choices.of(&[Interface::Other(4), Interface::Core, Interface::SgiLan]),
            network_instance: None,
            outer_header_creation: choices.maybe(|_| OuterHeaderCreation::gtpu(4, GNB.into())),
            transport_level_marking: None,
            others: vec![],
        });
    }
    far
}

fn any_far_update(choices: &mut Choices) -> UpdateFar {
    UpdateFar {
        id: choices.below(4) as u32,
        apply_action: choices
            .maybe(|choices| choices.of(&[ApplyAction::DROP, ApplyAction::FORW, ApplyAction(4), ApplyAction(12)])),
        forwarding_parameters: choices.maybe(|choices| UpdateForwardingParameters {
            destination_interface: choices.maybe(any_interface),
            network_instance: choices.maybe(|choices| choices.of(&["access", "internet", ""]).into()),
            outer_header_creation: choices
                .maybe(|choices| OuterHeaderCreation::gtpu(choices.octet().into(), GNB.into())),
            send_end_marker: choices.octet() & 1 == 1,
            transport_level_marking: None,
            others: vec![],
        }),
        duplicating_parameters: vec![],
        bar_id: None,
        others: vec![],
    }
}

fn any_bar(choices: &mut Choices) -> CreateBar {
    CreateBar {
        id: choices.octet() % 3,
        notification_delay: choices.maybe(Choices::octet),
        suggested_packets: choices.maybe(Choices::octet),
        ..CreateBar::default()
    }
}

fn any_urr(choices: &mut Choices) -> CreateUrr {
    let triggers = ReportingTriggers::PERIO
        .and(ReportingTriggers::VOLTH)
        .and(ReportingTriggers::LIUSA)
        .and(ReportingTriggers::DROTH);
    let number = |choices: &mut Choices| u32::from(choices.octet());
    CreateUrr {
        id: choices.below(3) as u32,
        method: choices.of(&[
            Some(MeasurementMethod(3)),
            Some(MeasurementMethod::VOLUM),
            Some(MeasurementMethod(7)),
            None,
        ]),
        triggers: if choices.rarely() { None } else { Some(ReportingTriggers(triggers.0 & number(choices))) },
        terms: UrrTerms {
            period_s: Some(60 + number(choices)),
            volume_threshold: choices
                .maybe(|choices| Volume { total: Some(choices.octet().into()), ..Volume::default() }),
            time_quota_s: choices.maybe(number),
            monitoring_time: choices.maybe(|choices| 3_900_000_000 + number(choices)),
            inactivity_detection_time_s: choices.maybe(number),
            linked_urr_ids: choices.many(1, |choices| choices.below(3) as u32),
            dropped_threshold: choices
                .maybe(|choices| DroppedThreshold { packets: Some(number(choices).into()), octets: None }),
            quota_action_far_id: if choices.rarely() { Some(choices.below(5) as u32) } else { None },
            measurement_information: choices.maybe(|choices| choices.octet() & 0x1a),
            ..UrrTerms::default()
        },
        others: vec![],
    }
}

fn any_urr_update(choices: &mut Choices) -> UpdateUrr {
    UpdateUrr { method: None, ..any_urr(choices) }
}

fn any_rate(choices: &mut Choices) -> BitRate {
    BitRate { uplink_kbps: choices.octet().into(), downlink_kbps: (1 << 40) - 1 - u64::from(choices.octet()) }
}

fn any_qer(choices: &mut Choices) -> CreateQer {
    let id = choices.below(3) as u32;
    CreateQer {
        mbr: choices.maybe(any_rate),
        gbr: choices.maybe(any_rate),
        reflective: choices.maybe(|choices| choices.octet() & 1 == 0),
        correlation_id: if choices.rarely() { Some(choices.below(2) as u32) } else { None },
        ..qer(id)
    }
}

fn any_qer_update(choices: &mut Choices) -> UpdateQer {
    let gate = |choices: &mut Choices| GateStatus {
        uplink_open: choices.octet() & 1 == 0,
        downlink_open: choices.octet() & 1 == 0,
    };
    UpdateQer {
        id: choices.below(3) as u32,
        gate_status: choices.maybe(gate),
        mbr: choices.maybe(any_rate),
        gbr: None,
        qfi: choices.maybe(|choices| choices.octet() & 63),
        correlation_id: if choices.rarely() { Some(choices.below(2) as u32) } else { None },
        ..UpdateQer::default()
    }
}

/// Damages a message, and then (mostly) states its length right again.
fn damage(mut octets: Vec<u8>, choices: &mut Choices) -> Vec<u8> {
    let header_len = if octets[0] & 1 == 1 { 16 } else { 8 };
    match choices.octet() % 4 {
        // An element more, of any type, at the end.
        0 => {
            let (kind, value) = ([choices.octet() & 1, choices.octet()], choices.octets(40));
            octets.extend(kind.into_iter().chain((value.len() as u16).to_be_bytes()));
            octets.extend(value);
        }
        // The end is missing.
        1 => {
            let kept = header_len + choices.below(octets.len() - header_len + 1);
            octets.truncate(kept);
        }
        // Octets are others.
        _ => {
            for _ in 0..=choices.below(8) {
                let at = usize::from(u16::from_be_bytes([choices.octet(), choices.octet()])) % octets.len();
                octets[at] ^= choices.octet();
            }
        }
    }
    if !choices.rarely() && octets.len() >= 4 {
        let length = (octets.len() - 4) as u16;
        octets[2..4].copy_from_slice(&length.to_be_bytes());
    }
    octets
}
