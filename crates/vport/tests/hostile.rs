//! What clients and peers that break the rules can do: get refused in words, and harm nobody else.

#[path = "hostile/epochs.rs"]
mod epochs;
mod raw;

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use raw::{Bench, Memory, PATIENCE, Raw};
use vport::broker::{Event, LinkKind};
use vport::client::{Attachment, attach};
use vport::info::PortInfo;
use vport::layout::{VERSION, VERSION_NEWEST};
use vport::packet::{BURST_MAX, PacketRef};
use vport::relay::relay;
use vport::steering::{BucketCounts, BucketTable, Steering, address_bucket};
use vport::wire::{Reply, Request};

const HEAD: usize = 3 * 128;
const TAIL: usize = 4 * 128;

/// A link between the hands of a test (`a`) and an honest function (`b`).
struct Hostile {
    bench: Bench,
    raw: Raw,
    memory: Memory,
    b: Attachment,
}

impl Hostile {
    fn new(test: &str) -> Self {
        let bench = Bench::new(test, false);
        let raw = bench.connect("a");
        raw.hello();
        let mut b = bench.honest();
        let memory = raw.join(&bench, &mut b);
        Self { bench, raw, memory, b }
    }

    /// The test's port has so many queues, and no table yet; the honest function looks into it to send.
    fn without_table(test: &str, queues: u16) -> Self {
        let port = PortInfo { queues, steering: Steering::FiveTuple, ..PortInfo::named("p") };
        let bench = Bench::between(test, false, [port, PortInfo::named("p")]);
        let raw = bench.connect("a");
        raw.hello();
        let mut b = bench.honest();
        let memory = raw.take_over(&bench, &mut b);
        Self { bench, raw, memory, b }
    }

    /// Writes words at the start of the ring and publishes `head`.
    fn write(&self, words: &[(usize, u64)], head: u64) {
        words.iter().for_each(|(offset, word)| self.memory.records(*offset).store(*word, Ordering::Relaxed));
        self.memory.index(HEAD).store(head, Ordering::Release);
    }

    /// The honest side notices, and the broker says so; a function that attaches anew can use the link again.
    fn expect_quarantine(mut self, rule: &str) {
        let reason = self.bench.event("quarantine", |event| match event {
            Event::Quarantined { reason, accused, .. } => {
                assert_eq!(accused.function, "a");
                Some(reason)
            }
            _ => None,
        });
        assert_eq!(reason, format!("{rule} (seen at queue 0)"));
        assert!(self.b.queues[0].0.recv().is_empty());
        drop(self.raw);
        let raw = self.bench.connect("a");
        raw.hello();
        let memory = raw.join(&self.bench, &mut self.b);
        memory.records(0).store(60, Ordering::Relaxed);
        memory.index(HEAD).store(72, Ordering::Release);
        assert_eq!(self.b.queues[0].0.recv().len(), 1);
    }
}

#[test]
fn a_reader_quarantines_a_writer_that_breaks_a_rule() {
    /// The rule, words at the ring's start, the head.
    type Case = (&'static str, &'static [(usize, u64)], u64);
    const SIZE: u64 = vport::broker::RING_BYTES_MIN as u64;
    const SKIP: u64 = 1 << 32;
    let cases: [Case; 12] = [
        ("the head is not within one ring of the tail", &[], SIZE + 8),
        ("the head is not within one ring of the tail", &[], u64::MAX - 7),
        ("a position is misaligned", &[], 12),
        ("a record has no bytes", &[(0, 0)], 72),
        ("a record is longer than any frame", &[(0, 9_601)], SIZE),
        ("a record is longer than any frame", &[(0, 0xffff_ffff)], SIZE),
        ("a record runs past the head", &[(0, 100)], 72),
        ("a skip record does not lead to the ring's end", &[(0, SKIP | 64)], SIZE),
        ("a skip record does not lead to the ring's end", &[(0, SKIP)], SIZE),
        ("a record runs past the head", &[(0, SKIP | SIZE)], 72),
        ("a record is of an unknown kind", &[(0, 2 << 32 | 60)], SIZE),
        ("a record is of an unknown kind", &[(0, u64::MAX)], SIZE),
    ];
    for (n, (rule, words, head)) in cases.into_iter().enumerate() {
        let mut hostile = Hostile::new(&format!("rule{n}"));
        hostile.write(words, head);
        assert!(hostile.b.queues[0].0.recv().is_empty());
        assert_eq!(hostile.b.queues[0].0.counters().invalid, 1);
        hostile.expect_quarantine(rule);
    }
}

