//! Finds the session that a frame belongs to.

use std::ops::RangeInclusive;

use gtpu::{Header, MessageType, ParseError};
use port::Burst;

use super::ahead::classify_ahead;
use super::{Arrival, Class, ETHERNET_LEN, Punt, usual};
use crate::drops::DropReason;
use crate::ip::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Packet, UDP};
use crate::side::PortId;
use crate::tables::{Network, Version};

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
const ICMPV6: u8 = 58;
/// Types of ICMPv6 that are neighbour discovery, and the hop limit which says that no router has passed it on (RFC 4861).
const NEIGHBOUR_DISCOVERY: RangeInclusive<u8> = 133..=137;
const FROM_THE_LINK: u8 = 255;
const UDP_LEN: usize = 8;

/// Finds the sessions of a burst from a network whose packets are in tunnels, or not.
#[inline(always)]
pub(crate) fn classify_all<const TUNNELS: bool>(
    tables: &Version,
    from: &Network,
    burst: &Burst<'_>,
    classes: &mut [Class],
) {
    if tables.is_large() && classes.len() > 1 {
        return classify_ahead::<TUNNELS>(tables, from, burst, classes);
    }
    for (at, class) in classes.iter_mut().enumerate() {
        let packet = burst.get(at);
        classify_to::<TUNNELS>(tables, from, packet.head, packet.len(), None, class);
    }
}

/// Finds the session of a frame of `len` bytes, of which `head` are the first.
#[inline(always)]
pub fn classify(tables: &Version, from: PortId, head: &[u8], len: usize) -> Class {
    let network = tables.network(from);
    match network.side.kind.has_tunnels() {
        true => classify_any::<true>(tables, network, head, len, None),
        false => classify_any::<false>(tables, network, head, len, None),
    }
}

/// The same for a network whose packets are in tunnels, or not. The list of rules may have been looked up before, by the TEID or the
/// address where IPv4 headers without options have it. The class is written where it is to stand, field by field: it is read so,
/// and a copy of it at once would wait for all of them.
#[inline(always)]
pub(super) fn classify_to<const TUNNELS: bool>(
    tables: &Version,
    from: &Network,
    head: &[u8],
    len: usize,
    list: Option<u32>,
    to: &mut Class,
) {
    let usual = match TUNNELS {
        true => usual_tunnelled(tables, from, head, len, list),
        false => usual_plain(from, head, len, list),
    };
    match usual {
        Some(class) => *to = class,
        None => *to = classify_any::<TUNNELS>(tables, from, head, len, list),
    }
}

#[inline(always)]
fn usual_tunnelled(tables: &Version, from: &Network, head: &[u8], len: usize, list: Option<u32>) -> Option<Class> {
    let usual::Gpdu { teid, flow, len } = usual::gpdu(&from.side, head, len)?;
    let list = list.or_else(|| tables.by_teid(teid).map(|rules| rules.list()))?;
    let arrival = Arrival::Tunnelled { v6: false, flow: Some(flow) };
    Some(Class::User { list, arrival, at: usual::INNER as u16, len })
}

#[inline(always)]
fn usual_plain(from: &Network, head: &[u8], len: usize, list: Option<u32>) -> Option<Class> {
    let (destination, len) = usual::plain(&from.side, head, len)?;
    let list = list.or_else(|| from.ue(false, destination.into()))?;
    Some(Class::User { list, arrival: Arrival::Plain, at: ETHERNET_LEN as u16, len })
}

/// The same for any frame.
#[inline(never)]
pub(super) fn classify_any<const TUNNELS: bool>(
    tables: &Version,
    from: &Network,
    head: &[u8],
    len: usize,
    list: Option<u32>,
) -> Class {
    let Some((ethernet, packet)) = head.split_first_chunk::<ETHERNET_LEN>() else {
        return Class::Drop(DropReason::IpMalformed);
    };
    let &[m0, m1, m2, m3, m4, m5, .., t0, t1] = ethernet;
    let available = len - ETHERNET_LEN;
    let ours = [m0, m1, m2, m3, m4, m5] == from.side.mac;
    let class = match (ours, u16::from_be_bytes([t0, t1]), TUNNELS) {
        (true, ETHERTYPE_IPV4, true) => classify_tunnelled::<false>(tables, from, packet, available),
        (true, ETHERTYPE_IPV4, false) => classify_plain::<false>(from, packet, available, list),
        (true, ETHERTYPE_IPV6, true) => classify_tunnelled::<true>(tables, from, packet, available),
        (true, ETHERTYPE_IPV6, false) => classify_plain::<true>(from, packet, available, list),
        (_, ether_type, _) => classify_other(ours, ethernet[0] & 1 != 0, ether_type, packet, available),
    };
    class.unwrap_or_else(Class::Drop)
}

/// From N6: a packet for a UE, or for the UPF itself.
#[inline(always)]
fn classify_plain<const V6: bool>(
    from: &Network,
    packet: &[u8],
    available: usize,
    list: Option<u32>,
) -> Result<Class, DropReason> {
    let ip = sound::<V6>(packet, available)?;
    let destination = ip.destination();
    let Some(list) = list.or_else(|| from.ue(V6, destination)) else {
        return match () {
            () if from.side.owns(V6, destination) => Ok(Class::Punt(Punt::Host)),
            () if ip.is_multicast() => Err(DropReason::Multicast),
            () => Err(DropReason::UnknownUe),
        };
    };
    let (at, len) = (ETHERNET_LEN as u16, ip.len() as u16);
    Ok(Class::User { list, arrival: Arrival::Plain, at, len })
}

