//! DPDK's packet buffer (`rte_mbuf_core.h`), as far as it is looked at here. The shim checks that C has the same fields at the
//! same places.

use core::mem::offset_of;

/// A packet buffer of one segment: `data_len` bytes at `data_off` of the memory at `buf_addr`.
#[repr(C, align(64))]
pub(crate) struct Mbuf {
    pub(crate) buf_addr: *mut u8,
    _iova: u64,
    pub(crate) data_off: u16,
    pub(crate) refcnt: u16,
    /// Segments of the packet that this one begins.
    pub(crate) nb_segs: u16,
    _port: u16,
    pub(crate) ol_flags: u64,
    _packet_type: u32,
    /// Bytes of all segments.
    pub(crate) pkt_len: u32,
    /// Bytes of this one.
    pub(crate) data_len: u16,
    _vlan_tci: u16,
    _hash: [u32; 2],
    _vlan_tci_outer: u16,
    /// Bytes of memory at `buf_addr`.
    pub(crate) buf_len: u16,
    _behind: [u64; 9],
}

const _: () = assert!(
    size_of::<Mbuf>() == 128
        && offset_of!(Mbuf, buf_addr) == 0
        && offset_of!(Mbuf, data_off) == 16
        && offset_of!(Mbuf, refcnt) == 18
        && offset_of!(Mbuf, nb_segs) == 20
        && offset_of!(Mbuf, ol_flags) == 24
        && offset_of!(Mbuf, pkt_len) == 36
        && offset_of!(Mbuf, data_len) == 40
        && offset_of!(Mbuf, buf_len) == 54
);

/// Where drivers put the first byte of a frame, and where it goes that is copied here.
pub(crate) const HEADROOM: u16 = 128;

const _: () = assert!(HEADROOM as usize == port::HEADROOM);

impl Mbuf {
    /// Says where in the buffer the frame is: all of it, in one segment.
    #[inline(always)]
    pub(crate) fn set_frame(&mut self, offset: u16, len: u16) {
        (self.data_off, self.data_len, self.pkt_len) = (offset, len, u32::from(len));
    }
}
