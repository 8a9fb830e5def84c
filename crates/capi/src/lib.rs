//! The C library `libkaista-port`: the public API of crate [`port`] for programs in C, and in anything that can call C.
//!
//! The header `kaista/port.h` is generated from this crate, so the comments of exported items are written for C
//! programmers. `kaista_port(3)` is the manual.
//!
//! - [`abi`] has the version and the limits.
//! - [`open`] opens ports by name; [`info`] describes them.
//! - [`rx`] and [`tx`] are the two halves of a queue pair, [`counters`] what they count; [`packet`] is what goes through
//!   them.
//! - [`succession`]: one process of a function leaves its ports to another.
//! - `half` holds a receiving half's burst; `sleeper` gives it its file descriptor.
//! - `edge` is where pointers of callers become references, and where panics end.

pub mod abi;
mod attach;
pub mod counters;
mod edge;
mod half;
pub mod info;
pub mod open;
pub mod packet;
pub mod rx;
mod sleeper;
pub mod succession;
pub mod tx;