/// From N3: a packet in a tunnel, or for the UPF itself.
#[inline(always)]
fn classify_tunnelled<const V6: bool>(
    tables: &Version,
    from: &Network,
    packet: &[u8],
    available: usize,
) -> Result<Class, DropReason> {
    let ip = sound::<V6>(packet, available)?;
    if !from.side.owns(V6, ip.destination()) {
        return Err(if ip.is_multicast() { DropReason::Multicast } else { DropReason::NotOurAddress });
    }
    if ip.is_fragment() {
        return Ok(Class::Punt(Punt::Fragment));
    }
    if ip.next_header() != UDP {
        return Ok(Class::Punt(Punt::Host));
    }
    let header_len = ip.header_len();
    let udp = &ip.bytes()[header_len..];
    let Some(&[_, _, d0, d1, l0, l1, _, _]) = udp.first_chunk::<UDP_LEN>() else {
        return Err(DropReason::IpMalformed);
    };
    if u16::from_be_bytes([d0, d1]) != gtpu::UDP_PORT {
        return Err(DropReason::NotGtpu);
    }
    let udp_len = usize::from(u16::from_be_bytes([l0, l1]));
    if udp_len < UDP_LEN || header_len + udp_len > ip.len() {
        return Err(DropReason::IpMalformed);
    }
    // Checksums of UDP are not verified: over IPv4 senders leave them out, over IPv6 RFC 6935 lets them; the user's own
    // packet has its own.
    let header = match gtpu::parse_at_intermediate_node(&udp[UDP_LEN..], udp_len - UDP_LEN) {
        Ok(header) => header,
        Err(error) => return refused(error),
    };
    if header.message_type != MessageType::GPDU {
        return signalling(tables, &header, V6);
    }
    let Some(rules) = tables.by_teid(header.teid) else { return Ok(Class::Punt(Punt::UnknownTeid)) };
    let flow = header.pdu_session.map(|container| container.flow());
    let arrival = match header.is_extended {
        false => Arrival::Tunnelled { v6: V6, flow },
        true => Arrival::Extended { v6: V6 },
    };
    Ok(Class::User {
        list: rules.list(),
        arrival,
        at: (ETHERNET_LEN + header_len + UDP_LEN + header.header_len) as u16,
        len: header.payload_len as u16,
    })
}

#[inline(always)]
fn sound<const V6: bool>(packet: &[u8], available: usize) -> Result<Packet<'_, V6>, DropReason> {
    let ip = Packet::parse(packet, available).map_err(|_| DropReason::IpMalformed)?;
    if ip.checksum_is_right() { Ok(ip) } else { Err(DropReason::IpChecksum) }
}

/// Frames that are not IP, or not for this port alone.
#[cold]
fn classify_other(
    ours: bool,
    group: bool,
    ether_type: u16,
    packet: &[u8],
    available: usize,
) -> Result<Class, DropReason> {
    if !ours && !group {
        return Err(DropReason::WrongMac);
    }
    match ether_type {
        ETHERTYPE_ARP => Ok(Class::Punt(Punt::Host)),
        ETHERTYPE_IPV6 => {
            let ip = sound::<true>(packet, available)?;
            // Of what is for a group of stations only neighbour discovery is of interest.
            let neighbour_discovery = ip.is_multicast() && ip.next_header() == ICMPV6;
            if neighbour_discovery { Ok(Class::Punt(Punt::Host)) } else { Err(DropReason::Multicast) }
        }
        ETHERTYPE_IPV4 => Err(DropReason::Multicast),
        ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => Err(DropReason::Vlan),
        _ => Err(DropReason::EtherType),
    }
}

/// Whether a frame for the UPF itself is ARP or neighbour discovery. `head` are its first bytes.
#[cold]
pub(crate) fn is_of_neighbours(head: &[u8]) -> bool {
    let Some((&[.., t0, t1], packet)) = head.split_first_chunk::<ETHERNET_LEN>() else { return false };
    match (u16::from_be_bytes([t0, t1]), Packet::<true>::parse(packet, usize::MAX)) {
        (ETHERTYPE_ARP, _) => true,
        (ETHERTYPE_IPV6, Ok(ip)) => {
            let kind = ip.bytes().get(ip.header_len()).filter(|_| ip.next_header() == ICMPV6);
            kind.is_some_and(|kind| NEIGHBOUR_DISCOVERY.contains(kind)) && ip.hop_limit() == FROM_THE_LINK
        }
        _ => false,
    }
}

#[cold]
fn signalling(tables: &Version, header: &Header, v6: bool) -> Result<Class, DropReason> {
    // Whoever it is for, the UPF does not pass it on as it came.
    if let Some(unknown) = header.refused_by_endpoint {
        return refused(ParseError::ExtensionRequired(unknown));
    }
    match header.message_type {
        MessageType::ECHO_REQUEST | MessageType::ECHO_RESPONSE | MessageType::ERROR_INDICATION => {
            Ok(Class::Punt(Punt::Gtpu))
        }
        MessageType::END_MARKER => {
            let rules = tables.by_teid(header.teid).ok_or(DropReason::EndMarker)?;
            let arrival = Arrival::EndMarker { v6 };
            Ok(Class::User { list: rules.list(), arrival, at: ETHERNET_LEN as u16, len: 0 })
        }
        _ => Err(DropReason::GtpuMessage),
    }
}

#[cold]
fn refused(error: ParseError) -> Result<Class, DropReason> {
    match error {
        ParseError::ExtensionRequired(_) => Ok(Class::Punt(Punt::UnknownExtension)),
        ParseError::Version => Err(DropReason::GtpuVersion),
        ParseError::HeaderTooLong => Err(DropReason::GtpuTooLong),
        ParseError::Truncated | ParseError::Length | ParseError::ExtensionLength | ParseError::PduSession => {
            Err(DropReason::GtpuMalformed)
        }
    }
}
