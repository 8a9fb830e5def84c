//! Rules of a session as workers use them: one direction's PDRs in order of precedence, each with all that follows from
//! it.

use crate::drops::DropReason;
use crate::ip::Packet;
use crate::policer::Meter;
use crate::tunnel::Tunnel;

/// A PDR with its QERs and its FAR.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub struct Rule {
    /// QFIs that match, as bits; any if there are none.
    pub(super) qfis: u64,
    /// UE addresses that match.
    pub(super) ue: UeAddress,
    /// Local addresses of the tunnel.
    pub(super) local: LocalAddress,
    /// Any of these matches; everything does if there are none.
    pub(super) filters: Box<[Filter]>,
    /// Which outer headers the PDR takes off.
    pub(super) removal: Removal,
    /// Whether all gates are open.
    pub(super) open: bool,
    /// Maximum bit rates.
    pub(super) meters: Box<[Meter]>,
    pub(super) action: Action,
}

/// What becomes of a packet that passed gates and meters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Discard.
    Drop(DropReason),
    /// Route out of N6.
    Route,
    /// Put into the tunnel and send out of N3.
    Tunnel(Tunnel),
}

/// UE addresses of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UeAddress {
    /// Whether any address matches.
    pub any: bool,
    pub v4: Option<u32>,
    /// IPv6 network and mask.
    pub v6: Option<(u128, u128)>,
}

/// Local addresses of an F-TEID; those of a version that has none do not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalAddress {
    pub v4: Option<u32>,
    pub v6: Option<u128>,
}

/// Which outer headers come off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Removal {
    pub v4: bool,
    pub v6: bool,
}

/// An SDF filter, turned into the direction of the packets that it sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub protocol: Option<u8>,
    pub source: Net,
    pub destination: Net,
    pub source_ports: Box<[(u16, u16)]>,
    pub destination_ports: Box<[(u16, u16)]>,
    /// Value and mask; a mask of zero matches all.
    pub tos: (u8, u8),
}

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Net {
    Any,
    V4 { net: u32, mask: u32 },
    V6 { net: u128, mask: u128 },
}

/// Where an uplink packet came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Whether the outer packet is IPv6.
    pub v6: bool,
    /// The local address; IPv4 in the low 32 bits.
    pub local: u128,
    /// QFI of the PDU session container.
    pub qfi: Option<u8>,
}

impl Rule {
    /// The rule's action if an uplink packet passes it.
    ///
    /// `Err` says how close the packet came: [`DropReason::SpoofedSource`] if only the source address is not the UE's.
    #[inline]
    pub fn match_uplink(&self, inner: &Packet<'_>, outer: &Outer) -> Result<(), DropReason> {
        let no = Err(DropReason::NoPdr);
        if !self.local.matches(outer) || !self.qfi_matches(outer.qfi) || !self.filters_match(inner) {
            return no;
        }
        if self.ue.matches(inner.is_v6(), inner.source()) { Ok(()) } else { Err(DropReason::SpoofedSource) }
    }

    /// Whether the rule is for this downlink packet.
    #[inline]
    pub fn match_downlink(&self, packet: &Packet<'_>) -> bool {
        self.ue.matches(packet.is_v6(), packet.destination()) && self.filters_match(packet)
    }

    /// Whether the PDR takes off the outer header that the packet has.
    #[inline]
    pub fn removes(&self, outer: &Outer) -> bool {
        if outer.v6 { self.removal.v6 } else { self.removal.v4 }
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

    /// What the FAR does.
    #[inline]
    pub fn action(&self) -> &Action {
        &self.action
    }

    #[inline]
    fn qfi_matches(&self, qfi: Option<u8>) -> bool {
        self.qfis == 0 || qfi.is_some_and(|qfi| self.qfis >> qfi & 1 != 0)
    }

    #[inline]
    fn filters_match(&self, packet: &Packet<'_>) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| filter.matches(packet))
    }
}

impl UeAddress {
    #[inline]
    fn matches(&self, v6: bool, bits: u128) -> bool {
        if self.any {
            return true;
        }
        match v6 {
            false => self.v4 == Some(bits as u32),
            true => self.v6.is_some_and(|(net, mask)| bits & mask == net),
        }
    }
}

impl LocalAddress {
    #[inline]
    fn matches(&self, outer: &Outer) -> bool {
        if outer.v6 { self.v6 == Some(outer.local) } else { self.v4 == Some(outer.local as u32) }
    }
}

impl Filter {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        if !self.source.contains(packet.is_v6(), packet.source())
            || !self.destination.contains(packet.is_v6(), packet.destination())
            || packet.tos() & self.tos.1 != self.tos.0 & self.tos.1
        {
            return false;
        }
        let upper = packet.upper();
        if self.protocol.is_some_and(|protocol| protocol != upper.protocol) {
            return false;
        }
        if self.source_ports.is_empty() && self.destination_ports.is_empty() {
            return true;
        }
        // A fragment behind the first has no ports, and so matches no range of them.
        upper.ports().is_some_and(|(source, destination)| {
            within(&self.source_ports, source) && within(&self.destination_ports, destination)
        })
    }
}

fn within(ranges: &[(u16, u16)], port: u16) -> bool {
    ranges.is_empty() || ranges.iter().any(|&(first, last)| (first..=last).contains(&port))
}

impl Net {
    fn contains(&self, v6: bool, bits: u128) -> bool {
        match *self {
            Self::Any => true,
            Self::V4 { net, mask } => !v6 && bits as u32 & mask == net,
            Self::V6 { net, mask } => v6 && bits & mask == net,
        }
    }
}
