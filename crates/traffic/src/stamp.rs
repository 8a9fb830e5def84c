//! What the generator writes at the start of each payload, so that the sink can tell loss, order and age.

use rustix::time::{ClockId, clock_gettime};

/// Flow, sequence number and due time of one packet: the first [`Stamp::LEN`] bytes of its payload.
///
/// Big-endian: magic `KT` (2 bytes), flow (3), sequence (6), due time (7). The smallest Ethernet frame, of 64 bytes with its
/// check sequence, has just this room in a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the flow, from 0; less than 2^24.
    pub flow: u32,
    /// Number of the packet in its flow, from 0, without gaps as far as the port accepted the packets. Modulo 2^48.
    pub sequence: u64,
    /// When the packet was due, in nanoseconds of [`now_ns`]. Modulo 2^56, which is more than two years.
    pub due_ns: u64,
}

const MAGIC: [u8; 2] = *b"KT";
const SEQUENCE: u64 = (1 << 48) - 1;
const DUE: u64 = (1 << 56) - 1;

impl Stamp {
    /// Bytes of a stamp.
    pub const LEN: usize = 18;

    /// Writes the stamp to the start of `payload`.
    ///
    /// # Panics
    /// If `payload` is shorter than [`Stamp::LEN`].
    #[inline]
    pub fn write(&self, payload: &mut [u8]) {
        let numbers =
            u128::from(self.flow) << 104 | u128::from(self.sequence & SEQUENCE) << 56 | u128::from(self.due_ns & DUE);
        payload[..2].copy_from_slice(&MAGIC);
        payload[2..Self::LEN].copy_from_slice(&numbers.to_be_bytes());
    }

    /// Reads the stamp at the start of `payload`. None where there is none.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let bytes = payload.first_chunk::<{ Self::LEN }>()?;
        let numbers = u128::from_be_bytes(std::array::from_fn(|i| bytes[2 + i]));
        (bytes[..2] == MAGIC).then_some(Self {
            flow: (numbers >> 104) as u32,
            sequence: (numbers >> 56) as u64 & SEQUENCE,
            due_ns: numbers as u64 & DUE,
        })
    }

    /// Nanoseconds from the time at which the packet was due until `now_ns`; 0 where that is still to come.
    #[inline]
    pub fn age_ns(&self, now_ns: u64) -> u64 {
        let age = now_ns.wrapping_sub(self.due_ns) & DUE;
        if age > DUE / 2 { 0 } else { age }
    }
}

/// Whether one due time is later than another one.
#[inline]
pub fn is_later(due_ns: u64, than_ns: u64) -> bool {
    (1..=DUE / 2).contains(&(due_ns.wrapping_sub(than_ns) & DUE))
}

/// Nanoseconds of the machine's monotonic clock; the same in every container of a host.
#[inline]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_survives_the_journey() {
        let stamp = Stamp { flow: (1 << 24) - 7, sequence: SEQUENCE - 1, due_ns: DUE - 2 };
        let mut payload = [0xff; 64];
        stamp.write(&mut payload);
        assert_eq!(Stamp::read(&payload), Some(stamp));
    }

    #[test]
    fn other_payloads_carry_no_stamp() {
        assert_eq!(Stamp::read(&[0; 64]), None);
        assert_eq!(Stamp::read(b"KT"), None);
    }

    #[test]
    fn age_counts_over_the_end_of_the_clock_and_is_never_negative() {
        let due_at = |due_ns| Stamp { flow: 0, sequence: 0, due_ns };
        assert_eq!(due_at(9_000).age_ns(10_000), 1_000);
        assert_eq!(due_at(DUE - 9).age_ns(DUE + 11), 20);
        assert_eq!(due_at(10_001).age_ns(10_000), 0);
    }

    #[test]
    fn later_is_later_over_the_end_of_the_clock_too() {
        assert!(is_later(10, 9) && is_later(5, DUE - 5));
        assert!(!is_later(9, 9) && !is_later(9, 10) && !is_later(DUE - 5, 5));
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let first = now_ns();
        assert!(now_ns() >= first);
    }
}
