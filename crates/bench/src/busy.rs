//! Busy time of a thread: that of the rounds in which it did work. Rounds that found nothing do not count, nor do rounds that were
//! interrupted. The clock is read once a round, in all threads alike.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;

/// A round that takes longer has been interrupted: by the system, or by who owns the machine. It does not count.
const INTERRUPTED: Duration = Duration::from_micros(100);

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

/// What threads that run rounds are to do with them, as whoever measures says.
#[derive(Default)]
pub struct Phase(AtomicU8);

impl Phase {
    const COUNTING: u8 = 1;
    const OVER: u8 = 2;

    /// Rounds count from now on.
    pub fn count(&self) {
        self.0.store(Self::COUNTING, Ordering::Relaxed);
    }

    /// Rounds do not count from now on.
    pub fn rest(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// There are no more rounds.
    pub fn end(&self) {
        self.0.store(Self::OVER, Ordering::Relaxed);
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
        match phase.0.load(Ordering::Relaxed) {
            Phase::COUNTING if worked => busy.add(now - at, passed - before),
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
        busy.add(Duration::from_millis(3), 32);
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
        // One packet a round: at most those of rounds 10, 12, ... 28.
        assert!((1..=10).contains(&busy.packets), "{}", busy.packets);
    }
}
