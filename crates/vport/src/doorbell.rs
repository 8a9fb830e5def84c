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

/// What has been since the pipe was emptied last.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// No sleep: nobody had a reason to ring.
    Nothing,
    Sleep,
    /// A sleep, and a receive after it that found something, or did not.
    Receive(bool),
}

/// The sleeper's side.
#[derive(Debug)]
pub(crate) struct Doorbell {
    pipe: OwnedFd,
    /// Wake-ups in a row after which there was nothing.
    needless: u32,
    muted_until: Option<Instant>,
    since: Since,
    /// Nobody holds the other end any more; the pipe would be readable for ever.
    hung_up: bool,
}

/// Needless wake-ups in a row after which a doorbell is not listened to for [`BACKSTOP`].
const NEEDLESS_MAX: u32 = 64;

impl Doorbell {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { pipe, needless: 0, muted_until: None, since: Since::Nothing, hung_up: false }
    }

    /// The descriptor to sleep on, unless the peer is gone or has rung for nothing too often.
    pub(crate) fn listen(&self) -> Option<&OwnedFd> {
        if self.hung_up {
            return None;
        }
        self.muted_until.is_none_or(|until| until <= Instant::now()).then_some(&self.pipe)
    }

    /// A sleep is over. What it was ended by is looked at before the next one: packets come first.
    pub(crate) fn wake(&mut self) {
        self.since = Since::Sleep;
    }

    /// Learns whether the receive after a wake-up found something.
    #[inline(always)]
    pub(crate) fn found(&mut self, something: bool) {
        if matches!(self.since, Since::Sleep) {
            self.since = Since::Receive(something);
        }
    }

    /// Before a sleep: empties the pipe, within bounds, of what ended the last one.
    pub(crate) fn silence(&mut self) {
        let since = std::mem::replace(&mut self.since, Since::Nothing);
        if matches!(since, Since::Nothing) {
            return;
        }
        match (read(self.pipe.as_fd(), &mut [0_u8; 512]), since) {
            (Ok(0), _) => self.hung_up = true,
            (Ok(_), Since::Receive(something)) => self.judge(something),
            _ => {}
        }
    }

    fn judge(&mut self, something: bool) {
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
            doorbell.wake();
            doorbell.found(false);
            doorbell.silence();
        }
        assert!(doorbell.listen().is_none());
        doorbell.muted_until = Some(Instant::now());
        assert!(doorbell.listen().is_some());
    }

    #[test]
    fn a_sleep_that_nobody_ended_is_not_held_against_the_peer() {
        let (mut doorbell, _bell) = pair();
        for _ in 0..NEEDLESS_MAX {
            doorbell.wake();
            doorbell.found(false);
            doorbell.silence();
        }
        assert!(doorbell.listen().is_some());
    }

    #[test]
    fn only_the_first_receive_after_a_sleep_says_what_it_was_ended_for() {
        let (mut doorbell, mut bell) = pair();
        for word in 0..u64::from(NEEDLESS_MAX) {
            bell.answer(2 * word + 1);
            doorbell.wake();
            [true, false].into_iter().for_each(|something| doorbell.found(something));
            doorbell.silence();
        }
        assert!(doorbell.listen().is_some());
    }

    #[test]
    fn a_peer_that_is_gone_is_not_listened_to() {
        let (mut doorbell, bell) = pair();
        drop(bell);
        doorbell.wake();
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
        doorbell.wake();
        doorbell.silence();
        assert!(read(doorbell.pipe.as_fd(), &mut [0]).is_ok(), "no more is emptied at once than is bounded");
    }
}
