//! `kaista bench link`: two processes, each forwarding between two ports, joined by two links. The direct link, testpmd
//! over vhost-user and testpmd over memif take turns, with a cache line's round trip measured before each run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use port::PortInfo;
use serde::Serialize;
use serde_json::json;
use traffic::forwarding::Forwarded;
use vport::broker::{Broker, Config, EndSpec, LinkSpec, RING_BYTES_DEFAULT};

use crate::folder::Folder;
use crate::interrupt::Interrupt;
use crate::metric::{Report, Samples};
use crate::progress::Progress;
use crate::testpmd::{self, Joint};
use crate::{conditions, cores, hugepages};

/// A rate counts only if the measured worker found input in this share of its polls.
pub const BUSY_ENOUGH: f64 = 0.95;
/// The cores were moved if one round trip was longer than another by this factor.
const MOVED: f64 = 1.6;
/// How often all systems take their turns until the cores stay where they are.
const ATTEMPTS: u32 = 5;
/// Hugepages for the record areas of our two links, beside those of testpmd.
const OUR_HUGEPAGES: u64 = 16;
/// How often a full port is tried again, by us and by testpmd, so that packets in circulation are not lost.
pub const RETRIES: u32 = 100_000;
/// Bytes that a ring keeps beside each frame, at most.
const RECORD_OVERHEAD: usize = 16;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rounds; in each, every system runs once with every frame size
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Length of each run in seconds
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Frame sizes in bytes, without the check sequence
    #[arg(long, value_delimiter = ',', default_values_t = [64, 512, 1518], value_parser = clap::value_parser!(u16).range(64..=2_000))]
    pub frames: Vec<u16>,
    /// Measure the direct link only, without what it is compared with
    #[arg(long)]
    pub alone: bool,
}

/// The systems, in the order of their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum System {
    Direct,
    Testpmd(Joint),
}

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
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
    /// Its settings, where there were several to choose from.
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

/// Measures and returns the report.
pub fn run(args: &Args) -> anyhow::Result<Report> {
    let interrupt = Interrupt::take()?;
    let pages = hugepages::Reservation::at_least(testpmd::HUGEPAGES + OUR_HUGEPAGES);
    let progress = Progress::new();
    let systems = systems(args, &pages, &progress);
    let conditions = conditions::of_this_machine();
    let mut campaign = Campaign { args, systems, cores: cores::pair()?, progress, interrupt, runs: Vec::new() };
    if campaign.measure()? == Stage::Interrupted {
        campaign.progress.note("interrupted: what follows was measured before");
    }
    let runs = std::mem::take(&mut campaign.runs);
    drop(campaign);
    Ok(report(conditions, &pages, &runs))
}

/// Turns after turns, and what they found.
struct Campaign<'a> {
    args: &'a Args,
    systems: Vec<System>,
    cores: [usize; 2],
    progress: Progress,
    interrupt: Interrupt,
    runs: Vec<Run>,
}

/// How a part of a campaign ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Done,
    Interrupted,
}

/// One turn of all systems with one frame size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Turn {
    round: u32,
    attempt: u32,
    frame: u16,
}

