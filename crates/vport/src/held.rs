//! Frames that lie where their sender put them until they are given back, for another thread of this process to take
//! from there ([`crate::relay`]).

use std::sync::Arc;

use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, Burst, Slot};

/// Where a frame's bytes begin, in memory that its sender may write.
pub(crate) type Origin = *const u8;

/// What its caller looks at of a burst that a queue is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The packets' heads, as of a receive.
    Heads,
    /// Nothing, or only what any packet is sent on by: heads may be empty, with all bytes behind them.
    Nothing,
}

/// What a queue has received and holds: a burst to look at, and where its frames lie.
pub struct Held<'q> {
    burst: Burst<'q>,
    origins: &'q [Origin],
    mapping: &'q Arc<Mapping>,
    end: u64,
}

impl<'q> Held<'q> {
    /// A burst, where each of its frames lies in `mapping`, and the position behind the last one.
    pub(crate) fn new(burst: Burst<'q>, origins: &'q [Origin], mapping: &'q Arc<Mapping>, end: u64) -> Self {
        debug_assert_eq!(burst.len(), origins.len());
        Self { burst, origins, mapping, end }
    }

    /// The packets, as a receive would have returned them, but for what the caller did not want to look at.
    #[inline]
    pub fn burst(&self) -> &Burst<'q> {
        &self.burst
    }

    /// Position behind everything that was read, to be given back when all up to there has been taken.
    #[inline]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// What keeps the frames mapped.
    #[inline(always)]
    pub(crate) fn mapping(&self) -> &'q Arc<Mapping> {
        self.mapping
    }

    /// Where packet `at` lies, and how many bytes it has.
    #[inline(always)]
    pub(crate) fn place(&self, at: usize) -> (Origin, usize) {
        (self.origins[at], self.burst.slots()[at].frame_len())
    }

    /// The same of all packets, in order.
    #[inline(always)]
    pub(crate) fn places(&self) -> impl Iterator<Item = (Origin, usize)> {
        self.origins.iter().copied().zip(self.burst.slots().iter().map(Slot::frame_len))
    }
}

/// Room for where the frames of a burst lie.
#[derive(Debug)]
pub(crate) struct Origins([Origin; BURST_MAX]);

// SAFETY: nobody follows the pointers but through a `Held`, which borrows them.
unsafe impl Send for Origins {}

impl Origins {
    pub(crate) fn new() -> Self {
        Self([core::ptr::null(); BURST_MAX])
    }

    /// Notes where frame `at` of a burst lies.
    #[inline(always)]
    pub(crate) fn note(&mut self, at: usize, origin: Origin) {
        if let Some(place) = self.0.get_mut(at) {
            *place = origin;
        }
    }

    /// Those of a burst of so many frames.
    #[inline(always)]
    pub(crate) fn of(&self, count: usize) -> &[Origin] {
        &self.0[..count]
    }
}
