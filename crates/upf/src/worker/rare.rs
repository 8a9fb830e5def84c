//! What becomes of packets that are not sent, or not as they are, or not now; and of all while somebody watches.

use port::{PacketMut, PacketRef, Rest};

use super::{Fate, Hands, fate, fill_in_checksum, whole};
use crate::alarms::Alarm;
use crate::drops::DropReason;
use crate::mail::Letter;
use crate::packet::{Class, Duplicate, Forward, Rare, Relayed, Verdict, besides, decide, forgo, matching, neighbour};
use crate::policer::give_back;
use crate::side::PortId;
use crate::tables::Version;

impl Hands {
    /// As [`Hands::conclude`], with any packet. `behind` is the part of it that follows what `packet` holds.
    #[inline(never)]
    pub(super) fn conclude_any(
        &mut self,
        tables: &Version,
        from: PortId,
        class: &Class,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) -> Option<Fate> {
        if self.tracer.is_on() {
            return self.conclude_watched(tables, from, class, packet, behind, now);
        }
        match decide(tables, &mut self.state, class, packet.head(), now) {
            Ok(forward) if forward.resolved => {
                self.rewrite_any(class, &forward, packet, behind);
                self.leave_in_order(class, &forward, &whole(packet, *behind))
            }
            Ok(forward) => {
                self.wait_for_neighbour(tables, from, class, forward, &whole(packet, *behind), now);
                None
            }
            Err(rare) => self.conclude_rarely(tables, from, class, rare, packet, behind, now),
        }
    }

    /// The same while someone watches, or for a packet that came translated. By itself, so that otherwise no verdict need be in
    /// memory.
    #[cold]
    #[inline(never)]
    pub(super) fn conclude_watched(
        &mut self,
        tables: &Version,
        from: PortId,
        class: &Class,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) -> Option<Fate> {
        let mut verdict = decide(tables, &mut self.state, class, packet.head(), now);
        if let Err(Rare::Drop(reason)) = verdict {
            verdict = forgo(tables, &mut self.state, class, packet.head(), now, reason);
        }
        let is_told_later = match verdict {
            Err(Rare::Duplicate(_) | Rare::Translate(_)) => true,
            Err(rare) => self.is_for_nat(tables, from, &rare, packet.head()),
            Ok(_) => false,
        };
        if self.tracer.is_on() && !is_told_later {
            self.tracer.record(tables, from, class, &whole(packet, *behind), verdict, now);
        }
        self.carry_out(tables, from, class, verdict, packet, behind, now)
    }

    /// A packet that is not sent, or not as it is, or not now.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a packet with all that was found out about it")]
    pub(super) fn conclude_rarely(
        &mut self,
        tables: &Version,
        from: PortId,
        class: &Class,
        rare: Rare,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) -> Option<Fate> {
        let verdict = match rare {
            Rare::Drop(reason) => forgo(tables, &mut self.state, class, packet.head(), now, reason),
            rare => Err(rare),
        };
        self.carry_out(tables, from, class, verdict, packet, behind, now)
    }

    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a packet with all that was found out about it")]
    fn carry_out(
        &mut self,
        tables: &Version,
        from: PortId,
        class: &Class,
        verdict: Verdict<'_>,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) -> Option<Fate> {
        match verdict {
            Ok(forward) if forward.resolved => {
                self.rewrite_any(class, &forward, packet, behind);
                return self.leave_in_order(class, &forward, &whole(packet, *behind));
            }
            Ok(forward) => {
                self.wait_for_neighbour(tables, from, class, forward, &whole(packet, *behind), now);
            }
            Err(Rare::Translate(user)) => return self.translate(tables, from, class, user, packet, behind, now),
            Err(rare) if self.is_for_nat(tables, from, &rare, packet.head()) => {
                return self.admit(tables, from, packet, behind, now);
            }
            Err(Rare::Drop(DropReason::TooLong)) => self.relieve(tables, from, class, &whole(packet, *behind), now),
            Err(Rare::Drop(reason)) => self.drops.count(reason),
            Err(Rare::Buffer(rule)) => self.keep(tables, rule, from, class, &whole(packet, *behind), now),
            Err(Rare::Punt(punt)) => self.punt(from, punt, &whole(packet, *behind), now),
            Err(Rare::Duplicate(duplicate)) => {
                return self.carry_out_twice(tables, from, class, &duplicate, packet, behind, now);
            }
        }
        None
    }

    /// A packet of which copies are made.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a packet with all that was found out about it")]
    fn carry_out_twice(
        &mut self,
        tables: &Version,
        from: PortId,
        class: &Class,
        duplicate: &Duplicate,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) -> Option<Fate> {
        self.duplicate(tables, class, duplicate, &whole(packet, *behind), now);
        let verdict = besides(tables, &mut self.state, class, duplicate, packet.head(), now);
        if self.tracer.is_on() && !matches!(verdict, Err(Rare::Translate(_))) {
            self.tracer.record(tables, from, class, &whole(packet, *behind), verdict, now);
        }
        if let Ok(forward) = verdict
            && !forward.resolved
        {
            // Were it decided about again, it would be duplicated again.
            self.leave_unresolved(tables, class, &forward, packet, behind, now);
            return None;
        }
        self.carry_out(tables, from, class, verdict, packet, behind, now)
    }

