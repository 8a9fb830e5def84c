//! The two sides of the UPF: what each port is, which addresses are its own, and where its routes lead.

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
    own: Vec<Address>,
    routes: Vec<Route>,
}

/// An address of either version; IPv4 in the low 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address {
    v6: bool,
    bits: u128,
}

#[derive(Clone, Copy, Debug)]
struct Route {
    v6: bool,
    net: u128,
    mask: u128,
    prefix: u8,
    via: Option<IpAddr>,
}

impl Side {
    /// The side that a port makes. A port with any IPv6 address has a link-local one too, made from its Ethernet address.
    pub fn new(info: &PortInfo, network_instances: &[String]) -> Self {
        let mut own: Vec<_> = info.addresses.iter().map(|&(address, _)| Address::from(address)).collect();
        if own.iter().any(|address| address.v6) {
            own.push(Address { v6: true, bits: link_local(info.mac).to_bits() });
        }
        let on_link = info.addresses.iter().map(|&(address, prefix)| Route::new(address, prefix, None));
        let routed = info.routes.iter().map(|route| Route::new(route.to, route.prefix, Some(route.via)));
        let mut routes: Vec<_> = on_link.chain(routed).collect();
        routes.sort_by_key(|route| std::cmp::Reverse(route.prefix));
        Self {
            mac: info.mac,
            mtu: info.mtu.into(),
            addresses: info.addresses.clone(),
            network_instances: network_instances.to_vec(),
            own,
            routes,
        }
    }

    /// Whether the address (IPv4 in the low 32 bits) is the UPF's own.
    #[inline]
    pub fn owns(&self, v6: bool, bits: u128) -> bool {
        self.own.contains(&Address { v6, bits })
    }

    /// The neighbour that packets for the address go to: the address itself on the link, or a gateway. The longest prefix
    /// decides; none where no route leads there.
    #[inline]
    pub fn next_hop(&self, v6: bool, bits: u128) -> Option<IpAddr> {
        let route = self.routes.iter().find(|route| route.v6 == v6 && bits & route.mask == route.net)?;
        Some(route.via.unwrap_or_else(|| address(v6, bits)))
    }

    /// The gateways of all routes.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.routes.iter().filter_map(|route| route.via)
    }

    /// The own address to send to `peer` from: the one on its link, or else the first of its version.
    pub fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        let peer = Address::from(peer);
        let same_version = |(address, _): &&(IpAddr, u8)| address.is_ipv6() == peer.v6;
        let on_link = |&&(address, prefix): &&(IpAddr, u8)| {
            let mask = mask(peer.v6, prefix);
            Address::from(address).bits & mask == peer.bits & mask
        };
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

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        let (v6, bits) = bits(address);
        Self { v6, bits }
    }
}

impl Route {
    fn new(to: IpAddr, prefix: u8, via: Option<IpAddr>) -> Self {
        let Address { v6, bits } = to.into();
        let mask = mask(v6, prefix);
        Self { v6, net: bits & mask, mask, prefix, via }
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
        let (v6, bits) = bits(to.parse().unwrap());
        side().next_hop(v6, bits).map(|hop| hop.to_string())
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
