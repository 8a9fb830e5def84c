//! Sending: frames in packet buffers as they are, all others copied into such.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use port::{BURST_MAX, Burst, PacketRef, Placed, TxCounters, TxQueue};

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
    frame_max: usize,
    /// What is on its way to the driver, and which packets these are of.
    mbufs: [*mut Mbuf; BURST_MAX],
    of: [u8; BURST_MAX],
    spare: Spare,
    counters: TxCounters,
}

// SAFETY: the buffers that the pointers lead to are this queue's alone, whoever has it.
unsafe impl Send for Tx {}

impl Tx {
    /// Sends by a queue of the device, taking turns where others do too.
    pub(crate) fn new(device: Arc<Device>, queue: u16, turn: Option<Turn>) -> Self {
        Self {
            queue,
            turn,
            frame_max: device.frame_max(),
            device,
            mbufs: [core::ptr::null_mut(); BURST_MAX],
            of: [0; BURST_MAX],
            spare: Spare::new(),
            counters: TxCounters::default(),
        }
    }

    /// Sends so many packets, of which `placed` says where they stand, as far as it knows. Returns how many the caller is rid of.
    #[inline(always)]
    fn send_all<'a>(
        &mut self,
        packets: usize,
        packet: impl Fn(usize) -> PacketRef<'a>,
        placed: impl Fn(usize) -> Option<Placed>,
    ) -> usize {
        thread::make_known();
        let mut done = 0;
        while done < packets {
            let some = BURST_MAX.min(packets - done);
            let handled = self.send_some(some, |n| packet(done + n), |n| placed(done + n));
            done += handled;
            if handled < some {
                self.refuse(packets - done);
                break;
            }
        }
        done
    }

    /// The same of up to [`BURST_MAX`].
    #[inline(always)]
    fn send_some<'a>(
        &mut self,
        packets: usize,
        packet: impl Fn(usize) -> PacketRef<'a>,
        placed: impl Fn(usize) -> Option<Placed>,
    ) -> usize {
        let (mut count, mut handled, mut bytes) = (0, 0, 0);
        for n in 0..packets {
            let placed = placed(n).and_then(|placed| {
                // SAFETY: of a packet that the caller has borrowed.
                let held = unsafe { Held::of::<'a>(placed.lease) };
                held.map(|held| (held, placed))
            });
            let (len, buffer) = match placed {
                Some((held, placed)) => (placed.len, self.lent(held, placed)),
                None => {
                    let packet = packet(n);
                    (packet.len(), self.buffer(packet))
                }
            };
            match buffer {
                Buffer::Ready(mbuf) => {
                    (self.mbufs[count], self.of[count]) = (mbuf, n as u8);
                    count += 1;
                    bytes += len as u64;
                }
                Buffer::Never => {}
                Buffer::NotNow => break,
            }
            handled = n + 1;
        }
        let sent = self.hand_over(count);
        for k in sent..count {
            let packet = packet(self.of[k].into());
            self.keep(&packet, self.mbufs[k]);
            bytes -= packet.len() as u64;
        }
        if sent < count {
            handled = self.of[sent].into();
        }
        self.counters.packets += sent as u64;
        self.counters.bytes += bytes;
        self.counters.discarded += (handled - sent) as u64;
        handled
    }

    /// Gives the first `count` buffers to the driver. Returns how many it took.
    #[inline(always)]
    fn hand_over(&mut self, count: usize) -> usize {
        let _turn = self.turn.as_ref().map(Turn::take);
        let mbufs = &mut self.mbufs[..count];
        // SAFETY: so many buffers with a frame each, which are this queue's; one thread has the queue, or the turn.
        usize::from(unsafe { ffi::kaista_send(self.device.port(), self.queue, mbufs.as_mut_ptr(), mbufs.len() as u16) })
    }

    #[inline(always)]
    fn is_frame(&self, len: usize) -> bool {
        (ETHERNET_HEADER..=self.frame_max).contains(&len)
    }

    /// The buffer that a packet was lent with and still is in.
    #[inline(always)]
    fn lent(&self, held: &Held, placed: Placed) -> Buffer {
        if !self.is_frame(placed.len) {
            return Buffer::Never;
        }
        let Some(mbuf) = held.take() else { return Buffer::Never };
        // SAFETY: the buffer was in the function's hands until now, and nobody else looks at it; `Rx` lent it from its beginning
        // on, so that the frame lies within it.
        unsafe { (*mbuf).set_frame(placed.offset, placed.len as u16) };
        Buffer::Ready(mbuf)
    }

    /// A buffer with the packet in it, ready to be sent.
    #[inline(always)]
    fn buffer(&mut self, packet: PacketRef<'_>) -> Buffer {
        let len = packet.len();
        if !self.is_frame(len) {
            return Buffer::Never;
        }
        // SAFETY: of a packet that the caller has borrowed.
        let Some(held) = (unsafe { Held::of(packet.rest.lease()) }) else { return self.copied(packet, len) };
        let Some(mbuf) = held.take() else { return Buffer::Never };
        if !place(mbuf, &packet, len) {
            held.put_back();
            return self.copied(packet, len);
        }
        Buffer::Ready(mbuf)
    }

    /// Not inlined, and the packet by value, so that one which is in a buffer already need not stand in memory for it.
    #[inline(never)]
    fn copied(&mut self, packet: PacketRef<'_>, len: usize) -> Buffer {
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
        // SAFETY: of a packet that the caller has borrowed.
        match unsafe { Held::of(packet.rest.lease()) }.filter(|held| held.is(mbuf)) {
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
        self.send_all(packets.len(), |n| packets[n], |_| None)
    }

    fn send_burst(&mut self, burst: &Burst<'_>, from: usize) -> usize {
        let count = burst.len().saturating_sub(from);
        self.send_all(count, |n| burst.get(from + n), |n| burst.placed(from + n))
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}

/// Empty buffers at hand, fetched from the pool by the burst before they are needed: a peer that has read what was in them has
/// their lines.
struct Spare {
    /// Numbers are taken modulo their length.
    mbufs: [*mut Mbuf; SPARE_MAX],
    /// The one that comes next, and the end.
    next: usize,
    end: usize,
}

/// Two bursts that were fetched, and one that was not sent; a power of two.
const SPARE_MAX: usize = 4 * BURST_MAX;
/// So many buffers ahead lines are asked for to be written.
const AHEAD: usize = 16;
/// Lines that are asked for: the one before the frame, where drivers write headers of their own, and three of the frame. Most are not
/// longer.
const LINES: usize = 4;
const LINE: usize = 64;

impl Spare {
    fn new() -> Self {
        Self { mbufs: [core::ptr::null_mut(); SPARE_MAX], next: 0, end: 0 }
    }

    #[inline(always)]
    fn take(&mut self, device: &Device) -> Option<*mut Mbuf> {
        if self.count() <= AHEAD {
            self.fetch(device);
        }
        if self.count() > AHEAD {
            self.expect(self.next.wrapping_add(AHEAD));
        }
        let mbuf = (self.count() > 0).then(|| self.mbufs[self.next % SPARE_MAX])?;
        self.next = self.next.wrapping_add(1);
        Some(mbuf)
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.end.wrapping_sub(self.next)
    }

    /// Asks for the lines of the buffer with this number.
    #[inline(always)]
    fn expect(&self, number: usize) {
        // SAFETY: an empty buffer of this queue's.
        let frame = unsafe { (*self.mbufs[number % SPARE_MAX]).buf_addr }.wrapping_add(HEADROOM.into());
        let first = frame.wrapping_sub(LINE);
        (0..LINES).for_each(|line| port::prefetch_to_write(first.wrapping_add(LINE * line)));
    }

    /// Not inlined: once a burst.
    #[inline(never)]
    fn fetch(&mut self, device: &Device) {
        // Bursts begin at multiples of their length, for nothing but whole ones is ever added here.
        let to = &mut self.mbufs[self.end % SPARE_MAX..][..BURST_MAX];
        // SAFETY: room for as many as are asked for; all or none come.
        let error = unsafe { ffi::kaista_allocate(device.pool().as_ptr(), to.as_mut_ptr(), BURST_MAX as u32) };
        self.end = self.end.wrapping_add(if error == 0 { BURST_MAX } else { 0 });
    }

    /// Gives back what was taken last.
    fn put_back(&mut self, mbuf: *mut Mbuf) {
        self.next = self.next.wrapping_sub(1);
        self.mbufs[self.next % SPARE_MAX] = mbuf;
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        while self.count() > 0 {
            free(&mut [self.mbufs[self.next % SPARE_MAX]]);
            self.next = self.next.wrapping_add(1);
        }
    }
}
