//! One packet of 64 B at a time to another process and back: half of that is its way there. Both sides poll; then both
//! sleep, beside the same with bare eventfds between the same two processes. Last, the first packet after idleness.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use nix::sys::eventfd::{EfdFlags, EventFd};
use port::{PacketRef, QueuePair};
use serde::Serialize;
use serde_json::{Map, Value, json};
use traffic::cores::pin;
use traffic::stamp::now_ns;

use super::partner::{STAMP, Trips, polled, ring, sleeper, slept, take};
use super::{Args, Bench, Found, part};
use crate::at_end::AtEnd;
use crate::companion::Companion;
use crate::links::{Links, end};
use crate::metric::Samples;
use crate::rounds::Taken;

const FRAME: usize = 64;
/// Trips before those that count.
const WARM_UP: u64 = 1_000;
/// How long the link and the first packet may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Times of round trips in nanoseconds.
type Trip = Histogram<u64>;

fn trip() -> Trip {
    // Three digits from 1 ns to a minute.
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// What the phases found.
struct Phases {
    polling: Trip,
    sleeping: Trip,
    eventfd: Trip,
    /// One way, of the last packet of the sleeping phase.
    last_sleeping_ns: u64,
}

/// One-way times of one phase, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Latency {
    samples: u64,
    p50_ns: f64,
    p99_ns: f64,
    p999_ns: f64,
    max_ns: f64,
}

impl Latency {
    fn of(trips: &Trip) -> Self {
        let half = |trip_ns: u64| trip_ns as f64 / 2.0;
        let at = |quantile| half(trips.value_at_quantile(quantile));
        let (p50_ns, p99_ns, p999_ns) = (at(0.5), at(0.99), at(0.999));
        Self { samples: trips.len(), p50_ns, p99_ns, p999_ns, max_ns: half(trips.max()) }
    }
}

pub(super) fn measure(bench: &Bench, args: &Args, found: &mut Found) -> anyhow::Result<()> {
    let mut said = Map::new();
    let measured = polling(bench, args, found, &mut said)
        .and_then(|()| sleeping(bench, args, found, &mut said))
        .and_then(|()| first_after_idle(bench, args, found));
    let how = json!({"frame": FRAME, "one_way": "half of a round trip, less what reading the clock takes",
        "sleeping": "both processes sleep at once when there is nothing", "idle_seconds": args.idle_seconds,
        "eventfd": "blocking read and write, no poll"});
    found.parts.insert("latency".into(), part(how, &said));
    measured
}

/// Trips of a round.
fn each(args: &Args) -> u64 {
    args.samples.div_ceil(args.rounds.into())
}

fn polling(bench: &Bench, args: &Args, found: &mut Found, said: &mut Map<String, Value>) -> anyhow::Result<()> {
    let mut all = trip();
    let taken = bench.each_round(
        args.rounds,
        "latency, polling",
        found,
        |_| phases(bench, Trips { polling: each(args), ..Trips::default() }, Duration::ZERO),
        |samples, run| {
            if !run.moved {
                let p50 = Latency::of(&run.value.polling).p50_ns;
                samples.add("link.latency.polling.p50_over_half_rtt", p50 / (run.trip_ns() / 2.0), "1");
                merge(&mut all, &run.value.polling);
            }
        },
    );
    sample("polling", &all, &mut found.samples);
    said.insert("polling".into(), runs(&taken?, &["polling"]).into());
    Ok(())
}

fn sleeping(bench: &Bench, args: &Args, found: &mut Found, said: &mut Map<String, Value>) -> anyhow::Result<()> {
    let mut all = (trip(), trip());
    let taken = bench.each_round(
        args.rounds,
        "latency, sleeping",
        found,
        |_| phases(bench, Trips { polling: 0, sleeping: each(args), eventfd: each(args) }, Duration::ZERO),
        |samples, run| {
            if !run.moved {
                let [port, bare] = [&run.value.sleeping, &run.value.eventfd].map(|trips| Latency::of(trips).p50_ns);
                samples.add("link.latency.sleeping.over_eventfd", port / bare, "1");
                merge(&mut all.0, &run.value.sleeping);
                merge(&mut all.1, &run.value.eventfd);
            }
        },
    );
    sample("sleeping", &all.0, &mut found.samples);
    sample("eventfd", &all.1, &mut found.samples);
    said.insert("sleeping".into(), runs(&taken?, &["sleeping", "eventfd"]).into());
    Ok(())
}

