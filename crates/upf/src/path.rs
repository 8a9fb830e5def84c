//! Paths to the ends of tunnels: for each the headers of every frame that goes there, made once and then copied before each
//! packet. What is different from tunnel to tunnel, a TEID and a QoS flow, is filled in.

use std::net::IpAddr;

use gtpu::{Direction, GpduHeader, PduSession, RelayedHeader};
use serde::{Deserialize, Serialize};

use crate::ip::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, UDP, checksum, sum};
use crate::packet::ETHERNET_LEN;
use crate::side::PortId;

/// Most bytes of outer headers: IPv6, UDP, GTP-U with a PDU session container.
pub const TUNNEL_MAX_LEN: usize = 40 + UDP_LEN + gtpu::GPDU_MAX_LEN;
/// The same with an Ethernet header.
const FRONT_MAX: usize = ETHERNET_LEN + TUNNEL_MAX_LEN;
/// Ethernet, IPv4, UDP, GTP-U with a PDU session container.
const USUAL_LEN: usize = ETHERNET_LEN + 20 + UDP_LEN + gtpu::GPDU_MAX_LEN;

const UDP_LEN: usize = 8;
const HOP_LIMIT: u8 = 64;
const IP_AT: usize = ETHERNET_LEN;
/// Where the GTP-U header begins behind IPv4, and behind IPv6.
const GTPU_AT_V4: usize = IP_AT + 20 + UDP_LEN;
const GTPU_AT_V6: usize = IP_AT + 40 + UDP_LEN;

/// What makes headers what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PathKey {
    /// The port to send by.
    pub port: PortId,
    /// The own address.
    pub source: IpAddr,
    /// The peer's address, of the same version.
    pub peer: IpAddr,
    /// ToS or traffic class.
    pub tos: u8,
    /// What GTP-U message it is.
    pub form: Form,
}

/// A GTP-U message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Form {
    /// A user's packet without a PDU session container.
    Bare,
    /// A user's packet with one, from the RAN.
    Uplink,
    /// A user's packet with one, to the RAN.
    Downlink,
    /// An end marker: nothing is inside.
    EndMarker,
}

impl Form {
    /// That of packets in this direction with a PDU session container.
    pub fn marked(direction: Direction) -> Self {
        match direction {
            Direction::Uplink => Self::Uplink,
            Direction::Downlink => Self::Downlink,
        }
    }

    fn container(self) -> Option<PduSession> {
        let of = |direction| Some(PduSession { direction, qfi: 0, rqi: false });
        match self {
            Self::Uplink => of(Direction::Uplink),
            Self::Downlink => of(Direction::Downlink),
            Self::Bare | Self::EndMarker => None,
        }
    }
}

/// The headers, with everything filled in that does not depend on tunnel or packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub struct Path {
    front: [u8; FRONT_MAX],
    /// Bytes of `front` that there are.
    len: u8,
    v6: bool,
    has_container: bool,
    /// Whether the neighbour's Ethernet address is in it.
    resolved: bool,
    port: PortId,
    /// Longest packet to put into it.
    inner_max: u16,
    /// Sum over the IPv4 header with length and checksum zero, or over the IPv6 pseudo-header without the length.
    sum: u32,
    next_hop: IpAddr,
}

/// Bit of the reflective QoS indicator beside the QFI.
const RQI: u8 = 1 << 6;

/// A tunnel, as packets are put into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Number of its path.
    pub path: u32,
    /// The peer's TEID.
    pub teid: u32,
    /// The QoS flow, see [`PduSession::flow`], where the path's headers have a PDU session container.
    pub flow: u8,
}

/// From one tunnel into another. A packet keeps the QoS flow that it came with, unless a rule gives it one; and downlink the
/// reflective QoS indication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Number of the path of packets without a PDU session container.
    pub bare: u32,
    /// Of those with one.
    pub marked: u32,
    /// Of end markers.
    pub marker: u32,
    /// The peer's TEID.
    pub teid: u32,
    /// QFI and reflective QoS indication that a rule gives all packets.
    pub flow: Option<u8>,
    /// Whether packets go to the RAN.
    pub downlink: bool,
}

