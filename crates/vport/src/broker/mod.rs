//! The broker: creates segments, hands them out in the order that makes them safe, and joins the ends of links.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::counters::{RxCounters, TxCounters};
use crate::info::PortInfo;
use crate::latency::Latency;
use crate::steering::BUCKETS;
pub use core::Core;
pub use observer::{Direction, Observer, Seen};

mod core;
mod group;
mod link;
mod observer;
mod pool;
mod seat;

/// A link between two ports. The broker knows them from now on; their functions may attach at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Unique at this broker, for example `slice/n3`.
    pub name: String,
    /// The two ports.
    pub ends: [EndSpec; 2],
    /// Size of each ring in bytes: a power of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`].
    pub ring_bytes: u32,
    /// How frames get from one end to the other.
    pub kind: LinkKind,
}

/// How a link carries frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// Each frame is copied once, from ring to ring. The ends need not trust each other.
    #[default]
    Direct,
    /// The same, and each end can also write the records that it reads, as only it does: an end that has a line for itself is faster
    /// with it on some processors. Not on links of pools.
    SharedRecords,
    /// Frames lie in an arena that all ports of the trust group share, and change hands. Each channel has a buffer for
    /// every KiB of ring size.
    ZeroCopy {
        /// The trust group; a name as functions have.
        group: String,
    },
}

impl LinkKind {
    /// The trust group of a zero-copy link.
    pub fn group(&self) -> Option<&str> {
        match self {
            Self::Direct | Self::SharedRecords => None,
            Self::ZeroCopy { group } => Some(group),
        }
    }
}

/// What a broker knows of a trust group's arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaStatus {
    /// The trust group.
    pub group: String,
    /// Buffers that are there. More come as links ask for them.
    pub buffers: u32,
    /// Buffers that no generation of any link has.
    pub free: u32,
    /// Whether they lie in hugepages.
    pub hugepages: bool,
}

/// Smallest ring, in bytes.
pub const RING_BYTES_MIN: u32 = 128 << 10;
/// Largest ring, in bytes.
pub const RING_BYTES_MAX: u32 = 64 << 20;
/// Ring size where nothing else is asked for. Larger than a core's second-level cache: under load, records have then gone
/// on to the shared cache when they are read, which costs less than fetching them from another core's own (3.1 times the
/// rate of rings of 256 KiB at 1,518 B on Zen 4).
pub const RING_BYTES_DEFAULT: u32 = 1 << 20;

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndSpec {
    /// The function, as named to [`Broker::listen`]; of a pool, all that can be its members at a time.
    pub functions: Vec<String>,
    /// The port of each. `port.name` is unique within the function. The end has the queues of all its functions, in their
    /// order.
    pub port: PortInfo,
}

impl EndSpec {
    /// A port of one function.
    pub fn of(function: impl Into<String>, port: PortInfo) -> Self {
        Self { functions: vec![function.into()], port }
    }

    /// Queues of the end.
    pub fn queues(&self) -> usize {
        self.functions.len() * usize::from(self.port.queues)
    }
}

/// What a broker tells its owner. Called on the broker's thread: hand it on, do not wait in it.
#[derive(Debug)]
pub enum Event {
    /// A process opened a port.
    Attached {
        /// Function and port.
        port: PortName,
        /// The process, in the owner's pid namespace; 0 where it is not visible there.
        pid: i32,
        /// Whether it went on with the generation it had before the broker restarted.
        resumed: bool,
    },
    /// Both ends of a link hold a new generation of channels.
    LinkUp {
        /// Name of the link.
        link: String,
        /// Its generation.
        generation: u64,
    },
    /// New segments exist; what was deposited for this link before is void: they are used when this has been called. A keeper holds
    /// them over a restart of the broker's process, for [`Broker::adopt`]. It may be given them later, but where one end is a pool the
    /// next broker is to get these or none.
    Deposit {
        /// Name of the link.
        link: String,
        /// Its generation.
        generation: u64,
        /// Label and segment. Labels have the form `vport/<generation>/<end>/<queue>/<index|records>` or
        /// `vport/<generation>/<end>/table`; of a zero-copy link also `vport/<generation>/arena/<ids>` and
        /// `vport/<generation>/holders`.
        segments: Vec<(String, OwnedFd)>,
    },
    /// A process closed a port, or died.
    Detached {
        /// Function and port.
        port: PortName,
    },
    /// The reader at `reporter` found that its peer broke the rules, and reads nothing more from it. The link carries
    /// nothing until one of its ends attaches anew or [`Broker::renew`] is called, or a pool is to be changed whose table there is
    /// a former broker's.
    Quarantined {
        /// Name of the link.
        link: String,
        /// The port whose function complains.
        reporter: PortName,
        /// The port that is accused.
        accused: PortName,
        /// Which rule.
        reason: String,
    },
    /// A client was refused, or cut off, for what it sent.
    Refused {
        /// Its function.
        function: String,
        /// Why, in words that were also sent to the client.
        reason: String,
    },
    /// A member of a pool steers from now on: buckets may be given to its queues.
    Joined {
        /// The member.
        function: String,
    },
    /// A process of a member has lost its place in its pool, and its ports: the pool has been changed without it. It has to be
    /// started anew.
    Outcast {
        /// The member.
        function: String,
        /// The process, in the owner's pid namespace; 0 where it is not visible there.
        pid: i32,
    },
    /// Who owns what in a pool changes, is to be known since the pool's first link comes up, or the pool is no more. Senders are told
    /// when this has been called: whoever keeps it by then, for [`Broker::recall`], keeps what the next broker needs.
    Ownership {
        /// The pool's first function.
        function: String,
        /// None: there is no such pool any more. One that has no link is there as long as somebody is in it, and no pool of other
        /// members takes its place.
        ownership: Option<Ownership>,
    },
    /// A change of who owns which bucket of a pool is complete. A former broker may have begun it.
    Steered {
        /// The pool's first function.
        function: String,
        /// The epoch.
        epoch: u64,
    },
    /// Record areas were asked for from hugepages and lie in ordinary pages.
    OrdinaryPages {
        /// Name of the link.
        link: String,
        /// Why.
        reason: String,
    },
}