fn first_after_idle(bench: &Bench, args: &Args, found: &mut Found) -> anyhow::Result<()> {
    bench.progress.show(&format!("latency after {} s of idleness", args.idle_seconds));
    if bench.progress.is_interrupted() {
        return Ok(());
    }
    let idle = Duration::from_secs_f64(args.idle_seconds);
    let first = phases(bench, Trips { sleeping: 1, ..Trips::default() }, idle)?;
    if !bench.progress.is_interrupted() {
        found.samples.add("link.latency.first_after_idle_ns", first.last_sleeping_ns as f64, "ns");
    }
    Ok(())
}

fn merge(all: &mut Trip, trips: &Trip) {
    all.add(trips).expect("histograms of the same bounds");
}

/// The percentiles over all rounds that count.
fn sample(name: &str, trips: &Trip, samples: &mut Samples) {
    if trips.is_empty() {
        return;
    }
    let Latency { samples: count, p50_ns, p99_ns, p999_ns, max_ns } = Latency::of(trips);
    for (metric, value) in [("p50_ns", p50_ns), ("p99_ns", p99_ns), ("p999_ns", p999_ns), ("max_ns", max_ns)] {
        samples.add(format!("link.latency.{name}.{metric}"), value, "ns");
    }
    samples.add(format!("link.latency.{name}.samples"), count as f64, "packets");
}

fn runs(taken: &[Taken<Phases>], names: &[&str]) -> Vec<Value> {
    let of = |phases: &Phases, name: &str| match name {
        "polling" => Latency::of(&phases.polling),
        "sleeping" => Latency::of(&phases.sleeping),
        _ => Latency::of(&phases.eventfd),
    };
    let run = |run: &Taken<Phases>| {
        let mut value = json!({"round": run.round, "attempt": run.attempt, "rtt_ns": run.rtt_ns, "moved": run.moved});
        names.iter().for_each(|name| value[*name] = json!(of(&run.value, name)));
        value
    };
    taken.iter().map(run).collect()
}

/// Runs the partner and its phases. With `idle`, nothing happens for so long before the trips that count of the sleeping
/// phase. Ends early where the user says so.
fn phases(bench: &Bench, trips: Trips, idle: Duration) -> anyhow::Result<Phases> {
    let (cores, stop) = (bench.cores, AtomicBool::new(false));
    let links = Links::new([[end("asker", "a"), end("partner", "b")]])?;
    let [rung, answer] = [EventFd::from_flags(EfdFlags::empty())?, EventFd::from_flags(EfdFlags::empty())?];
    let theirs = Trips {
        polling: with_warm_up(trips.polling),
        sleeping: with_warm_up(trips.sleeping),
        eventfd: with_warm_up(trips.eventfd),
    };
    let child = Command::new(std::env::current_exe()?)
        .args(["bench", "partner", "--port", "b", "--core", &cores[1].to_string(), "--socket"])
        .arg(links.socket("partner"))
        .args(theirs.arguments())
        .stdin(Stdio::from(rung.as_fd().try_clone_to_owned()?))
        .stdout(Stdio::from(answer.as_fd().try_clone_to_owned()?))
        .spawn();
    let mut partner = Companion(child.context("cannot start the other process")?);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            pin(cores[0])?;
            let mut asker = Asker::new(links.open("asker", "a")?, &stop)?;
            asker.await_link()?;
            let polling = asker.poll(trips.polling)?;
            let (sleeping, last_sleeping_ns) = asker.sleep(trips.sleeping, idle)?;
            let eventfd = asker.ring(trips.eventfd, &rung, &answer)?;
            Ok(Phases { polling, sleeping, eventfd, last_sleeping_ns })
        });
        let asker = asking.thread().clone();
        let end = || {
            stop.store(true, Ordering::Relaxed);
            asker.unpark();
        };
        let _ending = AtEnd(end);
        while !asking.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            if bench.progress.is_interrupted() {
                end();
            }
            // Nobody would answer: an eventfd does not say so.
            if partner.0.try_wait()?.is_some() {
                ring(answer.as_fd())?;
            }
        }
        asking.join().map_err(|_| anyhow::anyhow!("the asking thread panicked"))?
    })
}

/// The side that asks and takes the time.
struct Asker<'a> {
    queue: QueuePair,
    /// Nobody wants further trips.
    stop: &'a AtomicBool,
    frame: [u8; FRAME],
    /// What two readings of the clock are apart with nothing between.
    clock_ns: u64,
}

