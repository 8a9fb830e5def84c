//! The control thread of an open port: maps new generations of channels off the packet path, keeps the connection to the
//! broker, and comes back to it when it was away.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::segments::Own;
use super::{Shared, hello, succeed, wait};
use crate::handover::{Complaint, Fate, Generation, Handover};
use crate::home::Home;
use crate::info::{PortInfo, QUEUES_MAX};
use crate::layout::VERSION_ZERO_COPY;
use crate::ring::Ring;
use crate::rx::RxHalf;
use crate::socket::{self, Received};
use crate::stake::{Stake, Stakes};
use crate::tx::TxHalf;
use crate::wire::{Malformed, Place, Reply, Request};

pub(super) const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// How long a new generation is kept waiting while queues have not done with many earlier ones. Less than the broker's
/// patience. After that they lose the oldest.
pub(super) const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// How long the broker is not told of a new generation while a queue is within a burst of the one before. Less than its patience, too.
const BURST_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks at either.
const LOOK_EVERY: Duration = Duration::from_millis(2);

pub(super) type Halves = (RxHalf, TxHalf);
pub(super) type Boxes = (Arc<Handover<RxHalf>>, Arc<Handover<TxHalf>>);

/// The control thread.
pub(super) struct Control {
    pub(super) shared: Arc<Shared>,
    pub(super) path: PathBuf,
    pub(super) connection: Option<Connection>,
    pub(super) info: PortInfo,
    pub(super) peer_queues: usize,
    /// In its pool, if the port is a member's.
    pub(super) place: Option<Place>,
    pub(super) ring: Ring,
    pub(super) boxes: Vec<Boxes>,
    pub(super) home: Arc<Home>,
    pub(super) stakes: Arc<Stakes>,
    /// Spoken with the broker: that of the link's kind.
    pub(super) version: u16,
    /// In the zero-copy generation that begins next.
    pub(super) stake: Option<Arc<Stake>>,
    /// Own segments of a generation whose peer's have not come yet.
    pub(super) own: Option<Own>,
    /// Somebody else has the port, or works off what he has of it.
    pub(super) waits_to_inherit: bool,
    /// The broker of this connection has been told that the port is to be taken over.
    pub(super) takes_over: bool,
    /// What queues are given then: of each generation, what is for the first, the second, ...
    pub(super) waiting: Vec<Vec<Halves>>,
    pub(super) current: Option<Arc<Generation>>,
    /// Queues that may still send in a generation before that.
    pub(super) unclosed: Vec<usize>,
    /// Until when the broker waits to hear that this end has it, and sends in no other.
    pub(super) ready_by: Option<Instant>,
    pub(super) connect_at: Instant,
    pub(super) pause: Duration,
    pub(super) report_at: Instant,
    /// Of the newest generation in which the peer broke a rule.
    pub(super) complaint: Option<Complaint>,
}

pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    /// Whether the broker has answered the greeting.
    pub(super) greeted: bool,
}

