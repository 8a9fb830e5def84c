use std::sync::atomic::{AtomicBool, Ordering};

use upf::function::Plan;
use upf::model::Model;
use upf::tables::BUCKETS;

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
}

fn plan(model: Model) -> Plan {
    Plan { model, ..Plan::default() }
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
