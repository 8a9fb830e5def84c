//! Dynamic scaling: the load steps up and down again and again, workers come and go by themselves, and every packet is looked for.
//!
//! First the rate is found that two workers which stay take for ten seconds without loss, whatever the host does meanwhile. Then the load goes in
//! steps up to 80 % of that, and down, ten times. It is open loop: what a port refuses is lost, and what waits in a source that is held up,
//! beyond what a ring holds. Afterwards up to eight workers share the cores, with a source that waits where it has to: nothing may be lost
//! there, nor overtaken.
//!
//! If two workers do not take nearly as much at the end, the host has got slower, and it is done again. Where workers share the cores packets
//! are counted, and nothing depends on that.

use std::time::Duration;

use anyhow::anyhow;
use serde_json::{Value, json};
use upf::elastic::{Elastic, Elasticity, Signal, Standing, Terms};
use upf::model::Model;

use super::crew::{Crew, Source, deciding, drain};
use super::ridden::{Reins, Stretch, Tally};
use super::search::{TRIAL, highest, tried};
use super::stillness::longest_pauses_us;
use crate::cores::round_trip_ns;
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::Load;
use crate::rounds::{ATTEMPTS, Rounds};

/// Parts of the rate without loss, as they follow each other.
const STEPS: [f64; 8] = [0.05, 0.2, 0.4, 0.6, 0.8, 0.6, 0.4, 0.2];
/// How often they do.
const TIMES: u32 = 10;
/// How long a step's beginning is, and its rest.
const STRETCH: Duration = Duration::from_millis(60);
/// How long two workers are to take a rate without loss; about as long as the steps take.
const LONG: Duration = Duration::from_secs(10);
/// Of that rate, what they are to take afterwards, too: otherwise the cores got slower meanwhile.
const AS_FAST: f64 = 0.9;
/// Workers that share the cores.
const MANY: u16 = 8;

/// Both models, by their names in metrics.
pub(super) const MODELS: [(&str, Model); 2] = [("rtc", Model::RunToCompletion), ("pipeline", Model::Pipeline)];

/// What was found of a load that steps up and down again and again.
#[derive(Clone, Debug, serde::Serialize)]
struct Stepped {
    attempt: u32,
    zero_loss_mpps: f64,
    /// A cache line's round trips: before, when the rate was found, and at the end.
    rtt_ns: Vec<f64>,
    /// Two workers did not take nearly as much at the end: what was lost, and when, says nothing of the UPF.
    slower: bool,
    rounds: Vec<Round>,
}

