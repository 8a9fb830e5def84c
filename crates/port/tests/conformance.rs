//! What every backend of the port trait does alike: one suite, run unchanged over shared memory, TAP devices, packet
//! sockets and synthetic ports. A backend that cannot be created here is skipped by name.

mod bench;

use std::process::Command;
use std::time::{Duration, Instant};

use bench::{Bench, PATIENCE};
use port::synthetic::Synthetic;
use port::{BURST_MAX, FRAME_MAX, OpenOptions, PacketRef, Port, PortInfo, RxQueue, Sleep, Waiter};
use vport::broker::LinkKind;

/// EtherType for local experiments: nobody else's frames are looked at.
const OURS: [u8; 2] = [0x88, 0xb5];

/// A port under test.
struct Rig {
    port: Port,
    /// Takes what the port has sent to wherever it leads.
    far: Box<dyn FnMut() -> Vec<Vec<u8>>>,
    /// Whether what the port receives was sent before it was opened, so that it cannot wait for it.
    beforehand: bool,
}

/// Makes a port at which `frames` arrive.
type Backend = fn(frames: &[Vec<u8>]) -> Rig;

fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|n| (number * 31 + n) as u8).collect();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&OURS);
    frame
}

fn is_ours(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&OURS)
}

/// Lengths around everything that is special: heads, blocks, pages, the usual MTU, the longest that the rigs carry.
fn frames() -> Vec<Vec<u8>> {
    let lengths = [60, 61, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 1_000, 1_514, 4_096, 9_014];
    (0..72).map(|n| frame(n, lengths[n % lengths.len()])).collect()
}

fn copy(packet: &PacketRef<'_>) -> Vec<u8> {
    let mut frame = vec![0; packet.len()];
    packet.copy_to(&mut frame);
    frame
}

/// Receives until `count` of our frames have come.
fn receive(rx: &mut dyn RxQueue, count: usize) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut received = Vec::new();
    while received.len() < count {
        let burst = rx.recv();
        assert!(burst.len() <= BURST_MAX);
        let frames = (0..burst.len()).map(|i| copy(&burst.get(i)));
        received.extend(frames.filter(|frame| is_ours(frame)));
        assert!(Instant::now() < deadline, "{} of {count} frames came", received.len());
    }
    received
}

fn taken(rig: &mut Rig, count: usize) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend((rig.far)().into_iter().filter(|frame| is_ours(frame)));
        assert!(Instant::now() < deadline, "{} of {count} frames arrived", taken.len());
    }
    taken
}

fn frames_arrive_whole_and_in_order(backend: Backend) {
    let frames = frames();
    let mut rig = backend(&frames);
    assert_eq!(receive(&mut *rig.port.queues[0].rx, frames.len()), frames);
}

fn frames_leave_whole_and_in_order(backend: Backend) {
    let frames = frames();
    let mut rig = backend(&[]);
    for burst in frames.chunks(7) {
        let packets: Vec<_> = burst.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        assert_eq!(rig.port.queues[0].tx.send(&packets), packets.len());
    }
    assert_eq!(taken(&mut rig, frames.len()), frames);
    assert_eq!(rig.port.queues[0].tx.counters().packets, frames.len() as u64);
}

/// Headers are changed in private memory, and what follows them is passed on without having been looked at.
fn received_frames_can_be_changed_and_sent_on(backend: Backend) {
    let frames = frames();
    let mut rig = backend(&frames);
    let mut forwarded = 0;
    let deadline = Instant::now() + PATIENCE;
    while forwarded < frames.len() {
        let pair = &mut rig.port.queues[0];
        let mut burst = pair.rx.recv();
        for i in 0..burst.len() {
            let mut packet = burst.get_mut(i);
            if !is_ours(packet.head()) {
                continue;
            }
            assert!(packet.head().len() <= 192, "no more than was asked for is private");
            assert!(packet.strip(14));
            packet.prepend(20).unwrap().copy_from_slice(&[[9; 12].as_slice(), &OURS, &[7; 6]].concat());
            assert_eq!(pair.tx.send(&[packet.as_ref()]), 1);
            forwarded += 1;
        }
        assert!(Instant::now() < deadline);
    }
    for (before, after) in frames.iter().zip(taken(&mut rig, frames.len())) {
        assert_eq!(after[..20], [[9; 12].as_slice(), &OURS, &[7; 6]].concat());
        assert_eq!(after[20..], before[14..]);
    }
}

fn lengths_that_no_frame_has_are_taken_and_counted(backend: Backend) {
    let mut rig = backend(&[]);
    let tx = &mut rig.port.queues[0].tx;
    let long = vec![0; FRAME_MAX + 1];
    assert_eq!(tx.send(&[PacketRef::from_slice(&[]), PacketRef::from_slice(&long)]), 2);
    assert_eq!((tx.counters().packets, tx.counters().discarded), (0, 2));
}

fn a_waiter_sleeps_until_frames_come(backend: Backend) {
    let frames = [frame(0, 60)];
    let mut rig = backend(&frames);
    let mut waiter = Waiter::new(Sleep::After(Duration::ZERO));
    let rx = &mut rig.port.queues[0].rx;
    let deadline = Instant::now() + PATIENCE;
    let mut received = 0;
    while received == 0 {
        waiter.wait(&mut [&mut **rx], &[], Some(Duration::from_millis(5))).unwrap();
        let burst = rx.recv();
        received += (0..burst.len()).filter(|i| is_ours(burst.get(*i).head)).count();
        assert!(Instant::now() < deadline);
    }
    if !rig.beforehand {
        // Nothing is left: now it may be armed, and rung for what comes.
        while !rx.arm() {
            rx.recv();
        }
        rx.disarm();
        assert!(!rx.poll_fds().is_empty());
    }
}

