//! Two ports joined by a broker in this process: attachment, traffic in both directions, queues, sleeping, counters.

mod bench;

use std::time::Duration;

use bench::{Bench, frame, pump, receive, sent_number};
use port::{OpenError, PacketRef, PortInfo, Sleep, Steering, Waiter};
use vport::broker::LinkKind;

over_links_of_every_kind! {
    frames_cross_in_order_in_both_directions
    frames_of_every_length_arrive_whole
    a_full_ring_refuses_and_loses_nothing
    frames_reach_the_queue_that_owns_their_bucket
    buckets_go_where_the_function_wants_them
    a_sleeper_is_woken_by_its_peer
    the_broker_sees_counters_and_reports
    a_port_that_is_not_known_or_held_is_refused_in_words
    an_open_port_waits_for_its_broker_but_not_for_its_peer
}

fn frames_cross_in_order_in_both_directions(kind: LinkKind) {
    let bench = Bench::of("order", kind);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut a, &mut b];
        let [from, to] = if from < to {
            ends
        } else {
            let [x, y] = ends;
            [y, x]
        };
        pump(&mut from.queues[0], &mut to.queues[0], 100_000);
    }
}

fn frames_of_every_length_arrive_whole(kind: LinkKind) {
    let bench = Bench::of("lengths", kind);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    for len in (1..=2_100).chain([9_000, 9_599, port::FRAME_MAX]) {
        let sent: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8).collect();
        assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&sent)]), 1);
        assert_eq!(receive(&mut *b.queues[0].rx), [sent]);
    }
}

fn a_full_ring_refuses_and_loses_nothing(kind: LinkKind) {
    let bench = Bench::of("full", kind);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let mut accepted = 0_u64;
    loop {
        let frame = frame(accepted, 1_500);
        if a.queues[0].tx.send(&[PacketRef::from_slice(&frame)]) == 0 {
            break;
        }
        accepted += 1;
    }
    assert!(accepted > 100 && a.queues[0].tx.counters().refused == 1);
    let received = receive(&mut *b.queues[0].rx);
    assert_eq!(received.iter().map(|frame| sent_number(frame)).collect::<Vec<_>>(), (0..accepted).collect::<Vec<_>>());
    assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&[0; 60])]), 1, "there is room again");
}

fn frames_reach_the_queue_that_owns_their_bucket(kind: LinkKind) {
    let bench = Bench::of("queues", kind);
    let mut info = PortInfo::named("p");
    (info.queues, info.steering) = (3, Steering::UeAddress);
    let (mut a, mut b) = bench.joined(PortInfo { queues: 2, ..PortInfo::named("p") }, info);
    let frames: Vec<Vec<u8>> = (0..=255).map(bench::ip_frame).collect();
    for (n, frame) in frames.iter().enumerate() {
        assert_eq!(a.queues[n % 2].tx.send(&[PacketRef::from_slice(frame)]), 1);
    }
    let table = port::steering::BucketTable::fixed(3);
    let mut seen = 0;
    for (queue, pair) in b.queues.iter_mut().enumerate() {
        for frame in receive(&mut *pair.rx) {
            assert_eq!(table.queue(Steering::UeAddress.bucket(&frame)), queue);
            seen += 1;
        }
        assert_eq!(pair.rx.counters().invalid, 0);
    }
    assert_eq!(seen, 256);
}

/// Nothing goes with a bucket.
struct Nothing;

impl port::Buckets for Nothing {
    type State = ();

    fn leave(&mut self, _bucket: u8, _to: usize) {}

    fn arrive(&mut self, _bucket: u8, _from: usize, (): ()) {}
}

fn buckets_go_where_the_function_wants_them(kind: LinkKind) {
    let bench = Bench::of("steering", kind);
    let mut info = PortInfo::named("p");
    (info.queues, info.steering) = (3, Steering::UeAddress);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), info);
    let (mut decider, mut owners) = port::owner::group::<()>(&[b.steering().unwrap()], &[]).unwrap();
    for owner in [2, 0, 1] {
        decider.set_owners(&[owner; port::steering::BUCKETS]).unwrap();
        while decider.is_open() {
            for (pair, owner) in b.queues.iter_mut().zip(&mut owners) {
                assert!(pair.rx.recv().is_empty());
                owner.settle(&mut Nothing);
            }
        }
        for host in 0..=255 {
            assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&bench::ip_frame(host))]), 1);
        }
        let counts: Vec<usize> = b.queues.iter_mut().map(|pair| receive(&mut *pair.rx).len()).collect();
        assert_eq!(counts[usize::from(owner)], 256, "{counts:?}");
    }
    assert_eq!(decider.load().iter().sum::<u64>(), 3 * 256);
}

