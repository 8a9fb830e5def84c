//! The broker's state and what moves it: connections, messages, deadlines. Never blocks, whatever clients do.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::net::{SocketFlags, accept_with};

use super::link::{Link, Segments, Stage};
use super::observer::{Observer, Tap};
use super::{BrokerError, Config, Event, LinkSpec, PortName, PortStatus, RING_BYTES_MAX, RING_BYTES_MIN};
use crate::doorbell::Allowance;
use crate::info::{ADDRESSES_MAX, PortInfo, QUEUES_MAX};
use crate::layout::VERSION;
use crate::ring::Violation;
use crate::socket::{self, Received};
use crate::wire::{Reply, Request, is_name};

/// A client greets within this time.
const GREETING_WITHIN: Duration = Duration::from_secs(2);
/// A client maps what it got within this time.
const MAPPING_WITHIN: Duration = Duration::from_secs(10);
/// How long an adopted link waits for its ends.
const RETURN_WITHIN: Duration = Duration::from_secs(5);
/// Generations of one link are at least this far apart.
const GENERATION_EVERY: Duration = Duration::from_millis(20);
/// After a generation for which there was no memory.
const MEMORY_RETRY: Duration = Duration::from_secs(1);
/// Connections of one function at a time.
const CLIENTS_MAX: usize = 64;
/// Messages a second from one client, on average and at once.
const MESSAGES: (u32, u32) = (100, 200);
/// Messages that wait for a client which does not read.
const OUTBOX_MAX: usize = 8;
/// Messages or connections taken from one source before others have their turn.
const TURN_MAX: usize = 16;

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
    ports: BTreeMap<PortName, (String, usize)>,
}

struct Function {
    socket: OwnedFd,
    id: u64,
    uids: Range<u32>,
    /// Refusals told to the owner.
    complaints: Allowance,
}

struct Client {
    function: String,
    socket: OwnedFd,
    pid: i32,
    /// Link and end.
    holds: Option<(String, usize)>,
    deadline: Option<Instant>,
    messages: Allowance,
    outbox: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
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

    // Functions.

    /// See [`super::Broker::listen`].
    pub fn listen(&mut self, function: &str, socket: OwnedFd, uids: Range<u32>) -> Result<(), BrokerError> {
        if !is_name(function) {
            return Err(BrokerError::Invalid(format!("{function:?} cannot name a function")));
        }
        if self.functions.contains_key(function) {
            return Err(BrokerError::Exists(format!("function {function}")));
        }
        let id = self.new_id();
        rustix::io::ioctl_fionbio(&socket, true).map_err(io::Error::from)?;
        self.watch(&socket, id, epoll::EventFlags::IN)?;
        let complaints = Allowance::new(10, 20);
        self.listeners.insert(id, function.to_owned());
        self.functions.insert(function.to_owned(), Function { socket, id, uids, complaints });
        Ok(())
    }

