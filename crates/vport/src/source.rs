//! Where a reader reads: the records of a ring in mapped memory, which somebody else writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::held::Place;
use crate::layout::Heads;
use crate::lone;
use crate::mapping::Mapping;
use crate::packet::{BLOCK, BURST_MAX, Slot};
use crate::prefetch::{self, CacheLevel};
use crate::ring::{HEADER, Ring};
use crate::steering::Steering;
use crate::sync::{self, AtomicU64};

/// How far ahead of the record at hand memory is asked for. Whoever changes packets asks a burst ahead besides (see
/// [`crate::packet::Coming`]); whoever takes less than a burst has this.
pub(crate) const AHEAD: u64 = 512;

/// Where a reader reads: memory that somebody else writes at any time. A value read twice may differ.
pub trait Source {
    /// What a frame is taken into: a slot with a copy of its head, or whatever says where it lies.
    type Slot;

    /// The writer's published head. Everything before it is visible afterwards.
    fn head(&self) -> u64;

    /// The eight bytes at `offset`, a multiple of 8 and less than the ring's size.
    fn header(&self, offset: usize) -> u64;

    /// When a record was published, loaded after a head: see [`crate::stamp`].
    fn stamp(&self) -> u64 {
        0
    }

    /// Copies the frame (up to 72 bytes) whose record begins at `tail` into a slot, if it stands beside the head. Its length.
    fn lone(&self, _tail: u64, _slot: &mut Self::Slot) -> Option<usize> {
        None
    }

    /// Soon a lone frame will be looked for.
    fn expect_lone(&self) {}

    /// Copies `head` bytes at `offset`, at most [`HEAD_MAX`], into `slot`, and lets it name the `rest` bytes behind them, or notes where
    /// all of them are. They lie within the ring.
    ///
    /// [`HEAD_MAX`]: crate::packet::HEAD_MAX
    fn take(&self, offset: usize, head: usize, rest: usize, slot: &mut Self::Slot);

    /// Soon the byte at `offset`, which may lie past the ring's end, will be read: asks for its line.
    fn prefetch(&self, _offset: usize, _level: CacheLevel) {}

    /// What is asked for while records of so many bytes each are taken.
    #[inline(always)]
    fn ahead(&self, _record_bytes: u64) -> Ahead {
        Ahead { bytes: AHEAD, level: CacheLevel::First, key: None }
    }
}

/// What a reader asks for beforehand of each record in a row that are all as long.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// How far ahead of the record at hand.
    pub bytes: u64,
    /// Into which cache.
    pub level: CacheLevel,
    /// Which byte of the record besides the first.
    pub key: Option<usize>,
}

impl Ahead {
    /// Asks, at the record at `offset`.
    #[inline(always)]
    pub(crate) fn ask(self, source: &impl Source, offset: usize) {
        let ahead = offset + self.bytes as usize;
        source.prefetch(ahead, self.level);
        if let Some(key) = self.key {
            source.prefetch(ahead + key, self.level);
        }
    }
}

/// A ring in mapped memory.
#[derive(Debug)]
pub(crate) struct Mapped {
    data: *const u8,
    head: *const AtomicU64,
    stamp: *const AtomicU64,
    lone: *const lone::Words,
    /// What the pointers point into.
    keep: [Arc<Mapping>; 2],
}

// SAFETY: the pointers are into mappings, which belong to no thread, and which are kept.
unsafe impl Send for Mapped {}

/// Where records' frames are.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    ring: Ring,
    data: *const u8,
}

impl Places {
    /// The first byte of the frame whose record is at a position.
    #[inline(always)]
    pub(crate) fn frame(self, position: u64) -> *const u8 {
        self.data.wrapping_add(self.ring.offset(position) + HEADER as usize)
    }
}

impl Mapped {
    /// Where frames of records are, which are in a ring of this size.
    #[inline(always)]
    pub(crate) fn places(&self, ring: Ring) -> Places {
        Places { ring, data: self.data }
    }

    /// To note where frames lie, for a caller that will spread them by `steering`.
    #[inline(always)]
    pub(crate) fn unseen<S>(&self, source: S, steering: Steering) -> Unseen<S> {
        Unseen { source, data: self.data, steering }
    }

