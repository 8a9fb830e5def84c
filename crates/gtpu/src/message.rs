//! Signalling messages (TS 29.281, 7): path management and tunnel management, and their information elements.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::extension::ExtensionType;
use crate::header::{Header, MessageType, write_signalling};

/// Octets of the longest message that this module writes.
pub const MESSAGE_MAX_LEN: usize = 64;

const IE_RECOVERY: u8 = 14;
const IE_TEID_DATA_I: u8 = 16;
const IE_PEER_ADDRESS: u8 = 133;
const IE_EXTENSION_TYPES: u8 = 141;

/// Why a signalling message cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// An information element leaves the message, or has a wrong length.
    #[error("information element {0} has a wrong length")]
    Length(u8),
    /// A mandatory information element is missing.
    #[error("information element {0} is missing")]
    Missing(u8),
    /// An information element of fixed length that is not known, so that what follows cannot be read.
    #[error("information element {0} is not known")]
    Unknown(u8),
}

/// Echo Request (7.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoRequest {
    /// Sequence number, which the response repeats.
    pub sequence: u16,
}

impl EchoRequest {
    /// Writes the message to the start of `to` and returns its length. `to` must hold [`MESSAGE_MAX_LEN`].
    pub fn write(&self, to: &mut [u8]) -> usize {
        write_signalling(MessageType::ECHO_REQUEST, 0, self.sequence, 0, to)
    }
}

/// Echo Response (7.2.2). Its restart counter is always zero, as 3GPP wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoResponse {
    /// Sequence number of the request.
    pub sequence: u16,
}

impl EchoResponse {
    /// The response to a request with this header.
    pub fn to(request: &Header) -> Self {
        Self { sequence: request.sequence.unwrap_or(0) }
    }

    /// Writes the message to the start of `to` and returns its length. `to` must hold [`MESSAGE_MAX_LEN`].
    pub fn write(&self, to: &mut [u8]) -> usize {
        let at = write_signalling(MessageType::ECHO_RESPONSE, 0, self.sequence, 2, to);
        to[at..at + 2].copy_from_slice(&[IE_RECOVERY, 0]);
        at + 2
    }
}

/// Error Indication (7.3.1): a G-PDU came for a tunnel that its receiver does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorIndication {
    /// TEID of that G-PDU.
    pub teid: u32,
    /// Address that the G-PDU was sent to.
    pub peer: IpAddr,
}

impl ErrorIndication {
    /// Writes the message to the start of `to` and returns its length. `to` must hold [`MESSAGE_MAX_LEN`].
    pub fn write(&self, to: &mut [u8]) -> usize {
        let address_len = match self.peer {
            IpAddr::V4(_) => 4,
            IpAddr::V6(_) => 16,
        };
        let mut at = write_signalling(MessageType::ERROR_INDICATION, 0, 0, 5 + 3 + address_len, to);
        to[at] = IE_TEID_DATA_I;
        to[at + 1..at + 5].copy_from_slice(&self.teid.to_be_bytes());
        at += 5;
        to[at..at + 3].copy_from_slice(&[IE_PEER_ADDRESS, 0, address_len as u8]);
        at += 3;
        match self.peer {
            IpAddr::V4(address) => to[at..at + address_len].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => to[at..at + address_len].copy_from_slice(&address.octets()),
        }
        at + address_len
    }

    /// Reads the information elements: the payload of a message whose header says Error Indication.
    pub fn parse(payload: &[u8]) -> Result<Self, MessageError> {
        let (mut teid, mut peer) = (None, None);
        for element in elements(payload) {
            let (kind, value) = element?;
            match kind {
                IE_TEID_DATA_I => teid = value.first_chunk().map(|b| u32::from_be_bytes(*b)),
                IE_PEER_ADDRESS => peer = Some(address(value).ok_or(MessageError::Length(kind))?),
                _ => {}
            }
        }
        Ok(Self {
            teid: teid.ok_or(MessageError::Missing(IE_TEID_DATA_I))?,
            peer: peer.ok_or(MessageError::Missing(IE_PEER_ADDRESS))?,
        })
    }
}

/// Supported Extension Headers Notification (7.2.3), with the one extension header type that this crate knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupportedExtensions {
    /// Sequence number.
    pub sequence: u16,
}

impl SupportedExtensions {
    /// Writes the message to the start of `to` and returns its length. `to` must hold [`MESSAGE_MAX_LEN`].
    pub fn write(&self, to: &mut [u8]) -> usize {
        let at = write_signalling(MessageType::SUPPORTED_EXTENSIONS, 0, self.sequence, 3, to);
        to[at..at + 3].copy_from_slice(&[IE_EXTENSION_TYPES, 1, ExtensionType::PDU_SESSION.0]);
        at + 3
    }
}