impl Relay {
    /// The tunnel of a packet that came with this QoS flow.
    #[inline]
    pub fn tunnel(&self, came_with: Option<u8>) -> Tunnel {
        let flow = match self.flow {
            Some(given) => Some(given | came_with.unwrap_or(0) & RQI),
            None => came_with,
        };
        let mask = if self.downlink { RQI | 0x3f } else { 0x3f };
        let path = if flow.is_some() { self.marked } else { self.bare };
        Tunnel { path, teid: self.teid, flow: flow.unwrap_or(0) & mask }
    }

    /// The tunnel of end markers.
    pub fn marker(&self) -> Tunnel {
        Tunnel { path: self.marker, teid: self.teid, flow: 0 }
    }
}

impl Path {
    /// The path of `key`, with outer packets of at most `mtu` bytes, by the neighbour at `next_hop`, which is not resolved. None
    /// if the addresses are of different versions.
    pub fn new(key: &PathKey, mtu: usize, next_hop: IpAddr) -> Option<Self> {
        let mut front = [0; FRONT_MAX];
        let headers = &mut front[IP_AT..];
        let (ip_len, ether_type, sum) = match (key.source, key.peer) {
            (IpAddr::V4(source), IpAddr::V4(peer)) => {
                // Identification zero and DF: atomic, never a fragment (RFC 6864).
                headers[..10].copy_from_slice(&[0x45, key.tos, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, UDP]);
                headers[12..16].copy_from_slice(&source.octets());
                headers[16..20].copy_from_slice(&peer.octets());
                (20, ETHERTYPE_IPV4, sum(&headers[..20]))
            }
            (IpAddr::V6(source), IpAddr::V6(peer)) => {
                headers[..8].copy_from_slice(&[0x60 | key.tos >> 4, key.tos << 4, 0, 0, 0, 0, UDP, HOP_LIMIT]);
                headers[8..24].copy_from_slice(&source.octets());
                headers[24..40].copy_from_slice(&peer.octets());
                (40, ETHERTYPE_IPV6, sum(&headers[8..40]) + u64::from(UDP))
            }
            _ => return None,
        };
        headers[ip_len..ip_len + 4].copy_from_slice(&[0x08, 0x68, 0x08, 0x68]);
        let container = key.form.container();
        let gtpu = GpduHeader::new(0, container);
        let message = &mut headers[ip_len + UDP_LEN..];
        gtpu.write(0, message);
        if key.form == Form::EndMarker {
            gtpu::end_marker(0, message);
        }
        let outer_len = ip_len + UDP_LEN + gtpu.len();
        front[12..IP_AT].copy_from_slice(&ether_type.to_be_bytes());
        let sum = (sum & 0xffff_ffff) + (sum >> 32);
        Some(Self {
            front,
            len: (ETHERNET_LEN + outer_len) as u8,
            v6: key.peer.is_ipv6(),
            has_container: container.is_some(),
            resolved: false,
            port: key.port,
            inner_max: mtu.saturating_sub(outer_len).try_into().unwrap_or(u16::MAX),
            sum: ((sum & 0xffff) + (sum >> 16)) as u32,
            next_hop,
        })
    }

    /// The same whose neighbour has these Ethernet addresses, its own before the UPF's; or is not resolved.
    #[must_use]
    pub fn with_ethernet(mut self, ethernet: Option<[u8; 12]>) -> Self {
        self.front[..12].copy_from_slice(&ethernet.unwrap_or_default());
        Self { resolved: ethernet.is_some(), ..self }
    }

    /// Bytes of the headers, that of Ethernet included.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "headers are never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Octets of the longest packet to put into it.
    #[inline]
    pub fn inner_max(&self) -> u16 {
        self.inner_max
    }

    /// Whether the outer packet is IPv6.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    /// Whether the neighbour's Ethernet address is known.
    #[inline]
    pub fn is_resolved(&self) -> bool {
        self.resolved
    }

    /// The port to send by.
    #[inline]
    pub fn port(&self) -> PortId {
        self.port
    }

    /// The neighbour that leads to the peer.
    #[inline]
    pub fn next_hop(&self) -> &IpAddr {
        &self.next_hop
    }

