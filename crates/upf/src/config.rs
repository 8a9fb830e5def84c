//! The configuration file of `kaista-upf`.
//!
//! ```yaml
//! n4: {listen: "10.4.0.1:8805", nodeId: 10.4.0.1}
//! n3: {port: n3, networkInstances: [access]}
//! n6: {port: n6, networkInstances: [internet]}   # or a list
//! ```

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, iter};

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use slice::{Cidr, Mac, Route};

use crate::address_pool::AddressPool;
use crate::execution::Execution;
use crate::n4::PathTerms;
use crate::nat::SourceNat;
use crate::predefined::{PredefinedConfig, PredefinedRule};
use crate::side::{PortId, PortKind};

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The interface to session managers.
    pub n4: N4,
    /// The port towards the RAN.
    pub n3: PortConfig,
    /// The port towards other UPFs; N3's where there is none.
    #[serde(default)]
    pub n9: Option<PortConfig>,
    /// The ports towards data networks: one, or a list.
    #[serde(deserialize_with = "one_or_more")]
    pub n6: Vec<PortConfig>,
    /// Most sessions held at a time.
    #[serde(default = "default_max_sessions")]
    pub max_sessions: usize,
    /// How much of a maximum bit rate may pass at once after a pause, in milliseconds of that rate.
    #[serde(default = "default_policer_burst_ms")]
    pub policer_burst_ms: u32,
    /// Most packets of a session that wait while its UE is paged, where the session manager suggests no number.
    #[serde(default = "default_max_buffered_packets")]
    pub max_buffered_packets: u16,
    /// Mebibytes of packets that may wait, of all sessions.
    #[serde(default = "default_max_buffered_mib")]
    pub max_buffered_mib: u32,
    /// Seconds for which a packet waits at most.
    #[serde(default = "default_max_buffered_s")]
    pub max_buffered_s: u32,
    /// Rules that session managers activate by their names.
    #[serde(default)]
    pub predefined_rules: BTreeMap<String, PredefinedConfig>,
    /// Addresses to give to UEs where session managers leave the choice to the UPF.
    #[serde(default)]
    pub address_pools: Vec<AddressPool>,
    /// Seconds for which an address that was given back is not given out again.
    #[serde(default = "default_address_cooling_s")]
    pub address_cooling_s: u32,
    /// Where sessions are kept, so that they outlive the process: a directory of this UPF alone. They are not kept where
    /// there is none.
    #[serde(default)]
    pub state_directory: Option<PathBuf>,
    /// Messages of GTP-U other than users' packets.
    #[serde(default)]
    pub gtpu: Gtpu,
    /// Send UDP checksum zero in outer IPv6 headers (RFC 6935, 6936), where every peer is known to accept it.
    #[serde(default)]
    pub ipv6_zero_checksum: bool,
    /// How packets get to workers, and how many of these there are.
    #[serde(default)]
    pub execution: Execution,
    /// Where operators ask the UPF: a path, or `@` and a name in the network namespace that needs no file.
    #[serde(default = "default_control")]
    pub control: String,
    /// Where Prometheus scrapes `/metrics`.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
}

/// The N4 endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct N4 {
    /// Address and port to listen on; PFCP's port is 8805.
    pub listen: SocketAddr,
    /// Node ID of this UPF; an address, or a name in the form of a FQDN (TS 29.244, 8.2.38).
    pub node_id: NodeId,
    /// How often to send a heartbeat to each associated peer, in seconds.
    #[serde(default = "default_heartbeat_s")]
    pub heartbeat_s: u32,
    /// How long to wait for a response before a request is sent again, in milliseconds (T1).
    #[serde(default = "default_t1_ms")]
    pub t1_ms: u32,
    /// How often a request is sent in all before its peer counts as gone (N1).
    #[serde(default = "default_n1")]
    pub n1: u32,
    /// Session managers that this UPF asks for an association by itself; others may ask for one.
    #[serde(default)]
    pub managers: Vec<Manager>,
    /// For how long peers are asked to release their associations before this UPF ends, in seconds; 0 for not at all.
    #[serde(default)]
    pub release_s: u32,
}

