//! Elasticity: looks at the workers' loads every few milliseconds, and starts, stops and rebalances workers by moving buckets.
//!
//! A worker runs as long as it owns buckets. One that owns none sleeps in the kernel until it gets some: nobody sends to it.

mod effort;
mod policy;
mod signal;

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use port::owner::{Decider, GroupError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use effort::{Effort, Timed};
pub use policy::{Decision, Look, Policy, Terms, balanced, dealt, sums};
pub use signal::{FILL_WEIGHT, Sample, Signal};

use crate::bell::Bell;
use crate::board::Board;
use crate::clock::Clock;
use crate::pipeline::Chart;
use crate::tables::{BUCKETS, Bucket, Homes};

/// Between two looks.
const TICK: Duration = Duration::from_millis(4);
/// The same where no worker has much to do.
const SLOW_TICK: Duration = Duration::from_millis(20);
/// What is not much.
const LITTLE: f64 = 0.1;
/// What is nothing: sleepers look around now and then.
const NOTHING: f64 = 0.005;
/// Between two looks where all workers sleep, should none wake this up.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// How decisions are made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Elasticity {
    /// By what.
    pub signal: Signal,
    /// What they keep to.
    pub terms: Terms,
}

/// Decides over workers and their buckets. Clones are the same.
#[derive(Clone, Debug)]
pub struct Elastic(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// Wakes whoever looks, once a worker has something to do.
    watch: Arc<Bell>,
}

#[derive(Debug)]
struct Inner {
    decider: Decider,
    policy: Policy,
    signal: Signal,
    ground: Ground,
    began_ns: u64,
    before: Option<Seen>,
    levels: Vec<f64>,
    /// Of each worker.
    efforts: Vec<Effort>,
    moved: u64,
    changes: u64,
    hot: Option<Bucket>,
}

/// What there is to look at, and to tell.
#[derive(Debug)]
pub(crate) struct Ground {
    pub clock: Clock,
    pub homes: Homes,
    /// Of the workers, in their order.
    pub boards: Vec<Board>,
    /// That of a dispatcher, if there is one.
    pub dispatcher: Option<Board>,
    /// The threads that have a part in moves.
    pub bells: Vec<Arc<Bell>>,
    /// What a dispatcher goes by, where there is one.
    pub chart: Option<Chart>,
    /// Whether the ports count packets by the buckets that they are steered by.
    pub is_steered: bool,
}

/// What was seen at a tick.
#[derive(Debug)]
struct Seen {
    samples: Vec<Sample>,
    packets: [u64; BUCKETS],
}

/// How things are.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Workers that own buckets, or may get some: the first so many.
    pub workers: usize,
    /// Who owns which bucket, or will once all have been moved.
    pub owners: [u8; BUCKETS],
    /// Whether none are on their way.
    pub is_settled: bool,
    /// Buckets moved so far.
    pub moved: u64,
    /// Times that buckets were moved, several at a time.
    pub changes: u64,
    /// The bucket that fills a worker by itself, if one does.
    pub hot: Option<Bucket>,
    /// The load of each worker at the last tick, from 0 to 1.
    pub levels: Vec<f64>,
    /// The load of each bucket, in workers, averaged.
    pub loads: [f64; BUCKETS],
}

impl Elastic {
    /// Of workers that own the buckets in turn.
    pub(crate) fn new(decider: Decider, elasticity: &Elasticity, ground: Ground, watch: Arc<Bell>) -> Self {
        let workers = ground.boards.len();
        let Elasticity { signal, terms } = *elasticity;
        let terms = Terms { max: terms.max.min(workers), min: terms.min.min(workers), ..terms };
        let inner = Inner {
            decider,
            policy: Policy::new(terms, workers),
            signal,
            began_ns: ground.clock.now_ns(),
            before: None,
            levels: vec![0.0; workers],
            efforts: vec![Effort::default(); workers],
            moved: 0,
            changes: 0,
            hot: None,
            ground,
        };
        Self(Arc::new(Shared { inner: Mutex::new(inner), watch }))
    }

    /// How things are.
    pub fn standing(&self) -> Standing {
        let inner = self.inner();
        Standing {
            workers: inner.policy.workers(),
            owners: *inner.decider.owners(),
            is_settled: !inner.decider.is_open(),
            moved: inner.moved,
            changes: inner.changes,
            hot: inner.policy.hot(),
            levels: inner.levels.clone(),
            loads: *inner.policy.loads(),
        }
    }

    /// Gives each bucket to the worker named here, which may be one that has none.
    ///
    /// # Errors
    /// Buckets are on their way still, or there is no such worker.
    pub fn set_owners(&self, owners: &[u8; BUCKETS]) -> Result<(), GroupError> {
        self.inner().set_owners(owners)
    }

    /// Gives one bucket to a worker.
    ///
    /// # Errors
    /// As [`Elastic::set_owners`].
    pub fn move_bucket(&self, bucket: Bucket, worker: usize) -> Result<(), GroupError> {
        let mut inner = self.inner();
        let mut owners = *inner.decider.owners();
        owners[usize::from(bucket) % BUCKETS] = u8::try_from(worker).map_err(|_| GroupError::Owner)?;
        inner.set_owners(&owners)
    }

    /// Has so many workers, and deals the buckets to them by their loads. The policy goes on from there.
    ///
    /// # Errors
    /// As [`Elastic::set_owners`].
    pub fn scale_to(&self, workers: usize) -> Result<(), GroupError> {
        let mut inner = self.inner();
        if !(1..=inner.ground.boards.len()).contains(&workers) {
            return Err(GroupError::Owner);
        }
        let owners = dealt(inner.decider.owners(), inner.policy.loads(), workers);
        inner.set_owners(&owners)?;
        let now = inner.now();
        inner.policy.set_workers(workers, now);
        Ok(())
    }

