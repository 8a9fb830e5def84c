//! Rules of a session as workers use them: one direction's PDRs in order of precedence, each with all that follows from
//! it.

use super::filter::{Filter, Key};
use crate::buffers::Waiting;
use crate::drops::DropReason;
use crate::few::Few;
use crate::ip::Packet;
use crate::marking::Marking;
use crate::policer::Meter;
use crate::side::PortId;
use crate::tunnel::{Relay, Tunnel};
use crate::usage::{self, Usage};

/// A PDR with its QERs and its FAR, on three cache lines: what a packet over and with IPv4 is matched with and held against
/// is on the first ones, the headers of a tunnel are on the last. What few rules have lies elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Rule {
    /// QFIs that match, as bits; any if there are none.
    pub(super) qfis: u64,
    pub(super) v4: AddressesV4,
    /// Any of these matches; everything does if there are none.
    pub(super) filters: Box<[Filter]>,
    /// Maximum bit rates.
    pub(super) meters: Few<Meter>,
    /// What counts the packets.
    pub(super) usages: Few<Usage>,
    /// The UPF's SEID of the session.
    pub(super) up_seid: u64,
    /// PDR ID.
    pub(super) pdr: u16,
    /// Whether any UE address matches.
    pub(super) any_ue: bool,
    /// Which outer headers the PDR takes off.
    pub(super) removes_v4: bool,
    pub(super) removes_v6: bool,
    /// Whether all gates are open.
    pub(super) open: bool,
    /// Whether packets come from the UE.
    pub(super) uplink: bool,
    /// None where there would be nothing in it.
    pub(super) more: Option<Box<More>>,
    pub(super) action: Action,
}

/// What few rules have, to match packets with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct More {
    pub v6: AddressesV6,
    /// Networks behind the UE, which count as its address.
    pub framed: Box<[Net]>,
}

const _: () = assert!(std::mem::size_of::<Rule>() == 192, "a rule is three cache lines");

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The UPF's SEID of the session.
    pub up_seid: u64,
    /// PDR ID.
    pub pdr: u16,
}

/// What becomes of a packet that passed gates and meters.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    Relay(Box<Relay>),
    /// Keep until there are other rules.
    Buffer(Waiting),
    /// One of those that send or discard, with what few rules have besides.
    Aside(Box<Aside>),
}

/// What few rules have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// What becomes of packets.
    pub action: Action,
    /// Tunnels that copies of the packets are put into, or why they are dropped.
    pub copies: Box<[Result<Tunnel, DropReason>]>,
    /// In place of the rule, for packets that would go beyond a quota: by the usage whose quota it is.
    pub substitutes: Box<[(usize, Rule)]>,
}

/// Addresses that match; none matches where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressesV4 {
    /// The UE's.
    pub ue: Option<u32>,
    /// Of the F-TEID.
    pub local: Option<u32>,
}

/// Addresses that match; none matches where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AddressesV6 {
    /// The UE's network and its mask.
    pub ue: Option<(u128, u128)>,
    /// Of the F-TEID.
    pub local: Option<u128>,
}

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Net {
    V4 { net: u32, mask: u32 },
    V6 { net: u128, mask: u128 },
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

impl Rule {
    /// Whether the packet's key matters, see [`Rule::filters_match`].
    #[inline]
    pub fn is_filtered(&self) -> bool {
        !self.filters.is_empty()
    }

    /// Whether any of the filters matches; everything does if there are none.
    #[inline]
    pub(crate) fn filters_match<const V6: bool>(&self, key: &Key<V6>) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| filter.matches(key))
    }

    /// Whether the rule is for this packet that came by a tunnel, if its filters match.
    ///
    /// `Err` says how close it came: [`DropReason::SpoofedSource`] if only the source address is not the UE's.
    #[inline]
    pub fn match_tunnelled_but_filters<const V6: bool>(
        &self,
        inner: &Packet<'_, V6>,
        outer: &Outer,
    ) -> Result<(), DropReason> {
        if !self.is_local(outer) || !self.flow_matches(outer.flow) {
            return Err(DropReason::NoPdr);
        }
        let user = if self.uplink { inner.source() } else { inner.destination() };
        match self.is_ue::<V6>(user) {
            true => Ok(()),
            false if self.uplink => Err(DropReason::SpoofedSource),
            false => Err(DropReason::NoPdr),
        }
    }

    /// Whether the rule is for this packet from N6, if its filters match.
    #[inline]
    pub fn match_plain_but_filters<const V6: bool>(&self, packet: &Packet<'_, V6>) -> bool {
        self.is_ue::<V6>(packet.destination())
    }

    /// Whether the PDR takes off the outer header that the packet has.
    #[inline]
    pub fn removes(&self, outer: &Outer) -> bool {
        if outer.v6 { self.removes_v6 } else { self.removes_v4 }
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        Origin { up_seid: self.up_seid, pdr: self.pdr }
    }

    /// Whether packets come from the UE.
    #[inline]
    pub fn is_uplink(&self) -> bool {
        self.uplink
    }

    /// Whether an end marker that came by a tunnel there is one for this rule.
    pub fn takes_end_markers(&self, outer: &Outer) -> bool {
        self.is_local(outer) && matches!(self.main_action(), Action::Relay(_))
    }

    /// Whether the gates are open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Maximum bit rates that the packet counts towards.
    #[inline]
    pub fn meters(&self) -> &[Meter] {
        &self.meters
    }

    /// What counts the packets.
    #[inline]
    pub fn usages(&self) -> &[Usage] {
        &self.usages
    }

    /// What the FAR does, for those who do not care for what few rules have.
    pub fn main_action(&self) -> &Action {
        match &self.action {
            Action::Aside(aside) => &aside.action,
            action => action,
        }
    }

    /// The rule that stands in for this one where a packet of `octets` octets would go beyond a quota, if one does.
    #[cold]
    pub fn substitute(&self, octets: usize) -> Option<&Rule> {
        let Action::Aside(aside) = &self.action else { return None };
        let refusing = usage::refusing(&self.usages, self.uplink, octets)?;
        aside.substitutes.iter().find(|(usage, _)| *usage == refusing).map(|(_, rule)| rule)
    }

    /// What the FAR does.
    #[inline]
    pub fn action(&self) -> &Action {
        &self.action
    }

    #[inline]
    fn flow_matches(&self, flow: Option<u8>) -> bool {
        self.qfis == 0 || flow.is_some_and(|flow| self.qfis >> (flow & 63) & 1 != 0)
    }

    #[inline]
    fn is_ue<const V6: bool>(&self, bits: u128) -> bool {
        if self.any_ue {
            return true;
        }
        let is_own = match V6 {
            false => self.v4.ue == Some(bits as u32),
            true => self.more.as_ref().and_then(|more| more.v6.ue).is_some_and(|(net, mask)| bits & mask == net),
        };
        is_own || self.more.as_ref().is_some_and(|more| more.is_framed(V6, bits))
    }

    #[inline]
    fn is_local(&self, outer: &Outer) -> bool {
        match outer.v6 {
            false => self.v4.local == Some(outer.local as u32),
            true => self.more.as_ref().is_some_and(|more| more.v6.local == Some(outer.local)),
        }
    }
}

impl More {
    #[inline(never)]
    fn is_framed(&self, v6: bool, bits: u128) -> bool {
        self.framed.iter().any(|net| net.contains(v6, bits))
    }
}

impl Net {
    fn contains(&self, v6: bool, bits: u128) -> bool {
        match *self {
            Self::V4 { net, mask } => !v6 && bits as u32 & mask == net,
            Self::V6 { net, mask } => v6 && bits & mask == net,
        }
    }
}
