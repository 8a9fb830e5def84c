//! Members of a pool, and their peer, that do what they must not. The other side is the broker.

mod raw;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use raw::{Bench, PATIENCE, Raw};
use vport::broker::{BrokerError, EndSpec, Event, LinkKind, LinkSpec, RING_BYTES_MIN};
use vport::info::PortInfo;
use vport::layout::VERSION_POOL;
use vport::steering::{BUCKETS, Steering};
use vport::wire::{Place, Progress, Reply, Request};

fn hello(raw: &Raw) -> Option<Place> {
    hello_to(raw, "p")
}

fn hello_to(raw: &Raw, port: &str) -> Option<Place> {
    raw.say(&Request::Hello { oldest: VERSION_POOL, newest: VERSION_POOL, port: port.into(), resume: 0 });
    match raw.receive() {
        Some((Reply::Welcome { place, .. }, _)) => place,
        other => panic!("{other:?}"),
    }
}

/// A member's steering connection, past its greeting.
fn steers(bench: &Bench, function: &str) -> Raw {
    let raw = bench.connect(function);
    raw.say(&Request::Steer { oldest: VERSION_POOL, newest: VERSION_POOL, progress: Progress::default() });
    assert!(matches!(raw.receive(), Some((Reply::Steers(_), _))));
    raw
}

/// All buckets go to the first member, `b`.
const FIRST: [u8; BUCKETS] = [0; BUCKETS];
/// Or to the other one, `c`.
const SECOND: [u8; BUCKETS] = [1; BUCKETS];

/// Both members, in a change by which all buckets go from `b` to `c`, at the moment when senders know of it.
fn changing(bench: &Bench) -> [Raw; 2] {
    let members = ["b", "c"].map(|function| steers(bench, function));
    let epoch = bench.broker.set_owners("b", &SECOND).unwrap();
    for member in &members {
        assert!(matches!(member.receive(), Some((Reply::Prepare { owners: SECOND, .. }, _))));
        member.say(&Request::Prepared { epoch });
    }
    for member in &members {
        assert!(matches!(member.receive(), Some((Reply::Begun { .. }, _))));
    }
    members
}

/// `c` says that it has done its part of such a change.
fn complete(bench: &Bench, c: &Raw, epoch: u64) {
    c.say(&Request::Gave { epoch });
    c.say(&Request::Came { epoch, buckets: u128::MAX });
    let deadline = Instant::now() + PATIENCE;
    while bench.broker.pools().unwrap()[0].is_changing {
        assert!(Instant::now() < deadline, "in vain: the change is complete");
        std::thread::yield_now();
    }
}

/// `b` has lost its place: it has no port, and is let in again as one that begins.
fn is_cast_out(bench: &Bench, port: &Raw) {
    assert!(port.has_mail_within(PATIENCE), "in vain: its port is taken from it");
    assert!(port.refusal().contains("the pool of b goes on without this process"));
    let told = |event| if let Event::Outcast { function, pid } = event { Some((function, pid)) } else { None };
    assert_eq!(bench.event("it is to be started anew", told), ("b".into(), std::process::id() as i32));
    assert!(
        steer(bench, "b", Progress { closed: 1, known: 2, come: 0, ports: 1 }).refusal().contains("goes on without")
    );
    let port = bench.connect("b");
    port.say(&Request::Hello { oldest: VERSION_POOL, newest: VERSION_POOL, port: "p".into(), resume: 0 });
    assert!(port.refusal().contains("goes on without"));
    bench.broker.set_owners("b", &SECOND).expect("nobody waits for it");
}

#[test]
fn a_member_that_is_cut_off_in_a_change_loses_its_ports_too_until_it_begins_anew() {
    let bench = Bench::with_pool("outcast");
    let port = bench.connect("b");
    hello(&port);
    let [b, c] = changing(&bench);
    b.say(&bucket(5, false));
    b.say(&bucket(5, false));
    assert!(b.refusal().contains("bucket 5 was given twice"));
    complete(&bench, &c, 2);
    is_cast_out(&bench, &port);
    c.say(&Request::Prepared { epoch: 3 });
    complete(&bench, &c, 3);
    let _b = steers(&bench, "b");
    assert!(hello(&bench.connect("b")).is_some());
}

