//! Receiving: packet buffers as drivers fill them, lent to the function until it receives again or sends them on.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use port::{BURST_MAX, Burst, HEAD_MAX, Lease, RxCounters, RxQueue, Slot};

use crate::device::Device;
use crate::ffi;
use crate::mbuf::Mbuf;
use crate::name::ETHERNET_HEADER;
use crate::spread::Share;
use crate::thread;

/// The most that some drivers give at a time, however much they are asked for (virtio's vector path).
const DRIVERS_BURST: usize = 32;
/// What stands for a packet buffer that the function has.
const LENT: u32 = Lease::FOREIGN;
/// What stands for one that it has sent on.
const GONE: u32 = 0;

/// A packet buffer that was lent, and whether it still is.
#[repr(C)]
pub(crate) struct Held {
    state: AtomicU32,
    mbuf: *mut Mbuf,
}

impl Held {
    const fn none() -> Self {
        Self { state: AtomicU32::new(GONE), mbuf: core::ptr::null_mut() }
    }

    /// What stands for a buffer that was lent by a queue of this crate.
    ///
    /// # Safety
    /// The lease must be that of a packet that is borrowed for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(lease: Lease) -> Option<&'a Self> {
        let Lease { buffer, back } = lease;
        // SAFETY: only `Rx` makes leases of that number, with a pointer to the first field of one of these, which stays as long
        // as the packet is borrowed.
        (buffer == LENT && !back.is_null()).then(|| unsafe { &*back.cast::<Self>() })
    }

    /// Takes the buffer out of the function's hands. None if it is in them no more.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<*mut Mbuf> {
        // One thread has the burst, so nobody comes between.
        (self.state.load(Ordering::Relaxed) == LENT).then(|| {
            self.state.store(GONE, Ordering::Relaxed);
            self.mbuf
        })
    }

    /// Whether this is the buffer.
    pub(crate) fn is(&self, mbuf: *mut Mbuf) -> bool {
        self.mbuf == mbuf
    }

    /// Puts it back: it was not sent after all.
    #[inline(always)]
    pub(crate) fn put_back(&self) {
        self.state.store(LENT, Ordering::Relaxed);
    }
}

/// Where a receiving half gets its frames.
pub(crate) enum Source {
    /// From a queue of the device that nobody else receives from.
    Queue(u16),
    /// From all of its queues, by agreement with the port's other workers.
    Share(Share),
}

/// A receiving half.
pub(crate) struct Rx {
    // Before the device, which must outlive the buffers that wait in it.
    source: Source,
    device: Arc<Device>,
    slots: Box<[Slot]>,
    held: Box<[Held]>,
    /// How many of these are of the last burst.
    count: usize,
    /// Room for a burst on its way from the driver, or back to a pool.
    mbufs: [*mut Mbuf; BURST_MAX],
    frame_max: usize,
    peek: usize,
    counters: RxCounters,
}

// SAFETY: the buffers that the pointers lead to are this queue's alone, whoever has it.
unsafe impl Send for Rx {}

impl Rx {
    /// Receives from `source`; the first `peek` bytes of a frame are its head.
    pub(crate) fn new(device: Arc<Device>, source: Source, peek: usize) -> Self {
        Self {
            source,
            frame_max: device.frame_max(),
            device,
            slots: (0..BURST_MAX).map(|_| Slot::new()).collect(),
            held: [const { Held::none() }; BURST_MAX].into(),
            count: 0,
            mbufs: [core::ptr::null_mut(); BURST_MAX],
            peek: peek.clamp(64, HEAD_MAX),
            counters: RxCounters::default(),
        }
    }

    /// What was not sent on goes back to its pool.
    #[inline(always)]
    fn give_back(&mut self) {
        let mut count = 0;
        for (mbuf, to) in self.held[..self.count].iter().filter_map(Held::take).zip(&mut self.mbufs) {
            *to = mbuf;
            count += 1;
        }
        self.count = 0;
        free(&mut self.mbufs[..count]);
    }

    /// Lends the first `received` packet buffers to slots, but for those that the function could not handle.
    #[inline(always)]
    fn lend(&mut self, received: usize) {
        let (mut count, mut bytes) = (0, 0);
        let mut empty = self.slots.iter_mut().zip(&mut self.held);
        for mbuf in &mut self.mbufs[..received] {
            // SAFETY: the driver has filled it and keeps it no more.
            let Mbuf { buf_addr, data_off, nb_segs, pkt_len, .. } = unsafe { &**mbuf };
            let len = *pkt_len as usize;
            if *nb_segs != 1 || !(ETHERNET_HEADER..=self.frame_max).contains(&len) {
                self.counters.invalid += 1;
                free(core::slice::from_mut(mbuf));
                continue;
            }
            let Some((slot, held)) = empty.next() else { break };
            *held = Held { state: AtomicU32::new(LENT), mbuf: *mbuf };
            let lease = Lease { buffer: LENT, back: core::ptr::from_ref(held).cast() };
            let head = len.min(self.peek);
            // SAFETY: the buffer is this queue's until the next receive, or until it is sent on, and `held` stays where it is;
            // drivers write frames within buffers.
            unsafe { slot.lend(*buf_addr, *data_off, head as u16, (len - head) as u32, lease) };
            port::prefetch(slot.head());
            count += 1;
            bytes += len as u64;
        }
        self.count = count;
        self.counters.packets += count as u64;
        self.counters.bytes += bytes;
    }
}

impl RxQueue for Rx {
    fn recv(&mut self) -> Burst<'_> {
        thread::make_known();
        self.give_back();
        let received = match &mut self.source {
            Source::Queue(queue) => receive(self.device.port(), *queue, &mut self.mbufs),
            Source::Share(share) => share.receive(&mut self.mbufs),
        };
        self.lend(received);
        self.counters.polls += 1;
        self.counters.empty_polls += u64::from(self.count == 0);
        Burst::new(&mut self.slots[..self.count])
    }

    /// Never: nothing would end a sleep.
    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn counters(&self) -> RxCounters {
        self.counters
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Takes what a queue of the device has, which nobody else may do at the same time.
#[inline(always)]
pub(crate) fn receive(port: u16, queue: u16, to: &mut [*mut Mbuf; BURST_MAX]) -> usize {
    let mut received = 0;
    loop {
        let room = &mut to[received..];
        // SAFETY: room for as many as it may give.
        let more = usize::from(unsafe { ffi::kaista_receive(port, queue, room.as_mut_ptr(), room.len() as u16) });
        received += more;
        if more != DRIVERS_BURST || received == BURST_MAX {
            return received;
        }
    }
}

/// Gives packet buffers back to their pools.
pub(crate) fn free(mbufs: &mut [*mut Mbuf]) {
    if !mbufs.is_empty() {
        // SAFETY: callers have them, and do not look at them again.
        unsafe { ffi::kaista_free(mbufs.as_mut_ptr(), mbufs.len() as u32) }
    }
}
