//! Whose the frames of a burst are, found for all together, where the processor has instructions for it.

use super::{BucketTable, Octets, Steering};
use crate::packet::BURST_MAX;

/// What is found of each frame of a burst. Behind the last it means nothing.
pub(crate) struct Steered {
    pub(crate) buckets: [u8; BURST_MAX],
    /// Whose these are.
    pub(crate) owners: [u8; BURST_MAX],
}

impl Steering {
    /// Finds the owners of up to [`BURST_MAX`] frames, of each of which the length is given and what it looks like. Where they are not all
    /// as most are, `by_itself` finds the bucket of one, by its number. None, and nothing done, where that is all that this processor
    /// can do, or frames have longer keys.
    #[inline(always)]
    pub(crate) fn steer<F: Octets>(
        self,
        table: &BucketTable,
        frames: impl ExactSizeIterator<Item = (usize, F)>,
        by_itself: impl Fn(usize) -> u8,
    ) -> Option<Steered> {
        #[cfg(target_arch = "x86_64")]
        if let Some(usual) = together::Usual::of(self).filter(|_| together::is_possible()) {
            // SAFETY: the processor has the instructions.
            return Some(unsafe { together::steer(usual, table, frames, by_itself) });
        }
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod together {
    use core::arch::x86_64::{
        __m256i, __m512i, _mm_xor_si128, _mm256_and_si256, _mm256_castsi256_si128, _mm256_extracti128_si256,
        _mm256_loadu_si256, _mm256_or_si256, _mm256_set_m128i, _mm256_setzero_si256, _mm256_testz_si256,
        _mm256_xor_si256, _mm512_castsi256_si512, _mm512_castsi512_si256, _mm512_extracti64x4_epi64,
        _mm512_gf2p8affine_epi64_epi8, _mm512_inserti64x4, _mm512_loadu_si512, _mm512_permutex2var_epi8,
        _mm512_permutexvar_epi8, _mm512_storeu_si512,
    };
    use std::arch::is_x86_feature_detected as has;

    use super::super::{
        ADDRESS_AT, BUCKETS, BucketTable, ETHERTYPE_AT, GPDU, IPV4, Like, Octets, Steering, TEID_AT, contribution,
    };
    use super::Steered;
    use crate::packet::BURST_MAX;
    use crate::registers::Registers;

    /// What usual frames are like that have a key of so many octets.
    pub(super) struct Usual {
        /// From the ethertype on.
        octets: [u8; LOOKED_AT],
        /// Which bits of them count.
        mask: [u8; LOOKED_AT],
        key_at: usize,
        /// How many octets of a frame are read.
        reach: usize,
    }

    /// Octets that fill half a register.
    const LOOKED_AT: usize = 32;
    const KEY_OCTETS: usize = 4;

    impl Usual {
        /// None where keys are longer.
        #[inline(always)]
        pub(super) fn of(steering: Steering) -> Option<&'static Self> {
            match steering {
                Steering::Teid => Some(const { &Self::new(&GPDU, TEID_AT) }),
                Steering::UeAddress => Some(const { &Self::new(&IPV4, ADDRESS_AT) }),
                Steering::None | Steering::FiveTuple => None,
            }
        }

        const fn new<const COUNT: usize>(like: &Like<COUNT>, key_at: usize) -> Self {
            let (mut octets, mut mask, mut at) = ([0; LOOKED_AT], [0; LOOKED_AT], 0);
            while at < COUNT {
                (octets[at], mask[at]) = (like.usual[at], like.mask[at]);
                at += 1;
            }
            let (looked_at, key) = (ETHERTYPE_AT + LOOKED_AT, key_at + KEY_OCTETS);
            Self { octets, mask, key_at, reach: if key > looked_at { key } else { looked_at } }
        }
    }

    /// Keys that fill a register.
    const BLOCK: usize = 16;
    /// Of the keys in a register first all first octets, then all second ones, and so on.
    const BY_OCTET: [u8; BLOCK * KEY_OCTETS] = {
        let (mut order, mut at) = ([0; BLOCK * KEY_OCTETS], 0);
        while at < order.len() {
            order[at] = (at % BLOCK * KEY_OCTETS + at / BLOCK) as u8;
            at += 1;
        }
        order
    };

    /// What octets add to a bucket is a product: for those of each position, of eight keys and of eight more, the matrix, as
    /// `gf2p8affineqb` wants it. Its rows, of which each finds a bit of the bucket, stand from the highest bit's on.
    const MATRICES: [[u8; 8]; 2 * KEY_OCTETS] = {
        let (mut matrices, mut at) = ([[0; 8]; 2 * KEY_OCTETS], 0);
        while at < matrices.len() * 64 {
            let (matrix, row, column) = (at / 64, at / 8 % 8, at % 8);
            let added = contribution(matrix / 2, 1 << column) as usize % BUCKETS;
            matrices[matrix][7 - row] |= ((added >> row & 1) << column) as u8;
            at += 1;
        }
        matrices
    };

    /// Whether this processor has all instructions that are wanted here, and nobody checks each access.
    #[inline(always)]
    pub(super) fn is_possible() -> bool {
        let is_checked = cfg!(any(tsan, all(test, loom)));
        !is_checked && has!("gfni") && has!("avx512vbmi") && Registers::here() == Registers::Bytes64
    }

    /// As [`super::Steering::steer`].
    ///
    /// # Safety
    /// [`is_possible`] must have said that it is.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512vbmi,gfni,bmi1,bmi2,popcnt")]
    pub(super) unsafe fn steer<F: Octets>(
        usual: &Usual,
        table: &BucketTable,
        frames: impl ExactSizeIterator<Item = (usize, F)>,
        by_itself: impl Fn(usize) -> u8,
    ) -> Steered {
        let mut keys = [[0; KEY_OCTETS]; BURST_MAX];
        let mut unusual = keys_of(frames, usual, &mut keys);
        let mut buckets = buckets_of(&keys);
        if unusual != 0 {
            let mut all = stored(buckets);
            while unusual != 0 {
                let at = unusual.trailing_zeros() as usize;
                all[at] = by_itself(at);
                unusual &= unusual - 1;
            }
            buckets = loaded(&all);
        }
        let [low, high] = [0, 1].map(|half| loaded(&table.owners().as_chunks().0[half]));
        Steered { buckets: stored(buckets), owners: stored(_mm512_permutex2var_epi8(low, buckets, high)) }
    }

    /// Reads the keys of frames as if all were usual that are long enough. Bits of those that may not be: of all where one is not.
    #[target_feature(enable = "avx512f,avx512vl")]
    #[inline]
    fn keys_of<F: Octets>(
        frames: impl ExactSizeIterator<Item = (usize, F)>,
        usual: &Usual,
        keys: &mut [[u8; KEY_OCTETS]; BURST_MAX],
    ) -> u64 {
        let (octets, mask) = (half(&usual.octets), half(&usual.mask));
        let all = ((1_u128 << frames.len()) - 1) as u64;
        let (mut short, mut differs) = (0, _mm256_setzero_si256());
        for (at, (key, (len, frame))) in keys.iter_mut().zip(frames).enumerate() {
            if len < usual.reach {
                short |= 1 << at;
                continue;
            }
            let found = half(&frame.octets(ETHERTYPE_AT));
            differs = _mm256_or_si256(differs, _mm256_and_si256(_mm256_xor_si256(found, octets), mask));
            *key = frame.octets(usual.key_at);
        }
        if _mm256_testz_si256(differs, differs) == 1 { short } else { all }
    }

    /// The buckets of keys, an octet each.
    #[target_feature(enable = "avx512f,avx512vbmi,gfni")]
    #[inline]
    fn buckets_of(keys: &[[u8; KEY_OCTETS]; BURST_MAX]) -> __m512i {
        let (order, matrices) =
            (loaded(&BY_OCTET), loaded(MATRICES.as_flattened().as_array().expect("as many octets")));
        let [a, b, c, d] = [0, 1, 2, 3].map(|block| {
            let keys = keys.as_flattened().as_chunks().0;
            let octets = _mm512_permutexvar_epi8(order, loaded(&keys[block]));
            let added = _mm512_gf2p8affine_epi64_epi8::<0>(octets, matrices);
            let halves = _mm256_xor_si256(_mm512_castsi512_si256(added), _mm512_extracti64x4_epi64::<1>(added));
            _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves))
        });
        let [low, high] = [_mm256_set_m128i(b, a), _mm256_set_m128i(d, c)];
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }

    #[target_feature(enable = "avx512f,avx512vl")]
    #[inline]
    fn half(octets: &[u8; 32]) -> __m256i {
        // SAFETY: as many octets.
        unsafe { _mm256_loadu_si256(octets.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn loaded(octets: &[u8; BURST_MAX]) -> __m512i {
        // SAFETY: as many octets.
        unsafe { _mm512_loadu_si512(octets.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn stored(register: __m512i) -> [u8; BURST_MAX] {
        let mut octets = [0; BURST_MAX];
        // SAFETY: as many octets.
        unsafe { _mm512_storeu_si512(octets.as_mut_ptr().cast(), register) };
        octets
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::steering::BUCKETS;

    const KINDS: [Steering; 4] = [Steering::None, Steering::Teid, Steering::UeAddress, Steering::FiveTuple];

    /// A G-PDU with these octets of an address and a TEID.
    fn frame(octets: [u8; 8]) -> Vec<u8> {
        let [a, b, c, d, teid @ ..] = octets;
        let ip = [0x45, 0, 0, 88, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, a, b, c, d];
        let udp = [8, 0x68, 8, 0x68, 0, 68, 0, 0];
        [&[2; 12][..], &[8, 0], &ip, &udp, &[0x34, 255, 0, 60], &teid, &[0; 30]].concat()
    }

    /// Bursts of usual frames, in some of which another octet stands anywhere, or which are cut off anywhere.
    fn bursts() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let octet = prop::option::weighted(0.1, (12..50_usize, any::<u8>()));
        let len = prop::option::weighted(0.1, 1..90_usize);
        let spoilt = (any::<[u8; 8]>(), octet, len).prop_map(|(octets, octet, len)| {
            let mut frame = frame(octets);
            octet.into_iter().for_each(|(at, value)| frame[at] = value);
            frame.truncate(len.unwrap_or(usize::MAX));
            frame
        });
        prop_oneof![
            prop::collection::vec(any::<[u8; 8]>().prop_map(frame), 0..=BURST_MAX),
            prop::collection::vec(spoilt, 0..=BURST_MAX),
        ]
    }

    proptest! {
        #[test]
        fn all_together_frames_have_the_buckets_and_owners_that_each_has_by_itself(
            frames in bursts(),
            owners in prop::collection::vec(0..16_u8, BUCKETS),
        ) {
            let table = BucketTable::new(owners.try_into().unwrap(), 16).unwrap();
            for steering in KINDS {
                let looked_at = frames.iter().map(|frame| (frame.len(), &frame[..]));
                let Some(found) = steering.steer(&table, looked_at, |at| steering.bucket(&frames[at])) else { continue };
                for (at, frame) in frames.iter().enumerate() {
                    let bucket = steering.bucket(frame);
                    prop_assert_eq!((found.buckets[at], found.owners[at]), (bucket, table.owner(bucket)), "{:?} {}", steering, at);
                }
            }
        }
    }

    #[test]
    fn this_processor_can_steer_frames_together() {
        if Steering::Teid.steer(&BucketTable::fixed(1), core::iter::empty::<(usize, &[u8])>(), |_| 0).is_none() {
            println!(
                "SKIPPED all_together_frames_have_the_buckets_and_owners_that_each_has_by_itself: no AVX-512 with VBMI and GFNI"
            );
        }
    }
}
