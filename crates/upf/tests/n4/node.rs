//! What a session manager may rely on at N4, message by message.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::support::*;
use pfcp::rule::*;
use pfcp::session::{Establishment, FSeid, Modification};
use pfcp::{Cause, Fault, Header, IeType, Request, Response, RuleId};
use upf::rules::{self, FarAction};
use upf::tables::ApplyError;

#[test]
fn a_session_is_in_force_as_stated_when_the_response_comes() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    request.create_pdrs[0].pdi.sdf_filters = vec![SdfFilter {
        tos: Some((0xb8, 0xfc)),
        spi: Some(7),
        flow_label: Some(0xf0_0009),
        ..SdfFilter::flow("permit out 17 from 203.0.113.0/24 53 to assigned")
    }];
    request.create_pdrs[0].pdi.qfis = vec![9];
    request.create_pdrs[1].precedence = 50;
    let established = establish(&mut bench, request).unwrap();
    assert_eq!(established.up_f_seid, FSeid::new(established.up_f_seid.seid, config().address));
    assert_eq!(established.created_pdrs.len(), 1);
    let teid = chosen(&established.created_pdrs, 1);

    let session = &bench.seen().sessions[&established.up_f_seid.seid];
    assert_eq!(session.cp_f_seid, rules::CpFSeid { seid: 0x5001, address: SMF });
    assert_eq!(session.pdrs.iter().map(|pdr| pdr.id).collect::<Vec<_>>(), [2, 1], "by precedence");
    let [downlink, uplink] = &session.pdrs[..] else { panic!() };
    assert_eq!(uplink.pdi.f_teid, Some(rules::FTeid { teid, v4: Some(N3), v6: None }));
    assert_eq!(uplink.pdi.source_interface, rules::Interface::Access);
    assert_eq!(uplink.pdi.ue_ip, Some(rules::UeIp { v4: Some(ue(1)), v6: None }));
    assert_eq!(uplink.outer_header_removal, Some(rules::OuterHeaderRemoval::GtpuUdpIpv4));
    assert_eq!((uplink.far_id, &uplink.qer_ids[..], &uplink.pdi.qfis[..]), (1, &[1][..], &[9][..]));
    let filter = &uplink.pdi.sdf_filters[0];
    assert_eq!((filter.protocol, filter.tos), (Some(17), Some((0xb8, 0xfc))));
    assert_eq!(filter.from.ports, [(53, 53)]);
    assert_eq!((downlink.pdi.source_interface, downlink.pdi.f_teid), (rules::Interface::SgiLan, None));
    let FarAction::Forward(forwarding) = &session.fars[1].action else { panic!() };
    let tunnel = rules::OuterHeaderCreation { teid: 0x7001, address: GNB.into() };
    assert_eq!(forwarding.outer_header_creation, Some(tunnel));
    assert_eq!(
        session.qers,
        [rules::Qer {
            id: 1,
            uplink_mbr_bps: Some(50_000_000),
            downlink_mbr_bps: Some(200_000_000),
            qfi: Some(9),
            ..rules::Qer::default()
        }]
    );
    bench.check();
}

#[test]
fn core_without_a_tunnel_is_n6() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    request.create_pdrs[1].pdi.source_interface = Interface::Core;
    request.create_fars[0].forwarding_parameters.as_mut().unwrap().destination_interface = Interface::Core;
    establish(&mut bench, request).unwrap();
}

#[test]
fn an_intermediate_upf_has_tunnels_on_both_sides() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    // From the RAN on to another UPF, and back.
    request.create_fars[0] = CreateFar { id: 1, ..downlink_far(1, 0x9001) };
    request.create_fars[0].forwarding_parameters.as_mut().unwrap().destination_interface = Interface::Core;
    let from_core = Pdi { f_teid: Some(CHOOSE), ..Pdi::from_interface(Interface::Core) };
    request.create_pdrs[1] =
        CreatePdr { pdi: from_core, outer_header_removal: Some(OuterHeaderRemoval::GTPU_UDP_IP), ..downlink_pdr(2, 1) };
    let established = establish(&mut bench, request).unwrap();
    let session = &bench.seen().sessions[&established.up_f_seid.seid];
    assert_eq!(session.pdrs[1].pdi.source_interface, rules::Interface::Core);
    assert_ne!(chosen(&established.created_pdrs, 1), chosen(&established.created_pdrs, 2));
    let FarAction::Forward(forwarding) = &session.fars[0].action else { panic!() };
    assert_eq!(forwarding.destination_interface, rules::Interface::Core);
    bench.check();
}

