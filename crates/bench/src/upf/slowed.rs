//! Workers that take a given time for each packet beside their work, and sleep meanwhile: what they can do, each and together, is
//! decided by that time, hardly by what else runs on their cores. So a few cores serve for more threads, source and sink among
//! them, than there would otherwise be room for.

use std::time::{Duration, Instant};

use port::{Burst, PacketRef, TxCounters, TxQueue};

/// A sending half that takes the time. For whoever sends it is time at work.
pub(super) struct Slowed {
    inner: Box<dyn TxQueue>,
    packet_ns: i64,
    /// What is still to be slept; below 0 where sleep was longer than that.
    owed_ns: i64,
}

/// What too long a sleep may make up for.
const AHEAD_MAX_NS: i64 = 1_000_000;

impl Slowed {
    /// Takes so long for each packet.
    pub fn new(inner: Box<dyn TxQueue>, packet: Duration) -> Self {
        Self { inner, packet_ns: packet.as_nanos() as i64, owed_ns: 0 }
    }

    fn take_time(&mut self, packets: usize) -> usize {
        self.owed_ns += self.packet_ns * packets as i64;
        if let Ok(owed @ 1..) = u64::try_from(self.owed_ns) {
            let begin = Instant::now();
            std::thread::sleep(Duration::from_nanos(owed));
            self.owed_ns = (self.owed_ns - begin.elapsed().as_nanos() as i64).max(-AHEAD_MAX_NS);
        }
        packets
    }
}

impl TxQueue for Slowed {
    fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        let accepted = self.inner.send(packets);
        self.take_time(accepted)
    }

    fn send_burst(&mut self, burst: &Burst<'_>, from: usize) -> usize {
        let accepted = self.inner.send_burst(burst, from);
        self.take_time(accepted)
    }

    fn counters(&self) -> TxCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use port::synthetic::Synthetic;

    #[test]
    fn packets_take_no_less_than_their_time_but_for_what_sleep_was_too_long() {
        let queue = Synthetic::new(vec![]).open().queues.remove(0);
        let mut slowed = Slowed::new(queue.tx, Duration::from_micros(100));
        let begin = Instant::now();
        let frame = [0; 64];
        for _ in 0..100 {
            assert_eq!(slowed.send(&[PacketRef::from_slice(&frame); 3]), 3);
        }
        assert!(begin.elapsed() >= Duration::from_millis(29), "{:?}", begin.elapsed());
        assert!(slowed.owed_ns <= 0 && slowed.owed_ns >= -AHEAD_MAX_NS, "{}", slowed.owed_ns);
    }
}
