//! One way from a thread that sends as fast as the port takes packets to one that receives and drops them, beside a bare
//! copy of the same records ([`vport::raw_copy`]) between the same cores.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use port::{BURST_MAX, PacketRef, QueuePair};
use serde::Serialize;
use serde_json::json;
use traffic::cores::pin;
use vport::broker::RING_BYTES_DEFAULT;
use vport::raw_copy::{FRAME, RawCopy, Stores};

use super::{Args, Bench, Found, part};
use crate::cores::round_trip_ns;
use crate::line::Line;
use crate::links::{Links, end};

/// Pauses of the processor after a look that found nothing: with many, packets gather, and the producer keeps the line
/// that it writes.
const PAUSES: [u32; 2] = [0, 100];
const WARM_UP: Duration = Duration::from_millis(200);
/// How long a packet may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// One run: the best rates of the bare copy and of the port, in millions of packets a second.
#[derive(Clone, Debug, Serialize)]
struct OneWay {
    raw_copy_mpps: f64,
    raw_copy: String,
    port_mpps: f64,
    port: String,
    hugepages: bool,
}

pub(super) fn measure(bench: &Bench, args: &Args, found: &mut Found) -> anyhow::Result<()> {
    let window = Duration::from_secs_f64(args.seconds);
    let runs = bench.each_round(
        args.rounds,
        "one way, beside a bare copy",
        found,
        |trips| one_way(bench.cores, window, trips),
        |samples, run| {
            if !run.moved {
                let OneWay { raw_copy_mpps, port_mpps, .. } = run.value;
                samples.add("link.raw_copy.64B.mpps", raw_copy_mpps, "Mpps");
                samples.add("link.direct.64B.one_way_mpps", port_mpps, "Mpps");
                samples.add("link.direct.64B.share_of_raw_copy", port_mpps / raw_copy_mpps, "1");
            }
        },
    )?;
    let how = json!({"ring_bytes": RING_BYTES_DEFAULT, "burst": BURST_MAX, "frame": FRAME,
        "chosen": "the best of the ways tried, of either"});
    found.parts.insert("raw".into(), part(how, &runs));
    Ok(())
}

/// Runs the port between the ways of the bare copy, so that what changes meanwhile hits both.
fn one_way(cores: [usize; 2], window: Duration, trips: &mut Vec<f64>) -> anyhow::Result<OneWay> {
    let (mut raw, mut port) = (Best::default(), Best::default());
    for (pauses, name) in PAUSES.into_iter().zip(["polling without pause", "polling with pauses"]) {
        for (stores, stored) in [(Stores::Ordinary, "ordinary stores"), (Stores::Streamed, "streamed stores")] {
            raw.offer(bare(stores, pauses, cores, window)?, format!("{stored}, {name}"));
            trips.push(round_trip_ns(cores)?);
        }
        port.offer(through_port(pauses, cores, window)?, name.to_owned());
    }
    Ok(OneWay {
        raw_copy_mpps: raw.mpps,
        raw_copy: raw.how,
        port_mpps: port.mpps,
        port: port.how,
        hugepages: RawCopy::new(RING_BYTES_DEFAULT)?.is_huge(),
    })
}

/// The best of several ways.
#[derive(Debug, Default, PartialEq)]
struct Best {
    mpps: f64,
    how: String,
}

impl Best {
    fn offer(&mut self, mpps: f64, how: String) {
        if mpps > self.mpps {
            *self = Self { mpps, how };
        }
    }
}

/// Millions of packets a second of the bare copy.
fn bare(stores: Stores, pauses: u32, cores: [usize; 2], window: Duration) -> anyhow::Result<f64> {
    let copy = RawCopy::new(RING_BYTES_DEFAULT)?;
    let (received, stop) = (Line::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| -> anyhow::Result<()> {
            pin(cores[0])?;
            Ok(copy.produce(stores, &stop)?)
        });
        let consumer = scope.spawn(|| -> anyhow::Result<()> {
            pin(cores[1])?;
            Ok(copy.consume(pauses, &received.0, &stop)?)
        });
        counted([producer, consumer], &received.0, &stop, window)
    })
}

/// Millions of packets a second through a direct link.
fn through_port(pauses: u32, cores: [usize; 2], window: Duration) -> anyhow::Result<f64> {
    let links = Links::new([[end("producer", "out"), end("consumer", "in")]])?;
    let (out, input) = (links.open("producer", "out")?, links.open("consumer", "in")?);
    let (received, stop) = (Line::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| -> anyhow::Result<()> {
            pin(cores[0])?;
            send_all(out, &stop);
            Ok(())
        });
        let consumer = scope.spawn(|| -> anyhow::Result<()> {
            pin(cores[1])?;
            drop_all(input, pauses, &received.0, &stop);
            Ok(())
        });
        counted([producer, consumer], &received.0, &stop, window)
    })
}

fn send_all(mut out: QueuePair, stop: &AtomicBool) {
    let frame = [0x42; FRAME];
    let burst = [PacketRef::from_slice(&frame); BURST_MAX];
    while !stop.load(Ordering::Relaxed) {
        let mut sent = 0;
        while sent < BURST_MAX && !stop.load(Ordering::Relaxed) {
            sent += out.tx.send(&burst[sent..]);
        }
    }
}

fn drop_all(mut input: QueuePair, pauses: u32, received: &AtomicU64, stop: &AtomicBool) {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let burst = input.rx.recv();
        if burst.is_empty() {
            (0..pauses).for_each(|_| std::hint::spin_loop());
        } else {
            count += burst.len() as u64;
            received.store(count, Ordering::Relaxed);
        }
    }
}

/// Millions a second by which `received` grows in the window, once it does; on a machine so busy that nothing comes in the
/// window, until something does. Ends both threads.
fn counted(
    threads: [ScopedJoinHandle<'_, anyhow::Result<()>>; 2],
    received: &AtomicU64,
    stop: &AtomicBool,
    window: Duration,
) -> anyhow::Result<f64> {
    let await_more_than = |count| {
        let give_up = Instant::now() + PATIENCE;
        while received.load(Ordering::Relaxed) == count
            && Instant::now() < give_up
            && !threads.iter().any(|thread| thread.is_finished())
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    await_more_than(0);
    std::thread::sleep(WARM_UP);
    let (begin, before) = (Instant::now(), received.load(Ordering::Relaxed));
    std::thread::sleep(window);
    await_more_than(before);
    let count = received.load(Ordering::Relaxed) - before;
    let time = begin.elapsed();
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a measured thread panicked"))??;
    }
    anyhow::ensure!(count > 0, "nothing came through");
    Ok(count as f64 / time.as_secs_f64() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores;

    #[test]
    fn packets_pass_the_bare_copy_and_the_port() {
        let Ok(pair) = cores::pair() else {
            println!("SKIPPED packets_pass_the_bare_copy_and_the_port: one core only");
            return;
        };
        // It fails where nothing comes through.
        one_way(pair, Duration::from_millis(20), &mut vec![]).expect("both");
    }

    #[test]
    fn the_best_way_counts() {
        let mut best = Best::default();
        [(3.0, "a"), (5.0, "b"), (4.0, "c")].into_iter().for_each(|(mpps, how)| best.offer(mpps, how.to_owned()));
        assert_eq!(best, Best { mpps: 5.0, how: "b".to_owned() });
    }
}