#[test]
fn an_f_teid_may_be_given() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    let given = FTeid::Given { teid: 0x1234, v4: Some(N3), v6: None };
    request.create_pdrs[0].pdi.f_teid = Some(given);
    let established = establish(&mut bench, request).unwrap();
    assert_eq!(established.created_pdrs, [], "nothing was chosen");
    assert_eq!(bench.seen().reserved.len(), 0);
    // By another session it cannot be given again.
    let mut other = establishment(2);
    other.create_pdrs[0].pdi.f_teid = Some(given);
    let fault = Fault { offending_ie: Some(IeType::Fteid as u16), ..Fault::rule(RuleId::Pdr(1)) };
    assert_eq!(establish(&mut bench, other), Err(fault));
    bench.check();
}

#[test]
fn rules_with_the_same_choose_id_share_an_f_teid() {
    let mut bench = Bench::associated();
    let choose = |v6, id| FTeid::Choose { v4: true, v6, id };
    let mut request = establishment(1);
    request.create_pdrs.extend([
        uplink_pdr(3, 1, choose(true, Some(7))),
        uplink_pdr(4, 1, choose(true, Some(7))),
        uplink_pdr(5, 1, choose(false, Some(8))),
    ]);
    let created = establish(&mut bench, request.clone()).unwrap().created_pdrs;
    let teids: Vec<_> = [1, 3, 4, 5].map(|pdr| chosen(&created, pdr)).into();
    assert!(teids[1] == teids[2] && teids[0] != teids[1] && teids[1] != teids[3]);
    assert_eq!(bench.seen().reserved.len(), 3);
    // One ID for different addresses is no choice.
    let mut other = establishment(2);
    other.create_pdrs.extend([uplink_pdr(3, 2, choose(true, Some(7))), uplink_pdr(4, 2, choose(false, Some(7)))]);
    let before = bench.seen();
    let fault = Fault::of(Cause::InvalidFteidAllocationOption, IeType::Fteid);
    assert_eq!(establish(&mut bench, other), Err(fault));
    assert_eq!(bench.seen(), before);
}

#[test]
fn of_both_versions_of_an_f_teid_to_choose_those_are_chosen_that_n3_has() {
    let v6: Ipv6Addr = "2001:db8:3::1".parse().unwrap();
    let choose = |v4, v6| FTeid::Choose { v4, v6, id: None };
    for (local, n3) in [(IpAddr::V4(N3), (Some(N3), None)), (IpAddr::V6(v6), (None, Some(v6)))] {
        let mut bench = Bench::at(&[local]);
        let mut request = establishment(1);
        request.create_pdrs[0].pdi.f_teid = Some(choose(true, true));
        request.create_fars[1].apply_action = ApplyAction::DROP;
        request.create_fars[1].forwarding_parameters = None;
        let created = establish(&mut bench, request.clone()).unwrap().created_pdrs;
        let Some(FTeid::Given { v4, v6, .. }) = created[0].f_teid else { panic!() };
        assert_eq!((v4, v6), n3);
        // One that is not there is not to be had.
        let before = bench.seen();
        request.create_pdrs = vec![uplink_pdr(1, 2, choose(n3.0.is_none(), n3.1.is_none()))];
        let fault = Fault::of(Cause::NoResourcesAvailable, IeType::Fteid);
        assert_eq!(establish(&mut bench, request), Err(fault));
        assert_eq!(bench.seen(), before);
    }
}

