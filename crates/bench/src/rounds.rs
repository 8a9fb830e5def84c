//! Rounds in which what is compared takes turns, and during which the cores stay where they are.

use serde::Serialize;

use crate::cores;
use crate::metric::Samples;
use crate::progress::Progress;

/// The cores were moved if one round trip was longer than another by this factor.
const MOVED: f64 = 1.6;
/// How often a measurement is taken until the cores stay where they are.
pub(crate) const ATTEMPTS: u32 = 5;

/// One measurement and where the cores were.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Taken<T> {
    pub round: u32,
    pub attempt: u32,
    /// A cache line's round trip, before, between parts, and after.
    pub rtt_ns: Vec<f64>,
    /// The cores were moved meanwhile: it does not count.
    pub moved: bool,
    #[serde(flatten)]
    pub value: T,
}

impl<T> Taken<T> {
    /// The round trip that the figure is held against.
    pub fn trip_ns(&self) -> f64 {
        self.rtt_ns.iter().sum::<f64>() / self.rtt_ns.len() as f64
    }
}

/// The rounds of a part.
#[derive(Clone, Copy)]
pub(crate) struct Rounds<'a> {
    pub count: u32,
    /// None where there is one core: it cannot be known whether that is moved.
    pub cores: Option<[usize; 2]>,
    pub progress: &'a Progress,
}

impl Rounds<'_> {
    /// The same of what so many threads measure, a core each: one alone has none to be near to or far from.
    pub fn of_threads(self, threads: usize) -> Self {
        Self { cores: self.cores.filter(|_| threads > 1), ..self }
    }

    /// Measures once a round, and again where the cores were moved meanwhile. `measure` may add round trips that it takes
    /// between its parts; `take` gets every measurement. Ends early where the user says so.
    pub fn each<T>(
        &self,
        what: &str,
        samples: &mut Samples,
        mut measure: impl FnMut(&mut Vec<f64>) -> anyhow::Result<T>,
        mut take: impl FnMut(&mut Samples, &Taken<T>),
    ) -> anyhow::Result<Vec<Taken<T>>> {
        let mut all = Vec::new();
        for round in 1..=self.count {
            let take = |samples: &mut Samples, taken| {
                take(samples, &taken);
                all.push(taken);
            };
            match self.turn(round, what, samples, &mut measure, take) {
                Err(_) if self.progress.is_interrupted() => break,
                turn => turn?,
            }
        }
        Ok(all)
    }

    /// Measures once in this round, and again where the cores were moved meanwhile, as [`Self::each`] does in all. Fails where the user
    /// ends it; what was measured then is not taken.
    pub fn turn<T>(
        &self,
        round: u32,
        what: &str,
        samples: &mut Samples,
        mut measure: impl FnMut(&mut Vec<f64>) -> anyhow::Result<T>,
        mut take: impl FnMut(&mut Samples, Taken<T>),
    ) -> anyhow::Result<()> {
        for attempt in 1..=ATTEMPTS {
            self.progress.step(&format!("round {round} of {}: {what}", self.count))?;
            let mut rtt_ns = self.round_trip_ns()?;
            let value = measure(&mut rtt_ns)?;
            rtt_ns.extend(self.round_trip_ns()?);
            self.progress.go_on()?;
            rtt_ns.iter().for_each(|trip| samples.add("link.rtt_ns", *trip, "ns"));
            let moved = have_moved(&rtt_ns);
            take(samples, Taken { round, attempt, rtt_ns, moved, value });
            if !moved {
                break;
            }
        }
        Ok(())
    }

    fn round_trip_ns(&self) -> anyhow::Result<Vec<f64>> {
        self.cores.into_iter().map(cores::round_trip_ns).collect()
    }
}

/// Whether the cores were in different places in the course of the given round trips.
pub(crate) fn have_moved(trips: &[f64]) -> bool {
    let (min, max) = trips.iter().fold((f64::MAX, 0.0_f64), |(min, max), &trip| (min.min(trip), max.max(trip)));
    max > min * MOVED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_have_moved_where_round_trips_differ_much() {
        assert!(have_moved(&[50.0, 52.0, 370.0]) && !have_moved(&[350.0, 380.0, 365.0]));
    }

    #[test]
    fn where_one_thread_is_alone_its_core_is_near_and_far_to_none() {
        let rounds = Rounds { count: 1, cores: Some([0, 1]), progress: &Progress::new() };
        assert_eq!((rounds.of_threads(1).cores, rounds.of_threads(2).cores), (None, Some([0, 1])));
    }

    #[test]
    fn a_round_in_which_the_cores_moved_is_repeated_within_a_bound() {
        let progress = Progress::new();
        let (rounds, mut samples) = (Rounds { count: 3, cores: None, progress: &progress }, Samples::default());
        let (mut measured, mut counting) = (0, vec![]);
        let measure = |trips: &mut Vec<f64>| {
            measured += 1;
            // They stay in the second and in the third attempt of all, and move in all others.
            trips.extend([50.0, if matches!(measured, 2 | 3) { 55.0 } else { 400.0 }]);
            Ok(())
        };
        let take = |_: &mut Samples, run: &Taken<()>| counting.extend((!run.moved).then_some(run.round));
        let all = rounds.each("what moves", &mut samples, measure, take).expect("rounds");
        assert_eq!(counting, [1, 2]);
        assert_eq!(all.iter().map(|run| run.round).collect::<Vec<_>>(), [1, 1, 2, 3, 3, 3, 3, 3]);
        assert_eq!(samples.of("link.rtt_ns").len(), 16);
    }
}
