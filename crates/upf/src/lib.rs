//! The User Plane Function: session tables, the packet function, run-to-completion workers, the slow path, and N4.

pub mod address_pool;
pub mod alarms;
pub mod bell;
pub mod buffers;
pub mod clock;
pub mod config;
pub mod drops;
pub mod function;
pub mod ip;
mod limiter;
pub mod mail;
pub mod n4;
pub mod open;
pub mod oversize;
pub mod packet;
pub mod policer;
pub mod program;
pub mod rules;
pub mod side;
pub mod slow_path;
pub mod state;
pub mod tables;
pub mod tunnel;
pub mod usage;
pub mod worker;
