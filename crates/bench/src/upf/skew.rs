//! Skew: two workers at 90 % of what they can do together; then the buckets that one of them owns at first get four times as much
//! as the others, at the same rate of all together.
//!
//! In each round the same load comes to a UPF whose buckets nobody moves, first. Only where that one falls behind is there
//! anything that moves could mend, and only there the other one's figures count. For that, workers have to be what limits the rate,
//! and all threads have to have the time that they want, on two cores, too: so a worker takes a set time for a packet, of which it
//! sleeps through the most. That, and not what a line takes from core to core, is what its rate is, so that cores may be moved.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};
use upf::elastic::{Elastic, Elasticity, Signal, Terms};
use upf::model::Model;

use super::crew::{Crew, HOT_TIMES, Source, deciding, drain, is_hot};
use super::ridden::{Reins, UNDER_WAY_MANY};
use super::scaling::MODELS;
use super::search::{Limit, TRIAL};
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::Load;

const WORKERS: u16 = 2;
/// What a worker takes for a packet beside its work, which it is many times of.
const PACKET: Duration = Duration::from_micros(2);
/// Part of what the workers can do together.
const PART: f64 = 0.9;
/// How long each load lasts.
const STRETCH: Duration = Duration::from_millis(500);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);
/// Looks over which a rate is taken.
const SPAN: usize = 10;
/// Spans in a row after which a rate is taken to stay.
const SPANS: usize = 5;
/// What is as good as with uniform load.
const AS_GOOD: f64 = 0.95;
/// How often buckets are handed back at most.
const HAND_BACKS: u32 = 10;
/// What the worker with more has to have of the skewed load when it begins: 4/5 if no bucket was moved before.
const HEAVY: f64 = 0.75;
/// Seconds after the onset in which moves are to be over.
const AIM_S: f64 = 0.05;

/// What was found in a round.
#[derive(Clone, Debug, serde::Serialize)]
struct Found {
    joint_mpps: f64,
    /// What kept the workers from doing more together.
    limit: &'static str,
    /// Of the UPF whose buckets nobody moves.
    unmoved: Loads,
    moved: Loads,
    /// Why this round says nothing of moves.
    not_measurable: Option<String>,
}

/// What one UPF did with both loads.
#[derive(Clone, Debug, Default, serde::Serialize)]
struct Loads {
    uniform_mpps: f64,
    /// In the second half of the time.
    skewed_mpps: f64,
    /// From [`AIM_S`] after the onset to the end.
    skewed_after_aim_mpps: f64,
    settle_ms: f64,
    /// How busy each worker was at the end, source and sink included where they rode on it.
    uniform_levels: Vec<f64>,
    skewed_levels: Vec<f64>,
    /// Part of the skewed load that is one worker's by the buckets it owns, of the one with more: at the onset, and at the end.
    heavier_part: [f64; 2],
    refused_uniform: u64,
    refused_skewed: u64,
    /// Accepted and not come out.
    lost: u64,
    reordered: u64,
    moved_buckets: u64,
}

impl Loads {
    fn over_uniform(&self) -> f64 {
        self.skewed_mpps / self.uniform_mpps
    }
}

/// Measures both models.
pub(super) fn measure(
    rounds: u32,
    load: Load,
    how: &mut Value,
    samples: &mut Samples,
    progress: &Progress,
) -> anyhow::Result<()> {
    MODELS.into_iter().try_for_each(|(name, model)| {
        let mut runs = vec![];
        let outcome = (1..=rounds).try_for_each(|round| {
            progress.step(&format!("skew, {name}, round {round} of {rounds}"))?;
            let found = of_round(model, load)?;
            sample(name, &found, samples);
            runs.push(found);
            Ok(())
        });
        let reasons: Vec<&String> = runs.iter().filter_map(|found| found.not_measurable.as_ref()).collect();
        for reason in &reasons {
            progress.note(&format!("skew, {name}: a round does not count: {reason}"));
        }
        how[name] = json!({
            "packet_us": PACKET.as_secs_f64() * 1e6, "sessions": load.sessions, "active": load.active,
            "rounds_that_count": runs.len() - reasons.len(), "not_measurable": reasons, "runs": runs,
        });
        outcome
    })
}

fn of_round(model: Model, load: Load) -> anyhow::Result<Found> {
    let terms = Terms::fixed(WORKERS.into());
    let source = Source::Apart { packet: PACKET };
    let crew = |terms| Crew::new(model, WORKERS, Elasticity { signal: Signal::Busy, terms }, load, source);
    let ((pps, limit), unmoved) = crew(never_moving(terms))?.play(load, &[], |elastic, reins| {
        deciding(elastic, || {
            let (pps, limit) = together(reins);
            Ok(((pps, limit), through_loads(elastic, reins, PART * pps)?))
        })
    })?;
    let moved = crew(terms)?
        .play(load, &[], |elastic, reins| deciding(elastic, || through_loads(elastic, reins, PART * pps)))?;
    let joint_mpps = pps / 1e6;
    let not_measurable = not_measurable(joint_mpps, limit, &unmoved, &moved);
    Ok(Found { joint_mpps, limit: named(limit), unmoved, moved, not_measurable })
}

