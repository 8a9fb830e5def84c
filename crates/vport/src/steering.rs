//! Which queue of a port a frame goes to: a key taken from its headers, the Toeplitz hash of the key, a bucket, a queue.
//!
//! The hash and its key are those that network cards use for receive-side scaling, so that a card can be given the same
//! table. Sender and receiver compute the same bucket from the same bytes: the sender to choose the queue, the receiver
//! to check that a peer did not put the frame elsewhere.

mod burst;

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use crate::sync::AtomicU64;

/// Number of buckets of every port.
pub const BUCKETS: usize = 128;

/// Within how many bytes of a frame its key is looked for. Every sender and every receiver has as many, or the whole frame:
/// who looked further would find another bucket.
pub const KEY_WITHIN: usize = 128;

/// What a receiving port wants its frames to be spread by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Steering {
    /// All frames to bucket 0.
    #[default]
    None,
    /// The tunnel endpoint identifier of GTP-U (TS 29.281), whatever extension headers follow it. For N3.
    Teid,
    /// The destination IP address: of a UE, seen from a data network. For N6. Of an IPv6 address the first 64 bits count,
    /// since all addresses of such a prefix belong to one UE.
    UeAddress,
    /// Addresses, and the ports of TCP, UDP and SCTP.
    FiveTuple,
}

impl Steering {
    /// The bucket of a frame, from as much of its first [`KEY_WITHIN`] bytes as is there. Frames without the key (ARP,
    /// fragments behind the first, other protocols) belong to bucket 0.
    #[inline(always)]
    pub fn bucket(self, head: &[u8]) -> u8 {
        self.usual_bucket(head.len(), &head).unwrap_or_else(|| self.bucket_of_any(head))
    }

    /// The same of a frame of so many bytes if it is as most are: no tag, IPv4 without options; where it is steered by its TEID, UDP to
    /// the port of GTP-U in one fragment. None of any other.
    #[inline(always)]
    pub(crate) fn usual_bucket(self, len: usize, frame: &impl Octets) -> Option<u8> {
        let key = match self {
            Self::None => return Some(0),
            Self::Teid if len >= TEID_AT + 4 && GPDU.is_like(frame.octets(ETHERTYPE_AT)) => TEID_AT,
            Self::UeAddress if len >= ADDRESS_AT + 4 && IPV4.is_like(frame.octets(ETHERTYPE_AT)) => ADDRESS_AT,
            _ => return None,
        };
        // One by one: they would have to be taken apart again.
        let octet = |at: usize| frame.octets::<1>(key + at)[0];
        Some(bucket_of_four([octet(0), octet(1), octet(2), octet(3)]))
    }

    /// The last byte that [`Steering::bucket`] reads of a usual frame: that of its key.
    #[inline(always)]
    pub(crate) fn usual_reach(self) -> usize {
        match self {
            Self::None => 0,
            Self::Teid => TEID_AT + 3,
            Self::UeAddress => ADDRESS_AT + 3,
            Self::FiveTuple => PORTS_AT + 3,
        }
    }

    /// The same of a frame that may be an unusual one.
    #[inline(never)]
    fn bucket_of_any(self, head: &[u8]) -> u8 {
        let head = &head[..head.len().min(KEY_WITHIN)];
        match self {
            Self::None => 0,
            Self::Teid => teid(head).map_or(0, teid_bucket),
            Self::UeAddress => destination(head).map_or(0, |address| bucket_of(hash(ue_key(address)))),
            Self::FiveTuple => five_tuple(head).map_or(0, bucket_of),
        }
    }

    /// Its number on the wire and in segments.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Teid => 1,
            Self::UeAddress => 2,
            Self::FiveTuple => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::None, Self::Teid, Self::UeAddress, Self::FiveTuple].into_iter().find(|kind| kind.code() == code)
    }
}

/// The bucket of a tunnel endpoint identifier under [`Steering::Teid`].
#[inline]
pub fn teid_bucket(teid: u32) -> u8 {
    bucket_of_four(teid.to_be_bytes())
}

/// The bucket of a destination address under [`Steering::UeAddress`].
pub fn address_bucket(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) => bucket_of(hash(ue_key(&address.octets()))),
        IpAddr::V6(address) => bucket_of(hash(ue_key(&address.octets()))),
    }
}

