//! Simulators of what surrounds a UPF, and the tools that load and judge a path.
//!
//! - [`ran`]: a gNB with its UEs, and the session manager that gives them sessions (program `kaista-ran`);
//! - [`generator`] offers stamped packets on time, of [`sizes`] and in an order by the [`share`] of each flow; [`sink`] says
//!   what became of them, [`reflector`] sends them back, [`forwarder`] on;
//! - [`path`] joins a generator's port and a sink's, [`trial`] tries a rate on it, and [`search`] finds the highest;
//!   [`replay`] sends captures over and over (all in program `kaista-traffic`).

pub mod cores;
pub mod flow;
pub mod forwarder;
pub mod forwarding;
pub mod frame;
pub mod generator;
pub mod host;
pub mod interrupt;
pub mod path;
pub mod ran;
pub mod reflector;
pub mod replay;
pub mod search;
pub mod share;
pub mod sink;
pub mod sizes;
pub mod spread;
pub mod stamp;
pub mod station;
pub mod trial;
