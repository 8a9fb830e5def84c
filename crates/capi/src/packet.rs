//! Packets as C sees them.
#![allow(unsafe_code)]
// The contract of an exported function is its comment, written for C.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_void};

use port::{HEADROOM, PacketMut, PacketRef, Rest};
use rustix::io::Errno;

use crate::edge::{INVALID, array, guard_once};

/// What follows the head of a received packet, still where its sender put it. The sender may write it at any time, so it
/// has a length and can be sent on or copied, and nothing else.
pub struct Held(Rest<'static>);

impl Held {
    pub(crate) const NOTHING: Self = Self(Rest::EMPTY);

    /// Keeps the rest of a received packet, past the borrow of its burst. Without its lease: a buffer that was sent on is
    /// somebody else's, and C still has a pointer to the head in it, which may be written at once.
    ///
    /// # Safety
    /// It must be replaced before the queue receives again.
    pub(crate) unsafe fn new(rest: Rest<'_>) -> Self {
        // SAFETY: the same type but for the lifetime, which the caller answers for.
        Self(unsafe { std::mem::transmute::<Rest<'_>, Rest<'static>>(rest.without_lease()) })
    }
}

/// One packet: a head to read and write, and the rest, which is opaque.
///
/// A received packet is a view: it ends with the next `kaista_rx_burst`, `kaista_rx_arm` or `kaista_rx_wait` of its half,
/// which gives it back to its sender. Moving `head`, and shortening `head_len` and `rest_len`, changes the frame that is
/// sent; up to `headroom` bytes before `head` may be filled (see `kaista_packet_prepend` and its kin). A packet in memory
/// of the caller's own has `head` and `head_len`, and zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The first bytes, in memory of this process that nobody else writes; of a frame from a zero-copy link in memory that its
    /// trust group shares.
    pub head: *mut u8,
    /// What follows them; null where nothing does.
    pub rest: *const Held,
    /// Length of the head in bytes.
    pub head_len: u32,
    /// Length of the rest in bytes. It may be made less, not more.
    pub rest_len: u32,
    /// Bytes before the head that may be filled.
    pub headroom: u32,
    /// Zero.
    pub reserved: u32,
}

// Arrays of it are part of the interface: its size stays.
const _: () = assert!(size_of::<Packet>() == 32);

impl Packet {
    pub(crate) const NOTHING: Self =
        Self { head: std::ptr::null_mut(), rest: std::ptr::null(), head_len: 0, rest_len: 0, headroom: 0, reserved: 0 };

    /// The view of a received packet whose rest is `held`.
    #[inline]
    pub(crate) fn view(packet: &mut PacketMut<'_>, held: &Held) -> Self {
        // The pointer is to reach the headroom too.
        let headroom = if packet.prepend(HEADROOM).is_some() { HEADROOM } else { 0 };
        let (start, len) = (packet.head_mut().as_mut_ptr(), packet.head().len());
        let stripped = packet.strip(headroom);
        debug_assert!(stripped);
        let rest_len = held.0.len() as u32;
        Self {
            head: start.wrapping_add(headroom),
            rest: if rest_len == 0 { std::ptr::null() } else { held },
            head_len: (len - headroom) as u32,
            rest_len,
            headroom: headroom as u32,
            reserved: 0,
        }
    }

    /// The packet to send. None where it is malformed.
    ///
    /// # Safety
    /// `head` is null or has `head_len` bytes; `rest` is null or from a receiving half of a port that is open.
    #[inline]
    pub(crate) unsafe fn borrow(&self) -> Option<PacketRef<'_>> {
        // SAFETY: by contract.
        let head = unsafe { array(self.head.cast_const(), self.head_len as usize) }?;
        if self.reserved != 0 {
            return None;
        }
        let mut rest = Rest::EMPTY;
        if self.rest_len > 0 {
            // SAFETY: by contract; the half that it belongs to is not receiving.
            rest = unsafe { self.rest.as_ref() }?.0;
            if self.rest_len as usize > rest.len() {
                return None;
            }
            rest.truncate(self.rest_len as usize);
        }
        Some(PacketRef { head, rest })
    }
}

/// Copies the first `size` bytes of the frame, or all of it where it is shorter, to `to`. Returns how many were copied, or
/// -EINVAL. What was copied from the rest is what its sender had there at that moment: look at the copy, and send the copy.
/// Where `to` is must be none of the packet's own bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_packet_copy(packet: *const Packet, to: *mut c_void, size: usize) -> c_int {
    // SAFETY: the caller's packet, null or whole.
    let Some(PacketRef { head, mut rest }) = (unsafe { packet.as_ref().and_then(|packet| packet.borrow()) }) else {
        return INVALID;
    };
    guard_once(|| {
        let head = &head[..head.len().min(size)];
        rest.truncate(size - head.len());
        let len = head.len() + rest.len();
        let copied = c_int::try_from(len).map_err(|_| Errno::INVAL)?;
        if len > 0 {
            if to.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the caller's buffer has `size` bytes, and `len` is no more. Zeroed first: it is to be a slice.
            let to = unsafe {
                to.cast::<u8>().write_bytes(0, len);
                std::slice::from_raw_parts_mut(to.cast::<u8>(), len)
            };
            PacketRef { head, rest }.copy_to(to);
        }
        Ok(copied)
    })
}