/// The part of an address that tells one UE from another.
#[inline]
fn ue_key(address: &[u8]) -> &[u8] {
    &address[..address.len().min(8)]
}

/// Which queue owns which bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTable([u8; BUCKETS]);

impl BucketTable {
    /// The table that a port with `queues` queue pairs begins with: bucket `b` belongs to queue `b % queues`.
    ///
    /// # Panics
    /// If `queues` is 0 or over [`BUCKETS`].
    pub fn fixed(queues: usize) -> Self {
        assert!((1..=BUCKETS).contains(&queues), "a port has 1 to {BUCKETS} queues");
        Self(core::array::from_fn(|bucket| (bucket % queues) as u8))
    }

    /// A table of `owners`, unless one of them is not among `queues` queues.
    pub fn new(owners: [u8; BUCKETS], queues: usize) -> Option<Self> {
        owners.iter().all(|&owner| usize::from(owner) < queues).then_some(Self(owners))
    }

    /// The owner of each bucket.
    pub fn owners(&self) -> &[u8; BUCKETS] {
        &self.0
    }

    /// The queue that owns `bucket`, of which the low seven bits count.
    #[inline]
    pub fn queue(&self, bucket: u8) -> usize {
        self.owner(bucket).into()
    }

    /// The same as it stands in the table: below [`BUCKETS`].
    #[inline(always)]
    pub(crate) fn owner(&self, bucket: u8) -> u8 {
        self.0[usize::from(bucket) % BUCKETS]
    }
}

/// How many packets of each bucket there have been. One thread counts; others may look at any time.
#[derive(Debug)]
pub struct BucketCounts([AtomicU64; BUCKETS]);

