//! Busy time of a thread: that of the rounds in which it did work. Rounds that found nothing do not count, nor do rounds that were
//! interrupted. The clock is read once a round, in all threads alike.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;

/// A round that takes longer has been interrupted: by the system, or by who owns the machine. It does not count. What a debug build
/// takes says nothing, but has to count.
const INTERRUPTED: Duration = Duration::from_micros(if cfg!(debug_assertions) { 1_000_000 } else { 100 });
/// How long threads may take to have their first round that counts, where others use the cores.
const PATIENCE: Duration = Duration::from_secs(20);

/// Busy time, and the packets of the same rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    time: Duration,
    packets: u64,
}

impl Busy {
    /// A round with work, if it was not interrupted.
    #[inline]
    pub fn add(&mut self, time: Duration, packets: u64) {
        if time < INTERRUPTED {
            self.time += time;
            self.packets += packets;
        }
    }

    /// Nanoseconds of a packet.
    pub fn ns(self) -> f64 {
        self.time.as_nanos() as f64 / self.packets.max(1) as f64
    }

    /// Time of all rounds that count.
    pub fn time(self) -> Duration {
        self.time
    }
}

/// What a thread that runs rounds is to do with them, as whoever measures says.
#[derive(Default)]
pub struct Phase {
    state: AtomicU8,
    has_counted: AtomicBool,
}

impl Phase {
    const COUNTING: u8 = 1;
    const OVER: u8 = 2;

    /// Rounds count from now on.
    pub fn count(&self) {
        self.state.store(Self::COUNTING, Ordering::Relaxed);
    }

    /// Rounds count for `window` from now on, and longer where a thread has not counted any.
    pub fn count_for(&self, window: Duration) {
        self.count();
        std::thread::sleep(window);
        self.await_counted();
    }

    /// Waits until a thread has counted a packet.
    pub fn await_counted(&self) {
        let begin = Instant::now();
        while !self.has_counted() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a thread has counted a packet.
    pub fn has_counted(&self) -> bool {
        self.has_counted.load(Ordering::Relaxed)
    }

    /// Rounds do not count from now on.
    pub fn rest(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// There are no more rounds.
    pub fn end(&self) {
        self.state.store(Self::OVER, Ordering::Relaxed);
    }
}

/// Runs rounds on `core` until the end, and returns the busy time of those that count. `round` says whether it did work, `packets`
/// how many have passed so far.
pub fn of_rounds(
    phase: &Phase,
    core: usize,
    mut round: impl FnMut() -> bool,
    packets: impl Fn() -> u64,
) -> anyhow::Result<Busy> {
    traffic::cores::pin(core)?;
    let mut busy = Busy::default();
    let (mut at, mut before) = (Instant::now(), packets());
    loop {
        let worked = round();
        let (now, passed) = (Instant::now(), packets());
        match phase.state.load(Ordering::Relaxed) {
            Phase::COUNTING if worked => {
                let is_first = busy.packets == 0;
                busy.add(now - at, passed - before);
                if is_first && busy.packets > 0 {
                    phase.has_counted.store(true, Ordering::Relaxed);
                }
            }
            Phase::OVER => break,
            _ => {}
        }
        (at, before) = (now, passed);
        if !worked {
            std::hint::spin_loop();
        }
    }
    ensure!(busy.packets > 0, "nothing was done: core {core} is not this program's");
    Ok(busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_was_interrupted_does_not_count() {
        let mut busy = Busy::default();
        busy.add(Duration::from_micros(2), 32);
        busy.add(INTERRUPTED, 32);
        assert_eq!((busy.ns(), busy.time()), (2_000.0 / 32.0, Duration::from_micros(2)));
    }

    #[test]
    fn only_rounds_with_work_count_and_only_while_they_are_to() {
        let (phase, rounds) = (Phase::default(), std::cell::Cell::new(0));
        let round = || {
            rounds.set(rounds.get() + 1);
            match rounds.get() {
                10 => phase.count(),
                30 => phase.rest(),
                40 => phase.end(),
                _ => {}
            }
            rounds.get() % 2 == 0
        };
        let Ok(core) = traffic::cores::allowed().map(|cores| cores[0]) else { return };
        let busy = of_rounds(&phase, core, round, || rounds.get()).expect("some count");
        assert!(phase.has_counted());
        // One packet a round: at most those of rounds 10, 12, ... 28.
        assert!((1..=10).contains(&busy.packets), "{}", busy.packets);
    }
}
