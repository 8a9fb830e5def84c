//! How fast two functions forward between two links: each receives on either port, swaps the Ethernet addresses, and sends
//! by the other one, so that the same frames go round for ever. Prints Mpps per port and direction, once a second. Or,
//! `together`, in turns on one thread: nanoseconds of that thread for a packet, received, changed and sent, without what
//! cache lines cost between cores; that can be measured on a busy host too.
//!
//! `forward [direct|shared-records|zero-copy] [bytes a frame] [frames on each way] [seconds] [ring bytes] [together]`; the functions run
//! on cores 0 and 1.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use vport::broker::{Broker, Config, EndSpec, LinkKind, LinkSpec, RING_BYTES_DEFAULT};
use vport::client::attach;
use vport::info::PortInfo;
use vport::packet::{BURST_MAX, PacketRef, Rest};
use vport::{RxRing, TxRing};

type Pair = (RxRing, TxRing);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: usize| words.get(at).map_or(or, |word| word.parse().expect("a number"));
    let (bytes, frames, seconds) = (number(1, 64), number(2, 256), number(3, 5));
    let kind = match words.first().map(String::as_str) {
        None | Some("direct") => LinkKind::Direct,
        Some("shared-records") => LinkKind::SharedRecords,
        Some("zero-copy") => LinkKind::ZeroCopy { group: "group".into() },
        Some(other) => panic!("{other} is no kind of link"),
    };
    let directory = std::env::temp_dir().join(format!("forward-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let broker = Broker::start(Config::default(), |event| eprintln!("{event:?}")).expect("a broker");
    for function in ["a", "b"] {
        let socket = Broker::bind(&directory.join(function)).expect("a socket");
        broker.listen(function, socket, 0..u32::MAX).expect("a function");
    }
    for port in ["p0", "p1"] {
        let ends = ["a", "b"].map(|function| EndSpec::of(function, PortInfo::named(port)));
        let ring_bytes = number(4, RING_BYTES_DEFAULT as usize) as u32;
        broker.add_link(LinkSpec { name: port.into(), ends, ring_bytes, kind: kind.clone() }).expect("a link");
    }
    let open = |function: &str, port: &str| -> Pair {
        let attached = attach(&directory.join(function), port, Duration::from_secs(5), 192).expect("a port");
        attached.queues.into_iter().next().expect("a queue")
    };
    let mut functions = ["a", "b"].map(|function| [open(function, "p0"), open(function, "p1")]);
    while !broker.ports().expect("a broker").iter().all(|port| port.up) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The first receive takes the link's channels over.
    functions.iter_mut().flatten().for_each(|(rx, _)| assert!(rx.recv().is_empty()));
    let frame = vec![2; bytes];
    for (_, tx) in functions.iter_mut().flatten() {
        (0..frames).for_each(|_| assert_eq!(tx.send(&[PacketRef::from_slice(&frame)]), 1));
    }
    if words.get(5).is_some_and(|word| word == "together") {
        in_turns(&mut functions, seconds);
        return std::fs::remove_dir_all(&directory).expect("the directory");
    }
    let (stop, forwarded) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (core, mut ports) in functions.into_iter().enumerate() {
            let (stop, forwarded) = (&stop, &forwarded);
            scope.spawn(move || {
                let mut set = CpuSet::new();
                set.set(core);
                sched_setaffinity(None, &set).expect("a core");
                while !stop.load(Ordering::Relaxed) {
                    let [(rx0, tx0), (rx1, tx1)] = &mut ports;
                    let count = forward(rx0, tx1, stop) + forward(rx1, tx0, stop);
                    if core == 0 {
                        forwarded.store(forwarded.load(Ordering::Relaxed) + count, Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..seconds {
            let (begin, before) = (Instant::now(), forwarded.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_secs(1));
            let count = (forwarded.load(Ordering::Relaxed) - before) as f64;
            println!("{:.2}", count / 2.0 / begin.elapsed().as_secs_f64() / 1e6);
        }
        stop.store(true, Ordering::Relaxed);
    });
    std::fs::remove_dir_all(&directory).expect("the directory");
}

fn in_turns(functions: &mut [[Pair; 2]; 2], seconds: usize) {
    let on = AtomicBool::new(false);
    for _ in 0..seconds {
        let (begin, before, mut packets) = (Instant::now(), thread_ns(), 0);
        while begin.elapsed() < Duration::from_secs(1) {
            for _ in 0..100 {
                for [(rx0, tx0), (rx1, tx1)] in functions.iter_mut() {
                    packets += forward(rx0, tx1, &on) + forward(rx1, tx0, &on);
                }
            }
        }
        println!("{:.2}", (thread_ns() - before) as f64 / packets as f64);
    }
}

/// Time that this thread has run.
fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[inline(always)]
fn forward(rx: &mut RxRing, tx: &mut TxRing, stop: &AtomicBool) -> u64 {
    let mut burst = rx.recv();
    let count = burst.len();
    let mut leaving = [PacketRef { head: &[], rest: Rest::EMPTY }; BURST_MAX];
    for i in 0..count {
        let mut packet = burst.get_mut(i);
        let (to, from) = packet.head_mut()[..12].split_at_mut(6);
        to.swap_with_slice(from);
    }
    for (i, packet) in leaving[..count].iter_mut().enumerate() {
        *packet = burst.get(i);
    }
    let mut sent = 0;
    while sent < count && !stop.load(Ordering::Relaxed) {
        sent += tx.send(&leaving[sent..count]);
    }
    count as u64
}
