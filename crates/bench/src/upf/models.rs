//! What a packet costs in busy time: run to completion beside the pipeline, in turns.
//!
//! A thread's busy time is that of the rounds in which it did work. The source gives no more packets than rings have room for, so
//! that a dispatcher never waits for room within a round, and has an empty round where it would; a worker that the dispatcher
//! does not feed has empty rounds, too. Neither they count, nor rounds that were interrupted. The clock is read once a round, in all threads alike.
//!
//! A dispatcher of one worker need not look at packets. One of several, each with buckets of its own, looks whose each is. That is
//! measured, too, with packets that are all one worker's, beside run to completion with as many workers, over ports without a peer,
//! where nobody looks whose packets are. What it costs where their queues do, as those of steered ports, is told beside it.
//!
//! On one core, dispatcher and worker take turns of some bursts: what a pipeline costs more where nothing has to come from another
//! core's cache. On two, that is in it, but for the packets' own lines: the source's stand in memory as they are, so that both cores can
//! have them, where a peer on a third core would have written them anew, and whoever reads them first would wait for that.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use upf::model::Model;

use super::turns::{TURNS, mean};
use super::whole::Whole;
use crate::at_end::AtEnd;
use crate::busy::{Busy, Phase, of_rounds};
use crate::metric::Samples;
use crate::rig::{Load, Way};
use crate::rounds::{Rounds, Taken};

/// Bursts between two turns, on one core.
const BURSTS: usize = 8;
/// Workers of whom one has traffic, for a dispatcher that has to look whose packets are.
const SEVERAL: usize = 2;
/// Part of a run that warms it up.
const WARM_UP: u32 = 10;

/// Nanoseconds of a packet.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Costs {
    dispatcher_ns: f64,
    worker_ns: f64,
}

impl Found {
    fn mean(turns: impl Iterator<Item = Self> + Clone) -> Self {
        let two_cores: Vec<Costs> = turns.clone().filter_map(|turn| turn.two_cores).collect();
        Self {
            rtc_ns: mean(turns.clone().map(|turn| turn.rtc_ns)),
            one_core: Costs::mean(turns.map(|turn| turn.one_core)),
            two_cores: (!two_cores.is_empty()).then(|| Costs::mean(two_cores.iter().copied())),
        }
    }
}

impl Costs {
    fn mean(turns: impl Iterator<Item = Self> + Clone) -> Self {
        let (dispatcher_ns, worker_ns) =
            (turns.clone().map(|turn| turn.dispatcher_ns), turns.map(|turn| turn.worker_ns));
        Self { dispatcher_ns: mean(dispatcher_ns), worker_ns: mean(worker_ns) }
    }
}

/// Both models with the same load, to be run in turns.
pub(super) struct Both {
    rtc: Whole,
    pipeline: Whole,
}

/// Busy nanoseconds of a packet in all threads of a model together.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Compared {
    pub rtc_ns: f64,
    pub pipeline_ns: f64,
}

/// What was found of both models in a round, or a part of it.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Found {
    rtc_ns: f64,
    one_core: Costs,
    two_cores: Option<Costs>,
}

/// The same of one way, with one worker, and with [`SEVERAL`].
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct OfWay {
    #[serde(flatten)]
    one: Found,
    several: Found,
    /// Run to completion, several workers with a queue each of a steered port.
    steered_rtc_ns: f64,
}

