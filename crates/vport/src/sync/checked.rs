//! The model checker's side: words and bytes that a model calls *shared* are loom's; all others are plain memory, which
//! no other thread of the model looks at.
//!
//! Bytes of records are really read and written, by the code as it is; loom is told of it beforehand, and finds accesses
//! that are not ordered. A model can weaken a word, or leave a thread's fences out, to show that it notices.

use core::cell::RefCell;
use core::sync::atomic::{AtomicU64 as Plain, Ordering};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::rc::Rc;

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
    pipe: Option<Rc<(Mutex<bool>, Condvar)>>,
    fenceless: Vec<ThreadId>,
}

thread_local! {
    static SHARED: RefCell<Shared> = RefCell::default();
}

fn shared<T>(with: impl FnOnce(&mut Shared) -> T) -> T {
    SHARED.with_borrow_mut(with)
}

/// Forgets what the last execution shared, and makes a doorbell's pipe.
pub fn begin() {
    let pipe = Rc::new((Mutex::new(false), Condvar::new()));
    shared(|shared| *shared = Shared { pipe: Some(pipe), ..Shared::default() });
}

/// Lets the model checker have a word.
pub fn share(word: &AtomicU64, weak: Option<Weak>) {
    let atomic = atomic::AtomicU64::new(word.0.load(Ordering::Relaxed));
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

/// Sleeps until the doorbell's pipe is readable. There is no backstop: a lost wake-up is a deadlock.
pub fn sleep() {
    let pipe = pipe();
    let mut rung = pipe.0.lock().unwrap();
    while !*rung {
        rung = pipe.1.wait(rung).unwrap();
    }
}

/// A word in mapped memory.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicU64(Plain);

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

    pub fn load(&self, order: Ordering) -> u64 {
        match self.word() {
            Some(word) => word.atomic.load(if word.weak == Some(Weak::Load) { Ordering::Relaxed } else { order }),
            None => self.0.load(order),
        }
    }

    pub fn store(&self, value: u64, order: Ordering) {
        match self.word() {
            Some(word) => {
                word.atomic.store(value, if word.weak == Some(Weak::Store) { Ordering::Relaxed } else { order });
            }
            None => self.0.store(value, order),
        }
    }

    fn address(&self) -> usize {
        self.as_ptr() as usize
    }

    fn word(&self) -> Option<Rc<Word>> {
        shared(|shared| shared.words.get(&self.address()).cloned())
    }
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

/// Into the doorbell.
pub fn write(_pipe: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let pipe = pipe();
    *pipe.0.lock().unwrap() = true;
    pipe.1.notify_one();
    Ok(bytes.len())
}

/// Empties the doorbell.
pub fn read(_pipe: impl AsFd, _bytes: &mut [u8]) -> Result<usize, Errno> {
    if std::mem::take(&mut *pipe().0.lock().unwrap()) { Ok(1) } else { Err(Errno::AGAIN) }
}

fn pipe() -> Rc<(Mutex<bool>, Condvar)> {
    shared(|shared| shared.pipe.clone()).unwrap()
}

fn watched(from: *const u8, len: usize) -> impl Iterator<Item = Rc<UnsafeCell<()>>> {
    granules(from, len).filter_map(|address| shared(|shared| shared.bytes.get(&address).cloned()))
}

/// The multiples of 8 that the bytes touch.
fn granules(from: *const u8, len: usize) -> impl Iterator<Item = usize> {
    let from = from as usize;
    (from / 8 * 8..from + len).step_by(8)
}
