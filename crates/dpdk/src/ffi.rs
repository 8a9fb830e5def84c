//! The shim's functions and structures (shim/shim.c).

use std::ffi::{c_char, c_int, c_uint};

use crate::mbuf::Mbuf;

/// `struct rte_mempool`, of which nothing is looked at.
#[repr(C)]
pub(crate) struct Mempool {
    _opaque: [u8; 0],
}

/// What DPDK says of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Description {
    pub(crate) max_rx_queues: u16,
    pub(crate) max_tx_queues: u16,
    pub(crate) reta_size: u16,
    pub(crate) max_mtu: u16,
    pub(crate) max_frame: u32,
    pub(crate) hashes_flows: u8,
    pub(crate) hash_key_bytes: u8,
    pub(crate) mac: [u8; 6],
    pub(crate) driver: [c_char; 32],
}

const _: () = assert!(size_of::<Description>() == 52);

/// What a device has counted, in the driver's words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawStats {
    pub(crate) ipackets: u64,
    pub(crate) opackets: u64,
    pub(crate) ibytes: u64,
    pub(crate) obytes: u64,
    pub(crate) imissed: u64,
    pub(crate) ierrors: u64,
    pub(crate) oerrors: u64,
    pub(crate) rx_nombuf: u64,
}

unsafe extern "C" {
    pub(crate) fn kaista_start(argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub(crate) fn kaista_register_thread() -> c_int;
    pub(crate) fn kaista_unregister_thread();
    pub(crate) fn kaista_error(number: c_int) -> *const c_char;
    pub(crate) fn kaista_pool(name: *const c_char, count: c_uint, cache: c_uint, room: u16) -> *mut Mempool;
    pub(crate) fn kaista_pool_available(pool: *const Mempool) -> c_uint;
    pub(crate) fn kaista_attach(devargs: *const c_char, name: *const c_char, port: *mut u16) -> c_int;
    pub(crate) fn kaista_describe(port: u16, to: *mut Description) -> c_int;
    pub(crate) fn kaista_configure(
        port: u16,
        queues: u16,
        descriptors: u16,
        mtu: u16,
        spreads: c_int,
        key: *mut u8,
        key_bytes: u8,
        pool: *mut Mempool,
    ) -> c_int;
    pub(crate) fn kaista_steer(port: u16, owners: *const u8, buckets: u16, entries: u16) -> c_int;
    pub(crate) fn kaista_run(port: u16) -> c_int;
    pub(crate) fn kaista_take_away(port: u16, bus: *const c_char, name: *const c_char, there: c_int);
    pub(crate) fn kaista_link_is_up(port: u16) -> c_int;
    pub(crate) fn kaista_stats(port: u16, to: *mut RawStats) -> c_int;
    pub(crate) fn kaista_receive(port: u16, queue: u16, to: *mut *mut Mbuf, most: u16) -> u16;
    pub(crate) fn kaista_send(port: u16, queue: u16, from: *mut *mut Mbuf, count: u16) -> u16;
    pub(crate) fn kaista_allocate(pool: *mut Mempool, to: *mut *mut Mbuf, count: c_uint) -> c_int;
    pub(crate) fn kaista_free(from: *mut *mut Mbuf, count: c_uint);
}
