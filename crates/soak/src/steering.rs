//! The steering campaign: which worker owns which bucket changes at random while packets flow. Nothing may be lost, nothing
//! may overtake, and every bucket's state must be handed over exactly once.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use vport::broker::{Broker, Event};
use vport::owner::{Decider, Owner, group};
use vport::packet::PacketRef;
use vport::steering::BUCKETS;
use vport::{RxRing, TxRing};

use crate::books::{Book, Books};
use crate::course::{self, Course};
use crate::load::{Load, Signs, send_all};
use crate::outcome::{Outcome, Tally, Times};
use crate::random::Random;
use crate::rig::{PATIENCE, Rig};

/// Queues of the port that is steered: one worker each.
const WORKERS: usize = 8;

/// What happens meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Eight workers share the cores with all others.
    Shared,
    /// The same, and both links get new generations all the time.
    Renewing,
    /// Each worker has a core of its own, as far as there are any: of fewer than eight there are fewer workers, two at least.
    /// Where cores are left, all others share them.
    OwnCores,
}

/// Runs the campaign. Events are changes of the table.
pub fn run(course: &Course) -> Result<Outcome> {
    const PARTS: [Part; 3] = [Part::Shared, Part::Renewing, Part::OwnCores];
    let mut outcome = Outcome::new("steering");
    for part in PARTS.into_iter().take_while(|_| !course::is_stopped()) {
        under_load(&course.part(PARTS.len() as u32), part, &mut outcome)?;
    }
    Ok(outcome)
}

/// Cores for each worker, and for all others.
struct Cores {
    workers: Vec<CpuSet>,
    others: CpuSet,
}

impl Cores {
    fn of(part: Part) -> Result<Self> {
        let all = sched_getaffinity(None)?;
        if part != Part::OwnCores {
            return Ok(Self { workers: vec![all; WORKERS], others: all });
        }
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
        let (own, left) = cores.split_at(cores.len().min(WORKERS));
        let mut workers: Vec<CpuSet> = own.iter().map(|core| set_of(&[*core])).collect();
        workers.resize(workers.len().max(2), all);
        Ok(Self { workers, others: if left.is_empty() { all } else { set_of(left) } })
    }
}

fn set_of(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    set
}

