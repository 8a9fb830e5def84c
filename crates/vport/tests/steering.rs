//! Changing which worker owns which bucket while packets flow: nothing is lost, nothing overtakes, and every bucket's
//! state is handed over exactly once.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vport::broker::{Broker, Config, EndSpec, LinkSpec, RING_BYTES_MIN};
use vport::client::{Attachment, attach};
use vport::info::PortInfo;
use vport::owner::{Buckets, Decider, GroupError, Owner, group};
use vport::packet::PacketRef;
use vport::steering::{BUCKETS, BucketTable, Steering};
use vport::{RxRing, TxRing};

const PATIENCE: Duration = Duration::from_secs(30);

/// A broker and its directory of sockets.
struct Node {
    broker: Broker,
    directory: PathBuf,
}

impl Node {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("kaista-steering-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let broker = Broker::start(Config { hugepages: false }, |event| {
            if let vport::broker::Event::Quarantined { reason, .. } = event {
                eprintln!("quarantined: {reason}");
            }
        })
        .unwrap();
        for function in ["source", "worker", "sink"] {
            let socket = Broker::bind(&directory.join(function)).unwrap();
            broker.listen(function, socket, 0..u32::MAX).unwrap();
        }
        Self { broker, directory }
    }

    /// Joins two ports of functions, each with a number of queues, steered by UE address.
    fn join(&self, ends: [(&str, &str, u16); 2]) -> [Attachment; 2] {
        let name = ends.map(|(function, port, _)| format!("{function}.{port}")).join("-");
        let spec = ends.map(|(function, port, queues)| EndSpec {
            function: function.into(),
            port: PortInfo { queues, steering: Steering::UeAddress, ..PortInfo::named(port) },
        });
        self.broker.add_link(LinkSpec { name, ends: spec, ring_bytes: RING_BYTES_MIN }).unwrap();
        let attached =
            ends.map(|(function, port, _)| attach(&self.directory.join(function), port, PATIENCE, 192).unwrap());
        let deadline = Instant::now() + PATIENCE;
        while !self.broker.ports().unwrap().iter().all(|port| port.up) {
            assert!(Instant::now() < deadline, "the link does not come up");
            std::thread::sleep(Duration::from_millis(1));
        }
        attached
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

const FLOW: usize = 32;
const NUMBER: usize = 40;

/// Packet `number` of a flow: a UE's address.
fn frame(flow: u16, number: u64) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[30..32].copy_from_slice(&[10, 45]);
    frame[FLOW..FLOW + 2].copy_from_slice(&flow.to_be_bytes());
    frame[NUMBER..NUMBER + 8].copy_from_slice(&number.to_le_bytes());
    frame
}

fn flow_and_number(frame: &[u8]) -> (u16, u64) {
    let flow = u16::from_be_bytes(frame[FLOW..FLOW + 2].try_into().unwrap());
    (flow, u64::from_le_bytes(frame[NUMBER..NUMBER + 8].try_into().unwrap()))
}

fn bucket_of(flow: u16) -> u8 {
    Steering::UeAddress.bucket(&frame(flow, 0))
}

/// A flow of each bucket.
fn flow_of(bucket: u8) -> u16 {
    (0..=u16::MAX).find(|&flow| bucket_of(flow) == bucket).unwrap()
}

/// What a worker keeps: for every bucket that is its own, the next number of each of its flows.
struct Books {
    buckets: Vec<Option<Book>>,
    arrived: u64,
}

#[derive(Default)]
struct Book {
    next: std::collections::HashMap<u16, u64>,
    hops: u64,
}

impl Books {
    fn new(queue: usize, queues: usize) -> Self {
        let table = BucketTable::fixed(queues);
        let book = |bucket: u8| (table.queue(bucket) == queue).then(Book::default);
        Self { buckets: (0..BUCKETS as u8).map(book).collect(), arrived: 0 }
    }

    /// Notes a packet, which must be the next of its flow.
    fn enter(&mut self, frame: &[u8]) {
        let (flow, number) = flow_and_number(frame);
        let book = self.buckets[usize::from(bucket_of(flow))].as_mut().expect("a packet without its state");
        let next = book.next.entry(flow).or_default();
        assert_eq!(number, *next, "flow {flow}, at a worker");
        *next += 1;
    }
}

