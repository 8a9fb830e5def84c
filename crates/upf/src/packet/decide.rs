//! Applies a session's rules to a packet.

use super::aside::treat_aside;
use super::relayed::{Came, decide_extended, relay};
use super::{Arrival, Class, ETHERNET_LEN, Forward, Prepend, Punt, Rare, Verdict};
use crate::drops::DropReason;
use crate::ip::{self, IpError, Packet};
use crate::marking::Marking;
use crate::path::Tunnel;
use crate::side::{NextHop, PortId};
use crate::state::State;
use crate::tables::{Action, Key, Outer, Rule, Version};

/// Applies the session's rules to a user's packet. `head` are the same bytes as for [`super::classify`], `now` is in
/// nanoseconds and does not go back.
#[inline(always)]
pub fn decide<'t>(tables: &'t Version, state: &mut State, class: &Class, head: &[u8], now: u64) -> Verdict<'t> {
    let (list, arrival, at, len) = match *class {
        Class::User { list, arrival, at, len, .. } => (list, arrival, at, len),
        Class::Drop(reason) => return Err(Rare::Drop(reason)),
        Class::Punt(punt) => return Err(Rare::Punt(punt)),
    };
    let user = User { list, head, at, len };
    match (ip::is_v6(user.bytes()), arrival) {
        (Some(false), Arrival::Plain) => decide_plain::<false>(tables, state, &user, now),
        (Some(false), Arrival::Tunnelled { v6, flow }) => {
            decide_tunnelled::<false>(tables, state, &user, v6, flow, now)
        }
        (Some(true), Arrival::Plain) => decide_plain::<true>(tables, state, &user, now),
        (Some(true), Arrival::Tunnelled { v6, flow }) => decide_tunnelled::<true>(tables, state, &user, v6, flow, now),
        (Some(false), Arrival::Extended { v6 }) => decide_extended::<false>(tables, state, &user, v6, now),
        (Some(true), Arrival::Extended { v6 }) => decide_extended::<true>(tables, state, &user, v6, now),
        (_, Arrival::EndMarker { v6 }) => pass_on_end_marker(tables, list, head, v6),
        (None, _) if len > 0 && user.bytes().is_empty() => Err(Rare::Drop(DropReason::GtpuTooLong)),
        (None, _) => Err(Rare::Drop(DropReason::InnerNotIp)),
    }
}

/// The rule by which a packet is treated, if one matches. For those who want to know why it was.
#[cold]
pub fn matching<'t>(tables: &'t Version, class: &Class, head: &[u8]) -> Option<Rule<'t>> {
    let Class::User { list, arrival, at, len, .. } = *class else { return None };
    head.get(usize::from(at)..)?;
    let user = User { list, head, at, len };
    match ip::is_v6(user.bytes())? {
        false => matching_of::<false>(tables, &user, arrival),
        true => matching_of::<true>(tables, &user, arrival),
    }
}

fn matching_of<'t, const V6: bool>(tables: &'t Version, user: &User<'_>, arrival: Arrival) -> Option<Rule<'t>> {
    let packet = user.packet::<V6>().ok()?;
    match arrival {
        Arrival::Tunnelled { v6, .. } | Arrival::Extended { v6 } => {
            find_tunnelled(tables, user, &packet, v6, Came::of(arrival, user.head, user.at).flow).ok()
        }
        Arrival::Plain => find_plain(tables, user, &packet),
        Arrival::EndMarker { .. } => None,
    }
}

/// A user's packet, as far as it is at hand.
#[derive(Clone, Copy)]
pub(crate) struct User<'h> {
    pub(crate) list: u32,
    /// The first bytes of the frame, of which `at` are before the user's packet.
    pub(crate) head: &'h [u8],
    pub(crate) at: u16,
    pub(crate) len: u16,
}

impl<'h> User<'h> {
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &'h [u8] {
        &self.head[usize::from(self.at)..]
    }

    #[inline(always)]
    pub(crate) fn packet<const V6: bool>(&self) -> Result<Packet<'h, V6>, IpError> {
        Packet::parse(self.bytes(), self.len.into())
    }
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
    user: &User<'_>,
    v6: bool,
    flow: Option<u8>,
    now: u64,
) -> Verdict<'t> {
    let inner = tunnelled::<V6>(user)?;
    let rule = find_tunnelled(tables, user, &inner, v6, flow)?;
    treat_tunnelled(tables, state, rule, &inner, user.at, Came::plainly(flow), now)
}

