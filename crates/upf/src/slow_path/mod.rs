//! Everything that is not forwarding, on a thread of its own: the UPF as a host on its links, the neighbour table, and
//! GTP-U's path and error messages; and fragments, made whole. Frames come from all workers and leave by the first.

pub mod answer;
pub mod neighbours;
pub mod reassembly;
pub mod too_long;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use gtpu::ErrorIndication;
use port::PacketRef;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::acquaintances::{Acquaintances, Known};
use crate::alarms::{Alarm, Alarms};
use crate::bell::Bell;
use crate::drops::{DropBoard, DropReason, Drops};
use crate::mail::{Inbox, Letter, Outbox, TooLong};
use crate::n4::Echo;
use crate::nat::log::LogReader;
use crate::packet::{ETHERNET_LEN, Punt};
use crate::path::TUNNEL_MAX_LEN;
use crate::side::{PortId, Side, Sides};
use crate::tables::Tables;
use answer::Learned;
use neighbours::{Action, Key, Neighbours};
use reassembly::{Outcome, Reassembly};

/// Letters of a worker that are read at a time.
const LETTERS_MAX: usize = 256;
/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(50);
/// Between two reports of the groups that the UPF listens to: less than switches remember them (RFC 3810, 9.4).
const GROUPS_REPORTED_EVERY: Duration = Duration::from_secs(60);

/// What the slow path has done, for others to read.
#[derive(Debug, Default)]
pub struct Counters {
    /// Answers sent: ARP, neighbour discovery, pings, GTP-U echo.
    pub answers: AtomicU64,
    /// Error indications and notifications of supported extension headers sent.
    pub complaints_sent: AtomicU64,
    /// Error indications received.
    pub error_indications: AtomicU64,
    /// Senders told that their packets are too long.
    pub too_long_told: AtomicU64,
    /// Packets made whole from their fragments.
    pub reassembled: AtomicU64,
}

/// The slow path.
pub struct SlowPath {
    sides: Sides,
    tables: Tables,
    inboxes: Vec<Inbox>,
    outbox: Outbox,
    wanted: Receiver<Key>,
    echoes: Receiver<Echo>,
    /// No error indications are sent before.
    quiet_until: Instant,
    nat_logs: Vec<LogReader>,
    bell: Arc<Bell>,
    alarms: Alarms,
    neighbours: Neighbours<Waiting>,
    /// Those that are resolved, for a process that comes after this one.
    resolved: Acquaintances,
    /// Of ports without tunnels, and of those with tunnels: strangers in a data network take no room from gNBs.
    fragments: [Reassembly; 2],
    groups_reported: Option<Instant>,
    drops: Drops,
    counters: Arc<Counters>,
}

/// How the slow path reaches the workers, and they it.
pub struct Links {
    /// From every worker.
    pub inboxes: Vec<Inbox>,
    /// To the first worker, which sends.
    pub outbox: Outbox,
    /// Neighbours that rules lead to.
    pub wanted: Receiver<Key>,
    /// Rung by whoever leaves something.
    pub bell: Arc<Bell>,
    /// To N4.
    pub alarms: Alarms,
    /// Echo requests that N4 wants sent.
    echoes: (Sender<Echo>, Receiver<Echo>),
    /// For how long after the start no error indications are sent.
    pub error_indication_hold: Duration,
    /// What workers tell of port blocks of source NAT.
    pub nat_logs: Vec<LogReader>,
}

/// By which N4 has echo requests sent.
#[derive(Debug)]
pub struct EchoLine {
    echoes: Sender<Echo>,
    bell: Arc<Bell>,
}

impl EchoLine {
    /// Has them sent, if the slow path is still there.
    pub fn ask(&self, echoes: &[Echo]) {
        let sent = echoes.iter().filter(|&&echo| self.echoes.send(echo).is_ok()).count();
        if sent > 0 {
            self.bell.ring();
        }
    }
}

impl Links {
    /// The links, with a line for echo requests.
    pub fn new(inboxes: Vec<Inbox>, outbox: Outbox, wanted: Receiver<Key>, bell: Arc<Bell>, alarms: Alarms) -> Self {
        Self {
            inboxes,
            outbox,
            wanted,
            bell,
            alarms,
            echoes: mpsc::channel(),
            error_indication_hold: Duration::ZERO,
            nat_logs: vec![],
        }
    }