#[test]
fn a_peer_that_breaks_a_rule_on_all_channels_does_not_have_its_victim_refused() {
    const QUEUES: usize = 16;
    let port = || PortInfo { queues: QUEUES as u16, ..PortInfo::named("p") };
    let bench = Bench::between("all-channels", false, [port(), port()]);
    let raw = bench.connect("a");
    raw.hello();
    let mut b = bench.honest();
    let own = raw.take_own();
    let queues: Vec<Memory> = (0..QUEUES).map(|queue| raw.map_queue(&own, queue)).collect();
    raw.agree_on(&bench, &own);
    queues.iter().for_each(|memory| {
        (0..QUEUES).for_each(|queue| memory.index(HEAD + queue * 128).store(7, Ordering::Release));
    });
    let deadline = Instant::now() + Duration::from_millis(300);
    while Instant::now() < deadline {
        b.queues.iter_mut().for_each(|(rx, _)| assert!(rx.recv().is_empty()));
    }
    let refused: Vec<String> = bench.events.try_iter().filter_map(refusal).collect();
    assert_eq!(refused, [""; 0]);
    assert!(bench.broker.ports().unwrap()[1].quarantined.is_some(), "and the link stays in quarantine");
}

#[test]
fn a_rule_that_is_broken_while_there_is_no_broker_is_told_to_the_next_one() {
    let Hostile { mut bench, raw: _raw, memory, mut b } = Hostile::new("no-broker");
    bench.replace_broker_later(|| {
        memory.index(HEAD).store(12, Ordering::Release);
        assert!(b.queues[0].0.recv().is_empty());
        assert_eq!(b.queues[0].0.counters().invalid, 1);
        // Its control thread finds nobody to tell.
        std::thread::sleep(Duration::from_millis(50));
    });
    bench.event("quarantine", |event| matches!(event, Event::Quarantined { .. }).then_some(()));
}

#[test]
fn a_complaint_to_a_former_broker_keeps_none_back_from_one_that_counts_generations_anew() {
    let Hostile { mut bench, raw, memory, mut b } = Hostile::new("anew");
    memory.index(HEAD).store(12, Ordering::Release);
    assert!(b.queues[0].0.recv().is_empty());
    bench.event("quarantine", |event| matches!(event, Event::Quarantined { .. }).then_some(()));
    bench.forget_segments();
    drop(raw);
    let raw = bench.connect("a");
    raw.hello();
    let memory = raw.join(&bench, &mut b);
    memory.index(HEAD).store(12, Ordering::Release);
    assert!(b.queues[0].0.recv().is_empty());
    bench.event("quarantine", |event| matches!(event, Event::Quarantined { .. }).then_some(()));
}

fn refusal(event: Event) -> Option<String> {
    if let Event::Refused { reason, .. } = event { Some(reason) } else { None }
}

#[test]
fn frames_before_a_broken_record_are_delivered() {
    let mut hostile = Hostile::new("before");
    hostile.write(&[(0, 60), (72, 60), (144, 0)], 216);
    assert_eq!(hostile.b.queues[0].0.recv().len(), 2);
    hostile.expect_quarantine("a record has no bytes");
}