#[test]
fn a_session_follows_its_modifications() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    request.create_fars[1] = CreateFar {
        id: 2,
        apply_action: ApplyAction::DROP,
        forwarding_parameters: None,
        duplicating_parameters: vec![],
        bar_id: None,
        others: vec![],
    };
    let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
    let far = |bench: &Bench| bench.seen().sessions[&seid].fars[1].action.clone();
    assert_eq!(far(&bench), FarAction::Drop);

    // The gNB's tunnel is known now.
    let tunnel = |teid, address: &str| UpdateForwardingParameters {
        destination_interface: Some(Interface::Access),
        outer_header_creation: Some(OuterHeaderCreation::gtpu(teid, address.parse().unwrap())),
        ..Default::default()
    };
    let update = |action, parameters| Modification {
        update_fars: vec![UpdateFar {
            id: 2,
            apply_action: action,
            forwarding_parameters: parameters,
            duplicating_parameters: vec![],
            bar_id: None,
            others: vec![],
        }],
        ..Default::default()
    };
    modify(&mut bench, seid, update(Some(ApplyAction::FORW), Some(tunnel(5, "10.3.0.9")))).unwrap();
    let FarAction::Forward(forwarding) = far(&bench) else { panic!() };
    assert_eq!(forwarding.outer_header_creation.unwrap().teid, 5);
    // Dropping for a while forgets nothing.
    modify(&mut bench, seid, update(Some(ApplyAction::DROP), None)).unwrap();
    assert_eq!(far(&bench), FarAction::Drop);
    modify(&mut bench, seid, update(Some(ApplyAction::FORW), None)).unwrap();
    assert_eq!(far(&bench), FarAction::Forward(forwarding));

    // A second flow comes and goes, with rules of its own.
    let mut pdr = uplink_pdr(3, 1, CHOOSE);
    (pdr.far_id, pdr.qer_ids) = (Some(3), vec![2]);
    let add = Modification {
        create_pdrs: vec![pdr],
        create_fars: vec![uplink_far(3)],
        create_qers: vec![qer(2)],
        ..Default::default()
    };
    let created = modify(&mut bench, seid, add).unwrap().created_pdrs;
    assert!(bench.seen().reserved.contains(&chosen(&created, 3)));
    let gate = GateStatus { uplink_open: false, downlink_open: true };
    let mbr = BitRate { uplink_kbps: 1, downlink_kbps: (1 << 40) - 1 };
    let qer = UpdateQer { id: 2, gate_status: Some(gate), mbr: Some(mbr), ..UpdateQer::default() };
    let pdr = UpdatePdr { precedence: Some(1), qer_ids: vec![1, 2, 2], ..UpdatePdr::new(3) };
    let change = Modification {
        cp_f_seid: Some(FSeid::new(0x99, SMF)),
        update_pdrs: vec![pdr],
        update_qers: vec![qer],
        ..Default::default()
    };
    modify(&mut bench, seid, change).unwrap();
    let session = bench.seen().sessions[&seid].clone();
    assert_eq!((session.pdrs[0].id, &session.pdrs[0].qer_ids[..]), (3, &[1, 2][..]));
    assert_eq!(session.qers[1].downlink_mbr_bps, Some(((1 << 40) - 1) * 1_000));
    assert_eq!((session.qers[1].uplink_gate_open, session.qers[1].qfi), (false, Some(9)));
    assert_eq!(session.cp_f_seid.seid, 0x99);
    let removal =
        Modification { remove_pdrs: vec![3], remove_fars: vec![3], remove_qers: vec![2], ..Default::default() };
    modify(&mut bench, seid, removal).unwrap();
    assert_eq!(bench.seen().sessions[&seid].pdrs.len(), 2);
    assert_eq!(bench.seen().reserved.len(), 1);
    bench.check();

    assert_eq!(delete(&mut bench, seid), Ok(()));
    assert_eq!(bench.seen(), Seen::default());
    assert_eq!(delete(&mut bench, seid), Err(Fault::new(Cause::SessionContextNotFound)));
    let nothing = Modification::default();
    assert_eq!(modify(&mut bench, seid, nothing), Err(Fault::new(Cause::SessionContextNotFound)));
}

/// A fault by name: cause, and the element to blame.
fn blame(cause: Cause, kind: IeType) -> Fault {
    Fault::of(cause, kind)
}

fn failed(rule: RuleId, kind: IeType) -> Fault {
    Fault { offending_ie: Some(kind as u16), ..Fault::rule(rule) }
}

type Change = fn(&mut Establishment);

