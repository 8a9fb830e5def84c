//! Frames of a capture, sent over and over as fast as a port takes them, and counted where they come out.
//!
//! One thread sends and receives. What has come out is taken first, so that a function never waits for room behind it; then a
//! burst is offered. Where the port takes all of every burst it is this thread that is the limit, and where it does not, whoever
//! is at the other end: [`Replayed::full`] tells.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use port::{BURST_MAX, PacketRef, QueuePair, TxQueue};
use serde::{Deserialize, Serialize};

use crate::host::{Host, Outcome};
use crate::interrupt::Interrupt;

/// Turns between two looks at the clock and at the port that is sent on, where only questions for addresses come from.
const TURNS: usize = 64;
/// Bursts taken out at most before the next one is offered.
const OUT_FIRST: usize = 4;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Questions for addresses (ARP, neighbour discovery) are frames of this length at most, in bytes; only such are looked at.
const QUESTION_MAX: usize = 86;

/// Frames, one behind the other in memory, so that the processor can guess which line is next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Where each one ends.
    ends: Vec<usize>,
}

impl Frames {
    /// Those of a capture in the format of pcap or pcapng.
    ///
    /// # Errors
    /// It cannot be read, or there is no frame in it.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let named = || path.display().to_string();
        let mut file = BufReader::new(File::open(path).with_context(named)?);
        let mut frames = Self::default();
        match PcapReader::new(&mut file) {
            Ok(mut reader) => {
                while let Some(packet) = reader.next_packet() {
                    frames.push(&packet.with_context(named)?.data);
                }
            }
            Err(_) => {
                file.rewind()?;
                let mut reader = PcapNgReader::new(file).with_context(named)?;
                while let Some(block) = reader.next_block() {
                    if let Block::EnhancedPacket(packet) = block.with_context(named)? {
                        frames.push(&packet.data);
                    }
                }
            }
        }
        ensure!(!frames.ends.is_empty(), "{}: has no frames", path.display());
        Ok(frames)
    }

    fn push(&mut self, frame: &[u8]) {
        self.bytes.extend(frame);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, at: usize) -> &[u8] {
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[begin..self.ends[at]]
    }

    /// Asks for the lines of a burst that is sent soon.
    #[inline(always)]
    fn expect(&self, first: usize) {
        let begin = if first == 0 { 0 } else { self.ends[first - 1] };
        let end = self.ends[(first + BURST_MAX - 1).min(self.ends.len() - 1)];
        self.bytes[begin..end].chunks(LINE_BYTES).for_each(port::prefetch);
    }
}

/// A queue, and who answers on its link whoever asks for an address.
pub struct End {
    /// The queue.
    pub queue: QueuePair,
    /// The host with the port's addresses.
    pub host: Host,
}

impl End {
    /// Takes a burst, and answers questions in it: how many frames and bytes came besides.
    #[inline]
    fn take(&mut self) -> (u64, u64) {
        let burst = self.queue.rx.recv();
        let (mut frames, mut bytes) = (0, 0);
        for at in 0..burst.len() {
            let packet = burst.get(at);
            if packet.len() <= QUESTION_MAX && answer(&mut self.host, self.queue.tx.as_mut(), &packet) {
                continue;
            }
            (frames, bytes) = (frames + 1, bytes + packet.len() as u64);
        }
        (frames, bytes)
    }
}

/// Answers the frame if it is for the host. False if it is not.
#[cold]
fn answer(host: &mut Host, tx: &mut dyn TxQueue, packet: &PacketRef<'_>) -> bool {
    match host.look_at(packet.head) {
        Outcome::Other => false,
        Outcome::Consumed => true,
        Outcome::Reply(reply) => {
            tx.send(&[PacketRef::from_slice(&reply)]);
            true
        }
    }
}

/// What was counted since some time.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bursts: u64,
    full: u64,
    accepted: u64,
    received: u64,
    received_bytes: u64,
}

