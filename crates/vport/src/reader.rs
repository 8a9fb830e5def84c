//! The reading end of one channel. Trusts neither positions nor headers nor that bytes stay what they were.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::latency::Histogram;
use crate::layout::Heads;
use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, Slot};
use crate::ring::{HEADER, Ring, Step, Violation};
use crate::stamp::{Stopwatch, Unit};
use crate::sync::{self, AtomicU64};

/// Where a reader reads: memory that somebody else writes at any time. A value read twice may differ.
pub trait Source {
    /// The writer's published head. Everything before it is visible afterwards.
    fn head(&self) -> u64;

    /// The eight bytes at `offset`, a multiple of 8 and less than the ring's size.
    fn header(&self, offset: usize) -> u64;

    /// What the writer announces: see [`announcement`].
    fn announced(&self) -> u64 {
        0
    }

    /// When a record was published, loaded after a head: see [`crate::stamp`].
    fn stamp(&self) -> u64 {
        0
    }

    /// The word at `offset`, where a record was announced. Unless it is 0, the record's bytes are visible afterwards.
    fn awaited(&self, offset: usize) -> u64 {
        self.header(offset)
    }

    /// Copies `head` bytes at `offset` into `slot`, and lets it name the `rest` bytes behind them. All of it lies within
    /// the ring.
    fn take(&self, offset: usize, head: usize, rest: usize, slot: &mut Slot);

    /// Soon bytes at `offset` will be read.
    fn prefetch(&self, _offset: usize) {}
}

/// No position.
pub(crate) const NOWHERE: u64 = u64::MAX;

/// By which a writer says that the word at a position is 0 until a whole record begins with it. Never 0, which says nothing:
/// positions are multiples of 8.
pub(crate) const fn announcement(position: u64) -> u64 {
    position | 1
}

/// Set in an announcement whose record will have a stamp.
pub(crate) const STAMPED: u64 = 2;

/// What one call of [`Reader::fill`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Slots filled.
    pub packets: usize,
    /// Their frames' bytes.
    pub bytes: u64,
    /// Frames passed over because the caller did not want them.
    pub unwanted: u64,
}

/// What a caller of [`Reader::fill`] thinks of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Takes it.
    Yes,
    /// Passes it over.
    No,
    /// Leaves it where it is, and everything behind it.
    NotYet,
}

/// A position in a ring, and what is known of the writer's.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    /// Where the next record begins.
    tail: u64,
    /// The end of what is known to be there, checked.
    head: u64,
    /// The last head seen. Behind the tail for as long as a writer needs from an announced record to its head.
    seen: u64,
    /// Where the next record was announced, if it was.
    awaited: u64,
    /// The tail that the writer knows of.
    released: u64,
    broken: Option<Violation>,
    /// Looks in a row that found nothing new.
    idle_looks: u32,
    stopwatch: Stopwatch,
    /// The processor has wide registers.
    wide: bool,
}

/// What came where a record was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    /// No frame will: none was announced, or something else stands there. The head tells.
    Nothing,
    /// It has not come yet.
    Awaited,
    /// A record that ends at `next`.
    Record { next: u64 },
}

/// How far ahead of the record at hand memory is asked for.
const AHEAD: u64 = 512;
/// How many looks in a row find nothing before the reader waits for a single packet, as far as it knows.
const IDLE_LOOKS: u32 = 8;
/// How many unwanted frames are passed over at once: they must not keep the caller for a whole ring.
const UNWANTED_MAX: u64 = 4 * BURST_MAX as u64;

