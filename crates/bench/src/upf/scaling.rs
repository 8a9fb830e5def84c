//! Dynamic scaling: the load steps up and down again and again, workers come and go by themselves, and every packet is looked for.
//!
//! First the rate without loss is found with two workers that stay. Then the load goes in steps up to 80 % of that, and down. It is open loop: what a
//! port refuses, or the source is too late to offer, is lost. Ten rounds do this, so that each is short. Afterwards up to eight workers share
//! the cores, with a source that waits where it has to: nothing may be lost there, nor overtaken.
//!
//! Rates, losses and latency of a load that steps are those of rounds in which the cores were not moved: what two workers can do near each other
//! they cannot do far apart. Where workers share the cores packets are counted, and nothing depends on where these are.

use std::time::Duration;

use anyhow::anyhow;
use serde_json::{Value, json};
use upf::elastic::{Elastic, Elasticity, Signal, Standing, Terms};
use upf::model::Model;

use super::crew::{Crew, deciding, drain};
use super::ridden::{Reins, Stretch, Tally};
use super::search::{TRIAL, highest};
use super::stillness::longest_pauses_us;
use crate::cores::round_trip_ns;
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::Load;
use crate::rounds::{Rounds, Taken};

/// Parts of the rate without loss, as they follow each other.
const STEPS: [f64; 8] = [0.05, 0.2, 0.4, 0.6, 0.8, 0.6, 0.4, 0.2];
/// Rounds, in each of which they do once.
const TIMES: u32 = 10;
/// How long a step's beginning is, and its rest.
const STRETCH: Duration = Duration::from_millis(60);
/// Workers that share the cores.
const MANY: u16 = 8;

/// Both models, by their names in metrics.
pub(super) const MODELS: [(&str, Model); 2] = [("rtc", Model::RunToCompletion), ("pipeline", Model::Pipeline)];

/// What was found of a load that steps up and down.
#[derive(Clone, Debug, serde::Serialize)]
struct Stepped {
    packets: Tally,
    zero_loss_mpps: f64,
    changes: u64,
    steps: Vec<Step>,
}

/// What was found of a step.
#[derive(Clone, Debug, serde::Serialize)]
struct Step {
    /// Of the rate without loss.
    part: f64,
    /// What workers there were.
    workers: Value,
    /// Its beginning, and its rest.
    first: Stretch,
    steady: Stretch,
}

/// Measures both models.
pub(super) fn measure(rounds: &Rounds<'_>, load: Load, how: &mut Value, samples: &mut Samples) -> anyhow::Result<()> {
    let progress = rounds.progress;
    if let Some(pair) = rounds.cores {
        progress.step("scaling: how still the cores are")?;
        let pauses_us = longest_pauses_us(&pair, 2 * TIMES as usize * STEPS.len(), STRETCH)?;
        pauses_us.into_iter().for_each(|pause_us| samples.add("upf.scaling.bare_pause_us", pause_us, "us"));
    }
    for (name, model) in MODELS {
        let stepped = match rounds.cores {
            Some(pair) => json!(while_cores_stay((name, model), pair, rounds, load, samples)?),
            None => "not measurable here: one core".into(),
        };
        progress.step(&format!("scaling, {name}: {MANY} workers share the cores"))?;
        let crew = Crew::new(model, MANY, Elasticity { terms: Terms::fixed(MANY.into()), ..elasticity(model) }, load)?;
        let tally = crew.play(load, &[], |elastic, reins| oversubscribed(elastic, reins, progress))?;
        samples.add(format!("upf.scaling.{name}.oversubscribed.lost"), tally.missing() as f64, "packets");
        samples.add(format!("upf.scaling.{name}.oversubscribed.reordered"), tally.reordered as f64, "packets");
        samples.add(format!("upf.scaling.{name}.oversubscribed.duplicated"), tally.duplicates as f64, "packets");
        let placement = match model {
            Model::RunToCompletion => "a core for each worker, which the source and the sink ride on",
            Model::Pipeline => "three threads on two cores: latency with a core for each is not measurable here",
        };
        let throughput = "not measurable here: more workers than cores";
        how[name] = json!({
            "placement": placement, "stepped": stepped,
            "oversubscribed": {"workers": MANY, "packets": tally, "throughput": throughput},
        });
    }
    Ok(())
}

