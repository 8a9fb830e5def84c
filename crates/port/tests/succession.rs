//! A port that is taken over by another process of its function, while packets flow both ways: the peer is never refused, and
//! each frame is delivered once, in order. If the heir dies, everything is as it was.

mod bench;

use std::time::{Duration, Instant};

use bench::{Bench, PATIENCE, frame, receive, sent_number};
use port::{OpenOptions, PacketRef, Port, PortInfo, Succession};
use vport::broker::{Event, LinkKind};

over_links_of_every_kind! {
    frames_on_their_way_to_and_from_a_port_that_is_taken_over_arrive_once_and_in_order
    a_port_whose_peer_is_silent_is_over_as_soon_as_another_has_taken_it_over
    an_heir_gets_nothing_before_the_one_that_has_the_port_has_left_it
    an_heir_that_dies_before_it_is_ready_changes_nothing
    where_an_heir_dies_after_it_has_taken_over_the_one_before_goes_on
    where_the_one_before_dies_the_heir_has_the_port
    nobody_is_succeeded_unless_that_is_allowed
    an_heir_has_the_port_though_the_broker_is_replaced_before_it_inherits
    an_heir_of_a_former_broker_waits_until_the_one_before_has_left
    an_heir_that_was_not_ready_is_an_heir_of_the_next_broker
}

/// `b` sends numbers to `a` and gets them back, at a rate that rings have room for.
struct Sender {
    port: Port,
    sent: u64,
    expected: u64,
}

impl Sender {
    fn new(port: Port) -> Self {
        Self { port, sent: 0, expected: 0 }
    }

    fn turn(&mut self) {
        let bytes = frame(self.sent, 100);
        assert_eq!(self.port.queues[0].tx.send(&[PacketRef::from_slice(&bytes)]), 1, "refused");
        self.sent += 1;
        self.take();
        std::thread::sleep(Duration::from_micros(20));
    }

    fn take(&mut self) {
        for frame in receive(&mut *self.port.queues[0].rx) {
            assert_eq!(sent_number(&frame), self.expected);
            self.expected += 1;
        }
    }
}

/// Sends back what it receives; returns how much it was.
fn reflect(port: &mut Port) -> usize {
    let pair = &mut port.queues[0];
    let frames: Vec<_> = receive(&mut *pair.rx);
    let packets: Vec<_> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
    assert_eq!(pair.tx.send(&packets), packets.len(), "refused");
    packets.len()
}

