//! The packet function: what becomes of a packet, from the tables, the session's state, the first bytes of the packet, and
//! the time. It sends nothing and changes no packet; whoever calls it carries the verdict out.
//!
//! It comes in two halves, so that a burst's table lines can be on their way to the cache while the rest of the burst is
//! read: [`classify`] finds the session, [`decide`] applies its rules.

use std::net::IpAddr;

use gtpu::{MessageType, ParseError};

use crate::buffers::Waiting;
use crate::drops::DropReason;
use crate::ip::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IpError, Packet, UDP};
use crate::marking::Marking;
use crate::side::{self, NextHop, PortId};
use crate::state::State;
use crate::tables::{Action, Aside, Bucket, Key, Network, Outer, Rule, Rules, Version};
use crate::tunnel::{Relay, Tunnel};
use crate::usage;

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
    /// Send it once the Ethernet address of this neighbour of its port is known; where none is named, of the user's packet's
    /// destination (see [`neighbour`]). By reference, as every verdict is as large as the largest.
    Resolve(Forward<'t>, Option<&'t IpAddr>),
    /// Keep it until there are other rules.
    Buffer(&'t Waiting, &'t Rule),
    /// Give it to the slow path.
    Punt(Punt),
    /// Send copies of it, and then do with it what [`besides`] says.
    Duplicate(Duplicate<'t>),
}

/// A user's packet of which copies are made.
#[derive(Clone, Copy, Debug)]
pub struct Duplicate<'t> {
    rule: &'t Rule,
    aside: &'t Aside,
    /// Where in the frame the user's packet begins.
    pub at: u16,
    /// Its length.
    pub len: u16,
    /// The QoS flow that it came in.
    flow: Option<u8>,
}

impl<'t> Duplicate<'t> {
    /// What becomes of each copy: sent, now or once its neighbour is resolved, or dropped.
    pub fn copies(&self, tables: &'t Version) -> impl Iterator<Item = Verdict<'t>> {
        let Self { aside, at, len, .. } = *self;
        let sent = move |tunnel| encapsulate(tables, at, len.into(), tunnel, None);
        aside
            .copies
            .iter()
            .map(move |copy| copy.as_ref().map_err(|&reason| reason).and_then(sent))
            .map(|verdict| verdict.unwrap_or_else(Verdict::Drop))
    }
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
    /// What few packets need besides.
    pub alteration: Option<Alteration>,
    /// The rule whose usage it was counted for, if it was.
    pub counted: Option<&'t Rule>,
}

impl Forward<'_> {
    /// Octets of the frame that is sent.
    pub fn frame_len(&self) -> u16 {
        self.keep + self.prepend.len() as u16
    }

    /// Takes a packet that `rule` has counted, and of which `octets` octets were the user's, back out of the counts, as it
    /// could not be sent.
    #[cold]
    pub fn uncount(rule: &Rule, octets: u16) {
        usage::uncount(rule.usages(), rule.is_uplink(), octets.into());
    }
}

/// Headers to put before a packet.
#[derive(Clone, Copy, Debug)]
pub struct Prepend<'t> {
    /// Destination and source; zero where the neighbour is not resolved.
    ethernet: &'t [u8; 12],
    ether_type: u16,
    tunnel: Option<&'t Tunnel>,
}

/// What is changed in a frame with new headers.
#[derive(Clone, Copy, Debug)]
pub enum Alteration {
    /// The QoS flow in the tunnel's PDU session container.
    Flow(u8),
    /// The ToS or traffic class of the user's packet.
    Marking(Marking),
}

impl Alteration {
    /// Alters a frame of which these are the first bytes, with `headers_len` bytes of new headers.
    #[cold]
    pub fn apply(self, headers_len: usize, frame: &mut [u8]) {
        match self {
            Self::Flow(flow) => Tunnel::set_flow(flow, &mut frame[..headers_len]),
            Self::Marking(marking) => marking.apply(&mut frame[headers_len..]),
        }
    }
}

