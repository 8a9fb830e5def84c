//! What comes from one queue of the peer: taken as far as it is this queue's, counted, and complained of once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ownership::{Halt, Ownership, Sight};
use crate::cell::Cell;
use crate::channel::Inlet;
use crate::counters::RxCounters;
use crate::epoch::{Crossing, reaches};
use crate::handover::{Complaint, Complaints, Generation};
use crate::held::{Place, Places};
use crate::layout::Index;
use crate::lent::Lent;
use crate::mapping::Mapping;
use crate::packet::Slot;
use crate::reader::{Filled, Wanted};
use crate::ring::Violation;
use crate::steering::Steering;
use crate::sync::AtomicU64;

/// What comes from one queue of the peer.
#[derive(Debug)]
pub(crate) struct RxChannel {
    pub(crate) inlet: Inlet,
    /// The peer's queue.
    pub(crate) from: usize,
    /// The peer's index segment, for its mark that it has closed the channel.
    pub(crate) peer: Arc<Mapping>,
    /// Its layout, and this queue's number in it.
    pub(crate) peer_layout: (Index, usize),
    pub(crate) complained: bool,
    pub(crate) crossing: Crossing,
    /// The next record is of this bucket, which has not arrived yet.
    pub(crate) paused: Option<u8>,
    /// The last look found the ring's end, and other channels may be waited for by those who write to this one.
    pub(crate) dry: bool,
    /// Broke a rule that the reader does not know of: nothing more is read.
    pub(crate) given_up: Option<Violation>,
    /// Where it ends, from when its sender has said its last word.
    end: Option<u64>,
    /// Nothing of an earlier generation is to be taken first.
    pub(crate) turn: bool,
    /// Nothing more is to be taken.
    pub(crate) ended: bool,
}

/// With what a half fills slots.
pub(super) struct By<'a> {
    pub(super) peek: usize,
    pub(super) ownership: &'a Ownership,
    pub(super) complaints: &'a Complaints,
}

impl RxChannel {
    /// What queue `queue` receives from queue `from` of a peer with these index segments.
    pub(crate) fn new(inlet: Inlet, from: usize, peer: Arc<Mapping>, peer_layout: Index, queue: usize) -> Self {
        Self {
            inlet,
            from,
            peer,
            peer_layout: (peer_layout, queue),
            complained: false,
            crossing: Crossing::default(),
            paused: None,
            dry: false,
            given_up: None,
            end: None,
            turn: true,
            ended: false,
        }
    }

