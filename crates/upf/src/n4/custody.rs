//! Has N4 rest, so that another process can go on with what it keeps: nothing is received, and the store is closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bell::Bell;

/// How long N4 may take to come to rest: what waits to be written is written before.
const PATIENCE: Duration = Duration::from_secs(10);

/// By which another thread has N4 rest, and go on.
#[derive(Clone, Debug)]
pub struct Custody {
    shared: Arc<Shared>,
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Shared {
    /// For N4 to look at on its way.
    is_wanted: AtomicBool,
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    Wanted,
    Resting,
}

impl Custody {
    /// Of an N4 that hears `bell`.
    pub(super) fn new(bell: Arc<Bell>) -> Self {
        let (is_wanted, stage) = (AtomicBool::new(false), Mutex::new(Stage::Serving));
        Self { shared: Arc::new(Shared { is_wanted, stage, changed: Condvar::new() }), bell }
    }

    /// Has N4 rest. False if it does not: nothing is kept that another process could go on with.
    pub fn take(&self) -> bool {
        self.set(Stage::Wanted);
        self.bell.ring();
        let stage = self.lock();
        let (stage, _) = self
            .shared
            .changed
            .wait_timeout_while(stage, PATIENCE, |stage| *stage == Stage::Wanted)
            .unwrap_or_else(PoisonError::into_inner);
        let rests = *stage == Stage::Resting;
        drop(stage);
        if !rests {
            self.give_back();
        }
        rests
    }

    /// Has N4 go on.
    pub fn give_back(&self) {
        self.set(Stage::Serving);
    }

    /// Whether N4 is to rest.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.shared.is_wanted.load(Ordering::Acquire)
    }

    /// N4 rests from now on if it can, and if that is still wanted. Whether it does.
    pub(super) fn rests(&self, can: bool) -> bool {
        let mut stage = self.lock();
        let rests = can && *stage == Stage::Wanted;
        self.become_stage(&mut stage, if rests { Stage::Resting } else { Stage::Serving });
        rests
    }

    /// N4 waits a little. True if it is to go on.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        let waited = self.shared.changed.wait_timeout_while(self.lock(), patience, |stage| *stage == Stage::Resting);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != Stage::Resting
    }

    fn set(&self, stage: Stage) {
        self.become_stage(&mut self.lock(), stage);
    }

    fn become_stage(&self, held: &mut Stage, stage: Stage) {
        *held = stage;
        self.shared.is_wanted.store(stage != Stage::Serving, Ordering::Release);
        self.shared.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.shared.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
