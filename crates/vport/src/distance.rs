//! How far away a peer's core is, found out in passing: by how long a word that the peer has just written takes to come.
//!
//! Cores under one last-level cache hand each other lines fast, and records are best left there. Between cores that
//! share no cache, each line that one of them has written costs the other a long round trip, many times over what memory
//! costs: records are then best streamed past the caches. Hosts move virtual cores at any time, so this is judged for as
//! long as a link lives.
//!
//! Not so on processors of Intel's, where one cache is all of a socket's: a word takes as long as a line from memory there where
//! others keep the host busy (150 to 250 ns, and 150 to 210, on Emerald Rapids), and streaming is slower all the same.

use std::time::{Duration, Instant};

use crate::processor;

/// A word from a core under the same last-level cache comes within this time, clock included: 30 to 70 ns, against 140 to 170 ns
/// (Zen 5) or 190 and more (Zen 4) between caches (`kaista bench link` prints round trips, of two such words).
const NEAR: Duration = Duration::from_nanos(135);
/// Votes of a word that came late. One that came soon has one vote: of words from afar up to half do, since their lines lie
/// behind others that are read, and processors fetch ahead; of words from near a few in a hundred come late.
const LATE: u8 = 3;
/// Votes at which a peer is far.
const VOTES_MAX: u8 = 8 * LATE;

/// What was stored before is on its way no longer. Stores and lines that are waited for hold up what is timed behind them, streamed
/// records most, so that whoever had begun to stream by mistake went on.
#[inline(always)]
fn drain_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64.
    unsafe {
        core::arch::x86_64::_mm_mfence();
    }
}

/// Nothing that follows is loaded before what precedes has happened. A clock may be read while later loads are on their way
/// already, which hides how long they take.
#[inline(always)]
fn hold_loads() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
}

/// The votes of the last words.
#[derive(Debug)]
pub(crate) struct Distance {
    votes: u8,
    far: bool,
    known: bool,
}

impl Default for Distance {
    /// Near, until words say otherwise where they can.
    fn default() -> Self {
        Self { votes: 0, far: false, known: processor::is_by(b"GenuineIntel") }
    }
}

impl Distance {
    /// The distance to a peer on the same core.
    pub(crate) fn near() -> Self {
        Self { known: true, ..Self::default() }
    }

    /// The distance to a peer elsewhere.
    #[cfg(test)]
    pub(crate) fn far() -> Self {
        Self { known: true, far: true, ..Self::default() }
    }

    /// Loads a word, and judges by it if it `changed` since it was last loaded: else it came from the own cache.
    #[inline]
    pub(crate) fn time(&mut self, load: impl Fn() -> u64, changed: impl Fn(u64) -> bool) -> u64 {
        if self.known {
            return load();
        }
        drain_stores();
        let begin = Instant::now();
        hold_loads();
        let value = load();
        let took = begin.elapsed();
        if changed(value) {
            self.vote(took > NEAR);
        }
        value
    }

    fn vote(&mut self, far: bool) {
        self.votes = if far { (self.votes + LATE).min(VOTES_MAX) } else { self.votes.saturating_sub(1) };
        match self.votes {
            0 => self.far = false,
            VOTES_MAX => self.far = true,
            _ => {}
        }
    }

    /// Whether the peer's core shares no cache with this one.
    #[inline(always)]
    pub(crate) fn is_far(&self) -> bool {
        self.far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a processor whose words tell it.
    fn unknown() -> Distance {
        Distance { known: false, ..Distance::near() }
    }

    fn after(votes: &[bool]) -> bool {
        let mut distance = unknown();
        votes.iter().for_each(|far| distance.vote(*far));
        distance.is_far()
    }

    #[test]
    fn a_peer_is_near_until_many_words_came_late() {
        assert!(!after(&[]));
        assert!(!after(&[true; 7]));
        assert!(after(&[true; 8]));
    }

    #[test]
    fn a_late_word_now_and_then_changes_nothing() {
        let now_and_then: Vec<bool> = (0..1_000).map(|n| n % 5 == 0).collect();
        assert!(!after(&now_and_then));
    }

    #[test]
    fn a_peer_is_far_though_half_of_the_words_come_soon() {
        let half: Vec<bool> = (0..1_000).map(|n| n % 2 == 0).collect();
        assert!(after(&half));
        let pairs: Vec<bool> = [true; 8].into_iter().chain((0..1_000).map(|n| n % 4 < 2)).collect();
        assert!(after(&pairs));
    }

    #[test]
    fn a_peer_that_came_near_is_near_again() {
        assert!(!after(&[vec![true; 20], vec![false; 24]].concat()));
    }

    #[test]
    fn a_known_distance_is_not_judged() {
        let mut distance = Distance::near();
        let slow = || {
            std::thread::sleep(Duration::from_micros(10));
            7
        };
        (0..20).for_each(|_| assert_eq!(distance.time(slow, |_| true), 7));
        assert!(!distance.is_far());
    }

    #[test]
    fn a_word_that_has_not_changed_says_nothing() {
        let mut distance = unknown();
        let slow = || {
            std::thread::sleep(Duration::from_micros(10));
            7
        };
        (0..20).for_each(|_| assert_eq!(distance.time(slow, |_| false), 7));
        assert!(!distance.is_far());
        (0..20).for_each(|_| assert_eq!(distance.time(slow, |value| value == 7), 7));
        assert!(distance.is_far());
    }
}
