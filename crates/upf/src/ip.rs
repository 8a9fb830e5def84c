//! Reading IP packets of which only the first bytes are at hand.

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

/// Most IPv6 extension headers that are followed.
const EXTENSIONS_MAX: usize = 8;

/// An IP packet with a sound header. The version is part of the type, so that code for one has no trace of the other.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a, const V6: bool> {
    /// The bytes at hand: at least the fixed header and IPv4 options, at most the packet.
    bytes: &'a [u8],
    /// Length of the packet.
    len: u16,
}

/// Why bytes are not an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpError {
    /// The version is neither 4 nor 6.
    Version,
    /// The lengths do not fit one another.
    Malformed,
    /// The header ends beyond the bytes at hand.
    Beyond,
}

/// What follows the IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper<'a> {
    /// Protocol number.
    pub protocol: u8,
    /// Its bytes at hand; none in a fragment behind the first, or where the headers go on beyond the bytes at hand.
    pub bytes: Option<&'a [u8]>,
    /// Security parameter index of IPsec, if it is at hand.
    pub spi: Option<u32>,
}

/// Whether bytes that begin so are an IPv6 packet; none if they are not IP.
#[inline]
pub fn is_v6(bytes: &[u8]) -> Option<bool> {
    match bytes.first()? >> 4 {
        4 => Some(false),
        6 => Some(true),
        _ => None,
    }
}

impl<'a, const V6: bool> Packet<'a, V6> {
    /// Length of the fixed header.
    pub const FIXED_LEN: usize = if V6 { 40 } else { 20 };
    /// EtherType that announces it.
    pub const ETHER_TYPE: u16 = if V6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };

    /// Reads the header at the start of `bytes`. `available` is how long the packet can be at most; `bytes` may hold less
    /// of it, or more.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8], available: usize) -> Result<Self, IpError> {
        if let Some(&[0x45, _, l0, l1, ..]) = bytes.first_chunk::<20>().filter(|_| !V6) {
            let len = u16::from_be_bytes([l0, l1]);
            if (20..=available).contains(&len.into()) {
                return Ok(Self { bytes: &bytes[..bytes.len().min(len.into())], len });
            }
        }
        Self::parse_any(bytes, available)
    }

    /// The same for any header.
    #[inline(never)]
    fn parse_any(bytes: &'a [u8], available: usize) -> Result<Self, IpError> {
        let header_len = match bytes.first() {
            Some(first) if first >> 4 != if V6 { 6 } else { 4 } => return Err(IpError::Version),
            Some(first) if !V6 => usize::from(first & 0xf) * 4,
            _ => Self::FIXED_LEN,
        };
        if bytes.len() < header_len.max(Self::FIXED_LEN) {
            let cut = available < header_len.max(Self::FIXED_LEN);
            return Err(if cut { IpError::Malformed } else { IpError::Beyond });
        }
        let field = |at| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let len = if V6 { 40 + field(4) } else { field(2) };
        if header_len < Self::FIXED_LEN || len < header_len || len > available {
            return Err(IpError::Malformed);
        }
        Ok(Self { bytes: &bytes[..len.min(bytes.len())], len: len as u16 })
    }

    /// Length of the packet in bytes. (It is never empty.)
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a packet has a header")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Length of the fixed header and of IPv4 options.
    #[inline]
    pub fn header_len(&self) -> usize {
        if V6 { 40 } else { usize::from(self.bytes[0] & 0xf) * 4 }
    }

    /// Source address; an IPv4 address is in the low 32 bits.
    #[inline]
    pub fn source(&self) -> u128 {
        if V6 { self.v6_address(8) } else { self.v4_address(12).into() }
    }

    /// Destination address; an IPv4 address is in the low 32 bits.
    #[inline]
    pub fn destination(&self) -> u128 {
        if V6 { self.v6_address(24) } else { self.v4_address(16).into() }
    }

    /// Whether the destination is a group, or IPv4's limited broadcast, or reserved.
    #[inline]
    pub fn is_multicast(&self) -> bool {
        if V6 { self.bytes[24] == 0xff } else { self.bytes[16] >= 224 }
    }

    /// Flow label; IPv4 has none.
    pub fn flow_label(&self) -> Option<u32> {
        V6.then(|| self.v4_address(0) & 0xf_ffff)
    }

    /// ToS or traffic class.
    pub fn tos(&self) -> u8 {
        if V6 { self.bytes[0] << 4 | self.bytes[1] >> 4 } else { self.bytes[1] }
    }

    /// Whether the sum over an IPv4 header is right; IPv6 headers have none.
    #[inline]
    pub fn checksum_is_right(&self) -> bool {
        if V6 {
            return true;
        }
        match self.bytes.first_chunk::<20>() {
            // Without options the length is known to the compiler.
            Some(header) if self.bytes[0] == 0x45 => checksum_is_right(header),
            _ => checksum(sum(&self.bytes[..self.header_len()])) == 0,
        }
    }

    /// Whether it is a fragment. (IPv6: a fragment header is looked for at the first place only, as for tunnels.)
    #[inline]
    pub fn is_fragment(&self) -> bool {
        if V6 { self.bytes[6] == 44 } else { self.bytes[6] & 0x3f != 0 || self.bytes[7] != 0 }
    }

    /// Whether a router may cut the packet into fragments.
    pub fn may_be_fragmented(&self) -> bool {
        !V6 && self.bytes[6] & 0x40 == 0
    }

    /// Whether it is the first of several fragments of IPv4.
    pub fn is_first_fragment(&self) -> bool {
        !V6 && self.bytes[6] & 0x3f == 0x20 && self.bytes[7] == 0
    }

    /// What fragments of a packet over IPv4 have in common.
    pub fn identification(&self) -> u16 {
        u16::from_be_bytes([self.bytes[4], self.bytes[5]])
    }

    /// The packet, if it is one of IPv4.
    pub fn v4(&self) -> Option<Packet<'a, false>> {
        (!V6).then_some(Packet { bytes: self.bytes, len: self.len })
    }

    /// Protocol number in the fixed header.
    #[inline]
    pub fn next_header(&self) -> u8 {
        if V6 { self.bytes[6] } else { self.bytes[9] }
    }

    /// Hop limit or TTL.
    pub fn hop_limit(&self) -> u8 {
        if V6 { self.bytes[7] } else { self.bytes[8] }
    }

    /// The bytes at hand.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What follows all headers of IP itself.
    pub fn upper(&self) -> Upper<'a> {
        if V6 { self.upper_v6() } else { self.upper_v4() }
    }

    fn upper_v4(&self) -> Upper<'a> {
        let first = self.bytes[6] & 0x1f == 0 && self.bytes[7] == 0;
        let (protocol, bytes) = (self.bytes[9], first.then(|| &self.bytes[self.header_len()..]));
        Upper { protocol, bytes, spi: spi(protocol, bytes) }
    }

    fn upper_v6(&self) -> Upper<'a> {
        let (mut next, mut rest) = (self.bytes[6], &self.bytes[40..]);
        let mut authentication = None;
        for _ in 0..EXTENSIONS_MAX {
            let len = match (next, rest) {
                // Hop-by-hop options, routing, destination options, mobility.
                (0 | 43 | 60 | 135, &[_, units, ..]) => 8 + usize::from(units) * 8,
                (AUTHENTICATION, &[_, units, ..]) => 8 + usize::from(units) * 4,
                (44, &[following, _, o0, o1, ..]) if o0 != 0 || o1 & 0xf8 != 0 => {
                    return Upper { protocol: following, bytes: None, spi: authentication };
                }
                (44, _) => 8,
                (0 | 43 | AUTHENTICATION | 60 | 135, _) => break,
                _ => {
                    let spi = authentication.or_else(|| spi(next, Some(rest)));
                    return Upper { protocol: next, bytes: Some(rest), spi };
                }
            };
            authentication = authentication.or_else(|| spi(next, Some(rest)).filter(|_| next == AUTHENTICATION));
            let Some(behind) = rest.get(len..) else { break };
            (next, rest) = (rest[0], behind);
        }
        Upper { protocol: next, bytes: None, spi: authentication }
    }

    #[inline]
    fn v4_address(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }

    #[inline]
    fn v6_address(&self, at: usize) -> u128 {
        u128::from_be_bytes(self.bytes[at..at + 16].try_into().expect("sixteen bytes"))
    }
}

