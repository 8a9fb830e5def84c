//! Shared-memory virtual ports: packets between functions that do not trust each other, at one copy and no system call.
//!
//! A port has queue pairs; two ports are joined by a link, which carries each direction of each pair of queues in a ring
//! of its own. Every shared page has exactly one writer, and the kernel enforces it, except inside a declared trust group,
//! whose zero-copy links have one arena that all members write. What a peer wrote is checked when it is read, and looked at
//! only in a private copy. `docs/ports.md` has the layout, the handshake and what is trusted.
//!
//! The way of a packet, and of this crate's files:
//!
//! ```text
//! function                                                             function
//!    | send(&[PacketRef])                                  recv() -> Burst |
//!    v                                                                     |
//! tx::TxRing                                                          rx::RxRing
//!  which queue of the peer: steering                   owns the bucket: steering
//!    |                                                                     ^
//! writer::Writer --> records, head  ==== segments ====> reader::Reader ----+
//!                <-- tail           ====         <====
//!  publish, fence, sleep word? ----> doorbell (pipe) ----> arm, fence, look, sleep
//! ```
//!
//! - [`ring`] is the arithmetic of positions and records, pure and safe; [`layout`] says where words lie.
//! - `distance` finds out whether the peer's core shares a cache with ours; `stream` writes records past the caches where not.
//! - `stamp` says when a record was published, of one burst in many; [`latency`] is what receivers make of it.
//! - `table` is the bucket table as senders see it; `epoch` says when a queue is past a change of it; `cell` and `home` are
//!   what a port's queues share within the function; [`owner`] hands buckets over between its workers.
//! - [`packet`] is what functions see: private head, opaque rest; `lent` a burst of a zero-copy link that is still descriptors.
//! - [`segment`] makes and seals memory; `mapping` bounds it.
//! - [`broker`] makes generations of segments and hands them out in the order that makes them safe; [`client`] is its
//!   counterpart in the function, on a thread of its own; [`wire`] is what they say; `handover` brings what the client
//!   mapped to the queues, between two bursts.
//! - [`tally`] is words that outlive the process; [`large_pages`] is words for tables of the process itself.
//! - [`local`] and [`frames`] are queues without a peer, for measuring, tests and devices.
//! - `exposed` is zero-copy channels without ports around them, for tests and fuzz targets that play the other end.
//! - [`relay`] is a channel between two threads of one process; [`held`] is frames that it need not copy.
//! - [`raw_copy`] is the bare copy that the rings are measured against.
//!
//! Beside `dpdk` and small edges to kernel and C, this is the one crate with `unsafe` code; every block states why it is sound.

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("virtual ports need 64-bit little-endian Linux");

pub mod allowance;
pub mod arena;
pub mod broker;
mod cell;
mod channel;
pub mod client;
pub mod counters;
mod distance;
mod doorbell;
mod epoch;
#[cfg(test)]
mod exchange;
#[cfg(any(test, feature = "exposed"))]
pub mod exposed;
pub mod frames;
mod generations;
mod giver;
mod handover;
pub mod held;
mod home;
pub mod info;
pub mod large_pages;
pub mod latency;
pub mod layout;
mod lent;
pub mod local;
mod lone;
mod mapping;
#[cfg(test)]
mod models;
pub mod owner;
pub mod packet;
pub mod pool;
mod prefetch;
mod processor;
pub mod raw_copy;
pub mod reader;
mod registers;
pub mod relay;
pub mod ring;
mod rx;
pub mod segment;
pub mod shares;
mod socket;
pub mod source;
mod stake;
mod stamp;
pub mod steering;
mod stream;
mod sync;
mod table;
mod taker;
pub mod tally;
mod tx;
pub mod wire;
mod writer;

pub use packet::{prefetch, prefetch_into, prefetch_to_write};
pub use prefetch::CacheLevel;
pub use rx::RxRing;
pub use tx::TxRing;