#[test]
fn a_writer_does_not_follow_a_tail_that_cannot_be() {
    let size = u64::from(vport::broker::RING_BYTES_MIN);
    for (n, tail) in [8, 12, size, u64::MAX - 7].into_iter().enumerate() {
        let mut hostile = Hostile::new(&format!("tail{n}"));
        hostile.memory.index(TAIL).store(tail, Ordering::Release);
        let frame = [1; 1_000];
        let accepted: usize = (0..200).map(|_| hostile.b.queues[0].1.send(&[PacketRef::from_slice(&frame)])).sum();
        assert!(accepted < 200 && accepted as u64 * 1_008 <= size);
        let rule = if tail == 12 { "a position is misaligned" } else { "the tail is not within one ring of the head" };
        if n == 0 {
            // What was published covers it by now: a reader that says it has read eight bytes may have.
            continue;
        }
        hostile.expect_quarantine(rule);
    }
}

/// The frames are its own: it can have what it likes instead of them, and nobody else is told anything by what it writes there.
#[test]
fn what_a_reader_writes_over_the_frames_that_it_is_sent_is_seen_by_nobody_else() {
    const RING: usize = vport::broker::RING_BYTES_MIN as usize;
    let bench = Bench::of("inbox", LinkKind::SharedRecords);
    let raw = bench.connect("a");
    raw.hello_shared();
    let mut b = bench.honest();
    let (memory, inbox, head) = raw.join_shared(&bench, &mut b);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let header = [0, 1, 60, 72, 9_600, 9_601, 1 << 32, n][(n >> 61) as usize];
                inbox.word((n >> 33) as usize % (RING / 8) * 8).store(header, Ordering::Relaxed);
            }
        });
        let (rx, tx) = &mut b.queues[0];
        let mut sent = 0;
        let until = Instant::now() + Duration::from_millis(300);
        let frames = [[7; 64].as_slice(), &[7; 300], &[7; 1_500]].map(PacketRef::from_slice);
        while Instant::now() < until {
            // Alone, and in bursts.
            for count in [1, 3] {
                sent += tx.send(&frames[..count]);
            }
            // Everything is read, as far as the sender is told.
            memory.index(TAIL).store(head.load(Ordering::Acquire), Ordering::Release);
            assert!(rx.recv().is_empty());
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(tx.counters().packets, sent as u64);
        assert!(sent > 10_000, "{sent}");
        assert_eq!((tx.counters().refused, rx.counters().invalid), (0, 0));
    });
    assert!(bench.broker.ports().unwrap()[1].quarantined.is_none());
}

