//! A channel between two threads of one process: the ring of a link, without ports, doorbells and generations.
//!
//! Its sender can *mark* the place where an epoch of owners begins. There its receiver stops until it is let on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::counters::RxCounters;
use crate::epoch::reaches;
use crate::layout::{Heads, LINE, RECORDS_PAD};
use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, Burst, HEAD_MAX, PacketRef, Slot};
use crate::reader::{Mapped, Reader, Wanted};
use crate::ring::Ring;
use crate::sync::{AtomicBool, AtomicU64};
use crate::writer::{Writer, is_sendable};

/// Head and tail lie on lines of their own, and not on neighbours.
const HEAD: usize = 0;
const TAIL: usize = 2 * LINE;
const INDEX_BYTES: usize = 4096;

/// The sending end.
#[derive(Debug)]
pub struct RelayTx {
    writer: Writer,
    marks: Arc<Marks>,
}

/// The receiving end.
pub struct RelayRx {
    slots: Box<[Slot]>,
    reader: Reader,
    source: Mapped,
    index: Arc<Mapping>,
    marks: Arc<Marks>,
    peek: usize,
    counters: RxCounters,
}

/// Where the last epoch begins.
#[derive(Debug, Default)]
struct Marks {
    epoch: AtomicU64,
    /// The head before anything of that epoch.
    mark: AtomicU64,
    /// The receiver's.
    progress: Progress,
    is_closed: AtomicBool,
}

/// On a line that the sender does not look at.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress {
    /// The position that the receiver has come to.
    tail: AtomicU64,
    /// The epoch whose packets it may take.
    open: AtomicU64,
}

/// Where an epoch begins: there the receiver stops until it is let on.
#[derive(Clone, Debug)]
pub struct Ford(Arc<Marks>);

/// A channel over a ring of so many bytes, a power of two; up to `peek` bytes of each frame are copied on receive.
///
/// # Errors
/// There is no such ring, or no memory.
pub fn relay(ring_bytes: u64, peek: usize) -> io::Result<(RelayTx, RelayRx)> {
    let ring = Ring::new(ring_bytes).ok_or(io::ErrorKind::InvalidInput)?;
    let records = Arc::new(Mapping::anonymous(ring.size() as usize + RECORDS_PAD)?);
    let index = Arc::new(Mapping::anonymous(INDEX_BYTES)?);
    let writer = Writer::new(
        ring,
        (&records, 0),
        (&index, |index: &Mapping| Heads::at(index, HEAD)),
        (&index, |index: &Mapping| index.word(TAIL)),
    );
    let marks = Arc::new(Marks::default());
    let source = Mapped::new(ring, &records, 0, &index, |index| Heads::at(index, HEAD));
    let slots = (0..BURST_MAX).map(|_| Slot::new()).collect();
    let peek = peek.clamp(64, HEAD_MAX);
    let (reader, counters) = (Reader::new(ring), RxCounters::default());
    Ok((RelayTx { writer, marks: marks.clone() }, RelayRx { slots, reader, source, index, marks, peek, counters }))
}

impl RelayTx {
    /// Sends packets in order and lets the receiver see them. How many there was room for; those of a length that no frame has
    /// count as sent.
    #[inline]
    pub fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        let pushed = self.writer.push_burst(packets);
        self.writer.publish();
        pushed.done()
    }

    /// Sends a burst as it was received, as [`RelayTx::send`] does.
    #[inline]
    pub fn send_burst(&mut self, burst: &Burst<'_>) -> usize {
        let Some(slots) = burst.slots_from(0) else { return burst.with_views(0, |packets| self.send(packets)) };
        let pushed = self.writer.push_burst(&slots);
        self.writer.publish();
        pushed.done()
    }

    /// Puts a packet behind those that were sent; the receiver sees it after [`RelayTx::publish`]. False while there is no room.
    /// One of a length that no frame has is discarded.
    #[inline]
    pub fn push(&mut self, packet: &PacketRef<'_>) -> bool {
        self.writer.push(packet) || !is_sendable(packet.len())
    }

    /// Lets the receiver see what was pushed.
    #[inline]
    pub fn publish(&mut self) {
        self.writer.publish();
    }

    /// What is sent from here on is of this epoch, which is larger than those before.
    pub fn mark(&mut self, epoch: u64) {
        self.marks.mark.store(self.writer.published(), Ordering::Relaxed);
        self.marks.epoch.store(epoch, Ordering::Release);
    }
}

impl Drop for RelayTx {
    fn drop(&mut self) {
        self.marks.is_closed.store(true, Ordering::Release);
    }
}

