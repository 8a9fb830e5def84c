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
use crate::packet::Slot;

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
        let dead = |channel: &RxChannel| self.generation.is_dead(channel.from);
        self.channels.iter().all(|channel| dead(channel) || channel.is_closed()) && !self.has_more()
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

    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        slots: &mut [Slot],
        lent: Option<&mut Lent>,
        by: &By<'_>,
        counters: &mut RxCounters,
    ) -> usize {
        if let [channel] = &mut self.channels[..] {
            return channel.fill(&self.generation, slots, lent, by, counters);
        }
        self.fill_from_all(slots, by, counters)
    }

    /// Fills from several channels in turn.
    fn fill_from_all(&mut self, slots: &mut [Slot], by: &By<'_>, counters: &mut RxCounters) -> usize {
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
}
