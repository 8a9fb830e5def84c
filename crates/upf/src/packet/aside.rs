//! What few packets need: copies, rules in place of others, and accounts of what is not sent.

use super::decide::{count, counted, encapsulate, matching, remark, route, treat_plain, treat_tunnelled};
use super::relayed::{Came, relay};
use super::{Arrival, Class, Rare, Verdict};
use crate::drops::DropReason;
use crate::ip::{self, Packet};
use crate::state::State;
use crate::tables::{Action, Rule, Version};

/// A user's packet of which copies are made.
#[derive(Clone, Copy, Debug)]
pub struct Duplicate {
    /// The rule, see [`Version::rule`].
    rule: u32,
    /// The rule that the packet has matched, for which this one may stand in.
    matched: u32,
    /// Where in the frame the user's packet begins.
    pub at: u16,
    /// Its length.
    pub len: u16,
    /// The QoS flow that it came in.
    flow: Option<u8>,
}

/// A UE's packet over IPv4 into a data network with source NAT. It is not yet counted, and no route is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Untranslated {
    /// The rule, see [`Version::rule`].
    pub rule: u32,
    /// Where in the frame the user's packet begins.
    pub at: u16,
    /// Its length.
    pub len: u16,
}

impl Duplicate {
    /// What becomes of each copy: sent, now or once its neighbour is resolved, or dropped.
    pub fn copies<'t>(&self, tables: &'t Version) -> impl Iterator<Item = Verdict<'t>> + use<'t> {
        let Self { at, len, .. } = *self;
        let copies = tables.rule(self.rule).into_iter().flat_map(|rule| rule.copies(tables));
        copies.map(move |copy| Ok(encapsulate(tables, at, len.into(), copy?, 0)?))
    }
}

/// A packet by a rule that has what few have. It has passed gates, quotas and bit rates.
#[cold]
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "a packet with all that was found out about it")]
pub(super) fn treat_aside<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: Rule<'t>,
    bytes: &[u8],
    len: usize,
    at: u16,
    came: Came<'_>,
    now: u64,
) -> Verdict<'t> {
    let index = rule.index(tables);
    if rule.copies(tables).len() > 0 {
        return Err(Rare::Duplicate(Duplicate { rule: index, matched: index, at, len: len as u16, flow: came.flow }));
    }
    let packet = Packet::<V6>::parse(bytes, len).map_err(|_| DropReason::InnerMalformed)?;
    act(tables, state, rule, at, came, &packet, now)
}

/// What becomes of a packet of which there are copies. `head` are the same bytes as for [`super::decide`].
#[cold]
pub fn besides<'t>(
    tables: &'t Version,
    state: &mut State,
    class: &Class,
    duplicate: &Duplicate,
    head: &[u8],
    now: u64,
) -> Verdict<'t> {
    let came = Came::again(duplicate.flow, class.is_extended(), head, duplicate.at);
    match ip::is_v6(&head[usize::from(duplicate.at)..]) {
        Some(false) => besides_for::<false>(tables, state, duplicate, head, came, now),
        Some(true) => besides_for::<true>(tables, state, duplicate, head, came, now),
        None => Err(Rare::Drop(DropReason::InnerNotIp)),
    }
}

fn besides_for<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    duplicate: &Duplicate,
    head: &[u8],
    came: Came<'_>,
    now: u64,
) -> Verdict<'t> {
    let Ok(packet) = Packet::<V6>::parse(&head[usize::from(duplicate.at)..], duplicate.len.into()) else {
        return Err(Rare::Drop(DropReason::InnerMalformed));
    };
    let rules = tables.rule(duplicate.rule).zip(tables.rule(duplicate.matched));
    let Some((rule, matched)) = rules else { return Err(Rare::Drop(DropReason::NoPdr)) };
    let verdict = act(tables, state, rule, duplicate.at, came, &packet, now);
    verdict.map_err(|rare| lose(tables, state, matched, rule, packet.len(), now, rare))
}

