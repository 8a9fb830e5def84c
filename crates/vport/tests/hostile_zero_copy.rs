//! What clients of zero-copy links that break the rules can do: get refused in words, end their own link, and keep no buffer.

mod raw;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use raw::{Bench, Holders, Lent, Memory, PATIENCE, Raw};
use vport::arena::{BUFFER_BYTES, Descriptor};
use vport::broker::{Broker, EndSpec, Event, LinkKind, LinkSpec, PortStatus, RING_BYTES_MIN};
use vport::client::{Attachment, attach};
use vport::info::PortInfo;
use vport::layout::{VERSION, VERSION_SHARED, VERSION_ZERO_COPY};
use vport::packet::PacketRef;
use vport::wire::{Reply, Request};

const HEAD: usize = 3 * 128;
const TAIL: usize = 4 * 128;
/// Buffers of each channel, and entries of each ring.
const COUNT: u32 = RING_BYTES_MIN / 1024;
/// Where the returns begin in the record segment.
const RETURNS: usize = 8 * COUNT as usize;
/// Buffers of a link's two channels.
const OF_LINK: u32 = 2 * COUNT;

fn zero_copy() -> LinkKind {
    LinkKind::ZeroCopy { group: "group".into() }
}

/// Buffers that somebody has.
fn out(bench: &Bench) -> u32 {
    bench.broker.arenas().unwrap().iter().map(|arena| arena.buffers - arena.free).sum()
}

