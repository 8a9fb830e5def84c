//! Rules of a session as workers use them: one direction's PDRs in order of precedence, each with all that follows from it.
//!
//! A rule is a cache line of a block ([`super::blocks`]), with what nearly all packets need: what a packet over and with IPv4 is
//! matched with and held against, and where it goes out of a tunnel or into one. What few rules have lies further behind in the
//! block, so many lines behind the rule itself: of what else may become of packets, a second line. So rules lie close together: the
//! fewer pages they are in, the sooner the one of a packet is found. Whatever the words of a block are, reading them is sound, and
//! soon at an end, as numbers are read with 16 bits; what they mean is then up to them.

mod draft;
mod policing;
mod words;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pfcp::rule::BufferingDuration;
use port::CacheLevel;
use vport::tally::{LINE_BYTES, LINE_WORDS, Line};

pub(super) use self::draft::{AddressesV4, AddressesV6, Draft, Net};
pub(super) use self::policing::{Limit, Policing, SLOTS_MOST};
use self::words::*;
use super::filter::{self, Key};
use super::{Bucket, Version, blocks};
use crate::buffers::Waiting;
use crate::drops::DropReason;
use crate::ip::Packet;
use crate::marking::Marking;
use crate::path::{Relay, Tunnel};
use crate::policer::{Meter, admit_all};
use crate::side::PortId;
use crate::usage::{Gauges, Places, whole};

/// Rules with what they lie in.
#[derive(Clone, Copy)]
pub struct Rules<'t> {
    tables: &'t Version,
    first: u32,
}

/// A PDR with its QERs and its FAR.
#[derive(Clone, Copy)]
pub struct Rule<'t>(&'t Line);

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The UPF's SEID of the session.
    pub up_seid: u64,
    /// PDR ID.
    pub pdr: u16,
}

/// What becomes of a packet that passed gates and meters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Discard.
    Drop(DropReason),
    /// Route out of this port to a data network.
    Route(PortId),
    /// Mark, and route out of this port to a data network.
    RouteMarked(PortId, Marking),
    /// Put into the tunnel and send out of its port.
    Tunnel(Tunnel),
    /// Put from one tunnel into another, and send out of that one's port.
    Relay(Relay),
    /// Keep until there are other rules.
    Buffer(Waiting),
}

/// Where a packet came out of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Whether the outer packet is IPv6.
    pub v6: bool,
    /// The local address; IPv4 in the low 32 bits.
    pub local: u128,
    /// QFI, in the low six bits, and RQI of the PDU session container.
    pub flow: Option<u8>,
}

/// What a rule that is treated the short way has.
const USUAL: u64 = flag::OPEN | flag::HAS_UE_V4;
/// What it has not, and its kind.
const UNUSUAL: u64 = flag::ASIDE | flag::FILTERED | (kind::MASK as u64) << 8;

/// Of the line in which a block begins: the UPF's SEID of the session.
const UP_SEID: usize = blocks::RECORD;

/// The block of the list of rules at this line, by what the list says.
pub(super) fn block(lines: &[Line], list: u32) -> Option<u32> {
    let rule = Rule(lines.get(list as usize)?);
    list.checked_sub(rule.quarter(quarter::BLOCK) as u32)
}

impl<'t> Rules<'t> {
    /// The list that begins at this line.
    #[inline(always)]
    pub(super) fn new(tables: &'t Version, first: u32) -> Self {
        Self { tables, first }
    }

    /// By which [`Version::rules`] finds them again.
    #[inline(always)]
    pub fn list(&self) -> u32 {
        self.first
    }

    /// The bucket whose worker owns the session.
    #[inline(always)]
    pub fn home(&self) -> Bucket {
        self.tables.lines().get(self.first as usize).map_or(0, |line| (line[BRIEF].load(Relaxed) >> 24) as u8)
    }

