//! Fragments of UEs that came before the first one of their packet, which alone has ports (RFC 4787, REQ-14). They wait for it,
//! a few and not for long, and then come again.

use port::PacketRef;

use crate::ip::Packet;
use crate::side::PortId;

/// Fragments that may wait, of all UEs and of one session.
const MOST: usize = 64;
const MOST_OF_SESSION: usize = 16;
/// For how long.
const WAIT_NS: u64 = 500_000_000;

/// What the fragments of a packet have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// Where the packet is from.
    pub source: u32,
    /// Where it goes.
    pub destination: u32,
    /// Its identification.
    pub identification: u16,
    /// Its protocol number.
    pub protocol: u8,
}

/// The fragments that wait, in the order in which they came.
#[derive(Debug, Default)]
pub struct Held(Vec<Fragment>);

#[derive(Debug)]
struct Fragment {
    whole: Whole,
    up_seid: u64,
    until_ns: u64,
    from: PortId,
    frame: Box<[u8]>,
}

impl Whole {
    /// What the packet with this fragment is.
    pub fn of(fragment: &Packet<'_, false>) -> Self {
        Self {
            source: fragment.source() as u32,
            destination: fragment.destination() as u32,
            identification: fragment.identification(),
            protocol: fragment.next_header(),
        }
    }
}

impl Held {
    /// Has the frame wait, which came from `from`. False if there is no room.
    pub fn keep(&mut self, whole: Whole, up_seid: u64, from: PortId, frame: &PacketRef<'_>, now: u64) -> bool {
        let of_session = self.0.iter().filter(|fragment| fragment.up_seid == up_seid).count();
        if self.0.len() >= MOST || of_session >= MOST_OF_SESSION {
            return false;
        }
        let mut copy = vec![0; frame.len()].into_boxed_slice();
        frame.copy_to(&mut copy);
        self.0.push(Fragment { whole, up_seid, until_ns: now + WAIT_NS, from, frame: copy });
        true
    }

    /// The first fragment of the packet has come: the next one that has waited for it, and not for too long. Another packet may
    /// have the same identification later.
    pub fn take(&mut self, whole: &Whole, now: u64) -> Option<(PortId, Box<[u8]>)> {
        let at = self.0.iter().position(|fragment| fragment.whole == *whole && fragment.until_ns > now)?;
        let Fragment { from, frame, .. } = self.0.remove(at);
        Some((from, frame))
    }

    /// Forgets those that have waited long enough, and says how many these were.
    pub fn expire(&mut self, now: u64) -> u64 {
        let before = self.0.len();
        self.0.retain(|fragment| fragment.until_ns > now);
        (before - self.0.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_wait_in_order_a_few_of_each_session_and_not_for_long() {
        let mut held = Held::default();
        let whole = |identification| Whole { identification, ..Whole::default() };
        let keep = |held: &mut Held, up_seid: u64, number: u8, now| {
            held.keep(whole(up_seid as u16), up_seid, PortId::N3, &PacketRef::from_slice(&[number]), now)
        };
        for number in 0..16 {
            assert!(keep(&mut held, 1, number, 0));
        }
        assert!(!keep(&mut held, 1, 16, 0));
        assert!((2..50).all(|session| keep(&mut held, session, 0, WAIT_NS - 1)));
        assert!(!keep(&mut held, 50, 0, 0));
        assert_eq!(held.take(&whole(1), 0).map(|(_, frame)| frame[0]), Some(0));
        assert_eq!(held.take(&whole(1), 0).map(|(_, frame)| frame[0]), Some(1));
        assert_eq!(held.expire(WAIT_NS), 14);
        assert!(held.take(&whole(1), WAIT_NS).is_none() && held.take(&whole(2), WAIT_NS).is_some());
        assert_eq!(held.expire(u64::MAX), 47);
    }

    #[test]
    fn a_fragment_that_has_waited_too_long_does_not_come_again_though_nobody_has_looked_meanwhile() {
        let mut held = Held::default();
        for (frame, now) in [(b"a", 0), (b"b", 1)] {
            assert!(held.keep(Whole::default(), 1, PortId::N3, &PacketRef::from_slice(frame), now));
        }
        assert_eq!(held.take(&Whole::default(), WAIT_NS).map(|(_, frame)| frame[0]), Some(b'b'));
        assert!(held.take(&Whole::default(), WAIT_NS).is_none());
        assert_eq!(held.expire(WAIT_NS), 1);
    }
}
