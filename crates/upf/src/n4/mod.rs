//! N4: session managers install sessions here, by PFCP (TS 29.244).
//!
//! A request is validated, planned and committed. Validation turns what the message says into the session as it would be
//! ([`contents`]); planning reserves what the UPF has to choose; committing hands the whole session to the tables, and only
//! then is anything here changed. So an accepted request was applied, and a rejected one leaves no trace.
//!
//! [`Node`] is all of this without a socket or a clock: datagrams in, datagrams out. [`Endpoint`] is a node on a socket.

mod account;
mod activation;
mod activity;
mod address_choice;
mod addresses;
mod answers;
mod applications;
mod associate;
mod association;
mod contents;
mod custody;
mod endpoint;
mod endpoints;
mod filter;
mod held;
mod inquiry;
mod journal;
mod ledger;
mod limits;
mod managers;
mod node;
mod outbox;
mod particulars;
mod paths;
mod postponed;
mod reports;
mod restore;
mod round;
mod sessions;
mod translate;
mod tunnels;
mod urr;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pfcp::{NodeId, RecoveryTimeStamp};

pub use addresses::{PoolUsage, UeAddress};
pub use custody::Custody;
pub use endpoint::Endpoint;
pub use filter::{FilterError, parse_flow_description};
pub use inquiry::Inquiry;
pub use ledger::{Holdings, Ledger, Message};
pub use limits::Limits;
pub use node::{Datagram, Node, Taken};
pub use paths::{Echo, PathTerms};
pub use restore::{NotRestored, RestoreError};

use crate::address_pool::AddressPool;
use crate::config;
use crate::counters::Counters;
use crate::predefined::{PredefinedConfig, PredefinedRule};
use crate::rules::{Interface, UeIp};
use crate::tables::{ApplyError, Bucket, SessionUpdate, Tables, TeidsExhausted};

/// How this UPF presents itself on N4.
#[derive(Clone, Debug)]
pub struct Config {
    /// This UPF's name.
    pub node_id: NodeId,
    /// The address that session managers reach it at; part of its F-SEIDs.
    pub address: IpAddr,
    /// When it started. The [`Endpoint`] serves nobody before; see there.
    pub recovery: RecoveryTimeStamp,
    /// Time between two heartbeats to an associated peer.
    pub heartbeat: Duration,
    /// How long to wait for a response before a request is sent again (T1, 6.4).
    pub t1: Duration,
    /// How often a request is sent in all before its peer counts as gone (N1).
    pub n1: u32,
    /// Most packets of a session that wait, where no BAR suggests a number.
    pub max_buffered_packets: u16,
    /// The port that requests to peers are sent to.
    pub peer_port: u16,
    /// Session managers that this UPF asks for an association, and asks again until they accept.
    pub managers: Vec<SocketAddr>,
    /// How paths to GTP-U nodes are supervised.
    pub paths: PathTerms,
    /// For how long peers are asked to release their associations before this UPF ends; zero for not at all.
    pub release: Duration,
    /// Rules that session managers activate by their names.
    pub predefined_rules: BTreeMap<String, PredefinedRule>,
    /// Addresses to give to UEs.
    pub address_pools: Vec<AddressPool>,
    /// How long an address that was given back is not given out again.
    pub address_cooling: Duration,
    /// Network instances of N3 and N9; any where there are none.
    pub access_instances: Vec<String>,
    /// Network instances of the data networks; any where there are none.
    pub data_instances: Vec<String>,
    /// Bounds on what peers can make this UPF hold.
    pub limits: Limits,
}