    /// The first rule.
    #[inline(always)]
    pub fn first(&self) -> Option<Rule<'t>> {
        Rule::at(self.tables, self.first)
    }

    /// Asks for the first rule.
    #[inline(always)]
    pub(crate) fn ask(&self, level: CacheLevel) {
        self.tables.ask_line(self.first, level);
    }

    /// Asks for what the first rule points to: what it is held against, and what counts by it. Waits for the rule.
    #[inline(always)]
    pub(crate) fn ask_behind(&self, level: CacheLevel) {
        let Some(rule) = self.first().filter(|rule| rule.has(flag::BEHIND)) else { return };
        let second = rule.quarter(quarter::SECOND);
        if second != 0 {
            self.tables.ask_line(self.first.wrapping_add(second as u32), level);
        }
        if rule.quarter(quarter::POLICING) == policed::SLOTS {
            // Where there are several, they mostly lie together.
            let slot = rule.word(POLICERS).trailing_zeros() as usize;
            self.tables.ask_line(rule.body(self.tables).wrapping_add(slot / 2) as u32, level);
        }
        if rule.is_counted() {
            // Where it is several that count, in vain.
            self.tables.counters().ask(rule.word(USAGES) as u32, level);
        }
    }

    /// All rules, in order of precedence.
    pub fn iter(&self) -> impl Iterator<Item = Rule<'t>> + use<'t> {
        let tables = self.tables;
        std::iter::successors(self.first(), move |rule| rule.next(tables))
    }
}

impl<'t> Rule<'t> {
    /// The rule that begins at this line.
    #[inline(always)]
    pub(super) fn at(tables: &'t Version, at: u32) -> Option<Self> {
        tables.lines().get(at as usize).map(Self)
    }

    /// By which [`Version::rule`] finds it again. Never 0.
    #[inline(always)]
    pub fn index(self, tables: &Version) -> u32 {
        let bytes = std::ptr::from_ref(self.0).addr().wrapping_sub(tables.lines().as_ptr().addr());
        (bytes / LINE_BYTES) as u32
    }

    /// The next one in its list.
    #[inline(always)]
    pub fn next(self, tables: &'t Version) -> Option<Self> {
        if self.left() <= 1 {
            return None;
        }
        Self::at(tables, self.index(tables).checked_add(1)?)
    }

    #[inline(always)]
    fn word(self, word: usize) -> u64 {
        self.0[word].load(Relaxed)
    }

    /// One of the quarters of what lies behind.
    #[inline(always)]
    fn quarter(self, quarter: usize) -> usize {
        (self.word(BEHIND) >> (16 * quarter)) as u16 as usize
    }

    /// A word of the second line.
    #[inline(always)]
    fn second_word(self, tables: &Version, word: usize) -> u64 {
        match self.quarter(quarter::SECOND) {
            0 => 0,
            second => self.behind(tables, second, LINE_WORDS).get(word).map_or(0, |word| word.load(Relaxed)),
        }
    }

    #[inline(always)]
    fn brief(self) -> u64 {
        self.word(BRIEF)
    }

    /// So many rules are there in its list, from this one on.
    #[inline(always)]
    fn left(self) -> u16 {
        (self.brief() >> 32) as u16
    }

    #[inline(always)]
    fn has(self, flag: u64) -> bool {
        self.brief() & flag != 0
    }

    /// Words so many lines behind the rule; none if they are not all there.
    #[inline]
    fn behind(self, tables: &Version, lines: usize, count: usize) -> &[AtomicU64] {
        let from = tables.lines().get(self.index(tables) as usize + lines..).unwrap_or_default();
        from.as_flattened().get(..count).unwrap_or_default()
    }

    /// Whether it is the first of its list with filters; from there on go by [`Rule::find_by_key`].
    #[inline(always)]
    pub fn is_filtered(self) -> bool {
        self.has(flag::FILTERED)
    }

    /// Tries the rules of its list, from this one on, whose filters match: the first for which `is_it`.
    #[inline(always)]
    pub(crate) fn find_by_key<const V6: bool>(
        self,
        tables: &'t Version,
        key: &Key<V6>,
        mut is_it: impl FnMut(Self) -> bool,
    ) -> Option<Self> {
        let (lines, own, filters) = (tables.lines(), self.index(tables) as usize, self.second_word(tables, FILTERS));
        let (first, count) = (own + filters as u32 as usize, usize::from((filters >> 32) as u16));
        let rule = |at: usize| lines.get(at).map(Self);
        filter::find(lines, first, count, key, |at| rule(at).is_some_and(&mut is_it)).and_then(rule)
    }

