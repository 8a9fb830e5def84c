//! The message header (TS 29.244, 7.2.2), and what must hold of a datagram before its elements are looked at.

use rs_pfcp::message::MsgType;
use rs_pfcp::message::header::Header as Encoder;

/// The protocol's version, the only one there is.
pub const VERSION: u8 = 1;

/// A message's type, as on the wire; unknown ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageType(pub u8);

#[allow(missing_docs)]
impl MessageType {
    pub const HEARTBEAT_REQUEST: Self = Self(1);
    pub const HEARTBEAT_RESPONSE: Self = Self(2);
    pub const PFD_MANAGEMENT_REQUEST: Self = Self(3);
    pub const PFD_MANAGEMENT_RESPONSE: Self = Self(4);
    pub const ASSOCIATION_SETUP_REQUEST: Self = Self(5);
    pub const ASSOCIATION_SETUP_RESPONSE: Self = Self(6);
    pub const ASSOCIATION_UPDATE_REQUEST: Self = Self(7);
    pub const ASSOCIATION_UPDATE_RESPONSE: Self = Self(8);
    pub const ASSOCIATION_RELEASE_REQUEST: Self = Self(9);
    pub const ASSOCIATION_RELEASE_RESPONSE: Self = Self(10);
    pub const VERSION_NOT_SUPPORTED_RESPONSE: Self = Self(11);
    pub const NODE_REPORT_REQUEST: Self = Self(12);
    pub const NODE_REPORT_RESPONSE: Self = Self(13);
    pub const SESSION_SET_DELETION_REQUEST: Self = Self(14);
    pub const SESSION_SET_DELETION_RESPONSE: Self = Self(15);
    pub const SESSION_SET_MODIFICATION_REQUEST: Self = Self(16);
    pub const SESSION_SET_MODIFICATION_RESPONSE: Self = Self(17);
    pub const SESSION_ESTABLISHMENT_REQUEST: Self = Self(50);
    pub const SESSION_ESTABLISHMENT_RESPONSE: Self = Self(51);
    pub const SESSION_MODIFICATION_REQUEST: Self = Self(52);
    pub const SESSION_MODIFICATION_RESPONSE: Self = Self(53);
    pub const SESSION_DELETION_REQUEST: Self = Self(54);
    pub const SESSION_DELETION_RESPONSE: Self = Self(55);
    pub const SESSION_REPORT_REQUEST: Self = Self(56);
    pub const SESSION_REPORT_RESPONSE: Self = Self(57);
}

impl MessageType {
    /// Whether messages of the type concern a session, so that their header has an SEID (7.2.2.4).
    pub const fn is_session_related(self) -> bool {
        matches!(self.0, 50..=57)
    }
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the message.
    pub message_type: MessageType,
    /// The receiver's SEID; absent from messages that concern nodes.
    pub seid: Option<u64>,
    /// Sequence number, 24 bits.
    pub sequence: u32,
}

/// Why a datagram is not taken for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is too short for a header: to be discarded (7.6.3).
    #[error("{0} octets are too few for a PFCP header")]
    TooShort(usize),
    /// Its version is another: to be answered by [`version_not_supported`], unless it is such an answer itself (7.6.2).
    #[error("PFCP version {version} is not supported")]
    Version {
        /// The message's version.
        version: u8,
        /// The message's type, if it means what it means in version 1.
        message_type: MessageType,
        /// The message's sequence number.
        sequence: u32,
    },
    /// The length it states is not its length: a request to be answered with cause *Invalid length* (7.6.3).
    #[error("the header states {stated} octets after the first four, but there are {present}")]
    Length {
        /// The header, as far as it can be believed.
        header: Header,
        /// Octets that should follow the first four.
        stated: usize,
        /// Octets that do.
        present: usize,
    },
}

const SEID_FLAG: u8 = 1;
/// The part of the header that the length does not count.
const UNCOUNTED: usize = 4;
/// Most octets of a UDP datagram over IPv4.
const DATAGRAM_MOST: usize = 65_507;

