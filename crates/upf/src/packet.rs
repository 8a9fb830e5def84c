//! The packet function: what becomes of a packet, from the tables, the policers' state, the first bytes of the packet,
//! and the time. It sends nothing and changes no packet; whoever calls it carries the verdict out.
//!
//! It comes in two halves, so that a burst's table lines can be on their way to the cache while the rest of the burst is
//! read: [`classify`] finds the session, [`decide`] applies its rules.

use std::net::IpAddr;

use gtpu::{MessageType, ParseError};

use crate::drops::DropReason;
use crate::ip::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, IpError, Packet, UDP};
use crate::policer::Policers;
use crate::side::PortId;
use crate::tables::{Action, Bucket, Hop, Outer, Rule, Version};
use crate::tunnel::Tunnel;

/// Bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
const ICMPV6: u8 = 58;
const UDP_LEN: usize = 8;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'t> {
    /// Discard it.
    Drop(DropReason),
    /// Send it.
    Forward(Forward<'t>),
    /// Send it once the Ethernet address of this neighbour of its port is known.
    Resolve(Forward<'t>, IpAddr),
    /// Give it to the slow path.
    Punt(Punt),
}

/// How to send a packet.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'t> {
    /// The port to send it to.
    pub port: PortId,
    /// Bytes to take off the front of the frame.
    pub strip: u16,
    /// Bytes of the frame to keep behind them.
    pub keep: u16,
    /// What to put before these.
    pub prepend: Prepend<'t>,
}

/// Headers to put before a packet.
#[derive(Clone, Copy, Debug)]
pub struct Prepend<'t> {
    /// Destination and source; zero where the neighbour is not resolved.
    ethernet: &'t [u8; 12],
    ether_type: u16,
    tunnel: Option<&'t Tunnel>,
}

/// Why a packet goes to the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Punt {
    /// It is for the UPF itself, or for everyone on the link: ARP, neighbour discovery, ICMP.
    Host,
    /// A GTP-U message about paths and tunnels.
    Gtpu,
    /// A G-PDU for a tunnel that is not there, which its sender is to be told.
    UnknownTeid,
    /// A G-PDU with an extension header that must be understood but is not, which its sender is to be told.
    UnknownExtension,
}

/// A packet whose session is found.
#[derive(Clone, Copy, Debug)]
pub enum Class<'t> {
    /// Discard it.
    Drop(DropReason),
    /// Give it to the slow path.
    Punt(Punt),
    /// A user's packet.
    User {
        /// The session's rules for its direction.
        rules: &'t [Rule],
        /// The bucket of the worker that owns the session.
        home: Bucket,
        /// Where in the frame the user's packet begins.
        at: u16,
        /// Length of what begins there.
        len: u16,
        /// The tunnel that it came by; none for downlink.
        outer: Option<Outer>,
    },
}

/// Finds the session of a frame of `len` bytes, of which `head` are the first.
#[inline]
pub fn classify<'t>(tables: &'t Version, from: PortId, head: &[u8], len: usize) -> Class<'t> {
    match classify_frame(tables, from, head, len) {
        Ok(class) => class,
        Err(reason) => Class::Drop(reason),
    }
}

#[inline]
fn classify_frame<'t>(tables: &'t Version, from: PortId, head: &[u8], len: usize) -> Result<Class<'t>, DropReason> {
    let Some((ethernet, packet)) = head.split_first_chunk::<ETHERNET_LEN>() else {
        return Err(DropReason::IpMalformed);
    };
    let group = ethernet[0] & 1 != 0;
    if !group && ethernet[..6] != tables.side(from).mac {
        return Err(DropReason::WrongMac);
    }
    let ether_type = u16::from_be_bytes([ethernet[12], ethernet[13]]);
    match ether_type {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => {}
        ETHERTYPE_ARP => return Ok(Class::Punt(Punt::Host)),
        ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => return Err(DropReason::Vlan),
        _ => return Err(DropReason::EtherType),
    }
    let ip = Packet::parse(packet, len - ETHERNET_LEN).map_err(|_| DropReason::IpMalformed)?;
    if ip.ether_type() != ether_type {
        return Err(DropReason::IpMalformed);
    }
    if !ip.checksum_is_right() {
        return Err(DropReason::IpChecksum);
    }
    if group {
        return classify_group(&ip);
    }
    match from {
        PortId::N3 => classify_tunnelled(tables, &ip),
        PortId::N6 => classify_plain(tables, &ip),
    }
}

/// From N6: a packet for a UE, or for the UPF itself.
#[inline]
fn classify_plain<'t>(tables: &'t Version, ip: &Packet<'_>) -> Result<Class<'t>, DropReason> {
    let destination = ip.destination();
    let Some((rules, home)) = tables.by_ue(ip.is_v6(), destination) else {
        return match () {
            () if tables.side(PortId::N6).owns(ip.is_v6(), destination) => Ok(Class::Punt(Punt::Host)),
            () if ip.is_multicast() => Err(DropReason::Multicast),
            () => Err(DropReason::UnknownUe),
        };
    };
    Ok(Class::User { rules, home, at: ETHERNET_LEN as u16, len: ip.len() as u16, outer: None })
}

