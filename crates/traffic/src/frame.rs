//! Frames of the simulators: Ethernet, IP and UDP headers, built and taken apart.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gtpu::{GpduHeader, MessageType, UDP_PORT};

/// Bytes of an Ethernet header without a tag.
pub const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub const IPV6: usize = 40;
/// Bytes of a UDP header.
pub const UDP: usize = 8;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// Destination, source and EtherType.
pub fn ethernet(destination: [u8; 6], source: [u8; 6], ethertype: u16) -> [u8; ETHERNET] {
    let mut header = [0; ETHERNET];
    header[..6].copy_from_slice(&destination);
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&ethertype.to_be_bytes());
    header
}

/// The EtherType of a frame, 0 where it is too short to have one.
#[inline]
pub fn ethertype(frame: &[u8]) -> u16 {
    frame.get(12..14).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

/// An IPv4 header with time to live 64 and Don't Fragment, and `payload_len` bytes to follow.
pub fn ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload_len: usize) -> [u8; IPV4] {
    let mut header = [0; IPV4];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&((IPV4 + payload_len) as u16).to_be_bytes());
    header[6] = 0x40;
    header[8] = 64;
    header[9] = protocol;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let sum = !ones_complement_sum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// Gives the IPv4 header at `at` of `frame` another length of what follows it, and its checksum that (RFC 1624, equation 3).
#[inline]
fn set_ipv4_payload_len(frame: &mut [u8], at: usize, payload_len: usize) {
    let header = &mut frame[at..at + IPV4];
    let word = |i: usize| u16::from_be_bytes([header[i], header[i + 1]]);
    let len = (IPV4 + payload_len) as u16;
    let sum = !fold(u32::from(!word(10)) + u32::from(!word(2)) + u32::from(len));
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Gives the UDP header at `at` of `frame`, which has no checksum, another length of its payload.
#[inline]
fn set_udp_payload_len(frame: &mut [u8], at: usize, payload_len: usize) {
    frame[at + 4..at + 6].copy_from_slice(&((UDP + payload_len) as u16).to_be_bytes());
}

/// Makes the lengths in all headers of a frame, plain or a G-PDU over IPv4, those of a payload of `payload_len` bytes that begins
/// at `payload_at`.
#[inline]
pub fn set_payload_len(frame: &mut [u8], payload_at: usize, payload_len: usize) {
    let inner_at = payload_at - UDP - IPV4;
    set_udp_payload_len(frame, payload_at - UDP, payload_len);
    set_ipv4_payload_len(frame, inner_at, UDP + payload_len);
    if inner_at > ETHERNET {
        let gtpu_at = ETHERNET + IPV4 + UDP;
        let message_len = inner_at - gtpu_at + IPV4 + UDP + payload_len;
        // TS 29.281, 5.1: what follows the first 8 bytes.
        frame[gtpu_at + 2..gtpu_at + 4].copy_from_slice(&((message_len - 8) as u16).to_be_bytes());
        set_udp_payload_len(frame, ETHERNET + IPV4, message_len);
        set_ipv4_payload_len(frame, ETHERNET, UDP + message_len);
    }
}

/// An IPv6 header with hop limit 64 and `payload_len` bytes to follow.
pub fn ipv6(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, payload_len: usize) -> [u8; IPV6] {
    let mut header = [0; IPV6];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&(payload_len as u16).to_be_bytes());
    header[6] = protocol;
    header[7] = 64;
    header[8..24].copy_from_slice(&from.octets());
    header[24..].copy_from_slice(&to.octets());
    header
}

/// The checksum of a UDP datagram over IPv6 (RFC 8200, 8.1); `header` holds zero in its place.
pub fn udp6_checksum(from: Ipv6Addr, to: Ipv6Addr, header: &[u8; UDP], payload: &[u8]) -> u16 {
    let len = ((UDP + payload.len()) as u32).to_be_bytes();
    let pseudo = [&from.octets()[..], &to.octets()[..], &len[..], &[0, 0, 0, PROTOCOL_UDP]].concat();
    let parts = [&pseudo[..], &header[..], payload].map(|part| u32::from(ones_complement_sum(part)));
    match !fold(parts.iter().sum()) {
        0 => 0xffff,
        sum => sum,
    }
}

