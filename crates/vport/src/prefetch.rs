//! Asking for cache lines before they are needed. Hints: any address will do, and elsewhere than on x86-64 nothing happens.

use crate::processor;

/// The cache of a core that lines are asked into, where many are asked for at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLevel {
    /// The one from which they are soonest at hand.
    First,
    /// The one behind it.
    Second,
}

impl CacheLevel {
    /// That of this processor into which most lines come at a time.
    ///
    /// The first level waits for two dozen lines at most. With AMD, what the second one is asked for does not count among them: random
    /// lines take 13.5 ns each into the second where they take 20 into the first (Zen 4). With Intel they took longer (Granite Rapids).
    pub fn here() -> Self {
        match processor::is_by(b"AuthenticAMD") {
            true => Self::Second,
            false => Self::First,
        }
    }
}

/// Asks for the line at an address that will be read soon, into this cache.
#[inline(always)]
pub(crate) fn into(level: CacheLevel, address: *const u8) {
    match level {
        CacheLevel::First => to_read(address),
        CacheLevel::Second => to_second(address),
    }
}

/// Asks for the line at an address that will be read later, into the second level of the caches.
#[inline(always)]
fn to_second(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it cannot fault.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

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
