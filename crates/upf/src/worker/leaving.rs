//! The end of a worker whose ports another process has taken over: it works off what was sent to it, and keeps nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use port::{Leave, RxQueue};

use super::Worker;
use crate::buffers::Parked;
use crate::mail::Inbox;
use crate::tables::Bucket;

/// After its ports are done with, for how long other threads may still leave something: they need microseconds.
const LINGER: Duration = Duration::from_millis(1);

/// What workers that leave together tell each other: whether each has nothing left.
#[derive(Debug)]
pub struct Dryness(Box<[AtomicBool]>);

impl Dryness {
    /// Of so many workers.
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicBool::new(false)).collect())
    }

    fn is_complete(&self) -> bool {
        self.0.iter().all(|dry| dry.load(Ordering::Acquire))
    }
}

impl Worker {
    /// Works until nothing is left, at any worker.
    pub fn work_off(&mut self, dryness: &Dryness) {
        let mine = &dryness.0[usize::from(self.hands.index)];
        let (mut leave, mut complete) = (Leave::begin(), None);
        while !leave.is_overdue() {
            let found = self.run_once();
            let done = leave.is_done_or_pauses(found, self.rx.iter().map(|rx| rx.as_ref() as &dyn RxQueue));
            let nothing_left = !self.is_moving() && self.inboxes.iter().all(Inbox::is_empty);
            mine.store(done && nothing_left, Ordering::Release);
            if !dryness.is_complete() {
                complete = None;
            } else if complete.get_or_insert_with(Instant::now).elapsed() >= LINGER {
                break;
            }
        }
        self.publish();
    }

    /// Takes the packets out that wait for their UEs.
    pub fn park(&mut self) -> Vec<Parked> {
        self.hands.state.buffers.park()
    }

    /// Has packets wait that another process has parked, of a session with this home bucket.
    pub fn unpark(&mut self, home: Bucket, parked: Parked) {
        let now_ns = self.hands.now();
        self.hands.state.buffers.unpark(home, parked, self.rx.len(), now_ns);
    }
}
