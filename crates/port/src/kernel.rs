//! Ports over Linux interfaces: TAP devices and packet sockets. One system call a frame.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use vport::frames::FrameStore;
use vport::packet::{BURST_MAX, Burst, FRAME_MAX, PacketRef};

use crate::checksum::{Unfinished, VNET_HEADER};
use crate::packet_socket::{self, Tag};
use crate::{OpenError, OpenOptions, Port, PortInfo, QueuePair, RxCounters, RxQueue, TxCounters, TxQueue, interface};

pub(crate) fn open_tap(name: &str, options: &OpenOptions) -> Result<Port, OpenError> {
    let queues = interface::open_tap(name, 1)?;
    Ok(from_tap_fd(interface::describe(name)?, queues, options.peek_bytes)?)
}

pub(crate) fn open_packet(name: &str, options: &OpenOptions) -> Result<Port, OpenError> {
    let socket = packet_socket::open(name)?;
    let port = port(interface::describe(name)?, vec![socket], |fd| {
        let rx = PacketRx {
            fd: fd.try_clone()?,
            store: FrameStore::new(options.peek_bytes),
            large: vec![0; LARGE_MAX].into_boxed_slice(),
            cut: VecDeque::new(),
            counters: RxCounters::default(),
        };
        Ok(QueuePair { rx: Box::new(rx), tx: Box::new(Tx::new(fd, true)) })
    });
    Ok(port?)
}

pub(crate) fn from_tap_fd(info: PortInfo, queues: Vec<OwnedFd>, peek: usize) -> io::Result<Port> {
    queues.iter().try_for_each(interface::set_nonblocking)?;
    port(info, queues, |fd| {
        let rx = TapRx { fd: fd.try_clone()?, store: FrameStore::new(peek), counters: RxCounters::default() };
        Ok(QueuePair { rx: Box::new(rx), tx: Box::new(Tx::new(fd, false)) })
    })
}

fn port(mut info: PortInfo, queues: Vec<OwnedFd>, pair: impl Fn(OwnedFd) -> io::Result<QueuePair>) -> io::Result<Port> {
    info.queues = queues.len() as u16;
    let queues = queues.into_iter().map(pair).collect::<io::Result<_>>()?;
    Ok(Port::new(info, queues))
}

/// Receives from a TAP device, whose frames are always complete.
struct TapRx {
    fd: OwnedFd,
    store: FrameStore,
    counters: RxCounters,
}

impl RxQueue for TapRx {
    fn recv(&mut self) -> Burst<'_> {
        let mut packets = 0;
        // As many reads as slots, so that a flood of frames too long does not keep the caller.
        for _ in 0..BURST_MAX {
            let (head, rest) = self.store.parts(packets);
            let Some(len) = interface::read_into(self.fd.as_fd(), head, rest) else { break };
            if self.store.set_len(packets, len) {
                packets += 1;
                self.counters.bytes += len as u64;
            } else {
                self.counters.invalid += 1;
            }
        }
        count(&mut self.counters, packets);
        self.store.burst(packets)
    }

    fn arm(&mut self) -> bool {
        self.counters.sleeps += 1;
        true
    }

    fn disarm(&mut self) {}

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.fd.as_fd()]
    }

    fn counters(&self) -> RxCounters {
        self.counters
    }
}

/// The longest that a packet socket gives: a header, and a frame with an IP packet of 64 KiB.
const LARGE_MAX: usize = VNET_HEADER + (64 << 10) + 64;

/// Receives from a packet socket, and finishes what was left to a network card.
struct PacketRx {
    fd: OwnedFd,
    store: FrameStore,
    large: Box<[u8]>,
    /// Frames cut from a large one.
    cut: VecDeque<Vec<u8>>,
    counters: RxCounters,
}