fn counters_count(backend: Backend) {
    let frames = frames();
    let mut rig = backend(&frames);
    let rx = &mut rig.port.queues[0].rx;
    receive(&mut **rx, frames.len());
    let counters = rx.counters();
    assert!(counters.packets >= frames.len() as u64 && counters.polls >= counters.empty_polls);
    assert!(counters.bytes >= frames.iter().map(|frame| frame.len() as u64).sum());
    assert_eq!(counters.invalid, 0);
}

fn suite(backend: Backend) {
    frames_arrive_whole_and_in_order(backend);
    frames_leave_whole_and_in_order(backend);
    received_frames_can_be_changed_and_sent_on(backend);
    lengths_that_no_frame_has_are_taken_and_counted(backend);
    a_waiter_sleeps_until_frames_come(backend);
    counters_count(backend);
}

/// A rig whose other end is a port too, which sends `frames`.
fn between(port: Port, mut other: Port, frames: &[Vec<u8>], keep: impl Sized + 'static) -> Rig {
    for frame in frames {
        let packet = [PacketRef::from_slice(frame)];
        while other.queues[0].tx.send(&packet) == 0 {}
    }
    let far = move || {
        let _ = &keep;
        let burst = other.queues[0].rx.recv();
        (0..burst.len()).map(|i| copy(&burst.get(i))).collect()
    };
    Rig { port, far: Box::new(far), beforehand: false }
}

fn over_link(frames: &[Vec<u8>], kind: LinkKind) -> Rig {
    static TURN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let turn = TURN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let bench = Bench::of(&format!("conformance{turn}"), kind);
    let (a, b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    between(a, b, frames, bench)
}

#[test]
fn shared_memory() {
    suite(|frames| over_link(frames, LinkKind::Direct));
}

#[test]
fn shared_memory_without_copies() {
    suite(|frames| over_link(frames, LinkKind::ZeroCopy { group: "group".into() }));
}

#[test]
fn synthetic() {
    suite(|frames| {
        let (port, captured) = Synthetic::new(frames.to_vec()).once().open_captured();
        Rig { port, far: Box::new(move || captured.take()), beforehand: true }
    });
}

/// Runs a test in a network namespace of its own, on a thread of its own.
fn in_new_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    let refused = std::thread::spawn(move || {
        if let Err(errno) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            return Some(errno);
        }
        // The kernel's own neighbour discovery would only be in the way.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        test();
        None
    });
    match refused.join() {
        Ok(Some(errno)) => println!("SKIPPED {name}: no network namespace can be made here ({errno})"),
        Ok(None) => {}
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().expect("ip (package iproute2)");
    assert!(done.success(), "ip {arguments}");
}

/// Sets an interface up. The kernel calls it up when its carrier is there, and sends nothing before.
fn up(names: &[&str]) {
    names.iter().for_each(|name| ip(&format!("link set {name} up")));
    let deadline = Instant::now() + PATIENCE;
    for name in names {
        loop {
            let shown = Command::new("ip").args(["-o", "link", "show", name]).output().unwrap();
            // A TAP device's state stays unknown.
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            if ["state UP", "state UNKNOWN"].iter().any(|state| shown.contains(state)) && shown.contains("LOWER_UP") {
                break;
            }
            assert!(Instant::now() < deadline, "{name} does not come up");
        }
    }
}

/// Opens a port. A TAP device of the test before is still busy while a program that another test starts has not yet let
/// go of the descriptors of this process.
fn opened(name: &str) -> Port {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match port::open(name, &OpenOptions::default()) {
            Err(port::OpenError::Io(error)) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                assert!(Instant::now() < deadline, "{name} stays busy");
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn tap_device() {
    let backend: Backend = |frames| {
        let tap = opened("tap:kt0");
        ip("link set kt0 mtu 9200");
        up(&["kt0"]);
        between(tap, opened("packet:kt0"), frames, ())
    };
    in_new_namespace("tap_device", move || suite(backend));
}

#[test]
fn packet_socket() {
    let backend: Backend = |frames| {
        let _ = Command::new("ip").args(["link", "del", "kv0"]).stderr(std::process::Stdio::null()).status();
        ip("link add kv0 type veth peer name kv1");
        ip("link set kv0 mtu 9200");
        ip("link set kv1 mtu 9200");
        up(&["kv0", "kv1"]);
        between(opened("packet:kv0"), opened("packet:kv1"), frames, ())
    };
    in_new_namespace("packet_socket", move || suite(backend));
}

/// What the kernel's own TCP sends by an interface comes out of a packet port as a network card would send it.
#[test]
fn packet_socket_finishes_what_was_left_to_a_network_card() {
    let name = "packet_socket_finishes_what_was_left_to_a_network_card";
    in_new_namespace(name, || {
        ip("link add kv0 type veth peer name kv1");
        up(&["kv0", "kv1"]);
        ip("addr add 10.9.0.1/24 dev kv0");
        ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:09 dev kv0");
        let mut far = opened("packet:kv1");
        // Large UDP packets leave with checksums unfinished; a frame is sound if its checksum comes out as it should.
        let socket = std::net::UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.send_to(&[5; 1_000], "10.9.0.2:9").unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let burst = far.queues[0].rx.recv();
            for i in 0..burst.len() {
                let frame = copy(&burst.get(i));
                if frame[12..14] == [8, 0] && frame[23] == 17 {
                    let pseudo = sum(&frame[26..34]) + 17 + 1_008;
                    assert_eq!((pseudo + sum(&frame[34..])) % 0xffff, 0, "unfinished checksum");
                    return;
                }
            }
            assert!(Instant::now() < deadline);
        }
    });
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}
