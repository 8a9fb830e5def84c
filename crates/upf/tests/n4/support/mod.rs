//! What the tests of N4 share: real tables that are watched, and a session manager's messages.
#![allow(dead_code)] // No test uses all of it.

pub mod drive;
pub mod metered;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pfcp::node::AssociationSetup;
use pfcp::rule::{
    ApplyAction, CreateFar, CreatePdr, CreateQer, CreatedPdr, FTeid, ForwardingParameters, GateStatus, Interface,
    OuterHeaderCreation, OuterHeaderRemoval, Pdi, UeIp, UpdateFar, UpdateForwardingParameters,
};
use pfcp::session::{Established, Establishment, FSeid, Modification, Modified};
use pfcp::{Fault, Header, NodeId, RecoveryTimeStamp, Request, Response};
use upf::address_pool::AddressPool;
use upf::alarms::Alarms;
use upf::clock::Clock;
use upf::counters::Counters;
use upf::n4::{Config, Limits, Node, PathTerms, RuleTables, Taken, UeAddress};
use upf::predefined::{PredefinedConfig, PredefinedRule, QerConfig};
use upf::rules::{self, Parting, Session};
use upf::tables::{ApplyError, Bucket, Memory, SessionUpdate, Tables, TeidsExhausted};
use upf::usage::Usage;

pub const N3: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 1);
pub const GNB: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 2);
pub const SMF: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 4, 0, 2));

/// Counts a packet, as a worker does.
pub fn count(usages: &[Usage], uplink: bool, octets: usize, now_ns: u64, alarms: &mut Alarms) {
    usages.iter().for_each(|usage| usage.gauge().count(uplink, octets as u64, now_ns, alarms));
}

/// Real tables, and a record of what was done to them.
#[derive(Clone)]
pub struct Watched {
    tables: Tables,
    seen: Arc<Mutex<Seen>>,
    incomplete: Arc<AtomicBool>,
    /// Whether anything was put in force or taken out while sessions counted as all there.
    pub exposed: Arc<AtomicBool>,
}

/// What the tables hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub sessions: BTreeMap<u64, Arc<Session>>,
    pub reserved: BTreeSet<u32>,
    /// What the last update was to do once.
    pub parting: Parting,
    /// To be returned by the next update instead of doing it.
    pub refuse: Option<ApplyError>,
}

impl Watched {
    pub fn new(max_sessions: usize) -> Self {
        Self::on(max_sessions, Memory::private(max_sessions).unwrap())
    }

    /// With what an earlier process left in `memory`.
    pub fn on(max_sessions: usize, memory: Memory) -> Self {
        Self::at(max_sessions, &[IpAddr::V4(N3), "2001:db8:3::1".parse().unwrap()], memory)
    }

    /// With these addresses on N3.
    pub fn at(max_sessions: usize, local: &[IpAddr], memory: Memory) -> Self {
        let tables = Tables::without_workers(max_sessions, local, memory);
        Self { tables, seen: Arc::default(), incomplete: Arc::default(), exposed: Arc::default() }
    }

    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    pub fn refuse_next(&self, error: ApplyError) {
        self.seen.lock().unwrap().refuse = Some(error);
    }

    pub fn refuse_none(&self) {
        self.seen.lock().unwrap().refuse = None;
    }

    /// The rules in force are those of the sessions, to the octet: who puts the same in force again changes nothing.
    pub fn check_in_force(&self) {
        let before = self.tables.version();
        let sessions = self.seen().sessions;
        assert_eq!(self.tables.up_seids().into_iter().collect::<BTreeSet<_>>(), sessions.keys().copied().collect());
        let same = sessions.values().map(|session| SessionUpdate::Put((**session).clone()));
        self.tables.apply(same.collect()).unwrap();
        assert_eq!(self.tables.version(), before, "something else was in force");
    }

