//! What session managers say of the ways that packets take: tunnels of their own, classes of service.

use crate::support::*;
use pfcp::rule::*;
use pfcp::session::{Establishment, Modification};
use pfcp::{Cause, Fault, IeType, Request, Response};
use upf::marking::Marking;
use upf::rules::{self, FarAction};

/// *CP function* as source or destination interface.
const CP_FUNCTION: Interface = Interface::Other(3);

fn forwarding(bench: &Bench, seid: u64, far: usize) -> rules::Forwarding {
    match &bench.seen().sessions[&seid].fars[far].action {
        FarAction::Forward(forwarding) => forwarding.clone(),
        other => panic!("{other:?}"),
    }
}

/// A session whose downlink packets its manager keeps, and sends again by a tunnel that the UPF chooses.
fn kept_by_its_manager() -> Establishment {
    let mut request = establishment(1);
    let mut again = uplink_pdr(3, 1, CHOOSE);
    (again.pdi.source_interface, again.pdi.ue_ip, again.far_id) = (CP_FUNCTION, None, Some(2));
    request.create_pdrs.push(again);
    request.create_pdrs[1].far_id = Some(3);
    let mut to_manager = downlink_far(3, 0xc1);
    let parameters = to_manager.forwarding_parameters.as_mut().unwrap();
    parameters.destination_interface = CP_FUNCTION;
    parameters.outer_header_creation = Some(OuterHeaderCreation::gtpu(0xc1, SMF));
    request.create_fars.push(to_manager);
    request
}

#[test]
fn session_managers_have_tunnels_of_their_own() {
    let mut bench = Bench::associated();
    let seid = establish(&mut bench, kept_by_its_manager()).unwrap().up_f_seid.seid;
    let session = bench.seen().sessions[&seid].clone();
    let from_manager = session.pdrs.iter().find(|pdr| pdr.id == 3).unwrap();
    assert_eq!(from_manager.pdi.source_interface, rules::Interface::Core);
    assert!(bench.seen().reserved.contains(&from_manager.pdi.f_teid.unwrap().teid));
    let tunnel = rules::OuterHeaderCreation { teid: 0xc1, address: SMF };
    assert_eq!(forwarding(&bench, seid, 2).outer_header_creation, Some(tunnel));
    bench.check();
}

#[test]
fn the_way_to_and_from_a_session_manager_is_a_tunnel() {
    let mut bench = Bench::associated();
    let missing = |kind| Err(Fault::of(Cause::ConditionalIeMissing, kind));
    let mut request = kept_by_its_manager();
    request.create_pdrs[2].pdi.f_teid = None;
    assert_eq!(establish(&mut bench, request), missing(IeType::Fteid));
    let mut request = kept_by_its_manager();
    request.create_fars[2].forwarding_parameters.as_mut().unwrap().outer_header_creation = None;
    assert_eq!(establish(&mut bench, request), missing(IeType::OuterHeaderCreation));
    bench.check();
}

#[test]
fn where_a_downlink_tunnel_ends_may_become_known_later() {
    let mut bench = Bench::associated();
    // From N6, and from another UPF.
    let mut request = establishment(1);
    let mut from_n9 = uplink_pdr(3, 1, CHOOSE);
    (from_n9.pdi.source_interface, from_n9.pdi.ue_ip, from_n9.far_id) = (Interface::Core, None, Some(2));
    request.create_pdrs.push(from_n9);
    request.create_fars[1].forwarding_parameters.as_mut().unwrap().outer_header_creation = None;
    let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
    assert_eq!(forwarding(&bench, seid, 1).outer_header_creation, None);
    let outer_header_creation = Some(OuterHeaderCreation::gtpu(0x77, GNB.into()));
    let parameters = UpdateForwardingParameters { outer_header_creation, ..UpdateForwardingParameters::default() };
    let update = forwarding_update(2, parameters);
    modify(&mut bench, seid, Modification { update_fars: vec![update], ..Modification::default() }).unwrap();
    let tunnel = rules::OuterHeaderCreation { teid: 0x77, address: GNB.into() };
    assert_eq!(forwarding(&bench, seid, 1).outer_header_creation, Some(tunnel));
    bench.check();
}

