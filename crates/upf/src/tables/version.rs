//! One version of the tables: what workers look packets up in. Nobody changes it while any worker can see it.

use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;

use super::Bucket;
use super::mix::Mix;
use super::rule::Rule;
use crate::side::{self, PortId, Side};
use crate::tunnel::Tunnel;

/// The tables.
#[derive(Clone, Debug)]
pub struct Version {
    n3: Arc<Side>,
    n6: Arc<Side>,
    /// Sessions by TEIDs of the UPF's choice: index is the TEID's low bits, the other bits are checked.
    teids: Box<[TeidSlot]>,
    /// Sessions by TEIDs of the SMF's choice.
    other_teids: HashMap<u32, Rules>,
    ues_v4: HashMap<u32, Rules, Mix>,
    /// Sessions by IPv4 networks behind their UEs, longest first.
    routes_v4: Vec<(u8, HashMap<u32, Rules>)>,
    /// Sessions by IPv6 prefixes of 64 bits.
    ues_v6: HashMap<u64, Rules, Mix>,
    /// Sessions by IPv6 prefixes of other lengths, longest first.
    ues_v6_other: Vec<(u8, HashMap<u128, Rules>)>,
    hops: Vec<Hop>,
    /// Gateways of N6 in order, as indices into `hops`.
    gateways: Box<[u32]>,
    /// Other neighbours on N6, as indices into `hops`.
    neighbours_v4: HashMap<u32, u32, Mix>,
    neighbours_v6: HashMap<u128, u32>,
    /// What workers do when they take this version.
    news: Arc<[News]>,
}

/// What the worker that owns a session does once, between the packets of the version before and those of this one.
#[derive(Clone, Debug)]
pub enum News {
    /// Treat what waits by the rules that there are now.
    Release {
        /// The UPF's SEID.
        up_seid: u64,
        /// The session's bucket.
        home: Bucket,
    },
    /// Discard what waits.
    Discard {
        /// The UPF's SEID.
        up_seid: u64,
        /// The session's bucket.
        home: Bucket,
    },
    /// Send this end marker out of N3.
    EndMarker {
        /// The packet.
        marker: Tunnel,
        /// The session's bucket.
        home: Bucket,
    },
}

impl News {
    /// The bucket of the session that it is about.
    pub fn home(&self) -> Bucket {
        match *self {
            Self::Release { home, .. } | Self::Discard { home, .. } | Self::EndMarker { home, .. } => home,
        }
    }
}

/// One direction of a session.
#[derive(Clone, Debug)]
pub struct Rules {
    /// In order of precedence; at least one.
    pub rules: Arc<[Rule]>,
    /// The bucket whose worker owns the session.
    pub home: Bucket,
}

#[derive(Clone, Debug, Default)]
struct TeidSlot {
    /// 0 if the slot is free.
    teid: u32,
    home: Bucket,
    rules: Option<Arc<[Rule]>>,
}

/// A neighbour on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its IP address.
    pub address: IpAddr,
    /// Destination and source of frames to it. None while its Ethernet address is not known.
    pub ethernet: Option<[u8; 12]>,
}

/// How a session is found by the destination address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum UeKey {
    V4(u32),
    /// Network, and its length.
    V4Net(u32, u8),
    /// Network, and length of the prefix.
    V6(u128, u8),
}

/// One change. A version and its twin get the same changes one after the other.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Teid(u32, Option<Rules>),
    /// Of the SMF's choice.
    OtherTeid(u32, Option<Rules>),
    Ue(UeKey, Option<Rules>),
    Hop(u32, Hop),
    Neighbour(PortId, IpAddr, Option<u32>),
}

impl Version {
    /// Empty tables with `teids` (a power of two) slots for TEIDs of the UPF's choice.
    pub fn new(n3: Arc<Side>, n6: Arc<Side>, teids: usize) -> Self {
        assert!(teids.is_power_of_two());
        Self {
            n3,
            n6,
            teids: vec![TeidSlot::default(); teids].into(),
            other_teids: HashMap::new(),
            ues_v4: HashMap::default(),
            routes_v4: Vec::new(),
            ues_v6: HashMap::default(),
            ues_v6_other: Vec::new(),
            hops: Vec::new(),
            gateways: Box::new([]),
            neighbours_v4: HashMap::default(),
            neighbours_v6: HashMap::new(),
            news: Arc::new([]),
        }
    }