impl From<&config::Config> for Config {
    fn from(config: &config::Config) -> Self {
        Self {
            node_id: match &config.n4.node_id {
                config::NodeId::Address(address) => NodeId::Address(*address),
                config::NodeId::Fqdn(name) => NodeId::Fqdn(name.clone()),
            },
            address: config.n4.listen.ip(),
            // The next second, as one before may have started, and served, in this one.
            recovery: RecoveryTimeStamp(RecoveryTimeStamp::now().0.wrapping_add(1)),
            heartbeat: config.heartbeat(),
            t1: config.t1(),
            n1: config.n4.n1,
            max_buffered_packets: config.max_buffered_packets,
            peer_port: pfcp::PORT,
            managers: config.n4.managers.iter().map(|manager| manager.0).collect(),
            paths: config.path_terms(),
            release: Duration::from_secs(config.n4.release_s.into()),
            predefined_rules: predefined(&config.predefined_rules),
            address_pools: config.address_pools.clone(),
            address_cooling: Duration::from_secs(config.address_cooling_s.into()),
            access_instances: config.instances(true),
            data_instances: config.instances(false),
            limits: Limits { sessions: config.max_sessions, ..Limits::default() },
        }
    }
}

/// A configuration that was checked has no others.
fn predefined(config: &BTreeMap<String, PredefinedConfig>) -> BTreeMap<String, PredefinedRule> {
    let rules = config.iter().enumerate();
    rules.filter_map(|(number, (name, rule))| Some((name.clone(), PredefinedRule::new(number, rule).ok()?))).collect()
}

/// What N4 needs of the session tables.
pub trait RuleTables {
    /// Local addresses of tunnels.
    fn tunnel_addresses(&self) -> Vec<IpAddr>;
    /// Those of the tunnels that a rule with this interface and network instance means.
    fn addresses_for(&self, interface: Interface, network_instance: Option<&str>) -> Vec<IpAddr>;
    /// The bucket that a session with this UE address belongs to.
    fn home_bucket(&self, ue: &UeIp) -> Bucket;
    /// Reserves a TEID that steers to `bucket`.
    fn reserve_teid(&self, bucket: Bucket) -> Result<u32, TeidsExhausted>;
    /// Gives a reserved TEID back.
    fn release_teid(&self, teid: u32);
    /// TEIDs of the UPF's choice were `given` out before and are `held` now, and none else: so they are counted on from.
    /// False if they do not fit; then none was given out.
    fn claim_teids(&self, given: &[u32], held: &[u32]) -> bool;
    /// The TEIDs last given out, one for each slot that ever was in use.
    fn teids_given(&self) -> Vec<u32>;
    /// The slot of a TEID that was reserved.
    fn teid_slot(&self, teid: u32) -> u32;
    /// What sessions count by.
    fn counters(&self) -> Counters;
    /// The UPF's SEIDs of the sessions in force.
    fn up_seids(&self) -> Vec<u64>;
    /// Whether sessions may be missing for a while, so that no peer is to be told that it has a tunnel which is not there.
    fn set_incomplete(&self, are: bool);
    /// Puts all updates into force, or none.
    fn apply(&self, updates: Vec<SessionUpdate>) -> Result<(), ApplyError>;
}

impl RuleTables for Tables {
    fn tunnel_addresses(&self) -> Vec<IpAddr> {
        self.tunnel_addresses()
    }

    fn addresses_for(&self, interface: Interface, network_instance: Option<&str>) -> Vec<IpAddr> {
        self.addresses_for(interface, network_instance)
    }

    fn home_bucket(&self, ue: &UeIp) -> Bucket {
        self.home_bucket(ue)
    }

    fn reserve_teid(&self, bucket: Bucket) -> Result<u32, TeidsExhausted> {
        self.reserve_teid(bucket)
    }

    fn release_teid(&self, teid: u32) {
        self.release_teid(teid);
    }

    fn claim_teids(&self, given: &[u32], held: &[u32]) -> bool {
        self.claim_teids(given, held)
    }

    fn teids_given(&self) -> Vec<u32> {
        self.teids_given()
    }

    fn teid_slot(&self, teid: u32) -> u32 {
        self.teid_slot(teid)
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    fn up_seids(&self) -> Vec<u64> {
        self.up_seids()
    }

    fn set_incomplete(&self, are: bool) {
        self.set_incomplete(are);
    }

    fn apply(&self, updates: Vec<SessionUpdate>) -> Result<(), ApplyError> {
        self.apply(updates)
    }
}
