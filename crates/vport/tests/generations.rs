//! How a receiver goes from one generation to the next, seen from a sender that takes its time.

mod raw;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use raw::{Bench, Memory, Raw};
use vport::client::Attachment;
use vport::layout::VERSION;
use vport::relay::relay;
use vport::steering::Steering;
use vport::wire::{Reply, Request};

const HEAD: usize = 3 * 128;
const CLOSED: usize = HEAD + 8;
const RECORD: u64 = 72;

/// A sender in the hands of a test, and an honest receiver.
struct Link {
    bench: Bench,
    sender: Raw,
    receiver: Attachment,
}

impl Link {
    fn new(test: &str) -> (Self, Memory) {
        let bench = Bench::new(test, false);
        let sender = bench.connect("a");
        sender.hello();
        let mut receiver = bench.honest();
        let first = sender.join(&bench, &mut receiver);
        (Self { bench, sender, receiver }, first)
    }

    fn renew(&mut self) -> Memory {
        self.bench.broker.renew("link").unwrap();
        self.sender.join(&self.bench, &mut self.receiver)
    }

    fn receive(&mut self) -> Vec<u64> {
        receive(&mut self.receiver)
    }

    /// Receives until nothing more comes in two calls: one takes what is left of a generation, one that of the next.
    fn receive_all(&mut self) -> Vec<u64> {
        let mut numbers = Vec::new();
        let mut empty = 0;
        while empty < 2 {
            let more = self.receive();
            empty = if more.is_empty() { empty + 1 } else { 0 };
            numbers.extend(more);
        }
        numbers
    }
}

/// The numbers of the frames that wait.
fn receive(receiver: &mut Attachment) -> Vec<u64> {
    let burst = receiver.queues[0].0.recv();
    (0..burst.len()).map(|n| u64::from_le_bytes(burst.get(n).head[..8].try_into().unwrap())).collect()
}

/// Sends frame `number` as the `nth` record of a generation.
fn send(memory: &Memory, nth: u64, number: u64) {
    let at = (nth * RECORD) as usize;
    memory.records(at).store(64, Ordering::Relaxed);
    memory.records(at + 8).store(number, Ordering::Relaxed);
    memory.index(HEAD).store((nth + 1) * RECORD, Ordering::Release);
}

fn close(memory: &Memory) {
    memory.index(CLOSED).store(memory.index(HEAD).load(Ordering::Relaxed).max(1), Ordering::Release);
}

#[test]
fn a_sender_that_is_put_aside_in_a_burst_loses_nothing_to_later_generations() {
    let (mut link, first) = Link::new("aside");
    send(&first, 0, 0);
    assert_eq!(link.receive(), [0]);
    let _second = link.renew();
    let third = link.renew();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        assert_eq!(link.receive(), [0; 0]);
    }
    send(&first, 1, 1);
    assert_eq!(link.receive_all(), [1]);
    close(&first);
    send(&third, 0, 2);
    assert_eq!(link.receive_all(), [2]);
}

#[test]
fn what_a_sender_left_unread_comes_before_what_it_sends_in_the_next_generation() {
    let (mut link, first) = Link::new("order");
    let second = link.renew();
    (0..100).for_each(|n| send(&first, n, n));
    close(&first);
    (0..100).for_each(|n| send(&second, n, 100 + n));
    assert_eq!(link.receive_all(), (0..200).collect::<Vec<_>>());
}

/// As a process does of which nobody has heard that it died, and the one that took its place.
#[test]
fn a_sender_that_went_without_a_word_does_not_keep_its_successor_waiting() {
    let (mut link, first) = Link::new("successor");
    let second = link.renew();
    send(&first, 0, 0);
    send(&second, 0, 1);
    assert_eq!(link.receive_all(), [0, 1]);
}

#[test]
fn a_receiver_does_not_sleep_over_frames_that_wait_behind_an_earlier_generation() {
    let (mut link, first) = Link::new("sleeps");
    let second = link.renew();
    assert_eq!(link.receive_all(), [0; 0]);
    assert!(link.receiver.queues[0].0.arm(), "nothing waits");
    send(&second, 0, 0);
    link.receiver.queues[0].0.disarm();
    assert!(!link.receiver.queues[0].0.arm(), "its sender has ended the first generation by sending in the second");
    close(&first);
    assert_eq!(link.receive_all(), [0]);
}

/// What another thread has still to take is not unmapped, and not overtaken.
#[test]
fn what_is_held_of_a_generation_is_given_back_before_the_next_one_is_received() {
    let (mut link, first) = Link::new("held");
    let (mut to, mut from) = relay(64 << 10, 192).unwrap();
    link.receiver.queues[0].1.send(&[]);
    send(&first, 0, 0);
    let rx = &mut link.receiver.queues[0].0;
    let held = rx.recv_held(Steering::None).expect("a link that copies");
    assert_eq!((to.send_held(&held), held.len()), (1, 1));
    let end = held.end();
    close(&first);
    let second = link.renew();
    send(&second, 0, 1);
    link.receiver.queues[0].1.send(&[]);
    for _ in 0..100 {
        assert!(link.receiver.queues[0].0.recv_held(Steering::None).is_some_and(|held| held.is_empty()));
        assert!(link.receive().is_empty());
    }
    assert!(first.is_seen());
    link.receiver.queues[0].0.give_back(end);
    assert_eq!(link.receive_all(), [1]);
    let burst = from.recv();
    assert_eq!((burst.len(), &burst.get(0).head[..8]), (1, &0_u64.to_le_bytes()[..]));
    drop((to, from));
    link.bench.until("the first is unmapped", |_| !first.is_seen());
}