    /// The port's addresses and routes.
    #[inline]
    pub fn side(&self, port: PortId) -> &Side {
        match port {
            PortId::N3 => &self.n3,
            PortId::N6 => &self.n6,
        }
    }

    /// Uplink rules and home bucket for the TEID.
    #[inline]
    pub fn by_teid(&self, teid: u32) -> Option<(&[Rule], Bucket)> {
        let slot = &self.teids[teid as usize & (self.teids.len() - 1)];
        match &slot.rules {
            Some(rules) if slot.teid == teid => Some((rules, slot.home)),
            _ if self.other_teids.is_empty() => None,
            _ => self.other_teids.get(&teid).map(|found| (&*found.rules, found.home)),
        }
    }

    /// Downlink rules and home bucket for the UE address (IPv4 in the low 32 bits).
    #[inline]
    pub fn by_ue(&self, v6: bool, bits: u128) -> Option<(&[Rule], Bucket)> {
        let found = if !v6 {
            self.ues_v4.get(&(bits as u32)).or_else(|| self.by_route_v4(bits as u32))
        } else {
            self.by_ue_v6(bits)
        };
        found.map(|found| (&*found.rules, found.home))
    }

    #[cold]
    fn by_route_v4(&self, bits: u32) -> Option<&Rules> {
        self.routes_v4.iter().find_map(|(len, ues)| ues.get(&(bits & side::mask(false, *len) as u32)))
    }

    fn by_ue_v6(&self, bits: u128) -> Option<&Rules> {
        let (longer, shorter) = self.ues_v6_other.split_at(self.ues_v6_other.partition_point(|(len, _)| *len > 64));
        longest(longer, bits).or_else(|| self.ues_v6.get(&((bits >> 64) as u64))).or_else(|| longest(shorter, bits))
    }

    /// The neighbour with this index.
    #[inline]
    pub fn hop(&self, index: u32) -> &Hop {
        &self.hops[index as usize]
    }

    /// The gateway of N6 with this number (see [`Side::gateways`]).
    #[inline]
    pub fn gateway(&self, number: u16) -> &Hop {
        self.hop(self.gateways[usize::from(number)])
    }

    /// The neighbour on N6 with this address (IPv4 in the low 32 bits), if it is known.
    #[inline]
    pub fn neighbour(&self, v6: bool, bits: u128) -> Option<&Hop> {
        let found = if v6 { self.neighbours_v6.get(&bits) } else { self.neighbours_v4.get(&(bits as u32)) };
        found.map(|&index| self.hop(index))
    }

    /// What is to be done when this version is taken.
    pub fn news(&self) -> &[News] {
        &self.news
    }

    pub(super) fn set_news(&mut self, news: Vec<News>) {
        self.news = news.into();
    }

    pub(super) fn set_gateways(&mut self, gateways: Box<[u32]>) {
        self.gateways = gateways;
    }

    pub(super) fn make(&mut self, change: Change) {
        match change {
            Change::Teid(teid, rules) => {
                let slot = &mut self.teids[teid as usize & (self.teids.len() - 1)];
                *slot = match rules {
                    Some(Rules { rules, home }) => TeidSlot { teid, home, rules: Some(rules) },
                    None => TeidSlot::default(),
                };
            }
            Change::OtherTeid(teid, rules) => set(&mut self.other_teids, teid, rules),
            Change::Ue(UeKey::V4(address), rules) => set(&mut self.ues_v4, address, rules),
            Change::Ue(UeKey::V6(net, 64), rules) => set(&mut self.ues_v6, (net >> 64) as u64, rules),
            Change::Ue(UeKey::V4Net(net, len), rules) => set_net(&mut self.routes_v4, net, len, rules),
            Change::Ue(UeKey::V6(net, len), rules) => set_net(&mut self.ues_v6_other, net, len, rules),
            Change::Hop(index, hop) => {
                let index = index as usize;
                if index >= self.hops.len() {
                    self.hops.resize(index + 1, hop);
                }
                self.hops[index] = hop;
            }
            // On N3 neighbours are found by the index that tunnels have.
            Change::Neighbour(PortId::N3, ..) => {}
            Change::Neighbour(PortId::N6, IpAddr::V4(address), index) => {
                set(&mut self.neighbours_v4, address.to_bits(), index);
            }
            Change::Neighbour(PortId::N6, IpAddr::V6(address), index) => {
                set(&mut self.neighbours_v6, address.to_bits(), index);
            }
        }
    }
}

