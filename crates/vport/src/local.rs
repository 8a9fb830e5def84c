//! Queues without a peer: the same rings and the same code over private memory. For measuring what a function costs, and
//! for tests.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cell::Cell as Buckets;
use crate::counters::{RxCounters, TxCounters};
use crate::handover::Handover;
use crate::held::{Held, Places};
use crate::layout::{Heads, LINE};
use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, Burst, FRAME_MAX, HEAD_MAX, PacketRef, Slot};
use crate::prefetch::CacheLevel;
use crate::reader::{Filled, Reader, Wanted};
use crate::registers::{self, Registers};
use crate::ring::{Ring, record_bytes};
use crate::rx::ownership::Ownership;
use crate::source::{Mapped, Seen, Source};
use crate::steering::{BucketTable, Steering};
use crate::writer::{Pushed, Writer};

/// Head and tail of a private ring lie on lines of their own.
const HEAD: usize = 0;
const TAIL: usize = LINE;
const INDEX_BYTES: usize = 4096;
const PAD: usize = 4096;
/// Smallest ring: a quarter holds the longest frame twice.
const RING_MIN: u64 = 128 << 10;

/// What a source does when its frames have all been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Begins again.
    Repeat,
    /// Receives nothing more.
    Stop,
}

/// The receiving half: frames from memory.
pub struct LocalSource {
    slots: Box<[Slot]>,
    places: Places,
    reader: Reader,
    source: Lap,
    index: Arc<Mapping>,
    peek: usize,
    counters: RxCounters,
    registers: Registers,
    /// Which frames may come in, where a port has several queues.
    ownership: Option<Ownership>,
}

/// A ring whose records stand as they are: all that a peer would come to is that the head moves on by a lap.
struct Lap {
    records: Mapped,
    ring: Ring,
    then: Then,
    head: Cell<u64>,
}

impl Lap {
    #[inline(always)]
    fn seen(&self) -> SeenLap<'_> {
        SeenLap { records: self.records.seen(), lap: self }
    }
}

/// The same to fill slots from (see [`Seen`]).
#[derive(Clone, Copy)]
struct SeenLap<'l> {
    records: Seen<'l>,
    lap: &'l Lap,
}

impl Source for SeenLap<'_> {
    type Slot = Slot;

    /// Called by a reader that has read up to the last head.
    #[inline(always)]
    fn head(&self) -> u64 {
        let Lap { ring, then, head, .. } = self.lap;
        if *then == Then::Repeat {
            head.set(head.get().wrapping_add(ring.size()));
            return head.get();
        }
        self.records.head()
    }

    #[inline(always)]
    fn header(&self, offset: usize) -> u64 {
        self.records.header(offset)
    }

    #[inline(always)]
    fn take(&self, offset: usize, head: usize, rest: usize, slot: &mut Slot) {
        self.records.take(offset, head, rest, slot);
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize, level: CacheLevel) {
        self.records.prefetch(offset, level);
    }
}

