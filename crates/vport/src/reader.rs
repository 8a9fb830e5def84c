//! The reading end of one channel. Trusts neither positions nor headers nor that bytes stay what they were.

use crate::epoch::reaches;
use crate::latency::Histogram;
use crate::packet::{BLOCK, BURST_MAX, Coming, HEAD_MAX};
use crate::prefetch::CacheLevel;
use crate::ring::{HEADER, Ring, Step, Violation, frame_header, record_bytes};
use crate::source::{AHEAD, Places, Source};
use crate::stamp::{Stopwatch, Unit};

/// No position.
pub(crate) const NOWHERE: u64 = u64::MAX;

/// What one call of [`Reader::fill`] found. Of a size that is returned in two registers: through memory it would be stored
/// word by word and loaded two words at a time, and such a load waits until all stores before it have reached the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Slots filled.
    pub packets: u32,
    /// Frames passed over because the caller did not want them.
    pub unwanted: u32,
    /// Bytes of the frames in the slots.
    pub bytes: u64,
}

/// A call that is taking frames.
struct Taking {
    /// Where the next record begins.
    tail: u64,
    taken: Filled,
}

impl Taking {
    /// Takes the frame of so many bytes whose record is the next one. False, if it was the last, or is left where it is.
    #[inline(always)]
    fn take<S: Source>(
        &mut self,
        source: S,
        ring: Ring,
        (len, next): (usize, u64),
        slots: &mut [S::Slot],
        peek: usize,
        wanted: &mut impl FnMut(&S::Slot, u64) -> Wanted,
    ) -> bool {
        let Some(slot) = slots.get_mut(self.taken.packets as usize) else { return false };
        let short = len.min(peek);
        source.take(ring.offset(self.tail) + HEADER as usize, short, len - short, slot);
        match wanted(slot, self.tail) {
            Wanted::Yes => {
                self.taken.packets += 1;
                self.taken.bytes += len as u64;
            }
            Wanted::No => self.taken.unwanted += 1,
            Wanted::NotYet => return false,
        }
        self.tail = next;
        self.taken.unwanted < UNWANTED_MAX && (self.taken.packets as usize) < slots.len()
    }

    /// Takes the frames whose records are as usual, while one is the next, with all of it before the end of what lies there. False
    /// as for [`Taking::take`].
    #[inline(always)]
    fn take_usual<S: Source>(
        &mut self,
        source: S,
        ring: Ring,
        (usual, head): (Usual, u64),
        slots: &mut [S::Slot],
        peek: usize,
        wanted: &mut impl FnMut(&S::Slot, u64) -> Wanted,
    ) -> bool {
        match usual.len() {
            // None are usual.
            0 => true,
            // Of lengths of which the compiler knows that one block is enough, and nothing is left.
            len if len <= peek.min(BLOCK) => {
                self.take_alike(source, ring, (usual, head), slots, (len.min(BLOCK), 0), wanted)
            }
            len => self.take_alike(source, ring, (usual, head), slots, (len.min(peek), len - len.min(peek)), wanted),
        }
    }

