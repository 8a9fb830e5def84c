//! Transport level marking (TS 29.244, 8.2.12): the ToS or traffic class that packets get.

use serde::{Deserialize, Serialize};

use crate::ip;

/// Bits of the octet, and which of them are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marking {
    /// The octet.
    pub tos: u8,
    /// Bits that are given; the others stay as they are.
    pub mask: u8,
}

impl Marking {
    /// Whether packets stay as they are.
    #[inline]
    pub fn is_none(self) -> bool {
        self.mask == 0
    }

    /// The octet of headers that had none before.
    pub fn octet(self) -> u8 {
        self.tos & self.mask
    }

    /// Marks an IP packet with a sound header, whose first bytes these are.
    #[cold]
    pub fn apply(self, packet: &mut [u8]) {
        let set = |old: u8| old & !self.mask | self.octet();
        match (ip::is_v6(packet), &mut *packet) {
            (Some(false), [first, tos, ..]) => {
                let (before, after) = ([*first, *tos], [*first, set(*tos)]);
                *tos = after[1];
                if let Some(sum) = packet.get_mut(10..12) {
                    let updated = ip::updated_checksum([sum[0], sum[1]], before, after);
                    sum.copy_from_slice(&updated);
                }
            }
            (Some(true), [first, second, ..]) => {
                let class = set(*first << 4 | *second >> 4);
                *first = *first & 0xf0 | class >> 4;
                *second = class << 4 | *second & 0x0f;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::{Packet, checksum, sum};

    proptest! {
        #[test]
        fn an_ipv4_header_s_checksum_stays_right(mut header: [u8; 20], tos: u8, mask: u8) {
            header[0] = 0x45;
            header[2..4].copy_from_slice(&[0, 20]);
            header[10..12].fill(0);
            let right = checksum(sum(&header));
            header[10..12].copy_from_slice(&right.to_be_bytes());
            let before = header;
            Marking { tos, mask }.apply(&mut header);
            let packet = Packet::<false>::parse(&header, 20).unwrap();
            prop_assert!(packet.checksum_is_right());
            prop_assert_eq!(packet.tos(), before[1] & !mask | tos & mask);
            prop_assert_eq!((&header[2..10], &header[12..]), (&before[2..10], &before[12..]));
        }

        #[test]
        fn an_ipv6_header_s_other_fields_stay(mut header: [u8; 40], tos: u8, mask: u8) {
            header[0] = 0x60 | header[0] & 0xf;
            header[4..6].fill(0);
            let before = header;
            Marking { tos, mask }.apply(&mut header);
            let packets = [&header, &before].map(|bytes| Packet::<true>::parse(bytes, 40).unwrap());
            prop_assert_eq!(packets[0].tos(), packets[1].tos() & !mask | tos & mask);
            prop_assert_eq!(packets[0].flow_label(), packets[1].flow_label());
            prop_assert_eq!(&header[2..], &before[2..]);
        }
    }
}
