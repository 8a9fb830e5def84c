//! Packets for the UPF from a source that needs no core of its own: it rides in the polls of whoever receives. A worker that polls
//! has what is due put into the port and what has come out checked, unless another one is just doing that; then it receives as
//! ever. Ports, steering and moves are those of any link. (Where workers sleep for most of their time, a thread beside them does it.)
//!
//! What the source costs is part of what a core can do; it is so with any number of workers, and with any spread of the load.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::ensure;
use port::{BURST_MAX, Burst, QueuePair, RxCounters, RxQueue};
use traffic::generator::{Generator, Pace};
use traffic::sink::{Latency, Sink};
use traffic::stamp::now_ns;

/// Packets on their way where the source waits.
const UNDER_WAY: u64 = 512;
/// The same where workers are to be busy all the time, even while the system or the hypervisor has one's core; a ring holds as many.
pub(super) const UNDER_WAY_MANY: u64 = 32_768;
/// How long the source may take to hear of something.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bursts offered in a turn at most: what a source that was held up for long is behind.
const BURSTS: usize = 4;
/// The same when the rate changes, beside what became due since it rode last.
const CATCH_UP: usize = 128;

/// What whoever measures asks of the source, and sees of it.
#[derive(Default)]
pub(super) struct Reins {
    /// Packets a second: the bits of the number. [`Reins::WAITING`], [`Reins::FILLING`]: as many as come through, without one refused
    /// for good.
    pace: AtomicU64,
    /// Whether the load is skewed.
    is_skewed: AtomicBool,
    /// Counts up where something is new, and what of it is done.
    turn: AtomicU64,
    obeyed: AtomicU64,
    pub offered: AtomicU64,
    pub refused: AtomicU64,
    pub unoffered: AtomicU64,
    pub received: AtomicU64,
    pub distinct: AtomicU64,
    pub duplicates: AtomicU64,
    pub reordered: AtomicU64,
    /// What was found between each two changes.
    stretches: Mutex<Vec<Stretch>>,
}

/// What was found between two changes.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Stretch {
    pub latency: Option<Latency>,
    /// The longest time in which nobody polled, in microseconds: the system or the hypervisor had the core.
    pub silence_us: f64,
    /// Packets that ports refused.
    pub refused: u64,
    /// Packets that were due and that the source had not offered at its end.
    pub unoffered: u64,
}

impl Stretch {
    /// Of latency; where no packet came, so long as nobody polled.
    pub fn p999_us(&self) -> f64 {
        self.latency.as_ref().map_or(self.silence_us, |latency| latency.p999)
    }
}

/// Packets of a stretch, or of all.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct Tally {
    pub offered: u64,
    pub refused: u64,
    /// Due and never offered, until the rate last changed.
    pub unoffered: u64,
    pub received: u64,
    /// Of these, each counted once.
    pub distinct: u64,
    pub duplicates: u64,
    pub reordered: u64,
}

impl Tally {
    /// What came later than `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            offered: self.offered - before.offered,
            refused: self.refused - before.refused,
            unoffered: self.unoffered - before.unoffered,
            received: self.received - before.received,
            distinct: self.distinct - before.distinct,
            duplicates: self.duplicates - before.duplicates,
            reordered: self.reordered - before.reordered,
        }
    }

    /// Due and not come out: never offered, refused, or lost on the way.
    pub fn lost(self) -> u64 {
        self.unoffered + self.refused + self.missing()
    }

    /// Accepted and not come out (yet).
    pub fn missing(self) -> u64 {
        (self.offered - self.refused).saturating_sub(self.distinct)
    }
}

impl Reins {
    const WAITING: u64 = u64::MAX;
    const FILLING: u64 = u64::MAX - 1;

    /// So many packets a second from now on; latency is another stretch's.
    pub fn set_rate(&self, pps: f64) {
        self.pace.store(pps.to_bits(), Relaxed);
        self.turn.fetch_add(1, Relaxed);
    }

    /// As many as come through from now on.
    pub fn wait(&self) {
        self.pace.store(Self::WAITING, Relaxed);
        self.turn.fetch_add(1, Relaxed);
    }

    /// As many as come through from now on, with so many on their way that no worker ever has none.
    pub fn fill(&self) {
        self.pace.store(Self::FILLING, Relaxed);
        self.turn.fetch_add(1, Relaxed);
    }

    /// Has the load skewed from now on, at so many packets a second.
    pub fn skew(&self, pps: f64) {
        self.is_skewed.store(true, Relaxed);
        self.set_rate(pps);
    }

    /// Latency is another stretch's from now on.
    pub fn cut(&self) {
        self.turn.fetch_add(1, Relaxed);
    }

    pub fn tally(&self) -> Tally {
        Tally {
            offered: self.offered.load(Relaxed),
            refused: self.refused.load(Relaxed),
            unoffered: self.unoffered.load(Relaxed),
            received: self.received.load(Relaxed),
            distinct: self.distinct.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            reordered: self.reordered.load(Relaxed),
        }
    }

