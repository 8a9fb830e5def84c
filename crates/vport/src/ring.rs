//! Arithmetic of the byte ring in which one side writes records and the other reads them. Pure and safe: positions in,
//! positions or violations out; memory is touched elsewhere.
//!
//! Positions count bytes since the ring began and never wrap in practice (64 bits). A record is an 8-byte header and the
//! frame, padded to 8 bytes, and never runs over the ring's end: where one does not fit there, a *skip* record fills up
//! the lap. The header's low half is a length, its high half the kind:
//!
//! | kind | length                                                             |
//! |------|--------------------------------------------------------------------|
//! | 0    | frame: its bytes, 1 to [`FRAME_MAX`]                               |
//! | 1    | skip: bytes of this record with its header, exactly to the ring's end |

use crate::packet::FRAME_MAX;

/// Bytes of a record header, and the alignment of every record.
pub const HEADER: u64 = 8;
const KIND_SKIP: u64 = 1 << 32;

/// The rule that a peer broke. What is found after one cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u16)]
pub enum Violation {
    /// The writer's head is before the reader's tail, or more than a ring after it.
    #[error("the head is not within one ring of the tail")]
    HeadOutOfRange = 1,
    /// A position is no multiple of 8.
    #[error("a position is misaligned")]
    Misaligned = 2,
    /// A frame of no bytes.
    #[error("a record has no bytes")]
    Empty = 3,
    /// A frame over the longest.
    #[error("a record is longer than any frame")]
    TooLong = 4,
    /// A record runs past the published head.
    #[error("a record runs past the head")]
    BeyondHead = 5,
    /// A record runs over the ring's end.
    #[error("a record runs over the ring's end")]
    BeyondEnd = 6,
    /// A skip record that does not lead to the ring's end.
    #[error("a skip record does not lead to the ring's end")]
    BadSkip = 7,
    /// A header of a kind that does not exist.
    #[error("a record is of an unknown kind")]
    UnknownKind = 8,
    /// The reader's tail is after the writer's head, or more than a ring before it.
    #[error("the tail is not within one ring of the head")]
    TailOutOfRange = 9,
    /// A bucket is given to a queue that the port does not have.
    #[error("a bucket belongs to a queue that does not exist")]
    BadOwner = 10,
    /// A sender says that it began an epoch behind its head.
    #[error("an epoch begins behind the head")]
    BadMark = 11,
    /// A sender has not ended its burst for too long while a bucket waits for it.
    #[error("a burst does not end")]
    EndlessBurst = 12,
}

impl Violation {
    /// All rules, in order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::HeadOutOfRange,
        Self::Misaligned,
        Self::Empty,
        Self::TooLong,
        Self::BeyondHead,
        Self::BeyondEnd,
        Self::BadSkip,
        Self::UnknownKind,
        Self::TailOutOfRange,
        Self::BadOwner,
        Self::BadMark,
        Self::EndlessBurst,
    ];

    /// The rule with this number.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|violation| *violation as u16 == code)
    }
}

/// What a reader found at its tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A frame of `len` bytes; its bytes begin [`HEADER`] after the tail.
    Frame {
        /// Length in bytes.
        len: usize,
        /// Where the next record begins.
        next: u64,
    },
    /// Nothing until `next`.
    Skip {
        /// Where the next record begins.
        next: u64,
    },
}

/// Where a writer puts a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position of the record. Where it is not the head, a skip record at the head leads to it.
    pub at: u64,
    /// The head after it.
    pub next: u64,
}

/// A ring's size: a power of two, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    mask: u64,
}

impl Ring {
    /// None unless `size` is a power of two of at least 16.
    pub const fn new(size: u64) -> Option<Self> {
        if size.is_power_of_two() && size >= 16 { Some(Self { mask: size - 1 }) } else { None }
    }

    /// Size in bytes.
    #[inline(always)]
    pub const fn size(self) -> u64 {
        self.mask + 1
    }

