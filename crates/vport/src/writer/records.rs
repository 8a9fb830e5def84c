//! Records as they are written into the ring: one by one, or a run of alike ones.

use std::borrow::Borrow;
use std::sync::atomic::Ordering;

use crate::packet::{PacketRef, copy_asking, copy_lines};
use crate::prefetch;
use crate::registers::Registers;
use crate::ring::{HEADER, Ring, frame_header, record_bytes};
use crate::stream;
use crate::sync::{self, AtomicU64};

/// How far ahead of the head cache lines are fetched for writing.
const AHEAD: usize = 512;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes from which on what follows a frame's head is copied line by line, and nothing else is thought of.
const LONG: usize = 2 * LINE;

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
    /// Appends a frame past the caches.
    ///
    /// # Safety
    /// As [`Run::append`]. The processor must have such registers.
    #[inline(always)]
    pub(super) unsafe fn stream(&mut self, to: Records, registers: Registers, packet: &PacketRef<'_>) {
        let (record, len) = (to.at(self.head), packet.len());
        sync::writes(record.wrapping_add(HEADER as usize), len);
        // SAFETY: by contract; records take whole words.
        unsafe {
            match registers {
                Registers::Bytes64 => stream::record::<true>(frame_header(len), packet, record),
                _ => stream::record::<false>(frame_header(len), packet, record),
            }
        }
        self.head = self.head.wrapping_add(record_bytes(len));
        self.pushed += 1;
        self.bytes += len as u64;
    }

    /// Appends the frame that is next, which has so many bytes in private memory and so many behind them, and those behind it that are
    /// alike.
    ///
    /// # Safety
    /// It must have room before the limit, which is within one lap of the ring, in bytes that the reader has given back.
    #[inline(always)]
    pub(super) unsafe fn append<'p, P: Borrow<PacketRef<'p>>>(
        &mut self,
        to: Records,
        parts: (usize, usize),
        each: &mut (impl Iterator<Item = P> + Clone),
    ) {
        macro_rules! alike {
            ($write:expr) => {
                self.append_alike(
                    to,
                    parts,
                    each,
                    #[inline(always)]
                    |record, packet| $write(record, packet),
                )
            };
        }
        // SAFETY: by contract; frames are as long as those are for whom each of these is.
        unsafe {
            match parts {
                (32..=64, 0) => alike!(write_blocks::<32, 1>),
                (65..=128, 0) => alike!(write_blocks::<64, 1>),
                (129..=192, 0) => alike!(write_blocks::<64, 2>),
                (129..=192, LONG..) => alike!(write_long),
                _ => alike!(write_parts),
            }
        }
    }

    /// Appends frames of these lengths by `write`, while one is next and there is room: mostly all of a burst are alike, and what depends
    /// on the length is found out once.
    ///
    /// # Safety
    /// As [`Run::append`]. `write` must write the record of such a frame to the place that it is given.
    #[inline(always)]
    unsafe fn append_alike<'p, P: Borrow<PacketRef<'p>>>(
        &mut self,
        to: Records,
        (head, rest): (usize, usize),
        each: &mut (impl Iterator<Item = P> + Clone),
        write: impl Fn(*mut u8, &PacketRef<'_>),
    ) {
        let len = head + rest;
        let record_bytes = record_bytes(len);
        let mut room = self.limit.wrapping_sub(self.head);
        let mut record = to.at(self.head);
        let mut packets = 0;
        let mut behind = each.clone();
        while let Some(packet) = behind.next() {
            let packet: &PacketRef<'_> = packet.borrow();
            if packet.head.len() != head || packet.rest.len() != rest || room < record_bytes {
                break;
            }
            sync::writes(record.wrapping_add(HEADER as usize), len);
            write(record, packet);
            // SAFETY: within the limit.
            record = unsafe { record.add(record_bytes as usize) };
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
unsafe fn write_blocks<const BLOCK: usize, const WHOLE: usize>(record: *mut u8, packet: &PacketRef<'_>) {
    let frame = packet.head;
    let (from, behind) = (frame.as_ptr(), frame.len() - BLOCK);
    // SAFETY: by contract; whole blocks and one that meets or overlaps the last of them cover the frame, and no more. The first word is
    // atomic, since the reader may look at it.
    unsafe {
        let body = record.add(HEADER as usize);
        for line in 0..(BLOCK * (WHOLE + 1)).div_ceil(LINE) {
            prefetch::to_write(record.wrapping_add(AHEAD + line * LINE));
        }
        AtomicU64::from_ptr(record.cast()).store(frame_header(frame.len()), Ordering::Relaxed);
        for at in 0..WHOLE {
            core::ptr::copy_nonoverlapping(from.add(at * BLOCK), body.add(at * BLOCK), BLOCK);
        }
        core::ptr::copy_nonoverlapping(from.add(behind), body.add(behind), BLOCK);
    }
}

/// Writes the record of a frame in two pieces, of which the first is 129 to 192 bytes long, and the other [`LONG`] at least.
///
/// # Safety
/// As [`write_blocks`].
#[inline(always)]
unsafe fn write_long(record: *mut u8, packet: &PacketRef<'_>) {
    let (head, rest) = (packet.head, packet.rest);
    // SAFETY: by contract; three blocks cover the head. The first word is atomic, since the reader may look at it.
    unsafe {
        let body = record.add(HEADER as usize);
        for line in 0..3 {
            prefetch::to_write(record.wrapping_add(AHEAD + line * LINE));
        }
        AtomicU64::from_ptr(record.cast()).store(frame_header(packet.len()), Ordering::Relaxed);
        for at in [0, LINE, head.len() - LINE] {
            core::ptr::copy_nonoverlapping(head.as_ptr().add(at), body.add(at), LINE);
        }
        copy_lines::<AHEAD>(rest.as_ptr(), body.add(head.len()), rest.len());
    }
}

/// Writes the record of any frame.
///
/// # Safety
/// As [`write_blocks`].
#[inline(always)]
unsafe fn write_parts(record: *mut u8, packet: &PacketRef<'_>) {
    let (head, rest, len) = (packet.head, packet.rest, packet.len());
    // SAFETY: by contract. The first word is atomic, since the reader may look at it.
    unsafe {
        let body = record.add(HEADER as usize);
        AtomicU64::from_ptr(record.cast()).store(frame_header(len), Ordering::Relaxed);
        copy_asking::<AHEAD>(head.as_ptr(), body, head.len());
        if !rest.is_empty() {
            copy_asking::<AHEAD>(rest.as_ptr(), body.add(head.len()), rest.len());
        }
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
