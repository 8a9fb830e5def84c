//! The node: keeps the slices that were asked for running on this host.
//!
//! [`control`] is what a client needs. The rest is the executable `kaistad`: [`launch`] starts a [`keeper`], which starts
//! the [`daemon`] and is the parent of containers and [`pump`]s.

mod backoff;
pub mod control;
mod cores;
pub mod daemon;
mod deposits;
mod function;
pub mod host;
pub mod keeper;
pub mod launch;
mod lines;
mod link;
mod lock;
mod logs;
mod node;
pub mod paths;
mod plan;
mod pools;
mod process;
pub mod pump;
mod record;
mod replace;
mod spread;
mod supervised;
mod worker;
