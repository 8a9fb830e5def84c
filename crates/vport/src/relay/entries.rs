//! The entries of a channel: the line after line in which its sender says where frames lie.

use core::sync::atomic::Ordering;

use crate::held::Place;
use crate::packet::BURST_MAX;
use crate::prefetch;
use crate::registers::{self, Registers};
use crate::sync::AtomicU64;

/// A [`Place`].
pub(super) type Entry = AtomicU64;

/// Entries of a line.
pub(super) const ENTRIES_A_LINE: u64 = 8;
/// So many entries ahead their lines are asked for to be written. The receiver has all of these, and where its core is far, a line takes
/// longer to come than the sender for a burst.
const WRITE_AHEAD: u64 = 192;

/// Entry number `at`.
#[inline(always)]
pub(super) fn entry(entries: &[Entry], at: u64) -> &Entry {
    &entries[at as usize & (entries.len() - 1)]
}

/// Asks for the line that is to be written so far behind the one that entry number `at` begins.
#[inline(always)]
fn ask_ahead(entries: &[Entry], at: u64) {
    prefetch::to_write(core::ptr::from_ref(entry(entries, at.wrapping_add(WRITE_AHEAD))).cast());
}

/// Writes entry number `at`.
#[inline(always)]
pub(super) fn write(entries: &[Entry], at: u64, place: Place) {
    if at.is_multiple_of(ENTRIES_A_LINE) {
        ask_ahead(entries, at);
    }
    entry(entries, at).store(place.0, Ordering::Relaxed);
}

/// Whether entries are written as such, which the model checker understands, and not in blocks.
const BY_ENTRY: bool = cfg!(all(test, loom));

/// Writes entries from number `at` on for places in a row. The number behind them. There must be room for so many.
#[inline(always)]
pub(super) fn write_all(entries: &[Entry], mut at: u64, places: &[Place]) -> u64 {
    let begin = at as usize & (entries.len() - 1);
    let (first, wrapped) = places.split_at(places.len().min(entries.len() - begin));
    for part in [first, wrapped] {
        let to = &entries[at as usize & (entries.len() - 1)..][..part.len()];
        if BY_ENTRY {
            to.iter().zip(part).for_each(|(entry, place)| entry.store(place.0, Ordering::Relaxed));
        } else {
            // SAFETY: as long; atomics may be written by whoever may store. Others look at none of them before the head says so.
            unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), to.as_ptr().cast_mut().cast(), part.len()) };
        }
        let next = at.wrapping_add(part.len() as u64);
        (first_of_line(at)..next).step_by(ENTRIES_A_LINE as usize).for_each(|line| ask_ahead(entries, line));
        at = next;
    }
    at
}

/// The first entry from number `at` on that begins a line.
#[inline(always)]
fn first_of_line(at: u64) -> u64 {
    at.wrapping_add(ENTRIES_A_LINE - 1) & !(ENTRIES_A_LINE - 1)
}

/// Writes entries from number `at` on for those of the places whose bits are set in `share`, in order. The number behind them.
/// There must be room for so many.
#[inline(always)]
pub(super) fn write_share(
    entries: &[Entry],
    at: u64,
    places: &[Place; BURST_MAX],
    share: u64,
    registers: Registers,
) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(any(tsan, all(test, loom)))))]
    if registers == Registers::Bytes64 {
        // SAFETY: the processor has such registers.
        return unsafe { write_by_eight(entries, at, places, share) };
    }
    registers::dispatch!(registers, write_each(entries, at, places, share))
}

#[inline(always)]
fn write_each(entries: &[Entry], mut at: u64, places: &[Place; BURST_MAX], mut share: u64) -> u64 {
    while share != 0 {
        write(entries, at, places[share.trailing_zeros() as usize]);
        at = at.wrapping_add(1);
        share &= share - 1;
    }
    at
}

/// The same, of eight places those together that are wanted.
///
/// # Safety
/// This processor must have registers of 64 bytes.
#[cfg(all(target_arch = "x86_64", not(any(tsan, all(test, loom)))))]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,bmi1,bmi2,popcnt")]
unsafe fn write_by_eight(entries: &[Entry], mut at: u64, places: &[Place; BURST_MAX], share: u64) -> u64 {
    use core::arch::x86_64::{_mm512_loadu_epi64, _mm512_mask_storeu_epi64, _mm512_maskz_compress_epi64};
    for (nth, eight) in places.as_chunks::<8>().0.iter().enumerate() {
        let wanted = (share >> (8 * nth)) as u8;
        let count = wanted.count_ones();
        let first = at as usize & (entries.len() - 1);
        if first + 8 > entries.len() {
            at = write_each(entries, at, places, u64::from(wanted) << (8 * nth));
            continue;
        }
        // Of at most eight entries in a row one begins a line, or none.
        let line = first_of_line(at);
        if line.wrapping_sub(at) < count.into() {
            ask_ahead(entries, line);
        }
        // SAFETY: eight places are read, and as many entries written as are wanted, of eight from the first on that there are. Others
        // look at none of them before the head says so.
        unsafe {
            let packed = _mm512_maskz_compress_epi64(wanted, _mm512_loadu_epi64(eight.as_ptr().cast()));
            _mm512_mask_storeu_epi64(
                entries.as_ptr().add(first).cast_mut().cast(),
                ((1_u16 << count) - 1) as u8,
                packed,
            );
        }
        at = at.wrapping_add(count.into());
    }
    at
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENTRIES: usize = 256;

    /// Numbers, as places and as what entries hold.
    fn numbers(of: impl Iterator<Item = usize>) -> Vec<u64> {
        of.map(|nth| 1_000 + nth as u64).collect()
    }

    /// What entries hold from number `at` on, where `write` was to write so many of them.
    fn written(at: u64, count: usize, write: impl FnOnce(&[Entry]) -> u64) -> Vec<u64> {
        let entries: Vec<Entry> = (0..ENTRIES).map(|_| Entry::new(7)).collect();
        assert_eq!(write(&entries), at + count as u64);
        let all: Vec<u64> = (at..).take(ENTRIES).map(|at| entry(&entries, at).load(Ordering::Relaxed)).collect();
        assert!(all[count..].iter().all(|untouched| *untouched == 7));
        all[..count].to_vec()
    }

    proptest! {
        #[test]
        fn a_share_is_written_from_the_next_entry_on_and_no_other_entry(
            at in 0..2 * ENTRIES as u64,
            share in prop_oneof![any::<u64>(), Just(0), Just(!0), (any::<u64>(), any::<u64>()).prop_map(|(a, b)| a & b & a.rotate_left(7))],
        ) {
            let places = core::array::from_fn(|nth| Place(1_000 + nth as u64));
            let wanted = numbers((0..BURST_MAX).filter(|nth| share >> nth & 1 == 1));
            for registers in [Registers::Bytes16, Registers::here()] {
                let found = written(at, wanted.len(), |entries| write_share(entries, at, &places, share, registers));
                prop_assert_eq!(&found, &wanted, "{:?}", registers);
            }
        }

        #[test]
        fn places_in_a_row_are_written_from_the_next_entry_on(at in 0..2 * ENTRIES as u64, count in 0..=BURST_MAX) {
            let wanted = numbers(0..count);
            let places: Vec<Place> = wanted.iter().map(|number| Place(*number)).collect();
            prop_assert_eq!(written(at, count, |entries| write_all(entries, at, &places)), wanted);
        }
    }
}