impl Header {
    /// Splits `datagram` into header and information elements.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let too_short = HeaderError::TooShort(datagram.len());
        let &[flags, message_type, length_high, length_low, ..] = datagram else { return Err(too_short) };
        let has_seid = flags & SEID_FLAG != 0;
        let header_len = if has_seid { 16 } else { 8 };
        if datagram.len() < header_len {
            return Err(too_short);
        }
        let message_type = MessageType(message_type);
        let seid = has_seid.then(|| u64::from_be_bytes(datagram[4..12].try_into().expect("eight octets")));
        let [a, b, c] = datagram[header_len - 4..header_len - 1] else { unreachable!("three octets") };
        let sequence = u32::from_be_bytes([0, a, b, c]);
        let version = flags >> 5;
        if version != VERSION {
            return Err(HeaderError::Version { version, message_type, sequence });
        }
        let header = Self { message_type, seid, sequence };
        let (stated, present) = (u16::from_be_bytes([length_high, length_low]).into(), datagram.len() - UNCOUNTED);
        if stated != present {
            return Err(HeaderError::Length { header, stated, present });
        }
        Ok((header, &datagram[header_len..]))
    }

    /// The message with this header and the encoded elements `body`, or as much of them as a datagram has room for: whoever
    /// makes a message sees to it that it fits, but no peer must be able to end the process by making it say too much.
    pub(crate) fn prepend_to(&self, body: &[u8]) -> Vec<u8> {
        let known = MsgType::from(self.message_type.0);
        let mut encoder = Encoder::new(known, self.seid.is_some(), self.seid.unwrap_or(0), self.sequence & 0xff_ffff);
        let header_len = usize::from(encoder.len());
        let body = &body[..body.len().min(DATAGRAM_MOST - header_len)];
        encoder.length = (header_len - UNCOUNTED + body.len()) as u16;
        let mut message = encoder.marshal();
        message.extend_from_slice(body);
        message
    }
}

/// The answer to a request of an unsupported version (7.4.4.7): a header in the version that is supported.
pub fn version_not_supported(sequence: u32) -> Vec<u8> {
    Header { message_type: MessageType::VERSION_NOT_SUPPORTED_RESPONSE, seid: None, sequence }.prepend_to(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_parsed() {
        for seid in [None, Some(0x0102_0304_0506_0708)] {
            let header = Header { message_type: MessageType(50), seid, sequence: 0xab_cdef };
            let datagram = header.prepend_to(&[1, 2, 3, 4]);
            assert_eq!(Header::parse(&datagram), Ok((header, &[1, 2, 3, 4][..])));
        }
    }

    #[test]
    fn a_message_is_never_longer_than_a_datagram() {
        let header = Header { message_type: MessageType(50), seid: Some(1), sequence: 1 };
        for len in [DATAGRAM_MOST - 16, DATAGRAM_MOST, 1 << 20] {
            let datagram = header.prepend_to(&vec![0; len]);
            assert_eq!(datagram.len(), DATAGRAM_MOST);
            assert!(Header::parse(&datagram).is_ok());
        }
    }

    #[test]
    fn a_datagram_shorter_than_its_header_is_too_short() {
        let datagram = Header { message_type: MessageType(52), seid: Some(1), sequence: 1 }.prepend_to(&[]);
        for len in 0..datagram.len() {
            assert_eq!(Header::parse(&datagram[..len]), Err(HeaderError::TooShort(len)));
        }
    }

    #[test]
    fn another_version_is_told_with_the_sequence_number() {
        let mut datagram = Header { message_type: MessageType(1), seid: None, sequence: 77 }.prepend_to(&[]);
        datagram[0] = 2 << 5;
        let error = HeaderError::Version { version: 2, message_type: MessageType(1), sequence: 77 };
        assert_eq!(Header::parse(&datagram), Err(error));
        let (answer, body) = (version_not_supported(77), &[][..]);
        let expected = Header { message_type: MessageType(11), seid: None, sequence: 77 };
        assert_eq!(Header::parse(&answer), Ok((expected, body)));
    }

    #[test]
    fn a_length_that_is_not_the_datagrams_is_found() {
        let header = Header { message_type: MessageType(1), seid: None, sequence: 5 };
        let mut datagram = header.prepend_to(&[0, 96, 0, 4, 1, 2, 3, 4]);
        datagram.push(0);
        assert_eq!(Header::parse(&datagram), Err(HeaderError::Length { header, stated: 12, present: 13 }));
        datagram.truncate(15);
        assert_eq!(Header::parse(&datagram), Err(HeaderError::Length { header, stated: 12, present: 11 }));
    }
}
