//! Functions and their connections: who connects, what they say, what they are told.

#[cfg(test)]
mod lingering;

use std::collections::VecDeque;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::{SocketFlags, accept_with};

use super::super::link::{Link, Stage};
use super::super::seat::Seat;
use super::super::{BrokerError, Event, LinkKind, PortName};
use super::pools::goes_on_without;
use super::{Client, Core, Fault, Function, Holds};
use crate::allowance::Allowance;
use crate::layout::{VERSION, VERSION_POOL, VERSION_SHARED, VERSION_ZERO_COPY};
use crate::socket::{self, Received};
use crate::wire::{Reply, Request, is_name};

/// A client greets within this time.
const GREETING_WITHIN: Duration = Duration::from_secs(2);
/// Connections of one function at a time.
const CLIENTS_MAX: usize = 64;
/// Messages a second from one client, on average and at once. Each generation takes three (`Mapped`, `Ready`, `Released`), and a peer that
/// comes and goes can have fifty begin in a second.
const MESSAGES: (u32, u32) = (250, 500);
/// Messages that wait for a client which does not read.
const OUTBOX_MAX: usize = 8;
/// The same, for a member of a pool: states of buckets may come all at once.
const POOL_OUTBOX_MAX: usize = 4096;
/// From so many of them on nothing more is taken from those who give them.
pub(super) const BACKLOG: usize = 1024;
/// How long a member of a pool may read nothing.
const READS_WITHIN: Duration = Duration::from_secs(5);
/// Nobody is let in for so long who would be the next of too many that leave what takes long to be closed.
const DEAF_FOR: Duration = Duration::from_millis(100);
/// Of a thread that closes a descriptor.
const STACK: usize = 64 << 10;
/// Messages or connections taken from one source before others have their turn.
const TURN_MAX: usize = 16;

impl Function {
    /// What its clients left and is still being closed.
    fn closing(&self) -> usize {
        Arc::strong_count(&self.closing) - 1
    }

    /// For what of its listening socket the broker is woken.
    fn attend(&self, epoll: &OwnedFd, to: epoll::EventFlags) {
        let _ = epoll::modify(epoll, &self.socket, epoll::EventData::new_u64(self.id), to);
    }
}