impl Reader {
    /// A reader at the start of an empty ring.
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            tail: 0,
            head: 0,
            seen: 0,
            awaited: NOWHERE,
            released: 0,
            broken: None,
            idle_looks: 0,
            stopwatch: Stopwatch::new(Unit::Records),
            wide: crate::wide::is_here(),
        }
    }

    /// Counts how long records were on their way.
    pub(crate) fn with_latency(mut self, histogram: Histogram) -> Self {
        self.stopwatch = self.stopwatch.into(histogram);
        self
    }

    /// Takes frames until the slots are full or nothing is published: up to `peek` bytes of each are copied. Frames that
    /// `wanted`, which is also told their positions, refuses are passed over. After a violation, which [`Reader::broken`] names, nothing more is read.
    #[inline(always)]
    pub fn fill<S: Source>(
        &mut self,
        source: &S,
        slots: &mut [Slot],
        peek: usize,
        wanted: impl FnMut(&Slot, u64) -> Wanted,
    ) -> Filled {
        crate::wide::dispatch!(self.wide, self.fill_all(source, slots, peek, wanted))
    }

    #[inline(always)]
    fn fill_all<S: Source>(
        &mut self,
        source: &S,
        slots: &mut [Slot],
        peek: usize,
        mut wanted: impl FnMut(&Slot, u64) -> Wanted,
    ) -> Filled {
        if self.broken.is_some() {
            return Filled::default();
        }
        // In registers: what is written to slots could be this reader itself, for all that the compiler knows.
        let (ring, mut tail, mut head) = (self.ring, self.tail, self.head);
        let (mut packets, mut bytes, mut unwanted) = (0, 0, 0);
        let mut looked = false;
        while packets < slots.len() {
            if tail == head {
                if looked {
                    break;
                }
                looked = true;
                head = self.look(source, tail);
                if head == tail {
                    break;
                }
            }
            let offset = ring.offset(tail);
            if head.wrapping_sub(tail) > AHEAD {
                source.prefetch(ring.offset(tail.wrapping_add(AHEAD)));
            }
            match ring.step(tail, head, source.header(offset)) {
                Ok(Step::Frame { len, next }) => {
                    let slot = &mut slots[packets];
                    let short = len.min(peek);
                    source.take(offset + HEADER as usize, short, len - short, slot);
                    match wanted(slot, tail) {
                        Wanted::Yes => {
                            packets += 1;
                            bytes += len as u64;
                        }
                        Wanted::No => unwanted += 1,
                        Wanted::NotYet => break,
                    }
                    tail = next;
                    if unwanted == UNWANTED_MAX {
                        break;
                    }
                }
                Ok(Step::Skip { next }) => tail = next,
                Err(violation) => {
                    self.broken = Some(violation);
                    break;
                }
            }
        }
        self.stopwatch.turn(self.tail..tail, head);
        (self.tail, self.head) = (tail, head);
        Filled { packets, bytes, unwanted }
    }

    /// The end of what is there after `tail`: of one record where one was announced and has come, or the published head.
    #[inline(always)]
    fn look<S: Source>(&mut self, source: &S, tail: u64) -> u64 {
        match self.announced(source, tail) {
            Announced::Nothing => {}
            Announced::Awaited => {
                // A small frame's record ends on the next line, which is to come with this one.
                source.prefetch(self.ring.offset(tail.wrapping_add(64)));
                return tail;
            }
            Announced::Record { next } => return next,
        }
        let head = source.head();
        let is_news = self.is_news(head, tail);
        if head != self.seen {
            self.seen = head;
            self.stopwatch.stamp = source.stamp();
        }
        if !is_news {
            self.wait_for_record(source, tail);
            return tail;
        }
        if let Err(violation) = self.ring.check_head(tail, head) {
            self.broken = Some(violation);
            return tail;
        }
        self.idle_looks = 0;
        head
    }

    /// Whether a head says more than the reader at `tail` knows. From the one seen last to the tail it does not: announced
    /// records are taken before their heads come, several of them if the first of these heads is late.
    #[inline(always)]
    fn is_news(&self, head: u64, tail: u64) -> bool {
        head.wrapping_sub(self.seen) > tail.wrapping_sub(self.seen)
    }

    /// What stands at the tail, if something was announced there.
    #[inline(always)]
    fn announced<S: Source>(&self, source: &S, tail: u64) -> Announced {
        if self.awaited != tail {
            return Announced::Nothing;
        }
        let header = source.awaited(self.ring.offset(tail));
        if header == 0 {
            return Announced::Awaited;
        }
        match self.ring.step(tail, tail.wrapping_add(self.ring.size()), header) {
            Ok(Step::Frame { next, .. }) => Announced::Record { next },
            _ => Announced::Nothing,
        }
    }

    /// Who has polled for a while waits for one packet. If its record is announced, it is looked for from now on, and not
    /// the head: one line comes, where two would come one after the other. If not, the lines of the record are asked for with
    /// the head. Of a busy writer they would be taken away while it writes them.
    #[inline(always)]
    fn wait_for_record<S: Source>(&mut self, source: &S, tail: u64) {
        self.idle_looks = self.idle_looks.saturating_add(1);
        if self.idle_looks > IDLE_LOOKS {
            source.prefetch(self.ring.offset(tail));
            source.prefetch(self.ring.offset(tail.wrapping_add(64)));
            let announced = source.announced();
            if announced & !STAMPED == announcement(tail) {
                self.awaited = tail;
                if announced & STAMPED != 0 {
                    self.stopwatch.expect(tail);
                }
            }
        }
    }

    /// The tail to publish, if it is worth a cache line: once an eighth of the ring was read, or, where `now`, anything.
    /// What was taken before the call must not be used after it.
    #[inline(always)]
    pub fn release(&mut self, now: bool) -> Option<u64> {
        let read = self.tail.wrapping_sub(self.released);
        let due = if now { read > 0 } else { read >= self.ring.size() / 8 };
        due.then(|| {
            self.released = self.tail;
            self.tail
        })
    }

    /// Whether there is something to read.
    pub fn has_more<S: Source>(&self, source: &S) -> bool {
        if self.broken.is_some() || self.head != self.tail {
            return self.broken.is_none();
        }
        match self.announced(source, self.tail) {
            Announced::Nothing => {}
            Announced::Awaited => return false,
            Announced::Record { .. } => return true,
        }
        self.is_news(source.head(), self.tail)
    }

    /// The rule that the writer broke, if it did.
    #[inline]
    pub fn broken(&self) -> Option<Violation> {
        self.broken
    }

    /// Where the next record begins.
    pub fn tail(&self) -> u64 {
        self.tail
    }
}

