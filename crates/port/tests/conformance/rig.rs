//! A port under test, with what is at the other end of it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use port::synthetic::Captured;
use port::{BURST_MAX, FRAME_MAX, PacketRef, Port, RxQueue, TxQueue};

/// EtherType for local experiments: frames of others are not looked at.
pub const OURS: [u8; 2] = [0x88, 0xb5];

/// How long something may take that is to happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Frames on their way at a time, where some may be dropped if there are more.
const WINDOW: usize = 64;

/// Bytes that do not repeat soon.
static BYTES: [u8; FRAME_MAX + 256] = {
    let mut bytes = [0; FRAME_MAX + 256];
    let (mut n, mut state) = (0, 1_u32);
    while n < bytes.len() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes[n] = (state >> 24) as u8;
        n += 1;
    }
    bytes
};

/// A frame that can be told from others, and all of whose bytes follow from its number and length.
pub fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut frame = [[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2].as_slice(), &OURS, &number.to_le_bytes()].concat();
    frame.extend_from_slice(&BYTES[number as usize % 256..][..len.clamp(22, FRAME_MAX) - 22]);
    frame.resize(len, 0);
    frame
}

/// The number of a frame of 22 bytes or more; panics if a byte of it is not as sent.
pub fn number_of(received: &[u8]) -> u64 {
    let number = u64::from_le_bytes(received[14..22].try_into().unwrap());
    assert!(received == frame(number, received.len()), "torn frame {number}");
    number
}

/// Frames with the numbers from `first` on and a mixture of lengths that every backend carries.
pub fn numbered(first: u64, count: u64) -> Vec<Vec<u8>> {
    (first..first + count).map(|n| frame(n, 60 + (n as usize * 97) % 1_455)).collect()
}

pub fn packets(frames: &[Vec<u8>]) -> Vec<PacketRef<'_>> {
    frames.iter().map(|frame| PacketRef::from_slice(frame)).collect()
}

/// The same frame with the tag of a virtual network.
pub fn tagged(mut frame: Vec<u8>, tag: [u8; 4]) -> Vec<u8> {
    frame.splice(12..12, tag);
    frame
}

/// Those frames that are the test's, tagged ones among them.
pub fn ours(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.retain(|frame| match frame.get(12..18) {
        Some([0x81, 0x00, _, _, kind @ ..]) => *kind == OURS,
        Some(types) => types[..2] == OURS,
        None => true,
    });
    frames
}

/// Receives once; the frames as they came.
pub fn receive(rx: &mut dyn RxQueue) -> Vec<Vec<u8>> {
    let burst = rx.recv();
    assert!(burst.len() <= BURST_MAX);
    (0..burst.len()).map(|i| copied(&burst.get(i))).collect()
}

pub fn copied(packet: &PacketRef<'_>) -> Vec<u8> {
    let mut frame = vec![0; packet.len()];
    assert_eq!(packet.copy_to(&mut frame), frame.len());
    frame
}

/// Tries until something has happened.
pub fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happens() {
        assert!(Instant::now() < deadline, "in vain: {what}");
    }
}

/// The other end of a port.
pub enum Far {
    /// Another port.
    Port { port: Option<Port>, open: Box<dyn Fn() -> Port> },
    /// Memory.
    #[allow(dead_code, reason = "not every crate has such a backend")]
    Memory(Captured),
}

impl Far {
    pub fn port(port: Port, open: impl Fn() -> Port + 'static) -> Self {
        Self::Port { port: Some(port), open: Box::new(open) }
    }

    pub fn peer(&mut self) -> &mut Port {
        match self {
            Self::Port { port, .. } => port.as_mut().expect("it is there"),
            Self::Memory(_) => panic!("declared to be live"),
        }
    }

    pub fn tx(&mut self) -> &mut dyn TxQueue {
        &mut *self.peer().queues[0].tx
    }

    /// What has come here.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        match self {
            Self::Port { .. } => ours(receive(&mut *self.peer().queues[0].rx)),
            Self::Memory(captured) => captured.take(),
        }
    }

    pub fn leave(&mut self) {
        if let Self::Port { port, .. } = self {
            *port = None;
        }
    }

    pub fn come_back(&mut self) {
        if let Self::Port { port, open } = self {
            *port = Some(open());
        }
    }
}

pub struct Rig {
    pub port: Port,
    pub far: Far,
    /// What the far end has still to send.
    coming: VecDeque<Vec<u8>>,
    sent: usize,
}

impl Rig {
    pub fn new(port: Port, far: Far, coming: Vec<Vec<u8>>) -> Self {
        Self { port, far, coming: coming.into(), sent: 0 }
    }

    /// The far end sends of what has still to come, so many frames having been received.
    pub fn prompt(&mut self, received: usize) {
        while self.sent < received + WINDOW
            && let Some(frame) = self.coming.front()
            && self.far.tx().send(&[PacketRef::from_slice(frame)]) == 1
        {
            self.coming.pop_front();
            self.sent += 1;
        }
    }

    /// What waits at the port, one burst at most.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        ours(receive(&mut *self.port.queues[0].rx))
    }

    /// Receives so many of the frames with which the port was opened.
    pub fn arriving(&mut self, count: usize) -> Vec<Vec<u8>> {
        gather(count, |received| {
            self.prompt(received);
            self.take()
        })
    }

    /// Sends frames to the far end; what it received.
    pub fn leaving(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        carry(frames, &mut *self.port.queues[0].tx, || self.far.take())
    }

    /// Sends frames from the far end to the port; what it received.
    pub fn coming(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let rx = &mut self.port.queues[0].rx;
        carry(frames, self.far.tx(), || ours(receive(&mut **rx)))
    }
}

/// Takes frames until there are so many, as long as more come: `take` is told how many there are.
pub fn gather(count: usize, mut take: impl FnMut(usize) -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        until("more frames come", || {
            let more = take(taken.len());
            let any = !more.is_empty();
            taken.extend(more);
            any
        });
    }
    taken
}

/// Sends frames in bursts of several sizes, not too many at a time, until as many have been taken.
fn carry(frames: &[Vec<u8>], tx: &mut dyn TxQueue, mut take: impl FnMut() -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut sent = 0;
    gather(frames.len(), |taken| {
        let most = (taken + WINDOW).min(sent + 1 + sent % BURST_MAX).min(frames.len());
        if sent < most {
            sent += tx.send(&packets(&frames[sent..most]));
        }
        take()
    })
}