impl Default for BucketCounts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl BucketCounts {
    /// Counts a packet of `bucket`, of which the low seven bits count.
    #[inline(always)]
    pub fn count(&self, bucket: u8) {
        let packets = &self.0[usize::from(bucket) % BUCKETS];
        packets.store(packets.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Packets of `bucket` so far.
    pub fn of(&self, bucket: u8) -> u64 {
        self.0[usize::from(bucket) % BUCKETS].load(Ordering::Relaxed)
    }
}

#[inline]
fn bucket_of(hash: u32) -> u8 {
    (hash as usize % BUCKETS) as u8
}

/// The key that Microsoft's verification suite uses, and with it most network cards by default.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];
/// The key for a network card that wants so many bytes of it: zeros follow what is hashed with here.
pub fn key(bytes: usize) -> Vec<u8> {
    KEY.into_iter().chain(core::iter::repeat(0)).take(bytes).collect()
}

/// Longest input: two IPv6 addresses and two ports.
const INPUT_MAX: usize = 36;

/// `TABLE[i][b]` is what byte value `b` at position `i` of the input adds to the hash.
static TABLE: [[u32; 256]; INPUT_MAX] = contributions();

const fn contributions() -> [[u32; 256]; INPUT_MAX] {
    let mut table = [[0_u32; 256]; INPUT_MAX];
    let mut position = 0;
    while position < INPUT_MAX {
        let mut value = 0;
        while value < 256 {
            table[position][value] = contribution(position, value as u8);
            value += 1;
        }
        position += 1;
    }
    table
}

const fn contribution(position: usize, value: u8) -> u32 {
    // The 40 bits of the key that a byte at this position can select 32-bit windows from.
    let window = ((KEY[position] as u64) << 32)
        | ((KEY[position + 1] as u64) << 24)
        | ((KEY[position + 2] as u64) << 16)
        | ((KEY[position + 3] as u64) << 8)
        | KEY[position + 4] as u64;
    let mut sum = 0;
    let mut bit = 0;
    while bit < 8 {
        if value & (0x80 >> bit) != 0 {
            sum ^= (window >> (8 - bit)) as u32;
        }
        bit += 1;
    }
    sum
}

/// Toeplitz hash of up to 36 bytes.
#[inline]
pub fn hash(input: &[u8]) -> u32 {
    input.iter().zip(&TABLE).fold(0, |sum, (&byte, table)| sum ^ table[usize::from(byte)])
}

/// `BUCKET[i][b]` is what byte value `b` at position `i` of a key of four bytes adds to its bucket.
static BUCKET: [[u8; 256]; 4] = bucket_contributions();

const fn bucket_contributions() -> [[u8; 256]; 4] {
    let mut table = [[0_u8; 256]; 4];
    let mut at = 0;
    while at < 4 * 256 {
        table[at / 256][at % 256] = (contribution(at / 256, at as u8) as usize % BUCKETS) as u8;
        at += 1;
    }
    table
}

/// The bucket of a key of four bytes.
#[inline(always)]
fn bucket_of_four([a, b, c, d]: [u8; 4]) -> u8 {
    let added = |at: usize, byte: u8| BUCKET[at][usize::from(byte)];
    added(0, a) ^ added(1, b) ^ added(2, c) ^ added(3, d)
}

/// A frame of which some octets are looked at.
pub(crate) trait Octets {
    /// So many of them, from one on. All must be within the frame.
    fn octets<const COUNT: usize>(&self, at: usize) -> [u8; COUNT];
}

impl Octets for &[u8] {
    #[inline(always)]
    fn octets<const COUNT: usize>(&self, at: usize) -> [u8; COUNT] {
        *self[at..].first_chunk().expect("within the frame")
    }
}

/// What octets of a frame are like: as `usual` where bits of `mask` are set.
struct Like<const COUNT: usize> {
    usual: [u8; COUNT],
    mask: [u8; COUNT],
}

impl<const COUNT: usize> Like<COUNT> {
    /// From the ethertype on: the octet at a place has these values in these bits.
    const fn new(octets: &[(usize, u8, u8)]) -> Self {
        let (mut usual, mut mask, mut next) = ([0; COUNT], [0; COUNT], 0);
        while next < octets.len() {
            let (at, value, bits) = octets[next];
            (usual[at - ETHERTYPE_AT], mask[at - ETHERTYPE_AT]) = (value, bits);
            next += 1;
        }
        Self { usual, mask }
    }

    /// Whether these octets are: a multiple of eight, which are compared as words.
    #[inline(always)]
    fn is_like(&self, found: [u8; COUNT]) -> bool {
        let word = |octets: &[u8; COUNT], at: usize| u64::from_ne_bytes(octets.as_chunks().0[at]);
        let (mut differs, mut at) = (0, 0);
        while at < COUNT / 8 {
            differs |= (word(&found, at) ^ word(&self.usual, at)) & word(&self.mask, at);
            at += 1;
        }
        differs == 0
    }
}

const ETHERTYPE_AT: usize = 12;
/// Where the key lies in usual frames.
const ADDRESS_AT: usize = 30;
const PORTS_AT: usize = 34;
const TEID_AT: usize = 46;
/// IPv4 without options.
const IPV4: Like<8> = Like::new(&[(12, 8, 0xff), (13, 0, 0xff), (14, 0x45, 0xff)]);
/// GTP-U over UDP over it, of one fragment: version 1, protocol type GTP.
const GPDU: Like<32> = Like::new(&[
    (12, 8, 0xff),
    (13, 0, 0xff),
    (14, 0x45, 0xff),
    (20, 0, 0x3f),
    (21, 0, 0xff),
    (23, UDP, 0xff),
    (36, 8, 0xff),
    (37, 0x68, 0xff),
    (42, 0x30, 0xf0),
]);

const ETHERNET: usize = 14;
const UDP: u8 = 17;
const GTPU_PORT: u16 = 2152;

/// An IP packet within a frame.
struct Ip<'a> {
    /// Source and destination, 8 or 32 bytes.
    addresses: &'a [u8],
    /// Protocol of what follows all headers of IP itself; none for a fragment behind the first.
    upper: Option<(u8, &'a [u8])>,
}

#[inline]
fn teid(head: &[u8]) -> Option<u32> {
    let (UDP, datagram) = ip(head)?.upper? else { return None };
    let port = u16::from_be_bytes(datagram.get(2..4)?.try_into().ok()?);
    let gtpu = datagram.get(8..16)?;
    // Version 1, protocol type GTP: the TEID stands at the same place whatever flags are set.
    if port != GTPU_PORT || gtpu[0] & 0xf0 != 0x30 {
        return None;
    }
    Some(u32::from_be_bytes([gtpu[4], gtpu[5], gtpu[6], gtpu[7]]))
}

#[inline]
fn destination(head: &[u8]) -> Option<&[u8]> {
    ip(head).map(|ip| &ip.addresses[ip.addresses.len() / 2..])
}

fn five_tuple(head: &[u8]) -> Option<u32> {
    const WITH_PORTS: [u8; 3] = [6, UDP, 132];
    let ip = ip(head)?;
    let mut input = [0; INPUT_MAX];
    let mut length = ip.addresses.len();
    input[..length].copy_from_slice(ip.addresses);
    if let Some((protocol, upper)) = ip.upper
        && WITH_PORTS.contains(&protocol)
        && let Some(ports) = upper.get(..4)
    {
        input[length..length + 4].copy_from_slice(ports);
        length += 4;
    }
    Some(hash(&input[..length]))
}

fn ip(head: &[u8]) -> Option<Ip<'_>> {
    let packet = head.get(ETHERNET..)?;
    match head[12..ETHERNET] {
        [0x08, 0x00] => ipv4(packet),
        [0x86, 0xdd] => ipv6(packet),
        // One tag of IEEE 802.1Q.
        [0x81, 0x00] => match head.get(16..18)? {
            [0x08, 0x00] => ipv4(&head[18..]),
            [0x86, 0xdd] => ipv6(&head[18..]),
            _ => None,
        },
        _ => None,
    }
}

fn ipv4(packet: &[u8]) -> Option<Ip<'_>> {
    let header = packet.get(..20)?;
    let length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || length < 20 {
        return None;
    }
    // More fragments or an offset: no fragment of a datagram is steered by its ports, so that all stay together.
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let upper = if fragment { None } else { packet.get(length..).map(|upper| (header[9], upper)) };
    Some(Ip { addresses: &packet[12..20], upper })
}

