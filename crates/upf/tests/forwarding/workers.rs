//! Workers over synthetic ports: order, hand-over between workers, full ports, and rules that change meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sessions::{downlink, info, mark, qer, session, stop, ue};
use port::synthetic::{Captured, Synthetic};
use port::{PacketRef, Port, Steering, TxCounters, TxQueue};
use rustix::event::{PollFd, PollFlags};
use upf::drops::DropReason;
use upf::elastic::{Elasticity, Terms};
use upf::function::{AssemblyError, Plan, Upf};
use upf::model::Model;
use upf::pipeline::Dispatcher;
use upf::rules::{FarAction, Pdr, Session};
use upf::side::PortId;
use upf::tables::SessionUpdate;
use upf::worker::Worker;
use vport::steering::{BUCKETS, address_bucket};

fn ports(queues: u16, n6_steering: Steering, from_n6: Vec<Vec<u8>>) -> (Port, Captured, Port) {
    let n3 = info("n3", "10.3.0.1", queues, Steering::Teid);
    let (n3, to_n3) = Synthetic::new(vec![]).info(n3).open_captured();
    let n6 = Synthetic::new(from_n6).once().info(info("n6", "10.6.0.1", queues, n6_steering)).open();
    (n3, to_n3, n6)
}

/// A UPF with the sessions of UEs `1..=sessions`, whose gNB is resolved.
fn upf(n3: Port, n6: Port, sessions: u32) -> Upf {
    upf_of(Model::RunToCompletion, n3, n6, sessions)
}

/// The same of either model.
fn upf_of(model: Model, n3: Port, n6: Port, sessions: u32) -> Upf {
    let upf = Upf::new(&Plan { max_sessions: 4_000, model, ..Plan::default() }, n3, n6).unwrap();
    let updates = (1..=sessions).map(|number| SessionUpdate::Put(session(number.into(), number, number)));
    upf.tables.apply(updates.collect()).unwrap();
    upf.tables.set_neighbours(&[(PortId::N3, "10.3.0.2".parse().unwrap(), Some([2; 6]))]).unwrap();
    upf
}

/// So many that a burst's sessions are asked for before its packets are looked at.
#[test]
fn of_many_sessions_each_packet_is_treated_by_the_rules_of_its_own() {
    let sessions = 3_000;
    let order = (0..sessions).map(|at| at * 1_009 % sessions + 1);
    // Between them what asks for nothing, or for what is not there.
    let strange =
        [vec![0; 13], vec![0x45; 20], downlink(sessions + 7, 0, 400), [vec![0; 12], vec![0x86, 0xdd, 0x60]].concat()];
    let strange = strange.into_iter();
    let frames: Vec<_> = strange
        .clone()
        .chain(order.clone().map(|number| downlink(number, number, 400)))
        .chain(strange.clone())
        .collect();
    let (n3, to_n3, n6) = ports(1, Steering::None, frames);
    let mut upf = upf(n3, n6, sessions);
    // What is dropped shows now and then.
    (0..2_048).for_each(|_| _ = upf.workers[0].run_once());
    let came: Vec<_> = to_n3
        .take()
        .iter()
        .map(|frame| {
            let teid = u32::from_be_bytes(frame[14 + 28 + 4..][..4].try_into().unwrap());
            assert_eq!(mark(frame), teid, "another session's tunnel");
            teid
        })
        .collect();
    assert!(came.into_iter().eq(order));
    let dropped: u64 = upf.counts.all().iter().map(|(_, count)| count).sum();
    assert_eq!(dropped, 2 * strange.count() as u64, "{:?}", upf.counts.all());
}

#[test]
fn packets_that_reach_the_wrong_worker_are_handed_over_in_order() {
    let (queues, sessions, each) = (3, 20, 40);
    // Spread by nothing: all come to the first worker, whoever owns their sessions.
    let frames = (0..each).flat_map(|round| (1..=sessions).map(move |number| downlink(number, round, 400))).collect();
    let (n3, to_n3, n6) = ports(queues, Steering::None, frames);
    let mut upf = upf(n3, n6, sessions);
    let owners: std::collections::HashSet<_> =
        (1..=sessions).map(|number| address_bucket(ue(number).into()) as u16 % queues).collect();
    assert_eq!(owners.len(), usize::from(queues), "every worker owns sessions");
    while upf.workers.iter_mut().fold(false, |worked, worker| worker.run_once() | worked) {}
    let mut next = vec![0; sessions as usize + 1];
    for frame in to_n3.take() {
        let teid = u32::from_be_bytes(frame[14 + 28 + 4..][..4].try_into().unwrap()) as usize;
        assert_eq!(mark(&frame), next[teid]);
        assert_eq!(frame.len(), 14 + 36 + 420);
        next[teid] += 1;
    }
    assert!(next[1..].iter().all(|&count| count == each));
    assert!(upf.counts.all().is_empty(), "{:?}", upf.counts.all());
}