fn begin(test: &str, kind: LinkKind) -> (Bench, Port, Sender) {
    let bench = Bench::of(test, kind);
    let (a, b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let mut sender = Sender::new(b);
    let mut a = a;
    for _ in 0..100 {
        sender.turn();
        reflect(&mut a);
    }
    (bench, a, sender)
}

fn heir(bench: &Bench, succession: Succession) -> Port {
    bench.broker.allow_succession("a", true).unwrap();
    port::open("p", &OpenOptions { succession, ..bench.options("a") }).unwrap()
}

/// `a` works on until the port is another's and it has done all that was its own.
fn work_off(a: &mut Port, sender: &mut Sender) {
    let begin = Instant::now();
    while !a.queues[0].rx.is_over() {
        assert!(begin.elapsed() < PATIENCE, "nobody has closed its channel");
        sender.turn();
        reflect(a);
    }
}

fn settle(port: &mut Port, sender: &mut Sender) {
    let begin = Instant::now();
    while sender.expected < sender.sent {
        assert!(begin.elapsed() < PATIENCE, "{} of {} came back", sender.expected, sender.sent);
        reflect(port);
        sender.take();
    }
}

fn frames_on_their_way_to_and_from_a_port_that_is_taken_over_arrive_once_and_in_order(kind: LinkKind) {
    let (bench, mut a, mut sender) = begin("taken-over", kind);
    for _ in 0..20 {
        let heir = heir(&bench, Succession::WhenReady);
        for _ in 0..100 {
            sender.turn();
            reflect(&mut a);
        }
        heir.control().take_over();
        work_off(&mut a, &mut sender);
        drop(std::mem::replace(&mut a, heir));
        for _ in 0..200 {
            sender.turn();
            reflect(&mut a);
        }
        settle(&mut a, &mut sender);
    }
}

/// By the time that anybody can know that it is another's.
fn a_port_whose_peer_is_silent_is_over_as_soon_as_another_has_taken_it_over(kind: LinkKind) {
    let (bench, mut a, mut sender) = begin("silent", kind);
    settle(&mut a, &mut sender);
    assert!(!a.queues[0].rx.is_closed());
    for _ in 0..20 {
        bench.events.try_iter().for_each(drop);
        let heir = heir(&bench, Succession::AtOnce);
        while !matches!(bench.events.recv_timeout(PATIENCE).unwrap(), Event::LinkUp { .. }) {}
        assert_eq!(reflect(&mut a), 0);
        assert!(a.queues[0].rx.is_over());
        a = heir;
    }
    goes_on(&mut a, &mut sender);
}

fn an_heir_gets_nothing_before_the_one_that_has_the_port_has_left_it(kind: LinkKind) {
    let (bench, mut a, mut sender) = begin("patient", kind);
    let mut heir = heir(&bench, Succession::AtOnce);
    work_off(&mut a, &mut sender);
    for _ in 0..200 {
        sender.turn();
        assert_eq!(reflect(&mut a) + reflect(&mut heir), 0);
    }
    drop(a);
    settle(&mut heir, &mut sender);
}

fn an_heir_that_dies_before_it_is_ready_changes_nothing(kind: LinkKind) {
    let (bench, mut a, mut sender) = begin("unready", kind);
    for _ in 0..5 {
        let heir = heir(&bench, Succession::WhenReady);
        sender.turn();
        drop(heir);
        for _ in 0..100 {
            sender.turn();
            reflect(&mut a);
        }
    }
    settle(&mut a, &mut sender);
    assert_eq!(bench.broker.ports().unwrap()[0].generation, 1);
}

/// What was sent to the heir is lost with it, as with any process that dies.
fn where_an_heir_dies_after_it_has_taken_over_the_one_before_goes_on(kind: LinkKind) {
    let (bench, mut a, mut sender) = begin("heir-dies", kind);
    let heir = heir(&bench, Succession::AtOnce);
    work_off(&mut a, &mut sender);
    drop(heir);
    goes_on(&mut a, &mut sender);
}

fn where_the_one_before_dies_the_heir_has_the_port(kind: LinkKind) {
    let (bench, a, mut sender) = begin("first-dies", kind);
    let mut heir = heir(&bench, Succession::WhenReady);
    drop(a);
    goes_on(&mut heir, &mut sender);
}

/// Frames come back again, whatever was lost.
fn goes_on(port: &mut Port, sender: &mut Sender) {
    let begin = Instant::now();
    let mut came = 0;
    while came < 100 {
        assert!(begin.elapsed() < PATIENCE);
        let bytes = frame(sender.sent, 100);
        sender.sent += sender.port.queues[0].tx.send(&[PacketRef::from_slice(&bytes)]) as u64;
        let frames = receive(&mut *port.queues[0].rx);
        for frame in frames {
            port.queues[0].tx.send(&[PacketRef::from_slice(&frame)]);
        }
        for frame in receive(&mut *sender.port.queues[0].rx) {
            assert!(sent_number(&frame) >= sender.expected, "in order");
            sender.expected = sent_number(&frame) + 1;
            came += 1;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// What was sent to it meanwhile is not lost.
fn an_heir_has_the_port_though_the_broker_is_replaced_before_it_inherits(kind: LinkKind) {
    let (mut bench, mut a, mut sender) = begin("broker-dies", kind);
    let mut heir = heir(&bench, Succession::AtOnce);
    work_off(&mut a, &mut sender);
    for _ in 0..200 {
        sender.turn();
    }
    replace_broker(&mut bench, || drop(a));
    settle(&mut heir, &mut sender);
}

fn an_heir_of_a_former_broker_waits_until_the_one_before_has_left(kind: LinkKind) {
    let (mut bench, mut a, mut sender) = begin("both-stay", kind);
    let mut heir = heir(&bench, Succession::AtOnce);
    work_off(&mut a, &mut sender);
    replace_broker(&mut bench, || ());
    goes_on(&mut a, &mut sender);
    // It has asked for the port by now.
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(reflect(&mut heir), 0);
    goes_on(&mut a, &mut sender);
    drop(a);
    goes_on(&mut heir, &mut sender);
}

fn an_heir_that_was_not_ready_is_an_heir_of_the_next_broker(kind: LinkKind) {
    let (mut bench, mut a, mut sender) = begin("unready-broker-dies", kind);
    let heir = heir(&bench, Succession::WhenReady);
    replace_broker(&mut bench, || ());
    bench.broker.allow_succession("a", true).unwrap();
    heir.control().take_over();
    work_off(&mut a, &mut sender);
    drop(std::mem::replace(&mut a, heir));
    settle(&mut a, &mut sender);
}

/// With the segments of the last generation; something happens while there is none.
fn replace_broker(bench: &mut Bench, meanwhile: impl FnOnce()) {
    let deposits = bench.events.try_iter().filter_map(|event| match event {
        Event::Deposit { segments, .. } => Some(segments),
        _ => None,
    });
    let held = deposits.last().unwrap();
    bench.restart_broker(Duration::ZERO);
    meanwhile();
    bench.broker.adopt(bench.spec(PortInfo::named("p"), PortInfo::named("p")), held).unwrap();
}

fn nobody_is_succeeded_unless_that_is_allowed(kind: LinkKind) {
    let (bench, _a, _sender) = begin("forbidden", kind);
    let options = OpenOptions { timeout: Duration::from_millis(50), ..bench.options("a") };
    let opened = port::open("p", &OpenOptions { succession: Succession::AtOnce, ..options });
    assert!(opened.is_err_and(|error| error.to_string().contains("is held by process")));
}
