//! The receiving half of a queue pair: polls one channel for each queue of the peer.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::counters::RxCounters;
use crate::doorbell::Doorbell;
use crate::handover::{Complaint, Complaints, Fate, Generation, Handover};
use crate::layout::Index;
use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, Burst, HEAD_MAX, Slot};
use crate::reader::{Mapped, Reader};
use crate::steering::{BucketTable, Steering};
use crate::sync::{AtomicU64, fence};

/// How long the records of a peer that may still be alive are waited for when its next generation is there.
const CLOSE_WITHIN: Duration = Duration::from_millis(200);
/// Every how many polls the poll counters are published.
const PUBLISH_EVERY: u64 = 256;

/// One generation of the receiving half.
#[derive(Debug)]
pub(crate) struct RxHalf {
    pub(crate) generation: Arc<Generation>,
    pub(crate) channels: Vec<RxChannel>,
    /// Own index segment.
    pub(crate) index: Arc<Mapping>,
    pub(crate) layout: Index,
    pub(crate) doorbell: Doorbell,
}

/// What comes from one queue of the peer.
#[derive(Debug)]
pub(crate) struct RxChannel {
    pub(crate) reader: Reader,
    pub(crate) source: Mapped,
    /// The peer's index segment, for its mark that it has closed the channel.
    pub(crate) peer: Arc<Mapping>,
    /// Its layout, and this queue's number in it.
    pub(crate) peer_layout: (Index, usize),
    pub(crate) complained: bool,
}

/// Which frames may come in by this queue.
#[derive(Debug)]
pub(crate) struct Ownership {
    pub(crate) steering: Steering,
    pub(crate) table: BucketTable,
    pub(crate) queue: usize,
    pub(crate) queues: usize,
}

impl Ownership {
    /// Whether every frame is welcome.
    fn is_whole(&self) -> bool {
        self.queues == 1
    }

    fn covers(&self, slot: &Slot) -> bool {
        self.table.queue(self.steering.bucket(slot.head())) == self.queue
    }
}

/// The receiving half of a queue pair over shared memory.
pub struct RxRing {
    slots: Box<[Slot]>,
    half: Option<RxHalf>,
    next_channel: usize,
    peek: usize,
    ownership: Ownership,
    counters: RxCounters,
    handover: Arc<Handover<RxHalf>>,
    seen: u64,
    /// Since when a further generation waits for this one to be read to its end.
    changing: Option<Instant>,
    complaints: Arc<Complaints>,
    sleeps: u64,
    armed: bool,
    /// A change was seen whose wake-up is still to be taken, or else no sleep would last.
    woken: bool,
    /// Keeps the port attached.
    _port: Arc<dyn Any + Send + Sync>,
}

