//! Flow: bursts, full and empty queues, counters, peers that come and go.

use port::{BURST_MAX, RxCounters, TxCounters, TxQueue};

use crate::backend::{Backend, Declared};
use crate::rig::{gather, number_of, numbered, ours, packets, receive, until};

/// A receive gives no more than a burst; a send takes as many as there is room for.
pub fn bursts_are_bounded_and_sends_are_not(backend: &Backend) -> Declared {
    let frames = numbered(0, 3 * BURST_MAX as u64 + 1);
    let mut rig = backend.open();
    let tx = &mut rig.port.queues[0].tx;
    assert_eq!(tx.send(&[]), 0);
    assert_eq!(tx.send(&packets(&frames)), frames.len());
    assert!(gather(frames.len(), |_| rig.far.take()) == frames);
    if backend.live.is_ok() {
        assert_eq!(rig.far.tx().send(&packets(&frames)), frames.len());
    } else {
        rig = backend.open_with(frames.clone());
    }
    // `take` asserts the bound.
    assert!(rig.arriving(frames.len()) == frames);
    Ok(())
}

pub fn an_empty_queue_gives_empty_bursts(backend: &Backend) -> Declared {
    let mut rig = backend.open();
    let rx = &mut rig.port.queues[0].rx;
    let before = rx.counters();
    for _ in 0..1_000 {
        assert!(rx.recv().is_empty());
    }
    let after = rx.counters();
    assert_eq!((after.polls - before.polls, after.empty_polls - before.empty_polls), (1_000, 1_000));
    assert_eq!((after.packets, after.bytes, after.invalid), (0, 0, 0));
    Ok(())
}

/// Fills whatever is behind `tx` with frames from number `next` on; how many it accepted, and how many it refused.
fn fill(tx: &mut dyn TxQueue, next: u64) -> (u64, u64) {
    let mut accepted = 0;
    loop {
        let burst = numbered(next + accepted, 7);
        let taken = tx.send(&packets(&burst)) as u64;
        accepted += taken;
        assert!(accepted < 1 << 18, "it is never full");
        if taken < 7 {
            return (accepted, 7 - taken);
        }
    }
}

pub fn what_a_full_peer_refuses_stays_the_callers_and_nothing_is_lost(backend: &Backend) -> Declared {
    backend.keeps?;
    let mut rig = backend.open();
    // Over and over, so that rings begin again in many places.
    let (mut leaving, mut coming, mut refused) = (0, 0, 0);
    for _ in 0..20 {
        let (accepted, not) = fill(&mut *rig.port.queues[0].tx, leaving);
        assert!(accepted > 100);
        refused += not;
        assert!(gather(accepted as usize, |_| rig.far.take()) == numbered(leaving, accepted));
        leaving += accepted;
        if backend.live.is_ok() {
            let (accepted, _) = fill(rig.far.tx(), coming);
            assert!(gather(accepted as usize, |_| rig.take()) == numbered(coming, accepted));
            coming += accepted;
        }
    }
    let TxCounters { packets, refused: counted, no_peer, discarded, .. } = rig.port.queues[0].tx.counters();
    assert_eq!((packets, counted, no_peer, discarded), (leaving, refused, 0, 0));
    Ok(())
}

/// Sends numbered frames one by one, from `next` on, until one of them arrives, and takes what does, which may begin
/// with earlier ones. Whatever is sent from then on arrives.
fn resume(next: &mut u64, tx: &mut dyn TxQueue, mut take: impl FnMut() -> Vec<Vec<u8>>) {
    let first = *next;
    let mut last = None;
    let mut note = |frames: Vec<Vec<u8>>| {
        for frame in frames {
            let number = Some(number_of(&frame));
            assert!(last < number, "{number:?} came after {last:?}");
            last = number;
        }
        last
    };
    until("a frame arrives", || {
        *next += tx.send(&packets(&numbered(*next, 1))) as u64;
        note(take()) >= Some(first)
    });
    until("those behind it arrive", || note(take()) == Some(*next - 1));
}

