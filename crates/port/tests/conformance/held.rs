//! Frames that stay where they are, for another thread to take from there.

use port::relay::{RelayRx, RelayTx, relay};
use port::{BURST_MAX, Port, RxQueue, Steering};

use crate::backend::{Backend, Declared};
use crate::rig::{copied, gather, numbered, ours, packets, receive, until};

const RING_BYTES: u64 = 1 << 20;

fn channel() -> (RelayTx, RelayRx) {
    relay(RING_BYTES, 192).expect("memory")
}

/// Receives once, and tells the other thread where the frames lie. Position behind them, and how many they are.
fn hand_on(port: &mut Port, to: &mut RelayTx) -> (u64, usize) {
    let held = port.queues[0].rx.recv_held(Steering::None).expect("declared to hold");
    assert!(held.len() <= BURST_MAX);
    assert_eq!(to.send_held(&held), held.len());
    (held.end(), held.len())
}

/// What another thread has.
fn taken(from: &mut RelayRx) -> Vec<Vec<u8>> {
    let burst = from.recv();
    (0..burst.len()).map(|i| copied(&burst.get(i))).collect()
}

pub fn frames_that_are_held_reach_another_thread_whole_and_in_order(backend: &Backend) -> Declared {
    backend.holds?;
    const COUNT: usize = 20_000;
    let frames = numbered(0, COUNT as u64);
    let mut rig = backend.open_with(frames.clone());
    let (mut to, mut from) = channel();
    let other = std::thread::spawn(move || gather(COUNT, |_| ours(taken(&mut from))));
    let mut received = 0;
    while received < COUNT {
        rig.prompt(received);
        let (end, count) = hand_on(&mut rig.port, &mut to);
        received += count;
        let position = to.position();
        until("the other thread has dealt with them", || to.is_done(position) || other.is_finished());
        rig.port.queues[0].rx.give_back(end);
    }
    assert!(other.join().expect("it takes all")[..COUNT] == frames);
    Ok(())
}

/// The sender has come round its ring, as far as there is room, before the other thread looks.
pub fn what_is_held_stays_as_it_is_while_the_sender_goes_on(backend: &Backend) -> Declared {
    backend.holds?;
    backend.live?;
    let mut rig = backend.open();
    let mut next = 0;
    for _ in 0..20 {
        let (mut to, mut from) = channel();
        let first = next;
        while rig.far.tx().send(&packets(&numbered(next, 1))) == 1 {
            next += 1;
            assert!(next - first < 1 << 18, "it is never full");
            if (next - first).is_multiple_of(3) {
                hand_on(&mut rig.port, &mut to);
            }
        }
        let mut end = 0;
        until("the rest is there", || {
            let (position, count) = hand_on(&mut rig.port, &mut to);
            end = position;
            count == 0
        });
        assert_eq!(rig.far.tx().send(&packets(&numbered(next, 1))), 0, "it is held");
        let count = (next - first) as usize;
        assert!(count > 100);
        assert!(gather(count, |_| taken(&mut from)) == numbered(first, count as u64));
        assert!(taken(&mut from).is_empty() && to.is_done(to.position()));
        rig.port.queues[0].rx.give_back(end);
    }
    Ok(())
}

pub fn while_frames_are_held_nothing_else_is_received_and_nobody_sleeps(backend: &Backend) -> Declared {
    backend.holds?;
    backend.live?;
    let mut rig = backend.open();
    let (mut to, mut from) = channel();
    assert_eq!(rig.far.tx().send(&packets(&numbered(0, 2))), 2);
    let (end, count) = hand_on(&mut rig.port, &mut to);
    assert_eq!(count, 2);
    assert_eq!(rig.far.tx().send(&packets(&numbered(2, 1))), 1);
    let rx: &mut dyn RxQueue = &mut *rig.port.queues[0].rx;
    assert!(receive(rx).is_empty() && !rx.arm());
    // Nothing lies behind that position.
    rx.give_back(end + 8);
    assert!(receive(rx).is_empty() && !rx.arm());
    rx.give_back(end);
    assert!(receive(rx) == numbered(2, 1));
    assert!(rx.arm());
    rx.disarm();
    assert!(taken(&mut from) == numbered(0, 2), "they are still there: nothing was sent since that takes their place");
    Ok(())
}
