//! Plain forwarders in a row, all on one core, joined by direct links. A generator and sink on the other core keeps a
//! fixed number of packets on the way. What a packet costs in each function should not grow with their number.
//!
//! Beside it stands the same chain with testpmd as the switch between the functions.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use port::{BURST_MAX, PacketRef, QueuePair};
use serde::Serialize;
use serde_json::json;
use traffic::cores::pin;

use super::{Args, Bench, Found, part};
use crate::companion::{self, Companion};
use crate::cores;
use crate::cpu_time::CpuTime;
use crate::links::{Links, end};
use crate::metric::Samples;
use crate::testpmd::{self, Rings};

/// Numbers of functions.
const LENGTHS: [usize; 4] = [1, 2, 4, 8];
const FRAME: usize = 64;
/// Packets on the way at once: so many that a function has plenty to do whenever it gets the core, and fewer than fit one
/// ring.
const ON_THE_WAY: usize = 8_192;
/// Of the rings that testpmd was fastest with, those that fit many ports.
const RINGS: Rings = Rings::packed(256, 32);
const WARM_UP: Duration = Duration::from_millis(200);
/// How long the first packet may take to come through.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pauses of the processor after a poll that found nothing.
const BACK_OFF: u32 = 100;
/// The functions' core was the limit if the generator and sink spent this share of its time waiting.
const WAITED_ENOUGH: f64 = 0.05;

/// One chain.
#[derive(Clone, Debug, Serialize)]
struct Chain {
    functions: usize,
    mpps: f64,
    /// CPU time of all functions for a packet and a function.
    ns_per_hop: f64,
    /// Share of its core's time that the functions used.
    busy: f64,
    /// Share of its time that the generator and sink waited for packets.
    generator_waited: f64,
    limit: &'static str,
}

/// The same chain with a switch between the functions.
#[derive(Clone, Debug, Serialize)]
struct SwitchedChain {
    functions: usize,
    /// CPU time of the functions for a packet and a function.
    ns_per_hop: f64,
    /// The part of it that they spent on packets, by their own cycle counts: they poll, and wait in the rest.
    busy_ns_per_hop: f64,
    /// CPU time of the switch for the same.
    switch_ns_per_hop: f64,
    switch_busy: f64,
    functions_busy: f64,
}

/// All lengths.
#[derive(Clone, Debug, Serialize)]
struct Chains {
    direct: Vec<Chain>,
    testpmd: Vec<SwitchedChain>,
}

pub(super) fn measure(bench: &Bench, args: &Args, found: &mut Found) -> anyhow::Result<()> {
    let window = Duration::from_secs_f64(args.seconds);
    let with_testpmd = testpmd_runs(bench, args);
    let runs = bench.each_round(
        args.rounds,
        "chains of functions",
        found,
        |trips| {
            let direct = LENGTHS.into_iter().map(|length| {
                bench.progress.go_on()?;
                direct(length, bench.cores, window)
            });
            let direct = direct.collect::<anyhow::Result<_>>()?;
            trips.push(cores::round_trip_ns(bench.cores)?);
            let testpmd = LENGTHS.into_iter().filter(|_| with_testpmd);
            let testpmd = testpmd.map(|length| {
                bench.progress.go_on()?;
                switched(length, bench.cores, window).context("testpmd as the switch")
            });
            Ok(Chains { direct, testpmd: testpmd.collect::<anyhow::Result<_>>()? })
        },
        |samples, run| {
            if run.moved {
                return;
            }
            sample(&run.value, samples);
            samples.add("link.chain.cost_spread", spread(&run.value.direct), "1");
        },
    )?;
    let how = json!({"frame": FRAME, "on_the_way": ON_THE_WAY,
        "ns_per_hop": "CPU time of all functions, by packets and functions",
        "testpmd": {"functions": "one process in io mode, virtio-user, packed rings with vector path", "switch": "io mode, vhost-user",
            "rings": RINGS.to_string(), "ns_per_hop": "as above; testpmd polls, so all of its time counts",
            "busy_ns_per_hop": "only time spent on packets, by testpmd's cycle counts just after"}});
    found.parts.insert("chain".into(), part(how, &runs));
    Ok(())
}