#[test]
fn buckets_move_where_ports_do_not_steer_and_packets_follow_in_order() {
    let (queues, sessions, each) = (3, 20, 400);
    let frames = (0..each).flat_map(|round| (1..=sessions).map(move |number| downlink(number, round, 400))).collect();
    let (n3, to_n3, n6) = ports(queues, Steering::None, frames);
    let mut upf = upf(n3, n6, sessions);
    let elastic = upf.elastic.clone().unwrap();
    let (mut next, mut changes, mut idle) = (vec![0; sessions as usize + 1], 0, 0);
    // Workers take turns, and not all as often.
    for round in 0_u64.. {
        if elastic.standing().is_settled && changes < 30 {
            changes += 1;
            let owner = |bucket: u64| (bucket * 7 + changes * 5) % u64::from(queues) * (changes % 4).min(1);
            elastic.set_owners(&std::array::from_fn(|bucket| owner(bucket as u64) as u8)).unwrap();
        }
        let mut worked = false;
        for (number, worker) in upf.workers.iter_mut().enumerate() {
            worked |= !(round + 1).is_multiple_of(number as u64 + 2) && worker.run_once();
        }
        for frame in to_n3.take() {
            let teid = u32::from_be_bytes(frame[14 + 28 + 4..][..4].try_into().unwrap()) as usize;
            assert_eq!(mark(&frame), next[teid]);
            next[teid] += 1;
        }
        idle = if worked { 0 } else { idle + 1 };
        if idle > 10 && changes == 30 && elastic.standing().is_settled {
            break;
        }
    }
    assert!(next[1..].iter().all(|&count| count == each), "{next:?}");
    assert!(upf.counts.all().is_empty(), "{:?}", upf.counts.all());
}

/// By a dispatcher that has to find whose packets are, else by the one worker that gets them all.
#[test]
fn each_packet_of_a_pipeline_is_counted_once_by_the_bucket_of_its_session() {
    let (queues, sessions, never) = (2, 20, AtomicBool::new(false));
    for owners in [std::array::from_fn(|bucket| bucket as u8 % 2), [0; BUCKETS], [1; BUCKETS]] {
        let (n3, to_n3, _) = ports(queues, Steering::None, vec![]);
        let from_n6 = (1..=sessions).flat_map(|number| vec![downlink(number, 0, 400); number as usize]);
        let n6 = Synthetic::new(from_n6.collect()).info(info("n6", "10.6.0.1", queues, Steering::None)).open();
        let mut upf = upf_of(Model::Pipeline, n3, n6, sessions);
        let elastic = upf.elastic.clone().unwrap();
        elastic.set_owners(&owners).unwrap();
        let mut pass = |is_done: &dyn Fn() -> bool| {
            while !is_done() {
                upf.dispatcher.as_mut().unwrap().run_once(&never);
                while upf.workers.iter_mut().fold(false, |worked, worker| worker.run_once() | worked) {}
            }
            let boards = upf.workers.iter().map(Worker::board).chain(upf.dispatcher.as_ref().map(Dispatcher::board));
            boards.fold([0; BUCKETS], |sums: [u64; BUCKETS], board| {
                std::array::from_fn(|bucket| sums[bucket] + board.packets().of(bucket as u8))
            })
        };
        let before = pass(&|| elastic.standing().is_settled);
        to_n3.take();
        let left = std::cell::Cell::new(10);
        let after = pass(&|| left.replace(left.get() - 1) == 0);
        let mut expected = before;
        for frame in to_n3.take() {
            let teid = u32::from_be_bytes(frame[14 + 28 + 4..][..4].try_into().unwrap());
            expected[usize::from(address_bucket(ue(teid).into()))] += 1;
        }
        assert_eq!(after, expected);
        assert!(after.iter().sum::<u64>() > before.iter().sum::<u64>() + 100);
    }
}