/// An Ethernet frame whose IPv4 destination belongs to queue `queue` of two, as words.
fn frame_for(queue: u8) -> Vec<u64> {
    let host = (0..).find(|host| address_bucket([10, 0, 0, *host].into()) % 2 == queue).unwrap();
    let mut frame = [0; 40];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[30..34].copy_from_slice(&[10, 0, 0, host]);
    frame.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn a_frame_on_a_queue_that_does_not_own_its_bucket_is_dropped_and_counted() {
    let steered = PortInfo { queues: 2, steering: Steering::UeAddress, ..PortInfo::named("p") };
    let bench = Bench::between("bucket", false, [PortInfo::named("p"), steered]);
    let raw = bench.connect("a");
    raw.hello();
    let mut b = bench.honest();
    let memory = raw.join(&bench, &mut b);
    // To queue 0: frames of queue 1 and of queue 0, and in the end a record that breaks a rule.
    for (at, queue) in [(0, 1), (48, 0), (96, 0), (144, 1)] {
        memory.records(at).store(40, Ordering::Relaxed);
        for (n, word) in frame_for(queue).into_iter().enumerate() {
            memory.records(at + 8 + 8 * n).store(word, Ordering::Relaxed);
        }
    }
    memory.records(192).store(0, Ordering::Relaxed);
    memory.index(HEAD).store(96, Ordering::Release);
    let rx = &mut b.queues[0].0;
    assert_eq!(rx.recv().len(), 1);
    assert_eq!((rx.counters().packets, rx.counters().invalid), (1, 1));
    memory.index(HEAD).store(240, Ordering::Release);
    assert_eq!(rx.recv().len(), 1, "what came before is delivered");
    assert_eq!((rx.counters().packets, rx.counters().invalid), (2, 3));
    assert!(rx.recv().is_empty() && b.queues[1].0.recv().is_empty());
    bench.event("quarantine", |event| matches!(event, Event::Quarantined { .. }).then_some(()));
}

/// What is held is given back as a whole, whatever was passed over since.
#[test]
fn a_foreign_frame_behind_one_that_is_held_keeps_no_queue_awake() {
    let steered = PortInfo { queues: 2, steering: Steering::UeAddress, ..PortInfo::named("p") };
    let bench = Bench::between("passed", false, [PortInfo::named("p"), steered]);
    let raw = bench.connect("a");
    raw.hello();
    let mut b = bench.honest();
    let memory = raw.join(&bench, &mut b);
    let send = |at: usize, queue| {
        let words = std::iter::once(40).chain(frame_for(queue));
        words.enumerate().for_each(|(n, word)| memory.records(at + 8 * n).store(word, Ordering::Relaxed));
        memory.index(HEAD).store(at as u64 + 48, Ordering::Release);
    };
    let rx = &mut b.queues[0].0;
    send(0, 0);
    let (count, end) = rx.recv_held(Steering::None).map(|held| (held.len(), held.end())).expect("a link that copies");
    assert_eq!(count, 1);
    send(48, 1);
    assert!(rx.recv_held(Steering::None).is_some_and(|held| held.is_empty()));
    assert_eq!(rx.counters().invalid, 1);
    assert!(!rx.arm(), "something is held");
    rx.give_back(end);
    assert!(rx.arm());
    rx.disarm();
    send(96, 0);
    assert_eq!(rx.recv().len(), 1);
}

/// Whoever looks at a frame where it lies and tells another thread of it has seen other bytes than that thread may find, which looks
/// itself.
#[test]
fn a_frame_that_becomes_another_is_to_the_thread_that_takes_it_what_it_is_then() {
    let hostile = Hostile::new("becomes");
    let (mut to, mut from) = relay(64 << 10, 192).unwrap();
    let write = |at: usize, queue| {
        let words = std::iter::once(40).chain(frame_for(queue));
        words.enumerate().for_each(|(n, word)| hostile.memory.records(at + 8 * n).store(word, Ordering::Relaxed));
    };
    [0, 48, 96].into_iter().for_each(|at| write(at, 0));
    hostile.memory.index(HEAD).store(144, Ordering::Release);
    let mut b = hostile.b;
    let held = b.queues[0].0.recv_held(Steering::None).expect("a link that copies");
    assert_eq!(held.len(), 3);
    assert!(held.shares(Steering::UeAddress, &BucketTable::fixed(2), &BucketCounts::default()).eq([(0, 0b111)]));
    assert_eq!(to.send_share(&held, 0b111), 0);
    write(48, 1);
    let burst = from.recv();
    let parities: Vec<u8> = (0..3).map(|at| Steering::UeAddress.bucket(burst.get(at).head) % 2).collect();
    assert_eq!(parities, [0, 1, 0]);
}

#[test]
fn nothing_is_sent_to_a_port_without_a_table() {
    for (test, queues) in [("no-table", 1), ("no-table-2", 2)] {
        let mut hostile = Hostile::without_table(test, queues);
        assert_eq!(hostile.b.queues[0].1.send(&[PacketRef::from_slice(&[0; 60])]), 0);
        hostile.memory.open_table();
        assert_eq!(hostile.b.queues[0].1.send(&[PacketRef::from_slice(&[0; 60])]), 1);
    }
}

#[test]
fn a_writer_does_not_follow_a_table_that_cannot_be() {
    for (n, owners) in [2, 0xff << 56, 0x0101_0101_0201_0101, u64::MAX].into_iter().enumerate() {
        let mut hostile = Hostile::without_table(&format!("table{n}"), 2);
        hostile.memory.table(128 + 128 + 8 * (n * 5)).store(owners, Ordering::Relaxed);
        hostile.memory.table(0).store(1, Ordering::Release);
        for _ in 0..2 {
            assert_eq!(hostile.b.queues[0].1.send(&[PacketRef::from_slice(&[0; 60])]), 0);
        }
        assert_eq!(hostile.b.queues[0].1.counters().no_peer, 1);
        hostile.expect_quarantine("a bucket belongs to a queue that does not exist");
    }
}

#[test]
fn a_table_that_changes_all_the_time_never_leads_out_of_the_ports_queues() {
    let hostile = Hostile::without_table("scribble", 2);
    let (memory, mut b) = (hostile.memory, hostile.b);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let memory = &memory;
            let mut n = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                memory.table(128 + (n >> 33) as usize % 32 * 8).store(n & 0x0101_0101_0101_0101, Ordering::Relaxed);
                memory.table(0).store(n >> 40, Ordering::Release);
            }
        });
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            b.queues[0].1.send(&[PacketRef::from_slice(&[0; 60])]);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Its rings are full by then, and it has read nothing.
    assert_eq!(b.queues[0].1.counters().no_peer, 0);
}