#[test]
fn what_another_thread_was_told_of_stays_mapped_when_the_port_is_closed() {
    let (mut link, first) = Link::new("closed");
    let (mut to, mut from) = relay(64 << 10, 192).unwrap();
    send(&first, 0, 7);
    let held = link.receiver.queues[0].0.recv_held(Steering::None).expect("a link that copies");
    assert_eq!(to.send_held(&held), 1);
    drop((link, to));
    let burst = from.recv();
    assert_eq!((burst.len(), &burst.get(0).head[..8]), (1, &7_u64.to_le_bytes()[..]));
}

#[test]
fn nothing_of_a_generation_stays_mapped_once_it_was_read() {
    let (mut link, first) = Link::new("unmapped");
    link.receiver.queues[0].1.send(&[]);
    assert!(first.is_seen());
    let second = link.renew();
    link.receiver.queues[0].1.send(&[]);
    send(&first, 0, 0);
    close(&first);
    assert_eq!(link.receive_all(), [0]);
    link.bench.until("the first is unmapped", |_| !first.is_seen());
    assert!(second.is_seen());
}

#[test]
fn generations_that_are_never_ended_do_not_pile_up() {
    let (mut link, first) = Link::new("pile");
    let last = (0..12).map(|_| link.renew()).last().unwrap();
    assert_eq!(link.receive_all(), [0; 0]);
    link.bench.until("the first is unmapped", |_| !first.is_seen());
    send(&first, 0, 0);
    send(&last, 0, 1);
    assert_eq!(link.receive_all(), [1], "the first was given up long ago");
}

#[test]
fn no_generation_begins_while_a_receiver_has_not_read_many_and_none_of_them_is_lost() {
    let (mut link, first) = Link::new("room");
    send(&first, 0, 0);
    close(&first);
    let mut sent = 1;
    // What waits for a queue that does not look, and the one after that.
    for _ in 0..8 {
        link.bench.broker.renew("link").unwrap();
        let memory = link.sender.agree(&link.bench);
        send(&memory, 0, sent);
        close(&memory);
        sent += 1;
    }
    link.bench.broker.renew("link").unwrap();
    let own = link.sender.take_own();
    link.sender.say(&Request::Mapped { generation: own.generation });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!link.bench.broker.ports().unwrap()[0].up, "it waits for room");
    let mut numbers = Vec::new();
    link.bench.until("the next generation begins once they are read", |_| {
        numbers.extend(receive(&mut link.receiver));
        numbers.len() as u64 == sent
    });
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
    link.sender.take_peer();
}

/// Or it would wait for what it has sent to be read, and for what the other has sent to be complete.
#[test]
fn a_survivor_learns_that_the_other_end_died_while_the_broker_was_away() {
    for (adopts, survivor_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut bench = Bench::new("buried", false);
        let [survivor, dead] = bench.handshake();
        let generation = survivor.generation;
        drop(dead);
        if adopts {
            bench.replace_broker();
        } else {
            bench.forget_segments();
        }
        let survivor = bench.connect("a");
        let hello = Request::Hello { oldest: VERSION, newest: VERSION, port: "p".into(), resume: generation };
        let successor = bench.connect("b");
        if survivor_first {
            survivor.say(&hello);
            bench.until("the survivor is there", |ports| ports[0].pid.is_some());
            successor.hello();
        } else {
            successor.hello();
            bench.until("the successor is there", |ports| ports[1].pid.is_some());
            survivor.say(&hello);
        }
        let over = Reply::Over { generation, dead: true };
        let told = std::iter::from_fn(|| survivor.receive()).take(4).any(|(reply, _)| reply == over);
        assert!(told, "adopts {adopts}, survivor first {survivor_first}");
    }
}

/// Such as one whose port another process has taken over, and who has left since.
#[test]
fn a_greeting_from_one_who_is_gone_ends_no_generation_that_others_come_back_to() {
    for resume in [0, 7] {
        let mut bench = Bench::new("late", false);
        let generation = bench.handshake()[0].generation;
        let hello = |resume| Request::Hello { oldest: VERSION, newest: VERSION, port: "p".into(), resume };
        bench.replace_broker_after(|bench| bench.connect("a").say(&hello(resume)));
        let _both = ["b", "a"].map(|function| {
            let back = bench.connect(function);
            back.say(&hello(generation));
            let welcome = back.receive().map(|(reply, _)| reply);
            assert!(matches!(welcome, Some(Reply::Welcome { resumed: true, .. })), "{function}: {welcome:?}");
            back
        });
    }
}
