//! `kaista bench n4`: session establishments a second beside a worker that forwards, and what a session takes of memory.
//!
//! The UPF listens on a socket of the loopback; the session manager shares a core with its N4 endpoint, and the worker has
//! the other one. First the rate is found at which the worker, fed by an open-loop source through a queue of
//! [`QUEUE`] packets, loses nothing while a bare loop keeps the first core busy; then sessions are established, and then
//! deleted, while it forwards at 80 % of that. Of each session that was accepted a packet is sent each way at once: it counts as lost where it
//! is not forwarded.
//!
//! The UPF keeps its sessions in a state directory meanwhile, unless it is told otherwise; what a session takes of memory is
//! measured without one.
//!
//! Time is cut into slices. A hypervisor that takes the worker's core away for longer than the queue lasts makes it overflow
//! whatever the UPF does, so slices with such a pause do not count; how many there are is a figure beside how many there are
//! beside the bare loop: what there are more of are the UPF's.
//!
//! Nobody looks whether the cores were moved in a round. The traffic comes and goes on the worker's own core; what crosses are, once for
//! each session, its rules, a packet each way and the word that they are in force: some lines, in the microseconds that a session takes.
//!
//! At last a UPF of its own process, with a state directory, is killed with so many sessions, again and again.

pub(crate) mod manager;
mod restore;
mod source;
mod subject;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use port::synthetic::Synthetic;
use serde::Serialize;
use serde_json::json;

use crate::folder::Folder;
use crate::metric::{Outcome, Report, Samples};
use crate::progress::Progress;
use crate::rig::{self, Load, Way};
use crate::{conditions, cores};
use manager::{Manager, Session};
use restore::Restarted;
use source::{Feed, QUEUE, WITHOUT_PAUSE};
use subject::Subject;

/// Sessions that the traffic belongs to.
const BASE_SESSIONS: u32 = 1_000;
/// Bytes of inner UDP payload.
const PAYLOAD: usize = 64;
/// Shares of the highest rate that are tried, in percent, until one loses nothing.
const SHARES: [u64; 13] = [97, 94, 91, 88, 85, 80, 75, 70, 60, 50, 40, 30, 20];
/// Slices tried at each share, of which most must lose nothing.
const TRIES: usize = 5;
/// How much of the rate without loss there is while sessions are established, in percent.
const BESIDE: u64 = 80;

/// Sessions established in a slice at most: four times as many are held at a time.
const PER_SLICE_MAX: u32 = 250_000;

/// As fast as the UPF answers.
pub(crate) const AT_ONCE: f64 = f64::INFINITY;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rounds; in each, sessions are established and deleted
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Slices of each round in which sessions are established
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub slices: u32,
    /// Sessions established a second while the worker is to lose nothing
    #[arg(long, default_value_t = 12_000.0, value_parser = rate)]
    pub rate: f64,
    /// Sessions held at a time when their memory is measured, 100,000 to 1,000,000; 0 leaves that out
    #[arg(long, default_value_t = 1_000_000, value_parser = held)]
    pub held: u32,
    /// Kills of a UPF process with sessions that come back from its store
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub kills: u32,
    /// Sessions of that process; `n4.restore_100k_s` is of 100,000, and of others `n4.restore_s`
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub restored: u32,
    /// The UPF keeps its sessions in no state directory while they are established
    #[arg(long)]
    pub without_store: bool,
    /// Length of a slice in seconds
    #[arg(long, default_value_t = 0.25, value_parser = crate::cli::seconds)]
    pub seconds: f64,
}

/// Sessions a second.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (1.0..=1e6).contains(&rate) => Ok(rate),
        _ => Err("expected sessions a second from 1 to 1000000".into()),
    }
}

/// Of fewer sessions the memory is that of other things.
fn held(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(held @ (0 | 100_000..=1_000_000)) => Ok(held),
        _ => Err("0, or 100000 to 1000000".into()),
    }
}

