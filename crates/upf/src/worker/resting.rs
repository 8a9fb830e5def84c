//! A worker with nothing to do.

use std::io;
use std::iter;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use port::RxQueue;
use port::owner::Owner;

use super::Worker;
use crate::mail::Inbox;

/// How long a worker without buckets sleeps at most, should nobody wake it.
const DORMANT: Duration = Duration::from_secs(1);

impl Worker {
    /// Nothing to do: polls on for a while, then sleeps until there is.
    pub(super) fn rest(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let idle_since_ns = self.idle_since_ns.unwrap_or_else(|| {
            self.publish();
            self.hands.now()
        });
        self.board.pauses(idle_since_ns);
        self.sweep();
        self.hands.drops.publish();
        self.bell.doze();
        let nothing_left = !self.reader.is_stale()
            && self.inboxes.iter().all(Inbox::is_empty)
            && self.owner.as_ref().is_none_or(Owner::is_calm);
        if self.is_moving() {
            // Other workers have to do their part, perhaps on this core.
            std::thread::yield_now();
        } else if nothing_left && !stop.load(Ordering::Relaxed) {
            self.sleep()?;
        }
        self.bell.wake();
        let now_ns = self.hands.now();
        self.board.paused(now_ns);
        self.idle_since_ns = Some(now_ns);
        self.watch.iter().for_each(|watch| watch.ring());
        Ok(())
    }

    /// Whether buckets are on their way, so that there will be something to do soon.
    pub(super) fn is_moving(&self) -> bool {
        self.is_unsettled || self.hands.moving.is_stirred()
    }

    /// Sleeps until there is something to do; for long where this worker owns nothing, and so nobody sends to it.
    fn sleep(&mut self) -> io::Result<()> {
        let woken = if self.owner.is_some() && self.hands.moving.holds_none() {
            let nothing = self.rx.iter_mut().all(|queue| queue.arm());
            let fds: Vec<_> =
                iter::once(self.bell.as_fd()).chain(self.rx.iter().flat_map(|queue| queue.poll_fds())).collect();
            let woken = self.waiter.wait(&mut [], &fds, Some(if nothing { DORMANT } else { Duration::ZERO }))?;
            drop(fds);
            self.rx.iter_mut().for_each(|queue| queue.disarm());
            woken
        } else {
            let mut queues: Vec<&mut dyn RxQueue> = self.rx.iter_mut().map(|queue| &mut **queue as _).collect();
            self.waiter.wait(&mut queues, &[self.bell.as_fd()], None)?
        };
        if woken.extra.contains(&0) {
            self.bell.silence();
        }
        Ok(())
    }
}
