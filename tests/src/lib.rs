//! End-to-end tests: a node of its own for each, real containers, real traffic from programs of others.
//!
//! [`Node`] runs the built `kaista` beside whatever else runs on this machine; [`Census`] counts what a node leaves behind.

mod census;
mod load;
mod node;

pub use census::Census;
pub use load::{PATIENCE, assert_nothing_is_missing};
pub use node::{Node, eventually, machine, root, skip};
