//! To which worker the dispatcher hands the packets of each bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use port::steering::BucketTable;

use crate::tables::BUCKETS;

/// The chart. Whoever decides writes it; it is not changed before all have taken it up.
#[derive(Clone, Debug)]
pub(crate) struct Chart(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    epoch: AtomicU64,
    owners: [AtomicU8; BUCKETS],
}

impl Chart {
    pub(crate) fn new(owners: &[u8; BUCKETS]) -> Self {
        Self(Arc::new(Shared { epoch: AtomicU64::new(0), owners: owners.map(AtomicU8::new) }))
    }

    /// These are the owners of an epoch.
    pub(crate) fn publish(&self, epoch: u64, owners: &[u8; BUCKETS]) {
        self.0.owners.iter().zip(owners).for_each(|(owner, &new)| owner.store(new, Ordering::Relaxed));
        self.0.epoch.store(epoch, Ordering::Release);
    }

    /// The epoch that has begun last.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Acquire)
    }

    /// Its owners.
    pub(crate) fn table(&self) -> BucketTable {
        BucketTable::new(self.0.owners.each_ref().map(|owner| owner.load(Ordering::Relaxed)), BUCKETS)
            .expect("an owner is one of at most as many workers as there are buckets")
    }
}
