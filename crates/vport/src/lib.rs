//! Shared-memory virtual ports.
#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("virtual ports need 64-bit little-endian Linux");

pub mod broker;
pub mod client;
pub mod counters;
mod doorbell;
pub mod frames;
mod handover;
pub mod info;
pub mod layout;
pub mod local;
mod mapping;
pub mod packet;
pub mod reader;
pub mod ring;
mod rx;
pub mod segment;
mod socket;
pub mod steering;
mod tx;
pub mod wire;
mod writer;

pub use packet::prefetch;
pub use rx::RxRing;
pub use tx::TxRing;