/// Until exactly so many buffers are out, an honest function goes on.
fn until_out(bench: &Bench, honest: &mut Attachment, wanted: u32) {
    let deadline = Instant::now() + PATIENCE;
    while out(bench) != wanted {
        assert!(Instant::now() < deadline, "{} buffers are out instead of {wanted}", out(bench));
        turn(honest);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Both halves look for changes.
fn turn(honest: &mut Attachment) -> usize {
    honest.queues[0].1.send(&[]);
    honest.queues[0].0.recv().len()
}

/// Another link of the group, between two honest functions.
struct Others {
    c: Attachment,
    d: Attachment,
}

impl Others {
    fn beside(bench: &Bench) -> Self {
        let end = |function: &str| EndSpec::of(function, PortInfo::named("p"));
        for function in ["c", "d"] {
            let socket = Broker::bind(&bench.directory.join(function)).unwrap();
            bench.broker.listen(function, socket, 0..u32::MAX).unwrap();
        }
        let ends = [end("c"), end("d")];
        let spec = LinkSpec { name: "others".into(), ends, ring_bytes: RING_BYTES_MIN, kind: zero_copy() };
        bench.broker.add_link(spec).unwrap();
        let [c, d] = ["c", "d"].map(|function| attach(&bench.directory.join(function), "p", PATIENCE, 192).unwrap());
        Self { c, d }
    }

    /// A frame comes through, in the first generation.
    fn go_on(&mut self, bench: &Bench) {
        let frame = [7; 300];
        bench.until("the others' link is up", |ports| ports.iter().any(|port| port.link == "others" && port.up));
        let deadline = Instant::now() + PATIENCE;
        while self.c.queues[0].1.send(&[PacketRef::from_slice(&frame)]) == 0 {
            assert!(Instant::now() < deadline);
        }
        loop {
            let burst = self.d.queues[0].0.recv();
            if !burst.is_empty() {
                assert_eq!((burst.len(), burst.get(0).len()), (1, 300));
                break;
            }
            assert!(Instant::now() < deadline);
        }
        let ports = bench.broker.ports().unwrap();
        let mut ports = ports.iter().filter(|port| port.link == "others");
        assert!(ports.all(|port| port.generation == 1 && port.quarantined.is_none()));
    }
}

/// A link between the hands of a test (`a`) and an honest function (`b`), beside another link of the group.
struct Hostile {
    bench: Bench,
    others: Others,
    raw: Raw,
    memory: Memory,
    lent: Lent,
    holders: Holders,
    b: Attachment,
}

impl Hostile {
    fn new(test: &str) -> Self {
        let bench = Bench::of(test, zero_copy());
        let mut others = Others::beside(&bench);
        others.go_on(&bench);
        let mut b = bench.honest();
        let (raw, memory, lent) = joined(&bench, &mut b);
        let holders = lent.holders();
        Self { bench, others, raw, memory, lent, holders, b }
    }

    /// Buffers that `a` may send, all empty.
    fn own(&self) -> Vec<u32> {
        let own = self.holders.held_by(self.lent.own);
        assert_eq!(own.len(), COUNT as usize);
        own
    }

    /// A buffer that `a` has not given away.
    fn own_left(&self) -> u32 {
        *self.holders.held_by(self.lent.own).last().unwrap()
    }

    /// A buffer of the others' link.
    fn of_others(&self) -> u32 {
        let ours = [0, self.lent.own, self.lent.peer];
        (0..self.lent.present).find(|buffer| !ours.contains(&self.holders.of(*buffer).load(Ordering::Relaxed))).unwrap()
    }

    /// Puts a descriptor at a position, and gives its buffer to `b`.
    fn give(&self, at: usize, descriptor: Descriptor) {
        self.holders.of(descriptor.buffer).store(self.lent.peer, Ordering::Relaxed);
        self.write(at, descriptor);
    }

    /// Puts a descriptor at a position.
    fn write(&self, at: usize, descriptor: Descriptor) {
        self.memory.records(8 * at).store(descriptor.word(), Ordering::Relaxed);
    }

    fn publish(&self, head: u64) {
        self.memory.index(HEAD).store(head, Ordering::Release);
    }

    /// Two returns, at an even position and the next.
    fn give_back(&self, at: usize, buffers: [u32; 2]) {
        assert!(at.is_multiple_of(2));
        let word = u64::from(buffers[0]) | u64::from(buffers[1]) << 32;
        self.memory.records(RETURNS + 4 * at).store(word, Ordering::Relaxed);
    }

    /// What stands in two returns.
    fn returns(&self, at: usize) -> [u32; 2] {
        let word = self.memory.records(RETURNS + 4 * at).load(Ordering::Relaxed);
        [word as u32, (word >> 32) as u32]
    }

    /// The honest side notices, and the broker says so; others in the group go on; all buffers of the generation come back;
    /// a function that attaches anew can use the link again.
    fn expect_quarantine(mut self, rule: &str) {
        let reason = self.bench.event("quarantine", |event| match event {
            Event::Quarantined { reason, accused, reporter, .. } => {
                assert_eq!((accused.function.as_str(), reporter.function.as_str()), ("a", "b"));
                Some(reason)
            }
            _ => None,
        });
        assert_eq!(reason, format!("{rule} (seen at queue 0)"));
        assert_eq!(turn(&mut self.b), 0, "nothing more is taken");
        self.others.go_on(&self.bench);
        drop(self.raw);
        let (raw, memory, lent) = joined(&self.bench, &mut self.b);
        until_out(&self.bench, &mut self.b, 2 * OF_LINK);
        let holders = lent.holders();
        let again = Self { raw, memory, lent, holders, ..self };
        again.give(0, Descriptor { buffer: again.own()[0], offset: 256, len: 60 });
        again.publish(1);
        let Self { bench, mut b, raw, others, .. } = again;
        assert_eq!(turn(&mut b), 1);
        drop((b, raw, others));
        bench.until("nobody is left", |ports| ports.iter().all(|port| port.pid.is_none()));
        assert_eq!(out(&bench), 0);
    }
}

/// `a` by hand goes through the handshake of a generation, until `b` has taken it over and may send.
fn joined(bench: &Bench, b: &mut Attachment) -> (Raw, Memory, Lent) {
    let raw = bench.connect("a");
    raw.hello_zero_copy();
    let mut own = raw.take_own();
    let memory = raw.agree_on(bench, &own);
    assert_eq!(turn(b), 0);
    memory.open_table();
    let lent = own.arena.take().unwrap();
    assert_eq!(lent.generation, own.generation);
    (raw, memory, lent)
}

#[test]
fn a_client_that_does_not_speak_the_version_of_a_link_s_kind_is_refused_in_words() {
    let hello = |oldest, newest| Request::Hello { oldest, newest, port: "p".into(), resume: 0 };
    let cases = [
        (zero_copy(), (VERSION, VERSION), Err("this broker speaks version 3 on zero-copy links, not 2 to 2")),
        (zero_copy(), (1, 2), Err("this broker speaks version 3 on zero-copy links, not 1 to 2")),
        (zero_copy(), (5, 9), Err("this broker speaks version 3 on zero-copy links, not 5 to 9")),
        (zero_copy(), (VERSION, VERSION_ZERO_COPY), Ok(VERSION_ZERO_COPY)),
        (zero_copy(), (VERSION_ZERO_COPY, VERSION_ZERO_COPY), Ok(VERSION_ZERO_COPY)),
        (LinkKind::Direct, (VERSION_ZERO_COPY, VERSION_ZERO_COPY), Err("this broker speaks version 2, not 3 to 3")),
        (LinkKind::Direct, (VERSION, VERSION_ZERO_COPY), Ok(VERSION)),
        (LinkKind::Direct, (VERSION, VERSION_SHARED), Ok(VERSION)),
        (LinkKind::SharedRecords, (VERSION, VERSION_SHARED), Ok(VERSION_SHARED)),
        (LinkKind::SharedRecords, (VERSION, VERSION_ZERO_COPY), Ok(VERSION)),
    ];
    for (n, (kind, (oldest, newest), answer)) in cases.into_iter().enumerate() {
        let bench = Bench::of(&format!("version{n}"), kind);
        let raw = bench.connect("a");
        raw.say(&hello(oldest, newest));
        let answered = match raw.receive() {
            Some((Reply::Welcome { version, .. }, _)) => Ok(version),
            Some((Reply::Refused { reason, .. }, _)) => Err(reason),
            other => panic!("{other:?}"),
        };
        assert_eq!(answered, answer.map_err(str::to_owned));
    }
}

#[test]
fn words_about_generations_that_are_not_do_no_harm_on_a_zero_copy_link() {
    let bench = Bench::of("stale", zero_copy());
    let mut b = bench.honest();
    let raw = bench.connect("a");
    raw.hello_zero_copy();
    let own = raw.take_own();
    let wrong = [0, own.generation + 1, own.generation - 1, u64::MAX];
    let say_all = |name: &str| {
        for generation in wrong {
            raw.say(&Request::Mapped { generation });
            raw.say(&Request::Ready { generation });
            raw.say(&Request::Released { generation });
            raw.say(&Request::Quarantine { generation, queue: 0, violation: 14 });
        }
        raw.say(&Request::Holds(wrong.to_vec()));
        raw.say(&Request::Report(vec![(name.into(), 1)]));
        let heard = |ports: &[PortStatus]| ports.iter().any(|port| port.report == [(name.to_owned(), 1)]);
        bench.until("all was heard", heard);
    };
    // Until the other end has mapped its own, at least most of the time.
    std::thread::sleep(Duration::from_millis(50));
    say_all("before");
    assert!(!raw.has_mail(), "nothing was answered");
    raw.agree_on(&bench, &own).open_table();
    assert_eq!((turn(&mut b), out(&bench)), (0, OF_LINK));
    say_all("after");
    assert!(bench.broker.ports().unwrap().iter().all(|port| port.up && port.quarantined.is_none()));
    assert_eq!(b.queues[0].1.send(&[PacketRef::from_slice(&[1; 60])]), 1);
    drop((raw, b));
    bench.until("nobody is left", |ports| ports.iter().all(|port| port.pid.is_none()));
    assert_eq!(out(&bench), 0);
}

/// Buffers of a generation are not given away while its other end uses them, whatever an end says of it.
#[test]
fn an_end_that_lets_go_of_a_generation_that_lives_takes_nothing_from_its_peer() {
    let mut hostile = Hostile::new("released");
    hostile.raw.say(&Request::Released { generation: hostile.lent.generation });
    hostile.raw.say(&Request::Holds(Vec::new()));
    assert_eq!(hostile.b.queues[0].1.send(&[PacketRef::from_slice(&[1; 60])]), 1);
    drop(hostile.raw);
    hostile.bench.until("it is gone", |ports| ports.iter().any(|port| port.name.function == "a" && port.pid.is_none()));
    for _ in 0..10 {
        assert_eq!(turn(&mut hostile.b), 0);
    }
    assert_eq!(out(&hostile.bench), 2 * OF_LINK, "b still has the generation");
    let (_raw, ..) = joined(&hostile.bench, &mut hostile.b);
    until_out(&hostile.bench, &mut hostile.b, 2 * OF_LINK);
}

#[test]
fn whoever_leaves_in_the_middle_of_the_handshake_keeps_no_buffer() {
    let bench = Bench::of("middle", zero_copy());
    let mut others = Others::beside(&bench);
    let mut b = bench.honest();
    for last_step in 0..5 {
        let raw = bench.connect("a");
        raw.hello_zero_copy();
        if last_step > 0 {
            let own = raw.take_own();
            let generation = own.generation;
            if last_step > 1 {
                raw.say(&Request::Mapped { generation });
            }
            if last_step > 2 {
                raw.take_peer();
            }
            if last_step > 3 {
                raw.say(&Request::Ready { generation });
            }
        }
        drop(raw);
        let (raw, ..) = joined(&bench, &mut b);
        until_out(&bench, &mut b, 2 * OF_LINK);
        others.go_on(&bench);
        drop(raw);
    }
    drop((b, others));
    bench.until("nobody is left", |ports| ports.iter().all(|port| port.pid.is_none()));
    assert_eq!(out(&bench), 0);
}

/// Also where its process lives on, or says so: without its peer's segments it has no use for a buffer.
#[test]
fn whoever_is_cut_off_or_goes_away_before_it_has_its_peer_s_segments_keeps_no_buffer() {
    let bench = Bench::of("cut-off", zero_copy());
    let _b = bench.honest();
    for away in [false, true] {
        let raw = bench.connect("a");
        raw.hello_zero_copy();
        raw.take_own();
        assert_eq!(out(&bench), OF_LINK);
        if away {
            raw.say(&Request::Away);
            drop(raw);
            bench.until("it is gone", |ports| ports.iter().any(|port| port.name.function == "a" && port.pid.is_none()));
        } else {
            raw.send(b"nonsense", &[]);
            assert_eq!(raw.refusal(), "not a port message");
        }
        assert_eq!(out(&bench), 0);
    }
}

#[test]
fn a_receiver_quarantines_a_sender_of_descriptors_that_lie() {
    const NAMES_NO_FRAME: &str = "a descriptor names no frame";
    const NOT_ITS: &str = "a buffer was sent by an end that does not hold it";
    type Lie = fn(&Hostile) -> Descriptor;
    fn good(hostile: &Hostile) -> Descriptor {
        Descriptor { buffer: hostile.own_left(), offset: 256, len: 60 }
    }
    let cases: [(&str, Lie); 11] = [
        (NAMES_NO_FRAME, |hostile| Descriptor { buffer: hostile.lent.buffers, ..good(hostile) }),
        (NAMES_NO_FRAME, |hostile| Descriptor { buffer: u32::MAX, ..good(hostile) }),
        (NAMES_NO_FRAME, |hostile| Descriptor { len: 0, ..good(hostile) }),
        (NAMES_NO_FRAME, |hostile| Descriptor { offset: 128, len: 9_601, ..good(hostile) }),
        (NAMES_NO_FRAME, |hostile| Descriptor { offset: BUFFER_BYTES as u16 - 59, ..good(hostile) }),
        (NAMES_NO_FRAME, |hostile| Descriptor { offset: u16::MAX, len: 1, ..good(hostile) }),
        (NAMES_NO_FRAME, |hostile| Descriptor { offset: 127, ..good(hostile) }),
        // Its own, but not given; the one before once more; the broker's; one that is not there yet.
        (NOT_ITS, good),
        (NOT_ITS, |hostile| Descriptor {
            buffer: hostile.memory.records(0).load(Ordering::Relaxed) as u32,
            ..good(hostile)
        }),
        (NOT_ITS, |hostile| Descriptor { buffer: hostile.holders.held_by(0)[0], ..good(hostile) }),
        (NOT_ITS, |hostile| Descriptor { buffer: hostile.lent.buffers - 1, ..good(hostile) }),
    ];
    for (n, (rule, lie)) in cases.into_iter().enumerate() {
        let mut hostile = Hostile::new(&format!("lie{n}"));
        hostile.give(0, Descriptor { buffer: hostile.own()[0], offset: 256, len: 60 });
        hostile.write(1, lie(&hostile));
        hostile.publish(2);
        assert_eq!(turn(&mut hostile.b), 1, "what came before is delivered");
        assert_eq!(turn(&mut hostile.b), 0);
        assert_eq!(hostile.b.queues[0].0.counters().invalid, 1);
        hostile.expect_quarantine(rule);
    }
}

#[test]
fn a_buffer_of_another_link_is_not_taken() {
    let mut hostile = Hostile::new("theirs");
    hostile.write(0, Descriptor { buffer: hostile.of_others(), offset: 256, len: 60 });
    hostile.publish(1);
    assert_eq!(turn(&mut hostile.b), 0);
    hostile.expect_quarantine("a buffer was sent by an end that does not hold it");
}

#[test]
fn a_head_that_cannot_be_is_not_followed_on_a_zero_copy_link() {
    for (n, head) in [u64::from(COUNT) + 1, u64::MAX, 1 << 40].into_iter().enumerate() {
        let mut hostile = Hostile::new(&format!("head{n}"));
        hostile.publish(head);
        assert_eq!(turn(&mut hostile.b), 0);
        hostile.expect_quarantine("the head is not within one ring of the tail");
    }
}

#[test]
fn a_sender_quarantines_a_receiver_whose_returns_lie() {
    /// Of the first buffer that came back, and one that `a` has to send.
    type Lie = fn(&Hostile, u32, u32) -> u32;
    // Twice, kept all the same, of another link, of the other direction, no buffer.
    let cases: [Lie; 5] = [
        |_, first, _| first,
        |hostile, _, _| hostile.returns(2)[0],
        |hostile, _, _| hostile.of_others(),
        |_, _, own| own,
        |_, _, _| u32::MAX,
    ];
    for (n, lie) in cases.into_iter().enumerate() {
        let mut hostile = Hostile::new(&format!("return{n}"));
        let own = hostile.own_left();
        let packets = vec![PacketRef::from_slice(&[1; 60]); COUNT as usize];
        let mut sent = 0;
        while sent < packets.len() {
            sent += hostile.b.queues[0].1.send(&packets[sent..]);
        }
        // All went in the order in which the broker had put the buffers there. Two come back.
        let lawful = hostile.returns(0);
        lawful.iter().for_each(|buffer| hostile.holders.of(*buffer).store(hostile.lent.peer, Ordering::Relaxed));
        hostile.give_back(0, [lawful[0], lie(&hostile, lawful[0], own)]);
        hostile.memory.index(TAIL).store(2, Ordering::Release);
        assert_eq!(hostile.b.queues[0].1.send(&packets[..4]), 1, "what came back before is used");
        assert_eq!(hostile.b.queues[0].1.send(&packets[..4]), 0);
        hostile.expect_quarantine("a buffer was returned twice, or by an end that does not hold it");
    }
}

#[test]
fn a_tail_that_cannot_be_is_not_followed_on_a_zero_copy_link() {
    for (n, tail) in [u64::from(COUNT) + 1, u64::MAX].into_iter().enumerate() {
        let mut hostile = Hostile::new(&format!("ztail{n}"));
        hostile.memory.index(TAIL).store(tail, Ordering::Release);
        let packets = vec![PacketRef::from_slice(&[1; 60]); COUNT as usize + 1];
        let sent: usize = packets.chunks(32).map(|burst| hostile.b.queues[0].1.send(burst)).sum();
        assert_eq!(sent, COUNT as usize);
        hostile.expect_quarantine("the tail is not within one ring of the head");
    }
}

#[test]
fn whoever_goes_away_over_and_over_keeps_the_buffers_of_some_generations_and_an_honest_successor_gives_them_back() {
    let bench = Bench::of("away", zero_copy());
    let mut others = Others::beside(&bench);
    let mut b = bench.honest();
    let mut last = 0;
    for times in 0.. {
        assert!(times <= 17, "its buffers are out {times} times");
        let raw = bench.connect("a");
        raw.say(&Request::Hello {
            oldest: VERSION_ZERO_COPY,
            newest: VERSION_ZERO_COPY,
            port: "p".into(),
            resume: last,
        });
        let Some(own) = raw.take_own_within(Duration::from_millis(500)) else { break };
        last = own.generation;
        raw.say(&Request::Mapped { generation: last });
        raw.take_peer();
        raw.say(&Request::Away);
        turn(&mut b);
    }
    others.go_on(&bench);
    let (_raw, ..) = joined(&bench, &mut b);
    until_out(&bench, &mut b, 2 * OF_LINK);
}

#[test]
fn an_heir_that_dies_with_its_peer_s_segments_keeps_no_buffer() {
    let bench = Bench::of("heir", zero_copy());
    let mut b = bench.honest();
    let (raw, _, lent) = joined(&bench, &mut b);
    bench.broker.allow_succession("a", true).unwrap();
    let heir = bench.connect("a");
    heir.say(&Request::Succeed { oldest: VERSION_ZERO_COPY, newest: VERSION_ZERO_COPY, port: "p".into() });
    heir.say(&Request::TakeOver);
    let generation = heir.take_own().generation;
    heir.say(&Request::Mapped { generation });
    heir.take_peer();
    drop(heir);
    let own = raw.take_own();
    assert!(own.generation > generation);
    raw.agree_on(&bench, &own);
    raw.say(&Request::Released { generation: lent.generation });
    // The other end has the first generation's too: its sender has not closed that.
    until_out(&bench, &mut b, 2 * OF_LINK);
}

#[test]
fn a_link_that_is_removed_and_made_anew_over_and_over_has_the_buffers_of_one() {
    let bench = Bench::of("edited", zero_copy());
    let mut others = Others::beside(&bench);
    let mut ends = ["a", "b"].map(|function| attach(&bench.directory.join(function), "p", PATIENCE, 192).unwrap());
    for _ in 0..20 {
        let [a, b] = &mut ends;
        bench.until("the link is up", |ports| turn(a) + turn(b) == 0 && ports[0].up);
        bench.broker.remove_link("link").unwrap();
        bench.broker.add_link(bench.spec.clone()).unwrap();
    }
    let [a, b] = &mut ends;
    bench.until("the link is up", |ports| turn(a) + turn(b) == 0 && ports[0].up);
    until_out(&bench, a, 2 * OF_LINK);
    others.go_on(&bench);
}
