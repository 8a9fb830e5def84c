//! Buckets on their way between workers, with the state of their sessions.
//!
//! A packet may come to a worker that does not own its session: the session has a second address, or a network behind its UE,
//! or the port does not steer. It goes to the owner by a ring. So that a bucket can move without one overtaking another, each
//! change of owners is an *epoch*, in which every worker
//!
//! 1. hands packets on by the old table until its ports have delivered all that was sent by it; then puts a marker into the
//!    ring to every worker, and uses the new table;
//! 2. has heard the markers of all, and says so. When all have said so, nothing is on its way by the old table;
//! 3. gives away the buckets that leave it, with their state ([`Luggage`]), when what it sent is read, or has gone through a sender.
//!
//! In a pipeline a bucket's packets come to its next owner as soon as the dispatcher knows of the epoch. So that these are not
//! handed on before what the former owner hands on, they wait until all workers have heard all markers.
//!
//! A packet that comes for a bucket which is not there yet waits: what another worker handed on in its ring, what a port
//! brought in the ring that a worker has to itself. From there it goes on in order before the next burst of a port.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use port::owner::Buckets;
use port::relay::Outflow;
use port::{Burst, PacketRef};

use super::letters::post;
use super::{Exits, Hands, classify_frame};
use crate::buffers::Shelf;
use crate::drops::DropReason;
use crate::mail::{Inbox, Letter, Outbox};
use crate::packet::Class;
use crate::side::PortId;
use crate::tables::{BUCKETS, Bucket, News, Version};

/// In the table of owners: will be this worker's, and what comes for it waits in the worker's own ring.
pub(super) const AWAITED: u8 = u8::MAX;

/// What goes with a bucket beside what is in its place wherever its owner is (policers, usage counters).
#[derive(Debug)]
pub struct Luggage {
    /// Packets that wait for their UEs.
    shelf: Shelf,
    /// The version of the tables whose news its former owner has heard last.
    serial: u64,
}

/// What workers tell each other of an epoch: whether each has heard the markers of all.
#[derive(Debug)]
pub struct Assembly(Box<[AtomicU64]>);

impl Assembly {
    /// Of so many workers.
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self((0..workers).map(|_| AtomicU64::new(0)).collect()))
    }

    fn is_complete(&self, epoch: u64) -> bool {
        self.0.iter().all(|settled| settled.load(Ordering::Acquire) >= epoch)
    }
}

/// What a worker knows of buckets and their ways.
#[derive(Debug)]
pub(super) struct Moving {
    assembly: Arc<Assembly>,
    /// Buckets whose state is here, a bit each.
    held: u128,
    /// The epoch whose table is in use.
    marked: u64,
    /// The last epoch that each worker's marker has come of.
    told: Box<[u64]>,
    /// The version whose news this worker has heard last.
    serial: u64,
    /// The last two versions' news, the older ones first: a former owner may be so far behind.
    news: [(u64, Arc<[News]>); 2],
    /// The same of a bucket's former owner, where that was ahead.
    heard: Box<[u64; BUCKETS]>,
    /// Buckets whose former owner was behind.
    behind: Vec<Bucket>,
    /// Buckets that a dispatcher hands to this worker since the present epoch, and whose packets wait for the others' markers.
    incoming: u128,
    /// Whether some former owner is ahead.
    is_outdated: bool,
    /// Whether something waits, or has just come.
    is_stirred: bool,
    /// Something of a bucket that leaves was sent that no port has just brought.
    has_sent: bool,
}

impl Moving {
    /// Of a worker that holds what `owners` says.
    pub(super) fn new(index: u8, owners: &[u8; BUCKETS], assembly: Arc<Assembly>) -> Self {
        let own = (0..BUCKETS).filter(|&bucket| owners[bucket] == index);
        let told = (0..assembly.0.len()).map(|_| 0).collect();
        Self {
            assembly,
            held: own.fold(0, |set, bucket| set | 1 << bucket),
            marked: 0,
            told,
            serial: 0,
            news: [(0, Arc::default()), (0, Arc::default())],
            heard: Box::new([0; BUCKETS]),
            behind: vec![],
            incoming: 0,
            is_outdated: false,
            is_stirred: false,
            has_sent: false,
        }
    }