/// Writes an End Marker (7.3.2) for the receiver's `teid` to the start of `to` and returns its length.
pub fn end_marker(teid: u32, to: &mut [u8]) -> usize {
    to[..8].copy_from_slice(&[0x30, MessageType::END_MARKER.0, 0, 0, 0, 0, 0, 0]);
    to[4..8].copy_from_slice(&teid.to_be_bytes());
    8
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk().map(|b: &[u8; 4]| Ipv4Addr::from(*b).into()),
        16 => value.first_chunk().map(|b: &[u8; 16]| Ipv6Addr::from(*b).into()),
        _ => None,
    }
}

/// The information elements of a message, as type and value (8.1): below 128 the type gives the length.
fn elements(payload: &[u8]) -> impl Iterator<Item = Result<(u8, &[u8]), MessageError>> {
    let mut left = payload;
    std::iter::from_fn(move || {
        let (&kind, behind) = left.split_first()?;
        let element = element(kind, behind);
        left = element.as_ref().map_or(&[], |&(_, rest)| rest);
        Some(element.map(|(value, _)| (kind, value)))
    })
}

fn element(kind: u8, behind: &[u8]) -> Result<(&[u8], &[u8]), MessageError> {
    let (len, value) = match kind {
        IE_RECOVERY => (1, behind),
        IE_TEID_DATA_I => (4, behind),
        0..128 => return Err(MessageError::Unknown(kind)),
        IE_EXTENSION_TYPES => {
            let (&len, value) = behind.split_first().ok_or(MessageError::Length(kind))?;
            (usize::from(len), value)
        }
        _ => {
            let (len, value) = behind.split_first_chunk::<2>().ok_or(MessageError::Length(kind))?;
            (usize::from(u16::from_be_bytes(*len)), value)
        }
    };
    value.split_at_checked(len).ok_or(MessageError::Length(kind))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::header::parse;

    fn written(write: impl Fn(&mut [u8]) -> usize) -> Vec<u8> {
        let mut bytes = vec![0xff; MESSAGE_MAX_LEN];
        let len = write(&mut bytes);
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn an_echo_response_repeats_the_sequence_number_and_carries_a_recovery_of_zero() {
        let request = written(|to| EchoRequest { sequence: 0x1234 }.write(to));
        assert_eq!(request, [0x32, 1, 0, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 0]);
        let header = parse(&request, request.len()).unwrap();
        let response = written(|to| EchoResponse::to(&header).write(to));
        assert_eq!(response, [0x32, 2, 0, 6, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 14, 0]);
    }

    #[test]
    fn an_error_indication_names_tunnel_and_address() {
        for peer in ["10.3.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()] {
            let indication = ErrorIndication { teid: 0xdeadbeef, peer };
            let bytes = written(|to| indication.write(to));
            let header = parse(&bytes, bytes.len()).unwrap();
            assert_eq!((header.message_type, header.teid), (MessageType::ERROR_INDICATION, 0));
            assert_eq!(ErrorIndication::parse(&bytes[header.header_len..]), Ok(indication));
        }
    }

    #[test]
    fn error_indications_without_their_elements_are_refused() {
        let cases: [(&[u8], MessageError); 5] = [
            (&[], MessageError::Missing(16)),
            (&[16, 0, 0, 0, 1], MessageError::Missing(133)),
            (&[16, 0, 0], MessageError::Length(16)),
            (&[133, 0, 5, 1, 2, 3, 4, 5], MessageError::Length(133)),
            (&[99, 0], MessageError::Unknown(99)),
        ];
        for (payload, error) in cases {
            assert_eq!(ErrorIndication::parse(payload), Err(error), "{payload:?}");
        }
    }

    #[test]
    fn a_notification_lists_the_pdu_session_container() {
        let bytes = written(|to| SupportedExtensions { sequence: 7 }.write(to));
        assert_eq!(bytes, [0x32, 31, 0, 7, 0, 0, 0, 0, 0, 7, 0, 0, 141, 1, 0x85]);
    }

    #[test]
    fn an_end_marker_is_a_bare_header() {
        let bytes = written(|to| end_marker(5, to));
        let header = parse(&bytes, bytes.len()).unwrap();
        assert_eq!((header.message_type, header.teid, header.payload_len), (MessageType::END_MARKER, 5, 0));
    }

    proptest! {
        #[test]
        fn any_payload_gives_an_indication_or_an_error(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ErrorIndication::parse(&payload);
        }
    }
}
