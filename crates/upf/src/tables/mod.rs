//! The compiled session tables, and the handle by which N4 and the slow path change them.
//!
//! Rules lie in blocks of memory that may outlive the process ([`blocks`]); the tables say where.
//!
//! Of the tables there are two copies. Workers see one; whoever has changes makes them in the other, publishes it, waits until every
//! worker has let go of the first, and makes the same changes there. So a change costs what it changes, not what there
//! is; a worker takes a new version between two bursts with one load and one store; and nothing is locked, counted or
//! freed where packets pass.

pub(crate) mod blocks;
mod compile;
mod direct;
mod filter;
mod homes;
mod hops;
mod image;
mod mix;
mod network;
mod paths;
mod policers;
mod publish;
mod record;
mod rule;
mod teid;
mod version;
mod writer;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use vport::steering;

pub use blocks::Blocks;

use crate::counters::Counters;
use crate::policer::Policers;
use crate::rules::{Interface, Session, UeIp};
use crate::side::{PortId, PortKind, Side, Sides};
pub(crate) use filter::Key;
pub use homes::Homes;
pub use network::Network;
pub use publish::Reader;
pub use rule::{Action, Origin, Outer, Rule, Rules};
use teid::TeidAllocator;
pub use teid::TeidsExhausted;
pub use version::{Hop, News, Version};
use writer::{Ground, Writer};

/// A share of the sessions (0..[`BUCKETS`]), which one worker owns.
pub type Bucket = u8;

/// Number of buckets.
pub const BUCKETS: usize = steering::BUCKETS;

/// What to do with one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionUpdate {
    /// Put in force; replaces the session of the same UP SEID as a whole, and keeps the state of its unchanged policers.
    Put(Session),
    /// Take out of force. Unknown SEIDs are ignored.
    Remove(u64),
}

/// Why updates were not put into force. Nothing was changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Another session has this local TEID.
    #[error("TEID {0:#x} belongs to another session")]
    TeidInUse(u32),
    /// Another session has this UE address, or this prefix.
    #[error("UE address {0} belongs to another session")]
    UeAddressInUse(IpAddr),
    /// A PDR names a FAR or QER that the session lacks.
    #[error("PDR {pdr} names a rule that the session lacks")]
    DanglingRule {
        /// The PDR's ID.
        pdr: u16,
    },
    /// A session has more rules than lie together, or more maximum bit rates.
    #[error("the session has too many rules")]
    TooLarge,
    /// The configured number of sessions is reached, or the number of shared policers that goes with it.
    #[error("no room for another session")]
    Full,
    /// The workers have ended.
    #[error("the workers have ended")]
    Stopped,
}

/// How large tables are, and how their rules act.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Most sessions.
    pub max_sessions: usize,
    /// Milliseconds of a maximum bit rate that may pass at once.
    pub policer_burst_ms: u32,
    /// Number of workers, which own the buckets in turn.
    pub workers: usize,
}

impl Settings {
    /// Most policers that sessions share: QER correlation IDs with a maximum bit rate, counted once for each direction.
    fn max_shared_policers(&self) -> usize {
        self.max_sessions * 4
    }

    /// TEIDs that can be reserved at a time.
    fn max_teids(&self) -> usize {
        (self.max_sessions * 2).next_power_of_two()
    }
}

/// The tables as seen from outside the workers. Clones are the same tables.
#[derive(Clone)]
pub struct Tables {
    shared: Arc<Shared>,
}

struct Shared {
    sides: Sides,
    counters: Counters,
    homes: Homes,
    teids: Mutex<TeidAllocator>,
    writer: Mutex<Writer>,
    incomplete: AtomicBool,
}

/// Called with the addresses of neighbours that rules need from now on.
pub type Wanted = Box<dyn Fn(PortId, IpAddr) + Send>;

/// Where rules lie and what they count by. It may outlive the process.
#[derive(Debug)]
pub struct Memory {
    /// The rules.
    pub blocks: Blocks,
    /// The counters.
    pub counters: Counters,
}

