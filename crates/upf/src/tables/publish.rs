//! How a version gets to the workers, and how its predecessor comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use super::ApplyError;
use super::version::{Change, News, Version};
use crate::bell::Bell;
use crate::side::Sides;

/// How long a publisher spins for workers before it sleeps between looks.
const SPIN: Duration = Duration::from_micros(20);
/// How long it sleeps between looks.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// Acknowledged by a reader that is gone.
const GONE: u64 = u64::MAX;
/// Acknowledged by a reader that has not looked yet; it will see the newest version when it does.
const NEW: u64 = u64::MAX - 1;

struct Shared {
    current: ArcSwap<Version>,
    /// Number of the current version. Written by the publisher alone, after `current`.
    serial: AtomicU64,
    seats: Box<[Seat]>,
}

/// What concerns one worker; on cache lines of its own.
#[repr(align(128))]
struct Seat {
    /// Number of the version that the worker uses. Written by the worker alone.
    acknowledged: AtomicU64,
    bell: Arc<Bell>,
}

/// A worker's view of the tables.
pub struct Reader {
    shared: Arc<Shared>,
    index: usize,
    /// None before the first look.
    version: Option<Arc<Version>>,
    seen: u64,
}

/// The one who makes versions.
pub(super) struct Publisher {
    shared: Arc<Shared>,
    /// The copy that no worker sees, equal to the current version.
    standby: Arc<Version>,
}

/// A publisher and `workers` readers of `version`.
pub(super) fn channel(version: Version, workers: usize) -> (Publisher, Vec<Reader>) {
    let standby = Arc::new(version.clone());
    let seat = |_| Seat {
        acknowledged: AtomicU64::new(NEW),
        bell: Arc::new(Bell::new().expect("a process that can start can have an eventfd a worker")),
    };
    let shared = Arc::new(Shared {
        current: ArcSwap::from_pointee(version),
        serial: AtomicU64::new(0),
        seats: (0..workers).map(seat).collect(),
    });
    let reader = |index| Reader { shared: shared.clone(), index, version: None, seen: NEW };
    let readers = (0..workers).map(reader).collect();
    (Publisher { shared, standby }, readers)
}

impl Reader {
    /// Takes the current version, and says whether it is a new one. Called between two bursts.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        let is_stale = self.is_stale();
        if is_stale {
            self.take();
        }
        is_stale
    }

    /// Whether there is a newer version than the one taken.
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.shared.serial.load(Ordering::Acquire) != self.seen
    }

    #[cold]
    fn take(&mut self) {
        self.seen = self.shared.serial.load(Ordering::Acquire);
        // The old version is not freed by this: the publisher holds it too.
        self.version = Some(self.shared.current.load_full());
        self.shared.seats[self.index].acknowledged.store(self.seen, Ordering::Release);
    }

    /// Number of the version last taken.
    pub fn serial(&self) -> u64 {
        self.seen
    }

    /// The version last taken.
    ///
    /// # Panics
    /// Before the first [`Reader::refresh`].
    #[inline]
    pub fn version(&self) -> &Version {
        self.version.as_deref().expect("a worker refreshes before it looks")
    }

    /// The sides of all ports.
    pub fn sides(&self) -> Sides {
        self.shared.current.load().sides().clone()
    }

    /// Index of the worker.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.shared.seats.len()
    }

    /// The bell of the worker with the given index.
    pub fn bell(&self, worker: usize) -> Arc<Bell> {
        self.shared.seats[worker].bell.clone()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.seats[self.index].acknowledged.store(GONE, Ordering::Release);
    }
}

impl Publisher {
    /// Publishes a version with the changes made, and returns when every worker uses it. None misses one, so each has its
    /// `news` done.
    pub fn publish(&mut self, changes: &[Change], news: Vec<News>) -> Result<(), ApplyError> {
        let next = exclusive(&mut self.standby);
        changes.iter().for_each(|change| next.make(change.clone()));
        next.set_news(news);
        let mut former = self.shared.current.swap(self.standby.clone());
        let serial = self.shared.serial.load(Ordering::Relaxed) + 1;
        self.shared.serial.store(serial, Ordering::Release);
        self.shared.seats.iter().for_each(|seat| seat.bell.ring());
        self.wait_for(serial);
        let twin = exclusive(&mut former);
        changes.iter().for_each(|change| twin.make(change.clone()));
        self.standby = former;
        if self.abandoned() { Err(ApplyError::Stopped) } else { Ok(()) }
    }

    /// The current version.
    pub fn version(&self) -> &Version {
        &self.standby
    }

    /// Number of the current version.
    pub fn serial(&self) -> u64 {
        self.shared.serial.load(Ordering::Relaxed)
    }

    fn wait_for(&self, serial: u64) {
        let behind = |seat: &Seat| seat.acknowledged.load(Ordering::Acquire) < serial;
        wait_until(|| !self.shared.seats.iter().any(behind));
    }

    fn abandoned(&self) -> bool {
        let seats = &self.shared.seats;
        !seats.is_empty() && seats.iter().all(|seat| seat.acknowledged.load(Ordering::Acquire) == GONE)
    }
}

/// The version itself, once nobody else holds it. Whoever did has let go, or is about to.
fn exclusive(version: &mut Arc<Version>) -> &mut Version {
    wait_until(|| Arc::get_mut(version).is_some());
    Arc::get_mut(version).expect("nobody can have taken a version that is not current")
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        if start.elapsed() < SPIN {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
