//! Large pages, for tables that are looked into here and there: fewer addresses have to be translated anew.

use core::ffi::c_void;

use rustix::mm::{Advice, madvise};

/// Has the kernel take large pages for what of this memory nobody has used yet. Where there are none, small ones do.
pub fn prefer<T>(memory: &[T]) {
    let pages = memory.as_ptr_range();
    let start = (pages.start as usize).next_multiple_of(crate::segment::PAGE);
    let end = pages.end as usize / crate::segment::PAGE * crate::segment::PAGE;
    if start < end {
        // SAFETY: whole pages of memory that is borrowed here; this changes no byte of them.
        let _ = unsafe { madvise(start as *mut c_void, end - start, Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_size_is_left_as_it_is() {
        for len in [0, 1, 511, 512, 513, 3 << 18] {
            let memory = vec![7_u64; len];
            prefer(&memory);
            prefer(&memory[len / 2..]);
            assert!(memory.iter().all(|word| *word == 7));
        }
    }
}
