//! How new generations of channels come from a port's control thread to the threads that use its queues.
//!
//! A queue half looks at one word between bursts, which changes almost never. Mapping, prefaulting and unmapping happen
//! on the control thread.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::ring::Violation;
use crate::sync::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, full_fence, light_fence, read, write};

/// What is known of the peer in one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Fate {
    /// Attached.
    Present = 0,
    /// The generation is over, but the peer's process may still be writing.
    Over = 1,
    /// The peer's process is gone: its heads are final.
    Dead = 2,
}

/// One generation of a link, as one end sees it.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    fate: AtomicU8,
    /// Queues of the peer, a pool, whose process is gone: a bit each.
    gone: AtomicU64,
}

impl Generation {
    pub(crate) fn new(number: u64) -> Arc<Self> {
        Arc::new(Self { number, fate: AtomicU8::new(Fate::Present as u8), gone: AtomicU64::new(0) })
    }

    pub(crate) fn fate(&self) -> Fate {
        match self.fate.load(Ordering::Acquire) {
            0 => Fate::Present,
            1 => Fate::Over,
            _ => Fate::Dead,
        }
    }

    /// Fates only get worse.
    pub(crate) fn end(&self, fate: Fate) {
        self.fate.fetch_max(fate as u8, Ordering::AcqRel);
    }

    /// Whether the heads of the peer's queue `queue` are final.
    pub(crate) fn is_dead(&self, queue: usize) -> bool {
        self.fate() == Fate::Dead || self.gone.load(Ordering::Acquire) >> queue & 1 == 1
    }

    /// The process of these queues of the peer is gone.
    pub(crate) fn bury(&self, queues: u64) {
        self.gone.fetch_or(queues, Ordering::AcqRel);
    }

    /// What the control thread tells the queues.
    #[cfg(all(test, loom))]
    pub(crate) fn word(&self) -> &dyn crate::sync::Atom {
        &self.fate
    }
}

/// A letter box for the halves (`H`) of new generations of one queue half.
#[derive(Debug)]
pub(crate) struct Handover<H> {
    version: AtomicU64,
    /// Whether the queue, one that sends, uses a generation right now.
    busy: AtomicBool,
    /// Whether the queue may be asleep.
    asleep: AtomicBool,
    /// Wake-ups that were, or soon will be, written.
    wakes: AtomicU64,
    /// Generations that hold records which the queue has not taken, beside the newest that it has begun.
    unread: AtomicUsize,
    boxes: Mutex<Boxes<H>>,
    wake: OwnedFd,
}

#[derive(Debug)]
struct Boxes<H> {
    coming: VecDeque<H>,
    going: Vec<H>,
    /// Nobody uses the queue any more.
    abandoned: bool,
}

/// Most generations that wait for a queue, and most that it has not done with. The oldest are given up.
pub(crate) const GENERATIONS_MAX: usize = 8;

impl<H> Handover<H> {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let boxes = Mutex::new(Boxes { coming: VecDeque::new(), going: Vec::new(), abandoned: false });
        Ok(Arc::new(Self {
            version: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            unread: AtomicUsize::new(0),
            boxes,
            wake,
        }))
    }

    /// Queue: changes whenever there is something to look at.
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Queue: what it uses until it leaves is the newest generation, or one that was the newest when it entered.
    #[inline(always)]
    pub(crate) fn enter(&self) {
        self.busy.store(true, Ordering::Relaxed);
        light_fence();
    }

    /// Queue: it uses no generation now.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Control thread, after [`fence_threads`](crate::sync::fence_threads): whether the queue uses none of the generations before
    /// the newest that was delivered by then, and never will.
    pub(crate) fn has_left(&self) -> bool {
        !self.busy.load(Ordering::Acquire)
    }

    /// Queue: the next generation, if one waits. Control thread: takes one back that the queue has not begun.
    pub(crate) fn next(&self) -> Option<H> {
        self.lock().coming.pop_front()
    }

    /// Queue: whether all generations that wait are such.
    pub(crate) fn all_waiting(&self, are: impl FnMut(&H) -> bool) -> bool {
        self.lock().coming.iter().all(are)
    }

    /// Queue: gives away what the control thread shall unmap.
    pub(crate) fn retire(&self, half: H) {
        self.lock().going.push(half);
    }

    /// Queue: nobody uses it any more. What waits is returned.
    pub(crate) fn abandon(&self) -> VecDeque<H> {
        let mut boxes = self.lock();
        boxes.abandoned = true;
        std::mem::take(&mut boxes.coming)
    }

    /// Queue: how many generations hold records that it has not taken, beside the newest that it has begun.
    pub(crate) fn set_unread(&self, generations: usize) {
        self.unread.store(generations, Ordering::Relaxed);
    }

    /// Control thread: whether one more generation need not displace one. Those that wait and have `ended` are dropped.
    pub(crate) fn has_room(&self, ended: impl Fn(&H) -> bool) -> bool {
        let mut boxes = self.lock();
        boxes.coming.retain(|half| !ended(half));
        boxes.abandoned || boxes.coming.len() + self.unread.load(Ordering::Relaxed) < GENERATIONS_MAX
    }

    /// Control thread: hands a generation over. What no longer fits is returned, to be unmapped.
    pub(crate) fn deliver(&self, half: H) -> Option<H> {
        let given_up = {
            let mut boxes = self.lock();
            if boxes.abandoned {
                return Some(half);
            }
            boxes.coming.push_back(half);
            if boxes.coming.len() > GENERATIONS_MAX { boxes.coming.pop_front() } else { None }
        };
        self.announce();
        given_up
    }

    /// Control thread: the queue should look (again).
    pub(crate) fn announce(&self) {
        self.version.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Any thread: the queue should look, and is woken only if it sleeps.
    pub(crate) fn nudge(&self) {
        self.version.fetch_add(1, Ordering::Release);
        full_fence();
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::Release);
        let _ = write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Queue: whether it sleeps. A full fence must follow before it looks for the last time.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Relaxed);
    }

    /// Queue: changes whenever [`Handover::wake_fd`] becomes readable, or earlier.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Acquire)
    }

    /// Control thread: takes what queues have retired.
    pub(crate) fn retired(&self) -> Vec<H> {
        std::mem::take(&mut self.lock().going)
    }

    /// Becomes readable when the queue should look.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Queue: makes it unreadable again. Returns how many wake-ups were written.
    pub(crate) fn calm(&self) -> u64 {
        let mut count = [0_u8; 8];
        read(&self.wake, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    fn lock(&self) -> MutexGuard<'_, Boxes<H>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, loom))]
impl<H> Handover<H> {
    /// What a queue and whoever nudges it look at.
    pub(crate) fn words(&self) -> [(&'static str, &dyn crate::sync::Atom); 3] {
        [("handover.version", &self.version), ("handover.asleep", &self.asleep), ("handover.busy", &self.busy)]
    }
}

/// What queues tell their port's control thread.
#[derive(Debug)]
pub(crate) struct Complaints {
    list: Mutex<Vec<Complaint>>,
    wake: OwnedFd,
}

/// A queue found that its peer broke a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) generation: u64,
    pub(crate) queue: u16,
    pub(crate) violation: Violation,
}

impl Complaints {
    pub(crate) fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { list: Mutex::new(Vec::new()), wake })
    }

    #[cold]
    pub(crate) fn add(&self, complaint: Complaint) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(complaint);
        self.ring();
    }

    /// Wakes the control thread.
    pub(crate) fn ring(&self) {
        let _ = write(&self.wake, &1_u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<Complaint> {
        let _ = read(&self.wake, &mut [0_u8; 8]);
        std::mem::take(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