/// Names a port at a broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    /// The function.
    pub function: String,
    /// The port within it.
    pub port: String,
}

/// What a broker knows of a port.
#[derive(Clone, Debug)]
pub struct PortStatus {
    /// Function and port.
    pub name: PortName,
    /// The link it is an end of.
    pub link: String,
    /// The process that holds it, if any.
    pub pid: Option<i32>,
    /// Generation of the link; 0 before the first.
    pub generation: u64,
    /// Whether the current generation is in the hands of both ends.
    pub up: bool,
    /// Why the link is quarantined, if it is.
    pub quarantined: Option<String>,
    /// Whether the record areas lie in hugepages.
    pub hugepages: bool,
    /// Receive counters per queue pair, as published by the function, since it opened the port.
    pub rx: Vec<RxCounters>,
    /// Send counters per queue pair.
    pub tx: Vec<TxCounters>,
    /// How long what the port received was on its way, all queue pairs together, since the generation began.
    pub latency: Latency,
    /// Named counters that the function reported, for example drops by reason.
    pub report: Vec<(String, u64)>,
}

/// What a broker knows of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// All that can be its members.
    pub functions: Vec<String>,
    /// Queues of each of them.
    pub queues_each: usize,
    /// Which of them are, and steer.
    pub present: Vec<bool>,
    /// The epoch that senders know of.
    pub epoch: u64,
    /// Which queue of the pool owns which bucket in it.
    pub owners: [u8; BUCKETS],
    /// Whether the last change is not complete, or it is not known yet whether it was under a former broker.
    pub is_changing: bool,
    /// Members that it waits for.
    pub waits_for: Vec<String>,
}

/// Who owns which bucket of a pool: what a broker has to know that is to go on with the pool and is not given its links' segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The epoch that senders know of, or are just told of.
    pub epoch: u64,
    /// Which queue of the pool owns which bucket in it.
    pub owners: [u8; BUCKETS],
    /// And in the epoch before, as long as the change is not known to be complete.
    pub before: [u8; BUCKETS],
}

/// Settings of a broker.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether to try hugepages for record areas.
    pub hugepages: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { hugepages: true }
    }
}

/// Why the broker did not do what its owner asked.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// A name is taken.
    #[error("{0} exists already")]
    Exists(String),
    /// A name is not known.
    #[error("{0} is not known")]
    Unknown(String),
    /// A specification is out of bounds.
    #[error("{0}")]
    Invalid(String),
    /// Something else is to be finished first.
    #[error("{0}")]
    Busy(String),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The broker's thread has ended.
    #[error("the broker has stopped")]
    Stopped,
}

/// Handle of a running broker. Dropping it ends the broker's thread and closes its sockets; links that are up go on.
pub struct Broker {
    commands: Option<Sender<Command>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

type Command = Box<dyn FnOnce(&mut Core) + Send>;

impl Broker {
    /// Starts the broker's thread.
    pub fn start(config: Config, events: impl FnMut(Event) + Send + 'static) -> io::Result<Self> {
        let core = Core::new(config, events)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        core.wake_by(wake.as_fd())?;
        let (commands, inbox) = channel();
        let theirs = wake.clone();
        let thread =
            std::thread::Builder::new().name("port-broker".into()).spawn(move || run(core, &inbox, &theirs))?;
        Ok(Self { commands: Some(commands), wake, thread: Some(thread) })
    }

    /// Makes the listening socket of a function at `path`, replacing one that was left there. Who is served is decided
    /// by user id; who may connect, by the permissions of the file, which this does not set.
    pub fn bind(path: &Path) -> io::Result<OwnedFd> {
        crate::socket::listening(path)
    }

    /// Serves `function` on `socket` (a listening `SOCK_SEQPACKET` socket), to processes whose user id is in `uids`.
    pub fn listen(&self, function: &str, socket: OwnedFd, uids: Range<u32>) -> Result<(), BrokerError> {
        let function = function.to_owned();
        self.call(move |core| core.listen(&function, socket, uids))?
    }

