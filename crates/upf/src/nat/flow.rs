//! What a packet's translation goes by: ports, or the identifier of an ICMP query, or of what an ICMP error quotes.

use crate::drops::DropReason;
use crate::ip::{Packet, UDP};

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;

/// What a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// TCP, UDP, or an ICMP query.
    Whole {
        /// Protocol number.
        protocol: u8,
        /// Source port, or the query's identifier.
        source: u16,
        /// Destination port, or the query's identifier.
        destination: u16,
        /// Flags of TCP, or the type of an ICMP query.
        kind: u8,
    },
    /// An ICMP error about a packet.
    Error {
        /// The packet's protocol number.
        protocol: u8,
        /// Its source address.
        source: (u32, u16),
        /// Its destination address.
        destination: (u32, u16),
    },
    /// A fragment behind the first.
    Rest,
}

/// Types of ICMP errors (RFC 5508, 4): destination unreachable, source quench, time exceeded, parameter problem.
const ERRORS: [u8; 4] = [3, 4, 11, 12];
/// Types of ICMP queries, echo and timestamp, and of what answers them.
const QUERIES: [u8; 2] = [8, 13];
const ANSWERS: [u8; 2] = [0, 14];

/// Whether an ICMP message of this type is a query.
pub fn is_query(kind: u8) -> bool {
    QUERIES.contains(&kind)
}

/// Whether an ICMP message of this type has an identifier: it is a query, or answers one.
pub fn has_identifier(kind: u8) -> bool {
    QUERIES.contains(&kind) || ANSWERS.contains(&kind)
}

impl Flow {
    /// Reads what the packet belongs to.
    pub fn of(packet: &Packet<'_, false>) -> Result<Self, DropReason> {
        let bytes = packet.bytes();
        if bytes[6] & 0x1f != 0 || bytes[7] != 0 {
            return Ok(Self::Rest);
        }
        let upper = &bytes[packet.header_len()..];
        let protocol = packet.next_header();
        match (protocol, upper) {
            (ICMP, [kind, _, _, _, _, _, _, _, quote @ ..]) if ERRORS.contains(kind) => Self::of_quote(quote),
            (TCP, _) if upper.len() < 20 => Err(DropReason::InnerMalformed),
            (TCP | UDP | ICMP, _) => {
                let (source, destination) = ports(protocol, upper)?;
                let kind = if protocol == TCP { upper[13] } else { upper[0] };
                Ok(Self::Whole { protocol, source, destination, kind })
            }
            _ => Err(DropReason::NatProtocol),
        }
    }

    /// The port outside of a packet from there; none of a fragment behind the first.
    pub fn outside_port(&self) -> Option<u16> {
        match *self {
            Self::Whole { destination, .. } => Some(destination),
            Self::Error { source: (_, port), .. } => Some(port),
            Self::Rest => None,
        }
    }

    /// Of an error that quotes a packet which begins so.
    fn of_quote(quote: &[u8]) -> Result<Self, DropReason> {
        let header_len = quote.first().map_or(0, |first| usize::from(first & 0xf) * 4);
        if header_len < 20 || quote.len() < header_len || quote[0] >> 4 != 4 {
            return Err(DropReason::InnerMalformed);
        }
        if quote[6] & 0x1f != 0 || quote[7] != 0 {
            return Err(DropReason::NatFragment);
        }
        let address = |at: usize| quote[at..at + 4].iter().fold(0, |bits, &octet| bits << 8 | u32::from(octet));
        let (source, destination) = ports(quote[9], &quote[header_len..])?;
        let protocol = quote[9];
        Ok(Self::Error { protocol, source: (address(12), source), destination: (address(16), destination) })
    }
}

/// The ports at the beginning of a protocol's header, or the identifier of a query.
fn ports(protocol: u8, upper: &[u8]) -> Result<(u16, u16), DropReason> {
    let &[p0, p1, p2, p3, p4, p5, _, _, ..] = upper else { return Err(DropReason::InnerMalformed) };
    match (protocol, p0) {
        (TCP | UDP, _) => Ok((u16::from_be_bytes([p0, p1]), u16::from_be_bytes([p2, p3]))),
        (ICMP, kind) if has_identifier(kind) => {
            let identifier = u16::from_be_bytes([p4, p5]);
            Ok((identifier, identifier))
        }
        _ => Err(DropReason::NatProtocol),
    }
}