impl Core {
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
        self.keep_descriptors_out(&socket);
        self.watch(&socket, id, epoll::EventFlags::IN)?;
        self.listeners.insert(id, function.to_owned());
        let added = Function {
            socket,
            id,
            uids,
            may_be_succeeded: false,
            complaints: Allowance::new(10, 20),
            closing: Arc::default(),
            deaf_until: None,
        };
        self.functions.insert(function.to_owned(), added);
        Ok(())
    }

    /// See [`super::Broker::remove_function`].
    pub fn remove_function(&mut self, function: &str) -> Result<(), BrokerError> {
        let removed = self.functions.remove(function);
        let removed = removed.ok_or_else(|| BrokerError::Unknown(format!("function {function}")))?;
        self.listeners.remove(&removed.id);
        self.close(function, removed.socket);
        let of_function = self.clients.iter().filter(|(_, client)| client.function == function);
        for id in of_function.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.drop_client(id, false);
        }
        self.forget_pools();
        Ok(())
    }

    /// Serves a connection that did not come through a listening socket.
    pub fn add_client(&mut self, function: &str, socket: OwnedFd, pid: i32) -> io::Result<()> {
        let id = self.new_id();
        self.keep_descriptors_out(&socket);
        self.watch(&socket, id, epoll::EventFlags::IN)?;
        let client = Client {
            function: function.to_owned(),
            socket,
            pid,
            holds: Holds::Nothing,
            deadline: Some(Instant::now() + GREETING_WITHIN),
            since: 0,
            away: false,
            shares: false,
            messages: Allowance::new(MESSAGES.0, MESSAGES.1),
            outbox: VecDeque::new(),
            waits_for: None,
        };
        self.clients.insert(id, client);
        Ok(())
    }

    pub(super) fn accept(&mut self, id: u64) {
        for _ in 0..TURN_MAX {
            let Some(name) = self.listeners.get(&id).cloned() else { return };
            let Some(function) = self.functions.get_mut(&name) else { return };
            if function.closing() >= CLIENTS_MAX {
                function.deaf_until = Some(Instant::now() + DEAF_FOR);
                function.attend(&self.epoll, epoll::EventFlags::empty());
                return;
            }
            let Ok(socket) = accept_with(&function.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
                return;
            };
            if let Err(fault) = self
                .admit(&name, &socket)
                .and_then(|pid| self.add_client(&name, try_clone(&socket)?, pid).map_err(|error| error.to_string()))
            {
                tell(&socket, &fault, true);
                self.complain(&name, fault);
                self.close(&name, socket);
            }
        }
    }

    /// Functions that were not listened to for a while.
    pub(super) fn listen_again(&mut self, now: Instant) {
        for function in
            self.functions.values_mut().filter(|function| function.deaf_until.is_some_and(|until| until <= now))
        {
            function.deaf_until = None;
            function.attend(&self.epoll, epoll::EventFlags::IN);
        }
    }

    /// What a client sends can take as long to be closed as it likes (a TCP socket that lingers).
    fn keep_descriptors_out(&self, socket: &OwnedFd) {
        if self.refuses_descriptors {
            socket::pass_descriptors(socket.as_fd(), false);
        }
    }

    /// Closes what a client left, which may have descriptors that it has sent, read or not. Where the kernel lets it send some, on
    /// another thread: this one would wait for as long as the client likes.
    fn close(&self, function: &str, remains: impl Send + 'static) {
        if self.refuses_descriptors {
            return;
        }
        let counted = self.functions.get(function).map(|function| function.closing.clone());
        let last = move || {
            drop(remains);
            drop(counted);
        };
        let _ = std::thread::Builder::new().name("port-closer".into()).stack_size(STACK).spawn(last);
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

    pub(super) fn serve(&mut self, id: u64, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(id);
        }
        for _ in 0..TURN_MAX {
            let Some(client) = self.clients.get(&id) else { return };
            if client.waits_for.is_some() && !flags.contains(epoll::EventFlags::HUP) {
                return;
            }
            match socket::receive(client.socket.as_fd()) {
                Ok(Received::Message { bytes, fds, whole }) => {
                    let function = client.function.clone();
                    if let Err(fault) = self.hear(id, &bytes, &fds, whole) {
                        self.cut_off(id, fault);
                    }
                    if !fds.is_empty() {
                        self.close(&function, fds);
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
        let request = Request::decode(bytes).map_err(|malformed| malformed.to_string())?;
        // Of states there is as much as there is: they are read as fast as they are wanted.
        let is_state = client.holds == Holds::Pool && matches!(request, Request::Bucket { .. });
        if !is_state && !client.messages.take() {
            return Err("too many messages".into());
        }
        match client.holds.clone() {
            Holds::Nothing => self.hear_first(id, request),
            Holds::Port(link, seat) => self.hear_port(id, &link, seat, request),
            Holds::Pool => self.hear_pool(id, request),
        }
    }

    fn hear_first(&mut self, id: u64, request: Request) -> Result<(), Fault> {
        match request {
            Request::Hello { oldest, newest, port, resume } => self.greet(id, oldest..=newest, port, resume),
            Request::Steer { oldest, newest, progress } => self.join_pool(id, oldest..=newest, progress),
            Request::Succeed { oldest, newest, port } => self.greet_heir(id, oldest..=newest, port),
            _ => Err("a connection begins with a greeting".into()),
        }
    }

    fn hear_port(&mut self, id: u64, name: &str, seat: Seat, request: Request) -> Result<(), Fault> {
        match request {
            Request::Hello { .. } | Request::Steer { .. } | Request::Succeed { .. } => {
                return Err("one connection holds one port".into());
            }
            Request::Mapped { generation } => return self.mapped(name, seat, generation),
            Request::Ready { generation } => return self.ready(name, seat, generation),
            Request::Quarantine { generation, queue, violation } => {
                return self.quarantine(name, seat, generation, queue, violation);
            }
            Request::TakeOver => self.take_over(id, name, seat),
            // One that comes to succeed has none from before, and says what it lets go of those that it is given.
            Request::Holds(_) if self.is_beside(id, name, seat) => {}
            Request::Holds(generations) => {
                let since = self.clients.get(&id).map_or(0, |client| client.since);
                self.holds(name, seat, since, generations);
            }
            Request::Released { generation } => self.let_go(name, seat, |other| other == generation),
            Request::Away => self.clients.get_mut(&id).into_iter().for_each(|client| client.away = true),
            Request::Report(_) if self.is_beside(id, name, seat) => {}
            Request::Report(counters) => {
                self.links.get_mut(name).into_iter().for_each(|link| link.party_mut(seat).report = counters.clone());
            }
            Request::Prepared { .. } | Request::Bucket { .. } | Request::Gave { .. } | Request::Came { .. } => {
                return Err("a pool is steered by a connection of its own".into());
            }
        }
        Ok(())
    }

    pub(super) fn greet(
        &mut self,
        id: u64,
        versions: RangeInclusive<u16>,
        port: String,
        resume: u64,
    ) -> Result<(), Fault> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        // It may have been heard late: the port, and the generation that is up, are those' who are here.
        if socket::is_hung_up(client.socket.as_fd()) {
            self.drop_client(id, true);
            return Ok(());
        }
        let (name, pid) = (PortName { function: client.function.clone(), port }, client.pid);
        let Some((link_name, seat)) = self.ports.get(&name).cloned() else {
            self.turn_away(id, format!("port {} is not known (yet)", name.port));
            return Ok(());
        };
        let Some(link) = self.links.get(&link_name) else { return Ok(()) };
        let version = version_of(link, versions)?;
        if let Some(holder) = self.holder(&link_name, seat) {
            self.turn_away(id, format!("port {} is held by process {holder}", name.port));
            return Ok(());
        }
        if self.is_outcast(&link_name, seat, pid) {
            self.turn_away(id, goes_on_without(&name.function));
            return Ok(());
        }
        if self.is_changing(&link_name, seat, resume) {
            self.turn_away(id, format!("the pool at the link of port {} is being changed", name.port));
            return Ok(());
        }
        if self.is_opened_too_often(id, &link_name, seat) {
            return Ok(());
        }
        let Some(link) = self.links.get_mut(&link_name) else { return Ok(()) };
        link.party_mut(seat).client = Some(id);
        let resumed = matches!(link.stage, Stage::Adopted(_)) && resume != 0 && resume == link.generation;
        self.welcome(id, version, &link_name, seat, resumed)?;
        if resumed {
            self.returned(&link_name, seat);
        } else {
            self.attached(&link_name, seat, id, resume)?;
        }
        Ok(())
    }

    /// A client is at a seat from now on, or to be.
    pub(super) fn welcome(
        &mut self,
        id: u64,
        version: u16,
        link_name: &str,
        seat: Seat,
        resumed: bool,
    ) -> Result<(), Fault> {
        let place = self.place(link_name, seat);
        let Some(link) = self.links.get(link_name) else { return Ok(()) };
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let welcome = Reply::Welcome {
            version,
            info: link.spec.ends[seat.end].port.clone(),
            peer_queues: link.queues(seat.across()) as u16,
            ring_bytes: link.spec.ring_bytes,
            resumed,
            place,
        };
        client.holds = Holds::Port(link_name.to_owned(), seat);
        client.since = link.generation;
        client.deadline = None;
        client.shares = version == VERSION_SHARED;
        let (port, pid) = (link.port(seat), client.pid);
        self.send(id, &welcome, Vec::new())?;
        (self.events)(Event::Attached { port, pid, resumed });
        Ok(())
    }

    /// Turns the client away if it is.
    pub(super) fn is_opened_too_often(&mut self, id: u64, link: &str, seat: Seat) -> bool {
        let Some(link) = self.links.get_mut(link) else { return false };
        if link.party_mut(seat).openings.take() {
            return false;
        }
        let reason = format!("port {} is opened too often", link.port(seat).port);
        self.turn_away(id, reason);
        true
    }

    /// The living process that holds a seat. One that is gone already is forgotten.
    pub(super) fn holder(&mut self, link: &str, seat: Seat) -> Option<i32> {
        let id = self.links.get(link)?.party(seat).client?;
        let client = self.clients.get(&id)?;
        if socket::is_hung_up(client.socket.as_fd()) {
            self.drop_client(id, true);
            return None;
        }
        Some(client.pid)
    }

    /// Refuses a client that did nothing wrong.
    pub(super) fn turn_away(&mut self, id: u64, reason: String) {
        if let Some(client) = self.clients.get(&id) {
            tell(&client.socket, &reason, true);
        }
        self.drop_client(id, false);
    }

    /// Refuses a client that did.
    pub(super) fn cut_off(&mut self, id: u64, fault: Fault) {
        if let Some(client) = self.clients.get(&id) {
            tell(&client.socket, &fault, false);
            let function = client.function.clone();
            self.complain(&function, fault);
        }
        self.drop_client(id, false);
    }

    /// Refuses a client of which nothing counts any more.
    pub(super) fn expel(&mut self, id: u64, reason: &str) {
        if let Some(client) = self.clients.get(&id) {
            tell(&client.socket, reason, true);
        }
        self.drop_client(id, true);
    }

    /// About a link, in the name of the first function at it.
    pub(super) fn complain_of(&mut self, link: &str, reason: String) {
        if let Some(link) = self.links.get(link) {
            let function = link.spec.ends[0].functions[0].clone();
            self.complain(&function, reason);
        }
    }

    pub(super) fn complain(&mut self, function: &str, reason: String) {
        let allowed = self.functions.get_mut(function).is_none_or(|function| function.complaints.take());
        if allowed {
            (self.events)(Event::Refused { function: function.to_owned(), reason });
        }
    }

    /// Forgets a client. `dead`: its process has closed its end, so that it writes no more.
    pub(super) fn drop_client(&mut self, id: u64, dead: bool) {
        let Some(client) = self.clients.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, &client.socket);
        self.go_on_giving(id);
        self.close(&client.function, client.socket);
        match client.holds {
            Holds::Nothing => {}
            Holds::Port(link, seat) => {
                let dead = dead && !client.away;
                self.pass_to_heir(id, &link, seat);
                if !self.left_beside(id, &link, seat, dead) {
                    self.detached(&link, seat, dead);
                    self.succeed(&link, seat);
                }
            }
            Holds::Pool => self.left_pool(&client.function, id, client.pid, !dead),
        }
    }

    pub(super) fn send(&mut self, id: u64, reply: &Reply, fds: Vec<OwnedFd>) -> Result<(), Fault> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let most = if client.holds == Holds::Pool { POOL_OUTBOX_MAX } else { OUTBOX_MAX };
        if client.outbox.len() >= most {
            return Err("the client does not read".into());
        }
        client.outbox.push_back((reply.encode(), fds));
        self.flush(id);
        Ok(())
    }

    fn flush(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let waiting_before = client.outbox.len();
        let is_new = client.deadline.is_none();
        while let Some((bytes, fds)) = client.outbox.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match socket::send(client.socket.as_fd(), bytes, &fds) {
                // A client that is gone shows as such on its next event.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                _ => drop(client.outbox.pop_front()),
            }
        }
        let (waiting, is_member) = (client.outbox.len(), client.holds == Holds::Pool);
        if is_member && (is_new || waiting < waiting_before) {
            client.deadline = (waiting > 0).then(|| Instant::now() + READS_WITHIN);
        }
        if waiting_before > 0 {
            self.attend(id);
        }
        if is_member && waiting < BACKLOG / 2 {
            self.go_on_giving(id);
        }
    }

    /// For what of its connection the broker is woken.
    fn attend(&self, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        let mut to = epoll::EventFlags::empty();
        to.set(epoll::EventFlags::IN, client.waits_for.is_none());
        to.set(epoll::EventFlags::OUT, !client.outbox.is_empty());
        let _ = epoll::modify(&self.epoll, &client.socket, epoll::EventData::new_u64(id), to);
    }

    /// Takes no more from a member before another one has read of what it was given.
    pub(super) fn wait_for(&mut self, giver: u64, receiver: u64) {
        if self.clients.get(&receiver).is_some_and(|client| client.outbox.len() >= BACKLOG)
            && let Some(client) = self.clients.get_mut(&giver)
        {
            client.waits_for = Some(receiver);
            self.attend(giver);
        }
    }

    /// This member has read enough, or is gone.
    fn go_on_giving(&mut self, receiver: u64) {
        let waiting = self.clients.iter().filter(|(_, client)| client.waits_for == Some(receiver));
        for giver in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.clients.get_mut(&giver).into_iter().for_each(|client| client.waits_for = None);
            self.attend(giver);
        }
    }
}

/// The version that a link is spoken with.
pub(super) fn version_of(link: &Link, versions: RangeInclusive<u16>) -> Result<u16, Fault> {
    let (version, on) = match link.spec.kind {
        LinkKind::Direct if link.has_pool() => (VERSION_POOL, " on links of pools"),
        LinkKind::SharedRecords if versions.contains(&VERSION_SHARED) => (VERSION_SHARED, ""),
        LinkKind::Direct | LinkKind::SharedRecords => (VERSION, ""),
        LinkKind::ZeroCopy { .. } => (VERSION_ZERO_COPY, " on zero-copy links"),
    };
    if versions.contains(&version) {
        return Ok(version);
    }
    let (oldest, newest) = versions.into_inner();
    Err(format!("this broker speaks version {version}{on}, not {oldest} to {newest}"))
}

/// Tells a client why it is refused, if it still listens.
fn tell(socket: &OwnedFd, reason: &str, try_again: bool) {
    let refused = Reply::Refused { reason: reason.to_owned(), try_again };
    let _ = socket::send(socket.as_fd(), &refused.encode(), &[]);
}

fn try_clone(socket: &OwnedFd) -> Result<OwnedFd, Fault> {
    socket.try_clone().map_err(|error| error.to_string())
}
