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
use vport::TxRing;
use vport::broker::LinkKind;
use vport::client::{Attachment, attach};
use vport::info::PortInfo;
use vport::packet::{BURST_MAX, Burst, LONG_BURST_MAX, PacketRef};
use vport::steering::Steering;

const ROUNDS: usize = 20_000;

/// Two functions over a broker's real segments, both attached, in one thread's hands.
fn pair(bench: Bench) -> (Bench, [Attachment; 2]) {
    let mut ends = std::thread::scope(|scope| {
        let attaching = ["a", "b"].map(|function| {
            let path = bench.directory.join(function);
            scope.spawn(move || attach(&path, "p", PATIENCE, 192).unwrap())
        });
        attaching.map(|end| end.join().unwrap())
    });
    bench.until("the link is up", |ports| ports[0].up);
    // All queues take the generation over, which may block.
    let frames: Vec<Vec<u8>> = (0..=u8::MAX).map(|n| frame(n, 60)).collect();
    let burst: Vec<PacketRef<'_>> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        let mut came = vec![0; ends[to].queues.len()];
        while came.contains(&0) {
            ends[from].queues.iter_mut().for_each(|(_, tx)| drop(tx.send(&burst)));
            came.iter_mut().zip(&mut ends[to].queues).for_each(|(came, (rx, _))| *came += rx.recv().len());
        }
        ends[to].queues.iter_mut().for_each(|(rx, _)| while !rx.recv().is_empty() {});
    }
    (bench, ends)
}

/// To the `n`th UE.
fn frame(n: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![n; len];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame
}

/// What a function does with a burst.
type Forward = fn(Burst<'_>, &mut TxRing);

fn each_changed(mut burst: Burst<'_>, tx: &mut TxRing) {
    for i in 0..burst.len() {
        burst.get_mut(i).head_mut()[..12].reverse();
        tx.send(&[burst.get(i)]);
    }
}

fn all_at_once(burst: Burst<'_>, tx: &mut TxRing) {
    tx.send_burst(&burst, 0);
}

/// As a tunnel's end does: one header off, another before.
fn reshaped(mut burst: Burst<'_>, tx: &mut TxRing) {
    for i in 0..burst.len() {
        let mut packet = burst.get_mut(i);
        let (len, mut link) = (packet.len(), [0; 14]);
        link.copy_from_slice(&packet.head()[..14]);
        if let Some(front) = packet.reshape(20, len - 20, 50) {
            front.fill(1);
            front[..14].copy_from_slice(&link);
        }
    }
    tx.send_burst(&burst, 0);
}

/// Frames go from `a` to `b`, which forwards what it took, back to `a`; rings run full and empty on the way. Returns how
/// many came back.
#[sanitize(realtime = "nonblocking")]
fn busy([a, b]: &mut [Attachment; 2], frames: &[PacketRef<'_>], forward: Forward) -> usize {
    let mut back = 0;
    for round in 0..ROUNDS {
        a.queues[0].1.send(frames);
        // Now and then b falls behind, until the ring is full.
        if round % 64 < 32 {
            continue;
        }
        for _ in 0..2 {
            for (rx, tx) in &mut b.queues {
                forward(rx.recv(), tx);
                back += a.queues[0].0.recv().len();
            }
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

/// However a function forwards.
fn assert_busy_calls_nothing(bench: Bench) {
    let (_bench, mut ends) = pair(bench);
    let lens = [60, 64, 128, 300, 1_500, 9_500];
    let frames: Vec<Vec<u8>> = (0..BURST_MAX).map(|n| frame(n as u8, lens[n % lens.len()])).collect();
    let burst: Vec<PacketRef<'_>> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
    for burst_max in [BURST_MAX, LONG_BURST_MAX] {
        ends[1].queues.iter_mut().for_each(|(rx, _)| rx.set_burst_max(burst_max));
        for forward in [each_changed, all_at_once, reshaped] as [Forward; 3] {
            let back = busy(&mut ends, &burst, forward);
            assert!(back > ROUNDS, "{back}");
        }
    }
    let sent = ends[0].queues[0].1.counters();
    assert!(sent.refused > 0 && sent.doorbells == 0, "{sent:?}");
}

#[test]
fn sending_and_receiving_allocate_nothing_lock_nothing_and_call_nothing() {
    assert_busy_calls_nothing(Bench::new("busy", false));
}

#[test]
fn nor_do_they_on_a_zero_copy_link() {
    assert_busy_calls_nothing(Bench::of("busy-zero-copy", LinkKind::ZeroCopy { group: "group".into() }));
}

#[test]
fn nor_do_they_where_frames_are_steered_to_queues() {
    let steered = PortInfo { queues: 4, steering: Steering::UeAddress, ..PortInfo::named("p") };
    assert_busy_calls_nothing(Bench::between("busy-steered", false, [PortInfo::named("p"), steered]));
}

/// The process of the test below: does what it is told where that is not allowed.
#[test]
fn child() {
    match std::env::var("KAISTA_TEST_REALTIME").as_deref() {
        Ok("allocates") => allocates(),
        Ok("locks") => locks(&mut libc::PTHREAD_MUTEX_INITIALIZER),
        Ok("rings") => {
            let (_bench, mut ends) = pair(Bench::new("rings", false));
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