/// Why a packet goes to the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Punt {
    /// It is for the UPF itself, or for everyone on the link: ARP, neighbour discovery, ICMP.
    Host,
    /// It is a part of a packet for the UPF.
    Fragment,
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
    /// An end marker in a tunnel that is there.
    EndMarker {
        /// The session's rules for the tunnel.
        rules: &'t [Rule],
        /// The bucket of the worker that owns the session.
        home: Bucket,
        /// Whether it came over IPv6.
        v6: bool,
    },
    /// A user's packet.
    User {
        /// The session's rules for its direction.
        rules: &'t [Rule],
        /// The bucket of the worker that owns the session.
        home: Bucket,
        /// How it came.
        arrival: Arrival,
        /// Where in the frame the user's packet begins.
        at: u16,
        /// Length of what begins there.
        len: u16,
    },
}

impl Class<'_> {
    /// Octets of the user's packet; zero if it is none.
    pub fn octets(&self) -> usize {
        match *self {
            Class::User { len, .. } => len.into(),
            Class::Drop(_) | Class::Punt(_) | Class::EndMarker { .. } => 0,
        }
    }
}

/// How a user's packet came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// From N6, plain.
    Plain,
    /// From N3, in a tunnel over this version of IP, in this QoS flow.
    Tunnelled {
        /// Whether over IPv6.
        v6: bool,
        /// QFI and RQI of the PDU session container, if there is one; see [`gtpu::PduSession::flow`].
        flow: Option<u8>,
    },
}

/// Finds the session of a frame of `len` bytes, of which `head` are the first.
#[inline(always)]
pub fn classify<'t>(tables: &'t Version, from: PortId, head: &[u8], len: usize) -> Class<'t> {
    let network = tables.network(from);
    match network.side.kind.has_tunnels() {
        true => classify_from::<true>(tables, network, head, len),
        false => classify_from::<false>(tables, network, head, len),
    }
}

/// The same for a network whose packets are in tunnels, or not.
#[inline(always)]
pub fn classify_from<'t, const TUNNELS: bool>(
    tables: &'t Version,
    from: &'t Network,
    head: &[u8],
    len: usize,
) -> Class<'t> {
    let Some((ethernet, packet)) = head.split_first_chunk::<ETHERNET_LEN>() else {
        return Class::Drop(DropReason::IpMalformed);
    };
    let &[m0, m1, m2, m3, m4, m5, .., t0, t1] = ethernet;
    let available = len - ETHERNET_LEN;
    let ours = [m0, m1, m2, m3, m4, m5] == from.side.mac;
    let class = match (ours, u16::from_be_bytes([t0, t1]), TUNNELS) {
        (true, ETHERTYPE_IPV4, true) => classify_tunnelled::<false>(tables, from, packet, available),
        (true, ETHERTYPE_IPV4, false) => classify_plain::<false>(from, packet, available),
        (true, ETHERTYPE_IPV6, true) => classify_tunnelled::<true>(tables, from, packet, available),
        (true, ETHERTYPE_IPV6, false) => classify_plain::<true>(from, packet, available),
        (_, ether_type, _) => classify_other(ours, ethernet[0] & 1 != 0, ether_type, packet, available),
    };
    class.unwrap_or_else(Class::Drop)
}

/// From N6: a packet for a UE, or for the UPF itself.
#[inline(always)]
fn classify_plain<'t, const V6: bool>(
    from: &'t Network,
    packet: &[u8],
    available: usize,
) -> Result<Class<'t>, DropReason> {
    let ip = sound::<V6>(packet, available)?;
    let destination = ip.destination();
    let Some(Rules { rules, home }) = from.ue(V6, destination) else {
        return match () {
            () if from.side.owns(V6, destination) => Ok(Class::Punt(Punt::Host)),
            () if ip.is_multicast() => Err(DropReason::Multicast),
            () => Err(DropReason::UnknownUe),
        };
    };
    let (at, len) = (ETHERNET_LEN as u16, ip.len() as u16);
    Ok(Class::User { rules, home: *home, arrival: Arrival::Plain, at, len })
}

