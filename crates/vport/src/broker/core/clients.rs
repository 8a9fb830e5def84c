//! Functions and their connections: who connects, what they say, what they are told.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::{SocketFlags, accept_with};

use super::super::link::Stage;
use super::super::{BrokerError, Event, LinkKind, PortName};
use super::{Client, Core, Fault, Function};
use crate::doorbell::Allowance;
use crate::layout::{VERSION, VERSION_ZERO_COPY};
use crate::socket::{self, Received};
use crate::wire::{Reply, Request, is_name};

/// A client greets within this time.
const GREETING_WITHIN: Duration = Duration::from_secs(2);
/// Connections of one function at a time.
const CLIENTS_MAX: usize = 64;
/// Messages a second from one client, on average and at once.
const MESSAGES: (u32, u32) = (100, 200);
/// Messages that wait for a client which does not read.
const OUTBOX_MAX: usize = 8;
/// Messages or connections taken from one source before others have their turn.
const TURN_MAX: usize = 16;

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
            since: 0,
            away: false,
            messages: Allowance::new(MESSAGES.0, MESSAGES.1),
            outbox: VecDeque::new(),
        };
        self.clients.insert(id, client);
        Ok(())
    }

    pub(super) fn accept(&mut self, id: u64) {
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

    pub(super) fn serve(&mut self, id: u64, flags: epoll::EventFlags) {
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
            (Request::Holds(generations), Some((link, end))) => {
                let since = client.since;
                self.holds(&link, end, since, generations);
                Ok(())
            }
            (Request::Released { generation }, Some((link, end))) => {
                self.let_go(&link, end, |other| other == generation);
                Ok(())
            }
            (Request::Away, Some(_)) => {
                client.away = true;
                Ok(())
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
        if !versions.contains(&VERSION) && !versions.contains(&VERSION_ZERO_COPY) {
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
        let kind = self.links.get(&link_name).map(|link| link.spec.kind.clone()).unwrap_or_default();
        let version = if kind == LinkKind::Direct { VERSION } else { VERSION_ZERO_COPY };
        if !versions.contains(&version) {
            let (oldest, newest) = versions.into_inner();
            let on = if kind == LinkKind::Direct { "" } else { " on zero-copy links" };
            return Err(format!("this broker speaks version {version}{on}, not {oldest} to {newest}"));
        }
        if let Some(holder) = self.holder(&link_name, end) {
            self.turn_away(id, format!("port {} is held by process {holder}", name.port));
            return Ok(());
        }
        let Some(link) = self.links.get_mut(&link_name) else { return Ok(()) };
        link.holders[end] = Some(id);
        let resumed = matches!(link.stage, Stage::Adopted(_)) && resume != 0 && resume == link.generation;
        let since = link.generation;
        let welcome = Reply::Welcome {
            version,
            info: link.spec.ends[end].port.clone(),
            peer_queues: link.spec.ends[1 - end].port.queues,
            ring_bytes: link.spec.ring_bytes,
            resumed,
        };
        if let Some(client) = self.clients.get_mut(&id) {
            client.holds = Some((link_name.clone(), end));
            client.since = since;
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

    pub(super) fn complain(&mut self, function: &str, reason: String) {
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
            self.detached(&link, end, dead && !client.away);
        }
    }

    pub(super) fn send(&mut self, id: u64, reply: &Reply, fds: Vec<OwnedFd>) -> Result<(), Fault> {
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
}

/// Tells a client why it is refused, if it still listens.
fn tell(socket: &OwnedFd, reason: &str, try_again: bool) {
    let refused = Reply::Refused { reason: reason.to_owned(), try_again };
    let _ = socket::send(socket.as_fd(), &refused.encode(), &[]);
}

fn try_clone(socket: &OwnedFd) -> Result<OwnedFd, Fault> {
    socket.try_clone().map_err(|error| error.to_string())
}
