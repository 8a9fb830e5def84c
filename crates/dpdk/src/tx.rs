//! Sending: frames in packet buffers as they are, all others copied into such.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use port::{BURST_MAX, PacketRef, TxCounters, TxQueue};

use crate::device::Device;
use crate::ffi;
use crate::mbuf::{HEADROOM, Mbuf};
use crate::name::ETHERNET_HEADER;
use crate::rx::{Held, free};
use crate::thread;

/// A sending half.
pub(crate) struct Tx {
    device: Arc<Device>,
    queue: u16,
    /// Who else sends by it.
    turn: Option<Turn>,
    frames: RangeInclusive<usize>,
    spare: Spare,
    counters: TxCounters,
}

// SAFETY: the buffers that the pointers lead to are this queue's alone, whoever has it.
unsafe impl Send for Tx {}

impl Tx {
    /// Sends by a queue of the device, taking turns where others do too.
    pub(crate) fn new(device: Arc<Device>, queue: u16, turn: Option<Turn>) -> Self {
        let frames = ETHERNET_HEADER..=device.frame_max();
        Self { device, queue, turn, frames, spare: Spare::new(), counters: TxCounters::default() }
    }

    /// Sends up to [`BURST_MAX`] packets. Returns how many the caller is rid of.
    fn send_some(&mut self, packets: &[PacketRef<'_>]) -> usize {
        let mut mbufs = [core::ptr::null_mut(); BURST_MAX];
        // Which packets these are of.
        let mut of = [0_u8; BURST_MAX];
        let (mut count, mut handled) = (0, 0);
        for (n, packet) in packets.iter().enumerate() {
            match self.buffer(packet) {
                Buffer::Ready(mbuf) => {
                    (mbufs[count], of[count]) = (mbuf, n as u8);
                    count += 1;
                }
                Buffer::Never => {}
                Buffer::NotNow => break,
            }
            handled = n + 1;
        }
        let sent = self.hand_over(&mut mbufs[..count]);
        if sent < count {
            handled = of[sent].into();
            (sent..count).for_each(|k| self.keep(&packets[usize::from(of[k])], mbufs[k]));
        }
        let bytes = of[..sent].iter().map(|n| packets[usize::from(*n)].len() as u64).sum::<u64>();
        self.counters.packets += sent as u64;
        self.counters.bytes += bytes;
        self.counters.discarded += (handled - sent) as u64;
        handled
    }

    /// Gives buffers to the driver. Returns how many it took.
    #[inline(always)]
    fn hand_over(&self, mbufs: &mut [*mut Mbuf]) -> usize {
        let _turn = self.turn.as_ref().map(Turn::take);
        // SAFETY: so many buffers with a frame each, which are this queue's; one thread has the queue, or the turn.
        usize::from(unsafe { ffi::kaista_send(self.device.port(), self.queue, mbufs.as_mut_ptr(), mbufs.len() as u16) })
    }

    /// A buffer with the packet in it, ready to be sent.
    #[inline(always)]
    fn buffer(&mut self, packet: &PacketRef<'_>) -> Buffer {
        let len = packet.len();
        if !self.frames.contains(&len) {
            return Buffer::Never;
        }
        let Some(held) = Held::of(packet) else { return self.copied(packet, len) };
        let Some(mbuf) = held.take() else { return Buffer::Never };
        if !place(mbuf, packet, len) {
            held.put_back();
            return self.copied(packet, len);
        }
        Buffer::Ready(mbuf)
    }

    #[inline(always)]
    fn copied(&mut self, packet: &PacketRef<'_>, len: usize) -> Buffer {
        let Some(mbuf) = self.spare.take(&self.device) else { return Buffer::NotNow };
        // SAFETY: the buffer is this queue's alone, and has room for the longest frame behind the headroom.
        unsafe {
            (*mbuf).set_frame(HEADROOM, len as u16);
            let frame = core::slice::from_raw_parts_mut((*mbuf).buf_addr.add(HEADROOM.into()), len);
            packet.copy_to(frame);
        }
        Buffer::Ready(mbuf)
    }

    /// What was not sent stays: the caller's if it was lent to it, or else for the next copy.
    #[cold]
    fn keep(&mut self, packet: &PacketRef<'_>, mbuf: *mut Mbuf) {
        match Held::of(packet).filter(|held| held.is(mbuf)) {
            Some(held) => held.put_back(),
            None => self.spare.put_back(mbuf),
        }
    }

    #[cold]
    fn refuse(&mut self, count: usize) {
        match self.device.has_peer() {
            true => self.counters.refused += count as u64,
            false => self.counters.no_peer += count as u64,
        }
    }
}

/// A queue of the device by which several workers send, one at a time. Each has it for a burst, so that waiting is shorter than
/// asking the kernel to.
#[derive(Clone, Default)]
pub(crate) struct Turn(Arc<AtomicBool>);

/// Somebody's turn, until it is dropped.
struct Taken<'a>(&'a AtomicBool);