/// From N3: a packet in a tunnel, or for the UPF itself.
#[inline(always)]
fn classify_tunnelled<'t, const V6: bool>(
    tables: &'t Version,
    from: &Network,
    packet: &[u8],
    available: usize,
) -> Result<Class<'t>, DropReason> {
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
    let header = match gtpu::parse(&udp[UDP_LEN..], udp_len - UDP_LEN) {
        Ok(header) => header,
        Err(error) => return refused(error),
    };
    if header.message_type != MessageType::GPDU {
        return signalling(tables, header.message_type, header.teid, V6);
    }
    let Some((rules, home)) = tables.by_teid(header.teid) else { return Ok(Class::Punt(Punt::UnknownTeid)) };
    let flow = header.pdu_session.map(|container| container.flow());
    Ok(Class::User {
        rules,
        home,
        arrival: Arrival::Tunnelled { v6: V6, flow },
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
fn classify_other<'t>(
    ours: bool,
    group: bool,
    ether_type: u16,
    packet: &[u8],
    available: usize,
) -> Result<Class<'t>, DropReason> {
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

#[cold]
fn signalling<'t>(
    tables: &'t Version,
    message_type: MessageType,
    teid: u32,
    v6: bool,
) -> Result<Class<'t>, DropReason> {
    match message_type {
        MessageType::ECHO_REQUEST | MessageType::ECHO_RESPONSE | MessageType::ERROR_INDICATION => {
            Ok(Class::Punt(Punt::Gtpu))
        }
        MessageType::END_MARKER => {
            let (rules, home) = tables.by_teid(teid).ok_or(DropReason::EndMarker)?;
            Ok(Class::EndMarker { rules, home, v6 })
        }
        _ => Err(DropReason::GtpuMessage),
    }
}

#[cold]
fn refused<'t>(error: ParseError) -> Result<Class<'t>, DropReason> {
    match error {
        ParseError::ExtensionRequired(_) => Ok(Class::Punt(Punt::UnknownExtension)),
        ParseError::Version => Err(DropReason::GtpuVersion),
        ParseError::HeaderTooLong => Err(DropReason::GtpuTooLong),
        ParseError::Truncated | ParseError::Length | ParseError::ExtensionLength | ParseError::PduSession => {
            Err(DropReason::GtpuMalformed)
        }
    }
}

/// Applies the session's rules to a user's packet. `head` are the same bytes as for [`classify`], `now` is in
/// nanoseconds and does not go back.
#[inline(always)]
pub fn decide<'t>(tables: &'t Version, state: &mut State, class: &Class<'t>, head: &[u8], now: u64) -> Verdict<'t> {
    let (rules, arrival, at, len) = match *class {
        Class::User { rules, arrival, at, len, .. } => (rules, arrival, at, len),
        Class::Drop(reason) => return Verdict::Drop(reason),
        Class::Punt(punt) => return Verdict::Punt(punt),
        Class::EndMarker { rules, v6, .. } => {
            return pass_on_end_marker(tables, rules, &outer(head, v6, None)).unwrap_or_else(Verdict::Drop);
        }
    };
    let user = User { rules, bytes: &head[usize::from(at)..], at, len };
    let verdict = match (ip::is_v6(user.bytes), arrival) {
        (Some(false), Arrival::Tunnelled { v6, flow }) => {
            decide_tunnelled::<false>(tables, state, &user, &outer(head, v6, flow), now)
        }
        (Some(false), Arrival::Plain) => decide_plain::<false>(tables, state, &user, now),
        (Some(true), Arrival::Tunnelled { v6, flow }) => {
            decide_tunnelled::<true>(tables, state, &user, &outer(head, v6, flow), now)
        }
        (Some(true), Arrival::Plain) => decide_plain::<true>(tables, state, &user, now),
        (None, _) if len > 0 && user.bytes.is_empty() => Err(DropReason::GtpuTooLong),
        (None, _) => Err(DropReason::InnerNotIp),
    };
    verdict.unwrap_or_else(|reason| forgo(tables, state, class, head, now, reason))
}

/// The rule by which a packet is treated, if one matches. For those who want to know why it was.
#[cold]
pub fn matching<'t>(class: &Class<'t>, head: &[u8]) -> Option<&'t Rule> {
    let Class::User { rules, arrival, at, len, .. } = *class else { return None };
    let user = User { rules, bytes: head.get(usize::from(at)..)?, at, len };
    match ip::is_v6(user.bytes)? {
        false => matching_of::<false>(&user, arrival, head),
        true => matching_of::<true>(&user, arrival, head),
    }
}

