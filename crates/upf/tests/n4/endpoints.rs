//! Traffic endpoints, and SDF filters that several PDRs share.

use crate::support::*;
use pfcp::rule::{FTeid, Interface, Pdi, SdfFilter, TrafficEndpoint, UeIp, UpdatePdr};
use pfcp::session::{Establishment, Modification};
use pfcp::{Cause, Fault, IeType, RuleId};
use upf::rules;

/// A session with an endpoint on either side; two PDRs uplink, one downlink.
fn with_endpoints() -> Establishment {
    let mut request = establishment(1);
    let access = TrafficEndpoint {
        id: 1,
        f_teid: Some(CHOOSE),
        network_instance: Some("access".into()),
        ue_ip: ue_ip(1, false),
        ..TrafficEndpoint::default()
    };
    let data = TrafficEndpoint {
        id: 2,
        network_instance: Some("internet".into()),
        ue_ip: ue_ip(1, false),
        framed_routes: vec![([192, 168, 1, 0].into(), 24)],
        ..TrafficEndpoint::default()
    };
    request.create_endpoints = vec![access, data];
    request.create_pdrs[0].pdi = at(Interface::Access, 1);
    request.create_pdrs[1].pdi = at(Interface::SgiLan, 2);
    let mut third = request.create_pdrs[0].clone();
    third.id = 3;
    third.precedence = 50;
    third.pdi.sdf_filters = vec![SdfFilter::flow("permit out 17 from any 53 to assigned")];
    request.create_pdrs.push(third);
    request
}

fn at(source_interface: Interface, endpoint: u8) -> Pdi {
    Pdi { traffic_endpoint_ids: vec![endpoint], ..Pdi::from_interface(source_interface) }
}

fn pdi(bench: &Bench, seid: u64, pdr: u16) -> rules::Pdi {
    let sessions = bench.seen().sessions;
    sessions[&seid].pdrs.iter().find(|held| held.id == pdr).unwrap().pdi.clone()
}

#[test]
fn pdrs_have_what_their_traffic_endpoint_has() {
    let mut bench = Bench::associated();
    let established = establish(&mut bench, with_endpoints()).unwrap();
    let seid = established.up_f_seid.seid;
    assert_eq!(established.created_pdrs, [], "the endpoint chose, not its PDRs");
    let [created] = established.created_endpoints[..] else { panic!() };
    let Some(FTeid::Given { teid, v4, v6 }) = created.f_teid else { panic!() };
    let f_teid = Some(rules::FTeid { teid, v4, v6 });
    let address = Some(rules::UeIp { v4: Some(ue(1)), v6: None });
    for id in [1, 3] {
        let uplink = pdi(&bench, seid, id);
        assert_eq!(
            (uplink.f_teid, uplink.ue_ip, uplink.network_instance.as_deref()),
            (f_teid, address, Some("access"))
        );
    }
    let downlink = pdi(&bench, seid, 2);
    assert_eq!((downlink.f_teid, downlink.ue_ip), (None, address));
    assert_eq!(downlink.framed_routes, [([192, 168, 1, 0].into(), 24)]);
    // A change of the endpoint is one of its PDRs.
    let endpoint = TrafficEndpoint { id: 1, ue_ip: ue_ip(5, false), ..TrafficEndpoint::default() };
    let request = Modification { update_endpoints: vec![endpoint], ..Modification::default() };
    modify(&mut bench, seid, request).unwrap();
    let changed = pdi(&bench, seid, 3);
    assert_eq!((changed.f_teid, changed.ue_ip.unwrap().v4), (f_teid, Some(ue(5))));
    // A PDR that comes later joins it.
    let mut pdr = with_endpoints().create_pdrs.remove(0);
    pdr.id = 4;
    let request = Modification { create_pdrs: vec![pdr], ..Modification::default() };
    assert_eq!(modify(&mut bench, seid, request).unwrap().created_pdrs, []);
    assert_eq!(pdi(&bench, seid, 4).f_teid, f_teid);
    // Its PDRs go with it.
    let request = Modification { remove_endpoints: vec![1], ..Modification::default() };
    modify(&mut bench, seid, request).unwrap();
    let left: Vec<_> = bench.seen().sessions[&seid].pdrs.iter().map(|pdr| pdr.id).collect();
    assert_eq!((left, bench.seen().reserved.len()), (vec![2], 0));
}

#[test]
fn a_traffic_endpoint_may_have_an_address_of_the_upfs_choice() {
    let mut bench = Bench::associated();
    let mut request = with_endpoints();
    for endpoint in &mut request.create_endpoints {
        endpoint.ue_ip = Some(UeIp { choose_v4: true, ..UeIp::default() });
    }
    let established = establish(&mut bench, request).unwrap();
    let told: Vec<_> = established.created_endpoints.iter().map(|created| created.ue_ip.unwrap().v4).collect();
    assert_eq!(told, [Some(ue(30)), Some(ue(30))]);
    assert_eq!(pdi(&bench, established.up_f_seid.seid, 2).ue_ip.unwrap().v4, Some(ue(30)));
    assert_eq!(bench.node.pool_usage()[0].v4, (1, 10));
}