impl Buckets for Books {
    type State = Book;

    fn leave(&mut self, bucket: u8, _to: usize) -> Book {
        self.buckets[usize::from(bucket)].take().expect("a bucket leaves once")
    }

    fn arrive(&mut self, bucket: u8, _from: usize, state: Book) {
        self.arrived += 1;
        let before = self.buckets[usize::from(bucket)].replace(Book { hops: state.hops + 1, ..state });
        assert!(before.is_none(), "a bucket arrives where it is not");
    }
}

/// Flows of the packets that wait at a queue.
fn flows(rx: &mut RxRing, books: &mut Books) -> Vec<u16> {
    let burst = rx.recv();
    (0..burst.len())
        .map(|i| {
            books.enter(burst.get(i).head);
            flow_and_number(burst.get(i).head).0
        })
        .collect()
}

fn all_to(queue: u8) -> [u8; BUCKETS] {
    [queue; BUCKETS]
}

/// Two queues of one worker port, one sender, stepped by hand.
struct Pair {
    _node: Node,
    source: Attachment,
    worker: Attachment,
    decider: Decider,
    owners: Vec<Owner<Book>>,
    books: Vec<Books>,
}

impl Pair {
    fn new(test: &str) -> Self {
        let node = Node::new(test);
        let [source, worker] = node.join([("source", "out", 1), ("worker", "in", 2)]);
        let (decider, owners) = group(std::slice::from_ref(&worker.steering), &[]).unwrap();
        Self { _node: node, source, worker, decider, owners, books: (0..2).map(|queue| Books::new(queue, 2)).collect() }
    }

    fn send(&mut self, flow: u16, number: u64) {
        assert_eq!(self.source.queues[0].1.send(&[PacketRef::from_slice(&frame(flow, number))]), 1);
    }

    fn receive(&mut self, queue: usize) -> Vec<u16> {
        flows(&mut self.worker.queues[queue].0, &mut self.books[queue])
    }

    fn settle(&mut self, queue: usize) -> bool {
        self.owners[queue].settle(&mut self.books[queue])
    }
}

#[test]
fn a_bucket_moves_between_two_packets_of_its_flow_and_the_second_waits_for_it() {
    let mut pair = Pair::new("moves");
    let (even, odd) = (flow_of(0), flow_of(1));
    pair.send(even, 0);
    assert_eq!(pair.decider.set_owners(&all_to(1)), Ok(2));
    pair.send(even, 1);
    pair.send(odd, 0);
    assert_eq!(pair.receive(1), [0; 0], "its state is still with queue 0, and what follows waits behind");
    assert!(!pair.settle(1), "queue 1 has nothing to give");
    assert_eq!(pair.receive(0), [even]);
    assert!(pair.settle(0), "the packet is not dealt with before the next receive");
    assert_eq!(pair.decider.behind(), [("in", 0)]);
    assert_eq!(pair.receive(0), [0; 0]);
    assert!(!pair.settle(0));
    assert_eq!(pair.receive(1), [0; 0]);
    assert!(pair.decider.is_open());
    assert!(!pair.settle(1));
    assert!(!pair.decider.is_open());
    assert_eq!(pair.receive(1), [even, odd]);
    assert_eq!(pair.worker.queues[1].0.counters().invalid, 0);
    assert_eq!((pair.decider.load()[0], pair.decider.load()[1]), (2, 1));
    assert!(pair.owners[1].owns(0) && !pair.owners[0].owns(0));
}

#[test]
fn an_idle_sender_does_not_hold_a_change_up() {
    let mut pair = Pair::new("idle");
    for round in 0..10 {
        pair.decider.set_owners(&all_to(round % 2)).unwrap();
        for queue in [0, 1, 0, 1] {
            pair.receive(queue);
            pair.settle(queue);
        }
        assert!(!pair.decider.is_open());
    }
    pair.send(flow_of(0), 0);
    assert_eq!(pair.receive(1), [flow_of(0)]);
}

