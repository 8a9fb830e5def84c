//! A count that one thread writes and others read, on lines of its own: what others write beside it would take these away.

use std::sync::atomic::{AtomicU64, Ordering};

/// The count. Two lines, since processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Line(pub AtomicU64);

impl Line {
    /// The count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it.
    #[inline]
    pub fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }
}