/// What a replay found in its window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Replayed {
    /// Length of the window in seconds.
    pub seconds: f64,
    /// Frames that the port took.
    pub accepted: u64,
    /// Frames that came out at the other port.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames a second that came out, in millions.
    pub mpps: f64,
    /// Share of the bursts offered of which the port did not take all.
    pub full: f64,
}

/// A port that frames are sent on, and the one where they come out.
pub struct Replay {
    frames: Frames,
    next: usize,
    into: End,
    out: End,
    counts: Counts,
}

impl Replay {
    /// Sends these frames from `into`, and counts at `out`.
    pub fn new(frames: Frames, into: End, out: End) -> Self {
        Self { frames, next: 0, into, out, counts: Counts::default() }
    }

    /// Waits until frames come out, for `patience` at most, goes on for `warm_up`, and then counts for `window`, or until it
    /// is interrupted.
    ///
    /// # Errors
    /// Nothing comes out.
    pub fn run(
        &mut self,
        patience: Duration,
        warm_up: Duration,
        window: Duration,
        interrupt: Option<&Interrupt>,
    ) -> anyhow::Result<Replayed> {
        let goes_on = || interrupt.is_none_or(|interrupt| !interrupt.has_come());
        let begin = Instant::now();
        while self.counts.received == 0 && goes_on() {
            ensure!(begin.elapsed() < patience, "nothing comes out of the second port");
            self.turns();
        }
        let begin = Instant::now();
        while begin.elapsed() < warm_up && goes_on() {
            self.turns();
        }
        let (begin, before) = (Instant::now(), self.counts);
        while begin.elapsed() < window && goes_on() {
            self.turns();
        }
        Ok(self.counts.since(&before, begin.elapsed()))
    }

    fn turns(&mut self) {
        self.into.take();
        (0..TURNS).for_each(|_| self.turn());
    }

    /// Takes what has come out, and offers a burst.
    #[inline]
    fn turn(&mut self) {
        for _ in 0..OUT_FIRST {
            let (frames, bytes) = self.out.take();
            self.counts.received += frames;
            self.counts.received_bytes += bytes;
            if frames < BURST_MAX as u64 {
                break;
            }
        }
        let mut burst = [PacketRef::from_slice(&[]); BURST_MAX];
        let count = self.frames.ends.len();
        let mut at = self.next;
        for packet in &mut burst {
            *packet = PacketRef::from_slice(self.frames.get(at));
            at = if at + 1 == count { 0 } else { at + 1 };
        }
        self.frames.expect(at);
        let sent = self.into.queue.tx.send(&burst);
        self.next = (self.next + sent) % count;
        self.counts.bursts += 1;
        self.counts.full += u64::from(sent < BURST_MAX);
        self.counts.accepted += sent as u64;
    }
}

impl Counts {
    fn since(&self, before: &Self, time: Duration) -> Replayed {
        let (seconds, received) = (time.as_secs_f64(), self.received - before.received);
        Replayed {
            seconds,
            accepted: self.accepted - before.accepted,
            received,
            received_bytes: self.received_bytes - before.received_bytes,
            mpps: received as f64 / seconds / 1e6,
            full: (self.full - before.full) as f64 / (self.bursts - before.bursts).max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::{PcapPacket, PcapWriter};
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
    use port::synthetic::Synthetic;
    use port::{PortInfo, TxCounters};
    use tempfile::TempDir;

    use super::*;

    const SENT: [&[u8]; 3] = [&[1; 100], &[2; 60], &[3; 1_400]];

    fn frames(all: &[&[u8]]) -> Frames {
        let mut frames = Frames::default();
        all.iter().for_each(|frame| frames.push(frame));
        frames
    }

    #[test]
    fn captures_of_both_formats_are_read() {
        let folder = TempDir::new().expect("a temporary directory");
        let (pcap, pcapng) = (folder.path().join("a.pcap"), folder.path().join("a.pcapng"));
        let mut writer = PcapWriter::new(File::create(&pcap).expect("a file")).expect("a header");
        for frame in SENT {
            writer.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, frame)).expect("a packet");
        }
        drop(writer);
        let mut writer = PcapNgWriter::new(File::create(&pcapng).expect("a file")).expect("a header");
        let interface = InterfaceDescriptionBlock::new(pcap_file::DataLink::ETHERNET, 0);
        writer.write_pcapng_block(interface).expect("an interface");
        for frame in SENT {
            let mut block = EnhancedPacketBlock::default();
            (block.original_len, block.data) = (frame.len() as u32, frame.into());
            writer.write_pcapng_block(block).expect("a packet");
        }
        drop(writer);
        assert_eq!(Frames::read(&pcap).expect("frames"), frames(&SENT));
        assert_eq!(Frames::read(&pcapng).expect("frames"), frames(&SENT));
        std::fs::write(&pcap, "neither").expect("a file");
        assert!(Frames::read(&pcap).is_err());
    }