/// GTP-U's path and error messages (TS 29.281, 7.2, 7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Gtpu {
    /// How often to send an echo request to each peer that tunnels lead to, in seconds; 0 for never.
    pub echo_s: u32,
    /// How long to wait for a response before a request is sent again, in milliseconds (T3-RESPONSE).
    pub t3_ms: u32,
    /// How often a request is sent in all before the path counts as failed (N3-REQUESTS).
    pub n3_requests: u32,
    /// For how long after its start the UPF sends no error indications, in seconds (TS 23.007).
    pub error_indication_hold_s: u32,
}

impl Default for Gtpu {
    fn default() -> Self {
        Self { echo_s: 60, t3_ms: 3_000, n3_requests: 5, error_indication_hold_s: 0 }
    }
}

/// Where a session manager is: an address, with a port if it is not PFCP's own. Names are not looked up, as a UPF cannot
/// wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Manager(pub SocketAddr);

impl TryFrom<String> for Manager {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = text.parse().map(|address| SocketAddr::new(address, pfcp::PORT));
        address.or_else(|_| text.parse()).map(Self).map_err(|_| format!("`{text}` is neither ADDRESS nor ADDRESS:PORT"))
    }
}

/// A node's name on N4.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(untagged)]
pub enum NodeId {
    /// An address.
    Address(IpAddr),
    /// A fully qualified domain name.
    Fqdn(String),
}

/// A data-plane port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortConfig {
    /// Name to open (see `port::open`).
    pub port: String,
    /// Network instances that this port belongs to. Rules that name no instance match it too.
    #[serde(default)]
    pub network_instances: Vec<String>,
    /// The UPF's addresses on a Linux interface. Of a port of a slice, the slice says them.
    #[serde(default)]
    pub addresses: Vec<Cidr>,
    /// Routes that lead out of a Linux interface.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// The UPF's Ethernet address on a Linux interface: by default the interface's, and one of its own behind a TAP.
    #[serde(default)]
    pub mac: Option<Mac>,
    /// Translates UEs' addresses on their way into a data network.
    #[serde(default)]
    pub source_nat: Option<SourceNat>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration")]
    Read(#[from] std::io::Error),
    /// The text is not a configuration.
    #[error("{0}")]
    Parse(String),
    /// A value cannot be used.
    #[error("{field}: {reason}")]
    Value {
        /// Where.
        field: &'static str,
        /// Why.
        reason: &'static str,
    },
}