/// What decides over two workers. Those of a pipeline share two cores with their dispatcher: together they are not busy for more
/// than half of the time.
fn elasticity(model: Model) -> Elasticity {
    let (scale_out_above, scale_in_below) = match model {
        Model::RunToCompletion => (0.65, 0.4),
        Model::Pipeline => (0.3, 0.2),
    };
    let cool_down = Duration::from_millis(20);
    // Source and sink load whichever worker they just ride on: that is nothing to move buckets for.
    let terms = Terms { min: 1, max: 2, scale_out_above, scale_in_below, rebalance_above: 0.9, cool_down };
    Elasticity { signal: Signal::Busy, terms }
}

/// The load steps up and down once in each of as many rounds, and does so again where the cores were moved meanwhile.
fn while_cores_stay(
    (name, model): (&str, Model),
    pair: [usize; 2],
    rounds: &Rounds<'_>,
    load: Load,
    samples: &mut Samples,
) -> anyhow::Result<Vec<Taken<Stepped>>> {
    // A dispatcher and two workers are more than there are cores: the system divides these.
    let cores = if model == Model::Pipeline { &[][..] } else { &pair[..] };
    let stepped = |trips: &mut Vec<f64>| {
        let crew = Crew::new(model, 2, elasticity(model), load)?;
        let look = || round_trip_ns(pair).map(|trip_ns| trips.push(trip_ns));
        crew.play(load, cores, |elastic, reins| stepped(elastic, reins, look, rounds.progress))
    };
    let what = format!("scaling, {name}: the load steps up and down");
    Rounds { count: TIMES, ..*rounds }.each(&what, samples, stepped, |samples, run| add(name, run, samples))
}

/// Packets are overtaken or doubled by nobody but the UPF, wherever the cores are: that is told of each run.
fn add(name: &str, run: &Taken<Stepped>, samples: &mut Samples) {
    let Stepped { packets, zero_loss_mpps, steps, .. } = &run.value;
    let name = |metric: &str| format!("upf.scaling.{name}.{metric}");
    samples.add(name("reordered"), packets.reordered as f64, "packets");
    samples.add(name("duplicated"), packets.duplicates as f64, "packets");
    if run.moved {
        return;
    }
    samples.add(name("zero_loss_mpps"), *zero_loss_mpps, "Mpps");
    samples.add(name("lost"), packets.lost() as f64, "packets");
    for Step { first, steady, .. } in steps {
        samples.add(name("p999_us"), first.p999_us(), "us");
        samples.add(name("added_p999_us"), (first.p999_us() - steady.p999_us()).max(0.0), "us");
    }
}

/// `look` sees where the cores are, as soon as the rate is known and nothing is sent.
fn stepped(
    elastic: &Elastic,
    reins: &Reins,
    look: impl FnOnce() -> anyhow::Result<()>,
    progress: &Progress,
) -> anyhow::Result<Stepped> {
    let highest_pps = without_loss(elastic, reins)?;
    look()?;
    let (before, cuts) = (reins.tally(), reins.stretches().len());
    let changes = elastic.standing().changes;
    let workers = deciding(elastic, || through_steps(elastic, reins, highest_pps, progress))?;
    let packets = reins.tally().since(before);
    // Of each step, its beginning and its rest; what was measured before the first one is in front.
    let stretches: Vec<Stretch> = reins.stretches().into_iter().skip(cuts + 1).collect();
    let step = |((part, workers), stretch): ((f64, Value), &[Stretch])| {
        let (first, steady) = (stretch[0].clone(), stretch[1].clone());
        Step { part, workers, first, steady }
    };
    let steps = STEPS.into_iter().zip(workers).zip(stretches.chunks_exact(2)).map(step).collect();
    let changes = elastic.standing().changes - changes;
    Ok(Stepped { packets, zero_loss_mpps: highest_pps / 1e6, changes, steps })
}