#[test]
fn buckets_move_while_copies_are_made_of_packets_that_another_worker_hands_on() {
    let number = (1..).find(|&number| address_bucket(ue(number).into()).is_multiple_of(2)).unwrap();
    let n6 = Synthetic::new(vec![downlink(number, 0, 400)]).info(info("n6", "10.6.0.1", 2, Steering::None));
    let (n3, ..) = ports(2, Steering::None, vec![]);
    let mut n6 = n6.open();
    // The second worker gets all packets, without end, and the first one owns their session.
    n6.queues.swap(0, 1);
    let mut upf = upf(n3, n6, 0);
    let mut copied = session(1, 1, number);
    let FarAction::Forward(to_gnb) = copied.fars[1].action.clone() else { panic!("it forwards") };
    copied.fars[1].copies = vec![to_gnb];
    upf.tables.apply(vec![SessionUpdate::Put(copied)]).unwrap();
    let elastic = upf.elastic.clone().unwrap();
    for change in 1..=4 {
        let mut owners: [u8; 128] = std::array::from_fn(|bucket| bucket as u8 % 2);
        owners[1] = (change + 1) % 2;
        elastic.set_owners(&owners).unwrap();
        let is_settled = (0..1_000).any(|_| {
            upf.workers.iter_mut().rev().for_each(|worker| _ = worker.run_once());
            elastic.standing().is_settled
        });
        assert!(is_settled, "change {change} does not come to its end");
    }
}

#[test]
fn packets_to_networks_behind_a_ue_go_to_the_worker_that_owns_its_session() {
    let queues = 3;
    let number = (1..).find(|&number| address_bucket(ue(number).into()) as u16 % queues == 1).unwrap();
    let frames = (0..40).map(|host| downlink(256 + host, host, 400)).collect();
    let (n3, to_n3, n6) = ports(queues, Steering::None, frames);
    let mut upf = upf(n3, n6, 0);
    let mut session = session(1, 1, number);
    session.pdrs[1].pdi.framed_routes = vec![(ue(256).into(), 24)];
    upf.tables.apply(vec![SessionUpdate::Put(session)]).unwrap();
    while upf.workers[0].run_once() {}
    assert_eq!(to_n3.take().len(), 0, "another worker owns the session");
    while upf.workers[1].run_once() {}
    assert_eq!(to_n3.take().iter().map(|frame| mark(frame)).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
    assert!(upf.counts.all().is_empty(), "{:?}", upf.counts.all());
}

#[test]
fn a_packet_that_another_worker_hands_over_is_counted_by_the_bucket_of_its_session_too() {
    let (queues, number, never) = (2, 1, AtomicBool::new(false));
    let home = address_bucket(ue(number).into());
    let (n3, to_n3, n6) = ports(queues, Steering::None, (0..40).map(|host| downlink(256 + host, host, 400)).collect());
    let mut upf = upf_of(Model::Pipeline, n3, n6, 0);
    let mut session = session(1, 1, number);
    session.pdrs[1].pdi.framed_routes = vec![(ue(256).into(), 24)];
    upf.tables.apply(vec![SessionUpdate::Put(session)]).unwrap();
    while upf.dispatcher.as_mut().unwrap().run_once(&never) {}
    while upf.workers.iter_mut().fold(false, |worked, worker| worker.run_once() | worked) {}
    assert_eq!(to_n3.take().len(), 40);
    let handed_over = (256..296).filter(|&host| address_bucket(ue(host).into()) % 2 != home % 2).count() as u64;
    assert!(handed_over > 0);
    let by_workers: Vec<u64> = upf.workers.iter().map(|worker| worker.board().packets().of(home)).collect();
    assert_eq!(by_workers.iter().sum::<u64>(), handed_over, "by whom it was handed over");
    assert_eq!(by_workers[usize::from(home % 2)], 0);
    let by_dispatcher = upf.dispatcher.as_ref().unwrap().board();
    assert_eq!((0..BUCKETS as u8).map(|bucket| by_dispatcher.packets().of(bucket)).sum::<u64>(), 40);
}

#[test]
fn packets_for_a_worker_that_falls_behind_wait_in_their_port() {
    let number = (1..).find(|&number| address_bucket(ue(number).into()) % 2 == 1).unwrap();
    let count = 2_000;
    let frames = (0..count).map(|round| downlink(number, round, 1_000)).collect();
    let (n3, to_n3, n6) = ports(2, Steering::None, frames);
    let mut upf = upf(n3, n6, number);
    while upf.workers[0].run_once() {}
    while upf.workers[1].run_once() {}
    let first = to_n3.take();
    assert!(!first.is_empty() && first.len() < count as usize, "the ring between the two is full");
    while upf.workers.iter_mut().fold(false, |worked, worker| worker.run_once() | worked) {}
    stop(&mut upf);
    let marks = first.iter().chain(&to_n3.take()).map(|frame| mark(frame)).collect::<Vec<_>>();
    assert_eq!(marks, (0..count).collect::<Vec<_>>());
    assert!(upf.counts.all().is_empty(), "{:?}", upf.counts.all());
}

#[test]
fn a_full_port_is_a_named_drop() {
    struct Full;
    impl TxQueue for Full {
        fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
            packets.len() / 2
        }
        fn counters(&self) -> TxCounters {
            TxCounters::default()
        }
    }
    let (mut n3, _, n6) = ports(1, Steering::None, (0..8).map(|round| downlink(1, round, 50)).collect());
    n3.queues[0].tx = Box::new(Full);
    let mut upf = upf(n3, n6, 1);
    while upf.workers[0].run_once() {}
    stop(&mut upf);
    assert_eq!(upf.counts.dropped(DropReason::N3Full), 4);
    assert_eq!(upf.counts.all(), [("drop.n3_full", 4)]);
}

