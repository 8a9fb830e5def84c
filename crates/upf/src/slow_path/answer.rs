//! What the UPF says to its neighbours and peers: answers to ARP, neighbour discovery, pings and GTP-U's path messages,
//! and questions for Ethernet addresses. Formats by smoltcp.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gtpu::{EchoRequest, EchoResponse, ErrorIndication, MESSAGE_MAX_LEN, MessageType, SupportedExtensions};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet,
    Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr,
    MldRecordType, MldRepr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress, UdpPacket, UdpRepr,
};

use crate::n4::Echo;
use crate::packet::Punt;
use crate::side::{Side, bits, link_local};

/// Hop limit that neighbour discovery must have (RFC 4861, 7.1).
const NDISC_HOP_LIMIT: u8 = 255;
const HOP_LIMIT: u8 = 64;
const MLD_HOP_LIMIT: u8 = 1;
const MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop-by-hop options in front of a message of MLD (RFC 2711).
const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
const UNKNOWN_MAC: EthernetAddress = EthernetAddress([0; 6]);

/// What comes of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The frame to send back.
    pub answer: Option<Vec<u8>>,
    /// A neighbour's Ethernet address that the frame tells.
    pub learned: Option<Learned>,
    /// A peer's complaint about a tunnel that it does not know.
    pub complaint: Option<ErrorIndication>,
    /// The echo request that a peer answers.
    pub alive: Option<Echo>,
    /// The TEID that the answer calls unknown.
    pub unknown: Option<u32>,
}

/// A neighbour's Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The neighbour.
    pub neighbour: IpAddr,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Whether it takes the place of another one (RFC 4861, 7.2.5).
    pub overrides: bool,
}

impl Learned {
    /// None if no single host can have the address.
    fn new(neighbour: IpAddr, mac: EthernetAddress, overrides: bool) -> Option<Self> {
        (!neighbour.is_unspecified() && mac.is_unicast()).then_some(Self { neighbour, mac: mac.0, overrides })
    }
}

impl Outcome {
    /// Whether the frame was of any use.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Looks at a frame that came in on `side`.
pub fn consider(side: &Side, punt: Punt, frame: &[u8]) -> Outcome {
    let Ok(frame) = EthernetFrame::new_checked(frame) else { return Outcome::default() };
    let from = frame.src_addr();
    let outcome = match frame.ethertype() {
        EthernetProtocol::Arp => arp(side, frame.payload()),
        EthernetProtocol::Ipv4 => ipv4(side, punt, from, frame.payload()),
        EthernetProtocol::Ipv6 => ipv6(side, punt, from, frame.payload()),
        _ => None,
    };
    outcome.unwrap_or_default()
}

/// The frame that asks for the Ethernet address of `target`. Sent to `known`, if that is to be confirmed, or else to
/// everyone. None if the side has no address to ask from.
pub fn solicit(side: &Side, target: IpAddr, known: Option<[u8; 6]>) -> Option<Vec<u8>> {
    let known = known.map(EthernetAddress);
    match target {
        IpAddr::V4(target) => {
            let IpAddr::V4(source) = side.source_for(target.into())? else { return None };
            let request = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: EthernetAddress(side.mac),
                source_protocol_addr: source,
                target_hardware_addr: UNKNOWN_MAC,
                target_protocol_addr: target,
            };
            Some(arp_frame(side, known.unwrap_or(EthernetAddress::BROADCAST), &request))
        }
        IpAddr::V6(target) => {
            let source = v6_source(side, target)?;
            let request =
                NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(EthernetAddress(side.mac).into()) };
            let group = solicited_node(target);
            let (to_mac, to) = known.map_or((multicast_mac(group), group), |mac| (mac, target));
            Some(icmpv6_frame(side, to_mac, source, to, NDISC_HOP_LIMIT, &Icmpv6Repr::Ndisc(request)))
        }
    }
}