fn matching_of<'t, const V6: bool>(user: &User<'t, '_>, arrival: Arrival, head: &[u8]) -> Option<&'t Rule> {
    let packet = Packet::<V6>::parse(user.bytes, user.len.into()).ok()?;
    match arrival {
        Arrival::Tunnelled { v6, flow } => find_tunnelled(user.rules, &packet, &outer(head, v6, flow)).ok(),
        Arrival::Plain => find_plain(user.rules, &packet),
    }
}

/// A user's packet, as far as it is at hand.
pub(crate) struct User<'t, 'h> {
    pub(crate) rules: &'t [Rule],
    pub(crate) bytes: &'h [u8],
    pub(crate) at: u16,
    pub(crate) len: u16,
}

/// The tunnel that a packet came by. `head` was found to have these headers.
#[inline(always)]
pub(crate) fn outer(head: &[u8], v6: bool, flow: Option<u8>) -> Outer {
    let local = if v6 {
        head[ETHERNET_LEN + 24..].first_chunk().map_or(0, |bytes| u128::from_be_bytes(*bytes))
    } else {
        head[ETHERNET_LEN + 16..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes).into())
    };
    Outer { v6, local, flow }
}

#[inline(always)]
fn decide_tunnelled<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    user: &User<'t, '_>,
    outer: &Outer,
    now: u64,
) -> Result<Verdict<'t>, DropReason> {
    let inner = Packet::<V6>::parse(user.bytes, user.len.into()).map_err(|error| match error {
        IpError::Version => DropReason::InnerNotIp,
        IpError::Malformed => DropReason::InnerMalformed,
        IpError::Beyond => DropReason::GtpuTooLong,
    })?;
    let rule = find_tunnelled(user.rules, &inner, outer)?;
    treat_tunnelled(tables, state, rule, &inner, user.at, outer, now)
}

/// A packet that came by a tunnel, and begins at `at`, by the rule that it has matched.
#[inline(always)]
fn treat_tunnelled<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: &'t Rule,
    inner: &Packet<'_, V6>,
    at: u16,
    outer: &Outer,
    now: u64,
) -> Result<Verdict<'t>, DropReason> {
    if !rule.removes(outer) {
        return Err(DropReason::HeaderRemoval);
    }
    let uplink = rule.is_uplink();
    enforce(state, rule, uplink, inner.len(), now)?;
    let verdict = match rule.action() {
        Action::Route(port) => route(tables, *port, inner, at, counted(rule))?,
        Action::RouteMarked(port, marking) => remark(route(tables, *port, inner, at, counted(rule))?, *marking),
        Action::Relay(relay) => pass_on(tables, at, inner.len(), relay, outer.flow, counted(rule))?,
        Action::Drop(reason) => return Err(*reason),
        Action::Aside(aside) => return treat_aside(tables, state, rule, aside, inner, at, outer.flow, now),
        Action::Tunnel(_) | Action::Buffer(_) => return Err(DropReason::UnsupportedPath),
    };
    count(state, rule, uplink, inner.len(), now);
    Ok(verdict)
}

#[inline(always)]
fn decide_plain<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    user: &User<'t, '_>,
    now: u64,
) -> Result<Verdict<'t>, DropReason> {
    let packet = Packet::<V6>::parse(user.bytes, user.len.into()).map_err(|_| DropReason::IpMalformed)?;
    let rule = find_plain(user.rules, &packet).ok_or(DropReason::NoPdr)?;
    treat_plain(tables, state, rule, &packet, now)
}

/// A packet from N6, by the rule that it has matched.
#[inline(always)]
fn treat_plain<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: &'t Rule,
    packet: &Packet<'_, V6>,
    now: u64,
) -> Result<Verdict<'t>, DropReason> {
    if let Action::Buffer(waiting) = rule.action() {
        return wait(state, rule, waiting, now);
    }
    enforce(state, rule, false, packet.len(), now)?;
    let verdict = match rule.action() {
        Action::Tunnel(tunnel) => encapsulate(tables, ETHERNET_LEN as u16, packet.len(), tunnel, counted(rule))?,
        Action::Drop(reason) => return Err(*reason),
        Action::Aside(aside) => {
            return treat_aside(tables, state, rule, aside, packet, ETHERNET_LEN as u16, None, now);
        }
        Action::Route(_) | Action::RouteMarked(..) | Action::Relay(_) | Action::Buffer(_) => {
            return Err(DropReason::UnsupportedPath);
        }
    };
    count(state, rule, false, packet.len(), now);
    Ok(verdict)
}