impl RelayRx {
    /// Takes up to [`BURST_MAX`] packets, and gives back what the last call returned.
    #[inline]
    pub fn recv(&mut self) -> Burst<'_> {
        self.counters.polls += 1;
        self.release(false);
        let marks = &*self.marks;
        let open = marks.progress.open.load(Ordering::Relaxed);
        // Loaded after the head that shows the record: no later epoch's is taken for one of this.
        let wanted = |_: &Slot, at| {
            let waits = marks.epoch.load(Ordering::Acquire) != open && reaches(at, marks.mark.load(Ordering::Relaxed));
            if waits { Wanted::NotYet } else { Wanted::Yes }
        };
        let filled = self.reader.fill(&self.source, &mut self.slots, self.peek, wanted);
        self.counters.packets += filled.packets as u64;
        self.counters.bytes += filled.bytes;
        self.counters.empty_polls += u64::from(filled.packets == 0);
        self.marks.progress.tail.store(self.reader.tail(), Ordering::Release);
        Burst::new(&mut self.slots[..filled.packets])
    }

    #[inline(always)]
    fn release(&mut self, now: bool) {
        if let Some(tail) = self.reader.release(now) {
            self.index.word(TAIL).store(tail, Ordering::Release);
        }
    }

    /// Gives everything back, and says whether there is more. The burst of the last call must have been dealt with.
    pub fn look(&mut self) -> bool {
        self.release(true);
        self.reader.has_more(&self.source)
    }

    /// Whether nothing waits, and nothing more comes.
    pub fn is_over(&self) -> bool {
        // In this order: what was sent before the end is seen.
        self.marks.is_closed.load(Ordering::Acquire) && !self.reader.has_more(&self.source)
    }

    /// What this end has counted.
    pub fn counters(&self) -> RxCounters {
        self.counters
    }

    /// What tells how far this end is.
    pub fn ford(&self) -> Ford {
        Ford(self.marks.clone())
    }
}

impl Ford {
    /// Whether the sender has begun the epoch, and the receiver has taken all that was sent before. Between two bursts of the
    /// receiver's, it has dealt with that, too.
    pub fn is_crossed(&self, epoch: u64) -> bool {
        let Marks { epoch: begun, mark, progress, .. } = &*self.0;
        begun.load(Ordering::Acquire) >= epoch
            && reaches(progress.tail.load(Ordering::Acquire), mark.load(Ordering::Relaxed))
    }

    /// Lets the receiver on, into the epoch.
    pub fn open(&self, epoch: u64) {
        self.0.progress.open.store(epoch, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn frame(number: u32) -> Vec<u8> {
        let len = 20 + number as usize * 61 % 1_500;
        let mut frame = vec![number as u8; len];
        frame[..4].copy_from_slice(&number.to_le_bytes());
        frame
    }

    fn take(rx: &mut RelayRx) -> Vec<Vec<u8>> {
        let burst = rx.recv();
        let copy = |at| {
            let packet = burst.get(at);
            let mut frame = vec![0; packet.len()];
            packet.copy_to(&mut frame);
            frame
        };
        (0..burst.len()).map(copy).collect()
    }

    #[test]
    fn frames_arrive_whole_and_in_order_between_two_threads() {
        const COUNT: u32 = 20_000;
        let (mut tx, mut rx) = relay(128 << 10, 192).unwrap();
        let sender = std::thread::spawn(move || {
            for number in 0..COUNT {
                while tx.send(&[PacketRef::from_slice(&frame(number))]) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while !rx.is_over() {
            for received in take(&mut rx) {
                assert_eq!(received, frame(next));
                next += 1;
            }
            std::thread::yield_now();
        }
        sender.join().unwrap();
        assert_eq!((next, rx.counters().packets), (COUNT, COUNT.into()));
    }

    #[test]
    fn an_epoch_is_crossed_when_all_before_it_is_taken_and_entered_when_it_is_open() {
        let (mut tx, mut rx) = relay(128 << 10, 192).unwrap();
        let ford = rx.ford();
        let send = |tx: &mut RelayTx, number| assert_eq!(tx.send(&[PacketRef::from_slice(&frame(number))]), 1);
        assert!(!ford.is_crossed(1), "the sender has not begun it");
        send(&mut tx, 0);
        tx.mark(1);
        send(&mut tx, 1);
        assert!(!ford.is_crossed(1));
        assert_eq!(take(&mut rx), [frame(0)]);
        assert!(ford.is_crossed(1) && !ford.is_crossed(2));
        assert!(take(&mut rx).is_empty(), "it stops there");
        ford.open(1);
        assert_eq!(take(&mut rx), [frame(1)]);
        tx.mark(2);
        assert!(ford.is_crossed(2));
    }

    #[test]
    fn a_full_channel_refuses_and_has_room_when_all_is_given_back() {
        let (mut tx, mut rx) = relay(128 << 10, 64).unwrap();
        let long = vec![7; 9_000];
        let mut sent = 0;
        while tx.send(&[PacketRef::from_slice(&long)]) == 1 {
            sent += 1;
        }
        assert!(sent > 4);
        while !take(&mut rx).is_empty() {}
        assert!(!rx.look() && !rx.is_over());
        assert_eq!(tx.send(&[PacketRef::from_slice(&long)]), 1);
        drop(tx);
        assert!(rx.look() && !rx.is_over());
        assert_eq!(take(&mut rx), [long]);
        assert!(rx.is_over());
    }
}