impl RxQueue for PacketRx {
    fn recv(&mut self) -> Burst<'_> {
        let mut packets = 0;
        for _ in 0..BURST_MAX {
            let taken = match self.cut.pop_front() {
                Some(frame) => self.store.put(packets, &frame).then_some(frame.len()),
                None => match packet_socket::receive(self.fd.as_fd(), &mut self.large) {
                    Some((len, tag)) => self.take(packets, len, tag),
                    None => break,
                },
            };
            match taken {
                // A large frame: its pieces are next.
                Some(0) => {}
                Some(len) => {
                    packets += 1;
                    self.counters.bytes += len as u64;
                }
                None => self.counters.invalid += 1,
            }
            if packets == BURST_MAX {
                break;
            }
        }
        count(&mut self.counters, packets);
        self.store.burst(packets)
    }

    fn arm(&mut self) -> bool {
        let nothing = self.cut.is_empty();
        self.counters.sleeps += u64::from(nothing);
        nothing
    }

    fn disarm(&mut self) {}

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.fd.as_fd()]
    }

    fn counters(&self) -> RxCounters {
        self.counters
    }
}

impl PacketRx {
    /// Finishes the frame just read and puts it into slot `i`; returns its length, 0 if it was cut.
    fn take(&mut self, i: usize, len: usize, tag: Option<Tag>) -> Option<usize> {
        let (unfinished, frame) = unfinished(self.large.get_mut(..len)?, tag)?;
        if unfinished.is_large() {
            self.cut = unfinished.cut(frame)?.into();
            return Some(0);
        }
        if !unfinished.is_nothing() && !unfinished.complete(frame) {
            return None;
        }
        let len = frame.len();
        (len > 0 && self.store.put(i, frame)).then_some(len)
    }
}

/// What is missing from a frame that was received with its header, and the frame, the tag put back that was taken out of it.
fn unfinished(received: &mut [u8], tag: Option<Tag>) -> Option<(Unfinished, &mut [u8])> {
    const ADDRESSES: usize = 12;
    let unfinished = Unfinished::parse(*received.first_chunk()?);
    let Some(tag) = tag else { return Some((unfinished, &mut received[VNET_HEADER..])) };
    let begin = VNET_HEADER - tag.len();
    received.get(..VNET_HEADER + ADDRESSES)?;
    // Over the header, which was read.
    received.copy_within(VNET_HEADER..VNET_HEADER + ADDRESSES, begin);
    received[begin + ADDRESSES..][..tag.len()].copy_from_slice(&tag);
    Some((unfinished.moved(tag.len()), &mut received[begin..]))
}

fn count(counters: &mut RxCounters, packets: usize) {
    counters.polls += 1;
    counters.packets += packets as u64;
    counters.empty_polls += u64::from(packets == 0);
}

/// Sends to a device or socket.
struct Tx {
    fd: OwnedFd,
    /// Where frames are composed behind the header that a packet socket wants: all zeros, nothing is unfinished.
    composed: Option<Box<[u8]>>,
    counters: TxCounters,
}

impl Tx {
    fn new(fd: OwnedFd, with_header: bool) -> Self {
        let composed = with_header.then(|| vec![0; VNET_HEADER + FRAME_MAX].into_boxed_slice());
        Self { fd, composed, counters: TxCounters::default() }
    }

    fn write(&mut self, packet: &PacketRef<'_>) -> io::Result<()> {
        match &mut self.composed {
            None => packet.write_to(self.fd.as_fd()).map(drop),
            Some(composed) => {
                let len = packet.copy_to(&mut composed[VNET_HEADER..]);
                Ok(rustix::io::write(&self.fd, &composed[..VNET_HEADER + len]).map(drop)?)
            }
        }
    }
}

impl TxQueue for Tx {
    fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        for (n, packet) in packets.iter().enumerate() {
            if !(1..=FRAME_MAX).contains(&packet.len()) {
                self.counters.discarded += 1;
                continue;
            }
            match self.write(packet) {
                Ok(()) => {
                    self.counters.packets += 1;
                    self.counters.bytes += packet.len() as u64;
                }
                Err(error) if is_full(&error) => {
                    self.counters.refused += (packets.len() - n) as u64;
                    return n;
                }
                // The interface is down, or the frame longer than its MTU: as if the cable were unplugged.
                Err(_) => self.counters.discarded += 1,
            }
        }
        packets.len()
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}