/// Measures both ways in turns; on two cores where there are two.
pub(super) fn measure(
    rounds: &Rounds<'_>,
    window: Duration,
    load: Load,
    how: &mut Value,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let mut runs = vec![];
    let (pair, core) = (rounds.cores, rounds.cores.map_or(0, |pair| pair[1]));
    let found = |both: &mut Both| {
        rounds.progress.go_on()?;
        let window = window / TURNS;
        let (rtc_ns, one_core) = (rtc(&mut both.rtc, window, core)?, both.one_core(window, core)?);
        let two_cores = pair.map(|pair| two_cores(&mut both.pipeline, window, pair)).transpose()?;
        anyhow::Ok(Found { rtc_ns, one_core, two_cores })
    };
    let of_way = |way: Way| {
        let (mut one, mut several) = (Both::new(1, way, load)?, Both::new(SEVERAL, way, load)?);
        let mut steered = passed(Whole::steered(SEVERAL, way, load)?, load)?;
        let mut turn = || {
            let (one, several) = (found(&mut one)?, found(&mut several)?);
            Ok(OfWay { one, several, steered_rtc_ns: rtc(&mut steered, window / TURNS, core)? })
        };
        let turns: Vec<OfWay> = (0..TURNS).map(|_| turn()).collect::<anyhow::Result<_>>()?;
        let mean_of_way = OfWay {
            one: Found::mean(turns.iter().map(|turn| turn.one)),
            several: Found::mean(turns.iter().map(|turn| turn.several)),
            steered_rtc_ns: mean(turns.iter().map(|turn| turn.steered_rtc_ns)),
        };
        anyhow::Ok((way.name(), mean_of_way))
    };
    let measure = |_: &mut Vec<f64>| Way::BOTH.into_iter().map(of_way).collect::<anyhow::Result<BTreeMap<_, _>>>();
    let take = |samples: &mut Samples, run: &Taken<BTreeMap<&str, OfWay>>| {
        if !run.moved {
            for (way, OfWay { one, several, steered_rtc_ns }) in &run.value {
                add(way, "", *one, samples);
                add(way, "several.", *several, samples);
                samples.add(format!("upf.models.{way}.several.steered_rtc_ns"), *steered_rtc_ns, "ns");
            }
        }
        runs.push(json!(run));
    };
    let outcome = rounds.each("models", samples, measure, take).map(drop);
    *how = json!({
        "what": "busy nanoseconds of a packet: rounds with work, the clock's reading in each; synthetic source, throttled; means of fifty turns in a round, which both models take, without the five fastest and the five slowest",
        "two_cores": if pair.is_some() { "dispatcher and worker have a core each" } else { "not measurable here: one core" },
        "several": format!("{SEVERAL} workers, one of whom has all packets; the dispatcher looks whose each is"),
        "dispatcher_limit": "its own core: polling the source, finding buckets, telling workers where packets lie",
        "runs": runs,
    });
    outcome
}

impl Both {
    /// With so many workers, of whom one has traffic.
    pub fn new(workers: usize, way: Way, load: Load) -> anyhow::Result<Self> {
        let whole = |model| passed(Whole::new(model, workers, way, load)?, load);
        Ok(Self { rtc: whole(Model::RunToCompletion)?, pipeline: whole(Model::Pipeline)? })
    }