    #[inline]
    pub(super) fn holds(&self, bucket: Bucket) -> bool {
        self.held >> (usize::from(bucket) % BUCKETS) & 1 == 1
    }

    /// Whether no bucket is here.
    pub(super) fn holds_none(&self) -> bool {
        self.held == 0
    }

    /// Whether every bucket is here.
    #[inline]
    pub(super) fn holds_all(&self) -> bool {
        self.held == u128::MAX >> (u128::BITS as usize - BUCKETS)
    }

    /// Whether packets from a dispatcher have to wait.
    #[inline]
    pub(super) fn is_gathering(&self) -> bool {
        self.incoming != 0
    }

    /// Whether nothing is on its way by an earlier table.
    fn is_assembled(&self) -> bool {
        self.assembly.is_complete(self.marked)
    }

    #[inline]
    pub(super) fn is_stirred(&self) -> bool {
        self.is_stirred
    }

    /// The worker takes a version of the tables, which has such news. Those of earlier ones are done.
    pub(super) fn adopt(&mut self, serial: u64, news: Arc<[News]>) {
        debug_assert!(self.behind.is_empty(), "a bucket would miss what is forgotten here");
        self.news.swap(0, 1);
        self.news[1] = (serial, news);
        self.serial = serial;
        self.is_outdated = false;
    }

    /// Whether the former owner of a bucket that has come had a newer version of the tables.
    #[inline]
    pub(super) fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Whether the news of the version taken last that concern a bucket are this worker's to do.
    pub(super) fn is_news(&self, bucket: Bucket) -> bool {
        let heard = self.heard[usize::from(bucket) % BUCKETS];
        self.holds(bucket) && heard < self.serial.max(1)
    }

    /// A bucket whose former owner was behind, with all news that it has not heard, in order. It has heard them from here on.
    fn overdue(&mut self) -> Option<(Bucket, Vec<Arc<[News]>>)> {
        let bucket = self.behind.pop()?;
        let heard = std::mem::replace(&mut self.heard[usize::from(bucket) % BUCKETS], self.serial);
        let unheard = self.news.iter().filter(|(serial, _)| *serial > heard);
        Some((bucket, unheard.map(|(_, news)| news.clone()).collect()))
    }

    /// A bucket has come, whose former owner has heard the news of the versions up to `serial`.
    fn gain(&mut self, bucket: Bucket, serial: u64) {
        self.held |= 1 << (usize::from(bucket) % BUCKETS);
        self.heard[usize::from(bucket) % BUCKETS] = serial;
        if serial < self.serial {
            self.behind.push(bucket);
        }
        self.is_outdated |= serial > self.serial;
        self.is_stirred = true;
    }

    /// A bucket is another worker's. Which version's news its sessions have heard.
    fn lose(&mut self, bucket: Bucket) -> u64 {
        self.held &= !(1 << (usize::from(bucket) % BUCKETS));
        self.serial.max(self.heard[usize::from(bucket) % BUCKETS])
    }

    /// Something of a bucket that leaves is sent that no port has just brought.
    pub(super) fn sends(&mut self) {
        self.has_sent = true;
    }

    /// The marker of a worker has come.
    pub(super) fn hear(&mut self, worker: usize, epoch: u64) {
        if let Some(told) = self.told.get_mut(worker) {
            *told = epoch;
        }
    }

    /// Whether a marker of that worker has come that this one has not put yet.
    fn is_ahead(&self, worker: usize) -> bool {
        self.told.get(worker).is_some_and(|&told| told > self.marked)
    }
}