impl Config {
    /// Reads and checks the file at `path`.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    /// Parses and checks the YAML `text`.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_saphyr::from_str(text).map_err(|e| ConfigError::Parse(e.to_string()))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |field, reason| Err(ConfigError::Value { field, reason });
        if self.n6.is_empty() {
            return wrong("n6", "names no port");
        }
        if self.ports().count() > PortId::MAX {
            return wrong("n6", "has too many ports; the UPF can have 32");
        }
        let mut names = HashSet::new();
        if self.ports().any(|(_, port)| !names.insert(&port.port)) {
            return wrong("n6.port", "is another one's port too; each of n3, n6 and n9 needs its own");
        }
        let mut instances = HashSet::new();
        if self.n6.iter().flat_map(|port| &port.network_instances).any(|instance| !instances.insert(instance)) {
            return wrong("n6.networkInstances", "names an instance twice");
        }
        if self.n6.iter().filter(|port| port.network_instances.is_empty()).count() > 1 {
            return wrong("n6.networkInstances", "is missing at more than one port; all instances not named go to one");
        }
        for (kind, port) in self.ports() {
            port.check().map_err(|reason| ConfigError::Value { field: kind.name(), reason })?;
            if kind.has_tunnels() && port.source_nat.is_some() {
                return wrong(kind.name(), "sourceNat is for data networks: it belongs to a port of n6");
            }
        }
        if self.n4.listen.ip().is_unspecified() {
            return wrong("n4.listen", "must be one of this function's addresses; the F-SEID carries it");
        }
        if !(1..=MAX_SESSIONS).contains(&self.max_sessions) {
            return wrong("maxSessions", "must be from 1 to 1048576");
        }
        if !(1..=1_000).contains(&self.policer_burst_ms) {
            return wrong("policerBurstMs", "must be from 1 to 1000");
        }
        if !(1..=65_536).contains(&self.max_buffered_mib) {
            return wrong("maxBufferedMib", "must be from 1 to 65536");
        }
        if !(1..=1_000_000).contains(&self.max_buffered_s) {
            return wrong("maxBufferedS", "must be from 1 to 1000000");
        }
        for (number, rule) in self.predefined_rules.values().enumerate() {
            if let Err(reason) = PredefinedRule::new(number, rule) {
                return wrong("predefinedRules", reason);
            }
        }
        if let Err(reason) = AddressPool::check(&self.address_pools) {
            return wrong("addressPools", reason);
        }
        if self.address_pools.iter().any(|pool| self.is_translated_to(pool)) {
            return wrong("addressPools", "has addresses that sourceNat gives to packets of the same network");
        }
        if self.n4.t1_ms == 0 || self.n4.n1 == 0 || self.n4.heartbeat_s == 0 {
            return wrong("n4", "t1Ms, n1 and heartbeatS must be over 0");
        }
        if (1..60).contains(&self.gtpu.echo_s) {
            return wrong("gtpu.echoS", "must be 0, or 60 at least: echo requests more often are not allowed");
        }
        if self.gtpu.t3_ms == 0 || self.gtpu.n3_requests == 0 {
            return wrong("gtpu", "t3Ms and n3Requests must be over 0");
        }
        if let Err((field, reason)) = self.execution.check() {
            return wrong(field, reason);
        }
        if self.execution.varies() && self.nats().next().is_some() {
            return wrong(
                "execution.workers",
                "min and max must be the same where a network has sourceNat: its bindings stay",
            );
        }
        if self.n4.managers.len() > MAX_MANAGERS {
            return wrong("n4.managers", "must be 64 at most");
        }
        Ok(())
    }

    /// All ports in the order of their numbers: N3, those of data networks, N9.
    pub fn ports(&self) -> impl Iterator<Item = (PortKind, &PortConfig)> {
        let n6 = self.n6.iter().map(|port| (PortKind::N6, port));
        iter::once((PortKind::N3, &self.n3)).chain(n6).chain(self.n9.iter().map(|port| (PortKind::N9, port)))
    }

    /// Whether UEs with addresses of the pool would have such as their network's packets get.
    fn is_translated_to(&self, pool: &AddressPool) -> bool {
        let shared = |port: &&PortConfig| {
            let (of_port, of_pool) = (&port.network_instances, &pool.network_instances);
            of_port.is_empty() || of_pool.is_empty() || of_port.iter().any(|instance| of_pool.contains(instance))
        };
        let nats = self.n6.iter().filter(shared).filter_map(|port| port.source_nat.as_ref());
        let mut outside = nats.flat_map(|nat| &nat.addresses);
        outside.any(|range| pool.ipv4.iter().any(|other| range.first <= other.last && other.first <= range.last))
    }

    /// Data networks with source NAT, by the numbers of their ports.
    pub fn nats(&self) -> impl Iterator<Item = (PortId, &SourceNat)> {
        let ports = self.ports().enumerate();
        ports.filter_map(|(number, (_, port))| Some((PortId::new(number), port.source_nat.as_ref()?)))
    }

    /// Network instances of tunnels, or of data networks; any where there are none.
    pub fn instances(&self, tunnels: bool) -> Vec<String> {
        let ports: Vec<_> =
            self.ports().filter(|(kind, _)| kind.has_tunnels() == tunnels).map(|(_, port)| port).collect();
        if ports.iter().any(|port| port.network_instances.is_empty()) {
            return vec![];
        }
        ports.into_iter().flat_map(|port| port.network_instances.clone()).collect()
    }

    /// Time between two heartbeats to a peer.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_secs(self.n4.heartbeat_s.into())
    }

    /// How paths to GTP-U nodes are supervised.
    pub fn path_terms(&self) -> PathTerms {
        PathTerms {
            period: Duration::from_secs(self.gtpu.echo_s.into()),
            t3: Duration::from_millis(self.gtpu.t3_ms.into()),
            n3: self.gtpu.n3_requests,
        }
    }

    /// T1 of TS 29.244, 6.4.
    pub fn t1(&self) -> Duration {
        Duration::from_millis(self.n4.t1_ms.into())
    }
}

