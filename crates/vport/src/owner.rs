//! Steering groups: who decides which worker owns which bucket, and the workers, who hand buckets over to each other.
//!
//! A group has one table for several ports, and one owner for each queue number: owner *q* receives on queue *q* of every
//! port. A new table opens an *epoch*. Each owner waits until its queues have delivered everything that was sent by the old
//! table and what it sent itself is read, and then gives the buckets that leave it, with their state, to their new owners.
//! A packet of a bucket that has not arrived yet waits where it is. When all is given and has arrived, the epoch is
//! closed, and another may be opened.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::home::{Home, Unread};
use crate::steering::{BUCKETS, BucketTable};
use crate::sync::{AtomicU8, AtomicU64, AtomicUsize, Receiver, Sender, channel, full_fence, write};

/// How long an owner waits at most for others to read what it sent before it gives buckets away.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// The steering of an open port.
#[derive(Clone, Debug)]
pub struct PortSteering(pub(crate) Arc<Home>);

impl PortSteering {
    /// Whether the port is that of a pool's member: then [`crate::pool::join`] is for it, and [`group`] is not.
    pub fn is_pooled(&self) -> bool {
        self.0.is_pooled()
    }
}

/// Why ports cannot form a group, or buckets cannot be given as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// A group without ports.
    #[error("a steering group has at least one port")]
    Empty,
    /// Ports have different numbers of queues.
    #[error("the ports of a steering group have the same number of queues")]
    Queues,
    /// A port is already in a group.
    #[error("a port is in a steering group already")]
    Taken,
    /// A port is that of a pool's member.
    #[error("the buckets of a pool's ports are given by the broker")]
    Pooled,
    /// The last epoch is not closed.
    #[error("buckets are still on their way")]
    Open,
    /// A bucket was given to a queue that does not exist.
    #[error("a bucket belongs to a queue that does not exist")]
    Owner,
}

/// The state that a worker keeps for its buckets.
pub trait Buckets {
    /// What goes with a bucket.
    type State: Send;

    /// Whether this worker's part in `epoch` is done as far as the group does not see it: nothing that workers hand on among
    /// themselves is still on its way by the table of the epoch before. Asked in every round from when the group's ports have
    /// delivered all of earlier epochs until it is so, of every worker, whether buckets leave it or not. `owners` is the
    /// table of the epoch.
    fn is_ready(&mut self, epoch: u64, owners: &[u8; BUCKETS]) -> bool {
        let _ = (epoch, owners);
        true
    }

    /// Whether this worker may have sent packets of buckets that leave it since this was asked last, though none come any more:
    /// some that waited here, say. Asked until what was sent is read; that is then waited for as well.
    fn has_sent(&mut self) -> bool {
        false
    }

    /// `bucket` leaves this worker for owner `to`. No packet of it comes any more.
    fn leave(&mut self, bucket: u8, to: usize) -> Self::State;

    /// `bucket` is this worker's now; its state comes from owner `from`. Its packets come from the next receive on.
    fn arrive(&mut self, bucket: u8, from: usize, state: Self::State);
}

/// Makes a steering group of `ports`: whoever decides, and one owner for each of their queues, in order. Before an owner
/// gives a bucket away it waits for what it sent by its queues of `ports` and `outputs` to be read, so that packets of one
/// flow stay in order also where they are sent by two owners.
pub fn group<S: Send>(
    ports: &[PortSteering],
    outputs: &[PortSteering],
) -> Result<(Decider, Vec<Owner<S>>), GroupError> {
    let queues = ports.first().ok_or(GroupError::Empty)?.0.cells.len();
    group_of(queues, ports, outputs)
}