/// Protocol numbers of IPsec: authentication header (RFC 4302), encapsulating security payload (RFC 4303).
const AUTHENTICATION: u8 = 51;
const ENCAPSULATING: u8 = 50;

/// The security parameter index in a header of this protocol.
fn spi(protocol: u8, bytes: Option<&[u8]>) -> Option<u32> {
    let at = match protocol {
        AUTHENTICATION => 4,
        ENCAPSULATING => 0,
        _ => return None,
    };
    bytes?.get(at..)?.first_chunk().map(|&index| u32::from_be_bytes(index))
}

impl Upper<'_> {
    /// Source and destination port of TCP, UDP, SCTP or DCCP.
    pub fn ports(&self) -> Option<(u16, u16)> {
        match (self.protocol, self.bytes?) {
            (6 | UDP | 33 | 132 | 136, &[s0, s1, d0, d1, ..]) => {
                Some((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])))
            }
            _ => None,
        }
    }
}

/// The 32 bits at an offset, which is within the array.
#[inline(always)]
pub(crate) fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The 16 bits at an offset, which is within the array.
#[inline(always)]
pub(crate) fn half<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The Internet checksum's sum over `bytes`, not yet folded. Sums may be added while fewer than 2^47 bytes are summed.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(4);
    let whole: u64 = chunks.by_ref().map(|c| u64::from(u32::from_be_bytes([c[0], c[1], c[2], c[3]]))).sum();
    let mut last = [0; 4];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    whole + u64::from(u32::from_be_bytes(last))
}

/// Whether the checksum of an IPv4 header without options is right, which the order of octets in its words does not matter for
/// (RFC 1071, 2).
#[inline(always)]
pub(crate) fn checksum_is_right(header: &[u8; 20]) -> bool {
    let (words, _) = header.as_chunks();
    checksum(words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum()) == 0
}

