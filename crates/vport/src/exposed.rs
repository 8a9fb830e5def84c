//! Zero-copy channels by themselves, over memory of this process of which every word can be written: for tests, and for
//! the fuzz target `descriptors`, which plays the other end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::arena::{Arena, BUFFER_BYTES, Buffers, Entries, HOLDER_BYTES};
use crate::giver::Giver;
use crate::latency::{Histogram, Latency};
use crate::layout::{Heads, Index};
use crate::lent::Lent;
use crate::mapping::Mapping;
use crate::packet::{Burst, LONG_BURST_MAX, PacketRef, Slot};
use crate::reader::{Filled, Wanted};
use crate::ring::Violation;
use crate::segment::PAGE;
use crate::sync::AtomicU64;
use crate::taker::Taker;

const HEAD: usize = 128;
const STAMP: usize = HEAD + 32;
const TAIL: usize = 256;
/// Bytes around the rings that nobody may write.
const MARGIN: usize = 512;

/// An arena that belongs to nobody else.
#[derive(Clone)]
pub struct Commons {
    arena: Arc<Arena>,
    buffers: Buffers,
    /// What nobody may write: behind the last buffer, and behind its holder.
    behind: [*const u8; 2],
}

impl Commons {
    /// An arena of `count` buffers, all held by 0.
    pub fn new(count: u32) -> Self {
        let pages = |bytes: usize| Mapping::anonymous((bytes + MARGIN).next_multiple_of(PAGE)).expect("memory");
        let (frames_bytes, holders_bytes) = (count as usize * BUFFER_BYTES, count as usize * HOLDER_BYTES);
        let (frames, holders) = (pages(frames_bytes), pages(holders_bytes));
        let behind = [frames.area(frames_bytes, MARGIN), holders.area(holders_bytes, MARGIN)];
        let arena = Arc::new(Arena::new(frames, holders, count));
        let buffers = arena.view(arena.clone()).buffers();
        Self { arena, buffers, behind }
    }

    /// Who holds a buffer.
    ///
    /// # Panics
    /// If there is no such buffer.
    pub fn holder(&self, buffer: u32) -> u16 {
        assert!(buffer < self.buffers.count());
        self.buffers.holder(buffer)
    }

    /// Gives a buffer to somebody.
    ///
    /// # Panics
    /// If there is no such buffer.
    pub fn set_holder(&self, buffer: u32, id: u16) {
        assert!(buffer < self.buffers.count());
        self.buffers.set_holder(buffer, id);
    }

    /// Where a buffer begins.
    ///
    /// # Panics
    /// If there is no such buffer.
    pub fn start(&self, buffer: u32) -> *const u8 {
        assert!(buffer < self.buffers.count());
        self.buffers.start(buffer)
    }

    /// Whether somebody wrote behind the last buffer, or behind its holder.
    pub fn is_overrun(&self) -> bool {
        // SAFETY: mapped as long as the arena, and nobody writes it; that is what is checked, by one thread.
        self.behind
            .iter()
            .any(|behind| unsafe { core::slice::from_raw_parts(*behind, MARGIN) }.iter().any(|byte| *byte != 0))
    }
}

/// Everything that the ends of a channel share but the arena.
#[derive(Clone)]
pub struct Words {
    entries: Entries,
    index: Arc<Mapping>,
    records: Arc<Mapping>,
}

impl Words {
    /// What the sender has published.
    pub fn head(&self) -> &AtomicU64 {
        self.index.word(HEAD)
    }

    /// When the sender published something.
    pub fn stamp(&self) -> &AtomicU64 {
        self.index.word(STAMP)
    }

    /// What the receiver has published.
    pub fn tail(&self) -> &AtomicU64 {
        tail_word(&self.index)
    }

    /// The descriptor of a position.
    pub fn descriptor(&self, at: u64) -> &AtomicU64 {
        self.records.word(MARGIN + self.entries.index(at) * 8)
    }

    /// The return of a position.
    pub fn returned(&self, at: u64) -> u32 {
        let (word, shift) = self.return_of(at);
        (word.load(Ordering::Relaxed) >> shift) as u32
    }

    /// Writes the return of a position.
    pub fn set_returned(&self, at: u64, buffer: u32) {
        let (word, shift) = self.return_of(at);
        let other = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        word.store(other | u64::from(buffer) << shift, Ordering::Relaxed);
    }

    fn return_of(&self, at: u64) -> (&AtomicU64, usize) {
        let index = self.entries.index(at);
        (self.records.word(self.returns() + index / 2 * 8), index % 2 * 32)
    }

    fn returns(&self) -> usize {
        2 * MARGIN + self.entries.count() as usize * 8
    }

    /// Whether somebody wrote outside the rings, or beside head, stamp and tail.
    pub fn is_overrun(&self) -> bool {
        let count = self.entries.count() as usize;
        let (descriptors, returns) = (MARGIN..MARGIN + count * 8, self.returns()..self.returns() + count * 4);
        let written = |mapping: &Mapping, at: usize| mapping.word(at).load(Ordering::Relaxed) != 0;
        let end = returns.end + MARGIN;
        let mut beside_rings = (0..end).step_by(8).filter(|at| !descriptors.contains(at) && !returns.contains(at));
        let mut beside_index = (0..PAGE).step_by(8).filter(|at| ![HEAD, STAMP, TAIL].contains(at));
        beside_rings.any(|at| written(&self.records, at)) || beside_index.any(|at| written(&self.index, at))
    }
}

