//! Packets for the UPF from a source that needs no core of its own: it rides in the polls of those that receive, of all or of one. Such
//! a worker has what is due put into the port and what has come out checked, unless another one is just doing that; then it receives
//! as ever. Ports, steering and moves are those of any link. (Where workers sleep for most of their time, a thread beside them does it.)
//!
//! What the source costs is part of what a core can do; it is so with any number of workers, and with any spread of the load.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::ensure;
use port::{Burst, QueuePair, RxCounters, RxQueue};
use traffic::generator::{Generator, Pace};
use traffic::sink::{Latency, Sink};
use traffic::stamp::now_ns;

/// Packets on their way where the source waits.
const UNDER_WAY: u64 = 512;
/// The same where workers are to be busy all the time, even while the system or the hypervisor has one's core; a ring holds as many.
pub(super) const UNDER_WAY_MANY: u64 = 32_768;
/// How long the source may take to hear of something.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bursts offered in a turn at most: a source that was held up leaves time for the worker that it rides on.
const BURSTS: usize = 4;

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
    pub overdue: AtomicU64,
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
    /// The longest time from a ride of the source to the next, in microseconds. Where it is long the system or the hypervisor had the
    /// core.
    pub silence_us: f64,
    /// Packets that ports refused.
    pub refused: u64,
    /// Packets that were due and that the source, which was held up, had not offered, at most at a time.
    pub behind: u64,
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
    /// What waited in a source that was held up, beyond what a ring would have held: another source's would have been refused.
    pub overdue: u64,
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
            overdue: self.overdue - before.overdue,
            received: self.received - before.received,
            distinct: self.distinct - before.distinct,
            duplicates: self.duplicates - before.duplicates,
            reordered: self.reordered - before.reordered,
        }
    }

    /// Due and not come out: refused, or lost on the way.
    pub fn lost(self) -> u64 {
        self.refused_in_all() + self.missing()
    }

    /// Refused, or would have been.
    pub fn refused_in_all(self) -> u64 {
        self.refused + self.overdue
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
            overdue: self.overdue.load(Relaxed),
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
    /// When it rode last; the longest time that it did not, how far it was behind, both in this stretch; what had been refused before.
    rode_ns: u64,
    silence_ns: u64,
    behind: u64,
    refused_before: u64,
    /// Packets that a ring holds.
    ring_packets: u64,
}

impl Rider {
    /// Sends by `into`, each of whose rings holds so many packets, and receives by `out`; nothing before it is told to. One of the
    /// generators, uniform and skewed, is at work.
    pub fn new(
        into: QueuePair,
        ring_packets: u64,
        out: QueuePair,
        [uniform, skewed]: [Generator; 2],
        reins: Arc<Reins>,
    ) -> Self {
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
            behind: 0,
            refused_before: 0,
            ring_packets,
        }
    }

    /// Offers what is due, and checks what has come out.
    pub fn ride(&mut self) {
        let now = now_ns();
        self.silence_ns = self.silence_ns.max(now.saturating_sub(std::mem::replace(&mut self.rode_ns, now)));
        self.fall_behind(self.due(now));
        let turn = self.reins.turn.load(Relaxed);
        if turn != self.turn {
            self.obey(turn, now);
        }
        self.offer(now);
        self.check();
        self.reins.offered.store(self.uniform.offered() + self.skewed.offered(), Relaxed);
        self.reins.refused.store(self.refused(), Relaxed);
        self.reins.distinct.store(self.sink.distinct(), Relaxed);
        self.reins.duplicates.store(self.sink.duplicates(), Relaxed);
        self.reins.reordered.store(self.sink.reordered(), Relaxed);
        self.reins.received.store(self.sink.received(), Relaxed);
    }

    /// What is due, where it is the time that says so.
    fn due(&self, now: u64) -> u64 {
        if self.under_way_max.is_none() { self.at_work().due(now) } else { 0 }
    }

    /// So many packets wait.
    fn fall_behind(&mut self, waiting: u64) {
        if waiting > self.behind {
            let overdue = |behind: u64| behind.saturating_sub(self.ring_packets);
            self.reins.overdue.fetch_add(overdue(waiting) - overdue(self.behind), Relaxed);
            self.behind = waiting;
        }
    }

    fn at_work(&self) -> &Generator {
        if self.is_skewed { &self.skewed } else { &self.uniform }
    }

    fn offer(&mut self, now: u64) {
        for _ in 0..BURSTS {
            let under_way = self.accepted() - self.sink.received();
            let generator = if self.is_skewed { &mut self.skewed } else { &mut self.uniform };
            if self.under_way_max.is_some_and(|most| under_way > most) || generator.turn(&mut *self.into.tx, now) == 0 {
                break;
            }
        }
    }

    fn check(&mut self) {
        while self.sink.turn(&mut *self.out.rx, now_ns(), |_| {}) > 0 {}
    }

    fn refused(&self) -> u64 {
        self.uniform.refused() + self.skewed.refused()
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
            // What a source that was held up is behind would be in the ring by now, or refused.
            while self.due(now) > 0 {
                self.offer(now);
                self.check();
            }
            if self.is_skewed { &mut self.skewed } else { &mut self.uniform }.stop(now);
        }
        let refused = self.refused();
        let stretch = Stretch {
            latency: self.sink.take_latency(),
            silence_us: std::mem::take(&mut self.silence_ns) as f64 / 1e3,
            refused: refused - std::mem::replace(&mut self.refused_before, refused),
            behind: std::mem::take(&mut self.behind),
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use port::synthetic::Synthetic;
    use traffic::generator::{Flow, Macs};

    use super::*;

    #[test]
    fn what_a_source_that_was_held_up_is_behind_is_offered_and_lost_where_no_ring_would_have_held_it() {
        let flow = Flow { from: Ipv4Addr::new(10, 64, 0, 1), to: Ipv4Addr::new(10, 6, 0, 2), tunnel: None };
        let generator =
            || Generator::new(&[flow], 64, Macs { from: [2; 6], to: [4; 6] }, Pace::PerSecond(0.0), u64::MAX);
        let [into, out] = [(); 2].map(|()| Synthetic::new(vec![]).open().queues.remove(0));
        let reins = Arc::new(Reins::default());
        let ring_packets = 20_000;
        let mut rider = Rider::new(into, ring_packets, out, [generator(), generator()], reins.clone());
        reins.set_rate(1e6);
        rider.ride();
        // As much as a ring holds is due after 20 ms, then after 10.
        for (held_up, next_pps) in [(Duration::from_millis(5), 2e6), (Duration::from_millis(50), 0.0)] {
            let before = reins.tally();
            std::thread::sleep(held_up);
            rider.ride();
            let offered = reins.tally().since(before).offered;
            assert!(offered <= (BURSTS * port::BURST_MAX) as u64, "{offered} offered where the worker had a turn");
            reins.set_rate(next_pps);
            rider.ride();
            reins.settle().expect("it rode");
            let (tally, stretch) = (reins.tally().since(before), reins.stretches().pop().expect("one has ended"));
            assert!(tally.offered >= held_up.as_micros() as u64 && stretch.behind <= tally.offered, "{tally:?}");
            assert!(stretch.silence_us >= held_up.as_micros() as f64, "{stretch:?}");
            assert_eq!(tally.overdue, stretch.behind.saturating_sub(ring_packets));
        }
        assert!(reins.tally().overdue > 0);
    }
}
