//! Which worker owns which bucket, for all who are not on the way of packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::{BUCKETS, Bucket};

/// The owners. Clones are the same; whoever decides over them writes.
#[derive(Clone, Debug)]
pub struct Homes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    workers: usize,
    owners: [AtomicU8; BUCKETS],
}

impl Homes {
    /// So many workers own the buckets in turn.
    pub(super) fn new(workers: usize) -> Self {
        let owner = |bucket| AtomicU8::new(if workers == 0 { 0 } else { (bucket % workers) as u8 });
        Self(Arc::new(Shared { workers, owners: std::array::from_fn(owner) }))
    }

    /// The worker that owns the bucket, or will when all have been moved. None where there are no workers.
    pub fn owner(&self, bucket: Bucket) -> Option<usize> {
        let owner = self.0.owners[usize::from(bucket) % BUCKETS].load(Relaxed);
        (self.0.workers > 0).then_some(owner.into())
    }

    pub(crate) fn set(&self, owners: &[u8; BUCKETS]) {
        self.0.owners.iter().zip(owners).for_each(|(owner, &new)| owner.store(new, Relaxed));
    }
}