impl LocalSource {
    /// A queue that receives `frames`, of 1 to [`FRAME_MAX`] bytes each. To be repeated, they are laid out as often as
    /// they fit the ring.
    pub fn new(frames: &[Vec<u8>], then: Then, peek: usize) -> io::Result<Self> {
        if frames.iter().any(|frame| !(1..=FRAME_MAX).contains(&frame.len())) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no frame has such a length"));
        }
        let then = if frames.is_empty() { Then::Stop } else { then };
        let ring = ring_for(frames)?;
        let (records, index) = memory(ring)?;
        let mut writer = writer(ring, &records, &index);
        while frames.iter().all(|frame| writer.push(&PacketRef::from_slice(frame))) && then == Then::Repeat {}
        writer.publish();
        if then == Then::Repeat {
            close_lap(ring, &records, writer.published());
        }
        let records = Mapped::new(ring, &records, 0, &index, |index| Heads::at(index, HEAD));
        Ok(Self {
            slots: (0..BURST_MAX).map(|_| Slot::new()).collect(),
            places: Places::new(),
            reader: Reader::new(ring),
            source: Lap { records, ring, then, head: Cell::new(0) },
            index,
            peek: peek.clamp(64, HEAD_MAX),
            counters: RxCounters::default(),
            registers: Registers::here(),
            ownership: None,
        })
    }

    /// Queue `queue` of a port that has `queues` of them, and looks at frames as such a one does: of a burst with one that is
    /// another queue's by [`BucketTable::fixed`] nothing is received.
    pub fn of_queue(self, steering: Steering, queue: usize, queues: usize) -> io::Result<Self> {
        let cell = Arc::new(Buckets::new(queue, &BucketTable::fixed(queues), Handover::new()?));
        Ok(Self { ownership: Some(Ownership { steering, cell, queue, queues }), ..self })
    }

    /// Takes up to [`BURST_MAX`] packets.
    #[inline]
    pub fn recv(&mut self) -> Burst<'_> {
        match &self.ownership {
            None => registers::dispatch!(self.registers, self.receive::<false>()),
            Some(_) => registers::dispatch!(self.registers, self.receive::<true>()),
        }
    }

    /// Looks whose frames are, or not.
    #[inline(always)]
    fn receive<const LOOKS: bool>(&mut self) -> Burst<'_> {
        self.counters.polls += 1;
        if let Some(tail) = self.reader.release(false) {
            self.index.word(TAIL).store(tail, Ordering::Release);
        }
        let mut filled = self.reader.fill(self.source.seen(), &mut self.slots, self.peek, |_, _| Wanted::Yes);
        if LOOKS
            && let Some(mine) = &self.ownership
            && !mine.owns_all(&self.slots[..filled.packets as usize])
        {
            self.counters.invalid += u64::from(filled.packets);
            filled = Filled::default();
        }
        self.count(filled);
        let packets = filled.packets as usize;
        let coming = self.reader.coming(self.source.records.places(self.source.ring), packets);
        Burst::new(&mut self.slots[..packets]).before(coming)
    }

    /// The same, of packets which stay where they are until they are given back, and which the caller will spread by `steering`.
    #[inline]
    pub fn recv_held(&mut self, steering: Steering) -> Held<'_> {
        registers::dispatch!(self.registers, self.hold(steering))
    }

    #[inline(always)]
    fn hold(&mut self, steering: Steering) -> Held<'_> {
        self.counters.polls += 1;
        let source = self.source.records.unseen(self.source.seen(), steering);
        let filled = self.reader.fill(source, self.places.all_mut(), 0, |_, _| Wanted::Yes);
        self.count(filled);
        let (count, mapping) = (filled.packets as usize, self.source.records.mapping());
        Held::new(count, &self.places, mapping, self.reader.tail(), self.registers)
    }

    /// Gives packets back, up to a position that a [`Held`] has said the end of.
    #[inline]
    pub fn give_back(&mut self, position: u64) {
        if let Some(tail) = self.reader.release_to(position) {
            self.index.word(TAIL).store(tail, Ordering::Release);
        }
    }

    #[inline(always)]
    fn count(&mut self, filled: Filled) {
        self.counters.packets += filled.packets as u64;
        self.counters.bytes += filled.bytes;
        self.counters.empty_polls += u64::from(filled.packets == 0);
    }

    /// Whether a receive would find something.
    pub fn has_more(&self) -> bool {
        self.source.then == Then::Repeat || self.reader.has_more(self.source.records.seen())
    }

    /// What this half has counted.
    pub fn counters(&self) -> RxCounters {
        self.counters
    }
}

/// The sending half: frames are written as to a peer, and gone.
pub struct LocalSink {
    writer: Writer,
    index: Arc<Mapping>,
    counters: TxCounters,
    registers: Registers,
}

impl LocalSink {
    /// A queue that takes everything.
    pub fn new() -> io::Result<Self> {
        let ring = Ring::new(2 * RING_MIN).ok_or(io::ErrorKind::InvalidInput)?;
        let (records, index) = memory(ring)?;
        let (counters, registers) = (TxCounters::default(), Registers::here());
        Ok(Self { writer: writer(ring, &records, &index), index, counters, registers })
    }

    /// Sends the packets.
    #[inline]
    pub fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        registers::dispatch!(self.registers, self.send_all(packets))
    }

    #[inline(always)]
    fn send_all(&mut self, packets: &[PacketRef<'_>]) -> usize {
        let mut all = Pushed::default();
        loop {
            let pushed = self.writer.push_burst(&packets[all.done()..]);
            all.packets += pushed.packets;
            all.bytes += pushed.bytes;
            all.discarded += pushed.discarded;
            self.writer.publish();
            if all.done() == packets.len() {
                return self.counters.count(all);
            }
            self.swallow();
        }
    }

    fn swallow(&mut self) {
        self.index.word(TAIL).store(self.writer.published(), Ordering::Release);
    }

    /// What this half has counted.
    pub fn counters(&self) -> TxCounters {
        self.counters
    }
}

