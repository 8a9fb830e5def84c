//! The model checker's side: words and bytes that a model calls *shared* are loom's; all others are plain memory, which
//! no other thread of the model looks at.
//!
//! Bytes of records are really read and written, by the code as it is; loom is told of it beforehand, and finds accesses
//! that are not ordered. A model can weaken a word, or leave a thread's fences out, to show that it notices.

use core::cell::RefCell;
use core::sync::atomic::{self as plain, Ordering};
use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SendError, TryRecvError};

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex, atomic};
use loom::thread::{self, ThreadId};
use rustix::io::Errno;

/// Orderings that a model takes away from a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weak {
    /// Stores are relaxed.
    Store,
    /// Loads are relaxed.
    Load,
}

struct Word {
    atomic: atomic::AtomicU64,
    weak: Option<Weak>,
}

/// What the threads of one execution share. All of them run on one thread of the system.
#[derive(Default)]
struct Shared {
    words: HashMap<usize, Rc<Word>>,
    bytes: HashMap<usize, Rc<UnsafeCell<()>>>,
    bells: Option<Rc<(Mutex<Bells>, Condvar)>>,
    fenceless: Vec<ThreadId>,
}

/// What wakes a sleeper: the pipe of its doorbell, and the eventfd of its mailbox. Models have one sleeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bells {
    pipe: bool,
    eventfd: u64,
}

thread_local! {
    static SHARED: RefCell<Shared> = RefCell::default();
}

fn shared<T>(with: impl FnOnce(&mut Shared) -> T) -> T {
    SHARED.with_borrow_mut(with)
}

/// Forgets what the last execution shared, and makes what a sleeper sleeps on.
pub fn begin() {
    let bells = Rc::new((Mutex::new(Bells::default()), Condvar::new()));
    shared(|shared| *shared = Shared { bells: Some(bells), ..Shared::default() });
}

/// Lets the model checker have a word.
pub fn share(word: &dyn Atom, weak: Option<Weak>) {
    let atomic = atomic::AtomicU64::new(word.plain());
    shared(|shared| shared.words.insert(word.address(), Rc::new(Word { atomic, weak })));
}

/// Lets the model checker watch bytes; both are multiples of 8.
pub fn share_bytes(from: *const u8, len: usize) {
    for address in granules(from, len) {
        let cell = Rc::new(UnsafeCell::new(()));
        shared(|shared| shared.bytes.insert(address, cell));
    }
}

/// From here on fences of this thread do nothing.
pub fn leave_fences_out() {
    shared(|shared| shared.fenceless.push(thread::current().id()));
}

/// Sleeps until something is readable. There is no backstop: a lost wake-up is a deadlock.
pub fn sleep() {
    let bells = bells();
    let mut rung = bells.0.lock().unwrap();
    while *rung == Bells::default() {
        rung = bells.1.wait(rung).unwrap();
    }
}

/// What can be shared: an atomic of any width.
pub trait Atom {
    /// What a model knows it by.
    fn address(&self) -> usize;
    /// Its value in plain memory.
    fn plain(&self) -> u64;
}

fn word(atom: &impl Atom) -> Option<Rc<Word>> {
    let address = atom.address();
    shared(|shared| shared.words.get(&address).cloned())
}

impl Word {
    fn load(&self, order: Ordering) -> u64 {
        self.atomic.load(if self.weak == Some(Weak::Load) { Ordering::Relaxed } else { order })
    }

    fn store(&self, value: u64, order: Ordering) {
        self.atomic.store(value, if self.weak == Some(Weak::Store) { Ordering::Relaxed } else { order });
    }

    /// The order of a change of the word in one step.
    fn both(&self, order: Ordering) -> Ordering {
        match (self.weak, order) {
            (Some(Weak::Store), Ordering::AcqRel) => Ordering::Acquire,
            (Some(Weak::Load), Ordering::AcqRel) => Ordering::Release,
            (Some(Weak::Store), Ordering::Release) | (Some(Weak::Load), Ordering::Acquire) => Ordering::Relaxed,
            (_, order) => order,
        }
    }
}

/// An atomic that is plain memory unless it is shared. All threads of a model run on one thread of the system.
macro_rules! atomic {
    ($name:ident, $value:ty, $to:expr, $from:expr $(, $change:ident)*) => {
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(plain::$name);

        impl Atom for $name {
            fn address(&self) -> usize {
                self.0.as_ptr() as usize
            }

            fn plain(&self) -> u64 {
                $to(self.0.load(Ordering::Relaxed))
            }
        }

        #[allow(dead_code, reason = "as the standard library's")]
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(plain::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                match word(self) {
                    Some(word) => $from(word.load(order)),
                    None => self.0.load(order),
                }
            }

            pub fn store(&self, value: $value, order: Ordering) {
                match word(self) {
                    Some(word) => word.store($to(value), order),
                    None => self.0.store(value, order),
                }
            }

            $(pub fn $change(&self, value: $value, order: Ordering) -> $value {
                match word(self) {
                    Some(word) => $from(word.atomic.$change($to(value), word.both(order))),
                    None => self.0.$change(value, order),
                }
            })*
        }
    };
}

