//! Pools: several processes behind one port. What a member is here is a thread with connections of its own, which is all
//! that the broker and the other members see of a process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use port::steering::BUCKETS;
use port::{Buckets, OpenOptions, PacketRef, Port, PortInfo, Steering};
use vport::broker::{Broker, BrokerError, Config, EndSpec, Event, LinkKind, LinkSpec, PoolStatus, RING_BYTES_MIN};

const PATIENCE: Duration = Duration::from_secs(60);
const MEMBERS: usize = 4;
/// Destinations, each a flow.
const FLOWS: u64 = 512;

/// `feed` sends to the pool's port `in`; what its members send by `out` comes to `sink`.
struct Site {
    broker: Broker,
    events: Receiver<Event>,
    directory: PathBuf,
}

impl Site {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("kaista-pool-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let (sender, events) = channel();
        let broker = Broker::start(Config { hugepages: false }, move |event| drop(sender.send(event))).unwrap();
        let members: Vec<String> = (0..MEMBERS).map(|member| format!("m{member}")).collect();
        for function in ["feed", "sink"].into_iter().chain(members.iter().map(String::as_str)) {
            broker.listen(function, Broker::bind(&directory.join(function)).unwrap(), 0..u32::MAX).unwrap();
        }
        let steered = |name: &str| PortInfo { steering: Steering::UeAddress, ..PortInfo::named(name) };
        for (alone, pooled) in [("feed", "in"), ("sink", "out")] {
            let pool = EndSpec { functions: members.clone(), port: steered(pooled) };
            let ends = [EndSpec::of(alone, PortInfo::named("p")), pool];
            let spec = LinkSpec { name: pooled.into(), ends, ring_bytes: RING_BYTES_MIN, kind: LinkKind::Direct };
            broker.add_link(spec).unwrap();
        }
        Self { broker, events, directory }
    }

    fn open(&self, function: &str, port: &str) -> Port {
        port::open(port, &self.options(function)).unwrap()
    }

    fn options(&self, function: &str) -> OpenOptions {
        OpenOptions { socket: self.directory.join(function), timeout: PATIENCE, ..OpenOptions::default() }
    }

    fn pool(&self) -> PoolStatus {
        self.broker.pools().unwrap().remove(0)
    }

    /// Spreads the buckets over these members, as soon as that can be, and waits until they are there.
    fn spread(&self, members: &[usize]) {
        self.give(&core::array::from_fn(|bucket| members[bucket % members.len()] as u8));
    }

    fn give(&self, owners: &[u8; BUCKETS]) {
        let deadline = Instant::now() + PATIENCE;
        let epoch = loop {
            match self.broker.set_owners("m0", owners) {
                Ok(epoch) => break epoch,
                Err(BrokerError::Busy(_)) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}: {:?}", self.pool()),
            }
        };
        let steered = |event| matches!(event, Event::Steered { epoch: closed, .. } if closed == epoch);
        while !steered(self.events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("in vain: {:?}", self.pool()))) {}
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// What a member knows of its buckets: how many packets of each flow have come.
#[derive(Default)]
struct State {
    buckets: BTreeMap<u8, BTreeMap<u64, u64>>,
    arrived: u64,
    arrived_empty: u64,
}

impl Buckets for State {
    type State = Vec<u8>;

    fn leave(&mut self, bucket: u8, _to: usize) -> Vec<u8> {
        let flows = self.buckets.remove(&bucket).unwrap_or_default();
        // One byte first, so that a state is never nothing.
        let pairs = flows.into_iter().flat_map(|(flow, next)| [flow.to_le_bytes(), next.to_le_bytes()]);
        [7].into_iter().chain(pairs.flatten()).collect()
    }

    fn arrive(&mut self, bucket: u8, _from: usize, state: Vec<u8>) {
        self.arrived += 1;
        self.arrived_empty += u64::from(state.is_empty());
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let flows =
            state.get(1..).unwrap_or_default().chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
        assert!(self.buckets.insert(bucket, flows.collect()).is_none(), "bucket {bucket} arrived twice");
    }
}

/// A member that passes everything on, and checks that no flow has a gap unless `gaps` are expected.
struct Member {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<State>>,
    passed: Arc<AtomicU64>,
}

