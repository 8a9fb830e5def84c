//! Requests whose elements, at any depth, are missing, doubled, cut short, too long, or where they do not belong: each is
//! answered, what is refused is blamed on something and changes nothing, and what is accepted is in force as a whole.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::support::*;
use pfcp::node::{AssociationRelease, AssociationSetup, AssociationUpdate, Manager};
use pfcp::pfd::{ApplicationPfds, PfdContents, PfdManagement};
use pfcp::rule::*;
use pfcp::session::{Establishment, FSeid, Modification};
use pfcp::{Cause, Fault, Header, IeType, NodeId, RecoveryTimeStamp, Request, Response, Volume};

/// An element as it is encoded.
#[derive(Clone)]
struct Element {
    kind: u16,
    content: Content,
}

#[derive(Clone)]
enum Content {
    Octets(Vec<u8>),
    Group(Vec<Element>),
}

/// Types of groups.
fn is_group(kind: u16) -> bool {
    let of = |group: IeType| group as u16 == kind;
    let rules = [IeType::CreatePdr, IeType::CreateFar, IeType::CreateQer, IeType::CreateUrr, IeType::CreateBar];
    let updates = [IeType::UpdatePdr, IeType::UpdateFar, IeType::UpdateQer, IeType::UpdateUrr, IeType::UpdateBar];
    let removals = [IeType::RemovePdr, IeType::RemoveFar, IeType::RemoveQer, IeType::RemoveUrr, IeType::RemoveBar];
    let endpoints = [IeType::CreateTrafficEndpoint, IeType::UpdateTrafficEndpoint, IeType::RemoveTrafficEndpoint];
    let within = [IeType::Pdi, IeType::ForwardingParameters, IeType::UpdateForwardingParameters, IeType::QueryUrr];
    let copies = [IeType::DuplicatingParameters, IeType::UpdateDuplicatingParameters];
    let between_nodes = [IeType::ApplicationIdsPfds, IeType::PfdContext, IeType::PfcpSessionRetentionInformation];
    [&rules[..], &updates, &removals, &endpoints, &within, &copies, &between_nodes].concat().into_iter().any(of)
}

fn parse(mut octets: &[u8]) -> Vec<Element> {
    let mut elements = vec![];
    while let [a, b, c, d, rest @ ..] = octets {
        let (kind, len) = (u16::from_be_bytes([*a, *b]), usize::from(u16::from_be_bytes([*c, *d])));
        let (value, others) = rest.split_at(len);
        let content = if is_group(kind) { Content::Group(parse(value)) } else { Content::Octets(value.to_vec()) };
        elements.push(Element { kind, content });
        octets = others;
    }
    elements
}

fn encode(elements: &[Element]) -> Vec<u8> {
    let mut octets = vec![];
    for element in elements {
        let value = match &element.content {
            Content::Octets(value) => value.clone(),
            Content::Group(elements) => encode(elements),
        };
        octets.extend(element.kind.to_be_bytes());
        octets.extend((value.len() as u16).to_be_bytes());
        octets.extend(value);
    }
    octets
}

/// The lists of elements in `elements`, itself first, by the way to them.
fn lists(elements: &[Element]) -> Vec<Vec<usize>> {
    let mut ways = vec![vec![]];
    for (at, element) in elements.iter().enumerate() {
        if let Content::Group(within) = &element.content {
            ways.extend(lists(within).into_iter().map(|way| [vec![at], way].concat()));
        }
    }
    ways
}

fn list<'e>(elements: &'e mut Vec<Element>, way: &[usize]) -> &'e mut Vec<Element> {
    match way {
        [] => elements,
        [first, rest @ ..] => match &mut elements[*first].content {
            Content::Group(within) => list(within, rest),
            Content::Octets(_) => unreachable!("ways lead through groups"),
        },
    }
}

