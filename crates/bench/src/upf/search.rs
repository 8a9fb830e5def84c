//! The highest rate that a UPF takes in open loop.

use std::time::Duration;

use anyhow::ensure;

use super::crew::drain;
use super::ridden::Reins;

/// How long a rate is tried.
pub(super) const TRIAL: Duration = Duration::from_millis(100);
const TRIALS: usize = 8;
/// Part of what is due that the source has to have offered by then: a rate above what it can do is no rate.
const KEPT: f64 = 0.95;

/// The highest rate, in packets a second, at which ports refuse no larger part than `loss`.
pub(super) fn highest_pps(reins: &Reins, loss: f64) -> anyhow::Result<f64> {
    let before = reins.tally();
    reins.wait();
    std::thread::sleep(TRIAL);
    let all = reins.tally().since(before).received as f64 / TRIAL.as_secs_f64();
    drain(reins);
    let (mut low, mut high) = (0.0, 1.2 * all);
    for _ in 0..TRIALS {
        let middle = (low + high) / 2.0;
        let before = reins.tally();
        reins.set_rate(middle);
        std::thread::sleep(TRIAL);
        drain(reins);
        let tally = reins.tally().since(before);
        let is_kept = tally.offered as f64 >= KEPT * middle * TRIAL.as_secs_f64();
        let is_taken = tally.refused as f64 <= loss * tally.offered as f64;
        *(if is_kept && is_taken { &mut low } else { &mut high }) = middle;
    }
    ensure!(low > 0.0, "no rate is without loss: the cores are not this program's");
    Ok(low)
}
