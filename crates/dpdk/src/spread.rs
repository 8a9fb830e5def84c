//! Software steering: where a device does not spread frames as the port wants it, the port's workers do it among themselves.
//!
//! Whoever finds nothing in its own ring takes a turn, if nobody else has it: it receives from all of the device's queues and puts
//! each frame into the ring of the worker that owns its bucket. So no core is set aside for it, a frame passes one ring, and
//! frames of a bucket stay in order. Nothing is received while a ring has no room for a burst: what does not fit waits
//! at the device, and is nobody's loss.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use port::steering::{BUCKETS, BucketTable};
use port::{BURST_MAX, HEAD_MAX, Steering};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::mbuf::Mbuf;
use crate::rx::{free, receive};

/// Frames that may wait for a worker.
pub(crate) const RING: usize = 1024;

/// A packet buffer on its way.
struct Passed(*mut Mbuf);

// SAFETY: whoever has it has the buffer alone.
unsafe impl Send for Passed {}

impl Passed {
    fn into_mbuf(self) -> *mut Mbuf {
        let mbuf = self.0;
        core::mem::forget(self);
        mbuf
    }
}

impl Drop for Passed {
    /// Of a ring that goes with what is in it.
    fn drop(&mut self) {
        free(&mut [self.0]);
    }
}

/// What the workers of a port share.
pub(crate) struct Spreader {
    steering: Steering,
    owners: [AtomicU8; BUCKETS],
    turn: Mutex<Turn>,
}

/// What one of them at a time has.
struct Turn {
    port: u16,
    queues: u16,
    rings: Vec<Producer<Passed>>,
}

/// A worker's part.
pub(crate) struct Share {
    spreader: Arc<Spreader>,
    ring: Consumer<Passed>,
}

impl Spreader {
    /// Spreads what comes from a device, by DPDK's number and with so many queues, over so many workers.
    pub(crate) fn over((port, queues): (u16, u16), workers: u16, steering: Steering) -> (Arc<Self>, Vec<Share>) {
        let (rings, ends): (Vec<_>, Vec<_>) = (0..workers).map(|_| RingBuffer::new(RING)).unzip();
        let owners = BucketTable::fixed(workers.into()).owners().map(AtomicU8::new);
        let spreader = Arc::new(Self { steering, owners, turn: Mutex::new(Turn { port, queues, rings }) });
        let shares = ends.into_iter().map(|ring| Share { spreader: spreader.clone(), ring }).collect();
        (spreader, shares)
    }

    /// Frames that are received from here on go by this table. Those in the rings stay where they are: a bucket that moves is
    /// seen by both workers until the first of them has worked off what it had.
    pub(crate) fn set_owners(&self, table: &BucketTable) {
        self.owners.iter().zip(table.owners()).for_each(|(to, owner)| to.store(*owner, Ordering::Relaxed));
    }

    /// Takes a turn, unless another worker has it.
    fn take_turn(&self) {
        let Ok(mut turn) = self.turn.try_lock() else { return };
        for queue in 0..turn.queues {
            if turn.rings.iter().any(|ring| ring.slots() < BURST_MAX) {
                return;
            }
            let mut mbufs = [core::ptr::null_mut(); BURST_MAX];
            let received = receive(turn.port, queue, &mut mbufs);
            mbufs[..received].iter().for_each(|mbuf| self.pass(&mut turn.rings, *mbuf));
        }
    }

    #[inline(always)]
    fn pass(&self, rings: &mut [Producer<Passed>], mbuf: *mut Mbuf) {
        // SAFETY: just received, and this worker's for now; its first segment has so many bytes.
        let head = unsafe {
            let Mbuf { buf_addr, data_off, data_len, .. } = &*mbuf;
            core::slice::from_raw_parts(buf_addr.add((*data_off).into()), usize::from(*data_len).min(HEAD_MAX))
        };
        let bucket = if head.len() < STEERABLE { 0 } else { self.steering.bucket(head) };
        let owner = self.owners[usize::from(bucket)].load(Ordering::Relaxed);
        // There is room: it was looked for, and only who has the turn puts anything in.
        let _ = rings[usize::from(owner)].push(Passed(mbuf));
    }
}

/// Bytes of a frame that has an EtherType.
const STEERABLE: usize = 14;

impl Share {
    /// Takes what is for this worker.
    #[inline]
    pub(crate) fn receive(&mut self, to: &mut [*mut Mbuf; BURST_MAX]) -> usize {
        let mut count = self.take(to);
        if count == 0 {
            self.spreader.take_turn();
            count = self.take(to);
        }
        count
    }

    #[inline(always)]
    fn take(&mut self, to: &mut [*mut Mbuf]) -> usize {
        let mut count = 0;
        while count < to.len()
            && let Ok(passed) = self.ring.pop()
        {
            to[count] = passed.into_mbuf();
            count += 1;
        }
        count
    }
}