    /// What holds the records.
    #[inline(always)]
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.keep[0]
    }

    /// The ring of `ring` bytes at `offset` of `records`, with its head and what stands beside it in `index`.
    ///
    /// # Panics
    /// If either lies outside, or less than 64 bytes follow the ring (heads are copied in blocks).
    pub(crate) fn new(
        ring: Ring,
        records: &Arc<Mapping>,
        offset: usize,
        index: &Arc<Mapping>,
        words: impl Fn(&Mapping) -> Heads<'_>,
    ) -> Self {
        let data = records.area(offset, ring.size() as usize + BLOCK);
        let Heads { head, stamp, lone } = words(index);
        Self { data, head, stamp, lone, keep: [records.clone(), index.clone()] }
    }

    /// To fill slots from.
    #[inline(always)]
    pub(crate) fn seen(&self) -> Seen<'_> {
        // SAFETY: the mappings are kept.
        unsafe { Seen { data: self.data, head: &*self.head, stamp: &*self.stamp, lone: &*self.lone } }
    }
}

/// What a reader looks at while it fills slots: kept in registers, where what is written to slots could be the [`Mapped`] itself, for
/// all that the compiler knows.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'m> {
    data: *const u8,
    head: &'m AtomicU64,
    stamp: &'m AtomicU64,
    lone: &'m lone::Words,
}

impl Source for Seen<'_> {
    type Slot = Slot;

    #[inline(always)]
    fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn header(&self, offset: usize) -> u64 {
        // SAFETY: offsets are less than the ring's size and multiples of 8 (contract of `Source`). Atomic, so that it is
        // read once whatever the writer does.
        unsafe {
            sync::reads(self.data.add(offset), HEADER as usize);
            AtomicU64::from_ptr(self.data.add(offset).cast_mut().cast()).load(Ordering::Relaxed)
        }
    }

    #[inline(always)]
    fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn lone(&self, tail: u64, slot: &mut Slot) -> Option<usize> {
        lone::find(self.lone, tail, slot)
    }

    #[inline(always)]
    fn expect_lone(&self) {
        // The second half: the first one is in the head's line.
        prefetch::to_read(core::ptr::from_ref(self.head).cast::<u8>().wrapping_add(64));
    }

    #[inline(always)]
    fn take(&self, offset: usize, head: usize, rest: usize, slot: &mut Slot) {
        // SAFETY: head and rest lie within the ring (contract of `Source`), 64 bytes are mapped behind it, and the
        // mapping is kept by the queue that owns the slots.
        unsafe {
            sync::reads(self.data.add(offset), head);
            slot.copy_head(self.data.add(offset), head, rest);
        }
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize, level: CacheLevel) {
        prefetch::into(level, self.data.wrapping_add(offset));
    }
}

/// A source of which nothing but headers is read: it is noted where frames lie.
#[derive(Clone, Copy)]
pub(crate) struct Unseen<S> {
    source: S,
    /// Where the ring begins.
    data: *const u8,
    /// What the reader's caller will look for in the frames.
    steering: Steering,
}

impl<S: Source> Source for Unseen<S> {
    type Slot = Place;

    #[inline(always)]
    fn head(&self) -> u64 {
        self.source.head()
    }

    #[inline(always)]
    fn header(&self, offset: usize) -> u64 {
        self.source.header(offset)
    }

    #[inline(always)]
    fn stamp(&self) -> u64 {
        self.source.stamp()
    }

    #[inline(always)]
    fn take(&self, offset: usize, head: usize, rest: usize, place: &mut Place) {
        *place = Place::new(self.data.wrapping_add(offset), head + rest);
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize, level: CacheLevel) {
        self.source.prefetch(offset, level);
    }

    /// Little is done with a record: what comes from memory, or from another core, has to be asked for a burst ahead. So many lines at
    /// a time are more than the first level waits for.
    #[inline(always)]
    fn ahead(&self, record_bytes: u64) -> Ahead {
        let key = HEADER as usize + self.steering.usual_reach();
        Ahead { bytes: BURST_MAX as u64 * record_bytes, level: CacheLevel::Second, key: Some(key) }
    }
}