/// What may be wrong with one element of a list.
fn damages(list: &[Element], at: usize) -> Vec<(String, Vec<Element>)> {
    let with = |change: &dyn Fn(&mut Vec<Element>)| {
        let mut changed = list.to_vec();
        change(&mut changed);
        changed
    };
    let element = &list[at];
    let value = encode(std::slice::from_ref(element))[4..].to_vec();
    let replaced = |value: &[u8]| with(&|list| list[at].content = Content::Octets(value.to_vec()));
    let mut damaged = vec![
        ("missing".to_owned(), with(&|list| drop(list.remove(at)))),
        ("doubled".to_owned(), with(&|list| list.insert(at, element.clone()))),
        ("longer".to_owned(), replaced(&[&value[..], &[0; 3]].concat())),
        ("long".to_owned(), replaced(&[&value[..], &[0xff; 3_000]].concat())),
        ("all ones".to_owned(), replaced(&vec![0xff; value.len()])),
        ("all zeros".to_owned(), replaced(&vec![0; value.len()])),
        ("within itself".to_owned(), with(&|list| list[at].content = Content::Group(vec![element.clone()]))),
    ];
    damaged.extend((0..value.len()).map(|len| (format!("cut to {len}"), replaced(&value[..len]))));
    damaged
}

/// Every way to damage one element of a message, with its name.
fn variants(elements: &[Element]) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![];
    for way in lists(elements) {
        let mut whole = elements.to_vec();
        let within = list(&mut whole, &way).clone();
        for at in 0..within.len() {
            for (name, damaged) in damages(&within, at) {
                *list(&mut whole, &way) = damaged;
                all.push((format!("{way:?}: {} {name}", within[at].kind), encode(&whole)));
            }
            // Somewhere else: out in the message, and in each group of it.
            let mut rest = elements.to_vec();
            let moved = list(&mut rest, &way).remove(at);
            for target in lists(&rest) {
                let mut wrong = rest.clone();
                list(&mut wrong, &target).push(moved.clone());
                all.push((format!("{way:?}: {} moved to {target:?}", moved.kind), encode(&wrong)));
            }
        }
    }
    all
}

fn has_seid(request: &[u8]) -> bool {
    request[0] & 1 != 0
}

/// The encoded request with another body.
fn with_body(request: &[u8], sequence: u32, body: &[u8]) -> Vec<u8> {
    let header = if has_seid(request) { 16 } else { 8 };
    let mut octets = [&request[..header], body].concat();
    let length = (octets.len() - 4) as u16;
    octets[2..4].copy_from_slice(&length.to_be_bytes());
    octets[header - 4..header - 1].copy_from_slice(&sequence.to_be_bytes()[1..]);
    octets
}

/// Sends every variant of the request to a node that `prepare` makes; how often each cause came.
fn try_all(request: &Request, prepare: impl Fn() -> (Bench, u64)) -> BTreeMap<u8, usize> {
    let (mut bench, mut seid) = prepare();
    let whole = request.encode(seid, 1);
    let header = if has_seid(&whole) { 16 } else { 8 };
    let mut causes = BTreeMap::new();
    for (name, body) in variants(&parse(&whole[header..])) {
        bench.sequence += 1;
        let mut octets = with_body(&whole, bench.sequence, &body);
        if has_seid(&whole) {
            octets[4..12].copy_from_slice(&seid.to_be_bytes());
        }
        let before = bench.seen();
        let answer = bench.octets(&octets).unwrap_or_else(|| panic!("{name}: not answered"));
        let (header, body) = Header::parse(&answer).unwrap();
        let outcome = match Response::parse(&header, body).unwrap() {
            Response::SessionEstablishment(response) => response.outcome.map(|_| ()),
            Response::SessionModification(response) => response.outcome.map(|_| ()),
            Response::AssociationSetup(response) => response.outcome,
            Response::AssociationUpdate(response) | Response::AssociationRelease(response) => response.outcome,
            Response::PfdManagement(outcome) => outcome,
            other => panic!("{name}: {other:?}"),
        };
        bench.check();
        *causes.entry(outcome.map_or_else(|fault| fault.cause, |()| Cause::RequestAccepted) as u8).or_default() += 1;
        match outcome {
            Ok(()) => {
                bench.check_all();
                (bench, seid) = prepare();
            }
            Err(fault) => {
                assert_eq!(bench.seen(), before, "{name}: {fault} has changed something");
                blames_something(&name, &fault);
            }
        }
    }
    causes
}

