//! Buckets on their way between workers, with the state of their sessions.
//!
//! A packet may come to a worker that does not own its session: the session has a second address, or a network behind its UE,
//! or the port does not steer. It goes to the owner by a ring. So that a bucket can move without one overtaking another, each
//! change of owners is an *epoch*, in which every worker
//!
//! 1. hands packets on by the old table until its ports have delivered all that was sent by it; then puts a marker into the
//!    ring to every worker, and uses the new table;
//! 2. has heard the markers of all, and says so. When all have said so, nothing is on its way by the old table;
//! 3. gives away the buckets that leave it, with their state ([`Luggage`]).
//!
//! A packet that comes for a bucket which is not there yet waits: what another worker handed on in its ring, what a port
//! brought in the ring that a worker has to itself. From there it goes on in order before the next burst of a port.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use port::owner::Buckets;

use super::{Exits, Hands};
use crate::buffers::Shelf;
use crate::mail::{Inbox, Letter, Outbox};
use crate::packet::Class;
use crate::tables::{BUCKETS, Bucket, Version};

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
    /// The same of a bucket's former owner, where that was ahead.
    heard: Box<[u64; BUCKETS]>,
    /// Buckets whose former owner was behind.
    behind: Vec<Bucket>,
    /// Whether something waits, or has just come.
    is_stirred: bool,
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
            heard: Box::new([0; BUCKETS]),
            behind: vec![],
            is_stirred: false,
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

    #[inline]
    pub(super) fn is_stirred(&self) -> bool {
        self.is_stirred
    }

    /// The worker takes a version of the tables.
    pub(super) fn adopt(&mut self, serial: u64) {
        self.serial = serial;
    }

    /// Whether the news of the version taken last that concern a bucket are this worker's to do.
    pub(super) fn is_news(&self, bucket: Bucket) -> bool {
        self.holds(bucket) && self.heard[usize::from(bucket) % BUCKETS] < self.serial.max(1)
    }

    /// A bucket has come, whose former owner has heard the news of the versions up to `serial`.
    fn gain(&mut self, bucket: Bucket, serial: u64) {
        self.held |= 1 << (usize::from(bucket) % BUCKETS);
        self.heard[usize::from(bucket) % BUCKETS] = serial;
        if serial < self.serial {
            self.behind.push(bucket);
        }
        self.is_stirred = true;
    }

    /// A bucket is another worker's. Which version's news its sessions have heard.
    fn lose(&mut self, bucket: Bucket) -> u64 {
        self.held &= !(1 << (usize::from(bucket) % BUCKETS));
        self.serial.max(self.heard[usize::from(bucket) % BUCKETS])
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

impl Hands {
    /// Whether a packet that another worker handed on, or this one to itself, can be treated: its session's state is here. None
    /// if it is on its way here.
    pub(super) fn is_here(&self, worker: usize, class: &Class) -> Option<bool> {
        let Class::User { home, .. } = *class else { return Some(true) };
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
        for (bucket, (own, &owner)) in self.owners.iter_mut().zip(owners).enumerate() {
            let is_ready = *own != AWAITED && self.moving.holds(bucket as Bucket);
            *own = if owner == self.index && !is_ready { AWAITED } else { owner };
        }
        self.moving.marked = epoch;
        self.moving.is_stirred = true;
        true
    }

    /// Has the news done that former owners of buckets have not heard. Their packets come afterwards.
    #[cold]
    pub(super) fn catch_up(&mut self, tables: &Version, exits: &mut Exits) {
        for bucket in std::mem::take(&mut self.moving.behind) {
            self.hear_of(tables, exits, |home| home == bucket);
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
        self.moving.is_stirred = self.owners.contains(&AWAITED);
    }
}

impl Buckets for Hands {
    type State = Luggage;

    fn is_ready(&mut self, epoch: u64, owners: &[u8; BUCKETS]) -> bool {
        if self.moving.marked != epoch && !self.mark(epoch, owners) {
            return false;
        }
        let Moving { assembly, told, .. } = &self.moving;
        if told.iter().all(|&told| told >= epoch) {
            assembly.0[usize::from(self.index)].store(epoch, Ordering::Release);
        }
        assembly.is_complete(epoch)
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
        let posted = self.post(Letter::Marker(epoch), &port::PacketRef::from_slice(&[]));
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
            moving.adopt(5);
            moving
        })
    }

    /// Whether the worker does the news of a version.
    fn hears(moving: &mut Moving, serial: u64) -> bool {
        moving.adopt(serial);
        moving.is_news(BUCKET)
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
        assert!(to.behind.is_empty());
        assert!(!hears(&mut to, 6), "it was done before the bucket left");
        assert!(hears(&mut to, 7));
    }

    #[test]
    fn news_that_neither_has_done_are_done_on_arrival() {
        let [mut from, mut to] = workers();
        assert!(!hears(&mut to, 6), "the bucket is not there yet");
        to.gain(BUCKET, from.lose(BUCKET));
        assert!(to.behind == [BUCKET] && to.is_news(BUCKET));
        assert!(!hears(&mut from, 6), "the bucket has left");
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