/// A packet waits. It counts when it is sent.
#[cold]
fn wait<'t>(state: &mut State, rule: &'t Rule, waiting: &'t Waiting, now: u64) -> Result<Verdict<'t>, DropReason> {
    if !rule.is_open() {
        return Err(DropReason::GateClosed);
    }
    usage::note(rule.usages(), now, &mut state.alarms);
    Ok(Verdict::Buffer(waiting, rule))
}

/// A packet by a rule that has what few have. It has passed gates, quotas and bit rates.
#[cold]
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "a packet with all that was found out about it")]
fn treat_aside<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: &'t Rule,
    aside: &'t Aside,
    packet: &Packet<'_, V6>,
    at: u16,
    flow: Option<u8>,
    now: u64,
) -> Result<Verdict<'t>, DropReason> {
    let duplicate = Duplicate { rule, aside, at, len: packet.len() as u16, flow };
    if !aside.copies.is_empty() {
        return Ok(Verdict::Duplicate(duplicate));
    }
    act_besides(tables, state, &duplicate, packet, now)
}

/// What becomes of a packet of which there are copies. `head` are the same bytes as for [`decide`].
#[cold]
pub fn besides<'t>(
    tables: &'t Version,
    state: &mut State,
    duplicate: &Duplicate<'t>,
    head: &[u8],
    now: u64,
) -> Verdict<'t> {
    match ip::is_v6(&head[usize::from(duplicate.at)..]) {
        Some(false) => besides_for::<false>(tables, state, duplicate, head, now),
        Some(true) => besides_for::<true>(tables, state, duplicate, head, now),
        None => Verdict::Drop(DropReason::InnerNotIp),
    }
}

fn besides_for<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    duplicate: &Duplicate<'t>,
    head: &[u8],
    now: u64,
) -> Verdict<'t> {
    let Ok(packet) = Packet::<V6>::parse(&head[usize::from(duplicate.at)..], duplicate.len.into()) else {
        return Verdict::Drop(DropReason::InnerMalformed);
    };
    act_besides(tables, state, duplicate, &packet, now)
        .unwrap_or_else(|reason| Verdict::Drop(lose(state, duplicate.rule, packet.len(), now, reason)))
}

fn act_besides<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    duplicate: &Duplicate<'t>,
    packet: &Packet<'_, V6>,
    now: u64,
) -> Result<Verdict<'t>, DropReason> {
    let Duplicate { rule, aside, at, flow, .. } = *duplicate;
    let verdict = match &aside.action {
        Action::Route(port) => route(tables, *port, packet, at, counted(rule))?,
        Action::RouteMarked(port, marking) => remark(route(tables, *port, packet, at, counted(rule))?, *marking),
        Action::Relay(relay) => pass_on(tables, at, packet.len(), relay, flow, counted(rule))?,
        Action::Tunnel(tunnel) => encapsulate(tables, at, packet.len(), tunnel, counted(rule))?,
        Action::Drop(reason) => return Err(*reason),
        Action::Buffer(_) | Action::Aside(_) => return Err(DropReason::UnsupportedPath),
    };
    count(state, rule, rule.is_uplink(), packet.len(), now);
    Ok(verdict)
}

/// A packet is not sent, because of `reason`; or by another rule where a quota is used up. The rule that it has matched is
/// looked for again, and only where somebody counts: what is sent pays nothing.
#[cold]
#[inline(never)]
fn forgo<'t>(
    tables: &'t Version,
    state: &mut State,
    class: &Class<'t>,
    head: &[u8],
    now: u64,
    reason: DropReason,
) -> Verdict<'t> {
    let Class::User { rules, at, .. } = *class else { return Verdict::Drop(reason) };
    if rules.iter().all(|rule| rule.usages().is_empty()) {
        return Verdict::Drop(reason);
    }
    let Some(rule) = matching(class, head) else { return Verdict::Drop(reason) };
    match ip::is_v6(&head[usize::from(at)..]) {
        Some(true) => forgo_by::<true>(tables, state, rule, class, head, now, reason),
        _ => forgo_by::<false>(tables, state, rule, class, head, now, reason),
    }
    .unwrap_or_else(Verdict::Drop)
}

