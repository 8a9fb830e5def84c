//! The buffers of a trust group: whoever is killed, whenever, and whatever ends, every buffer comes back.

mod bench;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bench::{Bench, PATIENCE, frame, sent_number};
use port::{BURST_MAX, LONG_BURST_MAX, OpenOptions, PacketRef, Port, PortInfo};
use vport::broker::{ArenaStatus, Broker, Config, EndSpec, Event, LinkKind, LinkSpec, RING_BYTES_MIN};

const GROUP: &str = "group";
/// Buffers of each channel with the smallest rings.
const BUFFERS: u32 = RING_BYTES_MIN / 1024;

fn zero_copy() -> LinkKind {
    LinkKind::ZeroCopy { group: GROUP.into() }
}

/// Not a test: what the child processes of the tests below run, until they are killed.
#[test]
fn child() {
    let Ok(role) = std::env::var("KAISTA_TEST_CHILD") else { return };
    let mut words = role.split(' ');
    let (role, socket) = (words.next().unwrap(), words.next().unwrap());
    let options = OpenOptions { socket: socket.into(), timeout: PATIENCE, ..Default::default() };
    let open = |name: &str| port::open(name, &options).unwrap();
    match role {
        "source" => source(open("out")),
        "middle" => middle(open("in"), open("out")),
        "sink" => sink(open("in")),
        _ => unreachable!(),
    }
}

fn source(mut out: Port) -> ! {
    let frames: Vec<_> = (0..BURST_MAX as u64).map(|n| frame(n, 16 + (n as usize * 37) % 1_400)).collect();
    let packets: Vec<_> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
    loop {
        let port::QueuePair { rx, tx } = &mut out.queues[0];
        let count = 1 + tx.counters().packets as usize % BURST_MAX;
        tx.send(&packets[..count]);
        // Nothing comes. But a queue that is never looked at holds on to its generation.
        rx.recv();
    }
}

/// Forwards without copies, every other burst as a whole; of the rest it keeps some frames, and sends some twice.
fn middle(mut r#in: Port, mut out: Port) -> ! {
    let mut whole = false;
    loop {
        let burst = r#in.queues[0].rx.recv();
        whole = !whole;
        if whole {
            assert!(out.queues[0].tx.send_burst(&burst, 0) <= burst.len());
        }
        for i in (0..burst.len()).filter(|i| !whole && i % 7 != 6) {
            (0..1 + i % 2).for_each(|_| assert!(out.queues[0].tx.send(&[burst.get(i)]) <= 1));
        }
        r#in.queues[0].tx.send(&[]);
        out.queues[0].rx.recv();
    }
}

fn sink(mut r#in: Port) -> ! {
    loop {
        let burst = r#in.queues[0].rx.recv();
        for i in 0..burst.len() {
            let mut bytes = vec![0; burst.get(i).len()];
            burst.get(i).copy_to(&mut bytes);
            sent_number(&bytes);
        }
        r#in.queues[0].tx.send(&[]);
    }
}

/// A source, a function in the middle and a sink, each a process; two links of one trust group between them.
struct Chain {
    broker: Broker,
    directory: std::path::PathBuf,
}

/// A child that is killed at the end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

const FUNCTIONS: [&str; 3] = ["source", "middle", "sink"];

impl Chain {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("kaista-port-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let broker = Broker::start(Config { hugepages: false }, |_| {}).unwrap();
        for function in FUNCTIONS {
            let socket = Broker::bind(&directory.join(function)).unwrap();
            broker.listen(function, socket, 0..u32::MAX).unwrap();
        }
        let end = |function: &str, port| EndSpec::of(function, PortInfo::named(port));
        for (name, from, to) in [("first", "source", "middle"), ("second", "middle", "sink")] {
            let (name, ends) = (name.into(), [end(from, "out"), end(to, "in")]);
            broker.add_link(LinkSpec { name, ends, ring_bytes: RING_BYTES_MIN, kind: zero_copy() }).unwrap();
        }
        Self { broker, directory }
    }

    fn spawn(&self, function: &str) -> Process {
        let socket = self.directory.join(function);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env("KAISTA_TEST_CHILD", format!("{function} {}", socket.display()))
            .stdout(std::process::Stdio::null())
            .spawn();
        Process(child.unwrap())
    }

    fn arena(&self) -> ArenaStatus {
        self.broker.arenas().unwrap().pop().unwrap()
    }