fn blames_something(name: &str, fault: &Fault) {
    use Cause::*;
    assert_ne!(fault.cause, SystemFailure, "{name}");
    let needs_element =
        [MandatoryIeMissing, ConditionalIeMissing, MandatoryIeIncorrect, InvalidLength, ServiceNotSupported];
    assert!(!needs_element.contains(&fault.cause) || fault.offending_ie.is_some(), "{name}: {fault}");
    let needs_rule = fault.cause == RuleCreationModificationFailure;
    assert!(!needs_rule || fault.failed_rule.is_some() || fault.offending_ie.is_some(), "{name}: {fault}");
}

fn metered(id: u32) -> CreateUrr {
    CreateUrr {
        id,
        method: Some(MeasurementMethod::VOLUM),
        triggers: Some(ReportingTriggers::VOLTH),
        terms: UrrTerms {
            volume_threshold: Some(Volume { total: Some(1_000_000), ..Volume::default() }),
            ..UrrTerms::default()
        },
        others: vec![],
    }
}

/// A session with something of each kind of rule.
fn rich() -> Establishment {
    let mut request = establishment(1);
    request.create_pdrs[0].pdi.sdf_filters = vec![SdfFilter::flow("permit out 17 from 203.0.113.0/24 53 to assigned")];
    request.create_pdrs[0].pdi.qfis = vec![9];
    request.create_pdrs[0].urr_ids = vec![1];
    request.create_pdrs[1].pdi.framed_routes = vec![(std::net::IpAddr::from([192, 168, 0, 0]), 24)];
    request.create_pdrs[1].urr_ids = vec![1];
    let uplink = CreatePdr {
        pdi: Pdi { traffic_endpoint_ids: vec![1], ..Pdi::from_interface(Interface::Access) },
        ..uplink_pdr(3, 1, CHOOSE)
    };
    request.create_pdrs.push(uplink);
    request.create_fars[1].apply_action = ApplyAction(ApplyAction::BUFF.0 | ApplyAction::NOCP.0);
    request.create_fars[1].bar_id = Some(1);
    request.create_qers[0].correlation_id = Some(7);
    request.create_urrs = vec![metered(1)];
    request.create_bars = vec![CreateBar { id: 1, suggested_packets: Some(5), ..CreateBar::default() }];
    request.create_endpoints = vec![TrafficEndpoint {
        id: 1,
        f_teid: Some(CHOOSE),
        network_instance: Some("access".into()),
        ue_ip: Some(UeIp { v4: Some(ue(1)), ..UeIp::default() }),
        ..TrafficEndpoint::default()
    }];
    request
}

/// A change of something of each kind.
fn changes() -> Modification {
    let tunnel = OuterHeaderCreation::gtpu(0x99, GNB.into());
    let parameters = UpdateForwardingParameters {
        outer_header_creation: Some(tunnel),
        send_end_marker: true,
        ..UpdateForwardingParameters::default()
    };
    Modification {
        remove_pdrs: vec![3],
        create_pdrs: vec![downlink_pdr(4, 1)],
        update_pdrs: vec![UpdatePdr { precedence: Some(5), urr_ids: vec![1], ..UpdatePdr::new(2) }],
        update_fars: vec![UpdateFar {
            id: 2,
            apply_action: Some(ApplyAction::FORW),
            forwarding_parameters: Some(parameters),
            duplicating_parameters: vec![],
            bar_id: None,
            others: vec![],
        }],
        update_qers: vec![UpdateQer { id: 1, qfi: Some(5), ..UpdateQer::default() }],
        update_bars: vec![CreateBar { id: 1, notification_delay: Some(2), ..CreateBar::default() }],
        create_urrs: vec![metered(2)],
        query_urrs: vec![1],
        update_endpoints: vec![TrafficEndpoint { id: 1, qfis: vec![4], ..TrafficEndpoint::default() }],
        ..Modification::default()
    }
}

