//! The User Plane Function: session tables, the packet function, workers in two execution models,
//! what has them come and go, the slow path, and N4.

pub mod acquaintances;
pub mod address_pool;
pub mod alarms;
pub mod bell;
pub mod board;
pub mod buffers;
pub mod clock;
pub mod config;
pub mod control;
pub mod counters;
mod crew;
pub mod drops;
pub mod elastic;
pub mod execution;
pub mod few;
pub mod function;
pub mod ip;
mod limiter;
pub mod log;
pub mod mail;
pub mod marking;
pub mod metrics;
pub mod model;
pub mod n4;
pub mod nat;
pub mod open;
pub mod oversize;
pub mod packet;
pub mod path;
pub mod pipeline;
pub mod policer;
pub mod predefined;
pub mod program;
pub mod rules;
mod seids;
pub mod side;
pub mod slow_path;
pub mod state;
pub mod store;
pub mod succession;
pub mod tables;
mod template;
pub mod trace;

pub mod usage;
pub mod worker;