#[test]
fn a_wrong_traffic_endpoint_is_refused_for_the_right_reason() {
    type Change = fn(&mut Establishment);
    use Cause::*;
    let cases: [(&str, Change, Cause, IeType); 7] = [
        ("unknown", |r| r.create_endpoints.truncate(1), RuleCreationModificationFailure, IeType::TrafficEndpointId),
        ("twice", |r| r.create_endpoints[1].id = 1, RuleCreationModificationFailure, IeType::CreateTrafficEndpoint),
        (
            "beside what it states",
            |r| r.create_pdrs[1].pdi.ue_ip = ue_ip(1, true),
            MandatoryIeIncorrect,
            IeType::TrafficEndpointId,
        ),
        ("two", |r| r.create_pdrs[0].pdi.traffic_endpoint_ids.push(2), ServiceNotSupported, IeType::TrafficEndpointId),
        ("without a tunnel", |r| r.create_endpoints[0].f_teid = None, ConditionalIeMissing, IeType::Fteid),
        (
            "F-TEID elsewhere",
            |r| r.create_endpoints[0].f_teid = Some(FTeid::Given { teid: 5, v4: Some(GNB), v6: None }),
            MandatoryIeIncorrect,
            IeType::Fteid,
        ),
        (
            "with a routing protocol",
            |r| r.create_endpoints[0].framed_routing = Some(1),
            ServiceNotSupported,
            IeType::FramedRouting,
        ),
    ];
    for (name, change, cause, kind) in cases {
        let mut bench = Bench::associated();
        let before = bench.seen();
        let mut request = with_endpoints();
        change(&mut request);
        let fault = establish(&mut bench, request).unwrap_err();
        assert_eq!((fault.cause, fault.offending_ie), (cause, Some(kind as u16)), "{name}");
        // A traffic endpoint has no failed rule ID; the PDR that names one that is not there has.
        assert_eq!(fault.failed_rule, (name == "unknown").then_some(RuleId::Pdr(2)), "{name}");
        assert_eq!(bench.seen(), before, "{name}");
    }
    let mut bench = Bench::associated();
    let seid = establish(&mut bench, with_endpoints()).unwrap().up_f_seid.seid;
    let mut refused = |update_endpoints, remove_endpoints| {
        let request = Modification { update_endpoints, remove_endpoints, ..Modification::default() };
        modify(&mut bench, seid, request).unwrap_err()
    };
    let endpoint = |id, f_teid| TrafficEndpoint { id, f_teid, ..TrafficEndpoint::default() };
    let failed = |kind| Fault::of(RuleCreationModificationFailure, kind);
    assert_eq!(refused(vec![endpoint(9, None)], vec![]), failed(IeType::UpdateTrafficEndpoint));
    assert_eq!(refused(vec![], vec![9]), failed(IeType::RemoveTrafficEndpoint));
    let again = Fault::of(InvalidFteidAllocationOption, IeType::Fteid);
    assert_eq!(refused(vec![endpoint(1, Some(CHOOSE))], vec![]), again);
    let given = Some(FTeid::Given { teid: 7, v4: Some(N3), v6: None });
    assert_eq!(refused(vec![endpoint(2, given)], vec![]), Fault::of(MandatoryIeIncorrect, IeType::Fteid));
}

#[test]
fn a_filter_by_its_id_is_the_one_that_another_pdr_states() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    let text = "permit out 6 from 203.0.113.0/24 443 to assigned";
    // The one that states it comes later.
    request.create_pdrs[0].pdi.sdf_filters = vec![SdfFilter { id: Some(7), ..SdfFilter::default() }];
    request.create_pdrs[1].pdi.sdf_filters = vec![SdfFilter { id: Some(7), ..SdfFilter::flow(text) }];
    let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
    let [uplink, downlink] = [1, 2].map(|id| pdi(&bench, seid, id).sdf_filters);
    assert_eq!((&uplink, uplink[0].protocol, uplink[0].from.ports[0]), (&downlink, Some(6), (443, 443)));
    // Also in a later message.
    let new = Pdi { sdf_filters: vec![SdfFilter { id: Some(7), ..SdfFilter::default() }], ..downlink_pdr(2, 1).pdi };
    let update = |pdi| Modification {
        update_pdrs: vec![UpdatePdr { pdi: Some(pdi), ..UpdatePdr::new(2) }],
        ..Modification::default()
    };
    modify(&mut bench, seid, update(new.clone())).unwrap();
    assert_eq!(pdi(&bench, seid, 2).sdf_filters, uplink);
    let unknown = Pdi { sdf_filters: vec![SdfFilter { id: Some(8), ..SdfFilter::default() }], ..new };
    let fault = Fault { offending_ie: Some(IeType::SdfFilter as u16), ..Fault::rule(RuleId::Pdr(2)) };
    assert_eq!(modify(&mut bench, seid, update(unknown)), Err(fault));
}