fn forgo_by<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: &'t Rule,
    class: &Class<'t>,
    head: &[u8],
    now: u64,
    reason: DropReason,
) -> Result<Verdict<'t>, DropReason> {
    let Class::User { arrival, at, len, .. } = *class else { return Err(reason) };
    let Ok(packet) = Packet::<V6>::parse(&head[usize::from(at)..], len.into()) else { return Err(reason) };
    let substitute = rule.substitute(packet.len()).filter(|_| reason == DropReason::QuotaExhausted);
    let Some(other) = substitute else { return Err(lose(state, rule, packet.len(), now, reason)) };
    let verdict = match arrival {
        Arrival::Tunnelled { v6, flow } => {
            treat_tunnelled(tables, state, other, &packet, at, &outer(head, v6, flow), now)
        }
        Arrival::Plain => treat_plain(tables, state, other, &packet, now),
    };
    // It is the rule's own quota that it did not fit, and the substitute does not count by that.
    verdict.map_err(|reason| lose(state, rule, packet.len(), now, reason))
}

/// A packet is dropped by what the rule says, unless it is too long and can be cut.
#[cold]
fn lose(state: &mut State, rule: &Rule, len: usize, now: u64, reason: DropReason) -> DropReason {
    usage::note(rule.usages(), now, &mut state.alarms);
    if !rule.is_uplink() && reason != DropReason::TooLong {
        usage::lose(rule.usages(), len, &mut state.alarms);
    }
    reason
}

/// The first rule that matches. If none does but for the source address, it is spoofed.
#[inline(always)]
pub(crate) fn find_tunnelled<'t, const V6: bool>(
    rules: &'t [Rule],
    inner: &Packet<'_, V6>,
    outer: &Outer,
) -> Result<&'t Rule, DropReason> {
    let mut closest = DropReason::NoPdr;
    for (at, rule) in rules.iter().enumerate() {
        if rule.is_filtered() {
            return find_tunnelled_by_key(&rules[at..], inner, outer, closest);
        }
        match rule.match_tunnelled_but_filters(inner, outer) {
            Ok(()) => return Ok(rule),
            Err(DropReason::SpoofedSource) => closest = DropReason::SpoofedSource,
            Err(_) => {}
        }
    }
    Err(closest)
}

/// The same, with what filters look at made once for all of them.
#[inline(never)]
fn find_tunnelled_by_key<'t, const V6: bool>(
    rules: &'t [Rule],
    inner: &Packet<'_, V6>,
    outer: &Outer,
    mut closest: DropReason,
) -> Result<&'t Rule, DropReason> {
    let key = Key::of(inner);
    for rule in rules.iter().filter(|rule| rule.filters_match(&key)) {
        match rule.match_tunnelled_but_filters(inner, outer) {
            Ok(()) => return Ok(rule),
            Err(DropReason::SpoofedSource) => closest = DropReason::SpoofedSource,
            Err(_) => {}
        }
    }
    Err(closest)
}

/// The first rule that matches a packet from N6.
#[inline(always)]
pub(crate) fn find_plain<'t, const V6: bool>(rules: &'t [Rule], packet: &Packet<'_, V6>) -> Option<&'t Rule> {
    for (at, rule) in rules.iter().enumerate() {
        if rule.is_filtered() {
            return find_plain_by_key(&rules[at..], packet);
        }
        if rule.match_plain_but_filters(packet) {
            return Some(rule);
        }
    }
    None
}

/// The same, with what filters look at made once for all of them.
#[inline(never)]
fn find_plain_by_key<'t, const V6: bool>(rules: &'t [Rule], packet: &Packet<'_, V6>) -> Option<&'t Rule> {
    let key = Key::of(packet);
    rules.iter().find(|rule| rule.filters_match(&key) && rule.match_plain_but_filters(packet))
}

