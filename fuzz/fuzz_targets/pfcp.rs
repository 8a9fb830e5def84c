//! PFCP input up to the rule tables: the octets choose messages to a node on real tables, which is checked after each.
#![no_main]

#[path = "../../crates/upf/tests/n4/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| support::drive::drive(input));