/// Measures. What fails keeps nothing from being reported that was measured before, nor the rest from being measured; Ctrl-C and
/// SIGTERM end it.
///
/// # Errors
/// If nothing can be measured here.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    ensure!(
        args.per_slice() <= PER_SLICE_MAX,
        "in {} s at {} sessions a second there are more than {PER_SLICE_MAX}: lower --seconds or --rate",
        args.seconds,
        args.rate
    );
    let mut conditions = conditions::of_this_machine();
    let cores = cores::pair()?;
    let mut samples = Samples::default();
    samples.add("link.rtt_ns", cores::round_trip_ns(cores)?, "ns");
    let (progress, mut rounds) = (Progress::interruptible()?, vec![]);
    // On a thread of its own, so that this one is never bound to a core.
    let measured =
        std::thread::scope(|scope| scope.spawn(|| measure(args, cores, &mut samples, &mut rounds, &progress)).join());
    let measured = measured.unwrap_or_else(|_| Err(anyhow!("the measurement panicked")));
    let restarted = restart(args, &mut samples, &progress);
    let is_interrupted = progress.is_interrupted();
    if is_interrupted {
        progress.note("interrupted: what follows was measured before");
    }
    drop(progress);
    let metrics = samples.summaries();
    conditions["session"] = "2 PDRs, 2 FARs, 1 QER, 1 URR".into();
    conditions["store"] = (!args.without_store).into();
    conditions["sessions_per_slice"] = args.per_slice().into();
    conditions["sessions_held"] = args.held.into();
    conditions["sessions_restored"] = args.restored.into();
    conditions["queue_before_worker_packets"] = QUEUE.into();
    conditions["traffic"] = json!({"sessions": BASE_SESSIONS, "payload_bytes": PAYLOAD, "share_percent": BESIDE});
    conditions["rounds"] = rounds.into();
    conditions["limit"] = "the core that the N4 endpoint and the session manager share".into();
    let failed = [measured.context("establishments"), restarted.context("kills")];
    let failed = failed.into_iter().filter(|_| !is_interrupted);
    let failures: Vec<String> = failed.filter_map(|done| Some(format!("{:#}", done.err()?))).collect();
    let failure = (!failures.is_empty()).then(|| anyhow!("not all could be measured: {}", failures.join("; ")));
    conditions["interrupted"] = is_interrupted.into();
    conditions["failures"] = failures.into();
    Ok(Outcome { report: Report { conditions, metrics }, failure })
}

