//! What happens to a link when a process is killed, or the broker replaced: the others go on, what was accepted by a
//! sender that then died is delivered, nothing is delivered twice, torn or out of order.

mod bench;

use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bench::{Bench, PATIENCE, frame, receive, sent_number};
use port::{PacketRef, Port, PortInfo, QueuePair};
use vport::broker::{Event, LinkKind};

over_links_of_every_kind! {
    what_a_killed_sender_had_sent_is_delivered_to_the_last_frame
    a_killed_receiver_comes_back_and_traffic_flows_again
    a_new_generation_between_living_ends_loses_nothing
    a_broker_that_is_replaced_with_its_segments_disturbs_nothing
    nor_does_one_that_comes_after_a_long_time
    a_broker_that_is_replaced_without_its_segments_makes_new_ones_and_loses_nothing
    an_adopted_link_whose_other_end_died_meanwhile_heals_when_it_comes_back
}

/// Numbers of an incarnation of a sender begin here.
const INCARNATION: u64 = 1 << 32;

/// Not a test: what the child processes of the tests below run.
#[test]
fn child() {
    let Ok(role) = std::env::var("KAISTA_TEST_CHILD") else { return };
    let mut words = role.split(' ');
    let mut word = || words.next().unwrap().to_owned();
    let (role, socket, journal, incarnation) = (word(), word(), word(), word().parse::<u64>().unwrap());
    let options = port::OpenOptions { socket: socket.into(), timeout: PATIENCE, ..Default::default() };
    let mut port = port::open("p", &options).unwrap();
    let journal = std::fs::OpenOptions::new().write(true).open(journal).unwrap();
    match role.as_str() {
        "send" => send_for_ever(&mut port, incarnation * INCARNATION, &journal),
        "receive" => receive_for_ever(&mut port, &journal),
        _ => unreachable!(),
    }
}

/// Sends numbered frames, and notes in the journal up to where they were accepted.
fn send_for_ever(port: &mut Port, first: u64, journal: &std::fs::File) -> ! {
    let mut next = first;
    loop {
        let burst: Vec<_> = (next..next + 7).map(|n| frame(n, 16 + (n as usize * 37) % 900)).collect();
        let packets: Vec<_> = burst.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        next += port.queues[0].tx.send(&packets) as u64;
        journal.write_at(&next.to_le_bytes(), 0).unwrap();
    }
}

/// Checks that numbers go up, and notes the last one and how many there were.
fn receive_for_ever(port: &mut Port, journal: &std::fs::File) -> ! {
    let (mut last, mut count) = (None, 0_u64);
    loop {
        for frame in receive(&mut *port.queues[0].rx) {
            let number = sent_number(&frame);
            if last.is_some_and(|last| number <= last) {
                journal.write_at(&u64::MAX.to_le_bytes(), 0).unwrap();
                panic!("{number} came after {last:?}");
            }
            (last, count) = (Some(number), count + 1);
        }
        journal.write_at(&count.to_le_bytes(), 0).unwrap();
    }
}

struct Journal(tempfile::NamedTempFile);

impl Journal {
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_at(&[0; 8], 0).unwrap();
        Self(file)
    }

    fn read(&self) -> u64 {
        let mut value = [0; 8];
        self.0.as_file().read_exact_at(&mut value, 0).unwrap();
        u64::from_le_bytes(value)
    }

    fn reset(&self) {
        self.0.as_file().write_at(&[0; 8], 0).unwrap();
    }
}

