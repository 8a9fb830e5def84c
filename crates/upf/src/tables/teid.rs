//! TEIDs of this UPF's own choice: an array index below, and above it a salt that makes the TEID steer to the wanted
//! bucket and differ from the last one at that index.

use std::collections::VecDeque;

use super::Bucket;

/// No TEID is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no TEID is left")]
pub struct TeidsExhausted;

/// Hands out TEIDs.
pub(super) struct TeidAllocator {
    bits: u32,
    /// The TEID last given out at each index; 0 for never.
    last: Vec<u32>,
    reserved: Vec<bool>,
    /// Free indices, longest free first.
    free: VecDeque<u32>,
}

impl TeidAllocator {
    /// Room for `capacity` TEIDs at a time.
    pub fn new(capacity: usize) -> Self {
        let bits = capacity.max(2).next_power_of_two().trailing_zeros();
        Self { bits, last: vec![0; capacity], reserved: vec![false; capacity], free: (0..capacity as u32).collect() }
    }

    pub fn reserve(&mut self, bucket: Bucket) -> Result<u32, TeidsExhausted> {
        let index = self.free.pop_front().ok_or(TeidsExhausted)?;
        let at = index as usize;
        let mut teid = self.last[at] & !self.mask() | index;
        loop {
            teid = teid.wrapping_add(1 << self.bits);
            if teid != 0 && bucket_of(teid) == bucket {
                break;
            }
        }
        self.last[at] = teid;
        self.reserved[at] = true;
        Ok(teid)
    }

    pub fn release(&mut self, teid: u32) {
        let at = (teid & self.mask()) as usize;
        if self.reserved.get(at) == Some(&true) && self.last[at] == teid {
            self.reserved[at] = false;
            self.free.push_back(at as u32);
        }
    }

    fn mask(&self) -> u32 {
        (1 << self.bits) - 1
    }
}

fn bucket_of(teid: u32) -> Bucket {
    (teid >> 24) as u8 & 127
}