#[test]
fn users_packets_are_marked_on_their_way_into_the_data_network() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    request.create_fars[0].forwarding_parameters.as_mut().unwrap().transport_level_marking = Some((0xb8, 0xfc));
    let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
    assert_eq!(forwarding(&bench, seid, 0).marking, Marking { tos: 0xb8, mask: 0xfc });
    let parameters =
        UpdateForwardingParameters { transport_level_marking: Some((0, 0)), ..UpdateForwardingParameters::default() };
    let update = forwarding_update(1, parameters);
    let request = Modification { update_fars: vec![update], ..Modification::default() };
    let Response::SessionModification(response) = bench.ask(seid, &Request::SessionModification(request)) else {
        panic!()
    };
    assert!(response.outcome.is_ok() && forwarding(&bench, seid, 0).marking.is_none());
}

/// *LI function* as destination interface.
const LI_FUNCTION: Interface = Interface::Other(4);

fn copy_to(interface: Interface, teid: u32) -> ForwardingParameters {
    ForwardingParameters {
        destination_interface: interface,
        network_instance: None,
        outer_header_creation: Some(OuterHeaderCreation::gtpu(teid, GNB.into())),
        transport_level_marking: Some((0x48, 0xff)),
        others: vec![],
    }
}

fn copies(bench: &Bench, seid: u64) -> Vec<u32> {
    let session = bench.seen().sessions[&seid].clone();
    let tunnels = session.fars[0].copies.iter().filter_map(|copy| copy.outer_header_creation);
    tunnels.map(|tunnel| tunnel.teid).collect()
}

#[test]
fn packets_are_duplicated_while_the_session_manager_says_so() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    let with_dupl = ApplyAction(ApplyAction::FORW.0 | ApplyAction::DUPL.0);
    request.create_fars[0].duplicating_parameters = vec![copy_to(LI_FUNCTION, 1), copy_to(Interface::Core, 2)];
    let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
    assert!(copies(&bench, seid).is_empty());
    let update = |action, copies| {
        let update = UpdateFar {
            id: 1,
            apply_action: action,
            forwarding_parameters: None,
            duplicating_parameters: copies,
            bar_id: None,
            others: vec![],
        };
        Modification { update_fars: vec![update], ..Modification::default() }
    };
    modify(&mut bench, seid, update(Some(with_dupl), vec![])).unwrap();
    assert_eq!(copies(&bench, seid), [1, 2]);
    let third = OuterHeaderCreation::gtpu(3, GNB.into());
    let change = UpdateForwardingParameters { outer_header_creation: Some(third), ..Default::default() };
    modify(&mut bench, seid, update(None, vec![change])).unwrap();
    assert_eq!(copies(&bench, seid), [3]);
    modify(&mut bench, seid, update(Some(ApplyAction::DROP), vec![])).unwrap();
    assert!(copies(&bench, seid).is_empty());
}

#[test]
fn copies_that_cannot_be_made_are_refused_for_the_right_reason() {
    use Cause::{ConditionalIeMissing, NoResourcesAvailable, ServiceNotSupported};
    let mut bench = Bench::associated();
    let with_dupl = ApplyAction(ApplyAction::DROP.0 | ApplyAction::DUPL.0);
    let mut refused = |copies| {
        let mut request = establishment(1);
        (request.create_fars[0].apply_action, request.create_fars[0].duplicating_parameters) = (with_dupl, copies);
        establish(&mut bench, request).unwrap_err()
    };
    let plain = ForwardingParameters { outer_header_creation: None, ..copy_to(LI_FUNCTION, 1) };
    let cases = [
        (vec![], ConditionalIeMissing, IeType::DuplicatingParameters),
        (vec![plain], ConditionalIeMissing, IeType::OuterHeaderCreation),
        (vec![copy_to(Interface::SgiLan, 1)], ServiceNotSupported, IeType::DestinationInterface),
        (vec![copy_to(Interface::Other(5), 1)], ServiceNotSupported, IeType::DestinationInterface),
        (vec![copy_to(LI_FUNCTION, 1); 9], NoResourcesAvailable, IeType::DuplicatingParameters),
    ];
    for (copies, cause, kind) in cases {
        assert_eq!(refused(copies), Fault::of(cause, kind));
    }
    assert_eq!(bench.seen(), Seen::default());
}