    /// Where the GTP-U header begins.
    fn gtpu_at(&self) -> usize {
        if self.v6 { GTPU_AT_V6 } else { GTPU_AT_V4 }
    }

    /// The PDU session container of packets in this QoS flow, if the headers have one.
    fn container(&self, flow: u8) -> Option<PduSession> {
        let len = self.len();
        let message = self.front.get(self.gtpu_at()..len)?;
        let container = gtpu::parse(message, message.len()).ok()?.pdu_session?;
        Some(PduSession { qfi: flow & !RQI, rqi: flow & RQI != 0, ..container })
    }

    /// The GTP-U header of a packet in this QoS flow that came with the GTP-U header `came`: not shorter than that of other packets.
    #[cold]
    pub fn relayed(&self, flow: u8, came: &[u8]) -> Result<RelayedHeader, gtpu::ParseError> {
        RelayedHeader::new(came, self.container(flow))
    }

    /// Octets of the headers with such a GTP-U header.
    pub fn relayed_len(&self, header: &RelayedHeader) -> usize {
        self.gtpu_at() + header.len()
    }

    /// As [`Path::write`], with such a GTP-U header.
    #[cold]
    pub fn write_relayed(&self, teid: u32, header: &RelayedHeader, inner_len: usize, to: &mut [u8]) {
        let gtpu_at = self.gtpu_at();
        to[..gtpu_at].copy_from_slice(&self.front[..gtpu_at]);
        header.write(teid, inner_len, &mut to[gtpu_at..]);
        self.fill_in(teid, inner_len, to);
    }

    /// Writes the headers for an inner packet of `inner_len` bytes in the tunnel `teid`, in the QoS flow `flow` if they tell of
    /// one, to `to`, which is as long as they are. The UDP checksum is zero: final with IPv4 (and with IPv6 by RFC 6935), else [`Path::udp6_checksum`] fills it in.
    #[inline(always)]
    pub fn write(&self, teid: u32, flow: u8, inner_len: usize, to: &mut [u8]) {
        // The usual form has a length that the compiler knows, and that no other form has.
        match (<&mut [u8; USUAL_LEN]>::try_from(&mut *to), self.front.first_chunk::<USUAL_LEN>()) {
            (Ok(to), Some(front)) => {
                *to = *front;
                to[USUAL_LEN - 2] = flow;
                self.fill_in_v4(teid, inner_len, to);
            }
            _ => self.write_any(teid, flow, inner_len, to),
        }
    }

    #[inline(never)]
    fn write_any(&self, teid: u32, flow: u8, inner_len: usize, to: &mut [u8]) {
        let len = to.len();
        to.copy_from_slice(&self.front[..len]);
        if self.has_container {
            // The container's second octet; the type of the next extension header is behind it.
            to[len - 2] = flow;
        }
        self.fill_in(teid, inner_len, to);
    }

    #[inline(always)]
    fn fill_in(&self, teid: u32, inner_len: usize, to: &mut [u8]) {
        if !self.v6 {
            return self.fill_in_v4(teid, inner_len, to);
        }
        let total = to.len() - ETHERNET_LEN + inner_len;
        fill_in_gtpu::<GTPU_AT_V6>(teid, total - 40, to);
        to[IP_AT + 4..IP_AT + 6].copy_from_slice(&be(total - 40));
    }

    #[inline(always)]
    fn fill_in_v4(&self, teid: u32, inner_len: usize, to: &mut [u8]) {
        let total = to.len() - ETHERNET_LEN + inner_len;
        fill_in_gtpu::<GTPU_AT_V4>(teid, total - 20, to);
        to[IP_AT + 2..IP_AT + 4].copy_from_slice(&be(total));
        let header = checksum(u64::from(self.sum) + total as u64);
        to[IP_AT + 10..IP_AT + 12].copy_from_slice(&header.to_be_bytes());
    }

    /// The UDP checksum over IPv6 of the packet whose outer headers are at the start of `front`, which goes on in `rest`.
    pub fn udp6_checksum(&self, front: &[u8], rest: &[u8]) -> u16 {
        let udp = &front[40..];
        let len = udp.len() + rest.len();
        // Where the front has an odd length, the rest's bytes are in the other halves of the words.
        let behind = u64::from(!checksum(sum(rest)));
        let behind = if udp.len() % 2 == 1 { behind << 8 } else { behind };
        match checksum(u64::from(self.sum) + len as u64 + sum(udp) + behind) {
            0 => 0xffff,
            sum => sum,
        }
    }
}

