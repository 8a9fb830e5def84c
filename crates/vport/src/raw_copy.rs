//! The bare copy: what a one-way channel would cost without a port around it. It is the bound that the port is measured
//! against, and of no other use.
//!
//! Two threads, a ring of the port's size and kind of memory, the port's records of 64 B frames, one head published a
//! burst, one tail an eighth of the ring, and the port's prefetches. No steering, no counters, no doorbell, no peer that
//! comes and goes, and nothing is checked: each thread believes what the other one wrote.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::layout::{LINE, records_bytes};
use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, PacketRef};
use crate::prefetch;
use crate::ring::{HEADER, Ring, frame_header, record_bytes};
use crate::segment::{HUGE_PAGE, PAGE, Segment, SegmentError};
use crate::stream;

/// Bytes of each frame.
pub const FRAME: usize = 64;
const RECORD: u64 = record_bytes(FRAME);
/// How far ahead lines are asked for, as in a port.
const AHEAD: u64 = 512;
const HEAD: usize = 0;
const TAIL: usize = LINE;

/// How the producer writes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Through the caches.
    Ordinary,
    /// Past them, where the processor can.
    Streamed,
}

/// The memory of one bare copy.
#[derive(Debug)]
pub struct RawCopy {
    ring: Ring,
    records: Segment,
    index: Mapping,
    huge: bool,
}

impl RawCopy {
    /// A ring of `ring_bytes`, a power of two of at least 128 KiB; in a huge page where there is one.
    pub fn new(ring_bytes: u32) -> Result<Self, SegmentError> {
        let ring = Ring::new(ring_bytes.into()).filter(|ring| ring.size() >= 128 << 10);
        let ring = ring.ok_or_else(|| SegmentError::Io(io::ErrorKind::InvalidInput.into()))?;
        let segment = |page, huge| Segment::create("raw-copy", records_bytes(ring_bytes as usize, 1, page), huge);
        let (records, huge) = match segment(HUGE_PAGE, true) {
            Ok(records) => (records, true),
            Err(_) => (segment(PAGE, false)?, false),
        };
        Ok(Self { ring, records, index: Mapping::anonymous(PAGE)?, huge })
    }

    /// Whether the records lie in huge pages.
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    /// Writes frames as fast as there is room, until `stop`. One thread does.
    pub fn produce(&self, stores: Stores, stop: &AtomicBool) -> io::Result<()> {
        let records = Mapping::writable(self.records.as_fd(), self.records.len())?;
        let data = records.area_mut(0, self.ring.size() as usize);
        let frame = std::hint::black_box([0x42; FRAME]);
        if stores == Stores::Streamed && stream::POSSIBLE {
            let packet = PacketRef::from_slice(&frame);
            // SAFETY: `write_bursts` gives room for a record, at multiples of 8.
            let write = |at: usize| unsafe { stream::record::<false>(frame_header(FRAME), &packet, data.add(at)) };
            self.write_bursts(data, stop, write, stream::fence);
        } else {
            let write = |at: usize| {
                prefetch::to_write(data.wrapping_add(self.ring.offset(at as u64 + RECORD + AHEAD)));
                // SAFETY: `write_bursts` gives room for a record, at multiples of 8.
                unsafe {
                    data.add(at).cast::<u64>().write(frame_header(FRAME));
                    data.add(at + HEADER as usize).cast::<[u8; FRAME]>().write_unaligned(frame);
                }
            };
            self.write_bursts(data, stop, write, || ());
        }
        Ok(())
    }

