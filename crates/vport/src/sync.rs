//! Words, fences, pipes and letters of the protocols between queues: the processor's and the kernel's, or, in tests built with
//! `--cfg loom`, the model checker's. `models` says what is checked with them.

#[cfg(not(all(test, loom)))]
mod real {
    pub use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
    pub use rustix::io::{read, write};
    pub use std::sync::mpsc::{Receiver, Sender, channel};

    /// What was written before it is visible before anything is read after it.
    #[inline(always)]
    pub fn full_fence() {
        // A locked instruction orders all memory of this kind as `mfence` does, which takes eight times as long (Zen 4: 2.0
        // and 16.4 ns), and is what compilers make of a fence.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: what is on the stack stays as it is.
        unsafe {
            core::arch::asm!("lock or dword ptr [rsp], 0");
        }
        #[cfg(not(target_arch = "x86_64"))]
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }

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
