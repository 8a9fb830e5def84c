//! The two sides of the UPF: what each port is, which addresses are its own, and where its routes lead.

use std::cmp::Reverse;
use std::net::IpAddr;

use port::PortInfo;

/// One of the UPF's two data-plane ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortId {
    /// Towards the RAN.
    N3,
    /// Towards the data network.
    N6,
}

impl PortId {
    /// The port on the other side.
    #[inline]
    pub fn other(self) -> Self {
        match self {
            Self::N3 => Self::N6,
            Self::N6 => Self::N3,
        }
    }
}

/// A port's addresses and routes, fixed while the UPF runs.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Longest IP packet.
    pub mtu: usize,
    /// Its addresses with their prefix lengths, as given.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Names of the network instances it belongs to; any if there are none.
    pub network_instances: Vec<String>,
    /// Addresses that packets for the UPF itself have.
    own_v4: Vec<u32>,
    own_v6: Vec<u128>,
    /// Longest prefix first.
    routes_v4: Vec<Route<u32>>,
    routes_v6: Vec<Route<u128>>,
    gateways: Vec<IpAddr>,
}

#[derive(Clone, Copy, Debug)]
struct Route<A> {
    net: A,
    mask: A,
    prefix: u8,
    to: NextHop,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// The destination is a neighbour itself.
    Link,
    /// The neighbour with this number among [`Side::gateways`].
    Gateway(u16),
}

impl Side {
    /// The side that a port makes. A port with any IPv6 address has a link-local one too, made from its Ethernet address.
    pub fn new(info: &PortInfo, network_instances: &[String]) -> Self {
        let mut side = Self {
            mac: info.mac,
            mtu: info.mtu.into(),
            addresses: info.addresses.clone(),
            network_instances: network_instances.to_vec(),
            own_v4: vec![],
            own_v6: vec![],
            routes_v4: vec![],
            routes_v6: vec![],
            gateways: vec![],
        };
        for &(address, prefix) in &info.addresses {
            match address {
                IpAddr::V4(address) => side.own_v4.push(address.to_bits()),
                IpAddr::V6(address) => side.own_v6.push(address.to_bits()),
            }
            side.add_route(address, prefix, NextHop::Link);
        }
        if !side.own_v6.is_empty() {
            side.own_v6.push(link_local(info.mac).to_bits());
        }
        for route in &info.routes {
            let gateway = side.gateway(route.via);
            side.add_route(route.to, route.prefix, NextHop::Gateway(gateway));
        }
        side.routes_v4.sort_by_key(|route| Reverse(route.prefix));
        side.routes_v6.sort_by_key(|route| Reverse(route.prefix));
        side
    }

    fn gateway(&mut self, via: IpAddr) -> u16 {
        let known = self.gateways.iter().position(|gateway| *gateway == via);
        known.unwrap_or_else(|| {
            self.gateways.push(via);
            self.gateways.len() - 1
        }) as u16
    }

    fn add_route(&mut self, to: IpAddr, prefix: u8, next_hop: NextHop) {
        let (v6, bits) = bits(to);
        let mask = mask(v6, prefix);
        if v6 {
            self.routes_v6.push(Route { net: bits & mask, mask, prefix, to: next_hop });
        } else {
            let (net, mask) = ((bits & mask) as u32, mask as u32);
            self.routes_v4.push(Route { net, mask, prefix, to: next_hop });
        }
    }

    /// Whether the address (IPv4 in the low 32 bits) is the UPF's own.
    #[inline]
    pub fn owns(&self, v6: bool, bits: u128) -> bool {
        if v6 { self.own_v6.contains(&bits) } else { self.own_v4.contains(&(bits as u32)) }
    }

    /// Where packets for the address go. The longest prefix decides; none if no route leads there.
    #[inline]
    pub fn route(&self, v6: bool, bits: u128) -> Option<NextHop> {
        if v6 {
            self.routes_v6.iter().find(|route| bits & route.mask == route.net).map(|route| route.to)
        } else {
            self.routes_v4.iter().find(|route| bits as u32 & route.mask == route.net).map(|route| route.to)
        }
    }

