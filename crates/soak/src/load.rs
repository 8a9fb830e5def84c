//! Traffic of many flows through whatever a campaign changes: two producers number packets, a sink judges them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vport::client::Attachment;
use vport::packet::PacketRef;
use vport::{RxRing, TxRing};

use crate::checker::Checker;
use crate::course;
use crate::frames::{self, Stamp};
use crate::outcome::Tally;
use crate::random::Random;
use crate::rig::PATIENCE;

/// Flows of both producers together.
pub const FLOWS: usize = 1 << 16;

/// The bucket of each flow.
static BUCKET_OF: LazyLock<Vec<u8>> = LazyLock::new(|| (0..=u16::MAX).map(frames::bucket).collect());

/// The flows of these buckets.
pub fn flows_of(buckets: u128) -> impl Iterator<Item = u16> {
    (0..=u16::MAX).filter(move |flow| buckets >> BUCKET_OF[usize::from(*flow)] & 1 == 1)
}

/// What all threads look at.
#[derive(Debug, Default)]
pub struct Signs {
    /// Producers stop, and whoever disturbs.
    pub stop: AtomicBool,
    /// Everybody else stops.
    pub done: AtomicBool,
    /// A thread has failed.
    pub failed: AtomicBool,
}

/// Ends the loops of all threads when one of them has failed.
pub struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

impl Signs {
    /// To be kept as long as the thread goes on.
    pub fn alarm(&self) -> Alarm<'_> {
        Alarm(&self.failed)
    }

    /// Whether the sign is given, or a thread has failed.
    pub fn has(&self, sign: &AtomicBool) -> bool {
        sign.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }
}

/// The traffic of a campaign.
#[derive(Debug)]
pub struct Load {
    /// For the threads of the campaign.
    pub signs: Signs,
    /// The number that each flow's next packet gets.
    next: Vec<AtomicU64>,
    /// Times that producers were asked for a packet of each flow of some buckets, and of which.
    calls: AtomicU64,
    called: Mutex<u128>,
    sink: Mutex<Sink>,
    /// What whoever waits does meanwhile.
    pause: fn(),
}

#[derive(Debug)]
struct Sink {
    checker: Checker,
    /// Packets that came, and how many of them did so after a later one of their flow, in buckets in doubt.
    came: u64,
    overtaken: u64,
    /// When the last one came.
    last: Instant,
    /// Buckets whose worker has died, or will.
    doubtful: u128,
}

impl Load {
    /// None yet. Producers whose packets are not accepted, and a sink without packets, `pause` before the next attempt.
    pub fn new(pause: fn()) -> Self {
        let checker = Checker::new(FLOWS, 1);
        Self {
            signs: Signs::default(),
            next: (0..FLOWS).map(|_| AtomicU64::new(0)).collect(),
            calls: AtomicU64::new(0),
            called: Mutex::new(0),
            sink: Mutex::new(Sink { checker, came: 0, overtaken: 0, last: Instant::now(), doubtful: 0 }),
            pause,
        }
    }

    /// Sends packets of random flows, of half of them each, until told to stop. Returns how many.
    pub fn produce(&self, (rx, tx): &mut (RxRing, TxRing), parity: u16, idle: bool) -> u64 {
        let _alarm = self.signs.alarm();
        let mut random = Random::new(1 + u64::from(parity));
        let (mut sent, mut answered) = (0, 0);
        while !self.signs.has(&self.signs.stop) {
            let calls = self.calls.load(Ordering::Acquire);
            if calls != answered {
                answered = calls;
                let called: Vec<u16> = flows_of(*lock(&self.called)).filter(|flow| flow % 2 == parity).collect();
                sent += called.chunks(32).map(|flows| self.send(tx, flows.iter().copied())).sum::<u64>();
            }
            let burst = 1 + random.below(32);
            sent += self.send(tx, (0..burst).map(|_| (random.below(FLOWS / 2) as u16) << 1 | parity));
            // Nothing comes: what is of generations that are over is let go.
            rx.recv();
            if idle {
                // At times for so long that many changes come and go meanwhile.
                let most_us = if random.once_in(8) { 50_000 } else { 3_000 };
                std::thread::sleep(Duration::from_micros(random.below(most_us) as u64));
            }
        }
        sent
    }

