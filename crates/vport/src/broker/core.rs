//! The broker's state and what moves it: connections, messages, deadlines. Never blocks, whatever clients do.

mod arenas;
mod clients;
mod generations;
mod links;
mod pools;
mod succession;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::group::Group;
use super::link::{Link, Stage};
use super::observer::{Observer, Tap};
use super::pool::Pool;
use super::seat::Seat;
use super::{BrokerError, Config, Event, PortName, PortStatus};
use crate::allowance::Allowance;
use crate::socket;

/// How long an adopted link waits for its ends.
const RETURN_WITHIN: Duration = Duration::from_secs(5);

const WAKE: u64 = 0;

/// A broker that runs when told to. [`super::Broker`] runs one on a thread of its own.
pub struct Core {
    epoll: OwnedFd,
    config: Config,
    events: Box<dyn FnMut(Event) + Send>,
    next_id: u64,
    functions: BTreeMap<String, Function>,
    listeners: BTreeMap<u64, String>,
    clients: BTreeMap<u64, Client>,
    links: BTreeMap<String, Link>,
    ports: BTreeMap<PortName, (String, Seat)>,
    /// The arenas of trust groups, by their names.
    groups: BTreeMap<String, Group>,
    pools: Vec<Pool>,
    /// The kernel lets no client send descriptors.
    refuses_descriptors: bool,
}

struct Function {
    socket: OwnedFd,
    id: u64,
    uids: Range<u32>,
    /// Another process of the function may take over what one has.
    may_be_succeeded: bool,
    /// Refusals told to the owner.
    complaints: Allowance,
    /// Counted by its copies: what its clients left and is still being closed.
    closing: Arc<()>,
    /// Nobody is let in before.
    deaf_until: Option<Instant>,
}

struct Client {
    function: String,
    socket: OwnedFd,
    pid: i32,
    holds: Holds,
    deadline: Option<Instant>,
    /// The last generation of its link when it connected.
    since: u64,
    /// It goes on after the end of its connection.
    away: bool,
    /// It can map the records that it reads for writing.
    shares: bool,
    messages: Allowance,
    outbox: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Of a pool's member: the one that is to read some of what it has given before more is taken from it.
    waits_for: Option<u64>,
}

/// What a connection is for, once it has said so.
#[derive(Clone, PartialEq, Eq)]
enum Holds {
    Nothing,
    /// A port: link and seat.
    Port(String, Seat),
    /// Its function's place in a pool.
    Pool,
}

/// Why a client is cut off.
type Fault = String;

