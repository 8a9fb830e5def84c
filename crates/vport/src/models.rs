//! The protocols between threads that share nothing else: the code that ports run, over private memory.
//!
//! Built with `--cfg loom` (`make models`) every model is explored: every order in which the threads can run, and every
//! value that a load can return under the memory model. Bytes read before they are published, or written while they may
//! be read, are found; so are lost wake-ups, since a sleep has no backstop there, and waits without end. Each ordering on
//! which a protocol rests is also taken away, to show that the model notices. Built otherwise, the same models run many
//! times on real threads and pipes (under the thread sanitizer too, `make sanitize`).
//!
//! Fences are modelled as sequentially consistent, as they are (light ones too, as they are against those of their process); of accesses loom models acquire, release and relaxed, and
//! the protocols use no others. Not modelled: loom executes accesses in program order, so a load is never satisfied by a
//! store that comes later. Words that a model does not share are plain memory: every thread sees their last values.

#[cfg(loom)]
use loom::thread;
#[cfg(not(loom))]
use std::thread;

use crate::rx::RxRing;

mod direction;
mod link;
mod lone;
mod relay;
mod steering;
mod succession;
mod world;

/// How far a model is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// Every execution.
    Whole,
    /// All executions in which threads are interrupted so many times at most, other than by waiting.
    Interruptions(usize),
}

/// Explores a model.
#[cfg(loom)]
fn check(depth: Depth, model: impl Fn() + Send + Sync + 'static) {
    use std::sync::atomic::{AtomicU64, Ordering};
    let executions = std::sync::Arc::new(AtomicU64::new(0));
    let mut explorer = loom::model::Builder::new();
    // Who waits for ever gets there.
    explorer.max_branches = 4_000;
    if let Depth::Interruptions(count) = depth {
        explorer.preemption_bound = Some(count);
    }
    let count = executions.clone();
    explorer.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{executions:?} executions");
}

/// Runs a model often.
#[cfg(not(loom))]
fn check(_: Depth, model: impl Fn() + Send + Sync + 'static) {
    (0..1_000).for_each(|_| model());
}

/// From here on fences of this thread do nothing.
#[cfg(loom)]
fn without_fences() {
    crate::sync::checked::leave_fences_out();
}

#[cfg(not(loom))]
fn without_fences() {}

#[cfg(loom)]
fn sleep(_rx: &RxRing) {
    crate::sync::checked::sleep();
}

/// Much longer than the backstop: a wake-up that is lost shows.
#[cfg(not(loom))]
fn sleep(rx: &RxRing) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds: Vec<PollFd<'_>> =
        rx.poll_fds().into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert!(poll(&mut fds, Some(&patience)).unwrap() > 0, "a wake-up was lost");
}