/// The user's packet, which came in a tunnel.
#[inline(always)]
pub(super) fn tunnelled<'h, const V6: bool>(user: &User<'h>) -> Result<Packet<'h, V6>, DropReason> {
    user.packet::<V6>().map_err(|error| match error {
        IpError::Version => DropReason::InnerNotIp,
        IpError::Malformed => DropReason::InnerMalformed,
        IpError::Beyond => DropReason::GtpuTooLong,
    })
}

/// A packet that came by a tunnel so, and begins at `at`, by the rule that it has matched.
#[inline(always)]
pub(super) fn treat_tunnelled<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: Rule<'t>,
    inner: &Packet<'_, V6>,
    at: u16,
    came: Came<'_>,
    now: u64,
) -> Verdict<'t> {
    if !rule.removes_header() {
        return Err(unstripped(tables, state, rule, now));
    }
    if came.must_go_on && matches!(rule.action(tables), Action::Route(_) | Action::RouteMarked(..)) {
        return Err(Rare::Punt(Punt::UnknownExtension));
    }
    let (uplink, len) = (rule.is_uplink(), inner.len());
    enforce(tables, state, rule, uplink, len, now)?;
    if rule.is_aside() {
        return treat_aside::<V6>(tables, state, rule, inner.bytes(), len, at, came, now);
    }
    let counted = counted(tables, rule);
    let forward = match rule.action(tables) {
        Action::Route(port) => route(tables, port, inner, at, counted)?,
        Action::RouteMarked(port, marking) => remark(route(tables, port, inner, at, counted)?, marking),
        Action::Relay(way) => relay(tables, at, len, &way, came, counted)?,
        Action::Drop(reason) => return Err(Rare::Drop(reason)),
        Action::Tunnel(_) | Action::Buffer(_) => return Err(Rare::Drop(DropReason::UnsupportedPath)),
    };
    count(tables, state, rule, uplink, len, now);
    Ok(forward)
}

#[inline(always)]
fn decide_plain<'t, const V6: bool>(tables: &'t Version, state: &mut State, user: &User<'_>, now: u64) -> Verdict<'t> {
    let packet = user.packet::<V6>().map_err(|_| DropReason::IpMalformed)?;
    let rule = find_plain(tables, user, &packet).ok_or(DropReason::NoPdr)?;
    treat_plain(tables, state, rule, &packet, now)
}

/// What becomes of a packet that keeps its tunnel's header: it waits with it, or goes nowhere.
#[cold]
#[inline(never)]
fn unstripped(tables: &Version, state: &mut State, rule: Rule<'_>, now: u64) -> Rare {
    match rule.action(tables) {
        Action::Buffer(_) => wait(tables, state, rule, now),
        _ => Rare::Drop(DropReason::HeaderRemoval),
    }
}

/// A packet that waits counts when it is sent.
fn wait(tables: &Version, state: &mut State, rule: Rule<'_>, now: u64) -> Rare {
    if !rule.is_open() {
        return Rare::Drop(DropReason::GateClosed);
    }
    rule.usages(tables).note(now, &mut state.alarms);
    Rare::Buffer(rule.index(tables))
}

/// A packet from N6, by the rule that it has matched.
#[inline(always)]
pub(super) fn treat_plain<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: Rule<'t>,
    packet: &Packet<'_, V6>,
    now: u64,
) -> Verdict<'t> {
    let (at, len) = (ETHERNET_LEN as u16, packet.len());
    let Some(tunnel) = rule.tunnel() else {
        return treat_otherwise::<V6>(tables, state, rule, packet.bytes(), len, now);
    };
    enforce(tables, state, rule, false, len, now)?;
    if rule.is_aside() {
        return treat_aside::<V6>(tables, state, rule, packet.bytes(), len, at, Came::plainly(None), now);
    }
    let forward = encapsulate(tables, at, len, tunnel, counted(tables, rule))?;
    count(tables, state, rule, false, len, now);
    Ok(forward)
}