/// Gates, then quotas, then maximum bit rates.
#[inline(always)]
fn enforce(state: &mut State, rule: &Rule, uplink: bool, len: usize, now: u64) -> Result<(), DropReason> {
    if !rule.is_open() {
        return Err(DropReason::GateClosed);
    }
    let usages = rule.usages();
    if !usages.is_empty() && !usage::admit(usages, uplink, len, &mut state.alarms) {
        return Err(DropReason::QuotaExhausted);
    }
    if !rule.meters().is_empty() && !state.policers.admit(rule.meters(), len, now) {
        return Err(DropReason::MbrExceeded);
    }
    Ok(())
}

/// Counts a packet that is to be sent.
#[inline(always)]
pub(crate) fn count(state: &mut State, rule: &Rule, uplink: bool, len: usize, now: u64) {
    if !rule.usages().is_empty() {
        usage::count(rule.usages(), uplink, len, now, &mut state.alarms);
    }
}

#[inline(always)]
pub(crate) fn counted(rule: &Rule) -> Option<&Rule> {
    if rule.usages().is_empty() { None } else { Some(rule) }
}

/// Out of a port to a data network, towards the packet's destination.
#[inline(always)]
fn route<'t, const V6: bool>(
    tables: &'t Version,
    port: PortId,
    inner: &Packet<'_, V6>,
    at: u16,
    counted: Option<&'t Rule>,
) -> Result<Verdict<'t>, DropReason> {
    if inner.is_multicast() {
        return Err(DropReason::Multicast);
    }
    if inner.len() > tables.side(port).mtu {
        return Err(DropReason::TooLong);
    }
    out_of(tables, port, inner, at, counted)
}

/// The same for a packet that is short enough, or whose parts will be.
#[inline(always)]
pub(crate) fn out_of<'t, const V6: bool>(
    tables: &'t Version,
    port: PortId,
    inner: &Packet<'_, V6>,
    at: u16,
    counted: Option<&'t Rule>,
) -> Result<Verdict<'t>, DropReason> {
    let destination = inner.destination();
    let network = tables.network(port);
    let hop = match network.side.route(V6, destination).ok_or(DropReason::NoRoute)? {
        NextHop::Link => network.neighbour(V6, destination),
        NextHop::Gateway(number) => Some(network.gateway(number)),
    };
    let hop = hop.map(|index| tables.hop(index));
    let forward = |ethernet| Forward {
        port,
        strip: at,
        keep: inner.len() as u16,
        prepend: Prepend { ethernet, ether_type: Packet::<V6>::ETHER_TYPE, tunnel: None },
        alteration: None,
        counted,
    };
    Ok(match hop.and_then(|hop| hop.ethernet.as_ref()) {
        Some(ethernet) => Verdict::Forward(forward(ethernet)),
        None => Verdict::Resolve(forward(&UNRESOLVED), hop.map(|hop| &hop.address)),
    })
}

/// The neighbour that [`Verdict::Resolve`] means. `user` begins with the headers of the user's packet, which were found sound.
#[cold]
pub fn neighbour(named: Option<&IpAddr>, user: &[u8]) -> IpAddr {
    let octets =
        |at: usize, len: usize| user[at..at + len].iter().fold(0, |bits, &octet| bits << 8 | u128::from(octet));
    match (named, ip::is_v6(user)) {
        (Some(&named), _) => named,
        (None, Some(true)) => side::address(true, octets(24, 16)),
        (None, _) => side::address(false, octets(16, 4)),
    }
}

/// Out of a port to a data network, with another ToS or traffic class.
#[cold]
pub(crate) fn remark<'t>(mut verdict: Verdict<'t>, marking: Marking) -> Verdict<'t> {
    if let Verdict::Forward(forward) | Verdict::Resolve(forward, _) = &mut verdict {
        forward.alteration = Some(Alteration::Marking(marking));
    }
    verdict
}

/// In the tunnel, out of its port. The user's packet begins at `at`.
#[inline(always)]
fn encapsulate<'t>(
    tables: &'t Version,
    at: u16,
    len: usize,
    tunnel: &'t Tunnel,
    counted: Option<&'t Rule>,
) -> Result<Verdict<'t>, DropReason> {
    if len > usize::from(tunnel.inner_max()) {
        return Err(DropReason::TooLong);
    }
    Ok(into_tunnel(tables, at, len, tunnel, counted))
}