impl Turn {
    fn take(&self) -> Taken<'_> {
        while self.0.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        Taken(&self.0)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What becomes of a packet.
enum Buffer {
    /// It is in this buffer.
    Ready(*mut Mbuf),
    /// It cannot be sent: its length is no frame's, or it was sent before and is here no more.
    Never,
    /// There is no buffer for it.
    NotNow,
}

/// Says where in its buffer the packet is by now. False, and nothing said, where that is not all of it: its head lies elsewhere.
#[inline(always)]
fn place(mbuf: *mut Mbuf, packet: &PacketRef<'_>, len: usize) -> bool {
    // SAFETY: the buffer was in the function's hands until now, and nobody else looks at it.
    let mbuf = unsafe { &mut *mbuf };
    let (head, rest) = (packet.head.as_ptr_range(), packet.rest);
    let offset = (head.start as usize).wrapping_sub(mbuf.buf_addr as usize);
    let is_whole = rest.is_empty() || rest.as_ptr() == head.end;
    let fits = is_whole && offset < mbuf.buf_len.into() && len <= usize::from(mbuf.buf_len) - offset;
    if fits {
        mbuf.set_frame(offset as u16, len as u16);
    }
    fits
}

impl TxQueue for Tx {
    fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        thread::make_known();
        let mut done = 0;
        for some in packets.chunks(BURST_MAX) {
            let handled = self.send_some(some);
            done += handled;
            if handled < some.len() {
                self.refuse(packets.len() - done);
                break;
            }
        }
        done
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}

/// Empty buffers at hand, fetched from the pool by the burst.
struct Spare {
    mbufs: [*mut Mbuf; SPARE_MAX],
    count: usize,
}

/// A burst that was fetched, and one that was not sent.
const SPARE_MAX: usize = 2 * BURST_MAX;

impl Spare {
    fn new() -> Self {
        Self { mbufs: [core::ptr::null_mut(); SPARE_MAX], count: 0 }
    }

    #[inline(always)]
    fn take(&mut self, device: &Device) -> Option<*mut Mbuf> {
        if self.count == 0 {
            self.fetch(device);
        }
        self.count = self.count.checked_sub(1)?;
        Some(self.mbufs[self.count])
    }

    fn fetch(&mut self, device: &Device) {
        // SAFETY: room for as many as are asked for; all or none come.
        let error = unsafe { ffi::kaista_allocate(device.pool().as_ptr(), self.mbufs.as_mut_ptr(), BURST_MAX as u32) };
        self.count = if error == 0 { BURST_MAX } else { 0 };
    }

    fn put_back(&mut self, mbuf: *mut Mbuf) {
        self.mbufs[self.count] = mbuf;
        self.count += 1;
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        free(&mut self.mbufs[..self.count]);
    }
}
