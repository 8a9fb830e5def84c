//! Frames on their way from one thread of the UPF to another, in order: a ring of bytes with one writer and one reader.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use port::{BURST_MAX, FRAME_MAX, PacketRef};

use crate::bell::Bell;
use crate::packet::Punt;
use crate::side::PortId;

/// What the receiver is to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// Process it as if it had come from this port. It belongs to the receiver.
    Process(PortId),
    /// Process it as if it had come from this port, or hand it to the worker that it belongs to.
    Enter(PortId),
    /// Send it to this port as it is.
    Send(PortId),
    /// Look what it is; it came from this port.
    Punt(PortId, Punt),
    /// Send it to this port once the neighbour is resolved; its Ethernet header has no addresses yet.
    Resolve(PortId, IpAddr),
    /// Once this neighbour of the port is resolved, have a worker process the frame as if it had come from the first port then.
    Await(PortId, PortId, IpAddr),
    /// Tell the sender of the packet that it is too long.
    TooLong(TooLong),
    /// What comes behind it is handed on by the owners of this epoch. There is no frame.
    Marker(u64),
}

/// What a packet was too long for. Its beginning is in the frame, behind an Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The port in whose network it came in, or was to leave.
    pub port: PortId,
    /// Whether a UE sent it.
    pub from_ue: bool,
    /// Octets that would pass.
    pub mtu: u16,
}

/// The writer's end.
pub struct Outbox {
    ring: rtrb::Producer<u8>,
    bell: Arc<Bell>,
    posted: bool,
    record: Box<[u8; RECORD_MAX]>,
}

/// The reader's end.
pub struct Inbox {
    ring: rtrb::Consumer<u8>,
    frame: Box<[u8; FRAME_MAX]>,
    /// The letter taken out last with the length of its frame, and whether it is to be taken out again.
    last: Option<(Letter, usize)>,
    is_back: bool,
}

/// Length of the frame (2), kind, port, detail (1 each), padding (1), number (2), address (16).
const HEADER_LEN: usize = 24;
const RECORD_MAX: usize = HEADER_LEN + FRAME_MAX;

/// A ring of `bytes` bytes to the thread that hears `bell`.
pub fn channel(bytes: usize, bell: Arc<Bell>) -> (Outbox, Inbox) {
    let (producer, consumer) = rtrb::RingBuffer::new(bytes);
    let outbox = Outbox { ring: producer, bell, posted: false, record: Box::new([0; RECORD_MAX]) };
    (outbox, Inbox { ring: consumer, frame: Box::new([0; FRAME_MAX]), last: None, is_back: false })
}

impl Outbox {
    /// Puts a frame into the ring. False, and nothing done, if there is no room.
    pub fn post(&mut self, letter: Letter, frame: &PacketRef<'_>) -> bool {
        if frame.len() > FRAME_MAX {
            return false;
        }
        let len = HEADER_LEN + frame.copy_to(&mut self.record[HEADER_LEN..]);
        self.record[..HEADER_LEN].copy_from_slice(&header(letter, frame.len()));
        let fits = self.ring.push_entire_slice(&self.record[..len]).is_ok();
        self.posted |= fits;
        fits
    }

    /// Whether more than half of the ring is in use.
    pub fn is_busy(&self) -> bool {
        self.ring.slots() < self.ring.buffer().capacity() / 2
    }

    /// Whether more than three quarters of the ring are in use.
    pub fn is_nearly_full(&self) -> bool {
        self.ring.slots() < self.ring.buffer().capacity() / 4
    }

    /// Whether whatever a burst brings fits.
    #[inline]
    pub fn has_room_for_burst(&self) -> bool {
        self.ring.slots() >= BURST_MAX * RECORD_MAX
    }

    /// Whether so many frames fit that have at most `front_bytes` each before their part of `bytes`.
    pub fn has_room(&self, frames: usize, front_bytes: usize, bytes: usize) -> bool {
        self.ring.slots() >= frames * (HEADER_LEN + front_bytes) + bytes
    }

    /// Whether a marker fits.
    pub fn has_room_for_marker(&mut self) -> bool {
        self.ring.slots() >= HEADER_LEN
    }

    /// Wakes the reader, if anything was put in since the last call.
    #[inline]
    pub fn deliver(&mut self) {
        if std::mem::take(&mut self.posted) {
            self.bell.ring();
        }
    }
}

impl Inbox {
    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.is_back && self.ring.is_empty()
    }

    /// Takes the next frame out.
    pub fn take(&mut self) -> Option<(Letter, &[u8])> {
        if !std::mem::take(&mut self.is_back) {
            let mut header = [0; HEADER_LEN];
            self.ring.pop_entire_slice(&mut header).ok()?;
            let (letter, len) = read_header(&header);
            self.ring.pop_entire_slice(&mut self.frame[..len]).expect("a record is put in whole");
            self.last = Some((letter, len));
        }
        let (letter, len) = self.last?;
        Some((letter, &self.frame[..len]))
    }

    /// Puts back what was taken out last: it is the next again.
    pub fn put_back(&mut self) {
        self.is_back = self.last.is_some();
    }
}

const PUNTS: [Punt; 5] = [Punt::Host, Punt::Fragment, Punt::Gtpu, Punt::UnknownTeid, Punt::UnknownExtension];

