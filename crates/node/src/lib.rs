//! The node: keeps the slices that were asked for running on this host.
//!
//! [`control`] is what a client needs. The rest is the executable `kaistad`.

pub mod control;
mod lock;
pub mod paths;