/// All steps; what workers there were in each.
fn through_steps(
    elastic: &Elastic,
    reins: &Reins,
    highest_pps: f64,
    progress: &Progress,
) -> anyhow::Result<Vec<Value>> {
    let mut workers = vec![];
    for part in STEPS {
        progress.go_on()?;
        reins.set_rate(highest_pps * part);
        reins.settle()?;
        std::thread::sleep(STRETCH);
        let Standing { workers: first, levels, .. } = elastic.standing();
        reins.cut();
        reins.settle()?;
        std::thread::sleep(STRETCH);
        workers.push(json!({"first": first, "steady": elastic.standing().workers, "levels": levels}));
    }
    drain(reins);
    Ok(workers)
}

/// The highest rate at which two workers that stay refuse nothing, in packets a second.
fn without_loss(elastic: &Elastic, reins: &Reins) -> anyhow::Result<f64> {
    elastic.settle_within(TRIAL);
    if elastic.standing().workers != 2 {
        elastic.scale_to(2).map_err(|error| anyhow!("two workers: {error}"))?;
        elastic.settle_within(10 * TRIAL);
    }
    Ok(highest(reins, 0.0)?.pps)
}

/// Workers come and go ten times, while packets flow as fast as they come through.
fn oversubscribed(elastic: &Elastic, reins: &Reins, progress: &Progress) -> anyhow::Result<Tally> {
    let before = reins.tally();
    reins.wait();
    let many = usize::from(MANY);
    for workers in (1..=many).chain((2..many).rev()).cycle().take(TIMES as usize * 2 * (many - 1)) {
        progress.go_on()?;
        elastic.scale_to(workers).map_err(|error| anyhow!("{workers} workers: {error}"))?;
        anyhow::ensure!(elastic.settle_within(Duration::from_secs(60)), "buckets are on their way for ever");
    }
    drain(reins);
    let tally = reins.tally().since(before);
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_which_the_cores_were_moved_tells_of_order_alone() {
        let stretch = Stretch { latency: None, silence_us: 3.0, refused: 0, unoffered: 0 };
        let step = Step { part: 0.8, workers: Value::Null, first: stretch.clone(), steady: stretch };
        let packets = Tally { offered: 9, distinct: 7, reordered: 1, ..Tally::default() };
        let mut samples = Samples::default();
        for (attempt, moved) in [(1, true), (2, false)] {
            let value = Stepped { packets, zero_loss_mpps: 5.0, changes: 20, steps: vec![step.clone()] };
            add("rtc", &Taken { round: 1, attempt, rtt_ns: vec![], moved, value }, &mut samples);
        }
        let of = |metric: &str| samples.of(&format!("upf.scaling.rtc.{metric}")).to_vec();
        assert_eq!((of("reordered"), of("duplicated")), (vec![1.0; 2], vec![0.0; 2]));
        assert_eq!((of("lost"), of("zero_loss_mpps"), of("p999_us")), (vec![2.0], vec![5.0], vec![3.0]));
    }

    #[test]
    fn no_packet_is_lost_or_overtaken_where_workers_share_cores() {
        let load = Load { sessions: 50, active: 50, payload: 64, pdrs: 1 };
        for (name, model) in MODELS {
            let terms = Terms::fixed(MANY.into());
            let crew = Crew::new(model, MANY, Elasticity { terms, ..elasticity(model) }, load).expect("a UPF");
            let tally =
                crew.play(load, &[], |elastic, reins| oversubscribed(elastic, reins, &Progress::new())).expect("a run");
            assert!(tally.received > 0, "{name}");
            assert_eq!((tally.missing(), tally.reordered, tally.duplicates), (0, 0, 0), "{name}");
        }
    }
}