#[test]
fn one_epoch_at_a_time_and_only_queues_that_exist() {
    let mut pair = Pair::new("open");
    assert_eq!(pair.decider.set_owners(&all_to(2)), Err(GroupError::Owner));
    pair.decider.set_owners(&all_to(1)).unwrap();
    assert_eq!(pair.decider.set_owners(&all_to(0)), Err(GroupError::Open));
    let again = group::<Book>(std::slice::from_ref(&pair.worker.steering), &[]);
    assert_eq!(again.err(), Some(GroupError::Taken));
    assert_eq!(group::<Book>(&[], &[]).err(), Some(GroupError::Empty));
    assert_eq!(
        group::<Book>(&[pair.source.steering.clone(), pair.worker.steering.clone()], &[]).err(),
        Some(GroupError::Queues)
    );
}

#[test]
fn a_sleeping_worker_is_woken_by_a_change_and_by_a_bucket_that_arrives() {
    let mut pair = Pair::new("wakes");
    let readable = |pair: &Pair| {
        let fds = pair.worker.queues[1].0.poll_fds();
        let mut fds: Vec<_> = fds
            .into_iter()
            .map(|fd| rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN))
            .collect();
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
    };
    let sleep = |pair: &mut Pair| {
        pair.receive(1);
        pair.settle(1);
        assert!(pair.worker.queues[1].0.arm());
    };
    let wake = |pair: &mut Pair| {
        assert!(readable(pair));
        pair.worker.queues[1].0.disarm();
    };
    pair.receive(1);
    pair.worker.queues[1].0.arm();
    pair.worker.queues[1].0.disarm();
    sleep(&mut pair);
    assert!(!readable(&pair));
    pair.decider.set_owners(&all_to(1)).unwrap();
    wake(&mut pair);
    sleep(&mut pair);
    assert!(!readable(&pair), "the wake-up was taken");
    pair.receive(0);
    pair.settle(0);
    wake(&mut pair);
    pair.receive(1);
    assert!(!pair.settle(1) && pair.owners[1].owns(0) && !pair.decider.is_open());
}

#[test]
fn a_group_hands_a_bucket_over_when_it_is_past_on_all_ports() {
    let node = Node::new("group");
    let [mut ran, mut n3] = node.join([("source", "n3", 1), ("worker", "n3", 2)]);
    let [mut dn, mut n6] = node.join([("sink", "n6", 1), ("worker", "n6", 2)]);
    let (mut decider, mut owners) = group::<Book>(&[n3.steering.clone(), n6.steering.clone()], &[]).unwrap();
    let mut books: Vec<Books> = (0..2).map(|queue| Books::new(queue, 2)).collect();
    let (up, down) = (flow_of(0), (1..=u16::MAX).find(|&flow| flow != flow_of(0) && bucket_of(flow) == 0).unwrap());
    let send = |from: &mut Attachment, flow, number| {
        assert_eq!(from.queues[0].1.send(&[PacketRef::from_slice(&frame(flow, number))]), 1);
    };
    send(&mut ran, up, 0);
    send(&mut dn, down, 0);
    decider.set_owners(&all_to(1)).unwrap();
    send(&mut ran, up, 1);
    send(&mut dn, down, 1);
    assert_eq!(flows(&mut n3.queues[0].0, &mut books[0]), [up]);
    assert_eq!(flows(&mut n3.queues[0].0, &mut books[0]), [0; 0]);
    assert!(owners[0].settle(&mut books[0]), "packets of the other port are still to come");
    assert_eq!(flows(&mut n6.queues[0].0, &mut books[0]), [down]);
    assert_eq!(flows(&mut n6.queues[0].0, &mut books[0]), [0; 0]);
    assert!(!owners[0].settle(&mut books[0]));
    for port in [&mut n3, &mut n6] {
        assert_eq!(flows(&mut port.queues[1].0, &mut books[1]), [0; 0]);
    }
    owners[1].settle(&mut books[1]);
    assert_eq!(flows(&mut n3.queues[1].0, &mut books[1]), [up]);
    assert_eq!(flows(&mut n6.queues[1].0, &mut books[1]), [down]);
    assert!(!decider.is_open());
}

