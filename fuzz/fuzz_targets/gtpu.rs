//! GTP-U headers and error indications from arbitrary bytes, of which only a part may be at hand.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (beyond, bytes) = input;
    let datagram_len = bytes.len() + usize::from(beyond);
    let head = &bytes[..bytes.len().min(256)];
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
