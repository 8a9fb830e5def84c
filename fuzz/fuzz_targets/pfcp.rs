//! PFCP input up to the rule tables: the octets choose messages to a node on real tables, which is checked after each.
#![no_main]

#[path = "../../crates/upf/tests/n4_support/mod.rs"]
mod n4_support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| n4_support::drive::drive(input));