#[test]
fn a_member_that_was_away_while_its_pool_was_changed_loses_its_ports() {
    let bench = Bench::with_pool("stale");
    let port = bench.connect("b");
    hello(&port);
    let [b, c] = changing(&bench);
    drop(b);
    complete(&bench, &c, 2);
    assert!(!port.has_mail());
    let late = steer(&bench, "b", Progress { closed: 1, known: 2, come: 0, ports: 1 });
    assert!(late.refusal().contains("goes on without it"));
    is_cast_out(&bench, &port);
}

fn bucket(bucket: u8, more: bool) -> Request {
    Request::Bucket { bucket, to: 1, more, state: vec![bucket] }
}

#[test]
fn a_member_gets_every_segment_but_the_table_and_the_peer_gets_that_sealed() {
    let bench = Bench::with_pool("segments");
    let [peer, member] = ["a", "b"].map(|function| bench.connect(function));
    assert_eq!(hello(&peer), None);
    assert_eq!(hello(&member).map(|place| (place.first_queue, place.queues)), Some((0, 2)));
    let Some((Reply::Own { generation, .. }, own)) = member.receive() else { panic!() };
    assert_eq!(own.len(), 3, "index, records and doorbell of its one queue");
    let Some((Reply::Own { .. }, of_peer)) = peer.receive() else { panic!() };
    assert_eq!(of_peer.len(), 4);
    [&peer, &member].into_iter().for_each(|raw| raw.say(&Request::Mapped { generation }));
    let Some((Reply::Peer { .. }, fds)) = peer.receive() else { panic!() };
    assert_eq!(fds.len(), 2 * 3 + 1, "of both members' queues, and the table");
    let table = fds.last().unwrap();
    let seals = rustix::fs::fcntl_get_seals(table).unwrap();
    assert!(seals.contains(rustix::fs::SealFlags::FUTURE_WRITE));
    assert!(rustix::io::write(table.as_fd(), &[1]).is_err(), "nobody but the broker writes it");
}

#[test]
fn a_member_gives_only_what_is_its_own_and_only_once() {
    let bench = Bench::with_pool("own");
    let [b, c] = changing(&bench);
    b.say(&bucket(5, true));
    b.say(&bucket(5, false));
    for more in [true, false] {
        let Some((Reply::Arrival { bucket: 5, from: 0, more: part, state }, _)) = c.receive() else { panic!() };
        assert_eq!((part, state), (more, vec![5]));
    }
    c.say(&bucket(6, false));
    assert!(c.refusal().contains("bucket 6 is not this member's to give"));
    b.say(&bucket(5, false));
    assert!(b.refusal().contains("bucket 5 was given twice"));
}

#[test]
fn nothing_more_comes_of_a_bucket_that_was_given() {
    let bench = Bench::with_pool("more");
    let [b, c] = changing(&bench);
    b.say(&bucket(5, false));
    b.say(&bucket(5, true));
    assert!(b.refusal().contains("bucket 5 was given twice"));
    assert!(matches!(c.receive(), Some((Reply::Arrival { bucket: 5, more: false, .. }, _))));
    // What it had not given comes without state, since it is gone.
    assert!(matches!(c.receive(), Some((Reply::Arrival { bucket: 0, more: false, .. }, _))));
}

#[test]
fn a_member_that_does_not_read_is_cut_off_and_not_the_one_that_sends() {
    let bench = Bench::with_pool("full");
    let [b, _c] = changing(&bench);
    for _ in 0..8_000 {
        b.say(&bucket(5, true));
    }
    let present = || bench.broker.pools().unwrap().remove(0).present;
    let deadline = Instant::now() + PATIENCE;
    while present() != [true, false] {
        assert!(Instant::now() < deadline, "in vain: {:?}", present());
        std::thread::yield_now();
    }
    b.say(&Request::Gave { epoch: 2 });
    while bench.broker.pools().unwrap()[0].is_changing {
        assert!(Instant::now() < deadline, "in vain: the change is complete");
        std::thread::yield_now();
    }
    assert_eq!(present(), [true, false]);
}

