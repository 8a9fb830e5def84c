//! A bare loop that touches as many cold lines a packet as the UPF does, and asks for them ahead in the same order, into the same cache:
//! what sessions that are not in the caches cost at least. It does nothing else.
//!
//! These are the slot of the TEID or of the UE's address and the rule with its policer, which is found by the slot and written to.

use std::hint::black_box;

use port::{BURST_MAX, CacheLevel, prefetch_into};
use vport::large_pages::Words;

const LINE_WORDS: usize = 8;
/// Lines of a session's block, of which those that packets touch lie apart from the next session's.
const BLOCK_LINES: usize = 3;
/// Where in a block the rules of a direction begin.
const RULE_LINE: usize = 1;

/// The loop, with memory as large as that of so many sessions.
pub struct BareMisses {
    /// By TEID or address: where the session's block begins.
    slots: Words,
    blocks: Words,
    /// Sessions in the order of their packets, over and over.
    order: Box<[u32]>,
    next: usize,
    passed: u64,
    level: CacheLevel,
}

impl BareMisses {
    /// Memory of so many `sessions`, whose packets come in this order.
    ///
    /// # Panics
    /// If the order names none, or one that is not there, or memory is short.
    pub fn new(sessions: u32, order: Vec<u32>) -> Self {
        assert!(!order.is_empty() && order.iter().all(|session| *session < sessions));
        let sessions = sessions as usize;
        let slots = sessions.next_power_of_two();
        let memory = |words: usize| {
            let mut memory = Words::zeroed(words).expect("memory");
            memory.iter_mut().zip(0..).for_each(|(word, number)| *word = number);
            memory
        };
        let mut lists = memory(slots);
        (0..sessions).for_each(|session| lists[spread(session, slots)] = session as u64);
        Self {
            slots: lists,
            blocks: memory(sessions * BLOCK_LINES * LINE_WORDS),
            order: order.into(),
            next: 0,
            passed: 0,
            level: CacheLevel::here(),
        }
    }

    /// One burst.
    #[inline]
    pub fn turn(&mut self) {
        match self.level {
            CacheLevel::First => self.turn_into(CacheLevel::First),
            CacheLevel::Second => self.turn_into(CacheLevel::Second),
        }
    }

    #[inline(always)]
    fn turn_into(&mut self, level: CacheLevel) {
        let (mut slots, mut lists) = ([0; BURST_MAX], [0; BURST_MAX]);
        for slot in &mut slots {
            let session = self.order[self.next];
            self.next = if self.next + 1 < self.order.len() { self.next + 1 } else { 0 };
            *slot = spread(session as usize, self.slots.len());
            prefetch_into(level, &self.slots[*slot]);
        }
        for (list, slot) in lists.iter_mut().zip(&slots) {
            *list = self.slots[*slot] as usize;
            prefetch_into(level, &self.blocks[rule(*list)]);
        }
        for list in &lists {
            let policer = &mut self.blocks[rule(*list)];
            *policer = black_box(*policer).wrapping_add(1);
        }
        self.passed += BURST_MAX as u64;
    }

    /// Packets so far.
    pub fn passed(&self) -> u64 {
        self.passed
    }
}

/// Where the rule of a session's block begins.
#[inline(always)]
fn rule(list: usize) -> usize {
    (list * BLOCK_LINES + RULE_LINE) * LINE_WORDS
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
        let mut bare = BareMisses::new(200, (0..128).collect());
        let before = bare.blocks.to_vec();
        bare.turn();
        bare.turn();
        let touched = |at: usize| bare.blocks[rule(at)] - before[rule(at)];
        assert_eq!(bare.passed(), 128);
        assert!((0..128).all(|at| touched(at) == 1) && (128..200).all(|at| touched(at) == 0));
    }
}
