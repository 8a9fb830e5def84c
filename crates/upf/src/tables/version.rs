//! One version of the tables: what workers look packets up in. Nobody changes it while any worker can see it.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::Bucket;
use super::network::{Network, set};
use super::rule::Rule;
use crate::side::{PortId, Side, Sides};
use crate::tunnel::Tunnel;

/// The tables.
#[derive(Clone, Debug)]
pub struct Version {
    /// By the numbers of their ports.
    networks: Box<[Network]>,
    /// Sessions by TEIDs of the UPF's choice: index is the TEID's low bits, the other bits are checked.
    teids: Box<[TeidSlot]>,
    /// Sessions by TEIDs of the SMF's choice.
    other_teids: HashMap<u32, Rules>,
    hops: Vec<Hop>,
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
    /// The port.
    pub port: PortId,
    /// Its IP address.
    pub address: IpAddr,
    /// Destination and source of frames to it. None while its Ethernet address is not known.
    pub ethernet: Option<[u8; 12]>,
}

/// How a session is found by the destination address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    Ue(PortId, UeKey, Option<Rules>),
    Hop(u32, Hop),
    Neighbour(PortId, IpAddr, Option<u32>),
}

impl Version {
    /// Empty tables with `teids` (a power of two) slots for TEIDs of the UPF's choice.
    pub fn new(sides: &Sides, teids: usize) -> Self {
        assert!(teids.is_power_of_two());
        Self {
            networks: sides.iter().map(|(_, side)| Network::new(side.clone())).collect(),
            teids: vec![TeidSlot::default(); teids].into(),
            other_teids: HashMap::new(),
            hops: Vec::new(),
            news: Arc::new([]),
        }
    }

    /// What the port leads to.
    #[inline]
    pub fn network(&self, port: PortId) -> &Network {
        &self.networks[port.number()]
    }

    /// The port's addresses and routes.
    #[inline]
    pub fn side(&self, port: PortId) -> &Side {
        &self.network(port).side
    }

    /// All sides.
    pub fn sides(&self) -> Sides {
        Sides::new(self.networks.iter().map(|network| network.side.clone()).collect())
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

    /// Downlink rules and home bucket for the UE address (IPv4 in the low 32 bits) in the data network of `port`.
    #[inline]
    pub fn by_ue(&self, port: PortId, v6: bool, bits: u128) -> Option<(&[Rule], Bucket)> {
        self.network(port).ue(v6, bits).map(|found| (&*found.rules, found.home))
    }

    /// The UPF's SEID of the session with this TEID.
    pub(super) fn owner_of_teid(&self, teid: u32) -> Option<u64> {
        self.by_teid(teid).and_then(|(rules, _)| owner(rules))
    }

    /// The UPF's SEID of the session with this address, or with just this network.
    pub(super) fn owner_of_ue(&self, port: PortId, ue: UeKey) -> Option<u64> {
        self.networks[port.number()].at(ue).and_then(|found| owner(&found.rules))
    }

    /// The neighbour with this index.
    #[inline]
    pub fn hop(&self, index: u32) -> &Hop {
        &self.hops[index as usize]
    }

    /// What is to be done when this version is taken.
    pub fn news(&self) -> &[News] {
        &self.news
    }

    pub(super) fn set_news(&mut self, news: Vec<News>) {
        self.news = news.into();
    }

    pub(super) fn set_gateways(&mut self, port: PortId, gateways: Box<[u32]>) {
        self.networks[port.number()].gateways = gateways;
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
            Change::Ue(port, key, rules) => self.networks[port.number()].set_ue(key, rules),
            Change::Hop(index, hop) => {
                let index = index as usize;
                if index >= self.hops.len() {
                    self.hops.resize(index + 1, hop);
                }
                self.hops[index] = hop;
            }
            Change::Neighbour(port, address, index) => self.networks[port.number()].set_neighbour(address, index),
        }
    }
}

fn owner(rules: &[Rule]) -> Option<u64> {
    rules.first().map(|rule| rule.origin().up_seid)
}

#[cfg(test)]
mod tests {
    use port::PortInfo;

    use super::*;
    use crate::side::PortKind;

    fn version() -> Version {
        let side = |name, kind| Side::new(&PortInfo::named(name), &[]).of_kind(kind);
        Version::new(&Sides::new(vec![side("n3", PortKind::N3), side("n6", PortKind::N6)]), 16)
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
        version.make(Change::Ue(PortId::N6, UeKey::V4(bits("10.45.0.1")), rules(1)));
        let networks = [("10.0.0.0", 8, 2), ("10.45.0.0", 24, 3), ("0.0.0.0", 0, 4)];
        for (net, len, home) in networks {
            version.make(Change::Ue(PortId::N6, UeKey::V4Net(bits(net), len), rules(home)));
        }
        let home = |version: &Version, text| version.by_ue(PortId::N6, false, bits(text).into()).map(|found| found.1);
        let found = |version: &Version| ["10.45.0.1", "10.45.0.2", "10.9.0.1", "11.0.0.1"].map(|to| home(version, to));
        assert_eq!(found(&version), [Some(1), Some(3), Some(2), Some(4)]);
        for (net, len, _) in networks {
            version.make(Change::Ue(PortId::N6, UeKey::V4Net(bits(net), len), None));
        }
        assert_eq!(found(&version), [Some(1), None, None, None]);
    }

    #[test]
    fn the_longest_ue_prefix_is_found() {
        let net = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().to_bits();
        let mut version = version();
        for (text, len, home) in [("2001:db8::", 32, 1), ("2001:db8:0:1::", 64, 2), ("2001:db8:0:1::9", 128, 3)] {
            version.make(Change::Ue(PortId::N6, UeKey::V6(net(text), len), rules(home)));
        }
        let home = |version: &Version, text| version.by_ue(PortId::N6, true, net(text)).map(|found| found.1);
        assert_eq!(home(&version, "2001:db8:0:1::9"), Some(3));
        assert_eq!(home(&version, "2001:db8:0:1::8"), Some(2));
        assert_eq!(home(&version, "2001:db8:0:2::8"), Some(1));
        assert_eq!(home(&version, "2001:db9::1"), None);
        version.make(Change::Ue(PortId::N6, UeKey::V6(net("2001:db8:0:1::9"), 128), None));
        assert_eq!(home(&version, "2001:db8:0:1::9"), Some(2));
    }
}