/// What it then drops is gone; what arrives is whole and in order, and afterwards everything does.
pub fn a_peer_that_does_not_read_blocks_nobody(backend: &Backend) -> Declared {
    const FLOOD: u64 = 400 * BURST_MAX as u64;
    let mut rig = backend.open();
    for first in (0..FLOOD).step_by(BURST_MAX) {
        let burst = numbered(first, BURST_MAX as u64);
        assert!(rig.port.queues[0].tx.send(&packets(&burst)) <= BURST_MAX);
        if backend.live.is_ok() {
            assert!(rig.far.tx().send(&packets(&burst)) <= BURST_MAX);
        }
    }
    let mut next = FLOOD;
    resume(&mut next, &mut *rig.port.queues[0].tx, || rig.far.take());
    assert!(rig.leaving(&numbered(next, 1_000)) == numbered(next, 1_000));
    if backend.live.is_ok() {
        let mut next = FLOOD;
        let rx = &mut rig.port.queues[0].rx;
        resume(&mut next, rig.far.tx(), || ours(receive(&mut **rx)));
        assert!(rig.coming(&numbered(next, 1_000)) == numbered(next, 1_000));
    }
    Ok(())
}

/// Exactly: also what is not the test's.
pub fn counters_count_what_passes(backend: &Backend) -> Declared {
    let frames = numbered(0, 1_000);
    let bytes: u64 = frames.iter().map(|frame| frame.len() as u64).sum();
    let mut rig = backend.open_with(frames.clone());
    let before = rig.port.queues[0].rx.counters();
    let mut seen = RxCounters::default();
    let mut received = 0;
    until("all frames arrive", || {
        rig.prompt(received);
        let burst = receive(&mut *rig.port.queues[0].rx);
        seen.polls += 1;
        seen.empty_polls += u64::from(burst.is_empty());
        seen.packets += burst.len() as u64;
        seen.bytes += burst.iter().map(|frame| frame.len() as u64).sum::<u64>();
        received += ours(burst).len();
        received == frames.len()
    });
    let after = rig.port.queues[0].rx.counters();
    assert_eq!((after.packets, after.bytes), (seen.packets, seen.bytes));
    assert_eq!(after.polls - before.polls, seen.polls);
    assert_eq!(after.empty_polls - before.empty_polls, seen.empty_polls);
    assert_eq!(after.invalid, 0);
    rig.leaving(&frames);
    let TxCounters { packets, bytes: sent, refused, no_peer, discarded, .. } = rig.port.queues[0].tx.counters();
    assert_eq!((packets, sent, refused, no_peer, discarded), (1_000, bytes, 0, 0, 0));
    Ok(())
}

/// Nothing comes twice or out of order, and as soon as a frame has got through, all do.
pub fn a_peer_that_comes_back_is_served_again(backend: &Backend) -> Declared {
    backend.returns?;
    let mut rig = backend.open();
    let (mut leaving, mut coming) = (0, 0);
    for _ in 0..5 {
        assert!(rig.leaving(&numbered(leaving, 100)) == numbered(leaving, 100));
        assert!(rig.coming(&numbered(coming, 100)) == numbered(coming, 100));
        (leaving, coming) = (leaving + 100, coming + 100);
        rig.far.leave();
        let pair = &mut rig.port.queues[0];
        let before = pair.tx.counters().no_peer;
        let mut away = 0;
        until("sends find nobody", || {
            leaving += pair.tx.send(&packets(&numbered(leaving, 1))) as u64;
            away += 1;
            if backend.keeps.is_ok() { pair.tx.counters().no_peer > before } else { away == 100 }
        });
        rig.far.come_back();
        resume(&mut leaving, &mut *rig.port.queues[0].tx, || rig.far.take());
        let rx = &mut rig.port.queues[0].rx;
        resume(&mut coming, rig.far.tx(), || ours(receive(&mut **rx)));
    }
    Ok(())
}

pub fn what_a_peer_sent_before_it_left_arrives(backend: &Backend) -> Declared {
    backend.returns?;
    backend.outlives?;
    let mut rig = backend.open();
    let (mut sent, mut received) = (0, 0);
    for _ in 0..5 {
        until("there is a peer", || {
            sent += rig.far.tx().send(&packets(&numbered(sent, 40))) as u64;
            sent > received
        });
        rig.far.leave();
        rig.far.come_back();
        let again = sent + 40;
        let arrived = gather((again - received) as usize, |_| {
            if sent < again {
                sent += rig.far.tx().send(&packets(&numbered(sent, 1))) as u64;
            }
            rig.take()
        });
        assert!(arrived == numbered(received, again - received));
        received = again;
    }
    Ok(())
}
