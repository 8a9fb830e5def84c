//! Latency of packets through one worker against load, in both models: from when a packet is due to when the sink has it.
//!
//! The source and the sink ride in the polls of whoever receives, so that a pipeline has a core for each of its two threads where
//! there are two. A packet that is due waits for the next poll: that is in the figure, in both models alike. Rounds of a pipeline in which
//! the cores were moved do not count; run to completion has one thread, and its packets from the same core.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};
use traffic::sink::Latency;
use upf::model::Model;

use super::crew::drain;
use super::ridden::{Reins, Tally};
use super::scaling::MODELS;
use super::search::{LONG_TRIAL, highest};
use super::workers::{crew, engage, lacking, threads};
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::Load;
use crate::rounds::{Rounds, Taken};

/// Percent of the highest rate without loss.
const LOADS: [u32; 4] = [10, 50, 80, 90];
/// How long a load is on before it is measured.
const ONSET: Duration = Duration::from_millis(50);
/// How long the source may take to see what it is told.
const PATIENCE: Duration = Duration::from_secs(20);

/// At one load.
#[derive(Clone, Debug, serde::Serialize)]
struct Found {
    percent: u32,
    latency_us: Latency,
    refused: u64,
    /// Those that waited in the source beyond what a ring holds.
    overdue: u64,
}

/// What was found of one model in a round.
#[derive(Clone, Debug, serde::Serialize)]
struct OfModel {
    model: &'static str,
    zero_loss_mpps: f64,
    loads: Vec<Found>,
}

/// Measures the models for whose threads there are cores.
pub(super) fn measure(
    rounds: &Rounds<'_>,
    window: Duration,
    load: Load,
    how: &mut Value,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let cores = traffic::cores::allowed()?;
    let (mut runs, mut missing) = (vec![], vec![]);
    let outcome = (1..=rounds.count).flat_map(|round| MODELS.map(|model| (round, model))).try_for_each(
        |(round, (name, model))| {
            let threads = threads(model, 1);
            if threads > cores.len() {
                missing.push(lacking(name, model, 1, cores.len()));
                return Ok(());
            }
            let of_model =
                |_: &mut Vec<f64>| against_load((name, model), load, window, &cores[..threads], rounds.progress);
            let take = |samples: &mut Samples, run: Taken<OfModel>| {
                if !run.moved {
                    run.value.add(samples);
                }
                runs.push(json!(run));
            };
            rounds.of_threads(threads).turn(round, &format!("latency, {name}"), samples, of_model, take)
        },
    );
    missing.dedup();
    *how = json!({
        "what": "one way, from when a packet is due to when the sink has it; uplink, one worker, shared-memory ports",
        "source": "source and sink ride in the polls of whoever receives: the worker (rtc), the dispatcher (pipeline)",
        "limit": "the pauses of the threads' cores: p99.9 and maximum are those of the machine, too",
        "not_measurable": missing,
        "runs": runs,
    });
    outcome
}

impl OfModel {
    fn add(&self, samples: &mut Samples) {
        let name = |metric: &str| format!("upf.latency.{}.{metric}", self.model);
        samples.add(name("zero_loss_mpps"), self.zero_loss_mpps, "Mpps");
        for Found { percent, latency_us: Latency { p50, p99, p999, max }, .. } in &self.loads {
            for (metric, us) in [("p50", p50), ("p99", p99), ("p999", p999), ("max", max)] {
                samples.add(name(&format!("{percent}pct.{metric}_us")), *us, "us");
            }
        }
    }
}

fn against_load(
    (name, model): (&'static str, Model),
    load: Load,
    window: Duration,
    cores: &[usize],
    progress: &Progress,
) -> anyhow::Result<OfModel> {
    crew(model, 1, load)?.play(load, cores, |elastic, reins| {
        engage(elastic, 1)?;
        let highest_pps = highest(reins, 0.0, LONG_TRIAL, progress)?.pps;
        let loads = LOADS.map(|percent| at(percent, highest_pps, window, reins));
        let loads = loads.into_iter().collect::<anyhow::Result<_>>()?;
        Ok(OfModel { model: name, zero_loss_mpps: highest_pps / 1e6, loads })
    })
}

fn at(percent: u32, highest_pps: f64, window: Duration, reins: &Reins) -> anyhow::Result<Found> {
    let before = reins.tally();
    reins.set_rate(highest_pps * f64::from(percent) / 100.0);
    std::thread::sleep(ONSET);
    cut(reins)?;
    let begin = Instant::now();
    let latency_us = loop {
        std::thread::sleep(window);
        if let Some(latency) = cut(reins)? {
            break latency;
        }
        ensure!(begin.elapsed() < PATIENCE, "no packet came out");
    };
    drain(reins);
    let Tally { refused, overdue, .. } = reins.tally().since(before);
    Ok(Found { percent, latency_us, refused, overdue })
}

/// Latency since the last change.
fn cut(reins: &Reins) -> anyhow::Result<Option<Latency>> {
    reins.cut();
    reins.settle()?;
    Ok(reins.stretches().pop().and_then(|stretch| stretch.latency))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hugepages;

    #[test]
    fn packets_of_both_models_have_a_latency_at_any_load() {
        let _pages = hugepages::turns::with_others();
        let load = Load::of(50, 50, 64);
        for (name, model) in MODELS {
            let crew = crew(model, 1, load).expect("a UPF");
            // A rate that any machine takes.
            let found = crew.play(load, &[], |elastic, reins| {
                engage(elastic, 1)?;
                at(50, 20_000.0, Duration::from_millis(50), reins)
            });
            let Latency { p50, p99, p999, max } = found.expect("packets come out").latency_us;
            assert!(0.0 < p50 && p50 <= p99 && p99 <= p999 && p999 <= max, "{name}: {p50} {p99} {p999} {max}");
        }
    }
}