/// Two producers, one of them mostly idle; workers, a sink, and a decider that changes its mind. Adds what was found to
/// `outcome`.
pub fn under_load(course: &Course, part: Part, outcome: &mut Outcome) -> Result<()> {
    let rig = Rig::new(&["source", "worker", "sink"])?;
    let cores = Cores::of(part)?;
    let (workers, others) = (cores.workers.len(), cores.others);
    let [source, worker] = rig.join([("source", "out", 2), ("worker", "in", workers as u16)])?;
    let [out, mut sink] = rig.join([("worker", "out", workers as u16), ("sink", "in", 3)])?;
    let (mut decider, owners) =
        group::<Book>(std::slice::from_ref(&worker.steering), std::slice::from_ref(&out.steering))?;
    let load = &Load::new(std::thread::yield_now);
    let signs = &load.signs;
    std::thread::scope(|scope| {
        let producers: Vec<_> = source
            .queues
            .into_iter()
            .zip(0..)
            .map(|(mut queue, parity)| {
                scope.spawn(move || {
                    stay_on(&others);
                    load.produce(&mut queue, parity, parity == 1)
                })
            })
            .collect();
        let halves = worker.queues.into_iter().zip(out.queues).zip(owners).zip(cores.workers);
        let works = halves.map(|((((rx, _), (_, tx)), owner), cores)| {
            scope.spawn(move || {
                stay_on(&cores);
                work(rx, tx, owner, signs)
            })
        });
        let works: Vec<_> = works.collect();
        let broker = &rig.broker;
        let disturber = scope.spawn(move || if part == Part::Renewing { renew(broker, signs) } else { 0 });
        let judge = scope.spawn(move || {
            stay_on(&others);
            load.judge(&mut sink);
        });

        let changes = change(&mut decider, workers, course, signs, outcome);
        signs.stop.store(true, Ordering::Relaxed);
        let renewals = disturber.join().unwrap_or_default();
        let sent: Vec<u64> = producers.into_iter().map(|producer| producer.join().unwrap_or_default()).collect();
        let missing = load.conclude(sent.iter().sum());
        let found = load.tally();
        // Nothing came behind the last ones of their flows.
        outcome.tally.add(Tally { lost: found.lost.max(missing), ..found });
        signs.done.store(true, Ordering::Relaxed);
        // Whether it has failed, the alarm says.
        let _ = judge.join();
        let works: Vec<_> = works.into_iter().filter_map(|work| work.join().ok()).collect();

        outcome.events += changes.times.len() as u64;
        outcome.tally.reordered += works.iter().map(|(books, _)| books.wrong).sum::<u64>();
        outcome.tally.lost += works.iter().map(|(_, rx)| rx.counters().invalid).sum::<u64>();
        outcome.failures.extend(states(&works, changes.moved));
        let mut handed = Times::default();
        works.iter().for_each(|(books, _)| handed.absorb(&books.handed));
        outcome.failures.extend(rig.events.try_iter().filter_map(|event| match event {
            Event::Quarantined { reason, .. } => Some(format!("quarantined: {reason}")),
            _ => None,
        }));
        if decider.unread() > 0 {
            // On a machine that leaves a sink without a core for so long. What was reordered by it is counted.
            outcome.notes.push(format!("{} times a sink let packets lie for a second", decider.unread()));
        }
        outcome.notes.push(format!(
            "{part:?}: {} changes between {workers} workers, {renewals} new generations meanwhile, {} buckets handed over, {sent:?} \
             packets; until closed: {}; a bucket from hand to hand: {handed}",
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
        for (bucket, book) in books.iter() {
            places[bucket] += 1;
            hops += book.hops;
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

/// Receives, notes and forwards.
fn work(mut rx: RxRing, mut tx: TxRing, mut owner: Owner<Book>, signs: &Signs) -> (Books, RxRing) {
    let _alarm = signs.alarm();
    let mut books = Books::new(|bucket| owner.owns(bucket).then(Book::default));
    while !signs.has(&signs.done) {
        let burst = rx.recv();
        let packets: Vec<PacketRef<'_>> = (0..burst.len()).map(|i| burst.get(i)).collect();
        for packet in &packets {
            books.enter(packet.head);
        }
        send_all(&mut tx, &packets, std::thread::yield_now, |_| !signs.failed.load(Ordering::Relaxed));
        drop(packets);
        owner.settle(&mut books);
        std::thread::yield_now();
    }
    (books, rx)
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

/// Keeps this thread to these cores. Where that is not allowed it is where it is.
fn stay_on(cores: &CpuSet) {
    let _ = sched_setaffinity(None, cores);
}

/// Opens epochs with random tables between so many workers, one after the other.
fn change(decider: &mut Decider, workers: usize, course: &Course, signs: &Signs, outcome: &mut Outcome) -> Changes {
    let mut random = Random::new(42);
    let queues: Vec<u8> = (0..workers as u8).collect();
    let mut changes = Changes::default();
    let mut said = Instant::now();
    while course.goes_on(changes.times.len() as u64) && !signs.failed.load(Ordering::Relaxed) {
        let owners = another(&mut random, decider.owners(), &queues);
        changes.moved += owners.iter().zip(decider.owners()).filter(|(new, old)| new != old).count() as u64;
        let start = Instant::now();
        if let Err(error) = decider.set_owners(&owners) {
            outcome.failures.push(error.to_string());
            break;
        }
        while decider.is_open() && !signs.failed.load(Ordering::Relaxed) {
            if start.elapsed() > PATIENCE || course::is_overdue() {
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

/// A table in which a few buckets have other owners among these queues, or many, or all belong to few.
pub fn another(random: &mut Random, owners: &[u8; BUCKETS], queues: &[u8]) -> [u8; BUCKETS] {
    let mut owners = *owners;
    let (all, few) = (queues.len(), 1 + random.below(queues.len()));
    let (count, to) = *random.pick(&[(1, all), (8, all), (BUCKETS, all), (BUCKETS, few)]);
    for _ in 0..count {
        owners[random.below(BUCKETS)] = queues[random.below(to)];
    }
    owners
}