impl RxRing {
    pub(crate) fn new(
        peek: usize,
        ownership: Ownership,
        handover: Arc<Handover<RxHalf>>,
        complaints: Arc<Complaints>,
        port: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            slots: (0..BURST_MAX).map(|_| Slot::new()).collect(),
            half: None,
            next_channel: 0,
            peek: peek.clamp(64, HEAD_MAX),
            ownership,
            counters: RxCounters::default(),
            handover,
            seen: 0,
            changing: None,
            complaints,
            sleeps: 0,
            armed: false,
            woken: false,
            _port: port,
        }
    }

    /// Takes up to [`BURST_MAX`] packets, and gives back what the last call returned.
    #[inline]
    pub fn recv(&mut self) -> Burst<'_> {
        self.counters.polls += 1;
        self.release(false);
        if self.handover.version() != self.seen {
            self.look_for_changes();
        }
        let mut packets = self.fill();
        if packets == 0 {
            if self.changing.is_some() && self.change_over() {
                packets = self.fill();
            }
            self.counters.empty_polls += u64::from(packets == 0);
        }
        if let Some(half) = &mut self.half {
            half.doorbell.found(packets > 0);
        }
        if packets > 0 || self.counters.polls.is_multiple_of(PUBLISH_EVERY) {
            self.publish_counters();
        }
        Burst::new(&mut self.slots[..packets])
    }

    /// Publishes tails, where it is worth it or `now`.
    #[inline(always)]
    fn release(&mut self, now: bool) {
        let Some(half) = &mut self.half else { return };
        for (peer, channel) in half.channels.iter_mut().enumerate() {
            if let Some(tail) = channel.reader.release(now) {
                half.layout.tail(&half.index, peer).store(tail, Ordering::Release);
            }
        }
    }

    #[inline(always)]
    fn fill(&mut self) -> usize {
        let Some(half) = &mut self.half else { return 0 };
        let count = half.channels.len();
        let mut filled = 0;
        for turn in 0..count {
            let channel = &mut half.channels[(self.next_channel + turn) % count];
            let slots = &mut self.slots[filled..];
            let found = if self.ownership.is_whole() {
                channel.reader.fill(&channel.source, slots, self.peek, |_| true)
            } else {
                channel.reader.fill(&channel.source, slots, self.peek, |slot| self.ownership.covers(slot))
            };
            filled += found.packets;
            self.counters.bytes += found.bytes;
            self.counters.invalid += found.unwanted;
            if channel.reader.broken().is_some() && !channel.complained {
                complain(channel, &half.generation, self.ownership.queue, &self.complaints);
                self.counters.invalid += 1;
            }
            if filled == self.slots.len() {
                break;
            }
        }
        self.next_channel = (self.next_channel + 1) % count;
        self.counters.packets += filled as u64;
        filled
    }

    #[cold]
    fn look_for_changes(&mut self) {
        self.seen = self.handover.version();
        self.woken = true;
        if self.half.is_none() {
            let (half, more) = self.handover.next();
            self.half = half;
            self.changing = more.then(Instant::now);
        } else if self.changing.is_none() && self.handover.waits() {
            self.changing = Some(Instant::now());
        }
    }

    /// Takes the next generation over once the present one is read to its end. The slots are free.
    #[cold]
    fn change_over(&mut self) -> bool {
        let (Some(half), Some(since)) = (&self.half, self.changing) else { return false };
        let last_word = half.generation.fate() == Fate::Dead
            || half.channels.iter().all(RxChannel::is_closed)
            || since.elapsed() > CLOSE_WITHIN;
        // What was published before the last word may have come after the last look.
        if !last_word || half.channels.iter().any(|channel| channel.reader.has_more(&channel.source)) {
            return false;
        }
        let (next, more) = self.handover.next();
        if let Some(old) = std::mem::replace(&mut self.half, next) {
            self.handover.retire(old);
        }
        self.next_channel = 0;
        self.changing = more.then(Instant::now);
        true
    }

    /// Announces that the caller will sleep. True: nothing waits. False: receive first.
    pub fn arm(&mut self) -> bool {
        self.release(true);
        self.publish_counters();
        if self.handover.version() != self.seen {
            return false;
        }
        self.set_asleep(true);
        let nothing = self.handover.version() == self.seen && !self.has_more();
        if nothing {
            self.counters.sleeps += 1;
        } else {
            self.set_asleep(false);
        }
        nothing
    }

    /// Takes the announcement back after waking.
    pub fn disarm(&mut self) {
        if !self.armed {
            return;
        }
        self.set_asleep(false);
        if let Some(half) = &mut self.half {
            half.doorbell.silence();
        }
        if self.woken || self.handover.version() != self.seen {
            self.woken = !self.handover.calm();
        }
    }

    /// Whether a receive would find something. Costs a look at each channel's head.
    pub fn has_more(&self) -> bool {
        let channels = self.half.iter().flat_map(|half| &half.channels);
        channels.into_iter().any(|channel| channel.reader.has_more(&channel.source))
    }

    fn set_asleep(&mut self, asleep: bool) {
        if self.armed != asleep {
            self.armed = asleep;
            self.sleeps += 1;
        }
        if let Some(half) = &self.half {
            half.layout.sleep(&half.index).store(self.sleeps, Ordering::Release);
        }
        fence(Ordering::SeqCst);
    }

    /// What becomes readable when an armed queue has something to do.
    pub fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        let doorbell = self.half.as_ref().and_then(|half| half.doorbell.listen());
        std::iter::once(self.handover.wake_fd()).chain(doorbell.map(AsFd::as_fd)).collect()
    }

    /// What this half has counted.
    pub fn counters(&self) -> RxCounters {
        self.counters
    }

    #[inline(always)]
    fn publish_counters(&self) {
        let Some(half) = &self.half else { return };
        let RxCounters { packets, bytes, polls, empty_polls, invalid, sleeps } = self.counters;
        for (n, value) in [packets, bytes, polls, empty_polls, invalid, sleeps].into_iter().enumerate() {
            half.layout.rx_counter(&half.index, n).store(value, Ordering::Relaxed);
        }
    }
}

impl RxChannel {
    fn is_closed(&self) -> bool {
        let (layout, queue) = self.peer_layout;
        let word: &AtomicU64 = layout.closed(&self.peer, queue);
        self.reader.broken().is_some() || word.load(Ordering::Acquire) != 0
    }
}

#[cold]
fn complain(channel: &mut RxChannel, generation: &Generation, queue: usize, complaints: &Complaints) {
    channel.complained = true;
    if let Some(violation) = channel.reader.broken() {
        complaints.add(Complaint { generation: generation.number, queue: queue as u16, violation });
    }
}
