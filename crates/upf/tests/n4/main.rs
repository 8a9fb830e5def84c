//! N4: a session manager's messages to a node on real tables, and what comes of them.

#[path = "../forwarding/sessions.rs"]
mod sessions;
#[path = "../stage/mod.rs"]
mod stage;
mod support;

mod addresses;
mod applications;
mod associations;
mod billing;
mod endpoints;
mod forwarding;
mod hostile;
mod inactivity;
mod interoperability;
mod messages;
mod monitoring;
mod node;
mod paging;
mod paths;
mod predefined;
mod procedures;
mod qers;
mod random;
mod reports;
mod restart;
mod routes;
mod scapy;
mod usage;