impl Control {
    pub(super) fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.reconnect_if_due();
            self.sleep();
            for complaint in self.shared.complaints.take() {
                self.pass_on(complaint);
            }
            self.report_if_due();
            self.take_over_if_due();
            self.unmap_retired();
            self.answer_if_room();
            self.close_former();
            self.tell_released();
            if let Err(Lost) = self.read_messages() {
                self.lose_connection();
            }
        }
    }

    fn sleep(&self) {
        let now = Instant::now();
        let report_due = self.shared.report.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let timeout = match &self.connection {
            _ if !self.unclosed.is_empty() => Some(LOOK_EVERY),
            None => Some(self.connect_at.saturating_duration_since(now)),
            Some(_) if self.own.as_ref().is_some_and(|own| own.answer_by.is_some()) => Some(LOOK_EVERY),
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
        // An heir that has been given nothing begins anew. The next broker knows of no other: one that has a generation comes
        // as the one that has the port, and is let in once whoever it was to succeed has left.
        let greeting = match self.waits_to_inherit && self.current.is_none() {
            true => succeed(&self.info.name),
            false => hello(&self.info.name, held.map_or(0, |generation| generation.number)),
        };
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
    pub(super) fn lose_connection(&mut self) {
        if self.version == VERSION_ZERO_COPY && self.connection.is_some() {
            let _ = self.say(&Request::Away);
        }
        self.connection = None;
        self.takes_over = false;
        self.stake = None;
        self.own = None;
        self.ready_by = None;
        // Whoever an heir is to succeed comes first.
        let pause = if self.waits_to_inherit { PAUSE_MAX } else { self.pause };
        self.connect_at = Instant::now() + pause;
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
            Reply::Welcome { version, info, peer_queues, ring_bytes, place, resumed } => {
                self.greeted(&info, peer_queues, ring_bytes, place)?;
                self.version = version;
                // By its generation: nobody else has the port.
                if self.waits_to_inherit && self.current.is_some() {
                    self.inherit_late(resumed);
                }
                self.tell_holdings()?;
                if resumed {
                    self.complain();
                } else {
                    // It may count generations anew.
                    self.complaint = None;
                }
                self.take_over_if_due();
                Ok(())
            }
            Reply::Refused { .. } => Err(Lost),
            Reply::Arena { generation, buffers, present, own, peer } => {
                self.stake = Some(self.stakes.take(generation, (own, peer), (buffers, present), &fds)?);
                Ok(())
            }
            Reply::Own { generation, records_bytes } => {
                self.own = Some(self.map_own(generation, records_bytes as usize, fds)?);
                self.answer_if_room();
                Ok(())
            }
            Reply::Records { generation, records_bytes } => {
                let shared = self.map_shared(records_bytes as usize, fds)?;
                let own = self.own.as_mut().filter(|own| own.generation.number == generation).ok_or(Lost)?;
                own.shared = shared;
                self.say(&Request::Mapped { generation })
            }
            Reply::Peer { generation, records_bytes, steering } => {
                let mut own = self.own.take().filter(|own| own.generation.number == generation).ok_or(Lost)?;
                let shared = std::mem::take(&mut own.shared);
                let peer = self.map_peer(records_bytes as usize, steering, own.stake.is_some(), shared, fds)?;
                self.hand_over(own, &peer)?;
                self.ready_by = Some(Instant::now() + BURST_WITHIN);
                self.close_former();
                Ok(())
            }
            Reply::Steers(_)
            | Reply::Prepare { .. }
            | Reply::Begun { .. }
            | Reply::Arrival { .. }
            | Reply::Closed { .. } => Err(Lost),
            Reply::Inherit => {
                self.inherit();
                Ok(())
            }
            Reply::Over { generation, dead } => {
                self.end(generation, if dead { Fate::Dead } else { Fate::Over });
                Ok(())
            }
            Reply::Gone { since, generation, first_queue, queues } => {
                let queues = (1_u64 << queues.min(QUEUES_MAX as u16)) - 1;
                self.home.bury(since..=generation, queues << first_queue.min(QUEUES_MAX as u16));
                self.boxes.iter().for_each(|(rx, _)| rx.announce());
                Ok(())
            }
        }
    }

    fn greeted(
        &mut self,
        info: &PortInfo,
        peer_queues: u16,
        ring_bytes: u32,
        place: Option<Place>,
    ) -> Result<(), Lost> {
        // A port does not change its number of queues under a function that runs, nor its place in a pool.
        let queues = |place: Option<Place>| place.map(|place| (place.first_queue, place.queues));
        if info.queues != self.info.queues || peer_queues == 0 || queues(place) != queues(self.place) {
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

    fn end(&mut self, generation: u64, fate: Fate) {
        self.own.take_if(|own| own.generation.number == generation);
        self.home.end(generation, fate);
        for (rx, tx) in &self.boxes {
            rx.announce();
            tx.announce();
        }
    }

    /// Which generations from before this connection the port still uses.
    pub(super) fn tell_holdings(&self) -> Result<(), Lost> {
        if self.version == VERSION_ZERO_COPY { self.say(&Request::Holds(self.stakes.held())) } else { Ok(()) }
    }

    /// What cannot be said now is said with the next greeting.
    fn tell_released(&self) {
        for generation in self.stakes.released() {
            let _ = self.say(&Request::Released { generation });
        }
    }

    /// Once for each generation, which is over then: a peer that breaks a rule on all channels shall not have this end cut off for the
    /// number of its words.
    fn pass_on(&mut self, complaint: Complaint) {
        if self.complaint.is_none_or(|newest| newest.generation < complaint.generation) {
            self.complaint = Some(complaint);
            self.complain();
        }
    }

    /// What does not arrive is said again to the next broker that knows the generation.
    fn complain(&self) {
        if let Some(Complaint { generation, queue, violation }) = self.complaint {
            let _ = self.say(&Request::Quarantine { generation, queue, violation: violation as u16 });
        }
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

    /// Closes what queues sent by before the current generation, and then says that this end has that. A process whose ports another
    /// one has taken over so knows when nothing more comes, also from those who send nothing.
    fn close_former(&mut self) {
        let Some(generation) = self.current.as_ref().map(|current| current.number) else { return };
        let (home, boxes) = (&self.home, &self.boxes);
        self.unclosed.retain(|queue| {
            let left = boxes[*queue].1.has_left();
            if left {
                home.close_before(generation, *queue);
            }
            !left
        });
        let due = |by: &mut Instant| self.unclosed.is_empty() || Instant::now() >= *by;
        if self.ready_by.take_if(due).is_some() && self.say(&Request::Ready { generation }).is_err() {
            self.lose_connection();
        }
    }

    fn take_over_if_due(&mut self) {
        let greeted = self.connection.as_ref().is_some_and(|connection| connection.greeted);
        let due = greeted && self.waits_to_inherit && !self.takes_over;
        if due && self.shared.take_over.load(Ordering::Acquire) {
            self.takes_over = self.say(&Request::TakeOver).is_ok();
        }
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
pub(super) struct Lost;

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
