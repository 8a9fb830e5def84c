//! The GTP-U header (TS 29.281, 5.1): fixed part, optional part, extension headers.

use crate::extension::{Chain, ExtensionType};
use crate::pdu_session::PduSession;

/// Octets of the fixed part.
pub const BASE_LEN: usize = 8;
/// Octets of the optional part: sequence number, N-PDU number, next extension header type.
pub const OPTIONAL_LEN: usize = 4;
/// Octets of the longest header that [`GpduHeader`] writes.
pub const GPDU_MAX_LEN: usize = BASE_LEN + OPTIONAL_LEN + PduSession::LEN;

pub(crate) const VERSION_1_GTP: u8 = 0x30;
const VERSION_MASK: u8 = 0xf0;
pub(crate) const E: u8 = 0b100;
pub(crate) const S: u8 = 0b010;
pub(crate) const PN: u8 = 0b001;

/// Type of a message (TS 29.281, 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageType(pub u8);

impl MessageType {
    /// Echo Request.
    pub const ECHO_REQUEST: Self = Self(1);
    /// Echo Response.
    pub const ECHO_RESPONSE: Self = Self(2);
    /// Error Indication.
    pub const ERROR_INDICATION: Self = Self(26);
    /// Supported Extension Headers Notification.
    pub const SUPPORTED_EXTENSIONS: Self = Self(31);
    /// End Marker.
    pub const END_MARKER: Self = Self(254);
    /// G-PDU: a user's packet.
    pub const GPDU: Self = Self(255);
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the message.
    pub message_type: MessageType,
    /// Tunnel endpoint identifier of the receiver.
    pub teid: u32,
    /// Sequence number, where the S flag is set.
    pub sequence: Option<u16>,
    /// The PDU session container, where there is one.
    pub pdu_session: Option<PduSession>,
    /// Whether there is more beside these than a shortest PDU session container; so there is with a sequence number.
    pub is_extended: bool,
    /// An extension header that an endpoint must refuse, as it does not know it.
    pub refused_by_endpoint: Option<ExtensionType>,
    /// Octets from the start of the header to the payload: the user's packet, or the information elements.
    pub header_len: usize,
    /// Octets of the payload.
    pub payload_len: usize,
}

/// Why a message is not one that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The datagram ends within the fixed or optional part.
    #[error("the datagram ends within the header")]
    Truncated,
    /// Another version, or GTP'.
    #[error("not GTP version 1")]
    Version,
    /// The length field says more than the datagram holds, or less than the flags imply.
    #[error("the length field does not fit the datagram")]
    Length,
    /// An extension header has length zero or leaves the message.
    #[error("an extension header leaves the message")]
    ExtensionLength,
    /// The extension headers go on beyond the bytes at hand.
    #[error("the header is longer than the part of the packet that is looked at")]
    HeaderTooLong,
    /// An unknown extension header whose type demands to be understood.
    #[error("extension header {:#04x} is not known but required", .0.0)]
    ExtensionRequired(ExtensionType),
    /// A PDU session container that is too short or of unknown type.
    #[error("malformed PDU session container")]
    PduSession,
}

/// Parses the header of the message in a UDP datagram with `datagram_len` octets of payload, of which `bytes` are the
/// first. Octets behind the message are ignored.
///
/// Knows the PDU session container. Other extension headers are skipped, or refused if their type demands that an
/// endpoint understands them.
#[inline]
pub fn parse(bytes: &[u8], datagram_len: usize) -> Result<Header, ParseError> {
    let header = parse_at_intermediate_node(bytes, datagram_len)?;
    match header.refused_by_endpoint {
        Some(unknown) => Err(ParseError::ExtensionRequired(unknown)),
        None => Ok(header),
    }
}

/// The same for a node that may be an intermediate one: refused is only what is not to be passed on either.
#[inline]
pub fn parse_at_intermediate_node(bytes: &[u8], datagram_len: usize) -> Result<Header, ParseError> {
    let Some(&[flags, kind, l0, l1, t0, t1, t2, t3]) = bytes.first_chunk::<BASE_LEN>() else {
        return Err(ParseError::Truncated);
    };
    if flags & VERSION_MASK != VERSION_1_GTP {
        return Err(ParseError::Version);
    }
    let message_len = BASE_LEN + usize::from(u16::from_be_bytes([l0, l1]));
    if message_len > datagram_len {
        return Err(ParseError::Length);
    }
    let mut header = Header {
        message_type: MessageType(kind),
        teid: u32::from_be_bytes([t0, t1, t2, t3]),
        sequence: None,
        pdu_session: None,
        is_extended: false,
        refused_by_endpoint: None,
        header_len: BASE_LEN,
        payload_len: message_len - BASE_LEN,
    };
    if flags & (E | S | PN) != 0 && !parse_usual(&mut header, bytes, message_len) {
        parse_optional(&mut header, bytes, message_len, flags)?;
    }
    Ok(header)
}

