//! The function's side of the handshake: a small thread for each open port, which maps new generations of channels off
//! the packet path, keeps the connection to the broker, and comes back to it when it was away.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cell::Cell;
use crate::doorbell::{Bell, Doorbell};
use crate::epoch::Crossing;
use crate::handover::{Complaint, Complaints, Fate, Generation, Handover};
use crate::home::{Home, Living};
use crate::info::PortInfo;
use crate::layout::{Index, TABLE_BYTES, VERSION};
use crate::mapping::Mapping;
use crate::owner::PortSteering;
use crate::reader::{Mapped, Reader};
use crate::ring::Ring;
use crate::rx::{Ownership, RxChannel, RxHalf, RxRing};
use crate::segment;
use crate::socket::{self, Received};
use crate::steering::{BucketTable, Steering};
use crate::tx::{PeerTable, TxChannel, TxHalf, TxRing};
use crate::wire::{COUNTER_NAME_MAX, FDS_PER_QUEUE, Malformed, REPORT_MAX, Reply, Request};
use crate::writer::Writer;

/// An attached port.
pub struct Attachment {
    /// What the broker says of it.
    pub info: PortInfo,
    /// Its queue pairs.
    pub queues: Vec<(RxRing, TxRing)>,
    /// Publishes named counters.
    pub reporter: Reporter,
    /// To steer it, alone or with others.
    pub steering: PortSteering,
}

/// Why a port could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The broker did not answer in time.
    #[error("{0}")]
    NoBroker(String),
    /// The broker refused.
    #[error("{0}")]
    Refused(String),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for AttachError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Publishes named counters of a port's function.
#[derive(Clone)]
pub struct Reporter(Arc<Lease>);

impl Reporter {
    /// Replaces what was reported before. At most [`REPORT_MAX`] counters are taken, and of their names
    /// [`COUNTER_NAME_MAX`] bytes.
    pub fn report(&self, counters: &[(&str, u64)]) {
        let shorten = |name: &str| name.chars().take(COUNTER_NAME_MAX).filter(char::is_ascii).collect();
        let report = counters.iter().take(REPORT_MAX).map(|(name, value)| (shorten(name), *value)).collect();
        let earlier = self.0.shared.report.lock().unwrap_or_else(PoisonError::into_inner).replace(report);
        if earlier.is_none() {
            self.0.shared.complaints.ring();
        }
    }
}

/// Attaches to `port` at the broker's `socket`; waits for both up to `timeout`, but not for the peer. `peek` bytes of a
/// received frame are copied.
pub fn attach(socket: &Path, port: &str, timeout: Duration, peek: usize) -> Result<Attachment, AttachError> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(5);
    let mut refused = None;
    let (connection, welcome) = loop {
        let Attempt { error, again } = match try_attach(socket, port, 0, deadline) {
            Ok(done) => break done,
            Err(attempt) => attempt,
        };
        // A broker that said why it does not serve the port tells more than one that was too slow to say it again.
        let last = !again || Instant::now() + pause >= deadline;
        match error {
            AttachError::NoBroker(_) if last && refused.is_some() => return Err(refused.unwrap_or(error)),
            error if last => return Err(error),
            AttachError::Refused(_) => refused = Some(error),
            _ => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    };
    start(socket.to_owned(), connection, welcome, peek)
}

struct Welcome {
    info: PortInfo,
    peer_queues: usize,
    ring: Ring,
}

struct Attempt {
    error: AttachError,
    again: bool,
}

impl<E: Into<AttachError>> From<E> for Attempt {
    fn from(error: E) -> Self {
        Self { error: error.into(), again: false }
    }
}

/// One connection and one greeting.
fn try_attach(path: &Path, port: &str, resume: u64, deadline: Instant) -> Result<(OwnedFd, Welcome), Attempt> {
    let absent = |error: io::Error| Attempt { error: AttachError::NoBroker(error.to_string()), again: true };
    let connection = socket::connected(path).map_err(absent)?;
    socket::send(connection.as_fd(), &hello(port, resume), &[]).map_err(absent)?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        wait(&mut [PollFd::new(&connection, PollFlags::IN)], Some(left)).map_err(absent)?;
        match socket::receive(connection.as_fd()).map_err(absent)? {
            Received::Message { bytes, .. } => {
                let welcome = answer(&bytes)?;
                return Ok((connection, welcome));
            }
            Received::Closed => return Err(absent(io::Error::other("it closed the connection"))),
            Received::Nothing if left.is_zero() => {
                return Err(Attempt { error: AttachError::NoBroker("it did not answer".into()), again: false });
            }
            Received::Nothing => {}
        }
    }
}

