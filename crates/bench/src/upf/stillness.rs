//! How still the cores are: for how long at most a loop that only polls is not run. What the system and the hypervisor take from a
//! bare loop they take from a worker, too.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::anyhow;

/// The longest time in microseconds, in each of so many stretches, that a loop on one of the cores was not run.
pub(super) fn longest_pauses_us(cores: &[usize], stretches: usize, stretch: Duration) -> anyhow::Result<Vec<f64>> {
    let (together, is_over) = (&Barrier::new(cores.len()), &AtomicBool::new(false));
    let of_cores = std::thread::scope(|scope| {
        let polling = |&core: &usize| {
            scope.spawn(move || {
                let is_pinned = traffic::cores::pin(core);
                // Whoever fails, nobody waits for long.
                together.wait();
                is_pinned.map(|()| pauses_us(stretches, stretch, is_over))
            })
        };
        let polling: Vec<_> = cores.iter().map(polling).collect();
        let pauses = polling.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a loop panicked"))?);
        pauses.collect::<anyhow::Result<Vec<_>>>()
    })?;
    Ok((0..stretches).map(|at| of_cores.iter().map(|pauses| pauses[at]).fold(0.0, f64::max)).collect())
}

/// Of one loop; a pause is in each stretch that it has a part in. All loops end together, so that none has the machine to itself.
fn pauses_us(stretches: usize, stretch: Duration, is_over: &AtomicBool) -> Vec<f64> {
    let mut pauses_us = vec![0.0_f64; stretches];
    let at = |time: Duration| (time.as_nanos() / stretch.as_nanos()) as usize;
    let (begin, mut last) = (Instant::now(), Duration::ZERO);
    while !is_over.load(Relaxed) {
        let now = begin.elapsed();
        for longest in pauses_us.iter_mut().take(at(now) + 1).skip(at(last)) {
            *longest = longest.max((now - last).as_secs_f64() * 1e6);
        }
        is_over.fetch_or(at(now) >= stretches, Relaxed);
        last = now;
    }
    pauses_us
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
        assert!(pauses_us.iter().all(|&pause_us| pause_us > 0.0), "{pauses_us:?}");
    }
}