atomic!(AtomicU64, u64, core::convert::identity, core::convert::identity, fetch_add, fetch_or, fetch_and);
atomic!(AtomicUsize, usize, |value| value as u64, |value| value as usize, fetch_add, fetch_sub);
atomic!(AtomicU8, u8, u64::from, |value| value as u8, fetch_max);
atomic!(AtomicBool, bool, u64::from, |value| value != 0);

impl AtomicU64 {
    /// # Safety
    /// As of the standard library's.
    pub unsafe fn from_ptr<'a>(word: *mut u64) -> &'a Self {
        // SAFETY: by contract; transparent.
        unsafe { &*word.cast() }
    }

    pub fn as_ptr(&self) -> *mut u64 {
        self.0.as_ptr()
    }
}

/// As of the standard library. What is received may be seen late, and is ordered by nothing but its sending.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let sent = Arc::new(atomic::AtomicU64::new(0));
    let items = Arc::new(std::sync::Mutex::new(VecDeque::new()));
    (Sender { sent: sent.clone(), items: items.clone() }, Receiver { sent, items, taken: 0.into() })
}

#[derive(Debug)]
pub struct Sender<T> {
    sent: Arc<atomic::AtomicU64>,
    items: Arc<std::sync::Mutex<VecDeque<T>>>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { sent: self.sent.clone(), items: self.items.clone() }
    }
}

impl<T> Sender<T> {
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        self.items.lock().unwrap().push_back(item);
        self.sent.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

#[derive(Debug)]
pub struct Receiver<T> {
    sent: Arc<atomic::AtomicU64>,
    items: Arc<std::sync::Mutex<VecDeque<T>>>,
    taken: core::cell::Cell<u64>,
}

impl<T> Receiver<T> {
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        if self.sent.load(Ordering::Acquire) == self.taken.get() {
            return Err(TryRecvError::Empty);
        }
        self.taken.set(self.taken.get() + 1);
        Ok(self.items.lock().unwrap().pop_front().unwrap())
    }
}

pub fn full_fence() {
    fence(Ordering::SeqCst);
}

pub fn light_fence() {
    full_fence();
}

pub fn fence_threads() -> bool {
    full_fence();
    true
}

pub fn fence(order: Ordering) {
    let me = thread::current().id();
    if !shared(|shared| shared.fenceless.contains(&me)) {
        atomic::fence(order);
    }
}

pub fn reads(from: *const u8, len: usize) {
    watched(from, len).for_each(|cell| cell.with(|_| ()));
}

pub fn writes(to: *const u8, len: usize) {
    watched(to, len).for_each(|cell| cell.with_mut(|_| ()));
}

/// A byte into the doorbell's pipe, or a number into an eventfd.
pub fn write(_fd: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let bells = bells();
    let mut rung = bells.0.lock().unwrap();
    match bytes.try_into().map(u64::from_ne_bytes) {
        Ok(number) => rung.eventfd += number,
        Err(_) => rung.pipe = true,
    }
    drop(rung);
    bells.1.notify_one();
    Ok(bytes.len())
}

/// Empties the one or the other.
pub fn read(_fd: impl AsFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    let bells = bells();
    let mut rung = bells.0.lock().unwrap();
    match <&mut [u8; 8]>::try_from(bytes) {
        Ok(number) if rung.eventfd > 0 => *number = std::mem::take(&mut rung.eventfd).to_ne_bytes(),
        Err(_) if rung.pipe => rung.pipe = false,
        _ => return Err(Errno::AGAIN),
    }
    Ok(1)
}

fn bells() -> Rc<(Mutex<Bells>, Condvar)> {
    shared(|shared| shared.bells.clone()).unwrap()
}

fn watched(from: *const u8, len: usize) -> impl Iterator<Item = Rc<UnsafeCell<()>>> {
    granules(from, len).filter_map(|address| shared(|shared| shared.bytes.get(&address).cloned()))
}

/// The multiples of 8 that the bytes touch.
fn granules(from: *const u8, len: usize) -> impl Iterator<Item = usize> {
    let from = from as usize;
    (from / 8 * 8..from + len).step_by(8)
}
