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
    /// A descriptor names no frame that lies within a buffer.
    #[error("a descriptor names no frame")]
    BadDescriptor = 13,
    /// A sender sent a buffer that was not its own to send, or twice.
    #[error("a buffer was sent by an end that does not hold it")]
    ForeignBuffer = 14,
    /// A receiver returned a buffer twice, or one that it had not been sent.
    #[error("a buffer was returned twice, or by an end that does not hold it")]
    DoubleReturn = 15,
}

impl Violation {
    /// All rules, in order of their numbers.
    pub const ALL: [Self; 15] = [
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
        Self::BadDescriptor,
        Self::ForeignBuffer,
        Self::DoubleReturn,
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

    /// Up to where records lie one behind the other from `tail` on: the checked `head`, or the ring's end.
    #[inline(always)]
    pub const fn stretch(self, tail: u64, head: u64) -> u64 {
        let (published, to_end) = (head.wrapping_sub(tail), self.to_end(tail));
        tail.wrapping_add(if published < to_end { published } else { to_end })
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

    /// The smallest sizes: all that the arithmetic can meet shows there.
    const SMALL: [Ring; 4] =
        [Ring::new(16).unwrap(), Ring::new(32).unwrap(), Ring::new(64).unwrap(), Ring::new(128).unwrap()];

    /// Every aligned position of a lap: of the first, of a later one, and of the last before positions begin again.
    fn positions(ring: Ring) -> impl Iterator<Item = u64> {
        [0, 5 * ring.size(), 0_u64.wrapping_sub(ring.size())]
            .into_iter()
            .flat_map(move |lap| (0..ring.size()).step_by(8).map(move |at| lap.wrapping_add(at)))
    }

    /// Every header but those that differ only in how far they are from any lawful one.
    fn headers(ring: Ring) -> impl Iterator<Item = u64> {
        let around = |length: u64| length - 1..=length + 1;
        let lengths = (0..2 * ring.size() + 9)
            .chain(around(FRAME_MAX as u64))
            .chain(around(1 << 16))
            .chain(around(1 << 31))
            .chain([u64::from(u32::MAX) - 1, u64::from(u32::MAX)]);
        let kinds = (0..4_u64).chain((2..32).map(|bit| 1 << bit)).chain([u64::from(u32::MAX)]);
        lengths.flat_map(move |length| kinds.clone().map(move |kind| kind << 32 | length))
    }

    #[test]
    fn only_powers_of_two_are_sizes() {
        for size in 0..300 {
            assert_eq!(Ring::new(size).is_some(), size >= 16 && size.is_power_of_two());
        }
    }

    /// The specification in other words: what a record is, said by what a reader may do with it.
    fn lawful(ring: Ring, tail: u64, head: u64, header: u64) -> Option<Step> {
        let (kind, length) = (header >> 32, header & 0xffff_ffff);
        let (published, lap) = (head.wrapping_sub(tail), ring.size() - tail % ring.size());
        let padded = 8 + length.div_ceil(8) * 8;
        match kind {
            0 if (1..=9_600).contains(&length) && padded <= lap && padded <= published => {
                Some(Step::Frame { len: length as usize, next: tail.wrapping_add(padded) })
            }
            1 if length == lap && length <= published => Some(Step::Skip { next: tail.wrapping_add(length) }),
            _ => None,
        }
    }

    /// Every size, tail, head and header: `step` lets pass what is lawful and nothing else, and what passes stays within
    /// ring, lap and head, and goes forward.
    #[test]
    fn no_header_leads_a_reader_out_of_bounds() {
        for ring in SMALL {
            for tail in positions(ring) {
                for distance in (8..=ring.size()).step_by(8) {
                    let head = tail.wrapping_add(distance);
                    assert_eq!(ring.check_head(tail, head), Ok(()));
                    let stretch = ring.stretch(tail, head);
                    assert_eq!(stretch.wrapping_sub(tail), distance.min(ring.size() - tail % ring.size()));
                    for header in headers(ring) {
                        let found = ring.step(tail, head, header).ok();
                        assert_eq!(found, lawful(ring, tail, head, header), "{tail} {head} {header:#x}");
                        if let Some(step) = found {
                            check_step(ring, tail, head, step);
                        }
                    }
                }
            }
        }
    }

    fn check_step(ring: Ring, tail: u64, head: u64, step: Step) {
        let next = match step {
            Step::Frame { len, next } => {
                assert!((1..=FRAME_MAX).contains(&len));
                assert!(ring.offset(tail) as u64 + HEADER + len as u64 <= ring.size(), "within the lap");
                next
            }
            Step::Skip { next } => {
                assert_eq!(ring.offset(next), 0);
                next
            }
        };
        assert!(next.wrapping_sub(tail) > 0 && next.wrapping_sub(tail) <= head.wrapping_sub(tail));
        assert_eq!(next % 8, 0);
    }

    /// A refusal names the rule that was broken.
    #[test]
    fn every_refusal_names_its_rule() {
        let ring = SMALL[2];
        let cases = [
            (0, 64, 0, Violation::Empty),
            (0, 64, 9_601, Violation::TooLong),
            (0, 64, 57, Violation::BeyondEnd),
            (48, 112, 9, Violation::BeyondEnd),
            (0, 32, 25, Violation::BeyondHead),
            (16, 64, 1 << 32 | 40, Violation::BadSkip),
            (16, 32, 1 << 32 | 48, Violation::BeyondHead),
            (0, 64, 2 << 32 | 64, Violation::UnknownKind),
        ];
        for (tail, head, header, rule) in cases {
            assert_eq!(ring.step(tail, head, header), Err(rule), "{tail} {head} {header:#x}");
        }
    }

    /// Every tail and every head within four laps of it, aligned or not, before it or after.
    #[test]
    fn a_published_index_is_within_one_ring_or_refused() {
        for ring in SMALL {
            for tail in positions(ring) {
                for ahead in 0..8 * ring.size() {
                    let ahead = ahead.wrapping_sub(4 * ring.size());
                    let other = tail.wrapping_add(ahead);
                    let (aligned, near) = (ahead % 8 == 0, ahead <= ring.size());
                    let expect = |far| match (aligned, near) {
                        (false, _) => Err(Violation::Misaligned),
                        (true, false) => Err(far),
                        (true, true) => Ok(()),
                    };
                    assert_eq!(ring.check_head(tail, other), expect(Violation::HeadOutOfRange), "{tail} {other}");
                    // The same distance, seen by the writer: its head is where the tail was, and the tail lies behind.
                    let behind = tail.wrapping_sub(ahead);
                    assert_eq!(ring.check_tail(tail, behind), expect(Violation::TailOutOfRange), "{tail} {behind}");
                }
            }
        }
    }

    /// Every state of a ring and every length up to twice its size: a frame is placed exactly where the free bytes allow
    /// it, never over unread ones, and a reader that follows the headers gets to it.
    #[test]
    fn a_writer_never_overwrites_and_a_reader_follows_it() {
        for ring in SMALL {
            for head in positions(ring) {
                for used in (0..=ring.size()).step_by(8) {
                    for len in 1..=2 * ring.size() as usize {
                        check_place(ring, head, head.wrapping_sub(used), len);
                    }
                }
            }
        }
    }

    fn check_place(ring: Ring, head: u64, tail: u64, len: usize) {
        let bytes = record_bytes(len);
        assert!(bytes >= HEADER + len as u64 && bytes.is_multiple_of(8) && bytes < HEADER + len as u64 + 8);
        let skip = if bytes > ring.to_end(head) { ring.to_end(head) } else { 0 };
        let Some(place) = ring.place(head, tail, len) else {
            assert!(skip + bytes > ring.size() - head.wrapping_sub(tail), "refused though there was room");
            return;
        };
        assert_eq!(place, Place { at: head.wrapping_add(skip), next: head.wrapping_add(skip + bytes) });
        assert!(place.next.wrapping_sub(tail) <= ring.size(), "overwrites unread bytes");
        if skip > 0 {
            let skipped = ring.step(head, place.next, ring.skip_header(head));
            assert_eq!(skipped, Ok(Step::Skip { next: place.at }));
        }
        let found = ring.step(place.at, place.next, frame_header(len));
        assert_eq!(found, Ok(Step::Frame { len, next: place.next }));
    }

    /// Of the size that ports have by default, with every length that a frame can have, where rings end.
    #[test]
    fn frames_of_every_length_are_placed_at_the_end_of_a_real_ring() {
        let ring = Ring::new(1 << 20).unwrap();
        for len in 1..=FRAME_MAX {
            let bytes = record_bytes(len);
            for left in [8, bytes - 8, bytes, bytes + 8] {
                let head = 7 * ring.size() - left;
                check_place(ring, head, head, len);
                check_place(ring, head, head - (ring.size() - bytes), len);
            }
        }
    }

    #[test]
    fn codes_of_violations_round_trip() {
        for violation in Violation::ALL {
            assert_eq!(Violation::from_code(violation as u16), Some(violation));
        }
        assert_eq!(Violation::from_code(0), None);
    }
}