    /// Whether the rule is for this packet that came by a tunnel, if its filters match.
    ///
    /// `Err` says how close it came: [`DropReason::SpoofedSource`] if only the source address is not the UE's.
    #[inline(always)]
    pub fn match_tunnelled_but_filters<const V6: bool>(
        self,
        tables: &Version,
        inner: &Packet<'_, V6>,
        outer: &Outer,
    ) -> Result<(), DropReason> {
        if !self.is_local(tables, outer) || !self.flow_matches(tables, outer.flow) {
            return Err(DropReason::NoPdr);
        }
        let uplink = self.is_uplink();
        let user = if uplink { inner.source() } else { inner.destination() };
        match self.is_ue::<V6>(tables, user) {
            true => Ok(()),
            false if uplink => Err(DropReason::SpoofedSource),
            false => Err(DropReason::NoPdr),
        }
    }

    /// Whether the rule is for this packet from N6, if its filters match.
    #[inline(always)]
    pub fn match_plain_but_filters<const V6: bool>(self, tables: &Version, packet: &Packet<'_, V6>) -> bool {
        self.is_ue::<V6>(tables, packet.destination())
    }

    /// Whether the PDR takes off the outer header.
    #[inline(always)]
    pub fn removes_header(self) -> bool {
        self.has(flag::REMOVES_HEADER)
    }

    /// The port to a data network that an open rule without more to it routes a packet to, which came from the UE with the
    /// address `source` to `local` in a tunnel over IPv4, in this QoS flow. None where the rule is another one.
    #[inline(always)]
    pub(crate) fn usual_uplink(self, local: u32, source: u32, flow: Option<u8>) -> Option<PortId> {
        const ALL: u64 = USUAL | flag::UPLINK | flag::REMOVES_HEADER | flag::HAS_LOCAL_V4 | (kind::ROUTE as u64) << 8;
        let brief = self.brief();
        let is_it = brief & (UNUSUAL | ALL) == ALL
            && self.word(V4) == whole(local, source)
            && matches(self.word(QFIS_OR_TUNNEL), flow);
        is_it.then(|| PortId::new((brief >> 16) as usize % PortId::MAX))
    }

    /// The tunnel that an open rule without more to it puts a packet into, which came plain to the UE with the address
    /// `destination`. None where the rule is another one.
    #[inline(always)]
    pub(crate) fn usual_downlink(self, destination: u32) -> Option<Tunnel> {
        const ALL: u64 = USUAL | (kind::TUNNEL as u64) << 8;
        let is_it = self.brief() & (UNUSUAL | ALL) == ALL && (self.word(V4) >> 32) as u32 == destination;
        is_it.then(|| self.to_tunnel())
    }

    /// Where it comes from.
    pub fn origin(self, tables: &Version) -> Origin {
        Origin { up_seid: self.up_seid(tables).load(Relaxed), pdr: (self.brief() >> 48) as u16 }
    }

    #[inline(always)]
    fn up_seid(self, tables: &Version) -> &AtomicU64 {
        static NONE: AtomicU64 = AtomicU64::new(0);
        tables.lines().get(self.block(tables)).map_or(&NONE, |line| &line[UP_SEID])
    }

    /// The line where the block begins in which it lies.
    #[inline(always)]
    fn block(self, tables: &Version) -> usize {
        (self.index(tables) as usize).wrapping_sub(self.quarter(quarter::BLOCK))
    }

    /// The line where the block's body begins.
    #[inline(always)]
    fn body(self, tables: &Version) -> usize {
        self.block(tables).wrapping_add(blocks::BEFORE_BODY)
    }

    /// Whether packets come from the UE.
    #[inline(always)]
    pub fn is_uplink(self) -> bool {
        self.has(flag::UPLINK)
    }

    /// Whether an end marker that came by a tunnel there is one for this rule.
    pub fn takes_end_markers(self, tables: &Version, outer: &Outer) -> bool {
        self.is_local(tables, outer) && matches!(self.action(tables), Action::Relay(_))
    }

    /// Whether the gates are open.
    #[inline(always)]
    pub fn is_open(self) -> bool {
        self.has(flag::OPEN)
    }