/// Establishments with something wrong, by name, are refused for the reason beside them, and leave no trace.
fn refused(cases: &[(&str, Change, Fault)]) {
    for &(name, change, fault) in cases {
        let mut bench = Bench::associated();
        establish(&mut bench, establishment(9)).unwrap();
        let before = bench.seen();
        let mut request = establishment(1);
        change(&mut request);
        assert_eq!(establish(&mut bench, request), Err(fault), "{name}");
        assert_eq!(bench.seen(), before, "{name}");
        bench.check();
        assert!(establish(&mut bench, establishment(1)).is_ok(), "{name}");
    }
}

#[test]
fn an_establishment_whose_rules_do_not_fit_each_other_is_refused_for_the_right_reason() {
    use Cause::*;
    refused(&[
        ("Ethernet session", |r| r.pdn_type = Some(5), blame(ServiceNotSupported, IeType::PdnType)),
        ("no such PDN type", |r| r.pdn_type = Some(7), blame(MandatoryIeIncorrect, IeType::PdnType)),
        ("PDR twice", |r| r.create_pdrs.push(downlink_pdr(2, 1)), Fault::rule(RuleId::Pdr(2))),
        ("FAR twice", |r| r.create_fars.push(uplink_far(1)), Fault::rule(RuleId::Far(1))),
        ("QER twice", |r| r.create_qers.push(qer(1)), Fault::rule(RuleId::Qer(1))),
        ("unknown FAR", |r| r.create_pdrs[1].far_id = Some(9), failed(RuleId::Pdr(2), IeType::FarId)),
        ("unknown QER", |r| r.create_pdrs[1].qer_ids = vec![9], failed(RuleId::Pdr(2), IeType::QerId)),
        ("no FAR", |r| r.create_pdrs[0].far_id = None, blame(ConditionalIeMissing, IeType::FarId)),
        ("too many PDRs", |r| r.create_pdrs.extend((10..20).map(|id| downlink_pdr(id, 1))), {
            blame(NoResourcesAvailable, IeType::CreatePdr)
        }),
        ("too many FARs", |r| r.create_fars.extend((10..20).map(uplink_far)), {
            blame(NoResourcesAvailable, IeType::CreateFar)
        }),
        ("too many QERs", |r| r.create_qers.extend((10..20).map(qer)), blame(NoResourcesAvailable, IeType::CreateQer)),
        ("too many QFIs", |r| r.create_pdrs[0].pdi.qfis = vec![1; 5], blame(NoResourcesAvailable, IeType::Qfi)),
        ("too many filters", |r| r.create_pdrs[0].pdi.sdf_filters = vec![SdfFilter::default(); 5], {
            blame(NoResourcesAvailable, IeType::SdfFilter)
        }),
    ]);
}

