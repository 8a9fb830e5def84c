//! The `kaista` command.
fn main() {}