#[test]
fn however_much_a_bucket_s_state_is_it_comes_to_a_member_that_was_put_aside_for_a_while() {
    const PARTS: usize = 40_000;
    let bench = Bench::with_pool("large");
    let [b, c] = changing(&bench);
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=PARTS).for_each(|part| b.say(&bucket(5, part < PARTS))));
        std::thread::sleep(Duration::from_millis(500));
        for part in 1..=PARTS {
            let Some((Reply::Arrival { bucket: 5, more, .. }, _)) = c.receive() else { panic!("part {part}") };
            assert_eq!(more, part < PARTS);
        }
    });
    assert!(!b.has_mail() && bench.broker.pools().unwrap()[0].present == [true; 2]);
}

#[test]
fn a_member_that_says_too_much_is_cut_off() {
    let bench = Bench::with_pool("talks");
    let b = steers(&bench, "b");
    // As much as it may say at once, and in ten seconds.
    for _ in 0..30_000 {
        b.say(&Request::Gave { epoch: 1 });
    }
    assert!(b.refusal().contains("too many messages"));
}

#[test]
fn what_is_said_out_of_turn_changes_nothing() {
    let bench = Bench::with_pool("turn");
    let [b, c] = changing(&bench);
    // Of other epochs, and of buckets that are not the member's.
    for epoch in [0, 1, 3, u64::MAX] {
        b.say(&Request::Prepared { epoch });
        b.say(&Request::Gave { epoch });
        c.say(&Request::Came { epoch, buckets: u128::MAX });
    }
    b.say(&Request::Came { epoch: 2, buckets: u128::MAX });
    b.say(&Request::Prepared { epoch: 2 });
    c.say(&Request::Gave { epoch: 2 });
    let waiting = || bench.broker.pools().unwrap().remove(0);
    for number in 0..BUCKETS as u8 {
        b.say(&bucket(number, false));
        assert!(matches!(c.receive(), Some((Reply::Arrival { .. }, _))));
    }
    assert_eq!((waiting().is_changing, waiting().waits_for), (true, vec!["b".to_owned()]));
    b.say(&Request::Gave { epoch: 2 });
    while waiting().waits_for != ["c"] {
        std::thread::yield_now();
    }
    c.say(&Request::Came { epoch: 2, buckets: u128::MAX });
    while waiting().is_changing {
        std::thread::yield_now();
    }
    assert_eq!(waiting().owners, SECOND);
    let again = bench.broker.set_owners("c", &FIRST);
    assert_eq!(again.unwrap(), 3);
}

#[test]
fn a_pool_is_steered_by_its_members_alone_each_by_one_connection() {
    let bench = Bench::with_pool("members");
    let stranger = bench.connect("a");
    stranger.say(&Request::Steer { oldest: VERSION_POOL, newest: VERSION_POOL, progress: Progress::default() });
    assert!(stranger.refusal().contains("a is in no pool"));
    let old = bench.connect("b");
    old.say(&Request::Steer { oldest: 2, newest: 3, progress: Progress::default() });
    assert!(old.refusal().contains("speaks version 4 with members of pools, not 2 to 3"));
    let unborn = bench.connect("b");
    unborn.say(&Request::Gave { epoch: 1 });
    assert!(unborn.refusal().contains("begins with a greeting"));

    let _first = steers(&bench, "b");
    let second = bench.connect("b");
    second.say(&Request::Steer { oldest: VERSION_POOL, newest: VERSION_POOL, progress: Progress::default() });
    assert!(second.refusal().contains("has this member"));
    let port = bench.connect("c");
    hello(&port);
    port.say(&Request::Prepared { epoch: 2 });
    assert!(port.refusal().contains("a connection of its own"));
    let steering = steers(&bench, "c");
    steering.say(&Request::Mapped { generation: 1 });
    assert!(steering.refusal().contains("only steers"));
}

