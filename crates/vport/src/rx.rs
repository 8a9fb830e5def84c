//! The receiving half of a queue pair: polls one channel for each queue of the peer.

mod channel;
mod half;
pub(crate) mod ownership;

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(crate) use self::channel::RxChannel;
use self::channel::{By, complain};
pub(crate) use self::half::RxHalf;
pub(crate) use self::ownership::Ownership;
use crate::counters::RxCounters;
use crate::generations::Generations;
use crate::handover::{Complaints, Handover};
use crate::held::{Held, Places};
use crate::lent::Lent;
use crate::packet::{BURST_MAX, Burst, Coming, HEAD_MAX, LONG_BURST_MAX, Slot};
use crate::registers::{self, Registers};
use crate::ring::Violation;
use crate::steering::Steering;
use crate::sync::full_fence;

/// How long a burst of a sender lasts at most while an epoch waits for its end: a living one needs microseconds, one that
/// the system has put aside some milliseconds, on a busy host more. Tests on a busy machine, and models, can take any time.
const BURST_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 5 });
/// What the time between two looks counts for at most: where this process was put aside, so may the sender have been.
const LOOK_COUNTS: Duration = Duration::from_millis(10);

/// A wait for the end of a burst.
#[derive(Debug)]
struct HeldUp {
    last: Instant,
    watched: Duration,
}

impl HeldUp {
    fn begin() -> Self {
        Self { last: Instant::now(), watched: Duration::ZERO }
    }

    /// Looks again: for how long it was watched by now.
    fn look(&mut self) -> Duration {
        let now = Instant::now();
        self.watched += now.duration_since(self.last).min(LOOK_COUNTS);
        self.last = now;
        self.watched
    }
}

