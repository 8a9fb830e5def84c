//! Pools over the death of their broker: it is killed at rest and in the middle of changes, and another takes its place. No
//! packet is lost but those of a member that dies too, none overtakes within its flow, and every bucket's state is in one
//! place. What a member is here is a thread with connections of its own.

mod keeper;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keeper::{Keeper, PATIENCE, Pool};
use port::steering::BUCKETS;
use port::{Buckets, OpenOptions, PacketRef, Port, PortInfo, Steering};
use vport::broker::{EndSpec, LinkKind, LinkSpec, RING_BYTES_MIN};

const MEMBERS: usize = 4;
/// Destinations, each a flow.
const FLOWS: u64 = 512;

fn members() -> Vec<String> {
    (0..MEMBERS).map(|member| format!("m{member}")).collect()
}

/// `feed` sends to the pool's port `in`; what its members send by `out` comes to `sink`.
fn specs() -> Vec<LinkSpec> {
    let steered = |name: &str| PortInfo { steering: Steering::UeAddress, ..PortInfo::named(name) };
    let spec = |(alone, pooled): (&str, &str)| {
        let pool = EndSpec { functions: members(), port: steered(pooled) };
        let ends = [EndSpec::of(alone, PortInfo::named("p")), pool];
        LinkSpec { name: pooled.into(), ends, ring_bytes: RING_BYTES_MIN, kind: LinkKind::Direct }
    };
    [("feed", "in"), ("sink", "out")].map(spec).to_vec()
}

/// Not a test: what the broker's process runs.
#[test]
fn broker() {
    keeper::serve(&specs());
}

/// What a member knows of its buckets: how many packets of each flow have come.
#[derive(Default)]
struct State {
    buckets: BTreeMap<u8, BTreeMap<u64, u64>>,
    arrived_empty: u64,
}

/// Behind the flows of every eighth bucket, so that it takes several messages.
fn padding(bucket: u8) -> Vec<u8> {
    if bucket.is_multiple_of(8) { (0..20_000_u32).map(|n| (n * 7 + u32::from(bucket)) as u8).collect() } else { vec![] }
}

impl Buckets for State {
    type State = Vec<u8>;

    fn leave(&mut self, bucket: u8, _to: usize) -> Vec<u8> {
        let flows = self.buckets.remove(&bucket).unwrap_or_default();
        let count = (flows.len() as u64).to_le_bytes();
        let pairs = flows.into_iter().flat_map(|(flow, next)| [flow.to_le_bytes(), next.to_le_bytes()]);
        count.into_iter().chain(pairs.flatten()).chain(padding(bucket)).collect()
    }

    fn arrive(&mut self, bucket: u8, _from: usize, state: Vec<u8>) {
        if state.is_empty() {
            self.arrived_empty += 1;
            return;
        }
        let words: Vec<u64> = state.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let end = 1 + 2 * words[0] as usize;
        assert_eq!(state[8 * end..], padding(bucket), "bucket {bucket} arrived torn");
        let flows = words[1..end].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        assert!(self.buckets.insert(bucket, flows).is_none(), "bucket {bucket} arrived twice");
    }
}

/// A member that passes everything on, and checks that no flow has a gap.
struct Member {
    stop: Arc<AtomicBool>,
    /// While set, it gives nothing away and takes nothing in.
    held: Arc<AtomicBool>,
    thread: JoinHandle<State>,
}

impl Member {
    fn start(directory: &Path, number: usize, gaps: &Arc<AtomicBool>) -> Self {
        let function = format!("m{number}");
        let [mut incoming, mut outgoing] = ["in", "out"].map(|port| open(directory, &function, port));
        let ports = [&incoming, &outgoing].map(|port| port.steering().unwrap());
        let mut member = port::pool::join(&directory.join(&function), &ports, &[], PATIENCE).unwrap().remove(0);
        let (stop, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stopped, hold, gaps) = (stop.clone(), held.clone(), gaps.clone());
        let thread = std::thread::spawn(move || {
            let mut state = State::default();
            while !stopped.load(Ordering::Acquire) {
                let packets = receive(&mut incoming, &mut state, &gaps);
                send_all(&mut outgoing, &packets, &stopped);
                assert!(outgoing.queues[0].rx.recv().is_empty());
                if !hold.load(Ordering::Acquire) {
                    member.settle(&mut state);
                }
                // Two cores have many threads to run here.
                if packets.is_empty() {
                    std::thread::yield_now();
                }
            }
            state
        });
        Self { stop, held, thread }
    }

