//! A UPF of several workers between a gNB, a data network and another UPF that are the test itself.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use port::{OpenOptions, PacketRef, Port, PortInfo, QueuePair, Steering};
use upf::bell::Bell;
use upf::counters::Counters;
use upf::elastic::Elastic;
use upf::function::{Place, Plan, Upf};
use upf::rules::*;
use upf::side::{PortId, PortKind};
use upf::tables::{Memory, SessionUpdate, Tables};
use upf::usage::{Usage, UsageId, UsageTerms};
use vport::broker::{self, Broker, EndSpec, LinkKind, LinkSpec, RING_BYTES_DEFAULT};

use crate::flows::{Flow, Kind, framed, number, set_number, v6};
use crate::sessions::{info, qer, session, ue};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Packets under way at a time: what no ring is too small for, however the workers share the cores.
const UNDER_WAY: u64 = 1_000;
/// Packets of flows that are policed, or wait.
const FEW: u32 = 2_000;
/// UEs; those of each kind begin at another number.
const UES: u32 = 40;

/// The ports, by their numbers at the UPF, and what they are called.
const LINKS: [(&str, &str, Steering, PortKind); 3] = [
    ("n3", "10.3.0", Steering::Teid, PortKind::N3),
    ("n6", "10.6.0", Steering::UeAddress, PortKind::N6),
    ("n9", "10.9.0", Steering::Teid, PortKind::N9),
];
const N3: usize = 0;
const N6: usize = 1;
const N9: usize = 2;

pub struct Scene {
    pub upf: Upf,
    peers: Vec<Port>,
    sources: [Vec<Source>; 3],
    usages: Vec<(Usage, Vec<Flow>)>,
    _broker: Broker,
    folder: PathBuf,
}

/// A flow with the packet that it consists of.
struct Source {
    flow: Flow,
    frame: Vec<u8>,
    next: u32,
}

/// What is known of what flows.
#[derive(Default)]
pub struct Signs {
    stop: AtomicBool,
    over: AtomicBool,
    sent: AtomicU64,
    arrived: AtomicU64,
    /// Of flows that are neither policed nor wait: next numbers.
    next: Mutex<HashMap<u32, u32>>,
    wrong: Mutex<Vec<String>>,
    policed: AtomicU32,
    paged: AtomicU32,
}

