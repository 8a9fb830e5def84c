//! Dynamic scaling: the load steps up and down again and again, workers come and go by themselves, and every packet is looked for.
//!
//! First the rate without loss is found with two workers that stay. Then the load goes in steps up to 80 % of that, and down,
//! ten times. It is open loop: what a port refuses, or the source is too late to offer, is lost. Afterwards up to eight workers share the cores, with a source that
//! waits where it has to: nothing may be lost there, nor overtaken.

use std::time::Duration;

use anyhow::anyhow;
use serde_json::{Value, json};
use upf::elastic::{Elastic, Elasticity, Signal, Standing, Terms};
use upf::model::Model;

use super::crew::{Crew, deciding, drain};
use super::ridden::{Reins, Stretch, Tally};
use super::search::{TRIAL, highest};
use super::stillness::longest_pauses_us;
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::Load;

/// Parts of the rate without loss, as they follow each other.
const STEPS: [f64; 8] = [0.05, 0.2, 0.4, 0.6, 0.8, 0.6, 0.4, 0.2];
/// Times that they do.
const TIMES: usize = 10;
/// How long a step's beginning is, and its rest.
const STRETCH: Duration = Duration::from_millis(60);
/// Workers that share the cores.
const MANY: u16 = 8;

/// Both models, by their names in metrics.
pub(super) const MODELS: [(&str, Model); 2] = [("rtc", Model::RunToCompletion), ("pipeline", Model::Pipeline)];

/// Measures both models.
pub(super) fn measure(
    load: Load,
    pair: Option<[usize; 2]>,
    how: &mut Value,
    samples: &mut Samples,
    progress: &Progress,
) -> anyhow::Result<()> {
    if let Some(pair) = pair {
        progress.step("scaling: how still the cores are")?;
        let pauses_us = longest_pauses_us(&pair, 2 * TIMES * STEPS.len(), STRETCH)?;
        pauses_us.into_iter().for_each(|pause_us| samples.add("upf.scaling.bare_pause_us", pause_us, "us"));
    }
    for (name, model) in MODELS {
        let stepped = match pair {
            Some(pair) => {
                progress.step(&format!("scaling, {name}: the load steps up and down"))?;
                // A dispatcher and two workers are more than there are cores: the system divides these.
                let cores = if model == Model::Pipeline { &[][..] } else { &pair[..] };
                let crew = Crew::new(model, 2, elasticity(model), load)?;
                crew.play(load, cores, |elastic, reins| stepped(name, elastic, reins, samples, progress))?
            }
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

fn stepped(
    name: &str,
    elastic: &Elastic,
    reins: &Reins,
    samples: &mut Samples,
    progress: &Progress,
) -> anyhow::Result<Value> {
    let highest_pps = without_loss(elastic, reins)?;
    let (before, cuts) = (reins.tally(), reins.stretches().len());
    let changes = elastic.standing().changes;
    let workers = deciding(elastic, || through_steps(elastic, reins, highest_pps, progress))?;
    let tally = reins.tally().since(before);
    let name = |metric: &str| format!("upf.scaling.{name}.{metric}");
    samples.add(name("zero_loss_mpps"), highest_pps / 1e6, "Mpps");
    samples.add(name("lost"), tally.lost() as f64, "packets");
    samples.add(name("reordered"), tally.reordered as f64, "packets");
    samples.add(name("duplicated"), tally.duplicates as f64, "packets");
    // Of each step, its beginning and its rest; what was measured before it began is in front.
    let stretches: Vec<Stretch> = reins.stretches().into_iter().skip(cuts + 1).collect();
    let mut steps = vec![];
    for (number, (stretch, workers)) in stretches.chunks_exact(2).zip(workers).enumerate() {
        let [first, steady] = [&stretch[0], &stretch[1]];
        samples.add(name("p999_us"), first.p999_us(), "us");
        samples.add(name("added_p999_us"), (first.p999_us() - steady.p999_us()).max(0.0), "us");
        steps.push(json!({"part": STEPS[number % STEPS.len()], "workers": workers, "first": first, "steady": steady}));
    }
    let changes = elastic.standing().changes - changes;
    Ok(json!({"packets": tally, "zero_loss_mpps": highest_pps / 1e6, "changes": changes, "steps": steps}))
}

/// All steps; what workers there were in each.
fn through_steps(
    elastic: &Elastic,
    reins: &Reins,
    highest_pps: f64,
    progress: &Progress,
) -> anyhow::Result<Vec<Value>> {
    let mut workers = vec![];
    for step in STEPS.iter().cycle().take(TIMES * STEPS.len()) {
        progress.go_on()?;
        reins.set_rate(highest_pps * step);
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
    for workers in (1..=many).chain((2..many).rev()).cycle().take(TIMES * 2 * (many - 1)) {
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