    /// Looks once, and does what the policy decides. Returns after how long to look again.
    pub fn tick(&self) -> Duration {
        self.inner().tick()
    }

    /// Has the fewest workers that there may be, then looks in every tick until `stop` is set and the watch rung.
    ///
    /// # Errors
    /// The system refuses.
    pub fn run(&self, stop: &AtomicBool) -> io::Result<()> {
        let min = self.inner().policy.min();
        if self.standing().workers != min {
            // Where buckets are on their way already, somebody else decides.
            let _ = self.scale_to(min);
        }
        while !stop.load(Ordering::Relaxed) {
            let pause = self.tick();
            if pause >= IDLE_TICK {
                self.doze(stop)?;
            }
            // What ends a doze has hardly begun.
            std::thread::sleep(if pause >= IDLE_TICK { TICK } else { pause });
        }
        Ok(())
    }

    /// Waits for buckets that are on their way; false if they are not there in time.
    pub fn settle_within(&self, patience: Duration) -> bool {
        let begin = Instant::now();
        while self.inner().decider.is_open() {
            if begin.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// What wakes it while all workers sleep.
    pub(crate) fn watch(&self) -> Arc<Bell> {
        self.0.watch.clone()
    }

    fn doze(&self, stop: &AtomicBool) -> io::Result<()> {
        let watch = &self.0.watch;
        watch.doze();
        if self.inner().ground.are_asleep() && !stop.load(Ordering::Relaxed) {
            let timeout = Timespec { tv_sec: IDLE_TICK.as_secs() as i64, tv_nsec: 0 };
            match poll(&mut [PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)], Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        watch.wake();
        watch.silence();
        Ok(())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn set_owners(&mut self, owners: &[u8; BUCKETS]) -> Result<(), GroupError> {
        let before = *self.decider.owners();
        let epoch = self.decider.set_owners(owners)?;
        if let Some(chart) = &self.ground.chart {
            chart.publish(epoch, owners);
        }
        self.moved += before.iter().zip(owners).filter(|(before, after)| before != after).count() as u64;
        self.changes += 1;
        self.before = None;
        self.ground.homes.set(owners);
        self.ground.bells.iter().for_each(|bell| bell.ring());
        Ok(())
    }

    fn tick(&mut self) -> Duration {
        if self.decider.is_open() {
            self.before = None;
            return TICK;
        }
        let seen = self.look();
        // What was counted while buckets were on their way is nobody's.
        let Some(before) = self.before.replace(seen) else { return TICK };
        let Some(seen) = &self.before else { return TICK };
        let samples = before.samples.iter().zip(&seen.samples);
        let levels = samples.zip(&mut self.efforts).map(|((before, now), effort)| {
            effort.take(&before.timed, &now.timed);
            (self.signal.level(before, now, effort), Signal::Busy.level(before, now, effort))
        });
        let (levels, busy): (_, Vec<_>) = levels.unzip();
        self.levels = levels;
        let busy = busy.iter().sum();
        let packets = std::array::from_fn(|bucket| seen.packets[bucket].saturating_sub(before.packets[bucket]));
        let owners = *self.decider.owners();
        let look = Look { now: self.now(), levels: &self.levels, busy, packets: &packets, owners: &owners };
        let workers = self.policy.workers();
        let decision = self.policy.decide(&look);
        self.tell_hot();
        let Some(owners) = decision.owners else { return self.pause() };
        if decision.workers != workers {
            tracing::info!(from = workers, to = decision.workers, levels = ?self.levels, "workers");
        }
        if let Err(error) = self.set_owners(&owners) {
            tracing::error!(%error, "buckets cannot be moved");
        }
        TICK
    }

    fn look(&self) -> Seen {
        let now_ns = self.ground.clock.now_ns();
        let samples = self.ground.boards.iter().map(|board| board.sample(now_ns)).collect();
        let by_ports = if self.ground.is_steered { self.decider.load() } else { [0; BUCKETS] };
        let packets = std::array::from_fn(|bucket| by_ports[bucket] + self.ground.packets(bucket as Bucket));
        Seen { samples, packets }
    }

    fn tell_hot(&mut self) {
        let hot = self.policy.hot();
        if self.hot == hot {
            return;
        }
        match hot {
            Some(bucket) => {
                let worker = self.decider.owners()[usize::from(bucket)];
                tracing::warn!(bucket, worker, "a bucket fills a worker by itself: moving it would not help");
            }
            None => tracing::info!("no bucket fills a worker by itself any more"),
        }
        self.hot = hot;
    }

    fn pause(&self) -> Duration {
        let most = self.levels.iter().copied().fold(0.0, f64::max);
        let is_at_rest = self.policy.workers() == self.policy.min();
        match most {
            _ if most < NOTHING && is_at_rest && self.policy.hot().is_none() => IDLE_TICK,
            _ if most < LITTLE => SLOW_TICK,
            _ => TICK,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.ground.clock.now_ns().saturating_sub(self.began_ns))
    }
}

impl Ground {
    /// Packets of a bucket that the threads have counted.
    fn packets(&self, bucket: Bucket) -> u64 {
        self.boards.iter().chain(&self.dispatcher).map(|board| board.packets().of(bucket)).sum()
    }

    fn are_asleep(&self) -> bool {
        self.boards.iter().all(Board::is_pausing)
    }
}
