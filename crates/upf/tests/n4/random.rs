//! Random sequences of messages, right and wrong: after each message the node and the tables agree, nothing is reserved in
//! vain, and what was refused has changed nothing.
//!
//! `N4_SEQUENCES` says how many sequences, `N4_SEED` with which to begin. What fails is told as the shortest beginning of its
//! sequence that does.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::drive::drive;

/// Octets that the number `seed` stands for (SplitMix64), up to 1,024.
fn octets(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    let words = next() % 128 + 1;
    (0..words).flat_map(|_| next().to_le_bytes()).collect()
}

fn fails(octets: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| drive(octets))).is_err()
}

fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn whatever_comes_is_done_as_a_whole_or_not_at_all() {
    let (first, count) = (variable("N4_SEED", 1), variable("N4_SEQUENCES", 1_000));
    for seed in first..first + count {
        let octets = octets(seed);
        if fails(&octets) {
            let shortest = (0..octets.len()).find(|&len| fails(&octets[..len])).unwrap_or(octets.len());
            panic!("sequence {seed} fails, {shortest} octets of it suffice: {:02x?}", &octets[..shortest]);
        }
    }
}