/// A session with elements that [`rich`] has not: those of its rules that exclude each other.
fn richer() -> Establishment {
    let mut request = establishment(1);
    request.inactivity_timer_s = Some(60);
    let filter = SdfFilter {
        tos: Some((0xb8, 0xfc)),
        spi: Some(7),
        id: Some(3),
        ..SdfFilter::flow("permit out 50 from any to assigned")
    };
    let labelled = SdfFilter { flow_label: Some(5), ..SdfFilter::flow("permit out ip from any to assigned") };
    request.create_pdrs[0].pdi.sdf_filters = vec![filter, labelled];
    request.create_pdrs[0].pdi.framed_routing = Some(0);
    request.create_pdrs[0].activate = vec!["dns".into()];
    let pdi = &mut request.create_pdrs[1].pdi;
    pdi.ue_ip = Some(UeIp { choose_v4: true, choose_v6: Some(64), destination: true, ..UeIp::default() });
    pdi.application_id = Some("web".into());
    request.create_pdrs[1].address_pools = vec!["internet".into()];
    request.create_pdrs.iter_mut().for_each(|pdr| pdr.urr_ids = vec![1, 2]);
    let far = &mut request.create_fars[1];
    far.apply_action = ApplyAction(ApplyAction::FORW.0 | ApplyAction::DUPL.0);
    far.duplicating_parameters = vec![ForwardingParameters {
        transport_level_marking: Some((0x48, 0xfc)),
        network_instance: None,
        ..far.forwarding_parameters.clone().unwrap()
    }];
    let outer = far.forwarding_parameters.as_mut().unwrap();
    outer.transport_level_marking = Some((0x48, 0xfc));
    let drop = CreateFar { apply_action: ApplyAction::DROP, forwarding_parameters: None, ..uplink_far(3) };
    request.create_fars.extend([drop.clone(), CreateFar { id: 4, ..drop }]);
    request.create_qers[0].reflective = Some(true);
    request.create_qers[0].gbr = Some(BitRate { uplink_kbps: 1, downlink_kbps: 1 });
    request.create_qers.push(qer(2));
    request.create_urrs = vec![everything(1), metered(2), metered(3)];
    request.create_bars =
        [1, 2].map(|id| CreateBar { id, notification_delay: Some(1), ..CreateBar::default() }).to_vec();
    request.create_endpoints = vec![TrafficEndpoint { id: 1, ..TrafficEndpoint::default() }];
    request
}

/// A usage reporting rule with all terms.
fn everything(id: u32) -> CreateUrr {
    use ReportingTriggers as On;
    let some = |total| Some(Volume { total: Some(total), uplink: Some(total), downlink: Some(total) });
    let on = [On::PERIO, On::VOLTH, On::TIMTH, On::QUHTI, On::START, On::STOPT, On::DROTH, On::LIUSA, On::VOLQU];
    let on = [&on[..], &[On::TIMQU, On::QUVTI]].concat().into_iter().reduce(On::and);
    let terms = UrrTerms {
        period_s: Some(60),
        volume_threshold: some(1 << 20),
        volume_quota: some(1 << 30),
        time_threshold_s: Some(60),
        time_quota_s: Some(600),
        quota_holding_time_s: Some(60),
        quota_validity_time_s: Some(600),
        monitoring_time: Some(3_900_009_000),
        subsequent_volume_threshold: some(1 << 21),
        subsequent_time_threshold_s: Some(61),
        subsequent_volume_quota: some(1 << 31),
        subsequent_time_quota_s: Some(601),
        inactivity_detection_time_s: Some(10),
        linked_urr_ids: vec![2],
        dropped_threshold: Some(pfcp::DroppedThreshold { packets: Some(9), octets: Some(9_000) }),
        measurement_information: Some(0),
        quota_action_far_id: Some(3),
    };
    let method = MeasurementMethod(MeasurementMethod::DURAT.0 | MeasurementMethod::VOLUM.0);
    CreateUrr { id, method: Some(method), triggers: on, terms, others: vec![] }
}

/// With an association and an application.
fn described() -> Bench {
    let mut bench = Bench::associated();
    assert_eq!(bench.ask(0, &Request::PfdManagement(web())), Response::PfdManagement(Ok(())));
    bench
}