/// The frame that tells switches of the groups by which the side's addresses are asked for, so that they let these through (RFC 3810).
/// None if it has no IPv6 addresses.
pub fn listener_report(side: &Side) -> Option<Vec<u8>> {
    let mut groups: Vec<_> = side.own_v6().map(solicited_node).collect();
    groups.sort_unstable();
    groups.dedup();
    // From whatever sources: none is excluded.
    let record = |group: &Ipv6Addr| [&[MldRecordType::ModeIsExclude.into(), 0, 0, 0][..], &group.octets()].concat();
    let records: Vec<u8> = groups.iter().flat_map(record).collect();
    let report = Icmpv6Repr::Mld(MldRepr::Report { nr_mcast_addr_rcrds: groups.len() as u16, data: &records });
    let (from, to) = (link_local(side.mac), MLD_ROUTERS);
    let len = ROUTER_ALERT.len() + report.buffer_len();
    let frame = ip_frame(side, multicast_mac(to), from.into(), to.into(), IpProtocol::HopByHop, len, |payload| {
        let (options, message) = payload.split_at_mut(ROUTER_ALERT.len());
        options.copy_from_slice(&ROUTER_ALERT);
        report.emit(&from, &to, &mut Icmpv6Packet::new_unchecked(message), &ChecksumCapabilities::default());
    });
    (!groups.is_empty()).then(|| with_hop_limit(frame, MLD_HOP_LIMIT))
}

/// The frame of an echo request, whose Ethernet addresses are filled in when it is sent. None if the side has no address
/// to send it from.
pub fn echo_request(side: &Side, echo: Echo) -> Option<Vec<u8>> {
    let mut message = [0; MESSAGE_MAX_LEN];
    let len = EchoRequest { sequence: echo.sequence }.write(&mut message);
    let source = side.source_for(echo.peer)?;
    Some(gtpu_frame(side, UNKNOWN_MAC, (source, echo.peer), gtpu::UDP_PORT, &message[..len]))
}

/// Whether the UPF answers for the address.
fn is_ours(side: &Side, address: Ipv4Addr) -> bool {
    let bits = address.to_bits().into();
    side.owns(false, bits) || side.is_nat(false, bits)
}

fn arp(side: &Side, payload: &[u8]) -> Option<Outcome> {
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: mac,
        source_protocol_addr: address,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(payload).ok()?).ok()?
    else {
        return None;
    };
    let learned = Learned::new(address.into(), mac, true);
    let ours = operation == ArpOperation::Request && is_ours(side, target);
    let answer = ours.then(|| {
        let reply = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(side.mac),
            source_protocol_addr: target,
            target_hardware_addr: mac,
            target_protocol_addr: address,
        };
        arp_frame(side, mac, &reply)
    });
    Some(Outcome { answer, learned, ..Outcome::default() })
}

fn ipv4(side: &Side, punt: Punt, mac: EthernetAddress, payload: &[u8]) -> Option<Outcome> {
    let packet = Ipv4Packet::new_checked(payload).ok()?;
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    if packet.more_frags() || packet.frag_offset() != 0 || unanswerable(source.into()) {
        return None;
    }
    match packet.next_header() {
        IpProtocol::Icmp => {
            let icmp = Icmpv4Packet::new_checked(packet.payload()).ok()?;
            let Icmpv4Repr::EchoRequest { ident, seq_no, data } =
                Icmpv4Repr::parse(&icmp, &ChecksumCapabilities::default()).ok()?
            else {
                return None;
            };
            let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
            let answer =
                ip_frame(side, mac, destination.into(), source.into(), IpProtocol::Icmp, reply.buffer_len(), |to| {
                    reply.emit(&mut Icmpv4Packet::new_unchecked(to), &ChecksumCapabilities::default());
                });
            Some(Outcome { answer: Some(answer), ..Outcome::default() })
        }
        IpProtocol::Udp => gtpu_message(side, punt, mac, source.into(), destination.into(), packet.payload()),
        _ => None,
    }
}

fn ipv6(side: &Side, punt: Punt, mac: EthernetAddress, payload: &[u8]) -> Option<Outcome> {
    let packet = Ipv6Packet::new_checked(payload).ok()?;
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    match packet.next_header() {
        IpProtocol::Icmpv6 => {
            let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
            match Icmpv6Repr::parse(&source, &destination, &icmp, &ChecksumCapabilities::default()).ok()? {
                Icmpv6Repr::EchoRequest { ident, seq_no, data } if !unanswerable(source.into()) => {
                    let from = if destination.is_multicast() { v6_source(side, source)? } else { destination };
                    let reply = Icmpv6Repr::EchoReply { ident, seq_no, data };
                    let answer = Some(icmpv6_frame(side, mac, from, source, HOP_LIMIT, &reply));
                    Some(Outcome { answer, ..Outcome::default() })
                }
                Icmpv6Repr::Ndisc(message) if packet.hop_limit() == NDISC_HOP_LIMIT => {
                    neighbour_discovery(side, mac, source, &message)
                }
                _ => None,
            }
        }
        IpProtocol::Udp if !unanswerable(source.into()) => {
            gtpu_message(side, punt, mac, source.into(), destination.into(), packet.payload())
        }
        _ => None,
    }
}

