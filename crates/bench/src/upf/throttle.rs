//! A source that always has packets, but no more of them on their way than fit the rings behind it: what it feeds neither starves
//! nor waits for room.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use port::synthetic::Synthetic;
use port::{Burst, Held, PortInfo, RxCounters, RxQueue, Steering};

use crate::line::{Line, Tally};

/// Packets on their way at most: a part of what a ring to a worker holds of small ones, several bursts all the same.
const UNDER_WAY: u64 = 512;
/// Bytes of them at most, of the 2 MiB that such a ring has: one more burst has to fit.
const UNDER_WAY_BYTES: usize = 1 << 20;
/// Every how many polls that find it waiting it looks whether there is room again.
const LOOK_EVERY: u32 = 128;
/// Bytes of a record beside its frame, at most.
const RECORD_BYTES: usize = 64;

/// Packets that have gone in and out; each number has one writer.
#[derive(Default)]
pub(super) struct Passage {
    given: Line,
    /// Of what has left, as much as the giver knows.
    seen: Line,
    /// What has left the function.
    pub sent: Arc<Tally>,
}

impl Passage {
    /// Packets given so far.
    pub fn given(&self) -> u64 {
        self.given.get()
    }

    /// Packets that have left so far.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// The same, for the thread that sends.
    pub fn sent_by_me(&self) -> u64 {
        self.sent.own()
    }

    /// For the thread that gives: whatever has left makes room from now on.
    pub fn look(&self) {
        self.seen.set(self.sent());
    }

    /// Packets on their way.
    pub fn under_way(&self) -> u64 {
        self.given() - self.sent()
    }
}

/// The receiving half. Its frames are named after it is made, since a UPF must be there to say its TEIDs.
pub(super) struct Throttled {
    frames: Arc<OnceLock<Vec<Vec<u8>>>>,
    /// Of the port whose first queue it is.
    info: PortInfo,
    source: Option<Box<dyn RxQueue>>,
    passage: Arc<Passage>,
    limit: u64,
    /// As much is under way as may be.
    is_waiting: bool,
    polls: u32,
    /// At the last look for packets that are held.
    has_refused: bool,
}

impl Throttled {
    /// Gives `frames` over and over, once they are there, as the first queue of such a port does to which they are steered.
    pub fn new(frames: Arc<OnceLock<Vec<Vec<u8>>>>, info: PortInfo, passage: Arc<Passage>) -> Self {
        let limit = UNDER_WAY;
        Self { frames, info, source: None, passage, limit, is_waiting: false, polls: 0, has_refused: false }
    }

    #[cold]
    fn begin(&mut self) {
        let info = self.info.clone();
        let open = |frames: &Vec<Vec<u8>>| Synthetic::new(frames.clone()).info(info).open().queues.remove(0).rx;
        let Some(frames) = self.frames.get() else { return };
        let frame_bytes = frames.iter().map(Vec::len).max().unwrap_or(0);
        self.limit = UNDER_WAY.min((UNDER_WAY_BYTES / (frame_bytes + RECORD_BYTES)) as u64);
        self.source = Some(open(frames));
    }

    /// Whether it is to wait for what is on its way. Once as much is under way as may be, as far as it knows, it waits until that is
    /// half as much. It looks only while it waits: what comes from another core's line takes time, which is not the function's. And
    /// it looks seldom: each look takes the line away from the core that writes it.
    #[inline]
    fn is_full(&mut self, given: u64) -> bool {
        if !self.is_waiting {
            self.is_waiting = given - self.passage.seen.get() > self.limit;
            return self.is_waiting;
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(LOOK_EVERY) {
            self.passage.look();
            self.is_waiting = given - self.passage.seen.get() > self.limit / 2;
        }
        true
    }
}

impl RxQueue for Throttled {
    #[inline]
    fn recv(&mut self) -> Burst<'_> {
        let given = self.passage.given();
        if self.source.is_none() {
            self.begin();
        }
        // Whoever was given nothing to hold asks again in the same round.
        if std::mem::take(&mut self.has_refused) || self.is_full(given) {
            return Burst::new(&mut []);
        }
        let Some(source) = &mut self.source else { return Burst::new(&mut []) };
        let burst = source.recv();
        self.passage.given.set(given + burst.len() as u64);
        burst
    }

    #[inline]
    fn recv_held(&mut self, steering: Steering) -> Option<Held<'_>> {
        let given = self.passage.given();
        if self.source.is_none() {
            self.begin();
        }
        self.has_refused = self.is_full(given);
        if self.has_refused {
            return None;
        }
        let held = self.source.as_mut()?.recv_held(steering)?;
        self.passage.given.set(given + held.len() as u64);
        Some(held)
    }

    fn give_back(&mut self, position: u64) {
        if let Some(source) = &mut self.source {
            source.give_back(position);
        }
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![]
    }

    fn counters(&self) -> RxCounters {
        self.source.as_ref().map_or_else(RxCounters::default, |source| source.counters())
    }
}