/// Both members and their peer, with a generation that is up, in the middle of a change by which all buckets go from `b` to
/// `c`. Of the generation only the number matters.
fn changing_while_up(bench: &Bench) -> (Vec<Raw>, u64) {
    // The peer last: so there is one generation.
    let all = ["b", "c", "a"].map(|function| bench.connect(function));
    all.iter().for_each(|raw| _ = hello(raw));
    let generation = all.each_ref().map(|raw| raw.take_own().generation)[0];
    all.iter().for_each(|raw| raw.say(&Request::Mapped { generation }));
    all.iter().for_each(|raw| drop(raw.take_peer()));
    all.iter().for_each(|raw| raw.say(&Request::Ready { generation }));
    bench.until("the link is up", |ports| ports.iter().all(|port| port.up));
    (all.into_iter().chain(changing(bench)).collect(), generation)
}

/// Comes back to another broker.
fn resume(bench: &Bench, function: &str, resume: u64) -> Raw {
    let raw = bench.connect(function);
    raw.say(&Request::Hello { oldest: VERSION_POOL, newest: VERSION_POOL, port: "p".into(), resume });
    assert!(matches!(raw.receive(), Some((Reply::Welcome { resumed: true, .. }, _))));
    raw
}

fn steer(bench: &Bench, function: &str, progress: Progress) -> Raw {
    let raw = bench.connect(function);
    raw.say(&Request::Steer { oldest: VERSION_POOL, newest: VERSION_POOL, progress });
    raw
}

#[test]
fn what_a_member_tells_the_next_broker_counts_for_its_own_buckets_alone() {
    let mut bench = Bench::with_pool("next");
    let (ports, generation) = changing_while_up(&bench);
    bench.replace_broker();
    drop(ports);
    let _ports = ["a", "b", "c"].map(|function| resume(&bench, function, generation));
    let in_change = Progress { closed: 1, known: 2, come: 0, ports: 1 };
    for (closed, known) in [(1, 1), (0, 2), (3, 3), (7, 8), (u64::MAX, 0), (0, u64::MAX)] {
        let liar = steer(&bench, "c", Progress { closed, known, ..in_change });
        assert!(liar.refusal().contains("goes on without it"));
    }
    // Nothing was to come to it, and it says that all has.
    let b = steer(&bench, "b", Progress { come: u128::MAX, ..in_change });
    let Some((Reply::Steers(Place { epoch: 2, owners: SECOND, .. }), _)) = b.receive() else { panic!() };
    assert_eq!(bench.broker.pools().unwrap()[0].waits_for, ["c"]);
    let c = steer(&bench, "c", Progress { come: 1 << 9, ..in_change });
    assert!(matches!(c.receive(), Some((Reply::Steers(_), _))));
    for member in [&b, &c] {
        let Some((Reply::Begun { epoch: 2, come }, _)) = member.receive() else { panic!() };
        assert_eq!(come, 1 << 9);
    }
    b.say(&bucket(5, false));
    assert!(matches!(c.receive(), Some((Reply::Arrival { bucket: 5, .. }, _))));
    b.say(&bucket(9, false));
    assert!(b.refusal().contains("bucket 9 was given twice"));
}

#[test]
fn nothing_is_given_before_the_next_broker_knows_who_is_there() {
    let mut bench = Bench::with_pool("early");
    let (ports, generation) = changing_while_up(&bench);
    bench.replace_broker();
    drop(ports);
    let _ports = ["a", "b", "c"].map(|function| resume(&bench, function, generation));
    let b = steer(&bench, "b", Progress { closed: 1, known: 2, come: 0, ports: 1 });
    assert!(matches!(b.receive(), Some((Reply::Steers(_), _))));
    let busy = bench.broker.set_owners("b", &FIRST);
    assert!(matches!(busy, Err(BrokerError::Busy(reason)) if reason.contains("a former broker")));
    b.say(&bucket(5, false));
    assert!(b.refusal().contains("bucket 5 is not this member's to give"));
}

