//! A function over shared memory: its worker on one core, and on the other a thread that feeds it and drains it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use port::{BURST_MAX, Burst, PacketRef, PortInfo, QueuePair, RxCounters, RxQueue};
use std::os::fd::BorrowedFd;
use vport::broker::EndSpec;

use crate::links::Links;
use crate::rig::{Load, Plain, Subject, Upf, Way, n3, n6};

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct Fed {
    /// Packets a second that came out, in millions.
    pub mpps: f64,
    /// Of every 1 polls of the function's input queue, how many found packets.
    pub busy: f64,
}

/// How long packets may take to come through at the start.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs `subject` once. The function's worker is on the second of `cores`.
pub fn measure(subject: Subject, way: Way, load: Load, window: Duration, cores: [usize; 2]) -> anyhow::Result<Fed> {
    let links = links()?;
    let polls = Arc::new(Polls::default());
    let input = if way == Way::Uplink { "n3" } else { "n6" };
    let watched = |name: &str| -> anyhow::Result<QueuePair> {
        let queue = links.open("function", name)?;
        let watch = |inner| Box::new(Watched { inner, polls: polls.clone() });
        Ok(if name == input { QueuePair { rx: watch(queue.rx), tx: queue.tx } } else { queue })
    };
    let (mut turn, frames): (Box<dyn FnMut() + Send>, _) = match subject {
        Subject::Forwarder => {
            let (mut plain, frames) = Plain::over(way, load, watched(input)?);
            (Box::new(move || plain.turn()), frames)
        }
        Subject::Upf => {
            let (mut upf, frames) = Upf::over(way, load, watched("n3")?, watched("n6")?)?;
            (Box::new(move || upf.turn()), frames)
        }
    };
    // The forwarder sends back to where it received; the UPF to the other port.
    let output = match (subject, input) {
        (Subject::Forwarder, input) => input,
        (Subject::Upf, "n3") => "n6",
        (Subject::Upf, _) => "n3",
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Where the core cannot be had the figure shows it by its busy share.
            let _ = traffic::cores::pin(cores[1]);
            while !stop.load(Ordering::Relaxed) {
                turn();
            }
        });
        let feeder = scope.spawn(|| feed(&links, input, output, &frames, window, &polls, cores[0]));
        let fed = feeder.join().map_err(|_| anyhow::anyhow!("the feeding thread panicked"));
        stop.store(true, Ordering::Relaxed);
        fed?
    })
}

fn feed(
    links: &Links,
    input: &str,
    output: &str,
    frames: &[Vec<u8>],
    window: Duration,
    polls: &Polls,
    core: usize,
) -> anyhow::Result<Fed> {
    traffic::cores::pin(core)?;
    let mut into = links.open("load", input)?;
    let mut out = if output == input { None } else { Some(links.open("load", output)?) };
    let mut next = 0;
    let mut drained = 0u64;
    let mut feed_for = |time: Duration| {
        let (begin, before) = (Instant::now(), drained);
        while begin.elapsed() < time {
            for _ in 0..64 {
                let mut burst = [PacketRef::from_slice(&[]); BURST_MAX];
                for (i, packet) in burst.iter_mut().enumerate() {
                    *packet = PacketRef::from_slice(&frames[(next + i) % frames.len()]);
                }
                next = (next + into.tx.send(&burst)) % frames.len();
                drained += out.as_mut().unwrap_or(&mut into).rx.recv().len() as u64;
            }
        }
        (drained - before, begin.elapsed())
    };
    // Links come up when both ends have been seen; then the caches fill.
    let give_up = Instant::now() + PATIENCE;
    while feed_for(Duration::from_millis(5)).0 == 0 {
        anyhow::ensure!(Instant::now() < give_up, "nothing comes out of the function");
    }
    feed_for(window / 4);
    let (found_before, polls_before) = polls.now();
    let (packets, time) = feed_for(window);
    let (found, all) = polls.now();
    Ok(Fed {
        mpps: packets as f64 / time.as_secs_f64() / 1e6,
        busy: (found - found_before) as f64 / (all - polls_before).max(1) as f64,
    })
}

/// Ports `n3` and `n6` of the function, each joined to the load.
fn links() -> anyhow::Result<Links> {
    Links::new([n3(), n6()].map(|port| {
        let end = |function: &str, port: PortInfo| EndSpec::of(function.to_owned(), port);
        let far = PortInfo { mtu: port.mtu, ..PortInfo::named(&port.name) };
        [end("load", far), end("function", port)]
    }))
}

/// Polls of the input queue, for the feeding thread to read.
#[derive(Default)]
struct Polls {
    all: AtomicU64,
    empty: AtomicU64,
}

impl Polls {
    /// Polls that found something, and all.
    fn now(&self) -> (u64, u64) {
        let all = self.all.load(Ordering::Relaxed);
        (all - self.empty.load(Ordering::Relaxed).min(all), all)
    }
}

/// A receiving half whose polls can be read elsewhere.
struct Watched {
    inner: Box<dyn RxQueue>,
    polls: Arc<Polls>,
}

impl RxQueue for Watched {
    #[inline]
    fn recv(&mut self) -> Burst<'_> {
        let burst = self.inner.recv();
        let add = |counter: &AtomicU64, n: u64| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        add(&self.polls.all, 1);
        add(&self.polls.empty, u64::from(burst.is_empty()));
        burst
    }

    fn arm(&mut self) -> bool {
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.poll_fds()
    }

    fn counters(&self) -> RxCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores;

    #[test]
    fn packets_pass_each_function_both_ways() {
        let Ok(pair) = cores::pair() else {
            println!("SKIPPED packets_pass_each_function_both_ways: one core only");
            return;
        };
        let load = Load { sessions: 20, active: 20, payload: 64, pdrs: 1 };
        for subject in [Subject::Forwarder, Subject::Upf] {
            for way in Way::BOTH {
                // It fails where nothing comes out.
                let fed = measure(subject, way, load, Duration::from_millis(20), pair);
                assert!(fed.is_ok(), "{subject:?} {way:?}: {fed:?}");
            }
        }
    }
}
