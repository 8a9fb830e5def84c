//! The sides of the UPF: what each port is, which addresses are its own, and where its routes lead.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use port::{PortInfo, Steering};
use serde::{Deserialize, Serialize};

use crate::drops::DropReason;
use crate::rules::Interface;
use crate::template::Template;

/// One of the UPF's data-plane ports, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortId(Number);

/// Numbers of ports. So `Option<PortId>` takes no more room, and neither does what packets' fates are made of.
#[rustfmt::skip]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
enum Number {
    P0, P1, P2, P3, P4, P5, P6, P7, P8, P9, P10, P11, P12, P13, P14, P15,
    P16, P17, P18, P19, P20, P21, P22, P23, P24, P25, P26, P27, P28, P29, P30, P31,
}

impl Number {
    #[rustfmt::skip]
    const ALL: [Self; PortId::MAX] = {
        use Number::*;
        [
            P0, P1, P2, P3, P4, P5, P6, P7, P8, P9, P10, P11, P12, P13, P14, P15,
            P16, P17, P18, P19, P20, P21, P22, P23, P24, P25, P26, P27, P28, P29, P30, P31,
        ]
    };
}

impl PortId {
    /// Most ports of a UPF.
    pub const MAX: usize = 32;
    /// Towards the RAN: always the first.
    pub const N3: Self = Self(Number::P0);
    /// Towards a data network: always the second. There may be more.
    pub const N6: Self = Self(Number::P1);

    /// The port with this number.
    ///
    /// # Panics
    /// If it is not below [`PortId::MAX`].
    pub fn new(number: usize) -> Self {
        assert!(number < Self::MAX, "a UPF has at most {} ports", Self::MAX);
        Self(Number::ALL[number])
    }

    /// Its number.
    #[inline]
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// What a port is for (TS 23.501, 4.2.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// Towards the RAN: tunnels.
    #[default]
    N3,
    /// Towards other UPFs: tunnels.
    N9,
    /// Towards a data network: plain packets.
    N6,
}

impl PortKind {
    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::N3 => "n3",
            Self::N9 => "n9",
            Self::N6 => "n6",
        }
    }

    /// What says to which bucket a packet belongs that comes in: so that it is its session's home bucket, as the UPF chooses TEIDs.
    #[inline]
    pub fn steering(self) -> Steering {
        if self.has_tunnels() { Steering::Teid } else { Steering::UeAddress }
    }

    /// Why a port of this kind does not take a packet.
    #[cold]
    pub(crate) fn full(self) -> DropReason {
        match self {
            Self::N3 => DropReason::N3Full,
            Self::N9 => DropReason::N9Full,
            Self::N6 => DropReason::N6Full,
        }
    }

    /// Whether what comes in is in tunnels.
    #[inline]
    pub fn has_tunnels(self) -> bool {
        self != Self::N6
    }
}