#[test]
fn nothing_begins_while_a_member_that_is_there_does_not_steer() {
    let bench = Bench::with_pool("ready");
    let member = bench.connect("b");
    hello(&member);
    let busy = bench.broker.set_owners("b", &SECOND);
    assert!(matches!(busy, Err(BrokerError::Busy(reason)) if reason.contains("b is not ready yet")));
}

#[test]
fn nobody_is_given_a_bucket_before_it_is_there_by_all_ports_that_it_has() {
    let bench = Bench::with_pool("ports");
    // It says that it has more than there are links.
    let c = steer(&bench, "c", Progress { ports: u16::MAX, ..Progress::default() });
    assert!(matches!(c.receive(), Some((Reply::Steers(_), _))));
    let busy = bench.broker.set_owners("b", &SECOND);
    assert!(
        matches!(busy, Err(BrokerError::Busy(reason)) if reason.contains("c has not come back by all of its ports"))
    );
    let port = bench.connect("c");
    hello(&port);
    bench.broker.set_owners("b", &SECOND).unwrap();
}

#[test]
fn a_library_that_knows_no_pools_is_refused_in_words() {
    let bench = Bench::with_pool("old");
    for function in ["a", "b"] {
        let raw = bench.connect(function);
        raw.hello();
        assert!(raw.refusal().contains("speaks version 4 on links of pools, not 2 to 2"));
    }
}

#[test]
fn a_peer_is_told_of_members_who_are_not_there_when_a_generation_comes_up() {
    let bench = Bench::with_pool("absent");
    let [peer, member] = ["a", "b"].map(|function| bench.connect(function));
    for raw in [&peer, &member] {
        let _ = hello(raw);
    }
    let mut up = 0;
    for raw in [&peer, &member] {
        let Some((Reply::Own { generation, .. }, _)) = raw.receive() else { panic!() };
        raw.say(&Request::Mapped { generation });
        up = generation;
    }
    for raw in [&peer, &member] {
        let Some((Reply::Peer { generation, .. }, _)) = raw.receive() else { panic!() };
        raw.say(&Request::Ready { generation });
    }
    let Some((Reply::Gone { since, generation, first_queue, queues }, _)) = peer.receive() else { panic!() };
    assert_eq!((since, generation, first_queue, queues), (up, up, 1, 1), "`c`, in this generation alone");
}

/// Mappings of tables in this process, which is the broker's.
fn mapped_tables() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("kaista-table")).count()
}

/// Whether it leaves before it has its member's segments or after that.
#[test]
fn a_peer_that_comes_and_goes_leaves_no_table_behind() {
    for (test, to_the_end) in [("tables", false), ("tables-shown", true)] {
        let bench = Bench::with_pool(test);
        let member = bench.connect("b");
        hello(&member);
        let mut most = 0;
        for _ in 0..40 {
            let peer = bench.connect("a");
            hello(&peer);
            let generation = peer.take_own().generation;
            while member.take_own().generation != generation {}
            if to_the_end {
                [&peer, &member].into_iter().for_each(|raw| raw.say(&Request::Mapped { generation }));
                peer.take_peer();
            }
            drop(peer);
            bench.until("it is gone", |ports| ports[0].pid.is_none());
            most = mapped_tables().max(most);
        }
        // Others of these tests run beside this one.
        assert!(most < 30, "{most} tables are mapped");
    }
}

/// The pool has a second link, by its ports `q`.
fn add_second_link(bench: &Bench) {
    let port = PortInfo { steering: Steering::UeAddress, ..PortInfo::named("q") };
    let members = EndSpec { functions: ["b", "c"].map(str::to_owned).to_vec(), port };
    let ends = [EndSpec::of("a", PortInfo::named("q")), members];
    let spec = LinkSpec { name: "second".into(), ends, ring_bytes: RING_BYTES_MIN, kind: LinkKind::Direct };
    bench.broker.add_link(spec).unwrap();
}