impl Member {
    fn start(site: &Site, number: usize, gaps: &Arc<AtomicBool>) -> Self {
        let function = format!("m{number}");
        let [incoming, outgoing] = ["in", "out"].map(|port| site.open(&function, port));
        let ports = [&incoming, &outgoing].map(|port| port.steering().unwrap());
        assert!(ports[0].is_pooled());
        let socket = site.directory.join(&function);
        let mut member = port::pool::join(&socket, &ports, &[], PATIENCE).unwrap().remove(0);
        let stop = Arc::new(AtomicBool::new(false));
        let passed = Arc::new(AtomicU64::new(0));
        let (stopped, gaps, count) = (stop.clone(), gaps.clone(), passed.clone());
        let thread = std::thread::spawn(move || {
            let (mut incoming, mut outgoing) = (incoming, outgoing);
            let mut state = State::default();
            while !stopped.load(Ordering::Acquire) {
                let packets = receive(&mut incoming, &mut state, gaps.load(Ordering::Relaxed));
                count.fetch_add(packets.len() as u64, Ordering::Relaxed);
                send_all(&mut outgoing, &packets, &stopped);
                assert!(outgoing.queues[0].rx.recv().is_empty());
                member.settle(&mut state);
            }
            state
        });
        Self { stop, thread: Some(thread), passed }
    }

    /// Ends it as a signal would: what it holds is gone.
    fn end(mut self) -> State {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn receive(port: &mut Port, state: &mut State, gaps: bool) -> Vec<Vec<u8>> {
    let burst = port.queues[0].rx.recv();
    let mut packets = Vec::new();
    for i in 0..burst.len() {
        let mut packet = vec![0; burst.get(i).len()];
        burst.get(i).copy_to(&mut packet);
        let bucket = Steering::UeAddress.bucket(&packet);
        let (flow, number) = read(&packet);
        let next = state.buckets.entry(bucket).or_default().entry(flow).or_default();
        assert!(number == *next || gaps && number > *next, "flow {flow} of bucket {bucket}: {number} after {next}");
        *next = number + 1;
        packets.push(packet);
    }
    packets
}

fn send_all(port: &mut Port, packets: &[Vec<u8>], stop: &AtomicBool) {
    let mut sent = 0;
    while sent < packets.len() && !stop.load(Ordering::Acquire) {
        let refs: Vec<PacketRef<'_>> = packets[sent..].iter().map(|packet| PacketRef::from_slice(packet)).collect();
        sent += port.queues[0].tx.send(&refs);
    }
}

/// An IPv4 frame to destination `flow` that carries its number.
fn packet(flow: u64, number: u64) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[30..34].copy_from_slice(&[10, 1, (flow >> 8) as u8, flow as u8]);
    frame[34..42].copy_from_slice(&flow.to_le_bytes());
    frame[42..50].copy_from_slice(&number.to_le_bytes());
    frame
}

fn read(frame: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().unwrap());
    (word(34), word(42))
}

/// Feeds all flows in turn until told to stop; returns how many packets were accepted.
fn feed(mut port: Port, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut accepted = 0;
        while !stop.load(Ordering::Acquire) {
            let burst: Vec<Vec<u8>> =
                (accepted..accepted + 16).map(|count| packet(count % FLOWS, count / FLOWS)).collect();
            let refs: Vec<PacketRef<'_>> = burst.iter().map(|packet| PacketRef::from_slice(packet)).collect();
            accepted += port.queues[0].tx.send(&refs) as u64;
        }
        // Until everything is read, so that the port's end says nothing of what is on its way.
        std::thread::sleep(Duration::from_millis(100));
        accepted
    })
}

#[derive(Default)]
struct Taken {
    next: BTreeMap<u64, u64>,
    packets: u64,
    reordered: u64,
    /// Packets that were passed over, of each flow where there are any.
    missing: BTreeMap<u64, u64>,
}

impl Taken {
    /// What came, and what is known not to.
    fn known(&self) -> u64 {
        self.packets + self.missing.values().sum::<u64>()
    }
}

/// Takes what comes, and counts what is not as sent.
fn take(mut port: Port, stop: Arc<AtomicBool>) -> (JoinHandle<()>, Arc<Mutex<Taken>>) {
    let taken = Arc::new(Mutex::new(Taken::default()));
    let theirs = taken.clone();
    let thread = std::thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            let burst = port.queues[0].rx.recv();
            let mut taken = theirs.lock().unwrap();
            for i in 0..burst.len() {
                let (flow, number) = read(&burst.get(i).head[..50]);
                let next = taken.next.entry(flow).or_default();
                let (gap, late) = (number.saturating_sub(*next), number < *next);
                *next = (*next).max(number + 1);
                taken.packets += 1;
                taken.reordered += u64::from(late);
                if gap > 0 {
                    *taken.missing.entry(flow).or_default() += gap;
                }
            }
        }
    });
    (thread, taken)
}

