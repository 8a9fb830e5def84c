//! Copies between memory that others may write meanwhile, and memory of one's own.

/// Copies `len` bytes: inline, since a call of the C library's copy for a length that the compiler does not know costs a
/// small frame more than the copy, and a large one, whose lines come from another core, up to half as much again.
///
/// # Safety
/// `from` must be mapped for `len` bytes, which others may write meanwhile, `to` for writing as many, and they must not
/// overlap.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
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
    match len {
        32..=64 => two_blocks!(32),
        65..=128 => two_blocks!(64),
        16..=31 => two_blocks!(16),
        // SAFETY: by contract.
        0..=15 => unsafe { core::ptr::copy_nonoverlapping(from, to, len) },
        // SAFETY: by contract.
        _ => unsafe { copy_lines(from, to, len) },
    }
}

/// Copies whole cache lines of `to`, and what lies before the first and behind the last.
///
/// # Safety
/// As for [`copy_bytes`]; `len` must be at least 64.
#[inline(always)]
unsafe fn copy_lines(from: *const u8, to: *mut u8, len: usize) {
    const LINE: usize = 64;
    // SAFETY: every block begins at least a block before the end of both.
    let line = |at: usize| unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), LINE) };
    line(0);
    let mut at = LINE - to as usize % LINE;
    while at + LINE < len {
        line(at);
        at += LINE;
    }
    line(len - LINE);
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