    /// See [`super::Broker::remove_function`].
    pub fn remove_function(&mut self, function: &str) -> Result<(), BrokerError> {
        let removed = self.functions.remove(function);
        let removed = removed.ok_or_else(|| BrokerError::Unknown(format!("function {function}")))?;
        self.listeners.remove(&removed.id);
        let of_function = self.clients.iter().filter(|(_, client)| client.function == function);
        for id in of_function.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.drop_client(id, false);
        }
        Ok(())
    }

    /// Serves a connection that did not come through a listening socket.
    pub fn add_client(&mut self, function: &str, socket: OwnedFd, pid: i32) -> io::Result<()> {
        let id = self.new_id();
        self.watch(&socket, id, epoll::EventFlags::IN)?;
        let client = Client {
            function: function.to_owned(),
            socket,
            pid,
            holds: None,
            deadline: Some(Instant::now() + GREETING_WITHIN),
            messages: Allowance::new(MESSAGES.0, MESSAGES.1),
            outbox: VecDeque::new(),
        };
        self.clients.insert(id, client);
        Ok(())
    }

    fn accept(&mut self, id: u64) {
        for _ in 0..TURN_MAX {
            let Some(name) = self.listeners.get(&id).cloned() else { return };
            let Some(function) = self.functions.get(&name) else { return };
            let Ok(socket) = accept_with(&function.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
                return;
            };
            if let Err(fault) = self
                .admit(&name, &socket)
                .and_then(|pid| self.add_client(&name, try_clone(&socket)?, pid).map_err(|error| error.to_string()))
            {
                tell(&socket, &fault, true);
                self.complain(&name, fault);
            }
        }
    }

    /// Checks who connects; returns its process.
    fn admit(&self, function: &str, socket: &OwnedFd) -> Result<i32, Fault> {
        let (pid, uid) = socket::peer(socket.as_fd()).map_err(|error| error.to_string())?;
        let uids = self.functions.get(function).map_or(0..0, |function| function.uids.clone());
        if !uids.contains(&uid) {
            return Err(format!("user {uid} may not use the ports of {function}"));
        }
        if self.clients.values().filter(|client| client.function == function).count() >= CLIENTS_MAX {
            return Err(format!("{function} has {CLIENTS_MAX} connections already"));
        }
        Ok(pid)
    }

    // Clients.

    fn serve(&mut self, id: u64, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(id);
        }
        for _ in 0..TURN_MAX {
            let Some(client) = self.clients.get(&id) else { return };
            match socket::receive(client.socket.as_fd()) {
                Ok(Received::Message { bytes, fds, whole }) => {
                    if let Err(fault) = self.hear(id, &bytes, &fds, whole) {
                        self.cut_off(id, fault);
                    }
                }
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) | Err(_) => return self.drop_client(id, true),
            }
        }
    }

    fn hear(&mut self, id: u64, bytes: &[u8], fds: &[OwnedFd], whole: bool) -> Result<(), Fault> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if !fds.is_empty() {
            return Err("a port sends no file descriptors".into());
        }
        if !whole {
            return Err("the message is longer than any".into());
        }
        if !client.messages.take() {
            return Err("too many messages".into());
        }
        let request = Request::decode(bytes).map_err(|malformed| malformed.to_string())?;
        let held = client.holds.clone();
        match (request, held) {
            (Request::Hello { oldest, newest, port, resume }, None) => self.greet(id, oldest..=newest, port, resume),
            (Request::Hello { .. }, Some(_)) => Err("one connection holds one port".into()),
            (_, None) => Err("a connection begins with a greeting".into()),
            (Request::Mapped { generation }, Some((link, end))) => self.mapped(&link, end, generation),
            (Request::Ready { generation }, Some((link, end))) => self.ready(&link, end, generation),
            (Request::Quarantine { generation, queue, violation }, Some((link, end))) => {
                self.quarantine(&link, end, generation, queue, violation)
            }
            (Request::Report(counters), Some((link, end))) => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.reports[end] = counters;
                }
                Ok(())
            }
        }
    }

    fn greet(
        &mut self,
        id: u64,
        versions: std::ops::RangeInclusive<u16>,
        port: String,
        resume: u64,
    ) -> Result<(), Fault> {
        if !versions.contains(&VERSION) {
            let (oldest, newest) = versions.into_inner();
            return Err(format!("this broker speaks version {VERSION}, not {oldest} to {newest}"));
        }
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        let name = PortName { function: client.function.clone(), port };
        let pid = client.pid;
        let Some((link_name, end)) = self.ports.get(&name).cloned() else {
            self.turn_away(id, format!("port {} is not known (yet)", name.port));
            return Ok(());
        };
        if let Some(holder) = self.holder(&link_name, end) {
            self.turn_away(id, format!("port {} is held by process {holder}", name.port));
            return Ok(());
        }
        let Some(link) = self.links.get_mut(&link_name) else { return Ok(()) };
        link.holders[end] = Some(id);
        let resumed = matches!(link.stage, Stage::Adopted(_)) && resume != 0 && resume == link.generation;
        let welcome = Reply::Welcome {
            version: VERSION,
            info: link.spec.ends[end].port.clone(),
            peer_queues: link.spec.ends[1 - end].port.queues,
            ring_bytes: link.spec.ring_bytes,
            resumed,
        };
        if let Some(client) = self.clients.get_mut(&id) {
            client.holds = Some((link_name.clone(), end));
            client.deadline = None;
        }
        self.send(id, &welcome, Vec::new())?;
        (self.events)(Event::Attached { port: name, pid, resumed });
        if resumed {
            self.returned(&link_name, end);
        } else {
            self.attached(&link_name, end, id, resume)?;
        }
        Ok(())
    }

    /// The living process that holds an end. One that is gone already is forgotten.
    fn holder(&mut self, link: &str, end: usize) -> Option<i32> {
        let id = self.links.get(link)?.holders[end]?;
        let client = self.clients.get(&id)?;
        if socket::is_hung_up(client.socket.as_fd()) {
            self.drop_client(id, true);
            return None;
        }
        Some(client.pid)
    }

    /// Refuses a client that did nothing wrong.
    fn turn_away(&mut self, id: u64, reason: String) {
        if let Some(client) = self.clients.get(&id) {
            tell(&client.socket, &reason, true);
        }
        self.drop_client(id, false);
    }

    /// Refuses a client that did.
    fn cut_off(&mut self, id: u64, fault: Fault) {
        if let Some(client) = self.clients.get(&id) {
            tell(&client.socket, &fault, false);
            let function = client.function.clone();
            self.complain(&function, fault);
        }
        self.drop_client(id, false);
    }

    fn complain(&mut self, function: &str, reason: String) {
        let allowed = self.functions.get_mut(function).is_none_or(|function| function.complaints.take());
        if allowed {
            (self.events)(Event::Refused { function: function.to_owned(), reason });
        }
    }

    /// Forgets a client. `dead`: its process has closed its end, so that it writes no more.
    fn drop_client(&mut self, id: u64, dead: bool) {
        let Some(client) = self.clients.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, &client.socket);
        drop(client.socket);
        if let Some((link, end)) = client.holds {
            self.detached(&link, end, dead);
        }
    }

    fn send(&mut self, id: u64, reply: &Reply, fds: Vec<OwnedFd>) -> Result<(), Fault> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if client.outbox.len() >= OUTBOX_MAX {
            return Err("the client does not read".into());
        }
        client.outbox.push_back((reply.encode(), fds));
        self.flush(id);
        Ok(())
    }

    fn flush(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let waiting_before = client.outbox.len();
        while let Some((bytes, fds)) = client.outbox.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match socket::send(client.socket.as_fd(), bytes, &fds) {
                // A client that is gone shows as such on its next event.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                _ => drop(client.outbox.pop_front()),
            }
        }
        let out = if client.outbox.is_empty() { epoll::EventFlags::empty() } else { epoll::EventFlags::OUT };
        if waiting_before > 0 || !client.outbox.is_empty() {
            let _ =
                epoll::modify(&self.epoll, &client.socket, epoll::EventData::new_u64(id), epoll::EventFlags::IN | out);
        }
    }

    // Links.

    /// See [`super::Broker::add_link`].
    pub fn add_link(&mut self, spec: LinkSpec) -> Result<(), BrokerError> {
        check(&spec)?;
        if let Some(link) = self.links.get(&spec.name) {
            let same = link.spec == spec;
            return if same { Ok(()) } else { Err(BrokerError::Exists(format!("link {}", spec.name))) };
        }
        let link = Link::new(spec);
        if let Some(taken) = (0..2).map(|end| link.port(end)).find(|port| self.ports.contains_key(port)) {
            return Err(BrokerError::Exists(format!("port {} of {}", taken.port, taken.function)));
        }
        for end in 0..2 {
            self.ports.insert(link.port(end), (link.spec.name.clone(), end));
        }
        self.links.insert(link.spec.name.clone(), link);
        Ok(())
    }

    /// See [`super::Broker::adopt`].
    pub fn adopt(&mut self, spec: LinkSpec, segments: Vec<(String, OwnedFd)>) -> Result<(), BrokerError> {
        let name = spec.name.clone();
        self.add_link(spec)?;
        let Some(link) = self.links.get_mut(&name).filter(|link| link.segments.is_none()) else { return Ok(()) };
        if let Some((generation, segments)) = Segments::adopt(&link.spec, segments) {
            link.generation = generation;
            link.segments = Some(segments);
            link.stage = Stage::Adopted([false; 2]);
            link.awaited = [true; 2];
            link.adopted_until = Instant::now() + RETURN_WITHIN;
        }
        Ok(())
    }

    /// See [`super::Broker::remove_link`].
    pub fn remove_link(&mut self, name: &str) -> Result<(), BrokerError> {
        let unknown = || BrokerError::Unknown(format!("link {name}"));
        let holders = self.links.get(name).ok_or_else(unknown)?.holders;
        self.over(name);
        for id in holders.into_iter().flatten() {
            self.turn_away(id, format!("link {name} was removed"));
        }
        let link = self.links.remove(name).ok_or_else(unknown)?;
        link.tap.end();
        (0..2).for_each(|end| drop(self.ports.remove(&link.port(end))));
        if link.segments.is_some() {
            (self.events)(Event::Deposit { link: name.to_owned(), generation: link.generation, segments: Vec::new() });
        }
        Ok(())
    }

    /// See [`super::Broker::renew`].
    pub fn renew(&mut self, name: &str) -> Result<(), BrokerError> {
        let link = self.links.get_mut(name).ok_or_else(|| BrokerError::Unknown(format!("link {name}")))?;
        link.quarantined = None;
        self.over(name);
        self.start_generation(name);
        Ok(())
    }

    /// An end was attached by a process that holds nothing of the current generation.
    fn attached(&mut self, name: &str, end: usize, id: u64, resume: u64) -> Result<(), Fault> {
        // Generations that a former broker gave out are not given out again.
        const BELIEVABLE: u64 = 1 << 32;
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        if resume == 0 && std::mem::take(&mut link.awaited[end]) {
            // Another process than the one that held it under a former broker.
            self.bury(name, end);
        }
        self.over(name);
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        link.quarantined = None;
        link.generation = link.generation.max(if resume < BELIEVABLE { resume } else { 0 });
        if resume != 0 {
            let dead = link.dead_until[1 - end] >= resume;
            self.send(id, &Reply::Over { generation: resume, dead }, Vec::new())?;
        }
        self.start_generation(name);
        Ok(())
    }

    /// An end came back to the generation that it held under a former broker.
    fn returned(&mut self, name: &str, end: usize) {
        let Some(link) = self.links.get_mut(name) else { return };
        if let Stage::Adopted(returned) = &mut link.stage {
            returned[end] = true;
            link.awaited[end] = false;
            if *returned == [true; 2] {
                link.stage = Stage::Up;
                let _ = Tap::renew(link);
                (self.events)(Event::LinkUp { link: name.to_owned(), generation: link.generation });
            }
        }
    }

    fn detached(&mut self, name: &str, end: usize, dead: bool) {
        let Some(link) = self.links.get_mut(name) else { return };
        link.holders[end] = None;
        link.due = None;
        let port = link.port(end);
        if dead {
            self.bury(name, end);
        }
        self.over(name);
        (self.events)(Event::Detached { port });
        let Some(link) = self.links.get_mut(name) else { return };
        if link.holders == [None; 2] && link.segments.take().is_some() {
            let _ = Tap::renew(link);
            (self.events)(Event::Deposit { link: name.to_owned(), generation: link.generation, segments: Vec::new() });
        }
    }

    /// The process that held an end in this generation, and those before it, write no more for sure. That is news for a
    /// reader that still waits for the end of a generation which is over already.
    fn bury(&mut self, name: &str, end: usize) {
        let Some(link) = self.links.get_mut(name) else { return };
        link.dead_until[end] = link.generation;
        let (is_over, generation, other) = (link.stage == Stage::Down, link.generation, link.holders[1 - end]);
        if let Some(other) = other.filter(|_| is_over && generation > 0)
            && let Err(fault) = self.send(other, &Reply::Over { generation, dead: true }, Vec::new())
        {
            self.cut_off(other, fault);
        }
    }

    /// Ends the current generation and tells those who hold it.
    fn over(&mut self, name: &str) {
        let Some(link) = self.links.get_mut(name) else { return };
        if link.stage == Stage::Down {
            return;
        }
        link.stage = Stage::Down;
        let (generation, holders) = (link.generation, link.holders);
        let dead = link.dead_until.map(|until| until >= generation);
        for (end, id) in holders.into_iter().enumerate() {
            let Some(id) = id else { continue };
            if let Some(client) = self.clients.get_mut(&id) {
                client.deadline = None;
            }
            if let Err(fault) = self.send(id, &Reply::Over { generation, dead: dead[1 - end] }, Vec::new()) {
                self.cut_off(id, fault);
            }
        }
    }

    /// Makes and hands out a new generation, if both ends are there and it is time.
    fn start_generation(&mut self, name: &str) {
        let Some(link) = self.links.get_mut(name).filter(|link| link.is_held()) else { return };
        let now = Instant::now();
        if now < link.not_before {
            link.due = Some(link.not_before);
            return;
        }
        link.due = None;
        link.not_before = now + GENERATION_EVERY;
        let (segments, ordinary) = match Segments::create(&link.spec, self.config.hugepages) {
            Ok(created) => created,
            Err(error) => {
                link.due = Some(now + MEMORY_RETRY);
                let function = link.spec.ends[0].function.clone();
                self.complain(&function, format!("no memory for link {name}: {error}"));
                return;
            }
        };
        if let Some(reason) = ordinary
            && !std::mem::replace(&mut link.told_of_pages, true)
        {
            (self.events)(Event::OrdinaryPages { link: name.to_owned(), reason });
        }
        link.generation += 1;
        link.stage = Stage::Mapping([false; 2]);
        link.segments = Some(segments);
        self.hand_out(name, |link, segments, end| {
            let records_bytes = segments.ends[end].records_bytes as u64;
            (Reply::Own { generation: link.generation, records_bytes }, segments.ends[end].for_writer())
        });
    }

    /// Sends each end its message with its descriptors, and expects an answer.
    fn hand_out(
        &mut self,
        name: &str,
        message: impl for<'a> Fn(&Link, &'a Segments, usize) -> (Reply, Vec<BorrowedFd<'a>>),
    ) {
        for end in 0..2 {
            let Some(link) = self.links.get(name) else { return };
            let (Some(id), Some(segments)) = (link.holders[end], &link.segments) else { return };
            let (reply, fds) = message(link, segments, end);
            let fds = fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<Vec<_>>>();
            let sent = fds.map_err(|error| error.to_string()).and_then(|fds| self.send(id, &reply, fds));
            match sent {
                Ok(()) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.deadline = Some(Instant::now() + MAPPING_WITHIN);
                    }
                }
                Err(fault) => return self.cut_off(id, fault),
            }
        }
    }

    /// A writer holds its mappings. When both do, the segments are closed to writers and shown to readers.
    fn mapped(&mut self, name: &str, end: usize, generation: u64) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(name).filter(|link| link.generation == generation) else { return Ok(()) };
        let Stage::Mapping(mapped) = &mut link.stage else { return Ok(()) };
        mapped[end] = true;
        let all = *mapped == [true; 2];
        let holder = link.holders[end];
        self.answered(holder);
        if all { self.join(name) } else { Ok(()) }
    }

    fn join(&mut self, name: &str) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        let Some(segments) = &link.segments else { return Ok(()) };
        let generation = link.generation;
        // A writer that spoilt its segments before they were closed is found out here.
        if let Err((end, error)) = segments.close_to_writers() {
            let holder = link.holders[end];
            self.over(name);
            holder.into_iter().for_each(|id| self.cut_off(id, format!("segments could not be closed: {error}")));
            return Ok(());
        }
        let segments = segments.labelled(generation).map_err(|error| error.to_string())?;
        link.stage = Stage::Joining([false; 2]);
        (self.events)(Event::Deposit { link: name.to_owned(), generation, segments });
        self.hand_out(name, |link, segments, end| {
            let peer = 1 - end;
            let records_bytes = segments.ends[peer].records_bytes as u64;
            let steering = link.spec.ends[peer].port.steering;
            (Reply::Peer { generation, records_bytes, steering }, segments.ends[peer].for_reader())
        });
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        // The pipes are the ends' now: a sleeper must see when its waker is gone.
        if let Some(segments) = &mut link.segments {
            segments.ends.iter_mut().for_each(|end| end.doorbells.clear());
        }
        let _ = Tap::renew(link);
        Ok(())
    }

    fn ready(&mut self, name: &str, end: usize, generation: u64) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(name).filter(|link| link.generation == generation) else { return Ok(()) };
        let Stage::Joining(ready) = &mut link.stage else { return Ok(()) };
        ready[end] = true;
        let all = *ready == [true; 2];
        if all {
            link.stage = Stage::Up;
        }
        let holder = link.holders[end];
        self.answered(holder);
        if all {
            (self.events)(Event::LinkUp { link: name.to_owned(), generation });
        }
        Ok(())
    }

    fn answered(&mut self, holder: Option<u64>) {
        if let Some(client) = holder.and_then(|id| self.clients.get_mut(&id)) {
            client.deadline = None;
        }
    }

    fn quarantine(&mut self, name: &str, end: usize, generation: u64, queue: u16, code: u16) -> Result<(), Fault> {
        let violation = Violation::from_code(code).ok_or("no such rule")?;
        let Some(link) = self.links.get_mut(name).filter(|link| link.generation == generation) else { return Ok(()) };
        if usize::from(queue) >= link.queues(end) {
            return Err("no such queue".into());
        }
        if !matches!(link.stage, Stage::Joining(_) | Stage::Up | Stage::Adopted(_)) {
            return Ok(());
        }
        let reason = format!("{violation} (seen at queue {queue})");
        link.quarantined = Some(reason.clone());
        let (reporter, accused) = (link.port(end), link.port(1 - end));
        self.over(name);
        (self.events)(Event::Quarantined { link: name.to_owned(), reporter, accused, reason });
        Ok(())
    }

    // Time.

    fn next_deadline(&self) -> Option<Instant> {
        let clients = self.clients.values().filter_map(|client| client.deadline);
        let links = self.links.values().flat_map(|link| {
            let adopted = matches!(link.stage, Stage::Adopted(_)).then_some(link.adopted_until);
            link.due.into_iter().chain(adopted)
        });
        clients.chain(links).min()
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
        for name in names(&|link| passed(link.due), &self.links) {
            self.start_generation(&name);
        }
        let left = |link: &Link| matches!(link.stage, Stage::Adopted(_)) && link.adopted_until <= now;
        for name in names(&left, &self.links) {
            // Somebody did not come back. Whoever did gets a new generation when the other comes.
            self.over(&name);
            self.start_generation(&name);
        }
    }

    // Looking.

    /// See [`super::Broker::ports`].
    pub fn statuses(&self) -> Vec<PortStatus> {
        self.ports.iter().filter_map(|(name, (link, end))| self.status(name, link, *end)).collect()
    }

    fn status(&self, name: &PortName, link: &str, end: usize) -> Option<PortStatus> {
        let link = self.links.get(link)?;
        let (rx, tx) = link.counters(end);
        Some(PortStatus {
            name: name.clone(),
            link: link.spec.name.clone(),
            pid: link.holders[end].and_then(|id| self.clients.get(&id)).map(|client| client.pid),
            generation: link.generation,
            up: link.stage == Stage::Up,
            quarantined: link.quarantined.clone(),
            hugepages: link.segments.as_ref().is_some_and(|segments| segments.huge),
            rx,
            tx,
            report: link.reports[end].clone(),
        })
    }

    /// See [`super::Broker::observe`].
    pub fn observe(&mut self, function: &str, port: &str) -> Result<Observer, BrokerError> {
        let name = PortName { function: function.to_owned(), port: port.to_owned() };
        let unknown = || BrokerError::Unknown(format!("port {port} of {function}"));
        let (link, end) = self.ports.get(&name).ok_or_else(unknown)?;
        let link = self.links.get(link).ok_or_else(unknown)?;
        let observer = Observer::new(Arc::clone(&link.tap), *end);
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

/// Tells a client why it is refused, if it still listens.
fn tell(socket: &OwnedFd, reason: &str, try_again: bool) {
    let refused = Reply::Refused { reason: reason.to_owned(), try_again };
    let _ = socket::send(socket.as_fd(), &refused.encode(), &[]);
}

fn try_clone(socket: &OwnedFd) -> Result<OwnedFd, Fault> {
    socket.try_clone().map_err(|error| error.to_string())
}

fn check(spec: &LinkSpec) -> Result<(), BrokerError> {
    let invalid = |what: String| Err(BrokerError::Invalid(format!("link {}: {what}", spec.name)));
    if !spec.ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&spec.ring_bytes) {
        return invalid(format!("{} is not a ring size", spec.ring_bytes));
    }
    for end in &spec.ends {
        let PortInfo { name, queues, addresses, routes, .. } = &end.port;
        if !is_name(name) || !is_name(&end.function) {
            return invalid(format!("{:?} of {:?} cannot name a port", name, end.function));
        }
        if !(1..=QUEUES_MAX).contains(&usize::from(*queues)) {
            return invalid(format!("port {name} has {queues} queues instead of 1 to {QUEUES_MAX}"));
        }
        if addresses.len() > ADDRESSES_MAX || routes.len() > ADDRESSES_MAX {
            return invalid(format!("port {name} has more than {ADDRESSES_MAX} addresses or routes"));
        }
    }
    if (&spec.ends[0].function, &spec.ends[0].port.name) == (&spec.ends[1].function, &spec.ends[1].port.name) {
        return invalid("a port cannot be linked to itself".into());
    }
    Ok(())
}
