//! One version of the tables: what workers look packets up in. Nobody changes it while any worker can see it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use port::{CacheLevel, PortInfo};
use serde::{Deserialize, Serialize};
use vport::tally::{LINE_WORDS, Line, Tallies};

use super::Bucket;
use super::direct::Direct;
use super::network::Network;
use super::rule::{Rule, Rules};
use crate::counters::Counters;
use crate::path::{Form, Path, PathKey, Tunnel};
use crate::policer::{Policers, Tokens};
use crate::side::{NextHop, PortId, Side, Sides};

/// The tables. Sessions are found as the places of their lists of rules.
#[derive(Clone, Debug)]
pub struct Version {
    sides: Sides,
    /// By the numbers of their ports. Beyond the last one nothing is found.
    networks: Box<[Network; PortId::MAX]>,
    /// Lists of rules by TEIDs.
    teids: Direct,
    hops: Vec<Hop>,
    paths: Vec<Path>,
    nowhere: Path,
    /// Where the rules lie, and what they count by.
    blocks: Arc<Tallies>,
    counters: Counters,
    policers: Policers,
    /// The cache that lines of many sessions are asked into.
    level: CacheLevel,
    /// What workers do when they take this version.
    news: Arc<[News]>,
}

/// What the worker that owns a session does once, between the packets of the version before and those of this one.
#[derive(Clone, Debug)]
pub enum News {
    /// Let a policer go on with what is left in its bucket, which lies elsewhere in this version.
    CarryOver {
        /// The word where its tokens were.
        from: u64,
        /// The word where they are now.
        to: u64,
        /// The session's bucket.
        home: Bucket,
    },
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
    /// Send this end marker, by the port of its path.
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
            Self::CarryOver { home, .. }
            | Self::Release { home, .. }
            | Self::Discard { home, .. }
            | Self::EndMarker { home, .. } => home,
        }
    }
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
    Teid(u32, Option<u32>),
    Ue(PortId, UeKey, Option<u32>),
    Hop(u32, Hop),
    /// There are few, and they are large.
    Path(u32, Box<Path>),
    Neighbour(PortId, IpAddr, Option<u32>),
}

impl Version {
    /// Empty tables for so many TEIDs of the UPF's choice, a power of two.
    pub fn new(sides: &Sides, teids: usize, blocks: Arc<Tallies>, counters: Counters, policers: Policers) -> Self {
        let nowhere = PathKey {
            port: PortId::N3,
            source: Ipv4Addr::UNSPECIFIED.into(),
            peer: Ipv4Addr::UNSPECIFIED.into(),
            tos: 0,
            form: Form::Bare,
        };
        let none = || Network::new(Side::new(&PortInfo::named(""), &[]), 1);
        let networks = sides.iter().map(|(_, side)| Network::new(side.clone(), teids));
        let networks: Vec<_> = networks.chain(std::iter::repeat_with(none)).take(PortId::MAX).collect();
        Self {
            sides: sides.clone(),
            networks: networks.try_into().expect("so many were taken"),
            teids: Direct::new(teids),
            hops: Vec::new(),
            paths: Vec::new(),
            nowhere: Path::new(&nowhere, 0, nowhere.peer).expect("both addresses are of one version"),
            blocks,
            counters,
            policers,
            level: CacheLevel::here(),
            news: Arc::new([]),
        }
    }

    /// The sides of all ports.
    pub fn sides(&self) -> &Sides {
        &self.sides
    }

    /// What the port leads to.
    #[inline(always)]
    pub fn network(&self, port: PortId) -> &Network {
        &self.networks[port.number()]
    }

    /// The port's addresses and routes.
    #[inline]
    pub fn side(&self, port: PortId) -> &Side {
        &self.network(port).side
    }

    /// Whether there are so many sessions that their rules are not in a core's own caches, which hold some 10,000 lines.
    #[inline(always)]
    pub(crate) fn is_large(&self) -> bool {
        const MANY: usize = 2_048;
        self.teids.len() >= MANY
    }

    /// The cache that what is asked for is best asked into.
    #[inline(always)]
    pub(crate) fn level(&self) -> CacheLevel {
        self.level
    }

    /// Asks for what [`Version::by_teid`] will look at.
    #[inline(always)]
    pub(crate) fn ask_teid(&self, teid: u32, level: CacheLevel) {
        self.teids.ask(teid, level);
    }

    /// The list of rules of the TEID, if it is found where [`Version::ask_teid`] asked.
    #[inline(always)]
    pub(crate) fn asked_teid(&self, teid: u32) -> Option<u32> {
        self.teids.at_place(teid)
    }