fn sample(chains: &Chains, samples: &mut Samples) {
    for chain in &chains.direct {
        let name = |metric: &str| format!("link.chain.{}.{metric}", chain.functions);
        samples.add(name("ns_per_hop"), chain.ns_per_hop, "ns");
        samples.add(name("mpps"), chain.mpps, "Mpps");
    }
    for (chain, testpmd) in chains.direct.iter().zip(&chains.testpmd) {
        let name = |metric: &str| format!("link.chain.{}.{metric}", chain.functions);
        samples.add(name("testpmd_ns_per_hop"), testpmd.ns_per_hop, "ns");
        samples.add(name("testpmd_busy_ns_per_hop"), testpmd.busy_ns_per_hop, "ns");
        samples.add(name("testpmd_switch_ns_per_hop"), testpmd.switch_ns_per_hop, "ns");
        samples.add(name("vs_testpmd"), testpmd.ns_per_hop / chain.ns_per_hop, "1");
        samples.add(name("vs_testpmd_busy"), testpmd.busy_ns_per_hop / chain.ns_per_hop, "1");
    }
}

/// Whether testpmd can be run; where not, says why.
fn testpmd_runs(bench: &Bench, args: &Args) -> bool {
    let reason = match bench.pages.shortage(2 * testpmd::HUGEPAGES) {
        _ if args.alone => return false,
        _ if !testpmd::is_installed() => "dpdk-testpmd is not installed (package dpdk-dev)".to_owned(),
        Some(shortage) => format!("there are only {shortage}"),
        None => return true,
    };
    bench.progress.note(&format!("SKIPPED testpmd as the switch of a chain: {reason}"));
    false
}

/// Runs one chain with testpmd as the switch.
fn switched(functions: usize, cores: [usize; 2], window: Duration) -> anyhow::Result<SwitchedChain> {
    let settings = testpmd::Settings { cores, frame: FRAME, rings: RINGS, warm_up: WARM_UP, window };
    let found = testpmd::measure_switched(functions, &settings)?;
    Ok(SwitchedChain {
        functions,
        ns_per_hop: 1e3 * found.functions_cpu / found.hops_mpps,
        busy_ns_per_hop: 1e3 * found.functions_cpu * found.functions.time / found.hops_mpps,
        switch_ns_per_hop: 1e3 * found.switch_cpu / found.hops_mpps,
        switch_busy: found.switch.share(),
        functions_busy: found.functions.share(),
    })
}

/// By how much the dearest hop exceeds the cheapest.
fn spread(chains: &[Chain]) -> f64 {
    let costs = || chains.iter().map(|chain| chain.ns_per_hop);
    costs().fold(0.0, f64::max) / costs().fold(f64::MAX, f64::min)
}

/// Runs one chain over direct links.
fn direct(functions: usize, cores: [usize; 2], window: Duration) -> anyhow::Result<Chain> {
    let name = |number: usize| format!("function{number}");
    let inner = (1..functions).map(|number| [end(&name(number), "b"), end(&name(number + 1), "a")]);
    let outer = [[end("load", "out"), end(&name(1), "a")], [end(&name(functions), "b"), end("load", "in")]];
    let links = Links::new(inner.chain(outer))?;
    let start = |number| forwarder(&links, &name(number), cores[1]);
    let mut forwarders = (1..=functions).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let load = Load { out: links.open("load", "out")?, input: links.open("load", "in")?, on_the_way: 0 };
    let cpu = CpuTime::of(forwarders.iter().map(|forwarder| forwarder.0.id()));

    let loaded = std::thread::scope(|scope| scope.spawn(|| load.run(cores[0], window, &cpu)).join());
    let loaded = loaded.map_err(|_| anyhow::anyhow!("the generating thread panicked"))??;
    forwarders.iter_mut().try_for_each(Companion::check)?;
    let seconds = loaded.time.as_secs_f64();
    let hops = (loaded.packets * functions as u64) as f64;
    let generator_waited = loaded.waited.as_secs_f64() / seconds;
    Ok(Chain {
        functions,
        mpps: loaded.packets as f64 / seconds / 1e6,
        ns_per_hop: loaded.cpu.as_nanos() as f64 / hops,
        busy: loaded.cpu.as_secs_f64() / seconds,
        generator_waited,
        limit: if generator_waited > WAITED_ENOUGH { "the functions' core" } else { "generator and sink" },
    })
}

