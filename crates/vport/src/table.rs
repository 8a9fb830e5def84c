//! A port's bucket table in shared memory: written by the port's own function, read by whoever sends to it.
//!
//! The table of the next epoch is written beside the present one, and named by the epoch word afterwards; so a reader
//! that was told of an epoch reads a table that nobody writes. What a reader finds is checked before it is used.

use std::sync::atomic::Ordering;

use crate::layout::{table_epoch, table_word};
use crate::mapping::Mapping;
use crate::ring::Violation;
use crate::steering::{BUCKETS, BucketTable};

/// Puts a table where senders find it. The only writer of the segment calls this, and no sender may still be using the
/// table of the epoch before last.
pub(crate) fn write(segment: &Mapping, epoch: u64, table: &BucketTable) {
    for (n, owners) in table.owners().chunks_exact(8).enumerate() {
        let word = owners.iter().rev().fold(0, |word, &owner| word << 8 | u64::from(owner));
        table_word(segment, epoch, n).store(word, Ordering::Relaxed);
    }
    table_epoch(segment).store(epoch, Ordering::Release);
}

/// The epoch that senders are in, or are to begin; 0 before there is a table.
#[inline(always)]
pub(crate) fn epoch(segment: &Mapping) -> u64 {
    table_epoch(segment).load(Ordering::Acquire)
}

/// The table of `epoch`, of a port with `queues` queues.
pub(crate) fn read(segment: &Mapping, epoch: u64, queues: usize) -> Result<BucketTable, Violation> {
    let mut owners = [0; BUCKETS];
    for (n, eight) in owners.chunks_exact_mut(8).enumerate() {
        eight.copy_from_slice(&table_word(segment, epoch, n).load(Ordering::Relaxed).to_le_bytes());
    }
    BucketTable::new(owners, queues).ok_or(Violation::BadOwner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::TABLE_BYTES;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let segment = Mapping::anonymous(TABLE_BYTES).unwrap();
        assert_eq!(epoch(&segment), 0);
        let first = BucketTable::fixed(7);
        let second = BucketTable::new(core::array::from_fn(|bucket| bucket as u8 / 8), 16).unwrap();
        write(&segment, 1, &first);
        write(&segment, 2, &second);
        assert_eq!(epoch(&segment), 2);
        assert_eq!(read(&segment, 2, 16), Ok(second));
        assert_eq!(read(&segment, 1, 7), Ok(first), "it stays until the epoch after the next");
    }

    #[test]
    fn bucket_b_lies_at_byte_b() {
        let segment = Mapping::anonymous(TABLE_BYTES).unwrap();
        write(&segment, 3, &BucketTable::new(core::array::from_fn(|bucket| bucket as u8), BUCKETS).unwrap());
        assert_eq!(segment.word(256).load(Ordering::Relaxed).to_le_bytes(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn an_owner_that_does_not_exist_is_a_violation() {
        let segment = Mapping::anonymous(TABLE_BYTES).unwrap();
        write(&segment, 1, &BucketTable::fixed(8));
        assert_eq!(read(&segment, 1, 7), Err(Violation::BadOwner));
        table_word(&segment, 1, 15).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(read(&segment, 1, 16), Err(Violation::BadOwner));
    }
}