    /// Waits until what was asked for last is so: a stretch has ended then.
    pub fn settle(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.obeyed.load(Relaxed) != self.turn.load(Relaxed) {
            ensure!(begin.elapsed() < PATIENCE, "nobody polls the port");
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }

    /// All stretches that have ended.
    pub fn stretches(&self) -> Vec<Stretch> {
        self.stretches.lock().expect("nobody panics with it").clone()
    }
}

/// The source and the sink, at the far ends of the UPF's ports.
pub(super) struct Rider {
    into: QueuePair,
    out: QueuePair,
    uniform: Generator,
    skewed: Generator,
    is_skewed: bool,
    sink: Sink,
    reins: Arc<Reins>,
    turn: u64,
    pace: u64,
    /// Packets on their way at most; none where it does not wait.
    under_way_max: Option<u64>,
    /// When it rode last, the longest time that it did not in this stretch, and what had been refused and not offered before.
    rode_ns: u64,
    silence_ns: u64,
    refused_before: u64,
    unoffered_before: u64,
}

impl Rider {
    /// Sends by `into` and receives by `out`; nothing before it is told to. One of the generators, uniform and skewed, is at work.
    pub fn new(into: QueuePair, out: QueuePair, [uniform, skewed]: [Generator; 2], reins: Arc<Reins>) -> Self {
        Self {
            into,
            out,
            uniform,
            skewed,
            is_skewed: false,
            sink: Sink::new(),
            reins,
            turn: 0,
            pace: 0,
            under_way_max: None,
            rode_ns: now_ns(),
            silence_ns: 0,
            refused_before: 0,
            unoffered_before: 0,
        }
    }

    /// Offers what is due, and checks what has come out.
    pub fn ride(&mut self) {
        let now = now_ns();
        self.silence_ns = self.silence_ns.max(now.saturating_sub(self.rode_ns));
        let turn = self.reins.turn.load(Relaxed);
        if turn != self.turn {
            self.obey(turn, now);
        }
        self.offer(BURSTS, now);
        while self.sink.turn(&mut *self.out.rx, now_ns(), |_| {}) > 0 {}
        self.reins.offered.store(self.uniform.offered() + self.skewed.offered(), Relaxed);
        self.reins.refused.store(self.refused(), Relaxed);
        self.reins.unoffered.store(self.unoffered(), Relaxed);
        self.reins.distinct.store(self.sink.distinct(), Relaxed);
        self.reins.duplicates.store(self.sink.duplicates(), Relaxed);
        self.reins.reordered.store(self.sink.reordered(), Relaxed);
        self.reins.received.store(self.sink.received(), Relaxed);
        self.rode_ns = now_ns();
    }

    fn offer(&mut self, bursts: usize, now: u64) {
        for _ in 0..bursts {
            let under_way = self.accepted() - self.sink.received();
            let generator = if self.is_skewed { &mut self.skewed } else { &mut self.uniform };
            if self.under_way_max.is_some_and(|most| under_way > most) || generator.turn(&mut *self.into.tx, now) == 0 {
                break;
            }
        }
    }

    fn refused(&self) -> u64 {
        self.uniform.refused() + self.skewed.refused()
    }

    fn unoffered(&self) -> u64 {
        self.uniform.unoffered() + self.skewed.unoffered()
    }

    fn accepted(&self) -> u64 {
        self.uniform.offered() + self.skewed.offered() - self.refused()
    }

    #[cold]
    fn obey(&mut self, turn: u64, now: u64) {
        self.turn = turn;
        let (pace, is_skewed) = (self.reins.pace.load(Relaxed), self.reins.is_skewed.load(Relaxed));
        let is_new = pace != self.pace || is_skewed != self.is_skewed;
        if is_new {
            // What became due since it rode last is no sign of being behind: something else may have had the core. Nothing is due of a
            // source that waits: its pace is no number.
            let became_due = f64::from_bits(self.pace) * now.saturating_sub(self.rode_ns) as f64 / 1e9;
            self.offer(CATCH_UP + (became_due / BURST_MAX as f64) as usize, now);
            if self.is_skewed { &mut self.skewed } else { &mut self.uniform }.stop(now);
        }
        let (refused, unoffered) = (self.refused(), self.unoffered());
        let stretch = Stretch {
            latency: self.sink.take_latency(),
            silence_us: std::mem::take(&mut self.silence_ns) as f64 / 1e3,
            refused: refused - std::mem::replace(&mut self.refused_before, refused),
            unoffered: unoffered - std::mem::replace(&mut self.unoffered_before, unoffered),
        };
        self.reins.stretches.lock().expect("nobody panics with it").push(stretch);
        self.reins.obeyed.store(turn, Relaxed);
        if !is_new {
            return;
        }
        (self.pace, self.is_skewed) = (pace, is_skewed);
        self.under_way_max = match pace {
            Reins::WAITING => Some(UNDER_WAY),
            Reins::FILLING => Some(UNDER_WAY_MANY),
            _ => None,
        };
        let pace = self.under_way_max.map_or(Pace::PerSecond(f64::from_bits(pace)), |_| Pace::Unlimited);
        // At rate 0 none is due, not even one at once.
        if pace != Pace::PerSecond(0.0) {
            if is_skewed { &mut self.skewed } else { &mut self.uniform }.set_pace(pace, now);
        }
    }
}

/// A receiving half in whose polls the source rides.
pub(super) struct Ridden {
    pub inner: Box<dyn RxQueue>,
    pub rider: Arc<Mutex<Option<Rider>>>,
    /// Whether whoever polls may never sleep, so that there is always one who polls.
    pub is_awake: bool,
}

impl RxQueue for Ridden {
    #[inline]
    fn recv(&mut self) -> Burst<'_> {
        if let Ok(mut rider) = self.rider.try_lock()
            && let Some(rider) = &mut *rider
        {
            rider.ride();
        }
        self.inner.recv()
    }

    fn arm(&mut self) -> bool {
        !self.is_awake && self.inner.arm()
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