#[test]
fn an_establishment_that_detects_what_cannot_come_is_refused_for_the_right_reason() {
    use Cause::*;
    refused(&[
        ("uplink without F-TEID", |r| r.create_pdrs[0].pdi.f_teid = None, blame(ConditionalIeMissing, IeType::Fteid)),
        ("from N9, with the UE's source address", |r| r.create_pdrs[0].pdi.source_interface = Interface::Core, {
            blame(MandatoryIeIncorrect, IeType::UeIpAddress)
        }),
        ("from a virtual network", |r| r.create_pdrs[0].pdi.source_interface = Interface::Other(4), {
            blame(ServiceNotSupported, IeType::SourceInterface)
        }),
        ("from nowhere", |r| r.create_pdrs[0].pdi.source_interface = Interface::Other(9), {
            blame(MandatoryIeIncorrect, IeType::SourceInterface)
        }),
        (
            "TEID 0",
            |r| r.create_pdrs[0].pdi.f_teid = Some(FTeid::Given { teid: 0, v4: Some(N3), v6: None }),
            blame(MandatoryIeIncorrect, IeType::Fteid),
        ),
        (
            "F-TEID elsewhere",
            |r| r.create_pdrs[0].pdi.f_teid = Some(FTeid::Given { teid: 5, v4: Some(GNB), v6: None }),
            blame(MandatoryIeIncorrect, IeType::Fteid),
        ),
        ("UE address given and to choose", |r| r.create_pdrs[1].pdi.ue_ip.as_mut().unwrap().choose_v4 = true, {
            blame(MandatoryIeIncorrect, IeType::UeIpAddress)
        }),
        ("uplink to the UE", |r| r.create_pdrs[0].pdi.ue_ip.as_mut().unwrap().destination = true, {
            blame(MandatoryIeIncorrect, IeType::UeIpAddress)
        }),
        ("downlink from the UE", |r| r.create_pdrs[1].pdi.ue_ip.as_mut().unwrap().destination = false, {
            blame(MandatoryIeIncorrect, IeType::UeIpAddress)
        }),
        ("downlink for nobody", |r| r.create_pdrs[1].pdi.ue_ip = None, {
            blame(ConditionalIeMissing, IeType::UeIpAddress)
        }),
        ("filter of nothing", |r| r.create_pdrs[0].pdi.sdf_filters = vec![SdfFilter::default()], {
            blame(MandatoryIeIncorrect, IeType::SdfFilter)
        }),
        ("filter in prose", |r| r.create_pdrs[0].pdi.sdf_filters = vec![SdfFilter::flow("web traffic")], {
            blame(MandatoryIeIncorrect, IeType::SdfFilter)
        }),
        (
            "filter by an unknown ID",
            |r| {
                r.create_pdrs[0].pdi.sdf_filters = vec![SdfFilter { id: Some(1), ..SdfFilter::default() }];
            },
            failed(RuleId::Pdr(1), IeType::SdfFilter),
        ),
        ("network instance of nobody", |r| r.create_pdrs[1].pdi.network_instance = Some("ims".into()), {
            failed(RuleId::Pdr(2), IeType::NetworkInstance)
        }),
        (
            "to a network instance of nobody",
            |r| {
                r.create_fars[0].forwarding_parameters.as_mut().unwrap().network_instance = Some("ims".into());
            },
            failed(RuleId::Far(1), IeType::NetworkInstance),
        ),
    ]);
}

#[test]
fn an_establishment_that_forwards_where_there_is_no_way_is_refused_for_the_right_reason() {
    use Cause::*;
    refused(&[
        ("removal of a VLAN tag", |r| r.create_pdrs[0].outer_header_removal.as_mut().unwrap().description = 7, {
            blame(ServiceNotSupported, IeType::OuterHeaderRemoval)
        }),
        (
            "removal of what there is not",
            |r| r.create_pdrs[1].outer_header_removal = Some(OuterHeaderRemoval::GTPU_UDP_IP),
            { blame(MandatoryIeIncorrect, IeType::OuterHeaderRemoval) },
        ),
        ("no removal", |r| r.create_pdrs[0].outer_header_removal = None, {
            blame(ConditionalIeMissing, IeType::OuterHeaderRemoval)
        }),
        (
            "buffering uplink",
            |r| r.create_fars[0].apply_action = ApplyAction(ApplyAction::BUFF.0 | ApplyAction::NOCP.0),
            { blame(ServiceNotSupported, IeType::ApplyAction) },
        ),
        ("duplicating", |r| r.create_fars[1].apply_action = ApplyAction(ApplyAction::FORW.0 | ApplyAction::DUPL.0), {
            blame(ConditionalIeMissing, IeType::DuplicatingParameters)
        }),
        ("dropping and forwarding", |r| r.create_fars[1].apply_action = ApplyAction(3), {
            blame(MandatoryIeIncorrect, IeType::ApplyAction)
        }),
        ("doing nothing", |r| r.create_fars[1].apply_action = ApplyAction(0), {
            blame(MandatoryIeIncorrect, IeType::ApplyAction)
        }),
        ("forwarding to nowhere", |r| r.create_fars[0].forwarding_parameters = None, {
            blame(ConditionalIeMissing, IeType::ForwardingParameters)
        }),
        ("back to the data network", |r| r.create_pdrs[1].far_id = Some(1), {
            blame(ServiceNotSupported, IeType::DestinationInterface)
        }),
        (
            "to lawful interception",
            |r| {
                r.create_fars[0].forwarding_parameters.as_mut().unwrap().destination_interface = Interface::Other(4);
            },
            blame(ServiceNotSupported, IeType::DestinationInterface),
        ),
        (
            "from the RAN back to it without a tunnel",
            |r| {
                r.create_pdrs[0].far_id = Some(2);
                r.create_fars[1].forwarding_parameters.as_mut().unwrap().outer_header_creation = None;
            },
            blame(ConditionalIeMissing, IeType::OuterHeaderCreation),
        ),
        (
            "a tunnel on N6",
            |r| {
                let tunnel = OuterHeaderCreation::gtpu(1, GNB.into());
                r.create_fars[0].forwarding_parameters.as_mut().unwrap().outer_header_creation = Some(tunnel);
            },
            blame(ServiceNotSupported, IeType::OuterHeaderCreation),
        ),
        (
            "a tunnel to TEID 0",
            |r| {
                let tunnel = OuterHeaderCreation::gtpu(0, GNB.into());
                r.create_fars[1].forwarding_parameters.as_mut().unwrap().outer_header_creation = Some(tunnel);
            },
            blame(MandatoryIeIncorrect, IeType::OuterHeaderCreation),
        ),
        (
            "a tunnel to everyone",
            |r| {
                let tunnel = OuterHeaderCreation::gtpu(1, IpAddr::from([224, 0, 0, 1]));
                r.create_fars[1].forwarding_parameters.as_mut().unwrap().outer_header_creation = Some(tunnel);
            },
            blame(MandatoryIeIncorrect, IeType::OuterHeaderCreation),
        ),
    ]);
}

