//! Two ports joined by a broker in this process: attachment, what the broker knows of them, observers. What links have in
//! common with all other ports is in `conformance`.

mod bench;

use std::time::Duration;

use bench::{Bench, frame, pump, receive, sent_number};
use port::{OpenError, PacketRef, PortInfo};
use vport::broker::LinkKind;

over_links_of_every_kind! {
    the_broker_sees_counters_and_reports
    a_port_that_is_not_known_or_held_is_refused_in_words
    an_open_port_waits_for_its_broker_but_not_for_its_peer
}

fn the_broker_sees_counters_and_reports(kind: LinkKind) {
    let bench = Bench::of("counters", kind);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    a.report(&[("drop.no-session", 7)]);
    pump(&mut a.queues[0], &mut b.queues[0], 1_000);
    assert!(receive(&mut *b.queues[0].rx).is_empty());
    while !b.queues[0].rx.arm() {
        receive(&mut *b.queues[0].rx);
    }
    assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&frame(0, 60))]), 1);
    b.queues[0].rx.disarm();
    assert_eq!(receive(&mut *b.queues[0].rx).len(), 1);
    bench.until("the report arrives", |ports| ports[0].report == [("drop.no-session".to_owned(), 7)]);
    bench.until("it slept, and was rung for", |ports| (ports[1].rx[0].sleeps, ports[0].tx[0].doorbells) == (1, 1));
    bench.until("counters agree", |ports| ports[0].tx[0].packets == 1_001 && ports[1].rx[0].packets == 1_001);
}

/// A name that the broker does not take would end the connection, and that of each report after it.
#[test]
fn counters_are_reported_by_names_that_the_broker_takes() {
    let bench = Bench::new("names");
    let (a, _b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let long = "x".repeat(100);
    a.report(&[("rx drops", 1), ("", 2), ("größe", 3), (&long, 4)]);
    let reported = [("rx_drops", 1), ("gr__e", 3), (&long[..48], 4)].map(|(name, value)| (name.to_owned(), value));
    bench.until("the report arrives", |ports| ports[0].report == reported);
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
