//! The User Plane Function: session tables, the packet function, run-to-completion workers, the slow path, and N4.

pub mod config;
pub mod rules;
pub mod tables;