    fn until(&self, what: &str, mut happens: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !happens(self) {
            assert!(Instant::now() < deadline, "in vain: {what}: {:?}", self.broker.arenas());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn received(&self, function: &str) -> u64 {
        let ports = self.broker.ports().unwrap();
        let of_function = ports.iter().filter(|port| port.name.function == function);
        of_function.flat_map(|port| &port.rx).map(|counters| counters.packets).sum()
    }

    fn are_up(&self) -> bool {
        self.broker.ports().unwrap().iter().all(|port| port.up)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// With both links up and nothing else, exactly the buffers of their four channels are out.
#[test]
fn every_buffer_is_back_after_any_process_was_killed_under_load() {
    let chain = Chain::new("killed");
    let mut children = FUNCTIONS.map(|function| Some(chain.spawn(function)));
    for round in 0..100_u64 {
        chain.until("frames reach the sink", |chain| chain.are_up() && chain.received("sink") > 0);
        // Not only when a burst begins: some time later, by a little more every round.
        std::thread::sleep(Duration::from_micros(round * 131 % 3_000));
        let victim = (round * 7 % 3) as usize;
        drop(children[victim].take());
        children[victim] = Some(chain.spawn(FUNCTIONS[victim]));
        chain.until("both links are up", Chain::are_up);
        chain.until("nothing else is out", |chain| {
            let ArenaStatus { buffers, free, .. } = chain.arena();
            buffers - free == 4 * BUFFERS
        });
    }
    assert!(chain.broker.ports().unwrap().iter().all(|port| port.quarantined.is_none()));
    drop(children);
    chain.until("all buffers are back", |chain| chain.arena().free == chain.arena().buffers);
}

#[test]
fn bursts_are_as_long_as_was_asked_for_where_packets_stay_where_they_are() {
    const SENT: usize = BURST_MAX + 20;
    for (bench, longest) in [(Bench::of("long", zero_copy()), SENT), (Bench::new("not-long"), BURST_MAX)] {
        let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
        for (asked_for, most) in [(None, BURST_MAX), (Some(LONG_BURST_MAX), longest), (Some(BURST_MAX), BURST_MAX)] {
            asked_for.into_iter().for_each(|packets| b.queues[0].rx.set_burst_max(packets));
            assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&frame(1, 60)); SENT]), SENT);
            assert_eq!(b.queues[0].rx.recv().len(), most);
            while !b.queues[0].rx.recv().is_empty() {}
        }
    }
}

fn assert_all_come_back(bench: &Bench, out: u32) {
    bench.until("the buffers come back", |_| {
        let ArenaStatus { buffers, free, .. } = bench.broker.arenas().unwrap().pop().unwrap();
        buffers - free == out
    });
}

/// Buffers of a bench's link, which has rings of the default size.
const OUT: u32 = 2 * 1024;

#[test]
fn a_generation_s_buffers_come_back_when_both_ends_have_let_go_of_it() {
    let bench = Bench::of("renewed", zero_copy());
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    assert_all_come_back(&bench, OUT);
    assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&frame(1, 60))]), 1);
    bench.broker.renew("link").unwrap();
    bench.until("the next generation", |ports| ports.iter().all(|port| port.up && port.generation == 2));
    // Neither has looked: both still use the first.
    assert_all_come_back(&bench, 2 * OUT);
    assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&frame(2, 60))]), 1);
    assert_all_come_back(&bench, 2 * OUT);
    let mut numbers = Vec::new();
    bench.until("both frames come", |_| {
        numbers.extend(bench::receive(&mut *b.queues[0].rx).iter().map(|frame| sent_number(frame)));
        bench::receive(&mut *a.queues[0].rx);
        b.queues[0].tx.send(&[]);
        numbers == [1, 2]
    });
    bench.until("they let go", |_| {
        bench::receive(&mut *a.queues[0].rx);
        bench::receive(&mut *b.queues[0].rx);
        let arena = bench.broker.arenas().unwrap().pop().unwrap();
        arena.buffers - arena.free == OUT
    });
    drop((a, b));
    assert_all_come_back(&bench, 0);
}

#[test]
fn a_broker_that_is_replaced_finds_the_stock_in_the_holder_table() {
    let mut bench = Bench::of("stock", zero_copy());
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    let deposited = |bench: &Bench| {
        let segments = bench.events.try_iter().filter_map(|event| match event {
            Event::Deposit { segments, .. } => Some(segments),
            _ => None,
        });
        segments.last().unwrap()
    };
    let held = deposited(&bench);
    bench.restart_broker(Duration::ZERO);
    bench.broker.adopt(bench.spec(PortInfo::named("p"), PortInfo::named("p")), held).unwrap();
    bench.until("both ends are back", |ports| ports.iter().all(|port| port.up && port.generation == 1));
    assert_all_come_back(&bench, OUT);
    bench::pump(&mut a.queues[0], &mut b.queues[0], 5_000);
    drop((a, b));
    assert_all_come_back(&bench, 0);
}