/// The same for a packet that is short enough, or whose parts will be.
#[inline(always)]
pub(crate) fn into_tunnel<'t>(
    tables: &'t Version,
    at: u16,
    len: usize,
    tunnel: &'t Tunnel,
    counted: Option<&'t Rule>,
) -> Verdict<'t> {
    let hop = tables.hop(tunnel.hop());
    let ether_type = if tunnel.is_v6() { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    let forward = |ethernet| Forward {
        port: hop.port,
        strip: at,
        keep: len as u16,
        prepend: Prepend { ethernet, ether_type, tunnel: Some(tunnel) },
        alteration: None,
        counted,
    };
    match &hop.ethernet {
        Some(ethernet) => Verdict::Forward(forward(ethernet)),
        None => Verdict::Resolve(forward(&UNRESOLVED), Some(&hop.address)),
    }
}

/// From one tunnel into another. The user's packet begins at `at`, and came in this QoS flow.
#[inline(never)]
fn pass_on<'t>(
    tables: &'t Version,
    at: u16,
    len: usize,
    relay: &'t Relay,
    flow: Option<u8>,
    counted: Option<&'t Rule>,
) -> Result<Verdict<'t>, DropReason> {
    let (tunnel, flow) = relay.tunnel(flow);
    Ok(mark(encapsulate(tables, at, len, tunnel, counted)?, flow))
}

/// In this QoS flow, or in the tunnel's.
#[inline]
pub(crate) fn mark(mut verdict: Verdict<'_>, flow: Option<u8>) -> Verdict<'_> {
    if let Verdict::Forward(forward) | Verdict::Resolve(forward, _) = &mut verdict {
        forward.alteration = flow.map(Alteration::Flow);
    }
    verdict
}

/// An end marker goes on in the tunnel that packets go on in: in its place among them.
#[cold]
fn pass_on_end_marker<'t>(tables: &'t Version, rules: &'t [Rule], outer: &Outer) -> Result<Verdict<'t>, DropReason> {
    let rule = rules.iter().find(|rule| rule.takes_end_markers(outer)).ok_or(DropReason::EndMarker)?;
    let Action::Relay(relay) = rule.main_action() else { return Err(DropReason::EndMarker) };
    match encapsulate(tables, ETHERNET_LEN as u16, 0, relay.marker(), None)? {
        Verdict::Forward(forward) => Ok(Verdict::Forward(forward)),
        // Nothing was sent there, and so there is nothing to mark the end of.
        _ => Err(DropReason::EndMarker),
    }
}

/// The frame of an end marker, and the port to send it to; none while its neighbour is not resolved.
#[cold]
pub fn end_marker_frame(tables: &Version, marker: &Tunnel) -> Option<(PortId, Vec<u8>)> {
    let hop = tables.hop(marker.hop());
    let ether_type = if marker.is_v6() { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    let prepend = Prepend { ethernet: hop.ethernet.as_ref()?, ether_type, tunnel: Some(marker) };
    let mut frame = vec![0; prepend.len()];
    prepend.write(0, &mut frame);
    if let Some(tunnel) = prepend.checksummed() {
        let checksum = tunnel.udp6_checksum(&frame[ETHERNET_LEN..], &[]);
        frame[UDP6_CHECKSUM..UDP6_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    Some((hop.port, frame))
}

/// Where the UDP checksum is in a frame with IPv6.
pub const UDP6_CHECKSUM: usize = ETHERNET_LEN + 40 + 6;

/// Ethernet addresses of a frame whose next hop is not resolved.
static UNRESOLVED: [u8; 12] = [0; 12];

impl Prepend<'_> {
    /// Bytes that it takes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "there is always an Ethernet header")]
    pub fn len(&self) -> usize {
        ETHERNET_LEN + self.tunnel.map_or(0, Tunnel::len)
    }

    /// Writes the headers for a packet of `inner_len` bytes to `to`, which is as long as they are.
    #[inline(always)]
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