    /// As [`Hands::rewrite`], of any packet.
    #[inline(always)]
    fn rewrite_any(&mut self, class: &Class, forward: &Forward<'_>, packet: &mut PacketMut<'_>, behind: &mut Rest<'_>) {
        match class.is_extended() {
            true => self.rewrite_extended(class, forward, packet, behind),
            false => self.rewrite(forward, packet, behind),
        }
    }

    /// The same, of a packet of whose GTP-U header some may go on.
    #[cold]
    #[inline(never)]
    fn rewrite_extended(
        &mut self,
        class: &Class,
        forward: &Forward<'_>,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
    ) {
        // Made before what it is made of is overwritten.
        let Some(relayed) = Relayed::of(class, forward, packet.head()) else {
            return self.rewrite(forward, packet, behind);
        };
        let (strip, keep) = (usize::from(forward.strip), usize::from(forward.keep));
        behind.truncate((strip + keep).saturating_sub(packet.len()));
        // They grow by what IPv6 is longer than IPv4, and a container, at most; for that there is headroom.
        if let Some(front) = packet.reshape(strip, keep, relayed.len()) {
            relayed.write(keep, front);
        }
        if let Some(path) = forward.prepend.checksummed()
            && !self.ipv6_zero_checksum
        {
            fill_in_checksum(path, packet, *behind, &mut self.scratch);
        }
    }

    /// A packet that is sent; but an end marker does not overtake fragments, which leave behind the burst.
    #[inline]
    fn leave_in_order(&mut self, class: &Class, forward: &Forward<'_>, packet: &PacketRef<'_>) -> Option<Fate> {
        let is_behind = !self.trailing.is_empty() && class.is_end_marker() && self.trailing.push(forward.port, packet);
        if is_behind { None } else { Some(fate(forward)) }
    }

    /// A packet that waits for its UE.
    #[cold]
    fn keep(&mut self, tables: &Version, rule: u32, from: PortId, class: &Class, packet: &PacketRef<'_>, now: u64) {
        let Some(rule) = tables.rule(rule) else { return };
        let Some(home) = class.home(tables) else { return };
        let waiting = rule.waiting(tables);
        let kept = self.state.buffers.keep(home, &waiting, from, packet, now);
        if kept.is_news && self.state.alarms.tell(Alarm::Data { up_seid: waiting.up_seid, pdr: waiting.pdr }) {
            self.state.buffers.told(home, &waiting);
        }
        if !kept.waits {
            self.drops.count(DropReason::BufferFull);
            rule.usages(tables).lose(class.octets(), &mut self.state.alarms);
        }
    }

    /// Whether a packet of the session may wait for a neighbour. What one session has used up others have still.
    #[cold]
    pub(super) fn may_wait(&mut self, tables: &Version, class: &Class, now: u64) -> bool {
        self.unresolved.allow(class.home(tables).unwrap_or_default(), now)
    }

    /// A packet whose next hop is not resolved comes again once it is, and counts then.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for_neighbour(
        &mut self,
        tables: &Version,
        from: PortId,
        class: &Class,
        forward: Forward<'_>,
        packet: &PacketRef<'_>,
        now: u64,
    ) {
        fate(&forward).uncount(tables);
        if let Some(rule) = matching(tables, class, packet.head) {
            give_back(rule.meters(tables), forward.keep.into());
        }
        if !self.may_wait(tables, class, now) {
            return self.drops.count(DropReason::NeighbourUnresolved);
        }
        let address = neighbour(tables, &forward, &packet.head[usize::from(forward.strip)..]);
        self.leave_to_slow_path(Letter::Await(from, forward.port, address), packet);
    }

    /// A packet whose next hop is not resolved: the slow path sends it once it is.
    #[cold]
    pub(super) fn leave_unresolved(
        &mut self,
        tables: &Version,
        class: &Class,
        forward: &Forward<'_>,
        packet: &mut PacketMut<'_>,
        behind: &mut Rest<'_>,
        now: u64,
    ) {
        if !self.may_wait(tables, class, now) {
            fate(forward).uncount(tables);
            return self.drops.count(DropReason::NeighbourUnresolved);
        }
        let address = neighbour(tables, forward, &packet.head()[usize::from(forward.strip)..]);
        self.rewrite_any(class, forward, packet, behind);
        if !self.leave_to_slow_path(Letter::Resolve(forward.port, address), &whole(packet, *behind)) {
            fate(forward).uncount(tables);
        }
    }
}