/// The same with a worker for each of `queues` queues, also where no port is steered by the group: then it says who owns which
/// bucket, workers hand packets on among themselves, and whoever opens an epoch wakes those that sleep.
pub fn group_of<S: Send>(
    queues: usize,
    ports: &[PortSteering],
    outputs: &[PortSteering],
) -> Result<(Decider, Vec<Owner<S>>), GroupError> {
    if !(1..=BUCKETS).contains(&queues) {
        return Err(GroupError::Empty);
    }
    if ports.iter().any(|port| port.0.cells.len() != queues) {
        return Err(GroupError::Queues);
    }
    if ports.iter().any(PortSteering::is_pooled) {
        return Err(GroupError::Pooled);
    }
    take(ports)?;
    // A port that had another group before is ahead of one that had none.
    let epoch = ports.iter().map(|port| port.0.table().0).max().unwrap_or(0);
    let table = BucketTable::fixed(queues);
    let group = Arc::new(Group::new(queues, ports, outputs, 0, epoch, &table));
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..queues).map(|_| channel()).unzip();
    let owners = inboxes.into_iter().enumerate();
    let owners = owners
        .map(|(queue, inbox)| Owner::new(group.clone(), queue, (epoch, &table), inbox, senders.clone()))
        .collect();
    Ok((Decider { group, epoch, table }, owners))
}

/// Makes ports part of a group: all or none.
pub(crate) fn take(ports: &[PortSteering]) -> Result<(), GroupError> {
    for (n, port) in ports.iter().enumerate() {
        if !port.0.take() {
            give_back(&ports[..n]);
            return Err(GroupError::Taken);
        }
    }
    Ok(())
}

/// Takes that back where the group did not come about.
pub(crate) fn give_back(ports: &[PortSteering]) {
    ports.iter().for_each(|port| port.0.give_back());
}

/// What the workers of one process share.
#[derive(Debug)]
pub(crate) struct Group {
    ports: Vec<Arc<Home>>,
    /// The number of the first worker's queue; not 0 of a member of a pool.
    first: usize,
    /// Ports that are not steered by the group, but sent to.
    outputs: Vec<Arc<Home>>,
    /// The last epoch, once its table is with all senders.
    epoch: AtomicU64,
    /// Its table.
    table: [AtomicU8; BUCKETS],
    /// Owners that have given away in this epoch what they had to give.
    given: AtomicUsize,
    /// Buckets that have not arrived yet.
    moving: AtomicUsize,
    /// Buckets sent to each owner, ever.
    sent: Box<[AtomicU64]>,
    /// Times that an owner gave up waiting for what it sent to be read.
    unread: AtomicU64,
    /// Wakes whoever carries buckets to other members of a pool.
    carrier: Option<OwnedFd>,
}

impl Group {
    fn new(
        workers: usize,
        ports: &[PortSteering],
        outputs: &[PortSteering],
        first: usize,
        epoch: u64,
        table: &BucketTable,
    ) -> Self {
        let of = |ports: &[PortSteering]| ports.iter().map(|port| port.0.clone()).collect::<Vec<_>>();
        let other = |output: &&PortSteering| !ports.iter().any(|port| Arc::ptr_eq(&port.0, &output.0));
        Self {
            ports: of(ports),
            first,
            outputs: of(&outputs.iter().filter(other).cloned().collect::<Vec<_>>()),
            epoch: AtomicU64::new(epoch),
            table: table.owners().map(AtomicU8::new),
            given: AtomicUsize::new(workers),
            moving: AtomicUsize::new(0),
            sent: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            unread: AtomicU64::new(0),
            carrier: None,
        }
    }

    /// The part that a member has of a pool's group.
    pub(crate) fn of_member(
        ports: &[PortSteering],
        outputs: &[PortSteering],
        first: usize,
        epoch: u64,
        table: &BucketTable,
        carrier: OwnedFd,
    ) -> Self {
        let workers = ports.first().map_or(0, |port| port.0.cells.len());
        Self { carrier: Some(carrier), ..Self::new(workers, ports, outputs, first, epoch, table) }
    }

    #[inline]
    fn owner(&self, bucket: u8) -> usize {
        usize::from(self.table[usize::from(bucket) % BUCKETS].load(Ordering::Relaxed))
    }

    /// Which of this process's workers has a queue, if one has.
    #[inline]
    fn worker(&self, queue: usize) -> Option<usize> {
        queue.checked_sub(self.first).filter(|worker| *worker < self.sent.len())
    }

