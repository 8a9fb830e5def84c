//! The sending half of a queue pair.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint};

use port::{BURST_MAX, PacketRef, TxQueue};
use rustix::io::Errno;

use crate::counters::TxCounters;
use crate::edge::{Answer, INVALID, array, guard, put_struct};
use crate::packet::Packet;

/// The sending half of a queue pair. One thread uses it at a time; not necessarily that of the receiving half.
pub struct Tx {
    queue: Box<dyn TxQueue>,
    broken: bool,
}

impl Tx {
    pub(crate) fn new(queue: Box<dyn TxQueue>) -> Self {
        Self { queue, broken: false }
    }
}

/// Sends the packets in order.
///
/// # Safety
/// Every packet is as [`Packet::borrow`] wants it.
#[inline]
unsafe fn send(queue: &mut dyn TxQueue, packets: &[Packet]) -> Answer {
    let mut sent = 0;
    for chunk in packets.chunks(BURST_MAX) {
        let mut burst = [PacketRef::from_slice(&[]); BURST_MAX];
        let mut good = 0;
        // SAFETY: by contract.
        while let Some(packet) = chunk.get(good).and_then(|packet| unsafe { packet.borrow() }) {
            burst[good] = packet;
            good += 1;
        }
        if good == 0 && sent == 0 {
            return Err(Errno::INVAL);
        }
        let accepted = queue.send(&burst[..good]);
        sent += accepted;
        if accepted < chunk.len() {
            break;
        }
    }
    Ok(sent as c_int)
}

/// Sends packets in order: received ones, of this port or another, and such as lie in memory of the caller's own. Returns
/// how many were accepted; the caller keeps the others, because the peer is full, slow or away. -EINVAL: the first one
/// cannot be sent (no head, or more rest than was received). What was accepted may be overwritten at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_tx_burst(tx: *mut Tx, packets: *const Packet, count: c_uint) -> c_int {
    // SAFETY: the caller's sending half, in this thread's hands, and its array of `count` packets.
    let (tx, packets) = unsafe { (tx.as_mut(), array(packets, (count as usize).min(c_int::MAX as usize))) };
    let (Some(Tx { queue, broken }), Some(packets)) = (tx, packets) else { return INVALID };
    // SAFETY: packets are views, or memory of the caller's.
    guard(broken, || unsafe { send(queue.as_mut(), packets) })
}

/// Writes what this half has counted to `counters`, which has `size` bytes: `sizeof *counters`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_tx_counters(tx: *mut Tx, counters: *mut TxCounters, size: usize) -> c_int {
    // SAFETY: as above.
    let Some(Tx { queue, broken }) = (unsafe { tx.as_mut() }) else { return INVALID };
    guard(broken, || {
        let port::TxCounters { packets, bytes, refused, no_peer, doorbells, discarded, .. } = queue.counters();
        // SAFETY: the caller's structure; the value is numbers alone.
        unsafe { put_struct(&TxCounters { packets, bytes, refused, no_peer, doorbells, discarded }, counters, size) }
    })
}
