//! The User Plane Function: session tables, the packet function, run-to-completion workers, the slow path, and N4.

pub mod bell;
pub mod config;
pub mod drops;
pub mod ip;
pub mod policer;
pub mod rules;
pub mod side;
pub mod tables;
pub mod tunnel;