    /// The next packet of each of these flows.
    fn send(&self, tx: &mut TxRing, flows: impl Iterator<Item = u16>) -> u64 {
        let number = |flow: u16| {
            // The one thread that sends this flow.
            let next = &self.next[usize::from(flow)];
            let number = next.load(Ordering::Relaxed);
            next.store(number + 1, Ordering::Release);
            number
        };
        let frame = |flow| frames::frame(Stamp { flow, incarnation: 0, number: number(flow) }, frames::LEN_MIN);
        let burst: Vec<Vec<u8>> = flows.map(frame).collect();
        let packets: Vec<PacketRef<'_>> = burst.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        send_all(tx, &packets, self.pause, |_| !self.signs.failed.load(Ordering::Relaxed));
        packets.len() as u64
    }

    /// Judges what arrives until all is done.
    pub fn judge(&self, port: &mut Attachment) {
        let _alarm = self.signs.alarm();
        let mut room = Vec::new();
        while !self.signs.has(&self.signs.done) {
            let mut idle = true;
            for (rx, tx) in &mut port.queues {
                let burst = rx.recv();
                if !burst.is_empty() {
                    idle = false;
                    let mut sink = lock(&self.sink);
                    sink.last = Instant::now();
                    (0..burst.len()).for_each(|i| sink.take(frames::check(&burst.get(i), &mut room)));
                }
                // Nothing to send: what is of generations that are over is closed.
                tx.send(&[]);
            }
            if idle {
                (self.pause)();
            }
        }
    }

    /// The number that each of these flows' next packet gets. One burst of each producer may not be sent yet.
    pub fn next(&self, flows: &[u16]) -> Vec<u64> {
        flows.iter().map(|flow| self.next[usize::from(*flow)].load(Ordering::Acquire)).collect()
    }

    /// Asks the producers for a packet of each flow of these buckets. After it nothing can be missing unnoticed.
    pub fn call(&self, buckets: u128) {
        *lock(&self.called) = buckets;
        self.calls.fetch_add(1, Ordering::Release);
    }

    /// Whether of all these flows a packet came with this number, or one behind it.
    pub fn has_come(&self, flows: &[u16], numbers: &[u64]) -> bool {
        let sink = lock(&self.sink);
        flows.iter().zip(numbers).all(|(flow, number)| sink.checker.flow(*flow).next > *number)
    }

    /// From here on packets of these buckets may be overtaken: their workers die. Of no other ones.
    pub fn doubt(&self, buckets: u128) {
        lock(&self.sink).doubtful = buckets;
    }

    /// Takes those packets of a flow for held by a worker that died whose numbers are `from..to`. Returns how many are
    /// missing of them.
    pub fn excuse(&self, flow: u16, from: u64, to: u64) -> u64 {
        lock(&self.sink).checker.excuse(flow, from, to)
    }

    /// Packets that came so far.
    pub fn came(&self) -> u64 {
        lock(&self.sink).came
    }

    /// Packets that were overtaken where that may be.
    pub fn overtaken(&self) -> u64 {
        lock(&self.sink).overtaken
    }

    /// What went wrong so far.
    pub fn tally(&self) -> Tally {
        let sink = lock(&self.sink);
        let tally = sink.checker.tally();
        Tally { reordered: tally.reordered - sink.overtaken, ..tally }
    }

    /// Waits until all `sent` packets have come, or none has for long. Returns how many are missing then.
    pub fn conclude(&self, sent: u64) -> u64 {
        let missing = || {
            let sink = lock(&self.sink);
            (sent.saturating_sub(sink.came), sink.last.elapsed())
        };
        let patient = || missing().1 < PATIENCE && !course::is_overdue();
        while missing().0 > 0 && patient() && !self.signs.failed.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        missing().0
    }
}

impl Sink {
    fn take(&mut self, stamp: Option<Stamp>) {
        self.came += 1;
        let Some(stamp) = stamp else { return self.checker.corrupted() };
        let before = self.checker.tally().reordered;
        self.checker.take(stamp);
        if self.checker.tally().reordered > before && self.doubtful >> BUCKET_OF[usize::from(stamp.flow)] & 1 == 1 {
            self.overtaken += 1;
        }
    }
}

/// Sends everything, however long it takes, as long as `goes_on` says so, which is told how many packets were accepted.
/// Between attempts it will `pause`.
pub fn send_all(tx: &mut TxRing, packets: &[PacketRef<'_>], pause: fn(), mut goes_on: impl FnMut(usize) -> bool) {
    // Also where there is nothing to send: a channel of a generation that is over is closed by its sender's next call.
    let mut done = tx.send(packets);
    while goes_on(done) && done < packets.len() {
        pause();
        done += tx.send(&packets[done..]);
    }
}

/// Whoever had it and failed has said so.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
