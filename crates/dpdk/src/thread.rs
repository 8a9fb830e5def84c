//! Threads that DPDK knows: they have caches in front of the pools, and pay less for each packet.

use std::cell::Cell;

use crate::ffi;

/// A thread that was made known, until it ends.
struct Known;

impl Drop for Known {
    fn drop(&mut self) {
        // SAFETY: this thread was registered, and calls nothing of DPDK's any more that would need it.
        unsafe { ffi::kaista_unregister_thread() }
    }
}

thread_local! {
    static MET: Cell<bool> = const { Cell::new(false) };
    static KNOWN: Cell<Option<Known>> = const { Cell::new(None) };
}

/// Makes this thread known if it is not. Every burst asks; only a thread's first pays.
#[inline(always)]
pub(crate) fn make_known() {
    if !MET.get() {
        meet();
    }
}

#[cold]
#[inline(never)]
fn meet() {
    MET.set(true);
    // SAFETY: DPDK was started before there were queues. Where it knows too many threads already, this one does without.
    if unsafe { ffi::kaista_register_thread() } == 0 {
        KNOWN.set(Some(Known));
    }
}
