//! The ring and the doorbell between two threads that share nothing else.

use std::sync::Arc;

use super::direction::Direction;
use super::{Depth, check, sleep, thread, without_fences};
use crate::cell::Cell;
use crate::handover::Handover;
use crate::latency::Latency;
use crate::layout::Index;
use crate::mapping::Mapping;
use crate::packet::PacketRef;
use crate::rx::{Ownership, RxRing};
use crate::steering::{BucketTable, Steering};
#[cfg(loom)]
use crate::sync::{Weak, checked};
use crate::tx::TxRing;

/// By how much rings and frames are larger than stated. On real threads heads are then whole blocks, and the thread
/// sanitizer does not see the bytes behind a head that are copied and never looked at.
pub(super) const SCALE: usize = if cfg!(loom) { 1 } else { 64 };

/// A direction of a link, with all that its two ends share.
struct Link {
    layout: Index,
    /// Index segments of the sending and of the receiving queue.
    sender: Arc<Mapping>,
    receiver: Arc<Mapping>,
    records: Arc<Mapping>,
    tx: TxRing,
    rx: RxRing,
}

impl Link {
    fn new(ring_bytes: usize) -> Self {
        #[cfg(loom)]
        checked::begin();
        let direction = Direction::new(ring_bytes * SCALE, 1, 1, Steering::None);
        let to_rx = Handover::new().unwrap();
        let cell = Arc::new(Cell::new(0, &BucketTable::fixed(1), to_rx.clone()));
        let ownership = Ownership { steering: Steering::None, cell, queue: 0, queues: 1 };
        let (tx, rx) = (direction.sender(0), direction.receiver(ownership, &to_rx, 1));
        let Direction { from: (layout, senders), to: (_, receivers), records, .. } = &direction;
        let [sender, receiver, records] = [senders, receivers, records].map(|segments| segments[0].clone());
        let mut link = Self { layout: *layout, sender, receiver, records, tx, rx };
        // Both take the generation over, and the receiver knows that it was woken for it.
        assert!(link.tx.send(&[]) == 0 && link.rx.recv().is_empty());
        assert!(link.rx.arm());
        link.rx.disarm();
        link
    }
}

/// Frame `n`: its bytes say so.
fn frame(n: usize, len: usize) -> Vec<u8> {
    vec![n as u8 + 1; len * SCALE]
}

/// Sends frames of these lengths, one a burst or all at once, and waits where the ring is full.
fn send_all(tx: &mut TxRing, lens: &[usize], at_once: bool) {
    send_from(tx, lens, 0, if at_once { lens.len() } else { 1 });
}

/// Sends those from number `first` on, in bursts of so many.
pub(super) fn send_from(tx: &mut TxRing, lens: &[usize], first: usize, at_once: usize) {
    let frames: Vec<Vec<u8>> = lens.iter().enumerate().map(|(n, len)| frame(n, *len)).collect();
    let packets: Vec<PacketRef<'_>> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
    for burst in packets[first..].chunks(at_once) {
        let mut sent = 0;
        while sent < burst.len() {
            match tx.send(&burst[sent..]) {
                0 => thread::yield_now(),
                accepted => sent += accepted,
            }
        }
    }
}

/// Receives once, and checks that every byte is that of the frame whose turn it is. Returns how many frames came.
pub(super) fn receive(rx: &mut RxRing, lens: &[usize], next: usize) -> usize {
    let burst = rx.recv();
    for i in 0..burst.len() {
        let packet = burst.get(i);
        let expected = frame(next + i, lens[next + i]);
        assert_eq!(packet.head, &expected[..packet.head.len()]);
        // The rest stays in the ring until the next receive.
        crate::sync::reads(packet.rest.as_ptr(), packet.rest.len());
        let mut copy = vec![0; packet.len()];
        packet.copy_to(&mut copy);
        assert_eq!(copy, expected);
    }
    burst.len()
}

/// What a model does not do right, on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Broken {
    #[cfg(loom)]
    head: Option<Weak>,
    #[cfg(loom)]
    tail: Option<Weak>,
    waker_without_fence: bool,
    sleeper_without_fence: bool,
    sleeps_without_looking: bool,
}

/// Both poll. The ring must be right without the doorbell's fences, which are left out.
fn ring(depth: Depth, ring_bytes: usize, lens: &'static [usize], at_once: bool, broken: Broken) {
    check(depth, move || {
        let Link { layout, sender, receiver, records, mut tx, mut rx } = Link::new(ring_bytes);
        share_ring(layout, [&sender, &receiver, &records], ring_bytes, broken);
        let producer = thread::spawn(move || {
            without_fences();
            send_all(&mut tx, lens, at_once);
            tx
        });
        without_fences();
        let mut received = 0;
        while received < lens.len() {
            match receive(&mut rx, lens, received) {
                0 => thread::yield_now(),
                more => received += more,
            }
        }
        let tx = producer.join().unwrap();
        assert!(rx.recv().is_empty());
        assert_eq!((tx.counters().packets, rx.counters().packets), (lens.len() as u64, lens.len() as u64));
        assert_eq!(rx.counters().invalid, 0);
        let latency = Latency::read(layout, &receiver);
        assert_eq!(
            (latency.count(), latency.invalid),
            (1, 0),
            "the first burst has a stamp, which comes with its head"
        );
    });
}