#[test]
fn the_words_of_an_older_broker_reach_the_function() {
    let path = std::env::temp_dir().join(format!("kaista-vport-{}-older", std::process::id()));
    let socket = vport::broker::Broker::bind(&path).unwrap();
    let older = std::thread::spawn(move || {
        let mut fds = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        let raw = Raw { socket: rustix::net::accept(&socket).unwrap() };
        let mut hello = [0; 64];
        let (len, _) = rustix::net::recv(&raw.socket, &mut hello, rustix::net::RecvFlags::empty()).unwrap();
        let Ok(Request::Hello { oldest, newest, .. }) = Request::decode(&hello[..len]) else { panic!() };
        assert!(oldest > 1, "this library cannot do without tables");
        let reason = format!("this broker speaks version 1, not {oldest} to {newest}");
        raw.send(&Reply::Refused { reason, try_again: false }.encode(), &[]);
    });
    let error = attach(&path, "p", PATIENCE, 192).err().unwrap();
    assert_eq!(error.to_string(), format!("this broker speaks version 1, not {VERSION} to {VERSION_NEWEST}"));
    older.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_head_that_changes_all_the_time_is_read_once_a_look() {
    let mut hostile = Hostile::new("flicker");
    let memory = hostile.memory;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Lawful frames whose bytes and lengths change under the reader.
        let scribbler = scope.spawn(|| {
            let memory = &memory;
            let mut n = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                memory.records((n >> 33) as usize % 512 * 8).store(n >> 20, Ordering::Relaxed);
                memory.index(HEAD).store(4096, Ordering::Release);
            }
        });
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            let burst = hostile.b.queues[0].0.recv();
            for i in 0..burst.len() {
                let packet = burst.get(i);
                let mut copy = vec![0; packet.len()];
                packet.copy_to(&mut copy);
                assert!(packet.head.len() <= 192 && packet.len() <= 9_600);
            }
        }
        stop.store(true, Ordering::Relaxed);
        scribbler.join().unwrap();
    });
}

#[test]
fn a_client_that_breaks_the_handshake_is_refused_in_words() {
    let hello = |oldest, newest| Request::Hello { oldest, newest, port: "p".into(), resume: 0 }.encode();
    let cases: [(&str, Vec<Vec<u8>>); 10] = [
        ("not a port message", vec![b"GET / HTTP/1.1\r\n".to_vec()]),
        ("unknown message kind 99", vec![[b"KPRT".as_slice(), &[99, 0]].concat()]),
        ("the message is too short", vec![hello(VERSION, VERSION)[..10].to_vec()]),
        ("the message is too long", vec![[hello(VERSION, VERSION), vec![0]].concat()]),
        ("the message is longer than any", vec![vec![0; 10_000]]),
        ("this broker speaks version 2, not 3 to 9", vec![hello(3, 9)]),
        // A library from before bucket tables.
        ("this broker speaks version 2, not 1 to 1", vec![hello(1, 1)]),
        ("a connection begins with a greeting", vec![Request::Mapped { generation: 1 }.encode()]),
        ("one connection holds one port", vec![hello(VERSION, VERSION), hello(VERSION, VERSION)]),
        (
            "no such rule",
            vec![hello(VERSION, VERSION), Request::Quarantine { generation: 0, queue: 0, violation: 77 }.encode()],
        ),
    ];
    let bench = Bench::new("refused", false);
    for (reason, messages) in cases {
        let raw = bench.connect("a");
        messages.iter().for_each(|message| raw.send(message, &[]));
        assert_eq!(raw.refusal(), reason);
        let told = bench.event("refusal", |event| match event {
            Event::Refused { reason, .. } => Some(reason),
            _ => None,
        });
        assert_eq!(told, reason);
    }
}

