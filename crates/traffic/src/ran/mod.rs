//! The RAN simulator: a gNB with its UEs, and the session manager that gives them sessions.
//!
//! Packets of any program on the UE's kernel interface arrive on port `uu`; [`gnb`] finds the UE by the source address,
//! puts the packet into the UE's tunnel and sends it on `n3`, and the other way round. [`smf`] speaks PFCP with the UPF
//! on a kernel interface and tells the gNB which tunnels there are; it has a thread of its own.

pub mod bearers;
pub mod config;
pub mod drops;
pub mod gnb;
pub mod run;
pub mod smf;