    /// The neighbour that packets for the address go to.
    pub fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        let (v6, bits) = bits(to);
        match self.route(v6, bits)? {
            NextHop::Link => Some(to),
            NextHop::Gateway(number) => Some(self.gateways[usize::from(number)]),
        }
    }

    /// The gateways of all routes.
    pub fn gateways(&self) -> &[IpAddr] {
        &self.gateways
    }

    /// The own address to send to `peer` from: the one on its link, or else the first of its version.
    pub fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        let (v6, peer) = bits(peer);
        let same_version = |(address, _): &&(IpAddr, u8)| address.is_ipv6() == v6;
        let on_link = |&&(address, prefix): &&(IpAddr, u8)| (bits(address).1 ^ peer) & mask(v6, prefix) == 0;
        let mut candidates = self.addresses.iter().filter(same_version);
        let first = candidates.clone().next();
        candidates.find(on_link).or(first).map(|&(address, _)| address)
    }

    /// Whether rules for this network instance concern this side.
    pub fn serves(&self, network_instance: Option<&str>) -> bool {
        network_instance.is_none_or(|name| {
            self.network_instances.is_empty() || self.network_instances.iter().any(|own| own == name)
        })
    }
}

/// An address as version and bits, IPv4 in the low 32.
pub fn bits(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(address) => (false, address.to_bits().into()),
        IpAddr::V6(address) => (true, address.to_bits()),
    }
}

/// The address that [`bits`] came from.
#[inline]
pub fn address(v6: bool, bits: u128) -> IpAddr {
    if v6 { IpAddr::V6(bits.into()) } else { IpAddr::V4((bits as u32).into()) }
}

/// The mask of a prefix, for addresses in the form of [`bits`].
pub fn mask(v6: bool, prefix: u8) -> u128 {
    let width: u32 = if v6 { 128 } else { 32 };
    let host = width.saturating_sub(prefix.into());
    let all = u128::MAX >> (128 - width);
    all & u128::MAX.checked_shl(host).unwrap_or(0)
}

/// The address without what is behind the prefix.
pub fn network(address: IpAddr, prefix: u8) -> IpAddr {
    let (v6, bits) = bits(address);
    self::address(v6, bits & mask(v6, prefix))
}

/// The link-local address made from an Ethernet address (RFC 4291, appendix A).
pub fn link_local(mac: [u8; 6]) -> std::net::Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f].into()
}

#[cfg(test)]
mod tests {
    use port::Route;

    use super::*;

    fn side() -> Side {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let route = |to, prefix, via| Route { to: ip(to), prefix, via: ip(via) };
        let info = PortInfo {
            addresses: vec![(ip("10.3.0.1"), 24), (ip("10.4.0.1"), 24), (ip("2001:db8::1"), 64)],
            routes: vec![route("0.0.0.0", 0, "10.3.0.254"), route("10.9.0.0", 16, "10.3.0.9")],
            ..PortInfo::named("n3")
        };
        Side::new(&info, &["access".into()])
    }

    fn hop(to: &str) -> Option<String> {
        side().next_hop(to.parse().unwrap()).map(|hop| hop.to_string())
    }

    #[test]
    fn the_longest_prefix_decides() {
        assert_eq!(hop("10.3.0.7").as_deref(), Some("10.3.0.7"));
        assert_eq!(hop("10.9.1.1").as_deref(), Some("10.3.0.9"));
        assert_eq!(hop("192.0.2.1").as_deref(), Some("10.3.0.254"));
        assert_eq!(hop("2001:db8::5").as_deref(), Some("2001:db8::5"));
        assert_eq!(hop("2001:db9::5"), None);
    }

    #[test]
    fn the_source_is_on_the_peer_s_link_if_any_address_is() {
        let from = |peer: &str| side().source_for(peer.parse().unwrap()).unwrap().to_string();
        assert_eq!(from("10.4.0.9"), "10.4.0.1");
        assert_eq!(from("192.0.2.1"), "10.3.0.1");
        assert_eq!(from("2001:db8::9"), "2001:db8::1");
    }

    #[test]
    fn an_ipv6_port_also_has_its_link_local_address() {
        let side = side();
        assert!(side.owns(true, link_local(side.mac).to_bits()));
        assert!(side.owns(false, 0x0a030001) && !side.owns(true, 0x0a030001));
    }

    #[test]
    fn masks_cover_their_version_s_width() {
        assert_eq!(mask(false, 24), 0xffff_ff00);
        assert_eq!((mask(false, 0), mask(true, 0)), (0, 0));
        assert_eq!((mask(false, 32), mask(true, 128)), (0xffff_ffff, u128::MAX));
    }

    #[test]
    fn a_side_serves_its_instances_and_rules_that_name_none() {
        assert!(side().serves(None) && side().serves(Some("access")) && !side().serves(Some("internet")));
    }
}