#[test]
fn a_wrong_modification_is_refused_for_the_right_reason_and_leaves_no_trace() {
    type Change = fn(&mut Modification);
    let cases: Vec<(&str, Change, Fault)> = vec![
        ("remove unknown PDR", |m| m.remove_pdrs = vec![9], Fault::rule(RuleId::Pdr(9))),
        ("remove unknown FAR", |m| m.remove_fars = vec![9], Fault::rule(RuleId::Far(9))),
        ("remove unknown QER", |m| m.remove_qers = vec![9], Fault::rule(RuleId::Qer(9))),
        ("remove a FAR in use", |m| m.remove_fars = vec![2], failed(RuleId::Pdr(2), IeType::FarId)),
        ("remove a QER in use", |m| m.remove_qers = vec![1], failed(RuleId::Pdr(1), IeType::QerId)),
        ("create a PDR that is there", |m| m.create_pdrs = vec![uplink_pdr(1, 1, CHOOSE)], {
            Fault::rule(RuleId::Pdr(1))
        }),
        ("update unknown PDR", |m| m.update_pdrs = vec![UpdatePdr::new(9)], Fault::rule(RuleId::Pdr(9))),
        (
            "choose on update",
            |m| {
                let pdi = uplink_pdr(1, 1, CHOOSE).pdi;
                m.update_pdrs = vec![UpdatePdr { pdi: Some(pdi), ..UpdatePdr::new(1) }];
            },
            blame(Cause::InvalidFteidAllocationOption, IeType::Fteid),
        ),
        (
            "update unknown FAR",
            |m| {
                let update = UpdateFar {
                    id: 9,
                    apply_action: None,
                    forwarding_parameters: None,
                    duplicating_parameters: vec![],
                    bar_id: None,
                    others: vec![],
                };
                m.update_fars = vec![update];
            },
            Fault::rule(RuleId::Far(9)),
        ),
        (
            "update unknown QER",
            |m| m.update_qers = vec![UpdateQer { id: 9, ..UpdateQer::default() }],
            Fault::rule(RuleId::Qer(9)),
        ),
    ];
    for (name, change, fault) in cases {
        let mut bench = Bench::associated();
        let seid = establish(&mut bench, establishment(1)).unwrap().up_f_seid.seid;
        let before = bench.seen();
        // What goes before the mistake must not happen either.
        let mut request = Modification {
            create_pdrs: vec![uplink_pdr(7, 1, CHOOSE)],
            create_fars: vec![uplink_far(7)],
            ..Default::default()
        };
        change(&mut request);
        assert_eq!(modify(&mut bench, seid, request), Err(fault), "{name}");
        assert_eq!(bench.seen(), before, "{name}");
        bench.check();
    }
}

