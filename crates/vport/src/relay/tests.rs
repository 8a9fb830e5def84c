use proptest::prelude::*;

use super::*;
use crate::local::{LocalSource, Then};
use crate::steering::Steering;

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

proptest! {
    /// What is copied of them is one block to four, and for a burst, or a part of one, the same.
    #[test]
    fn frames_arrive_whole_whether_they_are_alike_or_not(
        runs in prop::collection::vec((prop::sample::select(vec![1, 60, 64, 65, 150, 192, 193, 1_500]), 1..3 * BURST_MAX), 1..8),
        peek in prop::sample::select(vec![64, 192, 256]),
    ) {
        let (mut tx, mut rx) = relay(2 << 20, peek).unwrap();
        let lens: Vec<usize> = runs.iter().flat_map(|(len, count)| vec![*len; *count]).collect();
        let frames: Vec<Vec<u8>> = lens.iter().enumerate().map(|(at, len)| vec![at as u8; *len]).collect();
        let packets: Vec<_> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        prop_assert_eq!(tx.send(&packets), packets.len());
        let received: Vec<Vec<u8>> =
            std::iter::from_fn(|| Some(take(&mut rx)).filter(|some| !some.is_empty())).flatten().collect();
        prop_assert!(received == frames);
        let RxCounters { packets, bytes, .. } = rx.counters();
        prop_assert_eq!((packets, bytes), (frames.len() as u64, lens.iter().sum::<usize>() as u64));
    }
}

/// There are entries for as many of these as there is room for.
#[test]
fn frames_arrive_whole_however_full_the_channel_is() {
    let (mut tx, mut rx) = relay(64 << 10, 64).unwrap();
    let frame = |number: u32| number.to_le_bytes().repeat(ONE / 4);
    let (mut sent, mut received) = (0, 0);
    for _ in 0..1_000 {
        let burst = rx.recv();
        while tx.push(&PacketRef::from_slice(&frame(sent))) {
            sent += 1;
        }
        tx.publish();
        for at in 0..burst.len() {
            let mut bytes = [0; ONE];
            burst.get(at).copy_to(&mut bytes);
            assert_eq!(bytes, *frame(received), "what was received is not overwritten");
            received += 1;
        }
    }
    assert!(received > 20_000);
}

#[test]
fn a_share_of_a_burst_arrives_in_order_and_those_without_room_are_named() {
    let frames: Vec<Vec<u8>> = (0..BURST_MAX as u32).map(frame).collect();
    let mut source = LocalSource::new(&frames, Then::Repeat, 192).unwrap();
    let (mut tx, mut rx) = relay(64 << 10, 192).unwrap();
    let entries = tx.shared.entries.len();
    // So many that one of them finds no room in the end.
    let share = 0x8000_1234_5678_0011;
    let numbers: Vec<usize> = (0..BURST_MAX).filter(|at| share >> at & 1 == 1).collect();
    let held = source.recv_held(Steering::None);
    for _ in 0..entries / numbers.len() {
        assert_eq!(tx.send_share(&held, share), 0);
    }
    let fit = entries % numbers.len();
    let left = numbers[fit..].iter().fold(0, |left, at| left | 1 << at);
    assert_eq!((tx.send_share(&held, share), tx.send_share(&held, share)), (left, share));
    let all: Vec<Vec<u8>> =
        std::iter::from_fn(|| Some(take(&mut rx)).filter(|some| !some.is_empty())).flatten().collect();
    let expected: Vec<&Vec<u8>> = numbers.iter().cycle().take(entries).map(|at| &frames[*at]).collect();
    assert!(all.iter().eq(expected));
    assert_eq!(tx.send_share(&held, share), 0);
}

#[test]
fn nothing_is_sent_for_packets_that_a_burst_does_not_have() {
    let frames: Vec<Vec<u8>> = (0..BURST_MAX as u32 + 3).map(frame).collect();
    let mut source = LocalSource::new(&frames, Then::Stop, 192).unwrap();
    let (mut tx, mut rx) = relay(64 << 10, 192).unwrap();
    assert_eq!(source.recv_held(Steering::None).len(), BURST_MAX);
    assert_eq!(tx.send_share(&source.recv_held(Steering::None), !0b10), 0);
    assert_eq!(take(&mut rx), [&frames[BURST_MAX][..], &frames[BURST_MAX + 2]]);
}

/// Each time takes a line from the sender. But nobody waits for more than there is.
#[test]
fn what_was_dealt_with_is_said_when_nothing_waits_or_when_it_is_much() {
    let (mut tx, mut rx) = relay(2 << 20, 192).unwrap();
    let said = |rx: &RelayRx| rx.shared.done.0.load(Ordering::Relaxed);
    let mut send = |count: usize, len: usize| {
        (0..count).for_each(|_| assert!(tx.push(&PacketRef::from_slice(&vec![1; len]))));
        tx.publish();
    };
    send(2 * SAID_EVERY as usize, 60);
    let mut taken = 0;
    while said(&rx) == 0 {
        taken += rx.recv().len() as u64;
    }
    assert_eq!((said(&rx), taken), (SAID_EVERY, SAID_EVERY + BURST_MAX as u64));
    while !rx.recv().is_empty() {}
    assert_eq!(said(&rx), 2 * SAID_EVERY);
    send(3 * BURST_MAX, 1_500);
    (0..2).for_each(|_| assert_eq!(rx.recv().len(), BURST_MAX));
    assert_eq!(said(&rx), 2 * SAID_EVERY + BURST_MAX as u64);
    rx.look();
    assert_eq!(said(&rx), 2 * SAID_EVERY + 2 * BURST_MAX as u64);
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
fn what_was_put_and_not_shown_yet_is_of_the_epoch_before() {
    let (mut tx, mut rx) = relay(128 << 10, 192).unwrap();
    assert!(tx.push(&PacketRef::from_slice(&frame(0))));
    tx.mark(1);
    assert!(!rx.ford().is_crossed(1));
    assert_eq!(tx.send(&[PacketRef::from_slice(&frame(1))]), 1);
    assert_eq!(take(&mut rx), [frame(0)]);
    assert!(take(&mut rx).is_empty() && rx.ford().is_crossed(1));
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