    /// Of sessions without traffic endpoints: no TEID is reserved that none of them uses.
    pub fn check(&self) {
        let seen = self.seen();
        let used = |teid| {
            let mut pdrs = seen.sessions.values().flat_map(|session| &session.pdrs);
            pdrs.any(|pdr| pdr.pdi.f_teid.is_some_and(|f_teid| f_teid.teid == teid))
        };
        assert!(seen.reserved.iter().all(|&teid| used(teid)));
        assert_eq!(self.tables.sessions(), seen.sessions.len());
    }
}

impl RuleTables for Watched {
    fn tunnel_addresses(&self) -> Vec<IpAddr> {
        self.tables.tunnel_addresses()
    }

    fn addresses_for(&self, interface: rules::Interface, network_instance: Option<&str>) -> Vec<IpAddr> {
        self.tables.addresses_for(interface, network_instance)
    }

    fn home_bucket(&self, ue: &upf::rules::UeIp) -> Bucket {
        self.tables.home_bucket(ue)
    }

    fn reserve_teid(&self, bucket: Bucket) -> Result<u32, TeidsExhausted> {
        let teid = self.tables.reserve_teid(bucket)?;
        assert!(self.seen.lock().unwrap().reserved.insert(teid), "a TEID is given out once");
        Ok(teid)
    }

    fn release_teid(&self, teid: u32) {
        assert!(self.seen.lock().unwrap().reserved.remove(&teid), "only what is reserved is released");
        self.tables.release_teid(teid);
    }

    fn claim_teids(&self, given: &[u32], held: &[u32]) -> bool {
        self.seen.lock().unwrap().reserved = held.iter().copied().collect();
        self.tables.claim_teids(given, held)
    }

    fn teids_given(&self) -> Vec<u32> {
        self.tables.teids_given()
    }

    fn teid_slot(&self, teid: u32) -> u32 {
        self.tables.teid_slot(teid)
    }

    fn counters(&self) -> Counters {
        self.tables.counters()
    }

    fn up_seids(&self) -> Vec<u64> {
        self.tables.up_seids()
    }

    fn set_incomplete(&self, are: bool) {
        self.tables.set_incomplete(are);
        self.incomplete.store(are, Ordering::Relaxed);
    }

    fn apply(&self, updates: Vec<SessionUpdate>) -> Result<(), ApplyError> {
        self.exposed.fetch_or(!self.incomplete.load(Ordering::Relaxed), Ordering::Relaxed);
        let mut seen = self.seen.lock().unwrap();
        if let Some(error) = seen.refuse.take() {
            return Err(error);
        }
        self.tables.apply(updates.clone())?;
        for update in updates {
            match update {
                SessionUpdate::Put(mut session) => {
                    seen.parting = std::mem::take(&mut session.parting);
                    seen.sessions.insert(session.up_seid, Arc::new(session))
                }
                SessionUpdate::Remove(seid) => seen.sessions.remove(&seid),
            };
        }
        Ok(())
    }
}

pub fn config() -> Config {
    Config {
        node_id: NodeId::Fqdn("upf.example.org".into()),
        address: "10.4.0.1".parse().unwrap(),
        recovery: RecoveryTimeStamp(3_900_000_000),
        heartbeat: Duration::from_secs(10),
        t1: Duration::from_secs(1),
        n1: 3,
        max_buffered_packets: 100,
        peer_port: pfcp::PORT,
        managers: vec![],
        release: Duration::ZERO,
        predefined_rules: BTreeMap::from([
            ("dns".into(), predefined(0, &["permit out 17 from any 53 to assigned"], None)),
            ("slow".into(), predefined(1, &[], Some(1))),
            ("closed".into(), predefined(2, &["permit out 6 from any 25 to assigned"], Some(0))),
        ]),
        address_pools: vec![
            pool("internet", &["10.60.0.30-10.60.0.39"], &["2001:db8:5::/61"], 64),
            pool("wide", &[], &["2001:db8:6::/54"], 56),
        ],
        address_cooling: Duration::from_secs(60),
        paths: PathTerms { period: Duration::ZERO, t3: Duration::from_secs(3), n3: 3 },
        access_instances: vec!["access".into()],
        data_instances: vec!["internet".into()],
        limits: Limits { associations: 4, sessions: 32, pdrs: 8, fars: 8, qers: 8, per_pdr: 4, ..Limits::default() },
    }
}

