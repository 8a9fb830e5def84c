//! The writing end of one channel. Trusts the reader's tail only as far as it is possible.

mod records;

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::records::{Records, Run};
use crate::distance::Distance;
use crate::layout::{Heads, RECORDS_PAD};
use crate::lone::{self, LONE_MAX};
use crate::mapping::Mapping;
use crate::packet::{FRAME_MAX, PacketRef, Packets};
use crate::registers::Registers;
use crate::ring::{HEADER, Ring, Violation, record_bytes};
use crate::stamp::{Sampling, Unit};
use crate::stream::{self, Stage};
use crate::sync::AtomicU64;

/// A ring in mapped memory, of which this is the only writer.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: Ring,
    data: *mut u8,
    /// Where the next record goes.
    head: u64,
    /// The head that the reader knows of.
    published: u64,
    /// The last tail seen, checked.
    tail: u64,
    head_word: *const AtomicU64,
    stamp_word: *const AtomicU64,
    lone: *const lone::Words,
    tail_word: *const AtomicU64,
    broken: Option<Violation>,
    distance: Distance,
    sampling: Sampling,
    way: Way,
    /// Where the ring's first byte is as far as new records are concerned: in the ring, or where the stage says.
    to: *mut u8,
    /// Bytes that may go unpublished.
    unpublished_max: u64,
    stage: Stage,
    /// From here on records are in the stage alone.
    staged: u64,
    registers: Registers,
    /// What the pointers point into.
    _keep: [Arc<Mapping>; 3],
}

// SAFETY: the pointers are into mappings, which belong to no thread, and which are kept.
unsafe impl Send for Writer {}

/// How records get into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ordinary,
    /// Past the caches, by way of the stage.
    Staged,
    /// Past the caches as they come.
    Streamed,
}

/// What became of a burst. Of a size that is returned in two registers: through memory it would be stored word by word and
/// loaded two words at a time, and such a load waits until all stores before it, records on their way to the reader among
/// them, have reached the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pushed {
    /// Frames appended.
    pub(crate) packets: u32,
    /// Frames discarded for their length.
    pub(crate) discarded: u32,
    /// Bytes of those appended.
    pub(crate) bytes: u64,
}

impl Pushed {
    /// How many frames of the burst need no further thought.
    pub(crate) fn done(self) -> usize {
        self.packets as usize + self.discarded as usize
    }
}

/// Bytes between two publications from which on streaming pays: the lines at either end are written in parts, which
/// memory does slowly.
const STREAMED_BYTES_MIN: usize = 512;
/// Bytes from which on most are of whole lines as they come, and a stage would be another copy.
const STAGED_BYTES_MAX: usize = 8 << 10;

const _: () = assert!(record_bytes(FRAME_MAX) <= Stage::ROOM_BYTES);