impl Memory {
    /// Memory of this process alone, for so many sessions.
    pub fn private(sessions: usize) -> io::Result<Self> {
        Ok(Self { blocks: Blocks::private(sessions)?, counters: Counters::private(sessions)? })
    }
}

impl Tables {
    /// Empty tables of a UPF between N3 and one data network, see [`Tables::over`].
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(settings: &Settings, n3: Side, n6: Side, wanted: Wanted) -> (Self, Vec<Reader>) {
        let sides = Sides::new(vec![n3.of_kind(PortKind::N3), n6.of_kind(PortKind::N6)]);
        let memory = Memory::private(settings.max_sessions).expect("memory");
        Self::over(settings, sides, memory, wanted).expect("memory")
    }

    /// Tables, and the readers of the workers. `wanted` is told which neighbours to resolve. The sessions that an earlier process
    /// with the same ports and settings left in `memory` are in force. Fails if there is no memory.
    pub fn over(settings: &Settings, sides: Sides, memory: Memory, wanted: Wanted) -> io::Result<(Self, Vec<Reader>)> {
        let Memory { blocks, counters } = memory;
        let policers = Policers::new(settings.policer_burst_ms, settings.max_shared_policers())?;
        let mut version = Version::new(&sides, settings.max_teids(), blocks.lines(), counters.clone(), policers);
        let ground = Ground::new(settings, &sides, blocks, &mut version);
        let (publisher, readers) = publish::channel(version, settings.workers);
        let writer = Writer::new(settings, sides.clone(), ground, publisher, wanted);
        let teids = TeidAllocator::new(settings.max_teids());
        let (teids, writer) = (Mutex::new(teids), Mutex::new(writer));
        let homes = Homes::new(settings.workers);
        let shared = Shared { sides, counters, homes, teids, writer, incomplete: AtomicBool::new(false) };
        Ok((Self { shared: Arc::new(shared) }, readers))
    }

