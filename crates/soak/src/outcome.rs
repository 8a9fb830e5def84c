//! What a campaign found: one line, and what is worth knowing besides.

use std::fmt::{self, Display};
use std::time::Duration;

/// What went wrong with packets and with what carries them. All zero, or the ports are broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets accepted by a port and not delivered, though the process that should have had them lived.
    pub lost: u64,
    /// Packets delivered after a later one of their flow.
    pub reordered: u64,
    /// Packets delivered again.
    pub duplicated: u64,
    /// Packets whose checksum or length is not as sent, or that nobody sent.
    pub corrupted: u64,
    /// File descriptors, mappings, memfds and hugepages that nobody gave back.
    pub leaked: u64,
}

impl Tally {
    /// Adds what was found elsewhere.
    pub fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.leaked += other.leaked;
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, reordered, duplicated, corrupted, leaked } = self;
        write!(f, "lost {lost}, reordered {reordered}, duplicated {duplicated}, corrupted {corrupted}, leaked {leaked}")
    }
}

/// What a campaign found. Shown as its one line.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The campaign.
    pub name: &'static str,
    /// What was done to the ports: kills, restarts, changes, attacks.
    pub events: u64,
    /// What went wrong with packets.
    pub tally: Tally,
    /// What else went wrong, in words.
    pub failures: Vec<String>,
    /// Figures, in words.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Nothing done, nothing found.
    pub fn new(name: &'static str) -> Self {
        Self { name, events: 0, tally: Tally::default(), failures: Vec::new(), notes: Vec::new() }
    }

    /// Whether nothing went wrong.
    pub fn is_clean(&self) -> bool {
        self.tally == Tally::default() && self.failures.is_empty()
    }

    /// Takes in what a part of the campaign found.
    pub fn absorb(&mut self, part: impl Display, found: Self) {
        self.events += found.events;
        self.tally.add(found.tally);
        self.failures.extend(found.failures.into_iter().map(|failure| format!("{part}: {failure}")));
        self.notes.extend(found.notes.into_iter().map(|note| format!("{part}: {note}")));
    }

    /// Everything but the one line.
    pub fn remarks(&self) -> impl Iterator<Item = String> + '_ {
        let failures = self.failures.iter().map(|failure| format!("{}: FAILED: {failure}", self.name));
        self.notes.iter().map(|note| format!("{}: {note}", self.name)).chain(failures)
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: events {}, {}", self.name, self.events, self.tally)
    }
}

/// Durations of which the distribution is shown.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// One more.
    pub fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Those of another.
    pub fn absorb(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// The last one added.
    pub fn last(&self) -> Option<Duration> {
        self.0.last().copied()
    }

    /// How many are longer than this.
    pub fn over(&self, limit: Duration) -> usize {
        self.0.iter().filter(|time| **time > limit).count()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort();
        let Some(last) = sorted.len().checked_sub(1) else { return write!(f, "none") };
        let at = |share: f64| sorted[(last as f64 * share).round() as usize];
        write!(f, "p50 {:.1?}, p99 {:.1?}, max {:.1?}", at(0.5), at(0.99), at(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_one_line() {
        let tally = Tally { lost: 1, reordered: 2, duplicated: 3, corrupted: 4, leaked: 5 };
        let outcome = Outcome { events: 7, tally, ..Outcome::new("kills") };
        assert_eq!(outcome.to_string(), "kills: events 7, lost 1, reordered 2, duplicated 3, corrupted 4, leaked 5");
        assert!(!outcome.is_clean());
    }

    #[test]
    fn percentiles_are_those_of_the_times() {
        let mut times = Times::default();
        (1..=100).rev().for_each(|n| times.add(Duration::from_millis(n)));
        assert_eq!(times.to_string(), "p50 51.0ms, p99 99.0ms, max 100.0ms");
        assert_eq!(times.over(Duration::from_millis(90)), 10);
    }
}