fn neighbour_discovery(
    side: &Side,
    mac: EthernetAddress,
    source: Ipv6Addr,
    message: &NdiscRepr<'_>,
) -> Option<Outcome> {
    match *message {
        NdiscRepr::NeighborSolicit { target_addr: target, lladdr } if side.owns(true, target.to_bits()) => {
            let mac = told_mac(lladdr, mac);
            // Whoever asks without an address is trying out whether the target is in use; all are told.
            let solicited = !source.is_unspecified();
            let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let (to_mac, to) = if solicited { (mac, source) } else { (multicast_mac(all_nodes), all_nodes) };
            let mut flags = NdiscNeighborFlags::OVERRIDE;
            flags.set(NdiscNeighborFlags::SOLICITED, solicited);
            let lladdr = Some(EthernetAddress(side.mac).into());
            let reply = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr });
            let answer = Some(icmpv6_frame(side, to_mac, target, to, NDISC_HOP_LIMIT, &reply));
            Some(Outcome { answer, learned: Learned::new(source.into(), mac, true), ..Outcome::default() })
        }
        NdiscRepr::NeighborAdvert { target_addr, flags, lladdr } => {
            let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
            let learned = Learned::new(target_addr.into(), told_mac(lladdr, mac), overrides);
            Some(Outcome { learned, ..Outcome::default() })
        }
        _ => None,
    }
}

/// The address that the message tells in its option. Its frame's source, which may be another's, counts where there is none.
fn told_mac(option: Option<RawHardwareAddress>, source: EthernetAddress) -> EthernetAddress {
    let told = option.and_then(|option| option.as_bytes().try_into().ok()).map(EthernetAddress);
    told.filter(EthernetAddress::is_unicast).unwrap_or(source)
}

/// GTP-U other than user data: `payload` is the UDP datagram, which came for `local`.
fn gtpu_message(
    side: &Side,
    punt: Punt,
    mac: EthernetAddress,
    peer: IpAddr,
    local: IpAddr,
    payload: &[u8],
) -> Option<Outcome> {
    let datagram = UdpPacket::new_checked(payload).ok()?;
    let message = datagram.payload();
    let mut reply = [0; MESSAGE_MAX_LEN];
    let mut unknown = None;
    let (port, len) = match punt {
        Punt::Gtpu => {
            let header = gtpu::parse(message, message.len()).ok()?;
            if header.message_type == MessageType::ERROR_INDICATION {
                let elements = &message[header.header_len..header.header_len + header.payload_len];
                let complaint = ErrorIndication::parse(elements).ok();
                return Some(Outcome { complaint, ..Outcome::default() });
            }
            if header.message_type == MessageType::ECHO_RESPONSE {
                // Its restart counter means nothing any more (7.2.2).
                let alive = header.sequence.map(|sequence| Echo { peer, sequence });
                return Some(Outcome { alive, ..Outcome::default() });
            }
            (datagram.src_port(), EchoResponse::to(&header).write(&mut reply))
        }
        Punt::UnknownTeid => {
            let header = gtpu::parse_at_intermediate_node(message, message.len()).ok()?;
            unknown = Some(header.teid);
            (gtpu::UDP_PORT, ErrorIndication { teid: header.teid, peer: local }.write(&mut reply))
        }
        Punt::UnknownExtension => (gtpu::UDP_PORT, SupportedExtensions { sequence: 0 }.write(&mut reply)),
        Punt::Host | Punt::Fragment => return None,
    };
    let answer = gtpu_frame(side, mac, (local, peer), port, &reply[..len]);
    Some(Outcome { answer: Some(answer), unknown, ..Outcome::default() })
}

/// A GTP-U message from one address to the other's UDP port.
fn gtpu_frame(side: &Side, mac: EthernetAddress, (from, to): (IpAddr, IpAddr), port: u16, message: &[u8]) -> Vec<u8> {
    let udp = UdpRepr { src_port: gtpu::UDP_PORT, dst_port: port };
    let payload_len = udp.header_len() + message.len();
    ip_frame(side, mac, from, to, IpProtocol::Udp, payload_len, |datagram| {
        let emit = |payload: &mut [u8]| payload.copy_from_slice(message);
        let mut packet = UdpPacket::new_unchecked(datagram);
        let checksums = ChecksumCapabilities::default();
        udp.emit(&mut packet, &IpAddress::from(from), &IpAddress::from(to), message.len(), emit, &checksums);
    })
}