/// What workers do together that are never without packets, in packets a second, and what keeps them from doing more: the source, if it
/// does not get as many under way as it may.
fn together(reins: &Reins) -> (f64, Limit) {
    reins.fill();
    std::thread::sleep(TRIAL);
    let pps = rate(&watched(reins));
    let waiting = reins.tally().missing();
    drain(reins);
    (pps, if waiting >= UNDER_WAY_MANY / 2 { Limit::Workers } else { Limit::Source })
}

/// As in reports: nobody rides on workers here.
fn named(limit: Limit) -> &'static str {
    match limit {
        Limit::Workers => "the UPF's workers",
        Limit::Source => "source and sink",
    }
}

/// Why a round says nothing of moves, if that is so.
fn not_measurable(joint_mpps: f64, limit: Limit, unmoved: &Loads, moved: &Loads) -> Option<String> {
    let due_mpps = PART * joint_mpps;
    let uniform_mpps = unmoved.uniform_mpps.min(moved.uniform_mpps);
    if uniform_mpps < AS_GOOD * due_mpps {
        return Some(format!("of {due_mpps:.2} Mpps of uniform load {uniform_mpps:.2} came through"));
    }
    let heavier_part = moved.heavier_part[0];
    if heavier_part < HEAVY {
        return Some(format!("when the load became skewed no worker had more than {heavier_part:.2} of it"));
    }
    let ratio = unmoved.over_uniform();
    (ratio >= AS_GOOD).then(|| {
        format!(
            "where nothing is moved throughput stays at {ratio:.2}: there is nothing to mend (limit: {})",
            named(limit)
        )
    })
}

fn sample(name: &str, found: &Found, samples: &mut Samples) {
    let Found { unmoved, moved, .. } = found;
    let name = |metric: &str| format!("upf.skew.{name}.{metric}");
    samples.add(name("unmoved_over_uniform"), unmoved.over_uniform(), "1");
    samples.add(name("lost"), (unmoved.lost + moved.lost) as f64, "packets");
    if found.not_measurable.is_none() {
        samples.add(name("over_uniform"), moved.over_uniform(), "1");
        samples.add(name("over_uniform_after_50ms"), moved.skewed_after_aim_mpps / moved.uniform_mpps, "1");
        samples.add(name("settle_ms"), moved.settle_ms, "ms");
        samples.add(name("refused"), moved.refused_skewed as f64, "packets");
    }
}

/// The same terms, but that no load is worth a move.
fn never_moving(terms: Terms) -> Terms {
    Terms { rebalance_above: f64::INFINITY, ..terms }
}

fn through_loads(elastic: &Elastic, reins: &Reins, pps: f64) -> anyhow::Result<Loads> {
    let begin = reins.tally();
    reins.set_rate(pps);
    let uniform = watched(reins);
    hand_back(elastic);
    let (between, onset) = (reins.tally(), elastic.standing());
    reins.skew(pps);
    let skewed = watched(reins);
    let end = elastic.standing();
    drain(reins);
    let all = reins.tally();
    let uniform_pps = rate(&uniform[uniform.len() / 2..]);
    ensure!(uniform_pps > 0.0, "nothing comes out of the UPF");
    let after_aim = skewed.partition_point(|look| look.0 < AIM_S);
    Ok(Loads {
        uniform_mpps: uniform_pps / 1e6,
        skewed_mpps: rate(&skewed[skewed.len() / 2..]) / 1e6,
        skewed_after_aim_mpps: rate(&skewed[after_aim..]) / 1e6,
        settle_ms: settled_ms(&skewed, AS_GOOD * uniform_pps),
        heavier_part: [heavier_part(&onset.owners), heavier_part(&end.owners)],
        uniform_levels: onset.levels,
        skewed_levels: end.levels,
        refused_uniform: between.since(begin).refused,
        refused_skewed: all.since(between).refused,
        lost: all.since(begin).missing(),
        reordered: all.since(begin).reordered,
        moved_buckets: end.moved - onset.moved,
    })
}

/// Gives each worker the buckets that it had at first: what was moved while the load was uniform may be what skew has to have moved.
/// Where the elastic component has moved others again by then, these stay.
fn hand_back(elastic: &Elastic) {
    let at_first = std::array::from_fn(|bucket| (bucket % usize::from(WORKERS)) as u8);
    for _ in 0..HAND_BACKS {
        if elastic.standing().owners == at_first {
            break;
        }
        elastic.settle_within(TRIAL);
        // It fails where buckets are on their way once more.
        let _ = elastic.set_owners(&at_first);
        elastic.settle_within(TRIAL);
    }
}