    /// N4's end of the line for echo requests.
    pub fn echo_line(&self) -> EchoLine {
        EchoLine { echoes: self.echoes.0.clone(), bell: self.bell.clone() }
    }
}

/// A frame that waits for a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Waiting {
    /// It is sent as it is, but for the Ethernet addresses.
    Ready(Vec<u8>),
    /// As it came from this port: it is a worker's to decide about it.
    Came(PortId, Vec<u8>),
}

impl SlowPath {
    /// The slow path of the UPF with these tables.
    pub fn new(tables: Tables, links: Links) -> Self {
        Self {
            sides: tables.sides(),
            tables,
            inboxes: links.inboxes,
            outbox: links.outbox,
            wanted: links.wanted,
            echoes: links.echoes.1,
            quiet_until: Instant::now() + links.error_indication_hold,
            nat_logs: links.nat_logs,
            bell: links.bell,
            alarms: links.alarms,
            neighbours: Neighbours::default(),
            resolved: Acquaintances::default(),
            fragments: Default::default(),
            groups_reported: None,
            drops: Drops::default(),
            counters: Arc::default(),
        }
    }

    /// The neighbours that are resolved.
    pub fn acquaintances(&self) -> Acquaintances {
        self.resolved.clone()
    }

    /// Goes on with neighbours that a process before this had resolved.
    pub fn know(&mut self, neighbours: &[Known]) {
        let now = Instant::now();
        let sides = self.sides.clone();
        for (name, address, mac) in neighbours {
            let Some((port, _)) = sides.iter().find(|(_, side)| side.name == *name) else { continue };
            let (address, mac) = (*address, *mac);
            let actions = self.neighbours.know((port, address), mac, now);
            self.act(actions);
        }
        self.outbox.deliver();
    }

    /// What it has dropped.
    pub fn board(&self) -> DropBoard {
        self.drops.board()
    }

