//! GTP-U headers, what intermediate nodes make of them, and error indications, from arbitrary bytes, of which only a part may be at hand.
#![no_main]

use gtpu::{Direction, PduSession, RelayedHeader};
use libfuzzer_sys::fuzz_target;

/// Types and contents of the extension headers of a sound header, but for PDU session containers and those that end at intermediate nodes.
fn going_on(header: &[u8]) -> Vec<(u8, &[u8])> {
    let (mut all, mut at) = (vec![], 12);
    while header[0] & 4 != 0 && header[at - 1] != 0 {
        let end = at + usize::from(header[at]) * 4;
        all.push((header[at - 1], &header[at..end - 1]));
        at = end;
    }
    all.retain(|(kind, _)| *kind != 0x85 && kind >> 6 != 0b01);
    all
}

/// What goes on is the same, and there is the container that is asked for and no other one.
fn check_relayed(came: &[u8], container: Option<PduSession>) {
    let Ok(relayed) = RelayedHeader::new(came, container) else {
        return assert!(came.len() + PduSession::LEN > gtpu::RELAYED_MAX_LEN, "{came:02x?}");
    };
    let mut sent = vec![0; relayed.len()];
    relayed.write(7, 0, &mut sent);
    assert_eq!(going_on(&sent), going_on(came));
    let header = gtpu::parse_at_intermediate_node(&sent, sent.len()).expect("what is written can be read");
    assert_eq!((header.teid, header.pdu_session, header.header_len), (7, container, sent.len()));
    assert_eq!(sent[0] & 3, came[0] & 3);
}

fuzz_target!(|input: (u16, &[u8])| {
    let (beyond, bytes) = input;
    let datagram_len = bytes.len() + usize::from(beyond);
    let head = &bytes[..bytes.len().min(256)];
    let _ = RelayedHeader::new(head, None);
    if let Ok(header) = gtpu::parse_at_intermediate_node(head, datagram_len) {
        let container = |direction| PduSession { direction, qfi: beyond as u8 & 0x3f, rqi: false };
        for given in
            [None, Some(container(Direction::Uplink)), Some(container(Direction::Downlink)), header.pdu_session]
        {
            check_relayed(&head[..header.header_len], given);
        }
    }
    if let Ok(header) = gtpu::parse(head, datagram_len) {
        assert!(header.header_len <= head.len());
        assert!(header.header_len + header.payload_len <= datagram_len);
        let end = (header.header_len + header.payload_len).min(head.len());
        if let Ok(indication) = gtpu::ErrorIndication::parse(&head[header.header_len..end]) {
            let mut again = [0; gtpu::MESSAGE_MAX_LEN];
            let len = indication.write(&mut again);
            let parsed = gtpu::parse(&again[..len], len).expect("what is written can be read");
            assert_eq!(gtpu::ErrorIndication::parse(&again[parsed.header_len..len]), Ok(indication));
        }
        if let Some(container) = header.pdu_session {
            let written = gtpu::GpduHeader::new(header.teid, Some(container));
            let mut again = [0; gtpu::GPDU_MAX_LEN];
            written.write(0, &mut again);
            let parsed = gtpu::parse(&again, again.len()).expect("what is written can be read");
            assert_eq!((parsed.teid, parsed.pdu_session), (header.teid, Some(container)));
        }
    }
});
