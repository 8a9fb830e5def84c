//! The writing end of one channel. Trusts the reader's tail only as far as it is possible.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::distance::Distance;
use crate::mapping::Mapping;
use crate::packet::{PacketRef, copy_short};
use crate::ring::{HEADER, Place, Ring, Violation, frame_header};
use crate::stream;
use crate::sync::{self, AtomicU64};

/// A ring in mapped memory, of which this is the only writer.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: Ring,
    data: *mut u8,
    /// Where the next record goes.
    head: u64,
    /// The head that the reader knows of.
    published: u64,
    /// The last tail seen, checked.
    tail: u64,
    head_word: *const AtomicU64,
    tail_word: *const AtomicU64,
    broken: Option<Violation>,
    distance: Distance,
    /// Records go past the caches.
    streaming: bool,
    /// What the pointers point into.
    _keep: [Arc<Mapping>; 3],
}

// SAFETY: the pointers are into mappings, which belong to no thread, and which are kept.
unsafe impl Send for Writer {}

/// How far ahead of the head cache lines are fetched for writing.
const AHEAD: u64 = 512;
/// Bytes between two publications from which on streaming pays: the lines at either end are written in parts, which
/// memory does slowly.
const STREAM_MIN: usize = 512;

impl Writer {
    /// Writes the ring at `offset` of `records`. The head is a word of `own`, the tail one of `peer`.
    ///
    /// # Panics
    /// If one of them lies outside.
    pub(crate) fn new(
        ring: Ring,
        (records, offset): (&Arc<Mapping>, usize),
        (own, head_word): (&Arc<Mapping>, impl Fn(&Mapping) -> &AtomicU64),
        (peer, tail_word): (&Arc<Mapping>, impl Fn(&Mapping) -> &AtomicU64),
    ) -> Self {
        Self {
            ring,
            data: records.area_mut(offset, ring.size() as usize),
            head: 0,
            published: 0,
            tail: 0,
            head_word: head_word(own),
            tail_word: tail_word(peer),
            broken: None,
            distance: Distance::default(),
            streaming: false,
            _keep: [records.clone(), own.clone(), peer.clone()],
        }
    }

    /// About so many bytes will be pushed before the next [`Writer::publish`].
    #[inline(always)]
    pub(crate) fn expect(&mut self, bytes: usize) {
        self.streaming = stream::POSSIBLE && self.distance.is_far() && bytes >= STREAM_MIN;
    }

    /// Appends a frame of 1 to [`FRAME_MAX`](crate::packet::FRAME_MAX) bytes; the reader sees it after
    /// [`Writer::publish`]. False while there is no room.
    #[inline(always)]
    pub(crate) fn push(&mut self, packet: &PacketRef<'_>) -> bool {
        let len = packet.len();
        let Some(place) = self.ring.place(self.head, self.tail, len).or_else(|| self.look_for_room(len)) else {
            return false;
        };
        if place.next.wrapping_sub(self.published) > self.ring.unpublished_max() {
            self.publish();
        }
        // SAFETY: `place` lies within the ring and within what the reader has given back.
        unsafe { self.write(place, packet) };
        self.head = place.next;
        true
    }

    /// Lets the reader see what was pushed. True if there was anything.
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> bool {
        let news = self.published != self.head;
        if news {
            if self.streaming {
                stream::fence();
            }
            self.published = self.head;
            // SAFETY: the mapping is kept.
            unsafe { &*self.head_word }.store(self.head, Ordering::Release);
        }
        news
    }

    /// The rule that the reader broke, if it did.
    #[inline(always)]
    pub(crate) fn broken(&self) -> Option<Violation> {
        self.broken
    }

    /// The head that the reader knows of.
    pub(crate) fn published(&self) -> u64 {
        self.published
    }

    #[inline(never)]
    fn look_for_room(&mut self, len: usize) -> Option<Place> {
        if self.broken.is_some() {
            return None;
        }
        // SAFETY: the mapping is kept.
        let tail_word = unsafe { &*self.tail_word };
        let last = self.tail;
        let tail = self.distance.time(|| tail_word.load(Ordering::Acquire), |tail| tail != last);
        // Against what is published: a reader cannot have read more. Nor can it take back what it gave.
        let checked = match self.ring.check_tail(self.published, tail) {
            Ok(()) if tail.wrapping_sub(self.tail) > self.ring.size() => Err(Violation::TailOutOfRange),
            checked => checked,
        };
        if let Err(violation) = checked {
            self.broken = Some(violation);
            return None;
        }
        self.tail = tail;
        self.ring.place(self.head, tail, len)
    }

    /// # Safety
    /// `place` must come from [`Ring::place`] with this head, a checked tail and this packet's length.
    #[inline(always)]
    unsafe fn write(&mut self, place: Place, packet: &PacketRef<'_>) {
        let head = self.ring.offset(self.head);
        let at = self.ring.offset(place.at);
        // SAFETY: both offsets are within the ring and multiples of 8; the record lies within one lap, in bytes that the
        // reader does not look at until the next head is published. Others only read.
        unsafe {
            if place.at != self.head {
                sync::writes(self.data.add(head), HEADER as usize);
                self.data.add(head).cast::<u64>().write(self.ring.skip_header(self.head));
            }
            let record = self.data.add(at);
            sync::writes(record, HEADER as usize + packet.len());
            if self.streaming {
                return stream::record(frame_header(packet.len()), packet, record);
            }
            self.fetch_ahead(place.next);
            record.cast::<u64>().write(frame_header(packet.len()));
            let body = record.add(HEADER as usize);
            copy_short(packet.head, body);
            if !packet.rest.is_empty() {
                core::ptr::copy_nonoverlapping(packet.rest.as_ptr(), body.add(packet.head.len()), packet.rest.len());
            }
        }
    }

    #[inline(always)]
    fn fetch_ahead(&self, next: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; it cannot fault. An offset is within the ring.
        unsafe {
            let line = self.data.add(self.ring.offset(next.wrapping_add(AHEAD)));
            core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = next;
    }
}
