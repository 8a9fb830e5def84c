//! Campaigns against the ports: processes that die or stop at any moment, brokers that are replaced, owners of buckets that
//! change, pools whose members come and go, and a peer that breaks every rule. And against the UPF, which is killed and replaced.
//!
//! Every campaign sends frames that are numbered and carry checksums ([`frames`]), judges what arrives ([`checker`]), and ends
//! with an [`outcome`]. The program `kaista-soak` runs them at full length, the tests of this crate for seconds.

pub mod books;
pub mod census;
pub mod checker;
pub mod course;
mod crowd;
pub mod end;
pub mod frames;
pub mod grip;
pub mod hand;
pub mod hostile;
pub mod journal;
pub mod kills;
pub mod ledger;
pub mod liar;
pub mod load;
pub mod member;
pub mod memory;
pub mod outcome;
mod outlet;
pub mod pair;
pub mod pools;
pub mod process;
pub mod random;
#[path = "../../vport/tests/raw/mod.rs"]
#[allow(unsafe_code)]
mod raw;
pub mod replace;
pub mod restarts;
pub mod rig;
pub mod site;
#[path = "../../upf/tests/stage/mod.rs"]
mod stage;
pub mod steering;
pub mod upf_kills;
pub mod victim;