/// With this downlink rate, if any; 0 closes the gate.
fn predefined(number: usize, filters: &[&str], kbps: Option<u64>) -> PredefinedRule {
    let qer = kbps.map(|kbps| QerConfig {
        downlink_gate_closed: kbps == 0,
        downlink_mbr_kbps: Some(kbps),
        qfi: Some(7),
        ..QerConfig::default()
    });
    let filters = filters.iter().map(|&text| text.to_owned()).collect();
    PredefinedRule::new(number, &PredefinedConfig { filters, qer }).unwrap()
}

fn pool(name: &str, ipv4: &[&str], ipv6: &[&str], ipv6_prefix_length: u8) -> AddressPool {
    AddressPool {
        name: name.into(),
        network_instances: vec!["internet".into()],
        ipv4: ipv4.iter().map(|text| (*text).to_owned().try_into().unwrap()).collect(),
        ipv6: ipv6.iter().map(|text| (*text).to_owned().try_into().unwrap()).collect(),
        ipv6_prefix_length,
    }
}

/// A node, a clock, and a session manager that numbers its requests.
pub struct Bench {
    pub node: Node<Watched>,
    pub clock: Clock,
    pub now: Instant,
    pub sequence: u32,
    pub from: SocketAddr,
    /// Sessions as they were when they were looked at, and what they held.
    known: BTreeMap<u64, (Arc<Session>, Taken)>,
}

impl Bench {
    pub fn new() -> Self {
        let clock = Clock::new();
        Self::of(Node::new(config(), Watched::new(64), clock), clock, Instant::now())
    }

    /// With an association, and these addresses on N3.
    pub fn at(local: &[IpAddr]) -> Self {
        Self::with(config(), local)
    }

    /// As [`Bench::at`], set up so.
    pub fn with(config: Config, local: &[IpAddr]) -> Self {
        let clock = Clock::new();
        let tables = Watched::at(64, local, Memory::private(64).unwrap());
        let mut bench = Self::of(Node::new(config, tables, clock), clock, Instant::now());
        bench.associate();
        bench
    }

    /// Around a node that there is already.
    pub fn of(node: Node<Watched>, clock: Clock, now: Instant) -> Self {
        let from = SocketAddr::new(SMF, pfcp::PORT);
        Self { node, clock, now, sequence: 0, from, known: BTreeMap::new() }
    }

    /// With an association.
    pub fn associated() -> Self {
        let mut bench = Self::new();
        bench.associate();
        bench
    }

    fn associate(&mut self) {
        let Response::AssociationSetup(setup) = self.ask(0, &setup("smf", 1_000)) else { panic!() };
        assert_eq!(setup.outcome, Ok(()));
    }

    pub fn octets(&mut self, octets: &[u8]) -> Option<Vec<u8>> {
        let datagram = self.node.handle(octets, self.from, self.now)?;
        assert_eq!(datagram.to, self.from);
        Some(datagram.octets)
    }

    /// Sends `request` under a new sequence number, and checks the frame of the response.
    pub fn ask(&mut self, seid: u64, request: &Request) -> Response {
        self.ask_with_header(seid, request).0
    }

    pub fn ask_with_header(&mut self, seid: u64, request: &Request) -> (Response, Header) {
        self.sequence += 1;
        let answer = self.octets(&request.encode(seid, self.sequence)).expect("an answer");
        let (header, body) = Header::parse(&answer).unwrap();
        assert_eq!(header.sequence, self.sequence);
        assert_eq!(header.message_type.0, request.message_type().0 + 1);
        self.check();
        (Response::parse(&header, body).unwrap(), header)
    }

    pub fn seen(&self) -> Seen {
        self.node.tables().seen()
    }

