//! What this host offers: cores, hugepages, and how fast two of its cores reach each other.

use std::fs;
use std::hint;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cgroup::parse_list;
use crate::error::Attempt;
use crate::{Error, Result};

/// Cores that are online.
pub fn online_cores() -> Result<Vec<usize>> {
    const FILE: &str = "/sys/devices/system/cpu/online";
    Ok(parse_list(&fs::read_to_string(FILE).attempt(|| format!("reading {FILE}"))?))
}

/// 2 MiB pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// Reserved in all.
    pub total: u64,
    /// Not in use.
    pub free: u64,
}

impl HugePages {
    /// Reads the kernel's counters; zeros where it has no hugepages.
    pub fn read() -> Self {
        let number = |name| {
            let text = fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}")).ok()?;
            text.trim().parse().ok()
        };
        Self { total: number("nr_hugepages").unwrap_or(0), free: number("free_hugepages").unwrap_or(0) }
    }
}

/// Measured in a few milliseconds; the least of many, so that what else the host does now is no part of it. Where that is long
/// all the same, it is measured again, for about a second at most, however busy the host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyFloor {
    /// A cache line to another core and back; none if there is only one core.
    pub cache_line_round_trip: Option<Duration>,
    /// From a write to a pipe until a thread that slept in poll, on another core if there is one, goes on.
    pub wake_up: Duration,
}

impl LatencyFloor {
    /// Measures on two of the cores that the caller may use.
    pub fn measure() -> Result<Self> {
        // A quiet host needs a tenth of it.
        const LONG: Duration = Duration::from_micros(200);
        const WITHIN: Duration = Duration::from_secs(1);
        const PAUSE: Duration = Duration::from_millis(50);
        let begun = Instant::now();
        let mut least = Self::measure_once()?;
        while (least.wake_up >= LONG || least.polling() >= LONG) && begun.elapsed() < WITHIN {
            thread::sleep(PAUSE);
            least = least.and(Self::measure_once()?);
        }
        Ok(least)
    }

    /// What is the least of two measurements.
    fn and(self, other: Self) -> Self {
        let [first, second] = [self.cache_line_round_trip, other.cache_line_round_trip];
        Self {
            cache_line_round_trip: first.zip(second).map(|(first, second)| first.min(second)).or(first).or(second),
            wake_up: self.wake_up.min(other.wake_up),
        }
    }

    fn measure_once() -> Result<Self> {
        let allowed = sched_getaffinity(Pid::from_raw(0)).attempt(|| "reading the caller's cores".into())?;
        let mut cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
        let first = cores.next().ok_or_else(|| Error::Absent("a core to measure on".into()))?;
        let second = cores.next();
        Ok(Self {
            cache_line_round_trip: second.map(|second| cache_line_round_trip(first, second)).transpose()?,
            wake_up: wake_up(first, second.unwrap_or(first))?,
        })
    }

    /// The least one-way latency of a link whose ends poll: index and record are two dependent cache lines, each half a
    /// round trip.
    pub fn polling(&self) -> Duration {
        self.cache_line_round_trip.unwrap_or(self.wake_up)
    }

    /// The least one-way latency of a link whose consumer may have gone to sleep.
    pub fn sleeping(&self) -> Duration {
        self.wake_up
    }
}

/// A line of its own, so that nothing else moves with the counter.
#[repr(align(128))]
struct Line(AtomicU64);

/// How long one measurement goes on: where each of its threads waits for a core, a few rounds take that long.
const ROUNDS_WITHIN: Duration = Duration::from_millis(50);

/// Two threads count up in turns; the least of batches. If not one is complete in time, that is how long it took.
fn cache_line_round_trip(first: usize, second: usize) -> Result<Duration> {
    const BATCHES: u64 = 325;
    const ROUNDS: u64 = 20;
    let (line, over) = (Line(AtomicU64::new(0)), AtomicBool::new(false));
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(second);
            let mut even = 0;
            while let Some(odd) = await_other(&line.0, even, || over.load(Ordering::Acquire)) {
                even = odd + 1;
                line.0.store(even, Ordering::Release);
            }
            pinned
        });
        let call = scope.spawn(|| {
            let pinned = pin(first);
            let begun = Instant::now();
            let is_over = || begun.elapsed() > ROUNDS_WITHIN;
            let batch = |batch: u64| {
                let begun = Instant::now();
                for round in 0..ROUNDS {
                    let odd = (batch * ROUNDS + round) * 2 + 1;
                    line.0.store(odd, Ordering::Release);
                    await_other(&line.0, odd, is_over)?;
                }
                Some(begun.elapsed() / ROUNDS as u32)
            };
            let batches: Vec<Duration> = (0..BATCHES).take_while(|_| !is_over()).map_while(batch).collect();
            over.store(true, Ordering::Release);
            pinned.map(|()| if batches.is_empty() { begun.elapsed() } else { least(&batches) })
        });
        let (echoed, measured) = (echo.join(), call.join());
        let what = || format!("measuring between cores {first} and {second}");
        echoed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).attempt(what)?;
        measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).attempt(what)
    })
}