/// From N3: a packet in a tunnel, or for the UPF itself.
#[inline]
fn classify_tunnelled<'t>(tables: &'t Version, ip: &Packet<'_>) -> Result<Class<'t>, DropReason> {
    let local = ip.destination();
    if !tables.side(PortId::N3).owns(ip.is_v6(), local) {
        return Err(if ip.is_multicast() { DropReason::Multicast } else { DropReason::NotOurAddress });
    }
    if ip.is_fragment() {
        return Err(DropReason::OuterFragment);
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
    let header = match gtpu::parse(&udp[UDP_LEN..], udp_len - UDP_LEN) {
        Ok(header) => header,
        Err(ParseError::ExtensionRequired(_)) => return Ok(Class::Punt(Punt::UnknownExtension)),
        Err(error) => return Err(refused(error)),
    };
    match header.message_type {
        MessageType::GPDU => {}
        MessageType::ECHO_REQUEST | MessageType::ERROR_INDICATION => return Ok(Class::Punt(Punt::Gtpu)),
        MessageType::END_MARKER => return Err(DropReason::EndMarker),
        _ => return Err(DropReason::GtpuMessage),
    }
    let Some((rules, home)) = tables.by_teid(header.teid) else { return Ok(Class::Punt(Punt::UnknownTeid)) };
    Ok(Class::User {
        rules,
        home,
        at: (ETHERNET_LEN + header_len + UDP_LEN + header.header_len) as u16,
        len: header.payload_len as u16,
        outer: Some(Outer { v6: ip.is_v6(), local, qfi: header.pdu_session.map(|container| container.qfi) }),
    })
}

/// Frames for a group of stations: only neighbour discovery is of interest.
#[cold]
fn classify_group<'t>(ip: &Packet<'_>) -> Result<Class<'t>, DropReason> {
    let neighbour_discovery = ip.is_v6() && ip.is_multicast() && ip.next_header() == ICMPV6;
    if neighbour_discovery { Ok(Class::Punt(Punt::Host)) } else { Err(DropReason::Multicast) }
}

#[cold]
fn refused(error: ParseError) -> DropReason {
    match error {
        ParseError::Version => DropReason::GtpuVersion,
        ParseError::HeaderTooLong => DropReason::GtpuTooLong,
        ParseError::ExtensionRequired(_) => DropReason::GtpuExtension,
        ParseError::Truncated | ParseError::Length | ParseError::ExtensionLength | ParseError::PduSession => {
            DropReason::GtpuMalformed
        }
    }
}

/// Applies the session's rules to a user's packet. `head` are the same bytes as for [`classify`], `now` is in
/// nanoseconds and does not go back.
#[inline]
pub fn decide<'t>(
    tables: &'t Version,
    policers: &mut Policers,
    class: &Class<'t>,
    head: &[u8],
    now: u64,
) -> Verdict<'t> {
    let (rules, at, len, outer) = match *class {
        Class::User { rules, at, len, ref outer, .. } => (rules, at, len, outer),
        Class::Drop(reason) => return Verdict::Drop(reason),
        Class::Punt(punt) => return Verdict::Punt(punt),
    };
    let verdict = match outer {
        Some(outer) => decide_uplink(tables, policers, rules, outer, head, at, len, now),
        None => decide_downlink(tables, policers, rules, head, at, len, now),
    };
    verdict.unwrap_or_else(Verdict::Drop)
}

#[inline]
#[expect(clippy::too_many_arguments, reason = "the fields of a class, taken apart")]
fn decide_uplink<'t>(
    tables: &'t Version,
    policers: &mut Policers,
    rules: &'t [Rule],
    outer: &Outer,
    head: &[u8],
    at: u16,
    len: u16,
    now: u64,
) -> Result<Verdict<'t>, DropReason> {
    let inner = Packet::parse(&head[usize::from(at)..], len.into()).map_err(|error| match error {
        IpError::Version => DropReason::InnerNotIp,
        IpError::Malformed => DropReason::InnerMalformed,
        IpError::Beyond => DropReason::GtpuTooLong,
    })?;
    let rule = find_uplink(rules, &inner, outer)?;
    if !rule.removes(outer) {
        return Err(DropReason::HeaderRemoval);
    }
    enforce(policers, rule, inner.len(), now)?;
    match rule.action() {
        Action::Drop(reason) => Err(*reason),
        Action::Route => route(tables, &inner, at),
        Action::Tunnel(_) => Err(DropReason::UnsupportedPath),
    }
}

