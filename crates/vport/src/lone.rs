//! A lone frame, once more beside its head: who waits for a single packet finds it in the lines that it looks at anyway, and
//! need not fetch its record.
//!
//! The frame lies in the ring as any other; what stands here is for readers that are quick. It is in two halves, one in each
//! cache line of the head's place, each behind a tag that says of which record it is. A writer takes a half's tag away before
//! it writes there and sets it afterwards; a reader takes the halves only if both tags are the same before and after. Whoever
//! never writes here leaves the tags 0, and whoever never looks loses nothing but time.

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::ring::record_bytes;
use crate::sync::AtomicU64;

/// Longest frame in bytes.
pub(crate) const LONE_MAX: usize = 72;
/// Words of both halves.
pub(crate) const LONE_WORDS: usize = 11;
/// Words of the longest frame.
pub(crate) const FRAME_WORDS: usize = LONE_MAX / 8;

/// The place beside a head.
pub(crate) type Words = [AtomicU64; LONE_WORDS];

/// Where the halves' tags are, and of which words of the frame what follows them is.
const HALVES: [(usize, Range<usize>); 2] = [(0, 0..2), (3, 2..FRAME_WORDS)];

/// Bits of a tag that are the frame's length. Positions are multiples of 8: they lose their four highest bits.
const LEN_BITS: u32 = 7;

/// What stands before the halves of a frame of `len` bytes whose record is at `position`. Never 0.
const fn tag(position: u64, len: usize) -> u64 {
    position << (LEN_BITS - 3) | len as u64
}

/// Where the word of a frame lies.
const fn place(word: usize) -> usize {
    let (first, second) = (&HALVES[0], &HALVES[1]);
    if word < first.1.end { first.0 + 1 + word } else { second.0 + 1 + word - second.1.start }
}

/// Puts a frame of `len` bytes there, whose record is at `position`. The head comes afterwards.
#[inline(always)]
pub(crate) fn show(words: &Words, position: u64, len: usize, word: impl Fn(usize) -> u64) {
    let (tag, used) = (tag(position, len), len.div_ceil(8));
    // Backwards, so that what comes with the head is written next to it.
    for (at, of_frame) in HALVES.iter().rev() {
        words[*at].store(0, Ordering::Relaxed);
        for n in of_frame.start..of_frame.end.min(used) {
            // Whoever sees the word sees that the tag was gone.
            words[place(n)].store(word(n), Ordering::Release);
        }
        words[*at].store(tag, Ordering::Release);
    }
}

/// The frame whose record begins at `tail`, if it is there: its length, and its words, of which the last may run over its end.
#[inline(always)]
pub(crate) fn find(words: &Words, tail: u64) -> Option<(usize, [u64; FRAME_WORDS])> {
    let found = words[HALVES[0].0].load(Ordering::Acquire);
    let len = (found % (1 << LEN_BITS)) as usize;
    if found != tag(tail, len) || !(1..=LONE_MAX).contains(&len) {
        return None;
    }
    let stands = |order| HALVES.iter().all(|(at, _)| words[*at].load(order) == found);
    if !stands(Ordering::Acquire) {
        return None;
    }
    let frame = core::array::from_fn(|n| words[place(n)].load(Ordering::Acquire));
    stands(Ordering::Relaxed).then_some((len, frame))
}

/// Bytes of the longest record that can be here.
pub(crate) const RECORD_MAX: u64 = record_bytes(LONE_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        [const { AtomicU64::new(0) }; LONE_WORDS]
    }

    #[test]
    fn a_frame_is_found_by_its_position_and_no_other() {
        for len in 1..=LONE_MAX {
            let (words, position) = (words(), 8 * 1_000 + 8 * len as u64);
            assert_eq!(find(&words, 0), None);
            show(&words, position, len, |n| 100 + n as u64);
            let (found, frame) = find(&words, position).unwrap();
            assert_eq!(found, len);
            let used = len.div_ceil(8);
            assert!(frame[..used].iter().enumerate().all(|(n, word)| *word == 100 + n as u64));
            for other in [0, position - 8, position + 8, position + 16] {
                assert_eq!(find(&words, other), None);
            }
        }
    }

    #[test]
    fn half_a_frame_is_none() {
        for half in 0..HALVES.len() {
            let words = words();
            show(&words, 64, 60, |n| n as u64);
            words[HALVES[half].0].store(0, Ordering::Relaxed);
            assert_eq!(find(&words, 64), None);
            words[HALVES[half].0].store(tag(72, 60), Ordering::Relaxed);
            assert_eq!((find(&words, 64), find(&words, 72)), (None, None));
        }
    }

    #[test]
    fn a_tag_with_a_length_that_no_lone_frame_has_is_none() {
        for len in [0, LONE_MAX + 1, 127] {
            let words = words();
            HALVES.iter().for_each(|(at, _)| words[*at].store(tag(64, len), Ordering::Relaxed));
            assert_eq!(find(&words, 64), None, "{len}");
        }
    }

    #[test]
    fn all_words_have_places_of_their_own() {
        let mut places: Vec<usize> = (0..FRAME_WORDS).map(place).chain(HALVES.iter().map(|(at, _)| *at)).collect();
        places.sort_unstable();
        assert_eq!(places, (0..LONE_WORDS).collect::<Vec<_>>());
    }
}