/// What the rule says apart from copies.
fn act<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: Rule<'t>,
    at: u16,
    came: Came<'_>,
    packet: &Packet<'_, V6>,
    now: u64,
) -> Verdict<'t> {
    if !V6 && rule.is_translated(tables) {
        return Err(Rare::Translate(Untranslated { rule: rule.index(tables), at, len: packet.len() as u16 }));
    }
    let (len, counted) = (packet.len(), counted(tables, rule));
    let forward = match rule.action(tables) {
        Action::Route(port) => route(tables, port, packet, at, counted)?,
        Action::RouteMarked(port, marking) => remark(route(tables, port, packet, at, counted)?, marking),
        Action::Relay(way) => relay(tables, at, len, &way, came, counted)?,
        Action::Tunnel(tunnel) => encapsulate(tables, at, len, tunnel, counted)?,
        Action::Drop(reason) => return Err(Rare::Drop(reason)),
        Action::Buffer(_) => return Err(Rare::Drop(DropReason::UnsupportedPath)),
    };
    count(tables, state, rule, rule.is_uplink(), len, now);
    Ok(forward)
}

/// A packet is not sent, because of `reason`; or by another rule where a quota is used up. The rule that it has matched is
/// looked for again, and only where somebody counts: what is sent pays nothing.
#[cold]
#[inline(never)]
pub fn forgo<'t>(
    tables: &'t Version,
    state: &mut State,
    class: &Class,
    head: &[u8],
    now: u64,
    reason: DropReason,
) -> Verdict<'t> {
    let drop = Err(Rare::Drop(reason));
    let Class::User { list, at, .. } = *class else { return drop };
    if !tables.rules(list).iter().any(Rule::is_counted) {
        return drop;
    }
    let Some(rule) = matching(tables, class, head) else { return drop };
    match ip::is_v6(&head[usize::from(at)..]) {
        Some(true) => forgo_by::<true>(tables, state, rule, class, head, now, reason),
        _ => forgo_by::<false>(tables, state, rule, class, head, now, reason),
    }
}

fn forgo_by<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    rule: Rule<'t>,
    class: &Class,
    head: &[u8],
    now: u64,
    reason: DropReason,
) -> Verdict<'t> {
    let drop = Rare::Drop(reason);
    let Class::User { arrival, at, len, .. } = *class else { return Err(drop) };
    let Ok(packet) = Packet::<V6>::parse(&head[usize::from(at)..], len.into()) else { return Err(drop) };
    let substitute = rule.substitute(tables, packet.len()).filter(|_| reason == DropReason::QuotaExhausted);
    let verdict = match (substitute, arrival) {
        (Some(other), Arrival::Tunnelled { .. } | Arrival::Extended { .. }) => {
            treat_tunnelled(tables, state, other, &packet, at, Came::of(arrival, head, at), now)
        }
        (Some(other), Arrival::Plain) => treat_plain(tables, state, other, &packet, now),
        _ => Err(drop),
    };
    // It is the rule's own quota that it did not fit, and a substitute does not count by that.
    verdict.map_err(|rare| match rare {
        Rare::Duplicate(duplicate) => Rare::Duplicate(Duplicate { matched: rule.index(tables), ..duplicate }),
        rare => lose(tables, state, rule, substitute.unwrap_or(rule), packet.len(), now, rare),
    })
}

/// A packet that `rule` has matched is dropped by what `acting` says, unless it is too long and can be cut.
#[cold]
fn lose(
    tables: &Version,
    state: &mut State,
    rule: Rule<'_>,
    acting: Rule<'_>,
    len: usize,
    now: u64,
    rare: Rare,
) -> Rare {
    if let Rare::Drop(reason) = rare {
        rule.usages(tables).note(now, &mut state.alarms);
        if matches!(reason, DropReason::GateClosed | DropReason::MbrExceeded) {
            acting.usages(tables).count_before_qos(rule.is_uplink(), len, now, &mut state.alarms);
        }
        if !rule.is_uplink() && reason != DropReason::TooLong {
            rule.usages(tables).lose(len, &mut state.alarms);
        }
    }
    rare
}
