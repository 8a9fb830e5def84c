//! `kaista pcap`: what a port sends and receives, as pcapng, seen without touching it.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness};
use runtime::net::{PacketTap, Sniffed, packet_tap};
use runtime::{FunctionId, Sandbox};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vport::broker::{Direction, Observer};

use super::Daemon;
use super::serve::{Answer, find, refuse};
use crate::control::wire::Lines;
use crate::control::{Failure, FunctionRef, Reply};

/// How often shared memory is looked at while frames pass: also how far the order of the two directions may be off.
const BUSY_PERIOD: Duration = Duration::from_micros(20);
/// How often it is looked at otherwise.
const IDLE_PERIOD: Duration = Duration::from_micros(200);
/// For how long after a frame the next one is expected.
const BUSY_FOR: Duration = Duration::from_millis(5);
/// How many frames of an interface are taken before it is looked whether to stop: under load there is always one more.
const FRAMES_A_TURN: usize = 256;

/// Captures until told to stop, until enough was captured, or until nobody reads.
pub(super) fn serve(
    daemon: &Daemon,
    lines: &mut Lines,
    function: &FunctionRef,
    port: &str,
    snap_length: Option<u32>,
    count: Option<u64>,
    fds: Vec<OwnedFd>,
) -> Answer {
    let Ok([output]) = <[OwnedFd; 1]>::try_from(fds) else {
        return Err(refuse("one descriptor belongs to this request: where the capture goes"));
    };
    let (slice, view) = find(daemon, function)?;
    let described = view.actual.function_of(&function.function).and_then(|f| f.ports.iter().find(|p| p.name == port));
    let Some(described) = described else { return Err(refuse(format!("{function} has no port {port}"))) };
    let name = format!("{slice}/{}/{port}", function.function);
    // What passes is seen from before the capture's first byte on: who waits for that byte misses nothing.
    let mut source = match &described.interface {
        None => {
            let function = format!("{slice}/{}", function.function);
            Source::Shared(daemon.node.broker.observe(&function, port).map_err(anyhow::Error::from)?)
        }
        Some(interface) => Source::Kernel(tap(daemon, &slice, &function.function, interface)?),
    };
    if let Source::Shared(observer) = &mut source {
        observer.poll(&mut |_| ());
    }
    let mut file = Capture::begin(output, &name, snap_length, count)?;
    let ended = match source {
        Source::Shared(observer) => from_shared_memory(lines, observer, &mut file),
        Source::Kernel(tap) => from_interface(lines, &tap, &mut file),
    };
    match ended.and_then(|()| file.finish()) {
        // Whoever reads, `head` or `tshark -c`, may have had enough.
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(Reply::Captured { packets: file.packets, missed: file.missed }),
    }
}

/// Where frames are seen.
enum Source {
    Shared(Observer),
    Kernel(PacketTap),
}

fn tap(daemon: &Daemon, slice: &str, function: &str, interface: &str) -> anyhow::Result<PacketTap> {
    let id = FunctionId::new(slice, function)?;
    let sandbox = Sandbox::open(&daemon.node.layout, &id)?.with_context(|| format!("{id} has no sandbox"))?;
    Ok(packet_tap(&sandbox.net()?, interface)?)
}

fn from_shared_memory(lines: &Lines, mut observer: Observer, file: &mut Capture) -> io::Result<()> {
    // The kernel may otherwise add 50 us to each of these short sleeps. Where it refuses, only the order suffers.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut period = IDLE_PERIOD;
    let mut last_frame = Instant::now();
    while file.wants_more() && observer.is_live() && !told_to_stop(lines, period) {
        let (now, before) = (now(), file.packets);
        let mut result = Ok(());
        let missed = observer.poll(&mut |seen| {
            if result.is_ok() && file.wants_more() {
                result = file.packet(now, seen.direction, seen.frame);
            }
        });
        result?;
        file.miss_bytes(missed);
        file.flush()?;
        if file.packets > before {
            last_frame = Instant::now();
        }
        period = if last_frame.elapsed() < BUSY_FOR { BUSY_PERIOD } else { IDLE_PERIOD };
    }
    Ok(())
}