    /// Lets frames of buckets that come to this process wait for them. No sender knows of the epoch yet.
    pub(crate) fn prepare(&self, epoch: u64, before: &BucketTable, table: &BucketTable) {
        let moves = |bucket: &u8| table.queue(*bucket) != before.queue(*bucket);
        let coming: Vec<(u8, usize)> = (0..BUCKETS as u8)
            .filter(moves)
            .filter_map(|bucket| Some((bucket, self.worker(table.queue(bucket))?)))
            .collect();
        self.moving.store(coming.len(), Ordering::Relaxed);
        self.given.store(0, Ordering::Relaxed);
        table.owners().iter().zip(&self.table).for_each(|(&owner, to)| to.store(owner, Ordering::Relaxed));
        for port in &self.ports {
            port.cells.iter().for_each(|cell| {
                cell.await_none();
                cell.prepare(epoch);
            });
            coming.iter().for_each(|&(bucket, worker)| port.cells[worker].await_bucket(bucket));
        }
    }

    /// Tells senders of a table, where it is this process that does. Every sender that begins a burst afterwards sees it;
    /// see `epoch`.
    pub(crate) fn publish(&self, epoch: u64, table: &BucketTable) {
        self.ports.iter().for_each(|port| port.publish(epoch, table));
        full_fence();
    }

    /// Senders know of the epoch: buckets may leave.
    pub(crate) fn begin(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
        self.ports.iter().flat_map(|port| &port.cells).for_each(|cell| cell.ask(epoch));
    }

    /// Whether all has been given away that was to leave in the last epoch.
    pub(crate) fn has_given(&self) -> bool {
        self.given.load(Ordering::Acquire) == self.sent.len()
    }

    /// Whether all has arrived that was to come in it.
    pub(crate) fn has_all(&self) -> bool {
        self.moving.load(Ordering::Acquire) == 0
    }

    /// Something was sent to a worker of this process.
    pub(crate) fn tell(&self, worker: usize) {
        self.sent[worker].fetch_add(1, Ordering::AcqRel);
        self.nudge(worker);
    }

    #[inline]
    fn nudge(&self, worker: usize) {
        self.ports.iter().for_each(|port| port.cells[worker].nudge());
    }

    fn wake_carrier(&self) {
        if let Some(carrier) = &self.carrier {
            let _ = write(carrier, &1_u64.to_ne_bytes());
        }
    }
}

/// Decides who owns which bucket.
#[derive(Debug)]
pub struct Decider {
    group: Arc<Group>,
    epoch: u64,
    table: BucketTable,
}

impl Decider {
    /// Opens an epoch in which each bucket belongs to the owner named here. Returns its number.
    pub fn set_owners(&mut self, owners: &[u8; BUCKETS]) -> Result<u64, GroupError> {
        let table = BucketTable::new(*owners, self.group.sent.len()).ok_or(GroupError::Owner)?;
        if self.is_open() {
            return Err(GroupError::Open);
        }
        self.epoch += 1;
        self.group.prepare(self.epoch, &self.table, &table);
        self.table = table;
        self.group.publish(self.epoch, &table);
        self.group.begin(self.epoch);
        Ok(self.epoch)
    }

    /// Whether buckets of the last epoch are still on their way, or might still come by their old ways.
    pub fn is_open(&self) -> bool {
        !self.group.has_given() || !self.group.has_all()
    }

    /// Who owns which bucket, or will when the epoch is closed.
    pub fn owners(&self) -> &[u8; BUCKETS] {
        self.table.owners()
    }

    /// Packets of each bucket that were delivered on all ports since these were opened.
    pub fn load(&self) -> [u64; BUCKETS] {
        let cells = || self.group.ports.iter().flat_map(|port| &port.cells);
        core::array::from_fn(|bucket| cells().map(|cell| cell.load(bucket as u8)).sum())
    }

    /// Ports and queues that have not delivered everything of earlier epochs yet.
    pub fn behind(&self) -> Vec<(&str, usize)> {
        let queues = |port: &'_ Arc<Home>| (0..port.cells.len()).collect::<Vec<_>>();
        let all = self.group.ports.iter().flat_map(|port| queues(port).into_iter().map(move |queue| (port, queue)));
        let behind = all.filter(|(port, queue)| !port.cells[*queue].has_crossed(self.epoch));
        if self.is_open() { behind.map(|(port, queue)| (port.name.as_str(), queue)).collect() } else { Vec::new() }
    }

    /// How often an owner waited in vain, for ten seconds, for what it had sent to be read. Packets of buckets that it then
    /// gave away may overtake there.
    pub fn unread(&self) -> u64 {
        self.group.unread.load(Ordering::Relaxed)
    }
}

