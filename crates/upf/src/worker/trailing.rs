//! Frames that leave right behind the burst whose packets they come of: copies, fragments, and end markers that come behind
//! fragments. They leave before anything is treated by other rules, and before anything that tells of other rules.

use port::{BURST_MAX, PacketRef, Rest};

use super::{Exits, Hands};
use crate::side::PortId;

/// Most that leaves behind a burst: some three times what it brings.
const OCTETS_MAX: usize = 1 << 20;
const FRAMES_MAX: usize = 4_096;

/// The frames, in order.
#[derive(Debug, Default)]
pub(super) struct Trailing {
    octets: Vec<u8>,
    /// The port of each, and where it ends.
    frames: Vec<(PortId, usize)>,
}

impl Trailing {
    /// With room for what a burst may leave; no more is ever taken.
    pub(super) fn new() -> Self {
        Self { octets: Vec::with_capacity(OCTETS_MAX), frames: Vec::with_capacity(FRAMES_MAX) }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Puts a frame behind the others. False, and nothing done, if there is no room.
    pub(super) fn push(&mut self, port: PortId, frame: &PacketRef<'_>) -> bool {
        let begin = self.octets.len();
        let end = begin + frame.len();
        if end > OCTETS_MAX || self.frames.len() == FRAMES_MAX {
            return false;
        }
        self.octets.resize(end, 0);
        frame.copy_to(&mut self.octets[begin..]);
        self.frames.push((port, end));
        true
    }

    /// Only the first `len` frames leave.
    pub(super) fn truncate(&mut self, len: usize) {
        self.octets.truncate(self.begin(len));
        self.frames.truncate(len);
    }

    /// Where a frame begins.
    fn begin(&self, at: usize) -> usize {
        at.checked_sub(1).and_then(|before| self.frames.get(before)).map_or(0, |&(_, end)| end)
    }

    /// The frames from `at` on that leave by the same port, up to a burst of them, as `burst` says.
    fn burst<'t>(&'t self, at: usize, burst: &mut [PacketRef<'t>; BURST_MAX]) -> Option<(PortId, usize)> {
        let &(port, _) = self.frames.get(at)?;
        let mut begin = self.begin(at);
        let mut count = 0;
        for &(_, end) in self.frames[at..].iter().take(BURST_MAX).take_while(|frame| frame.0 == port) {
            burst[count] = PacketRef::from_slice(&self.octets[begin..end]);
            (begin, count) = (end, count + 1);
        }
        Some((port, count))
    }
}

impl Hands {
    /// Sends what packets have left to leave behind them.
    #[cold]
    #[inline(never)]
    pub(super) fn send_trailing(&mut self, exits: &mut Exits) {
        let mut trailing = std::mem::take(&mut self.trailing);
        let mut at = 0;
        let mut burst = [PacketRef { head: &[], rest: Rest::EMPTY }; BURST_MAX];
        while let Some((port, count)) = trailing.burst(at, &mut burst) {
            self.send(port, &burst[..count], exits);
            at += count;
        }
        trailing.truncate(0);
        self.trailing = trailing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ports and contents of the bursts in which frames leave.
    fn bursts(trailing: &Trailing) -> Vec<(PortId, Vec<Vec<u8>>)> {
        let mut bursts = vec![];
        let mut at = 0;
        let mut burst = [PacketRef { head: &[], rest: Rest::EMPTY }; BURST_MAX];
        while let Some((port, count)) = trailing.burst(at, &mut burst) {
            let copy = |frame: &PacketRef<'_>| {
                let mut octets = vec![0; frame.len()];
                frame.copy_to(&mut octets);
                octets
            };
            bursts.push((port, burst[..count].iter().map(copy).collect()));
            at += count;
        }
        bursts
    }

    fn push(trailing: &mut Trailing, port: PortId, frame: &[u8]) -> bool {
        trailing.push(port, &PacketRef::from_slice(frame))
    }

    #[test]
    fn frames_leave_in_order_in_bursts_of_each_port() {
        let mut trailing = Trailing::new();
        let frames = [(PortId::N3, b"a".to_vec()), (PortId::N3, b"bc".to_vec()), (PortId::N6, b"d".to_vec())];
        frames.iter().for_each(|(port, frame)| assert!(push(&mut trailing, *port, frame)));
        let first = frames[..2].iter().map(|(_, frame)| frame.clone()).collect();
        assert_eq!(bursts(&trailing), [(PortId::N3, first), (PortId::N6, vec![b"d".to_vec()])]);
        (0..BURST_MAX).for_each(|_| assert!(push(&mut trailing, PortId::N6, b"e")));
        let counts: Vec<_> = bursts(&trailing).iter().map(|(_, frames)| frames.len()).collect();
        assert_eq!(counts, [2, BURST_MAX, 1]);
    }

    #[test]
    fn what_was_taken_back_does_not_leave() {
        let mut trailing = Trailing::new();
        [&b"ab"[..], b"c", b"d"].iter().for_each(|frame| assert!(push(&mut trailing, PortId::N3, frame)));
        trailing.truncate(1);
        assert!(push(&mut trailing, PortId::N3, b"e"));
        assert_eq!(bursts(&trailing), [(PortId::N3, vec![b"ab".to_vec(), b"e".to_vec()])]);
        trailing.truncate(0);
        assert!(trailing.is_empty() && bursts(&trailing).is_empty());
    }

    #[test]
    fn there_is_room_for_so_much_and_no_memory_is_taken_for_more() {
        let mut trailing = Trailing::new();
        let before = (trailing.octets.capacity(), trailing.frames.capacity());
        let frame = vec![0; 9_000];
        let count = std::iter::repeat_with(|| push(&mut trailing, PortId::N3, &frame)).take_while(|fits| *fits).count();
        assert_eq!(count, OCTETS_MAX / 9_000);
        let more = std::iter::repeat_with(|| push(&mut trailing, PortId::N3, b"a")).take_while(|fits| *fits).count();
        assert_eq!(count + more, FRAMES_MAX);
        assert_eq!((trailing.octets.capacity(), trailing.frames.capacity()), before);
    }
}
