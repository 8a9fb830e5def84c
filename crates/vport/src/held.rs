//! Frames that lie where their sender put them until they are given back, for another thread of this process to take
//! from there ([`crate::relay`]).

use std::sync::Arc;

use crate::mapping::Mapping;
use crate::packet::{BURST_MAX, Lease, PacketRef, Rest};
use crate::registers::{self, Registers};
use crate::shares::Shares;
use crate::steering::{BucketCounts, BucketTable, KEY_WITHIN, Octets, Steering};
use crate::sync;

/// Where a frame's bytes begin, in memory that its sender may write.
pub(crate) type Origin = *const u8;

/// Where a frame lies, and in the lowest bits its length: in one word, for as few lines as can be to go from core to core. Addresses have 48
/// bits; the system gives longer ones only to whoever asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Place(pub u64);

impl Place {
    const LEN_BITS: u32 = 16;

    /// Of a frame of so many bytes.
    #[inline(always)]
    pub fn new(origin: Origin, len: usize) -> Self {
        debug_assert!((origin as u64) < 1 << (u64::BITS - Self::LEN_BITS), "an address of 48 bits");
        debug_assert!(len < 1 << Self::LEN_BITS, "a length of 16 bits");
        Self((origin as u64) << Self::LEN_BITS | len as u64)
    }

    #[inline(always)]
    pub fn origin(self) -> Origin {
        (self.0 >> Self::LEN_BITS) as Origin
    }

    #[inline(always)]
    pub fn len(self) -> usize {
        self.0 as usize % (1 << Self::LEN_BITS)
    }
}

/// What a queue has received and holds: where the frames of a burst lie.
pub struct Held<'q> {
    len: usize,
    places: &'q Places,
    mapping: &'q Arc<Mapping>,
    end: u64,
    registers: Registers,
}

impl<'q> Held<'q> {
    /// A burst of `len` packets, at most [`BURST_MAX`], where each of its frames lies in `mapping`, and the position behind the last
    /// one.
    pub(crate) fn new(
        len: usize,
        places: &'q Places,
        mapping: &'q Arc<Mapping>,
        end: u64,
        registers: Registers,
    ) -> Self {
        Self { len, places, mapping, end, registers }
    }

    /// How many packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One of the packets, all of which is behind an empty head.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn get(&self, at: usize) -> PacketRef<'q> {
        let place = self.places()[at];
        // SAFETY: the frame stays mapped until the queue receives again or gives it back, which for `'q` it cannot.
        PacketRef { head: &[], rest: unsafe { Rest::from_raw(place.origin(), place.len() as u32, Lease::NONE) } }
    }

    /// Who owns the packets: the owners of the buckets that steering finds for them, for each of which it counts them. Whoever sent
    /// them may make others of them at any time: who takes one from where it lies has to look itself what it is.
    #[inline]
    pub fn shares(&self, steering: Steering, table: &BucketTable, counts: &BucketCounts) -> Shares {
        // SAFETY: a frame of so many bytes lies there, in memory that stays mapped as long as it is held.
        let frames = self.places().iter().map(|place| (place.len(), unsafe { InPlace::new(*place) }));
        let mut owners = [0; BURST_MAX];
        if !steering.find_owners(self.registers, frames, (table, counts), &mut owners) {
            // A loop for each kind, so that none asks for the kind.
            owners = registers::dispatch!(
                self.registers,
                match steering {
                    Steering::Teid => self.owners(Steering::Teid, table, counts),
                    Steering::UeAddress => self.owners(Steering::UeAddress, table, counts),
                    other => self.owners(other, table, counts),
                }
            );
        }
        Shares::new(owners, self.all())
    }

    #[inline(always)]
    fn owners(&self, steering: Steering, table: &BucketTable, counts: &BucketCounts) -> [u8; BURST_MAX] {
        let mut owners = [0; BURST_MAX];
        for (place, owner) in self.places().iter().zip(&mut owners) {
            // SAFETY: a frame of so many bytes lies there, in memory that stays mapped as long as it is held.
            let bucket = unsafe { bucket_at(*place, steering) };
            *owner = table.owner(bucket);
            counts.count(bucket);
        }
        owners
    }

    /// Position behind everything that was read, to be given back when all up to there has been taken.
    #[inline]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// What keeps the frames mapped.
    #[inline(always)]
    pub(crate) fn mapping(&self) -> &'q Arc<Mapping> {
        self.mapping
    }

    /// A bit for each of the packets.
    #[inline(always)]
    pub(crate) fn all(&self) -> u64 {
        ((1_u128 << self.len) - 1) as u64
    }

    /// Those of this processor.
    #[inline(always)]
    pub(crate) fn registers(&self) -> Registers {
        self.registers
    }

    /// Where the packets lie, in order.
    #[inline(always)]
    pub(crate) fn places(&self) -> &'q [Place] {
        &self.places.0[..self.len]
    }

    /// The same, and behind them where those of earlier bursts lay.
    #[inline(always)]
    pub(crate) fn all_places(&self) -> &'q [Place; BURST_MAX] {
        &self.places.0
    }
}

/// The bucket of a frame, without a copy where it is as most are.
///
/// # Safety
/// It must be mapped. Others may write it meanwhile.
#[inline(always)]
unsafe fn bucket_at(place: Place, steering: Steering) -> u8 {
    // SAFETY: by contract.
    match steering.usual_bucket(place.len(), &unsafe { InPlace::new(place) }) {
        Some(bucket) => bucket,
        // SAFETY: by contract.
        None => unsafe { bucket_of_copy(place, steering) },
    }
}