/// The form that nearly all packets of a 5G system have: E alone, and a shortest PDU session container. False, and
/// nothing done, if this is not it.
#[inline]
fn parse_usual(header: &mut Header, bytes: &[u8], message_len: usize) -> bool {
    let Some(&[flags, .., _, _, _, next, len, c0, c1, last]) = bytes.first_chunk::<GPDU_MAX_LEN>() else {
        return false;
    };
    let usual = flags == VERSION_1_GTP | E && [next, len, last] == [ExtensionType::PDU_SESSION.0, 1, 0];
    if !usual || message_len < GPDU_MAX_LEN {
        return false;
    }
    let Ok(container) = PduSession::parse(&[c0, c1]) else { return false };
    header.pdu_session = Some(container);
    header.header_len = GPDU_MAX_LEN;
    header.payload_len = message_len - GPDU_MAX_LEN;
    true
}

#[inline(never)]
fn parse_optional(header: &mut Header, bytes: &[u8], message_len: usize, flags: u8) -> Result<(), ParseError> {
    if message_len < BASE_LEN + OPTIONAL_LEN {
        return Err(ParseError::Length);
    }
    let Some(&[s0, s1, _, next]) = bytes.get(BASE_LEN..).and_then(|b| b.first_chunk::<OPTIONAL_LEN>()) else {
        return Err(ParseError::Truncated);
    };
    header.sequence = (flags & S != 0).then_some(u16::from_be_bytes([s0, s1]));
    header.is_extended = flags & (S | PN) != 0;
    header.header_len = BASE_LEN + OPTIONAL_LEN;
    // Without E the next type is present, but says nothing (5.1, note 3).
    let first = if flags & E != 0 { ExtensionType(next) } else { ExtensionType::NONE };
    for extension in Chain::new(bytes, message_len, first, header.header_len) {
        let extension = extension?;
        match extension.kind {
            ExtensionType::PDU_SESSION => {
                header.pdu_session = Some(PduSession::parse(extension.content)?);
                header.is_extended |= extension.content.len() + 2 > PduSession::LEN;
            }
            unknown if unknown.required_of_intermediate_node() => return Err(ParseError::ExtensionRequired(unknown)),
            unknown => {
                header.is_extended = true;
                if unknown.required_of_endpoint() {
                    header.refused_by_endpoint.get_or_insert(unknown);
                }
            }
        }
        header.header_len = extension.next_at;
    }
    header.payload_len = message_len - header.header_len;
    Ok(())
}

/// The header of G-PDUs in one direction of a tunnel: written once, then copied before each packet with the length
/// filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpduHeader {
    bytes: [u8; GPDU_MAX_LEN],
    len: u8,
}

impl GpduHeader {
    /// The header towards `teid`, with a PDU session container if one is given.
    pub fn new(teid: u32, pdu_session: Option<PduSession>) -> Self {
        let mut bytes = [0; GPDU_MAX_LEN];
        bytes[0] = VERSION_1_GTP;
        bytes[1] = MessageType::GPDU.0;
        bytes[4..8].copy_from_slice(&teid.to_be_bytes());
        let mut len = BASE_LEN;
        if let Some(container) = pdu_session {
            bytes[0] |= E;
            bytes[11] = ExtensionType::PDU_SESSION.0;
            bytes[12..].copy_from_slice(&container.write());
            len = GPDU_MAX_LEN;
        }
        Self { bytes, len: len as u8 }
    }

    /// Octets of the header. (It is never empty.)
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Writes the header for a payload of `payload_len` octets to the start of `to`.
    ///
    /// # Panics
    /// If `to` is shorter than [`GpduHeader::len`].
    #[inline]
    pub fn write(&self, payload_len: usize, to: &mut [u8]) {
        let len = self.len();
        to[..len].copy_from_slice(&self.bytes[..len]);
        to[2..4].copy_from_slice(&((len - BASE_LEN + payload_len) as u16).to_be_bytes());
    }
}

