//! The UPF over ports of DPDK beside testpmd over the same: one worker with sessions, by default 100,000, of which 65,536 have traffic
//! in an order at random, testpmd in its modes `macswap` and `io`, and our plain forwarder.
//!
//! Each function is a process on the second core, which the others leave to it while it is its turn, and the server of two vhost-user
//! links; on the first core one process, the same for all, sends frames from memory into one link, over and over, and counts what comes
//! out of the other: those of all active sessions to the UPF, and of a few, which it has at hand, to functions that know none. A
//! server does all copying of a link, so that the function is the busier side. It is the limit where its full ring refuses bursts;
//! where it does not, one of our functions' rate does not count, and testpmd's is what it can do at least. Nothing is held against
//! testpmd where its ring was never full: nobody knows then what it could do.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde_json::{Value, json};
use traffic::replay::Replayed;

use crate::folder::Folder;
use crate::hugepages::Reservation;
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::{self, Load, Way};
use crate::rounds::ATTEMPTS;
use crate::testpmd;
use crate::{companion, cores};

mod run;
mod subject;

use run::{FULL_ENOUGH, LOST_AT_MOST, Run, System, is_conclusive, sample};
use subject::{DESCRIPTORS, Forwarder, Side, Testpmd, Upf};

/// Sessions with traffic, at most, that find their tables in the caches.
const FEW: usize = 1_000;
/// Frames for functions that know no sessions: so few that the load has them at hand.
const AT_HAND: usize = 64;
/// In the order of their turns: what matters most is close in time.
const SYSTEMS: [System; 5] = [System::Upf, System::Macswap, System::UpfFewActive, System::Io, System::Forwarder];
/// Packets that testpmd handles at once: the better of these counts.
const BURSTS: [usize; 2] = [32, 64];
/// Pages of 2 MiB: testpmd's, and those of our three processes, which take 39.
const HUGEPAGES: u64 = testpmd::HUGEPAGES + 64;

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
        "load": format!(
            "client of both (virtio-user, split rings, no mergeable buffers; in order where it sends, vector path where it \
             receives), the same for all; sends from memory and counts; of {AT_HAND} sessions where a function knows none"
        ),
        "descriptors": DESCRIPTORS,
        "sessions": {"held": load.sessions, "active": load.active, "few_active": active(System::UpfFewActive, load)},
        "counts": format!(
            "a run in which the cores stayed, at least {FULL_ENOUGH} of the bursts offered found the function's ring full, but for \
             testpmd, and at most {LOST_AT_MOST} of the frames accepted did not come out"
        ),
        "runs": runs,
    });
    measured
}