    /// Offset of a position from the ring's start. Always less than the size.
    #[inline(always)]
    pub const fn offset(self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    /// Bytes from a position to the ring's end. At least 8 for aligned positions.
    #[inline(always)]
    pub const fn to_end(self, position: u64) -> u64 {
        self.size() - (position & self.mask)
    }

    /// Checks a head that a peer published against the reader's own tail.
    #[inline(always)]
    pub const fn check_head(self, tail: u64, head: u64) -> Result<(), Violation> {
        if !head.is_multiple_of(HEADER) {
            Err(Violation::Misaligned)
        } else if head.wrapping_sub(tail) > self.size() {
            Err(Violation::HeadOutOfRange)
        } else {
            Ok(())
        }
    }

    /// Checks a tail that a peer published against the writer's own head.
    #[inline(always)]
    pub const fn check_tail(self, head: u64, tail: u64) -> Result<(), Violation> {
        if !tail.is_multiple_of(HEADER) {
            Err(Violation::Misaligned)
        } else if head.wrapping_sub(tail) > self.size() {
            Err(Violation::TailOutOfRange)
        } else {
            Ok(())
        }
    }

    /// Interprets the header found at `tail`, which a checked `head` is after.
    #[inline(always)]
    pub const fn step(self, tail: u64, head: u64, header: u64) -> Result<Step, Violation> {
        // One comparison for the common case: kind 0, not empty, not too long.
        if header.wrapping_sub(1) < FRAME_MAX as u64 {
            let bytes = record_bytes(header as usize);
            if bytes > self.to_end(tail) {
                Err(Violation::BeyondEnd)
            } else if bytes > head.wrapping_sub(tail) {
                Err(Violation::BeyondHead)
            } else {
                Ok(Step::Frame { len: header as usize, next: tail.wrapping_add(bytes) })
            }
        } else {
            self.uncommon_step(tail, head, header)
        }
    }

    #[cold]
    const fn uncommon_step(self, tail: u64, head: u64, header: u64) -> Result<Step, Violation> {
        let (kind, bytes) = (header >> 32 << 32, header & 0xffff_ffff);
        match kind {
            0 if bytes == 0 => Err(Violation::Empty),
            0 => Err(Violation::TooLong),
            KIND_SKIP if bytes != self.to_end(tail) => Err(Violation::BadSkip),
            KIND_SKIP if bytes > head.wrapping_sub(tail) => Err(Violation::BeyondHead),
            KIND_SKIP => Ok(Step::Skip { next: tail.wrapping_add(bytes) }),
            _ => Err(Violation::UnknownKind),
        }
    }

    /// Finds room for a frame of `len` bytes, or None while the reader has not freed enough.
    #[inline(always)]
    pub const fn place(self, head: u64, tail: u64, len: usize) -> Option<Place> {
        let bytes = record_bytes(len);
        let skip = if bytes > self.to_end(head) { self.to_end(head) } else { 0 };
        if skip + bytes > self.size() - head.wrapping_sub(tail) {
            return None;
        }
        let at = head.wrapping_add(skip);
        Some(Place { at, next: at.wrapping_add(bytes) })
    }

    /// Header of the skip record that fills the lap from `head`.
    #[inline(always)]
    pub const fn skip_header(self, head: u64) -> u64 {
        KIND_SKIP | self.to_end(head)
    }

    /// How many bytes a writer may have written without publishing them. An observer that finds less than three quarters
    /// of a ring between a record and the head knows that the record was whole when it copied it.
    #[inline(always)]
    pub const fn unpublished_max(self) -> u64 {
        self.size() / 4
    }
}

/// Header of a frame.
#[inline(always)]
pub const fn frame_header(len: usize) -> u64 {
    len as u64
}

/// Bytes of a frame's record: header, frame, padding.
#[inline(always)]
pub const fn record_bytes(len: usize) -> u64 {
    HEADER + ((len as u64 + (HEADER - 1)) & !(HEADER - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Ring = Ring::new(64).unwrap();

    #[test]
    fn only_powers_of_two_are_sizes() {
        for size in 0..300 {
            assert_eq!(Ring::new(size).is_some(), size >= 16 && size.is_power_of_two());
        }
    }

    /// Every tail of a lap, every head, every header that could matter: what `step` lets pass stays within the ring, the
    /// lap and the head, and goes forward.
    #[test]
    fn no_header_leads_a_reader_out_of_bounds() {
        for lap in [0, 640, u64::MAX - 63] {
            for tail in (0..64).step_by(8).map(|tail| tail + lap) {
                for distance in (8..=64).step_by(8) {
                    let head = tail.wrapping_add(distance);
                    assert_eq!(SMALL.check_head(tail, head), Ok(()));
                    for kind in 0..3_u64 {
                        for length in (0..200).chain([9_599, 9_600, 9_601, u64::from(u32::MAX)]) {
                            check_step(tail, head, kind << 32 | length);
                        }
                    }
                }
            }
        }
    }

    fn check_step(tail: u64, head: u64, header: u64) {
        match SMALL.step(tail, head, header) {
            Ok(Step::Frame { len, next }) => {
                assert!((1..=FRAME_MAX).contains(&len));
                assert!(SMALL.offset(tail) + HEADER as usize + len <= 64, "within the lap");
                assert_within(tail, head, next);
            }
            Ok(Step::Skip { next }) => {
                assert_eq!(SMALL.offset(next), 0);
                assert_within(tail, head, next);
            }
            Err(_) => {}
        }
    }

    fn assert_within(tail: u64, head: u64, next: u64) {
        assert!(next.wrapping_sub(tail) > 0 && next.wrapping_sub(tail) <= head.wrapping_sub(tail));
        assert_eq!(next % 8, 0);
    }

    #[test]
    fn a_published_index_is_within_one_ring_or_refused() {
        for tail in (0..128_u64).step_by(8) {
            for head in 0..512_u64 {
                let lawful = head % 8 == 0 && head >= tail && head - tail <= 64;
                assert_eq!(SMALL.check_head(tail, head).is_ok(), lawful, "{tail} {head}");
                assert_eq!(SMALL.check_tail(head, tail).is_ok(), head >= tail && head - tail <= 64);
            }
        }
    }

    /// Every state of a small ring: a frame is placed exactly where the free bytes allow it, never over unread ones, and a
    /// reader that follows the headers gets to it.
    #[test]
    fn a_writer_never_overwrites_and_a_reader_follows_it() {
        for head in (0..64_u64).step_by(8).map(|head| head + 640) {
            for used in (0..=64).step_by(8) {
                let tail = head - used;
                for len in 1..=56 {
                    check_place(head, tail, len);
                }
            }
        }
    }

    fn check_place(head: u64, tail: u64, len: usize) {
        let bytes = record_bytes(len);
        let skip = if bytes > SMALL.to_end(head) { SMALL.to_end(head) } else { 0 };
        let Some(place) = SMALL.place(head, tail, len) else {
            assert!(skip + bytes > 64 - (head - tail), "refused though there was room");
            return;
        };
        assert_eq!(place, Place { at: head + skip, next: head + skip + bytes });
        assert!(place.next - tail <= 64, "overwrites unread bytes");
        if skip > 0 {
            let skipped = SMALL.step(head, place.next, SMALL.skip_header(head));
            assert_eq!(skipped, Ok(Step::Skip { next: place.at }));
        }
        let found = SMALL.step(place.at, place.next, frame_header(len));
        assert_eq!(found, Ok(Step::Frame { len, next: place.next }));
    }

    #[test]
    fn codes_of_violations_round_trip() {
        for violation in Violation::ALL {
            assert_eq!(Violation::from_code(violation as u16), Some(violation));
        }
        assert_eq!(Violation::from_code(0), None);
    }
}