/// A frame where it lies, mapped.
struct InPlace(Origin);

impl InPlace {
    /// # Safety
    /// It must be mapped as long as octets of it are asked for. Others may write it meanwhile.
    #[inline(always)]
    unsafe fn new(place: Place) -> Self {
        Self(place.origin())
    }
}

impl Octets for InPlace {
    #[inline(always)]
    fn octets<const COUNT: usize>(&self, at: usize) -> [u8; COUNT] {
        // SAFETY: the frame is mapped, and none are asked for that are not within it.
        let octets = unsafe {
            sync::reads(self.0.add(at), COUNT);
            self.0.add(at).cast::<[u8; COUNT]>().read_unaligned()
        };
        // Nor are they read again: for all that the compiler knows, others are there now.
        // SAFETY: no instructions.
        unsafe { core::arch::asm!("", options(nostack, preserves_flags)) };
        octets
    }
}

/// The same of a copy of them.
///
/// # Safety
/// As for [`bucket_at`].
#[cold]
unsafe fn bucket_of_copy(place: Place, steering: Steering) -> u8 {
    let (mut copy, origin, len) = ([0; KEY_WITHIN], place.origin(), place.len().min(KEY_WITHIN));
    // SAFETY: by contract.
    unsafe {
        sync::reads(origin, len);
        core::ptr::copy_nonoverlapping(origin, copy.as_mut_ptr(), len);
        core::arch::asm!("", options(nostack, preserves_flags));
    }
    steering.bucket(&copy[..len])
}

/// Room for where the frames of a burst lie.
#[derive(Debug)]
pub(crate) struct Places([Place; BURST_MAX]);

impl Places {
    pub(crate) fn new() -> Self {
        Self([Place::default(); BURST_MAX])
    }

    /// Those that a burst may fill.
    #[inline(always)]
    pub(crate) fn all_mut(&mut self) -> &mut [Place] {
        &mut self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::local::{LocalSource, Then};
    use crate::steering::BUCKETS;

    /// One of G-PDUs over either version of IP, with a tag or without, and of what is none, cut off anywhere.
    fn frame(seed: usize) -> Vec<u8> {
        let gtpu = [&[0x34, 255, 0, 60][..], &(seed as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()].concat();
        let udp = [&[8, 0x68, 8, 0x68, 0, 68, 0, 0][..], &gtpu].concat();
        let version_4 =
            [&[0x45, 0, 0, 88, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, seed as u8, 7][..], &udp].concat();
        let version_6 = [&[0x60, 0, 0, 0, 0, 68, 17, 64][..], &[seed as u8; 32], &udp].concat();
        let (ethertype, packet): (&[u8], _) = match seed % 4 {
            0 => (&[8, 0], version_4),
            1 => (&[0x86, 0xdd], version_6),
            2 => (&[0x81, 0, 0, 5, 8, 0], version_4),
            _ => (&[8, 6], version_4),
        };
        let mut frame = [&[2; 12], ethertype, &packet, &[0; 60]].concat();
        frame.truncate(if seed.is_multiple_of(5) { 1 + seed * 7 % 80 } else { frame.len() });
        frame
    }

    #[test]
    fn the_buckets_of_frames_where_they_lie_are_those_of_copies() {
        // Of all kinds; usual ones; a few of these.
        let usual = |at: usize| frame(20 * at + 4);
        check_buckets(&(0..BURST_MAX).map(frame).collect::<Vec<_>>());
        check_buckets(&(0..BURST_MAX).map(usual).collect::<Vec<_>>());
        check_buckets(&(0..23).map(usual).collect::<Vec<_>>());
    }

    fn check_buckets(frames: &[Vec<u8>]) {
        for steering in [Steering::None, Steering::Teid, Steering::UeAddress, Steering::FiveTuple] {
            for registers in [Registers::Bytes16, Registers::here()] {
                let mut source = LocalSource::new(frames, Then::Stop, 192).unwrap();
                let held = Held { registers, ..source.recv_held(Steering::None) };
                let (mut buckets, counts) = (vec![None; frames.len()], BucketCounts::default());
                for (bucket, share) in held.shares(steering, &BucketTable::fixed(BUCKETS), &counts) {
                    (0..frames.len()).filter(|at| share >> at & 1 == 1).for_each(|at| buckets[at] = Some(bucket as u8));
                    assert_eq!(counts.of(bucket as u8), share.count_ones().into(), "{steering:?} {registers:?}");
                }
                let of_copies: Vec<_> = frames.iter().map(|frame| Some(steering.bucket(frame))).collect();
                assert_eq!(buckets, of_copies, "{steering:?} {registers:?}");
            }
        }
    }

    #[test]
    fn frames_that_are_held_are_what_was_sent() {
        let frames: Vec<Vec<u8>> = (0..BURST_MAX).map(frame).collect();
        for steering in [Steering::None, Steering::Teid, Steering::UeAddress, Steering::FiveTuple] {
            let mut source = LocalSource::new(&frames, Then::Stop, 192).unwrap();
            let held = source.recv_held(steering);
            for (at, frame) in frames.iter().enumerate() {
                let mut copy = vec![0; held.get(at).len()];
                held.get(at).copy_to(&mut copy);
                assert!(copy == *frame, "{steering:?}");
            }
        }
    }
}