impl Campaign<'_> {
    fn measure(&mut self) -> anyhow::Result<Stage> {
        for round in 1..=self.args.rounds {
            for &frame in &self.args.frames {
                for attempt in 1..=ATTEMPTS {
                    let runs = self.take_turns(Turn { round, attempt, frame });
                    // On a terminal, Ctrl-C ended the measured programs, too: their errors mean nothing then.
                    if self.interrupt.came() {
                        return Ok(Stage::Interrupted);
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
        Ok(Stage::Done)
    }

    /// Runs every system once, with a round trip measured before each and after the last.
    fn take_turns(&self, turn: Turn) -> anyhow::Result<Vec<Run>> {
        let Turn { round, frame, .. } = turn;
        let mut runs = Vec::new();
        let mut trips = vec![cores::round_trip_ns(self.cores)?];
        for &system in &self.systems {
            let what = format!("{} with {frame} B frames", system.name());
            self.progress.show(&format!("round {round} of {}: {what}", self.args.rounds));
            let Figures { setting, mpps, busy, lost } =
                measure(system, frame.into(), self.args.seconds, self.cores).context(what)?;
            let rtt_ns = trips[trips.len() - 1];
            trips.push(cores::round_trip_ns(self.cores)?);
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

/// Whether the cores were in different places in the course of the given round trips.
fn have_moved(trips: &[f64]) -> bool {
    let (min, max) = trips.iter().fold((f64::MAX, 0.0_f64), |(min, max), &trip| (min.min(trip), max.max(trip)));
    max > min * MOVED
}

fn systems(args: &Args, pages: &hugepages::Reservation, progress: &Progress) -> Vec<System> {
    let reason = match pages.shortage(testpmd::HUGEPAGES) {
        _ if args.alone => return vec![System::Direct],
        _ if !testpmd::is_installed() => "dpdk-testpmd is not installed (package dpdk-dev)".to_owned(),
        Some(shortage) => format!("there are only {shortage}"),
        None => return vec![System::Direct, System::Testpmd(Joint::Vhost), System::Testpmd(Joint::Memif)],
    };
    progress.note(&format!("SKIPPED testpmd over vhost-user and memif: {reason}"));
    vec![System::Direct]
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

fn measure(system: System, frame: usize, seconds: f64, cores: [usize; 2]) -> anyhow::Result<Figures> {
    let (warm_up, window) = (Duration::from_millis(300), Duration::from_secs_f64(seconds));
    match system {
        System::Direct => direct(frame, warm_up, window, cores),
        System::Testpmd(joint) => {
            let figures = joint.candidates().map(|rings| {
                let settings = testpmd::Settings { cores, frame, rings, warm_up, window };
                let testpmd::Measured { mpps, busy } = testpmd::measure(joint, &settings).context(rings)?;
                Ok(Figures { setting: rings.to_string(), mpps, busy: busy.share(), lost: None })
            });
            let [first, second]: [anyhow::Result<Figures>; 2] = figures;
            let (first, second) = (first?, second?);
            Ok(if first.mpps > second.mpps { first } else { second })
        }
    }
}

/// Two forwarder processes over two direct links of a broker in this process.
fn direct(frame: usize, warm_up: Duration, window: Duration, cores: [usize; 2]) -> anyhow::Result<Figures> {
    let folder = Folder::new()?;
    let broker = Broker::start(Config::default(), |_| {})?;
    let sockets = ["first", "second"].map(|function| folder.path().join(function));
    for (function, socket) in ["first", "second"].iter().zip(&sockets) {
        broker.listen(function, Broker::bind(socket)?, 0..u32::MAX)?;
    }
    for name in ["a", "b"] {
        let end = |function: &str| EndSpec { function: function.to_owned(), port: port(name) };
        let ends = [end("first"), end("second")];
        broker.add_link(LinkSpec { name: name.to_owned(), ends, ring_bytes: RING_BYTES_DEFAULT })?;
    }
    // Of each circle every process sends half: together they fill most of one ring of the two that the circle has.
    let send_first = RING_BYTES_DEFAULT as usize * 9 / 20 / (frame + RECORD_OVERHEAD);
    let start = |side: usize| {
        Command::new(companion("kaista-traffic")?)
            .args(["forward", "--port", "a", "--port", "b", "--addresses", "swap", "--poll", "--json"])
            .args(["--retry", &RETRIES.to_string()])
            .arg("--socket")
            .arg(&sockets[side])
            .args(["--core", &cores[side].to_string(), "--send-first", &send_first.to_string()])
            .args(["--size", &frame.to_string(), "--warm-up", &warm_up.as_secs_f64().to_string()])
            .args(["--seconds", &window.as_secs_f64().to_string()])
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
        setting: String::new(),
        mpps: rates.iter().sum::<f64>() / rates.len() as f64,
        busy: first.busy.max(second.busy),
        lost: Some(first.refused + second.refused),
    })
}

fn port(name: &str) -> PortInfo {
    let mut info = PortInfo::named(name);
    info.mtu = 9_586;
    info
}

fn forwarded(child: Child) -> anyhow::Result<Forwarded> {
    let output = child.wait_with_output()?;
    anyhow::ensure!(output.status.success(), "kaista-traffic ended with {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The path of another of our programs: beside this one, or where `make install` puts it.
fn companion(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("a program lies in a folder")?;
    [folder.join(name), folder.join("../libexec/kaista").join(name), folder.join("..").join(name)]
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not beside {}", own.display()))
}

fn report(mut conditions: serde_json::Value, pages: &hugepages::Reservation, runs: &[Run]) -> Report {
    let samples = samples(runs);
    let metrics = samples.summaries();
    conditions["placement"] = metrics.get("link.rtt_ns").map_or("unknown", conditions::placement).into();
    conditions["hugepages_during"] = pages.pages.into();
    conditions["forwarder"] = "swaps Ethernet addresses, validation on".into();
    conditions["testpmd"] = json!({"mode": "io", "vhost": "virtio-user with vector path", "memif": "zero-copy off"});
    conditions["runs"] = json!(runs);
    Report { conditions, metrics }
}

/// The metrics of all runs that count.
fn samples(runs: &[Run]) -> Samples {
    let mut samples = Samples::default();
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
        let is_direct = |run: &&&Run| run.system == System::Direct.name();
        let Some(direct) = runs.iter().find(is_direct).filter(|run| run.counts()) else { continue };
        let peers = || runs.iter().filter(|run| !is_direct(run));
        for peer in peers().filter(|run| run.counts()) {
            samples.add(format!("link.direct.{frame}B.vs_{}", peer.system), direct.mpps / peer.mpps, "1");
        }
        // The better peer must have shown all that it can.
        let best = peers().max_by(|a, b| a.mpps.total_cmp(&b.mpps)).filter(|run| run.counts());
        if let Some(best) = best {
            samples.add(format!("link.direct.{frame}B.vs_best_peer"), direct.mpps / best.mpps, "1");
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(round: u32, system: &'static str, mpps: f64, busy: f64) -> Run {
        let turn = Turn { round, attempt: 1, frame: 64 };
        let setting = String::new();
        Run { turn, system, setting, mpps, busy, lost: None, rtt_ns: 100.0, moved: false, limit: limit(busy, false) }
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
        assert!(have_moved(&[50.0, 52.0, 370.0]) && !have_moved(&[350.0, 380.0, 365.0]));
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
