//! The UPF over ports of DPDK beside testpmd over the same: one worker with sessions, by default 100,000, of which 65,536 have traffic
//! in an order at random, testpmd in its modes `macswap` and `io`, and our plain forwarder.
//!
//! Each function is a process with the second core to itself, and the server of two vhost-user links; on the first core one
//! process, the same for all, sends the frames of all active sessions from memory into one link, over and over, and counts what
//! comes out of the other. A server does all copying of a link, so that the function is the busier side. It is the limit where
//! its full ring refuses bursts; where it does not, one of our functions' rate does not count, and testpmd's is what it can do at
//! least. Nothing is held against testpmd where its ring was never full: nobody knows then what it could do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde::Serialize;
use serde_json::{Value, json};
use traffic::replay::Replayed;

use crate::folder::Folder;
use crate::hugepages::Reservation;
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::{self, Load, Way};
use crate::rounds::{ATTEMPTS, have_moved};
use crate::testpmd::{self, Between};
use crate::{companion, cores};

mod subject;

use subject::{DESCRIPTORS, Forwarder, Side, Upf, await_sockets};

/// Sessions with traffic, at most, that find their tables in the caches.
const FEW: u32 = 1_000;
/// Packets that testpmd handles at once: the better of these counts.
const BURSTS: [usize; 2] = [32, 64];
/// Pages of 2 MiB: testpmd's, and those of our two processes.
const HUGEPAGES: u64 = testpmd::HUGEPAGES + 64;
/// Of the bursts offered so many at least must find the function's ring full: then it is the function that is the limit.
const FULL_ENOUGH: f64 = 0.02;
/// Of the frames accepted so many at most may not come out.
const LOST_AT_MOST: f64 = 0.01;

/// What takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum System {
    Upf,
    /// The same process; only few of its sessions have traffic.
    UpfFewActive,
    Forwarder,
    Macswap,
    Io,
}

