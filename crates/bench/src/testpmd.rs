//! Two `dpdk-testpmd` processes, joined by two links of one kind, circulating packets: what our links are measured beside.
//!
//! Each process forwards between its two ports on one core. The first process is the server of both links, and the one
//! whose rates are read; over vhost-user it does all the copying.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::cpu_time::CpuTime;
use crate::folder::Folder;
use crate::link::RETRIES;

/// The program, as Debian's `dpdk-dev` installs it.
const PROGRAM: &str = "dpdk-testpmd";
/// Memory of each process, in MiB; a multiple of the 2 MiB of a hugepage. It makes 155,456 buffers of 2,176 bytes by itself.
const MEMORY_MIB: u64 = 448;
/// Hugepages that each process needs.
pub const HUGEPAGES: u64 = MEMORY_MIB / 2;
/// Lines of what a process complains of that are told if it ends.
const COMPLAINTS: usize = 8;
/// How long a process may take to start, and to answer a command.
const PATIENCE: Duration = Duration::from_secs(20);

/// How the two processes are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Joint {
    /// vhost-user in one, virtio-user in the other.
    Vhost,
    /// memif with copies (zero-copy off).
    Memif,
    /// memif whose client hands its buffers out; the server copies, as its driver always does.
    MemifZeroCopy,
}

impl Joint {
    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vhost => "vhost",
            Self::Memif => "memif",
            Self::MemifZeroCopy => "memif_zerocopy",
        }
    }

    /// The rings and bursts with which testpmd was fastest of those tried (rings of 64 to 16,384, split and packed, bursts of 32
    /// to 256): which of these depends on frame size and on what distant lines cost, so all are run. Zero-copy memif crashes
    /// at times with bursts over 64.
    pub fn candidates(self) -> &'static [Rings] {
        const VHOST: &[Rings] =
            &[Rings::packed(128, 64), Rings::packed(256, 32), Rings::packed(2_048, 256), Rings::split(1_024, 32)];
        const MEMIF: &[Rings] = &[Rings::split(512, 256), Rings::split(8_192, 64)];
        const MEMIF_ZERO_COPY: &[Rings] = &[Rings::split(512, 64), Rings::split(1_024, 64)];
        match self {
            Self::Vhost => VHOST,
            Self::Memif => MEMIF,
            Self::MemifZeroCopy => MEMIF_ZERO_COPY,
        }
    }

    /// Arguments for the devices of the server (`true`) or the client, whose ports meet the other's by number.
    fn devices(self, server: bool, rings: Rings, folder: &Path, ports: impl IntoIterator<Item = usize>) -> Vec<String> {
        let folder = folder.display();
        let device = |port: usize| match (self, server) {
            (Self::Vhost, true) => format!("net_vhost{port},iface={folder}/vhost{port},queues=1"),
            (Self::Vhost, false) => {
                format!("net_virtio_user{port},path={folder}/vhost{port},queues=1,{}", rings.of_virtio())
            }
            (Self::Memif | Self::MemifZeroCopy, _) => format!(
                "net_memif{port},role={},id={port},socket-abstract=no,socket={folder}/memif,rsize={},zero-copy={}",
                if server { "server" } else { "client" },
                rings.descriptors.ilog2(),
                if self == Self::MemifZeroCopy && !server { "yes" } else { "no" }
            ),
        };
        ports.into_iter().flat_map(|port| ["--vdev".to_owned(), device(port)]).collect()
    }
}

/// How much waits, and is handled, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Those of virtio 1.1: packed.
    is_packed: bool,
    /// Descriptors of each ring; a power of two.
    pub descriptors: usize,
    /// Packets that testpmd handles at once.
    pub burst: usize,
}

impl Rings {
    /// Packed ones, of virtio.
    pub const fn packed(descriptors: usize, burst: usize) -> Self {
        Self { is_packed: true, descriptors, burst }
    }

    /// Those of memif, or of virtio before 1.1.
    pub const fn split(descriptors: usize, burst: usize) -> Self {
        Self { is_packed: false, descriptors, burst }
    }

