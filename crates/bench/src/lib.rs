//! Measurements beside references: every figure comes from real code paths, is taken in turns with what it is compared
//! to, and names the limit that it ran into.
//!
//! [`link`] measures direct and zero-copy links beside testpmd, bare copies and bare wake-ups; [`upf`] the UPF's worker with the plain
//! forwarder; [`n4`] sessions established beside traffic; [`count`] counts instructions, for regressions. [`cli`] is `kaista bench`.

pub(crate) mod at_end;
pub mod busy;
pub mod cli;
pub mod companion;
pub mod conditions;
pub mod cores;
pub mod count;
pub mod cpu_time;
pub mod fed;
pub mod folder;
pub mod hugepages;
pub mod line;
pub mod link;
pub mod links;
pub mod metric;
pub mod n4;
pub mod plot;
pub mod progress;
pub mod rig;
pub(crate) mod rounds;
pub mod testpmd;
pub mod upf;
