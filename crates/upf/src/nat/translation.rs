//! A translation: another address and port at one end of a packet, and every checksum that covers them (RFC 1624).

use super::flow::{ICMP, TCP, has_identifier};
use crate::ip::{UDP, checksum, sum, updated_checksum};

/// Which end of a packet is translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// The source.
    #[default]
    Source,
    /// The destination.
    Destination,
}

/// What an end of a packet becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// Which end.
    pub end: End,
    /// The new address.
    pub address: u32,
    /// The new port, or identifier of a query.
    pub port: u16,
}

impl End {
    fn other(self) -> Self {
        match self {
            Self::Source => Self::Destination,
            Self::Destination => Self::Source,
        }
    }
}

impl Translation {
    /// What makes the packet again what it was, when its end had this address and port.
    #[must_use]
    pub fn back(&self, address: u32, port: u16) -> Self {
        Self { end: self.end, address, port }
    }

    /// Translates the IPv4 packet that begins so. Its headers were found sound, and are at hand.
    #[cold]
    pub fn apply(&self, bytes: &mut [u8]) {
        let len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        // What is behind the packet is none of its.
        let at_hand = len.min(bytes.len());
        let packet = &mut bytes[..at_hand];
        let at = usize::from(packet[0] & 0xf) * 4;
        let is_error =
            packet[9] == ICMP && !is_rest(packet) && !packet.get(at).is_some_and(|kind| has_identifier(*kind));
        self.readdress(packet);
        if is_error {
            self.translate_quote(packet, at);
        }
    }

    /// The address, and the port where there is one.
    fn readdress(&self, packet: &mut [u8]) {
        let at = usize::from(packet[0] & 0xf) * 4;
        let (protocol, rest) = (packet[9], is_rest(packet));
        let sum_at = match protocol {
            TCP if !rest => Some(at + 16),
            // Zero means that there is none.
            UDP if !rest && packet.get(at + 6..at + 8).is_some_and(|sum| sum != [0, 0]) => Some(at + 6),
            _ => None,
        };
        let (address_at, port_at) = match self.end {
            End::Source => (12, at),
            End::Destination => (16, at + 2),
        };
        let octets = self.address.to_be_bytes();
        set(packet, address_at, [octets[0], octets[1]], &[Some(10), sum_at]);
        set(packet, address_at + 2, [octets[2], octets[3]], &[Some(10), sum_at]);
        match (protocol, packet.get(at)) {
            _ if rest => {}
            (TCP | UDP, _) => set(packet, port_at, self.port.to_be_bytes(), &[sum_at]),
            (ICMP, Some(&kind)) if has_identifier(kind) => {
                set(packet, at + 4, self.port.to_be_bytes(), &[Some(at + 2)]);
            }
            _ => {}
        }
        if let (UDP, Some(sum_at)) = (protocol, sum_at)
            && packet[sum_at..sum_at + 2] == [0, 0]
        {
            packet[sum_at..sum_at + 2].fill(0xff);
        }
    }

    /// What an ICMP error quotes went the other way.
    fn translate_quote(&self, packet: &mut [u8], at: usize) {
        let Some((error, quote)) = packet[at..].split_first_chunk_mut::<8>() else { return };
        // All headers that change.
        let Some(first) = quote.first() else { return };
        let end = (usize::from(first & 0xf) * 4 + 20).min(quote.len());
        let before = checksum(sum(&quote[..end]));
        Self { end: self.end.other(), ..*self }.readdress(quote);
        let after = checksum(sum(&quote[..end]));
        let updated = updated_checksum([error[2], error[3]], (!before).to_be_bytes(), (!after).to_be_bytes());
        error[2..4].copy_from_slice(&updated);
    }
}

/// Whether it is a fragment behind the first.
fn is_rest(packet: &[u8]) -> bool {
    packet[6] & 0x1f != 0 || packet[7] != 0
}

