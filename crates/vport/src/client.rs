//! The function's side of the handshake: attaches to a port, and leaves the rest to a small thread of its own.

mod control;
mod segments;

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
use crate::handover::{Complaints, Handover};
use crate::home::Home;
use crate::info::PortInfo;
use crate::layout::{VERSION, VERSION_NEWEST};
use crate::owner::PortSteering;
use crate::ring::Ring;
use crate::rx::{Ownership, RxRing};
use crate::socket::{self, Received};
use crate::stake::Stakes;
use crate::steering::{BucketTable, KEY_WITHIN};
use crate::tx::TxRing;
use crate::wire::{self, Place, REPORT_MAX, Reply, Request};
use control::{Connection, Control, PAUSE_MIN};

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
    /// To take it over, where it was attached so.
    pub succession: Succession,
}

/// How to attach to a port that another process of the function may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coming {
    /// Once nobody has it.
    #[default]
    Alone,
    /// To take it over, at [`Succession::take_over`]. At once where nobody has it.
    ToSucceed,
}

/// A port that is to be taken over. Keeps it attached.
#[derive(Clone)]
pub struct Succession(Arc<Lease>);

impl Succession {
    /// Whether the port is this process's: always, where it was not attached to succeed.
    pub fn has_port(&self) -> bool {
        self.0.shared.has_port.load(Ordering::Acquire)
    }

    /// From now on peers send to this process. It receives, and can send, as soon as the one that has the port has left it.
    pub fn take_over(&self) {
        self.0.shared.take_over.store(true, Ordering::Release);
        self.0.shared.complaints.ring();
    }
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
    /// [`wire::COUNTER_NAME_MAX`] characters; for such as names do not have (see [`wire::is_name`]) stands `_`. One without a name is
    /// left out.
    pub fn report(&self, counters: &[(&str, u64)]) {
        let named = counters.iter().filter(|(name, _)| !name.is_empty());
        let report = named.take(REPORT_MAX).map(|(name, value)| (wire::counter_name(name), *value)).collect();
        let earlier = self.0.shared.report.lock().unwrap_or_else(PoisonError::into_inner).replace(report);
        if earlier.is_none() {
            self.0.shared.complaints.ring();
        }
    }
}

/// Attaches to `port` at the broker's `socket`; waits for both up to `timeout`, but not for the peer. `peek` bytes of a
/// received frame are copied.
pub fn attach(socket: &Path, port: &str, timeout: Duration, peek: usize) -> Result<Attachment, AttachError> {
    attach_as(Coming::Alone, socket, port, timeout, peek)
}