    /// The same of frames with so many bytes to copy, and so many behind them.
    #[inline(always)]
    fn take_alike<S: Source>(
        &mut self,
        source: S,
        ring: Ring,
        (usual, head): (Usual, u64),
        slots: &mut [S::Slot],
        (short, rest): (usize, usize),
        wanted: &mut impl FnMut(&S::Slot, u64) -> Wanted,
    ) -> bool {
        let end = ring.stretch(self.tail, head);
        let begin = ring.offset(self.tail);
        let to = begin + end.wrapping_sub(self.tail) as usize;
        let ahead = source.ahead(usual.bytes);
        // Behind there what lies ahead is not published.
        let asked_to = to - ahead.bytes.saturating_sub(head.wrapping_sub(end)).min((to - begin) as u64) as usize;
        let free = &mut slots[self.taken.packets as usize..];
        // Where the last record may begin: all of it is there (none is, where that is before the ring), and there is a slot for it.
        let last = to as i64 - usual.bytes as i64;
        let last = last.min((begin + free.len() * usual.bytes as usize) as i64 - 1);
        let first = free.as_mut_ptr();
        let (mut offset, mut slot, mut unwanted, mut more) = (begin, first, self.taken.unwanted, true);
        while offset as i64 <= last && source.header(offset) == usual.header {
            if offset < asked_to {
                ahead.ask(&source, offset);
            }
            // SAFETY: up to the last record that may be taken there are as many slots.
            let next = unsafe { &mut *slot };
            source.take(offset + HEADER as usize, short, rest, next);
            match wanted(next, self.tail.wrapping_add((offset - begin) as u64)) {
                // SAFETY: the same, or one past the last.
                Wanted::Yes => slot = unsafe { slot.add(1) },
                Wanted::No => {
                    unwanted += 1;
                    more = unwanted < UNWANTED_MAX;
                }
                Wanted::NotYet => {
                    more = false;
                    break;
                }
            }
            offset += usual.bytes as usize;
            if !more {
                break;
            }
        }
        // SAFETY: both are of the same slots.
        let packets = unsafe { slot.offset_from_unsigned(first) };
        self.tail = self.tail.wrapping_add((offset - begin) as u64);
        self.taken.packets += packets as u32;
        self.taken.bytes += (packets * (short + rest)) as u64;
        self.taken.unwanted = unwanted;
        more && packets < free.len()
    }
}

/// Records that are all as long, as they mostly are. Where the next one begins is then known before its header has come; else each
/// header has to be waited for to find the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usual {
    header: u64,
    bytes: u64,
}

impl Usual {
    /// No record is so long.
    const NONE: Self = Self { header: 0, bytes: i64::MAX as u64 };

    /// Records of frames of so many bytes.
    #[inline(always)]
    fn of(len: usize) -> Self {
        Self { header: frame_header(len), bytes: record_bytes(len) }
    }

    /// How many bytes.
    #[inline(always)]
    fn len(self) -> usize {
        self.header as usize
    }
}

/// Asks for what lies ahead, as far as it is published: of a busy writer it would be taken away while it writes.
#[inline(always)]
fn expect(source: impl Source, ring: Ring, tail: u64, head: u64) {
    if head.wrapping_sub(tail) > AHEAD {
        source.prefetch(ring.offset(tail.wrapping_add(AHEAD)), CacheLevel::First);
    }
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
    /// The tail that the writer knows of.
    released: u64,
    broken: Option<Violation>,
    /// Looks in a row that found nothing new.
    idle_looks: u32,
    /// What was taken last was one frame, and was not beside the head.
    single: bool,
    /// What the records that were taken last were like.
    usual: Usual,
    stopwatch: Stopwatch,
    /// Bytes of the records that were taken last, from the first to the end of the last.
    taken: u64,
}

/// How many looks in a row find nothing before the reader waits for a single packet, as far as it knows.
const IDLE_LOOKS: u32 = 8;
/// How many unwanted frames are passed over at once: they must not keep the caller for a whole ring.
const UNWANTED_MAX: u32 = 4 * BURST_MAX as u32;

