//! Receiving: packet buffers as drivers fill them, lent to the function until it receives again or sends them on.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use port::{BURST_MAX, Burst, HEAD_MAX, Lease, PacketRef, RxCounters, RxQueue, Slot};

use crate::device::Device;
use crate::ffi;
use crate::mbuf::Mbuf;
use crate::name::ETHERNET_HEADER;
use crate::spread::Share;
use crate::thread;

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

    /// The buffer that a packet was lent with by a queue of this crate.
    #[inline(always)]
    pub(crate) fn of<'a>(packet: &PacketRef<'a>) -> Option<&'a Self> {
        let Lease { buffer, back } = packet.rest.lease();
        // SAFETY: only `Rx` makes leases of that number, with a pointer to the first field of one of these, which stays as long
        // as the packet is borrowed.
        (buffer == LENT && !back.is_null()).then(|| unsafe { &*back.cast::<Self>() })
    }

    /// Takes the buffer out of the function's hands. None if it is in them no more.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<*mut Mbuf> {
        // One thread has the burst, so nobody comes between.
        let is_lent = self.state.load(Ordering::Relaxed) == LENT;
        self.state.store(GONE, Ordering::Relaxed);
        is_lent.then_some(self.mbuf)
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
            device,
            slots: (0..BURST_MAX).map(|_| Slot::new()).collect(),
            held: [const { Held::none() }; BURST_MAX].into(),
            count: 0,
            peek: peek.clamp(64, HEAD_MAX),
            counters: RxCounters::default(),
        }
    }

    /// What was not sent on goes back to its pool.
    fn give_back(&mut self) {
        let mut mbufs = [core::ptr::null_mut(); BURST_MAX];
        let mut count = 0;
        for mbuf in self.held[..self.count].iter().filter_map(Held::take) {
            mbufs[count] = mbuf;
            count += 1;
        }
        self.count = 0;
        free(&mut mbufs[..count]);
    }

    /// Lends a packet buffer to the next slot. False where it is not one that the function could handle.
    #[inline(always)]
    fn lend(&mut self, mbuf: *mut Mbuf) -> bool {
        // SAFETY: the driver has filled it and keeps it no more.
        let Mbuf { buf_addr, data_off, nb_segs, pkt_len, .. } = unsafe { &*mbuf };
        let len = *pkt_len as usize;
        if *nb_segs != 1 || !(ETHERNET_HEADER..=self.device.frame_max()).contains(&len) {
            return false;
        }
        let held = &mut self.held[self.count];
        *held = Held { state: AtomicU32::new(LENT), mbuf };
        let lease = Lease { buffer: LENT, back: core::ptr::from_ref(held).cast() };
        let head = len.min(self.peek);
        let slot = &mut self.slots[self.count];
        // SAFETY: the buffer is this queue's until the next receive, or until it is sent on, and `held` stays where it is; drivers
        // write frames within buffers.
        unsafe { slot.lend(*buf_addr, *data_off, head as u16, (len - head) as u32, lease) };
        port::prefetch(slot.head());
        self.count += 1;
        self.counters.bytes += len as u64;
        true
    }
}

impl RxQueue for Rx {
    fn recv(&mut self) -> Burst<'_> {
        thread::make_known();
        self.give_back();
        let mut mbufs = [core::ptr::null_mut(); BURST_MAX];
        let received = match &mut self.source {
            Source::Queue(queue) => receive(self.device.port(), *queue, &mut mbufs),
            Source::Share(share) => share.receive(&mut mbufs),
        };
        let mut refused = 0;
        for i in 0..received {
            if !self.lend(mbufs[i]) {
                mbufs[refused] = mbufs[i];
                refused += 1;
            }
        }
        free(&mut mbufs[..refused]);
        self.counters.polls += 1;
        self.counters.packets += self.count as u64;
        self.counters.empty_polls += u64::from(self.count == 0);
        self.counters.invalid += refused as u64;
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
    // SAFETY: room for as many as it may give.
    usize::from(unsafe { ffi::kaista_receive(port, queue, to.as_mut_ptr(), BURST_MAX as u16) })
}

/// Gives packet buffers back to their pools.
pub(crate) fn free(mbufs: &mut [*mut Mbuf]) {
    if !mbufs.is_empty() {
        // SAFETY: callers have them, and do not look at them again.
        unsafe { ffi::kaista_free(mbufs.as_mut_ptr(), mbufs.len() as u32) }
    }
}