/// As [`attach`]. One that comes to succeed need not wait for whoever has the port.
pub fn attach_as(
    coming: Coming,
    socket: &Path,
    port: &str,
    timeout: Duration,
    peek: usize,
) -> Result<Attachment, AttachError> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(5);
    let mut refused = None;
    let greeting = match coming {
        Coming::Alone => hello(port, 0),
        Coming::ToSucceed => succeed(port),
    };
    let (connection, welcome) = loop {
        let Attempt { error, again } = match try_attach(socket, &greeting, deadline) {
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
    start(coming, socket.to_owned(), connection, welcome, peek)
}

struct Welcome {
    version: u16,
    info: PortInfo,
    peer_queues: usize,
    ring: Ring,
    place: Option<Place>,
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
fn try_attach(path: &Path, greeting: &[u8], deadline: Instant) -> Result<(OwnedFd, Welcome), Attempt> {
    let absent = |error: io::Error| Attempt { error: AttachError::NoBroker(error.to_string()), again: true };
    let connection = socket::connected(path).map_err(absent)?;
    socket::send(connection.as_fd(), greeting, &[]).map_err(absent)?;
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
    Request::Hello { oldest: VERSION, newest: VERSION_NEWEST, port: port.to_owned(), resume }.encode()
}

fn succeed(port: &str) -> Vec<u8> {
    Request::Succeed { oldest: VERSION, newest: VERSION_NEWEST, port: port.to_owned() }.encode()
}

fn answer(bytes: &[u8]) -> Result<Welcome, Attempt> {
    let bad = |what: String| Attempt { error: AttachError::Refused(what), again: false };
    match Reply::decode(bytes).map_err(|error| bad(format!("the broker's answer: {error}")))? {
        Reply::Welcome {
            version: version @ VERSION..=VERSION_NEWEST, info, peer_queues, ring_bytes, place, ..
        } if info.queues > 0 && peer_queues > 0 => {
            let ring =
                Ring::new(u64::from(ring_bytes)).ok_or_else(|| bad("the broker names a bad ring size".into()))?;
            Ok(Welcome { version, info, peer_queues: usize::from(peer_queues), ring, place })
        }
        Reply::Refused { reason, try_again } => Err(Attempt { error: AttachError::Refused(reason), again: try_again }),
        _ => Err(bad("the broker answers another question".into())),
    }
}

fn start(
    coming: Coming,
    path: PathBuf,
    connection: OwnedFd,
    welcome: Welcome,
    peek: usize,
) -> Result<Attachment, AttachError> {
    let Welcome { version, info, peer_queues, ring, place } = welcome;
    let count = usize::from(info.queues);
    let (first, all) = place.map_or((0, count), |place| (usize::from(place.first_queue), usize::from(place.queues)));
    // The message was not taken if it named an owner that is not in the pool.
    let table = place.and_then(|place| BucketTable::new(place.owners, all)).unwrap_or_else(|| BucketTable::fixed(all));
    let boxes = (0..count).map(|_| Ok((Handover::new()?, Handover::new()?))).collect::<io::Result<Vec<_>>>()?;
    let complaints = Arc::new(Complaints::new()?);
    let cells = boxes.iter().enumerate().map(|(queue, (rx, _))| Arc::new(Cell::new(first + queue, &table, rx.clone())));
    let home = Arc::new(match &place {
        None => Home::new(&info.name, cells.collect()),
        Some(place) => Home::of_pool(&info.name, cells.collect(), place.epoch, table),
    });
    let shared = Arc::new(Shared {
        complaints: complaints.clone(),
        report: Mutex::new(None),
        take_over: AtomicBool::new(false),
        has_port: AtomicBool::new(coming == Coming::Alone),
        stop: AtomicBool::new(false),
    });
    let mut control = Control {
        shared: shared.clone(),
        path,
        connection: Some(Connection { socket: connection, greeted: true }),
        info: info.clone(),
        peer_queues,
        place,
        ring,
        boxes: boxes.clone(),
        home: home.clone(),
        stakes: Stakes::new(complaints.clone()),
        version,
        stake: None,
        own: None,
        waits_to_inherit: coming == Coming::ToSucceed,
        takes_over: false,
        waiting: Vec::new(),
        current: None,
        unclosed: Vec::new(),
        ready_by: None,
        connect_at: Instant::now(),
        pause: PAUSE_MIN,
        report_at: Instant::now(),
        complaint: None,
    };
    if control.tell_holdings().is_err() {
        control.lose_connection();
    }
    let thread = std::thread::Builder::new().name(format!("port-{}", info.name)).spawn(move || control.run())?;
    let lease = Arc::new(Lease { shared, thread: Mutex::new(Some(thread)) });
    let queues = boxes.into_iter().enumerate().map(|(queue, (rx, tx))| {
        let port: Arc<dyn Any + Send + Sync> = lease.clone();
        let ownership = Ownership { steering: info.steering, cell: home.cells[queue].clone(), queue, queues: all };
        // What a sender steered by is found again.
        let peek = if all > 1 { peek.max(KEY_WITHIN) } else { peek };
        let rx = RxRing::new(peek, ownership, rx, complaints.clone(), port.clone());
        (rx, TxRing::new(queue, tx, complaints.clone(), port))
    });
    Ok(Attachment {
        queues: queues.collect(),
        info,
        steering: PortSteering(home.clone()),
        reporter: Reporter(lease.clone()),
        succession: Succession(lease),
    })
}

/// What the control thread and the port's users share.
struct Shared {
    complaints: Arc<Complaints>,
    report: Mutex<Option<Vec<(String, u64)>>>,
    /// The port is to be taken over: to be said.
    take_over: AtomicBool,
    /// Nobody has it beside this process.
    has_port: AtomicBool,
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

pub(crate) fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout
        .map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) });
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