/// A packet from N6 that does not go into a tunnel.
#[cold]
#[inline(never)]
fn treat_otherwise<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: Rule<'t>,
    bytes: &[u8],
    len: usize,
    now: u64,
) -> Verdict<'t> {
    let reason = match rule.action(tables) {
        Action::Buffer(_) => return Err(wait(tables, state, rule, now)),
        Action::Drop(reason) => reason,
        Action::Tunnel(_) | Action::Route(_) | Action::RouteMarked(..) | Action::Relay(_) => {
            DropReason::UnsupportedPath
        }
    };
    enforce(tables, state, rule, false, len, now)?;
    if rule.is_aside() {
        return treat_aside::<V6>(tables, state, rule, bytes, len, ETHERNET_LEN as u16, Came::plainly(None), now);
    }
    Err(Rare::Drop(reason))
}

/// The first rule that matches. If none does but for the source address, it is spoofed.
#[inline(always)]
pub(crate) fn find_tunnelled<'t, const V6: bool>(
    tables: &'t Version,
    user: &User<'_>,
    inner: &Packet<'_, V6>,
    v6: bool,
    flow: Option<u8>,
) -> Result<Rule<'t>, DropReason> {
    let outer = outer(user.head, v6, flow);
    let mut next = tables.rules(user.list).first();
    let mut closest = DropReason::NoPdr;
    while let Some(rule) = next {
        if rule.is_filtered() {
            return find_tunnelled_by_key::<V6>(tables, rule, *user, v6, flow, closest);
        }
        match rule.match_tunnelled_but_filters(tables, inner, &outer) {
            Ok(()) => return Ok(rule),
            Err(DropReason::SpoofedSource) => closest = DropReason::SpoofedSource,
            Err(_) => {}
        }
        next = rule.next(tables);
    }
    Err(closest)
}

/// The same from `first` on, with what filters look at made once for all of them.
#[inline(never)]
fn find_tunnelled_by_key<'t, const V6: bool>(
    tables: &'t Version,
    first: Rule<'t>,
    user: User<'_>,
    v6: bool,
    flow: Option<u8>,
    mut closest: DropReason,
) -> Result<Rule<'t>, DropReason> {
    let inner = user.packet::<V6>().map_err(|_| DropReason::InnerMalformed)?;
    let outer = outer(user.head, v6, flow);
    let found = first.find_by_key(tables, &Key::of(&inner), |rule| {
        let matches = rule.match_tunnelled_but_filters(tables, &inner, &outer);
        if let Err(DropReason::SpoofedSource) = matches {
            closest = DropReason::SpoofedSource;
        }
        matches.is_ok()
    });
    found.ok_or(closest)
}

/// The first rule that matches a packet from N6.
#[inline(always)]
pub(crate) fn find_plain<'t, const V6: bool>(
    tables: &'t Version,
    user: &User<'_>,
    packet: &Packet<'_, V6>,
) -> Option<Rule<'t>> {
    let mut next = tables.rules(user.list).first();
    while let Some(rule) = next {
        if rule.is_filtered() {
            return find_plain_by_key::<V6>(tables, rule, *user);
        }
        if rule.match_plain_but_filters(tables, packet) {
            return Some(rule);
        }
        next = rule.next(tables);
    }
    None
}

/// The same from `first` on, with what filters look at made once for all of them.
#[inline(never)]
fn find_plain_by_key<'t, const V6: bool>(tables: &'t Version, first: Rule<'t>, user: User<'_>) -> Option<Rule<'t>> {
    let packet = user.packet::<V6>().ok()?;
    first.find_by_key(tables, &Key::of(&packet), |rule| rule.match_plain_but_filters(tables, &packet))
}

/// Gates, then quotas, then maximum bit rates.
#[inline(always)]
pub(super) fn enforce(
    tables: &Version,
    state: &mut State,
    rule: Rule<'_>,
    uplink: bool,
    len: usize,
    now: u64,
) -> Result<(), DropReason> {
    if !rule.is_open() {
        return Err(DropReason::GateClosed);
    }
    admit(tables, state, rule, uplink, len, now)
}

/// Quotas, then maximum bit rates.
#[inline(always)]
pub(super) fn admit(
    tables: &Version,
    state: &mut State,
    rule: Rule<'_>,
    uplink: bool,
    len: usize,
    now: u64,
) -> Result<(), DropReason> {
    if rule.is_counted() && !rule.usages(tables).admit(uplink, len, &mut state.alarms) {
        return Err(DropReason::QuotaExhausted);
    }
    if rule.admit(tables, len, now) { Ok(()) } else { Err(DropReason::MbrExceeded) }
}