    /// Compares them once in this round, and again where the cores were moved meanwhile. What counts is added under names that begin
    /// like `prefix`; returned is all.
    pub fn compare(
        &mut self,
        (rounds, round): (&Rounds<'_>, u32),
        window: Duration,
        prefix: &str,
        samples: &mut Samples,
    ) -> anyhow::Result<Vec<Taken<Compared>>> {
        let (pair, core) = (rounds.cores, rounds.cores.map_or(0, |pair| pair[1]));
        let mut all = vec![];
        let take = |samples: &mut Samples, run: Taken<Compared>| {
            if !run.moved {
                run.value.add(prefix, samples);
            }
            all.push(run);
        };
        let what = format!("{prefix}, both models");
        rounds.turn(round, &what, samples, |_| self.in_turns(window, core, pair), take)?;
        Ok(all)
    }

    fn in_turns(&mut self, window: Duration, core: usize, pair: Option<[usize; 2]>) -> anyhow::Result<Compared> {
        let turns = (0..TURNS).map(|_| self.once(window / TURNS, core, pair));
        let turns: Vec<Compared> = turns.collect::<anyhow::Result<_>>()?;
        Ok(Compared {
            rtc_ns: mean(turns.iter().map(|turn| turn.rtc_ns)),
            pipeline_ns: mean(turns.iter().map(|turn| turn.pipeline_ns)),
        })
    }

    /// Each once: run to completion on `core`, the pipeline with a core for each thread where there are two, else on `core`, too.
    fn once(&mut self, window: Duration, core: usize, pair: Option<[usize; 2]>) -> anyhow::Result<Compared> {
        let rtc_ns = rtc(&mut self.rtc, window, core)?;
        let costs = match pair {
            Some(pair) => two_cores(&mut self.pipeline, window, pair)?,
            None => self.one_core(window, core)?,
        };
        Ok(Compared { rtc_ns, pipeline_ns: costs.dispatcher_ns + costs.worker_ns })
    }

    /// On a thread of its own, so that the one that asks is never bound to a core.
    fn one_core(&mut self, window: Duration, core: usize) -> anyhow::Result<Costs> {
        let pipeline = &mut self.pipeline;
        std::thread::scope(|scope| {
            let measuring = scope.spawn(|| one_core(pipeline, window, core));
            measuring.join().map_err(|_| anyhow!("a measurement panicked"))?
        })
    }
}

/// A UPF through which each session's packet has passed once.
fn passed(mut whole: Whole, load: Load) -> anyhow::Result<Whole> {
    whole.pass_all(load)?;
    Ok(whole)
}

impl Compared {
    fn add(self, prefix: &str, samples: &mut Samples) {
        let Self { rtc_ns, pipeline_ns } = self;
        samples.add(format!("{prefix}.rtc_ns"), rtc_ns, "ns");
        samples.add(format!("{prefix}.pipeline_ns"), pipeline_ns, "ns");
        samples.add(format!("{prefix}.pipeline_over_rtc"), pipeline_ns / rtc_ns, "1");
    }
}

/// Under names that say so, with one worker (`workers` is empty) or with several.
fn add(way: &str, workers: &str, Found { rtc_ns, one_core, two_cores }: Found, samples: &mut Samples) {
    let name = |metric: &str| format!("upf.models.{way}.{workers}{metric}");
    samples.add(name("rtc_ns"), rtc_ns, "ns");
    for (cores, costs) in [("one_core.", Some(one_core)), ("", two_cores)] {
        let Some(Costs { dispatcher_ns, worker_ns }) = costs else { continue };
        samples.add(name(&format!("{cores}dispatcher_ns")), dispatcher_ns, "ns");
        samples.add(name(&format!("{cores}worker_ns")), worker_ns, "ns");
        let over = |metric: &str| format!("upf.pipeline_over_rtc.{workers}{cores}{metric}");
        samples.add(over("cycles"), (dispatcher_ns + worker_ns) / rtc_ns, "1");
        samples.add(over("worker_cycles"), worker_ns / rtc_ns, "1");
        samples.add(format!("upf.pipeline.{workers}{cores}dispatcher_mpps"), 1e3 / dispatcher_ns, "Mpps");
    }
}

/// Of a UPF that runs to completion, on `core`: busy nanoseconds of a packet.
pub(super) fn rtc(whole: &mut Whole, window: Duration, core: usize) -> anyhow::Result<f64> {
    let (worker, passage) = (whole.upf.workers.first_mut().context("a UPF has a worker")?, &whole.passage);
    let phase = Phase::default();
    let busy = std::thread::scope(|scope| {
        let measuring = scope.spawn(|| of_rounds(&phase, core, || worker.run_once(), || passage.sent_by_me()));
        std::thread::sleep(window / WARM_UP);
        phase.count_for(window);
        phase.end();
        measuring.join().map_err(|_| anyhow!("a measurement panicked"))?
    })?;
    whole.check()?;
    Ok(busy.ns())
}

/// Dispatcher and worker in turns.
fn one_core(whole: &mut Whole, window: Duration, core: usize) -> anyhow::Result<Costs> {
    traffic::cores::pin(core)?;
    let never = AtomicBool::new(false);
    let mut run = |time: Duration| {
        let (mut first, mut second) = (Busy::default(), Busy::default());
        let begin = Instant::now();
        let mut at = begin;
        while at - begin < time {
            // All has left: the source has room for more than is given in a turn.
            whole.passage.look();
            let before = whole.passage.sent();
            let dispatcher = whole.upf.dispatcher.as_mut().context("a pipeline has a dispatcher")?;
            for _ in 0..BURSTS {
                dispatcher.run_once(&never);
            }
            let between = Instant::now();
            // What was dropped never leaves: that is told afterwards.
            whole.work_off();
            let end = Instant::now();
            let packets = whole.passage.sent() - before;
            first.add(between - at, packets);
            second.add(end - between, packets);
            at = end;
        }
        anyhow::Ok(Costs { dispatcher_ns: first.ns(), worker_ns: second.ns() })
    };
    run(window / WARM_UP)?;
    let costs = run(window)?;
    whole.check()?;
    Ok(costs)
}

/// Dispatcher on the first core, worker on the second.
fn two_cores(whole: &mut Whole, window: Duration, cores: [usize; 2]) -> anyhow::Result<Costs> {
    let dispatcher = whole.upf.dispatcher.as_mut().context("a pipeline has a dispatcher")?;
    let (worker, passage) = (&mut whole.upf.workers[0], &whole.passage);
    let (phases, is_over) = ([Phase::default(), Phase::default()], AtomicBool::new(false));
    let (dispatching, working) = std::thread::scope(|scope| {
        let _ending = AtEnd(|| phases.iter().for_each(Phase::end));
        let first =
            scope.spawn(|| of_rounds(&phases[0], cores[0], || dispatcher.run_once(&is_over), || passage.given()));
        let second = scope.spawn(|| {
            // A dispatcher would wait for room for ever.
            let _ending = AtEnd(|| is_over.store(true, Ordering::Relaxed));
            of_rounds(&phases[1], cores[1], || worker.run_once(), || passage.sent_by_me())
        });
        std::thread::sleep(window / WARM_UP);
        phases[1].count();
        phases[0].count_for(window);
        phases[1].await_counted();
        // A dispatcher may wait for room in its last round: the worker goes on until then.
        phases[0].end();
        let dispatching = first.join().map_err(|_| anyhow!("a measurement panicked"))?;
        phases[1].end();
        let working = second.join().map_err(|_| anyhow!("a measurement panicked"))?;
        anyhow::Ok((dispatching?, working?))
    })?;
    whole.check()?;
    Ok(Costs { dispatcher_ns: dispatching.ns(), worker_ns: working.ns() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;

    #[test]
    fn a_pipeline_has_a_part_for_the_dispatcher_and_one_for_the_worker() {
        let mut samples = Samples::default();
        let costs = |dispatcher_ns, worker_ns| Costs { dispatcher_ns, worker_ns };
        let found = Found { rtc_ns: 50.0, one_core: costs(10.0, 50.0), two_cores: Some(costs(12.5, 55.0)) };
        add("uplink", "", found, &mut samples);
        add("uplink", "several.", found, &mut samples);
        assert_eq!(samples.of("upf.pipeline_over_rtc.cycles"), [67.5 / 50.0]);
        assert_eq!(samples.of("upf.pipeline_over_rtc.worker_cycles"), [1.1]);
        assert_eq!(samples.of("upf.pipeline_over_rtc.one_core.cycles"), [1.2]);
        assert_eq!(samples.of("upf.pipeline.dispatcher_mpps"), [80.0]);
        assert_eq!(samples.of("upf.pipeline_over_rtc.several.cycles"), [67.5 / 50.0]);
    }

    #[test]
    fn both_models_are_compared_again_and_again() {
        let load = Load::of(20, 20, 64);
        let mut both = Both::new(1, Way::Downlink, load).expect("two UPFs");
        let (progress, mut samples, mut counting) = (Progress::new(), Samples::default(), vec![]);
        for cores in [None, crate::cores::pair().ok()] {
            let rounds = Rounds { count: 1, cores, progress: &progress };
            let window = Duration::from_millis(10);
            let found = both.compare((&rounds, 1), window, "both", &mut samples).expect("packets pass");
            assert!(found.iter().all(|run| run.value.rtc_ns > 0.0 && run.value.pipeline_ns > 0.0), "{found:?}");
            let ratio = |run: &Taken<Compared>| run.value.pipeline_ns / run.value.rtc_ns;
            counting.extend(found.iter().filter(|run| !run.moved).map(ratio));
        }
        assert_eq!(samples.of("both.pipeline_over_rtc"), counting);
    }
}
