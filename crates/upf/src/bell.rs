//! Wakes a thread that sleeps in poll(2), and costs next to nothing while it is awake.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// A bell at a thread's ear. Whoever has left something for the thread rings; it is heard only if the thread has said
/// that it is going to sleep.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    asleep: AtomicBool,
}

impl Bell {
    /// A bell of a thread that is awake.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, asleep: AtomicBool::new(false) })
    }

    /// Something was left for the thread.
    #[inline]
    pub fn ring(&self) {
        // Pairs with the fence in `doze`: either we see that the thread sleeps, or it sees what was left.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            // Failing means that the counter is full: it rings already.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// The thread is going to sleep; it looks once more at everything that could have been left for it.
    #[inline]
    pub fn doze(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The thread is awake.
    #[inline]
    pub fn wake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Silences the bell, after its file descriptor was found readable.
    pub fn silence(&self) {
        let mut count = [0; 8];
        // Failing means that it does not ring.
        let _ = rustix::io::read(&self.fd, &mut count);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn rings(bell: &Bell) -> bool {
        let mut fds = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn only_a_sleeper_hears_it_and_until_it_is_silenced() {
        let bell = Bell::new().unwrap();
        bell.ring();
        assert!(!rings(&bell));
        bell.doze();
        bell.ring();
        assert!(rings(&bell));
        bell.wake();
        bell.silence();
        assert!(!rings(&bell));
    }
}
