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

/// A count for others to look at while its one writer goes by one that nobody takes away: whoever looked last at a line has it.
#[derive(Debug, Default)]
pub struct Tally {
    own: Line,
    shown: Line,
}

impl Tally {
    /// Adds to it. The writer's alone.
    #[inline]
    pub fn add(&self, more: u64) {
        let count = self.own.get() + more;
        self.own.set(count);
        self.shown.set(count);
    }

    /// The count, for its writer.
    #[inline]
    pub fn own(&self) -> u64 {
        self.own.get()
    }

    /// The count, for others.
    #[inline]
    pub fn get(&self) -> u64 {
        self.shown.get()
    }
}