/// Sources that nothing is sent back to.
pub(super) fn unanswerable(source: IpAddr) -> bool {
    source.is_unspecified()
        || source.is_multicast()
        || source == IpAddr::V4(Ipv4Addr::BROADCAST)
        || source.is_loopback()
}

/// The own address to speak to `peer` from: link-local to link-local.
fn v6_source(side: &Side, peer: Ipv6Addr) -> Option<Ipv6Addr> {
    if peer.is_unicast_link_local() {
        return side.owns(true, link_local(side.mac).to_bits()).then(|| link_local(side.mac));
    }
    match side.source_for(peer.into())? {
        IpAddr::V6(source) => Some(source),
        IpAddr::V4(_) => None,
    }
}

fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let low = bits(target.into()).1 & 0xff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low)
}

fn multicast_mac(group: Ipv6Addr) -> EthernetAddress {
    let [.., a, b, c, d] = group.octets();
    EthernetAddress([0x33, 0x33, a, b, c, d])
}

fn arp_frame(side: &Side, to: EthernetAddress, message: &ArpRepr) -> Vec<u8> {
    ethernet_frame(side, to, EthernetProtocol::Arp, message.buffer_len(), |payload| {
        message.emit(&mut ArpPacket::new_unchecked(payload));
    })
}

fn icmpv6_frame(
    side: &Side,
    to_mac: EthernetAddress,
    from: Ipv6Addr,
    to: Ipv6Addr,
    hop_limit: u8,
    message: &Icmpv6Repr<'_>,
) -> Vec<u8> {
    let emit = |payload: &mut [u8]| {
        message.emit(&from, &to, &mut Icmpv6Packet::new_unchecked(payload), &ChecksumCapabilities::default());
    };
    let frame = ip_frame(side, to_mac, from.into(), to.into(), IpProtocol::Icmpv6, message.buffer_len(), emit);
    with_hop_limit(frame, hop_limit)
}

fn with_hop_limit(mut frame: Vec<u8>, hop_limit: u8) -> Vec<u8> {
    Ipv6Packet::new_unchecked(&mut frame[EthernetFrame::<&[u8]>::header_len()..]).set_hop_limit(hop_limit);
    frame
}

pub(super) fn ip_frame(
    side: &Side,
    to_mac: EthernetAddress,
    from: IpAddr,
    to: IpAddr,
    protocol: IpProtocol,
    payload_len: usize,
    emit: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(src_addr), IpAddr::V4(dst_addr)) => {
            let ip = Ipv4Repr { src_addr, dst_addr, next_header: protocol, payload_len, hop_limit: HOP_LIMIT };
            ethernet_frame(side, to_mac, EthernetProtocol::Ipv4, ip.buffer_len() + payload_len, |packet| {
                ip.emit(&mut Ipv4Packet::new_unchecked(&mut packet[..]), &ChecksumCapabilities::default());
                emit(&mut packet[ip.buffer_len()..]);
            })
        }
        (IpAddr::V6(src_addr), IpAddr::V6(dst_addr)) => {
            let ip = Ipv6Repr { src_addr, dst_addr, next_header: protocol, payload_len, hop_limit: HOP_LIMIT };
            ethernet_frame(side, to_mac, EthernetProtocol::Ipv6, ip.buffer_len() + payload_len, |packet| {
                ip.emit(&mut Ipv6Packet::new_unchecked(&mut packet[..]));
                emit(&mut packet[ip.buffer_len()..]);
            })
        }
        _ => unreachable!("both are addresses of one packet"),
    }
}

fn ethernet_frame(
    side: &Side,
    to: EthernetAddress,
    ethertype: EthernetProtocol,
    payload_len: usize,
    emit: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let header = EthernetRepr { src_addr: EthernetAddress(side.mac), dst_addr: to, ethertype };
    let mut bytes = vec![0; header.buffer_len() + payload_len];
    header.emit(&mut EthernetFrame::new_unchecked(&mut bytes[..]));
    emit(&mut bytes[header.buffer_len()..]);
    bytes
}
