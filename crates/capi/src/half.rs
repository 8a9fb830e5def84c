//! A receiving half: the port's queue, its sleep, and the burst whose views a function holds.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::time::Duration;

use port::{BURST_MAX, Leave, RxCounters, RxQueue};
use rustix::io::Errno;

use crate::packet::{Held, Packet};
use crate::sleeper::Sleeper;

/// The port's queue, and what of its last burst did not fit where it was to go.
pub(crate) struct Half {
    queue: Box<dyn RxQueue>,
    sleeper: Sleeper,
    /// Those that were not taken, in their places.
    packets: [Packet; BURST_MAX],
    held: [Held; BURST_MAX],
    /// Packets in the last burst, and how many of them were taken.
    found: usize,
    taken: usize,
    /// Since it is being left.
    leave: Option<Leave>,
}

impl Half {
    pub(crate) fn new(queue: Box<dyn RxQueue>) -> Result<Self, Errno> {
        Ok(Self {
            queue,
            sleeper: Sleeper::new()?,
            packets: [Packet::NOTHING; BURST_MAX],
            held: [const { Held::NOTHING }; BURST_MAX],
            found: 0,
            taken: 0,
            leave: None,
        })
    }

    /// Fills `to` with what was kept, or else from the port. Returns how many packets there are.
    #[inline]
    pub(crate) fn take(&mut self, to: &mut [MaybeUninit<Packet>]) -> usize {
        self.disarm();
        if self.taken == self.found && !to.is_empty() {
            return self.receive(to);
        }
        let kept = &self.packets[self.taken..self.found];
        let count = kept.len().min(to.len());
        for (to, packet) in to.iter_mut().zip(kept) {
            to.write(*packet);
        }
        self.taken += count;
        count
    }

    #[expect(unsafe_code, reason = "views outlive the borrow of their burst, in C's hands")]
    fn receive(&mut self, to: &mut [MaybeUninit<Packet>]) -> usize {
        let mut burst = self.queue.recv();
        let found = burst.len().min(BURST_MAX);
        for i in 0..found {
            let mut received = burst.get_mut(i);
            let held = &mut self.held[i];
            // SAFETY: replaced below, or by the next burst, after the only call that receives.
            *held = unsafe { Held::new(received.as_ref().rest) };
            let view = Packet::view(&mut received, held);
            match to.get_mut(i) {
                Some(to) => drop(to.write(view)),
                None => self.packets[i] = view,
            }
        }
        self.end_views(found);
        (self.found, self.taken) = (found, found.min(to.len()));
        self.sleeper.found(found > 0);
        self.taken
    }

    /// Announces a sleep. False: there are packets.
    pub(crate) fn arm(&mut self) -> Result<bool, Errno> {
        if self.taken < self.found {
            return Ok(false);
        }
        self.end_views(0);
        self.sleeper.arm(self.queue.as_mut())
    }

    /// Sleeps until there are packets: true; or the time is over.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Errno> {
        if self.taken < self.found {
            return Ok(true);
        }
        self.end_views(0);
        self.sleeper.wait(self.queue.as_mut(), timeout)
    }

    /// Ends the views of the last burst but for the first `keep`, which are new: one that is used all the same has no rest,
    /// rather than that of memory long gone, or written anew.
    fn end_views(&mut self, keep: usize) {
        self.held.iter_mut().take(self.found).skip(keep).for_each(|held| *held = Held::NOTHING);
    }

    /// Takes the announcement back.
    #[inline]
    pub(crate) fn disarm(&mut self) {
        self.sleeper.disarm(self.queue.as_mut());
    }

    /// Whether the last look for packets found some.
    pub(crate) fn has_found(&self) -> bool {
        self.found > 0
    }

    /// Leaves, from the first call on. Whether nothing is left.
    pub(crate) fn is_left(&mut self) -> bool {
        let found = self.has_found();
        let leave = self.leave.get_or_insert_with(Leave::begin);
        let done = leave.is_done(found, [&*self.queue].into_iter());
        done && (self.taken == self.found || leave.is_overdue())
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.sleeper.fd()
    }

    pub(crate) fn counters(&self) -> RxCounters {
        self.queue.counters()
    }
}
