//! Waiting for work on several queues: spin for as long as it pays, then arm the doorbells, look again, sleep.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::RxQueue;

/// The longest sleep that relies on a peer to end it.
const BACKSTOP: Duration = Duration::from_millis(10);
/// The same where nothing has happened for long: each sleep that was ended by nobody doubles the next one, up to this.
const BACKSTOP_IDLE: Duration = Duration::from_millis(40);
/// Every how many rounds without work a waiter that never sleeps looks at the other descriptors.
const LOOK_EVERY: u32 = 1024;

/// What to do when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Poll for ever. For a worker with a core of its own.
    Never,
    /// Spin up to the given time where that has paid lately, then sleep. For functions that share cores.
    After(Duration),
}

/// Why a wait ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// Indices into `extra` that are readable.
    pub extra: Vec<usize>,
}

/// Waits for several receive queues and other file descriptors. One per worker.
///
/// A worker calls [`Waiter::worked`] after a round that found something, and [`Waiter::wait`] after one that did not.
#[derive(Debug)]
pub struct Waiter {
    sleep: Sleep,
    /// How long to spin, as it has paid lately.
    spin: Duration,
    /// Since when there is nothing.
    idle: Option<Instant>,
    /// How long to rely on the peers.
    backstop: Duration,
    rounds: u32,
}

impl Waiter {
    /// A waiter with the given habit.
    pub fn new(sleep: Sleep) -> Self {
        Self { sleep, spin: Duration::ZERO, idle: None, backstop: BACKSTOP, rounds: 0 }
    }

    /// The round found work.
    #[inline]
    pub fn worked(&mut self) {
        self.idle = None;
        self.backstop = BACKSTOP;
    }

    /// The round found nothing. Returns at once while it pays to poll on; otherwise sleeps until a queue has packets or
    /// a change of its link, one of `extra` is readable, or `timeout` has passed. With queues it never sleeps longer
    /// than 10 ms, the backstop for doorbells that a peer did not ring; 40 ms where nothing has happened for long.
    pub fn wait(
        &mut self,
        queues: &mut [&mut dyn RxQueue],
        extra: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> io::Result<Woken> {
        match self.sleep {
            Sleep::Never => self.poll_on(extra),
            Sleep::After(most) => {
                let now = Instant::now();
                let idle = *self.idle.get_or_insert(now);
                if now.duration_since(idle) < self.spin {
                    // Who shares the core may have what we wait for.
                    std::thread::yield_now();
                    return Ok(Woken::default());
                }
                let woken = sleep_armed(queues, extra, timeout, self.backstop)?;
                self.learn(now.elapsed(), most);
                Ok(woken)
            }
        }
    }

    fn poll_on(&mut self, extra: &[BorrowedFd<'_>]) -> io::Result<Woken> {
        self.rounds = self.rounds.wrapping_add(1);
        if extra.is_empty() || !self.rounds.is_multiple_of(LOOK_EVERY) {
            core::hint::spin_loop();
            return Ok(Woken::default());
        }
        sleep_on(Vec::new(), extra, Some(Duration::ZERO))
    }

    /// Spinning pays where sleeps are shorter than the longest spin.
    fn learn(&mut self, slept: Duration, most: Duration) {
        self.spin = if slept < most { most } else { self.spin / 2 };
        self.backstop = if slept < self.backstop { BACKSTOP } else { (2 * self.backstop).min(BACKSTOP_IDLE) };
        self.idle = None;
    }
}

fn sleep_armed(
    queues: &mut [&mut dyn RxQueue],
    extra: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    backstop: Duration,
) -> io::Result<Woken> {
    let nothing = queues.iter_mut().all(|queue| queue.arm());
    let longest = if queues.is_empty() { timeout } else { Some(timeout.map_or(backstop, |most| most.min(backstop))) };
    let timeout = if nothing { longest } else { Some(Duration::ZERO) };
    let fds = queues.iter().flat_map(|queue| queue.poll_fds()).collect();
    let woken = sleep_on(fds, extra, timeout);
    // Those that were not armed do not mind.
    queues.iter_mut().for_each(|queue| queue.disarm());
    woken
}

fn sleep_on(queues: Vec<BorrowedFd<'_>>, extra: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Woken> {
    let first_extra = queues.len();
    let all = queues.into_iter().chain(extra.iter().copied());
    let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = timeout
        .map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let readable = |fd: &PollFd<'_>| !fd.revents().is_empty();
    let extra = fds[first_extra..].iter().enumerate().filter(|(_, fd)| readable(fd)).map(|(n, _)| n);
    Ok(Woken { extra: extra.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn readable_descriptors_end_a_wait_and_are_named() {
        let (quiet, _keep) = rustix::pipe::pipe().unwrap();
        let (ringing, ring) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&ring, &[1]).unwrap();
        let mut waiter = Waiter::new(Sleep::After(Duration::ZERO));
        let woken = waiter.wait(&mut [], &[quiet.as_fd(), ringing.as_fd()], None).unwrap();
        assert_eq!(woken.extra, [1]);
    }

    #[test]
    fn a_waiter_that_never_sleeps_still_notices_other_descriptors() {
        let (ringing, ring) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&ring, &[1]).unwrap();
        let mut waiter = Waiter::new(Sleep::Never);
        let noticed =
            (0..LOOK_EVERY).any(|_| !waiter.wait(&mut [], &[ringing.as_fd()], None).unwrap().extra.is_empty());
        assert!(noticed);
    }

    #[test]
    fn spinning_is_given_up_where_it_does_not_pay_and_taken_up_again() {
        let most = Duration::from_micros(50);
        let mut waiter = Waiter::new(Sleep::After(most));
        waiter.learn(Duration::from_micros(10), most);
        assert_eq!(waiter.spin, most);
        (0..20).for_each(|_| waiter.learn(Duration::from_millis(10), most));
        assert!(waiter.spin < Duration::from_micros(1));
    }

    #[test]
    fn sleeps_grow_longer_while_nobody_ends_them_and_no_longer_than_that() {
        let most = Duration::from_micros(50);
        let mut waiter = Waiter::new(Sleep::After(most));
        let mut grown = || {
            let backstop = waiter.backstop;
            waiter.learn(backstop, most);
            backstop.as_millis()
        };
        assert_eq!([grown(), grown(), grown(), grown()], [10, 20, 40, 40]);
        waiter.learn(Duration::from_millis(3), most);
        assert_eq!(waiter.backstop, BACKSTOP, "a peer rang");
        waiter.learn(BACKSTOP, most);
        waiter.worked();
        assert_eq!(waiter.backstop, BACKSTOP, "there was work that nobody rang for");
    }
}
