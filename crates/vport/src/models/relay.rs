//! A channel between two threads that has room for one frame, so that each takes the place of the one before.

use super::{Depth, check, thread};
use crate::packet::PacketRef;
use crate::relay::{ONE, narrow};
#[cfg(loom)]
use crate::sync::{Weak, checked};

/// What a model does not do right, on purpose.
#[derive(Clone, Copy, Debug, Default)]
struct Broken {
    #[cfg(loom)]
    head: Option<Weak>,
    #[cfg(loom)]
    done: Option<Weak>,
}

/// One thread sends frames, each byte of which is its number, the other takes them.
fn passed_on(depth: Depth, last: u8, broken: Broken) {
    check(depth, move || {
        #[cfg(loom)]
        checked::begin();
        let (mut tx, mut rx) = narrow();
        #[cfg(loom)]
        tx.share(broken.head, broken.done);
        #[cfg(not(loom))]
        let Broken {} = broken;
        let sender = thread::spawn(move || {
            for n in 1..=last {
                while !tx.push(&PacketRef::from_slice(&[n; ONE])) {
                    thread::yield_now();
                }
                tx.publish();
            }
        });
        for n in 1..=last {
            loop {
                let burst = rx.recv();
                if !burst.is_empty() {
                    assert_eq!((burst.len(), burst.get(0).head), (1, &[n; 64][..]));
                    break;
                }
                thread::yield_now();
            }
        }
        sender.join().unwrap();
        assert!(rx.recv().is_empty());
    });
}

#[test]
fn frames_arrive_one_after_the_other_in_the_same_place() {
    passed_on(Depth::Interruptions(3), 2, Broken::default());
    passed_on(Depth::Interruptions(2), 3, Broken::default());
}

/// Each ordering on which that rests, taken away.
#[cfg(loom)]
mod noticed {
    use super::*;

    fn broken(broken: Broken) {
        passed_on(Depth::Interruptions(3), 3, broken);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn frames_shown_without_release() {
        broken(Broken { head: Some(Weak::Store), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn frames_looked_for_without_acquire() {
        broken(Broken { head: Some(Weak::Load), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn frames_given_back_without_release() {
        broken(Broken { done: Some(Weak::Store), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn room_looked_for_without_acquire() {
        broken(Broken { done: Some(Weak::Load), ..Broken::default() });
    }
}