/// A worker of a group: receives on one queue of each port, and owns buckets. Belongs to the thread that does.
#[derive(Debug)]
pub struct Owner<S> {
    queue: usize,
    group: Arc<Group>,
    /// The epoch of which everything was given that was to be given.
    given: u64,
    owned: u128,
    giving: Option<Giving>,
    inbox: Receiver<Arrival<S>>,
    received: u64,
    others: Vec<Sender<Arrival<S>>>,
}

/// A bucket on its way.
#[derive(Debug)]
pub(crate) struct Arrival<S> {
    pub(crate) bucket: u8,
    pub(crate) from: usize,
    pub(crate) state: S,
}

/// Waits for what was sent to be read.
#[derive(Debug)]
struct Giving {
    since: Instant,
    /// None: to be looked at anew, since more was sent.
    unread: Option<Vec<Unread>>,
}

impl<S> Owner<S> {
    /// The worker of `queue`, with what it owns by the table of epoch `given`: that which the group was made with, since a
    /// later one may have begun. Arrivals come from `inbox`, and go to `others`, one for each queue.
    pub(crate) fn new(
        group: Arc<Group>,
        queue: usize,
        (given, table): (u64, &BucketTable),
        inbox: Receiver<Arrival<S>>,
        others: Vec<Sender<Arrival<S>>>,
    ) -> Self {
        let owned = (0..BUCKETS as u8).filter(|&bucket| table.queue(bucket) == queue).fold(0, |set, b| set | 1 << b);
        Self { queue, group, given, owned, giving: None, inbox, received: 0, others }
    }

    /// Which of its process's workers it is.
    #[inline]
    fn worker(&self) -> usize {
        self.queue - self.group.first
    }
}

impl<S: Send> Owner<S> {
    /// Gives the buckets away that are to leave and takes those in that have come. Call it between two bursts, when all
    /// that was received has been dealt with and sent, in every round. True while there is more to come soon: do not
    /// sleep then.
    #[inline]
    pub fn settle(&mut self, buckets: &mut impl Buckets<State = S>) -> bool {
        !self.is_calm() && self.exchange(buckets)
    }

    /// Whether there is nothing for [`Owner::settle`] to do. Whoever sleeps on something else than the group's ports looks here
    /// first.
    #[inline]
    pub fn is_calm(&self) -> bool {
        let group = &self.group;
        group.epoch.load(Ordering::Acquire) == self.given
            && group.sent[self.worker()].load(Ordering::Acquire) == self.received
    }

    /// The queue number that this owner receives on; in a pool, of all its queues.
    pub fn queue(&self) -> usize {
        self.queue
    }

    /// Whether `bucket` is this owner's now.
    pub fn owns(&self, bucket: u8) -> bool {
        self.owned >> (usize::from(bucket) % BUCKETS) & 1 == 1
    }

    #[cold]
    fn exchange(&mut self, buckets: &mut impl Buckets<State = S>) -> bool {
        self.take_in(buckets);
        let epoch = self.group.epoch.load(Ordering::Acquire);
        if epoch != self.given && self.may_give(epoch, buckets) {
            self.give(buckets);
            self.given = epoch;
            self.group.given.fetch_add(1, Ordering::AcqRel);
            self.group.wake_carrier();
        }
        epoch != self.given
    }