/// A generator of numbers that a test can repeat (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }
}

/// Ends the loops of all threads when one of them has failed, so that the test does too.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// Sends everything, however long it takes.
fn send_all(tx: &mut TxRing, packets: &[PacketRef<'_>], failed: &AtomicBool) {
    // Also where there is nothing to send: a channel of a generation that is over is closed by its sender's next call.
    let mut done = tx.send(packets);
    while done < packets.len() && !failed.load(Ordering::Relaxed) {
        std::thread::yield_now();
        done += tx.send(&packets[done..]);
    }
}

/// Sends packets of random flows (of half of them each) until told to stop. Returns how many.
fn produce(tx: &mut TxRing, parity: u16, idle: bool, stop: &AtomicBool, failed: &AtomicBool) -> u64 {
    let _alarm = Alarm(failed);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 + u64::from(parity));
    let mut next = vec![0_u64; 1 << 16];
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
        let burst: Vec<[u8; 64]> = (0..1 + random.next(32))
            .map(|_| {
                let flow = (random.next(1 << 15) as u16) << 1 | parity;
                next[usize::from(flow)] += 1;
                frame(flow, next[usize::from(flow)] - 1)
            })
            .collect();
        let packets: Vec<PacketRef<'_>> = burst.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        send_all(tx, &packets, failed);
        sent += packets.len() as u64;
        if idle {
            std::thread::sleep(Duration::from_micros(random.next(3_000) as u64));
        }
    }
    sent
}

/// Receives, notes and forwards.
fn work(
    mut rx: RxRing,
    mut tx: TxRing,
    mut owner: Owner<Book>,
    queues: usize,
    stop: &AtomicBool,
    failed: &AtomicBool,
) -> (Books, RxRing) {
    let _alarm = Alarm(failed);
    let mut books = Books::new(owner.queue(), queues);
    while !stop.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
        let burst = rx.recv();
        let packets: Vec<PacketRef<'_>> = (0..burst.len()).map(|i| burst.get(i)).collect();
        packets.iter().for_each(|packet| books.enter(packet.head));
        send_all(&mut tx, &packets, failed);
        drop(packets);
        owner.settle(&mut books);
        std::thread::yield_now();
    }
    (books, rx)
}

/// Checks that every flow's packets come in order until told how many there are.
fn check(sink: &mut Attachment, total: &AtomicU64, failed: &AtomicBool) {
    let _alarm = Alarm(failed);
    let mut next = vec![0_u64; 1 << 16];
    let (mut seen, mut last) = (0, Instant::now());
    while seen < total.load(Ordering::Acquire) && !failed.load(Ordering::Relaxed) {
        for (rx, _) in &mut sink.queues {
            let burst = rx.recv();
            for i in 0..burst.len() {
                let (flow, number) = flow_and_number(burst.get(i).head);
                assert_eq!(number, next[usize::from(flow)], "flow {flow}, at the sink");
                next[usize::from(flow)] += 1;
                seen += 1;
                last = Instant::now();
            }
        }
        assert!(last.elapsed() < PATIENCE, "packets are lost: {seen} came");
        std::thread::yield_now();
    }
}

/// Opens at least `changes` epochs with random tables, one after the other, and for two seconds. Returns how many buckets moved, and the times until the
/// epochs were closed.
fn change(decider: &mut Decider, queues: usize, changes: usize, failed: &AtomicBool) -> (u64, Vec<Duration>) {
    let _alarm = Alarm(failed);
    let mut random = Random(42);
    let (mut moved, mut times) = (0, Vec::new());
    let begun = Instant::now();
    while times.len() < changes || begun.elapsed() < Duration::from_secs(2) {
        let mut owners = *decider.owners();
        // A few buckets, many, or all to few workers.
        let (count, to) =
            [(1, queues), (8, queues), (BUCKETS, queues), (BUCKETS, 1 + random.next(queues))][random.next(4)];
        for _ in 0..count {
            owners[random.next(BUCKETS)] = random.next(to) as u8;
        }
        moved += owners.iter().zip(decider.owners()).filter(|(new, old)| new != old).count() as u64;
        let start = Instant::now();
        decider.set_owners(&owners).unwrap();
        while decider.is_open() {
            assert!(!failed.load(Ordering::Relaxed), "another thread has failed");
            assert!(start.elapsed() < PATIENCE, "buckets do not arrive; behind: {:?}", decider.behind());
            std::thread::yield_now();
        }
        times.push(start.elapsed());
    }
    (moved, times)
}

