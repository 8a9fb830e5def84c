//! Ports over DPDK: vhost-user, virtio-user, memif, AF_PACKET, AF_XDP, TAP and network cards, as a backend of the port trait.
//!
//! Only executables of their own link this crate: starting DPDK takes memory and threads, happens once a process, and is of no
//! use to a function whose ports are shared memory. Such an executable calls [`add_to_ports`], and from then on `port::open` knows
//! names like `dpdk:net_memif0,role=client,socket=/run/memif.sock` (docs/dpdk.md).
//!
//! The way of a packet, and of this crate's files:
//!
//! ```text
//! driver -> rx::Rx: mbufs lent to slots -> function -> tx::Tx: lent mbufs as they are, all others copied -> driver
//!              ^                                        |
//!              +---- pool::Pool <---- what was not sent, and what drivers are done with
//! ```
//!
//! - [`name`](mod@name) is what may be said of a port; `attached` is a device that DPDK has, `device` one
//!   that runs.
//! - `spread` is software steering, where a device does not spread frames over a port's queues as it should.
//! - `eal` starts DPDK; `thread` makes threads known to it; `mbuf` is its packet buffer, and `pool` where these come from.
//! - `shim/shim.c` is all of DPDK that is called, `ffi` the same from this side.
//!
//! Unsafe code stands here because DPDK is C; every block states why it is sound.
#![allow(unsafe_code)]

mod attached;
mod device;
mod eal;
mod error;
mod ffi;
mod mbuf;
pub mod name;
mod open;
mod pool;
mod rx;
mod spread;
mod thread;
mod tx;

pub use device::{Device, Stats};
pub use eal::{Settings, start};
pub use error::Error;
pub use open::{add_to_ports, open};