    /// Arguments for a virtio-user device. Without mergeable buffers, and with buffers used in order, which is the default: the
    /// fastest of the paths that it has for rings of either kind (of split ones its vector path is not, and needs the order off).
    pub fn of_virtio(self) -> String {
        let Self { is_packed, descriptors, .. } = self;
        format!("queue_size={descriptors},packed_vq={},mrg_rxbuf=0,vectorized=1", u8::from(is_packed))
    }
}

impl std::fmt::Display for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_packed { "packed rings" } else { "rings" };
        write!(f, "{kind} of {}, bursts of {}", self.descriptors, self.burst)
    }
}

/// How a pair is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Cores of the two processes.
    pub cores: [usize; 2],
    /// Bytes of a frame, without the check sequence.
    pub frame: usize,
    /// Rings and bursts.
    pub rings: Rings,
    /// Time before counting begins.
    pub warm_up: Duration,
    /// Time to count for.
    pub window: Duration,
}

impl Settings {
    /// Bursts that each process sends out of each port at the start. Of each circle of packets every process sends half;
    /// together they fill seven eighths of the two rings that the circle has.
    fn first_bursts(&self) -> usize {
        self.rings.descriptors * 7 / 8 / self.rings.burst
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Packets a second and port, in one direction, in millions: the mean over the first process's ports.
    pub mpps: f64,
    /// How busy the busier of the processes was.
    pub busy: Busy,
}

/// How busy a worker was, as shares of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// Polls that found packets.
    pub polls: f64,
    /// Time spent on packets. Where packets travel in trains, a poll of the other port finds nothing for as long as a
    /// train passes, and yet the worker has no time left.
    pub time: f64,
}

impl Busy {
    /// The larger of the two shares.
    pub fn share(self) -> f64 {
        self.polls.max(self.time)
    }
}

/// Whether the program is installed.
pub fn is_installed() -> bool {
    Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Runs a pair once.
pub fn measure(joint: Joint, settings: &Settings) -> anyhow::Result<Measured> {
    let folder = Folder::new()?;
    let devices = |server| joint.devices(server, settings.rings, folder.path(), 0..2);
    let mut server = Testpmd::start(devices(true), settings.cores[0], settings).context("the first testpmd")?;
    let mut client = Testpmd::start(devices(false), settings.cores[1], settings).context("the second testpmd")?;
    for testpmd in [&mut server, &mut client] {
        testpmd.make_ready(2)?;
    }
    server.tell(&format!("start tx_first {}", settings.first_bursts()))?;
    client.tell(&format!("start tx_first {}", settings.first_bursts()))?;
    std::thread::sleep(settings.warm_up);

    // Two readings of the port's counters; testpmd divides by the time between them itself.
    server.ask("show port stats all")?;
    std::thread::sleep(settings.window);
    let rates = receive_rates(&server.ask("show port stats all")?);
    // Burst statistics cost a little: they are taken after the window that counts.
    let (server_busy, client_busy) = (server.busy()?, client.busy()?);
    let busy = if server_busy.share() > client_busy.share() { server_busy } else { client_busy };
    anyhow::ensure!(rates.len() == 2, "testpmd showed {} ports instead of two", rates.len());
    server.quit();
    client.quit();
    Ok(Measured { mpps: rates.iter().sum::<f64>() / 2.0 / 1e6, busy })
}

/// What a chain of functions with a switch between them does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switched {
    /// Packets a second that the functions handle, in millions, over all functions.
    pub hops_mpps: f64,
    /// CPU time that the functions had, as a share of the time.
    pub functions_cpu: f64,
    /// CPU time that the switch had, as a share of the time.
    pub switch_cpu: f64,
    /// How busy the switch was.
    pub switch: Busy,
    /// How busy the functions' core was.
    pub functions: Busy,
}

