//! A port's bucket table in shared memory: written by the port's own function, read by whoever sends to it.
//!
//! The table of the next epoch is written beside the present one, and named by the epoch word afterwards; so a reader
//! that was told of an epoch reads a table that nobody writes. What a reader finds is checked before it is used.

use std::sync::atomic::Ordering;

use crate::layout::{table_epoch, table_members, table_standing, table_word};
use crate::mapping::Mapping;
use crate::ring::Violation;
use crate::steering::{BUCKETS, BucketTable};

/// Puts a table where senders find it. The only writer of the segment calls this, and no sender may still be using the
/// table of the epoch before last.
pub(crate) fn write(segment: &Mapping, epoch: u64, table: &BucketTable) {
    put(segment, epoch, table);
    table_epoch(segment).store(epoch, Ordering::Release);
}

fn put(segment: &Mapping, epoch: u64, table: &BucketTable) {
    for (n, owners) in table.owners().chunks_exact(8).enumerate() {
        let word = owners.iter().rev().fold(0, |word, &owner| word << 8 | u64::from(owner));
        table_word(segment, epoch, n).store(word, Ordering::Relaxed);
    }
}

/// As [`write`], for a pool.
pub(crate) fn publish(segment: &Mapping, epoch: u64, table: &BucketTable) {
    put(segment, epoch, table);
    table_standing(segment).store(epoch, Ordering::Release);
    table_epoch(segment).store(epoch, Ordering::Release);
}

/// Lets senders use the table of a pool's new generation. Everybody who is to read what they send has it.
pub(crate) fn open(segment: &Mapping) {
    table_epoch(segment).store(table_standing(segment).load(Ordering::Relaxed), Ordering::Release);
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

/// Where a pool stands, as a broker leaves it to the next one in the table segment of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) epoch: u64,
    pub(crate) table: BucketTable,
    /// The table of the epoch before; the same one if there was none.
    pub(crate) before: BucketTable,
    /// Members that have the generation, a bit each.
    pub(crate) members: u64,
    /// The epoch that senders of this generation know of: `epoch`, the one before, or 0 if none may send yet.
    pub(crate) open: u64,
}

/// Epochs count changes: a larger one was never reached.
const EPOCH_MAX: u64 = 1 << 48;

impl Standing {
    /// Puts it into the segment of a new generation, which nobody has yet. Senders have to wait for [`open`].
    pub(crate) fn write(&self, segment: &Mapping) {
        put(segment, self.epoch.saturating_sub(1), &self.before);
        put(segment, self.epoch, &self.table);
        table_standing(segment).store(self.epoch, Ordering::Relaxed);
        table_members(segment).store(self.members, Ordering::Relaxed);
    }

    /// Finds it in a segment of a former broker, of a pool with `queues` queues. None if it cannot be.
    pub(crate) fn read(segment: &Mapping, queues: usize) -> Option<Self> {
        let open = epoch(segment);
        let epoch = table_standing(segment).load(Ordering::Acquire);
        let epoch = Some(epoch).filter(|epoch| (1..EPOCH_MAX).contains(epoch) && open <= *epoch)?;
        let table = read(segment, epoch, queues).ok()?;
        // Spoilt where the former broker died while it wrote the next one: then nobody asks for it.
        let before = read(segment, epoch - 1, queues).unwrap_or(table);
        Some(Self { epoch, table, before, members: table_members(segment).load(Ordering::Relaxed), open })
    }
}

/// A member that had the generation is gone.
pub(crate) fn forget_member(segment: &Mapping, member: usize) {
    table_members(segment).fetch_and(!(1 << member), Ordering::Relaxed);
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
    fn the_next_broker_finds_where_a_pool_stands() {
        let segment = Mapping::anonymous(TABLE_BYTES).unwrap();
        assert_eq!(Standing::read(&segment, 4), None, "there is no table yet");
        let before = BucketTable::fixed(4);
        let table = BucketTable::new([3; BUCKETS], 4).unwrap();
        let standing = Standing { epoch: 7, table, before, members: 0b1011, open: 0 };
        standing.write(&segment);
        assert_eq!((epoch(&segment), Standing::read(&segment, 4)), (0, Some(standing)), "nobody sends yet");
        open(&segment);
        assert_eq!((epoch(&segment), Standing::read(&segment, 4)), (7, Some(Standing { open: 7, ..standing })));
        forget_member(&segment, 1);
        publish(&segment, 8, &before);
        let next = Standing { epoch: 8, table: before, before: table, members: 0b1001, open: 8 };
        assert_eq!(Standing::read(&segment, 4), Some(next));
        assert_eq!(Standing::read(&segment, 3), None, "a pool of fewer queues");
        table_word(&segment, 9, 3).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(Standing::read(&segment, 4), Some(Standing { before, ..next }), "the next was being written");
        for nonsense in [0, EPOCH_MAX, u64::MAX] {
            table_standing(&segment).store(nonsense, Ordering::Relaxed);
            assert_eq!(Standing::read(&segment, 4), None);
        }
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
