//! Octets that are no message for a UPF, or that lack something or have too much.

use crate::support::*;
use pfcp::{Cause, Fault, Header, IeType, MessageType, Request, Response};

#[test]
fn what_cannot_be_a_message_for_a_upf_is_answered_or_dropped_as_the_standard_says() {
    let mut bench = Bench::associated();
    let fixed = |message_type: u8, session: bool| {
        let mut octets = vec![0x20 | u8::from(session), message_type, 0, if session { 12 } else { 4 }];
        octets.extend(if session { vec![0; 8] } else { vec![] });
        octets.extend([0, 0, 9, 0]);
        octets
    };
    // Too short for a header, unknown types, requests of UPFs to session managers, responses: discarded.
    for len in 0..8 {
        assert_eq!(bench.octets(&fixed(1, false)[..len]), None);
    }
    for message_type in [0, 12, 18, 49, 99, 200, 255, 2, 4, 6, 8, 10, 11, 13, 15, 17] {
        assert_eq!(bench.octets(&fixed(message_type, false)), None, "{message_type}");
    }
    for message_type in [51, 53, 55, 56, 57] {
        assert_eq!(bench.octets(&fixed(message_type, true)), None, "{message_type}");
    }
    // An SEID where there should be none, and the other way round.
    assert_eq!(bench.octets(&fixed(5, true)), None);
    assert_eq!(bench.octets(&fixed(54, false)), None);
    // Services that are not offered.
    for message_type in [14, 16] {
        let answer = bench.octets(&fixed(message_type, false)).unwrap();
        let (header, body) = Header::parse(&answer).unwrap();
        assert_eq!(header.message_type, MessageType(message_type + 1));
        let fault = match Response::parse(&header, body).unwrap() {
            Response::PfdManagement(outcome) | Response::SessionSetModification(outcome) => outcome.unwrap_err(),
            Response::SessionSetDeletion(response) => response.outcome.unwrap_err(),
            other => panic!("{other:?}"),
        };
        assert_eq!(fault, Fault::new(Cause::ServiceNotSupported));
    }
    // Another version, unless it is itself the answer to another version.
    let mut other = fixed(5, false);
    other[0] = 0x40;
    assert_eq!(bench.octets(&other).unwrap(), [0x20, 11, 0, 4, 0, 0, 9, 0]);
    other[1] = 11;
    assert_eq!(bench.octets(&other), None);
}

#[test]
fn wrong_lengths_are_blamed_on_what_has_them() {
    let mut bench = Bench::associated();
    let seid = establish(&mut bench, establishment(1)).unwrap().up_f_seid.seid;
    let fault = |bench: &mut Bench, octets: &[u8]| {
        let answer = bench.octets(octets).unwrap();
        let (header, body) = Header::parse(&answer).unwrap();
        assert_eq!(header.seid, Some(0x5001), "the peer's SEID");
        match Response::parse(&header, body).unwrap() {
            Response::SessionModification(response) => response.outcome.unwrap_err(),
            Response::SessionDeletion(response) => response.outcome.unwrap_err(),
            other => panic!("{other:?}"),
        }
    };
    // The header states another length than the datagram has.
    let mut deletion = Request::SessionDeletion.encode(seid, 50);
    deletion.push(0);
    assert_eq!(fault(&mut bench, &deletion), Fault::new(Cause::InvalidLength));
    // An element ends beyond the message, or beyond its group.
    let modification = |body: &[u8]| {
        let mut octets = Request::SessionDeletion.encode(seid, 51);
        octets[1] = 52;
        octets[3] += body.len() as u8;
        octets.extend_from_slice(body);
        octets
    };
    let blamed = |kind| Fault::of(Cause::InvalidLength, kind);
    assert_eq!(fault(&mut bench, &modification(&[0, 9, 0, 5, 0, 56, 0, 2])), blamed(IeType::UpdatePdr));
    assert_eq!(fault(&mut bench, &modification(&[0, 9, 0, 6, 0, 56, 0, 3, 0, 1])), blamed(IeType::PdrId));
    assert_eq!(fault(&mut bench, &modification(&[0, 9, 0, 5, 0, 56, 0, 1, 0])), blamed(IeType::PdrId));
    let missing = Fault::of(Cause::MandatoryIeMissing, IeType::PdrId);
    assert_eq!(fault(&mut bench, &modification(&[0, 9, 0, 0])), missing);
    bench.check();
}

#[test]
fn missing_elements_are_named() {
    let mut bench = Bench::associated();
    let whole = Request::SessionEstablishment(establishment(1)).encode(0, 60);
    for kind in [IeType::NodeId, IeType::Fseid, IeType::CreatePdr, IeType::CreateFar] {
        let octets = without(&whole, kind as u16);
        let answer = bench.octets(&octets).unwrap();
        let (header, body) = Header::parse(&answer).unwrap();
        assert_eq!(header.seid, Some(if kind == IeType::Fseid { 0 } else { 0x5001 }));
        let Response::SessionEstablishment(response) = Response::parse(&header, body).unwrap() else { panic!() };
        assert_eq!(response.outcome, Err(Fault::of(Cause::MandatoryIeMissing, kind)));
    }
}

/// The message without elements of type `kind`.
fn without(message: &[u8], kind: u16) -> Vec<u8> {
    let mut kept = message[..16].to_vec();
    let mut rest = &message[16..];
    while let [a, b, c, d, ..] = *rest {
        let end = 4 + usize::from(u16::from_be_bytes([c, d]));
        if u16::from_be_bytes([a, b]) != kind {
            kept.extend_from_slice(&rest[..end]);
        }
        rest = &rest[end..];
    }
    let length = (kept.len() - 4) as u16;
    kept[2..4].copy_from_slice(&length.to_be_bytes());
    kept
}

#[test]
fn what_is_asked_for_in_vain_is_refused_and_what_only_informs_is_passed_over() {
    use Cause::*;
    let mut bench = Bench::associated();
    let whole = Request::SessionEstablishment(establishment(1)).encode(0, 90);
    let with = |kind: u16, value: &[u8]| {
        let mut octets = whole.clone();
        octets.extend_from_slice(&kind.to_be_bytes());
        octets.extend_from_slice(&(value.len() as u16).to_be_bytes());
        octets.extend_from_slice(value);
        let length = (octets.len() - 4) as u16;
        octets[2..4].copy_from_slice(&length.to_be_bytes());
        octets
    };
    let refused = [IeType::CreateSrr, IeType::CreateBridgeInfoForTsc, IeType::CreateMar];
    for kind in refused.into_iter().chain([IeType::TraceInformation]) {
        let answer = bench.octets(&with(kind as u16, &[0, 81, 0, 4, 0, 0, 0, 1])).unwrap();
        let (header, body) = Header::parse(&answer).unwrap();
        let Response::SessionEstablishment(response) = Response::parse(&header, body).unwrap() else { panic!() };
        assert_eq!(response.outcome, Err(Fault::of(ServiceNotSupported, kind)));
    }
    assert_eq!(bench.seen(), Seen::default());
    // APN, user ID, an element of the future, and a vendor's.
    for kind in [IeType::ApnDnn as u16, IeType::UserId as u16, 0x7abc, 0x8001] {
        let mut bench = Bench::associated();
        let answer = bench.octets(&with(kind, b"internet")).unwrap();
        let (header, body) = Header::parse(&answer).unwrap();
        let Response::SessionEstablishment(response) = Response::parse(&header, body).unwrap() else { panic!() };
        assert!(response.outcome.is_ok(), "{kind}");
    }
}