impl System {
    /// Name in metrics.
    fn name(self) -> &'static str {
        match self {
            Self::Upf => "upf",
            Self::UpfFewActive => "upf_few_active",
            Self::Forwarder => "forwarder",
            Self::Macswap => "macswap",
            Self::Io => "io",
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
struct Run {
    round: u32,
    attempt: u32,
    system: System,
    way: &'static str,
    /// Packets handled at once; of testpmd.
    burst: Option<usize>,
    mpps: f64,
    /// Share of bursts that found the function's ring full.
    full: f64,
    /// Share of the frames accepted that did not come out.
    lost: f64,
    /// A cache line's round trip before the run.
    rtt_ns: f64,
    /// The cores were moved in the course of the turn.
    moved: bool,
    limit: String,
}

impl Run {
    /// Of what others are held against every rate counts that was reached, whoever was the limit: so it is never made out
    /// to be slower than it is.
    fn counts(&self) -> bool {
        let is_reference = matches!(self.system, System::Macswap | System::Io);
        (is_reference || self.full >= FULL_ENOUGH) && self.lost <= LOST_AT_MOST && !self.moved
    }
}

/// How it is measured.
#[derive(Clone, Copy)]
struct Bench<'a> {
    window: Duration,
    cores: [usize; 2],
    load: Load,
    progress: &'a Progress,
}

/// Measures in turns. Where DPDK or its pages are not there, says so and measures nothing.
pub(super) fn measure(
    rounds: u32,
    window: Duration,
    load: Load,
    pair: Option<[usize; 2]>,
    how: &mut Value,
    samples: &mut Samples,
    progress: &Progress,
) -> anyhow::Result<()> {
    let pages = Reservation::at_least(HUGEPAGES);
    let reason = match pages.shortage(HUGEPAGES) {
        _ if pair.is_none() => Some("there is only one core".to_owned()),
        _ if !testpmd::is_installed() => Some("dpdk-testpmd is not installed (package dpdk-dev)".to_owned()),
        shortage => shortage.map(|shortage| format!("there are only {shortage}")),
    };
    let (None, Some(cores)) = (&reason, pair) else {
        let reason = reason.unwrap_or_default();
        progress.note(&format!("SKIPPED the UPF over DPDK beside testpmd: {reason}"));
        *how = json!({"skipped": reason});
        return Ok(());
    };
    let bench = Bench { window, cores, load, progress };
    let mut runs = vec![];
    let measured = bench.measure(rounds, &mut runs);
    sample(&runs, samples);
    *how = json!({
        "function": "server of two vhost-user links, one queue each, all its threads on one core",
        "load": "client of both (virtio-user, split rings, no mergeable buffers, in order), the same for all; sends from memory and counts",
        "descriptors": DESCRIPTORS,
        "sessions": {"held": load.sessions, "active": load.active, "few_active": load.active.min(FEW)},
        "counts": format!(
            "a run in which at least {FULL_ENOUGH} of the bursts offered found the function's ring full, but for testpmd, \
             and at most {LOST_AT_MOST} of the frames accepted did not come out"
        ),
        "runs": runs,
    });
    measured
}

impl Bench<'_> {
    /// Takes turns until each round has one during which the cores stayed.
    fn measure(&self, rounds: u32, runs: &mut Vec<Run>) -> anyhow::Result<()> {
        for round in 1..=rounds {
            for attempt in 1..=ATTEMPTS {
                let turn = self.take_turns(round, attempt);
                // One that was interrupted means nothing, whatever it found.
                self.progress.go_on()?;
                let turn = turn?;
                let moved = turn.iter().any(|run| run.moved);
                runs.extend(turn);
                if !moved {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Runs every system once each way.
    fn take_turns(&self, round: u32, attempt: u32) -> anyhow::Result<Vec<Run>> {
        let mut turn = Turn { bench: *self, round, attempt, captures: Folder::new()?, runs: vec![], trips: vec![] };
        self.progress.step(&format!("DPDK, round {round}: sessions are established"))?;
        turn.upf()?;
        turn.testpmd()?;
        turn.forwarder()?;
        turn.trips.push(cores::round_trip_ns(self.cores)?);
        let moved = have_moved(&turn.trips);
        for run in &mut turn.runs {
            run.moved = moved;
            run.limit = limit(run);
        }
        Ok(turn.runs)
    }
}

/// One turn of all systems.
struct Turn<'a> {
    bench: Bench<'a>,
    round: u32,
    attempt: u32,
    /// Frames of each way, in files.
    captures: Folder,
    runs: Vec<Run>,
    trips: Vec<f64>,
}

impl Turn<'_> {
    fn upf(&mut self) -> anyhow::Result<()> {
        let load = self.bench.load;
        let (upf, teids) = Upf::start(load.sessions, self.bench.cores[1], self.bench.progress)?;
        for way in Way::BOTH {
            let frames = rig::frames(way, load, &teids);
            let few = frames.len().min(FEW as usize);
            write(&self.capture(System::Upf, way), &frames)?;
            write(&self.capture(System::UpfFewActive, way), &frames[..few])?;
            // What leaves is what comes in the other way.
            let leaves = rig::frame_len(if way == Way::Uplink { Way::Downlink } else { Way::Uplink }, load);
            for system in [System::Upf, System::UpfFewActive] {
                self.run(system, way, None, &upf.folder, leaves)?;
            }
        }
        Ok(())
    }

    fn testpmd(&mut self) -> anyhow::Result<()> {
        let folder = Folder::new()?;
        let sockets = [Side::N3, Side::N6].map(|side| side.socket(&folder));
        let mut testpmd = Between::start([&sockets[0], &sockets[1]], self.bench.cores[1], DESCRIPTORS)?;
        await_sockets(&folder)?;
        for way in Way::BOTH {
            for (system, mode) in [(System::Macswap, "macswap"), (System::Io, "io")] {
                for burst in BURSTS {
                    testpmd.forward(mode, burst)?;
                    self.run(system, way, Some(burst), &folder, rig::frame_len(way, self.bench.load))?;
                }
            }
        }
        Ok(())
    }

    fn forwarder(&mut self) -> anyhow::Result<()> {
        let forwarder = Forwarder::start(self.bench.cores[1])?;
        for way in Way::BOTH {
            self.run(System::Forwarder, way, None, &forwarder.folder, rig::frame_len(way, self.bench.load))?;
        }
        Ok(())
    }

    /// The frames for a system: all take those of the UPF.
    fn capture(&self, system: System, way: Way) -> std::path::PathBuf {
        let few = if system == System::UpfFewActive { "few" } else { "all" };
        self.captures.path().join(format!("{few}-{}.pcap", way.name()))
    }

    /// Loads the function behind the sockets in `folder`, from which frames of so many bytes come.
    fn run(
        &mut self,
        system: System,
        way: Way,
        burst: Option<usize>,
        folder: &Folder,
        bytes: usize,
    ) -> anyhow::Result<()> {
        let Bench { window, cores, progress, .. } = self.bench;
        let what = format!("{} {}", system.name(), way.name());
        progress.step(&format!("DPDK, round {}: {what}", self.round))?;
        let rtt_ns = cores::round_trip_ns(cores)?;
        self.trips.push(rtt_ns);
        let found = replay(&self.capture(system, way), way, folder, window, cores[0]).with_context(|| what.clone())?;
        ensure!(
            found.received_bytes == found.received * bytes as u64,
            "{what}: {} bytes in {} frames, and not {bytes} in each",
            found.received_bytes,
            found.received
        );
        let lost = 1.0 - found.received as f64 / found.accepted.max(1) as f64;
        let (round, attempt, way) = (self.round, self.attempt, way.name());
        let Replayed { mpps, full, .. } = found;
        let limit = String::new();
        self.runs.push(Run { round, attempt, system, way, burst, mpps, full, lost, rtt_ns, moved: false, limit });
        Ok(())
    }
}

/// Sends the frames in `capture` into the one link and counts at the other.
fn replay(capture: &Path, way: Way, folder: &Folder, window: Duration, core: usize) -> anyhow::Result<Replayed> {
    let (into, out) = if way == Way::Uplink { (Side::N3, Side::N6) } else { (Side::N6, Side::N3) };
    let output = companion::over_dpdk("kaista-traffic-dpdk")?
        .args(["replay", "--json", "--core", &core.to_string(), "--frames"])
        .arg(capture)
        .args(["--port", &into.client(folder), "--sink", &out.client(folder)])
        .args(["--warm-up", &(window / 4).as_secs_f64().to_string(), "--seconds", &window.as_secs_f64().to_string()])
        .stdin(Stdio::null())
        .output()
        .context("cannot start kaista-traffic-dpdk")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kaista-traffic-dpdk ended with {}: {said}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn write(path: &Path, frames: &[Vec<u8>]) -> anyhow::Result<()> {
    let mut writer = PcapWriter::new(BufWriter::new(File::create(path)?))?;
    for frame in frames {
        writer.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, frame))?;
    }
    Ok(writer.flush()?)
}

fn limit(run: &Run) -> String {
    match () {
        () if run.moved => "does not count: the cores were moved meanwhile".to_owned(),
        () if run.lost > LOST_AT_MOST => {
            format!("does not count: {:.1} % did not come out, the load takes too little", run.lost * 100.0)
        }
        () if run.full < FULL_ENOUGH => {
            let found = format!("the load's core, the ring was full for {:.1} % of bursts only", run.full * 100.0);
            if run.counts() { found } else { format!("does not count: {found}") }
        }
        () => format!("the function's core: its ring was full for {:.0} % of bursts", run.full * 100.0),
    }
}

/// The metrics of all runs that count.
fn sample(runs: &[Run], samples: &mut Samples) {
    let mut turns: BTreeMap<(u32, u32, &str), BTreeMap<System, f64>> = BTreeMap::new();
    let mut filled = BTreeSet::new();
    for run in runs {
        samples.add("link.rtt_ns", run.rtt_ns, "ns");
        if run.counts() {
            if run.full >= FULL_ENOUGH {
                filled.insert((run.round, run.attempt, run.way, run.system));
            }
            let best = turns.entry((run.round, run.attempt, run.way)).or_default().entry(run.system).or_default();
            *best = best.max(run.mpps);
        }
    }
    for ((round, attempt, way), rates) in turns {
        for (system, mpps) in &rates {
            samples.add(format!("upf.dpdk.{way}.{}_mpps", system.name()), *mpps, "Mpps");
        }
        if let (Some(upf), Some(macswap)) = (rates.get(&System::Upf), rates.get(&System::Macswap)) {
            samples.add(format!("upf.{way}.vs_macswap_at_most"), upf / macswap, "1");
        }
        let mut ratio = |name: String, of: System, to: System| {
            if filled.contains(&(round, attempt, way, to))
                && let (Some(of), Some(to)) = (rates.get(&of), rates.get(&to))
            {
                samples.add(name, of / to, "1");
            }
        };
        ratio(format!("upf.{way}.vs_macswap"), System::Upf, System::Macswap);
        ratio(format!("upf.{way}.vs_io"), System::Upf, System::Io);
        ratio(format!("upf.dpdk.{way}.few_active_vs_macswap"), System::UpfFewActive, System::Macswap);
        ratio(format!("upf.dpdk.{way}.forwarder_vs_macswap"), System::Forwarder, System::Macswap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Free pages of 2 MiB.
    fn free_pages() -> u64 {
        let text = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    #[test]
    fn sessions_that_came_by_pfcp_forward_over_dpdk_both_ways() {
        let is_built = companion::path("kaista-dpdk").is_ok();
        let (Ok(cores), true, true) = (cores::pair(), is_built, free_pages() >= HUGEPAGES) else {
            println!(
                "SKIPPED sessions_that_came_by_pfcp_forward_over_dpdk_both_ways: two cores, {HUGEPAGES} free hugepages of 2 MiB and \
                      the programs over DPDK are needed"
            );
            return;
        };
        let (progress, load) = (Progress::new(), Load { sessions: 200, active: 100, payload: 64, pdrs: 1 });
        let bench = Bench { window: Duration::from_millis(20), cores, load, progress: &progress };
        let captures = Folder::new().expect("a folder");
        let mut turn = Turn { bench, round: 1, attempt: 1, captures, runs: vec![], trips: vec![] };
        // It fails where nothing comes out, or frames that are not what they must be.
        turn.upf().expect("sessions and packets");
        assert_eq!(turn.runs.len(), 4);
    }

    fn run(system: System, mpps: f64, full: f64, lost: f64) -> Run {
        Run {
            round: 1,
            attempt: 1,
            system,
            way: "uplink",
            burst: None,
            mpps,
            full,
            lost,
            rtt_ns: 50.0,
            moved: false,
            limit: String::new(),
        }
    }

    fn samples(runs: &[Run]) -> Samples {
        let mut samples = Samples::default();
        sample(runs, &mut samples);
        samples
    }

    #[test]
    fn the_ratio_is_to_the_better_of_testpmds_settings() {
        let (slower, faster) = (run(System::Macswap, 8.0, 0.5, 0.0), run(System::Macswap, 10.0, 0.5, 0.0));
        let samples = samples(&[run(System::Upf, 7.0, 0.5, 0.0), slower, faster, run(System::Io, 14.0, 0.5, 0.0)]);
        assert_eq!(samples.of("upf.uplink.vs_macswap"), [0.7]);
        assert_eq!(samples.of("upf.uplink.vs_io"), [0.5]);
        assert_eq!(samples.of("upf.dpdk.uplink.macswap_mpps"), [10.0]);
    }

    #[test]
    fn a_run_counts_where_the_function_is_the_limit() {
        let starved = run(System::Forwarder, 9.0, 0.0, 0.0);
        let overrun = run(System::Upf, 9.0, 0.5, 0.1);
        let moved = Run { moved: true, ..run(System::Io, 9.0, 0.5, 0.0) };
        assert!([&starved, &overrun, &moved].iter().all(|run| limit(run).starts_with("does not count")));
        let samples = samples(&[starved, overrun, moved]);
        assert!(samples.of("upf.dpdk.uplink.forwarder_mpps").is_empty());
        assert!(samples.of("upf.dpdk.uplink.upf_mpps").is_empty());
        assert!(samples.of("upf.dpdk.uplink.io_mpps").is_empty());
        assert_eq!(samples.of("link.rtt_ns").len(), 3);
    }

    #[test]
    fn what_the_upf_is_held_against_is_no_slower_than_it_was_seen_to_be() {
        let (starved, full) = (run(System::Macswap, 10.0, 0.0, 0.0), run(System::Macswap, 8.0, 0.5, 0.0));
        assert!(limit(&starved).starts_with("the load's core"));
        let samples = samples(&[run(System::Upf, 5.0, 0.5, 0.0), starved, full]);
        assert_eq!(samples.of("upf.uplink.vs_macswap"), [0.5]);
    }

    #[test]
    fn nothing_is_held_against_what_was_never_at_its_limit() {
        let samples = samples(&[run(System::Upf, 5.0, 0.5, 0.0), run(System::Macswap, 6.0, 0.0, 0.0)]);
        assert!(samples.of("upf.uplink.vs_macswap").is_empty());
        assert_eq!(samples.of("upf.dpdk.uplink.macswap_mpps"), [6.0]);
    }

    #[test]
    fn the_ratio_at_most_is_of_every_turn_whoever_was_the_limit() {
        let of_round = |round, run: Run| Run { round, ..run };
        let samples = samples(&[
            of_round(1, run(System::Upf, 5.0, 0.5, 0.0)),
            of_round(1, run(System::Macswap, 10.0, 0.0, 0.0)),
            of_round(2, run(System::Upf, 6.0, 0.5, 0.0)),
            of_round(2, run(System::Macswap, 8.0, 0.5, 0.0)),
        ]);
        assert_eq!(samples.of("upf.uplink.vs_macswap_at_most"), [0.5, 0.75]);
        assert_eq!(samples.of("upf.uplink.vs_macswap"), [0.75]);
    }
}