fn measure(
    args: &Args,
    cores: [usize; 2],
    samples: &mut Samples,
    rounds: &mut Vec<serde_json::Value>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let slice = Duration::from_secs_f64(args.seconds);
    // First of all, as later this process has memory of sessions that are gone.
    if args.held > 0 {
        progress.step("memory")?;
        let mut bench = Bench::start(BASE_SESSIONS + args.held, cores, slice, None)?;
        samples.add("n4.bytes_per_session", bench.bytes_per_session(args.held, progress)?, "bytes");
    }
    let state = if args.without_store { None } else { Some(Folder::new()?) };
    let mut bench = Bench::start(BASE_SESSIONS + args.per_slice() * 4, cores, slice, state)?;

    for round in 1..=args.rounds {
        progress.step(&format!("round {round} of {}: the rate without loss", args.rounds))?;
        let highest_pps = bench.rate_without_loss(progress)?;
        let rate_pps = highest_pps * BESIDE / 100;
        samples.add("n4.zero_loss_mpps", highest_pps as f64 / 1e6, "Mpps");
        let [mut loop_alone, mut beside, mut deleting, mut highest] = std::array::from_fn(|_| Tally::default());
        for slice in 1..=args.slices {
            progress.step(&format!("round {round} of {}: slice {slice} of {}", args.rounds, args.slices))?;
            loop_alone.add(&bench.beside_a_loop(rate_pps)?, rate_pps);
            let found = bench.beside_n4(args.per_slice(), args.rate, rate_pps)?;
            beside.add(&found.establishing, rate_pps);
            deleting.add(&found.deleting, rate_pps);
            samples.add("n4.establishments_per_s", found.establishments_per_s, "1/s");
        }
        let lost = Tally::lost_in([&beside, &deleting]);
        lost.into_iter().for_each(|lost| samples.add("n4.forwarding_lost", lost as f64, "packets"));
        samples.add("n4.core_away", f64::from(beside.core_away), "slices");
        samples.add("n4.core_away_beside_a_loop", f64::from(loop_alone.core_away), "slices");
        if beside.core_away > loop_alone.core_away {
            progress.note(&format!(
                "round {round}: the worker's core was away in {} slices beside N4, and in {} beside a bare loop",
                beside.core_away, loop_alone.core_away
            ));
        }
        progress.step(&format!("round {round} of {}: as fast as it goes", args.rounds))?;
        let found = bench.beside_n4(args.per_slice() * 4, AT_ONCE, rate_pps)?;
        [&found.establishing, &found.deleting].into_iter().for_each(|slice| highest.add(slice, rate_pps));
        samples.add("n4.highest_establishments_per_s", found.establishments_per_s, "1/s");
        samples.add("n4.deletions_per_s", found.deletions_per_s, "1/s");
        let lost = Tally::lost_in([&highest]);
        lost.into_iter().for_each(|lost| samples.add("n4.highest_forwarding_lost", lost as f64, "packets"));
        rounds.push(json!({
            "rate_pps": rate_pps, "beside_n4": beside, "beside_deletions": deleting, "beside_a_loop": loop_alone,
            "at_the_highest_rate": highest,
        }));
    }
    Ok(())
}

/// Kills a UPF again and again. Here no thread is bound to a core, and so that process is not either.
fn restart(args: &Args, samples: &mut Samples, progress: &Progress) -> anyhow::Result<()> {
    if args.kills == 0 {
        return Ok(());
    }
    progress.step("sessions in a store")?;
    let mut upf = Restarted::with_sessions(args.restored, progress)?;
    for kill in 1..=args.kills {
        progress.step(&format!("kill {kill} of {}", args.kills))?;
        let name = if args.restored == 100_000 { "n4.restore_100k_s" } else { "n4.restore_s" };
        samples.add(name, upf.kill(progress)?.as_secs_f64(), "s");
    }
    Ok(())
}

impl Args {
    /// Sessions established in a slice.
    fn per_slice(&self) -> u32 {
        (self.rate * self.seconds).ceil() as u32
    }
}

/// The UPF with its session manager.
struct Bench {
    subject: Subject,
    manager: Manager,
    slice: Duration,
}

/// What became of the traffic in a slice.
struct Slice {
    /// Packets that left the UPF.
    forwarded: u64,
    /// Packets that came when the queue was full.
    overflown: u64,
    /// Packets that the UPF dropped, by reason.
    dropped: BTreeMap<&'static str, u64>,
    /// The longest time in which the worker did not poll.
    longest_pause: Duration,
}

/// Slices together.
#[derive(Debug, Default, Serialize)]
struct Tally {
    /// Slices that count.
    counting: u32,
    /// Of those, in which nothing was lost.
    without_loss: u32,
    /// Slices in which the worker's core was away for longer than its queue lasts.
    core_away: u32,
    /// Packets that left the UPF, in any slice.
    forwarded: u64,
    /// Packets that overflew the queue in slices that count.
    overflown: u64,
    /// Packets that the UPF dropped in any slice, by reason.
    dropped: BTreeMap<&'static str, u64>,
    /// The longest time in which the worker did not poll.
    longest_pause_us: u64,
}

