//! One generation of the receiving half: a channel for each queue of the peer, looked at in turn.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::channel::{By, RxChannel};
use crate::counters::RxCounters;
use crate::doorbell::Doorbell;
use crate::handover::Generation;
use crate::layout::Index;
use crate::lent::Lent;
use crate::mapping::Mapping;
use crate::packet::{Coming, Slot};

/// Every how many polls the poll counters are published.
const PUBLISH_EVERY: u64 = 256;

/// One generation of the receiving half.
#[derive(Debug)]
pub(crate) struct RxHalf {
    pub(crate) generation: Arc<Generation>,
    pub(crate) channels: Vec<RxChannel>,
    /// The channel that is looked at first.
    pub(crate) next_channel: usize,
    /// Own index segment.
    pub(crate) index: Arc<Mapping>,
    pub(crate) layout: Index,
    pub(crate) doorbell: Doorbell,
    /// The epoch of the table that senders began with.
    pub(crate) epoch: u64,
}

impl RxHalf {
    /// Whether it can be done without a queue that reads it: nothing waits, and nothing more will.
    pub(crate) fn is_void(&self) -> bool {
        self.is_closed() && !self.has_more()
    }

    /// Whether nothing more comes than waits.
    pub(crate) fn is_closed(&self) -> bool {
        let dead = |channel: &RxChannel| self.generation.is_dead(channel.from);
        self.channels.iter().all(|channel| dead(channel) || channel.is_closed())
    }

    pub(crate) fn has_more(&self) -> bool {
        self.channels.iter().any(RxChannel::has_more)
    }

    #[inline(always)]
    pub(super) fn release(&mut self, now: bool) {
        for (peer, channel) in self.channels.iter_mut().enumerate() {
            if let Some(tail) = channel.inlet.release(now | channel.dry) {
                self.layout.tail(&self.index, peer).store(tail, Ordering::Release);
            }
        }
    }

    /// Gives back what the last call has taken, and receives from the only channel there is: how many packets, and what comes behind
    /// them. None, and nothing done, where there are several.
    #[inline(always)]
    pub(super) fn receive(
        &mut self,
        slots: &mut [Slot],
        lent: &mut Lent,
        by: &By<'_>,
        counters: &mut RxCounters,
    ) -> Option<(usize, Option<Coming>)> {
        let [channel] = &mut self.channels[..] else { return None };
        if let Some(tail) = channel.inlet.release(false) {
            self.layout.tail(&self.index, 0).store(tail, Ordering::Release);
        }
        let packets = channel.fill(&self.generation, slots, Some(lent), by, counters);
        let coming = channel.inlet.coming(packets);
        self.polled(packets, counters);
        Some((packets, coming))
    }

    /// Fills slots from all channels in turn.
    #[inline(always)]
    pub(super) fn fill(&mut self, slots: &mut [Slot], by: &By<'_>, counters: &mut RxCounters) -> usize {
        let count = self.channels.len();
        // Not by a remainder: divisions are slow.
        let after = |at: usize| if at + 1 < count { at + 1 } else { 0 };
        let (mut filled, mut at) = (0, self.next_channel);
        for _ in 0..count {
            let channel = &mut self.channels[at];
            at = after(at);
            let slots = &mut slots[filled..];
            let room = slots.len();
            let found = channel.fill(&self.generation, slots, None, by, counters);
            if channel.turn {
                channel.dry = found < room;
            }
            filled += found;
            if found == room {
                break;
            }
        }
        self.next_channel = after(self.next_channel);
        filled
    }

    /// Ends a receive that found so many packets.
    #[inline(always)]
    pub(super) fn polled(&mut self, packets: usize, counters: &mut RxCounters) {
        counters.empty_polls += u64::from(packets == 0);
        self.doorbell.found(packets > 0);
        if packets > 0 || counters.polls.is_multiple_of(PUBLISH_EVERY) {
            self.publish_counters(counters);
        }
    }

    #[inline(always)]
    pub(super) fn publish_counters(&self, counters: &RxCounters) {
        let RxCounters { packets, bytes, polls, empty_polls, invalid, sleeps } = *counters;
        let words = self.layout.rx_counters(&self.index).iter();
        let values = [packets, bytes, polls, empty_polls, invalid, sleeps];
        words.zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }
}
