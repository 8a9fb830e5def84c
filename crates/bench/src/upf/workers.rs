//! Throughput against the number of workers, in both models. What has no core for each of its threads is not measured; nor does a round
//! count in which the first two cores were moved, but for one thread alone, which has its packets from its own core.

use std::collections::BTreeSet;

use anyhow::{anyhow, ensure};
use serde_json::{Value, json};
use upf::elastic::{Elastic, Elasticity, Signal, Terms};
use upf::model::Model;

use super::crew::{Crew, Source};
use super::scaling::MODELS;
use super::search::{self, Highest, LONG_TRIAL, TRIAL};
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::Load;
use crate::rounds::{Rounds, Taken};

const COUNTS: [u16; 4] = [1, 2, 4, 8];
/// Part of the packets that may be refused where workers do all that they can.
const LOSS: f64 = 0.01;

/// What was found of one case in a round.
#[derive(Clone, Debug, serde::Serialize)]
struct Found {
    model: &'static str,
    workers: u16,
    threads: usize,
    mpps: f64,
    limit: &'static str,
}

/// Measures what there are cores for.
pub(super) fn measure(rounds: &Rounds<'_>, load: Load, how: &mut Value, samples: &mut Samples) -> anyhow::Result<()> {
    let cores = traffic::cores::allowed()?;
    let cases = || MODELS.into_iter().flat_map(|(name, model)| COUNTS.map(|workers| (name, model, workers)));
    let missing = cases().filter(|(_, model, workers)| threads(*model, *workers) > cores.len());
    let missing: Vec<String> =
        missing.map(|(name, model, workers)| lacking(name, model, workers, cores.len())).collect();
    missing.iter().for_each(|what| rounds.progress.note(&format!("not measurable here: {what}")));
    let mut runs = vec![];
    let mut each = (1..=rounds.count).flat_map(|round| cases().map(move |case| (round, case)));
    let outcome = each.try_for_each(|(round, (name, model, workers))| {
        let threads = threads(model, workers);
        if threads > cores.len() {
            return Ok(());
        }
        let of_case = |_: &mut Vec<f64>| {
            let Highest { pps, limit } = highest(model, workers, load, &cores[..threads], rounds.progress)?;
            Ok(Found { model: name, workers, threads, mpps: pps / 1e6, limit: limit.name() })
        };
        let take = |samples: &mut Samples, run: Taken<Found>| {
            if !run.moved {
                samples.add(format!("upf.workers.{name}.{workers}.mpps"), run.value.mpps, "Mpps");
            }
            runs.push(json!(run));
        };
        let what = format!("workers, {workers}, {name}");
        rounds.of_threads(threads).turn(round, &what, samples, of_case, take)
    });
    *how = json!({
        "what": "the highest rate, in open loop, at which ports refuse one packet in a hundred at most; uplink, shared-memory ports",
        "limit": "as each run says: the cores of the UPF's threads, or source and sink, whose lock one thread at a time has",
        "not_measurable": missing,
        "runs": runs,
    });
    outcome
}

/// A core each.
pub(super) fn threads(model: Model, workers: u16) -> usize {
    usize::from(workers) + usize::from(model == Model::Pipeline)
}

/// What is not measurable, and why.
pub(super) fn lacking(name: &str, model: Model, workers: u16, cores: usize) -> String {
    let dispatcher = if model == Model::Pipeline { " and a dispatcher" } else { "" };
    let of = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    format!("{name}: {}{dispatcher}, {}", of(workers.into(), "worker"), of(cores, "core"))
}

/// A UPF that can have so many workers at work, and whose buckets nobody moves: none would be there to move with one worker, so
/// there is a second one, which sleeps.
pub(super) fn crew(model: Model, workers: u16, load: Load) -> anyhow::Result<Crew> {
    let workers = workers.max(2);
    let terms = Terms::fixed(workers.into());
    Crew::new(model, workers, Elasticity { signal: Signal::Busy, terms }, load, Source::OnAny)
}

/// Has so many of them at work: each has buckets.
pub(super) fn engage(elastic: &Elastic, workers: u16) -> anyhow::Result<()> {
    if owners(elastic) != usize::from(workers) {
        elastic.scale_to(workers.into()).map_err(|error| anyhow!("{workers} workers: {error}"))?;
    }
    ensure!(elastic.settle_within(50 * TRIAL), "buckets are on their way for ever");
    Ok(())
}

fn owners(elastic: &Elastic) -> usize {
    elastic.standing().owners.into_iter().collect::<BTreeSet<u8>>().len()
}

fn highest(model: Model, workers: u16, load: Load, cores: &[usize], progress: &Progress) -> anyhow::Result<Highest> {
    crew(model, workers, load)?.play(load, cores, |elastic, reins| {
        engage(elastic, workers)?;
        search::highest(reins, LOSS, LONG_TRIAL, progress)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hugepages;

    #[test]
    fn what_lacks_cores_is_named_with_them() {
        assert_eq!(lacking("rtc", Model::RunToCompletion, 8, 2), "rtc: 8 workers, 2 cores");
        assert_eq!(lacking("pipeline", Model::Pipeline, 1, 1), "pipeline: 1 worker and a dispatcher, 1 core");
        assert_eq!(threads(Model::Pipeline, 2), 3);
    }

    #[test]
    fn as_many_workers_are_at_work_as_are_measured() {
        let _pages = hugepages::turns::with_others();
        let load = Load::of(50, 50, 64);
        for (name, model) in MODELS {
            for workers in [1, 2, 4] {
                let standing = crew(model, workers, load).expect("a UPF").play(load, &[], |elastic, _| {
                    engage(elastic, workers)?;
                    Ok(owners(elastic))
                });
                assert_eq!(standing.expect("a run"), usize::from(workers), "{name}");
            }
        }
    }
}
