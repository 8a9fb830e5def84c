//! What the processes of a campaign have in common: they end with it, and sleep while nothing comes.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use vport::RxRing;

/// Ends this process when the one that started it ends, however that is.
pub fn die_with_parent() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// Leaves the cores to others for a moment.
pub fn nap() {
    std::thread::sleep(Duration::from_micros(50));
}

/// Waits for a packet on any of these queues, but not for long: doorbells that somebody rings for nothing keep nobody from
/// what else there is to do.
pub fn sleep<'a>(receivers: impl Iterator<Item = &'a mut RxRing>) {
    let mut receivers: Vec<&mut RxRing> = receivers.collect();
    if receivers.iter_mut().all(|rx| rx.arm()) {
        let fds = receivers.iter().flat_map(|rx| rx.poll_fds());
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
    }
    receivers.iter_mut().for_each(|rx| rx.disarm());
}