/// Writes a header with sequence number, as signalling messages have it (S set, 5.1), and returns its length.
pub(crate) fn write_signalling(
    kind: MessageType,
    teid: u32,
    sequence: u16,
    payload_len: usize,
    to: &mut [u8],
) -> usize {
    let len = BASE_LEN + OPTIONAL_LEN;
    to[..len].fill(0);
    to[0] = VERSION_1_GTP | S;
    to[1] = kind.0;
    to[2..4].copy_from_slice(&((OPTIONAL_LEN + payload_len) as u16).to_be_bytes());
    to[4..8].copy_from_slice(&teid.to_be_bytes());
    to[8..10].copy_from_slice(&sequence.to_be_bytes());
    len
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pdu_session::Direction;

    fn parse_all(bytes: &[u8]) -> Result<Header, ParseError> {
        parse(bytes, bytes.len())
    }

    #[test]
    fn the_shortest_header_has_eight_octets() {
        let header = parse_all(&[0x30, 255, 0, 3, 1, 2, 3, 4, 0xa, 0xb, 0xc]).unwrap();
        assert_eq!((header.message_type, header.teid), (MessageType::GPDU, 0x01020304));
        assert_eq!((header.header_len, header.payload_len), (8, 3));
        assert_eq!((header.sequence, header.pdu_session), (None, None));
    }

    #[test]
    fn each_flag_brings_all_four_optional_octets_but_only_its_own_counts() {
        let with = |flags| parse_all(&[0x30 | flags, 255, 0, 4, 0, 0, 0, 1, 0x12, 0x34, 0x56, 0]).unwrap();
        assert_eq!((with(S).sequence, with(S | PN | E).sequence), (Some(0x1234), Some(0x1234)));
        assert_eq!((with(PN).sequence, with(E).sequence), (None, None));
        assert!([S, PN, E].iter().all(|&flags| with(flags).header_len == 12 && with(flags).payload_len == 0));
    }

    #[test]
    fn without_the_e_flag_the_next_type_says_nothing() {
        let header = parse_all(&[0x30 | S, 255, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0x85]).unwrap();
        assert_eq!((header.header_len, header.pdu_session), (12, None));
    }

    #[test]
    fn a_pdu_session_container_is_read_wherever_it_stands_in_the_chain() {
        let bytes = [
            0x34, 255, 0, 21, 0, 0, 0, 9, 0, 0, 0, 0x20, // service class indicator first,
            1, 7, 0, 0x85, // then the container, eight octets long,
            2, 0x10, 0x09, 0, 0, 0, 0, 0x40, // then an unknown one
            1, 0, 0, 0, 0x45, // and the payload
        ];
        let header = parse_all(&bytes).unwrap();
        assert_eq!(header.pdu_session, Some(PduSession { direction: Direction::Uplink, qfi: 9, rqi: false }));
        assert_eq!((header.header_len, header.payload_len), (28, 1));
    }

    #[test]
    fn an_unknown_extension_is_refused_only_if_endpoints_must_understand_it() {
        let with = |kind| parse_all(&[0x34, 255, 0, 8, 0, 0, 0, 9, 0, 0, 0, kind, 1, 0, 0, 0]);
        for kind in [0x01, 0x03, 0x20, 0x3f, 0x40, 0x7f] {
            assert_eq!(with(kind).unwrap().header_len, 16, "{kind:#x}");
        }
        for kind in [0x81, 0x84, 0xc0, 0xff] {
            assert_eq!(with(kind), Err(ParseError::ExtensionRequired(ExtensionType(kind))));
        }
    }

    #[test]
    fn an_intermediate_node_refuses_only_what_it_must_understand() {
        let with = |kind| {
            let bytes = [0x34, 255, 0, 8, 0, 0, 0, 9, 0, 0, 0, kind, 1, 0, 0, 0];
            parse_at_intermediate_node(&bytes, bytes.len()).map(|header| header.refused_by_endpoint)
        };
        for kind in [0x03, 0x20, 0x40, 0x7f] {
            assert_eq!(with(kind), Ok(None), "{kind:#x}");
        }
        for kind in [0x81, 0x82, 0x84, 0xbf, 0xc0] {
            assert_eq!(with(kind), Ok(Some(ExtensionType(kind))));
        }
        for kind in [0xc1, 0xc2, 0xff] {
            assert_eq!(with(kind), Err(ParseError::ExtensionRequired(ExtensionType(kind))));
        }
    }

    #[test]
    fn a_header_is_extended_by_whatever_is_not_a_shortest_container() {
        let is_extended = |bytes: &[u8]| parse_all(bytes).unwrap().is_extended;
        let plain: [&[u8]; 4] = [
            &[0x30, 255, 0, 0, 0, 0, 0, 9],
            &[0x34, 255, 0, 4, 0, 0, 0, 9, 1, 2, 3, 0],
            &[0x34, 255, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0x85, 1, 0x10, 9, 0],
            &[0x34, 255, 0, 12, 0, 0, 0, 9, 0, 0, 0, 0x85, 1, 0x10, 9, 0x85, 1, 0x10, 9, 0],
        ];
        assert!(!plain.iter().any(|bytes| is_extended(bytes)));
        let extended: [&[u8]; 4] = [
            &[0x32, 255, 0, 4, 0, 0, 0, 9, 0, 0, 0, 0],
            &[0x31, 255, 0, 4, 0, 0, 0, 9, 0, 0, 0, 0],
            &[0x34, 255, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0x40, 1, 0, 0, 0],
            &[0x34, 255, 0, 12, 0, 0, 0, 9, 0, 0, 0, 0x85, 2, 0x18, 9, 0, 0, 0, 0, 0],
        ];
        assert!(extended.iter().all(|bytes| is_extended(bytes)));
    }

    #[test]
    fn malformed_headers_are_refused_by_reason() {
        let cases: [(&[u8], ParseError); 9] = [
            (&[0x30, 255, 0, 0, 0, 0, 0], ParseError::Truncated),
            (&[0x50, 255, 0, 0, 0, 0, 0, 1], ParseError::Version),
            (&[0x20, 255, 0, 0, 0, 0, 0, 1], ParseError::Version),
            (&[0x30, 255, 0, 1, 0, 0, 0, 1], ParseError::Length),
            (&[0x32, 255, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0], ParseError::Length),
            (&[0x34, 255, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0x85], ParseError::ExtensionLength),
            (&[0x34, 255, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0x85, 0, 0, 0, 0], ParseError::ExtensionLength),
            (&[0x34, 255, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0x85, 2, 0, 0, 0], ParseError::ExtensionLength),
            (&[0x34, 255, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0x20, 0, 0], ParseError::PduSession),
        ];
        for (bytes, error) in cases {
            assert_eq!(parse_all(bytes), Err(error), "{bytes:x?}");
        }
    }

    #[test]
    fn a_chain_beyond_the_bytes_at_hand_is_told_from_a_broken_one() {
        let bytes = [0x34, 255, 4, 0, 0, 0, 0, 9, 0, 0, 0, 0x20, 200, 0, 0, 0];
        assert_eq!(parse(&bytes, 1032), Err(ParseError::HeaderTooLong));
        assert_eq!(parse(&bytes, 1031), Err(ParseError::Length));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_header_within_the_datagram_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..256),
            beyond in 0usize..9_000,
        ) {
            if let Ok(header) = parse(&bytes, bytes.len() + beyond) {
                prop_assert!(header.header_len <= bytes.len());
                prop_assert!(header.header_len + header.payload_len <= bytes.len() + beyond);
                prop_assert!(header.pdu_session.is_none_or(|c| c.qfi < 64));
            }
        }

        #[test]
        fn what_is_written_is_read_back(
            teid: u32, payload_len in 0usize..9_000, qfi in proptest::option::of(0u8..64), rqi: bool, downlink: bool,
        ) {
            let direction = if downlink { Direction::Downlink } else { Direction::Uplink };
            let container = qfi.map(|qfi| PduSession { direction, qfi, rqi: rqi && downlink });
            let written = GpduHeader::new(teid, container);
            let mut bytes = [0xff; GPDU_MAX_LEN];
            written.write(payload_len, &mut bytes);
            let header = parse(&bytes, written.len() + payload_len).unwrap();
            prop_assert_eq!(header.teid, teid);
            prop_assert_eq!(header.pdu_session, container);
            prop_assert_eq!((header.header_len, header.payload_len), (written.len(), payload_len));
        }

        #[test]
        fn chains_of_any_length_lead_to_the_payload(
            chain in proptest::collection::vec((1u8..0x80, 1u8..6), 0..8), sequence: Option<u16>,
        ) {
            let mut bytes = vec![0x30 | E | if sequence.is_some() { S } else { 0 }, 255, 0, 0, 0, 0, 0, 1];
            bytes.extend(sequence.unwrap_or(0).to_be_bytes());
            bytes.push(0);
            for &(kind, len) in &chain {
                bytes.extend([kind, len]);
                bytes.extend(vec![0xee; usize::from(len) * 4 - 2]);
            }
            bytes.push(0);
            let header_len = bytes.len();
            bytes.extend([0x45; 20]);
            let length = (bytes.len() - BASE_LEN) as u16;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            let header = parse(&bytes, bytes.len()).unwrap();
            prop_assert_eq!((header.header_len, header.payload_len), (header_len, 20));
            prop_assert_eq!(header.sequence, sequence);
        }
    }
}
