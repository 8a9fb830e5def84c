//! The highest rate that a UPF takes in open loop.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::crew::drain;
use super::ridden::Reins;

/// How long a rate is tried.
pub(super) const TRIAL: Duration = Duration::from_millis(100);
const TRIALS: usize = 8;
/// How often a rate is tried before it is too high: a trial may have been disturbed.
const TRIES: usize = 3;
/// What may wait at the end of a trial, by the time in which as much is due: in the source, which is behind then, or on its way.
const WAITING_MAX: Duration = Duration::from_millis(1);

/// The highest rate, in packets a second, at which ports refuse no larger part than `loss`, and of which hardly anything waits when a
/// trial ends: a ring that only fills is no loss yet.
pub(super) fn highest_pps(reins: &Reins, loss: f64) -> anyhow::Result<f64> {
    let before = reins.tally();
    reins.wait();
    std::thread::sleep(TRIAL);
    let mut high = reins.tally().since(before).received as f64 / TRIAL.as_secs_f64();
    drain(reins);
    ensure!(high > 0.0, "nothing comes out of the UPF");
    let mut low = 0.0;
    let is_taken = |pps| (0..TRIES).any(|_| is_taken(reins, pps, loss));
    while is_taken(high) {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..TRIALS {
        let middle = (low + high) / 2.0;
        *(if is_taken(middle) { &mut low } else { &mut high }) = middle;
    }
    ensure!(low > 0.0, "no rate is without loss: the cores are not this program's");
    Ok(low)
}

fn is_taken(reins: &Reins, pps: f64, loss: f64) -> bool {
    let (before, begin) = (reins.tally(), Instant::now());
    reins.set_rate(pps);
    std::thread::sleep(TRIAL);
    let (tally, due) = (reins.tally().since(before), pps * begin.elapsed().as_secs_f64());
    let waiting = due - tally.offered as f64 + tally.missing() as f64;
    drain(reins);
    let tally = reins.tally().since(before);
    tally.refused as f64 <= loss * tally.offered as f64 && waiting <= pps * WAITING_MAX.as_secs_f64()
}
