//! TEIDs of this UPF's own choice: an array index below, and above it a salt that makes the TEID steer to the wanted
//! bucket and differ from the last one at that index.

use std::collections::VecDeque;

use vport::steering::teid_bucket;

use super::Bucket;

/// No TEID is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no TEID is left")]
pub struct TeidsExhausted;

/// Hands out TEIDs.
pub(super) struct TeidAllocator {
    bits: u32,
    /// The TEID last given out at each index that ever was; 0 for one that was not.
    last: Vec<u32>,
    reserved: Vec<bool>,
    /// Indices given back, longest free first.
    free: VecDeque<u32>,
}

impl TeidAllocator {
    /// Room for `capacity` TEIDs at a time, a power of two.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two());
        Self { bits: capacity.trailing_zeros(), last: vec![], reserved: vec![], free: VecDeque::new() }
    }

    /// Reserves a TEID in `bucket` that is not `taken` by other means.
    pub fn reserve(&mut self, bucket: Bucket, taken: impl Fn(u32) -> bool) -> Result<u32, TeidsExhausted> {
        let index = self.index().ok_or(TeidsExhausted)?;
        let at = index as usize;
        let salts = u32::MAX >> self.bits;
        let last = self.last[at] >> self.bits;
        // The next salts in turn, so that a TEID that was given back stays unused for as long as possible.
        let teids = (1..=salts).map(|step| (last.wrapping_add(step) & salts) << self.bits | index);
        let found = teids.into_iter().find(|&teid| teid != 0 && teid_bucket(teid) == bucket && !taken(teid));
        let Some(teid) = found else {
            self.free.push_back(index);
            return Err(TeidsExhausted);
        };
        self.last[at] = teid;
        self.reserved[at] = true;
        Ok(teid)
    }

    pub fn release(&mut self, teid: u32) {
        if self.holds(teid) {
            let index = self.mask() & teid;
            self.reserved[index as usize] = false;
            self.free.push_back(index);
        }
    }

    /// Whether the TEID is reserved here.
    pub fn holds(&self, teid: u32) -> bool {
        let at = (teid & self.mask()) as usize;
        self.reserved.get(at) == Some(&true) && self.last[at] == teid
    }

    /// Goes on where another one was that last `gave` out these, of which some are `held`. False if they do not fit: then
    /// it is as if none had been given out.
    pub fn claim(&mut self, gave: &[u32], held: &[u32]) -> bool {
        (self.last, self.reserved, self.free) = (vec![], vec![], VecDeque::new());
        let end = gave.iter().chain(held).map(|&teid| self.slot(teid) as usize + 1).max().unwrap_or(0);
        (self.last, self.reserved) = (vec![0; end], vec![false; end]);
        for &teid in gave {
            let at = self.slot(teid) as usize;
            self.last[at] = teid;
        }
        for &teid in held {
            let at = self.slot(teid) as usize;
            if teid == 0 || std::mem::replace(&mut self.reserved[at], true) {
                (self.last, self.reserved) = (vec![], vec![]);
                return false;
            }
            self.last[at] = teid;
        }
        self.free = (0..end as u32).filter(|&index| !self.reserved[index as usize]).collect();
        true
    }

    /// The TEID last given out at each index that ever was.
    pub fn given(&self) -> impl Iterator<Item = u32> {
        self.last.iter().copied().filter(|&teid| teid != 0)
    }

    /// The index of a TEID.
    pub fn slot(&self, teid: u32) -> u32 {
        teid & self.mask()
    }

    /// An index that was never used, or else the one that is free for longest.
    fn index(&mut self) -> Option<u32> {
        if self.last.len() > self.mask() as usize {
            return self.free.pop_front();
        }
        self.last.push(0);
        self.reserved.push(false);
        Some(self.last.len() as u32 - 1)
    }

    fn mask(&self) -> u32 {
        (1 << self.bits) - 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::BUCKETS;
    use super::*;

    #[test]
    fn every_bucket_can_be_reached_from_every_index_at_every_size() {
        for bits in [1, 8, 18, 21] {
            for index in [0, 1, (1 << bits) - 1] {
                let salts = 0..=u32::MAX >> bits;
                let buckets: HashSet<_> = salts
                    .map(|salt| salt << bits | index)
                    .filter(|&teid| teid != 0)
                    .take(1 << 16)
                    .map(teid_bucket)
                    .collect();
                assert_eq!(buckets.len(), BUCKETS, "{bits} bits, index {index}");
            }
        }
    }

    #[test]
    fn reserved_teids_differ_and_steer_to_their_bucket() {
        let mut teids = TeidAllocator::new(1 << 10);
        let mut seen = HashSet::new();
        for i in 0..1 << 10 {
            let bucket = (i % BUCKETS) as Bucket;
            let teid = teids.reserve(bucket, |_| false).unwrap();
            assert!(teid != 0 && teid_bucket(teid) == bucket && seen.insert(teid) && teids.holds(teid));
        }
        assert_eq!(teids.reserve(0, |_| false), Err(TeidsExhausted));
    }

    #[test]
    fn a_released_teid_is_not_the_next_one_at_its_index() {
        let mut teids = TeidAllocator::new(2);
        let (a, b) = (teids.reserve(5, |_| false).unwrap(), teids.reserve(5, |_| false).unwrap());
        teids.release(a);
        teids.release(a);
        assert!(!teids.holds(a) && teids.holds(b));
        let again = teids.reserve(5, |_| false).unwrap();
        assert_ne!(again, a);
        assert_eq!(again & 1, a & 1);
        assert_eq!(teids.reserve(5, |_| false), Err(TeidsExhausted));
    }

    #[test]
    fn another_process_gives_out_neither_what_is_in_use_nor_what_just_was() {
        let mut before = TeidAllocator::new(4);
        let all: Vec<_> = (0..3).map(|_| before.reserve(5, |_| false).unwrap()).collect();
        before.release(all[1]);
        let given: Vec<_> = before.given().collect();
        let mut after = TeidAllocator::new(4);
        assert!(after.claim(&given, &[all[0], all[2]]));
        assert!(after.holds(all[0]) && !after.holds(all[1]) && after.holds(all[2]));
        let next: Vec<_> = (0..2).map(|_| after.reserve(5, |_| false).unwrap()).collect();
        assert!(next.iter().all(|teid| !all.contains(teid)), "{next:x?} after {all:x?}");
        assert_eq!(after.reserve(5, |_| false), Err(TeidsExhausted));
        assert!(!after.claim(&[], &[all[0], all[0] + 4]), "two at one index");
        assert!(after.given().next().is_none() && !after.holds(all[0]));
    }

    #[test]
    fn teids_taken_by_the_smf_are_left_out() {
        let mut teids = TeidAllocator::new(2);
        let first = teids.reserve(5, |_| false).unwrap();
        let mut fresh = TeidAllocator::new(2);
        assert_ne!(fresh.reserve(5, |teid| teid == first).unwrap(), first);
    }
}
