//! A function over shared memory: its worker on one core, and on the other a thread that feeds it and drains it.
//!
//! The feeding thread keeps so many packets on their way that the worker always finds full bursts, and no more than rings have room
//! for, so that none is dropped. A worker that is faster than the feeding thread would find crumbs: where it has emptied its queue
//! it is shown nothing until many packets wait, and that time does not count.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use port::{BURST_MAX, Burst, PacketRef, PortInfo, QueuePair, RxCounters, RxQueue};
use vport::broker::{EndSpec, RING_BYTES_DEFAULT};

use crate::busy::{Busy, Phase, of_rounds};
use crate::links::Links;
use crate::rig::{Load, Plain, Subject, Upf, Way, frame_len, n3, n6};

/// How long links may take to come up, and packets to come out.
const PATIENCE: Duration = Duration::from_secs(20);
/// Part of a run that warms it up.
const WARM_UP: u32 = 10;
/// Bytes that a packet takes in a ring beside its frame, at most: outer headers that the function puts before it, and the record's own.
const MORE_BYTES: usize = 128;

/// What was found in a run.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Found {
    /// Busy time of a packet in the worker: of rounds that found packets.
    pub ns: f64,
    /// Part of the time in which the worker had such rounds; the rest it waited, or was interrupted.
    pub busy: f64,
    /// Packets a second that came out, in millions.
    pub mpps: f64,
}

/// The function with its links and its frames, ready to run.
pub struct Fed {
    function: Function,
    gate: Arc<Gate>,
    frames: Frames,
    /// The far ends of the ports by which packets go in and come out; the same one where there is one only.
    input: QueuePair,
    output: Option<QueuePair>,
    sent: u64,
    drained: u64,
    _links: Links,
}

enum Function {
    Forwarder(Box<Plain>),
    Upf(Box<Upf>),
}

impl Fed {
    /// Over ports as the UPF has them. The forwarder sends back to where it received, the UPF to the other port.
    pub fn new(subject: Subject, way: Way, load: Load) -> anyhow::Result<Self> {
        let (input, output) = if way == Way::Uplink { (n3(), n6()) } else { (n6(), n3()) };
        let links =
            links(if subject == Subject::Upf { vec![input.clone(), output.clone()] } else { vec![input.clone()] })?;
        let gate = Arc::new(Gate::for_frames_of(frame_len(way, load)));
        let queue = links.open("function", &input.name)?;
        let gated = Gated { inner: queue.rx, gate: gate.clone(), gathers: true };
        let received = QueuePair { rx: Box::new(gated), tx: queue.tx };
        let (function, frames) = match subject {
            Subject::Forwarder => {
                let (plain, frames) = Plain::over(way, load, received);
                (Function::Forwarder(Box::new(plain)), frames)
            }
            Subject::Upf => {
                let other = links.open("function", &output.name)?;
                let (n3, n6) = if way == Way::Uplink { (received, other) } else { (other, received) };
                let (upf, frames) = Upf::over(way, load, n3, n6)?;
                (Function::Upf(Box::new(upf)), frames)
            }
        };
        let open = |port: &PortInfo| links.open("load", &port.name);
        let (far_input, far_output) = (open(&input)?, (subject == Subject::Upf).then(|| open(&output)).transpose()?);
        links.come_up(PATIENCE)?;
        let frames = Frames::of(&frames);
        Ok(Self { function, gate, frames, input: far_input, output: far_output, sent: 0, drained: 0, _links: links })
    }

    /// Runs it for `window`, the worker on the second of `cores`. Afterwards nothing is on its way.
    pub fn run(&mut self, window: Duration, cores: [usize; 2]) -> anyhow::Result<Found> {
        let phase = &Phase::default();
        let Self { function, gate, frames, input, output, sent, drained, .. } = self;
        let passed = gate.clone();
        let (busy, fed) = std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                of_rounds(phase, cores[1], || function.turn(), || passed.received.load(Ordering::Relaxed))
            });
            let mut feeder = Feeder { frames, input, output, gate, sent, drained };
            let feeding = scope.spawn(move || feeder.run(window, phase, cores[0]));
            let fed = feeding.join().map_err(|_| anyhow!("the feeding thread panicked"));
            phase.end();
            let busy = working.join().map_err(|_| anyhow!("the measured thread panicked"));
            (busy, fed)
        });
        let ((packets, time), busy): (_, Busy) = (fed??, busy??);
        self.function.check()?;
        Ok(Found {
            ns: busy.ns(),
            busy: busy.time().as_secs_f64() / time.as_secs_f64(),
            mpps: packets as f64 / time.as_secs_f64() / 1e6,
        })
    }
}

impl Function {
    #[inline]
    fn turn(&mut self) -> bool {
        match self {
            Self::Forwarder(plain) => plain.turn() > 0,
            Self::Upf(upf) => upf.turn(),
        }
    }

    /// Fails where packets were dropped.
    fn check(&self) -> anyhow::Result<()> {
        match self {
            Self::Forwarder(plain) => {
                ensure!(plain.refused() == 0, "the forwarder's port refused {} packets", plain.refused())
            }
            Self::Upf(upf) => ensure!(upf.drops().is_empty(), "the UPF dropped packets: {:?}", upf.drops()),
        }
        Ok(())
    }
}

/// Ports of the function, each joined to the load.
fn links(ports: Vec<PortInfo>) -> anyhow::Result<Links> {
    Links::new(ports.into_iter().map(|port| {
        let end = |function: &str, port: PortInfo| EndSpec::of(function.to_owned(), port);
        let far = PortInfo { mtu: port.mtu, ..PortInfo::named(&port.name) };
        [end("load", far), end("function", port)]
    }))
}