fn web() -> PfdManagement {
    let pfd = |text: &str| PfdContents { flow_description: Some(text.into()), ..PfdContents::default() };
    let pfds = vec![pfd("permit out 6 from any 80 to assigned"), pfd("permit out 6 from any 443 to assigned")];
    let node_id = Some(NodeId::Fqdn("smf".into()));
    PfdManagement { node_id, applications: vec![ApplicationPfds { id: "web".into(), pfds }] }
}

/// Each of the causes that there are for a broken element came.
fn all_came(causes: &BTreeMap<u8, usize>) {
    let broken = [Cause::MandatoryIeMissing, Cause::InvalidLength, Cause::MandatoryIeIncorrect];
    let referring = [Cause::RuleCreationModificationFailure, Cause::ConditionalIeMissing, Cause::RequestAccepted];
    assert!(broken.iter().chain(&referring).all(|&cause| causes.contains_key(&(cause as u8))), "{causes:?}");
}

#[test]
fn an_establishment_with_any_element_damaged_has_a_cause_or_is_in_force() {
    let request = Request::SessionEstablishment(rich());
    let (mut bench, _) = (Bench::associated(), 0);
    establish(&mut bench, rich()).expect("undamaged it is accepted");
    all_came(&try_all(&request, || (Bench::associated(), 0)));
}

#[test]
fn a_modification_with_any_element_damaged_has_a_cause_or_is_in_force() {
    let prepare = || {
        let mut bench = Bench::associated();
        let seid = establish(&mut bench, rich()).unwrap().up_f_seid.seid;
        (bench, seid)
    };
    let (mut bench, seid) = prepare();
    let outcome = bench.ask(seid, &Request::SessionModification(changes()));
    assert!(matches!(&outcome, Response::SessionModification(response) if response.outcome.is_ok()), "{outcome:?}");
    all_came(&try_all(&Request::SessionModification(changes()), prepare));
}

#[test]
fn whatever_element_of_a_session_is_damaged_there_is_a_cause_or_it_is_in_force() {
    establish(&mut described(), richer()).expect("undamaged it is accepted");
    all_came(&try_all(&Request::SessionEstablishment(richer()), || (described(), 0)));
    let prepare = || {
        let mut bench = described();
        let seid = establish(&mut bench, richer()).unwrap().up_f_seid.seid;
        (bench, seid)
    };
    let CreateUrr { id, method, triggers, terms, .. } = everything(1);
    let parameters = UpdateForwardingParameters {
        destination_interface: Some(Interface::Access),
        network_instance: Some("access".into()),
        outer_header_creation: Some(OuterHeaderCreation::gtpu(0x99, GNB.into())),
        transport_level_marking: Some((0x28, 0xfc)),
        ..UpdateForwardingParameters::default()
    };
    let given = FTeid::Given { teid: 0x1234_5678, v4: Some(Ipv4Addr::new(10, 3, 0, 1)), v6: None };
    let change = Modification {
        cp_f_seid: Some(FSeid::new(0x5001, SMF)),
        update_pdrs: vec![UpdatePdr {
            pdi: Some(Pdi { f_teid: Some(given), ..richer().create_pdrs[0].pdi.clone() }),
            far_id: Some(1),
            qer_ids: vec![1],
            outer_header_removal: Some(OuterHeaderRemoval::GTPU_UDP_IPV4),
            deactivate: vec!["dns".into()],
            activate: vec!["slow".into()],
            ..UpdatePdr::new(1)
        }],
        update_fars: vec![UpdateFar {
            id: 2,
            apply_action: Some(ApplyAction(ApplyAction::FORW.0 | ApplyAction::DUPL.0)),
            forwarding_parameters: Some(parameters.clone()),
            duplicating_parameters: vec![UpdateForwardingParameters { network_instance: None, ..parameters }],
            bar_id: Some(1),
            others: vec![],
        }],
        update_qers: vec![UpdateQer {
            id: 1,
            gate_status: Some(GateStatus { uplink_open: true, downlink_open: false }),
            mbr: Some(BitRate { uplink_kbps: 5, downlink_kbps: 6 }),
            gbr: Some(BitRate { uplink_kbps: 1, downlink_kbps: 1 }),
            reflective: Some(false),
            correlation_id: Some(9),
            ..UpdateQer::default()
        }],
        update_urrs: vec![UpdateUrr { id, method, triggers, terms, others: vec![] }],
        remove_fars: vec![4],
        remove_qers: vec![2],
        remove_urrs: vec![3],
        remove_bars: vec![2],
        remove_endpoints: vec![1],
        query_urrs: vec![1],
        flags: Modification::DROBU,
        inactivity_timer_s: Some(90),
        ..Modification::default()
    };
    let (mut bench, seid) = prepare();
    modify(&mut bench, seid, change.clone()).expect("undamaged it is accepted");
    all_came(&try_all(&Request::SessionModification(change), prepare));
}