fn heads(index: &Mapping) -> Heads<'_> {
    Heads::at(index, HEAD)
}

fn tail_word(index: &Mapping) -> &AtomicU64 {
    index.word(TAIL)
}

/// Both ends of a channel, and the slots of whoever receives.
pub struct Exposed {
    words: Words,
    giver: Giver,
    taker: Taker,
    /// The receiver's index segment, for what it counts.
    own: Arc<Mapping>,
    slots: Vec<Slot>,
    lent: Lent,
    /// Packets of the last burst.
    filled: usize,
}

impl Exposed {
    /// A channel with `count` buffers (a power of two) from `first` on, between a sender and a receiver of such ids.
    ///
    /// # Panics
    /// If `count` is no power of two, or the arena has fewer buffers.
    pub fn new(commons: &Commons, count: u64, first: u32, ids: (u16, u16)) -> Self {
        let entries = Entries::new(count).expect("a power of two");
        let records_bytes = 3 * MARGIN + count as usize * 12;
        let records = Arc::new(Mapping::anonymous(records_bytes.next_multiple_of(PAGE)).expect("memory"));
        let index = Arc::new(Mapping::anonymous(PAGE).expect("memory"));
        let words = Words { entries, index: index.clone(), records: records.clone() };
        for (at, buffer) in (0..count).zip(first..) {
            commons.set_holder(buffer, ids.0);
            words.set_returned(at, buffer);
        }
        let view = || commons.arena.view(commons.arena.clone());
        let (descriptors, returns) = ((&records, MARGIN), (&records, words.returns()));
        let giver = Giver::new(entries, view(), ids, descriptors, (&index, heads), returns, (&index, tail_word));
        let layout = Index::new(1);
        let own = Arc::new(Mapping::anonymous(layout.bytes()).expect("memory"));
        let taker = Taker::new(entries, view(), (ids.1, ids.0), descriptors, (&index, heads), returns);
        let taker = taker.with_latency(Histogram::new(layout, &own));
        let slots = (0..LONG_BURST_MAX).map(|_| Slot::new()).collect();
        Self { words, giver, taker, own, slots, lent: Lent::new(), filled: 0 }
    }

    /// The memory.
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// The receiver takes up to `most` frames into its slots.
    pub fn fill(&mut self, most: usize, peek: usize, wanted: impl FnMut(&Slot, u64) -> Wanted) -> Filled {
        self.lent.clear();
        let filled = self.taker.fill(&mut self.slots[..most], peek, wanted);
        self.filled = filled.packets as usize;
        filled
    }

    /// The receiver takes up to `most` frames, all of which it wants, and leaves their slots as they are.
    pub fn lend(&mut self, most: usize, peek: usize) -> Filled {
        self.lent.clear();
        self.lent.set_most(most);
        let filled = self.taker.lend(&mut self.lent, peek);
        self.filled = filled.packets as usize;
        filled
    }

    /// The receiver has heard of a head elsewhere.
    #[cfg(test)]
    pub(crate) fn read_up_to(&mut self, position: u64) {
        self.taker.read_up_to(position);
    }

    /// What the receiver took last.
    pub fn burst(&mut self) -> Burst<'_> {
        Burst::with_lent(&mut self.slots[..self.filled], self.lent.if_any())
    }

    /// The receiver publishes its tail, if `now` or if it is time.
    pub fn release(&mut self, now: bool) -> Option<u64> {
        let tail = self.taker.release(now)?;
        self.words.tail().store(tail, Ordering::Release);
        Some(tail)
    }

    /// Where the receiver is, and the rule that it saw broken.
    pub fn taken(&self) -> (u64, Option<Violation>) {
        (self.taker.tail(), self.taker.broken())
    }

    /// How long frames were on their way, as the receiver counted it.
    pub fn latency(&self) -> Latency {
        Latency::read(Index::new(1), &self.own)
    }

    /// The sender writes descriptors. Returns how many packets need no further thought: sent, or never to be sent.
    pub fn push(&mut self, packets: &[PacketRef<'_>]) -> usize {
        self.giver.push_burst(packets).done()
    }

    /// The sender writes the descriptors of a burst that came by another channel, from number `from` on. None, and nothing
    /// done, where that cannot be; otherwise how many.
    pub fn push_on(&mut self, burst: &Burst<'_>, from: usize) -> Option<usize> {
        let (words, place) = burst.lent_from(from)?;
        Some(self.giver.push_lent(words, place)?.done())
    }

    /// The sender publishes its head. False if that is nothing new.
    pub fn publish(&mut self) -> bool {
        self.giver.publish()
    }

    /// What the sender has published, and the rule that it saw broken.
    pub fn given(&self) -> (u64, Option<Violation>) {
        (self.giver.published(), self.giver.broken())
    }
}