#[test]
fn a_client_that_sends_descriptors_is_refused_and_they_are_closed() {
    let bench = Bench::new("descriptors", false);
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    for count in [1, 40] {
        let raw = bench.connect("a");
        let hello = Request::Hello { oldest: VERSION, newest: VERSION, port: "p".into(), resume: 0 }.encode();
        match raw.try_send(&hello, &vec![writing.as_fd(); count]) {
            Ok(()) => assert_eq!(raw.refusal(), "a port sends no file descriptors"),
            // Since Linux 6.16 none leaves the client.
            Err(error) => assert_eq!(error, rustix::io::Errno::PERM),
        }
    }
    drop(writing);
    assert_eq!(rustix::io::read(&reading, &mut [0; 1]).unwrap(), 0, "nobody holds the writing end any more");
}

#[test]
fn a_client_that_says_nothing_is_sent_away() {
    let bench = Bench::new("silent", false);
    assert_eq!(bench.connect("a").refusal(), "no answer in time");
}

#[test]
fn a_flood_of_messages_is_cut_off() {
    let bench = Bench::new("flood", false);
    let raw = bench.connect("a");
    raw.hello();
    (0..1_000).for_each(|_| raw.say(&Request::Report(vec![])));
    assert_eq!(raw.refusal(), "too many messages");
}

#[test]
fn answers_to_generations_that_are_over_do_no_harm() {
    let bench = Bench::new("stale", false);
    let raw = bench.connect("a");
    raw.hello();
    for generation in [0, 1, 7, u64::MAX] {
        raw.say(&Request::Mapped { generation });
        raw.say(&Request::Ready { generation });
        raw.say(&Request::Quarantine { generation, queue: 0, violation: 1 });
    }
    raw.join(&bench, &mut bench.honest());
}

#[test]
fn a_generation_from_the_future_does_not_confuse_the_broker() {
    let bench = Bench::new("future", false);
    let raw = bench.connect("a");
    raw.say(&Request::Hello { oldest: VERSION, newest: VERSION, port: "p".into(), resume: u64::MAX });
    let Some((Reply::Welcome { resumed: false, .. }, _)) = raw.receive() else { panic!() };
    raw.join(&bench, &mut bench.honest());
}

#[test]
fn clients_that_stall_do_not_keep_others_waiting() {
    let bench = Bench::new("stall", false);
    // One never maps, one never reads; dozens say nothing at all.
    let stalled = bench.connect("a");
    stalled.hello();
    let silent: Vec<Raw> = (0..60).map(|_| bench.connect("b")).collect();
    let b = bench.honest();
    bench.broker.ports().unwrap();
    assert_eq!(stalled.take_own().fds.len(), 4);
    drop((silent, b));
}

#[test]
fn too_many_connections_of_one_function_are_refused() {
    let bench = Bench::new("many", false);
    let many: Vec<Raw> = (0..70).map(|_| bench.connect("a")).collect();
    assert_eq!(many[69].refusal(), "a has 64 connections already");
    bench.honest();
}

#[test]
fn other_users_are_refused() {
    use vport::broker::{Broker, Config};
    let bench = Bench::new("users", false);
    let broker = Broker::start(Config::default(), |_| {}).unwrap();
    let mine = rustix::process::getuid().as_raw();
    broker.listen("a", Broker::bind(&bench.directory.join("a")).unwrap(), mine + 1..mine + 9).unwrap();
    assert_eq!(bench.connect("a").refusal(), format!("user {mine} may not use the ports of a"));
}