#[test]
fn a_message_between_nodes_with_any_element_damaged_has_a_cause_or_is_done() {
    let name = || NodeId::Fqdn("smf".into());
    let manager = Manager {
        cp_features: Some(vec![1, 0]),
        set_id: Some("set.example.org".into()),
        alternatives: vec![SMF, GNB.into()],
    };
    let setup = AssociationSetup {
        manager: manager.clone(),
        retain: Some(vec![SMF]),
        ..AssociationSetup::new(name(), RecoveryTimeStamp(1_000))
    };
    let update = AssociationUpdate { manager, ..AssociationUpdate::new(name()) };
    let requests = [
        Request::AssociationSetup(setup),
        Request::AssociationUpdate(update),
        Request::AssociationRelease(AssociationRelease { node_id: name() }),
        Request::PfdManagement(web()),
    ];
    for request in requests {
        let causes = try_all(&request, || (described(), 0));
        let of = |cause: Cause| causes.contains_key(&(cause as u8));
        assert!(of(Cause::RequestAccepted), "{causes:?}");
        assert!(of(Cause::MandatoryIeIncorrect) || of(Cause::InvalidLength), "{causes:?}");
    }
}

#[test]
fn rules_that_refer_to_nothing_or_to_themselves_are_refused() {
    type Change = fn(&mut Establishment);
    let cases: [(&str, Change, IeType); 6] = [
        ("no such FAR", |r| r.create_pdrs[0].far_id = Some(9), IeType::FarId),
        ("no such QER", |r| r.create_pdrs[0].qer_ids = vec![9], IeType::QerId),
        ("no such URR", |r| r.create_pdrs[0].urr_ids = vec![9], IeType::UrrId),
        ("no such BAR", |r| r.create_fars[1].bar_id = Some(9), IeType::BarId),
        ("no such endpoint", |r| r.create_pdrs[2].pdi.traffic_endpoint_ids = vec![9], IeType::TrafficEndpointId),
        (
            "a filter that is itself",
            |r| {
                let itself = SdfFilter { id: Some(3), ..SdfFilter::default() };
                r.create_pdrs[0].pdi.sdf_filters = vec![itself.clone()];
                r.create_pdrs[1].pdi.sdf_filters = vec![itself];
            },
            IeType::SdfFilter,
        ),
    ];
    for (name, change, kind) in cases {
        let mut bench = Bench::associated();
        let mut request = rich();
        change(&mut request);
        let fault = establish(&mut bench, request).unwrap_err();
        assert_eq!(
            (fault.cause, fault.offending_ie),
            (Cause::RuleCreationModificationFailure, Some(kind as u16)),
            "{name}"
        );
        assert!(fault.failed_rule.is_some(), "{name}");
        assert_eq!(bench.seen(), Seen::default(), "{name}");
    }
    // A rule that is linked to itself is reported with itself: once.
    let mut bench = Bench::associated();
    let mut request = rich();
    request.create_urrs[0].terms.linked_urr_ids = vec![1];
    request.create_urrs[0].triggers = Some(ReportingTriggers::VOLTH.and(ReportingTriggers::LIUSA));
    let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
    let query = Modification { query_urrs: vec![1], ..Modification::default() };
    let Response::SessionModification(response) = bench.ask(seid, &Request::SessionModification(query)) else {
        panic!()
    };
    assert_eq!(response.outcome.unwrap().usage.len(), 1);
}