fn from_interface(lines: &Lines, tap: &PacketTap, file: &mut Capture) -> io::Result<()> {
    while file.wants_more() {
        let mut fds = [PollFd::new(tap, PollFlags::IN), PollFd::new(lines.stream(), PollFlags::IN | PollFlags::RDHUP)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if !fds[1].revents().is_empty() {
            break;
        }
        take_turn(|| tap.receive(), file)?;
        file.missed = tap.dropped();
        file.flush()?;
    }
    Ok(())
}

/// Takes the frames that are there, or some of them.
fn take_turn(mut receive: impl FnMut() -> io::Result<Option<Sniffed>>, file: &mut Capture) -> io::Result<()> {
    for _ in 0..FRAMES_A_TURN {
        if !file.wants_more() {
            break;
        }
        let Some(seen) = receive()? else { break };
        let direction = if seen.outgoing { Direction::Sent } else { Direction::Received };
        file.packet(seen.at.duration_since(UNIX_EPOCH).unwrap_or_default(), direction, &seen.frame)?;
    }
    Ok(())
}

/// Waits; true if the client said something, which can only be to stop, or hung up.
fn told_to_stop(lines: &Lines, wait: Duration) -> bool {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
    let mut fds = [PollFd::new(lines.stream(), PollFlags::IN | PollFlags::RDHUP)];
    matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A capture being written: one section, one interface.
struct Capture {
    writer: PcapNgWriter<BufWriter<std::fs::File>>,
    snap_length: usize,
    left: Option<u64>,
    packets: u64,
    bytes: u64,
    missed: u64,
}

impl Capture {
    fn begin(output: OwnedFd, name: &str, snap_length: Option<u32>, count: Option<u64>) -> Result<Self, Failure> {
        let section = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![SectionHeaderOption::UserApplication(Cow::Borrowed(concat!(
                "kaista ",
                env!("CARGO_PKG_VERSION")
            )))],
            ..Default::default()
        };
        let output = BufWriter::with_capacity(256 << 10, std::fs::File::from(output));
        let writer = PcapNgWriter::with_section_header(output, section).map_err(written)?;
        let snap_length = snap_length.filter(|length| *length > 0).unwrap_or(0);
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: snap_length,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
                // Times count nanoseconds.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        let snap_length = if snap_length == 0 { usize::MAX } else { snap_length as usize };
        let mut capture = Self { writer, snap_length, left: count, packets: 0, bytes: 0, missed: 0 };
        capture.writer.write_block(&interface.into_block()).map_err(written)?;
        // Whoever reads sees at once that it has begun.
        capture.flush()?;
        Ok(capture)
    }

    fn wants_more(&self) -> bool {
        self.left != Some(0)
    }

    fn packet(&mut self, at: Duration, direction: Direction, frame: &[u8]) -> io::Result<()> {
        // Bits 0 and 1: 1 received, 2 sent.
        let flags = match direction {
            Direction::Received => 1,
            Direction::Sent => 2,
        };
        let mut block = EnhancedPacketBlock::default();
        block.timestamp = at;
        block.original_len = frame.len() as u32;
        block.data = Cow::Borrowed(&frame[..frame.len().min(self.snap_length)]);
        block.options = vec![EnhancedPacketOption::Flags(flags)];
        self.writer.write_block(&block.into_block()).map_err(written)?;
        self.packets += 1;
        self.bytes += frame.len() as u64;
        self.left = self.left.map(|left| left - 1);
        Ok(())
    }

    /// Notes how much of a ring was written over before it could be copied, in frames as long as those seen so far.
    fn miss_bytes(&mut self, bytes: u64) {
        let mean = self.bytes.checked_div(self.packets).unwrap_or(64).max(64);
        self.missed += bytes.div_ceil(mean);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }

    /// Says how much was missed.
    fn finish(&mut self) -> io::Result<()> {
        let at = now().as_nanos() as u64;
        let statistics = InterfaceStatisticsBlock {
            interface_id: 0,
            // The upper half comes first in every byte order; the crate writes the number as a whole.
            timestamp: at.rotate_left(32),
            options: vec![
                InterfaceStatisticsOption::IsbIfRecv(self.packets + self.missed),
                InterfaceStatisticsOption::IsbIfDrop(self.missed),
            ],
        };
        self.writer.write_block(&statistics.into_block()).map_err(written)?;
        self.flush()
    }
}

fn written(error: pcap_file::PcapError) -> io::Error {
    match error {
        pcap_file::PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};
    use std::io::Read;

    #[test]
    fn an_interface_on_which_there_is_always_one_more_frame_does_not_keep_a_capture_from_being_stopped() {
        let (read, write) = io::pipe().unwrap();
        let reader = std::thread::spawn(move || io::copy(&mut { read }, &mut io::sink()));
        let seen = || Ok(Some(Sniffed { at: SystemTime::now(), outgoing: true, frame: vec![0; 60] }));
        let mut capture = Capture::begin(write.into(), "s/f/p", None, Some(1_000_000)).unwrap();
        take_turn(seen, &mut capture).unwrap();
        assert!(capture.wants_more() && capture.packets > 0);
        capture.left = Some(1);
        take_turn(seen, &mut capture).unwrap();
        assert!(!capture.wants_more());
        drop(capture);
        reader.join().unwrap().unwrap();
    }

    #[test]
    fn a_capture_reads_back_with_times_directions_lengths_and_losses() {
        let (mut read, write) = io::pipe().unwrap();
        let mut capture = Capture::begin(write.into(), "s/f/p", Some(4), Some(2)).unwrap();
        let at = Duration::new(1_700_000_000, 123_456_789);
        capture.packet(at, Direction::Received, b"abcdef").unwrap();
        capture.packet(at, Direction::Sent, b"xyz").unwrap();
        assert!(!capture.wants_more());
        capture.missed = 7;
        capture.finish().unwrap();
        drop(capture);

        let mut bytes = Vec::new();
        read.read_to_end(&mut bytes).unwrap();
        let mut reader = PcapNgReader::new(bytes.as_slice()).unwrap();
        let mut seen = Vec::new();
        let mut lost = None;
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::EnhancedPacket(packet) => {
                    assert_eq!(packet.timestamp, at);
                    let [EnhancedPacketOption::Flags(flags)] = packet.options[..] else { panic!("no direction") };
                    seen.push((packet.data.to_vec(), packet.original_len, flags));
                }
                Block::InterfaceStatistics(statistics) => {
                    lost = Some(statistics.options.contains(&InterfaceStatisticsOption::IsbIfDrop(7)))
                }
                _ => {}
            }
        }
        assert_eq!(seen, [(b"abcd".to_vec(), 6, 1), (b"xyz".to_vec(), 3, 2)]);
        assert_eq!(lost, Some(true));
    }
}
