//! `kaistad`, the node daemon.
fn main() {}