/// Packets on their way to ports by a sender.
#[derive(Debug, Default)]
pub(super) struct Outflows {
    all: Vec<Outflow>,
    /// How far the sender has to come in this epoch.
    epoch: u64,
    positions: Vec<u64>,
}

impl Outflows {
    pub(super) fn new(all: Vec<Outflow>) -> Self {
        Self { all, epoch: 0, positions: vec![] }
    }

    /// Whether the sender has dealt with everything that was on its way when this was first asked in an epoch, or last with something
    /// more.
    fn are_through(&mut self, epoch: u64, is_more: bool) -> bool {
        if is_more || self.epoch != epoch {
            self.epoch = epoch;
            self.positions.clear();
            self.positions.extend(self.all.iter().map(Outflow::position));
        }
        self.all.iter().zip(&self.positions).all(|(outflow, position)| outflow.is_done(*position))
    }
}

impl Hands {
    /// Whether a packet that another worker handed on, or this one to itself, can be treated: its session's state is here. None
    /// if it is on its way here.
    pub(super) fn is_here(&self, tables: &Version, worker: usize, class: &Class) -> Option<bool> {
        let Some(home) = class.home(tables) else { return Some(true) };
        if self.moving.holds(home) {
            return Some(true);
        }
        let comes = self.owners[usize::from(home) % BUCKETS] == AWAITED || self.moving.is_ahead(worker);
        if comes { None } else { Some(false) }
    }

    /// Puts a marker into the ring to every worker, and uses the new table. False if there is no room yet.
    fn mark(&mut self, epoch: u64, owners: &[u8; BUCKETS]) -> bool {
        if !self.workers.iter_mut().flatten().all(Outbox::has_room_for_marker) {
            return false;
        }
        self.workers.iter_mut().flatten().for_each(|outbox| outbox.mark(epoch));
        self.workers.iter_mut().flatten().for_each(Outbox::deliver);
        let (mut before, mut after) = (0_u128, 0_u128);
        for (bucket, (own, &owner)) in self.owners.iter_mut().zip(owners).enumerate() {
            before |= u128::from(*own == self.index || *own == AWAITED) << bucket;
            after |= u128::from(owner == self.index) << bucket;
            let is_ready = *own != AWAITED && self.moving.holds(bucket as Bucket);
            *own = if owner == self.index && !is_ready { AWAITED } else { owner };
        }
        if !self.fords.is_empty() {
            self.moving.incoming = (self.moving.incoming & after) | (after & !before);
            self.fords.iter().for_each(|ford| ford.open(epoch));
        }
        self.moving.marked = epoch;
        self.moving.is_stirred = true;
        true
    }

    /// A packet that has waited in this worker's own ring, as it came from the dispatcher: treats it or hands it on. False if it
    /// has to wait still.
    pub(super) fn let_on(&mut self, tables: &Version, from: PortId, frame: &[u8], exits: &mut Exits) -> bool {
        if !self.moving.is_assembled() {
            return false;
        }
        let class = classify_frame(tables, from, frame);
        let is_here = class.home(tables).is_none_or(|home| self.moving.holds(home));
        match self.owner(tables, &class) {
            // What leaves goes after what was sent on by whoever has it then: it is not sent from here any more.
            AWAITED if !is_here => return false,
            owner if owner == self.index || owner == AWAITED => self.serve_one(tables, from, &class, frame, exits),
            owner => {
                if self
                    .workers
                    .get(usize::from(owner))
                    .and_then(Option::as_ref)
                    .is_some_and(|to| !to.has_room_for_burst())
                {
                    return false;
                }
                self.hand_over(owner, from, &PacketRef::from_slice(frame));
                self.workers.iter_mut().flatten().for_each(Outbox::deliver);
            }
        }
        true
    }