/// Frames of one length, one behind the other: whoever feeds reads them in a row, whatever order their sessions are in.
struct Frames {
    bytes: Vec<u8>,
    frame_len: usize,
    next: usize,
}

impl Frames {
    fn of(frames: &[Vec<u8>]) -> Self {
        Self { bytes: frames.concat(), frame_len: frames.first().map_or(1, Vec::len), next: 0 }
    }

    /// The next ones, over and over.
    fn burst(&self) -> [PacketRef<'_>; BURST_MAX] {
        let count = self.bytes.len() / self.frame_len;
        std::array::from_fn(|i| {
            let begin = (self.next + i) % count * self.frame_len;
            PacketRef::from_slice(&self.bytes[begin..begin + self.frame_len])
        })
    }

    fn advance(&mut self, count: usize) {
        self.next = (self.next + count) % (self.bytes.len() / self.frame_len);
    }
}

/// What feeds and drains.
struct Feeder<'a> {
    frames: &'a mut Frames,
    input: &'a mut QueuePair,
    output: &'a mut Option<QueuePair>,
    gate: &'a Gate,
    sent: &'a mut u64,
    drained: &'a mut u64,
}

impl Feeder<'_> {
    /// The packets that came out while rounds counted, and how long that was.
    fn run(&mut self, window: Duration, phase: &Phase, core: usize) -> anyhow::Result<(u64, Duration)> {
        traffic::cores::pin(core)?;
        self.feed_for(window / WARM_UP)?;
        let (begin, before) = (Instant::now(), *self.drained);
        phase.count();
        self.feed_for(window)?;
        let until = Instant::now() + PATIENCE;
        while !phase.has_counted() && Instant::now() < until {
            self.feed_for(window)?;
        }
        phase.rest();
        let (packets, time) = (*self.drained - before, begin.elapsed());
        // Whoever gathers would wait for more.
        self.gate.offered.store(u64::MAX, Ordering::Relaxed);
        let drained = self.drain();
        self.gate.offered.store(*self.sent, Ordering::Relaxed);
        drained?;
        Ok((packets, time))
    }

    fn feed_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let (begin, mut at) = (Instant::now(), *self.drained);
        let mut moved = begin;
        while begin.elapsed() < time {
            for _ in 0..64 {
                if *self.sent - *self.drained + BURST_MAX as u64 <= self.gate.limit {
                    let accepted = self.input.tx.send(&self.frames.burst());
                    self.frames.advance(accepted);
                    *self.sent += accepted as u64;
                    self.gate.offered.store(*self.sent, Ordering::Relaxed);
                }
                self.take();
            }
            self.still_moves(&mut at, &mut moved)?;
        }
        Ok(())
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        let (mut at, mut moved) = (*self.drained, Instant::now());
        while *self.drained < *self.sent {
            self.take();
            self.still_moves(&mut at, &mut moved)?;
        }
        Ok(())
    }

    #[inline]
    fn take(&mut self) {
        let from = self.output.as_mut().unwrap_or(self.input);
        *self.drained += from.rx.recv().len() as u64;
    }

    fn still_moves(&self, at: &mut u64, moved: &mut Instant) -> anyhow::Result<()> {
        if *self.drained != *at {
            (*at, *moved) = (*self.drained, Instant::now());
        }
        ensure!(moved.elapsed() < PATIENCE, "nothing comes out of the function");
        Ok(())
    }
}

/// What the feeding thread and the worker know of each other. Each number has one writer.
#[derive(Default)]
struct Gate {
    offered: AtomicU64,
    received: AtomicU64,
    /// Packets on their way, at most.
    limit: u64,
}

impl Gate {
    fn for_frames_of(bytes: usize) -> Self {
        // Three quarters of a ring: records are rounded up, and some room is given back late.
        Self { limit: (RING_BYTES_DEFAULT as usize * 3 / 4 / (bytes + MORE_BYTES)) as u64, ..Self::default() }
    }

    /// Whether many packets wait.
    fn is_open(&self) -> bool {
        // What was just sent may be received before it is said to be offered.
        let (offered, received) = (self.offered.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed));
        offered.saturating_sub(received) >= self.limit / 2
    }
}

/// A receiving half that shows nothing where crumbs wait.
struct Gated {
    inner: Box<dyn RxQueue>,
    gate: Arc<Gate>,
    gathers: bool,
}

impl RxQueue for Gated {
    #[inline]
    fn recv(&mut self) -> Burst<'_> {
        if self.gathers && !self.gate.is_open() {
            return Burst::new(&mut []);
        }
        let burst = self.inner.recv();
        self.gathers = burst.len() < BURST_MAX;
        let received = &self.gate.received;
        received.store(received.load(Ordering::Relaxed) + burst.len() as u64, Ordering::Relaxed);
        burst
    }

    fn arm(&mut self) -> bool {
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.poll_fds()
    }

    fn counters(&self) -> RxCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores;

    #[test]
    fn packets_pass_each_function_both_ways_and_none_is_left() {
        let Ok(pair) = cores::pair() else {
            println!("SKIPPED packets_pass_each_function_both_ways_and_none_is_left: one core only");
            return;
        };
        for payload in [64, 1_400] {
            let load = Load::of(20, 20, payload);
            for subject in [Subject::Forwarder, Subject::Upf] {
                for way in Way::BOTH {
                    let mut fed = Fed::new(subject, way, load).expect("links");
                    for _ in 0..2 {
                        let before = fed.drained;
                        let found = fed.run(Duration::from_millis(20), pair).expect("packets come out");
                        assert!(found.ns > 0.0 && found.busy > 0.0, "{subject:?} {way:?}: {found:?}");
                        assert!(fed.drained > before, "{subject:?} {way:?}");
                        assert_eq!(fed.sent, fed.drained, "{subject:?} {way:?}");
                    }
                }
            }
        }
    }
}