    /// What the node believes is in force must be what the tables hold, and what sessions hold must be all that is taken.
    /// Sessions that have not changed since are not looked at again.
    pub fn check(&mut self) {
        let seen = self.seen();
        assert!(self.node.up_seids().eq(seen.sessions.keys().copied()));
        self.known.retain(|seid, (known, _)| seen.sessions.get(seid).is_some_and(|held| Arc::ptr_eq(known, held)));
        for (&seid, session) in &seen.sessions {
            if !self.known.contains_key(&seid) {
                assert_eq!(self.node.session(seid).as_ref(), Some(&**session));
                self.known.insert(seid, (session.clone(), self.node.taken(seid).unwrap()));
            }
        }
        assert_eq!(self.node.tables().tables.sessions(), seen.sessions.len());
        let teids: BTreeSet<u32> = self.known.values().flat_map(|(_, taken)| &taken.teids).copied().collect();
        assert_eq!(teids, seen.reserved, "TEIDs are reserved if and only if a session holds them");
        self.check_addresses();
    }

    /// Looks at all sessions again.
    pub fn check_all(&mut self) {
        self.known.clear();
        self.check();
    }

    /// Of each pool the addresses are taken that sessions have, and no others.
    fn check_addresses(&self) {
        let (mut v4, mut v6, mut wide) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for address in self.known.values().flat_map(|(_, taken)| &taken.addresses) {
            match *address {
                UeAddress::V4(address) if (ue(30)..=ue(39)).contains(&address) => {
                    v4.insert(address);
                }
                UeAddress::V4(_) => {}
                UeAddress::V6(net, length) => {
                    v6.extend(covered(net, length, "2001:db8:5::", 61, 64));
                    wide.extend(covered(net, length, "2001:db8:6::", 54, 56));
                }
            }
        }
        let usage = self.node.pool_usage();
        let held = (usage[0].v4.0, usage[0].v6.0, usage[1].v6.0);
        assert_eq!(held, (v4.len() as u64, v6.len() as u64, wide.len() as u64));
    }
}

/// The prefixes of `unit` bits in the network `pool`, of `pool_length` bits, that a prefix has a part in.
fn covered(net: Ipv6Addr, length: u8, pool: &str, pool_length: u8, unit: u8) -> impl Iterator<Item = u128> {
    let pool = pool.parse::<Ipv6Addr>().unwrap().to_bits() >> (128 - u32::from(unit));
    let all = pool..pool + (1 << (unit - pool_length));
    all.filter(move |prefix| {
        let shift = 128 - u32::from(length.min(unit));
        net.to_bits() >> shift == (prefix << (128 - u32::from(unit))) >> shift
    })
}

pub fn setup(name: &str, recovery: u32) -> Request {
    Request::AssociationSetup(AssociationSetup::new(NodeId::Fqdn(name.into()), RecoveryTimeStamp(recovery)))
}

pub fn ue(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 60, 0, number)
}

pub fn ue_ip(number: u8, destination: bool) -> Option<UeIp> {
    Some(UeIp { v4: Some(ue(number)), destination, ..UeIp::default() })
}

pub fn uplink_pdr(id: u16, ue: u8, f_teid: FTeid) -> CreatePdr {
    CreatePdr {
        id,
        precedence: 100,
        pdi: Pdi {
            f_teid: Some(f_teid),
            ue_ip: ue_ip(ue, false),
            network_instance: Some("access".into()),
            ..Pdi::from_interface(Interface::Access)
        },
        outer_header_removal: Some(OuterHeaderRemoval::GTPU_UDP_IPV4),
        far_id: Some(1),
        qer_ids: vec![1],
        ..CreatePdr::default()
    }
}

pub fn downlink_pdr(id: u16, ue: u8) -> CreatePdr {
    CreatePdr {
        id,
        precedence: 100,
        pdi: Pdi {
            ue_ip: ue_ip(ue, true),
            network_instance: Some("internet".into()),
            ..Pdi::from_interface(Interface::SgiLan)
        },
        far_id: Some(2),
        qer_ids: vec![1],
        ..CreatePdr::default()
    }
}

