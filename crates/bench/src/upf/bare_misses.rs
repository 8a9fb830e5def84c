//! A bare loop that touches as many cold lines a packet as the UPF does, in the same two passes over a burst: what sessions
//! that are not in the caches cost at least. It does nothing else.
//!
//! Uplink these are the slot of the TEID, the first line of the rule, and the policer; downlink the two lines of a hash
//! table (what it is probed by, and the entry), both lines of the rule, and the policer. As in the UPF, nothing is asked for
//! ahead: the first pass finds the rules of all packets of a burst, whose lines are on their way together since none of them
//! waits for another.

use std::hint::black_box;

use port::BURST_MAX;

use crate::rig::Way;

const LINE_WORDS: usize = 8;
/// Lines of a session's block, of which those that packets touch lie apart from the next session's.
const BLOCK_LINES: usize = 5;
/// Where in a block the rules of a direction begin.
const RULE_LINE: usize = 1;
/// Words of a policer's state.
const POLICER_WORDS: usize = 3;

/// The loop, with memory as large as that of so many sessions.
pub struct BareMisses {
    way: Way,
    /// By TEID, or the entries of a hash table: where the session's block begins.
    slots: Box<[u64]>,
    /// What the hash table is probed by.
    probes: Box<[u8]>,
    blocks: Box<[u64]>,
    policers: Box<[u64]>,
    /// Sessions in the order of their packets, over and over.
    order: Box<[u32]>,
    next: usize,
    passed: u64,
}

impl BareMisses {
    /// Memory of so many `sessions`, whose packets come in this order.
    ///
    /// # Panics
    /// If the order names none, or one that is not there.
    pub fn new(way: Way, sessions: u32, order: Vec<u32>) -> Self {
        assert!(!order.is_empty() && order.iter().all(|session| *session < sessions));
        let sessions = sessions as usize;
        // A hash table is at most seven eighths full, and has a power of two of entries.
        let slots = match way {
            Way::Uplink => sessions.next_power_of_two(),
            Way::Downlink => (sessions * 8 / 7 + 1).next_power_of_two(),
        };
        let memory = |words: usize| (0..words as u64).collect::<Box<[u64]>>();
        let mut lists = memory(slots);
        (0..sessions).for_each(|session| lists[spread(session, slots)] = session as u64);
        Self {
            way,
            slots: lists,
            probes: (0..slots).map(|slot| slot as u8).collect(),
            blocks: memory(sessions * BLOCK_LINES * LINE_WORDS),
            policers: memory(sessions * POLICER_WORDS),
            order: order.into(),
            next: 0,
            passed: 0,
        }
    }

    /// One burst.
    #[inline]
    pub fn turn(&mut self) {
        match self.way {
            Way::Uplink => self.burst::<false>(),
            Way::Downlink => self.burst::<true>(),
        }
    }

    /// Packets so far.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    #[inline(always)]
    fn burst<const DOWNLINK: bool>(&mut self) {
        let mut lists = [0; BURST_MAX];
        let mut homes = [0; BURST_MAX];
        for (list, home) in lists.iter_mut().zip(&mut homes) {
            let session = self.order[self.next];
            self.next = if self.next + 1 < self.order.len() { self.next + 1 } else { 0 };
            let slot = spread(session as usize, self.slots.len());
            if DOWNLINK {
                black_box(self.probes[slot]);
            }
            // What is loaded is where the rule lies: that load has to wait for this one.
            *list = self.slots[slot] as usize;
            *home = self.blocks[*list * BLOCK_LINES * LINE_WORDS + RULE_LINE * LINE_WORDS];
        }
        for (list, home) in lists.iter().zip(&homes) {
            let rule = (list * BLOCK_LINES + RULE_LINE) * LINE_WORDS;
            black_box(*home);
            if DOWNLINK {
                black_box(self.blocks[rule + LINE_WORDS]);
            }
            let policer = &mut self.policers[list * POLICER_WORDS];
            *policer = policer.wrapping_add(1);
        }
        self.passed += BURST_MAX as u64;
    }
}

/// Where in a table of a power of two of `slots` a session stands: apart from its neighbours, and from every other one.
#[inline(always)]
fn spread(session: usize, slots: usize) -> usize {
    /// Odd, so that no two sessions fall together (Knuth's multiplicative hash).
    const FACTOR: usize = 2_654_435_761;
    session.wrapping_mul(FACTOR) & (slots - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_is_touched_in_its_turn() {
        for way in Way::BOTH {
            let mut bare = BareMisses::new(way, 100, (0..64).collect());
            let before = bare.policers.clone();
            bare.turn();
            bare.turn();
            let touched = |at: usize| bare.policers[at * POLICER_WORDS] - before[at * POLICER_WORDS];
            assert_eq!(bare.passed(), 64);
            assert!((0..64).all(|at| touched(at) == 1) && (64..100).all(|at| touched(at) == 0), "{way:?}");
        }
    }
}