#[inline(always)]
fn be(value: usize) -> [u8; 2] {
    (value as u16).to_be_bytes()
}

/// Lengths of UDP and GTP-U, and the TEID.
#[inline(always)]
fn fill_in_gtpu<const AT: usize>(teid: u32, udp_len: usize, to: &mut [u8]) {
    to[AT - 4..AT - 2].copy_from_slice(&be(udp_len));
    to[AT + 2..AT + 4].copy_from_slice(&be(udp_len - UDP_LEN - gtpu::BASE_LEN));
    to[AT + 4..AT + 8].copy_from_slice(&teid.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::Packet;

    const TEID: u32 = 0x1122_3344;

    fn path(source: &str, peer: &str, tos: u8, form: Form) -> Option<Path> {
        let (source, peer) = (source.parse().unwrap(), peer.parse().unwrap());
        Path::new(&PathKey { port: PortId::N3, source, peer, tos, form }, 1_500, peer)
    }

    fn written(path: &Path, flow: u8, inner_len: usize) -> Vec<u8> {
        let mut front = vec![0xff; path.len()];
        path.write(TEID, flow, inner_len, &mut front);
        front
    }

    #[test]
    fn lengths_and_header_checksum_fit_the_packet() {
        for (form, len) in [(Form::Downlink, 44), (Form::Uplink, 44), (Form::Bare, 36), (Form::EndMarker, 36)] {
            let path = path("10.3.0.1", "10.3.0.2", 0xb8, form).unwrap().with_ethernet(Some([7; 12]));
            let inner_len = if form == Form::EndMarker { 0 } else { 100 };
            let front = written(&path, 9, inner_len);
            assert_eq!(
                (&front[..12], &front[12..15], path.inner_max()),
                (&[7; 12][..], &[8, 0, 0x45][..], 1_500 - len)
            );
            let mut packet = front[14..].to_vec();
            packet.resize(packet.len() + inner_len, 0);
            let ip = Packet::<false>::parse(&packet, packet.len()).unwrap();
            assert!(ip.checksum_is_right() && ip.len() == packet.len() && packet[1] == 0xb8);
            assert_eq!(ip.upper().ports(), Some((2152, 2152)));
            let header = gtpu::parse(&packet[28..], packet.len() - 28).unwrap();
            assert_eq!((header.teid, header.payload_len), (TEID, inner_len));
            assert_eq!(header.pdu_session.map(|container| container.qfi), form.container().map(|_| 9));
            let expected =
                if form == Form::EndMarker { gtpu::MessageType::END_MARKER } else { gtpu::MessageType::GPDU };
            assert_eq!(header.message_type, expected);
        }
    }

    #[test]
    fn addresses_of_two_versions_make_no_path() {
        assert!(path("10.3.0.1", "2001:db8::1", 0, Form::Bare).is_none());
    }

    proptest! {
        #[test]
        fn the_udp_checksum_over_ipv6_verifies(
            inner in proptest::collection::vec(any::<u8>(), 20..300),
            cut in 0usize..300,
            tos: u8,
        ) {
            let path = path("2001:db8::1", "2001:db8::2", tos, Form::Downlink).unwrap();
            let cut = cut.min(inner.len());
            let mut front = written(&path, 1, inner.len())[ETHERNET_LEN..].to_vec();
            front.extend(&inner[..cut]);
            let udp_checksum = path.udp6_checksum(&front, &inner[cut..]);
            front[46..48].copy_from_slice(&udp_checksum.to_be_bytes());
            front.extend(&inner[cut..]);
            prop_assert_eq!(&front[..2], &[0x60 | tos >> 4, tos << 4]);
            let pseudo = sum(&front[8..40]) + (front.len() - 40) as u64 + u64::from(UDP);
            prop_assert_eq!(checksum(pseudo + sum(&front[40..])), 0);
        }
    }
}