fn spawn(bench: &Bench, role: &str, function: &str, journal: &Journal, incarnation: u64) -> Child {
    let socket = bench.options(function).socket;
    let child = format!("{role} {} {} {incarnation}", socket.display(), journal.0.path().display());
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env("KAISTA_TEST_CHILD", child)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happens() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn what_a_killed_sender_had_sent_is_delivered_to_the_last_frame(kind: LinkKind) {
    let bench = Bench::of("sender", kind);
    bench.link(PortInfo::named("p"), PortInfo::named("p"));
    let mut b = port::open("p", &bench.options("b")).unwrap();
    let journal = Journal::new();
    let mut expected = 0;
    for incarnation in 1..=10 {
        let sender = spawn(&bench, "send", "a", &journal, incarnation);
        let first = incarnation * INCARNATION;
        until("the sender gets going", || {
            take(&mut b, &mut expected, first);
            expected >= first + 1_000
        });
        // It goes on until its ring is full of frames that nobody has read.
        std::thread::sleep(Duration::from_millis(5));
        kill(sender);
        let accepted = journal.read();
        bench.until("the broker knows that it is gone", |ports| ports[0].pid.is_none());
        // The next one comes before this one's frames were read.
        let next = spawn(&bench, "send", "a", &journal, incarnation + 100);
        bench.until("the next generation is there", |ports| ports[0].up);
        until("all that was accepted arrives", || {
            take_below(&mut b, &mut expected, (incarnation + 100) * INCARNATION);
            expected >= accepted
        });
        kill(next);
        drain(&mut b, &bench);
        expected = 0;
    }
}

/// Takes what waits, which continues at `expected` or begins at `first`.
fn take(port: &mut Port, expected: &mut u64, first: u64) {
    take_below(port, expected, u64::MAX);
    assert!(*expected == 0 || *expected > first, "nothing of an earlier sender");
}

/// As [`take`], up to numbers of a later incarnation, which begin at `limit`.
fn take_below(port: &mut Port, expected: &mut u64, limit: u64) {
    let burst = port.queues[0].rx.recv();
    for i in 0..burst.len() {
        let mut bytes = vec![0; burst.get(i).len()];
        burst.get(i).copy_to(&mut bytes);
        let number = sent_number(&bytes);
        if number >= limit {
            continue;
        }
        assert!(
            *expected == 0 && number.is_multiple_of(INCARNATION) || number == *expected,
            "{number} instead of {expected}"
        );
        *expected = number + 1;
    }
}

fn drain(port: &mut Port, bench: &Bench) {
    bench.until("the sender is gone", |ports| ports[0].pid.is_none());
    until("nothing more comes", || receive(&mut *port.queues[0].rx).is_empty());
}

fn a_killed_receiver_comes_back_and_traffic_flows_again(kind: LinkKind) {
    let bench = Bench::of("receiver", kind);
    bench.link(PortInfo::named("p"), PortInfo::named("p"));
    let mut a = port::open("p", &bench.options("a")).unwrap();
    let journal = Journal::new();
    let mut next = 0;
    for _ in 0..10 {
        journal.reset();
        let receiver = spawn(&bench, "receive", "b", &journal, 0);
        until("the receiver gets going", || {
            next += send_some(&mut a.queues[0], next);
            journal.read() >= 1_000
        });
        assert_ne!(journal.read(), u64::MAX, "a frame came twice or out of order");
        kill(receiver);
        until("the sender notices", || {
            next += send_some(&mut a.queues[0], next);
            a.queues[0].tx.send(&[]);
            let before = a.queues[0].tx.counters().no_peer;
            next += send_some(&mut a.queues[0], next);
            a.queues[0].tx.counters().no_peer > before
        });
    }
}

fn send_some(pair: &mut QueuePair, next: u64) -> u64 {
    let burst: Vec<_> = (next..next + 32).map(|n| frame(n, 16 + (n as usize * 53) % 700)).collect();
    let packets: Vec<_> = burst.iter().map(|frame| PacketRef::from_slice(frame)).collect();
    pair.tx.send(&packets) as u64
}

/// Runs traffic from `a` to `b` while `disturb` runs, and checks that every accepted frame arrives, once and in order.
fn lossless(bench: &mut Bench, mut a: Port, mut b: Port, disturb: impl FnOnce(&mut Bench)) {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let (stop, accepted, arrived) = (AtomicBool::new(false), AtomicU64::new(u64::MAX), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut next = 0;
            while !stop.load(Ordering::Relaxed) {
                next += send_some(&mut a.queues[0], next);
            }
            accepted.store(next, Ordering::Release);
        });
        let receiver = scope.spawn(|| {
            let mut expected = 0;
            while expected < accepted.load(Ordering::Acquire) {
                for frame in receive(&mut *b.queues[0].rx) {
                    assert_eq!(sent_number(&frame), expected);
                    expected += 1;
                }
                arrived.store(expected, Ordering::Relaxed);
            }
        });
        until("traffic flows", || arrived.load(Ordering::Relaxed) > 1_000);
        disturb(bench);
        let before = arrived.load(Ordering::Relaxed);
        until("traffic flows again", || arrived.load(Ordering::Relaxed) > before + 1_000);
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        receiver.join().unwrap();
    });
}

