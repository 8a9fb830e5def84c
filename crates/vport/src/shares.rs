//! A burst's packets, owner by owner.

use crate::packet::BURST_MAX;

/// Packets of a burst that are looked at together: a byte each in one word.
const AT_ONCE: usize = 8;
/// Of each byte of a word the highest and the lowest bit.
const HIGHEST: u64 = u64::from_ne_bytes([0x80; AT_ONCE]);
const LOWEST: u64 = u64::from_ne_bytes([1; AT_ONCE]);
/// What moves the highest bit of each byte into the highest byte, that of the first byte lowest.
const GATHER: u64 = 0x0002_0408_1020_4081;

/// Who owns which packets of a burst: each owner once, by the first of its packets, and these as the bits of a word.
#[derive(Clone, Debug)]
pub struct Shares {
    owners: [u8; BURST_MAX],
    /// Packets whose owner is still to come, a bit each.
    left: u64,
}

impl Shares {
    /// Of packets with these owners, of whom there are at most 128; a bit for each of the packets.
    #[inline]
    pub(crate) fn new(owners: [u8; BURST_MAX], packets: u64) -> Self {
        Self { owners, left: packets }
    }
}

impl Iterator for Shares {
    type Item = (usize, u64);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, u64)> {
        let owner = *self.owners.get(self.left.trailing_zeros() as usize)?;
        let mut share = 0;
        for (at, owners) in self.owners.as_chunks().0.iter().enumerate() {
            share |= equal(u64::from_le_bytes(*owners), owner) << (at * AT_ONCE);
        }
        share &= self.left;
        self.left &= !share;
        Some((owner.into(), share))
    }
}

/// Which bytes of a word, all below 128, are this one: a bit each, from the lowest on.
#[inline(always)]
fn equal(word: u64, byte: u8) -> u64 {
    let differs = word ^ (u64::from(byte) * LOWEST);
    // The highest bit stays where nothing is taken away, and no byte takes from the next.
    let is_equal = (HIGHEST - differs) & HIGHEST;
    is_equal.wrapping_mul(GATHER) >> (u64::BITS as usize - AT_ONCE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::steering::BUCKETS;

    proptest! {
        #[test]
        fn every_packet_is_in_the_share_of_its_owner_and_every_owner_comes_once(
            owners in prop::collection::vec(prop_oneof![0..3_u8, 0..BUCKETS as u8], 0..=BURST_MAX),
        ) {
            let mut all = [0; BURST_MAX];
            all[..owners.len()].copy_from_slice(&owners);
            let mut found = vec![None; owners.len()];
            let mut seen = vec![];
            for (owner, share) in Shares::new(all, ((1_u128 << owners.len()) - 1) as u64) {
                prop_assert!(share != 0 && !seen.contains(&owner), "{owner} {share:x}");
                seen.push(owner);
                for at in (0..BURST_MAX).filter(|at| share >> at & 1 == 1) {
                    prop_assert_eq!(found[at].replace(owner), None);
                }
            }
            let owners: Vec<_> = owners.into_iter().map(|owner| Some(usize::from(owner))).collect();
            prop_assert_eq!(found, owners);
        }
    }
}