#[inline]
fn decide_downlink<'t>(
    tables: &'t Version,
    policers: &mut Policers,
    rules: &'t [Rule],
    head: &[u8],
    at: u16,
    len: u16,
    now: u64,
) -> Result<Verdict<'t>, DropReason> {
    let packet = Packet::parse(&head[usize::from(at)..], len.into()).map_err(|_| DropReason::IpMalformed)?;
    let rule = rules.iter().find(|rule| rule.match_downlink(&packet)).ok_or(DropReason::NoPdr)?;
    enforce(policers, rule, packet.len(), now)?;
    match rule.action() {
        Action::Drop(reason) => Err(*reason),
        Action::Tunnel(tunnel) => encapsulate(tables, &packet, tunnel),
        Action::Route => Err(DropReason::UnsupportedPath),
    }
}

/// The first rule that matches. If none does but for the source address, it is spoofed.
#[inline]
fn find_uplink<'t>(rules: &'t [Rule], inner: &Packet<'_>, outer: &Outer) -> Result<&'t Rule, DropReason> {
    let mut closest = DropReason::NoPdr;
    for rule in rules {
        match rule.match_uplink(inner, outer) {
            Ok(()) => return Ok(rule),
            Err(DropReason::SpoofedSource) => closest = DropReason::SpoofedSource,
            Err(_) => {}
        }
    }
    Err(closest)
}

/// Gates, then maximum bit rates.
#[inline]
fn enforce(policers: &mut Policers, rule: &Rule, len: usize, now: u64) -> Result<(), DropReason> {
    if !rule.is_open() {
        return Err(DropReason::GateClosed);
    }
    if !rule.meters().is_empty() && !policers.admit(rule.meters(), len, now) {
        return Err(DropReason::MbrExceeded);
    }
    Ok(())
}

/// Out of N6, towards the packet's destination.
#[inline]
fn route<'t>(tables: &'t Version, inner: &Packet<'_>, at: u16) -> Result<Verdict<'t>, DropReason> {
    let n6 = tables.side(PortId::N6);
    if inner.is_multicast() {
        return Err(DropReason::Multicast);
    }
    if inner.len() > n6.mtu {
        return Err(DropReason::TooLong);
    }
    let address = n6.next_hop(inner.is_v6(), inner.destination()).ok_or(DropReason::NoRoute)?;
    let hop = tables.neighbour(PortId::N6, address);
    let forward = |ethernet| Forward {
        port: PortId::N6,
        strip: at,
        keep: inner.len() as u16,
        prepend: Prepend { ethernet, ether_type: inner.ether_type(), tunnel: None },
    };
    Ok(towards(hop, address, forward))
}

/// Out of N3, in the tunnel.
#[inline]
fn encapsulate<'t>(tables: &'t Version, packet: &Packet<'_>, tunnel: &'t Tunnel) -> Result<Verdict<'t>, DropReason> {
    if packet.len() + tunnel.len() > tables.side(PortId::N3).mtu {
        return Err(DropReason::TooLong);
    }
    let hop = tables.hop(tunnel.hop());
    let forward = |ethernet| Forward {
        port: PortId::N3,
        strip: ETHERNET_LEN as u16,
        keep: packet.len() as u16,
        prepend: Prepend {
            ethernet,
            ether_type: if tunnel.is_v6() { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 },
            tunnel: Some(tunnel),
        },
    };
    Ok(towards(Some(hop), hop.address, forward))
}

#[inline]
fn towards<'t>(hop: Option<&'t Hop>, address: IpAddr, forward: impl Fn(&'t [u8; 12]) -> Forward<'t>) -> Verdict<'t> {
    match hop.and_then(|hop| hop.ethernet.as_ref()) {
        Some(ethernet) => Verdict::Forward(forward(ethernet)),
        None => Verdict::Resolve(forward(&[0; 12]), address),
    }
}

impl Prepend<'_> {
    /// Bytes that it takes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "there is always an Ethernet header")]
    pub fn len(&self) -> usize {
        ETHERNET_LEN + self.tunnel.map_or(0, Tunnel::len)
    }

    /// Writes the headers for a packet of `inner_len` bytes to `to`, which is as long as they are.
    #[inline]
    pub fn write(&self, inner_len: usize, to: &mut [u8]) {
        let (ethernet, outer) = to.split_at_mut(ETHERNET_LEN);
        ethernet[..12].copy_from_slice(self.ethernet);
        ethernet[12..].copy_from_slice(&self.ether_type.to_be_bytes());
        if let Some(tunnel) = self.tunnel {
            tunnel.write(inner_len, outer);
        }
    }

    /// The tunnel, if its outer header needs a UDP checksum.
    #[inline]
    pub fn checksummed(&self) -> Option<&Tunnel> {
        self.tunnel.filter(|tunnel| tunnel.is_v6())
    }
}
