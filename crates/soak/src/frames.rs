//! Frames that can be recognised: each carries its flow, whose it is, its number and a checksum over all of it.

use vport::packet::PacketRef;
use vport::steering::Steering;

/// Shortest frame that carries a stamp.
pub const LEN_MIN: usize = 64;
/// Longest frame that [`len_of`] chooses.
pub const LEN_MAX: usize = 1_500;

const FLOW: usize = 32;
const INCARNATION: usize = 36;
const NUMBER: usize = 40;
const LEN: usize = 48;
const CHECKSUM: usize = 56;

/// What a frame carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The flow: the last half of an IPv4 destination, by which [`Steering::UeAddress`] steers.
    pub flow: u16,
    /// Which process of its kind sent it: each new one has a higher number.
    pub incarnation: u32,
    /// Its number.
    pub number: u64,
}

/// Lengths for numbers: mostly short ones, some of each length.
pub fn len_of(number: u64) -> usize {
    if number.is_multiple_of(4) { LEN_MIN + (number / 4 * 37 % (LEN_MAX - LEN_MIN) as u64) as usize } else { LEN_MIN }
}

/// The frame of `len` bytes, [`LEN_MIN`] at least.
pub fn frame(stamp: Stamp, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[30..32].copy_from_slice(&[10, 45]);
    frame[FLOW..FLOW + 2].copy_from_slice(&stamp.flow.to_be_bytes());
    frame[INCARNATION..INCARNATION + 4].copy_from_slice(&stamp.incarnation.to_le_bytes());
    frame[NUMBER..NUMBER + 8].copy_from_slice(&stamp.number.to_le_bytes());
    frame[LEN..LEN + 8].copy_from_slice(&(len as u64).to_le_bytes());
    let seed = stamp.number.wrapping_mul(31).wrapping_add(u64::from(stamp.flow));
    frame[LEN_MIN..].iter_mut().zip(seed..).for_each(|(byte, value)| *byte = value as u8);
    let sum = checksum(&frame);
    frame[CHECKSUM..CHECKSUM + 8].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// What the first bytes of a frame say, unchecked. Steering groups look at no more.
pub fn stamp(head: &[u8]) -> Option<Stamp> {
    let flow = u16::from_be_bytes(*head.get(FLOW..)?.first_chunk()?);
    let incarnation = u32::from_le_bytes(*head.get(INCARNATION..)?.first_chunk()?);
    let number = u64::from_le_bytes(*head.get(NUMBER..)?.first_chunk()?);
    Some(Stamp { flow, incarnation, number })
}

/// What a frame carries; none if a bit of it is not as sent. `room` takes a copy.
pub fn check(packet: &PacketRef<'_>, room: &mut Vec<u8>) -> Option<Stamp> {
    room.resize(packet.len(), 0);
    packet.copy_to(room);
    let len = u64::from_le_bytes(*room.get(LEN..)?.first_chunk()?);
    let sum = u64::from_le_bytes(*room.get(CHECKSUM..)?.first_chunk()?);
    (len == room.len() as u64 && sum == checksum(room)).then(|| stamp(room)).flatten()
}

/// The bucket of a flow.
pub fn bucket(flow: u16) -> u8 {
    Steering::UeAddress.bucket(&frame(Stamp { flow, incarnation: 0, number: 0 }, LEN_MIN))
}

/// The bucket that the head of such a frame belongs to.
pub fn bucket_of_head(head: &[u8]) -> u8 {
    Steering::UeAddress.bucket(head)
}

/// Of all bytes but the checksum's own.
fn checksum(frame: &[u8]) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let (words, rest) = frame.as_chunks::<8>();
    let words = words.iter().enumerate().filter(|(n, _)| *n != CHECKSUM / 8).map(|(_, word)| u64::from_le_bytes(*word));
    let sum = words.fold(frame.len() as u64, mix);
    rest.iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { flow: 0x1234, incarnation: 7, number: 99 };

    #[test]
    fn a_frame_says_what_it_carries_at_every_length() {
        for len in LEN_MIN..200 {
            let frame = frame(STAMP, len);
            assert_eq!(check(&PacketRef::from_slice(&frame), &mut Vec::new()), Some(STAMP));
        }
    }

    #[test]
    fn no_bit_can_change_unnoticed() {
        let sent = frame(STAMP, 71);
        for bit in 0..sent.len() * 8 {
            let mut frame = sent.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check(&PacketRef::from_slice(&frame), &mut Vec::new()), None, "bit {bit}");
        }
        assert_eq!(check(&PacketRef::from_slice(&sent[..70]), &mut Vec::new()), None);
    }

    #[test]
    fn flows_are_in_all_buckets() {
        let buckets: std::collections::HashSet<u8> = (0..2_000).map(bucket).collect();
        assert_eq!(buckets.len(), vport::steering::BUCKETS);
    }
}
