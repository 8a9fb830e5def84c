//! The outer headers of a tunnel towards the RAN or another UPF: IP, UDP, GTP-U. Made once, then copied before each packet.

use std::net::IpAddr;

use gtpu::{Direction, GpduHeader, PduSession};

use crate::ip::{UDP, checksum, sum};

/// Most bytes of outer headers: IPv6, UDP, GTP-U with a PDU session container.
pub const TUNNEL_MAX_LEN: usize = 40 + UDP_LEN + gtpu::GPDU_MAX_LEN;

const UDP_LEN: usize = 8;
const HOP_LIMIT: u8 = 64;

/// From one tunnel into another. A packet keeps the QoS flow that it came with, unless a rule gives it one; and downlink the
/// reflective QoS indication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// For packets without a PDU session container.
    bare: Tunnel,
    /// For packets with one.
    marked: Tunnel,
    /// For end markers.
    marker: Tunnel,
    /// QFI and reflective QoS indication that a rule gives all packets.
    flow: Option<u8>,
    /// Bits of a flow that may be sent in this direction.
    flow_mask: u8,
}

/// Bit of the reflective QoS indicator beside the QFI.
const RQI: u8 = 1 << 6;

/// The outer headers, with everything filled in that does not depend on the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    headers: [u8; TUNNEL_MAX_LEN],
    len: u8,
    v6: bool,
    /// Longest packet to put into it.
    inner_max: u16,
    /// Sum over the IPv4 header with length and checksum zero, or over the IPv6 pseudo-header without the length.
    sum: u32,
    /// Index of the neighbour that leads to the peer.
    hop: u32,
}

impl Relay {
    /// The tunnel with the ends and the peer's TEID that `ends` has, in the direction of `direction`; with this QoS flow (see
    /// [`PduSession::flow`]) if a rule gives one.
    pub fn new(ends: &Ends, direction: Direction, flow: Option<u8>) -> Option<Self> {
        let container = PduSession { direction, qfi: 0, rqi: false };
        let &Ends { source, peer, teid, hop, mtu } = ends;
        Some(Self {
            bare: Tunnel::new(source, peer, teid, None, hop)?.with_mtu(mtu),
            marked: Tunnel::new(source, peer, teid, Some(container), hop)?.with_mtu(mtu),
            marker: Tunnel::end_marker(source, peer, teid, hop)?,
            flow,
            flow_mask: if direction == Direction::Downlink { RQI | 0x3f } else { 0x3f },
        })
    }

    /// The same with this ToS or traffic class.
    #[must_use]
    pub fn with_tos(self, tos: u8) -> Self {
        Self { bare: self.bare.with_tos(tos), marked: self.marked.with_tos(tos), ..self }
    }

    /// The headers for a packet that came with this QoS flow, and the flow to fill in.
    #[inline]
    pub fn tunnel(&self, came_with: Option<u8>) -> (&Tunnel, Option<u8>) {
        let flow = match self.flow {
            Some(given) => Some(given | came_with.unwrap_or(0) & RQI),
            None => came_with,
        };
        let tunnel = if flow.is_some() { &self.marked } else { &self.bare };
        (tunnel, flow.map(|flow| flow & self.flow_mask))
    }

    /// The end marker.
    pub fn marker(&self) -> &Tunnel {
        &self.marker
    }
}

/// The ends of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The own address.
    pub source: IpAddr,
    /// The peer's address.
    pub peer: IpAddr,
    /// The peer's TEID.
    pub teid: u32,
    /// Index of the neighbour that leads to the peer.
    pub hop: u32,
    /// Longest outer packet.
    pub mtu: usize,
}

