//! The steering campaign: which worker owns which bucket changes at random while packets flow. Nothing may be lost, nothing
//! may overtake, and every bucket's state must be handed over exactly once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use vport::broker::{Broker, Event};
use vport::client::Attachment;
use vport::owner::{Buckets, Decider, Owner, group};
use vport::packet::PacketRef;
use vport::steering::{BUCKETS, BucketTable};
use vport::{RxRing, TxRing};

use crate::checker::Checker;
use crate::course::Course;
use crate::frames::{self, Stamp};
use crate::outcome::{Outcome, Tally, Times};
use crate::random::Random;
use crate::rig::{PATIENCE, Rig};

/// Queues of the port that is steered: one worker each.
const WORKERS: usize = 8;
/// Flows of both producers together.
const FLOWS: usize = 1 << 16;

/// What a worker keeps: for every bucket that is its own, the next number of each of its flows.
pub struct Books {
    buckets: Vec<Option<Book>>,
    /// Buckets that came from others.
    pub arrived: u64,
    /// Packets without their state, and packets that are not the next of their flow.
    pub wrong: u64,
}

/// What is kept of one bucket.
#[derive(Default)]
pub struct Book {
    next: HashMap<u16, u64>,
    hops: u64,
}

impl Books {
    /// Of worker `queue` of so many, before the first change.
    pub fn new(queue: usize, queues: usize) -> Self {
        let table = BucketTable::fixed(queues);
        let book = |bucket: u8| (table.queue(bucket) == queue).then(Book::default);
        Self { buckets: (0..BUCKETS as u8).map(book).collect(), arrived: 0, wrong: 0 }
    }

    /// Notes a packet, which must be the next of its flow. Returns its flow.
    pub fn enter(&mut self, head: &[u8]) -> u16 {
        let Some(Stamp { flow, number, .. }) = frames::stamp(head) else {
            self.wrong += 1;
            return 0;
        };
        match &mut self.buckets[usize::from(frames::bucket_of_head(head))] {
            Some(book) => {
                let next = book.next.entry(flow).or_default();
                self.wrong += u64::from(number != *next);
                *next = number + 1;
            }
            None => self.wrong += 1,
        }
        flow
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

/// Runs the campaign. Events are changes of the table, half of them while both links get new generations all the time.
pub fn run(course: &Course) -> Result<Outcome> {
    let mut outcome = Outcome::new("steering");
    for renewing in [false, true] {
        let half = Course::begin(course.lasts / 2, course.events.div_ceil(2), course.talks);
        under_load(&half, renewing, &mut outcome)?;
    }
    Ok(outcome)
}

/// Ends the loops of all threads when one of them has failed.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// What all threads look at.
#[derive(Default)]
struct Signs {
    /// Producers stop, and whoever disturbs.
    stop: AtomicBool,
    /// Workers stop.
    done: AtomicBool,
    /// A thread has failed.
    failed: AtomicBool,
}

impl Signs {
    fn alarm(&self) -> Alarm<'_> {
        Alarm(&self.failed)
    }

    fn has(&self, sign: &AtomicBool) -> bool {
        sign.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }
}

/// Two producers, one of them mostly idle; eight workers, a sink, and a decider that changes its mind. With `renewing`, the
/// links get new generations meanwhile. Adds what was found to `outcome`.
pub fn under_load(course: &Course, renewing: bool, outcome: &mut Outcome) -> Result<()> {
    let rig = Rig::new(&["source", "worker", "sink"])?;
    let [source, worker] = rig.join([("source", "out", 2), ("worker", "in", WORKERS as u16)])?;
    let [out, mut sink] = rig.join([("worker", "out", WORKERS as u16), ("sink", "in", 3)])?;
    let (mut decider, owners) =
        group::<Book>(std::slice::from_ref(&worker.steering), std::slice::from_ref(&out.steering))?;
    let (signs, total, sunk) = (&Signs::default(), &AtomicU64::new(u64::MAX), &Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        let producers: Vec<_> = source
            .queues
            .into_iter()
            .enumerate()
            .map(|(parity, (_, mut tx))| scope.spawn(move || produce(&mut tx, parity as u16, parity == 1, signs)))
            .collect();
        let halves = worker.queues.into_iter().zip(out.queues).zip(owners);
        let workers: Vec<_> =
            halves.map(|(((rx, _), (_, tx)), owner)| scope.spawn(move || work(rx, tx, owner, signs))).collect();
        let broker = &rig.broker;
        let disturber = scope.spawn(move || if renewing { renew(broker, signs) } else { 0 });
        let checker = scope.spawn(move || *sunk.lock().expect("only the sink") = check(&mut sink, total, signs));

        let changes = change(&mut decider, course, signs, outcome);
        signs.stop.store(true, Ordering::Relaxed);
        let renewals = disturber.join().unwrap_or_default();
        let sent: Vec<u64> = producers.into_iter().map(|producer| producer.join().unwrap_or_default()).collect();
        total.store(sent.iter().sum(), Ordering::Release);
        let _ = checker.join();
        signs.done.store(true, Ordering::Relaxed);
        let workers: Vec<_> = workers.into_iter().filter_map(|worker| worker.join().ok()).collect();

        outcome.events += changes.times.len() as u64;
        outcome.tally.add(*sunk.lock().expect("the sink has ended"));
        outcome.tally.reordered += workers.iter().map(|(books, _)| books.wrong).sum::<u64>();
        outcome.tally.lost += workers.iter().map(|(_, rx)| rx.counters().invalid).sum::<u64>();
        outcome.failures.extend(states(&workers, changes.moved));
        outcome.failures.extend(rig.events.try_iter().filter_map(|event| match event {
            Event::Quarantined { reason, .. } => Some(format!("quarantined: {reason}")),
            _ => None,
        }));
        if decider.unread() > 0 {
            // On a machine that leaves a sink without a core for so long. What was reordered by it is counted.
            outcome.notes.push(format!("{} times a sink let packets lie for a second", decider.unread()));
        }
        outcome.notes.push(format!(
            "{} changes with {renewals} new generations meanwhile, {} buckets handed over, {sent:?} packets; until closed: {}",
            changes.times.len(),
            changes.moved,
            changes.times
        ));
    });
    if signs.failed.load(Ordering::Relaxed) {
        outcome.failures.push("a thread has failed; see above".into());
    }
    Ok(())
}