    /// Whether a packet of `len` bytes conforms to all maximum bit rates that it counts towards, at time `now` (nanoseconds). If so
    /// it is charged to them.
    #[inline(always)]
    pub fn admit(self, tables: &Version, len: usize, now: u64) -> bool {
        match self.quarter(quarter::POLICING) {
            policed::NONE => true,
            policed::OWN => self.meter(tables).admit(len, now),
            _ => self.admit_by_slots(tables, len, now),
        }
    }

    #[inline(never)]
    fn admit_by_slots(self, tables: &Version, len: usize, now: u64) -> bool {
        match self.slot_words() {
            [first, 0, 0] if first.is_power_of_two() => {
                self.slot_meter(tables, first.trailing_zeros() as usize).is_none_or(|meter| meter.admit(len, now))
            }
            _ => admit_all(self.meters(tables), len, now),
        }
    }

    /// The maximum bit rate that is this rule's alone.
    #[inline(always)]
    fn meter(self, tables: &'t Version) -> Meter<'t> {
        const { assert!(POLICERS + POLICERS_WORDS <= LINE_WORDS && slot::TOKENS + 2 == POLICERS_WORDS) };
        let tokens = self.0[POLICERS + slot::TOKENS..].first_chunk().expect("so many words are there");
        tables.policers().own(self.word(POLICERS), tokens)
    }

    /// Maximum bit rates that the packet counts towards.
    pub fn meters(self, tables: &'t Version) -> impl Iterator<Item = Meter<'t>> + Clone + use<'t> {
        let own = (self.quarter(quarter::POLICING) == policed::OWN).then(|| self.meter(tables));
        own.into_iter().chain(self.slots().filter_map(move |number| self.slot_meter(tables, number)))
    }

    /// A bit for each policer that is not in its line.
    #[inline(always)]
    fn slot_words(self) -> [u64; POLICERS_WORDS] {
        match self.quarter(quarter::POLICING) {
            policed::SLOTS => [0, 1, 2].map(|word: usize| self.word(POLICERS + word)),
            _ => [0; POLICERS_WORDS],
        }
    }

    /// The numbers of these.
    fn slots(self) -> impl Iterator<Item = usize> + Clone {
        let left = |word| std::iter::successors(Some(word), |left: &u64| Some(left & left.wrapping_sub(1)));
        let bits = move |word| left(word).take_while(|left| *left != 0).map(|left| left.trailing_zeros() as usize);
        self.slot_words().into_iter().enumerate().flat_map(move |(at, word)| bits(word).map(move |bit| 64 * at + bit))
    }

    /// Such a policer; none if it is nowhere.
    #[inline(always)]
    fn slot(self, tables: &'t Version, number: usize) -> Option<&'t [AtomicU64; slot::WORDS]> {
        tables.lines().get(self.body(tables).wrapping_add(number / 2))?.as_chunks().0.get(number % 2)
    }

    #[inline(always)]
    fn slot_meter(self, tables: &'t Version, number: usize) -> Option<Meter<'t>> {
        let slot = self.slot(tables, number)?;
        let (rate, shared) = (slot[slot::RATE].load(Relaxed), slot[slot::SHARED].load(Relaxed));
        match NonZeroU32::new((shared >> 32) as u32) {
            Some(generation) => tables.policers().shared(rate, shared as u32, generation),
            None => Some(tables.policers().own(rate, slot[slot::TOKENS..].first_chunk()?)),
        }
    }

    /// Whether its packets, and those of what stands in for it, are charged to tokens at words for which `is_own`, and to policers of
    /// which that says `is_shared` which their slots have.
    pub(super) fn is_policed_by(
        self,
        tables: &'t Version,
        is_own: impl Fn(usize) -> bool,
        is_shared: impl Fn(u64) -> bool,
    ) -> bool {
        let word = |word: &AtomicU64| {
            std::ptr::from_ref(word).addr().wrapping_sub(tables.lines().as_ptr().addr()) / size_of::<u64>()
        };
        [self].into_iter().chain(self.substitutes(tables)).all(|rule| {
            let is_in_line = rule.quarter(quarter::POLICING) == policed::OWN;
            let mut slots = rule.slots().filter_map(|number| rule.slot(tables, number));
            (!is_in_line || is_own(word(&rule.0[POLICERS + slot::TOKENS])))
                && slots.all(|slot| match slot[slot::SHARED].load(Relaxed) {
                    0 => is_own(word(&slot[slot::TOKENS])),
                    shared => is_shared(shared),
                })
        })
    }

    /// What counts the packets.
    #[inline(always)]
    pub fn usages(self, tables: &'t Version) -> Gauges<'t> {
        let word = self.word(USAGES);
        let (place, count) = (word as u32, usize::from((word >> 32) as u16));
        let places = match count {
            0 => Places::None,
            1 => Places::One(place),
            _ => Places::Many(self.behind(tables, place as usize, count.div_ceil(2)), count),
        };
        Gauges::new(tables.counters(), places, self.up_seid(tables))
    }

    /// Whether anything counts the packets.
    #[inline(always)]
    pub fn is_counted(self) -> bool {
        self.has(flag::COUNTED)
    }

    /// Whether there are copies of the packets, or substitutes of the rule, or packets are translated.
    #[inline(always)]
    pub fn is_aside(self) -> bool {
        self.has(flag::ASIDE)
    }

    /// Whether IPv4 packets get another address on their way into the data network.
    #[cold]
    pub fn is_translated(self, tables: &Version) -> bool {
        self.second_word(tables, MANNER) >> 56 & 1 != 0
    }

    /// Tunnels that copies of the packets are put into, or why they are dropped.
    #[cold]
    pub fn copies(self, tables: &'t Version) -> impl ExactSizeIterator<Item = Result<Tunnel, DropReason>> + use<'t> {
        let word = self.second_word(tables, COPIES);
        let words = self.behind(tables, word as u32 as usize, 2 * usize::from((word >> 32) as u16));
        words.chunks_exact(2).map(|words| {
            let (how, tunnel) = (words[0].load(Relaxed), words[1].load(Relaxed));
            match how & 1 {
                0 => Ok(Tunnel { path: tunnel as u32, teid: (tunnel >> 32) as u32, flow: (how >> 8) as u8 }),
                _ => Err(reason((how >> 8) as u8)),
            }
        })
    }

    /// The rule that stands in for this one where a packet of `octets` octets would go beyond a quota, if one does.
    #[cold]
    pub fn substitute(self, tables: &'t Version, octets: usize) -> Option<Self> {
        let mut substitutes = self.substitutes(tables).peekable();
        substitutes.peek()?;
        let refusing = self.usages(tables).refusing(self.is_uplink(), octets)? as u64;
        substitutes.find(|rule| rule.second_word(tables, STANDS_FOR) == refusing)
    }

    /// Rules that stand in for this one.
    fn substitutes(self, tables: &'t Version) -> impl Iterator<Item = Self> + use<'t> {
        let word = self.second_word(tables, SUBSTITUTES);
        let (behind, count) = (word as u32, (word >> 32) as u16);
        let number = move |number: u32| self.index(tables).checked_add(behind)?.checked_add(number);
        (0..u32::from(count)).filter_map(move |at| Self::at(tables, number(at)?))
    }

    /// The tunnel that packets are put into, if that is what the FAR does.
    #[inline(always)]
    pub fn tunnel(self) -> Option<Tunnel> {
        let is_it = (self.brief() >> 8) as u8 & kind::MASK == kind::TUNNEL;
        is_it.then(|| self.to_tunnel())
    }

    #[inline(always)]
    fn to_tunnel(self) -> Tunnel {
        let tunnel = self.word(QFIS_OR_TUNNEL);
        Tunnel { path: tunnel as u32, teid: (tunnel >> 32) as u32, flow: (self.brief() >> 16) as u8 & 0x7f }
    }

    /// What the FAR does.
    #[inline(always)]
    pub fn action(self, tables: &Version) -> Action {
        let brief = self.brief();
        let port = || PortId::new((brief >> 16) as usize % PortId::MAX);
        match (brief >> 8) as u8 & kind::MASK {
            kind::ROUTE => Action::Route(port()),
            kind::ROUTE_MARKED => Action::RouteMarked(port(), self.marking(tables)),
            kind::TUNNEL => self.tunnel().map_or(Action::Drop(DropReason::FarDrop), Action::Tunnel),
            kind::RELAY => Action::Relay(self.relay(tables)),
            kind::BUFFER => Action::Buffer(self.waiting(tables)),
            _ => Action::Drop(reason((brief >> 16) as u8 & 0x7f)),
        }
    }

    /// How packets wait, where they do.
    pub fn waiting(self, tables: &Version) -> Waiting {
        let (Origin { up_seid, pdr }, manner) = (self.origin(tables), self.second_word(tables, MANNER));
        let duration = BufferingDuration(self.second_word(tables, OTHER_PATHS) as u8);
        Waiting { up_seid, pdr, max_packets: (manner >> 32) as u16, notify: manner >> 48 & 1 != 0, duration }
    }

    #[inline(never)]
    fn marking(self, tables: &Version) -> Marking {
        let manner = self.second_word(tables, MANNER);
        Marking { tos: (manner >> 16) as u8, mask: (manner >> 24) as u8 }
    }

    #[inline(never)]
    fn relay(self, tables: &Version) -> Relay {
        let [tunnel, other, manner] =
            [RELAY_OR_QFIS, OTHER_PATHS, MANNER].map(|word: usize| self.second_word(tables, word));
        let direction = self.brief() >> 16;
        Relay {
            bare: other as u32,
            marked: tunnel as u32,
            marker: (other >> 32) as u32,
            teid: (tunnel >> 32) as u32,
            flow: (manner >> 8 & 1 != 0).then_some(manner as u8),
            downlink: direction & 1 != 0,
        }
    }

    #[inline(always)]
    fn flow_matches(self, tables: &Version, flow: Option<u8>) -> bool {
        let is_tunnel = (self.brief() >> 8) as u8 & kind::MASK == kind::TUNNEL;
        matches(if is_tunnel { self.second_word(tables, RELAY_OR_QFIS) } else { self.word(QFIS_OR_TUNNEL) }, flow)
    }

    #[inline(always)]
    fn is_ue<const V6: bool>(self, tables: &Version, bits: u128) -> bool {
        if self.has(flag::ANY_UE) {
            return true;
        }
        let is_own = !V6 && self.has(flag::HAS_UE_V4) && (self.word(V4) >> 32) as u32 == bits as u32;
        is_own || self.is_more_ue(tables, V6, bits)
    }

    #[inline(never)]
    fn is_more_ue(self, tables: &Version, v6: bool, bits: u128) -> bool {
        let Some((head, framed)) = self.addresses(tables) else { return false };
        let is_own = v6 && head[0] & 1 != 0 && bits & wide(head[4], head[5]) == wide(head[2], head[3]);
        is_own
            || framed.chunks_exact(5).any(|words| {
                let words: [u64; 5] = std::array::from_fn(|word| words[word].load(Relaxed));
                (words[0] != 0) == v6 && bits & wide(words[3], words[4]) == wide(words[1], words[2])
            })
    }

    #[inline(always)]
    fn is_local(self, tables: &Version, outer: &Outer) -> bool {
        match outer.v6 {
            false => self.has(flag::HAS_LOCAL_V4) && self.word(V4) as u32 == outer.local as u32,
            true => self
                .addresses(tables)
                .is_some_and(|(head, _)| head[0] & 2 != 0 && wide(head[6], head[7]) == outer.local),
        }
    }

    /// Addresses that few rules have.
    #[inline(never)]
    fn addresses(self, tables: &Version) -> Option<([u64; LINE_WORDS], &[AtomicU64])> {
        let behind = self.quarter(quarter::ADDRESSES);
        if behind == 0 {
            return None;
        }
        let head: &[_; LINE_WORDS] = self.behind(tables, behind, LINE_WORDS).try_into().ok()?;
        let head = head.each_ref().map(|word| word.load(Relaxed));
        let framed = self.behind(tables, behind + 1, 5 * (head[1] as u16 as usize));
        Some((head, framed))
    }
}

/// Whether a packet in this QoS flow is in one of these, as bits; any if there are none.
#[inline(always)]
fn matches(qfis: u64, flow: Option<u8>) -> bool {
    qfis == 0 || flow.is_some_and(|flow| qfis >> (flow & 63) & 1 != 0)
}

#[inline(always)]
fn wide(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

fn reason(number: u8) -> DropReason {
    DropReason::ALL.get(usize::from(number)).copied().unwrap_or(DropReason::FarDrop)
}
