//! What the other threads tell N4: counters to look at, packets that wait, and tunnels that their peers do not know.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::bell::Bell;
use crate::n4::Echo;
use crate::usage::UsageId;

/// What N4 is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// A rule's counters are to be looked at.
    Usage(UsageId),
    /// Packets of a session wait that this PDR has matched.
    Data {
        /// The UPF's SEID of the session.
        up_seid: u64,
        /// PDR ID.
        pdr: u16,
    },
    /// A peer says that it does not have this tunnel.
    Unknown {
        /// The peer's address.
        peer: IpAddr,
        /// Its TEID.
        teid: u32,
    },
    /// A GTP-U node has answered an echo request.
    Alive(Echo),
}

/// The other thread's end.
#[derive(Debug)]
pub struct Alarms {
    ring: rtrb::Producer<Alarm>,
    overflow: Arc<AtomicBool>,
    bell: Arc<Bell>,
    told: bool,
}

/// N4's end.
#[derive(Debug)]
pub struct AlarmReceiver {
    ring: rtrb::Consumer<Alarm>,
    overflow: Arc<AtomicBool>,
}

/// Alarms that may wait for N4.
const CAPACITY: usize = 4_096;
/// Of these so many are heard at a time: each may take some microseconds.
const AT_A_TIME: usize = 256;

/// From another thread to N4, which hears `bell`.
pub fn channel(bell: Arc<Bell>) -> (Alarms, AlarmReceiver) {
    let (producer, consumer) = rtrb::RingBuffer::new(CAPACITY);
    let overflow = Arc::new(AtomicBool::new(false));
    let receiver = AlarmReceiver { ring: consumer, overflow: overflow.clone() };
    (Alarms { ring: producer, overflow, bell, told: false }, receiver)
}

impl Alarms {
    /// Tells N4, if there is room. If not, N4 will know that counters are to be looked at.
    #[cold]
    pub fn tell(&mut self, alarm: Alarm) -> bool {
        let has_room = self.ring.push(alarm).is_ok();
        // Of packets and of tunnels somebody tells again. A peer could otherwise have N4 look at everything, all the time.
        if !has_room && matches!(alarm, Alarm::Usage(_)) {
            self.overflow.store(true, Relaxed);
        }
        self.told = true;
        has_room
    }

    /// Wakes N4, if anything was told since the last call.
    #[inline]
    pub fn deliver(&mut self) {
        if std::mem::take(&mut self.told) {
            self.bell.ring();
        }
    }
}

impl AlarmReceiver {
    /// The next alarm.
    pub fn take(&mut self) -> Option<Alarm> {
        self.ring.pop().ok()
    }

    /// The next alarms, no more than N4's peers can wait for: who causes them may go on and on.
    pub fn take_some(&mut self) -> impl Iterator<Item = Alarm> {
        std::iter::from_fn(|| self.take()).take(AT_A_TIME)
    }

    /// Whether nothing is to be looked at.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty() && !self.overflow.load(Relaxed)
    }

    /// Whether some were lost since the last call, so that all counters are to be looked at.
    pub fn overflowed(&self) -> bool {
        self.overflow.swap(false, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_alarms_is_heard_bit_by_bit() {
        let (mut alarms, mut heard) = channel(Arc::new(Bell::new().unwrap()));
        let peer = [10, 3, 0, 2].into();
        (0..600).for_each(|teid| assert!(alarms.tell(Alarm::Unknown { peer, teid })));
        for (count, is_all) in [(AT_A_TIME, false), (AT_A_TIME, false), (600 - 2 * AT_A_TIME, true)] {
            assert_eq!(heard.take_some().count(), count);
            assert_eq!(heard.is_empty(), is_all);
        }
    }

    #[test]
    fn alarms_beyond_the_ring_are_known_to_be_lost() {
        let (mut alarms, mut heard) = channel(Arc::new(Bell::new().unwrap()));
        let alarm = Alarm::Usage(UsageId { up_seid: 1, urr: 2 });
        assert_eq!((0..=CAPACITY).filter(|_| alarms.tell(alarm)).count(), CAPACITY);
        assert!(heard.overflowed() && !heard.overflowed());
        assert!(!alarms.tell(Alarm::Data { up_seid: 1, pdr: 2 }) && !heard.overflowed(), "that is told again");
        assert_eq!(std::iter::from_fn(|| heard.take()).count(), CAPACITY);
    }
}