fn header(letter: Letter, len: usize) -> [u8; HEADER_LEN] {
    let (kind, port, detail, number, address) = match letter {
        Letter::Process(port) => (0, port, 0, 0, Ipv6Addr::UNSPECIFIED),
        Letter::Send(port) => (1, port, 0, 0, Ipv6Addr::UNSPECIFIED),
        Letter::Punt(port, punt) => (2, port, punt as u8, 0, Ipv6Addr::UNSPECIFIED),
        Letter::Enter(port) => (3, port, 0, 0, Ipv6Addr::UNSPECIFIED),
        Letter::TooLong(TooLong { port, from_ue, mtu }) => (4, port, from_ue.into(), mtu, Ipv6Addr::UNSPECIFIED),
        Letter::Await(from, port, IpAddr::V4(address)) => (6, port, 4, from.number() as u16, address.to_ipv6_mapped()),
        Letter::Await(from, port, IpAddr::V6(address)) => (6, port, 6, from.number() as u16, address),
        Letter::Marker(epoch) => (7, PortId::N3, 0, 0, Ipv6Addr::from_bits(epoch.into())),
        Letter::Resolve(port, IpAddr::V4(address)) => (5, port, 4, 0, address.to_ipv6_mapped()),
        Letter::Resolve(port, IpAddr::V6(address)) => (5, port, 6, 0, address),
    };
    let mut header = [0; HEADER_LEN];
    header[..2].copy_from_slice(&(len as u16).to_ne_bytes());
    header[2..5].copy_from_slice(&[kind, port.number() as u8, detail]);
    header[6..8].copy_from_slice(&number.to_ne_bytes());
    header[8..].copy_from_slice(&address.octets());
    header
}

fn read_header(header: &[u8; HEADER_LEN]) -> (Letter, usize) {
    let &[l0, l1, kind, port, detail, _, n0, n1, ref address @ ..] = header;
    let number = u16::from_ne_bytes([n0, n1]);
    let port = PortId::new(port.into());
    let letter = match (kind, detail) {
        (0, _) => Letter::Process(port),
        (1, _) => Letter::Send(port),
        (2, punt) => Letter::Punt(port, PUNTS[usize::from(punt)]),
        (3, _) => Letter::Enter(port),
        (4, from_ue) => Letter::TooLong(TooLong { port, from_ue: from_ue != 0, mtu: number }),
        (6, 4) => Letter::Await(PortId::new(number.into()), port, Ipv6Addr::from(*address).to_canonical()),
        (6, _) => Letter::Await(PortId::new(number.into()), port, Ipv6Addr::from(*address).into()),
        (7, _) => Letter::Marker(Ipv6Addr::from(*address).to_bits() as u64),
        (_, 4) => Letter::Resolve(port, Ipv6Addr::from(*address).to_canonical()),
        _ => Letter::Resolve(port, Ipv6Addr::from(*address).into()),
    };
    (letter, u16::from_ne_bytes([l0, l1]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(bytes: usize) -> (Outbox, Inbox) {
        channel(bytes, Arc::new(Bell::new().unwrap()))
    }

    #[test]
    fn every_letter_arrives_as_it_was_posted_and_in_order() {
        let mut letters = vec![
            Letter::Process(PortId::N6),
            Letter::Send(PortId::N3),
            Letter::Enter(PortId::new(PortId::MAX - 1)),
            Letter::TooLong(TooLong { port: PortId::N6, from_ue: false, mtu: 1_280 }),
            Letter::TooLong(TooLong { port: PortId::N6, from_ue: true, mtu: 65_535 }),
            Letter::Marker(u64::MAX - 7),
            Letter::Await(PortId::N3, PortId::N6, "10.0.0.1".parse().unwrap()),
            Letter::Await(PortId::N6, PortId::N3, "2001:db8::1".parse().unwrap()),
            Letter::Resolve(PortId::N6, "10.0.0.1".parse().unwrap()),
            Letter::Resolve(PortId::N3, "2001:db8::1".parse().unwrap()),
            Letter::Resolve(PortId::N3, "::ffff:10.0.0.1".parse().unwrap()),
        ];
        letters.extend(PUNTS.map(|punt| Letter::Punt(PortId::N3, punt)));
        let (mut outbox, mut inbox) = ring(1_500);
        // More than once round the ring.
        for round in 0..50_u8 {
            for &letter in &letters {
                assert!(outbox.post(letter, &PacketRef::from_slice(&[round; 61])));
            }
            for &letter in &letters {
                assert_eq!(inbox.take(), Some((letter, [round; 61].as_slice())));
            }
        }
        assert!(inbox.is_empty() && inbox.take().is_none());
    }

    #[test]
    fn a_letter_that_was_put_back_is_the_next_again() {
        let (mut outbox, mut inbox) = ring(1_500);
        for byte in [1, 2] {
            assert!(outbox.post(Letter::Process(PortId::N6), &PacketRef::from_slice(&[byte; 61])));
        }
        inbox.put_back();
        for byte in [1, 2] {
            assert_eq!(inbox.take(), Some((Letter::Process(PortId::N6), [byte; 61].as_slice())));
            if byte == 1 {
                inbox.put_back();
                assert!(!inbox.is_empty());
                assert_eq!(inbox.take().unwrap().1, [1; 61]);
            }
        }
        assert!(inbox.is_empty() && inbox.take().is_none());
    }

    #[test]
    fn a_frame_that_does_not_fit_is_refused_whole() {
        let (mut outbox, mut inbox) = ring(200);
        assert!(outbox.post(Letter::Send(PortId::N3), &PacketRef::from_slice(&[1; 100])));
        assert!(!outbox.has_room(1, 0, 100) && outbox.has_room(2, 4, 20));
        assert!(!outbox.post(Letter::Send(PortId::N3), &PacketRef::from_slice(&[2; 100])));
        assert_eq!(inbox.take().unwrap().1, [1; 100]);
        assert!(inbox.is_empty());
    }
}
