//! Two processes, each forwarding between two ports, joined by two links. Our links, testpmd over vhost-user and testpmd
//! over memif take turns, with a cache line's round trip measured before each run.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use port::{BURST_MAX, LONG_BURST_MAX};
use serde::Serialize;
use serde_json::json;
use traffic::forwarding::Forwarded;
use vport::broker::LinkKind;
use vport::layout::Exchange;

use super::{Args, Bench, Found};
use crate::links::{Links, end};
use crate::metric::Samples;
use crate::rounds::{ATTEMPTS, have_moved};
use crate::testpmd::{self, Joint};
use crate::{companion, cores};

/// A rate counts only if the measured worker found input in this share of its polls.
pub const BUSY_ENOUGH: f64 = 0.95;
/// How often a full port is tried again, by us and by testpmd, so that packets in circulation are not lost.
pub const RETRIES: u32 = 100_000;
/// Bytes that a ring keeps beside each frame, at most.
const RECORD_OVERHEAD: usize = 16;

/// A kind of our links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// Records that are copied, between functions that need not trust each other
    Direct,
    /// The same, where each end can write the records that it reads
    SharedRecords,
    /// Buffers that change hands, inside a trust group
    #[value(alias = "zerocopy")]
    ZeroCopy,
}

impl Kind {
    /// All of them.
    const ALL: [Self; 3] = [Self::Direct, Self::SharedRecords, Self::ZeroCopy];
    /// Those that are measured where none is named.
    pub const USUAL: [Self; 2] = [Self::Direct, Self::ZeroCopy];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::SharedRecords => "shared",
            Self::ZeroCopy => "zerocopy",
        }
    }

    pub(crate) fn of_links(self) -> LinkKind {
        match self {
            Self::Direct => LinkKind::Direct,
            Self::SharedRecords => LinkKind::SharedRecords,
            Self::ZeroCopy => LinkKind::ZeroCopy { group: "bench".into() },
        }
    }

    /// What forwarders do with Ethernet addresses. Zero-copy leaves packets alone, and so do those that it is held against.
    pub(crate) fn addresses(self) -> &'static str {
        match self {
            Self::Direct | Self::SharedRecords => "swap",
            Self::ZeroCopy => "keep",
        }
    }

    /// What it is held against: copies beside copies, and beside everything where nothing is copied.
    fn peers(self) -> &'static [Joint] {
        match self {
            Self::Direct | Self::SharedRecords => &[Joint::Vhost, Joint::Memif],
            Self::ZeroCopy => &[Joint::Vhost, Joint::Memif, Joint::MemifZeroCopy],
        }
    }

    /// Frames that each process sends of each circle at the start. Records in circulation fill most of one ring of the two that
    /// the circle has. Descriptors fill half of one: buffers are given back an eighth of a ring at a time, and with more frames
    /// on their way senders wait for them.
    fn first(self, frame: usize, ring_bytes: usize) -> usize {
        match self {
            Self::Direct | Self::SharedRecords => ring_bytes / (frame + RECORD_OVERHEAD) * 9 / 20,
            Self::ZeroCopy => Exchange::new(ring_bytes, 1).buffers / 4,
        }
    }
}

/// The systems, in the order of their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum System {
    Ours(Kind),
    Testpmd(Joint),
}

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Ours(kind) => kind.name(),
            Self::Testpmd(joint) => joint.name(),
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
struct Run {
    #[serde(flatten)]
    turn: Turn,
    system: &'static str,
    /// Its setting, the best of those that were tried.
    setting: String,
    mpps: f64,
    busy: f64,
    /// Packets that fell out of circulation; not known of testpmd.
    lost: Option<u64>,
    /// A cache line's round trip before the run.
    rtt_ns: f64,
    /// The cores were moved in the course of the turn.
    moved: bool,
    limit: String,
}

impl Run {
    fn counts(&self) -> bool {
        self.busy >= BUSY_ENOUGH && !self.moved
    }
}

