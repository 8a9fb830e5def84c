//! The busy packet path allocates nothing, locks nothing and makes no system call: run under the realtime sanitizer, which
//! ends the process at the first such call in a function marked nonblocking. `scripts/sanitize.sh` builds this file with
//! `--cfg realtime` and a nightly compiler; elsewhere it is empty.
//!
//! The sanitizer watches the C library. The build therefore makes rustix call that one, not the kernel directly. A lock of
//! the standard library calls nothing while nobody else holds it; it is noticed only where it waits.
#![cfg_attr(realtime, feature(sanitize))]
#![cfg(realtime)]

mod raw;

use std::process::Command;

use raw::{Bench, PATIENCE};
use vport::client::{Attachment, attach};
use vport::packet::{BURST_MAX, PacketRef};

const ROUNDS: usize = 20_000;

/// Two functions over a broker's real segments, both attached, in one thread's hands.
fn pair(test: &str) -> (Bench, [Attachment; 2]) {
    let bench = Bench::new(test, false);
    let mut ends = std::thread::scope(|scope| {
        let attaching = ["a", "b"].map(|function| {
            let path = bench.directory.join(function);
            scope.spawn(move || attach(&path, "p", PATIENCE, 192).unwrap())
        });
        attaching.map(|end| end.join().unwrap())
    });
    bench.until("the link is up", |ports| ports[0].up);
    // Both take the generation over, which may block.
    let probe = [1; 60];
    while ends[0].queues[0].1.send(&[PacketRef::from_slice(&probe)]) == 0 {}
    while ends[1].queues[0].0.recv().is_empty() {}
    while ends[1].queues[0].1.send(&[PacketRef::from_slice(&probe)]) == 0 {}
    while ends[0].queues[0].0.recv().is_empty() {}
    (bench, ends)
}

/// Frames go from `a` to `b`, which forwards what it took, back to `a`; rings run full and empty on the way. Returns how
/// many came back.
#[sanitize(realtime = "nonblocking")]
fn busy([a, b]: &mut [Attachment; 2], frames: &[PacketRef<'_>]) -> usize {
    let mut back = 0;
    for round in 0..ROUNDS {
        a.queues[0].1.send(frames);
        // Now and then b falls behind, until the ring is full.
        if round % 64 < 32 {
            continue;
        }
        for _ in 0..2 {
            let (rx, tx) = &mut b.queues[0];
            let mut burst = rx.recv();
            for i in 0..burst.len() {
                burst.get_mut(i).head_mut().reverse();
                tx.send(&[burst.get(i)]);
            }
            back += a.queues[0].0.recv().len();
        }
    }
    back
}

#[sanitize(realtime = "nonblocking")]
fn allocates() {
    std::hint::black_box(Vec::<u8>::with_capacity(100));
}

#[sanitize(realtime = "nonblocking")]
fn locks(lock: &mut libc::pthread_mutex_t) {
    // SAFETY: an initialised lock that nobody else knows.
    unsafe { libc::pthread_mutex_lock(lock) };
}

/// What is not busy: ringing for a peer that sleeps is one `write`.
#[sanitize(realtime = "nonblocking")]
fn rings(a: &mut Attachment) {
    let frame = [1; 60];
    a.queues[0].1.send(&[PacketRef::from_slice(&frame)]);
}

#[test]
fn sending_and_receiving_allocate_nothing_lock_nothing_and_call_nothing() {
    let (_bench, mut ends) = pair("busy");
    let lens = [60, 64, 128, 300, 1_500, 9_600];
    let frames: Vec<Vec<u8>> = (0..BURST_MAX).map(|n| vec![n as u8; lens[n % lens.len()]]).collect();
    let burst: Vec<PacketRef<'_>> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
    let back = busy(&mut ends, &burst);
    assert!(back > ROUNDS, "{back}");
    let sent = ends[0].queues[0].1.counters();
    assert!(sent.refused > 0 && sent.doorbells == 0, "{sent:?}");
}

/// The process of the test below: does what it is told where that is not allowed.
#[test]
fn child() {
    match std::env::var("KAISTA_TEST_REALTIME").as_deref() {
        Ok("allocates") => allocates(),
        Ok("locks") => locks(&mut libc::PTHREAD_MUTEX_INITIALIZER),
        Ok("rings") => {
            let (_bench, mut ends) = pair("rings");
            while !ends[1].queues[0].0.arm() {
                ends[1].queues[0].0.recv();
            }
            rings(&mut ends[0]);
        }
        _ => {}
    }
}

#[test]
fn the_sanitizer_notices_allocations_locks_and_system_calls() {
    for (what, call) in [("allocates", "malloc"), ("locks", "pthread_mutex_lock"), ("rings", "write")] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env("KAISTA_TEST_REALTIME", what)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = format!("Intercepted call to real-time unsafe function `{call}`");
        assert!(!output.status.success() && said.contains(&expected), "{what}: {said}");
    }
}