    /// Takes frames, and counts them.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        generation: &Generation,
        slots: &mut [Slot],
        lent: Option<&mut Lent>,
        by: &By<'_>,
        counters: &mut RxCounters,
    ) -> usize {
        if !self.turn {
            return 0;
        }
        let filled = if by.ownership.is_whole() {
            self.inlet.fill_all(slots, lent, by.peek)
        } else {
            self.fill_owned(generation, slots, by)
        };
        self.filled(filled, generation, by, counters)
    }

    /// Takes frames which stay where they are, notes where that is, and counts them.
    #[inline(always)]
    pub(super) fn fill_held(
        &mut self,
        generation: &Generation,
        steering: Steering,
        (slots, noted): (&mut [Slot], &mut Places),
        by: &By<'_>,
        counters: &mut RxCounters,
    ) -> usize {
        let (true, Some((places, _))) = (self.turn, self.inlet.places()) else { return 0 };
        let filled = if by.ownership.is_whole() {
            self.inlet.fill_unseen(steering, noted.all_mut())
        } else {
            let mut free = noted.all_mut().iter_mut();
            self.fill_judged(generation, slots, by, |slot, at| {
                *free.next().expect("as many as there are slots") = Place::new(places.frame(at), slot.frame_len());
            })
        };
        self.filled(filled, generation, by, counters)
    }

    /// Counts what was taken. How many packets that are.
    #[inline(always)]
    fn filled(&mut self, filled: Filled, generation: &Generation, by: &By<'_>, counters: &mut RxCounters) -> usize {
        let Filled { packets, bytes, unwanted } = filled;
        counters.packets += u64::from(packets);
        counters.bytes += bytes;
        counters.invalid += u64::from(unwanted);
        if self.inlet.broken().is_some() && !self.complained {
            complain(self, generation, by.ownership.queue, by.complaints);
            counters.invalid += 1;
        }
        packets as usize
    }

    /// Takes frames of buckets that are this queue's, up to one whose bucket is still on its way. Nearly always all are: they are
    /// looked at behind the last copy, when what was copied has reached the cache.
    #[inline(always)]
    fn fill_owned(&mut self, generation: &Generation, slots: &mut [Slot], by: &By<'_>) -> Filled {
        if self.paused.is_none() && self.given_up.is_none() {
            let filled = self.inlet.fill_if(
                slots,
                by.peek,
                #[inline(always)]
                |slots| by.ownership.owns_all(slots),
            );
            if let Some(filled) = filled {
                return filled;
            }
        }
        self.fill_judged(generation, slots, by, |_, _| ())
    }

    /// The same frame by frame, and tells their positions.
    #[inline(always)]
    fn fill_judged(
        &mut self,
        generation: &Generation,
        slots: &mut [Slot],
        &By { peek, ownership: mine, .. }: &By<'_>,
        mut taken: impl FnMut(&Slot, u64),
    ) -> Filled {
        if self.is_paused(&mine.cell) || self.given_up.is_some() {
            return Filled::default();
        }
        self.paused = None;
        let sight = Sight { generation, from: self.from, peer: &self.peer, layout: self.peer_layout };
        let mut halt = Halt { crossing: &mut self.crossing, paused: &mut self.paused };
        self.inlet.fill(
            slots,
            peek,
            #[inline(always)]
            |slot, at| {
                let wanted = mine.judge(slot, at, &sight, &mut halt);
                if wanted == Wanted::Yes {
                    taken(slot, at);
                }
                wanted
            },
        )
    }

    pub(super) fn is_past(&mut self, epoch: u64, generation: &Generation) -> bool {
        if self.broken().is_some() {
            return true;
        }
        self.crossing.towards(epoch);
        let sight = Sight { generation, from: self.from, peer: &self.peer, layout: self.peer_layout };
        let past = self.crossing.look(&sight, self.inlet.tail()).unwrap_or_else(|violation| {
            self.given_up = Some(violation);
            true
        });
        if let Some(begins) = self.crossing.begins()
            && !past
        {
            self.inlet.read_up_to(begins);
        }
        past
    }

    /// A change of which no sender was told may be dropped: then nothing is waited for.
    #[inline(always)]
    pub(super) fn is_paused(&self, cell: &Cell) -> bool {
        matches!(self.paused, Some(bucket) if !cell.owns(bucket) && cell.awaits(bucket))
    }

    /// Whether its sender keeps the epoch that it is looked at for from being known.
    pub(super) fn is_held_up(&self) -> bool {
        !self.crossing.is_known() && self.broken().is_none()
    }

    pub(crate) fn has_more(&self) -> bool {
        self.given_up.is_none() && self.inlet.has_more()
    }

    /// Whether all is taken of a channel whose sender has said its last word. What it publishes after the first such look, all
    /// the same, is not waited for.
    pub(crate) fn is_at_end(&mut self) -> bool {
        let end = *self.end.get_or_insert_with(|| self.inlet.head());
        if self.broken().is_some() {
            return true;
        }
        self.inlet.read_up_to(end);
        reaches(self.inlet.tail(), end)
    }

    /// The rule that the sender broke, if it did.
    #[inline(always)]
    fn broken(&self) -> Option<Violation> {
        self.inlet.broken().or(self.given_up)
    }

    /// Whether anything was ever sent on it. Whoever did has closed the channel of the generation before.
    pub(crate) fn has_begun(&self) -> bool {
        self.inlet.head() != 0
    }

    pub(crate) fn is_closed(&self) -> bool {
        let (layout, queue) = self.peer_layout;
        let word: &AtomicU64 = layout.closed(&self.peer, queue);
        self.broken().is_some() || word.load(Ordering::Acquire) != 0
    }
}

#[cold]
pub(super) fn complain(channel: &mut RxChannel, generation: &Generation, queue: usize, complaints: &Complaints) {
    channel.complained = true;
    if let Some(violation) = channel.broken() {
        complaints.add(Complaint { generation: generation.number, queue: queue as u16, violation });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::Handover;
    use crate::layout::RECORDS_PAD;
    use crate::reader::Reader;
    use crate::ring::Ring;
    use crate::source::Mapped;
    use crate::steering::BucketTable;

    /// Of a peer with one queue, and a port with two.
    fn channel() -> RxChannel {
        let (ring, layout) = (Ring::new(4_096).unwrap(), Index::new(2));
        let memory = |bytes| Arc::new(Mapping::anonymous(bytes).unwrap());
        let (records, index) = (memory(ring.size() as usize + RECORDS_PAD), memory(layout.bytes()));
        let source = Mapped::new(ring, &records, 0, &index, |index| layout.heads(index, 0));
        RxChannel::new(Inlet::Records { reader: Reader::new(ring), source }, 0, index, layout, 0)
    }

    #[test]
    fn a_channel_waits_for_a_bucket_only_as_long_as_that_is_on_its_way() {
        let cell = Cell::new(0, &BucketTable::fixed(2), Handover::new().unwrap());
        let mut channel = channel();
        assert!(!channel.is_paused(&cell));
        channel.paused = Some(1);
        cell.await_bucket(1);
        assert!(channel.is_paused(&cell));
        cell.await_none();
        assert!(!channel.is_paused(&cell), "the change was dropped");
        cell.await_bucket(1);
        cell.gain(1);
        assert!(!channel.is_paused(&cell), "it has come");
    }
}