/// Spins until there is another value. Lets others run if it takes long, since the partner may need this very core, and asks
/// then whether it is to give up. To sleep lets them run, to yield does not do: on a busy host the kernel (EEVDF) puts off
/// whoever yields each time, for seconds in the end.
fn await_other(counter: &AtomicU64, value: u64, is_over: impl Fn() -> bool) -> Option<u64> {
    let mut spins = 0u32;
    loop {
        let other = counter.load(Ordering::Acquire);
        if other != value {
            return Some(other);
        }
        spins += 1;
        if spins.is_multiple_of(10_000) {
            if is_over() {
                return None;
            }
            thread::sleep(Duration::from_micros(100));
        }
        hint::spin_loop();
    }
}

/// A thread on one core wakes one on the other that sleeps in poll; the least of some rounds.
fn wake_up(first: usize, second: usize) -> Result<Duration> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    const ROUNDS: usize = 51;
    let epoch = Instant::now();
    let (bell, rope) = nix::unistd::pipe().attempt(|| "making a pipe".into())?;
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            pin(second)?;
            let mut delays = Vec::with_capacity(ROUNDS);
            loop {
                poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
                let now = epoch.elapsed();
                let mut rung_ns = [0; 8];
                if nix::unistd::read(&bell, &mut rung_ns)? == 0 {
                    return Ok::<_, io::Error>(least(&delays));
                }
                delays.push(now.saturating_sub(Duration::from_nanos(u64::from_ne_bytes(rung_ns))));
            }
        });
        // It owns the pipe's end: when it is through, or were it to fail, the sleeper finds the pipe closed.
        let ringer = scope.spawn(move || {
            pin(first)?;
            for round in 0..ROUNDS {
                if round > 0 && epoch.elapsed() > ROUNDS_WITHIN {
                    break;
                }
                // Long enough for the sleeper to be asleep again.
                thread::sleep(Duration::from_micros(100));
                nix::unistd::write(&rope, &(epoch.elapsed().as_nanos() as u64).to_ne_bytes())?;
            }
            Ok::<_, io::Error>(())
        });
        let (rang, slept) = (ringer.join(), sleeper.join());
        rang.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).attempt(|| "ringing a pipe".into())?;
        slept.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).attempt(|| "sleeping on a pipe".into())
    })
}

fn pin(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// What else the host does now can only make it longer.
fn least(values: &[Duration]) -> Duration {
    values.iter().copied().min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_measured_and_is_neither_zero_nor_a_second() {
        let floor = LatencyFloor::measure().expect("measured");
        assert!(floor.wake_up > Duration::ZERO && floor.wake_up < Duration::from_secs(1), "{floor:?}");
        if let Some(round_trip) = floor.cache_line_round_trip {
            assert!(round_trip > Duration::ZERO && round_trip < Duration::from_secs(1), "{floor:?}");
        }
    }

    #[test]
    fn of_two_measurements_the_least_counts() {
        let floor = |line: Option<u64>, wake_up| LatencyFloor {
            cache_line_round_trip: line.map(Duration::from_nanos),
            wake_up: Duration::from_micros(wake_up),
        };
        assert_eq!(floor(Some(60), 1_100).and(floor(Some(350), 9)), floor(Some(60), 9));
        assert_eq!(floor(None, 8).and(floor(Some(60), 9)), floor(Some(60), 8));
        assert_eq!(floor(None, 8).and(floor(None, 9)), floor(None, 8));
    }

    #[test]
    fn the_host_has_cores() {
        assert!(!online_cores().expect("cores").is_empty());
    }
}
