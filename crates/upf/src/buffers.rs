//! Packets that wait for their UE to be paged (TS 23.501, 5.8.3): in order, so many of a session, so many octets in all.

use std::collections::VecDeque;

use hashbrown::HashMap;
use port::PacketRef;
use serde::{Deserialize, Serialize};

use crate::side::PortId;

/// How packets of a PDR wait. Part of the compiled rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The UPF's SEID of the session.
    pub up_seid: u64,
    /// PDR ID.
    pub pdr: u16,
    /// Most packets of the session that wait.
    pub max_packets: u16,
    /// Whether N4 is told when packets begin to wait.
    pub notify: bool,
}

/// What became of a packet that was to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It waits.
    Waits,
    /// It waits, and N4 has not been told of its PDR.
    IsNews,
    /// There is no room.
    Full,
}

/// The waiting packets of a worker's sessions.
#[derive(Debug)]
pub struct Buffers {
    /// By the UPF's SEID.
    queues: HashMap<u64, Queue>,
    max_octets: usize,
    octets: usize,
    packets: usize,
}

/// The waiting packets of a session, on their way to another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    up_seid: u64,
    /// With the numbers of the ports that they came by.
    frames: Vec<(u8, Vec<u8>)>,
    told: Vec<u16>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Whole frames, as they came from these ports.
    frames: VecDeque<(PortId, Box<[u8]>)>,
    /// PDRs that N4 was told of.
    told: Vec<u16>,
}

impl Buffers {
    /// Room for `max_octets` octets of frames.
    pub fn new(max_octets: usize) -> Self {
        Self { queues: HashMap::new(), max_octets, octets: 0, packets: 0 }
    }

    /// Has the frame wait, which came from `port`.
    pub fn keep(&mut self, waiting: &Waiting, port: PortId, frame: &PacketRef<'_>) -> Kept {
        let len = frame.len();
        if self.octets + len > self.max_octets {
            return Kept::Full;
        }
        let queue = self.queues.entry(waiting.up_seid).or_default();
        if queue.frames.len() >= waiting.max_packets.into() {
            return Kept::Full;
        }
        let mut copy = vec![0; len].into_boxed_slice();
        frame.copy_to(&mut copy);
        queue.frames.push_back((port, copy));
        self.octets += len;
        self.packets += 1;
        if waiting.notify && !queue.told.contains(&waiting.pdr) { Kept::IsNews } else { Kept::Waits }
    }

    /// Packets that wait.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// N4 was told of packets that the PDR has matched.
    pub fn told(&mut self, waiting: &Waiting) {
        if let Some(queue) = self.queues.get_mut(&waiting.up_seid) {
            queue.told.push(waiting.pdr);
        }
    }

    /// All frames of the session that wait, in order; they do not any more.
    pub fn take(&mut self, up_seid: u64) -> VecDeque<(PortId, Box<[u8]>)> {
        let frames = self.queues.remove(&up_seid).unwrap_or_default().frames;
        self.packets -= frames.len();
        self.octets -= frames.iter().map(|(_, frame)| frame.len()).sum::<usize>();
        frames
    }

    /// Takes everything out.
    pub fn park(&mut self) -> Vec<Parked> {
        (self.octets, self.packets) = (0, 0);
        let parked = self.queues.drain().map(|(up_seid, queue)| {
            let frames = queue.frames.into_iter().map(|(port, frame)| (port.number() as u8, frame.into())).collect();
            Parked { up_seid, frames, told: queue.told }
        });
        parked.collect()
    }

    /// Puts everything back in, but for what came by other ports than the first `ports`.
    pub fn unpark(&mut self, parked: Vec<Parked>, ports: usize) {
        for Parked { up_seid, frames, told } in parked {
            let known = frames.into_iter().filter(|(port, _)| usize::from(*port) < ports);
            let frames: VecDeque<(PortId, Box<[u8]>)> =
                known.map(|(port, frame)| (PortId::new(port.into()), frame.into())).collect();
            self.octets += frames.iter().map(|(_, frame)| frame.len()).sum::<usize>();
            self.packets += frames.len();
            self.queues.insert(up_seid, Queue { frames, told });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITING: Waiting = Waiting { up_seid: 1, pdr: 2, max_packets: 3, notify: true };

    fn keep(buffers: &mut Buffers, waiting: &Waiting, frame: &[u8]) -> Kept {
        buffers.keep(waiting, PortId::N6, &PacketRef::from_slice(frame))
    }

    #[test]
    fn frames_wait_in_order_and_each_pdr_is_news_once() {
        let mut buffers = Buffers::new(1_000);
        assert_eq!(keep(&mut buffers, &WAITING, b"a"), Kept::IsNews);
        buffers.told(&WAITING);
        assert_eq!(keep(&mut buffers, &WAITING, b"b"), Kept::Waits);
        assert_eq!(keep(&mut buffers, &Waiting { pdr: 3, ..WAITING }, b"c"), Kept::IsNews);
        assert_eq!(buffers.take(2).len(), 0);
        assert_eq!(buffers.take(1).iter().map(|(_, frame)| frame[0]).collect::<Vec<_>>(), b"abc");
        assert_eq!(keep(&mut buffers, &Waiting { notify: false, ..WAITING }, b"d"), Kept::Waits);
    }

    #[test]
    fn frames_that_were_parked_wait_as_before() {
        let mut before = Buffers::new(1_000);
        keep(&mut before, &WAITING, b"a");
        before.told(&WAITING);
        keep(&mut before, &WAITING, b"b");
        let mut after = Buffers::new(1_000);
        after.unpark(before.park(), 2);
        assert_eq!((before.packets(), after.packets(), after.octets), (0, 2, 2));
        assert_eq!(keep(&mut after, &WAITING, b"c"), Kept::Waits);
        assert_eq!(after.take(1).iter().map(|(_, frame)| frame[0]).collect::<Vec<_>>(), b"abc");
    }

    #[test]
    fn a_session_and_all_sessions_have_their_bounds() {
        let mut buffers = Buffers::new(100);
        for kept in [Kept::IsNews, Kept::IsNews, Kept::IsNews, Kept::Full] {
            assert_eq!(keep(&mut buffers, &WAITING, &[0; 20]), kept);
        }
        let other = Waiting { up_seid: 2, ..WAITING };
        assert_eq!(keep(&mut buffers, &other, &[0; 41]), Kept::Full);
        assert_eq!(keep(&mut buffers, &other, &[0; 40]), Kept::IsNews);
        assert_eq!(buffers.take(1).len(), 3);
        assert_eq!(keep(&mut buffers, &other, &[0; 60]), Kept::IsNews);
        assert_eq!((buffers.take(2).len(), buffers.octets, buffers.queues.len()), (2, 0, 0));
    }
}