/// Of sessions that are evenly spread over buckets.
fn heavier_part(owners: &[u8]) -> f64 {
    let mut parts = [0.0; WORKERS as usize];
    for (bucket, owner) in owners.iter().enumerate() {
        parts[usize::from(*owner)] += f64::from(if is_hot(bucket as u8) { HOT_TIMES } else { 1 });
    }
    parts.iter().copied().fold(0.0, f64::max) / parts.iter().sum::<f64>()
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

/// From when on the rate is at least this in [`SPANS`] spans in a row and in all of them together, in milliseconds since the beginning.
/// One of these may be worse, but for the first: something else may have had a core for some milliseconds, and what waits then comes
/// soon after.
fn settled_ms(looks: &[Look], pps: f64) -> f64 {
    let is_good = |from: usize, len: usize| looks.get(from..=from + len).is_some_and(|span| rate(span) >= pps);
    let good = |from: usize| (0..SPANS).filter(|span| is_good(from + span * SPAN, SPAN)).count();
    let holds = |&from: &usize| is_good(from, SPAN) && is_good(from, SPANS * SPAN) && good(from) + 1 >= SPANS;
    (0..looks.len()).find(holds).map_or(f64::INFINITY, |from| looks[from].0 * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hugepages;

    #[test]
    fn it_has_settled_when_the_rate_stays_as_good() {
        // A packet a millisecond, but none in the first twenty.
        let looks: Vec<Look> =
            (0..200).map(|ms| (f64::from(ms) / 1e3, u64::from(ms as u32).saturating_sub(20))).collect();
        let settled = settled_ms(&looks, 950.0);
        assert!((19.0..=21.0).contains(&settled), "{settled}");
        assert!(settled_ms(&looks, 1_100.0).is_infinite());
    }

    #[test]
    fn a_pause_after_which_what_waited_comes_at_once_does_not_unsettle() {
        // A packet a millisecond, but none for so long at each of these times.
        let paused = |pauses: &[u32], long: u32| -> Vec<Look> {
            let is_in = |ms: u32| pauses.iter().any(|&pause| (pause..pause + long).contains(&ms));
            let mut come = 0;
            let received = (0..200).map(|ms| {
                come = if is_in(ms) { come } else { u64::from(ms) };
                (f64::from(ms) / 1e3, come)
            });
            received.collect()
        };
        assert_eq!(settled_ms(&paused(&[27], 6), 950.0), 0.0);
        assert!(settled_ms(&paused(&[7], 6), 950.0) > 0.0);
        assert!(settled_ms(&paused(&[17, 37], 6), 950.0) > 0.0);
    }

    fn loads(uniform_mpps: f64, skewed_mpps: f64) -> Loads {
        let heavier_part = [0.8, 0.5];
        Loads { uniform_mpps, skewed_mpps, skewed_after_aim_mpps: skewed_mpps, heavier_part, ..Loads::default() }
    }

    fn found(unmoved: Loads, moved: Loads) -> Found {
        let not_measurable = not_measurable(1.0, Limit::Workers, &unmoved, &moved);
        Found { joint_mpps: 1.0, limit: named(Limit::Workers), unmoved, moved, not_measurable }
    }

    #[test]
    fn moves_are_judged_only_where_throughput_falls_without_them() {
        let mut samples = Samples::default();
        for (unmoved, moved) in [(0.89, 0.9), (0.72, 0.81), (0.855, 0.9)] {
            sample("rtc", &found(loads(0.9, unmoved), loads(0.9, moved)), &mut samples);
        }
        assert_eq!(samples.of("upf.skew.rtc.over_uniform"), [0.81 / 0.9]);
        assert_eq!(samples.of("upf.skew.rtc.settle_ms").len(), 1);
        assert_eq!(samples.of("upf.skew.rtc.unmoved_over_uniform").len(), 3);
    }

    #[test]
    fn a_load_that_is_not_taken_while_it_is_uniform_says_nothing() {
        let reason = found(loads(0.9, 0.7), loads(0.8, 0.8)).not_measurable.expect("a reason");
        assert!(reason.contains("of 0.90 Mpps of uniform load 0.80 came through"), "{reason}");
    }

    #[test]
    fn a_load_that_is_skewed_after_its_buckets_were_spread_says_nothing() {
        let spread = Loads { heavier_part: [0.55, 0.5], ..loads(0.9, 0.9) };
        let reason = found(loads(0.9, 0.7), spread).not_measurable.expect("a reason");
        assert!(reason.contains("no worker had more than 0.55"), "{reason}");
    }

    #[test]
    fn at_first_one_worker_has_four_parts_of_five() {
        let owners: Vec<u8> = (0..128).map(|bucket: u8| bucket % 2).collect();
        assert_eq!(heavier_part(&owners), 0.8);
    }

    #[test]
    fn each_worker_is_handed_its_buckets_back() {
        let _pages = hugepages::turns::with_others();
        let load = Load::of(20, 20, 64);
        let elasticity = Elasticity { signal: Signal::Busy, terms: Terms::fixed(WORKERS.into()) };
        let crew = Crew::new(Model::RunToCompletion, WORKERS, elasticity, load, Source::OnAny).expect("a UPF");
        let parts = crew.play(load, &[], |elastic, _| {
            elastic.set_owners(&[1; upf::tables::BUCKETS])?;
            elastic.settle_within(10 * TRIAL);
            let moved = heavier_part(&elastic.standing().owners);
            hand_back(elastic);
            Ok([moved, heavier_part(&elastic.standing().owners)])
        });
        assert_eq!(parts.expect("a run"), [1.0, 0.8]);
    }
}