/// What was found of a load that stepped up and down once.
#[derive(Clone, Debug, serde::Serialize)]
struct Round {
    packets: Tally,
    /// How often workers came or went.
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
            Some(pair) => json!(until_as_fast((name, model), pair, load, samples, progress)?),
            None => "not measurable here: one core".into(),
        };
        progress.step(&format!("scaling, {name}: {MANY} workers share the cores"))?;
        let crew = Crew::new(
            model,
            MANY,
            Elasticity { terms: Terms::fixed(MANY.into()), ..elasticity(model) },
            load,
            Source::OnAny,
        )?;
        let tally = crew.play(load, &[], |elastic, reins| oversubscribed(elastic, reins, progress))?;
        samples.add(format!("upf.scaling.{name}.oversubscribed.lost"), tally.missing() as f64, "packets");
        samples.add(format!("upf.scaling.{name}.oversubscribed.reordered"), tally.reordered as f64, "packets");
        samples.add(format!("upf.scaling.{name}.oversubscribed.duplicated"), tally.duplicates as f64, "packets");
        let placement = match model {
            Model::RunToCompletion => "a core for each worker; the source and the sink ride on the first one",
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

/// What decides over two workers. Those of a pipeline share two cores with their dispatcher, which has most of the work.
fn elasticity(model: Model) -> Elasticity {
    let (scale_out_above, scale_in_below) = match model {
        Model::RunToCompletion => (0.6, 0.35),
        Model::Pipeline => (0.2, 0.1),
    };
    let cool_down = Duration::from_millis(20);
    // Source and sink load the worker that they ride on: that is nothing to move buckets for.
    let terms = Terms { min: 1, max: 2, scale_out_above, scale_in_below, rebalance_above: 0.9, cool_down };
    Elasticity { signal: Signal::Busy, terms }
}

/// The load steps up and down, again where the cores got slower meanwhile.
fn until_as_fast(
    (name, model): (&str, Model),
    pair: [usize; 2],
    load: Load,
    samples: &mut Samples,
    progress: &Progress,
) -> anyhow::Result<Vec<Stepped>> {
    // A dispatcher and two workers are more than there are cores: the system divides these.
    let cores = if model == Model::Pipeline { &[][..] } else { &pair[..] };
    let mut all = vec![];
    for attempt in 1..=ATTEMPTS {
        progress.step(&format!("scaling, {name}: the rate without loss"))?;
        let crew = Crew::new(model, 2, elasticity(model), load, Source::OnFirst)?;
        let stepped = crew.play(load, cores, |elastic, reins| stepped((name, attempt), elastic, reins, pair, progress));
        // One that was interrupted means nothing, whatever it found.
        progress.go_on()?;
        let stepped = stepped?;
        add(name, &stepped, samples);
        let slower = stepped.slower;
        all.push(stepped);
        if !slower {
            break;
        }
    }
    Ok(all)
}

/// Packets are overtaken or doubled by nobody but the UPF, however fast the cores are: that is told in any case.
fn add(name: &str, stepped: &Stepped, samples: &mut Samples) {
    let Stepped { zero_loss_mpps, rtt_ns, slower, rounds, .. } = stepped;
    rtt_ns.iter().for_each(|trip| samples.add("link.rtt_ns", *trip, "ns"));
    let name = |metric: &str| format!("upf.scaling.{name}.{metric}");
    for Round { packets, .. } in rounds {
        samples.add(name("reordered"), packets.reordered as f64, "packets");
        samples.add(name("duplicated"), packets.duplicates as f64, "packets");
    }
    if *slower {
        return;
    }
    samples.add(name("zero_loss_mpps"), *zero_loss_mpps, "Mpps");
    for Round { packets, changes, steps } in rounds {
        samples.add(name("lost"), packets.lost() as f64, "packets");
        samples.add(name("changes"), *changes as f64, "1");
        for Step { first, steady, .. } in steps {
            samples.add(name("p999_us"), first.p999_us(), "us");
            samples.add(name("added_p999_us"), (first.p999_us() - steady.p999_us()).max(0.0), "us");
        }
    }
}

fn stepped(
    (name, attempt): (&str, u32),
    elastic: &Elastic,
    reins: &Reins,
    pair: [usize; 2],
    progress: &Progress,
) -> anyhow::Result<Stepped> {
    let mut rtt_ns = vec![round_trip_ns(pair)?];
    two_workers(elastic)?;
    let highest_pps = highest(reins, 0.0, LONG, progress)?.pps;
    rtt_ns.push(round_trip_ns(pair)?);
    let round = |round| {
        progress.step(&format!("scaling, {name}: the load steps up and down, {round} of {TIMES}"))?;
        up_and_down(elastic, reins, highest_pps, progress)
    };
    let rounds = deciding(elastic, || (1..=TIMES).map(round).collect())?;
    two_workers(elastic)?;
    let slower = tried(reins, AS_FAST * highest_pps, 0.0, LONG).is_err();
    rtt_ns.push(round_trip_ns(pair)?);
    Ok(Stepped { attempt, zero_loss_mpps: highest_pps / 1e6, rtt_ns, slower, rounds })
}

/// As many as stay while a rate is tried.
fn two_workers(elastic: &Elastic) -> anyhow::Result<()> {
    elastic.settle_within(TRIAL);
    if elastic.standing().workers != 2 {
        elastic.scale_to(2).map_err(|error| anyhow!("two workers: {error}"))?;
        elastic.settle_within(10 * TRIAL);
    }
    Ok(())
}

/// The load steps up and down once.
fn up_and_down(elastic: &Elastic, reins: &Reins, highest_pps: f64, progress: &Progress) -> anyhow::Result<Round> {
    let (before, cuts) = (reins.tally(), reins.stretches().len());
    let changes = elastic.standing().changes;
    let workers = through_steps(elastic, reins, highest_pps, progress)?;
    let packets = reins.tally().since(before);
    // Of each step, its beginning and its rest; what was measured before the first one is in front.
    let stretches: Vec<Stretch> = reins.stretches().into_iter().skip(cuts + 1).collect();
    let step = |((part, workers), stretch): ((f64, Value), &[Stretch])| {
        let (first, steady) = (stretch[0].clone(), stretch[1].clone());
        Step { part, workers, first, steady }
    };
    let steps = STEPS.into_iter().zip(workers).zip(stretches.chunks_exact(2)).map(step).collect();
    Ok(Round { packets, changes: elastic.standing().changes - changes, steps })
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
    use crate::hugepages;

    #[test]
    fn a_load_that_stepped_while_the_cores_got_slower_tells_of_order_alone() {
        let stretch = Stretch { latency: None, silence_us: 3.0, refused: 0, behind: 0 };
        let step = Step { part: 0.8, workers: Value::Null, first: stretch.clone(), steady: stretch };
        let packets = Tally { offered: 9, distinct: 7, reordered: 1, ..Tally::default() };
        let mut samples = Samples::default();
        for (attempt, slower) in [(1, true), (2, false)] {
            let round = Round { packets, changes: 2, steps: vec![step.clone()] };
            let stepped = Stepped { attempt, zero_loss_mpps: 5.0, rtt_ns: vec![60.0], slower, rounds: vec![round] };
            add("rtc", &stepped, &mut samples);
        }
        let of = |metric: &str| samples.of(&format!("upf.scaling.rtc.{metric}")).to_vec();
        assert_eq!((of("reordered"), of("duplicated")), (vec![1.0; 2], vec![0.0; 2]));
        assert_eq!((of("lost"), of("changes"), of("zero_loss_mpps")), (vec![2.0], vec![2.0], vec![5.0]));
        assert_eq!((of("p999_us"), of("added_p999_us")), (vec![3.0], vec![0.0]));
    }

    #[test]
    fn no_packet_is_lost_or_overtaken_where_workers_share_cores() {
        let _pages = hugepages::turns::with_others();
        let load = Load::of(50, 50, 64);
        for (name, model) in MODELS {
            let terms = Terms::fixed(MANY.into());
            let crew =
                Crew::new(model, MANY, Elasticity { terms, ..elasticity(model) }, load, Source::OnAny).expect("a UPF");
            let tally =
                crew.play(load, &[], |elastic, reins| oversubscribed(elastic, reins, &Progress::new())).expect("a run");
            assert!(tally.received > 0, "{name}");
            assert_eq!((tally.missing(), tally.reordered, tally.duplicates), (0, 0, 0), "{name}");
        }
    }
}