impl Reader {
    /// A reader at the start of an empty ring.
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            tail: 0,
            head: 0,
            released: 0,
            broken: None,
            idle_looks: 0,
            single: true,
            usual: Usual::NONE,
            stopwatch: Stopwatch::new(Unit::Records),
            taken: 0,
        }
    }

    /// Counts how long records were on their way.
    pub(crate) fn with_latency(mut self, histogram: Histogram) -> Self {
        self.stopwatch = self.stopwatch.into(histogram);
        self
    }

    /// Takes frames until the slots are full or nothing is published: up to `peek` bytes of each are copied. Frames that
    /// `wanted`, which is also told their positions and may be asked twice, refuses are passed over. After a violation, which
    /// [`Reader::broken`] names, nothing more is read.
    #[inline(always)]
    pub fn fill<S: Source + Copy>(
        &mut self,
        source: S,
        slots: &mut [S::Slot],
        peek: usize,
        mut wanted: impl FnMut(&S::Slot, u64) -> Wanted,
    ) -> Filled {
        if self.broken.is_some() {
            return Filled::default();
        }
        let looked = self.tail == self.head;
        if looked {
            self.head = self.look(source, self.tail);
            if self.head == self.tail {
                return Filled::default();
            }
            if let Some(len) = self.take_lone(source, slots, peek, &mut wanted) {
                return Filled { packets: 1, bytes: len as u64, unwanted: 0 };
            }
        }
        self.fill_all(source, slots, peek, wanted, looked)
    }

    /// Goes back to a position where the next record began, no rule was broken, and since which nothing was given back: from there
    /// everything is read again.
    #[cold]
    pub(crate) fn go_back_to(&mut self, tail: u64) {
        (self.tail, self.broken) = (tail, None);
    }

    /// Takes what was published from beside the head, if it is one frame that is there and wanted. Its length.
    #[inline(always)]
    fn take_lone<S: Source + Copy>(
        &mut self,
        source: S,
        slots: &mut [S::Slot],
        peek: usize,
        wanted: &mut impl FnMut(&S::Slot, u64) -> Wanted,
    ) -> Option<usize> {
        let slot = slots.first_mut()?;
        let found = source.lone(self.tail, slot);
        let is_whole = |len: &usize| *len <= peek && self.tail.wrapping_add(record_bytes(*len)) == self.head;
        // Its record lies in the ring, too, for whoever takes it from there.
        let len = found.filter(is_whole).filter(|_| self.ring.stretch(self.tail, self.head) == self.head)?;
        if wanted(slot, self.tail) != Wanted::Yes {
            return None;
        }
        self.stopwatch.turn(self.tail..self.head, self.head);
        self.tail = self.head;
        self.single = false;
        Some(len)
    }

    #[inline(always)]
    fn fill_all<S: Source + Copy>(
        &mut self,
        source: S,
        slots: &mut [S::Slot],
        peek: usize,
        mut wanted: impl FnMut(&S::Slot, u64) -> Wanted,
        mut looked: bool,
    ) -> Filled {
        // In registers: what is written to slots could be this reader itself, for all that the compiler knows.
        let (ring, mut head, usual, peek) = (self.ring, self.head, self.usual, peek.min(HEAD_MAX));
        let mut call = Taking { tail: self.tail, taken: Filled::default() };
        // The length of the first record that is not as usual, and in which bits others differ from it.
        let (mut first, mut differ) = (0, 0);
        // Before the loop, so that what is to be known for it is not found out where this is all.
        let mut more = !slots.is_empty() && call.take_usual(source, ring, (usual, head), slots, peek, &mut wanted);
        while more {
            if call.tail == head {
                if looked {
                    break;
                }
                looked = true;
                head = self.look(source, call.tail);
                if head == call.tail {
                    break;
                }
            }
            expect(source, ring, call.tail, head);
            match ring.step(call.tail, head, source.header(ring.offset(call.tail))) {
                Ok(Step::Frame { len, next }) => {
                    first = if first == 0 { len } else { first };
                    differ |= len ^ first;
                    more = call.take(source, ring, (len, next), slots, peek, &mut wanted);
                }
                Ok(Step::Skip { next }) => call.tail = next,
                Err(violation) => {
                    self.broken = Some(violation);
                    break;
                }
            }
            more = more && call.take_usual(source, ring, (usual, head), slots, peek, &mut wanted);
        }
        self.stopwatch.turn(self.tail..call.tail, head);
        self.taken = call.tail.wrapping_sub(self.tail);
        (self.tail, self.head, self.single) = (call.tail, head, call.taken.packets == 1);
        if first > 0 {
            self.usual = if differ == 0 { Usual::of(first) } else { Usual::NONE };
        }
        call.taken
    }

    /// The end of what is there after `tail`.
    #[inline(always)]
    fn look(&mut self, source: impl Source + Copy, tail: u64) -> u64 {
        let head = source.head();
        if head == tail {
            self.wait(source, tail);
            return tail;
        }
        if let Err(violation) = self.ring.check_head(tail, head) {
            self.broken = Some(violation);
            return tail;
        }
        self.idle_looks = 0;
        self.stopwatch.stamp = source.stamp();
        head
    }

    /// What the writer has published up to `position` is read, also if it takes its head back.
    pub(crate) fn read_up_to(&mut self, position: u64) {
        if self.broken.is_some() || reaches(self.head, position) {
            return;
        }
        match self.ring.check_head(self.tail, position) {
            Ok(()) => self.head = position,
            Err(violation) => self.broken = Some(violation),
        }
    }

    /// Who has taken one packet, and then polled for a while, waits for one. Of a lone one all comes with the head; otherwise the
    /// lines of its record are asked for with the head. Of a busy writer they would be taken away while it writes them.
    #[inline(always)]
    fn wait(&mut self, source: impl Source, tail: u64) {
        source.expect_lone();
        self.idle_looks = self.idle_looks.saturating_add(1);
        if self.idle_looks > IDLE_LOOKS && self.single {
            source.prefetch(self.ring.offset(tail), CacheLevel::First);
            source.prefetch(self.ring.offset(tail.wrapping_add(64)), CacheLevel::First);
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

    /// The same up to `position`, which the reader has come past. Nothing where it has not, or has given that back before.
    #[inline(always)]
    pub(crate) fn release_to(&mut self, position: u64) -> Option<u64> {
        let (further, read) = (position.wrapping_sub(self.released), self.tail.wrapping_sub(self.released));
        (further > 0 && further <= read).then(|| {
            self.released = position;
            position
        })
    }

    /// The next so many packets, if as much is known to lie there as the last call has taken of them.
    #[inline(always)]
    pub(crate) fn coming(&self, places: Places, packets: usize) -> Option<Coming> {
        if packets == 0 || self.head.wrapping_sub(self.tail) < self.taken {
            return None;
        }
        let step = self.taken as u32 / packets as u32;
        Some(Coming::new(places.frame(self.tail), step as usize))
    }

    /// Whether there is something to read.
    pub fn has_more(&self, source: impl Source) -> bool {
        if self.broken.is_some() || self.head != self.tail {
            return self.broken.is_none();
        }
        source.head() != self.tail
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

    /// The ring that it reads.
    #[inline(always)]
    pub(crate) fn ring(&self) -> Ring {
        self.ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Slot;
    use std::cell::Cell;

    const RING: Ring = Ring::new(1_024).unwrap();
    const RECORD: u64 = record_bytes(60);

    /// Frames of 60 bytes up to a head.
    struct Frames {
        head: Cell<u64>,
    }

    impl Source for &Frames {
        type Slot = Slot;

        fn head(&self) -> u64 {
            self.head.get()
        }

        fn header(&self, _offset: usize) -> u64 {
            frame_header(60)
        }

        fn take(&self, _offset: usize, _head: usize, _rest: usize, _slot: &mut Slot) {}
    }

    fn fill(reader: &mut Reader, source: &Frames) -> u32 {
        let mut slots = [const { Slot::new() }; BURST_MAX];
        reader.fill(source, &mut slots, 64, |_, _| Wanted::Yes).packets
    }

    #[test]
    fn what_was_seen_to_be_published_is_read_though_the_writer_takes_its_head_back() {
        let (mut reader, source) = (Reader::new(RING), Frames { head: Cell::new(0) });
        reader.read_up_to(3 * RECORD);
        reader.read_up_to(2 * RECORD);
        assert!(reader.has_more(&source));
        assert_eq!((fill(&mut reader, &source), reader.tail()), (3, 3 * RECORD));
        assert_eq!((fill(&mut reader, &source), reader.broken()), (0, Some(Violation::HeadOutOfRange)));
    }

    #[test]
    fn nothing_is_read_up_to_where_no_head_can_be() {
        for (position, rule) in [(12, Violation::Misaligned), (1_032, Violation::HeadOutOfRange)] {
            let mut reader = Reader::new(RING);
            reader.read_up_to(position);
            assert_eq!(reader.broken(), Some(rule));
        }
        let (mut reader, source) = (Reader::new(RING), Frames { head: Cell::new(RECORD) });
        assert_eq!(fill(&mut reader, &source), 1);
        reader.read_up_to(0);
        assert_eq!((reader.broken(), reader.has_more(&source)), (None, false), "it is past that");
    }
}