pub fn uplink_far(id: u32) -> CreateFar {
    CreateFar {
        id,
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(ForwardingParameters {
            destination_interface: Interface::SgiLan,
            network_instance: Some("internet".into()),
            outer_header_creation: None,
            transport_level_marking: None,
            others: vec![],
        }),
        duplicating_parameters: vec![],
        bar_id: None,
        others: vec![],
    }
}

pub fn downlink_far(id: u32, teid: u32) -> CreateFar {
    CreateFar {
        id,
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(ForwardingParameters {
            destination_interface: Interface::Access,
            network_instance: Some("access".into()),
            outer_header_creation: Some(OuterHeaderCreation::gtpu(teid, GNB.into())),
            transport_level_marking: None,
            others: vec![],
        }),
        duplicating_parameters: vec![],
        bar_id: None,
        others: vec![],
    }
}

/// Changes where a FAR forwards to.
pub fn forwarding_update(id: u32, parameters: UpdateForwardingParameters) -> UpdateFar {
    UpdateFar {
        id,
        apply_action: None,
        forwarding_parameters: Some(parameters),
        duplicating_parameters: vec![],
        bar_id: None,
        others: vec![],
    }
}

pub fn qer(id: u32) -> CreateQer {
    CreateQer {
        id,
        gate_status: GateStatus { uplink_open: true, downlink_open: true },
        mbr: Some(pfcp::rule::BitRate { uplink_kbps: 50_000, downlink_kbps: 200_000 }),
        gbr: None,
        qfi: Some(9),
        reflective: None,
        correlation_id: None,
        others: vec![],
    }
}

pub const CHOOSE: FTeid = FTeid::Choose { v4: true, v6: false, id: None };

/// A session as a session manager sets it up for the UE `number`.
pub fn establishment(number: u8) -> Establishment {
    Establishment {
        node_id: NodeId::Fqdn("smf".into()),
        cp_f_seid: FSeid::new(0x5000 + u64::from(number), SMF),
        pdn_type: Some(1),
        create_pdrs: vec![uplink_pdr(1, number, CHOOSE), downlink_pdr(2, number)],
        create_fars: vec![uplink_far(1), downlink_far(2, 0x7000 + u32::from(number))],
        create_qers: vec![qer(1)],
        create_urrs: vec![],
        create_bars: vec![],
        create_endpoints: vec![],
        inactivity_timer_s: None,
        others: vec![],
    }
}

pub fn establish(bench: &mut Bench, request: Establishment) -> Result<Established, Fault> {
    let seid = request.cp_f_seid.seid;
    let (response, header) = bench.ask_with_header(0, &Request::SessionEstablishment(request));
    assert_eq!(header.seid, Some(seid), "a response is for the peer's SEID");
    let Response::SessionEstablishment(response) = response else { panic!("{response:?}") };
    assert_eq!(response.node_id, config().node_id);
    response.outcome
}

pub fn modify(bench: &mut Bench, seid: u64, request: Modification) -> Result<Modified, Fault> {
    match bench.ask(seid, &Request::SessionModification(request)) {
        Response::SessionModification(response) => response.outcome,
        other => panic!("{other:?}"),
    }
}

pub fn delete(bench: &mut Bench, seid: u64) -> Result<(), Fault> {
    match bench.ask(seid, &Request::SessionDeletion) {
        Response::SessionDeletion(response) => response.outcome.map(|usage| assert_eq!(usage, [])),
        other => panic!("{other:?}"),
    }
}

pub fn chosen(created: &[CreatedPdr], pdr: u16) -> u32 {
    match created.iter().find(|created| created.id == pdr).and_then(|created| created.f_teid) {
        Some(FTeid::Given { teid, .. }) => teid,
        other => panic!("{other:?}"),
    }
}