/// A port's addresses and routes, fixed while the UPF runs.
#[derive(Clone, Debug)]
pub struct Side {
    /// What it is for.
    pub kind: PortKind,
    /// Its name.
    pub name: String,
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
    /// Of G-PDUs to the first of its IPv4 addresses, if it has one.
    gpdus: Option<Template>,
    /// Longest prefix first.
    routes_v4: Vec<Route<u32>>,
    routes_v6: Vec<Route<u128>>,
    gateways: Vec<IpAddr>,
    /// Addresses that UEs' packets get, in order.
    nat: Vec<u32>,
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
            kind: PortKind::default(),
            name: info.name.clone(),
            mac: info.mac,
            mtu: info.mtu.into(),
            addresses: info.addresses.clone(),
            network_instances: network_instances.to_vec(),
            own_v4: vec![],
            own_v6: vec![],
            gpdus: None,
            routes_v4: vec![],
            routes_v6: vec![],
            gateways: vec![],
            nat: vec![],
        };
        for &(address, prefix) in &info.addresses {
            match address {
                IpAddr::V4(address) => side.own_v4.push(address.to_bits()),
                IpAddr::V6(address) => side.own_v6.push(address.to_bits()),
            }
            side.add_route(address, prefix, NextHop::Link);
        }
        side.gpdus = side.own_v4.first().map(|&first| Template::new(side.mac, Ipv4Addr::from_bits(first)));
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

    /// The same for something else.
    #[must_use]
    pub fn of_kind(self, kind: PortKind) -> Self {
        Self { kind, ..self }
    }

    /// The same, by which UEs' packets get these addresses.
    #[must_use]
    pub fn with_nat(self, addresses: impl Iterator<Item = Ipv4Addr>) -> Self {
        let mut nat: Vec<_> = addresses.map(Ipv4Addr::to_bits).collect();
        nat.sort_unstable();
        Self { nat, ..self }
    }

    /// Whether UEs' IPv4 packets get other addresses.
    pub fn has_nat(&self) -> bool {
        !self.nat.is_empty()
    }

    /// Whether UEs' packets get this address.
    pub fn is_nat(&self, v6: bool, bits: u128) -> bool {
        !v6 && self.nat.binary_search(&(bits as u32)).is_ok()
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

    /// The UPF's own IPv6 addresses.
    pub fn own_v6(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.own_v6.iter().copied().map(Ipv6Addr::from_bits)
    }

    /// What usual G-PDUs to the UPF say, if they can come over IPv4.
    #[inline(always)]
    pub(crate) fn gpdus(&self) -> Option<&Template> {
        self.gpdus.as_ref()
    }

    /// Where packets for the address go. The longest prefix decides; none if no route leads there.
    #[inline(always)]
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

/// All sides of the UPF, by the numbers of their ports.
#[derive(Clone, Debug)]
pub struct Sides(Arc<[Side]>);

impl Sides {
    /// These sides, of which the first is N3's.
    pub fn new(sides: Vec<Side>) -> Self {
        assert!((1..=PortId::MAX).contains(&sides.len()), "a UPF has 1 to {} ports", PortId::MAX);
        Self(sides.into())
    }

    /// The side of a port.
    #[inline]
    pub fn get(&self, port: PortId) -> &Side {
        &self.0[port.number()]
    }

    /// What operators call a port: by what it is for, and by its own name where several are for that.
    pub fn label(&self, port: PortId) -> String {
        let side = self.get(port);
        let kind = side.kind.name();
        match self.0.iter().filter(|other| other.kind == side.kind).count() {
            1 => kind.to_owned(),
            _ => format!("{kind}:{}", side.name),
        }
    }

    /// All ports and their sides.
    pub fn iter(&self) -> impl Iterator<Item = (PortId, &Side)> {
        self.0.iter().enumerate().map(|(number, side)| (PortId::new(number), side))
    }

    /// The ports that a rule with this interface and network instance may mean, the likeliest first: those that name the
    /// instance, then those that any instance belongs to; of N3 and N9 the one that the interface tells of before the other
    /// one. To a rule without an instance the first port of a kind is the network.
    pub fn candidates(&self, interface: Interface, network_instance: Option<&str>) -> impl Iterator<Item = PortId> {
        let (usual, other) = match interface {
            Interface::Access => (PortKind::N3, Some(PortKind::N9)),
            Interface::Core => (PortKind::N9, Some(PortKind::N3)),
            Interface::SgiLan => (PortKind::N6, None),
        };
        let mut candidates: Vec<_> = self
            .iter()
            .filter(|(_, side)| side.kind == usual || Some(side.kind) == other)
            .filter(|(_, side)| side.serves(network_instance))
            .map(|(port, side)| {
                let any = network_instance.is_some() && side.network_instances.is_empty();
                ((any, side.kind != usual), port)
            })
            .collect();
        candidates.sort_by_key(|&(rank, _)| rank);
        // Data networks may have the same addresses.
        let most = if interface == Interface::SgiLan { 1 } else { usize::MAX };
        candidates.into_iter().take(most).map(|(_, port)| port)
    }

    /// The network of a rule.
    pub fn network(&self, interface: Interface, network_instance: Option<&str>) -> Option<PortId> {
        self.candidates(interface, network_instance).next()
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
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
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
    fn a_network_instance_leads_to_the_port_that_names_it_or_else_to_one_that_names_none() {
        let side = |kind, instances: &[&str]| {
            let instances: Vec<_> = instances.iter().map(|name| name.to_string()).collect();
            Side::new(&PortInfo::named(instances.first().map_or("rest", String::as_str)), &instances).of_kind(kind)
        };
        let sides = Sides::new(vec![
            side(PortKind::N3, &["access"]),
            side(PortKind::N6, &[]),
            side(PortKind::N6, &["ims"]),
            side(PortKind::N9, &["core", "roaming"]),
        ]);
        let labels: Vec<_> = sides.iter().map(|(port, _)| sides.label(port)).collect();
        assert_eq!(labels, ["n3", "n6:rest", "n6:ims", "n9"]);
        let network = |interface, name| sides.network(interface, name).map(PortId::number);
        assert_eq!(network(Interface::SgiLan, Some("ims")), Some(2));
        assert_eq!(network(Interface::SgiLan, Some("internet")), Some(1));
        assert_eq!(network(Interface::SgiLan, None), Some(1));
        assert_eq!(network(Interface::Access, None), Some(0));
        assert_eq!(network(Interface::Core, None), Some(3));
        // The anchor's end of N9 is its way to the RAN.
        assert_eq!(network(Interface::Access, Some("core")), Some(3));
        assert_eq!(network(Interface::Core, Some("elsewhere")), None);
        let all: Vec<_> = sides.candidates(Interface::Core, None).map(PortId::number).collect();
        assert_eq!(all, [3, 0]);
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