    fn end(self) -> State {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

fn open(directory: &Path, function: &str, port: &str) -> Port {
    let options = OpenOptions { socket: directory.join(function), timeout: PATIENCE, ..OpenOptions::default() };
    port::open(port, &options).unwrap()
}

fn receive(port: &mut Port, state: &mut State, gaps: &AtomicBool) -> Vec<Vec<u8>> {
    let burst = port.queues[0].rx.recv();
    let mut packets = Vec::new();
    for i in 0..burst.len() {
        let mut packet = vec![0; burst.get(i).len()];
        burst.get(i).copy_to(&mut packet);
        let bucket = Steering::UeAddress.bucket(&packet);
        let (flow, number) = read(&packet);
        let next = state.buckets.entry(bucket).or_default().entry(flow).or_default();
        follows(number, next, gaps);
        packets.push(packet);
    }
    packets
}

/// Checks that a packet comes after those before it, and at once after them unless some died with a member.
fn follows(number: u64, next: &mut u64, gaps: &AtomicBool) {
    assert!(number == *next || number > *next && gaps.load(Ordering::Relaxed), "{number} instead of {next}");
    *next = number + 1;
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

fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happens() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A pool under traffic.
struct Site {
    keeper: Keeper,
    members: Vec<Member>,
    feeder: JoinHandle<()>,
    sink: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
    passed: Arc<AtomicU64>,
    gaps: Arc<AtomicBool>,
}

impl Site {
    fn new(test: &str, count: usize) -> Self {
        let directory = std::env::temp_dir().join(format!("kaista-restart-{}-{test}", std::process::id()));
        let functions: Vec<String> = ["feed", "sink"].map(str::to_owned).into_iter().chain(members()).collect();
        let keeper = Keeper::new("broker", &directory, &functions, &specs());
        let gaps = Arc::new(AtomicBool::new(false));
        let members: Vec<Member> = (0..count).map(|number| Member::start(&directory, number, &gaps)).collect();
        let (stop, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (accepted, passed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let sink = take(open(&directory, "sink", "p"), end.clone(), passed.clone(), gaps.clone());
        let feeder = feed(open(&directory, "feed", "p"), stop.clone(), accepted.clone());
        let site = Self { keeper, members, feeder, sink, stop, end, accepted, passed, gaps };
        site.flows();
        site
    }

    fn add_members(&mut self, count: usize) {
        let more = self.members.len()..self.members.len() + count;
        self.members.extend(more.map(|number| Member::start(&self.keeper.directory, number, &self.gaps)));
    }

    /// Waits until every flow has passed something that was sent later than now.
    fn flows(&self) {
        // As many as both links can hold, and more.
        let (accepted, before) = (self.accepted.load(Ordering::Acquire), self.passed.load(Ordering::Acquire));
        let enough = if self.gaps.load(Ordering::Relaxed) { before + 50_000 } else { accepted + 4 * FLOWS };
        until("packets pass", || self.passed.load(Ordering::Acquire) > enough);
    }

    /// Waits until nothing is being changed and everybody is there.
    fn rest(&self) -> Pool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let pool = self.keeper.pool();
            if !pool.is_changing && pool.present == self.members.len() {
                return pool;
            }
            assert!(Instant::now() < deadline, "in vain: the pool comes to rest: {pool:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Begins a change as soon as that can be.
    fn begin(&self, owners: &[u8; BUCKETS]) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.keeper.set_owners("m0", owners) {
                Ok(epoch) => return epoch,
                Err(reason) => assert!(Instant::now() < deadline, "in vain: a change begins: {reason}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Changes owners, and waits until the broker says that they have changed.
    fn give(&self, owners: &[u8; BUCKETS]) {
        let epoch = self.begin(owners);
        let steered = format!("steered {epoch}");
        while self.keeper.events.recv_timeout(PATIENCE).expect("the change is complete") != steered {}
        let pool = self.keeper.pool();
        assert_eq!((pool.epoch, pool.owners, pool.is_changing), (epoch, *owners, false));
    }

    /// Everything stops, and is counted: nothing was lost, and every bucket is where the table says.
    fn end(self) {
        let Self { keeper, members, feeder, sink, stop, end, accepted, passed, .. } = self;
        stop.store(true, Ordering::Release);
        feeder.join().unwrap();
        let accepted = accepted.load(Ordering::Acquire);
        until("all has come", || passed.load(Ordering::Acquire) >= accepted);
        end.store(true, Ordering::Release);
        sink.join().unwrap();
        assert_eq!(passed.load(Ordering::Acquire), accepted);
        let owners = keeper.pool().owners;
        let mut found = [0; BUCKETS];
        for (number, member) in members.into_iter().enumerate() {
            let state = member.end();
            assert_eq!(state.arrived_empty, 0, "m{number} got a bucket without its state");
            for bucket in state.buckets.into_keys() {
                assert_eq!(usize::from(owners[usize::from(bucket)]), number, "bucket {bucket}");
                found[usize::from(bucket)] += 1;
            }
        }
        assert_eq!(found, [1; BUCKETS]);
    }
}

/// Feeds all flows in turn until told to stop.
fn feed(mut port: Port, stop: Arc<AtomicBool>, accepted: Arc<AtomicU64>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut count = 0;
        while !stop.load(Ordering::Acquire) {
            let burst: Vec<Vec<u8>> = (count..count + 16).map(|count| packet(count % FLOWS, count / FLOWS)).collect();
            let refs: Vec<PacketRef<'_>> = burst.iter().map(|packet| PacketRef::from_slice(packet)).collect();
            let sent = port.queues[0].tx.send(&refs) as u64;
            count += sent;
            accepted.store(count, Ordering::Release);
            if sent == 0 {
                std::thread::yield_now();
            }
        }
        // Until everything is read, so that the port's end says nothing of what is on its way.
        std::thread::sleep(Duration::from_millis(300));
    })
}

/// Takes what comes; every flow is whole and in order.
fn take(mut port: Port, stop: Arc<AtomicBool>, passed: Arc<AtomicU64>, gaps: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        while !stop.load(Ordering::Acquire) {
            let burst = port.queues[0].rx.recv();
            for i in 0..burst.len() {
                let (flow, number) = read(&burst.get(i).head[..50]);
                follows(number, next.entry(flow).or_default(), &gaps);
            }
            passed.fetch_add(burst.len() as u64, Ordering::AcqRel);
            if burst.is_empty() {
                std::thread::yield_now();
            }
        }
    })
}

/// Bucket *b* is that of the member that is `by` further than *b*, of so many.
fn turned(by: usize, members: usize) -> [u8; BUCKETS] {
    core::array::from_fn(|bucket| ((bucket + by) % members) as u8)
}

#[test]
fn a_broker_that_is_killed_and_replaced_finds_the_pool_as_it_was() {
    let mut site = Site::new("rest", 3);
    for round in 0..6 {
        let owners = turned(round, 3);
        site.give(&owners);
        site.flows();
        let before = site.keeper.pool();
        // The second time after a broker that found the table and never wrote it.
        for links_first in [true, false] {
            site.keeper.kill();
            site.flows();
            site.keeper.start(links_first);
            assert_eq!(site.rest(), before);
            site.flows();
            let attached: Vec<String> =
                site.keeper.events.try_iter().filter(|event| event.starts_with("att")).collect();
            assert_eq!(attached.len(), 2 * 3 + 2, "{attached:?}");
            assert!(attached.iter().all(|event| event.ends_with("true")), "a port did not resume: {attached:?}");
        }
    }
    site.give(&turned(7, 3));
    site.flows();
    site.end();
}

#[test]
fn members_may_come_after_a_broker_was_replaced() {
    let mut site = Site::new("come", 2);
    site.give(&turned(0, 2));
    site.keeper.kill();
    site.keeper.start(true);
    site.add_members(MEMBERS - 2);
    site.give(&turned(1, MEMBERS));
    site.flows();
    site.end();
}

/// A member that does not settle keeps a change open: what others gave has come, is on its way, or waits for it.
#[test]
fn a_change_goes_on_where_it_was_when_its_broker_was_killed() {
    let mut site = Site::new("open", 3);
    site.give(&turned(0, 3));
    for round in 1..=9 {
        let slow = round % 3;
        site.members[slow].held.store(true, Ordering::Release);
        let epoch = site.begin(&turned(round, 3));
        until("senders know of it", || site.keeper.pool().epoch == epoch);
        // Others have given, or have not.
        std::thread::sleep(Duration::from_millis([0, 3, 30][round / 3 % 3]));
        assert!(site.keeper.pool().is_changing);
        site.keeper.kill();
        let early = round % 2 == 0;
        if early {
            site.members[slow].held.store(false, Ordering::Release);
        }
        site.keeper.start(round % 4 < 2);
        if !early {
            until("everybody is back", || site.keeper.pool().present == 3);
            std::thread::sleep(Duration::from_millis(5));
            assert!(site.keeper.pool().is_changing);
            // And once more, while the second broker goes through it.
            if round % 3 == 0 {
                site.keeper.kill();
                site.keeper.start(true);
            }
            site.members[slow].held.store(false, Ordering::Release);
        }
        let pool = site.rest();
        assert_eq!((pool.epoch, pool.owners), (epoch, turned(round, 3)));
        site.flows();
    }
    site.end();
}

/// With the broker a member dies, at rest or before it has given what was to leave it.
#[test]
fn a_member_that_dies_with_its_broker_is_waited_for_and_then_done_without() {
    for is_changing in [false, true] {
        let mut site = Site::new(if is_changing { "both-open" } else { "both" }, 3);
        site.give(&turned(0, 3));
        site.gaps.store(true, Ordering::Relaxed);
        let mut owners = turned(0, 3);
        if is_changing {
            site.members[2].held.store(true, Ordering::Release);
            owners = turned(1, 3);
            let epoch = site.begin(&owners);
            until("senders know of it", || site.keeper.pool().epoch == epoch);
        }
        site.keeper.kill();
        site.members.pop().unwrap().end();
        site.keeper.start(true);
        assert_eq!(site.rest().owners, owners);
        let third = |bucket: usize| usize::from(owners[bucket]) == 2;
        site.give(&core::array::from_fn(|bucket| if third(bucket) { 0 } else { owners[bucket] }));
        site.flows();
        site.stop.store(true, Ordering::Release);
        site.feeder.join().unwrap();
        site.end.store(true, Ordering::Release);
        site.sink.join().unwrap();
        let states: Vec<State> = site.members.into_iter().map(Member::end).collect();
        let empty: u64 = states.iter().map(|state| state.arrived_empty).sum();
        // What it had, or was to have by then.
        let its_own = |by: usize| turned(by, 3).into_iter().filter(|owner| *owner == 2).count() as u64;
        assert_eq!(empty, if is_changing { its_own(0) + its_own(1) } else { its_own(0) });
        assert_eq!(states.iter().map(|state| state.buckets.len()).sum::<usize>(), BUCKETS);
    }
}

/// Wherever it dies, also between two messages of one kind or two links' tables.
#[test]
fn a_broker_is_killed_at_any_moment_of_a_change() {
    let mut site = Site::new("any", MEMBERS);
    let mut owners = turned(0, MEMBERS);
    site.give(&owners);
    let (mut seed, mut completed, mut dropped) = (0x9e37_79b9_7f4a_7c15_u64, 0, 0);
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for round in 0..40 {
        let next: [u8; BUCKETS] = core::array::from_fn(|_| random(MEMBERS as u64) as u8);
        let before = site.keeper.pool().epoch;
        assert_eq!(site.begin(&next), before + 1);
        // Most changes take a few milliseconds.
        std::thread::sleep(Duration::from_micros(random([300, 3_000, 20_000][round % 3])));
        site.keeper.kill();
        site.keeper.start(random(2) == 0);
        let pool = site.rest();
        match pool.epoch - before {
            0 => dropped += 1,
            1 => (owners, completed) = (next, completed + 1),
            _ => panic!("{pool:?}"),
        }
        assert_eq!(pool.owners, owners);
        site.flows();
    }
    println!("{completed} changes were completed, {dropped} dropped");
    site.end();
}