/// At two links in turns, so that there is always one that has not taken over its generation.
#[test]
fn a_peer_that_takes_over_no_generation_holds_a_change_up_for_a_second_and_no_longer() {
    let bench = Bench::with_pool("slow-peer");
    add_second_link(&bench);
    let comes = |port: &str| {
        let raw = bench.connect("a");
        raw.say(&Request::Hello { oldest: VERSION_POOL, newest: VERSION_POOL, port: port.into(), resume: 0 });
        raw
    };
    let ports = ["p", "q"].map(|port| {
        let (member, peer) = (bench.connect("b"), comes(port));
        hello_to(&member, port);
        let generation = member.take_own().generation;
        member.say(&Request::Mapped { generation });
        (member, peer)
    });
    let b = steers(&bench, "b");
    let (epoch, start) = (bench.broker.set_owners("b", &FIRST).unwrap(), Instant::now());
    assert!(matches!(b.receive(), Some((Reply::Prepare { .. }, _))));
    b.say(&Request::Prepared { epoch });
    let [(first, mut peer), (second, mut other)] = ports;
    while !b.has_mail_within(Duration::from_millis(10)) {
        assert!(start.elapsed() < Duration::from_secs(4), "in vain: the change goes on");
        for (raw, port) in [(&mut peer, "p"), (&mut other, "q")] {
            if is_refused(raw) {
                *raw = comes(port);
            }
        }
    }
    assert!(matches!(b.receive(), Some((Reply::Begun { .. }, _))));
    assert!(start.elapsed() >= Duration::from_secs(1), "it has a while");
    // Then it is let in again.
    peer = comes("p");
    while is_refused(&peer) {
        peer = comes("p");
    }
    drop((first, second));
}

/// By a link that has no more generations to give.
#[test]
fn a_member_that_keeps_what_it_was_given_and_comes_again_holds_a_change_up_and_is_cut_off_and_not_its_peer() {
    let bench = Bench::with_pool("keeps");
    let [peer, b] = ["a", "b"].map(|function| bench.connect(function));
    [&peer, &b].into_iter().for_each(|raw| _ = hello(raw));
    let join = |all: &[&Raw], generation: u64| {
        all.iter().for_each(|raw| raw.say(&Request::Mapped { generation }));
        all.iter().for_each(|raw| drop(raw.take_peer()));
        all.iter().for_each(|raw| raw.say(&Request::Ready { generation }));
        bench.until("the link is up", |ports| ports[0].up && ports[0].generation == generation);
    };
    let first = [&peer, &b].map(|raw| raw.take_own().generation)[0];
    join(&[&peer, &b], first);
    let members = ["b", "c"].map(|function| steers(&bench, function));
    let mut kept = Vec::new();
    let c = loop {
        let c = bench.connect("c");
        hello(&c);
        let Some(own) = c.take_own_within(Duration::from_millis(500)) else { break c };
        let generation = [&peer, &b].map(|raw| raw.take_own().generation)[0];
        join(&[&peer, &b, &c], generation);
        kept.push(own.fds);
        drop(c);
        bench.until("it is gone", |ports| ports.iter().filter(|port| port.pid.is_some()).count() == 2);
    };
    let epoch = bench.broker.set_owners("b", &FIRST).unwrap();
    for member in &members {
        assert!(matches!(member.receive(), Some((Reply::Prepare { .. }, _))));
        member.say(&Request::Prepared { epoch });
    }
    for member in &members {
        assert!(member.has_mail_within(Duration::from_secs(4)), "in vain: the change goes on");
        assert!(matches!(member.receive(), Some((Reply::Begun { .. }, _))));
    }
    assert!(is_refused(&c) && !is_refused(&peer) && !is_refused(&b));
}

fn is_refused(raw: &Raw) -> bool {
    while raw.has_mail() {
        if matches!(raw.receive(), Some((Reply::Refused { .. }, _)) | None) {
            return true;
        }
    }
    false
}