impl<'a> Asker<'a> {
    fn new(queue: QueuePair, stop: &'a AtomicBool) -> anyhow::Result<Self> {
        let mut gaps = trip();
        (0..10_000).for_each(|_| gaps.saturating_record(elapsed_ns(Instant::now())));
        Ok(Self { queue, stop, frame: [0x42; FRAME], clock_ns: gaps.value_at_quantile(0.5) })
    }

    /// Returns when the link takes packets: a frame of no bytes is discarded, and accepted only then.
    fn await_link(&mut self) -> anyhow::Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while self.queue.tx.send(&[PacketRef::from_slice(&[])]) == 0 {
            ensure!(Instant::now() < give_up, "the other process does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn send(&mut self) -> anyhow::Result<()> {
        ensure!(self.queue.tx.send(&[PacketRef::from_slice(&self.frame)]) == 1, "the port refused a packet");
        Ok(())
    }

    /// Records a trip that began at `sent`.
    fn record(&self, trips: &mut Trip, sent: Instant) {
        trips.saturating_record(elapsed_ns(sent).saturating_sub(self.clock_ns).max(1));
    }

    /// The numbers of the trips to make, as long as they are wanted.
    fn numbers(&self, count: u64) -> impl Iterator<Item = u64> + use<'a> {
        let stop = self.stop;
        (0..with_warm_up(count)).take_while(|_| !stop.load(Ordering::Relaxed))
    }

    fn poll(&mut self, count: u64) -> anyhow::Result<Trip> {
        let mut trips = trip();
        for n in self.numbers(count) {
            let sent = Instant::now();
            self.send()?;
            polled(&mut self.queue, self.stop, |_, _| ())?;
            if n >= WARM_UP {
                self.record(&mut trips, sent);
            }
        }
        Ok(trips)
    }

    fn sleep(&mut self, count: u64, idle: Duration) -> anyhow::Result<(Trip, u64)> {
        let mut trips = trip();
        let mut habit = sleeper();
        let mut one_way_ns = 0;
        for n in self.numbers(count) {
            if n == WARM_UP {
                self.idle(idle);
            }
            let (sent, sent_ns) = (Instant::now(), now_ns());
            self.send()?;
            let received_ns = slept(&mut self.queue, &mut habit, self.stop, |burst, _| {
                let stamp = burst.get(0).head.get(STAMP).and_then(|bytes| bytes.try_into().ok());
                stamp.map(u64::from_be_bytes)
            })?;
            if n >= WARM_UP {
                self.record(&mut trips, sent);
                one_way_ns = received_ns.context("the packet came back without a stamp")?.saturating_sub(sent_ns);
            }
        }
        Ok((trips, one_way_ns))
    }

    /// Does nothing for so long.
    fn idle(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.stop.load(Ordering::Relaxed) && Instant::now() < end {
            std::thread::park_timeout(end.saturating_duration_since(Instant::now()));
        }
    }

    fn ring(&mut self, count: u64, rung: &EventFd, answer: &EventFd) -> anyhow::Result<Trip> {
        let mut trips = trip();
        for n in self.numbers(count) {
            let sent = Instant::now();
            ring(rung.as_fd())?;
            take(answer.as_fd())?;
            if n >= WARM_UP {
                self.record(&mut trips, sent);
            }
        }
        Ok(trips)
    }
}

fn with_warm_up(count: u64) -> u64 {
    if count > 0 { count + WARM_UP } else { 0 }
}

fn elapsed_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_is_half_of_a_trip() {
        let mut trips = trip();
        (1..=1_000).for_each(|n| trips.saturating_record(n * 100));
        let latency = Latency::of(&trips);
        let is = |found: f64, ns: f64| (found - ns).abs() < ns / 500.0;
        assert!(is(latency.p50_ns, 25_000.0) && is(latency.p99_ns, 49_500.0), "{latency:?}");
        assert!(is(latency.p999_ns, 49_950.0) && is(latency.max_ns, 50_000.0), "{latency:?}");
        assert_eq!(latency.samples, 1_000);
    }

    #[test]
    fn rounds_without_samples_make_no_metric() {
        let mut samples = Samples::default();
        sample("polling", &trip(), &mut samples);
        assert!(samples.summaries().is_empty());
    }
}
