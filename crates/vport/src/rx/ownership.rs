//! Which frames a queue takes: those of buckets that are its own, as far as it can see where their sender stands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cell::{Cell, has};
use crate::epoch::{Crossing, Sender};
use crate::handover::Generation;
use crate::layout::Index;
use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, Slot};
use crate::reader::Wanted;
use crate::steering::Steering;

/// Which frames may come in by this queue.
#[derive(Debug)]
pub(crate) struct Ownership {
    pub(crate) steering: Steering,
    pub(crate) cell: Arc<Cell>,
    pub(crate) queue: usize,
    pub(crate) queues: usize,
}

impl Ownership {
    /// Whether every frame is welcome.
    pub(super) fn is_whole(&self) -> bool {
        self.queues == 1
    }

    /// Whether all these frames, of one burst, are this queue's: then they are counted.
    #[inline(always)]
    pub(crate) fn owns_all(&self, slots: &[Slot]) -> bool {
        // A loop for each kind, so that none asks for the kind.
        match self.steering {
            Steering::Teid => self.owns_all_by(Steering::Teid, slots),
            Steering::UeAddress => self.owns_all_by(Steering::UeAddress, slots),
            other => self.owns_all_by(other, slots),
        }
    }

    #[inline(always)]
    fn owns_all_by(&self, steering: Steering, slots: &[Slot]) -> bool {
        let (owned, mut buckets, mut owns_all) = (self.cell.owned(), [0; BURST_MAX], true);
        for (slot, bucket) in slots.iter().zip(&mut buckets) {
            *bucket = steering.bucket(slot.head());
            owns_all &= has(&owned, *bucket);
        }
        if owns_all {
            for bucket in &buckets[..slots.len()] {
                self.cell.count(*bucket);
            }
        }
        owns_all
    }

    /// Whether a frame at `position` of a channel is this queue's.
    #[inline(always)]
    pub(super) fn judge(&self, slot: &Slot, position: u64, sight: &Sight<'_>, halt: &mut Halt<'_>) -> Wanted {
        let bucket = self.steering.bucket(slot.head());
        if self.cell.owns(bucket) {
            self.cell.count(bucket);
            return Wanted::Yes;
        }
        self.judge_foreign(bucket, position, sight, halt)
    }

    /// A bucket that is on its way is waited for, if its frame comes by the new table.
    #[cold]
    fn judge_foreign(&self, bucket: u8, position: u64, sight: &Sight<'_>, halt: &mut Halt<'_>) -> Wanted {
        if !self.cell.awaits(bucket) {
            // It may have arrived just now.
            return if self.cell.owns(bucket) { Wanted::NotYet } else { Wanted::No };
        }
        if !halt.crossing.is_behind(self.cell.epoch(), sight, position) {
            return Wanted::No;
        }
        *halt.paused = Some(bucket);
        Wanted::NotYet
    }
}

/// Where a channel may have to wait, and for which bucket it does.
pub(super) struct Halt<'a> {
    pub(super) crossing: &'a mut Crossing,
    pub(super) paused: &'a mut Option<u8>,
}

/// A channel's sender, as a queue sees it.
pub(super) struct Sight<'a> {
    pub(super) generation: &'a Generation,
    /// The peer's queue.
    pub(super) from: usize,
    pub(super) peer: &'a Mapping,
    /// The peer's layout, and this queue's number in it.
    pub(super) layout: (Index, usize),
}

impl Sender for Sight<'_> {
    fn is_over(&self) -> bool {
        let (layout, queue) = self.layout;
        self.generation.is_dead(self.from) || layout.closed(self.peer, queue).load(Ordering::Acquire) != 0
    }

    fn burst(&self) -> u64 {
        self.layout.0.burst(self.peer).load(Ordering::Acquire)
    }

    fn head(&self) -> u64 {
        let (layout, queue) = self.layout;
        layout.head(self.peer, queue).load(Ordering::Acquire)
    }

    fn epoch(&self) -> u64 {
        self.layout.0.epoch(self.peer).load(Ordering::Acquire)
    }

    fn mark(&self) -> u64 {
        let (layout, queue) = self.layout;
        layout.mark(self.peer, queue).load(Ordering::Acquire)
    }
}