fn ipv6(packet: &[u8]) -> Option<Ip<'_>> {
    const EXTENSIONS_MAX: usize = 8;
    let header = packet.get(..40)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let addresses = &packet[8..40];
    let (mut next, mut rest) = (header[6], &packet[40..]);
    for _ in 0..EXTENSIONS_MAX {
        let length = match next {
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => match rest.get(1) {
                Some(units) => 8 + usize::from(*units) * 8,
                None => return Some(Ip { addresses, upper: None }),
            },
            44 => return Some(Ip { addresses, upper: None }),
            _ => return Some(Ip { addresses, upper: Some((next, rest)) }),
        };
        match rest.get(length..) {
            Some(after) => (next, rest) = (rest[0], after),
            None => break,
        }
    }
    Some(Ip { addresses, upper: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// The published vectors: destination, destination port, source, source port, hash of addresses, hash with ports.
    #[test]
    fn toeplitz_agrees_with_the_published_vectors() {
        let v4: [(&str, u16, &str, u16, u32, u32); 2] = [
            ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e_8fc2, 0x51cc_c178),
            ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718_262a, 0xc626_b0ea),
        ];
        for (to, to_port, from, from_port, addresses, ports) in v4 {
            let mut input = Vec::new();
            input.extend(from.parse::<Ipv4Addr>().unwrap().octets());
            input.extend(to.parse::<Ipv4Addr>().unwrap().octets());
            assert_eq!(hash(&input), addresses);
            input.extend(from_port.to_be_bytes());
            input.extend(to_port.to_be_bytes());
            assert_eq!(hash(&input), ports);
        }
        let mut input = Vec::new();
        input.extend("3ffe:2501:200:1fff::7".parse::<Ipv6Addr>().unwrap().octets());
        input.extend("3ffe:2501:200:3::1".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(hash(&input), 0x2cc1_8cd5);
        input.extend(2794_u16.to_be_bytes());
        input.extend(1766_u16.to_be_bytes());
        assert_eq!(hash(&input), 0x4020_7d3d);
    }

    /// Those that docs/ports.md names.
    #[test]
    fn buckets_are_the_documented_ones() {
        let address = |address: &str| address_bucket(address.parse().unwrap());
        assert_eq!(teid_bucket(0xdead_beef), 3);
        assert_eq!((address("10.0.0.2"), address("2001:db8:0:7::1")), (27, 74));
        let tuple = [[66, 9, 149, 187], [161, 142, 100, 80], [0x0a, 0xea, 0x06, 0xe6]].concat();
        assert_eq!(bucket_of(hash(&tuple)), 120);
    }

    #[test]
    fn no_fragment_and_no_answer_to_the_port_has_a_teid() {
        let gtpu = [0x30, 255, 0, 0, 0xde, 0xad, 0xbe, 0xef];
        let whole = udp_frame(false, 0, GTPU_PORT, &gtpu);
        let mut first = whole.clone();
        first[14 + 6] = 0x20;
        let from_the_port = [&whole[..34], &[0x08, 0x68, 0, 53], &whole[38..]].concat();
        let prime = udp_frame(false, 0, GTPU_PORT, &[&[0x20], &gtpu[1..]].concat());
        assert_ne!(Steering::Teid.bucket(&whole), 0);
        [first, from_the_port, prime].iter().for_each(|frame| assert_eq!(Steering::Teid.bucket(frame), 0));
    }

    fn udp_frame(tagged: bool, options: usize, to_port: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        if tagged {
            frame.extend([0x81, 0, 0, 5]);
        }
        frame.extend([0x08, 0x00]);
        let ihl = 5 + options;
        let mut ip = vec![0; ihl * 4];
        ip[0] = 0x40 | ihl as u8;
        ip[9] = UDP;
        ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(ip);
        frame.extend([0x08, 0x68]);
        frame.extend(to_port.to_be_bytes());
        frame.extend([0, 0, 0, 0]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn a_teid_is_found_behind_tags_and_options_and_before_extension_headers() {
        for flags in [0x30, 0x34, 0x32, 0x37] {
            let gtpu = [flags, 255, 0, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0x85, 1, 0x10, 9, 0];
            for (tagged, options) in [(false, 0), (true, 0), (false, 3), (true, 10)] {
                let frame = udp_frame(tagged, options, GTPU_PORT, &gtpu);
                assert_eq!(Steering::Teid.bucket(&frame), teid_bucket(0xdead_beef));
            }
        }
        assert_eq!(Steering::Teid.bucket(&udp_frame(false, 0, 53, &[0x30; 16])), 0);
    }

    #[test]
    fn of_a_usual_frame_all_is_read_up_to_its_key_and_nothing_behind() {
        let gtpu = [0x30, 255, 0, 0, 0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4];
        let frame = udp_frame(false, 0, GTPU_PORT, &gtpu);
        for kind in [Steering::Teid, Steering::UeAddress, Steering::FiveTuple] {
            let (reach, bucket) = (kind.usual_reach(), kind.bucket(&frame));
            assert_eq!(kind.bucket(&frame[..=reach]), bucket, "{kind:?}");
            assert_ne!(kind.bucket(&frame[..reach]), bucket, "{kind:?}");
        }
    }

    #[test]
    fn a_ue_address_is_the_destination() {
        let frame = udp_frame(false, 0, 53, &[]);
        assert_eq!(Steering::UeAddress.bucket(&frame), address_bucket("10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn all_addresses_of_a_ue_share_a_bucket() {
        let bucket = |address: &str| address_bucket(address.parse().unwrap());
        assert_eq!(bucket("2001:db8:0:7::1"), bucket("2001:db8:0:7:aaaa::2"));
        assert!((0..64).any(|n| bucket(&format!("2001:db8:0:{n:x}::1")) != bucket("2001:db8:0:7::1")));
    }

    #[test]
    fn ipv6_extension_headers_are_skipped() {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 0, 64]);
        frame.extend([1; 16]);
        frame.extend([2; 16]);
        let plain = [&frame[..20], &[UDP, 64], &frame[22..], &[1, 2, 3, 4]].concat();
        let chained = [&frame[..], &[60, 0, 0, 0, 0, 0, 0, 0], &[UDP, 1], &[0; 14], &[1, 2, 3, 4]].concat();
        assert_eq!(Steering::FiveTuple.bucket(&plain), Steering::FiveTuple.bucket(&chained));
        let ports: Vec<u8> = [[1; 16].as_slice(), &[2; 16], &[1, 2, 3, 4]].concat();
        assert_eq!(Steering::FiveTuple.bucket(&plain), bucket_of(hash(&ports)));
    }

    /// The ports stand behind options, with so many bytes up to their end.
    fn ports_within(bytes: usize) -> Vec<u8> {
        let options = bytes - 14 - 40 - 4;
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 60, 64]);
        frame.extend([1; 32]);
        frame.extend([UDP, (options / 8 - 1) as u8]);
        frame.resize(bytes - 4, 0);
        frame.extend([1, 2, 3, 4]);
        frame.resize(300, 0);
        frame
    }

    #[test]
    fn whoever_has_the_first_128_bytes_of_a_frame_finds_the_bucket_that_others_find() {
        let addresses = bucket_of(hash(&[1; 32]));
        let with_ports = bucket_of(hash(&[&[1; 32][..], &[1, 2, 3, 4]].concat()));
        assert_ne!(addresses, with_ports);
        for (bytes, bucket) in [(66, with_ports), (122, with_ports), (130, addresses), (202, addresses)] {
            let frame = ports_within(bytes);
            for seen in [KEY_WITHIN, 192, 256, frame.len()] {
                assert_eq!(Steering::FiveTuple.bucket(&frame[..seen]), bucket, "{bytes} {seen}");
            }
        }
    }

    #[test]
    fn all_fragments_of_a_datagram_share_a_bucket() {
        let mut first = udp_frame(false, 0, GTPU_PORT, &[0x30; 16]);
        first[14 + 6] = 0x20;
        let mut second = udp_frame(false, 0, 99, &[1; 16]);
        second[14 + 7] = 7;
        assert_eq!(Steering::FiveTuple.bucket(&first), Steering::FiveTuple.bucket(&second));
    }

    #[test]
    fn truncated_and_foreign_frames_belong_to_bucket_0() {
        let frame = udp_frame(true, 10, GTPU_PORT, &[0x30, 255, 0, 0, 1, 2, 3, 4]);
        for steering in [Steering::Teid, Steering::UeAddress, Steering::FiveTuple] {
            for length in 0..38 {
                assert_eq!(steering.bucket(&frame[..length]), 0, "{steering:?} {length}");
            }
        }
        for length in 0..frame.len() {
            assert_eq!(Steering::Teid.bucket(&frame[..length]), 0);
        }
    }

    proptest::proptest! {
        /// Frames that are nearly as most are, and cut off anywhere.
        #[test]
        fn the_short_way_finds_the_bucket_that_the_long_way_finds(
            teid: [u8; 4],
            changes in proptest::collection::vec((12_usize..50, proptest::prelude::any::<u8>()), 0..4),
            bits in proptest::collection::vec((12_usize..50, 0_u8..8), 0..3),
            length in 0_usize..=60,
        ) {
            let mut frame = udp_frame(false, 0, GTPU_PORT, &[&[0x34, 255, 0, 0][..], &teid, &[0; 10]].concat());
            frame[30..34].copy_from_slice(&teid);
            changes.into_iter().for_each(|(at, byte)| frame[at] = byte);
            bits.into_iter().for_each(|(at, bit)| frame[at] ^= 1 << bit);
            let seen = &frame[..length.min(frame.len())];
            for steering in [Steering::None, Steering::Teid, Steering::UeAddress, Steering::FiveTuple] {
                proptest::prop_assert_eq!(steering.bucket(seen), steering.bucket_of_any(seen), "{:?}", steering);
            }
            proptest::prop_assert_eq!(bucket_of_four(teid), bucket_of(hash(&teid)));
        }
    }

    #[test]
    fn a_table_names_only_queues_that_exist() {
        let mut owners = [2; BUCKETS];
        assert!(BucketTable::new(owners, 3).is_some());
        owners[127] = 3;
        assert!(BucketTable::new(owners, 3).is_none());
    }

    #[test]
    fn the_fixed_table_spreads_buckets_evenly() {
        for queues in 1..=16 {
            let table = BucketTable::fixed(queues);
            let mut owned = vec![0; queues];
            (0..BUCKETS as u8).for_each(|bucket| owned[table.queue(bucket)] += 1);
            assert!(owned.iter().max().unwrap() - owned.iter().min().unwrap() <= 1);
        }
    }
}