fn ring_for(frames: &[Vec<u8>]) -> io::Result<Ring> {
    let bytes: u64 = frames.iter().map(|frame| record_bytes(frame.len())).sum();
    // One lap holds all, with room for what does not fit before the end.
    let size = (bytes + 2 * record_bytes(FRAME_MAX)).max(RING_MIN).next_power_of_two();
    Ring::new(size).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Many frames lie in large pages, as those of other ports do.
fn memory(ring: Ring) -> io::Result<(Arc<Mapping>, Arc<Mapping>)> {
    let records = Mapping::reserved(ring.size() as usize + PAD)?;
    Ok((Arc::new(records), Arc::new(Mapping::anonymous(INDEX_BYTES)?)))
}

fn writer(ring: Ring, records: &Arc<Mapping>, index: &Arc<Mapping>) -> Writer {
    Writer::new(
        ring,
        (records, 0),
        (index, |index: &Mapping| Heads::at(index, HEAD)),
        (index, |index: &Mapping| index.word(TAIL)),
    )
    .with_near_reader()
}

/// Puts a skip record from `head` to the ring's end.
fn close_lap(ring: Ring, records: &Mapping, head: u64) {
    if ring.offset(head) != 0 {
        records.word(ring.offset(head)).store(ring.skip_header(head), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|n| vec![n as u8; 20 + n * 61 % 1_500]).collect()
    }

    fn copy(packet: &PacketRef<'_>) -> Vec<u8> {
        let mut frame = vec![0; packet.len()];
        packet.copy_to(&mut frame);
        frame
    }

    #[test]
    fn frames_come_once_and_in_order() {
        let sent = frames(500);
        let mut source = LocalSource::new(&sent, Then::Stop, 64).unwrap();
        let mut received = Vec::new();
        while source.has_more() {
            let burst = source.recv();
            (0..burst.len()).for_each(|i| received.push(copy(&burst.get(i))));
        }
        assert_eq!(received, sent);
        assert!(source.recv().is_empty());
    }

    #[test]
    fn frames_repeat_for_ever_without_an_empty_poll() {
        let sent = frames(100);
        let mut source = LocalSource::new(&sent, Then::Repeat, 192).unwrap();
        let mut n = 0;
        let mut laps = 0;
        while laps < 50 {
            let burst = source.recv();
            for i in 0..burst.len() {
                let frame = copy(&burst.get(i));
                // A lap may end within a round.
                if frame != sent[n % 100] {
                    (n, laps) = (0, laps + 1);
                }
                assert_eq!(frame, sent[n % 100]);
                n += 1;
            }
        }
        assert_eq!(source.counters().empty_polls, 0);
    }

    #[test]
    fn the_next_burst_is_expected_where_it_lies_if_all_of_it_is_there() {
        for len in [60, 100, 1_514] {
            let mut source = LocalSource::new(&vec![vec![1; len]; 3 * BURST_MAX - 1], Then::Stop, 192).unwrap();
            let expected = source.recv().coming().places(BURST_MAX);
            let held = source.recv_held(Steering::None);
            let places: Vec<_> = held.places().iter().map(|place| place.origin()).collect();
            assert_eq!(expected, places);
            let end = held.end();
            source.give_back(end);
            let last = source.recv();
            assert_eq!((last.len(), last.coming().places(1)), (BURST_MAX - 1, vec![]));
        }
    }

    #[test]
    fn less_than_a_burst_is_not_expected() {
        let mut source = LocalSource::new(&vec![vec![1; 100]; 2 * BURST_MAX - 1], Then::Stop, 192).unwrap();
        let first = source.recv();
        assert_eq!((first.len(), first.coming().places(1)), (BURST_MAX, vec![]));
    }

    #[test]
    fn a_sink_takes_any_amount() {
        let mut sink = LocalSink::new().unwrap();
        let frame = vec![1; FRAME_MAX];
        for _ in 0..1_000 {
            assert_eq!(sink.send(&[PacketRef::from_slice(&frame); 3]), 3);
        }
        assert_eq!(sink.send(&[PacketRef::from_slice(&[])]), 1);
        assert_eq!((sink.counters().packets, sink.counters().discarded), (3_000, 1));
    }
}
