//! The receiving half of a queue pair.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use port::{BURST_MAX, RxQueue};
use rustix::io::Errno;

use crate::counters::RxCounters;
use crate::edge::{INVALID, guard, put_struct};
use crate::packet::{Held, Packet};
use crate::sleeper::Sleeper;

/// The receiving half of a queue pair. One thread uses it at a time.
pub struct Rx {
    half: Half,
    broken: bool,
}

/// The port's queue, and what of its last burst was not taken yet.
struct Half {
    queue: Box<dyn RxQueue>,
    sleeper: Sleeper,
    packets: [Packet; BURST_MAX],
    held: [Held; BURST_MAX],
    /// Packets in the last burst, and how many of them were taken.
    found: usize,
    taken: usize,
}

impl Rx {
    pub(crate) fn new(queue: Box<dyn RxQueue>) -> Result<Self, Errno> {
        let half = Half {
            queue,
            sleeper: Sleeper::new()?,
            packets: [Packet::NOTHING; BURST_MAX],
            held: [const { Held::NOTHING }; BURST_MAX],
            found: 0,
            taken: 0,
        };
        Ok(Self { half, broken: false })
    }
}

impl Half {
    /// Up to `most` packets, from the port where all of its last burst were taken.
    #[inline]
    fn take(&mut self, most: usize) -> &[Packet] {
        self.sleeper.disarm(self.queue.as_mut());
        if self.taken == self.found && most > 0 {
            self.receive();
        }
        let from = self.taken;
        self.taken += most.min(self.found - from);
        &self.packets[from..self.taken]
    }

    fn receive(&mut self) {
        let mut burst = self.queue.recv();
        let found = burst.len();
        for (i, (packet, held)) in self.packets.iter_mut().zip(&mut self.held).take(found).enumerate() {
            let mut received = burst.get_mut(i);
            // SAFETY: replaced below, or by the next burst, after the only call that receives.
            *held = unsafe { Held::new(received.as_ref().rest) };
            *packet = Packet::view(&mut received, held);
        }
        // So a view that was kept too long has no rest, rather than that of memory long gone.
        self.held.iter_mut().take(self.found).skip(found).for_each(|held| *held = Held::NOTHING);
        (self.found, self.taken) = (found, 0);
        self.sleeper.found(found > 0);
    }

    /// Announces a sleep. False: there are packets.
    fn arm(&mut self) -> Result<bool, Errno> {
        Ok(self.taken == self.found && self.sleeper.arm(self.queue.as_mut())?)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Errno> {
        Ok(self.taken < self.found || self.sleeper.wait(self.queue.as_mut(), timeout)?)
    }
}

/// Receives up to `max` packets into `packets`, and gives those of the last call back to their sender: their views end.
/// Returns how many there are, 0 where nothing waits; never blocks. Ends a sleep that `kaista_rx_arm` announced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_rx_burst(rx: *mut Rx, packets: *mut Packet, max: c_uint) -> c_int {
    // SAFETY: the caller's receiving half, in this thread's hands.
    let Some(Rx { half, broken }) = (unsafe { rx.as_mut() }) else { return INVALID };
    if packets.is_null() {
        return INVALID;
    }
    guard(broken, || {
        let found = half.take(max as usize);
        // SAFETY: the caller's array has `max` elements, and there are no more.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), packets, found.len()) };
        Ok(found.len() as c_int)
    })
}

/// Polls on while that has paid lately, then sleeps. 1: receive, though there may be nothing after all. 0: nothing came
/// within `timeout_ms` (negative: no limit). -EINTR: a signal was handled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_rx_wait(rx: *mut Rx, timeout_ms: c_int) -> c_int {
    // SAFETY: as above.
    let Some(Rx { half, broken }) = (unsafe { rx.as_mut() }) else { return INVALID };
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    guard(broken, || half.wait(timeout).map(c_int::from))
}

/// The file descriptor for `poll` or `epoll`: readable (POLLIN) when an armed half has something to do, and 10 ms after it
/// was armed at the latest. It stays the same, belongs to the port, and is never read or closed by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_rx_fd(rx: *const Rx) -> c_int {
    // SAFETY: as above.
    unsafe { rx.as_ref() }.map_or(INVALID, |rx| rx.half.sleeper.fd())
}

/// Announces that the caller will sleep on the file descriptor. 1: nothing waits, sleep. 0: receive first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_rx_arm(rx: *mut Rx) -> c_int {
    // SAFETY: as above.
    let Some(Rx { half, broken }) = (unsafe { rx.as_mut() }) else { return INVALID };
    guard(broken, || half.arm().map(c_int::from))
}

/// Takes the announcement back, so that the sender need not ring; `kaista_rx_burst` does it too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_rx_disarm(rx: *mut Rx) -> c_int {
    // SAFETY: as above.
    let Some(Rx { half, broken }) = (unsafe { rx.as_mut() }) else { return INVALID };
    guard(broken, || {
        half.sleeper.disarm(half.queue.as_mut());
        Ok(0)
    })
}

/// Writes what this half has counted to `counters`, which has `size` bytes: `sizeof *counters`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_rx_counters(rx: *mut Rx, counters: *mut RxCounters, size: usize) -> c_int {
    // SAFETY: as above.
    let Some(Rx { half, broken }) = (unsafe { rx.as_mut() }) else { return INVALID };
    guard(broken, || {
        let port::RxCounters { packets, bytes, polls, empty_polls, invalid, sleeps, .. } = half.queue.counters();
        // SAFETY: the caller's structure; the value is numbers alone.
        unsafe { put_struct(&RxCounters { packets, bytes, polls, empty_polls, invalid, sleeps }, counters, size) }
    })
}