impl Tally {
    fn add(&mut self, slice: &Slice, rate_pps: u64) {
        // Each direction has half of the rate, and a queue of its own.
        let lasts = Duration::from_secs_f64(QUEUE as f64 / (rate_pps as f64 / 2.0));
        self.longest_pause_us = self.longest_pause_us.max(slice.longest_pause.as_micros() as u64);
        self.forwarded += slice.forwarded;
        for (reason, count) in &slice.dropped {
            *self.dropped.entry(reason).or_default() += count;
        }
        if slice.longest_pause >= lasts {
            self.core_away += 1;
            return;
        }
        self.counting += 1;
        self.without_loss += u32::from(slice.overflown == 0 && slice.dropped.is_empty());
        self.overflown += slice.overflown;
    }

    /// Packets that count as lost, of all together; none is known where no slice counts.
    fn lost_in<const N: usize>(all: [&Self; N]) -> Option<u64> {
        let lost = all.iter().map(|tally| tally.overflown + tally.dropped.values().sum::<u64>()).sum();
        (lost > 0 || all.iter().any(|tally| tally.counting > 0)).then_some(lost)
    }
}

/// What was found while sessions were established, and then while they were deleted.
struct Beside {
    establishing: Slice,
    deleting: Slice,
    establishments_per_s: f64,
    deletions_per_s: f64,
}

impl Bench {
    /// A UPF with [`BASE_SESSIONS`] sessions, whose traffic comes as soon as there is a rate.
    fn start(max_sessions: u32, cores: [usize; 2], slice: Duration, state: Option<Folder>) -> anyhow::Result<Self> {
        let subject = Subject::start(max_sessions as usize, cores, state)?;
        let mut manager = Manager::associate(subject.n4)?;
        let mut base = vec![];
        manager.establish(0..BASE_SESSIONS, AT_ONCE, |session| {
            base.push(session);
            Ok(())
        })?;
        let bench = Self { subject, manager, slice };
        bench.feed(&base)?;
        Ok(bench)
    }

    /// Makes traffic of the sessions come both ways, as soon as there is a rate.
    fn feed(&self, sessions: &[Session]) -> anyhow::Result<()> {
        for input in &self.subject.inputs {
            let frames = sessions.iter().map(|session| packet(input.way, session)).collect();
            let port = Synthetic::new(frames).open();
            let queue = port.queues.into_iter().next().context("a port has a queue")?;
            input.give(Feed::Stream(queue.rx))?;
        }
        Ok(())
    }

    /// The highest rate tried at which most slices lose nothing, in packets a second, both ways together.
    fn rate_without_loss(&mut self, progress: &Progress) -> anyhow::Result<u64> {
        let _busy = Loop::start();
        self.subject.set_rate(WITHOUT_PAUSE);
        std::thread::sleep(self.slice / 4);
        let (before, begin) = (self.subject.taken(), Instant::now());
        std::thread::sleep(self.slice);
        let highest_pps = (self.subject.taken() - before) as f64 / begin.elapsed().as_secs_f64();
        // Slices begin when nothing comes any more.
        self.subject.set_rate(0);
        for share in SHARES {
            let rate_pps = highest_pps as u64 * share / 100;
            let mut tally = Tally::default();
            for _ in 0..TRIES {
                progress.go_on()?;
                tally.add(&self.slice(rate_pps)?, rate_pps);
            }
            if tally.without_loss * 2 > tally.counting {
                return Ok(rate_pps);
            }
        }
        anyhow::bail!("the worker loses packets at any rate: its core is not its own")
    }

    /// A slice in which a bare loop keeps N4's core busy.
    fn beside_a_loop(&mut self, rate_pps: u64) -> anyhow::Result<Slice> {
        let _busy = Loop::start();
        self.slice(rate_pps)
    }

    /// A slice in which nothing happens but traffic.
    fn slice(&mut self, rate_pps: u64) -> anyhow::Result<Slice> {
        let (slice, ()) = self.traffic(rate_pps, |bench| {
            std::thread::sleep(bench.slice);
            Ok(())
        })?;
        Ok(slice)
    }

