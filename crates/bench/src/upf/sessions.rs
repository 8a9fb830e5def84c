//! The cost of sessions: one worker with few and with many, all of them with traffic in an order that nothing can guess, beside
//! the plain forwarder and beside a bare loop that touches as many cold lines.
//!
//! What a packet costs more with a million sessions than with a thousand is waiting for memory. The forwarder has no
//! sessions, but its frames come from as much memory: what that costs is taken off. All that is on one core over private memory,
//! wherever others are; the models are compared in rounds in which the cores stay where they are.

use std::time::Duration;

use anyhow::{anyhow, ensure};
use port::BURST_MAX;
use serde_json::{Value, json};

use super::bare_misses::BareMisses;
use super::clock::nanoseconds;
use super::models::{Both, Compared};
use super::turns::{TURNS, mean};
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::{Load, Plain, Upf, Way, order};
use crate::rounds::{Rounds, Taken};

/// Sessions held, and how many of them have traffic.
const COUNTS: [(u32, u32); 6] =
    [(1, 1), (1_000, 1_000), (10_000, 10_000), (100_000, 65_536), (100_000, 100_000), (1_000_000, 1_000_000)];
/// What many sessions are held against.
const FEW: (u32, u32) = (1_000, 1_000);
const MANY: (u32, u32) = (1_000_000, 1_000_000);
/// UPF, forwarder, bare loop and both models with the same sessions, ready to run.
struct Rig {
    load: Load,
    upf: Upf,
    plain: Plain,
    bare: BareMisses,
    models: Both,
}

/// Nanoseconds of a packet, in one turn or on the average of many.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Costs {
    upf_ns: f64,
    forwarder_ns: f64,
    bare_misses_ns: f64,
}

/// What was found of one number of sessions in a round.
#[derive(Clone, Debug, serde::Serialize)]
struct Found {
    #[serde(flatten)]
    costs: Costs,
    models: Vec<Taken<Compared>>,
}

/// Measures both ways, the worker on the second of two cores.
pub(super) fn measure(
    rounds: &Rounds<'_>,
    window: Duration,
    payload: usize,
    how: &mut Value,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let mut runs = vec![];
    let measured = Way::BOTH.into_iter().try_for_each(|way| {
        rounds.progress.step(&format!("sessions, {}: 1 to 1,000,000 are installed", way.name()))?;
        let mut found = vec![];
        // On a thread of its own, so that this one is never bound to a core.
        let measured = std::thread::scope(|scope| {
            scope.spawn(|| of_way(way, rounds, window, payload, &mut found, samples)).join()
        });
        for (round, found) in found.iter().enumerate() {
            add_round(way, &found.iter().map(|found| found.costs).collect::<Vec<_>>(), samples);
            let of =
                |((held, active), found): (&(u32, u32), &Found)| json!({"held": held, "active": active, "ns": found});
            runs.push(json!({"round": round + 1, "way": way.name(), "counts": COUNTS.iter().zip(found).map(of).collect::<Vec<_>>()}));
        }
        measured.unwrap_or_else(|_| Err(anyhow!("a measurement panicked")))
    });
    *how = json!({
        "what": "nanoseconds of a packet with so many sessions held and active, all active ones in an order at random; means of fifty turns in a round, which all numbers of sessions take together, without the five fastest and the five slowest",
        "bare_misses": "2 cold lines a packet (slot of the TEID or address, rule with its policer), asked for ahead in the same order, into the same cache",
        "1m_over_bare_misses": "what a packet costs more with 1,000,000 sessions than with 1,000, the forwarder's part taken off, by the same of the bare loop",
        "models": "busy nanoseconds of a packet in all threads of each model, source throttled, again where the cores were moved",
        "runs": runs,
    });
    measured
}

fn of_way(
    way: Way,
    rounds: &Rounds<'_>,
    window: Duration,
    payload: usize,
    all: &mut Vec<Vec<Found>>,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    traffic::cores::pin(rounds.cores.map_or(0, |pair| pair[1]))?;
    let rig = |&(sessions, active): &(u32, u32)| -> anyhow::Result<Rig> {
        rounds.progress.go_on()?;
        let load = Load::of(sessions, active, payload);
        let bare = BareMisses::new(sessions, order(load));
        Ok(Rig {
            load,
            upf: Upf::new(way, load)?,
            plain: Plain::new(way, load)?,
            bare,
            models: Both::new(1, way, load)?,
        })
    };
    let mut rigs = COUNTS.iter().map(rig).collect::<anyhow::Result<Vec<_>>>()?;
    for round in 1..=rounds.count {
        rounds.progress.step(&format!("sessions, {}, round {round} of {}", way.name(), rounds.count))?;
        let costs = in_turns(&mut rigs, window, rounds.progress)?;
        let mut found = vec![];
        for (rig, costs) in rigs.iter_mut().zip(costs) {
            let Load { sessions, active, .. } = rig.load;
            let models = rig.models.compare((rounds, round), window, &prefix(way, sessions, active), samples)?;
            found.push(Found { costs, models });
        }
        all.push(found);
    }
    Ok(())
}

