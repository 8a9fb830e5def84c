//! A member of a pool: workers of this process and those of the other members hand buckets over to each other, by way of the
//! broker, which decides.
//!
//! A thread per member carries: what the broker says to the workers' [`Group`], what workers give away to the broker, and
//! what it brings from other members to the workers. Workers cannot tell it from a group within one process, but for the
//! state of their buckets: that is bytes.
//!
//! What a worker has given away is kept until the broker says that the change is complete. If another broker takes its place
//! before that, it is told which change this is and what has come, and what has not come is sent once more.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::client::{AttachError, wait};
use crate::layout::VERSION_POOL;
use crate::owner::{Arrival, Buckets, Group, GroupError, Owner, PortSteering, give_back, take};
use crate::socket::{self, Received};
use crate::steering::{BUCKETS, BucketTable};
use crate::sync::{Receiver, Sender, channel};
use crate::wire::{Place, Progress, Reply, Request, STATE_PART_MAX};

/// Between two attempts to reach a broker.
const PAUSE: Duration = Duration::from_millis(10);

/// Why a process could not take its place in a pool.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The broker refused, or is not there.
    #[error(transparent)]
    Broker(#[from] AttachError),
    /// The ports cannot form a group.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A port is not a pool's.
    #[error("port {0} is not that of a pool's member")]
    NoPool(String),
    /// The pool was changed after the ports were opened.
    #[error("the pool was changed while its ports were opened: open them again")]
    Changed,
}

/// A worker of a member. What it owns comes and goes as the broker decides.
pub struct Member {
    owner: Owner<Vec<u8>>,
    _lease: Arc<Lease>,
}

impl Member {
    /// See [`Owner::settle`]. State of a bucket whose owner died arrives as no bytes.
    #[inline]
    pub fn settle(&mut self, buckets: &mut impl Buckets<State = Vec<u8>>) -> bool {
        self.owner.settle(buckets)
    }

    /// The number that its queue has in the pool.
    pub fn queue(&self) -> usize {
        self.owner.queue()
    }

    /// Whether `bucket` is its own now.
    pub fn owns(&self, bucket: u8) -> bool {
        self.owner.owns(bucket)
    }
}

/// Takes this process's place in its pool, at the broker's `socket`: `ports` are all its ports whose queues the pool shares.
/// Before a worker gives a bucket away it waits for what it sent by its queues of `ports` and `outputs` to be read. Returns a
/// member for each queue, in order. Until this is called, no bucket comes or goes.
pub fn join(
    socket: &Path,
    ports: &[PortSteering],
    outputs: &[PortSteering],
    timeout: Duration,
) -> Result<Vec<Member>, JoinError> {
    let workers = ports.first().ok_or(GroupError::Empty)?.0.cells.len();
    if ports.iter().any(|port| port.0.cells.len() != workers) {
        return Err(GroupError::Queues.into());
    }
    if let Some(port) = ports.iter().find(|port| !port.0.is_pooled()) {
        return Err(JoinError::NoPool(port.0.name.clone()));
    }
    let (connection, place) = greet(socket, ports.len() as u16, Instant::now() + timeout)?;
    let (first, all) = (usize::from(place.first_queue), usize::from(place.queues));
    let table = BucketTable::new(place.owners, all).ok_or(JoinError::Changed)?;
    if ports.iter().any(|port| port.0.table() != (place.epoch, table)) || first + workers > all {
        return Err(JoinError::Changed);
    }
    let wake =
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|errno| AttachError::Io(errno.into()))?;
    let [to_carrier, bell] = [wake.try_clone().map_err(AttachError::Io)?, wake.try_clone().map_err(AttachError::Io)?];
    take(ports)?;
    let group = Arc::new(Group::of_member(ports, outputs, first, place.epoch, &table, to_carrier));

    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| channel()).unzip();
    let mut leaving = Vec::new();
    let others: Vec<Sender<Arrival<Vec<u8>>>> = (0..all)
        .map(|queue| match queue.checked_sub(first).and_then(|worker| senders.get(worker)) {
            Some(own) => own.clone(),
            None => {
                let (sender, receiver) = channel();
                leaving.push((queue as u16, receiver));
                sender
            }
        })
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let mut carrier = Carrier {
        path: socket.to_owned(),
        connection: Some(Connection { socket: connection, greeted: true }),
        outbox: VecDeque::new(),
        ports: ports.len() as u16,
        group: group.clone(),
        first,
        all,
        closed: place.epoch,
        epoch: place.epoch,
        table,
        change: None,
        arriving: BTreeMap::new(),
        workers: senders,
        leaving,
        wake,
        stop: stop.clone(),
    };
    let thread = std::thread::Builder::new().name("pool".into()).spawn(move || carrier.run());
    let thread = thread.map_err(|error| {
        give_back(ports);
        AttachError::Io(error)
    })?;
    let lease = Arc::new(Lease { stop, bell, thread: Mutex::new(Some(thread)) });
    // The thread may have begun a change by now.
    let place = (place.epoch, &table);
    let owner = |(worker, inbox)| Owner::new(group.clone(), first + worker, place, inbox, others.clone());
    let owners = inboxes.into_iter().enumerate().map(owner);
    Ok(owners.map(|owner| Member { owner, _lease: lease.clone() }).collect())
}

