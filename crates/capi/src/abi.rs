//! The version of the binary interface, and its limits.
#![allow(unsafe_code)]

use std::ffi::c_uint;

/// Changes when a program must be compiled anew; the shared library's soname has it.
pub const KAISTA_ABI_MAJOR: c_uint = 1;
/// Grows with every addition. A program needs a library with at least the minor version of its header.
pub const KAISTA_ABI_MINOR: c_uint = 1;

/// Most packets that one `kaista_rx_burst` returns.
pub const KAISTA_BURST_MAX: c_uint = 64;
/// Longest frame in bytes, Ethernet header included, frame check sequence excluded.
pub const KAISTA_FRAME_MAX: c_uint = 9600;
/// Most bytes of a received frame that its head has.
pub const KAISTA_HEAD_MAX: c_uint = 256;
/// Bytes before the head of a received packet that the function may fill.
pub const KAISTA_HEADROOM: c_uint = 128;
/// Most counters of one `kaista_port_report`.
pub const KAISTA_REPORT_MAX: c_uint = 64;

const _: () = assert!(
    KAISTA_BURST_MAX as usize == port::BURST_MAX
        && KAISTA_FRAME_MAX as usize == port::FRAME_MAX
        && KAISTA_HEAD_MAX as usize == port::HEAD_MAX
        && KAISTA_HEADROOM as usize == port::HEADROOM
);

/// Version of the interface that the library has: major in the upper, minor in the lower 16 bits.
// SAFETY: no other item of this name; so for every exported function, which all begin with `kaista_`.
#[unsafe(no_mangle)]
pub extern "C" fn kaista_abi_version() -> u32 {
    (KAISTA_ABI_MAJOR << 16) | KAISTA_ABI_MINOR
}