impl Core {
    /// A broker without functions and links.
    pub fn new(config: Config, events: impl FnMut(Event) + Send + 'static) -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            config,
            events: Box::new(events),
            next_id: WAKE + 1,
            functions: BTreeMap::new(),
            listeners: BTreeMap::new(),
            clients: BTreeMap::new(),
            links: BTreeMap::new(),
            ports: BTreeMap::new(),
            groups: BTreeMap::new(),
            pools: Vec::new(),
            refuses_descriptors: socket::can_refuse_descriptors(),
        })
    }

    /// Makes a turn return when `wake` is readable. Level-triggered.
    pub(super) fn wake_by(&self, wake: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?)
    }

    /// Waits up to `timeout` for something to happen, and deals with it.
    pub fn turn(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout =
            self.next_deadline().map_or(timeout, |at| timeout.min(at.saturating_duration_since(Instant::now())));
        // Rounded up: waking a little too early would only spin.
        let timeout = timeout + Duration::from_micros(1);
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut ready = [const { std::mem::MaybeUninit::uninit() }; 64];
        let ready = match epoll::wait(&self.epoll, &mut ready, Some(&timeout)) {
            Ok((ready, _)) => ready.iter().map(|event| (event.data.u64(), event.flags)).collect::<Vec<_>>(),
            Err(rustix::io::Errno::INTR) => Vec::new(),
            Err(errno) => return Err(errno.into()),
        };
        for (id, flags) in ready {
            if self.listeners.contains_key(&id) {
                self.accept(id);
            } else if self.clients.contains_key(&id) {
                self.serve(id, flags);
            }
        }
        self.keep_deadlines();
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let clients = self.clients.values().filter_map(|client| client.deadline);
        let deaf = self.functions.values().filter_map(|function| function.deaf_until);
        let links = self.links.values().flat_map(|link| {
            let adopted = matches!(link.stage, Stage::Adopted(_)).then_some(link.adopted_until);
            let former = link.former.first().map(|former| former.until);
            link.due.into_iter().chain(adopted).chain(former).chain(link.look_at)
        });
        let now = Instant::now();
        let orphans = self.groups.values().filter(|group| group.has_orphans());
        let orphans = orphans.filter_map(|group| group.adopted.map(|at| at + RETURN_WITHIN)).filter(|at| *at > now);
        let pools = self
            .pools
            .iter()
            .flat_map(|pool| [pool.waits_until(), pool.look_at, pool.members_until, pool.links_until()])
            .flatten();
        clients.chain(deaf).chain(links).chain(orphans).chain(pools).min()
    }

    fn keep_deadlines(&mut self) {
        let now = Instant::now();
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let silent = self.clients.iter().filter(|(_, client)| passed(client.deadline));
        for id in silent.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.cut_off(id, "no answer in time".into());
        }
        let names = |wanted: &dyn Fn(&Link) -> bool, links: &BTreeMap<String, Link>| {
            links.values().filter(|link| wanted(link)).map(|link| link.spec.name.clone()).collect::<Vec<_>>()
        };
        self.listen_again(now);
        self.settle_orphans();
        self.links.values_mut().filter(|link| passed(link.look_at)).for_each(Link::look_at_past);
        for name in names(&|link| passed(link.due), &self.links) {
            self.start_generation(&name);
        }
        let left = |link: &Link| matches!(link.stage, Stage::Adopted(_)) && link.adopted_until <= now;
        for name in names(&left, &self.links) {
            // Somebody did not come back. Whoever did gets a new generation when the other comes.
            self.over(&name);
            self.start_generation(&name);
        }
        self.keep_pools(now);
    }

    /// See [`super::Broker::ports`].
    pub fn statuses(&self) -> Vec<PortStatus> {
        self.ports.iter().filter_map(|(name, (link, seat))| self.status(name, link, *seat)).collect()
    }

    fn status(&self, name: &PortName, link: &str, seat: Seat) -> Option<PortStatus> {
        let link = self.links.get(link)?;
        let (rx, tx) = link.counters(seat);
        Some(PortStatus {
            name: name.clone(),
            link: link.spec.name.clone(),
            pid: link.party(seat).client.and_then(|id| self.clients.get(&id)).map(|client| client.pid),
            generation: link.generation,
            up: link.stage == Stage::Up,
            quarantined: link.quarantined.clone(),
            hugepages: match link.spec.kind.group() {
                None => link.segments.as_ref().is_some_and(|segments| segments.huge),
                Some(group) => self.groups.get(group).is_some_and(|group| group.huge),
            },
            rx,
            tx,
            latency: link.latency(seat),
            report: link.party(seat).report.clone(),
        })
    }

    /// See [`super::Broker::observe`].
    pub fn observe(&mut self, function: &str, port: &str) -> Result<Observer, BrokerError> {
        let name = PortName { function: function.to_owned(), port: port.to_owned() };
        let unknown = || BrokerError::Unknown(format!("port {port} of {function}"));
        let (link, seat) = self.ports.get(&name).ok_or_else(unknown)?;
        let link = self.links.get(link).ok_or_else(unknown)?;
        if link.spec.kind.group().is_some() {
            let what = format!("port {port} of {function} has a zero-copy link: its frames are changed where they lie");
            return Err(BrokerError::Invalid(what));
        }
        let observer = Observer::new(Arc::clone(&link.tap), seat.end, link.queues_of(*seat));
        Tap::renew(link)?;
        Ok(observer)
    }

    fn watch(&self, socket: &OwnedFd, id: u64, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(id), flags)?)
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