    /// Tables that no worker reads, so that everything takes effect at once. Local N3 addresses are `local`.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn without_workers(max_sessions: usize, local: &[IpAddr], memory: Memory) -> Self {
        let mut info = port::PortInfo::named("n3");
        info.addresses = local.iter().map(|&address| (address, if address.is_ipv4() { 24 } else { 64 })).collect();
        let settings = Settings { max_sessions, policer_burst_ms: 50, workers: 0 };
        let n3 = Side::new(&info, &[]).of_kind(PortKind::N3);
        let n6 = Side::new(&port::PortInfo::named("n6"), &[]).of_kind(PortKind::N6);
        Self::over(&settings, Sides::new(vec![n3, n6]), memory, Box::new(|_, _| {})).expect("memory").0
    }

    /// What sessions count by.
    pub fn counters(&self) -> Counters {
        self.shared.counters.clone()
    }

    /// Has `with` look at what is in force.
    pub fn look<R>(&self, with: impl FnOnce(&Version) -> R) -> R {
        with(self.writer().in_force())
    }

    /// The UPF's SEIDs of the sessions in force.
    pub fn up_seids(&self) -> Vec<u64> {
        self.writer().up_seids()
    }

    /// The local addresses of N3 and N9, for F-TEIDs.
    pub fn tunnel_addresses(&self) -> Vec<IpAddr> {
        let tunnels = self.shared.sides.iter().filter(|(_, side)| side.kind.has_tunnels());
        tunnels.flat_map(|(_, side)| side.addresses.iter().map(|&(address, _)| address)).collect()
    }

    /// The local addresses of the port that a rule with this interface and network instance means.
    pub fn addresses_for(&self, interface: Interface, network_instance: Option<&str>) -> Vec<IpAddr> {
        let port = self.shared.sides.network(interface, network_instance);
        let addresses = port.map(|port| self.shared.sides.get(port).addresses.iter());
        addresses.into_iter().flatten().map(|&(address, _)| address).collect()
    }

    /// The sides of all ports.
    pub fn sides(&self) -> Sides {
        self.shared.sides.clone()
    }

    /// The home bucket of the session with this UE address: that of its IPv4 address, or of its IPv6 prefix where it
    /// has no IPv4 address.
    pub fn home_bucket(&self, ue: &UeIp) -> Bucket {
        home_bucket(ue)
    }

    /// Reserves a TEID that steers to `bucket`. It stays reserved until [`Tables::release_teid`], whatever sessions do.
    pub fn reserve_teid(&self, bucket: Bucket) -> Result<u32, TeidsExhausted> {
        let writer = self.writer();
        self.teids().reserve(bucket, |teid| writer.has_teid(teid))
    }

    /// Gives a reserved TEID back. It is not chosen again soon.
    pub fn release_teid(&self, teid: u32) {
        self.teids().release(teid);
    }

    /// TEIDs of the UPF's choice were `given` out before and are `held` now, and none else. False if they do not fit: then
    /// none was given out.
    pub fn claim_teids(&self, given: &[u32], held: &[u32]) -> bool {
        self.teids().claim(given, held)
    }

    /// The TEIDs of the UPF's choice that were last given out, one for each slot that ever was in use.
    pub fn teids_given(&self) -> Vec<u32> {
        self.teids().given().collect()
    }

    /// The slot of a TEID of the UPF's choice.
    pub fn teid_slot(&self, teid: u32) -> u32 {
        self.teids().slot(teid)
    }

    /// Puts all updates into force at once, or none. Returns when every worker forwards by them.
    pub fn apply(&self, updates: Vec<SessionUpdate>) -> Result<(), ApplyError> {
        let mut writer = self.writer();
        writer.apply(updates)
    }

    /// Whether sessions are missing for a while that will be there again.
    pub fn set_incomplete(&self, are: bool) {
        self.shared.incomplete.store(are, Ordering::Release);
    }

    /// Whether there is no session with this TEID, nor will be one as far as is known.
    pub fn is_foreign(&self, teid: u32) -> bool {
        // In this order, as the session is there before nothing is missing any more.
        !self.shared.incomplete.load(Ordering::Acquire) && !self.writer().has_teid(teid)
    }

    /// Sets or forgets the Ethernet addresses of neighbours. A forgotten neighbour stays known, without an address, while
    /// rules lead to it.
    pub fn set_neighbours(&self, neighbours: &[(PortId, IpAddr, Option<[u8; 6]>)]) -> Result<(), ApplyError> {
        self.writer().set_neighbours(neighbours)
    }

    /// Whether rules or routes lead to the neighbour.
    pub fn leads_to(&self, port: PortId, address: IpAddr) -> bool {
        let is_gateway = self.shared.sides.get(port).gateways().contains(&address);
        is_gateway || self.writer().leads_to(port, address)
    }

    /// Number of sessions in force.
    pub fn sessions(&self) -> usize {
        self.writer().sessions()
    }

    /// Number of the version in force.
    pub fn version(&self) -> u64 {
        self.writer().version()
    }

    /// The UPF's SEID of the session that packets from the data network for this address belong to.
    pub fn session_of(&self, ue: IpAddr) -> Option<u64> {
        self.writer().session_of(ue)
    }

    /// The home bucket of a session in force.
    pub fn home_of(&self, up_seid: u64) -> Option<Bucket> {
        self.writer().home_of(up_seid)
    }

    /// Which worker owns which bucket.
    pub fn homes(&self) -> Homes {
        self.shared.homes.clone()
    }

    /// Which worker owns the session.
    pub fn worker_of(&self, up_seid: u64) -> Option<usize> {
        self.shared.homes.owner(self.home_of(up_seid)?)
    }

    fn teids(&self) -> MutexGuard<'_, TeidAllocator> {
        self.shared.teids.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.shared.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn home_bucket(ue: &UeIp) -> Bucket {
    match (ue.v4, ue.v6) {
        (Some(v4), _) => steering::address_bucket(v4.into()),
        (None, Some((v6, _))) => steering::address_bucket(v6.into()),
        (None, None) => 0,
    }
}
