//! What a port is told about itself when it attaches: its name, addresses and steering.

use std::net::IpAddr;

use crate::steering::Steering;

/// Most queue pairs of one port.
pub const QUEUES_MAX: usize = 16;
/// Longest port or function name, in bytes.
pub const NAME_MAX: usize = 63;
/// Most addresses, and most routes, of one port.
pub const ADDRESSES_MAX: usize = 16;

/// The description of a port, as its function sees it. Where the peer runs is not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Name within its function, for example `n3`.
    pub name: String,
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Longest IP packet in bytes; a frame has 14 bytes (a tagged one 18) more.
    pub mtu: u16,
    /// Number of queue pairs.
    pub queues: u16,
    /// How senders spread frames over this port's queues.
    pub steering: Steering,
    /// Addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Routes that lead out of this port.
    pub routes: Vec<Route>,
}

/// A route: where to, and by which neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination network.
    pub to: IpAddr,
    /// Its prefix length in bits.
    pub prefix: u8,
    /// The neighbour that takes the packets.
    pub via: IpAddr,
}

impl PortInfo {
    /// A port with one queue pair, no addresses, an MTU of 1,500 and a locally administered address derived from `name`.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            mac: derived_mac(name),
            mtu: 1_500,
            queues: 1,
            steering: Steering::None,
            addresses: Vec::new(),
            routes: Vec::new(),
        }
    }
}

/// A locally administered unicast address that depends on nothing but `seed` (FNV-1a), so that it stays over restarts.
pub fn derived_mac(seed: &str) -> [u8; 6] {
    let hash = seed
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let [.., a, b, c, d, e] = (hash ^ (hash >> 32)).to_be_bytes();
    [0x02, a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_mac_is_local_unicast_and_differs_by_seed() {
        let (a, b) = (derived_mac("slice/upf/n3"), derived_mac("slice/upf/n6"));
        assert_eq!(a[0] & 3, 2);
        assert_ne!(a, b);
    }
}
