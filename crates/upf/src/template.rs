//! What the outer headers of usual G-PDUs to a port say: the same octets at the same places in nearly all that it takes in, which a
//! few comparisons of whole words find there.

use std::net::Ipv4Addr;

/// Octets of the headers: Ethernet, IPv4 without options, UDP, and GTP-U's fixed and optional part with a shortest PDU session container.
pub(crate) const LEN: usize = 14 + 20 + 8 + gtpu::GPDU_MAX_LEN;
const _: () = assert!(LEN == 58, "octets are where they are said to be below");

/// Where the port's Ethernet and IPv4 addresses are, as destinations.
const MAC: usize = 0;
const ADDRESS: usize = 30;

/// Each octet that is always the same, beside these: where it is, which of its bits, and what they say.
const SAME: [(usize, u8, u8); 14] = [
    // EtherType; version and length of the header.
    (12, 0xff, 0x08),
    (13, 0xff, 0x00),
    (14, 0xff, 0x45),
    // No fragment, whether or not it may become one; UDP.
    (20, 0x3f, 0x00),
    (21, 0xff, 0x00),
    (23, 0xff, crate::ip::UDP),
    // To port 2152.
    (36, 0xff, (gtpu::UDP_PORT >> 8) as u8),
    (37, 0xff, gtpu::UDP_PORT as u8),
    // Version 1 with the E flag alone, G-PDU.
    (42, 0xff, 0x34),
    (43, 0xff, 0xff),
    // The container's type, its length of one unit, and that it is of an uplink; no extension header behind it.
    (53, 0xff, 0x85),
    (54, 0xff, 0x01),
    (55, 0xf0, 0x10),
    (57, 0xff, 0x00),
];

/// Where words begin that have all octets between them, two by two behind each other. The last two begin within the ones before.
const WORDS: [usize; 8] = [0, 8, 16, 24, 32, 40, LEN - 16, LEN - 8];

/// Which bits are always the same.
const FIXED: [u64; 8] = words(&octets([0xff; 6], [0xff; 4], true));

/// Those octets beside the addresses, or which of their bits they are.
const fn octets(mac: [u8; 6], address: [u8; 4], bits: bool) -> [u8; LEN] {
    let mut octets = [0; LEN];
    octets.split_at_mut(MAC).1.split_at_mut(6).0.copy_from_slice(&mac);
    octets.split_at_mut(ADDRESS).1.split_at_mut(4).0.copy_from_slice(&address);
    let mut at = 0;
    while at < SAME.len() {
        let (place, which, says) = SAME[at];
        octets[place] = if bits { which } else { says };
        at += 1;
    }
    octets
}

/// The octets of usual G-PDUs to a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template([u64; 8]);

impl Template {
    /// Of the port with these addresses.
    pub(crate) fn new(mac: [u8; 6], address: Ipv4Addr) -> Self {
        Self(words(&octets(mac, address.octets(), false)))
    }

    /// Whether the headers have them. Lengths, the header's checksum, the TEID and the QoS flow are left to look at.
    #[inline(always)]
    pub(crate) fn fits(&self, headers: &[u8; LEN]) -> bool {
        let words = words(headers);
        let mut different = 0;
        for at in 0..WORDS.len() {
            different |= (words[at] ^ self.0[at]) & FIXED[at];
        }
        different == 0
    }
}

#[inline(always)]
const fn words(octets: &[u8; LEN]) -> [u64; 8] {
    let mut words = [0; 8];
    let mut at = 0;
    while at < words.len() {
        if let Some(word) = octets.split_at(WORDS[at]).1.first_chunk() {
            words[at] = u64::from_ne_bytes(*word);
        }
        at += 1;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a G-PDU of 92 octets, uplink in QoS flow 9.
    const USUAL: [u8; LEN] = *b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\
        \x45\0\0\x80\x12\x34\x40\0\x40\x11\x0e\x2f\x0a\x03\0\x02\x0a\x03\0\x01\
        \xc3\x50\x08\x68\0\x6c\0\0\
        \x34\xff\0\x5c\0\0\0\x07\0\0\0\x85\x01\x10\x09\0";

    /// Bits that may be any: the sender's addresses and port, lengths, checksums, the type of service, identification, don't
    /// fragment and the bit before it, hops, the TEID, what the flags say is not there, and of the container all but its type and length.
    fn may_be_any(at: usize) -> u8 {
        match at {
            6..12 | 15..20 | 22 | 24..30 | 34..36 | 38..42 | 44..53 | 56 => 0xff,
            20 => 0xc0,
            55 => 0x0f,
            _ => 0,
        }
    }

    #[test]
    fn every_bit_that_is_always_the_same_is_looked_at_and_no_other_is() {
        let template = Template::new([2, 0, 0, 0, 0, 1], [10, 3, 0, 1].into());
        assert!(template.fits(&USUAL));
        for at in 0..LEN {
            for bit in 0..8 {
                let mut headers = USUAL;
                headers[at] ^= 1 << bit;
                assert_eq!(template.fits(&headers), may_be_any(at) & 1 << bit != 0, "octet {at}, bit {bit}");
            }
        }
    }
}