    /// A burst from a dispatcher while packets of some buckets have to wait.
    #[cold]
    pub(super) fn serve_gathering(&mut self, tables: &Version, from: PortId, burst: &Burst<'_>, exits: &mut Exits) {
        let steering = self.kinds[from.number()].steering();
        let mut frame = std::mem::take(&mut self.gathered);
        for at in 0..burst.len() {
            let packet = burst.get(at);
            if self.moving.incoming >> (usize::from(steering.bucket(packet.head)) % BUCKETS) & 1 == 1 {
                self.wait(from, &packet);
                continue;
            }
            frame.resize(packet.len(), 0);
            packet.copy_to(&mut frame);
            let class = classify_frame(tables, from, &frame);
            match self.owner(tables, &class) {
                owner if owner == self.index => self.serve_one(tables, from, &class, &frame, exits),
                owner => self.hand_over(owner, from, &packet),
            }
        }
        self.gathered = frame;
        self.workers.iter_mut().flatten().for_each(Outbox::deliver);
    }

    /// Puts a packet into this worker's own ring.
    fn wait(&mut self, from: PortId, packet: &PacketRef<'_>) {
        let Some(own) = self.workers.get_mut(usize::from(self.index)).and_then(Option::as_mut) else { return };
        if !post(own, &mut self.is_crowded, Letter::Enter(from), packet) {
            self.drops.count(DropReason::HandoverFull);
        }
    }

    /// Whether a sender has dealt with what was sent of buckets that leave, if there is one: by one queue, packets of a bucket's next owner
    /// come behind it.
    fn is_through(&mut self, epoch: u64) -> bool {
        if self.outflows.all.is_empty() {
            return true;
        }
        let is_more = std::mem::take(&mut self.moving.has_sent);
        self.outflows.are_through(epoch, is_more)
    }

    /// Has the news done that former owners of buckets have not heard. Their packets come afterwards.
    #[cold]
    pub(super) fn catch_up(&mut self, tables: &Version, exits: &mut Exits) {
        while let Some((bucket, unheard)) = self.moving.overdue() {
            unheard.iter().for_each(|news| self.hear_of(tables, news, exits, |home| home == bucket));
        }
    }

    /// What has waited in the worker's own ring is done: from here on packets of buckets that have come are treated at once.
    pub(super) fn unpack(&mut self, own: &Inbox) {
        if !own.is_empty() {
            return;
        }
        for (bucket, owner) in self.owners.iter_mut().enumerate() {
            if *owner == AWAITED && self.moving.holds(bucket as Bucket) {
                *owner = self.index;
            }
        }
        if self.moving.is_assembled() {
            self.moving.incoming = 0;
        }
        self.moving.is_stirred = self.moving.is_gathering() || self.owners.contains(&AWAITED);
    }
}

impl Buckets for Hands {
    type State = Luggage;

    fn is_ready(&mut self, epoch: u64, owners: &[u8; BUCKETS]) -> bool {
        if !self.fords.iter().all(|ford| ford.is_crossed(epoch)) {
            return false;
        }
        // What waits of the last epoch would wait for ever behind the own marker of this one.
        if self.moving.marked != epoch && (self.moving.is_stirred || !self.mark(epoch, owners)) {
            return false;
        }
        let Moving { assembly, told, .. } = &self.moving;
        if told.iter().all(|&told| told >= epoch) {
            assembly.0[usize::from(self.index)].store(epoch, Ordering::Release);
        }
        assembly.is_complete(epoch) && self.is_through(epoch)
    }

    fn has_sent(&mut self) -> bool {
        std::mem::take(&mut self.moving.has_sent)
    }

    fn leave(&mut self, bucket: Bucket, _to: usize) -> Luggage {
        Luggage { shelf: self.state.buffers.leave(bucket), serial: self.moving.lose(bucket) }
    }

    fn arrive(&mut self, bucket: Bucket, _from: usize, Luggage { shelf, serial }: Luggage) {
        self.moving.gain(bucket, serial);
        self.state.buffers.arrive(bucket, shelf);
    }
}