/// A UDP header without a checksum, which IPv4 allows.
pub fn udp(from: u16, to: u16, payload_len: usize) -> [u8; UDP] {
    let mut header = [0; UDP];
    header[..2].copy_from_slice(&from.to_be_bytes());
    header[2..4].copy_from_slice(&to.to_be_bytes());
    header[4..6].copy_from_slice(&((UDP + payload_len) as u16).to_be_bytes());
    header
}

/// A whole IPv4 packet with a UDP datagram.
pub fn udp_packet(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let mut packet = ipv4(from.0, to.0, PROTOCOL_UDP, UDP + payload.len()).to_vec();
    packet.extend(udp(from.1, to.1, payload.len()));
    packet.extend(payload);
    packet
}

/// The IP packet `inner` as a G-PDU between two GTP-U nodes, from the IP header on.
pub fn gtpu_packet(from: Ipv4Addr, to: Ipv4Addr, header: &GpduHeader, inner: &[u8]) -> Vec<u8> {
    let mut message = vec![0; header.len()];
    header.write(inner.len(), &mut message);
    message.extend(inner);
    udp_packet((from, UDP_PORT), (to, UDP_PORT), &message)
}

/// The sum of RFC 1071 over `bytes`.
pub fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let pairs = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    fold(pairs.sum())
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Where a UDP datagram lies in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source address of the IP header around it.
    pub from: IpAddr,
    /// Destination address.
    pub to: IpAddr,
    /// Source port.
    pub from_port: u16,
    /// Destination port.
    pub to_port: u16,
    /// Offset of the payload.
    pub payload: usize,
    /// Length of the payload by the UDP header.
    pub payload_len: usize,
}

/// Source, destination, protocol and offset of the payload of the IP packet at `at`.
#[inline]
pub fn ip(bytes: &[u8], at: usize) -> Option<(IpAddr, IpAddr, u8, usize)> {
    let packet = bytes.get(at..)?;
    match packet.first()? >> 4 {
        4 => {
            let header = packet.first_chunk::<IPV4>()?;
            let address = |i: usize| IpAddr::from([header[i], header[i + 1], header[i + 2], header[i + 3]]);
            let len = usize::from(header[0] & 0xf) * 4;
            (len >= IPV4).then(|| (address(12), address(16), header[9], at + len))
        }
        6 => {
            let header = packet.first_chunk::<IPV6>()?;
            let address = |i: usize| IpAddr::from(std::array::from_fn::<u8, 16, _>(|j| header[i + j]));
            Some((address(8), address(24), header[6], at + IPV6))
        }
        _ => None,
    }
}

/// The UDP datagram in the IP packet at `at` of `bytes`. None for anything else, and for fragments.
#[inline]
pub fn datagram(bytes: &[u8], at: usize) -> Option<Datagram> {
    let (from, to, protocol, udp_at) = ip(bytes, at)?;
    let is_fragment = from.is_ipv4() && (bytes[at + 6] & 0x3f != 0 || bytes[at + 7] != 0);
    if protocol != PROTOCOL_UDP || is_fragment {
        return None;
    }
    let header = bytes.get(udp_at..udp_at + UDP)?;
    let field = |i: usize| u16::from_be_bytes([header[i], header[i + 1]]);
    let payload_len = usize::from(field(4)).checked_sub(UDP)?;
    Some(Datagram { from, to, from_port: field(0), to_port: field(2), payload: udp_at + UDP, payload_len })
}

/// The datagrams of a frame: its own, and where that is a G-PDU the one that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// Of the frame itself.
    pub outer: Datagram,
    /// Offset of the IP packet in a G-PDU, and its datagram.
    pub inner: Option<(usize, Datagram)>,
}