/// Runs `functions` functions in a circle, each joined to the next by a switch: one process in the place of all functions,
/// with two virtio-user ports for each, on the second core; and the switch, with a vhost-user port for each of those, on
/// the first.
pub fn measure_switched(functions: usize, settings: &Settings) -> anyhow::Result<Switched> {
    let folder = Folder::new()?;
    let (ports, rings) = (2 * functions, settings.rings);
    // Ports forward in pairs: function n between 2n and 2n + 1, the switch between 2n + 1 and 2n + 2.
    let of_switch = Joint::Vhost.devices(true, rings, folder.path(), (1..=ports).map(|port| port % ports));
    let of_functions = Joint::Vhost.devices(false, rings, folder.path(), 0..ports);
    let mut switch = Testpmd::start(of_switch, settings.cores[0], settings).context("the switch")?;
    let mut all = Testpmd::start(of_functions, settings.cores[1], settings).context("the functions")?;
    for testpmd in [&mut switch, &mut all] {
        testpmd.make_ready(ports)?;
    }
    switch.tell("start")?;
    all.tell(&format!("start tx_first {}", settings.first_bursts()))?;
    std::thread::sleep(settings.warm_up);

    let cpu = [&all, &switch].map(|testpmd| CpuTime::of([testpmd.child.id()]));
    all.ask("show port stats all")?;
    let (begin, before) = (Instant::now(), [cpu[0].now()?, cpu[1].now()?]);
    std::thread::sleep(settings.window);
    let (time, after) = (begin.elapsed(), [cpu[0].now()?, cpu[1].now()?]);
    let rates = receive_rates(&all.ask("show port stats all")?);
    let share = |n: usize| (after[n] - before[n]).as_secs_f64() / time.as_secs_f64();
    let busy = (switch.busy()?, all.busy()?);
    anyhow::ensure!(rates.len() == ports, "testpmd showed {} ports instead of {ports}", rates.len());
    switch.quit();
    all.quit();
    Ok(Switched {
        hops_mpps: rates.iter().sum::<f64>() / 1e6,
        functions_cpu: share(0),
        switch_cpu: share(1),
        switch: busy.0,
        functions: busy.1,
    })
}

/// One process that forwards between two ports, whose other ends are somebody else's.
pub struct Between(Testpmd);

impl Between {
    /// Starts it on `core`, with a vhost-user port, the server, at each of the two sockets.
    pub fn start(sockets: [&Path; 2], core: usize, descriptors: usize) -> anyhow::Result<Self> {
        let device = |(port, socket): (usize, &Path)| format!("net_vhost{port},iface={},queues=1", socket.display());
        let devices = sockets.into_iter().enumerate().flat_map(|port| ["--vdev".to_owned(), device(port)]).collect();
        let rings = Rings::split(descriptors, 32);
        let settings = Settings { cores: [core; 2], frame: 64, rings, warm_up: Duration::ZERO, window: Duration::ZERO };
        Ok(Self(Testpmd::start(devices, core, &settings)?))
    }

    /// Forwards in this mode (`io`, `macswap`) from now on, so many packets at once.
    pub fn forward(&mut self, mode: &str, burst: usize) -> anyhow::Result<()> {
        self.0.ask("stop")?;
        self.0.ask(&format!("set fwd {mode}"))?;
        self.0.ask(&format!("set burst {burst}"))?;
        self.0.ask("start").map(drop)
    }

    /// Forwards nothing more, and leaves its core to others.
    pub fn rest(&mut self) -> anyhow::Result<()> {
        self.0.ask("stop").map(drop)
    }
}

/// One process.
struct Testpmd {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    complaints: Receiver<String>,
    asked: u32,
    seen: Vec<String>,
}

