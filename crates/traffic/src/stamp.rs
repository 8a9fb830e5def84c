//! What the generator writes at the start of each payload, so that the sink can tell loss, order and age.

use rustix::time::{ClockId, clock_gettime};

/// Flow, sequence number and due time of one packet: the first [`Stamp::LEN`] bytes of its payload.
///
/// Big-endian: magic `KT` (2 bytes), flow (4), sequence (8), due time (8). A UDP frame of 64 bytes has just this room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Number of the packet in its flow, from 0, without gaps as far as the port accepted the packets.
    pub sequence: u64,
    /// When the packet was due, in nanoseconds of [`now_ns`].
    pub due_ns: u64,
}

const MAGIC: [u8; 2] = *b"KT";

impl Stamp {
    /// Bytes of a stamp.
    pub const LEN: usize = 22;

    /// Writes the stamp to the start of `payload`.
    ///
    /// # Panics
    /// If `payload` is shorter than [`Stamp::LEN`].
    #[inline]
    pub fn write(&self, payload: &mut [u8]) {
        payload[..2].copy_from_slice(&MAGIC);
        payload[2..6].copy_from_slice(&self.flow.to_be_bytes());
        payload[6..14].copy_from_slice(&self.sequence.to_be_bytes());
        payload[14..22].copy_from_slice(&self.due_ns.to_be_bytes());
    }

    /// Reads the stamp at the start of `payload`. None where there is none.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let bytes = payload.first_chunk::<{ Self::LEN }>()?;
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        (bytes[..2] == MAGIC).then(|| Self {
            flow: u32::from_be_bytes(std::array::from_fn(|i| bytes[2 + i])),
            sequence: number(6),
            due_ns: number(14),
        })
    }
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
        let stamp = Stamp { flow: 7, sequence: u64::MAX - 1, due_ns: 123_456_789 };
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
    fn the_clock_does_not_go_back() {
        let first = now_ns();
        assert!(now_ns() >= first);
    }
}