impl Datagrams {
    /// Those of `frame`. None where there is none, or a G-PDU carries none.
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Self> {
        if !matches!(ethertype(frame), ETHERTYPE_IPV4 | ETHERTYPE_IPV6) {
            return None;
        }
        let outer = datagram(frame, ETHERNET)?;
        if outer.to_port != UDP_PORT {
            return Some(Self { outer, inner: None });
        }
        let header = gtpu::parse(frame.get(outer.payload..)?, outer.payload_len).ok()?;
        if header.message_type != MessageType::GPDU {
            return None;
        }
        let at = outer.payload + header.header_len;
        Some(Self { outer, inner: Some((at, datagram(frame, at)?)) })
    }

    /// Offset of the innermost payload.
    #[inline]
    pub fn payload(&self) -> usize {
        self.inner.map_or(self.outer, |(_, inner)| inner).payload
    }
}

/// The innermost UDP payload of a frame: of the datagram itself, or of the one that a G-PDU in it carries.
#[inline]
pub fn innermost_payload(frame: &[u8]) -> Option<&[u8]> {
    frame.get(Datagrams::of(frame)?.payload()..)
}

#[cfg(test)]
mod tests {
    use gtpu::{Direction, PduSession};

    use super::*;

    const UE: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 1);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 2);

    fn framed(packet: &[u8]) -> Vec<u8> {
        let mut frame = ethernet([2; 6], [4; 6], ETHERTYPE_IPV4).to_vec();
        frame.extend(packet);
        frame
    }

    #[test]
    fn the_header_checksum_makes_the_sum_all_ones() {
        assert_eq!(ones_complement_sum(&ipv4(UE, SERVER, 17, 100)), 0xffff);
    }

    #[test]
    fn another_length_leaves_the_header_as_if_it_had_been_made_with_it() {
        let lengths = [0, 1, 26, 300, 1_480, 9_000, 65_515];
        for (before, after) in lengths.into_iter().flat_map(|a| lengths.map(|b| (a, b))) {
            let mut frame = framed(&ipv4(UE, SERVER, 17, before));
            set_ipv4_payload_len(&mut frame, ETHERNET, after);
            assert_eq!(frame, framed(&ipv4(UE, SERVER, 17, after)), "{before} to {after}");
        }
        let mut header = udp(1, 2, 5).to_vec();
        set_udp_payload_len(&mut header, 0, 1_000);
        assert_eq!(header, udp(1, 2, 1_000));
    }

    #[test]
    fn the_payload_of_a_plain_datagram_is_found() {
        let frame = framed(&udp_packet((UE, 1000), (SERVER, 2000), b"hello"));
        assert_eq!(innermost_payload(&frame), Some(&b"hello"[..]));
        let datagram = datagram(&frame, ETHERNET).expect("a datagram");
        assert_eq!((datagram.from, datagram.to_port, datagram.payload_len), (UE.into(), 2000, 5));
    }

    #[test]
    fn the_payload_inside_a_tunnel_is_found() {
        let inner = udp_packet((UE, 1000), (SERVER, 2000), b"hello");
        let container = PduSession { direction: Direction::Uplink, qfi: 9, rqi: false };
        for header in [GpduHeader::new(7, None), GpduHeader::new(7, Some(container))] {
            let frame = framed(&gtpu_packet(UE, SERVER, &header, &inner));
            assert_eq!(innermost_payload(&frame), Some(&b"hello"[..]));
        }
    }

    #[test]
    fn fragments_and_other_protocols_hold_no_datagram() {
        let mut fragment = udp_packet((UE, 1), (SERVER, 2), b"hello");
        fragment[6] = 0x20;
        assert_eq!(datagram(&fragment, 0), None);
        let mut tcp = udp_packet((UE, 1), (SERVER, 2), b"hello");
        tcp[9] = 6;
        assert_eq!(datagram(&tcp, 0), None);
        assert_eq!(datagram(&[], 0), None);
    }

    #[test]
    fn any_cut_of_a_frame_is_looked_at_without_harm() {
        let inner = udp_packet((UE, 1000), (SERVER, 2000), b"hello");
        let frame = framed(&gtpu_packet(UE, SERVER, &GpduHeader::new(7, None), &inner));
        for len in 0..frame.len() {
            let _ = innermost_payload(&frame[..len]);
        }
    }
}
