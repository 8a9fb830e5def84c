//! Whose the frames of a burst are, found for all together, where the processor has instructions for it.

use super::{BucketCounts, BucketTable, Octets, Steering};
use crate::packet::BURST_MAX;
use crate::registers::Registers;

impl Steering {
    /// Finds the owners of up to [`BURST_MAX`] frames, of each of which the length is given and what it looks like, and counts their buckets.
    /// False, and nothing done, where one of them is not as most are ([`Steering::usual_bucket`]), or where each has to be looked at by
    /// itself: by this kind of steering, or on a processor with other instructions than `registers` and a few more.
    #[inline(always)]
    pub(crate) fn find_owners<F: Octets>(
        self,
        registers: Registers,
        frames: impl ExactSizeIterator<Item = (usize, F)>,
        (table, counts): (&BucketTable, &BucketCounts),
        owners: &mut [u8; BURST_MAX],
    ) -> bool {
        #[cfg(target_arch = "x86_64")]
        if let Some(usual) = together::Usual::of(self).filter(|_| together::is_possible(registers)) {
            // SAFETY: the processor has the instructions.
            return unsafe { together::find_owners(usual, frames, (table, counts), owners) };
        }
        false
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
        ADDRESS_AT, BUCKETS, BucketCounts, BucketTable, ETHERTYPE_AT, GPDU, IPV4, Like, Octets, Steering, TEID_AT,
        contribution,
    };
    use super::{BURST_MAX, Registers};

    /// Octets of a register.
    const REGISTER: usize = 64;
    /// Octets of a frame that are looked at, from the ethertype on.
    const LOOKED_AT: usize = 32;
    const KEY_OCTETS: usize = 4;
    /// Keys that fill a register.
    const BLOCK: usize = REGISTER / KEY_OCTETS;
    const _: () = assert!(BURST_MAX == REGISTER && BUCKETS == 2 * REGISTER, "one owner an octet");

    /// What usual frames are like that have a key of so many octets.
    pub(super) struct Usual {
        octets: [u8; LOOKED_AT],
        /// Which bits of them count.
        mask: [u8; LOOKED_AT],
        key_at: usize,
        /// How many octets a frame must have.
        reach: usize,
    }

    impl Usual {
        /// None where there is no such key.
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

    /// Whether this processor, which has such registers, has all instructions that are wanted here.
    #[inline(always)]
    pub(super) fn is_possible(registers: Registers) -> bool {
        registers == Registers::Bytes64 && has!("avx512vbmi") && has!("gfni")
    }

    /// As [`Steering::find_owners`].
    ///
    /// # Safety
    /// [`is_possible`] must have said that it is.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512vbmi,gfni,bmi1,bmi2,popcnt")]
    pub(super) unsafe fn find_owners<F: Octets>(
        usual: &Usual,
        frames: impl ExactSizeIterator<Item = (usize, F)>,
        (table, counts): (&BucketTable, &BucketCounts),
        owners: &mut [u8; BURST_MAX],
    ) -> bool {
        let (count, mut keys) = (frames.len(), [[0; KEY_OCTETS]; BURST_MAX]);
        if !read(&mut keys, frames, usual) {
            return false;
        }
        let (mut each, buckets) = ([0; BURST_MAX], buckets_of(&keys));
        let [low, high] = [0, 1].map(|half| loaded(&table.owners().as_chunks().0[half]));
        store(_mm512_permutex2var_epi8(low, buckets, high), owners);
        store(buckets, &mut each);
        each[..count].iter().for_each(|bucket| counts.count(*bucket));
        true
    }

    /// Reads the keys of frames. False where one of these is not as usual.
    #[target_feature(enable = "avx512f,avx512vl")]
    #[inline]
    fn read<F: Octets>(
        keys: &mut [[u8; KEY_OCTETS]; BURST_MAX],
        frames: impl ExactSizeIterator<Item = (usize, F)>,
        usual: &Usual,
    ) -> bool {
        let (octets, mask) = (half(&usual.octets), half(&usual.mask));
        let mut differs = _mm256_setzero_si256();
        for (key, (len, frame)) in keys.iter_mut().zip(frames) {
            if len < usual.reach {
                return false;
            }
            let found = half(&frame.octets(ETHERTYPE_AT));
            differs = _mm256_or_si256(differs, _mm256_and_si256(_mm256_xor_si256(found, octets), mask));
            *key = frame.octets(usual.key_at);
        }
        _mm256_testz_si256(differs, differs) == 1
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
    fn half(octets: &[u8; LOOKED_AT]) -> __m256i {
        // SAFETY: as many octets.
        unsafe { _mm256_loadu_si256(octets.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn loaded(octets: &[u8; REGISTER]) -> __m512i {
        // SAFETY: as many octets.
        unsafe { _mm512_loadu_si512(octets.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn store(register: __m512i, octets: &mut [u8; REGISTER]) {
        // SAFETY: as many octets.
        unsafe { _mm512_storeu_si512(octets.as_mut_ptr().cast(), register) };
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
        fn all_together_usual_frames_have_the_owners_that_each_has_by_itself_and_are_counted(
            frames in bursts(),
            owners in prop::collection::vec(0..16_u8, BUCKETS),
        ) {
            let table = BucketTable::new(owners.try_into().unwrap(), 16).unwrap();
            for steering in KINDS {
                let looked_at = frames.iter().map(|frame| (frame.len(), &frame[..]));
                let (mut found, counts) = ([0xff; BURST_MAX], BucketCounts::default());
                let is_done = steering.find_owners(Registers::here(), looked_at, (&table, &counts), &mut found);

                let is_usual = |frame: &Vec<u8>| {
                    frame.len() >= 44 && steering.usual_bucket(frame.len(), &&frame[..]).is_some()
                };
                prop_assert_eq!(is_done, is_possible(steering) && frames.iter().all(is_usual), "{:?}", steering);
                let done = if is_done { &frames[..] } else { &[] };
                let mut counted = [0; BUCKETS];
                for (frame, owner) in done.iter().zip(found) {
                    let bucket = steering.bucket(frame);
                    prop_assert_eq!(owner, table.owner(bucket), "{:?}", steering);
                    counted[usize::from(bucket)] += 1;
                }
                prop_assert_eq!(core::array::from_fn(|bucket| counts.of(bucket as u8)), counted);
            }
        }
    }

    /// Whether frames can be steered together here.
    fn is_possible(steering: Steering) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let has_key = matches!(steering, Steering::Teid | Steering::UeAddress);
        has_key && has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("avx512vbmi") && has!("gfni")
    }
}