impl Bench<'_> {
    /// Takes turns each way, until in each round the UPF and `macswap` had the cores in one place.
    fn measure(&self, rounds: u32, runs: &mut Vec<Run>) -> anyhow::Result<()> {
        self.progress.step("DPDK: sessions are established")?;
        let mut servers = Servers::start(self)?;
        for round in 1..=rounds {
            for way in Way::BOTH {
                for attempt in 1..=ATTEMPTS {
                    let turn = self.take_turns(&mut servers, way, round, attempt);
                    // One that was interrupted means nothing, whatever it found.
                    self.progress.go_on()?;
                    let turn = turn?;
                    let is_conclusive = is_conclusive(&turn);
                    runs.extend(turn);
                    if is_conclusive {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs every system once, or the first ones only where these cannot be compared.
    fn take_turns(&self, servers: &mut Servers, way: Way, round: u32, attempt: u32) -> anyhow::Result<Vec<Run>> {
        let mut runs: Vec<Run> = vec![];
        for system in SYSTEMS {
            let bursts: &[Option<usize>] = if system.is_testpmd() { &BURSTS.map(Some) } else { &[None] };
            for &burst in bursts {
                self.progress.step(&format!("DPDK, round {round}: {} {}", system.name(), way.name()))?;
                let before = match runs.last() {
                    Some(last) => last.rtt_ns[1],
                    None => cores::round_trip_ns(self.cores)?,
                };
                let found = servers.run(self, system, way, burst)?;
                let lost = 1.0 - found.received as f64 / found.accepted.max(1) as f64;
                let Replayed { mpps, full, .. } = found;
                let rtt_ns = [before, cores::round_trip_ns(self.cores)?];
                let (way, limit) = (way.name(), String::new());
                runs.push(Run { round, attempt, system, way, burst, mpps, full, lost, rtt_ns, limit });
            }
            if system == System::Macswap && !is_conclusive(&runs) {
                break;
            }
        }
        runs.iter_mut().for_each(|run| run.limit = run.limit());
        Ok(runs)
    }
}

/// All functions, on one core: but the one whose turn it is they leave it alone.
struct Servers {
    upf: Upf,
    testpmd: Testpmd,
    forwarder: Forwarder,
    /// Frames of each way, in files.
    captures: Folder,
}

impl Servers {
    /// Starts all of them; afterwards it is nobody's turn.
    fn start(bench: &Bench<'_>) -> anyhow::Result<Self> {
        let (load, core) = (bench.load, bench.cores[1]);
        let (upf, teids) = Upf::start(load.sessions, core, bench.progress)?;
        upf.process.pause()?;
        let captures = Folder::new()?;
        for way in Way::BOTH {
            let frames = rig::frames(way, load, &teids);
            for system in [System::Upf, System::UpfFewActive, System::Forwarder] {
                write(&capture(&captures, system, way, load), &frames[..active(system, load)])?;
            }
        }
        let forwarder = Forwarder::start(core)?;
        forwarder.process.pause()?;
        Ok(Self { upf, testpmd: Testpmd::start(core)?, forwarder, captures })
    }

    /// Loads a function, while the others wait.
    fn run(&mut self, bench: &Bench<'_>, system: System, way: Way, burst: Option<usize>) -> anyhow::Result<Replayed> {
        let capture = capture(&self.captures, system, way, bench.load);
        let replay = |folder: &Folder| replay(&capture, way, folder, bench.window, bench.cores[0]);
        let found = match system {
            System::Upf | System::UpfFewActive => self.upf.process.during(|| replay(&self.upf.folder)),
            System::Forwarder => self.forwarder.process.during(|| replay(&self.forwarder.folder)),
            System::Macswap | System::Io => {
                self.testpmd.process.forward(system.name(), burst.unwrap_or(BURSTS[0]))?;
                let found = replay(&self.testpmd.folder);
                self.testpmd.process.rest()?;
                found
            }
        };
        let what = || format!("{} {}", system.name(), way.name());
        let found = found.with_context(what)?;
        let bytes = leaving(system, way, bench.load);
        ensure!(
            found.received_bytes == found.received * bytes as u64,
            "{}: {} bytes in {} frames, and not {bytes} in each",
            what(),
            found.received_bytes,
            found.received
        );
        Ok(found)
    }
}

/// Bytes of the frames that leave a function: from a UPF what comes in the other way.
fn leaving(system: System, way: Way, load: Load) -> usize {
    match (system, way) {
        (System::Upf | System::UpfFewActive, Way::Uplink) => rig::frame_len(Way::Downlink, load),
        (System::Upf | System::UpfFewActive, Way::Downlink) => rig::frame_len(Way::Uplink, load),
        _ => rig::frame_len(way, load),
    }
}

/// Frames for a system: each is of another session.
fn active(system: System, load: Load) -> usize {
    let all = load.active as usize;
    match system {
        System::Upf => all,
        System::UpfFewActive => all.min(FEW),
        System::Forwarder | System::Macswap | System::Io => all.min(AT_HAND),
    }
}

/// The file with the frames for a system.
fn capture(folder: &Folder, system: System, way: Way, load: Load) -> PathBuf {
    folder.path().join(format!("{}-{}.pcap", active(system, load), way.name()))
}

/// Sends the frames in `capture` into the one link and counts at the other.
fn replay(capture: &Path, way: Way, folder: &Folder, window: Duration, core: usize) -> anyhow::Result<Replayed> {
    let (into, out) = if way == Way::Uplink { (Side::N3, Side::N6) } else { (Side::N6, Side::N3) };
    let output = companion::over_dpdk("kaista-traffic-dpdk")?
        .args(["replay", "--json", "--core", &core.to_string(), "--frames"])
        .arg(capture)
        .args(["--port", &into.client(folder, false), "--sink", &out.client(folder, true)])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hugepages;

    /// Free pages of 2 MiB.
    fn free_pages() -> u64 {
        let text = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    #[test]
    fn sessions_that_came_by_pfcp_forward_over_dpdk_both_ways() {
        let _pages = hugepages::turns::alone();
        let is_built = companion::path("kaista-dpdk").is_ok();
        let (Ok(cores), true, true) = (cores::pair(), is_built, free_pages() >= HUGEPAGES) else {
            println!(
                "SKIPPED sessions_that_came_by_pfcp_forward_over_dpdk_both_ways: two cores, {HUGEPAGES} free hugepages of 2 MiB and \
                      the programs over DPDK are needed"
            );
            return;
        };
        let (progress, load) = (Progress::new(), Load::of(200, 100, 64));
        let bench = Bench { window: Duration::from_millis(20), cores, load, progress: &progress };
        let mut servers = Servers::start(&bench).expect("sessions");
        for (way, system) in Way::BOTH.into_iter().flat_map(|way| SYSTEMS.map(|system| (way, system))) {
            // It fails where nothing comes out, or frames that are not what they must be.
            let found = servers.run(&bench, system, way, None).expect("packets");
            assert!(found.received > 0, "{system:?} {way:?}");
        }
    }
}