/// Whether every bucket's state is in one place, and was handed over once for each move.
fn states(workers: &[(Books, RxRing)], moved: u64) -> Vec<String> {
    let mut places = [0; BUCKETS];
    let (mut hops, mut arrived) = (0, 0);
    for (books, _) in workers {
        arrived += books.arrived;
        for (bucket, book) in books.buckets.iter().enumerate() {
            places[bucket] += usize::from(book.is_some());
            hops += book.as_ref().map_or(0, |book| book.hops);
        }
    }
    let mut wrong = Vec::new();
    if places != [1; BUCKETS] {
        wrong.push(format!("the buckets' states are in so many places: {places:?}"));
    }
    if (hops, arrived) != (moved, moved) {
        wrong.push(format!("{moved} buckets moved, and {arrived} states arrived, {hops} by their own count"));
    }
    wrong
}

/// Sends everything, however long it takes.
fn send_all(tx: &mut TxRing, packets: &[PacketRef<'_>], signs: &Signs) {
    // Also where there is nothing to send: a channel of a generation that is over is closed by its sender's next call.
    let mut done = tx.send(packets);
    while done < packets.len() && !signs.failed.load(Ordering::Relaxed) {
        std::thread::yield_now();
        done += tx.send(&packets[done..]);
    }
}

/// Sends packets of random flows (of half of them each) until told to stop. Returns how many.
fn produce(tx: &mut TxRing, parity: u16, idle: bool, signs: &Signs) -> u64 {
    let _alarm = signs.alarm();
    let mut random = Random::new(1 + u64::from(parity));
    let mut next = vec![0_u64; FLOWS];
    let mut sent = 0;
    while !signs.has(&signs.stop) {
        let burst: Vec<Vec<u8>> = (0..1 + random.below(32))
            .map(|_| {
                let flow = (random.below(FLOWS / 2) as u16) << 1 | parity;
                next[usize::from(flow)] += 1;
                let number = next[usize::from(flow)] - 1;
                frames::frame(Stamp { flow, incarnation: 0, number }, frames::LEN_MIN)
            })
            .collect();
        let packets: Vec<PacketRef<'_>> = burst.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        send_all(tx, &packets, signs);
        sent += packets.len() as u64;
        if idle {
            std::thread::sleep(Duration::from_micros(random.below(3_000) as u64));
        }
    }
    sent
}

/// Receives, notes and forwards.
fn work(mut rx: RxRing, mut tx: TxRing, mut owner: Owner<Book>, signs: &Signs) -> (Books, RxRing) {
    let _alarm = signs.alarm();
    let mut books = Books::new(owner.queue(), WORKERS);
    while !signs.has(&signs.done) {
        let burst = rx.recv();
        let packets: Vec<PacketRef<'_>> = (0..burst.len()).map(|i| burst.get(i)).collect();
        for packet in &packets {
            books.enter(packet.head);
        }
        send_all(&mut tx, &packets, signs);
        drop(packets);
        owner.settle(&mut books);
        std::thread::yield_now();
    }
    (books, rx)
}

/// Judges what arrives until all has come, or nothing has for long.
fn check(sink: &mut Attachment, total: &AtomicU64, signs: &Signs) -> Tally {
    let _alarm = signs.alarm();
    let mut checker = Checker::new(FLOWS, 1);
    let (mut seen, mut last, mut room) = (0, Instant::now(), Vec::new());
    while seen < total.load(Ordering::Acquire) && !signs.failed.load(Ordering::Relaxed) {
        let before = seen;
        for (rx, _) in &mut sink.queues {
            let burst = rx.recv();
            for i in 0..burst.len() {
                match frames::check(&burst.get(i), &mut room) {
                    Some(stamp) => {
                        checker.take(stamp);
                    }
                    None => checker.corrupted(),
                }
            }
            seen += burst.len() as u64;
        }
        let all_sent = total.load(Ordering::Relaxed) != u64::MAX;
        if seen > before || !all_sent {
            last = Instant::now();
        } else if last.elapsed() > PATIENCE {
            break;
        }
        std::thread::yield_now();
    }
    let mut tally = checker.tally();
    // Nothing came behind the last ones of their flows.
    let missing = total.load(Ordering::Relaxed).saturating_sub(seen);
    if total.load(Ordering::Relaxed) != u64::MAX {
        tally.lost = tally.lost.max(missing);
    }
    tally
}

/// Gives both links new generations until told to stop. Returns how many.
fn renew(broker: &Broker, signs: &Signs) -> u64 {
    let _alarm = signs.alarm();
    let mut renewals = 0;
    while !signs.has(&signs.stop) {
        for link in ["source.out-worker.in", "worker.out-sink.in"] {
            broker.renew(link).expect("a link that is there");
            renewals += 1;
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    renewals
}

/// What became of the changes.
#[derive(Default)]
struct Changes {
    /// Buckets that were to move.
    moved: u64,
    /// From the opening of an epoch to its end.
    times: Times,
}

/// Opens epochs with random tables, one after the other.
fn change(decider: &mut Decider, course: &Course, signs: &Signs, outcome: &mut Outcome) -> Changes {
    let mut random = Random::new(42);
    let mut changes = Changes::default();
    let mut said = Instant::now();
    while course.goes_on(changes.times.len() as u64) && !signs.failed.load(Ordering::Relaxed) {
        let owners = another(&mut random, decider.owners());
        changes.moved += owners.iter().zip(decider.owners()).filter(|(new, old)| new != old).count() as u64;
        let start = Instant::now();
        if let Err(error) = decider.set_owners(&owners) {
            outcome.failures.push(error.to_string());
            break;
        }
        while decider.is_open() && !signs.failed.load(Ordering::Relaxed) {
            if start.elapsed() > PATIENCE {
                outcome.failures.push(format!("buckets do not arrive; behind: {:?}", decider.behind()));
                return changes;
            }
            std::thread::yield_now();
        }
        changes.times.add(start.elapsed());
        course.say(&mut said, || format!("steering: {} changes", changes.times.len()));
    }
    changes
}

/// A table in which a few buckets have other owners, or many, or all belong to few.
pub fn another(random: &mut Random, owners: &[u8; BUCKETS]) -> [u8; BUCKETS] {
    let mut owners = *owners;
    let queues = WORKERS;
    let few = 1 + random.below(queues);
    let (count, to) = *random.pick(&[(1, queues), (8, queues), (BUCKETS, queues), (BUCKETS, few)]);
    for _ in 0..count {
        owners[random.below(BUCKETS)] = random.below(to) as u8;
    }
    owners
}