/// Folds a sum and complements it (RFC 1071). The halves are added in both halves, and the carry out of the lower one is the
/// one that goes around.
#[inline]
pub fn checksum(sum: u64) -> u16 {
    let half = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    !((half.wrapping_add(half.rotate_left(16)) >> 16) as u16)
}

/// The checksum of a header in which the word `before` has become `after` (RFC 1624, 3).
pub fn updated_checksum(checksum: [u8; 2], before: [u8; 2], after: [u8; 2]) -> [u8; 2] {
    let [checksum, before, after] = [checksum, before, after].map(|word| u64::from(u16::from_be_bytes(word)));
    self::checksum((!checksum & 0xffff) + (!before & 0xffff) + after).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sum_is_folded_until_nothing_is_carried(sum: u64) {
            let mut folded = sum;
            while folded > 0xffff {
                folded = (folded >> 16) + (folded & 0xffff);
            }
            assert_eq!(checksum(sum), !(folded as u16));
        }
    }

    fn v4(total: u16, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x6a, 0xb0, 0, 0, 0, rest.len() as u8, next, 64];
        bytes.extend([0x20; 16]);
        bytes.extend([0x30; 16]);
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn the_length_field_counts_not_the_padding_behind() {
        let bytes = v4(24, &[0, 1, 0, 2, 9, 9, 9]);
        let packet = Packet::<false>::parse(&bytes, bytes.len()).unwrap();
        assert_eq!((packet.len(), packet.upper().ports()), (24, Some((1, 2))));
        assert_eq!((packet.source(), packet.destination()), (0x0a000001, 0x0a000002));
    }

    #[test]
    fn unsound_headers_are_told_apart() {
        let parse = |bytes: &[u8], available| match is_v6(bytes) {
            Some(true) => Packet::<true>::parse(bytes, available).map(|_| ()),
            _ => Packet::<false>::parse(bytes, available).map(|_| ()),
        };
        assert_eq!(parse(&[], 0), Err(IpError::Malformed));
        assert_eq!(parse(&[0x50; 40], 40), Err(IpError::Version));
        assert_eq!(is_v6(&[0x50; 40]), None);
        assert_eq!(parse(&v4(21, &[]), 20), Err(IpError::Malformed));
        assert_eq!(parse(&v4(19, &[]), 20), Err(IpError::Malformed));
        assert_eq!(parse(&v4(40, &[])[..12], 40), Err(IpError::Beyond));
        assert_eq!(parse(&v6(UDP, &[0; 8])[..39], 48), Err(IpError::Beyond));
        assert_eq!(parse(&v6(UDP, &[0; 8]), 47), Err(IpError::Malformed));
    }

    #[test]
    fn the_traffic_class_straddles_bytes() {
        assert_eq!(Packet::<true>::parse(&v6(UDP, &[]), 40).unwrap().tos(), 0xab);
    }

    #[test]
    fn ports_are_found_behind_extension_headers_and_in_first_fragments_only() {
        let ports = |next, rest: &[u8]| {
            let bytes = v6(next, rest);
            Packet::<true>::parse(&bytes, bytes.len()).unwrap().upper().ports()
        };
        assert_eq!(ports(60, &[UDP, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]), Some((1, 2)));
        assert_eq!(ports(44, &[UDP, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 2]), Some((1, 2)));
        assert_eq!(ports(44, &[UDP, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0, 2]), None);
        assert_eq!(ports(60, &[UDP, 9]), None);
        let mut fragment = v4(24, &[0, 1, 0, 2]);
        fragment[7] = 1;
        assert_eq!(
            Packet::<false>::parse(&fragment, 24).unwrap().upper(),
            Upper { protocol: UDP, bytes: None, spi: None }
        );
    }

    #[test]
    fn the_checksum_of_rfc_1071_s_example_is_right() {
        assert_eq!(checksum(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), !0xddf2);
    }

    fn read_all<const V6: bool>(bytes: &[u8], beyond: usize) -> Result<(), TestCaseError> {
        if let Ok(packet) = Packet::<V6>::parse(bytes, bytes.len() + beyond) {
            prop_assert!(packet.len() <= bytes.len() + beyond);
            let _ = (packet.source(), packet.destination(), packet.tos(), packet.upper().ports());
            let _ = (packet.is_fragment(), packet.checksum_is_right(), packet.is_multicast());
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_read_beyond(
            bytes in proptest::collection::vec(any::<u8>(), 0..120), beyond in 0usize..2000,
        ) {
            read_all::<false>(&bytes, beyond)?;
            read_all::<true>(&bytes, beyond)?;
        }

        #[test]
        fn the_sum_is_that_of_sixteen_bit_words(bytes in proptest::collection::vec(any::<u8>(), 0..99)) {
            let words = bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | c.get(1).map_or(0, |&b| b.into())).sum();
            prop_assert_eq!(checksum(sum(&bytes)), checksum(words));
        }
    }
}