    /// Uplink rules for the TEID.
    #[inline(always)]
    pub fn by_teid(&self, teid: u32) -> Option<Rules<'_>> {
        self.teids.get(teid).map(|list| self.rules(list))
    }

    /// Downlink rules for the UE address (IPv4 in the low 32 bits) in the data network of `port`.
    #[inline(always)]
    pub fn by_ue(&self, port: PortId, v6: bool, bits: u128) -> Option<Rules<'_>> {
        self.network(port).ue(v6, bits).map(|list| self.rules(list))
    }

    /// The list of rules that begins there.
    #[inline(always)]
    pub(crate) fn rules(&self, list: u32) -> Rules<'_> {
        Rules::new(self, list)
    }

    /// The rule with this index.
    #[inline]
    pub fn rule(&self, index: u32) -> Option<Rule<'_>> {
        Rule::at(self, index)
    }

    /// The UPF's SEID of the session with this TEID.
    pub(super) fn owner_of_teid(&self, teid: u32) -> Option<u64> {
        self.by_teid(teid).and_then(|rules| self.owner(rules))
    }

    /// The UPF's SEID of the session with this address, or with just this network.
    pub(super) fn owner_of_ue(&self, port: PortId, ue: UeKey) -> Option<u64> {
        self.network(port).at(ue).and_then(|list| self.owner(self.rules(list)))
    }

    fn owner(&self, rules: Rules<'_>) -> Option<u64> {
        rules.first().map(|rule| rule.origin(self).up_seid)
    }

    /// Where rules lie.
    #[inline(always)]
    pub(super) fn lines(&self) -> &[Line] {
        self.blocks.lines()
    }

    /// Asks for a line of a rule.
    #[inline(always)]
    pub(super) fn ask_line(&self, line: u32, level: CacheLevel) {
        self.blocks.ask(line as usize, level);
    }

    /// The tokens of a policer, which are at this word.
    #[inline(always)]
    pub(crate) fn tokens(&self, word: u64) -> Option<&Tokens> {
        self.lines().as_flattened().get(word as usize..)?.first_chunk()
    }

    /// Asks for the line of that word.
    pub(crate) fn ask_tokens(&self, word: u64) {
        self.blocks.ask(word as usize / LINE_WORDS, CacheLevel::First);
    }

    /// Which policers packets are held against.
    #[inline(always)]
    pub(super) fn policers(&self) -> &Policers {
        &self.policers
    }

    /// What rules count by.
    #[inline(always)]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The path with this number.
    #[inline(always)]
    pub fn path(&self, number: u32) -> &Path {
        self.paths.get(number as usize).unwrap_or(&self.nowhere)
    }

    /// The neighbour with this index.
    #[inline]
    pub fn hop(&self, index: u32) -> &Hop {
        &self.hops[index as usize]
    }

    /// The neighbour that packets for an IPv4 address in the network go to. None where no route leads there, or it is not known.
    #[inline(always)]
    pub(crate) fn hop_v4(&self, network: &Network, destination: u32) -> Option<&Hop> {
        let index = match network.side.route(false, destination.into())? {
            NextHop::Link => network.neighbour(false, destination.into())?,
            NextHop::Gateway(number) => network.gateway(number),
        };
        Some(self.hop(index))
    }

    /// What is to be done when this version is taken.
    pub fn news(&self) -> Arc<[News]> {
        self.news.clone()
    }

    pub(super) fn set_news(&mut self, news: Vec<News>) {
        self.news = news.into();
    }

    pub(super) fn set_gateways(&mut self, port: PortId, gateways: Box<[u32]>) {
        self.networks[port.number()].gateways = gateways;
    }

    pub(super) fn make(&mut self, change: Change) {
        match change {
            Change::Teid(teid, list) => self.teids.set(teid, list),
            Change::Ue(port, key, list) => self.networks[port.number()].set_ue(key, list),
            Change::Path(number, path) => {
                let number = number as usize;
                if number >= self.paths.len() {
                    self.paths.resize(number + 1, self.nowhere.clone());
                }
                self.paths[number] = *path;
            }
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

#[cfg(test)]
mod tests {
    use port::PortInfo;

    use super::*;
    use crate::side::PortKind;

    fn version() -> Version {
        let side = |name, kind| Side::new(&PortInfo::named(name), &[]).of_kind(kind);
        let sides = Sides::new(vec![side("n3", PortKind::N3), side("n6", PortKind::N6)]);
        let (blocks, counters) = (Tallies::private(16).unwrap().into(), Counters::private(1).unwrap());
        Version::new(&sides, 16, blocks, counters, Policers::new(50, 1).unwrap())
    }

    fn list(rules: Option<Rules<'_>>) -> Option<u32> {
        rules.map(|rules| rules.list())
    }

    #[test]
    fn a_teid_is_found_by_all_its_bits() {
        let mut version = version();
        version.make(Change::Teid(0x123, Some(7)));
        assert_eq!(list(version.by_teid(0x123)), Some(7));
        assert!(version.by_teid(0x223).is_none() && version.by_teid(3).is_none());
        version.make(Change::Teid(0x223, Some(8)));
        assert_eq!(list(version.by_teid(0x223)), Some(8));
        version.make(Change::Teid(0x123, None));
        assert!(version.by_teid(0x123).is_none() && version.by_teid(0).is_none());
    }

    #[test]
    fn an_address_is_found_before_the_longest_network_that_it_is_in() {
        let bits = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().to_bits();
        let mut version = version();
        version.make(Change::Ue(PortId::N6, UeKey::V4(bits("10.45.0.1")), Some(1)));
        let networks = [("10.0.0.0", 8, 2), ("10.45.0.0", 24, 3), ("0.0.0.0", 0, 4)];
        for (net, len, home) in networks {
            version.make(Change::Ue(PortId::N6, UeKey::V4Net(bits(net), len), Some(home)));
        }
        let home = |version: &Version, text| list(version.by_ue(PortId::N6, false, bits(text).into()));
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
            version.make(Change::Ue(PortId::N6, UeKey::V6(net(text), len), Some(home)));
        }
        let home = |version: &Version, text| list(version.by_ue(PortId::N6, true, net(text)));
        assert_eq!(home(&version, "2001:db8:0:1::9"), Some(3));
        assert_eq!(home(&version, "2001:db8:0:1::8"), Some(2));
        assert_eq!(home(&version, "2001:db8:0:2::8"), Some(1));
        assert_eq!(home(&version, "2001:db9::1"), None);
        version.make(Change::Ue(PortId::N6, UeKey::V6(net("2001:db8:0:1::9"), 128), None));
        assert_eq!(home(&version, "2001:db8:0:1::9"), Some(2));
    }
}