/// Ends the thread with the last member.
struct Lease {
    stop: Arc<AtomicBool>,
    bell: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Connects and takes the place, again and again until `deadline` while the broker says that it may be possible later.
fn greet(path: &Path, ports: u16, deadline: Instant) -> Result<(OwnedFd, Place), AttachError> {
    loop {
        match try_greet(path, ports, deadline) {
            Ok(done) => return Ok(done),
            Err((error, again)) if !again || Instant::now() + PAUSE >= deadline => return Err(error),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// One connection and one greeting. With a failure comes whether it can be otherwise later.
fn try_greet(path: &Path, ports: u16, deadline: Instant) -> Result<(OwnedFd, Place), (AttachError, bool)> {
    let absent = |error: io::Error| (AttachError::NoBroker(error.to_string()), true);
    let connection = ask(path, Progress { ports, ..Progress::default() }).map_err(absent)?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        wait(&mut [PollFd::new(&connection, PollFlags::IN)], Some(left)).map_err(absent)?;
        let bytes = match socket::receive(connection.as_fd()).map_err(absent)? {
            Received::Message { bytes, .. } => bytes,
            Received::Closed => return Err(absent(io::Error::other("it closed the connection"))),
            Received::Nothing if left.is_zero() => {
                return Err((AttachError::NoBroker("it did not answer".into()), false));
            }
            Received::Nothing => continue,
        };
        return match Reply::decode(&bytes) {
            Ok(Reply::Steers(place)) => Ok((connection, place)),
            Ok(Reply::Refused { reason, try_again }) => Err((AttachError::Refused(reason), try_again)),
            Ok(_) => Err((AttachError::Refused("the broker answers another question".into()), false)),
            Err(error) => Err((AttachError::Refused(format!("the broker's answer: {error}")), false)),
        };
    }
}

/// A connection on which the place was asked for.
fn ask(path: &Path, progress: Progress) -> io::Result<OwnedFd> {
    let connection = socket::connected(path)?;
    let steer = Request::Steer { oldest: VERSION_POOL, newest: VERSION_POOL, progress };
    socket::send(connection.as_fd(), &steer.encode(), &[])?;
    Ok(connection)
}

/// The thread between the workers and the broker.
struct Carrier {
    path: PathBuf,
    connection: Option<Connection>,
    outbox: VecDeque<Vec<u8>>,
    /// How many the group has.
    ports: u16,
    group: Arc<Group>,
    /// The first worker's queue, and the queues of the pool.
    first: usize,
    all: usize,
    /// The last epoch whose change is known to be complete.
    closed: u64,
    /// The epoch that has begun last, and its table.
    epoch: u64,
    table: BucketTable,
    change: Option<Change>,
    /// Parts of states that have not come whole.
    arriving: BTreeMap<u8, Vec<u8>>,
    workers: Vec<Sender<Arrival<Vec<u8>>>>,
    /// What goes to each queue of other members.
    leaving: Vec<(u16, Receiver<Arrival<Vec<u8>>>)>,
    wake: OwnedFd,
    stop: Arc<AtomicBool>,
}

struct Connection {
    socket: OwnedFd,
    /// Whether the broker has given the place.
    greeted: bool,
}

/// A change that a broker has told of.
struct Change {
    epoch: u64,
    table: BucketTable,
    /// Senders know of it.
    begun: bool,
    /// The broker of this connection has said so, and what it knows to have come.
    told: bool,
    said_given: bool,
    said_come: bool,
    /// What has left for which queue. Another broker may want it again.
    kept: BTreeMap<u8, (u16, Vec<u8>)>,
    /// Buckets that have come to workers.
    come: u128,
}

/// The connection is of no more use.
struct Lost;

impl Carrier {
    fn run(&mut self) {
        while !self.stop.load(Ordering::Acquire) {
            if self.turn().is_err() {
                self.lose_connection();
            }
        }
    }

    /// Workers go on with what they have.
    fn lose_connection(&mut self) {
        self.connection = None;
        self.outbox.clear();
        self.arriving.clear();
        if let Some(change) = &mut self.change {
            (change.told, change.said_given, change.said_come) = (false, false, false);
        }
        let _ = wait(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(PAUSE));
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
    }

    fn turn(&mut self) -> Result<(), Lost> {
        if self.connection.is_none() {
            let socket = ask(&self.path, self.progress()).map_err(|_| Lost)?;
            self.connection = Some(Connection { socket, greeted: false });
        }
        let Some(Connection { socket, .. }) = &self.connection else { return Ok(()) };
        let interest = if self.outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        wait(&mut [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(socket, interest)], None).map_err(|_| Lost)?;
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        self.read_messages()?;
        self.carry_away();
        self.flush()
    }

    /// What a broker is told that may be another one.
    fn progress(&self) -> Progress {
        let (known, come) = self.change.as_ref().map_or((self.epoch, 0), |change| (change.epoch, change.come));
        Progress { closed: self.closed, known, come, ports: self.ports }
    }

    /// Whether the broker's table is one that this process knows: that which has begun last, or that of the next epoch, which
    /// senders may know of by now.
    fn is_known(&self, place: &Place) -> bool {
        let known = |epoch, table: &BucketTable| epoch == place.epoch && *table.owners() == place.owners;
        (usize::from(place.first_queue), usize::from(place.queues)) == (self.first, self.all)
            && (known(self.epoch, &self.table)
                || self.change.as_ref().is_some_and(|change| known(change.epoch, &change.table)))
    }

    fn read_messages(&mut self) -> Result<(), Lost> {
        while let Some(connection) = &self.connection {
            match socket::receive(connection.socket.as_fd()).map_err(|_| Lost)? {
                Received::Message { bytes, whole: true, .. } => self.obey(Reply::decode(&bytes).map_err(|_| Lost)?)?,
                Received::Nothing => break,
                _ => return Err(Lost),
            }
        }
        Ok(())
    }

    fn obey(&mut self, reply: Reply) -> Result<(), Lost> {
        match reply {
            Reply::Steers(place) if self.is_known(&place) => {
                self.connection.iter_mut().for_each(|connection| connection.greeted = true);
            }
            _ if !self.connection.as_ref().is_some_and(|connection| connection.greeted) => return Err(Lost),
            Reply::Prepare { epoch, owners } => {
                let table = BucketTable::new(owners, self.all).ok_or(Lost)?;
                self.group.prepare(epoch, &self.table, &table);
                self.change = Some(Change::new(epoch, table));
                self.say(&Request::Prepared { epoch });
            }
            Reply::Begun { epoch, come } => self.begin(epoch, come)?,
            Reply::Arrival { bucket, from, more, state } => {
                let part = self.arriving.entry(bucket).or_default();
                // No last part is empty: its giver died before it had sent all, and this comes from the broker.
                if state.is_empty() {
                    part.clear();
                }
                part.extend(state);
                if !more {
                    let state = self.arriving.remove(&bucket).unwrap_or_default();
                    self.take_in(bucket, from, state)?;
                }
            }
            Reply::Closed { epoch } => {
                self.closed = epoch;
                self.change.take_if(|change| change.epoch == epoch);
            }
            _ => return Err(Lost),
        }
        Ok(())
    }

    /// Senders know of an epoch. A broker that took another's place says so again, and what was given before and has not come
    /// is sent to it.
    fn begin(&mut self, epoch: u64, come: u128) -> Result<(), Lost> {
        let change = self.change.as_mut().filter(|change| change.epoch == epoch).ok_or(Lost)?;
        change.told = true;
        if !std::mem::replace(&mut change.begun, true) {
            (self.epoch, self.table) = (epoch, change.table);
            self.group.publish(epoch, &self.table);
            self.group.begin(epoch);
        }
        let again: Vec<_> = change.kept.iter().filter(|(bucket, _)| come >> **bucket & 1 == 0).collect();
        let again: Vec<_> = again.into_iter().flat_map(|(bucket, (to, state))| parts(*bucket, *to, state)).collect();
        again.iter().for_each(|part| self.say(part));
        Ok(())
    }

    fn take_in(&mut self, bucket: u8, from: u16, state: Vec<u8>) -> Result<(), Lost> {
        let worker = self.table.queue(bucket).checked_sub(self.first);
        let worker = worker.filter(|worker| *worker < self.workers.len()).ok_or(Lost)?;
        let change = self.change.as_mut().filter(|change| change.told).ok_or(Lost)?;
        if change.come >> bucket & 1 == 1 {
            return Err(Lost);
        }
        change.come |= 1 << bucket;
        // Workers that are gone take nothing.
        let _ = self.workers[worker].send(Arrival { bucket, from: usize::from(from), state });
        self.group.tell(worker);
        Ok(())
    }

    /// Passes on what workers have given away, and what they have done.
    fn carry_away(&mut self) {
        let Some(Change { epoch, table, told: true, said_given, said_come, .. }) = self.change else { return };
        // Before what they have sent is looked for: whoever has given all has sent it.
        let given = self.group.has_given();
        for at in 0..self.leaving.len() {
            while let Ok(Arrival { bucket, state, .. }) = self.leaving[at].1.try_recv() {
                self.send_bucket(bucket, self.leaving[at].0, state);
            }
        }
        if given && !said_given {
            self.say(&Request::Gave { epoch });
        }
        let come = self.group.has_all();
        if come && !said_come {
            let own = (0..BUCKETS as u8).filter(|&bucket| {
                table.queue(bucket).checked_sub(self.first).is_some_and(|worker| worker < self.workers.len())
            });
            self.say(&Request::Came { epoch, buckets: own.fold(0, |set, bucket| set | 1 << bucket) });
        }
        if let Some(change) = &mut self.change {
            (change.said_given, change.said_come) = (given || said_given, come || said_come);
        }
    }

    fn send_bucket(&mut self, bucket: u8, to: u16, state: Vec<u8>) {
        parts(bucket, to, &state).for_each(|part| self.say(&part));
        if let Some(change) = &mut self.change {
            change.kept.insert(bucket, (to, state));
        }
    }

    fn say(&mut self, request: &Request) {
        self.outbox.push_back(request.encode());
    }

    fn flush(&mut self) -> Result<(), Lost> {
        let Some(connection) = &self.connection else { return Ok(()) };
        while let Some(message) = self.outbox.front() {
            match socket::send(connection.socket.as_fd(), message, &[]) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(Lost),
            }
        }
        Ok(())
    }
}

impl Change {
    fn new(epoch: u64, table: BucketTable) -> Self {
        let (kept, come) = (BTreeMap::new(), 0);
        Self { epoch, table, begun: false, told: false, said_given: false, said_come: false, kept, come }
    }
}

/// The messages that bring a bucket's state to the broker.
fn parts(bucket: u8, to: u16, state: &[u8]) -> impl Iterator<Item = Request> {
    let count = state.len().div_ceil(STATE_PART_MAX).max(1);
    (0..count).map(move |n| {
        let end = state.len().min((n + 1) * STATE_PART_MAX);
        Request::Bucket { bucket, to, more: n + 1 < count, state: state[n * STATE_PART_MAX..end].to_vec() }
    })
}
