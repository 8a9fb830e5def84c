//! Pools of packet buffers. A pool is a device's while that is open, and afterwards one's that needs such a pool: it is never
//! freed, since other devices may still have some of its buffers on their way.

use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::ffi::{self, Mempool};
use crate::mbuf::HEADROOM;

/// Buffers that each thread keeps to itself.
const CACHE: u32 = 256;
/// Memory of a buffer grows in such steps: some cards count in nothing smaller.
const STEP_BYTES: usize = 1024;
/// The least, which every card can work with.
const ROOM_MIN_BYTES: usize = 2048;

static IDLE: Mutex<Vec<Reserve>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Reserve {
    memory: *mut Mempool,
    count: u32,
    room: u16,
}

// SAFETY: DPDK's pools may be used by all threads, at once too.
unsafe impl Send for Reserve {}
// SAFETY: as above.
unsafe impl Sync for Reserve {}

/// Packet buffers for one device.
pub(crate) struct Pool(Reserve);

impl Pool {
    /// Buffers of at least so many bytes behind the headroom, so many of them beside what so many threads keep.
    pub(crate) fn with(bytes: usize, count: u32, threads: u32) -> Result<Self, Error> {
        let room = bytes.next_multiple_of(STEP_BYTES).max(ROOM_MIN_BYTES) as u16 + HEADROOM;
        // A cache may hold half as much again as its size before it gives some back.
        let count = count + threads * CACHE * 3 / 2;
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        // Some drivers forget buffers as they close (AF_XDP those that the kernel had): a pool that misses many is not used again.
        let fits = |reserve: &Reserve| {
            let of_that_size = reserve.room == room && (count..=2 * count).contains(&reserve.count);
            // SAFETY: a pool stays as long as the process.
            of_that_size && unsafe { ffi::kaista_pool_available(reserve.memory) } >= count - count / 8
        };
        if let Some(found) = idle.iter().position(fits) {
            return Ok(Self(idle.swap_remove(found)));
        }
        drop(idle);
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = CString::new(format!("kaista{}", NUMBER.fetch_add(1, Ordering::Relaxed))).expect("no zero in it");
        // SAFETY: DPDK was started; it copies the name.
        let memory = unsafe { ffi::kaista_pool(name.as_ptr(), count, CACHE, room) };
        if memory.is_null() {
            let bytes = u64::from(count) * u64::from(room);
            let reason = format!("no {} MiB in hugepages for {count} packet buffers", (bytes >> 20) + 1);
            return Err(Error::Refused { device: "DPDK".to_owned(), what: "make a pool", reason });
        }
        Ok(Self(Reserve { memory, count, room }))
    }

    /// For the calls that take one.
    pub(crate) fn as_ptr(&self) -> *mut Mempool {
        self.0.memory
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}