/// What becomes of more copies and fragments of a burst than there is room for.
#[test]
fn of_what_leaves_behind_a_burst_there_is_so_much_and_a_packet_leaves_in_all_its_parts_or_in_none() {
    let copied = || (0..15).map(|round| downlink(1, round, 8_900));
    // Two fragments, of which the second one is small.
    let too_long = || (0..4).map(|round| downlink(2, round, 8_960));
    let (n3, to_n3, n6) = ports(1, Steering::None, copied().chain(too_long()).collect());
    let mut upf = upf(n3, n6, 2);
    let mut with_copies = session(1, 1, 1);
    let FarAction::Forward(to_gnb) = with_copies.fars[1].action.clone() else { panic!("it forwards") };
    with_copies.fars[1].copies = vec![to_gnb; 8];
    upf.tables.apply(vec![SessionUpdate::Put(with_copies)]).unwrap();
    while upf.workers[0].run_once() {}
    stop(&mut upf);
    let sent = to_n3.take();
    let of = |teid: u8| sent.iter().filter(|frame| frame[14 + 28 + 7] == teid).count() as u64;
    let (all, dropped) = (15 * (1 + 8) + 4 * 2, upf.counts.dropped(DropReason::HandoverFull));
    assert_eq!(of(2), 0, "no part of what has no room for all its parts");
    assert!(of(1) > 15 + 8, "what is in its place among the burst leaves in any case");
    assert_eq!(of(1) + dropped + 4, all, "{:?}", upf.counts.all());
    assert_eq!(upf.counts.all(), [("drop.handover_full", dropped)]);
}

/// Puts a session into force by which two downlink packets pass, since they fill the smallest bucket and a rate like this refills
/// none of it in time; then changes it. How many packets pass from then on.
fn passed_after(before: Session, after: Session) -> usize {
    let (n3, to_n3, n6) = ports(1, Steering::None, (0..100).map(|round| downlink(1, round, 4_780)).collect());
    let mut upf = upf(n3, n6, 0);
    upf.tables.set_neighbours(&[(PortId::N3, "10.3.0.2".parse().unwrap(), Some([2; 6]))]).unwrap();
    upf.tables.apply(vec![SessionUpdate::Put(before)]).unwrap();
    assert!(upf.workers[0].run_once());
    assert_eq!(to_n3.take().len(), 2);
    let tables = upf.tables.clone();
    let bell = upf.workers[0].bell();
    bell.doze();
    std::thread::scope(|scope| {
        let change = scope.spawn(move || tables.apply(vec![SessionUpdate::Put(after)]));
        // No packet comes before there is a new version.
        rustix::event::poll(&mut [PollFd::new(&*bell, PollFlags::IN)], None).unwrap();
        bell.wake();
        bell.silence();
        while !change.is_finished() {
            upf.workers[0].run_once();
        }
        change.join().unwrap().unwrap();
    });
    while upf.workers[0].run_once() {}
    stop(&mut upf);
    let passed = to_n3.take().len();
    assert_eq!(upf.counts.dropped(DropReason::MbrExceeded), 98 - passed as u64);
    passed
}

