//! A broker that dies after it wrote the table of one of its pool's links, and before it wrote that of the other.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::broker::pool::Change;
use crate::broker::{Broker, Config, EndSpec, Event, LinkKind, LinkSpec, RING_BYTES_MIN};
use crate::client::{Attachment, attach};
use crate::info::PortInfo;
use crate::owner::Buckets;
use crate::packet::PacketRef;
use crate::steering::{BUCKETS, BucketTable, Steering};
use crate::sync::full_fence;
use crate::{pool, table};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const LINKS: [&str; 2] = ["x", "y"];
const FLOWS: u64 = 300;

pub(super) fn spec(name: &str) -> LinkSpec {
    let port = PortInfo { steering: Steering::UeAddress, ..PortInfo::named(name) };
    let members = EndSpec { functions: ["b", "c"].map(str::to_owned).to_vec(), port: port.clone() };
    let ends = [EndSpec::of("a", port), members];
    LinkSpec { name: name.into(), ends, ring_bytes: RING_BYTES_MIN, kind: LinkKind::Direct }
}

pub(super) type Deposits = Arc<Mutex<BTreeMap<String, Vec<(String, OwnedFd)>>>>;

pub(super) fn start(deposits: &Deposits) -> (Broker, Receiver<u64>) {
    let ((steered, events), deposits) = (channel(), deposits.clone());
    let broker = Broker::start(Config { hugepages: false }, move |event| match event {
        Event::Deposit { link, segments, .. } => drop(deposits.lock().unwrap().insert(link, segments)),
        Event::Steered { epoch, .. } => drop(steered.send(epoch)),
        _ => {}
    });
    (broker.unwrap(), events)
}

/// Of each flow of each link, which number comes next.
pub(super) type Flows = BTreeMap<(u8, u64), u64>;

#[derive(Default)]
pub(super) struct State(pub(super) BTreeMap<u8, Flows>);

impl Buckets for State {
    type State = Vec<u8>;

    fn leave(&mut self, bucket: u8, _to: usize) -> Vec<u8> {
        let flows = self.0.remove(&bucket).unwrap_or_default();
        let flow =
            |((link, flow), next): ((u8, u64), u64)| [u64::from(link), flow, next].map(u64::to_le_bytes).concat();
        [0; 24].into_iter().chain(flows.into_iter().flat_map(flow)).collect()
    }

    fn arrive(&mut self, bucket: u8, _from: usize, state: Vec<u8>) {
        let words: Vec<u64> = state.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let flows = words[3..].chunks_exact(3).map(|flow| ((flow[0] as u8, flow[1]), flow[2])).collect();
        assert!(self.0.insert(bucket, flows).is_none(), "bucket {bucket} arrived twice");
    }
}

fn frame(flow: u64, number: u64) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[30..34].copy_from_slice(&[10, 1, (flow >> 8) as u8, flow as u8]);
    frame[34..42].copy_from_slice(&flow.to_le_bytes());
    frame[42..50].copy_from_slice(&number.to_le_bytes());
    frame
}

/// Receives by both ports until told to stop. Returns what it knows of its buckets.
pub(super) fn serve(
    directory: &Path,
    function: &str,
    stop: &AtomicBool,
    received: &AtomicU64,
    ready: &AtomicU64,
) -> State {
    let socket = directory.join(function);
    let mut ports = LINKS.map(|port| attach(&socket, port, PATIENCE, 192).unwrap());
    let steering = ports.each_ref().map(|port| port.steering.clone());
    let mut member = pool::join(&socket, &steering, &[], PATIENCE).unwrap().remove(0);
    ready.fetch_add(1, Ordering::AcqRel);
    let mut state = State::default();
    while !stop.load(Ordering::Acquire) {
        for (link, port) in ports.iter_mut().enumerate() {
            let burst = port.queues[0].0.recv();
            for i in 0..burst.len() {
                let head = burst.get(i).head;
                let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
                let flows = state.0.entry(Steering::UeAddress.bucket(head)).or_default();
                let next = flows.entry((link as u8, word(34))).or_default();
                assert_eq!(word(42), *next, "flow {} of link {}", word(34), LINKS[link]);
                *next += 1;
            }
            received.fetch_add(burst.len() as u64, Ordering::AcqRel);
        }
        member.settle(&mut state);
        std::thread::yield_now();
    }
    state
}

/// Sends on both links until told to stop. Returns how much was accepted.
pub(super) fn feed(mut ports: [Attachment; 2], stop: &AtomicBool, end: &AtomicBool) -> u64 {
    let mut counts = [0; 2];
    while !stop.load(Ordering::Acquire) {
        for (port, count) in ports.iter_mut().zip(&mut counts) {
            let burst: Vec<_> = (*count..*count + 8).map(|n| frame(n % FLOWS, n / FLOWS)).collect();
            let packets: Vec<_> = burst.iter().map(|frame| PacketRef::from_slice(frame)).collect();
            *count += port.queues[0].1.send(&packets) as u64;
        }
        std::thread::yield_now();
    }
    until("all is read", || end.load(Ordering::Acquire));
    counts.into_iter().sum()
}