/// From `feed` through the pool to `sink`.
struct Traffic {
    stop: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
    feeder: JoinHandle<u64>,
    sink: JoinHandle<()>,
    taken: Arc<Mutex<Taken>>,
}

impl Traffic {
    fn start(site: &Site) -> Self {
        let (stop, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (sink, taken) = take(site.open("sink", "p"), end.clone());
        Self { feeder: feed(site.open("feed", "p"), stop.clone()), stop, end, sink, taken }
    }

    fn packets(&self) -> u64 {
        self.taken.lock().unwrap().packets
    }

    /// Ends it once all has come or is known to be missing: so not soon after a death, which may have taken the last packet
    /// of a flow. How many packets were accepted, and what became of them.
    fn end(self) -> (u64, Taken) {
        self.stop.store(true, Ordering::Release);
        let accepted = self.feeder.join().unwrap();
        until("all has come or is missing", || self.taken.lock().unwrap().known() >= accepted);
        self.end.store(true, Ordering::Release);
        self.sink.join().unwrap();
        (accepted, std::mem::take(&mut self.taken.lock().unwrap()))
    }
}

/// Two members that share the buckets in turns, and die with what they hold.
fn two_members(test: &str) -> (Site, [Member; 2], Traffic, Arc<AtomicBool>) {
    let site = Site::new(test);
    let gaps = Arc::new(AtomicBool::new(true));
    let members = [0, 1].map(|number| Member::start(&site, number, &gaps));
    let traffic = Traffic::start(&site);
    site.spread(&[0, 1]);
    until("both pass packets", || members.iter().all(|member| member.passed.load(Ordering::Relaxed) > 1_000));
    (site, members, traffic, gaps)
}

/// Everything came in order, but for packets of buckets that the second of two members had.
fn assert_only_the_second_lost_something(accepted: u64, taken: &Taken) {
    assert_eq!((taken.known(), taken.reordered), (accepted, 0));
    for (flow, missing) in &taken.missing {
        let bucket = Steering::UeAddress.bucket(&packet(*flow, 0));
        assert_eq!(bucket % 2, 1, "{missing} packets of flow {flow} are missing, which is the first member's");
    }
}

fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happens() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_pool_that_grows_and_shrinks_loses_nothing_and_keeps_every_flow_in_order() {
    let site = Site::new("scale");
    let gaps = Arc::new(AtomicBool::new(false));
    let first = Member::start(&site, 0, &gaps);
    let traffic = Traffic::start(&site);
    until("packets pass", || traffic.packets() > 1_000);

    let mut left = 0;
    for _ in 0..3 {
        let mut others: Vec<Member> = (1..MEMBERS).map(|number| Member::start(&site, number, &gaps)).collect();
        site.spread(&[0, 1, 2, 3]);
        let before: Vec<u64> = others.iter().map(|member| member.passed.load(Ordering::Relaxed)).collect();
        until("every member passes packets", || {
            others.iter().zip(&before).all(|(member, before)| member.passed.load(Ordering::Relaxed) > before + 100)
        });
        site.spread(&[2, 0]);
        site.spread(&[0]);
        assert_eq!(site.pool().owners, [0; BUCKETS]);
        for member in others.drain(..) {
            let state = member.end();
            assert!(state.buckets.is_empty() && state.arrived_empty == 0, "all was given away");
            left += state.arrived;
        }
    }
    // 96 go to three members, 64 then to one of them, of which 32 come from others that have them: see `spread`.
    assert!(left >= 3 * 96, "{left}");
    let (accepted, taken) = traffic.end();
    assert_eq!((taken.packets, taken.known(), taken.reordered), (accepted, accepted, 0));
    let state = first.end();
    assert_eq!((state.buckets.len(), state.arrived_empty), (BUCKETS, 0));
}

#[test]
fn a_member_that_dies_loses_only_what_it_held() {
    let (site, [first, second], traffic, _) = two_members("die");
    drop(second.end());
    until("the broker knows", || !site.pool().present[1]);
    site.spread(&[0]);
    let then = traffic.packets();
    until("all buckets pass again", || traffic.packets() > then + 4 * FLOWS);
    let (accepted, taken) = traffic.end();
    assert_only_the_second_lost_something(accepted, &taken);
    let state = first.end();
    assert_eq!(state.arrived_empty, 64, "what the dead one had came without state");
}

/// Its last packets are of a generation that the sink has not read, and is not the newest.
#[test]
fn nobody_overtakes_what_a_dead_member_had_sent_before_another_came() {
    let site = Site::new("earlier");
    let gaps = Arc::new(AtomicBool::new(true));
    let second = Member::start(&site, 1, &gaps);
    let mut feed = site.open("feed", "p");
    let mut sink = site.open("sink", "p");
    site.spread(&[1]);
    let frame = packet(0, 0);
    until("it is accepted", || feed.queues[0].tx.send(&[PacketRef::from_slice(&frame)]) == 1);
    until("it is passed on", || second.passed.load(Ordering::Relaxed) == 1);
    let first = Member::start(&site, 0, &gaps);
    until("both have the newest generation", || {
        site.broker.ports().unwrap().iter().all(|port| port.up || port.pid.is_none())
    });
    drop(second.end());
    until("the broker knows", || !site.pool().present[1]);
    until("the broker is ready for a change", || site.broker.set_owners("m0", &[0; BUCKETS]).is_ok());
    let begun = Instant::now();
    std::thread::sleep(Duration::from_millis(200));
    // Whoever does not read holds nobody up for longer than a second.
    assert!(site.pool().is_changing || begun.elapsed() > Duration::from_millis(900), "the sink has read nothing");
    // Those that are still sent to the dead one are lost.
    let (mut next, mut came) = (1, Vec::new());
    until("packets come by the other member", || {
        let frame = packet(0, next);
        next += feed.queues[0].tx.send(&[PacketRef::from_slice(&frame)]) as u64;
        let burst = sink.queues[0].rx.recv();
        came.extend((0..burst.len()).map(|i| read(&burst.get(i).head[..50]).1));
        came.len() > 1
    });
    assert!(came[0] == 0 && came.is_sorted(), "{came:?}");
    until("the change is complete", || !site.pool().is_changing);
    assert_eq!(first.end().arrived_empty, 128);
}

#[test]
fn a_member_that_comes_back_has_its_buckets_again() {
    let (site, [first, second], traffic, gaps) = two_members("back");
    drop(second.end());
    let second = Member::start(&site, 1, &gaps);
    until("it passes packets", || second.passed.load(Ordering::Relaxed) > 4 * FLOWS);
    assert_eq!(site.pool().owners, core::array::from_fn(|bucket| bucket as u8 % 2));
    // And gives them away as if nothing had been.
    site.spread(&[0]);
    let (accepted, taken) = traffic.end();
    assert_only_the_second_lost_something(accepted, &taken);
    assert_eq!((second.end().buckets.len(), first.end().buckets.len()), (0, BUCKETS));
}

#[test]
fn what_cannot_be_a_pool_is_refused() {
    let site = Site::new("refused");
    let functions = vec!["m0".to_owned(), "m1".to_owned()];
    let pooled = |name: &str, steering| EndSpec {
        functions: functions.clone(),
        port: PortInfo { steering, ..PortInfo::named(name) },
    };
    let alone = |name: &str| EndSpec::of("feed", PortInfo::named(name));
    let refusal = |ends: [EndSpec; 2], kind| {
        let spec = LinkSpec { name: "other".into(), ends, ring_bytes: RING_BYTES_MIN, kind };
        site.broker.add_link(spec).unwrap_err().to_string()
    };
    let teid = Steering::Teid;
    assert!(refusal([alone("x"), pooled("x", Steering::None)], LinkKind::Direct).contains("needs a steering"));
    assert!(refusal([pooled("x", teid), pooled("y", teid)], LinkKind::Direct).contains("two pools"));
    for kind in [LinkKind::ZeroCopy { group: "g".into() }, LinkKind::SharedRecords] {
        assert!(refusal([alone("x"), pooled("x", teid)], kind).contains("direct links only"));
    }
    assert!(refusal([alone("x"), pooled("x", teid)], LinkKind::Direct).contains("the same members"));
    let unknown = site.broker.set_owners("feed", &[0; BUCKETS]).unwrap_err().to_string();
    assert!(unknown.contains("a pool with feed"), "{unknown}");
    assert!(site.broker.set_owners("m3", &[4; BUCKETS]).unwrap_err().to_string().contains("no member's queue"));
    let port = site.open("feed", "p").steering().unwrap();
    let no_pool = port::pool::join(&site.directory.join("feed"), &[port], &[], PATIENCE).err().unwrap();
    assert!(no_pool.to_string().contains("is not that of a pool's member"), "{no_pool}");
}