/// A function that passes packets on from its port `a` to its port `b`, and back.
pub(super) fn forwarder(links: &Links, function: &str, core: usize) -> anyhow::Result<Companion> {
    let mut command = Command::new(companion::path("kaista-traffic")?);
    command.args([
        "forward",
        "--die-with-parent",
        "--port",
        "a",
        "--port",
        "b",
        "--core",
        &core.to_string(),
        "--socket",
    ]);
    Companion::start(command.arg(links.socket(function)))
}

/// The generator and sink.
struct Load {
    out: QueuePair,
    input: QueuePair,
    on_the_way: usize,
}

/// What came through in the window.
struct Loaded {
    packets: u64,
    time: Duration,
    waited: Duration,
    cpu: Duration,
}

impl Load {
    fn run(mut self, core: usize, window: Duration, cpu: &CpuTime) -> anyhow::Result<Loaded> {
        pin(core)?;
        self.await_first()?;
        self.circulate(WARM_UP);
        let before = cpu.now()?;
        let (packets, waited, time) = self.circulate(window);
        let cpu = cpu.now()?.saturating_sub(before);
        ensure!(packets > 0, "nothing comes through");
        Ok(Loaded { packets, time, waited, cpu })
    }

    /// Sends a packet now and then until all links are up: until then some function drops it.
    fn await_first(&mut self) -> anyhow::Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while self.input.rx.recv().is_empty() {
            ensure!(Instant::now() < give_up, "nothing comes through");
            self.out.tx.send(&[PacketRef::from_slice(&[0x42; FRAME])]);
            std::thread::sleep(Duration::from_millis(5));
        }
        // What was sent meanwhile and is still on the way.
        std::thread::sleep(Duration::from_millis(50));
        while !self.input.rx.recv().is_empty() {}
        Ok(())
    }

    /// Sends whenever fewer than [`ON_THE_WAY`] packets are on the way. Returns how many came, the time spent waiting
    /// for them, and the whole time.
    fn circulate(&mut self, time: Duration) -> (u64, Duration, Duration) {
        const TURNS: usize = 64;
        let frame = [0x42; FRAME];
        let burst = [PacketRef::from_slice(&frame); BURST_MAX];
        let (begin, mut packets, mut waited) = (Instant::now(), 0, Duration::ZERO);
        while begin.elapsed() < time {
            for _ in 0..TURNS {
                let room = (ON_THE_WAY - self.on_the_way).min(BURST_MAX);
                if room > 0 {
                    self.on_the_way += self.out.tx.send(&burst[..room]);
                }
                let came = self.input.rx.recv().len();
                packets += came as u64;
                self.on_the_way -= came;
                if came == 0 && room == 0 {
                    let since = Instant::now();
                    (0..BACK_OFF).for_each(|_| std::hint::spin_loop());
                    waited += since.elapsed();
                }
            }
        }
        (packets, waited, begin.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_that_of_the_dearest_to_the_cheapest() {
        let chain = |functions, ns_per_hop| Chain {
            functions,
            mpps: 1.0,
            ns_per_hop,
            busy: 1.0,
            generator_waited: 0.5,
            limit: "",
        };
        assert_eq!(spread(&[chain(1, 30.0), chain(2, 20.0), chain(4, 25.0)]), 1.5);
        assert_eq!(spread(&[chain(1, 30.0)]), 1.0);
    }

    #[test]
    fn testpmd_is_held_against_a_chain_as_long_with_its_waiting_and_without() {
        let direct =
            |functions| Chain { functions, mpps: 1.0, ns_per_hop: 10.0, busy: 1.0, generator_waited: 0.5, limit: "" };
        let testpmd = |functions, ns_per_hop| SwitchedChain {
            functions,
            ns_per_hop,
            busy_ns_per_hop: ns_per_hop / 2.0,
            switch_ns_per_hop: 50.0,
            switch_busy: 1.0,
            functions_busy: 0.5,
        };
        let mut samples = Samples::default();
        let (direct, testpmd) = (vec![direct(1), direct(2)], vec![testpmd(1, 60.0), testpmd(2, 80.0)]);
        sample(&Chains { direct, testpmd }, &mut samples);
        assert_eq!(samples.of("link.chain.1.vs_testpmd"), [6.0]);
        assert_eq!(samples.of("link.chain.2.vs_testpmd"), [8.0]);
        assert_eq!(samples.of("link.chain.2.vs_testpmd_busy"), [4.0]);
    }
}