pub(super) fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happens() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The link `written` has the new table, the other one the old; the next broker adopts them in the order of `order`.
fn dies_halfway(test: &str, written: &'static str, order: [&str; 2]) {
    let directory = std::env::temp_dir().join(format!("kaista-halfway-{}-{test}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let sockets = ["a", "b", "c"].map(|function| (function, Broker::bind(&directory.join(function)).unwrap()));
    let deposits = Deposits::default();
    let (mut broker, mut events) = start(&deposits);
    let listen = |broker: &Broker| {
        let each = sockets.iter();
        each.for_each(|(name, socket)| broker.listen(name, socket.try_clone().unwrap(), 0..u32::MAX).unwrap());
    };
    LINKS.iter().for_each(|link| broker.add_link(spec(link)).unwrap());
    listen(&broker);
    let (stop, end, halt) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let (received, ready) = (AtomicU64::new(0), AtomicU64::new(0));
    let arrives = |broker: &Broker, what: &str| {
        let before = received.load(Ordering::Acquire);
        until(what, || received.load(Ordering::Acquire) > before + 5_000);
        broker.ports().unwrap()
    };
    std::thread::scope(|scope| {
        let _ending = Ending([&stop, &end, &halt]);
        let members = ["b", "c"].map(|function| {
            let (directory, halt, received, ready) = (&directory, &halt, &received, &ready);
            scope.spawn(move || serve(directory, function, halt, received, ready))
        });
        until("members are there", || ready.load(Ordering::Acquire) == 2);
        let ports = LINKS.map(|port| attach(&directory.join("a"), port, PATIENCE, 192).unwrap());
        let feeder = scope.spawn(|| feed(ports, &stop, &end));
        let before = arrives(&broker, "packets arrive");

        let owners: [u8; BUCKETS] = core::array::from_fn(|bucket| bucket as u8 % 2);
        let table = BucketTable::new(owners, 2).unwrap();
        let receivers = broker.call(move |core| core.pools[0].receivers(&table)).unwrap();
        assert_eq!(
            receivers,
            BTreeMap::from([(1, LINKS.len())]),
            "c is given buckets, and has said how many ports it has"
        );
        // As if one member had not one of the generations yet: so the broker waits with the table.
        broker.call(|core| core.links.get_mut("x").unwrap().present.clear()).unwrap();
        assert_eq!(broker.set_owners("b", &owners).unwrap(), 2);
        let is_ready = |core: &mut super::Core| matches!(&core.pools[0].change, Some(Change::Preparing { missing, .. }) if missing.is_empty());
        until("members are ready", || broker.call(is_ready).unwrap());
        let write = move |core: &mut super::Core| {
            let table = BucketTable::new(owners, 2).unwrap();
            table::publish(core.links[written].tables.last().unwrap(), 2, &table);
            full_fence();
        };
        broker.call(write).unwrap();
        drop(broker);
        arrives_without(&received);

        (broker, events) = start(&deposits);
        listen(&broker);
        for link in order {
            let segments = deposits.lock().unwrap().remove(link).unwrap();
            broker.adopt(spec(link), segments).unwrap();
            // Whoever comes back meanwhile is not told anything that is not so.
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(events.recv_timeout(PATIENCE), Ok(2), "the change is complete");
        let pool = broker.pools().unwrap().remove(0);
        assert_eq!((pool.epoch, pool.owners, pool.is_changing), (2, owners, false));
        let after = arrives(&broker, "packets arrive again");
        for (before, after) in before.iter().zip(&after) {
            let is_new = after.generation != before.generation;
            assert_eq!(is_new, after.link != written, "{:?} has generation {}", after.name, after.generation);
        }
        stop.store(true, Ordering::Release);
        std::thread::sleep(Duration::from_millis(200));
        end.store(true, Ordering::Release);
        let accepted = feeder.join().unwrap();
        until("all has come", || received.load(Ordering::Acquire) >= accepted);
        halt.store(true, Ordering::Release);
        let [b, c] = members.map(|member| member.join().unwrap().0.into_keys().collect::<Vec<u8>>());
        let theirs = |odd: u8| (0..BUCKETS as u8).filter(|bucket| bucket % 2 == odd).collect::<Vec<_>>();
        assert_eq!((b, c), (theirs(0), theirs(1)));
        assert_eq!(received.load(Ordering::Acquire), accepted);
    });
    drop(std::fs::remove_dir_all(&directory));
}

/// Lets all threads end when the test does, or fails.
pub(super) struct Ending<'a, const N: usize>(pub(super) [&'a AtomicBool; N]);

impl<const N: usize> Drop for Ending<'_, N> {
    fn drop(&mut self) {
        self.0.iter().for_each(|end| end.store(true, Ordering::Release));
    }
}

/// Packets that need no broker go on.
pub(super) fn arrives_without(received: &AtomicU64) {
    let before = received.load(Ordering::Acquire);
    until("packets arrive without a broker", || received.load(Ordering::Acquire) > before + 100);
}

#[test]
fn the_other_link_is_brought_up_to_the_newer_table_whichever_comes_first() {
    dies_halfway("yx", "y", ["y", "x"]);
    dies_halfway("xy", "y", ["x", "y"]);
    dies_halfway("xx", "x", ["x", "y"]);
}
