//! The words of a rule's line, and of the second one that few rules have.

use vport::tally::LINE_WORDS;

use crate::drops::DropReason;
use crate::side::PortId;

// Words of a rule's line.

/// Octets: flags, kind of the action with one more flag, port or reason or the tunnel's QoS flow, home; then, of 16 bits each, the
/// number of rules from here on in the list, and the PDR's ID.
pub(super) const BRIEF: usize = 0;
/// IPv4 addresses: of the F-TEID, and in the upper half of the UE.
pub(super) const V4: usize = 1;
/// Where packets are put into a tunnel, its path, and in the upper half its TEID: what comes plain has no QFI. Else the QFIs.
pub(super) const QFIS_OR_TUNNEL: usize = 2;
/// Places of counters: the only one, or where they lie; in the upper half how many there are.
pub(super) const USAGES: usize = 3;
/// Where the only maximum bit rate is this rule's alone, its policer: rate in bit/s, and tokens ([`crate::policer::Tokens`]). Else a
/// bit for each policer that is one of the rule's, by the number of its slot.
pub(super) const POLICERS: usize = 4;
/// Words of these.
pub(super) const POLICERS_WORDS: usize = 3;
/// Quarters, as in [`quarter`].
pub(super) const BEHIND: usize = 7;

/// Quarters of [`BEHIND`], the lowest first. Lines are counted from the rule's own on, and 0 stands for none.
pub(super) mod quarter {
    /// Where addresses of few rules lie.
    pub const ADDRESSES: usize = 0;
    /// How packets are policed, as in [`super::policed`].
    pub const POLICING: usize = 1;
    /// Where the second line lies.
    pub const SECOND: usize = 2;
    /// How many lines before the rule the block begins.
    pub const BLOCK: usize = 3;
}

// Words of its second line, each of which is 0 where there is no such line.

/// Of a relay: path of packets with a PDU session container, and in the upper half the TEID. Where packets are put into a tunnel,
/// the QFIs.
pub(super) const RELAY_OR_QFIS: usize = 0;
/// Octets: QoS flow, whether there is one, marking's octet and its mask; in the upper half most packets that wait, whether N4 is
/// told of them, and whether packets are translated.
pub(super) const MANNER: usize = 1;
/// Of a relay: path of packets without a PDU session container, and in the upper half that of end markers. Where packets wait, for
/// how long.
pub(super) const OTHER_PATHS: usize = 2;
/// Where copies lie, and in the upper half how many there are.
pub(super) const COPIES: usize = 3;
/// The same of substitutes.
pub(super) const SUBSTITUTES: usize = 4;
/// In a substitute, the number of the usage for which it stands in.
pub(super) const STANDS_FOR: usize = 5;
/// Where filters lie, of this rule and of all behind it in the list; in the upper half how many there are. Only the first rule
/// with filters has them.
pub(super) const FILTERS: usize = 6;

/// Bits of [`BRIEF`].
pub(super) mod flag {
    pub const ANY_UE: u64 = 1;
    pub const REMOVES_HEADER: u64 = 2;
    /// It has a second line, or policers in slots, or something counts the packets: what more lines are looked at for.
    pub const BEHIND: u64 = 4;
    pub const OPEN: u64 = 8;
    pub const UPLINK: u64 = 16;
    pub const HAS_UE_V4: u64 = 32;
    pub const HAS_LOCAL_V4: u64 = 64;
    /// There are copies, or substitutes, or packets are translated.
    pub const ASIDE: u64 = 128;
    /// Something counts the packets. It is beside the kind.
    pub const COUNTED: u64 = 1 << 15;
    /// It is the first of its list with filters. The flag is beside the port.
    pub const FILTERED: u64 = 1 << 23;
}

const _: () = assert!(DropReason::ALL.len() < 128 && PortId::MAX < 128, "there is room for a flag beside them");

/// Kinds of actions.
pub(super) mod kind {
    pub const DROP: u8 = 0;
    pub const ROUTE: u8 = 1;
    pub const ROUTE_MARKED: u8 = 2;
    pub const TUNNEL: u8 = 3;
    pub const RELAY: u8 = 4;
    pub const BUFFER: u8 = 5;
    pub const MASK: u8 = 0x7f;
}

/// Of [`quarter::POLICING`].
pub(super) mod policed {
    /// There is no maximum bit rate.
    pub const NONE: usize = 0;
    /// The policer is in the rule's line.
    pub const OWN: usize = 1;
    /// By some that are in slots.
    pub const SLOTS: usize = 2;
}

/// Words of a policer that is not in its rule's line, half a line at the beginning of the body.
pub(super) mod slot {
    pub const WORDS: usize = super::LINE_WORDS / 2;
    /// Bit/s.
    pub const RATE: usize = 0;
    /// Where it is not shared, its tokens.
    pub const TOKENS: usize = 1;
    /// Of one that sessions share, its index, and in the upper half its generation, which is not 0.
    pub const SHARED: usize = 3;
}