    /// Stops serving `function` and cuts its processes off. Links that name it stay.
    pub fn remove_function(&self, function: &str) -> Result<(), BrokerError> {
        let function = function.to_owned();
        self.call(move |core| core.remove_function(&function))?
    }

    /// Whether processes of the function may take ports over from another one that has them. Not while nobody says so.
    pub fn allow_succession(&self, function: &str, allowed: bool) -> Result<(), BrokerError> {
        let function = function.to_owned();
        self.call(move |core| core.allow_succession(&function, allowed))?
    }

    /// Makes a link known. The same specification twice is no error.
    pub fn add_link(&self, spec: LinkSpec) -> Result<(), BrokerError> {
        self.call(move |core| core.add_link(spec))?
    }

    /// Like [`Broker::add_link`], for a link that was up when a former broker stopped: `segments` are those of its last
    /// [`Event::Deposit`], with their labels. Ends that come back go on without a new generation. Segments that do not
    /// pass the checks are dropped, and the link gets new ones. A pool goes on with the table that its links have; a change
    /// that the former broker had published is taken up where it was, one that it had not is dropped. Adopt all links of a
    /// pool before its next change, and before its members are listened to: one that knows more than the pool is taken for one that
    /// was away.
    pub fn adopt(&self, spec: LinkSpec, segments: Vec<(String, OwnedFd)>) -> Result<(), BrokerError> {
        self.call(move |core| core.adopt(spec, segments))?
    }

    /// Goes on with the pool that `function` is the first one of as a former broker left it, by its last [`Event::Ownership`]. To be called
    /// for each link of the pool when it was made known, and before [`Broker::adopt`] and [`Broker::listen`]. Where the pool is another
    /// one by now, nothing is done.
    pub fn recall(&self, function: &str, ownership: Ownership) -> Result<(), BrokerError> {
        let function = function.to_owned();
        self.call(move |core| core.recall(&function, &ownership))?
    }

    /// Forgets a link and cuts its ends off.
    pub fn remove_link(&self, link: &str) -> Result<(), BrokerError> {
        let link = link.to_owned();
        self.call(move |core| core.remove_link(&link))?
    }

    /// Gives a link a new generation, also out of quarantine.
    pub fn renew(&self, link: &str) -> Result<(), BrokerError> {
        let link = link.to_owned();
        self.call(move |core| core.renew(&link))?
    }

    /// All ports, in order of names.
    pub fn ports(&self) -> Result<Vec<PortStatus>, BrokerError> {
        self.call(|core| core.statuses())
    }

    /// The arenas of all trust groups that have had a zero-copy link up, in order of names.
    pub fn arenas(&self) -> Result<Vec<ArenaStatus>, BrokerError> {
        self.call(|core| core.arenas())
    }

    /// Begins a change of who owns which bucket of the pool that `function` is in: for each bucket a queue of the pool,
    /// whose members' queues are counted through. Returns the number of the epoch; [`Event::Steered`] says when it is
    /// complete. Refused while another one is not, while members of a former broker come back, or while a member that has
    /// attached does not steer yet.
    pub fn set_owners(&self, function: &str, owners: &[u8; BUCKETS]) -> Result<u64, BrokerError> {
        let (function, owners) = (function.to_owned(), *owners);
        self.call(move |core| core.set_owners(&function, &owners))?
    }

    /// All pools.
    pub fn pools(&self) -> Result<Vec<PoolStatus>, BrokerError> {
        self.call(|core| core.pools())
    }

    /// Watches the frames that a port sends and receives. Follows the port over generations. Ports of zero-copy links
    /// cannot be watched: their frames are changed where they lie.
    pub fn observe(&self, function: &str, port: &str) -> Result<Observer, BrokerError> {
        let (function, port) = (function.to_owned(), port.to_owned());
        self.call(move |core| core.observe(&function, &port))?
    }

    /// Has the broker's thread do something, and waits for it.
    fn call<T: Send + 'static>(&self, command: impl FnOnce(&mut Core) -> T + Send + 'static) -> Result<T, BrokerError> {
        let (done, answer) = channel();
        let command: Command = Box::new(move |core| drop(done.send(command(core))));
        let commands = self.commands.as_ref().ok_or(BrokerError::Stopped)?;
        commands.send(command).map_err(|_| BrokerError::Stopped)?;
        self.wake();
        answer.recv().map_err(|_| BrokerError::Stopped)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.commands = None;
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut core: Core, inbox: &Receiver<Command>, wake: &OwnedFd) {
    use std::sync::mpsc::TryRecvError;
    // A day: nothing happens without an event or a deadline.
    const LONG: Duration = Duration::from_secs(86_400);
    loop {
        if core.turn(LONG).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = rustix::io::read(wake, &mut [0_u8; 8]);
        loop {
            match inbox.try_recv() {
                Ok(command) => command(&mut core),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }
}
