//! Planned replacements: one process goes on where the other stops, while packets flow both ways.

use std::time::Duration;

use pfcp::{Request, Response};

use super::establish;
use super::stage::{Stage, end, simple, teid_of};

/// A UPF with sessions for twenty UEs, whose neighbours are resolved. The TEID of UE 3, and its session's SEID.
fn begin(net: u8) -> (Stage, u32, u64) {
    begin_on(Stage::new(net, "", 64))
}

fn begin_on(mut stage: Stage) -> (Stage, u32, u64) {
    stage.start();
    stage.associate();
    let sessions = stage.flood((0..20).map(|number| Request::SessionEstablishment(simple(number))));
    let teid = teid_of(&sessions[3]);
    stage.await_both_ways(teid, 3);
    (stage, teid, sessions[3].up_f_seid.seid)
}

fn traffic(stage: &mut Stage, teid: u32, time: Duration) {
    let begin = std::time::Instant::now();
    while begin.elapsed() < time {
        stage.turn(teid, 3);
    }
}

/// As [`traffic`], but that ports may refuse.
fn lenient_traffic(stage: &mut Stage, teid: u32, time: Duration) {
    let begin = std::time::Instant::now();
    while begin.elapsed() < time {
        stage.turn_leniently(teid, 3);
    }
}

fn assert_nothing_is_lost(stage: &mut Stage) {
    stage.settle();
    let streams = stage.count_arrivals();
    let whole = streams.iter().all(|stream| (stream.arrived, stream.out_of_order) == (stream.sent, 0));
    assert!(whole, "{streams:?}; {:?}; the log: {}", stage.reports(), stage.log());
}

/// One process after the other goes on, of each model, while its buckets may move.
#[test]
fn a_upf_of_several_workers_is_replaced_without_loss() {
    let models = [(70, 3, "run-to-completion"), (71, 3, "pipeline"), (72, 1, "pipeline, sender: true")];
    for (net, queues, model) in models {
        let execution = format!(
            "execution: {{model: {model}, workers: {{min: 1, max: 3}}, scaleOutAbove: 0.2, scaleInBelow: 0.1, coolDownMs: 10}}\n"
        );
        let (mut stage, teid, seid) = begin_on(Stage::of_queues(queues, net, 64, &execution));
        for _ in 0..3 {
            traffic(&mut stage, teid, Duration::from_millis(50));
            stage.hand_over(|stage| stage.turn(teid, 3));
            traffic(&mut stage, teid, Duration::from_millis(50));
        }
        assert_nothing_is_lost(&mut stage);
        end(&mut stage, seid);
    }
}

#[test]
fn where_the_new_upf_dies_the_old_one_goes_on() {
    let (mut stage, teid, _) = begin(67);
    for ms in [0, 5, 10, 20, 40, 80] {
        let generations = stage.generations();
        let (_, heir) = stage.spawn_beside(true);
        traffic(&mut stage, teid, Duration::from_millis(ms));
        heir.kill();
        lenient_traffic(&mut stage, teid, Duration::from_millis(50));
        if stage.generations() != generations {
            // It had begun to take over. What was sent to it is lost.
            stage.forget_losses(|stage| stage.turn_leniently(teid, 3));
            continue;
        }
        assert_nothing_is_lost(&mut stage);
        establish(&mut stage, 100 + ms as u32);
    }
}

#[test]
fn where_the_old_upf_dies_the_new_one_goes_on() {
    let (mut stage, teid, seid) = begin(68);
    let recovery = stage.recovery();
    for ms in [0, 10, 30] {
        let (_, heir) = stage.spawn_beside(true);
        traffic(&mut stage, teid, Duration::from_millis(ms));
        let holder = stage.take_child();
        holder.kill();
        stage.set_child(heir);
        stage.forget_losses(|stage| stage.turn_leniently(teid, 3));
        assert_eq!(stage.recovery(), recovery);
    }
    end(&mut stage, seid);
}

#[test]
fn a_upf_of_another_configuration_is_no_heir() {
    let (mut stage, teid, _) = begin(69);
    let node_id = format!("nodeId: {}", stage.address().ip());
    stage.reconfigure(&node_id, "nodeId: 192.0.2.1");
    let (_, heir) = stage.spawn_beside(true);
    stage.until("it ends", |stage| {
        stage.turn(teid, 3);
        heir.ended().is_some()
    });
    assert!(stage.log().contains("sessions cannot be taken over"), "{}", stage.log());
    traffic(&mut stage, teid, Duration::from_millis(50));
    assert_nothing_is_lost(&mut stage);
    let Response::SessionDeletion(response) = stage.ask(999, &Request::SessionDeletion) else { panic!() };
    assert!(response.outcome.is_err(), "N4 answers");
}