impl Tunnel {
    /// The tunnel to `teid` at `peer`, from `source`, by the neighbour with index `hop`. None if the addresses are of
    /// different versions.
    pub fn new(source: IpAddr, peer: IpAddr, teid: u32, pdu_session: Option<PduSession>, hop: u32) -> Option<Self> {
        let mut headers = [0; TUNNEL_MAX_LEN];
        let (ip_len, sum) = match (source, peer) {
            (IpAddr::V4(source), IpAddr::V4(peer)) => {
                // Identification zero and DF: atomic, never a fragment (RFC 6864).
                headers[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, UDP]);
                headers[12..16].copy_from_slice(&source.octets());
                headers[16..20].copy_from_slice(&peer.octets());
                (20, sum(&headers[..20]))
            }
            (IpAddr::V6(source), IpAddr::V6(peer)) => {
                headers[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, UDP, HOP_LIMIT]);
                headers[8..24].copy_from_slice(&source.octets());
                headers[24..40].copy_from_slice(&peer.octets());
                (40, sum(&headers[8..40]) + u64::from(UDP))
            }
            _ => return None,
        };
        headers[ip_len..ip_len + 4].copy_from_slice(&[0x08, 0x68, 0x08, 0x68]);
        let gtpu = GpduHeader::new(teid, pdu_session);
        gtpu.write(0, &mut headers[ip_len + UDP_LEN..]);
        let sum = (sum & 0xffff_ffff) + (sum >> 32);
        let sum = ((sum & 0xffff) + (sum >> 16)) as u32;
        let len = (ip_len + UDP_LEN + gtpu.len()) as u8;
        Some(Self { headers, len, v6: peer.is_ipv6(), inner_max: u16::MAX, sum, hop })
    }

    /// The same, whose outer packets are no longer than this.
    #[must_use]
    pub fn with_mtu(self, mtu: usize) -> Self {
        let inner_max = mtu.saturating_sub(self.len()).try_into().unwrap_or(u16::MAX);
        Self { inner_max, ..self }
    }

    /// The same, which has ToS or traffic class 0, with another one.
    #[must_use]
    pub fn with_tos(mut self, tos: u8) -> Self {
        if self.v6 {
            self.headers[0] |= tos >> 4;
            self.headers[1] |= tos << 4;
        } else {
            self.headers[1] = tos;
            self.sum += u32::from(tos);
        }
        self
    }

    /// The end marker of the tunnel to `teid` at `peer`: a whole packet, with nothing inside.
    pub fn end_marker(source: IpAddr, peer: IpAddr, teid: u32, hop: u32) -> Option<Self> {
        let mut marker = Self::new(source, peer, teid, None, hop)?;
        let at = usize::from(marker.len) - gtpu::BASE_LEN;
        gtpu::end_marker(teid, &mut marker.headers[at..]);
        Some(marker)
    }

    /// Bytes that the outer headers take.
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

    /// Index of the neighbour that leads to the peer.
    #[inline]
    pub fn hop(&self) -> u32 {
        self.hop
    }

    /// Writes the headers for an inner packet of `inner_len` bytes to `to`, which is as long as they are. The UDP
    /// checksum is zero: final with IPv4 (and with IPv6 by RFC 6935), else [`udp6_checksum`] fills it in.
    #[inline]
    pub fn write(&self, inner_len: usize, to: &mut [u8]) {
        // The usual form has a length that the compiler knows.
        match to.len() {
            44 => to.copy_from_slice(&self.headers[..44]),
            len => to.copy_from_slice(&self.headers[..len]),
        }
        let (udp_at, gtpu_at) = if self.v6 { (40, 48) } else { (20, 28) };
        let total = self.len() + inner_len;
        let be = |value: usize| (value as u16).to_be_bytes();
        if self.v6 {
            to[4..6].copy_from_slice(&be(total - 40));
        } else {
            to[2..4].copy_from_slice(&be(total));
            let header = checksum(u64::from(self.sum) + total as u64);
            to[10..12].copy_from_slice(&header.to_be_bytes());
        }
        to[udp_at + 4..udp_at + 6].copy_from_slice(&be(total - udp_at));
        to[gtpu_at + 2..gtpu_at + 4].copy_from_slice(&be(total - gtpu_at - gtpu::BASE_LEN));
    }

    /// Sets the QoS flow in headers that were written with a PDU session container, and end with it.
    pub fn set_flow(flow: u8, written: &mut [u8]) {
        // The container's second octet; the type of the next extension header is behind it.
        if let [.., octet, _] = written {
            *octet = flow;
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::Packet;

    fn container(qfi: u8) -> Option<PduSession> {
        Some(PduSession { direction: Direction::Downlink, qfi, rqi: false })
    }

    #[test]
    fn lengths_and_header_checksum_fit_the_packet() {
        let tunnel =
            Tunnel::new("10.3.0.1".parse().unwrap(), "10.3.0.2".parse().unwrap(), 0x77, container(9), 0).unwrap();
        let mut packet = vec![0; tunnel.len() + 100];
        tunnel.write(100, &mut packet[..44]);
        let ip = Packet::<false>::parse(&packet, packet.len()).unwrap();
        assert!(ip.checksum_is_right() && ip.len() == 144);
        assert_eq!(ip.upper().ports(), Some((2152, 2152)));
        assert_eq!(packet[24..28], [0, 124, 0, 0]);
        let header = gtpu::parse(&packet[28..], 116).unwrap();
        assert_eq!((header.teid, header.pdu_session, header.payload_len), (0x77, container(9), 100));
    }

    #[test]
    fn addresses_of_two_versions_make_no_tunnel() {
        assert!(Tunnel::new("10.3.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap(), 1, None, 0).is_none());
    }

    proptest! {
        #[test]
        fn the_udp_checksum_over_ipv6_verifies(inner in proptest::collection::vec(any::<u8>(), 20..300), cut in 0usize..300) {
            let (source, peer) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
            let tunnel = Tunnel::new(source, peer, 5, container(1), 0).unwrap();
            let cut = cut.min(inner.len());
            let mut front = vec![0; tunnel.len()];
            tunnel.write(inner.len(), &mut front);
            front.extend(&inner[..cut]);
            let udp_checksum = tunnel.udp6_checksum(&front, &inner[cut..]);
            front[46..48].copy_from_slice(&udp_checksum.to_be_bytes());
            front.extend(&inner[cut..]);
            let pseudo = sum(&front[8..40]) + (front.len() - 40) as u64 + u64::from(UDP);
            prop_assert_eq!(checksum(pseudo + sum(&front[40..])), 0);
        }
    }
}
