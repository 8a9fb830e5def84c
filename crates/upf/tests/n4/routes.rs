//! Networks behind UEs, as session managers state them.

use crate::support::*;
use pfcp::session::{Establishment, Modification};
use pfcp::{Cause, Fault, IeType, Request, Response, RuleId};

/// A session for the UE `number` with these networks behind it.
fn routed(number: u8, networks: &[(&str, u8)]) -> Establishment {
    let mut request = establishment(number);
    for pdr in &mut request.create_pdrs {
        pdr.pdi.framed_routes = networks.iter().map(|&(net, length)| (net.parse().unwrap(), length)).collect();
    }
    request
}

#[test]
fn framed_routes_are_part_of_the_session() {
    let mut bench = Bench::associated();
    let seid = establish(&mut bench, routed(1, &[("192.168.1.7", 24), ("2001:db8:77::9", 48)])).unwrap().up_f_seid.seid;
    let networks = vec![("192.168.1.0".parse().unwrap(), 24), ("2001:db8:77::".parse().unwrap(), 48)];
    for pdr in &bench.seen().sessions[&seid].pdrs {
        assert_eq!(pdr.pdi.framed_routes, networks);
    }
    // A session may have networks and no address.
    let mut request = routed(2, &[("192.168.2.0", 24)]);
    request.create_pdrs.iter_mut().for_each(|pdr| pdr.pdi.ue_ip = None);
    establish(&mut bench, request).unwrap();
}

#[test]
fn two_sessions_cannot_have_one_framed_route() {
    let mut bench = Bench::associated();
    let seid = establish(&mut bench, routed(1, &[("192.168.1.0", 24), ("2001:db8:77::", 48)])).unwrap().up_f_seid.seid;
    let before = bench.seen();
    let blame = |kind: IeType| Fault { offending_ie: Some(kind as u16), ..Fault::rule(RuleId::Pdr(1)) };
    let v4 = establish(&mut bench, routed(2, &[("10.9.0.0", 16), ("192.168.1.9", 24)]));
    assert_eq!(v4, Err(blame(IeType::FramedRoute)));
    let v6 = establish(&mut bench, routed(2, &[("2001:db8:77:1::", 48)]));
    assert_eq!(v6, Err(blame(IeType::FramedIpv6Route)));
    assert_eq!(bench.seen(), before);
    // Within it, or around it, is another route.
    establish(&mut bench, routed(2, &[("192.168.1.0", 25), ("192.168.0.0", 16)])).unwrap();
    let gone = Request::SessionModification(Modification { remove_pdrs: vec![1, 2], ..Modification::default() });
    let Response::SessionModification(response) = bench.ask(seid, &gone) else { panic!() };
    assert!(response.outcome.is_ok());
    establish(&mut bench, routed(3, &[("192.168.1.0", 24), ("2001:db8:77::", 48)])).unwrap();
}

#[test]
fn routing_protocols_are_not_spoken_with_ues() {
    let mut bench = Bench::associated();
    let mut with = |routing| {
        let mut request = routed(1, &[("192.168.1.0", 24)]);
        request.create_pdrs[1].pdi.framed_routing = Some(routing);
        establish(&mut bench, request).map(|_| ())
    };
    assert_eq!(with(3), Err(Fault::of(Cause::ServiceNotSupported, IeType::FramedRouting)));
    assert_eq!(with(4), Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::FramedRouting)));
    assert_eq!(with(0), Ok(()));
}
