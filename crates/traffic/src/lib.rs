//! Simulators of what surrounds a UPF, and the tools that load and judge a path.
//!
//! - [`ran`]: a gNB with its UEs, and the session manager that gives them sessions (program `kaista-ran`);
//! - [`generator`] offers stamped packets on time, [`sink`] says what became of them, [`forwarder`] sends them on
//!   (program `kaista-traffic`); [`replay`] sends captures over and over.

pub mod cores;
pub mod forwarder;
pub mod forwarding;
pub mod frame;
pub mod generator;
pub mod host;
pub mod interrupt;
pub mod ran;
pub mod replay;
pub mod sink;
pub mod stamp;
