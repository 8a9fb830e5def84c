//! The receiving half of a queue pair.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::time::Duration;

use port::RxQueue;
use rustix::io::Errno;

use crate::counters::RxCounters;
use crate::edge::{INVALID, guard, put_struct};
use crate::half::Half;
use crate::packet::Packet;

/// The receiving half of a queue pair. One thread uses it at a time.
pub struct Rx {
    pub(crate) half: Half,
    pub(crate) broken: bool,
}

impl Rx {
    pub(crate) fn new(queue: Box<dyn RxQueue>) -> Result<Self, Errno> {
        Ok(Self { half: Half::new(queue)?, broken: false })
    }
}

/// Receives up to `max` packets into `packets`; the views of the last call end. Returns how many there are, 0 where nothing
/// waits; never blocks. Ends a sleep that `kaista_rx_arm` announced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_rx_burst(rx: *mut Rx, packets: *mut Packet, max: c_uint) -> c_int {
    // SAFETY: the caller's receiving half, in this thread's hands.
    let Some(Rx { half, broken }) = (unsafe { rx.as_mut() }) else { return INVALID };
    if packets.is_null() {
        return INVALID;
    }
    guard(broken, || {
        // SAFETY: the caller's array has `max` elements, of which nothing is known.
        let to = unsafe { std::slice::from_raw_parts_mut(packets.cast::<MaybeUninit<Packet>>(), max as usize) };
        Ok(half.take(to) as c_int)
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
    unsafe { rx.as_ref() }.map_or(INVALID, |rx| rx.half.fd())
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
        half.disarm();
        Ok(0)
    })
}

/// Writes what this half has counted to `counters`, which has `size` bytes: `sizeof *counters`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_rx_counters(rx: *mut Rx, counters: *mut RxCounters, size: usize) -> c_int {
    // SAFETY: as above.
    let Some(Rx { half, broken }) = (unsafe { rx.as_mut() }) else { return INVALID };
    guard(broken, || {
        let port::RxCounters { packets, bytes, polls, empty_polls, invalid, sleeps, .. } = half.counters();
        // SAFETY: the caller's structure; the value is numbers alone.
        unsafe { put_struct(&RxCounters { packets, bytes, polls, empty_polls, invalid, sleeps }, counters, size) }
    })
}
