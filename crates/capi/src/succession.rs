//! One process of a function leaves its ports to another.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint};

use port::Leave;

use crate::edge::{INVALID, array, guard, guard_once};
use crate::open::Port;
use crate::rx::Rx;

/// Whether the port is this process's alone. 1: it is. 0: this process takes it over, and the one that had it has not left it
/// yet; nothing is received or sent until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_port_ready(port: *const Port) -> c_int {
    // SAFETY: the caller's port.
    let Some(Port { port, .. }) = (unsafe { port.as_ref() }) else { return INVALID };
    guard_once(|| Ok(c_int::from(port.control().has_port())))
}

/// Leaves `count` receiving halves, of all ports that the thread receives by, to whoever takes the ports over, from the first
/// call on. 0: receive from each of them once more, then call again; where the last time none had any packets, it pauses for
/// some 50 us before it says so. 1: nothing is left for this process, after some 20 ms where nobody takes the ports over, and
/// after 4 s in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_rx_leave(halves: *const *mut Rx, count: c_uint) -> c_int {
    // SAFETY: the caller's array, which nobody changes meanwhile.
    let Some(halves) = (unsafe { array(halves, count as usize) }) else { return INVALID };
    let (mut all_left, mut found) = (true, false);
    for half in halves {
        // SAFETY: the caller's receiving half, in this thread's hands; one that is named twice is borrowed twice, in turns.
        let Some(Rx { half, broken }) = (unsafe { half.as_mut() }) else { return INVALID };
        let left = guard(broken, || Ok(c_int::from(half.is_left())));
        if left < 0 {
            return left;
        }
        all_left &= left == 1;
        found |= half.has_found();
    }
    if !all_left && !found {
        Leave::pause();
    }
    c_int::from(all_left)
}