/// A session whose downlink PDR names QERs with these IDs and maximum bit rates, as do `others` by which no packet goes.
fn limited(qers: &[(u32, u64)], others: u16) -> Session {
    let mut session = session(1, 1, 1);
    session.qers = qers.iter().map(|&(id, mbr_bps)| qer(id, Some(mbr_bps))).collect();
    session.pdrs[1].qer_ids = qers.iter().map(|&(id, _)| id).collect();
    let other = |number| Pdr { id: 10 + number, precedence: 1_000, ..session.pdrs[1].clone() };
    let others: Vec<_> = (0..others).map(other).collect();
    session.pdrs.extend(others);
    session
}

#[test]
fn a_changed_rule_holds_from_the_next_burst_on_and_policers_go_on_wherever_they_are() {
    let alone = || limited(&[(1, 8)], 0);
    let (of_two, of_several) = (|| limited(&[(1, 8)], 1), || limited(&[(2, 1 << 40), (1, 8)], 0));
    assert_eq!(passed_after(alone(), limited(&[(1, 16)], 0)), 0, "a new rate does not fill the bucket");
    assert_eq!(passed_after(alone(), of_two()), 0, "nor does a second rule that takes from it");
    assert_eq!(passed_after(of_two(), of_several()), 0, "nor another bucket beside it");
    assert_eq!(passed_after(of_several(), alone()), 0, "nor that it is alone again");
    assert_eq!(passed_after(alone(), limited(&[(2, 8)], 0)), 2, "but another QER's is full");
}

#[test]
fn ports_with_different_numbers_of_queues_make_no_upf() {
    let n3 = Synthetic::new(vec![]).info(info("n3", "10.3.0.1", 2, Steering::Teid)).open();
    let n6 = Synthetic::new(vec![]).info(info("n6", "10.6.0.1", 1, Steering::UeAddress)).open();
    let refused = Upf::new(&Plan::default(), n3, n6);
    assert!(matches!(refused, Err(AssemblyError::Queues { n3: 2, queues: 1, .. })));
}

#[test]
fn a_sender_is_of_a_pipeline_that_says_how_many_workers_it_has() {
    let upf = |model, workers: Option<usize>| {
        let terms = |workers| Elasticity { terms: Terms::fixed(workers), ..Elasticity::default() };
        let plan = Plan { model, sender: true, elasticity: workers.map(terms), ..Plan::default() };
        let (n3, _, n6) = ports(1, Steering::UeAddress, vec![]);
        Upf::new(&plan, n3, n6)
    };
    assert_eq!(upf(Model::Pipeline, Some(3)).unwrap().workers.len(), 3);
    let senseless = [
        (Model::RunToCompletion, Some(3)),
        (Model::Pipeline, None),
        (Model::Pipeline, Some(0)),
        (Model::Pipeline, Some(BUCKETS + 1)),
    ];
    for (model, workers) in senseless {
        assert!(matches!(upf(model, workers), Err(AssemblyError::Sender)), "{model:?}, {workers:?}");
    }
}

#[test]
fn all_threads_end_when_they_are_told_to() {
    let (n3, _, n6) = ports(2, Steering::UeAddress, vec![]);
    let mut upf = upf(n3, n6, 3);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in &mut upf.workers {
            scope.spawn(|| worker.run(&stop).unwrap());
        }
        scope.spawn(|| upf.slow_path.run(&stop).unwrap());
        // Applied while they sleep, and so they are woken for it.
        let begin = Instant::now();
        std::thread::sleep(Duration::from_millis(30));
        upf.tables.apply(vec![SessionUpdate::Remove(1)]).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(5));
        stop.store(true, Ordering::Relaxed);
        upf.bells.iter().for_each(|bell| bell.ring());
    });
}
