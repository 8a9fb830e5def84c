//! Why packets are discarded, and how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! reasons {
    ($(#[doc = $text:literal] $reason:ident = $name:literal,)+) => {
        /// Why a packet was discarded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $(#[doc = $text] $reason,)+ }

        impl DropReason {
            /// Every reason, in the order in which a packet meets them.
            pub const ALL: &[Self] = &[$(Self::$reason,)+];

            /// What it means, as a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$reason => $text.trim_ascii(),)+ }
            }

            /// The counter's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$reason => concat!("drop.", $name),)+ }
            }
        }
    };
}

reasons! {
    /// The frame has an IEEE 802.1Q or 802.1ad tag.
    Vlan = "vlan",
    /// The frame carries neither IPv4, IPv6 nor ARP.
    EtherType = "ether_type",
    /// The frame is for another Ethernet address.
    WrongMac = "wrong_mac",
    /// The IP header, or the UDP header behind it, does not fit the frame.
    IpMalformed = "ip_malformed",
    /// The IPv4 header's checksum is wrong.
    IpChecksum = "ip_checksum",
    /// The packet is for an address that is neither the UPF's nor a UE's way to it.
    NotOurAddress = "not_our_address",
    /// The packet is for a group or for everyone.
    Multicast = "multicast",
    /// An outer fragment that cannot be one, by its length or place, or whose packet has too many.
    FragmentMalformed = "fragment_malformed",
    /// An outer fragment that overlaps another one of its packet, which is lost with all its fragments.
    FragmentOverlap = "fragment_overlap",
    /// An outer fragment that came before.
    FragmentDuplicate = "fragment_duplicate",
    /// An outer fragment whose packet did not become whole in time.
    FragmentTimeout = "fragment_timeout",
    /// Too many outer fragments wait, of the sender or in all.
    FragmentsFull = "fragments_full",
    /// The UDP datagram is not for GTP-U's port.
    NotGtpu = "not_gtpu",
    /// The GTP-U version is not 1, or the protocol is GTP'.
    GtpuVersion = "gtpu_version",
    /// The GTP-U header's length, extension headers or PDU session container are broken.
    GtpuMalformed = "gtpu_malformed",
    /// The GTP-U header ends beyond the part of the packet that is looked at.
    GtpuTooLong = "gtpu_too_long",
    /// A GTP-U extension header is unknown, but must be understood.
    GtpuExtension = "gtpu_extension",
    /// The GTP-U message is of a type that a UPF does not expect.
    GtpuMessage = "gtpu_message",
    /// A GTP-U end marker in a tunnel whose packets do not go on in another one.
    EndMarker = "end_marker",
    /// No session has the TEID.
    UnknownTeid = "unknown_teid",
    /// No session has the UE address.
    UnknownUe = "unknown_ue_address",
    /// The tunnelled packet is not IP.
    InnerNotIp = "inner_not_ip",
    /// The user's IP header does not fit the packet.
    InnerMalformed = "inner_malformed",
    /// The source address is not the UE's, though a PDR would match otherwise.
    SpoofedSource = "spoofed_source",
    /// No PDR of the session matches.
    NoPdr = "no_pdr",
    /// A QER's gate is closed.
    GateClosed = "gate_closed",
    /// A URR's quota is used up.
    QuotaExhausted = "quota_exhausted",
    /// A QER's maximum bit rate is used up.
    MbrExceeded = "mbr_exceeded",
    /// As many packets of the session, or octets in all, wait already as may, or the session would have more than it leaves others.
    BufferFull = "buffer_full",
    /// The packet waited, and the session manager had it discarded.
    BufferDiscarded = "buffer_discarded",
    /// The packet waited for as long as packets may, and its UE was not reached.
    BufferExpired = "buffer_expired",
    /// The FAR says so.
    FarDrop = "far_drop",
    /// The PDR does not remove the outer header that the packet has.
    HeaderRemoval = "header_removal",
    /// The FAR leads to a tunnel, but creates no outer header.
    NoTunnel = "no_tunnel",
    /// The FAR leads from N6 back to N6, or into the data network with an outer header.
    UnsupportedPath = "unsupported_path",
    /// The packet for a network with source NAT is neither TCP, UDP, an ICMP query nor an ICMP error.
    NatProtocol = "nat_protocol",
    /// The UE has as many ports outside as it may, or none are left, or there are as many bindings as may be.
    NatExhausted = "nat_exhausted",
    /// No UE has the address and port outside, or the error is about a packet that no binding is for.
    NatNoBinding = "nat_no_binding",
    /// The UE has not sent to whoever the packet is from.
    NatFiltered = "nat_filtered",
    /// A fragment whose first one did not come in time, or an error about one.
    NatFragment = "nat_fragment",
    /// No route leads to the destination.
    NoRoute = "no_route",
    /// The packet is longer than the port's MTU allows, and must not be fragmented.
    TooLong = "too_long",
    /// The next hop's Ethernet address was not found, or too many packets wait for it.
    NeighbourUnresolved = "neighbour_unresolved",
    /// The ring to the session's worker is full, or more copies and fragments are made of a burst than there is room for.
    HandoverFull = "handover_full",
    /// The packet came from another worker, and is not for this one either.
    HandoverLoop = "handover_loop",
    /// The ring to the slow path is full; for GTP-U's messages, three quarters of it.
    SlowPathFull = "slow_path_full",
    /// A message for the UPF itself that it does not answer, or one of too many pings.
    NotAnswered = "not_answered",
    /// N3's peer is full, slow or away.
    N3Full = "n3_full",
    /// N9's peer is full, slow or away.
    N9Full = "n9_full",
    /// N6's peer is full, slow or away.
    N6Full = "n6_full",
}