/// A ring in mapped memory.
#[derive(Debug)]
pub(crate) struct Mapped {
    data: *const u8,
    head: *const AtomicU64,
    announced: *const AtomicU64,
    stamp: *const AtomicU64,
    /// What the pointers point into.
    _keep: [Arc<Mapping>; 2],
}

// SAFETY: the pointers are into mappings, which belong to no thread, and which are kept.
unsafe impl Send for Mapped {}

impl Mapped {
    /// The ring of `ring` bytes at `offset` of `records`, with its head and what it announces in `index`.
    ///
    /// # Panics
    /// If either lies outside, or less than 64 bytes follow the ring (heads are copied in blocks).
    pub(crate) fn new(
        ring: Ring,
        records: &Arc<Mapping>,
        offset: usize,
        index: &Arc<Mapping>,
        words: impl Fn(&Mapping) -> Heads<'_>,
    ) -> Self {
        const BLOCK: usize = 64;
        let data = records.area(offset, ring.size() as usize + BLOCK);
        let Heads { head, announced, stamp } = words(index);
        Self { data, head, announced, stamp, _keep: [records.clone(), index.clone()] }
    }
}

impl Source for Mapped {
    #[inline(always)]
    fn head(&self) -> u64 {
        // SAFETY: the mapping is kept.
        unsafe { &*self.head }.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn header(&self, offset: usize) -> u64 {
        // SAFETY: offsets are less than the ring's size and multiples of 8 (contract of `Source`). Atomic, so that it is
        // read once whatever the writer does.
        unsafe {
            sync::reads(self.data.add(offset), HEADER as usize);
            AtomicU64::from_ptr(self.data.add(offset).cast_mut().cast()).load(Ordering::Relaxed)
        }
    }

    #[inline(always)]
    fn announced(&self) -> u64 {
        // SAFETY: the mapping is kept.
        unsafe { &*self.announced }.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn stamp(&self) -> u64 {
        // SAFETY: the mapping is kept.
        unsafe { &*self.stamp }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn awaited(&self, offset: usize) -> u64 {
        // SAFETY: as in `header`.
        unsafe { AtomicU64::from_ptr(self.data.add(offset).cast_mut().cast()) }.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn take(&self, offset: usize, head: usize, rest: usize, slot: &mut Slot) {
        // SAFETY: head and rest lie within the ring (contract of `Source`), 64 bytes are mapped behind it, and the
        // mapping is kept by the queue that owns the slots.
        unsafe {
            sync::reads(self.data.add(offset), head);
            slot.copy_head(self.data.add(offset), head);
            slot.set_rest(self.data.add(offset + head), rest as u32);
        }
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; it cannot fault.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(self.data.add(offset).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A writer's memory, word by word: nothing is there but what a test has put there.
    struct Words {
        ring: [Cell<u64>; 64],
        head: Cell<u64>,
        announced: Cell<u64>,
    }

    impl Source for Words {
        fn head(&self) -> u64 {
            self.head.get()
        }

        fn header(&self, offset: usize) -> u64 {
            self.ring[offset / 8].get()
        }

        fn announced(&self) -> u64 {
            self.announced.get()
        }

        fn take(&self, _offset: usize, head: usize, _rest: usize, slot: &mut Slot) {
            slot.fill_head(head);
        }
    }

    /// Bytes of a record with a frame of one byte.
    const RECORD: u64 = 16;

    impl Words {
        fn new() -> Self {
            Self { ring: [const { Cell::new(0) }; 64], head: Cell::new(0), announced: Cell::new(0) }
        }

        /// The record at `position` is whole, and the next one announced. Its head is still to come.
        fn show(&self, position: u64) {
            self.ring[position as usize / 8].set(1);
            self.announced.set(announcement(position + RECORD));
        }
    }

    fn fill(reader: &mut Reader, words: &Words) -> usize {
        reader.fill(words, &mut [Slot::new()], 64, |_, _| Wanted::Yes).packets
    }

    /// A writer that is stopped before its head, again and again.
    #[test]
    fn heads_may_be_several_announced_records_late() {
        let (words, mut reader) = (Words::new(), Reader::new(Ring::new(512).unwrap()));
        words.announced.set(announcement(0));
        assert!((0..=IDLE_LOOKS).all(|_| fill(&mut reader, &words) == 0));
        for position in [0, RECORD, 2 * RECORD] {
            words.show(position);
            assert_eq!(fill(&mut reader, &words), 1, "the record at {position}");
            assert_eq!(fill(&mut reader, &words), 0);
        }
        for head in [RECORD, 2 * RECORD, 3 * RECORD] {
            words.head.set(head);
            assert!(!reader.has_more(&words));
            // Where the next one was announced, and where the head stands.
            reader.awaited = if head == RECORD { reader.awaited } else { NOWHERE };
            assert_eq!((fill(&mut reader, &words), reader.broken()), (0, None), "head {head}");
        }
        words.show(3 * RECORD);
        words.head.set(4 * RECORD);
        assert_eq!((fill(&mut reader, &words), reader.tail()), (1, 4 * RECORD));
        words.head.set(RECORD);
        fill(&mut reader, &words);
        fill(&mut reader, &words);
        assert_eq!(reader.broken(), Some(Violation::HeadOutOfRange), "heads do not go back");
    }
}
