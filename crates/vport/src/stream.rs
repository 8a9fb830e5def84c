//! Records written past the caches, straight to memory: large ones as they come, by whole lines where they fill some; small ones, of
//! which most words would go one by one, by way of a [`Stage`].

use crate::packet::PacketRef;
use crate::registers::Registers;
use crate::sync;

const WORD: usize = 8;
const PAIR: usize = 2 * WORD;
const LINE: usize = 64;

/// Writes `first` and, behind it, the packet. What is written is seen by others only after [`fence`].
///
/// # Safety
/// `to` must be a multiple of 8 and mapped for writing for 8 bytes and the packet's length, rounded up to a multiple of 8. Where
/// `LINES` go by one store each, this processor must have registers of 64 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn record<const LINES: bool>(first: u64, packet: &PacketRef<'_>, to: *mut u8) {
    let (head, rest) = (packet.head, packet.rest);
    let (head_words, rest_start) = (head.len() / WORD, WORD - head.len() % WORD);
    // SAFETY: all words lie within what `to` is mapped for, and each source within its part of the packet.
    unsafe {
        let body = to.add(WORD);
        put(to, first);
        words::<LINES>(head.as_ptr(), body, head_words);
        if rest.is_empty() {
            last(&head[head_words * WORD..], [].as_ptr(), 0, body.add(head_words * WORD));
            return;
        }
        // The word in which the two parts meet; where the head ends on a word, it is the rest's first.
        let meeting = rest_start.min(rest.len());
        last(&head[head_words * WORD..], rest.as_ptr(), meeting, body.add(head_words * WORD));
        let (from, left) = (rest.as_ptr().add(meeting), rest.len() - meeting);
        let to = body.add((head_words + 1) * WORD);
        words::<LINES>(from, to, left / WORD);
        last(&[], from.add(left / WORD * WORD), left % WORD, to.add(left / WORD * WORD));
    }
}

/// Elsewhere there is no such store in stable Rust.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn record<const LINES: bool>(_first: u64, _packet: &PacketRef<'_>, _to: *mut u8) {
    unreachable!("records are streamed on x86-64 only")
}

/// Whether this processor can.
pub(crate) const POSSIBLE: bool = cfg!(target_arch = "x86_64");

/// Makes what was streamed visible before whatever is written from here on.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// Private lines, in which records are written as into the ring, and from where whole lines go at once. They stand for
/// those of the ring.
#[derive(Debug)]
pub(crate) struct Stage(Box<[Line]>);

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "looked at through pointers alone")] [u8; LINE]);

impl Stage {
    /// Bytes that can be staged, wherever in a line they begin. Part of the fastest cache.
    pub(crate) const ROOM_BYTES: u64 = 12 << 10;

    pub(crate) fn new() -> Self {
        Self(vec![Line([0; LINE]); Self::ROOM_BYTES as usize / LINE + 1].into())
    }

    /// Where the ring's first byte were, if the byte at `offset` were in the first of these lines, at the same place in it.
    pub(crate) fn as_ring(&mut self, offset: usize) -> *mut u8 {
        self.0.as_mut_ptr().cast::<u8>().wrapping_sub(offset - offset % LINE)
    }

    /// Streams so many bytes to their place in the ring, `to`. What is streamed is seen by others only after [`fence`].
    ///
    /// # Safety
    /// These many bytes, of whole words and at most [`Stage::ROOM_BYTES`], must be mapped at `to`, and this processor have such registers.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) unsafe fn stream(&self, to: *mut u8, bytes: usize, registers: Registers) {
        sync::writes(to, bytes);
        // SAFETY: by contract; there is a line more than what is staged fills.
        unsafe {
            let from = self.0.as_ptr().cast::<u8>().add(to.addr() % LINE);
            match registers {
                Registers::Bytes64 => words::<true>(from, to, bytes / WORD),
                _ => words::<false>(from, to, bytes / WORD),
            }
        }
    }

    /// Elsewhere there is no such store in stable Rust.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) unsafe fn stream(&self, _to: *mut u8, _bytes: usize, _registers: Registers) {
        unreachable!("records are streamed on x86-64 only")
    }
}

/// Writes so many words: whole cache lines at once, pairs of words before the first and behind the last, and single words where
/// these are not aligned.
///
/// # Safety
/// Both must be mapped for `count` words, `to` aligned to 8. Where `LINES` go by one store each, this processor must have registers
/// of 64 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn words<const LINES: bool>(from: *const u8, to: *mut u8, count: usize) {
    let bytes = count * WORD;
    let (pairs, lines) = (to.align_offset(PAIR), to.align_offset(LINE).min(bytes));
    let mut at = 0;
    // SAFETY: by contract; whole lines begin on one, and pairs on a multiple of their size.
    unsafe {
        let word = |at: usize| put(to.add(at), from.add(at).cast::<u64>().read_unaligned());
        if pairs > 0 && bytes > 0 {
            word(0);
            at = WORD;
        }
        while at + PAIR <= lines {
            put_pair(from.add(at), to.add(at));
            at += PAIR;
        }
        while at + LINE <= bytes {
            match LINES {
                true => put_line(from.add(at), to.add(at)),
                false => (0..LINE).step_by(PAIR).for_each(|pair| put_pair(from.add(at + pair), to.add(at + pair))),
            }
            at += LINE;
        }
        while at + PAIR <= bytes {
            put_pair(from.add(at), to.add(at));
            at += PAIR;
        }
        if at < bytes {
            word(at);
        }
    }
}