/// What each rig costs, all of them in turns.
fn in_turns(rigs: &mut [Rig], window: Duration, progress: &Progress) -> anyhow::Result<Vec<Costs>> {
    rigs.iter_mut().for_each(Rig::pass_all);
    let mut turns = vec![vec![]; rigs.len()];
    for _ in 0..TURNS {
        progress.go_on()?;
        for (rig, turns) in rigs.iter_mut().zip(&mut turns) {
            turns.push(rig.run(window / TURNS)?);
        }
    }
    let costs = |turns: Vec<Costs>| Costs {
        upf_ns: mean(turns.iter().map(|turn| turn.upf_ns)),
        forwarder_ns: mean(turns.iter().map(|turn| turn.forwarder_ns)),
        bare_misses_ns: mean(turns.iter().map(|turn| turn.bare_misses_ns)),
    };
    Ok(turns.into_iter().map(costs).collect())
}

impl Rig {
    /// A packet of each session that has some: what lay idle, while models were compared, may have to be brought back by whoever owns the
    /// machine.
    fn pass_all(&mut self) {
        for _ in 0..(self.load.active as usize).div_ceil(BURST_MAX) {
            self.plain.turn();
            self.upf.turn();
            self.bare.turn();
        }
    }

    /// UPF, forwarder and bare loop, one after the other on the same core.
    fn run(&mut self, window: Duration) -> anyhow::Result<Costs> {
        let Self { upf, plain, bare, .. } = self;
        let forwarder_ns = nanoseconds(window, || {
            plain.turn();
            plain.sent()
        });
        let upf_ns = nanoseconds(window, || {
            upf.turn();
            upf.sent()
        });
        let bare_misses_ns = nanoseconds(window, || {
            bare.turn();
            bare.passed()
        });
        ensure!(upf.drops().is_empty(), "the UPF dropped packets: {:?}", upf.drops());
        Ok(Costs { upf_ns, forwarder_ns, bare_misses_ns })
    }
}

/// How names of metrics begin.
fn prefix(way: Way, held: u32, active: u32) -> String {
    format!("upf.sessions.{}.{held}held.{active}active", way.name())
}

fn add_round(way: Way, costs: &[Costs], samples: &mut Samples) {
    for ((held, active), Costs { upf_ns, forwarder_ns, bare_misses_ns }) in COUNTS.iter().zip(costs) {
        let prefix = prefix(way, *held, *active);
        let name = |metric: &str| format!("{prefix}.{metric}");
        samples.add(name("added_ns"), upf_ns - forwarder_ns, "ns");
        samples.add(name("mpps"), 1e3 / upf_ns, "Mpps");
        samples.add(name("bare_misses_ns"), *bare_misses_ns, "ns");
    }
    let of = |count| COUNTS.iter().position(|each| *each == count).map(|at| costs[at]);
    if let (Some(few), Some(many)) = (of(FEW), of(MANY)) {
        let added = |costs: Costs| costs.upf_ns - costs.forwarder_ns;
        let (more_ns, bare_ns) = (added(many) - added(few), many.bare_misses_ns - few.bare_misses_ns);
        samples.add(format!("upf.sessions.{}.1m_over_bare_misses", way.name()), more_ns / bare_ns, "1");
        samples.add("upf.sessions.1m_over_bare_misses", more_ns / bare_ns, "1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_more_sessions_cost_is_held_against_bare_misses() {
        let mut samples = Samples::default();
        let costs = |upf_ns, forwarder_ns, bare_misses_ns| Costs { upf_ns, forwarder_ns, bare_misses_ns };
        let mut round = vec![costs(50.0, 10.0, 2.0); COUNTS.len()];
        round[5] = costs(90.0, 20.0, 27.0);
        add_round(Way::Uplink, &round, &mut samples);
        assert_eq!(samples.of("upf.sessions.1m_over_bare_misses"), [(70.0 - 40.0) / 25.0]);
        assert_eq!(samples.of("upf.sessions.uplink.1000000held.1000000active.added_ns"), [70.0]);
    }
}
