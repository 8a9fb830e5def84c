//! One file descriptor for all that can wake a receiving half, and the sleep on it.
//!
//! A queue has several descriptors, and others after a change of its link. They are gathered in an epoll set, whose own
//! descriptor stays the same, together with a timer: what relies on a peer to end a sleep must also end without it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use port::RxQueue;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::edge::ignore;

/// The longest sleep that relies on a peer to end it.
const BACKSTOP: Duration = Duration::from_millis(10);
/// The longest that a wait polls on before it sleeps.
const SPIN_MAX: Duration = Duration::from_micros(50);
/// What the set says of the timer, and of each of the queue's descriptors.
const TIMER: u64 = 0;
const QUEUE: u64 = 1;

pub(crate) struct Sleeper {
    set: OwnedFd,
    timer: OwnedFd,
    /// The queue's descriptors in the set. Those that were closed since have left it by themselves.
    watched: Vec<RawFd>,
    armed: bool,
    /// How long polling on has paid lately, and since when there is nothing.
    spin: Duration,
    idle: Option<Instant>,
}

impl Sleeper {
    pub(crate) fn new() -> Result<Self, Errno> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        watch(&set, timer.as_fd(), TIMER)?;
        Ok(Self { set, timer, watched: Vec::new(), armed: false, spin: Duration::ZERO, idle: None })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }

    /// Announces a sleep on the descriptor. False: there is something to receive.
    pub(crate) fn arm(&mut self, queue: &mut dyn RxQueue) -> Result<bool, Errno> {
        if !queue.arm() {
            return Ok(false);
        }
        self.armed = true;
        let prepared = self.follow(queue).and_then(|()| self.set_timer(BACKSTOP));
        if prepared.is_err() {
            self.disarm(queue);
        }
        prepared.map(|()| true)
    }

    #[inline]
    pub(crate) fn disarm(&mut self, queue: &mut dyn RxQueue) {
        if self.armed {
            self.armed = false;
            queue.disarm();
            // Whatever the timer says is taken back with it; setting a timer that exists does not fail.
            let _ = self.set_timer(Duration::ZERO);
        }
    }

    /// The last look for packets found some, or did not.
    #[inline]
    pub(crate) fn found(&mut self, something: bool) {
        if something {
            self.idle = None;
        }
    }

    /// Sleeps until there may be something to receive: true; or the time is over. Polling on, where that has paid lately,
    /// means to return at once.
    pub(crate) fn wait(&mut self, queue: &mut dyn RxQueue, timeout: Option<Duration>) -> Result<bool, Errno> {
        let begin = Instant::now();
        if begin.duration_since(*self.idle.get_or_insert(begin)) < self.spin {
            // Who shares the core may have what we wait for.
            std::thread::yield_now();
            return Ok(true);
        }
        let woken = self.sleep(queue, begin, timeout)?;
        self.spin = if begin.elapsed() < SPIN_MAX { SPIN_MAX } else { self.spin / 2 };
        self.idle = None;
        Ok(woken)
    }

    fn sleep(&mut self, queue: &mut dyn RxQueue, begin: Instant, timeout: Option<Duration>) -> Result<bool, Errno> {
        while self.arm(queue)? {
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            let limit =
                left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            let rung = self.rung(limit.as_ref());
            self.disarm(queue);
            // Whether for something only a receive tells: some queues cannot say, and of others peers ring for nothing.
            if rung? {
                return Ok(true);
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sleeps until a descriptor is readable or the time is over. Whether one of the queue's is.
    fn rung(&self, limit: Option<&Timespec>) -> Result<bool, Errno> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 2];
        let (events, _) = epoll::wait(&self.set, &mut events, limit)?;
        Ok(events.iter().any(|event| event.data.u64() == QUEUE))
    }

    /// Makes the set that of the descriptors that the queue has now.
    fn follow(&mut self, queue: &dyn RxQueue) -> Result<(), Errno> {
        let now = queue.poll_fds();
        for gone in self.watched.drain(..).filter(|fd| now.iter().all(|fd_now| fd_now.as_raw_fd() != *fd)) {
            ignore(&self.set, gone);
        }
        // One that has the number of an earlier one is not in the set: each is added, and may be there already.
        for fd in now {
            watch(&self.set, fd, QUEUE)?;
            self.watched.push(fd.as_raw_fd());
        }
        Ok(())
    }

    fn set_timer(&self, after: Duration) -> Result<(), Errno> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: 0, tv_nsec: after.as_nanos() as i64 };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: zero, it_value: value })?;
        Ok(())
    }
}

