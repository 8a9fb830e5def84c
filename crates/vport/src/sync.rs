//! Words, fences, pipes and letters of the protocols between queues: the processor's and the kernel's, or, in tests built with
//! `--cfg loom`, the model checker's. `models` says what is checked with them.

#[cfg(not(all(test, loom)))]
mod real {
    pub use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
    pub use rustix::io::{read, write};
    pub use std::sync::mpsc::{Receiver, Sender, channel};

    /// Bytes that are about to be read from shared memory.
    #[inline(always)]
    pub fn reads(_from: *const u8, _len: usize) {}

    /// Bytes that are about to be written to shared memory.
    #[inline(always)]
    pub fn writes(_to: *const u8, _len: usize) {}
}
#[cfg(not(all(test, loom)))]
pub use real::*;

#[cfg(all(test, loom))]
pub(crate) mod checked;
#[cfg(all(test, loom))]
pub use checked::*;