impl Testpmd {
    fn start(devices: Vec<String>, core: usize, settings: &Settings) -> anyhow::Result<Self> {
        // stdbuf: what testpmd prints into a pipe would otherwise wait for a full buffer.
        let mut child = Command::new("stdbuf")
            .args(["-oL", PROGRAM])
            .args(["--lcores", &format!("0@{core},1@{core}")])
            .args(["--no-pci", "--in-memory", "--single-file-segments", "--no-telemetry"])
            .args(["-m", &MEMORY_MIB.to_string()])
            .args(devices)
            .args(["--", "-i", "--nb-cores=1", "--forward-mode=io", "--no-lsc-interrupt", "--disable-link-check"])
            .args([format!("--rxd={0}", settings.rings.descriptors), format!("--txd={0}", settings.rings.descriptors)])
            .args([format!("--burst={}", settings.rings.burst), format!("--txpkts={}", settings.frame)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {PROGRAM} (package dpdk-dev)"))?;
        let stdin = child.stdin.take();
        let lines = lines_of(child.stdout.take().context("the process was given a pipe")?);
        let complaints = lines_of(child.stderr.take().context("the process was given a pipe")?);
        let mut testpmd = Self { child, stdin, lines, complaints, asked: 0, seen: Vec::new() };
        testpmd.ask("show port summary all")?;
        Ok(testpmd)
    }

    fn tell(&mut self, command: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("the process was told to quit")?;
        writeln!(stdin, "{command}")
            .with_context(|| format!("testpmd ended before `{command}`: {}", self.seen.join(" / ")))
    }

    /// Gives a command and returns the lines printed until the prompt after it.
    fn ask(&mut self, command: &str) -> anyhow::Result<Vec<String>> {
        // The prompt has no line end; an unknown command after the real one marks the end of its output.
        self.asked += 1;
        let mark = format!("end{}", self.asked);
        self.tell(command)?;
        self.tell(&mark)?;
        let give_up = Instant::now() + PATIENCE;
        let mut answer = Vec::new();
        loop {
            match self.lines.recv_timeout(give_up.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(&mark) => break,
                Ok(line) => answer.push(line),
                Err(RecvTimeoutError::Timeout) => bail!("testpmd does not answer `{command}`: {}", answer.join(" / ")),
                Err(RecvTimeoutError::Disconnected) => {
                    answer.extend(self.last_complaints());
                    bail!("testpmd ended at `{command}`: {}", answer.join(" / "))
                }
            }
        }
        self.seen.clone_from(&answer);
        Ok(answer)
    }

    /// What a process that has ended complained of last.
    fn last_complaints(&self) -> Vec<String> {
        let mut all: Vec<String> = self.complaints.iter().collect();
        all.split_off(all.len().saturating_sub(COMPLAINTS))
    }

    /// Returns when the links of all `ports` are up, with the habits set that all runs have.
    fn make_ready(&mut self, ports: usize) -> anyhow::Result<()> {
        self.await_links(ports)?;
        self.tell("set fwd io retry")?;
        self.tell(&format!("set burst tx delay 0 retry {RETRIES}"))
    }

    fn await_links(&mut self, ports: usize) -> anyhow::Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while Instant::now() < give_up {
            let summary = self.ask("show port summary all")?;
            if summary.iter().filter(|line| line.contains(" up ")).count() == ports {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the links between the processes did not come up")
    }

    fn busy(&mut self) -> anyhow::Result<Busy> {
        const SAMPLE: Duration = Duration::from_millis(250);
        self.tell("set record-burst-stats on")?;
        self.tell("set record-core-cycles on")?;
        // Switched on within a burst, the first difference of cycles is nonsense: what counts is between two readings.
        let before = self.stats_with_cycles()?;
        let begin = Instant::now();
        std::thread::sleep(SAMPLE);
        let after = self.ask("show fwd stats all")?;
        let elapsed = begin.elapsed();
        self.tell("set record-burst-stats off")?;
        self.tell("set record-core-cycles off")?;
        let polls = busy_polls(&after).context("testpmd showed no burst statistics")?;
        let cycles = busy_cycles(&before).zip(busy_cycles(&after));
        let ((cycles_before, _), (cycles_after, mhz)) = cycles.context("testpmd showed no cycles")?;
        let time = cycles_after.wrapping_sub(cycles_before) as f64 / mhz / elapsed.as_micros() as f64;
        Ok(Busy { polls, time: time.min(1.0) })
    }

    /// What `show fwd stats all` prints, once cycles are in it: none are until a burst was counted.
    fn stats_with_cycles(&mut self) -> anyhow::Result<Vec<String>> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let stats = self.ask("show fwd stats all")?;
            if busy_cycles(&stats).is_some() || Instant::now() > give_up {
                return Ok(stats);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn quit(&mut self) {
        let _ = self.tell("stop");
        let _ = self.tell("quit");
        self.stdin = None;
        let give_up = Instant::now() + Duration::from_secs(3);
        while Instant::now() < give_up && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // Harmless where it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines that come out of a pipe, as they come, until it is closed.
fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
        lines.try_for_each(|line| sender.send(line))
    });
    lines
}

/// `Rx-pps` of every port.
fn receive_rates(lines: &[String]) -> Vec<f64> {
    let rate = |line: &String| line.split("Rx-pps:").nth(1)?.split_whitespace().next()?.parse().ok();
    lines.iter().filter_map(rate).collect()
}

/// The share of polls that found packets, the mean over the streams: `RX-bursts : 90357 [34% of 0 pkts + ...]`.
fn busy_polls(lines: &[String]) -> Option<f64> {
    let empty = |line: &String| {
        let bursts = line.split("RX-bursts :").nth(1)?;
        let share = bursts.split("% of 0 pkts").next().filter(|before| before.len() < bursts.len());
        let percent = share.and_then(|before| before.rsplit(['[', ' ']).next()).unwrap_or("0");
        percent.parse::<f64>().ok()
    };
    let shares: Vec<f64> = lines.iter().filter_map(empty).collect();
    (!shares.is_empty()).then(|| 1.0 - shares.iter().sum::<f64>() / shares.len() as f64 / 100.0)
}

/// Cycles spent on packets since the start, and cycles a microsecond:
/// `CPU cycles/packet=39.82 (total cycles=2833915197 / total io packets=71165216) at 2600 MHz Clock`.
fn busy_cycles(lines: &[String]) -> Option<(u64, f64)> {
    let line = lines.iter().find(|line| line.contains("total cycles="))?;
    let after = |mark: &str| line.split(mark).nth(1)?.split(' ').next();
    Some((after("total cycles=")?.parse().ok()?, after(" at ")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn rates_are_read_from_port_statistics() {
        let text = "  RX-packets: 13319264   RX-missed: 0\n  Throughput (since last show)\n  Rx-pps:      6640742          \
                    Rx-bps:   3400060256\n  Tx-pps:      6640232          Tx-bps:   3399798832\n  Rx-pps:      6640743  \n";
        assert_eq!(receive_rates(&lines(text)), [6_640_742.0, 6_640_743.0]);
    }

    #[test]
    fn empty_polls_are_read_from_burst_statistics() {
        let text = "  RX-bursts : 90357 [34% of 0 pkts + 65% of 64 pkts + 1% of 32 pkts]\n\
                    \x20 TX-bursts : 59448 [0% of 0 pkts + 100% of 64 pkts]\n\
                    \x20 RX-bursts : 90357 [16% of 0 pkts + 84% of 64 pkts]\n";
        assert_eq!(busy_polls(&lines(text)), Some(0.75));
        assert_eq!(busy_polls(&lines("  RX-bursts : 7 [100% of 64 pkts]")), Some(1.0));
        assert_eq!(busy_polls(&lines("nothing of the kind")), None);
    }

    #[test]
    fn cycles_are_read_with_the_clock() {
        let text = "  CPU cycles/packet=39.82 (total cycles=2833915197 / total io packets=71165216) at 2600 MHz Clock";
        assert_eq!(busy_cycles(&lines(text)), Some((2_833_915_197, 2_600.0)));
        assert_eq!(busy_cycles(&lines("no cycles")), None);
    }

    #[test]
    fn the_two_sides_of_a_joint_meet_in_one_place() {
        let folder = Path::new("/tmp/x");
        let all = |joint: Joint, server| joint.devices(server, Rings::packed(8_192, 32), folder, 0..2).join(" ");
        assert!(all(Joint::Vhost, true).contains("iface=/tmp/x/vhost1"));
        assert!(all(Joint::Vhost, false).contains("path=/tmp/x/vhost1"));
        assert!(all(Joint::Memif, true).contains("role=server") && all(Joint::Memif, false).contains("role=client"));
        assert!(all(Joint::Memif, false).contains("rsize=13,zero-copy=no"));
        // Only a client can hand buffers out.
        assert!(all(Joint::MemifZeroCopy, false).contains("role=client,id=1"));
        assert!(all(Joint::MemifZeroCopy, false).contains("zero-copy=yes"));
        assert!(all(Joint::MemifZeroCopy, true).contains("zero-copy=no"));
        assert!(all(Joint::Vhost, false).contains("queue_size=8192,packed_vq=1,"));
    }
}
