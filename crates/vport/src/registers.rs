//! The same code compiled three times: for every x86-64, and for processors whose registers hold half a cache line, or all of one.
//! Which one runs is decided where the queue is made.

/// How much the widest registers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registers {
    Bytes16,
    Bytes32,
    Bytes64,
}

impl Registers {
    /// Those of this processor, if it has the instructions that go with them.
    pub(crate) fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("bmi1") && has!("bmi2") && has!("popcnt")
            {
                return Self::Bytes64;
            }
            if has!("avx2") && has!("bmi1") && has!("bmi2") && has!("popcnt") {
                return Self::Bytes32;
            }
        }
        Self::Bytes16
    }
}

/// Calls `work` in its own compilation for registers of 64 bytes.
///
/// # Safety
/// [`Registers::here`] must have said that this processor has them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,bmi1,bmi2,popcnt")]
#[inline]
pub(crate) unsafe fn call_64<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// The same for registers of 32 bytes.
///
/// # Safety
/// As [`call_64`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
#[inline]
pub(crate) unsafe fn call_32<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// The same for registers that every processor has: apart, so that who calls needs few of them.
#[inline(never)]
pub(crate) fn call_16<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Returns what an expression is, compiled for registers that must come from [`Registers::here`]. What is to be compiled so must be
/// `#[inline(always)]`, closures within it too, and its loops plain ones: a `fold` is a function that the compiler may leave apart,
/// compiled for every processor.
macro_rules! dispatch {
    ($registers:expr, $work:expr) => {
        match $registers {
            // SAFETY: the processor has such registers.
            #[cfg(target_arch = "x86_64")]
            $crate::registers::Registers::Bytes64 => unsafe {
                $crate::registers::call_64(
                    #[inline(always)]
                    || $work,
                )
            },
            // SAFETY: the same.
            #[cfg(target_arch = "x86_64")]
            $crate::registers::Registers::Bytes32 => unsafe {
                $crate::registers::call_32(
                    #[inline(always)]
                    || $work,
                )
            },
            _ => $crate::registers::call_16(
                #[inline(always)]
                || $work,
            ),
        }
    };
}
pub(crate) use dispatch;
