//! Waking a queue that sleeps.
//!
//! A doorbell is a pipe: the sleeper holds the reading end, the waker the writing end, so that neither can block the
//! other or take back what was rung. The sleeper announces itself in its *sleep word*, a counter that is odd while it
//! sleeps. Sleeper: make the word odd, full fence, look at the rings again, sleep. Waker: publish, full fence, read the
//! word, and ring once for each odd value. One of the two sees the other.
//!
//! Whoever lies in its word, or rings without need, costs the other no more than a bounded number of system calls.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::allowance::Allowance;
use crate::sync::{read, write};

/// The longest sleep that relies on a peer to end it.
pub const BACKSTOP: Duration = Duration::from_millis(10);

/// Rings a second that a waker makes at most, on average, for one queue.
const RINGS_PER_SECOND: u32 = 100_000;
const RINGS_AT_ONCE: u32 = 1_000;

/// The waker's side.
#[derive(Debug)]
pub(crate) struct Bell {
    pipe: OwnedFd,
    /// The sleep word's value that was answered last.
    answered: u64,
    allowance: Allowance,
}

impl Bell {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { pipe, answered: 0, allowance: Allowance::new(RINGS_PER_SECOND, RINGS_AT_ONCE) }
    }

    /// Rings if the word says that the peer sleeps and this was not answered yet. True if it rang.
    #[inline(always)]
    pub(crate) fn answer(&mut self, sleep_word: u64) -> bool {
        sleep_word % 2 == 1 && sleep_word != self.answered && self.ring(sleep_word)
    }

    #[cold]
    fn ring(&mut self, sleep_word: u64) -> bool {
        // Where the allowance is used up, the peer's backstop ends its sleep.
        if !self.allowance.take() {
            return false;
        }
        self.answered = sleep_word;
        // A full pipe wakes as well as one byte more; a closed one means that the peer is gone.
        let _ = write(&self.pipe, &[1]);
        true
    }
}

/// The sleeper's side.
#[derive(Debug)]
pub(crate) struct Doorbell {
    pipe: OwnedFd,
    /// Wake-ups in a row after which there was nothing.
    needless: u32,
    muted_until: Option<Instant>,
    rung: bool,
    /// Nobody holds the other end any more; the pipe would be readable for ever.
    hung_up: bool,
}

/// Needless wake-ups in a row after which a doorbell is not listened to for [`BACKSTOP`].
const NEEDLESS_MAX: u32 = 64;

impl Doorbell {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { pipe, needless: 0, muted_until: None, rung: false, hung_up: false }
    }

    /// The descriptor to sleep on, unless the peer is gone or has rung for nothing too often.
    pub(crate) fn listen(&self) -> Option<&OwnedFd> {
        if self.hung_up {
            return None;
        }
        self.muted_until.is_none_or(|until| until <= Instant::now()).then_some(&self.pipe)
    }

    /// Empties the pipe, within bounds.
    pub(crate) fn silence(&mut self) {
        let mut rings = [0_u8; 512];
        match read(self.pipe.as_fd(), &mut rings) {
            Ok(0) => self.hung_up = true,
            Ok(_) => self.rung = true,
            Err(_) => {}
        }
    }

    /// Learns whether the receive after a wake-up found something.
    #[inline(always)]
    pub(crate) fn found(&mut self, something: bool) {
        if self.rung {
            self.judge(something);
        }
    }

    fn judge(&mut self, something: bool) {
        self.rung = false;
        self.needless = if something { 0 } else { self.needless + 1 };
        if self.needless >= NEEDLESS_MAX {
            self.needless = NEEDLESS_MAX / 2;
            self.muted_until = Some(Instant::now() + BACKSTOP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn pair() -> (Doorbell, Bell) {
        let (sleeper, waker) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        (Doorbell::new(sleeper), Bell::new(waker))
    }

    #[test]
    fn each_odd_value_is_answered_once() {
        let (_doorbell, mut bell) = pair();
        let rung: Vec<bool> = [0, 1, 1, 2, 3, 3, 4].map(|word| bell.answer(word)).into();
        assert_eq!(rung, [false, true, false, false, true, false, false]);
    }

    #[test]
    fn a_peer_that_pretends_to_sleep_does_not_make_us_ring_without_end() {
        let (_doorbell, mut bell) = pair();
        bell.allowance = Allowance::new(0, RINGS_AT_ONCE);
        let rung = (0..10_000).filter(|n| bell.answer(2 * n + 1)).count();
        assert_eq!(rung, RINGS_AT_ONCE as usize);
    }

    #[test]
    fn a_peer_that_rings_for_nothing_is_not_listened_to_for_a_while() {
        let (mut doorbell, mut bell) = pair();
        for word in 0..u64::from(NEEDLESS_MAX) {
            assert!(doorbell.listen().is_some());
            bell.answer(2 * word + 1);
            doorbell.silence();
            doorbell.found(false);
        }
        assert!(doorbell.listen().is_none());
        doorbell.muted_until = Some(Instant::now());
        assert!(doorbell.listen().is_some());
    }

    #[test]
    fn a_peer_that_is_gone_is_not_listened_to() {
        let (mut doorbell, bell) = pair();
        drop(bell);
        doorbell.silence();
        assert!(doorbell.listen().is_none());
    }

    #[test]
    fn a_full_pipe_does_not_block_the_waker() {
        let (mut doorbell, mut bell) = pair();
        bell.allowance = Allowance::new(RINGS_PER_SECOND, 70_000);
        (0..70_000).for_each(|n| {
            bell.answer(2 * n + 1);
        });
        doorbell.silence();
        assert!(doorbell.rung);
    }
}