    #[inline(always)]
    fn write_bursts(&self, data: *mut u8, stop: &AtomicBool, write: impl Fn(usize), finish: impl Fn()) {
        let (head_word, tail_word) = (self.index.word(HEAD), self.index.word(TAIL));
        // A burst's records, one of which may have to leave out the end of the ring.
        let room = (BURST_MAX as u64 + 1) * RECORD;
        let (mut head, mut tail) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            if head - tail + room > self.ring.size() {
                tail = tail_word.load(Ordering::Acquire);
                continue;
            }
            for _ in 0..BURST_MAX {
                if self.ring.to_end(head) < RECORD {
                    // SAFETY: an offset is within the ring and a multiple of 8.
                    unsafe { data.add(self.ring.offset(head)).cast::<u64>().write(self.ring.skip_header(head)) };
                    head += self.ring.to_end(head);
                }
                write(self.ring.offset(head));
                head += RECORD;
            }
            finish();
            head_word.store(head, Ordering::Release);
        }
    }

    /// Copies frames to private memory, and their number to `received` after each burst, until `stop`. After a look that
    /// found nothing it pauses the processor `pauses` times. One thread does.
    pub fn consume(&self, pauses: u32, received: &AtomicU64, stop: &AtomicBool) -> io::Result<()> {
        let records = Mapping::read_only(self.records.as_fd(), self.records.len())?;
        let data = records.area(0, self.ring.size() as usize);
        let (head_word, tail_word) = (self.index.word(HEAD), self.index.word(TAIL));
        let mut frames = [[0_u8; FRAME]; BURST_MAX];
        let (mut head, mut tail, mut released, mut count) = (0, 0, 0, 0);
        while !stop.load(Ordering::Relaxed) {
            if head == tail {
                head = head_word.load(Ordering::Acquire);
                if head == tail {
                    (0..pauses).for_each(|_| std::hint::spin_loop());
                    continue;
                }
            }
            let mut taken = 0;
            while taken < BURST_MAX && tail != head {
                let offset = self.ring.offset(tail);
                // SAFETY: an offset is within the ring and a multiple of 8; the producer's words are all that is read.
                let header = unsafe { data.add(offset).cast::<u64>().read() };
                if header != frame_header(FRAME) {
                    tail += self.ring.to_end(tail);
                    continue;
                }
                prefetch::to_read(data.wrapping_add(self.ring.offset(tail + AHEAD)));
                // SAFETY: a record lies within the ring; before the head nobody writes.
                frames[taken] = unsafe { data.add(offset + HEADER as usize).cast::<[u8; FRAME]>().read_unaligned() };
                taken += 1;
                tail += RECORD;
            }
            std::hint::black_box(&mut frames);
            count += taken as u64;
            received.store(count, Ordering::Relaxed);
            if tail - released >= self.ring.size() / 8 {
                released = tail;
                tail_word.store(tail, Ordering::Release);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Several laps, so that the end of the ring is left out several times.
    #[test]
    fn every_frame_that_is_written_is_read() {
        for stores in [Stores::Ordinary, Stores::Streamed] {
            let copy = RawCopy::new(128 << 10).unwrap();
            let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let producer = scope.spawn(|| copy.produce(stores, &stop));
                let consumer = scope.spawn(|| copy.consume(10, &received, &stop));
                while received.load(Ordering::Relaxed) < 20_000 && !producer.is_finished() && !consumer.is_finished() {
                    std::thread::yield_now();
                }
                stop.store(true, Ordering::Relaxed);
                producer.join().unwrap().unwrap();
                consumer.join().unwrap().unwrap();
            });
            let received = received.into_inner();
            assert!(received >= 20_000);
            // Head and tail are positions of whole records and of what was left out at the end of each lap.
            let head = copy.index.word(HEAD).load(Ordering::Relaxed);
            let per_lap = copy.ring.size() / RECORD;
            let records = head / copy.ring.size() * per_lap + head % copy.ring.size() / RECORD;
            assert!(records >= received && records - received <= per_lap, "{stores:?}: {records} {received}");
        }
    }

    #[test]
    fn a_ring_of_no_lawful_size_is_refused() {
        assert!(RawCopy::new(100_000).is_err() && RawCopy::new(64).is_err());
    }
}