    /// Establishes `count` sessions, `rate` a second, each of which gets a packet each way at once, and deletes them as fast as the
    /// UPF answers. Each of the two is a slice with traffic.
    fn beside_n4(&mut self, count: u32, rate: f64, rate_pps: u64) -> anyhow::Result<Beside> {
        let mut sessions = Vec::with_capacity(count as usize);
        let (establishing, established) = self.traffic(rate_pps, |bench| {
            let (begin, inputs) = (Instant::now(), &bench.subject.inputs);
            bench.manager.establish(BASE_SESSIONS..BASE_SESSIONS + count, rate, |session| {
                sessions.push(session);
                inputs.iter().try_for_each(|input| input.give(Feed::Packet(packet(input.way, &session))))
            })?;
            Ok(begin.elapsed())
        })?;
        let (deleting, deleted) = self.traffic(rate_pps, |bench| {
            let begin = Instant::now();
            bench.manager.delete(&sessions)?;
            Ok(begin.elapsed())
        })?;
        let per_s = |time: Duration| f64::from(count) / time.as_secs_f64();
        let (establishments_per_s, deletions_per_s) = (per_s(established), per_s(deleted));
        Ok(Beside { establishing, deleting, establishments_per_s, deletions_per_s })
    }

    /// Does `work` while traffic comes at that rate, and stops the traffic.
    fn traffic<R>(
        &mut self,
        rate_pps: u64,
        work: impl FnOnce(&mut Self) -> anyhow::Result<R>,
    ) -> anyhow::Result<(Slice, R)> {
        self.subject.settle();
        let (sent, overflown, dropped) = (self.subject.sent(), self.subject.overflown(), self.subject.dropped());
        self.subject.set_rate(rate_pps);
        let result = work(self)?;
        let longest_pause = self.subject.longest_pause();
        let overflown = self.subject.overflown() - overflown;
        self.subject.set_rate(0);
        self.subject.settle();
        let mut dropped_since = self.subject.dropped();
        dropped_since.retain(|reason, count| {
            *count -= dropped.get(reason).copied().unwrap_or(0);
            *count > 0
        });
        let dropped = dropped_since;
        let forwarded = self.subject.sent() - sent;
        Ok((Slice { forwarded, overflown, dropped, longest_pause }, result))
    }

    /// What the process grows by for each of `count` sessions, while there is no traffic.
    fn bytes_per_session(&mut self, count: u32, progress: &Progress) -> anyhow::Result<f64> {
        self.subject.set_rate(0);
        let before = resident_bytes()?;
        self.manager.establish(BASE_SESSIONS..BASE_SESSIONS + count, AT_ONCE, |_| progress.go_on())?;
        Ok((resident_bytes()? - before) / f64::from(count))
    }
}

/// A bare loop that keeps the caller's core busy until it is dropped.
struct Loop(Arc<AtomicBool>);

