//! Shared-memory virtual ports.
#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("virtual ports need 64-bit little-endian Linux");

pub mod broker;
pub mod counters;
pub mod info;
pub mod packet;
pub mod steering;
