//! Packets that get another address on their way into a data network, and those that come back.

use port::{PacketMut, PacketRef, Rest};

use super::letters::post;
use super::too_long::linear;
use super::{Fate, Hands, fate, whole};
use crate::drops::DropReason;
use crate::ip::{ETHERTYPE_IPV4, Packet};
use crate::mail::Letter;
use crate::nat::translation::Translation;
use crate::nat::translator::Admitted;
use crate::nat::{Incoming, held, outside};
use crate::packet::{Class, ETHERNET_LEN, Forward, Punt, Rare, Untranslated, Verdict};
use crate::packet::{classify, count, counted, forgo, neighbour, out_of, remark, uncount};
use crate::policer::give_back;
use crate::side::PortId;
use crate::tables::{Action, Rule, Version};

/// How a translated packet goes on.
enum Way<'t> {
    /// Out of the port.
    Out(Forward<'t>),
    /// In parts, out of the port.
    Cut(Forward<'t>),
    /// To another UE: what is for an address that UEs have outside comes in again at once (RFC 4787, REQ-9).
    Round(PortId),
}

/// A UE's packet with all that was found out about it.
struct Leaving<'t, 'c> {
    from: PortId,
    class: &'c Class,
    rule: Rule<'t>,
    port: PortId,
    /// Where the user's packet begins, and its octets.
    at: usize,
    len: usize,
}

impl Hands {
    /// A UE's packet into a data network with source NAT.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a packet with all that was found out about it")]
    pub(super) fn translate(
        &mut self,
        tables: &Version,
        from: PortId,
        class: &Class,
        user: Untranslated,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) -> Option<Fate> {
        let at = usize::from(user.at);
        let found = tables.rule(user.rule).and_then(|rule| {
            let (Action::Route(port) | Action::RouteMarked(port, _)) = rule.action(tables) else { return None };
            let inner = Packet::parse(&packet.head()[at..], user.len.into()).ok()?;
            Some((Leaving { from, class, rule, port, at, len: inner.len() }, inner))
        });
        let Some((leaving, inner)) = found else {
            self.drops.count(DropReason::InnerMalformed);
            return None;
        };
        let Leaving { rule, port, len, .. } = leaving;
        let up_seid = rule.origin(tables).up_seid;
        if !is_reached(tables, port, inner.source(), up_seid) {
            return self.refuse(tables, &leaving, &whole(packet, *behind), DropReason::NatNoBinding, now);
        }
        let way = match way(tables, &leaving, &inner) {
            Ok(Way::Out(forward)) if !forward.resolved && rule.copies(tables).len() == 0 => {
                self.trace(tables, &leaving, &whole(packet, *behind), Ok(forward), None, now);
                // It is not counted yet.
                let forward = Forward { counted: 0, ..forward };
                self.wait_for_neighbour(tables, from, class, forward, &whole(packet, *behind), now);
                return None;
            }
            Ok(way) => way,
            Err(reason) => return self.refuse(tables, &leaving, &whole(packet, *behind), reason, now),
        };
        let first_of = inner.is_first_fragment().then(|| held::Whole::of(&inner));
        let rest_of = (inner.is_fragment() && first_of.is_none()).then(|| held::Whole::of(&inner));
        let translation = match self.nat.outgoing(port, &inner, up_seid, now) {
            Ok(translation) => translation,
            Err(DropReason::NatFragment)
                if let Some(rest_of) = rest_of
                    && rule.copies(tables).len() == 0
                    && self.held.keep(rest_of, up_seid, from, &whole(packet, *behind), now) =>
            {
                // It is decided about anew once the first one has come.
                give_back(rule.meters(tables), len);
                return None;
            }
            Err(reason) => return self.refuse(tables, &leaving, &whole(packet, *behind), reason, now),
        };
        count(tables, &mut self.state, rule, rule.is_uplink(), len, now);
        let sent = match way {
            Way::Out(forward) | Way::Cut(forward) => Ok(forward),
            Way::Round(_) => Err(Rare::Punt(Punt::Host)),
        };
        self.trace(tables, &leaving, &whole(packet, *behind), sent, Some(translation), now);
        translation.apply(&mut packet.head_mut()[at..]);
        if let Some(first_of) = first_of {
            self.release(&first_of, now);
        }
        self.send_translated(tables, &leaving, way, packet, behind, now)
    }

    /// Fragments that have waited for the first one come again, behind it.
    fn release(&mut self, first_of: &held::Whole, now: u64) {
        while let Some((from, frame)) = self.held.take(first_of, now) {
            let outbox = self.workers.get_mut(usize::from(self.index)).and_then(Option::as_mut);
            let (letter, packet) = (Letter::Process(from), PacketRef::from_slice(&frame));
            if !outbox.is_some_and(|outbox| post(outbox, &mut self.is_crowded, letter, &packet)) {
                self.drops.count(DropReason::HandoverFull);
            }
        }
    }

    fn send_translated(
        &mut self,
        tables: &Version,
        leaving: &Leaving<'_, '_>,
        way: Way<'_>,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) -> Option<Fate> {
        match way {
            Way::Out(forward) if forward.resolved => {
                self.rewrite(&forward, packet, behind);
                return Some(fate(&forward));
            }
            Way::Out(forward) => self.leave_unresolved(tables, leaving.class, &forward, packet, behind, now),
            Way::Cut(forward) => {
                let next_hop = || neighbour(tables, &forward, &packet.head()[leaving.at..]);
                let unresolved = (!forward.resolved).then(next_hop);
                let (class, mtu) = (leaving.class, tables.side(leaving.port).mtu);
                self.cut(tables, class, &forward, unresolved, mtu, &whole(packet, *behind), now);
            }
            Way::Round(port) => self.turn_round(tables, leaving, port, &whole(packet, *behind)),
        }
        None
    }

    /// The packet comes in again, for the UE that has its destination's address and port outside.
    fn turn_round(&mut self, tables: &Version, leaving: &Leaving<'_, '_>, port: PortId, packet: &PacketRef<'_>) {
        let mac = tables.side(port).mac;
        let mut ethernet = [0; ETHERNET_LEN];
        ethernet[..6].copy_from_slice(&mac);
        ethernet[6..12].copy_from_slice(&mac);
        ethernet[12..].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        let &Leaving { at, len, .. } = leaving;
        let payload = &linear(packet, &mut self.scratch)[at..][..len];
        let packet = PacketRef { head: &ethernet, rest: Rest::from_slice(payload) };
        let outbox = self.workers.get_mut(usize::from(self.index)).and_then(Option::as_mut);
        if !outbox.is_some_and(|outbox| post(outbox, &mut self.is_crowded, Letter::Process(port), &packet)) {
            self.drops.count(DropReason::HandoverFull);
            uncount(tables, counted(tables, leaving.rule), len as u16);
        }
    }

    /// Whether the packet is for an address that UEs' packets have got. It was found to be for no UE.
    #[cold]
    pub(super) fn is_for_nat(&self, tables: &Version, from: PortId, rare: &Rare, head: &[u8]) -> bool {
        let side = tables.side(from);
        if !side.has_nat() || !matches!(rare, Rare::Drop(DropReason::UnknownUe) | Rare::Punt(Punt::Host)) {
            return false;
        }
        let packet = head.get(ETHERNET_LEN..).and_then(|bytes| Packet::<false>::parse(bytes, usize::MAX).ok());
        let is_v4 = head.get(12..ETHERNET_LEN) == Some(&ETHERTYPE_IPV4.to_be_bytes());
        is_v4 && packet.is_some_and(|packet| side.is_nat(false, packet.destination()))
    }

    /// A packet for an address that UEs' packets have got: for the UE that has its port, or for nobody, or for the UPF itself.
    #[cold]
    #[inline(never)]
    pub(super) fn admit(
        &mut self,
        tables: &Version,
        from: PortId,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) -> Option<Fate> {
        let len = packet.len() + behind.len();
        let Ok(user) = Packet::<false>::parse(&packet.head()[ETHERNET_LEN..], len - ETHERNET_LEN) else {
            self.drops.count(DropReason::IpMalformed);
            return None;
        };
        if user.is_fragment() {
            // It comes again with all others.
            self.punt(from, Punt::Fragment, &whole(packet, *behind), now);
            return None;
        }
        let destination = user.destination();
        match self.nat.incoming(from, &user, now) {
            Ok(Incoming::Admitted(admitted)) => {
                let before = admitted.translation.back(destination as u32, admitted.outside_port);
                return self.conclude_admitted(tables, from, &admitted, before, packet, behind, now);
            }
            Ok(Incoming::Elsewhere(worker)) => self.hand_over(worker as u8, from, &whole(packet, *behind)),
            Err(DropReason::NatNoBinding | DropReason::NatProtocol) if tables.side(from).owns(false, destination) => {
                self.punt(from, Punt::Host, &whole(packet, *behind), now);
            }
            Err(reason) => self.drops.count(reason),
        }
        None
    }

    /// A packet that is let in. `before` makes it again what came.
    #[expect(clippy::too_many_arguments, reason = "a packet with all that was found out about it")]
    fn conclude_admitted(
        &mut self,
        tables: &Version,
        from: PortId,
        admitted: &Admitted,
        before: Translation,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) -> Option<Fate> {
        admitted.translation.apply(&mut packet.head_mut()[ETHERNET_LEN..]);
        let class = classify(tables, from, packet.head(), packet.len() + behind.len());
        let up_seid = class.first_rule(tables).map(|rule| rule.origin(tables).up_seid);
        if up_seid != Some(admitted.up_seid) || self.owner(tables, &class) != self.index {
            self.drops.count(DropReason::NatNoBinding);
            return None;
        }
        self.before = Some(before);
        self.tracer.set_outside(Some(outside(before.address, before.port)));
        let fate = self.conclude_watched(tables, from, &class, packet, behind, now);
        self.tracer.set_outside(None);
        self.before = None;
        fate
    }

    /// The packet is not sent, because of `reason`.
    fn refuse(
        &mut self,
        tables: &Version,
        leaving: &Leaving<'_, '_>,
        packet: &PacketRef<'_>,
        reason: DropReason,
        now: u64,
    ) -> Option<Fate> {
        let &Leaving { from, class, .. } = leaving;
        self.trace(tables, leaving, packet, Err(Rare::Drop(reason)), None, now);
        // It is no matter of a quota, and so nothing else comes of it.
        let _ = forgo(tables, &mut self.state, class, packet.head, now, reason);
        match reason {
            DropReason::TooLong => self.relieve(tables, from, class, packet, now),
            _ => self.drops.count(reason),
        }
        None
    }

    fn trace(
        &mut self,
        tables: &Version,
        leaving: &Leaving<'_, '_>,
        packet: &PacketRef<'_>,
        verdict: Verdict<'_>,
        translation: Option<Translation>,
        now: u64,
    ) {
        if self.tracer.is_on() {
            self.tracer.set_outside(translation.map(|to| outside(to.address, to.port)));
            self.tracer.record(tables, leaving.from, leaving.class, packet, verdict, now);
            self.tracer.set_outside(None);
        }
    }

    /// Forgets bindings that are not needed any more.
    pub(super) fn sweep(&mut self, tables: &Version) {
        let now = self.now();
        let expired = self.held.expire(now);
        if expired > 0 {
            self.drops.add(DropReason::NatFragment, expired);
        }
        self.nat.sweep(now, |port, ue, up_seid| is_reached(tables, port, ue.into(), up_seid));
    }
}

/// Whether what comes for the address in the data network goes to the session. A binding would be for nothing otherwise.
fn is_reached(tables: &Version, port: PortId, ue: u128, up_seid: u64) -> bool {
    let rules = tables.by_ue(port, false, ue);
    rules.and_then(|rules| rules.first()).is_some_and(|rule| rule.origin(tables).up_seid == up_seid)
}

/// Where a packet goes that is not too long.
fn way<'t>(tables: &'t Version, leaving: &Leaving<'t, '_>, inner: &Packet<'_, false>) -> Result<Way<'t>, DropReason> {
    let &Leaving { rule, port, at, .. } = leaving;
    let side = tables.side(port);
    if side.is_nat(false, inner.destination()) {
        return Ok(Way::Round(port));
    }
    if inner.is_multicast() {
        return Err(DropReason::Multicast);
    }
    let is_long = inner.len() > side.mtu;
    if is_long && !inner.may_be_fragmented() {
        return Err(DropReason::TooLong);
    }
    let forward = out_of(tables, port, inner, at as u16, counted(tables, rule))?;
    let forward = match rule.action(tables) {
        Action::RouteMarked(_, marking) => remark(forward, marking),
        _ => forward,
    };
    Ok(if is_long { Way::Cut(forward) } else { Way::Out(forward) })
}
