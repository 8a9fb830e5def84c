//! One rate tried on a path for a while: what was offered, what became of it, and whether that counts as passed.

use serde::Serialize;

use crate::generator::{Generator, Pace};
use crate::path::Path;
use crate::sink::{Latency, Sink};

/// Part of what is due that has to be offered: a rate that the sender could not keep was not tried.
const KEPT: f64 = 0.99;

/// What a trial found. A packet that the port refused is lost, as one that did not come out.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// Packets a second that were to be sent; none where it was as many as the port takes.
    pub rate_pps: Option<f64>,
    /// Packets a second that were offered.
    pub offered_pps: f64,
    /// Packets that were offered to the port.
    pub offered: u64,
    /// Of these, refused by it.
    pub refused: u64,
    /// Packets that came out, each counted once.
    pub received: u64,
    /// Packets that were offered and did not come out, as part of those offered.
    pub loss: f64,
    /// Packets that came out again.
    pub duplicates: u64,
    /// Packets that came out after one with a higher number of their flow.
    pub reordered: u64,
    /// Whether the rate was kept and no more was lost than is allowed.
    pub outcome: Outcome,
    /// From the time a packet was due until it came.
    pub latency_us: Latency,
}

/// How a trial went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The rate was kept, and no more was lost than is allowed.
    Passed,
    /// More was lost.
    Lossy,
    /// The sender could not offer as much.
    SenderBehind,
    /// It was interrupted before its time was over, or before all had come out.
    Interrupted,
}

/// Tries rates on a path.
pub struct Trials<'a> {
    /// The path.
    pub path: Path,
    /// What loads it.
    pub generator: Generator,
    /// What judges it.
    pub sink: Sink,
    /// How long a rate is offered, in nanoseconds.
    pub trial_ns: u64,
    /// The largest loss that passes, as part of the packets offered.
    pub loss: f64,
    /// The clock, in nanoseconds.
    pub clock: &'a mut dyn FnMut() -> u64,
    /// Whether to end at once.
    pub stop: &'a dyn Fn() -> bool,
}

impl Trials<'_> {
    /// Tries one pace; returns when everything has come out, or is lost.
    pub fn run(&mut self, pace: Pace) -> Trial {
        // What is due from here on counts; what making ready takes is not due yet.
        self.sink.begin_again((self.clock)());
        let begin = (self.clock)();
        let (offered, refused) = (self.generator.offered(), self.generator.refused());
        self.generator.set_pace(pace, begin);
        let (path, end) = (&mut self.path, begin + self.trial_ns);
        let last = path.run(&mut self.generator, &mut self.sink, end, self.clock, self.stop);
        let (offered, refused) = (self.generator.offered() - offered, self.generator.refused() - refused);
        path.drain(&mut self.sink, offered - refused, self.clock, self.stop);

        let found = self.sink.found();
        let received = found.distinct();
        let loss = if offered == 0 { 0.0 } else { offered.saturating_sub(received) as f64 / offered as f64 };
        let offered_pps = offered as f64 / ((last - begin).max(1) as f64 / 1e9);
        let rate_pps = match pace {
            Pace::PerSecond(rate) => Some(rate),
            Pace::Unlimited => None,
        };
        let outcome = match rate_pps {
            _ if last < end || (self.stop)() => Outcome::Interrupted,
            _ if loss > self.loss => Outcome::Lossy,
            Some(rate) if offered_pps < KEPT * rate => Outcome::SenderBehind,
            _ => Outcome::Passed,
        };
        let (duplicates, reordered) = (found.duplicates, found.reordered);
        let latency_us = found.latency_us;
        Trial { rate_pps, offered_pps, offered, refused, received, loss, duplicates, reordered, outcome, latency_us }
    }
}