/// # Safety
/// Both must be mapped for two words, and `to` aligned to their size.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn put_pair(from: *const u8, to: *mut u8) {
    use core::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
    // SAFETY: by contract.
    unsafe { _mm_stream_si128(to.cast(), _mm_loadu_si128(from.cast())) };
}

/// # Safety
/// Both must be mapped for a line, and `to` aligned to one, on a processor with registers of 64 bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn put_line(from: *const u8, to: *mut u8) {
    use core::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    // SAFETY: by contract.
    unsafe { _mm512_stream_si512(to.cast(), _mm512_loadu_si512(from.cast())) };
}

/// Writes one word of fewer than 8 bytes `before` and `count` bytes `from`, filled up with zeros; none if both are empty.
///
/// # Safety
/// The bytes must be at most 8 together; `to` is aligned to 8 and mapped for them rounded up.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn last(before: &[u8], from: *const u8, count: usize, to: *mut u8) {
    if before.len() + count == 0 {
        return;
    }
    let mut word = [0; WORD];
    word[..before.len()].copy_from_slice(before);
    // SAFETY: by contract.
    unsafe {
        core::ptr::copy_nonoverlapping(from, word.as_mut_ptr().add(before.len()), count);
        put(to, u64::from_ne_bytes(word));
    }
}

/// # Safety
/// `to` must be mapped and aligned to 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn put(to: *mut u8, word: u64) {
    // SAFETY: by contract.
    unsafe { core::arch::x86_64::_mm_stream_si64(to.cast(), word as i64) }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::packet::Rest;

    /// Whatever part of which lines it is: it arrives, and nothing beside it is touched.
    #[test]
    fn what_is_staged_is_streamed_to_its_place_and_nowhere_else() {
        #[repr(align(64))]
        struct Lines([u8; 4 * LINE]);
        let mut stage = Stage::new();
        let words =
            (0..LINE).step_by(WORD).flat_map(|at| (WORD..=2 * LINE).step_by(WORD).map(move |bytes| (at, bytes)));
        for ((at, bytes), registers) in words.flat_map(|how| [(how, Registers::Bytes16), (how, Registers::here())]) {
            let offset = LINE + at;
            let staged: Vec<u8> = (1..=bytes as u8).collect();
            // SAFETY: the offset is of the stage's first line.
            unsafe { stage.as_ring(offset).wrapping_add(offset).copy_from(staged.as_ptr(), bytes) };
            let mut ring = Lines([0xee; 4 * LINE]);
            // SAFETY: there is room.
            unsafe { stage.stream(ring.0[offset..].as_mut_ptr(), bytes, registers) };
            fence();
            let (before, from_there) = ring.0.split_at(offset);
            let (streamed, behind) = from_there.split_at(bytes);
            assert_eq!(streamed, staged, "{bytes} bytes at {at}, {registers:?}");
            assert!(before.iter().chain(behind).all(|byte| *byte == 0xee), "{bytes} bytes at {at}, {registers:?}");
        }
    }

    /// Writes a record, in whole lines of either kind where it has some.
    fn write<const LINES: bool>(packet: &PacketRef<'_>, to: &mut [u64]) {
        let (len, room) = (8 + packet.len(), 8 * to.len());
        assert!(len.next_multiple_of(8) <= room);
        // SAFETY: there is room, and the tests ask what registers there are.
        unsafe { record::<LINES>(0x1234, packet, to.as_mut_ptr().cast()) };
        fence();
    }

    fn check(head: &[u8], rest: &[u8], at: usize) {
        #[repr(align(64))]
        struct Lines([u64; 64]);
        let packet = PacketRef { head, rest: Rest::from_slice(rest) };
        let len = packet.len();
        for lines in [false, true] {
            let mut memory = Lines([u64::from_ne_bytes([0xee; 8]); 64]);
            let (before, to) = memory.0.split_at_mut(at);
            match lines {
                true if Registers::here() != Registers::Bytes64 => continue,
                true => write::<true>(&packet, to),
                false => write::<false>(&packet, to),
            }
            let written: Vec<u8> = to.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(to[0], 0x1234);
            assert_eq!(written[8..8 + len], [head, rest].concat(), "{} and {} at {at}", head.len(), rest.len());
            let end = 8 + len.next_multiple_of(8);
            assert!(written[8 + len..end].iter().all(|byte| *byte == 0));
            assert!(written[end..].iter().all(|byte| *byte == 0xee), "{} and {} at {at}", head.len(), rest.len());
            assert!(before.iter().all(|word| *word == u64::from_ne_bytes([0xee; 8])));
        }
    }

    /// Every way in which head and rest can lie over words: the record holds the frame, and no byte is touched but those and the
    /// padding of its last word.
    #[test]
    fn a_streamed_record_holds_the_frame_and_ends_with_its_last_word() {
        let bytes: Vec<u8> = (1..=96).collect();
        for (head, rest) in (0..=40).flat_map(|head| (0..=40).map(move |rest| (head, rest))) {
            if head + rest > 0 {
                let (head, rest) = bytes[..head + rest].split_at(head);
                check(head, rest, 0);
            }
        }
    }

    /// The same over lines, from every word of one on.
    #[test]
    fn so_does_one_of_many_lines_wherever_it_begins() {
        let bytes: Vec<u8> = (0..440).map(|n| n as u8).collect();
        for (at, len) in (0..8).flat_map(|at| (60..=200).chain([430, 440]).map(move |len| (at, len))) {
            for head in [0, 1, 20, 64, len.min(192)] {
                let (head, rest) = bytes[..len].split_at(head.min(len));
                check(head, rest, at);
            }
        }
    }
}
