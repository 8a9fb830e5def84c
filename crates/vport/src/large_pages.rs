//! Words in large pages, for tables that are looked into here and there: fewer addresses have to be translated anew.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::io;

use crate::mapping::Mapping;
use crate::prefetch::{self, CacheLevel};

/// So many words of this process, all zero at first. No memory is used before they are.
#[derive(Debug)]
pub struct Words {
    start: NonNull<u64>,
    count: usize,
    /// What they lie in, if there are any.
    _mapping: Option<Mapping>,
}

// SAFETY: the memory is this value's alone, and plain words; it belongs to no thread.
unsafe impl Send for Words {}
// SAFETY: as above; who has it shared can but read.
unsafe impl Sync for Words {}

impl Words {
    /// So many of them. Where the kernel has no large pages, they lie in small ones.
    pub fn zeroed(count: usize) -> io::Result<Self> {
        if count == 0 {
            return Ok(Self::default());
        }
        let len = count.checked_mul(size_of::<u64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::reserved(len)?;
        let start = NonNull::new(mapping.area_mut(0, len).cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, count, _mapping: Some(mapping) })
    }

    /// Asks for a word that will soon be looked at. Any number will do.
    #[inline(always)]
    pub fn ask(&self, word: usize, level: CacheLevel) {
        prefetch::into(level, self.start.as_ptr().wrapping_add(word).cast());
    }
}

impl Default for Words {
    /// None at all.
    fn default() -> Self {
        Self { start: NonNull::dangling(), count: 0, _mapping: None }
    }
}

impl Deref for Words {
    type Target = [u64];

    #[inline(always)]
    fn deref(&self) -> &[u64] {
        // SAFETY: so many words from the beginning of the mapping on, a page's, which is this value's alone and is borrowed with
        // it; or none.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl DerefMut for Words {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and nobody else has it borrowed.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_zero_until_they_are_something_else() {
        for count in [0, 1, 511, 513, 3 << 18] {
            let mut words = Words::zeroed(count).unwrap();
            assert_eq!(words.len(), count);
            assert!(words.iter().all(|word| *word == 0));
            words.iter_mut().zip(1..).for_each(|(word, number)| *word = number);
            assert!(words.iter().copied().eq(1..=count as u64));
        }
        assert!(Words::zeroed(usize::MAX / 4).is_err());
    }
}
