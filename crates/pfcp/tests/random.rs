//! Whatever comes, parsing ends in a message or a fault, and what was understood survives being written again.

use pfcp::node::NodeReport;
use pfcp::report::SessionReport;
use pfcp::session::Modification;
use pfcp::{Header, Request, Response};
use proptest::prelude::*;

/// What `datagram` says, if it says anything.
fn understand(datagram: &[u8]) {
    let Ok((header, body)) = Header::parse(datagram) else { return };
    let seid = header.seid.unwrap_or(0);
    if let Ok(request) = Request::parse(&header, body) {
        let again = request.encode(seid, header.sequence);
        let (header, body) = Header::parse(&again).unwrap();
        assert_eq!(without_others(Request::parse(&header, body).unwrap()), without_others(request));
    }
    if let Ok(response) = Response::parse(&header, body) {
        let again = response.encode(seid, header.sequence);
        let (header, body) = Header::parse(&again).unwrap();
        assert!(Response::parse(&header, body).is_ok());
    }
}

/// Elements that are not modelled are not written, nor are descriptions of tunnels that are not GTP-U.
fn without_others(request: Request) -> Request {
    match request {
        Request::SessionModification(_) => Request::SessionModification(Modification::default()),
        Request::SessionEstablishment(mut request) => {
            request.others.clear();
            request.create_pdrs.clear();
            request.create_fars.clear();
            request.create_qers.clear();
            request.create_urrs.clear();
            request.create_bars.clear();
            request.create_endpoints.clear();
            Request::SessionEstablishment(request)
        }
        Request::SessionReport(_) => Request::SessionReport(SessionReport::default()),
        Request::NodeReport(report) => Request::NodeReport(NodeReport { others: vec![], ..report }),
        other => other,
    }
}

/// A datagram with a right header around any octets.
fn framed(message_type: u8, body: &[u8]) -> Vec<u8> {
    let is_session = (50..=57).contains(&message_type);
    let length = body.len() + if is_session { 12 } else { 4 };
    let mut datagram = vec![0x20 | u8::from(is_session), message_type];
    datagram.extend((length as u16).to_be_bytes());
    datagram.extend(if is_session { vec![0; 8] } else { vec![] });
    datagram.extend([0, 0, 1, 0]);
    datagram.extend_from_slice(body);
    datagram
}

/// Elements of any kind, most of them of types that are looked at, in groups of such.
fn elements() -> impl Strategy<Value = Vec<u8>> {
    let element = |kind: u16, value: Vec<u8>| {
        let mut octets = kind.to_be_bytes().to_vec();
        octets.extend((value.len() as u16).to_be_bytes());
        octets.extend(value);
        octets
    };
    let kind = prop_oneof![9 => 1u16..180, 1 => any::<u16>()];
    let leaf =
        (kind, proptest::collection::vec(any::<u8>(), 0..24)).prop_map(move |(kind, value)| element(kind, value));
    let group = prop_oneof![1u16..20, Just(2), Just(4), Just(11), 127u16..131];
    leaf.prop_recursive(4, 64, 8, move |inner| {
        (group.clone(), proptest::collection::vec(inner, 0..8)).prop_map(move |(kind, all)| element(kind, all.concat()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_octets(datagram in proptest::collection::vec(any::<u8>(), 0..200)) {
        understand(&datagram);
    }

    #[test]
    fn any_elements(
        message_type in prop_oneof![1u8..18, 50u8..58],
        body in proptest::collection::vec(elements(), 0..12),
    ) {
        understand(&framed(message_type, &body.concat()));
    }
}
