//! A lone frame, once more beside its head: who waits for a single packet finds it in the lines that it looks at anyway, and
//! need not fetch its record.
//!
//! The frame lies in the ring as any other; what stands here is for readers that are quick. It fills two cache lines together
//! with its head, and each of them has a tag that says of which record it is. A writer takes a line's tag away before it
//! writes there and sets it afterwards; a reader takes the frame only if both tags are the same before and after. Whoever
//! never writes here leaves the tags 0, and whoever never looks loses nothing but time.

use core::sync::atomic::Ordering;

use crate::packet::Slot;
use crate::ring::record_bytes;
use crate::sync::{AtomicU64, fence};

/// Longest frame in bytes.
pub(crate) const LONE_MAX: usize = 72;
/// Bytes of the longest record that can be here.
pub(crate) const RECORD_MAX: u64 = record_bytes(LONE_MAX);

const FRAME_WORDS: usize = LONE_MAX / 8;

/// The place beside a head: a tag, the frame, a tag.
pub(crate) type Words = [AtomicU64; FRAME_WORDS + 2];

/// Where the tags are: that of the head's line, and that of the other one.
const TAGS: [usize; 2] = [0, FRAME_WORDS + 1];

/// Bits of a tag that are the frame's length. Positions are multiples of 8: they lose their four highest bits.
const LEN_BITS: u32 = 7;

/// What stands around a frame of `len` bytes whose record is at `position`. Never 0.
const fn tag(position: u64, len: usize) -> u64 {
    position << (LEN_BITS - 3) | len as u64
}

/// Puts a frame of `len` bytes there, whose record is at `position`. The head comes afterwards.
///
/// # Safety
/// [`LONE_MAX`] bytes must be mapped at `frame`.
#[inline(always)]
pub(crate) unsafe fn show(words: &Words, position: u64, len: usize, frame: *const u8) {
    let tag = tag(position, len);
    // In blocks that a record was written in, since these may still be on their way to the cache. The head's line comes last,
    // so that a reader that looks at it takes it away once.
    // SAFETY: by contract.
    unsafe {
        begin(&words[TAGS[1]]);
        copy_in::<2>(frame, words, 2);
        copy_in::<4>(frame, words, 4);
        copy_in::<1>(frame, words, 8);
        words[TAGS[1]].store(tag, Ordering::Release);
        begin(&words[TAGS[0]]);
        copy_in::<2>(frame, words, 0);
        words[TAGS[0]].store(tag, Ordering::Release);
    }
}

/// Takes a tag away: whoever sees something of what is written from here on sees that.
#[inline(always)]
fn begin(tag: &AtomicU64) {
    tag.store(0, Ordering::Relaxed);
    fence(Ordering::Release);
}

/// Copies the frame whose record begins at `tail` into a slot, if it is there. Its length. What else is in the slot then means
/// nothing.
#[inline(always)]
pub(crate) fn find(words: &Words, tail: u64, slot: &mut Slot) -> Option<usize> {
    let found = words[TAGS[0]].load(Ordering::Acquire);
    let len = (found % (1 << LEN_BITS)) as usize;
    if found != tag(tail, len) || !(1..=LONE_MAX).contains(&len) || words[TAGS[1]].load(Ordering::Acquire) != found {
        return None;
    }
    let frame = slot.fill_head(LONE_MAX);
    copy_out::<8>(words, 0, frame);
    if len > 64 {
        copy_out::<1>(words, 8, frame);
    }
    slot.fill_head(len);
    // Nor does the compiler read the place again behind it: what was copied is what is looked at.
    fence(Ordering::Acquire);
    TAGS.iter().all(|tag| words[*tag].load(Ordering::Relaxed) == found).then_some(len)
}

/// Whether words are copied as such, which those who check accesses understand, and not in blocks. What is copied in blocks
/// while somebody writes it is thrown away.
const BY_WORD: bool = cfg!(any(tsan, all(test, loom)));

/// Copies `N` words of a frame, from word `at` on.
///
/// # Safety
/// They must be mapped.
#[inline(always)]
unsafe fn copy_in<const N: usize>(frame: *const u8, words: &Words, at: usize) {
    let to = &words[1 + at..][..N];
    // SAFETY: by contract; atomics may be written by whoever may store.
    unsafe {
        let from = frame.add(8 * at);
        if BY_WORD {
            (0..N).for_each(|n| to[n].store(from.cast::<u64>().add(n).read_unaligned(), Ordering::Relaxed));
        } else {
            // Of all words: a pointer to the first one would not reach the others.
            core::ptr::copy_nonoverlapping(from, to.as_ptr().cast_mut().cast(), 8 * N);
        }
    }
}

/// Copies `N` words of a frame, from word `at` on, to their place in `frame`.
#[inline(always)]
fn copy_out<const N: usize>(words: &Words, at: usize, frame: &mut [u8]) {
    let (from, to) = (&words[1 + at..][..N], &mut frame[8 * at..][..8 * N]);
    if BY_WORD {
        let words = from.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        to.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word));
    } else {
        // SAFETY: as long as the words.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_mut_ptr(), 8 * N) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        [const { AtomicU64::new(0) }; FRAME_WORDS + 2]
    }

    fn show_frame(words: &Words, position: u64, frame: &[u8]) {
        let mut block = [0xee; LONE_MAX];
        block[..frame.len()].copy_from_slice(frame);
        // SAFETY: as long.
        unsafe { show(words, position, frame.len(), block.as_ptr()) }
    }

    fn found(words: &Words, tail: u64) -> Option<Vec<u8>> {
        let mut slot = Slot::new();
        find(words, tail, &mut slot).map(|len| {
            assert_eq!(slot.frame_len(), len);
            slot.head().to_vec()
        })
    }

    #[test]
    fn a_frame_is_found_by_its_position_and_no_other() {
        for len in 1..=LONE_MAX {
            let (words, position) = (words(), 8 * 1_000 + 8 * len as u64);
            let frame: Vec<u8> = (0..len).map(|at| 100 + at as u8).collect();
            assert_eq!(found(&words, 0), None);
            show_frame(&words, position, &frame);
            assert_eq!(found(&words, position), Some(frame));
            for other in [0, position - 8, position + 8, position + 16] {
                assert_eq!(found(&words, other), None);
            }
        }
    }

    #[test]
    fn half_a_frame_is_none() {
        for line in TAGS {
            let words = words();
            show_frame(&words, 64, &[7; 60]);
            words[line].store(0, Ordering::Relaxed);
            assert_eq!(found(&words, 64), None);
            words[line].store(tag(72, 60), Ordering::Relaxed);
            assert_eq!((found(&words, 64), found(&words, 72)), (None, None));
        }
    }

    #[test]
    fn a_tag_with_a_length_that_no_lone_frame_has_is_none() {
        for len in [0, LONE_MAX + 1, 127] {
            let words = words();
            TAGS.iter().for_each(|line| words[*line].store(tag(64, len), Ordering::Relaxed));
            assert_eq!(found(&words, 64), None, "{len}");
        }
    }
}
