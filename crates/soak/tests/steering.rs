//! Changing which worker owns which bucket while packets flow: nothing is lost, nothing overtakes, and every bucket's
//! state is handed over exactly once.

use std::sync::Mutex;
use std::time::Duration;

use soak::books::{Book, Books};
use soak::course::Course;
use soak::frames::{LEN_MIN, Stamp, bucket, frame};
use soak::outcome::Outcome;
use soak::rig::Rig;
use soak::steering::{Part, under_load};
use vport::RxRing;
use vport::client::Attachment;
use vport::owner::{Decider, GroupError, Owner, group};
use vport::packet::PacketRef;
use vport::steering::BUCKETS;

const FUNCTIONS: [&str; 3] = ["source", "worker", "sink"];

/// A flow of each bucket.
fn flow_of(wanted: u8) -> u16 {
    (0..=u16::MAX).find(|&flow| bucket(flow) == wanted).unwrap()
}

/// Flows of the packets that wait at a queue.
fn flows(rx: &mut RxRing, books: &mut Books) -> Vec<u16> {
    let burst = rx.recv();
    let flows = (0..burst.len()).map(|i| books.enter(burst.get(i).head).flow).collect();
    assert_eq!(books.wrong, 0, "a packet without its state, or out of order");
    flows
}

fn numbered(flow: u16, number: u64) -> Vec<u8> {
    frame(Stamp { flow, incarnation: 0, number }, LEN_MIN)
}

fn all_to(queue: u8) -> [u8; BUCKETS] {
    [queue; BUCKETS]
}

/// Of each worker, before the first change.
fn books_of(owners: &[Owner<Book>]) -> Vec<Books> {
    owners.iter().map(|owner| Books::new(|bucket| owner.owns(bucket).then(Book::default))).collect()
}

/// Two queues of one worker port, one sender, stepped by hand.
struct Pair {
    _rig: Rig,
    source: Attachment,
    worker: Attachment,
    decider: Decider,
    owners: Vec<Owner<Book>>,
    books: Vec<Books>,
}

impl Pair {
    fn new() -> Self {
        let rig = Rig::new(&FUNCTIONS).unwrap();
        let [source, worker] = rig.join([("source", "out", 1), ("worker", "in", 2)]).unwrap();
        let (decider, owners) = group(std::slice::from_ref(&worker.steering), &[]).unwrap();
        let books = books_of(&owners);
        Self { _rig: rig, source, worker, decider, owners, books }
    }

    fn send(&mut self, flow: u16, number: u64) {
        assert_eq!(self.source.queues[0].1.send(&[PacketRef::from_slice(&numbered(flow, number))]), 1);
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
    let mut pair = Pair::new();
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
    let mut pair = Pair::new();
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
    let mut pair = Pair::new();
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
    let mut pair = Pair::new();
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
    let rig = Rig::new(&FUNCTIONS).unwrap();
    let [mut ran, mut n3] = rig.join([("source", "n3", 1), ("worker", "n3", 2)]).unwrap();
    let [mut dn, mut n6] = rig.join([("sink", "n6", 1), ("worker", "n6", 2)]).unwrap();
    let (mut decider, mut owners) = group::<Book>(&[n3.steering.clone(), n6.steering.clone()], &[]).unwrap();
    let mut books = books_of(&owners);
    let (up, down) = (flow_of(0), (1..=u16::MAX).find(|&flow| flow != flow_of(0) && bucket(flow) == 0).unwrap());
    let send = |from: &mut Attachment, flow, number| {
        assert_eq!(from.queues[0].1.send(&[PacketRef::from_slice(&numbered(flow, number))]), 1);
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

/// One after the other: each has threads enough for a dozen cores.
static MACHINE: Mutex<()> = Mutex::new(());
/// Changes of a short campaign.
const CHANGES: u64 = 100;

/// The campaign, for two seconds.
fn short(part: Part) -> Outcome {
    let _machine = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut outcome = Outcome::new("steering");
    under_load(&Course::begin(Duration::from_secs(2), CHANGES, false), part, &mut outcome).unwrap();
    outcome.remarks().for_each(|remark| println!("{remark}"));
    outcome
}

#[test]
fn random_changes_of_owners_lose_nothing_and_keep_every_flow_in_order() {
    let outcome = short(Part::Shared);
    assert!(outcome.is_clean() && outcome.events >= CHANGES, "{outcome}, {:?}", outcome.failures);
}

#[test]
fn new_generations_meanwhile_change_nothing_of_that() {
    let outcome = short(Part::Renewing);
    assert!(outcome.is_clean() && outcome.events >= CHANGES, "{outcome}, {:?}", outcome.failures);
}

#[test]
fn nor_do_workers_that_have_cores_of_their_own() {
    let outcome = short(Part::OwnCores);
    assert!(outcome.is_clean() && outcome.events >= CHANGES, "{outcome}, {:?}", outcome.failures);
}
