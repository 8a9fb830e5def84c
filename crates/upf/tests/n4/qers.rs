//! What session managers say in QERs beyond gates, rates and flows.

use crate::support::*;
use pfcp::rule::*;
use pfcp::session::{Establishment, Modification};
use pfcp::{Cause, Fault, IeType, Request, Response, RuleId};

fn update(bench: &mut Bench, seid: u64, qers: Vec<UpdateQer>) -> Result<(), Fault> {
    let request = Modification { update_qers: qers, ..Modification::default() };
    match bench.ask(seid, &Request::SessionModification(request)) {
        Response::SessionModification(response) => response.outcome.map(|_| ()),
        other => panic!("{other:?}"),
    }
}

/// A session whose QERs 1 and 2 share a rate.
fn correlated(number: u8) -> Establishment {
    let mut request = establishment(number);
    request.create_qers = [1, 2].map(|id| CreateQer { correlation_id: Some(7), ..qer(id) }).into();
    request.create_pdrs[1].qer_ids = vec![2];
    request
}

#[test]
fn qers_with_one_correlation_id_state_one_rate() {
    let mut bench = Bench::associated();
    let seid = establish(&mut bench, correlated(1)).unwrap().up_f_seid.seid;
    assert!(bench.seen().sessions[&seid].qers.iter().all(|qer| qer.correlation_id == Some(7)));
    let rate = |id| UpdateQer { id, mbr: Some(BitRate { uplink_kbps: 1, downlink_kbps: 2 }), ..UpdateQer::default() };
    let before = bench.seen();
    let of_other_rate = Fault { offending_ie: Some(IeType::Mbr as u16), ..Fault::rule(RuleId::Qer(2)) };
    assert_eq!(update(&mut bench, seid, vec![rate(1)]), Err(of_other_rate));
    assert_eq!(bench.seen(), before);
    update(&mut bench, seid, vec![rate(1), rate(2)]).unwrap();
    bench.check();
}

#[test]
fn a_reflective_flow_has_a_number() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    request.create_qers[0].reflective = Some(true);
    let mut without = request.clone();
    without.create_qers[0].qfi = None;
    let missing = Fault::of(Cause::ConditionalIeMissing, IeType::Qfi);
    assert_eq!(establish(&mut bench, without), Err(missing));
    let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
    assert!(bench.seen().sessions[&seid].qers[0].reflective);
    let off = UpdateQer { id: 1, reflective: Some(false), ..UpdateQer::default() };
    update(&mut bench, seid, vec![off]).unwrap();
    assert!(!bench.seen().sessions[&seid].qers[0].reflective);
}

#[test]
fn what_qers_ask_for_and_do_not_get_is_refused_by_name() {
    for (kind, value) in [
        (IeType::PacketRate, &[3, 0, 0, 1, 0, 0, 1][..]),
        (IeType::DlFlowLevelMarking, &[1, 0xb8, 0xfc][..]),
        (IeType::PagingPolicyIndicator, &[3][..]),
        (IeType::QerControlIndications, &[1][..]),
    ] {
        let mut bench = Bench::associated();
        let mut request = establishment(1);
        request.create_qers[0].correlation_id = Some(0xdead_beef);
        let octets = Request::SessionEstablishment(request).encode(0, 9);
        let answer = bench.octets(&replaced(octets, kind, value)).unwrap();
        let (header, body) = pfcp::Header::parse(&answer).unwrap();
        let Response::SessionEstablishment(response) = Response::parse(&header, body).unwrap() else { panic!() };
        assert_eq!(response.outcome.unwrap_err(), Fault::of(Cause::ServiceNotSupported, kind), "{kind:?}");
        bench.check();
    }
}

/// The QER's correlation ID becomes an element of another type.
fn replaced(mut octets: Vec<u8>, kind: IeType, value: &[u8]) -> Vec<u8> {
    let old = [0, IeType::QerCorrelationId as u8, 0, 4, 0xde, 0xad, 0xbe, 0xef];
    let at = octets.windows(old.len()).position(|window| window == old).unwrap();
    let length = (value.len() as u16).to_be_bytes();
    let new: Vec<u8> = (kind as u16).to_be_bytes().into_iter().chain(length).chain(value.iter().copied()).collect();
    let grown = new.len() as isize - old.len() as isize;
    octets.splice(at..at + old.len(), new);
    // The QER's own length, and the message's.
    let qer = octets[..at].windows(2).rposition(|window| window == (IeType::CreateQer as u16).to_be_bytes()).unwrap();
    for length in [qer + 2, 2] {
        let before = u16::from_be_bytes([octets[length], octets[length + 1]]);
        octets[length..length + 2].copy_from_slice(&(before as isize + grown).to_be_bytes()[6..]);
    }
    octets
}