fn a_sleeper_is_woken_by_its_peer(kind: LinkKind) {
    let bench = Bench::of("sleep", kind);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let mut rx =
        std::mem::replace(&mut b.queues[0].rx, port::synthetic::Synthetic::new(vec![]).open().queues.remove(0).rx);
    let sleeper = std::thread::spawn(move || {
        let mut waiter = Waiter::new(Sleep::After(Duration::ZERO));
        let mut received = 0;
        while received < 200 {
            received += rx.recv().len();
            waiter.wait(&mut [&mut *rx], &[], None).unwrap();
        }
        rx.counters()
    });
    bench.until("it sleeps", |ports| ports[1].rx[0].sleeps > 0);
    for n in 0..200 {
        assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&frame(n, 60))]), 1);
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(sleeper.join().unwrap().sleeps > 0);
    assert!(a.queues[0].tx.counters().doorbells > 0);
}

fn the_broker_sees_counters_and_reports(kind: LinkKind) {
    let bench = Bench::of("counters", kind);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    a.report(&[("drop.no-session", 7)]);
    pump(&mut a.queues[0], &mut b.queues[0], 1_000);
    assert!(receive(&mut *b.queues[0].rx).is_empty());
    bench.until("the report arrives", |ports| ports[0].report == [("drop.no-session".to_owned(), 7)]);
    bench.until("counters agree", |ports| ports[0].tx[0].packets == 1_000 && ports[1].rx[0].packets == 1_000);
}

#[test]
fn frames_that_pass_are_observed_whole_in_both_directions() {
    use vport::broker::Direction;
    let bench = Bench::new("observe");
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let mut observer = bench.broker.observe("a", "p").unwrap();
    assert_eq!(observer.poll(&mut |_| panic!("nothing was sent since")), 0);
    for n in 0..5_000 {
        let there = frame(2 * n, 60 + (n as usize * 37) % 1_400);
        let back = frame(2 * n + 1, 80);
        assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&there)]), 1);
        assert_eq!(b.queues[0].tx.send(&[PacketRef::from_slice(&back)]), 1);
        receive(&mut *a.queues[0].rx);
        receive(&mut *b.queues[0].rx);
        if n % 50 == 49 {
            let mut numbers = [Vec::new(), Vec::new()];
            let missed = observer.poll(&mut |seen| {
                numbers[usize::from(seen.direction == Direction::Received)].push(sent_number(seen.frame));
            });
            assert_eq!(missed, 0);
            let expected = |odd| (n - 49..=n).map(|n| 2 * n + odd).collect::<Vec<_>>();
            assert_eq!(numbers, [expected(0), expected(1)]);
        }
    }
}

#[test]
fn an_observer_that_comes_late_says_what_it_missed_and_sees_no_torn_frame() {
    let bench = Bench::new("late");
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let mut observer = bench.broker.observe("a", "p").unwrap();
    observer.poll(&mut |_| {});
    for n in 0..2_000 {
        assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&frame(n, 1_000))]), 1);
        receive(&mut *b.queues[0].rx);
    }
    let missed = observer.poll(&mut |seen| assert!(sent_number(seen.frame) < 2_000));
    assert_eq!(missed, 2_000 * 1_008 + missed % 1_008, "all were overwritten or skipped");
    assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&frame(9, 70))]), 1);
    let mut seen = Vec::new();
    observer.poll(&mut |frame| seen.push(sent_number(frame.frame)));
    assert_eq!(seen, [9]);
}

fn a_port_that_is_not_known_or_held_is_refused_in_words(kind: LinkKind) {
    let bench = Bench::of("refused", kind);
    let (_a, _b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let mut options = bench.options("a");
    options.timeout = Duration::from_secs(1);
    let refused = |name: &str| match port::open(name, &options) {
        Err(OpenError::Refused { reason, .. }) => reason,
        other => panic!("{:?}", other.map(|port| port.info)),
    };
    assert_eq!(refused("q"), "port q is not known (yet)");
    assert!(refused("p").starts_with("port p is held by process "));
    options.socket = "/nonexistent".into();
    assert!(matches!(port::open("p", &options), Err(OpenError::NoBroker { .. })));
    assert!(matches!(port::open("x:y", &options), Err(OpenError::Name(_))));
}

fn an_open_port_waits_for_its_broker_but_not_for_its_peer(kind: LinkKind) {
    let bench = Bench::of("alone", kind);
    bench.link(PortInfo::named("p"), PortInfo::named("p"));
    let mut a = port::open("p", &bench.options("a")).unwrap();
    assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&[0; 60])]), 0);
    assert_eq!(a.queues[0].tx.counters().no_peer, 1);
    assert!(a.queues[0].rx.recv().is_empty());
    let mut b = port::open("p", &bench.options("b")).unwrap();
    bench.up(&mut a, &mut b);
    pump(&mut a.queues[0], &mut b.queues[0], 1_000);
}
