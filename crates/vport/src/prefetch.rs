//! Asking for cache lines before they are needed. Hints: any address will do, and elsewhere than on x86-64 nothing happens.

/// Asks for the line at an address that will be read soon.
#[inline(always)]
pub(crate) fn to_read(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it cannot fault.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for the line at an address that will be written soon, for this core alone.
#[inline(always)]
pub(crate) fn to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it cannot fault.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