/// Sets a word, as far as it is at hand, and has checksums follow.
fn set(packet: &mut [u8], at: usize, to: [u8; 2], sums: &[Option<usize>]) {
    let Some(word) = packet.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>) else { return };
    let before = std::mem::replace(word, to);
    for &sum in sums.iter().flatten() {
        if let Some(sum) = packet.get_mut(sum..).and_then(<[u8]>::first_chunk_mut::<2>) {
            *sum = updated_checksum(*sum, before, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UE: u32 = 0x0a2d_0001;
    const PEER: u32 = 0xc000_0201;
    const OUTSIDE: u32 = 0xcb00_7107;

    /// A packet with right checksums.
    fn packet(protocol: u8, from: (u32, u16), to: (u32, u16), payload: &[u8]) -> Vec<u8> {
        let mut upper = match protocol {
            ICMP => vec![8, 0, 0, 0, 0, 0, 0, 1],
            TCP => vec![0; 20],
            _ => vec![0; 8],
        };
        upper.extend(payload);
        let sum_at = match protocol {
            ICMP => {
                upper[4..6].copy_from_slice(&from.1.to_be_bytes());
                2
            }
            _ => {
                upper[..2].copy_from_slice(&from.1.to_be_bytes());
                upper[2..4].copy_from_slice(&to.1.to_be_bytes());
                if protocol == TCP { 16 } else { 6 }
            }
        };
        whole(protocol, from.0, to.0, upper, sum_at)
    }

    fn whole(protocol: u8, from: u32, to: u32, mut upper: Vec<u8>, sum_at: usize) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend([from.to_be_bytes(), to.to_be_bytes()].concat());
        packet[2..4].copy_from_slice(&(20 + upper.len() as u16).to_be_bytes());
        let header = checksum(sum(&packet));
        packet[10..12].copy_from_slice(&header.to_be_bytes());
        let pseudo = if protocol == ICMP { 0 } else { sum(&packet[12..20]) + u64::from(protocol) + upper.len() as u64 };
        let all = checksum(sum(&upper) + pseudo);
        upper[sum_at..sum_at + 2].copy_from_slice(&all.to_be_bytes());
        packet.extend(upper);
        packet
    }

    /// An error of `from` that quotes a packet.
    fn error(from: u32, to: u32, quoted: &[u8]) -> Vec<u8> {
        whole(ICMP, from, to, [&[3, 3, 0, 0, 0, 0, 0, 0], quoted].concat(), 2)
    }

    /// Zero and its complement are one checksum.
    fn same(left: &[u8], right: &[u8]) -> bool {
        let normal = |packet: &[u8]| {
            packet
                .chunks(2)
                .map(|word| if word == [0xff, 0xff] { vec![0, 0] } else { word.to_vec() })
                .collect::<Vec<_>>()
        };
        normal(left) == normal(right)
    }

    proptest! {
        #[test]
        fn a_translated_packet_is_the_packet_made_so(
            which in 0..3_usize, port: u16, other: u16, outside: u16, payload in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let protocol = [ICMP, TCP, UDP][which];
            let mut out = packet(protocol, (UE, port), (PEER, other), &payload);
            Translation { end: End::Source, address: OUTSIDE, port: outside }.apply(&mut out);
            prop_assert!(same(&out, &packet(protocol, (OUTSIDE, outside), (PEER, other), &payload)));
            Translation { end: End::Source, address: UE, port }.apply(&mut out);
            prop_assert!(same(&out, &packet(protocol, (UE, port), (PEER, other), &payload)));
        }

        #[test]
        fn what_an_error_quotes_is_translated_with_it(which in 0..3_usize, port: u16, other: u16, outside: u16, words in 4..14_usize) {
            let protocol = [ICMP, TCP, UDP][which];
            let quoted = |from| {
                let mut quoted = packet(protocol, from, (PEER, other), &[7; 8]);
                quoted.truncate(20 + 2 * words);
                quoted
            };
            let mut told = error(0x0102_0304, OUTSIDE, &quoted((OUTSIDE, outside)));
            Translation { end: End::Destination, address: UE, port }.apply(&mut told);
            prop_assert!(same(&told, &error(0x0102_0304, UE, &quoted((UE, port)))));
        }
    }

    #[test]
    fn what_is_behind_a_packet_stays() {
        let mut quoted = packet(TCP, (OUTSIDE, 9), (PEER, 2), b"");
        quoted.truncate(28);
        let mut told = error(PEER, OUTSIDE, &quoted);
        told.extend([7; 20]);
        Translation { end: End::Destination, address: UE, port: 1 }.apply(&mut told);
        let (told, behind) = told.split_at(56);
        assert_eq!((behind, checksum(sum(&told[20..]))), (&[7; 20][..], 0));
    }

    #[test]
    fn a_datagram_without_a_checksum_stays_without() {
        let mut out = packet(UDP, (UE, 1), (PEER, 2), b"x");
        out[26..28].fill(0);
        Translation { end: End::Source, address: OUTSIDE, port: 9 }.apply(&mut out);
        assert_eq!(out[26..28], [0, 0]);
    }
}
