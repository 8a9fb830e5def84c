//! The same code compiled twice: for every x86-64, and for processors whose registers hold a cache line. Which one runs is
//! decided where the queue is made.

/// Whether this processor has registers of 64 bytes, and the instructions that go with them.
pub(crate) fn is_here() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("bmi2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Calls `work` in its own compilation for such processors.
///
/// # Safety
/// [`is_here`] must have said so.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,bmi2")]
#[inline]
pub(crate) unsafe fn call<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Evaluates an expression, compiled for processors with wide registers where `wide` (which must come from [`is_here`])
/// says that this is one; or, of two, the first one there and the second one elsewhere. What is to be compiled twice must be
/// `#[inline(always)]`.
macro_rules! dispatch {
    ($wide:expr, $work:expr) => {
        $crate::wide::dispatch!($wide, $work, $work)
    };
    ($wide:expr, $there:expr, $elsewhere:expr) => {{
        #[cfg(target_arch = "x86_64")]
        if $wide {
            // SAFETY: `wide` says that the processor has the features.
            return unsafe {
                $crate::wide::call(
                    #[inline(always)]
                    || $there,
                )
            };
        }
        $elsewhere
    }};
}
pub(crate) use dispatch;
