//! How a thread leaves its ports to another process: it works off what they still have.

use std::time::{Duration, Instant};

use crate::RxQueue;

/// What comes by ports that nobody has taken over is worked off for so long.
const UNCLOSED_FOR: Duration = Duration::from_millis(500);
/// A peer of such a port that sends nothing for so long has nothing to send.
const QUIET: Duration = Duration::from_millis(20);
/// Whoever is succeeded is killed after 5 s, and may have something to say before that.
const AT_MOST: Duration = Duration::from_secs(4);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// A thread that leaves. It goes on with its work until it is told that nothing is left.
#[derive(Debug)]
pub struct Leave {
    begin: Instant,
    worked: Instant,
    /// Nothing was found for so long, also at the last look.
    quiet: bool,
}

impl Leave {
    /// From here on.
    pub fn begin() -> Self {
        let now = Instant::now();
        Self { begin: now, worked: now, quiet: false }
    }

    /// As [`Self::is_done`]. Pauses where nothing was found, and that was not all.
    pub fn is_done_or_pauses<'a>(&mut self, found: bool, queues: impl Iterator<Item = &'a dyn RxQueue>) -> bool {
        let done = self.is_done(found, queues);
        if !done && !found {
            Self::pause();
        }
        done
    }

    /// Whether a thread that has looked at these queues, and has `found` something or not, is done with them: whether all of those
    /// that are closed are empty. The others are given a little time.
    pub fn is_done<'a>(&mut self, found: bool, mut queues: impl Iterator<Item = &'a dyn RxQueue>) -> bool {
        if found {
            self.worked = Instant::now();
        }
        // However late the look was, another one follows.
        let was_quiet = std::mem::replace(&mut self.quiet, self.worked.elapsed() >= QUIET);
        let gives_up = was_quiet && !found || self.begin.elapsed() >= UNCLOSED_FOR;
        queues.all(|queue| queue.is_over() || gives_up && !queue.is_closed()) || self.is_overdue()
    }

    /// Between two looks, of which the first found nothing.
    pub fn pause() {
        std::thread::sleep(PAUSE);
    }

    /// Whether it is to leave in any case.
    pub fn is_overdue(&self) -> bool {
        Instant::now() >= self.deadline()
    }

    /// When it is to leave in any case.
    pub fn deadline(&self) -> Instant {
        self.begin + AT_MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PacketRef;
    use crate::relay::{RelayRx, RelayTx, relay};

    fn channel() -> (RelayTx, RelayRx) {
        relay(128 << 10, 192).unwrap()
    }

    fn send(tx: &mut RelayTx) {
        assert_eq!(tx.send(&[PacketRef::from_slice(&[0; 64])]), 1);
    }

    fn is_done(leave: &mut Leave, rx: &mut RelayRx) -> bool {
        let found = !rx.recv().is_empty();
        leave.is_done_or_pauses(found, [&*rx as &dyn RxQueue].into_iter())
    }

    #[test]
    fn what_is_closed_is_worked_off_however_long_that_takes_and_then_left_at_once() {
        let (mut tx, mut rx) = channel();
        for _ in 0..2 {
            send(&mut tx);
        }
        drop(tx);
        let mut leave = Leave::begin();
        std::thread::sleep(UNCLOSED_FOR + QUIET);
        assert!(!leave.is_done_or_pauses(false, [&rx as &dyn RxQueue].into_iter()), "two frames wait");
        assert!(!leave.is_done_or_pauses(false, [&rx as &dyn RxQueue].into_iter()), "they still do");
        assert!(is_done(&mut leave, &mut rx));
        assert_eq!(rx.counters().packets, 2);
    }

    #[test]
    fn what_nobody_closes_is_left_once_nothing_has_come_for_a_while() {
        let (_tx, mut rx) = channel();
        let (begin, mut leave) = (Instant::now(), Leave::begin());
        while !is_done(&mut leave, &mut rx) {}
        assert!(begin.elapsed() >= QUIET);
    }

    #[test]
    fn one_that_did_not_get_to_look_for_so_long_looks_again() {
        let (mut tx, mut rx) = channel();
        let mut leave = Leave::begin();
        std::thread::sleep(2 * QUIET);
        assert!(!is_done(&mut leave, &mut rx));
        send(&mut tx);
        assert!(!is_done(&mut leave, &mut rx), "a frame has come");
        assert_eq!(rx.counters().packets, 1);
    }

    #[test]
    fn what_goes_on_to_come_from_one_who_has_not_closed_it_is_left_in_time() {
        let (mut tx, mut rx) = channel();
        let (begin, mut leave) = (Instant::now(), Leave::begin());
        while !is_done(&mut leave, &mut rx) {
            send(&mut tx);
        }
        assert!(begin.elapsed() >= UNCLOSED_FOR);
    }
}