/// Letters that only tell something, and are for no thread but a worker.
impl Outbox {
    fn mark(&mut self, epoch: u64) {
        let posted = self.post(Letter::Marker(epoch), &PacketRef::from_slice(&[]));
        debug_assert!(posted, "there is room");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Bucket = 3;

    /// Two workers that have heard the news of version 5; the bucket is the first one's.
    fn workers() -> [Moving; 2] {
        let owners = [0; BUCKETS];
        let assembly = Assembly::new(2);
        [0, 1].map(|index| {
            let mut moving = Moving::new(index, &owners, assembly.clone());
            moving.adopt(5, Arc::default());
            moving
        })
    }

    /// Whether the worker does the news of a version.
    fn hears(moving: &mut Moving, serial: u64) -> bool {
        moving.adopt(serial, Arc::default());
        moving.is_news(BUCKET)
    }

    #[test]
    fn a_sender_has_to_deal_with_what_it_was_given_before_a_bucket_leaves_and_not_with_more() {
        let (mut tx, mut rx) = port::relay::relay(64 << 10, 64).unwrap();
        let mut outflows = Outflows::new(vec![tx.outflow()]);
        let mut send = || assert_eq!(tx.send(&[PacketRef::from_slice(&[1; 60])]), 1);
        let mut pass = || while !rx.recv().is_empty() {};
        assert!(outflows.are_through(1, false), "nothing was sent");
        send();
        assert!(outflows.are_through(1, false), "that is of other buckets");
        assert!(!outflows.are_through(2, false));
        pass();
        assert!(outflows.are_through(2, false));
        send();
        assert!(!outflows.are_through(2, true) && !outflows.are_through(2, false), "more was sent of what leaves");
        pass();
        assert!(outflows.are_through(2, false));
    }

    #[test]
    fn news_before_and_after_a_move_are_its_owners() {
        let [mut from, mut to] = workers();
        assert!(hears(&mut from, 6) && !hears(&mut to, 6));
        to.gain(BUCKET, from.lose(BUCKET));
        assert!(to.behind.is_empty() && !to.is_news(BUCKET) && !from.holds(BUCKET));
        assert!(!hears(&mut from, 7) && hears(&mut to, 7));
    }

    #[test]
    fn news_that_the_former_owner_has_done_are_not_done_again() {
        let [mut from, mut to] = workers();
        assert!(hears(&mut from, 6));
        to.gain(BUCKET, from.lose(BUCKET));
        assert!(to.behind.is_empty() && to.is_outdated(), "nothing is treated by version 5 any more");
        assert!(!hears(&mut to, 6) && !to.is_outdated(), "it was done before the bucket left");
        assert!(hears(&mut to, 7));
    }

    #[test]
    fn news_that_neither_has_done_are_done_on_arrival() {
        let [mut from, mut to] = workers();
        assert!(!hears(&mut to, 6), "the bucket is not there yet");
        to.gain(BUCKET, from.lose(BUCKET));
        let overdue = to.overdue().map(|(bucket, news)| (bucket, news.len()));
        assert_eq!((overdue, to.overdue().is_some()), (Some((BUCKET, 1)), false));
        assert!(!hears(&mut from, 6), "the bucket has left");
        assert!(hears(&mut to, 7));
    }

    #[test]
    fn of_two_versions_that_neither_has_done_both_are_done_on_arrival_and_once() {
        let [from, to] = &mut workers();
        let luggage = from.lose(BUCKET);
        assert!(!hears(to, 6) && !hears(to, 7));
        to.gain(BUCKET, luggage);
        assert_eq!(to.overdue().map(|(_, news)| news.len()), Some(2));
        assert!(!to.is_news(BUCKET) && hears(to, 8));
    }

    #[test]
    fn what_an_owner_was_ahead_by_is_not_forgotten_where_the_bucket_goes_on_at_once() {
        let [mut from, mut to] = workers();
        assert!(hears(&mut from, 6));
        to.gain(BUCKET, from.lose(BUCKET));
        from.gain(BUCKET, to.lose(BUCKET));
        assert!(from.behind.is_empty() && !from.is_news(BUCKET));
    }
}