fn watch(set: &OwnedFd, fd: BorrowedFd<'_>, whose: u64) -> Result<(), Errno> {
    match epoll::add(set, fd, epoll::EventData::new_u64(whose), epoll::EventFlags::IN) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use port::{Burst, RxCounters};
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::{dup2, write};
    use rustix::pipe::pipe;

    /// A queue with nothing but descriptors.
    struct Bare(Vec<OwnedFd>);

    impl RxQueue for Bare {
        fn recv(&mut self) -> Burst<'_> {
            Burst::new(&mut [])
        }

        fn arm(&mut self) -> bool {
            true
        }

        fn disarm(&mut self) {}

        fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
            self.0.iter().map(AsFd::as_fd).collect()
        }

        fn counters(&self) -> RxCounters {
            RxCounters::default()
        }
    }

    fn armed(sleeper: &mut Sleeper, queue: &mut Bare) {
        assert!(sleeper.arm(queue).unwrap());
        // Of what is asked here only descriptors are to tell, not time.
        sleeper.set_timer(Duration::ZERO).unwrap();
    }

    fn is_readable(sleeper: &Sleeper) -> bool {
        poll(&mut [PollFd::new(&sleeper.set, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn a_descriptor_with_the_number_of_an_earlier_one_wakes_too() {
        let ((first, _quiet), (second, bell)) = (pipe().unwrap(), pipe().unwrap());
        let (mut sleeper, mut queue) = (Sleeper::new().unwrap(), Bare(vec![first]));
        armed(&mut sleeper, &mut queue);
        sleeper.disarm(&mut queue);
        dup2(&second, &mut queue.0[0]).unwrap();
        armed(&mut sleeper, &mut queue);
        assert!(!is_readable(&sleeper));
        write(&bell, &[1]).unwrap();
        assert!(is_readable(&sleeper));
    }

    #[test]
    fn a_descriptor_that_the_queue_no_longer_names_does_not_wake() {
        let (muted, bell) = pipe().unwrap();
        let (mut sleeper, mut queue) = (Sleeper::new().unwrap(), Bare(vec![muted]));
        armed(&mut sleeper, &mut queue);
        write(&bell, &[1]).unwrap();
        assert!(is_readable(&sleeper));
        sleeper.disarm(&mut queue);
        let muted = queue.0.pop();
        armed(&mut sleeper, &mut queue);
        assert!(!is_readable(&sleeper));
        queue.0.extend(muted);
        armed(&mut sleeper, &mut queue);
        assert!(is_readable(&sleeper), "it is listened to again");
    }

    #[test]
    fn a_wait_ends_when_a_descriptor_says_so_though_the_queue_cannot_say_what_for() {
        let (readable, bell) = pipe().unwrap();
        let (mut sleeper, mut queue) = (Sleeper::new().unwrap(), Bare(vec![readable]));
        write(&bell, &[1]).unwrap();
        assert_eq!(sleeper.wait(&mut queue, None), Ok(true));
    }

    #[test]
    fn a_wait_lasts_as_long_as_it_may_however_often_the_backstop_ends_a_sleep() {
        let (mut sleeper, mut queue) = (Sleeper::new().unwrap(), Bare(Vec::new()));
        let (begin, limit) = (Instant::now(), 3 * BACKSTOP);
        assert_eq!(sleeper.wait(&mut queue, Some(limit)), Ok(false));
        assert!(begin.elapsed() >= limit);
    }

    #[test]
    fn a_sleep_that_nobody_ends_ends_by_itself_until_it_is_taken_back() {
        let (mut sleeper, mut queue) = (Sleeper::new().unwrap(), Bare(Vec::new()));
        assert!(sleeper.arm(&mut queue).unwrap());
        poll(&mut [PollFd::new(&sleeper.set, PollFlags::IN)], None).unwrap();
        assert!(is_readable(&sleeper));
        sleeper.disarm(&mut queue);
        assert!(!is_readable(&sleeper));
    }
}
