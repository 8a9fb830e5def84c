//! Records as they are written into the ring: one by one, or a run of alike ones.

use std::borrow::Borrow;
use std::sync::atomic::Ordering;

use crate::packet::{PacketRef, copy_bytes};
use crate::prefetch;
use crate::registers::Registers;
use crate::ring::{HEADER, Ring, frame_header, record_bytes};
use crate::stream;
use crate::sync::{self, AtomicU64};

/// How far ahead of the head cache lines are fetched for writing.
const AHEAD: u64 = 512;

/// Frames on their way into the ring.
pub(super) struct Run {
    /// Where the next record goes.
    pub(super) head: u64,
    /// Up to where records can be written.
    pub(super) limit: u64,
    pub(super) pushed: u32,
    pub(super) bytes: u64,
}

impl Run {
    /// A frame of so many bytes was written.
    #[inline(always)]
    pub(super) fn appended(&mut self, len: usize) {
        self.head = self.head.wrapping_add(record_bytes(len));
        self.pushed += 1;
        self.bytes += len as u64;
    }

    /// Appends frames that lie in one piece of `len` bytes, which are `WHOLE` times a `BLOCK` at least and a `BLOCK` more at most,
    /// while one is next and there is room: mostly all of a burst are alike, and what depends on the length is found out once.
    ///
    /// # Safety
    /// As [`Records::write`], up to the limit.
    #[inline(always)]
    pub(super) unsafe fn append_alike<'p, const BLOCK: usize, const WHOLE: usize, P: Borrow<PacketRef<'p>>>(
        &mut self,
        to: Records,
        len: usize,
        each: &mut (impl Iterator<Item = P> + Clone),
    ) {
        let record_bytes = record_bytes(len);
        let mut room = self.limit.wrapping_sub(self.head);
        let mut record = to.at(self.head);
        let mut packets = 0;
        let mut behind = each.clone();
        while let Some(packet) = behind.next() {
            let packet: &PacketRef<'_> = packet.borrow();
            if packet.head.len() != len || !packet.rest.is_empty() || room < record_bytes {
                break;
            }
            // SAFETY: by contract, and within the limit.
            record = unsafe {
                write_blocks::<BLOCK, WHOLE>(record, packet.head);
                record.add(record_bytes as usize)
            };
            room -= record_bytes;
            packets += 1;
            *each = behind.clone();
        }
        self.head = self.limit.wrapping_sub(room);
        self.pushed += packets;
        self.bytes += u64::from(packets) * len as u64;
    }
}

/// Writes the record of a frame in one piece, which is `WHOLE` times a `BLOCK` long at least and a `BLOCK` more at most. Few stores
/// that go ahead: each lies across two lines, and waits until the core has these for itself.
///
/// # Safety
/// There must be room for it at `record`, a multiple of 8, in bytes that nobody looks at until the next head is published.
#[inline(always)]
unsafe fn write_blocks<const BLOCK: usize, const WHOLE: usize>(record: *mut u8, frame: &[u8]) {
    let (from, behind) = (frame.as_ptr(), frame.len() - BLOCK);
    // SAFETY: by contract; whole blocks and one that meets or overlaps the last of them cover the frame, and no more. The first word is
    // atomic, since the reader may look at it.
    unsafe {
        let body = record.add(HEADER as usize);
        sync::writes(body, frame.len());
        expect_lines(frame.len(), |line| record.wrapping_add(AHEAD as usize + line));
        AtomicU64::from_ptr(record.cast()).store(frame_header(frame.len()), Ordering::Relaxed);
        for at in 0..WHOLE {
            core::ptr::copy_nonoverlapping(from.add(at * BLOCK), body.add(at * BLOCK), BLOCK);
        }
        core::ptr::copy_nonoverlapping(from.add(behind), body.add(behind), BLOCK);
    }
}

/// Soon about so many bytes will be written, whose lines are `at` multiples of their size.
#[inline(always)]
fn expect_lines(bytes: usize, at: impl Fn(usize) -> *mut u8) {
    prefetch::to_write(at(0));
    // Apart, so that small frames cost no loop.
    if bytes > 64 {
        (64..bytes).step_by(64).for_each(|line| prefetch::to_write(at(line)));
    }
}

/// Where records go.
#[derive(Clone, Copy)]
pub(super) struct Records {
    /// Past the caches as they come, with such registers.
    pub(super) past_caches: Option<Registers>,
    pub(super) ring: Ring,
    pub(super) data: *mut u8,
}

impl Records {
    /// The place of a position. The first byte need not be mapped, as where a stage stands for a part of the ring.
    #[inline(always)]
    pub(super) fn at(self, position: u64) -> *mut u8 {
        self.data.wrapping_add(self.ring.offset(position))
    }

    /// # Safety
    /// The record must lie within one lap of the ring, in bytes that the reader has given back.
    #[inline(always)]
    pub(super) unsafe fn write(self, head: u64, header: u64, packet: &PacketRef<'_>) {
        // SAFETY: the offset is a multiple of 8, the record by contract in bytes that nobody looks at until the next head is
        // published. Others only read.
        unsafe {
            let record = self.at(head);
            let body = record.add(HEADER as usize);
            sync::writes(body, packet.len());
            match self.past_caches {
                None => {}
                Some(Registers::Bytes64) => return stream::record::<true>(header, packet, record),
                Some(_) => return stream::record::<false>(header, packet, record),
            }
            expect_lines(packet.len(), |line| self.at(head.wrapping_add(AHEAD + line as u64)));
            self.begin(head, header, Ordering::Relaxed);
            copy_bytes(packet.head.as_ptr(), body, packet.head.len());
            if !packet.rest.is_empty() {
                copy_bytes(packet.rest.as_ptr(), body.add(packet.head.len()), packet.rest.len());
            }
        }
    }

    /// Writes the word with which a record begins.
    ///
    /// # Safety
    /// The word must lie in bytes that the reader has given back.
    #[inline(always)]
    pub(super) unsafe fn begin(self, at: u64, header: u64, order: Ordering) {
        // SAFETY: by contract.
        unsafe { self.word(at) }.store(header, order);
    }

    /// # Safety
    /// As [`Records::begin`], and not used longer than the ring is mapped.
    #[inline(always)]
    pub(super) unsafe fn word<'a>(self, at: u64) -> &'a AtomicU64 {
        // SAFETY: within the ring and a multiple of 8. Atomic, since the reader may look at it.
        unsafe { AtomicU64::from_ptr(self.at(at).cast()) }
    }
}
