use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use upf::elastic::{Elastic, Elasticity, Signal, Terms};
use upf::function::Plan;
use upf::model::Model;
use upf::tables::BUCKETS;
use upf::worker::Worker;

use crate::scene::{PATIENCE, Random, Scene, page_until};

/// Times that buckets are moved.
const CHANGES: u64 = 150;

/// Any number of workers, any bucket to any of them, again and again; meanwhile UEs fall asleep and wake.
fn moves_at_random(test: &str, workers: u16, plan: Plan) {
    let upf = Scene::new(test, workers, plan).play(|elastic, tables| {
        let end = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let pager = scope.spawn(move || page_until(tables, end));
            let mut random = Random(0x9e37_79b9_7f4a_7c15);
            for _ in 0..CHANGES {
                let active = 1 + random.below(workers.into());
                let mut owners = elastic.standing().owners;
                for owner in &mut owners {
                    if u64::from(*owner) >= active || random.below(4) == 0 {
                        *owner = random.below(active) as u8;
                    }
                }
                elastic.set_owners(&owners).unwrap();
                assert!(elastic.settle_within(PATIENCE), "buckets are on their way for ever");
            }
            end.store(true, Ordering::Relaxed);
            assert!(pager.join().unwrap() > 2, "UEs slept and woke meanwhile");
        });
    });
    let standing = upf.elastic.as_ref().unwrap().standing();
    assert_eq!(standing.changes, CHANGES);
    assert!(standing.moved > CHANGES * BUCKETS as u64 / 16, "{}", standing.moved);
    // Of routes behind UEs, which the ports and the dispatcher have counted by other buckets.
    let buckets = |worker: &Worker| (0..BUCKETS).map(|bucket| worker.board().packets().of(bucket as u8)).sum::<u64>();
    assert!(upf.workers.iter().map(buckets).sum::<u64>() > 0, "workers count what they hand over");
}

fn plan(model: Model) -> Plan {
    Plan { model, ..Plan::default() }
}

/// A pipeline with so many workers, and a thread that sends for all of them: ports have one queue pair each.
fn with_sender(workers: u16) -> Plan {
    let elasticity = Elasticity { terms: Terms::fixed(workers.into()), ..Elasticity::default() };
    Plan { sender: true, elasticity: Some(elasticity), ..plan(Model::Pipeline) }
}

#[test]
fn buckets_move_between_two_workers_while_packets_flow() {
    moves_at_random("two", 2, plan(Model::RunToCompletion));
}

#[test]
fn buckets_move_between_eight_workers_while_packets_flow() {
    moves_at_random("eight", 8, plan(Model::RunToCompletion));
}

#[test]
fn buckets_move_between_two_workers_of_a_pipeline_while_packets_flow() {
    moves_at_random("two-pipeline", 2, plan(Model::Pipeline));
}

#[test]
fn buckets_move_between_eight_workers_of_a_pipeline_while_packets_flow() {
    moves_at_random("eight-pipeline", 8, plan(Model::Pipeline));
}

#[test]
fn buckets_move_between_two_workers_of_a_pipeline_with_a_sender_while_packets_flow() {
    moves_at_random("two-sender", 2, with_sender(2));
}

#[test]
fn buckets_move_between_eight_workers_of_a_pipeline_with_a_sender_while_packets_flow() {
    moves_at_random("eight-sender", 8, with_sender(8));
}

/// Of [`scales`].
const WORKERS: u16 = 4;

/// From one worker to all and back, ten times.
fn scales(test: &str, plan: Plan) {
    let upf = Scene::new(test, WORKERS, plan).play(|elastic, tables| {
        let end = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let pager = scope.spawn(move || page_until(tables, end));
            let steps = (1..=WORKERS.into()).chain((2..WORKERS.into()).rev());
            for workers in steps.cycle().take(10 * 6) {
                elastic.scale_to(workers).unwrap();
                assert!(elastic.settle_within(PATIENCE), "buckets are on their way for ever");
                let standing = elastic.standing();
                assert!(standing.owners.iter().all(|&owner| usize::from(owner) < workers));
                assert_eq!(standing.workers, workers);
            }
            end.store(true, Ordering::Relaxed);
            pager.join().unwrap();
        });
    });
    assert!(upf.elastic.unwrap().scale_to(usize::from(WORKERS) + 1).is_err());
}

#[test]
fn workers_come_and_go_ten_times_while_packets_flow() {
    scales("scales", plan(Model::RunToCompletion));
}

#[test]
fn workers_of_a_pipeline_come_and_go_ten_times_while_packets_flow() {
    scales("scales-pipeline", plan(Model::Pipeline));
}

#[test]
fn workers_of_a_pipeline_with_a_sender_come_and_go_ten_times_while_packets_flow() {
    scales("scales-sender", with_sender(WORKERS));
}

fn until(what: &str, elastic: &Elastic, is_so: impl Fn(usize) -> bool) {
    let begin = Instant::now();
    while !is_so(elastic.standing().workers) {
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}: {:?}", elastic.standing());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What decides by itself, with bounds so low that whatever flows is much: all workers run while packets flow, and one when
/// none do.
fn decides(test: &str, plan: Plan, signal: Signal) {
    let terms = Terms {
        min: 1,
        max: 3,
        scale_out_above: 0.002,
        scale_in_below: 0.001,
        rebalance_above: 0.001,
        cool_down: Duration::ZERO,
    };
    let plan = Plan { elasticity: Some(Elasticity { signal, terms }), ..plan };
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let scene = Scene::new(test, 3, plan);
        let looks = scene.upf.elastic.clone().unwrap();
        scope.spawn(move || looks.run(stop).unwrap());
        scene.play_to_the_end(
            |elastic, _| until("all run", elastic, |workers| workers == 3),
            |elastic| {
                until("one is left", elastic, |workers| workers == 1);
                assert!(elastic.settle_within(PATIENCE));
                stop.store(true, Ordering::Relaxed);
            },
        );
    });
}

#[test]
fn workers_come_by_what_they_are_busy_and_go_when_nothing_flows() {
    decides("busy", plan(Model::RunToCompletion), Signal::Busy);
}

#[test]
fn workers_come_by_the_fill_of_polls_and_go_when_nothing_flows() {
    decides("ewma", plan(Model::RunToCompletion), Signal::Ewma);
}

#[test]
fn workers_of_a_pipeline_come_and_go_by_themselves() {
    decides("busy-pipeline", plan(Model::Pipeline), Signal::Busy);
}

#[test]
fn workers_of_a_pipeline_with_a_sender_come_and_go_by_themselves() {
    decides("busy-sender", with_sender(3), Signal::Busy);
}