fn a_new_generation_between_living_ends_loses_nothing(kind: LinkKind) {
    let mut bench = Bench::of("renew", kind);
    let (a, b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    lossless(&mut bench, a, b, |bench| {
        for _ in 0..20 {
            let before = bench.broker.ports().unwrap()[0].generation;
            bench.broker.renew("link").unwrap();
            bench.until("the next generation", |ports| ports[0].up && ports[0].generation > before);
        }
    });
}

/// Replaces the broker so many times by one that adopts what the former one deposited; each is away for a while first.
fn replaced_with_segments(kind: LinkKind, test: &str, times: usize, away: Duration) {
    let mut bench = Bench::of(test, kind);
    let (a, b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let generation = bench.broker.ports().unwrap()[0].generation;
    lossless(&mut bench, a, b, |bench| {
        let mut held = Vec::new();
        for event in bench.events.try_iter() {
            if let Event::Deposit { segments, .. } = event {
                held = segments;
            }
        }
        for _ in 0..times {
            let copies = held.iter().map(|(label, fd)| (label.clone(), fd.try_clone().unwrap())).collect();
            bench.restart_broker(away);
            bench.broker.adopt(bench.spec(PortInfo::named("p"), PortInfo::named("p")), copies).unwrap();
            bench.until("both ends are back", |ports| ports[0].up);
            assert_eq!(bench.broker.ports().unwrap()[0].generation, generation);
        }
        let resumed = bench.events.try_iter().filter(|event| matches!(event, Event::Attached { resumed: true, .. }));
        assert_eq!(resumed.count(), 2);
    });
}

fn a_broker_that_is_replaced_with_its_segments_disturbs_nothing(kind: LinkKind) {
    replaced_with_segments(kind, "adopt", 10, Duration::ZERO);
}

fn nor_does_one_that_comes_after_a_long_time(kind: LinkKind) {
    replaced_with_segments(kind, "long", 1, Duration::from_secs(6));
}

fn a_broker_that_is_replaced_without_its_segments_makes_new_ones_and_loses_nothing(kind: LinkKind) {
    let mut bench = Bench::of("forget", kind);
    let (a, b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    lossless(&mut bench, a, b, |bench| {
        for _ in 0..5 {
            let before = bench.broker.ports().unwrap()[0].generation;
            bench.restart_broker(Duration::ZERO);
            bench.link(PortInfo::named("p"), PortInfo::named("p"));
            bench.until("both ends are back", |ports| ports[0].up);
            assert!(bench.broker.ports().unwrap()[0].generation > before);
        }
    });
}

fn an_adopted_link_whose_other_end_died_meanwhile_heals_when_it_comes_back(kind: LinkKind) {
    let mut bench = Bench::of("orphan", kind);
    let (mut a, b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let held = bench
        .events
        .try_iter()
        .find_map(|event| if let Event::Deposit { segments, .. } = event { Some(segments) } else { None });
    bench.restart_broker(Duration::ZERO);
    drop(b);
    bench.broker.adopt(bench.spec(PortInfo::named("p"), PortInfo::named("p")), held.unwrap()).unwrap();
    let mut b = port::open("p", &bench.options("b")).unwrap();
    bench.until("the link is up", |ports| ports[0].up);
    receive(&mut *a.queues[0].rx);
    until("the sender uses the new generation", || a.queues[0].tx.send(&[PacketRef::from_slice(&frame(0, 60))]) == 1);
    until("it arrives", || receive(&mut *b.queues[0].rx).len() == 1);
}