/// `KAISTA_STEERING_CHANGES` sets the number of changes.
fn changes(otherwise: usize) -> usize {
    std::env::var("KAISTA_STEERING_CHANGES").map_or(otherwise, |count| count.parse().unwrap())
}

#[test]
fn random_changes_of_owners_lose_nothing_and_keep_every_flow_in_order() {
    under_load("random", changes(1_000), |_, _, _| {});
}

#[test]
fn new_generations_meanwhile_change_nothing_of_that() {
    under_load("renewed", changes(300), |node, stop, failed| {
        while !stop.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
            for link in ["source.out-worker.in", "worker.out-sink.in"] {
                node.broker.renew(link).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
}

/// Two producers, eight workers, a sink, and a decider that changes its mind, while `disturb` runs.
fn under_load(test: &str, changes: usize, disturb: impl FnOnce(&Node, &AtomicBool, &AtomicBool) + Send) {
    const QUEUES: usize = 8;
    let node = &Node::new(test);
    let [source, worker] = node.join([("source", "out", 2), ("worker", "in", QUEUES as u16)]);
    let [out, mut sink] = node.join([("worker", "out", QUEUES as u16), ("sink", "in", 3)]);
    let (mut decider, owners) =
        group::<Book>(std::slice::from_ref(&worker.steering), std::slice::from_ref(&out.steering)).unwrap();
    let (stop, stop_workers, total) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(u64::MAX));
    let failed = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let producers = source.queues.into_iter().enumerate().map(|(parity, (_, mut tx))| {
            let stop = &stop;
            scope.spawn(move || produce(&mut tx, parity as u16, parity == 1, stop, failed))
        });
        let producers: Vec<_> = producers.collect();
        let halves = worker.queues.into_iter().zip(out.queues).zip(owners);
        let workers = halves.map(|(((rx, _), (_, tx)), owner)| {
            let stop = &stop_workers;
            scope.spawn(move || work(rx, tx, owner, QUEUES, stop, failed))
        });
        let workers: Vec<_> = workers.collect();
        let (total, stop) = (&total, &stop);
        scope.spawn(move || disturb(node, stop, failed));
        let checker = scope.spawn(move || check(&mut sink, total, failed));
        let (moved, mut times) = change(&mut decider, QUEUES, changes, failed);
        stop.store(true, Ordering::Relaxed);
        let sent: Vec<u64> = producers.into_iter().map(|producer| producer.join().unwrap()).collect();
        total.store(sent.iter().sum(), Ordering::Release);
        checker.join().unwrap();
        stop_workers.store(true, Ordering::Relaxed);
        let mut places = [0; BUCKETS];
        let (mut hops, mut arrived) = (0, 0);
        for worker in workers {
            let (books, rx) = worker.join().unwrap();
            assert_eq!(rx.counters().invalid, 0);
            arrived += books.arrived;
            for (bucket, book) in books.buckets.iter().enumerate() {
                places[bucket] += usize::from(book.is_some());
                hops += book.as_ref().map_or(0, |book| book.hops);
            }
        }
        assert_eq!(places, [1; BUCKETS], "every bucket's state is in one place");
        assert_eq!((hops, arrived), (moved, moved), "every state was handed over once for each move");
        assert_eq!(decider.load().iter().sum::<u64>(), sent.iter().sum::<u64>());
        assert_eq!(decider.unread(), 0);
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!(
            "{test}: {} changes, {moved} buckets handed over, {sent:?} packets; until closed: p50 {:?}, p99 {:?}, max {:?}",
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    });
}