fn hello(port: &str, resume: u64) -> Vec<u8> {
    Request::Hello { oldest: VERSION, newest: VERSION, port: port.to_owned(), resume }.encode()
}

fn answer(bytes: &[u8]) -> Result<Welcome, Attempt> {
    let bad = |what: String| Attempt { error: AttachError::Refused(what), again: false };
    match Reply::decode(bytes).map_err(|error| bad(format!("the broker's answer: {error}")))? {
        Reply::Welcome { version: VERSION, info, peer_queues, ring_bytes, .. }
            if info.queues > 0 && peer_queues > 0 =>
        {
            let ring =
                Ring::new(u64::from(ring_bytes)).ok_or_else(|| bad("the broker names a bad ring size".into()))?;
            Ok(Welcome { info, peer_queues: usize::from(peer_queues), ring })
        }
        Reply::Refused { reason, try_again } => Err(Attempt { error: AttachError::Refused(reason), again: try_again }),
        _ => Err(bad("the broker answers another question".into())),
    }
}

fn start(path: PathBuf, connection: OwnedFd, welcome: Welcome, peek: usize) -> Result<Attachment, AttachError> {
    let Welcome { info, peer_queues, ring } = welcome;
    let count = usize::from(info.queues);
    let boxes = (0..count).map(|_| Ok((Handover::new()?, Handover::new()?))).collect::<io::Result<Vec<_>>>()?;
    let complaints = Arc::new(Complaints::new()?);
    let table = BucketTable::fixed(count);
    let cells = boxes.iter().enumerate().map(|(queue, (rx, _))| Arc::new(Cell::new(queue, &table, rx.clone())));
    let home = Arc::new(Home::new(&info.name, cells.collect()));
    let shared =
        Arc::new(Shared { complaints: complaints.clone(), report: Mutex::new(None), stop: AtomicBool::new(false) });
    let control = Control {
        shared: shared.clone(),
        path,
        connection: Some(Connection { socket: connection, greeted: true }),
        info: info.clone(),
        peer_queues,
        ring,
        boxes: boxes.clone(),
        home: home.clone(),
        own: None,
        current: None,
        connect_at: Instant::now(),
        pause: PAUSE_MIN,
        report_at: Instant::now(),
    };
    let thread = std::thread::Builder::new().name(format!("port-{}", info.name)).spawn(move || control.run())?;
    let lease = Arc::new(Lease { shared, thread: Mutex::new(Some(thread)) });
    let queues = boxes.into_iter().enumerate().map(|(queue, (rx, tx))| {
        let port: Arc<dyn Any + Send + Sync> = lease.clone();
        let ownership = Ownership { steering: info.steering, cell: home.cells[queue].clone(), queue, queues: count };
        // Enough to find the key that a sender steered by, behind any headers that it looks behind.
        let peek = if count > 1 { peek.max(128) } else { peek };
        let rx = RxRing::new(peek, ownership, rx, complaints.clone(), port.clone());
        (rx, TxRing::new(queue, tx, complaints.clone(), port))
    });
    Ok(Attachment { queues: queues.collect(), info, reporter: Reporter(lease), steering: PortSteering(home.clone()) })
}

/// What the control thread and the port's users share.
struct Shared {
    complaints: Arc<Complaints>,
    report: Mutex<Option<Vec<(String, u64)>>>,
    stop: AtomicBool,
}