#[test]
fn attaching_over_and_over_makes_generations_no_faster_than_allowed() {
    let bench = Bench::new("churn", false);
    let b = bench.honest();
    let start = Instant::now();
    for _ in 0..200 {
        let raw = bench.connect("a");
        raw.hello();
        raw.receive().unwrap();
    }
    bench.until("the last is gone", |ports| ports[0].pid.is_none());
    let made = bench.broker.ports().unwrap()[0].generation;
    assert!(u128::from(made) <= start.elapsed().as_millis() / 20 + 1);
    drop(b);
}

#[test]
fn a_port_that_is_opened_and_closed_all_the_time_tells_the_broker_s_owner_no_more_than_so_often() {
    let bench = Bench::new("openings", false);
    let start = Instant::now();
    let refusals = (0..2_000).filter(|_| {
        let raw = bench.connect("a");
        raw.hello();
        matches!(raw.receive(), Some((Reply::Refused { reason, try_again: true }, _)) if reason == "port p is opened too often")
    });
    assert!(refusals.count() > 0);
    let most = 200 + start.elapsed().as_millis() as usize / 20 + 1;
    bench.until("the last is gone", |ports| ports[0].pid.is_none());
    let told = |events: &[Event], wanted: fn(&Event) -> bool| events.iter().filter(|event| wanted(event)).count();
    let events: Vec<Event> = bench.events.try_iter().collect();
    let opened = told(&events, |event| matches!(event, Event::Attached { .. }));
    assert!((1..=most).contains(&opened), "{opened} times in place of {most}");
    assert_eq!(told(&events, |event| matches!(event, Event::Detached { .. })), opened);
}

/// Whether it waits, or is about to have the other's place.
#[test]
fn an_heir_at_a_link_that_is_removed_is_sent_away_and_inherits_nothing() {
    for (test, is_ready) in [("heir-waits", false), ("heir-ready", true)] {
        let Hostile { bench, raw, b: _b, .. } = Hostile::new(test);
        bench.broker.allow_succession("a", true).unwrap();
        let heir = bench.connect("a");
        heir.say(&Request::Succeed { oldest: VERSION, newest: VERSION, port: "p".into() });
        assert!(matches!(heir.receive(), Some((Reply::Welcome { .. }, _))));
        if is_ready {
            heir.say(&Request::TakeOver);
            heir.take_own();
        }
        bench.broker.remove_link("link").unwrap();
        for client in [&heir, &raw] {
            let mut refused = None;
            while refused.is_none() {
                assert!(client.has_mail_within(PATIENCE), "in vain: words");
                match client.receive() {
                    Some((Reply::Refused { reason, .. }, _)) => refused = Some(reason),
                    Some((Reply::Over { .. }, _)) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(refused.as_deref(), Some("link link was removed"));
        }
        assert!(bench.broker.ports().unwrap().is_empty());
    }
}

/// In the middle of the handshake, when its segments could still be changed, and after it, when nobody can change them.
#[test]
fn whoever_keeps_what_it_was_given_gets_no_more_than_some_generations_until_it_gives_them_back() {
    for (test, to_the_end) in [("keep-own", false), ("keep-all", true)] {
        let bench = Bench::new(test, false);
        let mut b = bench.honest();
        let (mut kept, refused) = (Vec::new(), Instant::now() + PATIENCE);
        let reason = loop {
            assert!(Instant::now() < refused, "in vain: it is given no more");
            let raw = bench.connect("a");
            raw.hello();
            let Some(own) = raw.take_own_within(Duration::from_millis(500)) else {
                break bench.event("the broker says why", refusal);
            };
            kept.extend(own.fds);
            if to_the_end {
                raw.say(&Request::Mapped { generation: own.generation });
                kept.extend(raw.take_peer());
            }
            let _ = b.queues[0].0.recv();
        };
        assert_eq!(reason, "no new generation of link link: its ends keep too many that are over");
        drop(kept);
        let raw = bench.connect("a");
        raw.hello();
        raw.join(&bench, &mut b);
    }
}
