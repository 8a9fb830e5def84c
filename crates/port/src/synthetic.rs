//! Ports without a peer: frames come from memory, output is counted and swallowed, or kept for a test to look at.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use vport::local::{LocalSink, LocalSource, Then};
use vport::steering::BucketTable;

use crate::{
    Burst, FRAME_MAX, Held, OpenOptions, PacketRef, Port, PortInfo, QueuePair, RxCounters, RxQueue, Steering,
    TxCounters, TxQueue,
};

/// A synthetic port in the making. Its queues run the same code as shared-memory ones, over private memory.
pub struct Synthetic {
    info: PortInfo,
    frames: Vec<Vec<u8>>,
    then: Then,
    peek: usize,
}

/// What was sent to a synthetic port, in order.
#[derive(Clone, Default)]
pub struct Captured(Arc<Mutex<Vec<Vec<u8>>>>);

impl Captured {
    /// Takes all frames sent since the last call.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, packets: &[PacketRef<'_>]) {
        let sent = packets.iter().filter(|packet| (1..=FRAME_MAX).contains(&packet.len()));
        let frames = sent.map(|packet| {
            let mut frame = vec![0; packet.len()];
            packet.copy_to(&mut frame);
            frame
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(frames);
    }
}

impl Synthetic {
    /// A port that receives `frames` over and over. None: it receives nothing.
    pub fn new(frames: Vec<Vec<u8>>) -> Self {
        let peek = OpenOptions::default().peek_bytes;
        Self { info: PortInfo::named("synthetic"), frames, then: Then::Repeat, peek }
    }

    /// Receives every frame once, and then nothing.
    pub fn once(mut self) -> Self {
        self.then = Then::Stop;
        self
    }

    /// Sets name, addresses, steering and the number of queues. Frames are dealt to queues by the steering.
    pub fn info(mut self, info: PortInfo) -> Self {
        self.info = info;
        self
    }

    /// How many bytes of a frame are its head, as in [`OpenOptions::peek_bytes`].
    pub fn peek_bytes(mut self, peek: usize) -> Self {
        self.peek = peek;
        self
    }

    /// A port that counts and swallows what is sent.
    ///
    /// # Panics
    /// If a frame has a length that no port carries, or memory is short.
    pub fn open(self) -> Port {
        self.build(None).unwrap_or_else(|error| panic!("synthetic port: {error}"))
    }

    /// A port that keeps copies of what is sent.
    ///
    /// # Panics
    /// As [`Synthetic::open`].
    pub fn open_captured(self) -> (Port, Captured) {
        let captured = Captured::default();
        (self.build(Some(&captured)).unwrap_or_else(|error| panic!("synthetic port: {error}")), captured)
    }

    fn build(self, captured: Option<&Captured>) -> io::Result<Port> {
        let count = usize::from(self.info.queues.max(1));
        let table = BucketTable::fixed(count);
        let mut dealt = vec![Vec::new(); count];
        for frame in self.frames {
            dealt[table.queue(self.info.steering.bucket(&frame))].push(frame);
        }
        let steering = self.info.steering;
        let queues = dealt.iter().enumerate().map(|(queue, frames)| {
            let source = LocalSource::new(frames, self.then, self.peek)?;
            let rx = Rx(if count > 1 { source.of_queue(steering, queue, count)? } else { source });
            let tx = Tx { sink: LocalSink::new()?, captured: captured.cloned() };
            Ok(QueuePair { rx: Box::new(rx), tx: Box::new(tx) })
        });
        Ok(Port::new(self.info, queues.collect::<io::Result<_>>()?))
    }
}

struct Rx(LocalSource);

impl RxQueue for Rx {
    fn recv(&mut self) -> Burst<'_> {
        self.0.recv()
    }

    fn recv_held(&mut self, steering: Steering) -> Option<Held<'_>> {
        Some(self.0.recv_held(steering))
    }

    fn give_back(&mut self, position: u64) {
        self.0.give_back(position);
    }

    fn arm(&mut self) -> bool {
        !self.0.has_more()
    }

    fn disarm(&mut self) {}

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn counters(&self) -> RxCounters {
        self.0.counters()
    }
}

struct Tx {
    sink: LocalSink,
    captured: Option<Captured>,
}

impl TxQueue for Tx {
    fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        if let Some(captured) = &self.captured {
            captured.add(packets);
        }
        self.sink.send(packets)
    }

    fn counters(&self) -> TxCounters {
        self.sink.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_dealt_to_the_queues_that_own_them() {
        let frame = |host| {
            let mut frame = vec![0; 34];
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            frame[33] = host;
            frame
        };
        let mut info = PortInfo::named("n6");
        (info.queues, info.steering) = (4, Steering::UeAddress);
        let mut port = Synthetic::new((0..=255).map(frame).collect()).once().info(info).open();
        let table = BucketTable::fixed(4);
        let mut seen = 0;
        for (queue, pair) in port.queues.iter_mut().enumerate() {
            loop {
                let burst = pair.rx.recv();
                if burst.is_empty() {
                    break;
                }
                for i in 0..burst.len() {
                    assert_eq!(table.queue(Steering::UeAddress.bucket(burst.get(i).head)), queue);
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 256);
    }

    #[test]
    fn what_is_sent_can_be_captured() {
        let (mut port, captured) = Synthetic::new(Vec::new()).open_captured();
        assert_eq!(port.queues[0].tx.send(&[PacketRef::from_slice(&[1; 60]), PacketRef::from_slice(&[2; 70])]), 2);
        assert_eq!(captured.take(), [vec![1; 60], vec![2; 70]]);
        assert!(captured.take().is_empty());
    }
}