#[test]
fn what_the_tables_refuse_leaves_no_trace() {
    for (error, cause) in [
        (ApplyError::Full, Cause::NoResourcesAvailable),
        (ApplyError::Stopped, Cause::SystemFailure),
        (ApplyError::TeidInUse(7), Cause::RuleCreationModificationFailure),
    ] {
        let mut bench = Bench::associated();
        let seid = establish(&mut bench, establishment(1)).unwrap().up_f_seid.seid;
        let before = bench.seen();
        bench.node.tables().refuse_next(error.clone());
        assert_eq!(establish(&mut bench, establishment(2)).unwrap_err().cause, cause);
        bench.node.tables().refuse_next(error.clone());
        let add = Modification { create_pdrs: vec![uplink_pdr(3, 1, CHOOSE)], ..Default::default() };
        assert_eq!(modify(&mut bench, seid, add).unwrap_err().cause, cause);
        bench.node.tables().refuse_next(error);
        assert_eq!(delete(&mut bench, seid).unwrap_err().cause, cause);
        assert_eq!(bench.seen(), before);
        bench.check();
    }
}

#[test]
fn two_sessions_cannot_have_one_ue_address() {
    let mut bench = Bench::associated();
    establish(&mut bench, establishment(1)).unwrap();
    let mut request = establishment(2);
    request.create_pdrs = vec![uplink_pdr(1, 2, CHOOSE), downlink_pdr(2, 1)];
    assert_eq!(establish(&mut bench, request), Err(failed(RuleId::Pdr(2), IeType::UeIpAddress)));
    bench.check();
}

#[test]
fn a_bound_on_sessions_and_associations_holds() {
    let mut bench = Bench::associated();
    for number in 0..32 {
        establish(&mut bench, establishment(number)).unwrap();
    }
    assert_eq!(establish(&mut bench, establishment(32)), Err(Fault::new(Cause::NoResourcesAvailable)));
    for (name, outcome) in
        [("a", Ok(())), ("b", Ok(())), ("c", Ok(())), ("d", Err(Fault::new(Cause::NoResourcesAvailable)))]
    {
        let Response::AssociationSetup(response) = bench.ask(0, &setup(name, 1)) else { panic!() };
        assert_eq!(response.outcome, outcome);
    }
    bench.check();
}

#[test]
fn a_request_that_comes_again_gets_the_same_octets_and_is_done_once() {
    let mut bench = Bench::associated();
    let request = Request::SessionEstablishment(establishment(1)).encode(0, 70);
    let first = bench.octets(&request).unwrap();
    let state = bench.seen();
    bench.now += Duration::from_secs(5);
    assert_eq!(bench.octets(&request).unwrap(), first);
    assert_eq!(bench.seen(), state);
    // A deletion too, which would fail if it were done twice.
    let (header, body) = Header::parse(&first).unwrap();
    let Response::SessionEstablishment(response) = Response::parse(&header, body).unwrap() else { panic!() };
    let deletion = Request::SessionDeletion.encode(response.outcome.unwrap().up_f_seid.seid, 71);
    let gone = bench.octets(&deletion).unwrap();
    assert_eq!(bench.octets(&deletion).unwrap(), gone);
    assert_eq!(bench.seen(), Seen::default());
    // Another request under a number that was used is another request.
    let other = bench.octets(&Request::SessionEstablishment(establishment(2)).encode(0, 70)).unwrap();
    assert_ne!(other, first);
    assert_eq!(bench.seen().sessions.len(), 1);
}

#[test]
fn flags_that_ask_for_what_is_not_done_are_refused() {
    let mut bench = Bench::associated();
    let seid = establish(&mut bench, establishment(1)).unwrap().up_f_seid.seid;
    for flag in 0..8 {
        let flags = 1 << flag;
        let outcome = modify(&mut bench, seid, Modification { flags, ..Modification::default() });
        let is_done = [Modification::DROBU, Modification::SNDEM, Modification::QAURR].contains(&flags);
        let refused = Fault::of(Cause::ServiceNotSupported, IeType::PfcpsmReqFlags);
        assert_eq!(
            outcome.map(|modified| modified.created_pdrs.len()),
            if is_done { Ok(0) } else { Err(refused) },
            "{flags:#x}"
        );
    }
}