/// Sets the session of a network, where the lengths descend.
fn set_net<A: Hash + Eq>(nets: &mut Vec<(u8, HashMap<A, Rules>)>, net: A, len: u8, rules: Option<Rules>) {
    let at = nets.partition_point(|(other, _)| *other > len);
    if nets.get(at).is_none_or(|(other, _)| *other != len) {
        nets.insert(at, (len, HashMap::new()));
    }
    let (_, ues) = &mut nets[at];
    set(ues, net, rules);
    if ues.is_empty() {
        nets.remove(at);
    }
}

/// The session with the longest prefix, where the lengths descend.
fn longest(prefixes: &[(u8, HashMap<u128, Rules>)], bits: u128) -> Option<&Rules> {
    prefixes.iter().find_map(|(len, ues)| ues.get(&(bits & side::mask(true, *len))))
}

fn set<K: Hash + Eq, V, S: BuildHasher>(map: &mut HashMap<K, V, S>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

#[cfg(test)]
mod tests {
    use port::PortInfo;

    use super::*;

    fn version() -> Version {
        let side = |name| Arc::new(Side::new(&PortInfo::named(name), &[]));
        Version::new(side("n3"), side("n6"), 16)
    }

    fn rules(home: Bucket) -> Option<Rules> {
        Some(Rules { rules: Arc::new([]), home })
    }

    #[test]
    fn a_teid_is_found_by_all_its_bits() {
        let mut version = version();
        version.make(Change::Teid(0x123, rules(7)));
        assert_eq!(version.by_teid(0x123).unwrap().1, 7);
        assert!(version.by_teid(0x223).is_none() && version.by_teid(3).is_none());
        version.make(Change::OtherTeid(0x223, rules(8)));
        assert_eq!(version.by_teid(0x223).unwrap().1, 8);
        version.make(Change::Teid(0x123, None));
        assert!(version.by_teid(0x123).is_none() && version.by_teid(0).is_none());
    }

    #[test]
    fn an_address_is_found_before_the_longest_network_that_it_is_in() {
        let bits = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().to_bits();
        let mut version = version();
        version.make(Change::Ue(UeKey::V4(bits("10.45.0.1")), rules(1)));
        let networks = [("10.0.0.0", 8, 2), ("10.45.0.0", 24, 3), ("0.0.0.0", 0, 4)];
        for (net, len, home) in networks {
            version.make(Change::Ue(UeKey::V4Net(bits(net), len), rules(home)));
        }
        let home = |version: &Version, text| version.by_ue(false, bits(text).into()).map(|found| found.1);
        let found = |version: &Version| ["10.45.0.1", "10.45.0.2", "10.9.0.1", "11.0.0.1"].map(|to| home(version, to));
        assert_eq!(found(&version), [Some(1), Some(3), Some(2), Some(4)]);
        for (net, len, _) in networks {
            version.make(Change::Ue(UeKey::V4Net(bits(net), len), None));
        }
        assert_eq!(found(&version), [Some(1), None, None, None]);
    }

    #[test]
    fn the_longest_ue_prefix_is_found() {
        let net = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().to_bits();
        let mut version = version();
        for (text, len, home) in [("2001:db8::", 32, 1), ("2001:db8:0:1::", 64, 2), ("2001:db8:0:1::9", 128, 3)] {
            version.make(Change::Ue(UeKey::V6(net(text), len), rules(home)));
        }
        let home = |version: &Version, text| version.by_ue(true, net(text)).map(|found| found.1);
        assert_eq!(home(&version, "2001:db8:0:1::9"), Some(3));
        assert_eq!(home(&version, "2001:db8:0:1::8"), Some(2));
        assert_eq!(home(&version, "2001:db8:0:2::8"), Some(1));
        assert_eq!(home(&version, "2001:db9::1"), None);
        version.make(Change::Ue(UeKey::V6(net("2001:db8:0:1::9"), 128), None));
        assert_eq!(home(&version, "2001:db8:0:1::9"), Some(2));
    }
}