#[test]
fn a_link_that_was_quarantined_under_the_next_broker_does_not_hold_up_what_the_former_one_left() {
    let mut bench = Bench::with_pool("adopted-quarantine");
    let (ports, generation) = changing_while_up(&bench);
    bench.replace_broker();
    drop(ports);
    let ports = ["a", "b", "c"].map(|function| resume(&bench, function, generation));
    ports[0].say(&Request::Quarantine { generation, queue: 0, violation: 1 });
    bench.event("it is in quarantine", |event| matches!(event, Event::Quarantined { .. }).then_some(()));
    let members = ["b", "c"].map(|function| {
        let raw = steer(&bench, function, Progress { closed: 1, known: 2, come: 0, ports: 1 });
        assert!(matches!(raw.receive(), Some((Reply::Steers(_), _))));
        raw
    });
    let generation = ports.each_ref().map(|raw| raw.take_own().generation)[0];
    ports.iter().for_each(|raw| raw.say(&Request::Mapped { generation }));
    ports.iter().for_each(|raw| drop(raw.take_peer()));
    ports.iter().for_each(|raw| raw.say(&Request::Ready { generation }));
    for member in &members {
        assert!(matches!(member.receive(), Some((Reply::Begun { epoch: 2, .. }, _))));
    }
    bench.until("it is out of quarantine", |ports| ports[0].up && ports[0].quarantined.is_none());
}

#[test]
fn a_peer_that_has_every_generation_quarantined_under_the_next_broker_is_cut_off() {
    let mut bench = Bench::with_pool("adopted-quarantines");
    let (ports, generation) = changing_while_up(&bench);
    bench.replace_broker();
    drop(ports);
    let [a, b, c] = ["a", "b", "c"].map(|function| resume(&bench, function, generation));
    a.say(&Request::Quarantine { generation, queue: 0, violation: 1 });
    let members = ["b", "c"].map(|function| {
        let raw = steer(&bench, function, Progress { closed: 1, known: 2, come: 0, ports: 1 });
        assert!(matches!(raw.receive(), Some((Reply::Steers(_), _))));
        raw
    });
    let start = Instant::now();
    while !members[0].has_mail_within(Duration::from_millis(1)) {
        assert!(start.elapsed() < Duration::from_secs(4), "in vain: the change goes on");
        for raw in [&a, &b, &c].into_iter().filter(|raw| raw.has_mail()) {
            match raw.receive() {
                Some((Reply::Own { generation, .. }, _)) => raw.say(&Request::Mapped { generation }),
                Some((Reply::Peer { generation, .. }, _)) if std::ptr::eq(raw, &a) => {
                    raw.say(&Request::Quarantine { generation, queue: 0, violation: 1 });
                }
                Some((Reply::Peer { generation, .. }, _)) => raw.say(&Request::Ready { generation }),
                _ => {}
            }
        }
    }
    let is_cut_off = |event| matches!(event, Event::Refused { reason, .. } if reason.contains("holds up a change"));
    bench.event("it is cut off", |event| is_cut_off(event).then_some(()));
    for member in &members {
        assert!(matches!(member.receive(), Some((Reply::Begun { epoch: 2, .. }, _))));
    }
}

#[test]
fn a_member_that_comes_back_and_dies_before_its_peer_has_come_back_is_told_of_and_not_in_the_next_generation() {
    let mut bench = Bench::with_pool("fallen");
    let (ports, generation) = changing_while_up(&bench);
    bench.replace_broker();
    drop(ports);
    let _b = resume(&bench, "b", generation);
    drop(resume(&bench, "c", generation));
    bench.until("it is known to be gone", |ports| {
        ports.iter().any(|port| port.name.function == "c" && port.pid.is_none())
    });
    let a = resume(&bench, "a", generation);
    let Some((Reply::Gone { since: 0, generation: until, first_queue: 1, queues: 1 }, _)) = a.receive() else {
        panic!()
    };
    assert_eq!(until, generation);
    assert!(a.take_own().generation > generation, "its table names who is there to the broker after this one");
}
