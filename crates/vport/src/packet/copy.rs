//! Copies between memory that others may write meanwhile, and memory of one's own.

use crate::prefetch;

const LINE: usize = 64;

/// Copies `len` bytes: inline, since a call of the C library's copy for a length that the compiler does not know costs a
/// small frame more than the copy, and a large one, whose lines come from another core, up to half as much again.
///
/// # Safety
/// `from` must be mapped for `len` bytes, which others may write meanwhile, `to` for writing as many, and they must not
/// overlap.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: by contract.
    unsafe { copy_asking::<0>(from, to, len) }
}

/// The same, asking for the line so many bytes `AHEAD` of each that is written, to write it, but for the one in which the copy ends:
/// that is asked for with what comes behind it. Asks for nothing where `AHEAD` is 0.
///
/// # Safety
/// As for [`copy_bytes`].
#[inline(always)]
pub(crate) unsafe fn copy_asking<const AHEAD: usize>(from: *const u8, to: *mut u8, len: usize) {
    // Two blocks that meet or overlap cover any length between one block and two.
    macro_rules! two_blocks {
        ($block:literal) => {{
            // SAFETY: len is at least a block; both blocks lie within the source, and within as much of `to`.
            unsafe {
                core::ptr::copy_nonoverlapping(from, to, $block);
                core::ptr::copy_nonoverlapping(from.add(len - $block), to.add(len - $block), $block);
            }
        }};
    }
    ask::<AHEAD>(to);
    // First, as those have most to do.
    if len > 2 * LINE {
        // SAFETY: by contract.
        return unsafe { copy_lines::<AHEAD>(from, to, len) };
    }
    match len {
        32..=64 => two_blocks!(32),
        65.. => {
            ask::<AHEAD>(to.wrapping_add(LINE));
            two_blocks!(64)
        }
        16..=31 => two_blocks!(16),
        // SAFETY: by contract.
        0..=15 => unsafe { core::ptr::copy_nonoverlapping(from, to, len) },
    }
}

/// Copies whole cache lines of `to`, and what lies before the first and behind the last.
///
/// # Safety
/// As for [`copy_bytes`]; `len` must be at least 64.
#[inline(always)]
pub(crate) unsafe fn copy_lines<const AHEAD: usize>(from: *const u8, to: *mut u8, len: usize) {
    let (mut at, last) = (LINE - to.addr() % LINE, len - LINE);
    // SAFETY: every block begins at least a block before the end of both.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, LINE);
        while at < last {
            // Line by line: asked for all at once they would be in the way of those that are read.
            ask::<AHEAD>(to.add(at));
            core::ptr::copy_nonoverlapping(from.add(at), to.add(at), LINE);
            at += LINE;
        }
        core::ptr::copy_nonoverlapping(from.add(last), to.add(last), LINE);
    }
}

#[inline(always)]
fn ask<const AHEAD: usize>(line: *mut u8) {
    if AHEAD > 0 {
        prefetch::to_write(line.wrapping_add(AHEAD));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_length_and_place() {
        let from: Vec<u8> = (0..700).map(|at| (at % 251) as u8).collect();
        for len in 0..=700 {
            for place in [1, 8, 63] {
                let mut to = [0xee_u8; 800];
                // SAFETY: at least 737 bytes are behind the pointer.
                unsafe { copy_bytes(from.as_ptr(), to.as_mut_ptr().add(place), len) };
                assert_eq!(to[place..place + len], from[..len]);
                let beside = to[..place].iter().chain(&to[place + len..]);
                assert!(beside.copied().all(|byte| byte == 0xee), "{len} at {place}");
            }
        }
    }
}