/// The receiving half of a queue pair over shared memory.
pub struct RxRing {
    slots: Box<[Slot]>,
    lent: Box<Lent>,
    places: Box<Places>,
    /// Position behind the last packet that [`RxRing::recv_held`] has received, until all up to there is given back.
    held_to: Option<u64>,
    generations: Generations,
    peek: usize,
    ownership: Ownership,
    counters: RxCounters,
    handover: Arc<Handover<RxHalf>>,
    seen: u64,
    complaints: Arc<Complaints>,
    sleeps: u64,
    armed: bool,
    /// Wake-ups that were taken. While there are others, no sleep lasts.
    woken: u64,
    /// Since when a sender in a burst keeps this queue from crossing an epoch.
    held_up: Option<HeldUp>,
    registers: Registers,
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
            lent: Box::new(Lent::new()),
            places: Box::new(Places::new()),
            held_to: None,
            generations: Generations::default(),
            peek: peek.clamp(64, HEAD_MAX),
            ownership,
            counters: RxCounters::default(),
            handover,
            seen: 0,
            complaints,
            sleeps: 0,
            armed: false,
            woken: 0,
            held_up: None,
            registers: Registers::here(),
            _port: port,
        }
    }

    /// From here on [`RxRing::recv`] takes up to so many packets where they stay where their sender put them: [`BURST_MAX`] to
    /// [`LONG_BURST_MAX`].
    pub fn set_burst_max(&mut self, packets: usize) {
        let most = packets.clamp(BURST_MAX, LONG_BURST_MAX);
        if self.slots.len() < most {
            self.slots = (0..most).map(|_| Slot::new()).collect();
        }
        self.lent.set_most(most);
    }

    /// Takes up to [`BURST_MAX`] packets, or as many as were asked for, and gives back what the last call returned. Nothing while
    /// packets are held.
    #[inline]
    pub fn recv(&mut self) -> Burst<'_> {
        registers::dispatch!(self.registers, self.receive())
    }

    #[inline(always)]
    fn receive(&mut self) -> Burst<'_> {
        if self.held_to.is_some() {
            return Burst::new(&mut []);
        }
        self.counters.polls += 1;
        self.lent.clear();
        let (packets, coming) = match self.receive_from_one() {
            Some(received) => received,
            None => (self.receive_from_several(), None),
        };
        Burst::with_lent(&mut self.slots[..packets], self.lent.if_any()).before(coming)
    }

    /// Receives where all comes by one channel and nothing is to change: how many packets, and what comes behind them.
    #[inline(always)]
    fn receive_from_one(&mut self) -> Option<(usize, Option<Coming>)> {
        let is_to_change = self.handover.version() != self.seen;
        let half = self.generations.only().filter(|_| !is_to_change)?;
        let by = By { peek: self.peek, ownership: &self.ownership, complaints: &self.complaints };
        half.receive(&mut self.slots[..BURST_MAX], &mut self.lent, &by, &mut self.counters)
    }

    /// Receives from several channels, or generations one after the other. Apart, so that it costs those who receive from one
    /// channel nothing.
    #[inline(never)]
    fn receive_from_several(&mut self) -> usize {
        self.release(false);
        if self.handover.version() != self.seen {
            self.look_for_changes();
        }
        let packets = registers::dispatch!(self.registers, self.fill());
        self.polled(packets);
        packets
    }

    /// Takes up to [`BURST_MAX`] packets which stay where their sender put them until [`RxQueue::give_back`], and which the caller will
    /// spread by `steering`. None where that is not possible, which may change with the peer: then nothing is held.
    ///
    /// It is possible where one queue of a peer that copies sends here. What comes of another process of the peer waits until
    /// everything is given back.
    ///
    /// [`RxQueue::give_back`]: RxRing::give_back
    #[inline]
    pub fn recv_held(&mut self, steering: Steering) -> Option<Held<'_>> {
        registers::dispatch!(self.registers, self.hold(steering))
    }

    #[inline(always)]
    fn hold(&mut self, steering: Steering) -> Option<Held<'_>> {
        let (is_to_change, is_holding) = (self.handover.version() != self.seen, self.held_to.is_some());
        if !is_holding {
            self.lent.clear();
            self.release(false);
            if is_to_change {
                self.look_for_changes();
            }
        }
        if !self.can_hold() {
            return None;
        }
        self.counters.polls += 1;
        let packets = if is_to_change && is_holding { 0 } else { self.fill_held(steering) };
        self.polled(packets);
        let channel = &self.generations.newest.as_ref()?.channels[0];
        let ((_, mapping), end) = (channel.inlet.places()?, channel.inlet.tail());
        if packets > 0 {
            self.held_to = Some(end);
        }
        Some(Held::new(packets, &self.places, mapping, end, self.registers))
    }

    #[inline(always)]
    fn can_hold(&self) -> bool {
        let channels = self.generations.newest.as_ref().map(|half| &half.channels[..]);
        self.generations.is_single() && matches!(channels, Some([channel]) if channel.inlet.places().is_some())
    }

    #[inline(always)]
    fn fill_held(&mut self, steering: Steering) -> usize {
        let Some(half) = &mut self.generations.newest else { return 0 };
        let by = By { peek: self.peek, ownership: &self.ownership, complaints: &self.complaints };
        half.channels[0].fill_held(
            &half.generation,
            steering,
            (&mut self.slots[..BURST_MAX], &mut self.places),
            &by,
            &mut self.counters,
        )
    }

    /// Gives what is held back to the sender, up to a position that a [`Held`] has said the end of.
    #[inline]
    pub fn give_back(&mut self, position: u64) {
        let Some(RxHalf { channels, layout, index, .. }) = &mut self.generations.newest else { return };
        let [channel] = &mut channels[..] else { return };
        if let Some(tail) = channel.inlet.release_to(position) {
            layout.tail(index, 0).store(tail, Ordering::Release);
        }
        let to_tail = |from: u64| channel.inlet.tail().wrapping_sub(from);
        self.held_to = self.held_to.filter(|held_to| to_tail(position) > to_tail(*held_to));
    }

    /// Ends a receive that found so many packets.
    #[inline(always)]
    fn polled(&mut self, packets: usize) {
        match &mut self.generations.newest {
            Some(half) => half.polled(packets, &mut self.counters),
            None => self.counters.empty_polls += u64::from(packets == 0),
        }
    }

    /// Publishes tails, where it is worth it or `now`.
    #[inline(always)]
    fn release(&mut self, now: bool) {
        if let Some(half) = &mut self.generations.newest {
            half.release(now);
        }
    }

    #[inline(always)]
    fn fill(&mut self) -> usize {
        let Some(half) = self.generations.only() else { return self.fill_in_order() };
        let by = By { peek: self.peek, ownership: &self.ownership, complaints: &self.complaints };
        half.fill(&mut self.slots[..BURST_MAX], &by, &mut self.counters)
    }

    /// Fills from all generations. Those whose senders wait for their ends to be read are told at once.
    #[cold]
    fn fill_in_order(&mut self) -> usize {
        self.generations.iter_mut().for_each(|half| half.release(true));
        self.generations.advance(|ended| {
            self.handover.retire(ended);
            self.complaints.ring();
        });
        self.handover.set_unread(self.generations.unread());
        let by = By { peek: self.peek, ownership: &self.ownership, complaints: &self.complaints };
        let mut filled = 0;
        for half in self.generations.iter_mut() {
            filled += half.fill(&mut self.slots[filled..BURST_MAX], &by, &mut self.counters);
        }
        self.generations.iter_mut().for_each(|half| half.doorbell.found(filled > 0));
        filled
    }

    #[cold]
    fn look_for_changes(&mut self) {
        self.seen = self.handover.version();
        while let Some(half) = self.handover.next() {
            self.generations.begin(half);
        }
        self.handover.set_unread(self.generations.unread());
        if let Some(epoch) = self.ownership.cell.to_cross() {
            if self.is_past(epoch) {
                self.ownership.cell.cross(epoch);
                self.held_up = None;
            } else {
                // Look again at the next receive.
                self.seen = self.seen.wrapping_sub(1);
            }
        }
    }

    /// Whether everything of epochs before `epoch` was delivered, and the caller is done with it.
    fn is_past(&mut self, epoch: u64) -> bool {
        if !self.handover.all_waiting(|half| half.epoch >= epoch) {
            return false;
        }
        let (mut past, mut held_up) = (true, false);
        for half in self.generations.iter_mut().filter(|half| half.epoch < epoch) {
            for channel in &mut half.channels {
                past &= channel.is_past(epoch, &half.generation);
                held_up |= channel.is_held_up();
                if channel.given_up.is_some() && !channel.complained {
                    complain(channel, &half.generation, self.ownership.queue, &self.complaints);
                    self.counters.invalid += 1;
                }
            }
        }
        if !held_up {
            self.held_up = None;
        } else if self.held_up.get_or_insert_with(HeldUp::begin).look() > BURST_WITHIN {
            // Said at the next look.
            let halves = self.generations.iter_mut().filter(|half| half.epoch < epoch);
            for channel in halves.flat_map(|half| &mut half.channels).filter(|channel| channel.is_held_up()) {
                channel.given_up = Some(Violation::EndlessBurst);
            }
        }
        past
    }

    /// Announces that the caller will sleep. True: nothing waits. False: receive first.
    pub fn arm(&mut self) -> bool {
        if self.held_to.is_some() {
            return false;
        }
        self.release(true);
        self.publish_counters();
        if self.handover.version() != self.seen {
            return false;
        }
        self.generations.iter_mut().for_each(|half| half.doorbell.silence());
        self.set_asleep(true);
        full_fence();
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
        self.generations.iter_mut().for_each(|half| half.doorbell.wake());
        if self.handover.wakes() != self.woken {
            self.woken += self.handover.calm();
        }
    }

    /// Whether a receive would find something. Costs a look at each channel's head.
    pub fn has_more(&self) -> bool {
        self.generations
            .iter()
            .flat_map(|half| &half.channels)
            .any(|channel| !channel.is_paused(&self.ownership.cell) && channel.has_more())
    }

    /// Whether nothing more comes than waits: everybody who has sent here has closed what he sent by, or is gone. So it is with a
    /// port that another process has taken over.
    pub fn is_closed(&self) -> bool {
        let mut halves = self.generations.iter().peekable();
        halves.peek().is_some() && halves.all(RxHalf::is_closed) && self.handover.all_waiting(|_| false)
    }

    /// The same, and nothing waits.
    pub fn is_over(&self) -> bool {
        self.is_closed() && !self.generations.iter().any(RxHalf::has_more)
    }

    fn set_asleep(&mut self, asleep: bool) {
        if self.armed != asleep {
            self.armed = asleep;
            self.sleeps += 1;
        }
        for half in self.generations.iter() {
            half.layout.sleep(&half.index).store(self.sleeps, Ordering::Release);
        }
        self.handover.set_asleep(asleep);
    }

    /// What becomes readable when an armed queue has something to do.
    pub fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        let doorbells = self.generations.iter().filter_map(|half| half.doorbell.listen());
        std::iter::once(self.handover.wake_fd()).chain(doorbells.map(AsFd::as_fd)).collect()
    }

    /// What this half has counted.
    pub fn counters(&self) -> RxCounters {
        self.counters
    }

    fn publish_counters(&self) {
        if let Some(half) = &self.generations.newest {
            half.publish_counters(&self.counters);
        }
    }
}

impl Drop for RxRing {
    /// Nobody waits for a queue that nobody receives on.
    fn drop(&mut self) {
        drop(self.handover.abandon());
        self.ownership.cell.cross(u64::MAX);
    }
}