/// Held by everything that is part of an open port. The last one to go detaches it.
struct Lease {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.complaints.ring();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// How long a new generation is kept waiting while queues have not done with many earlier ones. Less than the broker's
/// patience. After that they lose the oldest.
const ROOM_WITHIN: Duration = Duration::from_secs(5);
const ROOM_EVERY: Duration = Duration::from_millis(2);

type Boxes = (Arc<Handover<RxHalf>>, Arc<Handover<TxHalf>>);

/// The control thread.
struct Control {
    shared: Arc<Shared>,
    path: PathBuf,
    connection: Option<Connection>,
    info: PortInfo,
    peer_queues: usize,
    ring: Ring,
    boxes: Vec<Boxes>,
    home: Arc<Home>,
    /// Own segments of a generation whose peer's have not come yet.
    own: Option<Own>,
    current: Option<Arc<Generation>>,
    connect_at: Instant,
    pause: Duration,
    report_at: Instant,
}

struct Connection {
    socket: OwnedFd,
    /// Whether the broker has answered the greeting.
    greeted: bool,
}

struct Own {
    generation: Arc<Generation>,
    /// Until when the broker's question whether they are mapped may stay unanswered. None once it is answered.
    answer_by: Option<Instant>,
    queues: Vec<OwnQueue>,
    table: Arc<Mapping>,
}

struct OwnQueue {
    index: Arc<Mapping>,
    records: Arc<Mapping>,
    doorbell: OwnedFd,
}

struct Peer {
    queues: Vec<PeerQueue>,
    table: Arc<Mapping>,
    steering: Steering,
}

struct PeerQueue {
    index: Arc<Mapping>,
    records: Arc<Mapping>,
    bell: OwnedFd,
}

impl Control {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.reconnect_if_due();
            self.sleep();
            for complaint in self.shared.complaints.take() {
                self.pass_on(complaint);
            }
            self.report_if_due();
            self.unmap_retired();
            self.answer_if_room();
            if let Err(Lost) = self.read_messages() {
                self.lose_connection();
            }
        }
    }

    fn sleep(&self) {
        let now = Instant::now();
        let report_due = self.shared.report.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let timeout = match &self.connection {
            None => Some(self.connect_at.saturating_duration_since(now)),
            Some(_) if self.own.as_ref().is_some_and(|own| own.answer_by.is_some()) => Some(ROOM_EVERY),
            Some(connection) if connection.greeted && report_due => Some(self.report_at.saturating_duration_since(now)),
            Some(_) => None,
        };
        let wake = self.shared.complaints.wake_fd();
        let mut fds = vec![PollFd::from_borrowed_fd(wake, PollFlags::IN)];
        fds.extend(self.connection.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::IN)));
        if wait(&mut fds, timeout).is_err() {
            std::thread::sleep(PAUSE_MIN);
        }
    }

    fn reconnect_if_due(&mut self) {
        if self.connection.is_some() || Instant::now() < self.connect_at {
            return;
        }
        let held = self.current.as_ref().filter(|generation| generation.fate() == Fate::Present);
        let greeting = hello(&self.info.name, held.map_or(0, |generation| generation.number));
        let greeted = socket::connected(&self.path).and_then(|socket| {
            socket::send(socket.as_fd(), &greeting, &[])?;
            Ok(Connection { socket, greeted: false })
        });
        match greeted {
            Ok(connection) => self.connection = Some(connection),
            Err(_) => self.lose_connection(),
        }
    }

    /// The queues go on with what they have.
    fn lose_connection(&mut self) {
        self.connection = None;
        self.own = None;
        self.connect_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn read_messages(&mut self) -> Result<(), Lost> {
        while let Some(connection) = &self.connection {
            match socket::receive(connection.socket.as_fd()).map_err(|_| Lost)? {
                Received::Message { bytes, fds, whole: true } => self.obey(Reply::decode(&bytes)?, fds)?,
                // However long the broker is away: a connection that waits for it is served by its successor, and closed
                // where there is none. A second one would find the port held by the first.
                Received::Nothing => break,
                _ => return Err(Lost),
            }
        }
        Ok(())
    }

    fn obey(&mut self, reply: Reply, fds: Vec<OwnedFd>) -> Result<(), Lost> {
        match reply {
            Reply::Welcome { info, peer_queues, ring_bytes, .. } => self.greeted(&info, peer_queues, ring_bytes),
            Reply::Refused { .. } => Err(Lost),
            Reply::Own { generation, records_bytes } => {
                self.own = Some(self.map_own(generation, records_bytes as usize, fds)?);
                self.answer_if_room();
                Ok(())
            }
            Reply::Peer { generation, records_bytes, steering } => {
                let own = self.own.take().filter(|own| own.generation.number == generation).ok_or(Lost)?;
                let peer = self.map_peer(records_bytes as usize, steering, fds)?;
                self.hand_over(own, &peer)?;
                self.say(&Request::Ready { generation })
            }
            Reply::Over { generation, dead } => {
                self.end(generation, if dead { Fate::Dead } else { Fate::Over });
                Ok(())
            }
        }
    }

    fn greeted(&mut self, info: &PortInfo, peer_queues: u16, ring_bytes: u32) -> Result<(), Lost> {
        // A port does not change its number of queues under a function that runs.
        if info.queues != self.info.queues || peer_queues == 0 {
            return Err(Lost);
        }
        self.peer_queues = usize::from(peer_queues);
        self.ring = Ring::new(u64::from(ring_bytes)).ok_or(Lost)?;
        self.pause = PAUSE_MIN;
        if let Some(connection) = &mut self.connection {
            connection.greeted = true;
        }
        Ok(())
    }

    fn map_own(&self, generation: u64, records_bytes: usize, fds: Vec<OwnedFd>) -> Result<Own, Lost> {
        let index_bytes = Index::new(self.peer_queues).bytes();
        self.check_records(records_bytes, self.peer_queues)?;
        let (triples, table) = sort(fds, self.boxes.len())?;
        let queues = triples.into_iter().map(|[index, records, doorbell]| {
            Ok(OwnQueue {
                index: Arc::new(Mapping::writable(index.as_fd(), index_bytes)?),
                records: Arc::new(Mapping::writable(records.as_fd(), records_bytes)?),
                doorbell,
            })
        });
        Ok(Own {
            generation: Generation::new(generation),
            answer_by: Some(Instant::now() + ROOM_WITHIN),
            queues: queues.collect::<io::Result<_>>()?,
            table: Arc::new(Mapping::writable(table.as_fd(), TABLE_BYTES)?),
        })
    }

    fn map_peer(&self, records_bytes: usize, steering: Steering, fds: Vec<OwnedFd>) -> Result<Peer, Lost> {
        let index_bytes = Index::new(self.boxes.len()).bytes();
        self.check_records(records_bytes, self.boxes.len())?;
        let (triples, table) = sort(fds, self.peer_queues)?;
        let queues = triples.into_iter().map(|[index, records, bell]| {
            segment::check(index.as_fd(), index_bytes).map_err(|_| Lost)?;
            segment::check(records.as_fd(), records_bytes).map_err(|_| Lost)?;
            Ok(PeerQueue {
                index: Arc::new(Mapping::read_only(index.as_fd(), index_bytes)?),
                records: Arc::new(Mapping::read_only(records.as_fd(), records_bytes)?),
                bell,
            })
        });
        let queues = queues.collect::<Result<_, Lost>>()?;
        segment::check(table.as_fd(), TABLE_BYTES).map_err(|_| Lost)?;
        let table = Arc::new(Mapping::read_only(table.as_fd(), TABLE_BYTES)?);
        Ok(Peer { queues, table, steering })
    }

    fn check_records(&self, bytes: usize, rings: usize) -> Result<(), Lost> {
        let needed = crate::layout::records_bytes(self.ring.size() as usize, rings, segment::PAGE);
        if bytes < needed { Err(Lost) } else { Ok(()) }
    }

    /// Gives every queue its halves of the new generation.
    fn hand_over(&mut self, own: Own, peer: &Peer) -> Result<(), Lost> {
        let newest = Living {
            generation: own.generation.clone(),
            table: own.table.clone(),
            indices: own.queues.iter().map(|queue| queue.index.clone()).collect(),
            peers: peer.queues.iter().map(|queue| queue.index.clone()).collect(),
            layouts: (Index::new(self.peer_queues), Index::new(self.boxes.len())),
        };
        let halves = own.queues.into_iter().enumerate().map(|(queue, own_queue)| {
            let sending = self.tx_half(&own.generation, queue, &own_queue, peer)?;
            Ok((self.rx_half(&own.generation, queue, own_queue, peer), sending))
        });
        let halves: Vec<_> = halves.collect::<io::Result<_>>()?;
        self.home.renew(newest, |epoch| {
            for ((mut receiving, sending), (rx, tx)) in halves.into_iter().zip(&self.boxes) {
                receiving.epoch = epoch;
                // What was not begun is closed here, so that the peer does not wait for it.
                let unused = std::iter::from_fn(|| tx.next()).collect::<Vec<_>>();
                unused.into_iter().chain(tx.deliver(sending)).for_each(|mut unused| unused.close());
                drop(rx.deliver(receiving));
            }
        });
        self.current = Some(own.generation);
        Ok(())
    }

    fn rx_half(&self, generation: &Arc<Generation>, queue: usize, own: OwnQueue, peer: &Peer) -> RxHalf {
        let peer_layout = Index::new(self.boxes.len());
        let offset = queue * self.ring.size() as usize;
        let channels = peer.queues.iter().map(|peer| RxChannel {
            reader: Reader::new(self.ring),
            source: Mapped::new(self.ring, &peer.records, offset, &peer.index, |index| peer_layout.head(index, queue)),
            peer: peer.index.clone(),
            peer_layout: (peer_layout, queue),
            complained: false,
            crossing: Crossing::default(),
            paused: None,
            dry: false,
            given_up: None,
            turn: true,
            ended: false,
        });
        RxHalf {
            generation: generation.clone(),
            channels: channels.collect(),
            next_channel: 0,
            index: own.index,
            layout: Index::new(self.peer_queues),
            doorbell: Doorbell::new(own.doorbell),
            epoch: 0,
        }
    }

    fn tx_half(&self, generation: &Arc<Generation>, queue: usize, own: &OwnQueue, peer: &Peer) -> io::Result<TxHalf> {
        let (layout, peer_layout) = (Index::new(self.peer_queues), Index::new(self.boxes.len()));
        let channels = peer.queues.iter().enumerate().map(|(to, peer)| {
            let writer = Writer::new(
                self.ring,
                (&own.records, to * self.ring.size() as usize),
                (&own.index, |index: &Mapping| layout.head(index, to)),
                (&peer.index, |index: &Mapping| peer_layout.tail(index, queue)),
            );
            let bell = Bell::new(peer.bell.try_clone()?);
            Ok(TxChannel { writer, bell, peer: peer.index.clone(), peer_layout })
        });
        Ok(TxHalf {
            generation: generation.clone(),
            channels: channels.collect::<io::Result<_>>()?,
            index: own.index.clone(),
            layout,
            steering: peer.steering,
            table: PeerTable::new(peer.table.clone()),
            burst: 0,
        })
    }

    fn end(&mut self, generation: u64, fate: Fate) {
        self.own.take_if(|own| own.generation.number == generation);
        self.home.end(generation, fate);
        for (rx, tx) in &self.boxes {
            rx.announce();
            tx.announce();
        }
    }

    fn pass_on(&mut self, complaint: Complaint) {
        let Complaint { generation, queue, violation } = complaint;
        let _ = self.say(&Request::Quarantine { generation, queue, violation: violation as u16 });
    }

    fn report_if_due(&mut self) {
        let greeted = self.connection.as_ref().is_some_and(|connection| connection.greeted);
        if !greeted || Instant::now() < self.report_at {
            return;
        }
        let report = self.shared.report.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(report) = report {
            let _ = self.say(&Request::Report(report));
            self.report_at = Instant::now() + REPORT_EVERY;
        }
    }

    /// Lets the next generation begin when queues have room for it: until then senders are refused, and nothing is lost.
    fn answer_if_room(&mut self) {
        let Some(Own { generation, answer_by: Some(by), .. }) = &self.own else { return };
        let room = self.boxes.iter().all(|(rx, _)| rx.has_room(RxHalf::is_void));
        if !room && Instant::now() < *by {
            return;
        }
        let generation = generation.number;
        if self.say(&Request::Mapped { generation }).is_err() {
            return self.lose_connection();
        }
        self.own.iter_mut().for_each(|own| own.answer_by = None);
    }

    fn unmap_retired(&self) {
        for (rx, tx) in &self.boxes {
            drop(rx.retired());
            drop(tx.retired());
        }
        self.home.forget_unused();
    }

    fn say(&self, request: &Request) -> Result<(), Lost> {
        let connection = self.connection.as_ref().ok_or(Lost)?;
        socket::send(connection.socket.as_fd(), &request.encode(), &[]).map_err(|_| Lost)
    }
}

/// The connection is of no more use.
struct Lost;

impl From<io::Error> for Lost {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl From<Malformed> for Lost {
    fn from(_: Malformed) -> Self {
        Self
    }
}

/// The descriptors of `count` queues, and that of the table.
fn sort(mut fds: Vec<OwnedFd>, count: usize) -> Result<(Vec<[OwnedFd; FDS_PER_QUEUE]>, OwnedFd), Lost> {
    if fds.len() != count * FDS_PER_QUEUE + 1 {
        return Err(Lost);
    }
    let table = fds.pop().ok_or(Lost)?;
    let mut fds = fds.into_iter();
    Ok((std::iter::from_fn(|| Some([fds.next()?, fds.next()?, fds.next()?])).collect(), table))
}

fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        // A wait that is over a little early is a busy loop.
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
