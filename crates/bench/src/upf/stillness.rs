//! How still the cores are: for how long at most a loop that only polls is not run. What the system and the hypervisor take from a
//! bare loop they take from a worker, too.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::anyhow;

/// The longest time in microseconds, in each of so many stretches, that a loop on one of the cores was not run.
pub(super) fn longest_pauses_us(cores: &[usize], stretches: usize, stretch: Duration) -> anyhow::Result<Vec<f64>> {
    let (begin, is_over) = (Instant::now(), &AtomicBool::new(false));
    let of_cores = std::thread::scope(|scope| {
        let polling = |&core: &usize| scope.spawn(move || pauses_us(core, begin, stretches, stretch, is_over));
        let polling: Vec<_> = cores.iter().map(polling).collect();
        let pauses = polling.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a loop panicked"))?);
        pauses.collect::<anyhow::Result<Vec<_>>>()
    })?;
    Ok((0..stretches).map(|at| of_cores.iter().map(|pauses| pauses[at]).fold(0.0, f64::max)).collect())
}

/// All loops end together, so that none has the machine to itself.
fn pauses_us(
    core: usize,
    begin: Instant,
    stretches: usize,
    stretch: Duration,
    is_over: &AtomicBool,
) -> anyhow::Result<Vec<f64>> {
    traffic::cores::pin(core)?;
    let mut pauses_us = vec![0.0_f64; stretches];
    let mut last = begin.elapsed();
    while !is_over.load(Relaxed) {
        let now = begin.elapsed();
        match pauses_us.get_mut((now.as_nanos() / stretch.as_nanos()) as usize) {
            Some(longest) => *longest = longest.max((now - last).as_secs_f64() * 1e6),
            None => is_over.store(true, Relaxed),
        }
        last = now;
    }
    Ok(pauses_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stretch_has_a_longest_pause() {
        let core = traffic::cores::allowed().expect("a core")[0];
        let pauses_us = std::thread::spawn(move || longest_pauses_us(&[core], 20, Duration::from_millis(1)))
            .join()
            .expect("no panic")
            .expect("pauses");
        assert_eq!(pauses_us.len(), 20);
        assert!(pauses_us.iter().any(|&pause_us| pause_us > 0.0), "{pauses_us:?}");
    }
}