/// Counts a packet that is to be sent.
#[inline(always)]
pub(crate) fn count(tables: &Version, state: &mut State, rule: Rule<'_>, uplink: bool, len: usize, now: u64) {
    if rule.is_counted() {
        rule.usages(tables).count(uplink, len, now, &mut state.alarms);
    }
}

/// As [`Forward`] has it.
#[inline(always)]
pub(crate) fn counted(tables: &Version, rule: Rule<'_>) -> u32 {
    if rule.is_counted() { rule.index(tables) } else { 0 }
}

/// Out of a port to a data network, towards the packet's destination.
#[inline(always)]
pub(super) fn route<'t, const V6: bool>(
    tables: &'t Version,
    port: PortId,
    inner: &Packet<'_, V6>,
    at: u16,
    counted: u32,
) -> Result<Forward<'t>, DropReason> {
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
    counted: u32,
) -> Result<Forward<'t>, DropReason> {
    let destination = inner.destination();
    let network = tables.network(port);
    let hop = match network.side.route(V6, destination).ok_or(DropReason::NoRoute)? {
        NextHop::Link => network.neighbour(V6, destination),
        NextHop::Gateway(number) => Some(network.gateway(number)),
    };
    let hop = hop.map(|index| tables.hop(index));
    Ok(out_by::<V6>(port, hop.and_then(|hop| hop.ethernet.as_ref()), at, inner.len() as u16, counted))
}

/// The same, `len` octets to the neighbour with these addresses, if they are known.
#[inline(always)]
pub(super) fn out_by<const V6: bool>(
    port: PortId,
    ethernet: Option<&[u8; 12]>,
    at: u16,
    len: u16,
    counted: u32,
) -> Forward<'_> {
    Forward {
        port,
        strip: at,
        keep: len,
        prepend: Prepend::Plain { ethernet: ethernet.unwrap_or(&UNRESOLVED), ether_type: Packet::<V6>::ETHER_TYPE },
        resolved: ethernet.is_some(),
        marking: Marking::default(),
        counted,
    }
}

/// Ethernet addresses of a frame whose next hop is not resolved.
static UNRESOLVED: [u8; 12] = [0; 12];

/// The same with another ToS or traffic class.
pub(crate) fn remark(forward: Forward<'_>, marking: Marking) -> Forward<'_> {
    Forward { marking, ..forward }
}

/// In the tunnel, out of its port. The user's packet begins at `at`.
#[inline(always)]
pub(super) fn encapsulate(
    tables: &Version,
    at: u16,
    len: usize,
    tunnel: Tunnel,
    counted: u32,
) -> Result<Forward<'_>, DropReason> {
    if len > usize::from(tables.path(tunnel.path).inner_max()) {
        return Err(DropReason::TooLong);
    }
    Ok(into_tunnel(tables, at, len, tunnel, counted))
}

/// The same for a packet that is short enough, or whose parts will be.
#[inline(always)]
pub(crate) fn into_tunnel(tables: &Version, at: u16, len: usize, tunnel: Tunnel, counted: u32) -> Forward<'_> {
    let Tunnel { path, teid, flow } = tunnel;
    let path = tables.path(path);
    Forward {
        port: path.port(),
        strip: at,
        keep: len as u16,
        prepend: Prepend::Tunnel { path, teid, flow },
        resolved: path.is_resolved(),
        marking: Marking::default(),
        counted,
    }
}

/// An end marker goes on in the tunnel that packets go on in: in its place among them.
#[cold]
fn pass_on_end_marker<'t>(tables: &'t Version, list: u32, head: &[u8], v6: bool) -> Verdict<'t> {
    let outer = outer(head, v6, None);
    let mut rules = tables.rules(list).iter();
    let rule = rules.find(|rule| rule.takes_end_markers(tables, &outer)).ok_or(DropReason::EndMarker)?;
    let Action::Relay(relay) = rule.action(tables) else { return Err(Rare::Drop(DropReason::EndMarker)) };
    let forward = encapsulate(tables, ETHERNET_LEN as u16, 0, relay.marker(), 0)?;
    // Where nothing was sent there is nothing to mark the end of.
    if forward.resolved { Ok(forward) } else { Err(Rare::Drop(DropReason::EndMarker)) }
}
