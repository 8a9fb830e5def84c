//! Skew: two workers at 90 % of what they can do together; then one bucket in eight, all of them of the same worker, gets four
//! times as much as the others, at the same rate of all together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use serde_json::{Value, json};
use upf::elastic::{Elastic, Elasticity, Signal, Terms};
use upf::model::Model;

use super::crew::{Crew, drain};
use super::ridden::Reins;
use super::scaling::MODELS;
use super::search::highest_pps;
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::Load;

const WORKERS: u16 = 2;
/// The sink tells a million flows apart; hot sessions have four, and all have one more for uniform load.
const ACTIVE_MAX: u32 = 400_000;
/// Part of the packets that may be refused where workers do all that they can together.
const LOSS: f64 = 0.01;
/// Part of what the workers can do together.
const PART: f64 = 0.9;
/// How long each load lasts.
const STRETCH: Duration = Duration::from_millis(500);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);
/// Looks over which a rate is taken.
const SPAN: usize = 10;
/// What is as good as with uniform load.
const AS_GOOD: f64 = 0.95;

/// What was found in a round.
#[derive(Clone, Debug, serde::Serialize)]
struct Found {
    joint_mpps: f64,
    uniform_mpps: f64,
    skewed_mpps: f64,
    settle_ms: f64,
    refused_uniform: u64,
    refused_skewed: u64,
    /// Accepted and not come out.
    lost: u64,
    reordered: u64,
    moved_buckets: u64,
}

/// Measures both models.
pub(super) fn measure(
    rounds: u32,
    load: Load,
    how: &mut Value,
    samples: &mut Samples,
    progress: &Progress,
) -> anyhow::Result<()> {
    let cores = traffic::cores::allowed()?;
    ensure!(
        load.active <= ACTIVE_MAX,
        "skew: at most {ACTIVE_MAX} active sessions, for each has several flows (--active)"
    );
    MODELS.into_iter().try_for_each(|(name, model)| {
        let threads = usize::from(WORKERS) + usize::from(model == Model::Pipeline);
        // Where they share cores the system divides these.
        let own_cores = if cores.len() < threads { &[][..] } else { &cores[..threads] };
        let mut runs = vec![];
        let outcome = (1..=rounds).try_for_each(|round| {
            progress.step(&format!("skew, {name}, round {round} of {rounds}"))?;
            let elasticity = Elasticity { signal: Signal::Busy, terms: terms(own_cores.is_empty()) };
            let crew = Crew::new(model, WORKERS, elasticity, load)?;
            let found = crew.play(load, own_cores, skewed)?;
            let name = |metric: &str| format!("upf.skew.{name}.{metric}");
            samples.add(name("over_uniform"), found.skewed_mpps / found.uniform_mpps, "1");
            samples.add(name("settle_ms"), found.settle_ms, "ms");
            samples.add(name("lost"), found.lost as f64, "packets");
            samples.add(name("refused"), found.refused_skewed as f64, "packets");
            runs.push(found);
            Ok(())
        });
        let placement = match own_cores {
            [] => format!("{threads} threads share {} cores, which the system divides", cores.len()),
            _ => "a core for each thread".into(),
        };
        let limit = "the cores, which source and sink ride on";
        how[name] = json!({"placement": placement, "limit": limit, "runs": runs});
        outcome
    })
}

/// What decides over buckets: workers that share cores with others are never busy all the time.
fn terms(share_cores: bool) -> Terms {
    let fixed = Terms::fixed(WORKERS.into());
    Terms { rebalance_above: if share_cores { 0.2 } else { fixed.rebalance_above }, ..fixed }
}

fn skewed(elastic: &Elastic, reins: &Reins) -> anyhow::Result<Found> {
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let deciding = scope.spawn(move || elastic.run(stop));
        let found = through_loads(elastic, reins);
        stop.store(true, Ordering::Relaxed);
        deciding.join().map_err(|_| anyhow!("the elastic component panicked"))??;
        found
    })
}

fn through_loads(elastic: &Elastic, reins: &Reins) -> anyhow::Result<Found> {
    let begin = reins.tally();
    let joint_pps = highest_pps(reins, LOSS)?;
    let before = reins.tally();
    reins.set_rate(PART * joint_pps);
    let uniform = watched(reins);
    let uniform_pps = rate(&uniform[uniform.len() / 2..]);
    let (between, moved) = (reins.tally(), elastic.standing().moved);
    reins.skew(PART * joint_pps);
    let skewed = watched(reins);
    let skewed_pps = rate(&skewed[skewed.len() / 2..]);
    drain(reins);
    let all = reins.tally();
    ensure!(uniform_pps > 0.0, "nothing comes out of the UPF");
    Ok(Found {
        joint_mpps: joint_pps / 1e6,
        uniform_mpps: uniform_pps / 1e6,
        skewed_mpps: skewed_pps / 1e6,
        settle_ms: settled_ms(&skewed, AS_GOOD * uniform_pps),
        refused_uniform: between.since(before).refused,
        refused_skewed: all.since(between).refused,
        lost: all.since(begin).missing(),
        reordered: all.since(begin).reordered,
        moved_buckets: elastic.standing().moved - moved,
    })
}

/// When it was looked, in seconds since the beginning, and the packets that had come out then.
type Look = (f64, u64);

fn watched(reins: &Reins) -> Vec<Look> {
    let begin = Instant::now();
    let mut looks = vec![];
    while begin.elapsed() < STRETCH {
        looks.push((begin.elapsed().as_secs_f64(), reins.tally().received));
        std::thread::sleep(LOOK);
    }
    looks
}

/// Packets a second from the first look to the last.
fn rate(looks: &[Look]) -> f64 {
    match looks {
        [first, .., last] => (last.1 - first.1) as f64 / (last.0 - first.0),
        _ => 0.0,
    }
}

/// From when on the rate is at least this, in milliseconds since the beginning: for five spans in a row.
fn settled_ms(looks: &[Look], pps: f64) -> f64 {
    let is_good = |from: usize| looks.get(from..=from + SPAN).is_some_and(|span| rate(span) >= pps);
    let holds = |from: &usize| (0..5).all(|span| is_good(from + span * SPAN));
    (0..looks.len()).find(holds).map_or(f64::INFINITY, |from| looks[from].0 * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_settled_when_the_rate_stays_as_good() {
        // A packet a millisecond, but none in the first twenty.
        let looks: Vec<Look> =
            (0..200).map(|ms| (f64::from(ms) / 1e3, u64::from(ms as u32).saturating_sub(20))).collect();
        let settled = settled_ms(&looks, 950.0);
        assert!((19.0..=21.0).contains(&settled), "{settled}");
        assert!(settled_ms(&looks, 1_100.0).is_infinite());
    }
}