    /// What it has done.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Works until `stop` is set and the bell rung.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        self.want_gateways();
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            self.report_groups(now);
            self.run_once(now);
            self.rest(stop)?;
        }
        // Workers have ended before.
        self.nat_logs.iter_mut().for_each(LogReader::write);
        Ok(())
    }

    /// One round.
    pub fn run_once(&mut self, now: Instant) {
        while let Ok(key) = self.wanted.try_recv() {
            let actions = self.neighbours.want(key, now);
            self.act(actions);
        }
        while let Ok(echo) = self.echoes.try_recv() {
            self.send_echo(echo, now);
        }
        let mut inboxes = std::mem::take(&mut self.inboxes);
        for inbox in &mut inboxes {
            // However many come from one worker, the others' are not kept waiting.
            for _ in 0..LETTERS_MAX {
                let Some((letter, frame)) = inbox.take() else { break };
                self.read(letter, frame, now);
            }
        }
        self.inboxes = inboxes;
        self.nat_logs.iter_mut().for_each(LogReader::write);
        self.look_after_neighbours(now);
        self.resolved.write_down(now);
        let given_up = self.fragments.iter_mut().map(|fragments| fragments.tick(now)).sum();
        self.drops.add(DropReason::FragmentTimeout, given_up);
        self.outbox.deliver();
        self.alarms.deliver();
        self.drops.publish();
    }

    /// Tells switches, now and then, of the groups by which neighbours ask for the UPF's IPv6 addresses.
    pub fn report_groups(&mut self, now: Instant) {
        if self.groups_reported.is_some_and(|last| now < last + GROUPS_REPORTED_EVERY) {
            return;
        }
        self.groups_reported = Some(now);
        for (port, side) in self.sides.clone().iter() {
            if let Some(frame) = answer::listener_report(side) {
                self.send(port, &frame);
            }
        }
    }

    fn look_after_neighbours(&mut self, now: Instant) {
        let actions = self.neighbours.tick(now, |(port, address)| self.tables.leads_to(port, address));
        let lost: Vec<_> = actions.iter().filter_map(Action::lost).collect();
        self.act(actions);
        // Rules that have come while it was known, for whatever reason, have not asked for it.
        for key in lost {
            if !self.neighbours.has(key) && self.tables.leads_to(key.0, key.1) {
                let actions = self.neighbours.want(key, now);
                self.act(actions);
            }
        }
    }

    /// Gateways are resolved before anyone needs them.
    fn want_gateways(&mut self) {
        let of =
            |(port, side): (PortId, &Side)| side.gateways().iter().map(|&gateway| (port, gateway)).collect::<Vec<_>>();
        for key in self.sides.iter().flat_map(of).collect::<Vec<_>>() {
            let actions = self.neighbours.want(key, Instant::now());
            self.act(actions);
        }
        self.outbox.deliver();
    }

    fn rest(&self, stop: &AtomicBool) -> io::Result<()> {
        self.bell.doze();
        if self.inboxes.iter().all(Inbox::is_empty) && !stop.load(Ordering::Relaxed) {
            let mut fds = [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
            let timeout = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => self.bell.silence(),
                Err(error) => return Err(error.into()),
            }
        }
        self.bell.wake();
        Ok(())
    }

    fn read(&mut self, letter: Letter, frame: &[u8], now: Instant) {
        match letter {
            Letter::Resolve(port, address) => {
                let actions = self.neighbours.wait((port, address), Waiting::Ready(frame.to_vec()), now);
                self.act(actions);
            }
            Letter::Await(from, port, address) => {
                let actions = self.neighbours.wait((port, address), Waiting::Came(from, frame.to_vec()), now);
                self.act(actions);
            }
            Letter::Punt(port, Punt::Fragment) => self.join(port, frame, now),
            Letter::Punt(port, punt) => self.consider(port, punt, frame, now),
            Letter::TooLong(too_long) => self.tell(&too_long, frame),
            Letter::Process(_) | Letter::Enter(_) | Letter::Send(_) | Letter::Marker(_) => {
                debug_assert!(false, "these go to workers")
            }
        }
    }

    /// Asks a GTP-U node whether it is alive, once its next hop is resolved; on N3 and N9, if both have a route to it.
    fn send_echo(&mut self, echo: Echo, now: Instant) {
        let sides = self.sides.clone();
        for (port, side) in sides.iter().filter(|(_, side)| side.kind.has_tunnels()) {
            let frame = answer::echo_request(side, echo);
            if let (Some(next_hop), Some(frame)) = (side.next_hop(echo.peer), frame) {
                let actions = self.neighbours.wait((port, next_hop), Waiting::Ready(frame), now);
                self.act(actions);
            }
        }
    }

    fn consider(&mut self, port: PortId, punt: Punt, frame: &[u8], now: Instant) {
        if punt == Punt::UnknownTeid && now < self.quiet_until {
            // The tunnel may be one from before, which its session manager will set up again.
            return;
        }
        let outcome = answer::consider(self.side(port), punt, frame);
        if outcome.is_nothing() {
            return self.drops.count(DropReason::NotAnswered);
        }
        if outcome.unknown.is_some_and(|teid| !self.tables.is_foreign(teid)) {
            // Its session has come meanwhile, or will come back. Whoever believed otherwise would delete its end.
            return;
        }
        if let Some(frame) = outcome.answer {
            let counter = match punt {
                Punt::Host | Punt::Fragment | Punt::Gtpu => &self.counters.answers,
                Punt::UnknownTeid | Punt::UnknownExtension => &self.counters.complaints_sent,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            self.send(port, &frame);
        }
        if let Some(Learned { neighbour, mac, overrides }) = outcome.learned {
            let key = (port, neighbour);
            let actions = match overrides {
                true => self.neighbours.heard(key, mac, now),
                false => self.neighbours.heard_beside(key, mac, now),
            };
            self.act(actions);
        }
        if let Some(echo) = outcome.alive {
            // Should there be no room, it is asked again.
            self.alarms.tell(Alarm::Alive(echo));
        }
        if let Some(complaint) = outcome.complaint {
            self.counters.error_indications.fetch_add(1, Ordering::Relaxed);
            let ErrorIndication { peer, teid } = complaint;
            tracing::debug!(%peer, teid, "a peer does not know a tunnel");
            // Should there be no room, the peer says it again with the next packet.
            self.alarms.tell(Alarm::Unknown { peer, teid });
        }
    }

    /// A fragment: with the last one of a packet, the packet goes to whoever it belongs to.
    fn join(&mut self, port: PortId, frame: &[u8], now: Instant) {
        let fragments = &mut self.fragments[usize::from(self.sides.get(port).kind.has_tunnels())];
        match fragments.add(port, frame, now) {
            Outcome::Waits => {}
            Outcome::Dropped(reason, fragments) => self.drops.add(reason, fragments),
            Outcome::Whole(frame) => {
                self.counters.reassembled.fetch_add(1, Ordering::Relaxed);
                self.post(Letter::Enter(port), &frame);
            }
        }
    }

    /// A packet was too long. What is for a UE goes the way of packets from the data network.
    fn tell(&mut self, too_long: &TooLong, frame: &[u8]) {
        let side = self.side(too_long.port);
        let tunnels = self.sides.iter().filter(|(_, side)| side.kind.has_tunnels());
        let in_tunnel = tunnels.map(|(_, side)| side.mtu.saturating_sub(TUNNEL_MAX_LEN)).min().unwrap_or(0);
        let most = if too_long.from_ue { in_tunnel } else { side.mtu };
        let Some(message) = too_long::message(side, too_long, frame, most) else { return };
        self.counters.too_long_told.fetch_add(1, Ordering::Relaxed);
        self.leave(too_long.port, &message);
    }

    fn act(&mut self, actions: Vec<Action<Waiting>>) {
        let published: Vec<(PortId, IpAddr, Option<[u8; 6]>)> = actions
            .iter()
            .filter_map(|action| match *action {
                Action::Publish((port, address), mac) => Some((port, address, mac)),
                _ => None,
            })
            .collect();
        if !published.is_empty() {
            self.note(&published);
            // Fails only when the workers have ended, and then nothing matters.
            let _ = self.tables.set_neighbours(&published);
        }
        for action in actions {
            match action {
                Action::Publish((port, address), mac) => tracing::debug!(?port, %address, ?mac, "neighbour"),
                Action::Solicit((port, address), known) => match answer::solicit(self.side(port), address, known) {
                    Some(frame) => self.send(port, &frame),
                    None => tracing::debug!(?port, %address, "no address to ask for a neighbour from"),
                },
                Action::Release((port, _), mac, Waiting::Ready(frame)) => self.release(port, mac, frame),
                // Workers know the neighbour by now.
                Action::Release(_, _, Waiting::Came(from, frame)) => self.post(Letter::Enter(from), &frame),
                Action::GiveUp(frames) => self.drops.add(DropReason::NeighbourUnresolved, frames as u64),
            }
        }
    }

    fn note(&self, published: &[(PortId, IpAddr, Option<[u8; 6]>)]) {
        for &(port, address, mac) in published {
            self.resolved.note(&self.side(port).name, address, mac);
        }
    }

    fn release(&mut self, port: PortId, mac: [u8; 6], mut frame: Vec<u8>) {
        frame[..6].copy_from_slice(&mac);
        frame[6..12].copy_from_slice(&self.side(port).mac.clone());
        self.send(port, &frame);
    }

    /// An answer can be longer than the link allows, as what it answers may have come in fragments.
    fn send(&mut self, port: PortId, frame: &[u8]) {
        if frame.len() > ETHERNET_LEN + self.side(port).mtu {
            return self.drops.count(DropReason::TooLong);
        }
        self.leave(port, frame);
    }

    /// A frame for the port's own Ethernet address, as what is for a UE has, comes in there at once.
    fn leave(&mut self, port: PortId, frame: &[u8]) {
        let side = self.side(port);
        let is_for_us = !side.kind.has_tunnels() && frame.starts_with(&side.mac);
        self.post(if is_for_us { Letter::Enter(port) } else { Letter::Send(port) }, frame);
    }

    fn post(&mut self, letter: Letter, frame: &[u8]) {
        if !self.outbox.post(letter, &PacketRef::from_slice(frame)) {
            self.drops.count(DropReason::SlowPathFull);
        }
    }

    fn side(&self, port: PortId) -> &Side {
        self.sides.get(port)
    }
}
