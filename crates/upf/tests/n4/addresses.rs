//! UE addresses that the UPF chooses.

use std::time::Duration;

use crate::support::*;
use pfcp::rule::{CreatedPdr, UeIp, UpdatePdr};
use pfcp::session::{Establishment, Modification};
use pfcp::{Cause, Fault, IeType, RuleId};

/// A session whose two PDRs leave the UE's address to the UPF.
fn choosing(choose_v4: bool, choose_v6: Option<u8>) -> Establishment {
    let mut request = establishment(1);
    for (pdr, destination) in request.create_pdrs.iter_mut().zip([false, true]) {
        pdr.pdi.ue_ip = Some(UeIp { choose_v4, choose_v6, destination, ..UeIp::default() });
    }
    request
}

fn addresses(created: &[CreatedPdr]) -> Vec<UeIp> {
    created.iter().filter_map(|created| created.ue_ip).collect()
}

#[test]
fn all_rules_of_a_session_get_one_address_of_each_version() {
    let mut bench = Bench::associated();
    let established = establish(&mut bench, choosing(true, Some(64))).unwrap();
    let is = |destination| UeIp {
        v4: Some(ue(30)),
        v6: Some(("2001:db8:5::".parse().unwrap(), 64)),
        destination,
        ..UeIp::default()
    };
    assert_eq!(addresses(&established.created_pdrs), [is(false), is(true)]);
    assert!(established.created_pdrs[0].f_teid.is_some() && established.created_pdrs[1].f_teid.is_none());
    let second = establish(&mut bench, choosing(true, None)).unwrap();
    assert_eq!(addresses(&second.created_pdrs)[0].v4, Some(ue(31)));
    // Rules that come later get the same address.
    let mut pdr = choosing(true, None).create_pdrs.remove(1);
    pdr.id = 7;
    let request = Modification { create_pdrs: vec![pdr.clone()], ..Modification::default() };
    let modified = modify(&mut bench, established.up_f_seid.seid, request).unwrap();
    assert_eq!(addresses(&modified.created_pdrs)[0].v4, Some(ue(30)));
    // Unless they ask for another kind.
    pdr.id = 8;
    pdr.pdi.ue_ip = Some(UeIp { choose_v6: Some(56), destination: true, ..UeIp::default() });
    let request = Modification { create_pdrs: vec![pdr], ..Modification::default() };
    let modified = modify(&mut bench, established.up_f_seid.seid, request).unwrap();
    assert_eq!(addresses(&modified.created_pdrs)[0].v6, Some(("2001:db8:6::".parse().unwrap(), 56)));
}

#[test]
fn when_all_addresses_are_occupied_that_is_the_cause() {
    let mut bench = Bench::associated();
    // Some are taken by session managers that choose for themselves.
    establish(&mut bench, establishment(33)).unwrap();
    let seids: Vec<_> = (0..9).map(|_| establish(&mut bench, choosing(true, None)).unwrap().up_f_seid.seid).collect();
    let before = bench.seen();
    let occupied = Fault::of(Cause::AllDynamicAddressesOccupied, IeType::UeIpAddress);
    assert_eq!(establish(&mut bench, choosing(true, None)), Err(occupied));
    // An IPv6 prefix that was chosen already for the request is free again.
    assert_eq!(establish(&mut bench, choosing(true, Some(64))), Err(occupied));
    assert_eq!(bench.seen(), before);
    // What is given back cools off.
    delete(&mut bench, seids[4]).unwrap();
    assert_eq!(establish(&mut bench, choosing(true, None)), Err(occupied));
    bench.now += Duration::from_secs(61);
    let again = establish(&mut bench, choosing(true, None)).unwrap();
    assert_eq!(addresses(&again.created_pdrs)[0].v4, Some(ue(35)));
}

#[test]
fn an_address_is_free_when_no_rule_of_its_session_has_it_any_more() {
    let mut bench = Bench::associated();
    let seid = establish(&mut bench, choosing(true, None)).unwrap().up_f_seid.seid;
    assert_eq!(bench.node.pool_usage()[0].v4, (1, 10));
    let update = |id, destination| {
        let mut pdr = if destination { downlink_pdr(id, 1) } else { uplink_pdr(id, 1, CHOOSE) };
        pdr.pdi.f_teid = None;
        UpdatePdr { pdi: Some(pdr.pdi), ..UpdatePdr::new(id) }
    };
    let request = Modification { update_pdrs: vec![update(2, true)], ..Modification::default() };
    modify(&mut bench, seid, request).unwrap();
    assert_eq!(bench.node.pool_usage()[0].v4, (1, 10));
    let request = Modification { remove_pdrs: vec![1], ..Modification::default() };
    modify(&mut bench, seid, request).unwrap();
    assert_eq!(bench.node.pool_usage()[0].v4, (0, 10));
}

#[test]
fn what_cannot_be_chosen_is_refused_for_the_right_reason() {
    let mut bench = Bench::associated();
    let mut unknown = choosing(true, None);
    unknown.create_pdrs[1].address_pools = vec!["platinum".into()];
    let fault = Fault { offending_ie: Some(IeType::UeIpAddressPoolIdentity as u16), ..Fault::rule(RuleId::Pdr(2)) };
    assert_eq!(establish(&mut bench, unknown), Err(fault));
    let mut other = choosing(false, Some(64));
    other.create_pdrs[1].address_pools = vec!["wide".into()];
    let occupied = Fault::of(Cause::AllDynamicAddressesOccupied, IeType::UeIpAddress);
    assert_eq!(establish(&mut bench, other), Err(occupied));
    let seid = establish(&mut bench, choosing(true, None)).unwrap().up_f_seid.seid;
    let pdi = Some(choosing(true, None).create_pdrs.remove(1).pdi);
    let request = Modification { update_pdrs: vec![UpdatePdr { pdi, ..UpdatePdr::new(2) }], ..Modification::default() };
    let refused = Fault::of(Cause::ServiceNotSupported, IeType::UeIpAddress);
    assert_eq!(modify(&mut bench, seid, request).map(|_| ()), Err(refused));
    // The tables refuse, and the address is free again.
    let free = bench.node.pool_usage();
    bench.node.tables().refuse_next(upf::tables::ApplyError::Full);
    assert!(establish(&mut bench, choosing(true, Some(64))).is_err());
    assert_eq!(bench.node.pool_usage(), free);
}