/// A list, or its only element.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PortConfig>, D::Error> {
    struct OneOrMore;

    impl<'de> Visitor<'de> for OneOrMore {
        type Value = Vec<PortConfig>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a port, or a list of ports")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            Ok(vec![PortConfig::deserialize(MapAccessDeserializer::new(map))?])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(seq))
        }
    }

    deserializer.deserialize_any(OneOrMore)
}

/// Most sessions that a configuration may ask for.
pub const MAX_SESSIONS: usize = 1 << 20;

/// Most session managers that a configuration may name.
pub const MAX_MANAGERS: usize = 64;

fn default_max_sessions() -> usize {
    1 << 17
}

fn default_control() -> String {
    crate::control::DEFAULT.into()
}

fn default_policer_burst_ms() -> u32 {
    50
}

fn default_max_buffered_packets() -> u16 {
    128
}

fn default_max_buffered_mib() -> u32 {
    64
}

fn default_max_buffered_s() -> u32 {
    crate::buffers::MAX_AGE.as_secs() as u32
}

fn default_address_cooling_s() -> u32 {
    60
}

fn default_heartbeat_s() -> u32 {
    10
}

fn default_t1_ms() -> u32 {
    1_000
}

fn default_n1() -> u32 {
    3
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "n4: {listen: '10.4.0.1:8805', nodeId: 10.4.0.1}\nn3: {port: n3}\nn6: {port: n6}\n";

    #[test]
    fn the_smallest_file_gets_defaults() {
        let config = Config::parse(SMALLEST).unwrap();
        assert_eq!(config.n4.node_id, NodeId::Address("10.4.0.1".parse().unwrap()));
        assert_eq!(config.max_sessions, 131_072);
        assert!(!config.ipv6_zero_checksum);
    }

    #[test]
    fn a_node_may_have_a_domain_name() {
        let text = SMALLEST.replace("nodeId: 10.4.0.1", "nodeId: upf.example.org");
        assert_eq!(Config::parse(&text).unwrap().n4.node_id, NodeId::Fqdn("upf.example.org".into()));
    }

    #[test]
    fn managers_have_addresses_with_or_without_a_port() {
        let text = SMALLEST.replace("nodeId:", "managers: [10.4.0.2, '10.4.0.3:18805', '2001:db8::4'], nodeId:");
        let addresses = ["10.4.0.2:8805", "10.4.0.3:18805", "[2001:db8::4]:8805"];
        let managers = Config::parse(&text).unwrap().n4.managers;
        assert_eq!(managers, addresses.map(|text| Manager(text.parse().unwrap())));
        assert!(Config::parse(&text.replace("10.4.0.2,", "smf.example.org,")).is_err());
    }

    #[test]
    fn there_may_be_several_data_networks_and_a_port_for_n9() {
        let more =
            "n9: {port: n9, networkInstances: [core]}\nn6:\n- {port: n6a, networkInstances: [internet]}\n- {port: n6b}";
        let config = Config::parse(&SMALLEST.replace("n6: {port: n6}", more)).unwrap();
        let ports: Vec<_> = config.ports().map(|(kind, port)| (kind, port.port.as_str())).collect();
        let expected = [(PortKind::N3, "n3"), (PortKind::N6, "n6a"), (PortKind::N6, "n6b"), (PortKind::N9, "n9")];
        assert_eq!(ports, expected);
        // N3 and the second data network take what nobody names.
        assert_eq!((config.instances(true), config.instances(false)), (vec![], vec![]));
        for wrong in [
            "n6: []",
            "n6: [{port: n6a}, {port: n6b}]",
            "n6: [{port: n6a, networkInstances: [a]}, {port: n6b, networkInstances: [b, a]}]",
            "n6: [{port: n6a, networkInstances: [a]}, {port: n6a, networkInstances: [b]}]",
            "n6: {port: n6}\nn9: {port: n6}",
            "n6: n6",
        ] {
            assert!(Config::parse(&SMALLEST.replace("n6: {port: n6}", wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_data_network_may_have_its_ues_addresses_translated() {
        let nat = "sourceNat: {addresses: [203.0.113.0/28, 203.0.113.40-203.0.113.41], ports: 2000-60000, filtering: endpointIndependent}";
        let config = Config::parse(&SMALLEST.replace("n6: {port: n6}", &format!("n6: {{port: n6, {nat}}}"))).unwrap();
        let nat = config.n6[0].source_nat.as_ref().unwrap();
        assert_eq!((nat.each_address().count(), nat.ports.last), (16, 60_000));
        assert_eq!((nat.ports_per_block, nat.blocks_per_ue, nat.udp_timeout_s), (256, 4, 300));
    }

    #[test]
    fn why_a_file_cannot_be_read_is_said_once() {
        let refused = Config::read(Path::new("/nonexistent/upf.yaml")).unwrap_err();
        let why = format!("{:#}", anyhow::Error::from(refused));
        assert_eq!(why, "cannot read the configuration: No such file or directory (os error 2)");
    }

    #[test]
    fn mistakes_are_refused() {
        for (from, to) in [
            ("port: n6", "port: n3"),
            ("10.4.0.1:8805", "0.0.0.0:8805"),
            ("n6: {port: n6}", "n6: {port: n6}\nmaxSessions: 0"),
            ("n6: {port: n6}", "n6: {port: n6}\nworkers: 4"),
            ("n6: {port: n6}", "n6: {port: n6}\nexecution: {workers: {min: 2, max: 1}}"),
            (
                "n6: {port: n6}",
                "n6: {port: n6, sourceNat: {addresses: [203.0.113.0/28]}}\nexecution: {workers: {min: 1, max: 2}}",
            ),
            ("n6: {port: n6}", "n6: {port: n6}\ngtpu: {echoS: 59}"),
            ("n6: {port: n6}", "n6: {port: n6, addresses: [10.6.0.1/24]}"),
            ("n6: {port: n6}", "n6: {port: \"packet:eth1\"}"),
            ("n6: {port: n6}", "n6: {port: n6, sourceNat: {}}"),
            ("n6: {port: n6}", "n6: {port: n6, sourceNat: {addresses: []}}"),
            ("n6: {port: n6}", "n6: {port: n6, sourceNat: {addresses: [203.0.113.1]}}"),
            ("n6: {port: n6}", "n6: {port: n6, sourceNat: {addresses: [203.0.113.0/28], udpTimeoutS: 30}}"),
            ("n6: {port: n6}", "n6: {port: n6, sourceNat: {addresses: [203.0.113.0/28], filtering: none}}"),
            ("n6: {port: n6}", "n6: {port: n6, sourceNat: {addresses: [203.0.113.0/28], hairpin: true}}"),
            ("n6: {port: n6}", "n6: {port: n6}\nn9: {port: n9, sourceNat: {addresses: [203.0.113.0/28]}}"),
            (
                "n6: {port: n6}",
                "n6: {port: n6, sourceNat: {addresses: [10.45.0.0/28]}}\naddressPools: [{name: a, ipv4: [10.45.0.0/16]}]",
            ),
        ] {
            assert!(Config::parse(&SMALLEST.replace(from, to)).is_err(), "{to}");
        }
    }
}