impl Scene {
    pub fn new(test: &str, workers: u16, plan: Plan) -> Self {
        let folder = std::env::temp_dir().join(format!("kaista-elastic-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let broker = Broker::start(broker::Config { hugepages: false }, |_| {}).unwrap();
        for function in ["upf", "peer"] {
            let socket = Broker::bind(&folder.join(function)).unwrap();
            broker.listen(function, socket, 0..u32::MAX).unwrap();
        }
        let open = |function: &str, name: &str| {
            port::open(name, &OpenOptions { socket: folder.join(function), ..OpenOptions::default() }).unwrap()
        };
        let mut places = vec![];
        let mut peers = vec![];
        let queues = if plan.sender { 1 } else { workers };
        for (name, net, steering, kind) in LINKS {
            let mut own = info(name, &format!("{net}.1"), queues, steering);
            own.addresses.push((format!("2001:db8:{}::1", &net[3..4]).parse().unwrap(), 64));
            let other = PortInfo { queues: 1, ..info(name, &format!("{net}.2"), 1, Steering::None) };
            let ends = [EndSpec::of("upf", own), EndSpec::of("peer", other)];
            let (name, ring_bytes) = (name.to_owned(), RING_BYTES_DEFAULT);
            broker.add_link(LinkSpec { name: name.clone(), ends, ring_bytes, kind: LinkKind::Direct }).unwrap();
            places.push(Place { kind, network_instances: vec![], port: open("upf", &name) });
            peers.push(open("peer", &name));
        }
        let begin = Instant::now();
        while !broker.ports().unwrap().iter().all(|port| port.up) {
            assert!(begin.elapsed() < PATIENCE, "links do not come up");
            std::thread::sleep(Duration::from_millis(1));
        }
        let counters = Counters::private(1_000).unwrap();
        let memory = Memory { counters: counters.clone(), ..Memory::private(1_000).unwrap() };
        let upf = Upf::with_memory(&Plan { max_sessions: 1_000, ..plan }, places, memory).unwrap();
        let mut scene = Self { upf, peers, sources: Default::default(), usages: vec![], _broker: broker, folder };
        scene.settle_neighbours();
        scene.install(&counters);
        scene
    }

    fn settle_neighbours(&self) {
        let known = [(0, "10.3.0.2"), (1, "10.6.0.9"), (1, "2001:db8:6::9"), (2, "10.9.0.2")];
        let known = known.map(|(port, address)| (PortId::new(port), address.parse().unwrap(), Some([2; 6])));
        self.upf.tables.set_neighbours(&known).unwrap();
    }

    /// Sessions of every kind, and their flows.
    fn install(&mut self, counters: &Counters) {
        let mut updates = vec![];
        for number in 1..=UES {
            let (mut both, teid) = anchored(&self.upf.tables, number);
            let seid = both.up_seid;
            let usage =
                Usage::new(counters.open(0).unwrap(), UsageId { up_seid: seid, urr: 1 }, &UsageTerms::default());
            both.urrs = vec![Urr { id: 1, measures: true, usage: usage.clone(), quota_far_id: None }];
            both.pdrs.iter_mut().for_each(|pdr| pdr.urr_ids = vec![1]);
            updates.push(SessionUpdate::Put(both));
            let uplink = [Kind::Uplink, Kind::UplinkQfi, Kind::UplinkV6].map(|kind| Flow { ue: number, kind });
            let downlink =
                [Kind::Downlink, Kind::DownlinkV6, Kind::DownlinkFramed].map(|kind| Flow { ue: number, kind });
            self.sources[N3].extend(uplink.map(|flow| Source::new(flow, teid)));
            self.sources[N6].extend(downlink.map(|flow| Source::new(flow, 0)));
            self.usages.push((usage, [uplink, downlink].concat()));
        }
        for number in UES + 1..=UES + 10 {
            let (relayed, teids) = relayed(&self.upf.tables, number);
            updates.push(SessionUpdate::Put(relayed));
            self.sources[N3].push(Source::new(Flow { ue: number, kind: Kind::ToN9 }, teids.0));
            self.sources[N9].push(Source::new(Flow { ue: number, kind: Kind::FromN9 }, teids.1));
        }
        updates.extend((0..POLICED).map(|n| policed(n, false)));
        self.sources[N6].extend((0..POLICED).map(|n| Source::new(Flow { ue: UES + 11 + n, kind: Kind::Policed }, 0)));
        updates.extend((0..PAGED).map(|n| paged(&self.upf.tables, n, false)));
        self.sources[N6].extend((0..PAGED).map(|n| Source::new(Flow { ue: UES + 21 + n, kind: Kind::Paged }, 0)));
        self.upf.tables.apply(updates).unwrap();
    }

    /// Has packets flow while `meanwhile` runs, and until all have arrived; then looks at what there is to look at.
    pub fn play(self, meanwhile: impl FnOnce(&Elastic, &Tables) + Send) -> Upf {
        self.play_to_the_end(meanwhile, |_| {})
    }

    /// The same, with `afterwards` when all have arrived, while the workers run still.
    pub fn play_to_the_end(
        mut self,
        meanwhile: impl FnOnce(&Elastic, &Tables) + Send,
        afterwards: impl FnOnce(&Elastic),
    ) -> Upf {
        let signs = &Signs::default();
        let elastic = self.upf.elastic.clone().expect("several workers");
        let (stop, tables) = (&AtomicBool::new(false), self.upf.tables.clone());
        let bells = self.upf.bells.clone();
        let crew = &mut self.upf;
        let peers = std::mem::take(&mut self.peers);
        let sources = std::mem::take(&mut self.sources);
        let sent = std::thread::scope(|scope| {
            let end = End { signs, stop, bells: &bells };
            crew.threads().for_each(|mut work| drop(scope.spawn(move || work(stop))));
            let producers: Vec<_> = peers
                .into_iter()
                .zip(sources)
                .map(|(mut port, sources)| {
                    let QueuePair { mut rx, mut tx } = port.queues.remove(0);
                    scope.spawn(move || {
                        while !signs.over.load(Ordering::Relaxed) {
                            let burst = rx.recv();
                            if burst.is_empty() {
                                std::thread::yield_now();
                            }
                            (0..burst.len()).for_each(|at| signs.judge(&copy(&burst.get(at))));
                        }
                        drop(port);
                    });
                    scope.spawn(move || produce(&mut *tx, sources, signs))
                })
                .collect();
            meanwhile(&elastic, &tables);
            signs.stop.store(true, Ordering::Relaxed);
            let sent: HashMap<u32, u32> = producers.into_iter().flat_map(|producer| producer.join().unwrap()).collect();
            wake_all(&tables);
            let begin = Instant::now();
            while !signs.has_all(&sent) && begin.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            afterwards(&elastic);
            drop(end);
            sent
        });
        self.conclude(signs, &sent);
        let Self { upf, folder, .. } = self;
        let _ = std::fs::remove_dir_all(folder);
        upf
    }

    fn conclude(&self, signs: &Signs, sent: &HashMap<u32, u32>) {
        let wrong = signs.wrong.lock().unwrap();
        let drops = self.upf.counts.all();
        assert!(
            wrong.is_empty(),
            "{} out of order or doubled, the first {:?}; {drops:?}",
            wrong.len(),
            &wrong[..wrong.len().min(5)]
        );
        let next = signs.next.lock().unwrap();
        let missing: Vec<_> = sent
            .iter()
            .map(|(&id, &sent)| (Flow::of_id(id), sent, next.get(&id).copied().unwrap_or(0)))
            .filter(|(flow, sent, next)| flow.kind != Kind::Policed && sent != next)
            .collect();
        assert!(
            missing.is_empty(),
            "lost of {} flows: {:?}; {drops:?}",
            missing.len(),
            &missing[..missing.len().min(5)]
        );
        let policed: u32 =
            sent.iter().filter(|(id, _)| Flow::of_id(**id).kind == Kind::Policed).map(|(_, sent)| sent).sum();
        // Each session's bucket was filled once, wherever it has been.
        assert_eq!(signs.policed.load(Ordering::Relaxed), 100);
        assert_eq!(drops, [("drop.mbr_exceeded", u64::from(policed) - 100)]);
        for (usage, flows) in &self.usages {
            let counts = usage.counts();
            let packets: u32 = flows.iter().map(|flow| sent[&flow.id()]).sum();
            assert_eq!(counts.uplink_packets + counts.downlink_packets, u64::from(packets), "{flows:?}");
        }
    }
}

impl Source {
    fn new(flow: Flow, teid: u32) -> Self {
        Self { flow, frame: flow.frame(teid), next: 0 }
    }

    fn is_few(&self) -> bool {
        matches!(self.flow.kind, Kind::Policed | Kind::Paged)
    }
}

impl Signs {
    fn judge(&self, frame: &[u8]) {
        let (flow, number) = number(frame);
        match flow.kind {
            Kind::Policed => {
                self.policed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Kind::Paged => _ = self.paged.fetch_add(1, Ordering::Relaxed),
            _ => _ = self.arrived.fetch_add(1, Ordering::Relaxed),
        }
        let mut next = self.next.lock().unwrap();
        let expected = next.entry(flow.id()).or_default();
        if number != *expected {
            self.wrong.lock().unwrap().push(format!("{flow:?}: {number}, not {expected}"));
        }
        *expected = number + 1;
    }

    fn under_way(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) - self.arrived.load(Ordering::Relaxed)
    }

    /// Waits until it `happens`. False if something goes wrong before that, or nothing does for too long.
    fn comes(&self, mut happens: impl FnMut() -> bool) -> bool {
        let begin = Instant::now();
        while !happens() {
            if self.over.load(Ordering::Relaxed) || begin.elapsed() > PATIENCE || !self.wrong.lock().unwrap().is_empty()
            {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    fn has_all(&self, sent: &HashMap<u32, u32>) -> bool {
        let paged: u32 =
            sent.iter().filter(|(id, _)| Flow::of_id(**id).kind == Kind::Paged).map(|(_, sent)| sent).sum();
        self.sent.load(Ordering::Relaxed) == self.arrived.load(Ordering::Relaxed)
            && self.paged.load(Ordering::Relaxed) == paged
    }
}

/// Sends all flows in turn until it is to stop, or nothing arrives any more; how much of each.
fn produce(tx: &mut dyn port::TxQueue, mut sources: Vec<Source>, signs: &Signs) -> Vec<(u32, u32)> {
    let mut round = 0_u32;
    // Each flow that is policed has more than passes.
    let has_enough = |sources: &[Source]| sources.iter().all(|source| source.next >= 20);
    'rounds: while !signs.stop.load(Ordering::Relaxed) || !has_enough(&sources) {
        round += 1;
        for source in &mut sources {
            let is_few = source.is_few();
            if is_few && (!round.is_multiple_of(8) || source.next == FEW) {
                continue;
            }
            set_number(&mut source.frame, source.flow, source.next);
            if !signs.comes(|| is_few || signs.under_way() <= UNDER_WAY) {
                break 'rounds;
            }
            signs.sent.fetch_add(u64::from(!is_few), Ordering::Relaxed);
            if !signs.comes(|| tx.send(&[PacketRef::from_slice(&source.frame)]) == 1) {
                break 'rounds;
            }
            source.next += 1;
        }
    }
    sources.iter().map(|source| (source.flow.id(), source.next)).collect()
}

/// Ends all threads, also where what they run for fails.
struct End<'a> {
    signs: &'a Signs,
    stop: &'a AtomicBool,
    bells: &'a [Arc<Bell>],
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        for sign in [&self.signs.stop, &self.signs.over, self.stop] {
            sign.store(true, Ordering::Relaxed);
        }
        self.bells.iter().for_each(|bell| bell.ring());
    }
}

fn copy(packet: &PacketRef<'_>) -> Vec<u8> {
    let mut frame = vec![0; packet.len()];
    packet.copy_to(&mut frame);
    frame
}

/// The session of a UE with two addresses and a network behind it, and its TEID, which is steered as its IPv4 address is.
fn anchored(tables: &Tables, number: u32) -> (Session, u32) {
    let ue_ip = UeIp { v4: Some(ue(number)), v6: Some((v6(number), 64)) };
    let teid = tables.reserve_teid(tables.home_bucket(&ue_ip)).unwrap();
    let mut session = session(number.into(), teid, number);
    session.pdrs.iter_mut().for_each(|pdr| pdr.pdi.ue_ip = Some(ue_ip));
    session.pdrs[1].pdi.framed_routes = vec![(framed(number).into(), 32)];
    session.pdrs[0].pdi.framed_routes = vec![];
    (session, teid)
}

/// The session of a UE whose packets go to another UPF, and come from there; its TEIDs on N3 and N9.
fn relayed(tables: &Tables, number: u32) -> (Session, (u32, u32)) {
    let ue_ip = UeIp { v4: Some(ue(number)), v6: None };
    let teid = || tables.reserve_teid(tables.home_bucket(&ue_ip)).unwrap();
    let teids = (teid(), teid());
    let mut session = session(number.into(), teids.0, number);
    let onward = OuterHeaderCreation { teid: number, address: IpAddr::from([10, 9, 0, 2]) };
    session.fars[0].action = FarAction::Forward(Forwarding {
        destination_interface: Interface::Core,
        network_instance: None,
        outer_header_creation: Some(onward),
        marking: Default::default(),
    });
    let back = &mut session.pdrs[1];
    back.pdi.source_interface = Interface::Core;
    back.pdi.f_teid = Some(FTeid { teid: teids.1, v4: Some(Ipv4Addr::new(10, 9, 0, 1)), v6: None });
    back.outer_header_removal = Some(OuterHeaderRemoval::GtpuUdpIpv4);
    (session, teids)
}

/// UEs that sleep and wake.
const PAGED: u32 = 10;

/// A UE that sleeps, or does not.
pub fn paged(tables: &Tables, n: u32, is_awake: bool) -> SessionUpdate {
    let number = UES + 21 + n;
    let _ = tables;
    let mut session = session(number.into(), 0x7000_0000 + number, number);
    if !is_awake {
        session.fars[1].action = FarAction::Buffer(Buffering { max_packets: u16::MAX, ..Buffering::default() });
    }
    SessionUpdate::Put(session)
}

/// UEs with a maximum bit rate.
const POLICED: u32 = 10;

/// A UE with a rate by which no bucket is filled in time: that of one PDR, or of two of them.
fn policed(n: u32, is_of_two: bool) -> SessionUpdate {
    let number = UES + 11 + n;
    let mut session = session(number.into(), 0x7100_0000 + number, number);
    session.qers = vec![qer(1, Some(if is_of_two { 9 } else { 8 }))];
    session.pdrs[1].qer_ids = vec![1];
    if is_of_two {
        session.pdrs.push(Pdr { id: 9, precedence: 1_000, ..session.pdrs[1].clone() });
    }
    SessionUpdate::Put(session)
}

/// Has UEs sleep and wake, all together. Others' sessions change as well.
pub fn page(tables: &Tables, is_awake: bool) {
    let updates = (0..PAGED).map(|n| paged(tables, n, is_awake)).chain((0..POLICED).map(|n| policed(n, is_awake)));
    tables.apply(updates.collect()).unwrap();
}

fn wake_all(tables: &Tables) {
    page(tables, true);
}

/// Has UEs sleep and wake until it is told to end.
pub fn page_until(tables: &Tables, end: &AtomicBool) -> u32 {
    let mut times = 0;
    while !end.load(Ordering::Relaxed) {
        times += 1;
        page(tables, times % 2 == 1);
        std::thread::yield_now();
    }
    times
}

/// Random numbers that are the same in every run (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