    fn take_in(&mut self, buckets: &mut impl Buckets<State = S>) {
        let worker = self.worker();
        while let Ok(Arrival { bucket, from, state }) = self.inbox.try_recv() {
            self.received += 1;
            buckets.arrive(bucket, from, state);
            self.owned |= 1 << bucket;
            self.group.ports.iter().for_each(|port| port.cells[worker].gain(bucket));
            if self.group.moving.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.group.wake_carrier();
            }
        }
    }

    /// Whether nothing of earlier epochs can come any more, and nothing that was sent can be overtaken.
    fn may_give(&mut self, epoch: u64, buckets: &mut impl Buckets<State = S>) -> bool {
        let (group, worker) = (&self.group, self.worker());
        if !group.ports.iter().all(|port| port.cells[worker].has_crossed(epoch)) {
            return false;
        }
        let owners = core::array::from_fn(|bucket| group.owner(bucket as u8) as u8);
        if self.giving.is_none() && !buckets.is_ready(epoch, &owners) {
            return false;
        }
        if self.leaving().next().is_none() {
            return true;
        }
        let has_sent = buckets.has_sent();
        let giving = self.giving.get_or_insert_with(|| Giving { since: Instant::now(), unread: None });
        if has_sent {
            giving.unread = None;
        }
        let unread = giving.unread.get_or_insert_with(|| {
            let mut unread = Vec::new();
            group.ports.iter().chain(&group.outputs).for_each(|port| port.sent(worker, &mut unread));
            unread
        });
        unread.retain(|channel| !channel.is_over());
        let late = !unread.is_empty() && giving.since.elapsed() > READ_WITHIN;
        group.unread.fetch_add(u64::from(late), Ordering::Relaxed);
        let ready = unread.is_empty() || late;
        if ready {
            self.giving = None;
        }
        ready
    }

    fn leaving(&self) -> impl Iterator<Item = u8> + use<S> {
        let (owned, group, queue) = (self.owned, self.group.clone(), self.queue);
        (0..BUCKETS as u8).filter(move |&bucket| owned >> bucket & 1 == 1 && group.owner(bucket) != queue)
    }

    fn give(&mut self, buckets: &mut impl Buckets<State = S>) {
        let mut told = vec![false; self.others.len()];
        let worker = self.worker();
        for bucket in self.leaving() {
            let to = self.group.owner(bucket);
            self.group.ports.iter().for_each(|port| port.cells[worker].lose(bucket));
            self.owned &= !(1 << bucket);
            let state = buckets.leave(bucket, to);
            // Where the other owner is gone, the bucket stays on its way: the decider sees it.
            let _ = self.others[to].send(Arrival { bucket, from: self.queue, state });
            if let Some(worker) = self.group.worker(to) {
                self.group.sent[worker].fetch_add(1, Ordering::AcqRel);
                told[worker] = true;
            }
        }
        (0..told.len()).filter(|&worker| told[worker]).for_each(|worker| self.group.nudge(worker));
    }
}

#[cfg(all(test, loom))]
impl Decider {
    /// What decider and owners tell each other of the first two buckets.
    pub(crate) fn words(&self) -> Vec<(&'static str, &dyn crate::sync::Atom)> {
        let Group { epoch, table, given, moving, sent, .. } = &*self.group;
        let mut words: Vec<(&'static str, &dyn crate::sync::Atom)> =
            vec![("group.epoch", epoch), ("group.given", given), ("group.moving", moving)];
        words.extend(table[..2].iter().map(|owner| ("group.table", owner as _)));
        words.extend(sent.iter().map(|sent| ("group.sent", sent as _)));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Cell;
    use crate::handover::Handover;

    struct Nothing;

    impl Buckets for Nothing {
        type State = ();
        fn leave(&mut self, _bucket: u8, _to: usize) {}
        fn arrive(&mut self, _bucket: u8, _from: usize, (): ()) {}
    }

    /// A member's thread is there before its workers are, and the broker need not wait for them.
    #[test]
    fn a_worker_has_a_part_in_a_change_that_began_before_it_was_made() {
        let [before, after] = [1, 0].map(|owner| BucketTable::new([owner; BUCKETS], 2).unwrap());
        let cell = Arc::new(Cell::new(1, &before, Handover::new().unwrap()));
        let port = PortSteering(Arc::new(Home::of_pool("p", vec![cell.clone()], 4, before)));
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let group = Arc::new(Group::of_member(&[port], &[], 1, 4, &before, wake));
        group.prepare(5, &before, &after);
        group.begin(5);
        let (senders, mut inboxes): (Vec<_>, Vec<_>) = (0..2).map(|_| channel()).unzip();
        let mut owner = Owner::new(group.clone(), 1, (4, &before), inboxes.remove(1), senders);

        assert!(owner.settle(&mut Nothing) && !group.has_given(), "its queue has not crossed yet");
        cell.cross(5);
        assert!(!owner.settle(&mut Nothing));
        assert!(group.has_given() && !owner.owns(0));
        assert_eq!(std::iter::from_fn(|| inboxes[0].try_recv().ok()).count(), BUCKETS);
    }
}
