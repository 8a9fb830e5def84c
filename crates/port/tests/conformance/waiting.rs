//! Waiting: what may be slept on, and what ends a sleep.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use port::{QueuePair, RxQueue, Sleep, Waiter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::backend::{Backend, Declared};
use crate::rig::{PATIENCE, gather, numbered, ours, packets, receive, until};

/// Sleeps on a queue's descriptors; whether one of them became readable.
fn sleep(rx: &dyn RxQueue, longest: Duration) -> bool {
    let fds = rx.poll_fds();
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    poll(&mut fds, Some(&timeout)).unwrap() > 0
}

pub fn a_queue_where_frames_wait_is_not_slept_on(backend: &Backend) -> Declared {
    let mut rig;
    if backend.live.is_ok() && backend.wakes.is_err() {
        // What nobody would wake is never slept on.
        rig = backend.open();
        assert!(!rig.port.queues[0].rx.arm());
        return Ok(());
    }
    if backend.live.is_ok() {
        rig = backend.open();
        assert_is_quiet(&mut *rig.port.queues[0].rx);
        assert_eq!(rig.far.tx().send(&packets(&numbered(0, 3))), 3);
    } else {
        rig = backend.open_with(numbered(0, 3));
    }
    let mut received = 0;
    while received < 3 {
        let rx = &mut rig.port.queues[0].rx;
        assert!(!rx.arm() || sleep(&**rx, PATIENCE));
        rx.disarm();
        received += rig.take().len();
    }
    assert_is_quiet(&mut *rig.port.queues[0].rx);
    Ok(())
}

/// A queue where nothing is left can be slept on: what woke its reader does not do so for ever.
fn assert_is_quiet(rx: &mut dyn RxQueue) {
    until("it can be slept on again", || {
        let sleeps = rx.arm() && !sleep(rx, Duration::ZERO);
        rx.disarm();
        assert!(rx.recv().is_empty());
        sleeps
    });
}

/// Within a patience that is no part of the protocol: none of its own time limits ends a sleep here.
pub fn a_sleeper_is_woken_for_every_frame(backend: &Backend) -> Declared {
    const FRAMES: u64 = 300;
    backend.live?;
    backend.wakes?;
    let mut rig = backend.open();
    let QueuePair { mut rx, tx: _tx } = rig.port.queues.remove(0);
    let (armed, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let counters = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while received.load(Ordering::Relaxed) < FRAMES {
                if rx.arm() {
                    armed.fetch_add(1, Ordering::Relaxed);
                    assert!(sleep(&*rx, PATIENCE), "{received:?} of {FRAMES} woke");
                }
                rx.disarm();
                received.fetch_add(ours(receive(&mut *rx)).len() as u64, Ordering::Relaxed);
            }
            let counters = rx.counters();
            assert_is_quiet(&mut *rx);
            counters
        });
        let mut before = 0;
        for n in 0..FRAMES {
            until("it sleeps", || armed.load(Ordering::Relaxed) > before || sleeper.is_finished());
            assert!(!sleeper.is_finished());
            before = armed.load(Ordering::Relaxed);
            assert_eq!(rig.far.tx().send(&packets(&numbered(n, 1))), 1);
            until("it wakes", || received.load(Ordering::Relaxed) > n || sleeper.is_finished());
        }
        sleeper.join().unwrap()
    });
    assert_eq!(counters.sleeps, armed.into_inner());
    assert!(counters.sleeps >= FRAMES);
    Ok(())
}

pub fn a_waiter_returns_when_frames_come(backend: &Backend) -> Declared {
    for habit in [Sleep::Never, Sleep::After(Duration::ZERO), Sleep::After(Duration::from_micros(50))] {
        let frames = numbered(0, 500);
        let mut rig = backend.open_with(frames.clone());
        let mut waiter = Waiter::new(habit);
        let received = gather(frames.len(), |received| {
            rig.prompt(received);
            waiter.wait(&mut [&mut *rig.port.queues[0].rx], &[], None).unwrap();
            let burst = rig.take();
            if !burst.is_empty() {
                waiter.worked();
            }
            burst
        });
        assert!(received == frames);
    }
    Ok(())
}