impl Writer {
    /// Writes the ring at `offset` of `records`. The heads are words of `own`, the tail one of `peer`.
    ///
    /// # Panics
    /// If one of them lies outside, or less than [`RECORDS_PAD`] bytes follow the ring.
    pub(crate) fn new(
        ring: Ring,
        (records, offset): (&Arc<Mapping>, usize),
        (own, heads): (&Arc<Mapping>, impl Fn(&Mapping) -> Heads<'_>),
        (peer, tail_word): (&Arc<Mapping>, impl Fn(&Mapping) -> &AtomicU64),
    ) -> Self {
        let Heads { head: head_word, stamp: stamp_word, lone } = heads(own);
        let data = records.area_mut(offset, ring.size() as usize + RECORDS_PAD);
        Self {
            ring,
            data,
            head: 0,
            published: 0,
            tail: 0,
            head_word,
            stamp_word,
            lone,
            tail_word: tail_word(peer),
            broken: None,
            distance: Distance::default(),
            sampling: Sampling::new(),
            way: Way::Ordinary,
            to: data,
            unpublished_max: ring.unpublished_max(),
            stage: Stage::new(),
            staged: 0,
            registers: Registers::here(),
            _keep: [records.clone(), own.clone(), peer.clone()],
        }
    }

    /// About so many bytes will be pushed before the next [`Writer::publish`]. Nothing waits to be published.
    #[inline(always)]
    pub(crate) fn expect(&mut self, bytes: usize) {
        if self.distance.is_far() | (self.way != Way::Ordinary) {
            self.choose_way(bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn choose_way(&mut self, bytes: usize) {
        self.way = match bytes {
            _ if !stream::POSSIBLE || !self.distance.is_far() => Way::Ordinary,
            ..STREAMED_BYTES_MIN => Way::Ordinary,
            STREAMED_BYTES_MIN..STAGED_BYTES_MAX => Way::Staged,
            _ => Way::Streamed,
        };
        (self.to, self.unpublished_max) = (self.data, self.ring.unpublished_max());
        if self.way == Way::Staged {
            self.unpublished_max = self.unpublished_max.min(Stage::ROOM_BYTES);
        }
        self.begin_stage();
    }

    /// What follows goes to the beginning of the stage, if records are staged.
    fn begin_stage(&mut self) {
        if self.way == Way::Staged {
            (self.to, self.staged) = (self.stage.as_ring(self.ring.offset(self.head)), self.head);
        }
    }

    /// Appends frames in order until there is no room for one; the reader sees them after [`Writer::publish`], which must
    /// follow. Frames of a length that no frame has are discarded.
    #[inline(always)]
    pub(crate) fn push_burst(&mut self, packets: &(impl Packets + ?Sized)) -> Pushed {
        self.expect(packets.bytes());
        self.push_expected(packets)
    }

    #[inline(always)]
    fn push_expected(&mut self, packets: &(impl Packets + ?Sized)) -> Pushed {
        // A stage is of one lap.
        if self.way == Way::Staged && self.ring.offset(self.head) == 0 {
            self.empty_stage();
        }
        // In registers: what is written to the ring could be this writer itself, for all that the compiler knows.
        let mut run = Run { head: self.head, limit: self.limit(), pushed: 0, bytes: 0 };
        let mut to = self.records();
        let mut discarded = 0;
        let mut each = packets.each();
        loop {
            // What does not go is to be the next again.
            let mut behind = each.clone();
            let Some(packet) = behind.next() else { break };
            let packet: &PacketRef<'_> = packet.borrow();
            let len = packet.len();
            if !is_sendable(len) {
                discarded += 1;
                each = behind;
                continue;
            }
            if run.limit.wrapping_sub(run.head) < record_bytes(len) {
                self.head = run.head;
                let Some(further) = self.make_room(len) else { break };
                (run.head, run.limit) = (self.head, further);
                to = self.records();
            }
            match to.past_caches {
                // SAFETY: the record ends before the limit.
                None => unsafe { run.append(to, (packet.head.len(), packet.rest.len()), &mut each) },
                Some(registers) => {
                    // SAFETY: the same; this processor has what it said.
                    unsafe { run.stream(to, registers, packet) };
                    each = behind;
                }
            }
        }
        self.head = run.head;
        Pushed { packets: run.pushed, discarded, bytes: run.bytes }
    }

    #[cold]
    #[inline(never)]
    fn finish_streaming(&mut self) {
        self.empty_stage();
        stream::fence();
    }

    /// Sends what is in the stage on its way, if records are staged.
    #[cold]
    #[inline(never)]
    fn empty_stage(&mut self) {
        if self.way != Way::Staged {
            return;
        }
        let bytes = self.head.wrapping_sub(self.staged) as usize;
        // SAFETY: what was staged has room in the ring, and lies in one lap of it.
        unsafe { self.stage.stream(self.data.add(self.ring.offset(self.staged)), bytes, self.registers) };
        self.begin_stage();
    }

    /// Up to where records can be written one after the other, with nothing else to be thought of: not over unread ones,
    /// not over the ring's end, not more than may go unpublished.
    #[inline(always)]
    fn limit(&self) -> u64 {
        let free = self.ring.size() - self.head.wrapping_sub(self.tail);
        let to_end = self.ring.to_end(self.head);
        let unpublished = self.unpublished_max.saturating_sub(self.head.wrapping_sub(self.published));
        self.head.wrapping_add(free.min(to_end).min(unpublished))
    }

    /// Does what the limit stands for: looks how far the reader is, skips to the ring's start, publishes. The new limit, with
    /// room for a frame of `len` bytes; None while there is none.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, len: usize) -> Option<u64> {
        let place = match self.ring.place(self.head, self.tail, len) {
            Some(place) => place,
            None => {
                self.look_for_room();
                self.ring.place(self.head, self.tail, len)?
            }
        };
        if place.next.wrapping_sub(self.published) > self.unpublished_max {
            self.publish();
        }
        self.empty_stage();
        if place.at != self.head {
            // SAFETY: the offset is within the ring, in bytes that the reader has given back.
            unsafe { self.in_ring().begin(self.head, self.ring.skip_header(self.head), Ordering::Release) };
            self.head = place.at;
            self.begin_stage();
        }
        // In a ring that is small for its frames, one record may be more than may go unpublished.
        let record = place.next.wrapping_sub(place.at);
        Some(self.head.wrapping_add(self.limit().wrapping_sub(self.head).max(record)))
    }

    /// Appends one frame of 1 to [`FRAME_MAX`] bytes. False while there is no room.
    #[inline(always)]
    pub(crate) fn push(&mut self, packet: &PacketRef<'_>) -> bool {
        self.push_expected(core::slice::from_ref(packet)).packets == 1
    }

    /// Lets the reader see what was pushed. True if there was anything.
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> bool {
        let news = self.published != self.head;
        if news {
            if self.sampling.count() {
                self.stamp();
            }
            if self.way != Way::Ordinary {
                self.finish_streaming();
            } else if self.head.wrapping_sub(self.published) <= lone::RECORD_MAX {
                self.show_lone();
            }
            self.published = self.head;
            // SAFETY: the mapping is kept.
            unsafe { &*self.head_word }.store(self.head, Ordering::Release);
        }
        news
    }

    /// Says when what was pushed is published. Loaded by nobody who has not seen the head, or the one before it.
    #[cold]
    #[inline(never)]
    fn stamp(&self) {
        // SAFETY: the mapping is kept.
        unsafe { &*self.stamp_word }.store(Unit::Records.stamp(self.published), Ordering::Relaxed);
    }

    /// Puts what is published beside the head, if it is one frame that has room there.
    #[inline(always)]
    fn show_lone(&self) {
        let (at, records) = (self.published, self.in_ring());
        // Where records are shared, their reader may have written here since: it is shown what it wrote.
        // SAFETY: written by this writer, and not given back before it is published.
        let len = unsafe { records.word(at) }.load(Ordering::Relaxed) as usize;
        if len <= LONE_MAX && record_bytes(len) == self.head.wrapping_sub(at) {
            let frame = records.at(at).wrapping_add(HEADER as usize);
            // SAFETY: the mapping is kept, and goes on behind the ring.
            unsafe { lone::show(&*self.lone, at, len, frame) };
        }
    }

    #[inline(always)]
    fn in_ring(&self) -> Records {
        Records { past_caches: None, ring: self.ring, data: self.data }
    }

    /// Where new records go.
    #[inline(always)]
    fn records(&self) -> Records {
        let past_caches = (self.way == Way::Streamed).then_some(self.registers);
        Records { past_caches, ring: self.ring, data: self.to }
    }

    /// Takes the reader for near, wherever it is: it is in this thread.
    pub(crate) fn with_near_reader(mut self) -> Self {
        self.distance = Distance::near();
        self
    }

    /// The rule that the reader broke, if it did.
    #[inline(always)]
    pub(crate) fn broken(&self) -> Option<Violation> {
        self.broken
    }

    /// The head that the reader knows of.
    pub(crate) fn published(&self) -> u64 {
        self.published
    }

    /// Takes over the reader's tail, unless it makes no sense.
    fn look_for_room(&mut self) {
        if self.broken.is_some() {
            return;
        }
        // SAFETY: the mapping is kept.
        let tail_word = unsafe { &*self.tail_word };
        let last = self.tail;
        let tail = self.distance.time(|| tail_word.load(Ordering::Acquire), |tail| tail != last);
        // Against what is published: a reader cannot have read more. Nor can it take back what it gave.
        let checked = match self.ring.check_tail(self.published, tail) {
            Ok(()) if tail.wrapping_sub(last) > self.ring.size() => Err(Violation::TailOutOfRange),
            checked => checked,
        };
        match checked {
            Ok(()) => self.tail = tail,
            Err(violation) => self.broken = Some(violation),
        }
    }
}

/// Whether frames may have this length.
#[inline(always)]
pub(crate) fn is_sendable(len: usize) -> bool {
    len.wrapping_sub(1) < FRAME_MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::latency::{Histogram, Latency};
    use crate::layout::Index;
    use crate::packet::{HEAD_MAX, Rest, Slot};
    use crate::reader::{Reader, Wanted};
    use crate::registers;
    use crate::source::Mapped;

    const HEAD: usize = 0;
    const TAIL: usize = 128;

    /// Both ends of a ring, over private memory.
    struct Ends {
        /// Frames are sent in one piece each, not in two.
        whole: bool,
        writer: Writer,
        reader: Reader,
        source: Mapped,
        index: Arc<Mapping>,
        /// The reader's own index segment.
        own: Arc<Mapping>,
        slots: Vec<Slot>,
    }

    impl Ends {
        fn new(ring_bytes: u64, distance: Distance) -> Self {
            let ring = Ring::new(ring_bytes).unwrap();
            let records = Arc::new(Mapping::anonymous(ring.size() as usize + 4096).unwrap());
            let index = Arc::new(Mapping::anonymous(4096).unwrap());
            let mut writer = Writer::new(
                ring,
                (&records, 0),
                (&index, |index: &Mapping| Heads::at(index, HEAD)),
                (&index, |index: &Mapping| index.word(TAIL)),
            );
            writer.distance = distance;
            let source = Mapped::new(ring, &records, 0, &index, |index: &Mapping| Heads::at(index, HEAD));
            let slots = (0..8).map(|_| Slot::new()).collect();
            let own = Arc::new(Mapping::anonymous(Index::new(1).bytes()).unwrap());
            let reader = Reader::new(ring).with_latency(Histogram::new(Index::new(1), &own));
            Self { whole: false, writer, reader, source, index, own, slots }
        }

        fn latency(&self) -> Latency {
            Latency::read(Index::new(1), &self.own)
        }

        /// Both ends as on a processor with such registers.
        fn with_registers(self, registers: Registers) -> Self {
            Self { writer: Writer { registers, ..self.writer }, ..self }
        }

        /// Offers frames, each cut in two at a place that differs, and returns how many were taken.
        fn send(&mut self, frames: &[Vec<u8>]) -> usize {
            let packets: Vec<PacketRef<'_>> = frames
                .iter()
                .map(|frame| {
                    let (head, rest) = frame.split_at(frame.len().min(frame.len() * 7 % (HEAD_MAX + 1)));
                    match self.whole {
                        true => PacketRef::from_slice(frame),
                        false => PacketRef { head, rest: Rest::from_slice(rest) },
                    }
                })
                .collect();
            let pushed = registers::dispatch!(self.writer.registers, self.writer.push_burst(&packets[..]));
            self.writer.publish();
            assert_eq!(pushed.discarded, 0);
            pushed.done()
        }

        fn receive(&mut self) -> Vec<Vec<u8>> {
            let registers = self.writer.registers;
            let filled = registers::dispatch!(
                registers,
                self.reader.fill(self.source.seen(), &mut self.slots, 64, |_, _| Wanted::Yes)
            );
            assert_eq!(self.reader.broken(), None);
            let received = crate::packet::Burst::new(&mut self.slots[..filled.packets as usize]);
            let copy = |n| {
                let packet: PacketRef<'_> = received.get(n);
                let mut frame = vec![0; packet.len()];
                packet.copy_to(&mut frame);
                frame
            };
            let frames = (0..filled.packets as usize).map(copy).collect();
            if let Some(tail) = self.reader.release(true) {
                self.index.word(TAIL).store(tail, Ordering::Release);
            }
            frames
        }
    }

    fn check(ring_bytes: u64, distance: fn() -> Distance, bursts: &[(Vec<usize>, u8)]) {
        for registers in [Registers::Bytes16, Registers::here()] {
            check_ends(Ends::new(ring_bytes, distance()).with_registers(registers), bursts);
        }
    }

    fn check_ends(mut ends: Ends, bursts: &[(Vec<usize>, u8)]) {
        let (mut expected, mut received, mut value) = (Vec::new(), Vec::new(), 0_u8);
        for (lengths, receives) in bursts {
            let frames: Vec<Vec<u8>> = lengths
                .iter()
                .map(|&len| {
                    value = value.wrapping_add(1);
                    (0..len).map(|at| value.wrapping_add(at as u8)).collect()
                })
                .collect();
            let taken = ends.send(&frames);
            expected.extend(frames.into_iter().take(taken));
            (0..*receives).for_each(|_| received.extend(ends.receive()));
        }
        while received.len() < expected.len() {
            let more = ends.receive();
            assert!(!more.is_empty(), "{} of {} frames came", received.len(), expected.len());
            received.extend(more);
        }
        assert_eq!(received, expected);
    }

    proptest! {
        #[test]
        fn what_is_taken_comes_out_whole_and_in_order(
            bursts in prop::collection::vec((prop::collection::vec(1..=2_000_usize, 0..32), 0..4_u8), 1..60),
        ) {
            check(16 << 10, Distance::near, &bursts);
            check(16 << 10, Distance::far, &bursts);
        }
    }

    proptest! {
        #[test]
        fn so_it_does_where_a_record_is_much_of_the_ring(
            bursts in prop::collection::vec((prop::collection::vec(1..=56_usize, 0..8), 0..4_u8), 1..60),
        ) {
            check(128, Distance::near, &bursts);
            check(128, Distance::far, &bursts);
        }
    }

    proptest! {
        /// Most frames are as long as those before; some few are not.
        #[test]
        fn so_it_does_where_frames_are_alike(
            runs in prop::collection::vec((1..=600_usize, 1..40_usize, 0..4_u8), 1..40),
        ) {
            let alike = |&(len, count, receives): &(usize, usize, u8)| (vec![len; count], receives);
            let bursts: Vec<_> = runs.iter().map(alike).collect();
            for (whole, registers) in [(true, Registers::Bytes16), (true, Registers::here()), (false, Registers::here())] {
                let ends = Ends { whole, ..Ends::new(16 << 10, Distance::near()) };
                check_ends(ends.with_registers(registers), &bursts);
            }
        }
    }

    /// Writes over the frame of the record at the ring's start, which its reader would notice.
    fn spoil(ends: &Ends, len: usize) {
        // SAFETY: the ring is longer, and nobody else's.
        unsafe { ends.writer.data.add(HEADER as usize).write_bytes(0xff, len) };
    }

    fn show_beside(ends: &Ends, position: u64, len: usize) {
        // SAFETY: as long as the longest.
        unsafe { lone::show(Heads::at(&ends.index, HEAD).lone, position, len, [7; LONE_MAX].as_ptr()) };
    }

    #[test]
    fn a_lone_small_frame_is_taken_from_beside_its_head() {
        for len in 1..=LONE_MAX {
            let mut ends = Ends::new(16 << 10, Distance::near());
            let frame: Vec<u8> = (1..=len as u8).collect();
            assert_eq!(ends.send(std::slice::from_ref(&frame)), 1);
            spoil(&ends, len);
            let taken = ends.receive();
            // Of more than the caller looks at, the rest stays in the ring.
            if len <= 64 {
                assert_eq!(taken, [frame]);
            } else {
                assert_eq!(taken, [vec![0xff; len]]);
            }
            assert!(ends.receive().is_empty());
        }
    }

    #[test]
    fn what_is_not_alone_small_or_there_any_more_is_taken_from_the_ring() {
        let frame = |value: u8, len: usize| vec![value; len];
        let bursts: [&[&[Vec<u8>]]; 4] = [
            &[&[frame(1, 30), frame(2, 30)]],
            &[&[frame(1, LONE_MAX + 1)]],
            &[&[frame(1, 60)], &[frame(2, 60)]],
            &[&[frame(1, 60)], &[frame(2, 60), frame(3, 900)]],
        ];
        for sent in bursts {
            let mut ends = Ends::new(16 << 10, Distance::near());
            sent.iter().for_each(|burst| assert_eq!(ends.send(burst), burst.len()));
            assert_eq!(ends.receive(), sent.concat());
        }
    }

    /// A peer can write anything there: what is taken is as long as its record.
    #[test]
    fn beside_a_head_nothing_is_taken_that_does_not_end_at_it() {
        let mut ends = Ends::new(16 << 10, Distance::near());
        for len in [60, 12, 20] {
            let tail = ends.reader.tail();
            assert_eq!(ends.send(&[vec![1; 20]]), 1);
            show_beside(&ends, tail, len);
            let expected = if len == 20 { 7 } else { 1 };
            assert_eq!(ends.receive(), [vec![expected; 20]]);
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_until_it_was_read() {
        for distance in [Distance::near(), Distance::far()] {
            let mut ends = Ends::new(16 << 10, distance);
            let burst = vec![vec![7; 120]; 32];
            let taken: usize = (0..8).map(|_| ends.send(&burst)).sum();
            assert_eq!(taken, (16 << 10) / 128);
            assert_eq!(ends.send(&burst), 0);
            assert_eq!(ends.receive().len(), 8);
            assert_eq!(ends.send(&burst), 8);
        }
    }

    /// Sends bursts and receives each in turn. How often the stamp changed, and what the reader made of it.
    fn stamps(ends: &mut Ends, bursts: usize, burst: &[Vec<u8>], idle_looks: usize) -> (usize, Latency) {
        let mut stamps = Vec::new();
        for _ in 0..bursts {
            assert_eq!(ends.send(burst), burst.len());
            assert_eq!(ends.receive().len(), burst.len());
            (0..idle_looks).for_each(|_| assert!(ends.receive().is_empty()));
            stamps.push(Heads::at(&ends.index, HEAD).stamp.load(Ordering::Relaxed));
        }
        stamps.dedup();
        (stamps.len(), ends.latency())
    }

    #[test]
    fn one_burst_in_many_tells_how_long_its_first_record_was_on_its_way() {
        for distance in [Distance::near(), Distance::far()] {
            let mut ends = Ends::new(16 << 10, distance);
            let (stamps, latency) = stamps(&mut ends, 3_000, &vec![vec![7; 120]; 8], 0);
            assert_eq!((stamps, latency.count(), latency.invalid), (3, 3, 0));
        }
    }

    #[test]
    fn so_do_lone_frames() {
        let mut ends = Ends::new(16 << 10, Distance::near());
        let (stamps, latency) = stamps(&mut ends, 3_000, &[vec![7; 64]], 12);
        assert_eq!((stamps, latency.count(), latency.invalid), (3, 3, 0));
    }

    #[test]
    fn a_record_that_lies_long_was_on_its_way_for_long() {
        let mut ends = Ends::new(16 << 10, Distance::near());
        assert_eq!(ends.send(&[vec![1; 64]]), 1);
        let waited = std::time::Duration::from_millis(20);
        std::thread::sleep(waited);
        assert_eq!(ends.receive().len(), 1);
        assert!(ends.latency().max_ns() >= waited.as_nanos() as u64);
    }

    /// Records of 64 bytes, of which laps hold a whole number: one burst after the other goes over the ring's end between two pushes.
    #[test]
    fn bursts_that_are_pushed_one_by_one_go_on_where_a_lap_ends_with_a_record() {
        for distance in [Distance::near(), Distance::far()] {
            let mut ends = Ends::new(16 << 10, distance);
            for burst in 0..40_u8 {
                let frames: Vec<_> = (0..100_u8).map(|n| vec![burst ^ n; 56]).collect();
                ends.writer.expect(frames.len() * 56);
                assert!(frames.iter().all(|frame| ends.writer.push(&PacketRef::from_slice(frame))));
                ends.writer.publish();
                let received: Vec<_> =
                    std::iter::repeat_with(|| ends.receive()).take_while(|some| !some.is_empty()).collect();
                assert_eq!(received.concat(), frames);
            }
        }
    }
}