/// The receiver sleeps whenever nothing waits.
fn doorbell(depth: Depth, lens: &'static [usize], broken: Broken) {
    check(depth, move || {
        let Link { layout, sender, receiver, records, mut tx, mut rx } = Link::new(256);
        share_ring(layout, [&sender, &receiver, &records], 256, broken);
        share_sleep(layout, &receiver);
        let producer = thread::spawn(move || {
            if broken.waker_without_fence {
                without_fences();
            }
            send_all(&mut tx, lens, false);
            tx
        });
        if broken.sleeper_without_fence {
            without_fences();
        }
        let (mut received, mut announced) = (0, 0);
        while received < lens.len() {
            received += receive(&mut rx, lens, received);
            if received < lens.len() {
                announced += 1;
                if rx.arm() || broken.sleeps_without_looking {
                    sleep(&rx);
                    rx.disarm();
                }
            }
        }
        // Dropped here, since a sender that goes rings once more.
        let tx = producer.join().unwrap();
        assert!(tx.counters().doorbells <= announced, "one ring for each time that sleep was announced");
    });
}

#[cfg(loom)]
fn share_ring(layout: Index, [sender, receiver, records]: [&Mapping; 3], bytes: usize, broken: Broken) {
    checked::share(layout.head(sender, 0), broken.head);
    checked::share(layout.heads(sender, 0).stamp, None);
    checked::share(layout.tail(receiver, 0), broken.tail);
    checked::share_bytes(records.area(0, bytes), bytes);
}

#[cfg(loom)]
fn share_sleep(layout: Index, receiver: &Mapping) {
    checked::share(layout.sleep(receiver), None);
}

#[cfg(not(loom))]
fn share_ring(_: Index, _: [&Mapping; 3], _: usize, _: Broken) {}

#[cfg(not(loom))]
fn share_sleep(_: Index, _: &Mapping) {}

/// Records of 16 bytes: two fill the ring, the third needs one given back. Heads that are published record by record.
#[test]
fn a_full_ring_is_written_again_only_where_it_was_read() {
    ring(Depth::Whole, 32, &[1, 2, 3], true, Broken::default());
}

/// Records of 24, (8 skipped) and 24 bytes: the second waits for the first to be given back.
#[test]
fn a_skip_record_leads_the_reader_to_the_next_lap() {
    ring(Depth::Whole, 32, &[16, 9], false, Broken::default());
}

/// 76 of 140 bytes stay in the ring until the next receive, while the writer waits for room.
#[test]
fn what_lies_behind_a_head_stays_until_the_next_receive() {
    ring(Depth::Whole, 256, &[140, 100], false, Broken::default());
}

/// Records of 24, 16, 16, (8 skipped) and 24 bytes.
#[test]
fn frames_of_several_laps_come_whole_and_in_order() {
    ring(Depth::Interruptions(2), 64, &[16, 8, 1, 9], false, Broken::default());
}

#[test]
fn no_wake_up_is_lost() {
    doorbell(Depth::Whole, &[1], Broken::default());
}

/// A second burst comes before, while or after the first one's ring wakes the sleeper.
#[test]
fn one_ring_wakes_a_sleeper_for_all_that_came_meanwhile() {
    doorbell(Depth::Whole, &[1, 2], Broken::default());
}

#[test]
fn a_sleeper_sleeps_again_and_again() {
    doorbell(Depth::Interruptions(3), &[1, 2, 3], Broken::default());
}

/// Each ordering that a protocol needs, taken away: without it the models above would have failed.
#[cfg(loom)]
mod noticed {
    use super::*;

    fn broken_ring(broken: Broken) {
        ring(Depth::Whole, 32, &[1, 2, 3], true, broken);
    }

    fn broken_doorbell(broken: Broken) {
        doorbell(Depth::Whole, &[1], broken);
    }

    #[test]
    #[should_panic(expected = "Concurrent read and write accesses")]
    fn a_head_published_without_release() {
        broken_ring(Broken { head: Some(Weak::Store), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "Concurrent read and write accesses")]
    fn a_head_read_without_acquire() {
        broken_ring(Broken { head: Some(Weak::Load), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "Concurrent read and write accesses")]
    fn a_tail_published_without_release() {
        broken_ring(Broken { tail: Some(Weak::Store), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "Concurrent read and write accesses")]
    fn a_tail_read_without_acquire() {
        broken_ring(Broken { tail: Some(Weak::Load), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_waker_without_its_fence() {
        broken_doorbell(Broken { waker_without_fence: true, ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_sleeper_without_its_fence() {
        broken_doorbell(Broken { sleeper_without_fence: true, ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_sleeper_that_does_not_look_again() {
        broken_doorbell(Broken { sleeps_without_looking: true, ..Broken::default() });
    }
}