impl Loop {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self(stop)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A packet of a session.
fn packet(way: Way, session: &Session) -> Vec<u8> {
    rig::frame(way, Load::of(1, 1, PAYLOAD), session.number, session.teid)
}

/// Memory of this process that is in use.
fn resident_bytes() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").context("/proc/self/statm")?;
    let pages: f64 = text.split(' ').nth(1).context("/proc/self/statm is not as expected")?.parse()?;
    Ok(pages * nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.context("no page size")? as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_in_force_when_they_are_accepted() {
        let Ok(cores) = cores::pair() else {
            println!("SKIPPED sessions_are_in_force_when_they_are_accepted: one core only");
            return;
        };
        let mut bench = Bench::start(10_000, cores, Duration::from_millis(50), None).expect("a UPF");
        let found = bench.beside_n4(500, 5_000.0, 20_000).expect("sessions");
        assert!(found.establishments_per_s > 0.0 && found.deletions_per_s > 0.0);
        assert!(found.establishing.forwarded > 1_000, "a packet of each session each way");
        assert!(found.deleting.forwarded > 0, "they are deleted under traffic");
        assert_eq!((found.establishing.dropped, found.deleting.dropped), Default::default());
        assert_eq!(bench.beside_a_loop(20_000).expect("a slice").dropped, BTreeMap::new());
    }

    #[test]
    fn slices_begin_when_what_came_without_a_pause_has_ended() {
        let Ok(cores) = cores::pair() else {
            println!("SKIPPED slices_begin_when_what_came_without_a_pause_has_ended: one core only");
            return;
        };
        let mut bench = Bench::start(10_000, cores, Duration::from_millis(20), None).expect("a UPF");
        match bench.rate_without_loss(&Progress::new()) {
            Ok(rate_pps) => assert!(rate_pps > 0),
            // Where others are at work on the worker's core.
            Err(error) => assert!(error.to_string().contains("its core is not its own"), "{error:#}"),
        }
    }

    /// The program that tests is no UPF: none of its kind can be killed.
    #[test]
    fn what_was_measured_is_reported_where_something_else_fails() {
        if cores::pair().is_err() {
            println!("SKIPPED what_was_measured_is_reported_where_something_else_fails: one core only");
            return;
        }
        let (held, kills, restored, without_store) = (0, 1, 10, true);
        let args = Args { rounds: 0, slices: 1, rate: 1_000.0, held, kills, restored, without_store, seconds: 0.02 };
        let Outcome { report, failure } = run(&args).expect("a report");
        assert!(report.metrics.contains_key("link.rtt_ns"));
        let failure = failure.expect("there was no UPF to kill").to_string();
        assert!(failure.contains("kills: "), "{failure}");
        assert_eq!(report.conditions["interrupted"], false);
        assert!(report.conditions["failures"].to_string().contains("kills: "), "{}", report.conditions);
    }

    #[test]
    fn sessions_come_at_a_rate_that_can_be() {
        assert_eq!(
            (rate("12000"), rate("0.5").is_err(), rate("1e10").is_err(), rate("nan").is_err()),
            (Ok(12_000.0), true, true, true)
        );
        let (rounds, slices, held, kills, restored, without_store) = (1, 1, 0, 0, 10, true);
        let long = Args { rounds, slices, rate: 1e6, held, kills, restored, without_store, seconds: 86_400.0 };
        assert!(run(&long).err().is_some_and(|error| error.to_string().contains("lower --seconds or --rate")));
    }

    #[test]
    fn slices_in_which_the_core_was_away_do_not_count() {
        let slice = |overflown, pause_ms| Slice {
            forwarded: 0,
            overflown,
            dropped: BTreeMap::new(),
            longest_pause: Duration::from_millis(pause_ms),
        };
        let mut tally = Tally::default();
        // At 1 Mpps each way the queue lasts for 4 ms.
        for (overflown, pause_ms) in [(0, 1), (5, 3), (9_000, 9), (0, 5)] {
            tally.add(&slice(overflown, pause_ms), 2_000_000);
        }
        assert_eq!((tally.counting, tally.without_loss, tally.core_away, tally.overflown), (2, 1, 2, 5));
        assert_eq!(tally.longest_pause_us, 9_000);
        assert_eq!(Tally::lost_in([&tally]), Some(5));
        assert_eq!(Tally::lost_in([&tally, &Tally::default(), &tally]), Some(10));
    }

    #[test]
    fn nothing_is_known_to_be_lost_or_not_where_no_slice_counts() {
        let mut slice =
            Slice { forwarded: 0, overflown: 9_000, dropped: BTreeMap::new(), longest_pause: Duration::from_millis(9) };
        let mut tally = Tally::default();
        tally.add(&slice, 2_000_000);
        assert_eq!(Tally::lost_in([&tally, &tally]), None);
        slice.dropped.insert("drop.no_session", 3);
        tally.add(&slice, 2_000_000);
        assert_eq!(Tally::lost_in([&tally]), Some(3), "a drop is the UPF's doing in any slice");
    }
}