    #[test]
    fn frames_are_sent_in_turn_and_what_comes_out_is_counted() {
        let (port, captured) = Synthetic::new(vec![]).open_captured();
        let into = end(port.queues.into_iter().next().expect("a queue"));
        let out = end(Synthetic::new(vec![vec![9; 200]; 5]).once().open().queues.remove(0));
        let mut replay = Replay::new(frames(&SENT), into, out);
        (0..2).for_each(|_| replay.turn());
        let sent = captured.take();
        assert_eq!(sent.len(), 2 * BURST_MAX);
        assert!(sent.iter().enumerate().all(|(at, frame)| frame == SENT[at % SENT.len()]));
        let found = replay.counts.since(&Counts::default(), Duration::from_secs(1));
        assert_eq!((found.accepted, found.received, found.received_bytes), (2 * BURST_MAX as u64, 5, 1_000));
        assert_eq!(found.full, 0.0);
    }

    /// A sending half with room for so many packets in all.
    struct Room(usize);

    impl TxQueue for Room {
        fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
            let sent = packets.len().min(self.0);
            self.0 -= sent;
            sent
        }

        fn counters(&self) -> TxCounters {
            TxCounters::default()
        }
    }

    #[test]
    fn bursts_that_found_no_room_are_told() {
        let queue = Synthetic::new(vec![]).open().queues.remove(0);
        let into = end(QueuePair { rx: queue.rx, tx: Box::new(Room(BURST_MAX + 7)) });
        let out = end(Synthetic::new(vec![]).open().queues.remove(0));
        let mut replay = Replay::new(frames(&SENT), into, out);
        (0..4).for_each(|_| replay.turn());
        let found = replay.counts.since(&Counts::default(), Duration::from_secs(1));
        assert_eq!((found.accepted, found.full), (BURST_MAX as u64 + 7, 0.75));
        assert_eq!(replay.next, (BURST_MAX + 7) % SENT.len());
    }

    #[test]
    fn whoever_asks_for_an_address_gets_it_and_is_not_counted() {
        let mut info = PortInfo::named("out");
        info.addresses = vec![("10.6.0.2".parse().expect("an address"), 24)];
        let mut asking = PortInfo::named("asking");
        asking.addresses = vec![("10.6.0.1".parse().expect("an address"), 24)];
        let question = Host::of(&asking).ask("10.6.0.2".parse().expect("an address")).expect("a question");
        let (port, captured) = Synthetic::new(vec![question]).once().open_captured();
        let mut out = End { queue: port.queues.into_iter().next().expect("a queue"), host: Host::of(&info) };
        assert_eq!(out.take(), (0, 0));
        assert_eq!(captured.take().len(), 1);
    }

    #[test]
    fn a_path_that_lets_nothing_through_is_an_error() {
        let queue = || end(Synthetic::new(vec![]).open().queues.remove(0));
        let mut replay = Replay::new(frames(&SENT), queue(), queue());
        let ran = replay.run(Duration::from_millis(5), Duration::ZERO, Duration::ZERO, None);
        assert!(ran.is_err(), "{ran:?}");
    }

    fn end(queue: QueuePair) -> End {
        End { queue, host: Host::of(&PortInfo::named("end")) }
    }
}
