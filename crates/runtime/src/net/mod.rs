//! Network of sandboxes: interfaces, addresses and routes, set from outside by the daemon.
//!
//! Every verb may be repeated: what is there and right stays, what is there and wrong is made right.

mod address;
mod capture;
mod link;
mod namespace;
mod socket;

use std::net::IpAddr;

pub use address::configure;
pub use capture::{PacketTap, Sniffed, packet_tap};
pub use link::{interfaces, macvlan, remove, up, veth};
pub use namespace::{Namespace, sysctl};
pub use socket::{macvtap, tap};

/// An address prefix: the address itself and the length of its network's prefix.
pub type Prefix = (IpAddr, u8);

/// What an interface is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// MAC address; left as it is if absent.
    pub mac: Option<[u8; 6]>,
    /// Largest frame without its Ethernet header; left as it is if absent.
    pub mtu: Option<u32>,
    /// All its addresses but the link-local; others are removed.
    pub addresses: Vec<Prefix>,
    /// All its static routes; others by this interface are removed.
    pub routes: Vec<Route>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination network.
    pub to: Prefix,
    /// Next hop; none if the destination is on the link.
    pub via: Option<IpAddr>,
}
