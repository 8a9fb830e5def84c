//! A hash of addresses: one multiplication. Session managers and neighbours choose the keys, not users, so there is no
//! need for one that withstands chosen keys.

use std::hash::{BuildHasher, Hasher};

/// Makes the hasher.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix;

/// Hashes one number.
#[derive(Debug, Default)]
pub struct MixHasher(u64);

impl BuildHasher for Mix {
    type Hasher = MixHasher;

    #[inline]
    fn build_hasher(&self) -> MixHasher {
        MixHasher(0)
    }
}

impl Hasher for MixHasher {
    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // The high half of the product depends on all bits; tables use the lowest and the highest bits of a hash.
        let product = u128::from(self.0 ^ number ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn neighbouring_addresses_spread_over_low_and_high_bits() {
        for start in [0x0a2d_0000_u32, 0x6440_0000, 0] {
            let hashes: Vec<_> = (start..start + 4_096).map(|address| Mix.hash_one(address)).collect();
            let low: HashSet<_> = hashes.iter().map(|hash| hash % 4_096).collect();
            let high: HashSet<_> = hashes.iter().map(|hash| hash >> 57).collect();
            // At random it would be 63 %.
            assert!(low.len() > 2_300 && high.len() == 128, "{} {}", low.len(), high.len());
        }
    }
}
