//! Words, fences, pipes and letters of the protocols between queues: the processor's and the kernel's, or, in tests built with
//! `--cfg loom`, the model checker's. `models` says what is checked with them.

#[cfg(not(all(test, loom)))]
mod real {
    pub use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
    use core::sync::atomic::{Ordering, compiler_fence};
    pub use rustix::io::{read, write};
    use rustix::thread::{MembarrierCommand, membarrier};
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

    /// A full fence, at no cost, against threads of this process that call [`fence_threads`]: what was written before it is visible to
    /// them, or what they wrote before that is visible after it.
    #[inline(always)]
    pub fn light_fence() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The other side of [`light_fence`]. False where the kernel has no such thing: nothing is known of other threads then.
    pub fn fence_threads() -> bool {
        // To register again costs nothing.
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
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
