//! A port that another process takes over, as `docs/ports.md` tells it: its peer sends in one generation and then in the next, whoever had
//! the port works off the first, and whoever has it then begins with the second when the other has left. No frame is lost, comes
//! twice or out of turn, and nobody waits for ever.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::direction::{Direction, sender_by};
use super::link::{SCALE, receive, send_from};
use super::{Depth, check, thread, without_fences};
use crate::cell::Cell;
use crate::handover::Handover;
use crate::rx::{Ownership, RxRing};
use crate::steering::{BucketTable, Steering};
use crate::sync::fence_threads;
#[cfg(loom)]
use crate::sync::{Weak, checked};

/// Room for all that a model sends.
const RING_BYTES: usize = 256;

/// What a model does not do right, on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Broken {
    #[cfg(loom)]
    closed: Option<Weak>,
    #[cfg(loom)]
    busy: Option<Weak>,
    leaves_early: bool,
    unfenced: bool,
}

/// Who says that nothing more comes in the first generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closer {
    /// The sender, when it sends in the second, which it does.
    Sender,
    /// Its control thread, if it finds the sender within no burst, else the sender when it next looks.
    Control,
}

/// The only queue of one who has the port.
fn receiver(direction: &Direction) -> RxRing {
    let mailbox = Handover::new().unwrap();
    let cell = Arc::new(Cell::new(0, &BucketTable::fixed(1), mailbox.clone()));
    let ownership = Ownership { steering: Steering::None, cell, queue: 0, queues: 1 };
    direction.receiver(ownership, &mailbox, 1)
}

/// A thread sends frames of these lengths: where it closes the first generation itself, the last one when it was given the second for
/// sure. Another gives it that at any time. The third receives in the first generation until that is over, and then in the second.
fn taken_over(depth: Depth, lens: &'static [usize], closer: Closer, broken: Broken) {
    check(depth, move || {
        #[cfg(loom)]
        checked::begin();
        let [first, second] = [0, 1].map(|_| Direction::new(RING_BYTES * SCALE, 1, 1, Steering::None));
        let mailbox = Handover::new().unwrap();
        assert!(mailbox.deliver(first.tx_half(0)).is_none());
        let mut tx = sender_by(0, mailbox.clone());
        assert_eq!(tx.send(&[]), 0);
        let mut old = receiver(&first);
        assert!(old.recv().is_empty());
        share(&first, broken);
        share(&second, Broken::default());
        #[cfg(loom)]
        for (name, word) in mailbox.words() {
            checked::share(word, broken.busy.filter(|_| name == "handover.busy"));
        }

        let half = second.tx_half(0);
        let (layout, index) = (first.from.0, first.from.1[0].clone());
        let control = thread::spawn(move || {
            assert!(mailbox.deliver(half).is_none());
            if closer == Closer::Control {
                assert!(fence_threads());
                if mailbox.has_left() {
                    layout.close(&index, 0, layout.head(&index, 0).load(Ordering::Acquire));
                }
            }
        });
        let sender = thread::spawn(move || {
            if closer == Closer::Sender || broken.unfenced {
                without_fences();
            }
            let last = if closer == Closer::Sender { lens.len() - 1 } else { lens.len() };
            send_from(&mut tx, &lens[..last], 0, 1);
            control.join().unwrap();
            send_from(&mut tx, lens, last, 1);
            assert_eq!(tx.send(&[]), 0);
            tx
        });
        without_fences();
        let mut received = 0;
        while !old.is_over() {
            received += receive(&mut old, lens, received);
            if broken.leaves_early && received > 0 {
                break;
            }
            thread::yield_now();
        }
        drop(old);
        assert!(closer == Closer::Control || received < lens.len(), "it has got what was sent to the other");
        let mut heir = receiver(&second);
        let tx = sender.join().unwrap();
        received += receive(&mut heir, lens, received);
        assert_eq!(received, lens.len(), "a frame was lost");
        assert_eq!((tx.counters().packets, heir.counters().invalid), (lens.len() as u64, 0));
    });
}

#[cfg(loom)]
fn share(direction: &Direction, broken: Broken) {
    let Direction { from: (layout, senders), to: (_, receivers), records, .. } = direction;
    checked::share(layout.head(&senders[0], 0), None);
    checked::share(layout.heads(&senders[0], 0).stamp, None);
    checked::share(layout.closed(&senders[0], 0), broken.closed);
    checked::share(layout.tail(&receivers[0], 0), None);
    checked::share_bytes(records[0].area(0, RING_BYTES), RING_BYTES);
}

#[cfg(not(loom))]
fn share(_: &Direction, _: Broken) {}

#[test]
fn what_is_sent_while_a_port_is_taken_over_comes_to_one_and_then_to_the_other() {
    taken_over(Depth::Interruptions(3), &[2, 2], Closer::Sender, Broken::default());
    taken_over(Depth::Interruptions(2), &[1, 9, 2], Closer::Sender, Broken::default());
}

#[test]
fn a_port_that_is_taken_over_from_one_whose_peer_falls_silent_is_over_all_the_same() {
    taken_over(Depth::Interruptions(3), &[2], Closer::Control, Broken::default());
    taken_over(Depth::Interruptions(2), &[2, 2], Closer::Control, Broken::default());
}

/// Each ordering on which that rests, taken away.
#[cfg(loom)]
mod noticed {
    use super::*;

    fn broken(broken: Broken) {
        taken_over(Depth::Interruptions(3), &[2, 2], Closer::Sender, broken);
    }

    #[test]
    #[should_panic(expected = "assertion `left == right` failed")]
    fn a_channel_closed_without_release() {
        broken(Broken { closed: Some(Weak::Store), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "assertion `left == right` failed")]
    fn a_closed_channel_seen_without_acquire() {
        broken(Broken { closed: Some(Weak::Load), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "assertion `left == right` failed")]
    fn one_who_leaves_before_the_end() {
        taken_over(
            Depth::Interruptions(3),
            &[2, 2, 2],
            Closer::Sender,
            Broken { leaves_early: true, ..Broken::default() },
        );
    }

    #[test]
    #[should_panic(expected = "assertion `left == right` failed")]
    fn a_burst_seen_left_without_acquire() {
        let broken = Broken { busy: Some(Weak::Load), ..Broken::default() };
        taken_over(Depth::Interruptions(4), &[2], Closer::Control, broken);
    }

    #[test]
    #[should_panic(expected = "assertion `left == right` failed")]
    fn a_burst_that_begins_without_a_fence() {
        taken_over(Depth::Interruptions(3), &[2], Closer::Control, Broken { unfenced: true, ..Broken::default() });
    }
}
