//! Why the gNB discarded a packet.

/// A reason to discard a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Drop {
    /// Neither IP nor anything that a host answers.
    NotIp,
    /// Shorter than its headers say.
    Truncated,
    /// Longer than the port to send it on takes.
    TooLong,
    /// The source address is no UE's.
    UnknownUe,
    /// The UE has no tunnel to the UPF yet.
    NoTunnel,
    /// The neighbour on N3 has not answered yet.
    N3Unresolved,
    /// The UE's interface has not been heard of yet.
    UeUnresolved,
    /// The port N3 did not take it.
    N3Refused,
    /// The port Uu did not take it.
    UuRefused,
    /// On N3, for another Ethernet or IP address.
    NotForGnb,
    /// A fragment of an outer packet.
    OuterFragment,
    /// Not GTP-U version 1, or malformed.
    MalformedGtpu,
    /// A tunnel endpoint that the gNB does not have.
    UnknownTeid,
    /// The packet in the tunnel is not for the tunnel's UE.
    ForeignAddress,
}

/// Every reason with the name that it is reported under.
const NAMES: [(Drop, &str); 14] = [
    (Drop::NotIp, "drop.not_ip"),
    (Drop::Truncated, "drop.truncated"),
    (Drop::TooLong, "drop.too_long"),
    (Drop::UnknownUe, "drop.unknown_ue"),
    (Drop::NoTunnel, "drop.no_tunnel"),
    (Drop::N3Unresolved, "drop.n3_unresolved"),
    (Drop::UeUnresolved, "drop.ue_unresolved"),
    (Drop::N3Refused, "drop.n3_refused"),
    (Drop::UuRefused, "drop.uu_refused"),
    (Drop::NotForGnb, "drop.not_for_gnb"),
    (Drop::OuterFragment, "drop.outer_fragment"),
    (Drop::MalformedGtpu, "drop.malformed_gtpu"),
    (Drop::UnknownTeid, "drop.unknown_teid"),
    (Drop::ForeignAddress, "drop.foreign_address"),
];

/// Discarded packets by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; NAMES.len()]);

impl Drops {
    /// Counts `packets` more.
    #[inline]
    pub fn add(&mut self, reason: Drop, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Packets discarded for `reason`.
    pub fn of(&self, reason: Drop) -> u64 {
        self.0[reason as usize]
    }

    /// The name and count of every reason that occurred.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES.iter().map(|(reason, name)| (*name, self.of(*reason))).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_stands_at_its_place() {
        assert!(NAMES.iter().enumerate().all(|(i, (reason, _))| *reason as usize == i));
    }

    #[test]
    fn only_what_occurred_is_named() {
        let mut drops = Drops::default();
        drops.add(Drop::UnknownTeid, 3);
        assert_eq!(drops.named().collect::<Vec<_>>(), [("drop.unknown_teid", 3)]);
    }
}