/// Takes turns until each round has one of every frame size during which the cores stayed.
pub(super) fn measure(bench: &Bench, args: &Args, found: &mut Found) -> anyhow::Result<()> {
    let mut campaign = Campaign { bench, args, systems: systems(args, bench), runs: Vec::new() };
    let measured = campaign.measure();
    let runs = campaign.runs;
    sample(&runs, &mut found.samples);
    found.conditions["forwarder"] = json!({"direct": "swaps Ethernet addresses, validation on",
        "zerocopy": "sends packets on as they are, as testpmd does; validation on",
        "burst": {"direct": BURST_MAX, "zerocopy": LONG_BURST_MAX}});
    found.conditions["testpmd"] = json!({"mode": "io", "vhost": "virtio-user, packed rings with vector path, and split ones",
        "memif": "zero-copy off", "memif_zerocopy": "zero-copy on in the client"});
    found.conditions["runs"] = json!(runs);
    measured
}

/// Turns after turns, and what they found.
struct Campaign<'a> {
    bench: &'a Bench,
    args: &'a Args,
    systems: Vec<System>,
    runs: Vec<Run>,
}

/// One turn of all systems with one frame size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Turn {
    round: u32,
    attempt: u32,
    frame: u16,
}

impl Campaign<'_> {
    fn measure(&mut self) -> anyhow::Result<()> {
        for round in 1..=self.args.rounds {
            for &frame in &self.args.frames {
                for attempt in 1..=ATTEMPTS {
                    let runs = self.take_turns(Turn { round, attempt, frame });
                    if self.bench.progress.is_interrupted() {
                        return Ok(());
                    }
                    let runs = runs?;
                    let moved = runs.iter().any(|run| run.moved);
                    self.runs.extend(runs);
                    if !moved {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs every system once, with a round trip measured before each and after the last.
    fn take_turns(&self, turn: Turn) -> anyhow::Result<Vec<Run>> {
        let Turn { round, frame, .. } = turn;
        let mut runs = Vec::new();
        let mut trips = vec![cores::round_trip_ns(self.bench.cores)?];
        for &system in &self.systems {
            let what = format!("{} with {frame} B frames", system.name());
            self.bench.progress.step(&format!("round {round} of {}: {what}", self.args.rounds))?;
            let Figures { setting, mpps, busy, lost } =
                run(system, frame.into(), self.args, self.bench).context(what)?;
            let rtt_ns = trips[trips.len() - 1];
            trips.push(cores::round_trip_ns(self.bench.cores)?);
            runs.push(Run {
                turn,
                system: system.name(),
                setting,
                mpps,
                busy,
                lost,
                rtt_ns,
                moved: false,
                limit: String::new(),
            });
        }
        let moved = have_moved(&trips);
        for run in &mut runs {
            run.moved = moved;
            run.limit = limit(run.busy, moved);
        }
        Ok(runs)
    }
}

fn systems(args: &Args, bench: &Bench) -> Vec<System> {
    let kinds = if args.kind.is_empty() { Kind::USUAL.to_vec() } else { args.kind.clone() };
    let mut systems: Vec<System> = kinds.iter().copied().map(System::Ours).collect();
    let reason = match bench.pages.shortage(2 * testpmd::HUGEPAGES) {
        _ if args.alone => return systems,
        _ if !testpmd::is_installed() => "dpdk-testpmd is not installed (package dpdk-dev)".to_owned(),
        Some(shortage) => format!("there are only {shortage}"),
        None => {
            let peers: BTreeSet<Joint> = kinds.iter().flat_map(|kind| kind.peers()).copied().collect();
            systems.extend(peers.into_iter().map(System::Testpmd));
            return systems;
        }
    };
    bench.progress.note(&format!("SKIPPED testpmd over vhost-user and memif: {reason}"));
    systems
}

fn limit(busy: f64, moved: bool) -> String {
    match () {
        () if moved => "does not count: the cores were moved meanwhile".to_owned(),
        () if busy >= BUSY_ENOUGH => format!("the busier process's core, busy to {:.1} %", busy * 100.0),
        () => format!("does not count: the busier process's core is busy to {:.1} % only", busy * 100.0),
    }
}

/// What one run found.
struct Figures {
    setting: String,
    /// Millions of packets a second, port and direction.
    mpps: f64,
    /// How busy the busier process was: of ours, the share of polls that found input or of time not spent waiting for it,
    /// whichever is less; of testpmd, whichever is more.
    busy: f64,
    lost: Option<u64>,
}

fn run(system: System, frame: usize, args: &Args, bench: &Bench) -> anyhow::Result<Figures> {
    let time = Time { warm_up: Duration::from_millis(300), window: Duration::from_secs_f64(args.seconds) };
    match system {
        System::Ours(kind) => best(bench, &args.ring_bytes, |ring_bytes| {
            ours(kind, frame, *ring_bytes, time, bench.cores).with_context(|| rings_of(*ring_bytes))
        }),
        System::Testpmd(joint) => best(bench, joint.candidates(), |rings| {
            let Time { warm_up, window } = time;
            let settings = testpmd::Settings { cores: bench.cores, frame, rings: *rings, warm_up, window };
            let testpmd::Measured { mpps, busy } = testpmd::measure(joint, &settings).context(*rings)?;
            Ok(Figures { setting: rings.to_string(), mpps, busy: busy.share(), lost: None })
        }),
    }
}

/// How long a run is.
#[derive(Clone, Copy)]
struct Time {
    warm_up: Duration,
    window: Duration,
}

/// What was found with the setting that was best.
fn best<S>(bench: &Bench, settings: &[S], measure: impl Fn(&S) -> anyhow::Result<Figures>) -> anyhow::Result<Figures> {
    let figures = |setting| {
        bench.progress.go_on()?;
        measure(setting)
    };
    let all: Vec<_> = settings.iter().map(figures).collect::<anyhow::Result<_>>()?;
    all.into_iter().max_by(|a, b| a.mpps.total_cmp(&b.mpps)).context("there is a setting")
}

fn rings_of(ring_bytes: u32) -> String {
    format!("rings of {ring_bytes} bytes")
}

/// Two forwarder processes over two links of a broker in this process.
fn ours(kind: Kind, frame: usize, ring_bytes: u32, time: Time, cores: [usize; 2]) -> anyhow::Result<Figures> {
    let ends = ["a", "b"].map(|port| [end("first", port), end("second", port)]);
    let links = Links::of_kind(&kind.of_links(), ring_bytes, ends)?;
    let send_first = kind.first(frame, ring_bytes as usize);
    let start = |side: usize| {
        Command::new(companion::path("kaista-traffic")?)
            .args(["forward", "--port", "a", "--port", "b", "--addresses", kind.addresses(), "--poll", "--json"])
            .args(["--retry", &RETRIES.to_string()])
            .arg("--socket")
            .arg(links.socket(["first", "second"][side]))
            .args(["--core", &cores[side].to_string(), "--send-first", &send_first.to_string()])
            .args(["--size", &frame.to_string(), "--warm-up", &time.warm_up.as_secs_f64().to_string()])
            .args(["--seconds", &time.window.as_secs_f64().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start kaista-traffic")
    };
    let children = [start(0)?, start(1)?];
    let [first, second] = children.map(forwarded);
    let (first, second) = (first?, second?);
    let rates: Vec<f64> = first.ports.iter().chain(&second.ports).map(|port| port.mpps).collect();
    let invalid: u64 = first.ports.iter().chain(&second.ports).map(|port| port.invalid).sum();
    anyhow::ensure!(invalid == 0, "{invalid} packets were invalid");
    Ok(Figures {
        setting: rings_of(ring_bytes),
        mpps: rates.iter().sum::<f64>() / rates.len() as f64,
        busy: first.busy.max(second.busy),
        lost: Some(first.refused + second.refused),
    })
}

fn forwarded(child: Child) -> anyhow::Result<Forwarded> {
    let output = child.wait_with_output()?;
    anyhow::ensure!(output.status.success(), "kaista-traffic ended with {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The metrics of all runs that count.
fn sample(runs: &[Run], samples: &mut Samples) {
    for run in runs {
        let name = |metric: &str| format!("link.{}.{}B.{metric}", run.system, run.turn.frame);
        samples.add("link.rtt_ns", run.rtt_ns, "ns");
        samples.add(name("busy"), run.busy, "1");
        if run.counts() {
            samples.add(name("mpps"), run.mpps, "Mpps");
        }
    }
    let mut turns: BTreeMap<Turn, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        turns.entry(run.turn).or_default().push(run);
    }
    for (Turn { frame, .. }, runs) in turns {
        for kind in Kind::ALL {
            compare(kind, frame, &runs, samples);
        }
    }
}

/// The ratios of one kind of link to its peers, of one turn.
fn compare(kind: Kind, frame: u16, runs: &[&Run], samples: &mut Samples) {
    let find = |name: &str| runs.iter().find(|run| run.system == name);
    let Some(ours) = find(kind.name()).filter(|run| run.counts()) else { return };
    let peers = || kind.peers().iter().filter_map(|joint| find(joint.name()));
    let metric = |peer: &str| format!("link.{}.{frame}B.vs_{peer}", kind.name());
    for peer in peers().filter(|run| run.counts()) {
        samples.add(metric(peer.system), ours.mpps / peer.mpps, "1");
    }
    // The better peer must have shown all that it can.
    let best = peers().max_by(|a, b| a.mpps.total_cmp(&b.mpps)).filter(|run| run.counts());
    if let Some(best) = best {
        samples.add(metric("best_peer"), ours.mpps / best.mpps, "1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(round: u32, system: &'static str, mpps: f64, busy: f64) -> Run {
        let turn = Turn { round, attempt: 1, frame: 64 };
        let setting = String::new();
        Run { turn, system, setting, mpps, busy, lost: None, rtt_ns: 100.0, moved: false, limit: limit(busy, false) }
    }

    fn samples(runs: &[Run]) -> Samples {
        let mut samples = Samples::default();
        sample(runs, &mut samples);
        samples
    }

    #[test]
    fn the_ratio_is_taken_within_a_round_to_the_better_peer() {
        let runs = [
            run(1, "direct", 20.0, 0.99),
            run(1, "vhost", 8.0, 0.99),
            run(1, "memif", 10.0, 0.99),
            run(2, "direct", 12.0, 0.99),
            run(2, "vhost", 4.0, 0.99),
            run(2, "memif", 3.0, 0.99),
        ];
        assert_eq!(samples(&runs).of("link.direct.64B.vs_best_peer"), [2.0, 3.0]);
        assert_eq!(samples(&runs).of("link.direct.64B.mpps"), [20.0, 12.0]);
    }

    #[test]
    fn zero_copy_is_held_against_every_peer_and_copies_against_those_that_copy() {
        let runs = [
            run(1, "direct", 20.0, 0.99),
            run(1, "shared", 30.0, 0.99),
            run(1, "zerocopy", 60.0, 0.99),
            run(1, "vhost", 8.0, 0.99),
            run(1, "memif", 10.0, 0.99),
            run(1, "memif_zerocopy", 15.0, 0.99),
        ];
        assert_eq!(samples(&runs).of("link.direct.64B.vs_best_peer"), [2.0]);
        assert_eq!(samples(&runs).of("link.shared.64B.vs_best_peer"), [3.0]);
        assert_eq!(samples(&runs).of("link.zerocopy.64B.vs_best_peer"), [4.0]);
        assert_eq!(samples(&runs).of("link.zerocopy.64B.vs_memif"), [6.0]);
    }

    #[test]
    fn a_run_that_waited_for_packets_does_not_count() {
        let runs = [run(1, "direct", 20.0, 0.9), run(1, "vhost", 8.0, 0.99), run(1, "memif", 10.0, 0.99)];
        let samples = samples(&runs);
        assert!(samples.of("link.direct.64B.mpps").is_empty());
        assert!(samples.of("link.direct.64B.vs_best_peer").is_empty());
        assert!(runs[0].limit.starts_with("does not count"));
    }

    #[test]
    fn a_peer_that_waited_for_packets_makes_no_ratio() {
        let runs = [run(1, "direct", 20.0, 0.99), run(1, "vhost", 8.0, 0.99), run(1, "memif", 10.0, 0.5)];
        let samples = samples(&runs);
        assert!(samples.of("link.direct.64B.vs_best_peer").is_empty());
        assert_eq!(samples.of("link.direct.64B.vs_vhost"), [2.5]);
    }

    #[test]
    fn a_turn_during_which_the_cores_were_moved_does_not_count() {
        let mut runs = [run(1, "direct", 20.0, 0.99), run(1, "vhost", 8.0, 0.99), run(1, "memif", 5.0, 0.99)];
        runs.iter_mut().for_each(|run| run.moved = true);
        let samples = samples(&runs);
        assert!(samples.of("link.direct.64B.vs_best_peer").is_empty());
        assert!(samples.of("link.direct.64B.mpps").is_empty());
        assert_eq!(samples.of("link.rtt_ns").len(), 3);
    }

    #[test]
    fn without_peers_there_is_no_ratio() {
        let samples = samples(&[run(1, "direct", 20.0, 0.99)]);
        assert!(samples.of("link.direct.64B.vs_best_peer").is_empty());
        assert_eq!(samples.of("link.rtt_ns"), [100.0]);
    }
}