/// Number of reasons.
pub const REASONS: usize = DropReason::ALL.len();

/// Drop counters of one worker, private to it; published on a tick.
#[derive(Clone, Debug)]
pub struct Drops {
    counts: [u64; REASONS],
    changed: bool,
    board: DropBoard,
}

/// What one thread has published, for others to read.
#[derive(Clone, Debug)]
pub struct DropBoard(Arc<[AtomicU64; REASONS]>);

impl Default for Drops {
    fn default() -> Self {
        let board = DropBoard(Arc::new([const { AtomicU64::new(0) }; REASONS]));
        Self { counts: [0; REASONS], changed: false, board }
    }
}

impl Drops {
    /// Counts one packet.
    #[inline]
    pub fn count(&mut self, reason: DropReason) {
        self.add(reason, 1);
    }

    /// Counts `packets` packets.
    #[inline]
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        self.counts[reason as usize] += packets;
        self.changed = true;
    }

    /// Packets dropped for `reason` so far.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.counts[reason as usize]
    }

    /// Makes the counters visible on the board.
    #[inline]
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.counts.iter().zip(self.board.0.iter()).for_each(|(count, shown)| shown.store(*count, Relaxed));
        }
    }

    /// The board that [`Drops::publish`] writes to.
    pub fn board(&self) -> DropBoard {
        self.board.clone()
    }
}

impl DropBoard {
    /// The counter as last published.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_name_that_a_port_can_report() {
        let names: std::collections::HashSet<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), REASONS);
        assert!(names.iter().all(|name| name.len() <= 48));
        assert!(DropReason::ALL.iter().enumerate().all(|(at, &reason)| reason as usize == at));
    }

    #[test]
    fn every_reason_is_documented() {
        let page = include_str!("../../../docs/upf.md");
        let missing: Vec<_> =
            DropReason::ALL.iter().filter(|reason| !page.contains(&format!("`{}`", reason.name()))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn counts_are_seen_by_others_once_published() {
        let mut drops = Drops::default();
        let board = drops.board();
        drops.add(DropReason::Vlan, 3);
        assert_eq!(board.get(DropReason::Vlan), 0);
        drops.publish();
        assert_eq!(board.get(DropReason::Vlan), 3);
    }
}
