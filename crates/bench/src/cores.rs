//! The two cores of a measurement: which they are, and how far they are from each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::bail;
use traffic::cores::{allowed, pin};

use crate::line::Line;

/// A round trip below this many nanoseconds means that the cores are near.
pub const NEAR_NS: f64 = 150.0;

/// The first two allowed cores.
pub fn pair() -> anyhow::Result<[usize; 2]> {
    match allowed()?[..] {
        [first, second, ..] => Ok([first, second]),
        _ => bail!("this needs two cores, and this process may use only one"),
    }
}

/// Time for one cache line to go to the other core and back, in nanoseconds: the median of many stretches, each so short
/// that few are interrupted.
pub fn round_trip_ns(cores: [usize; 2]) -> anyhow::Result<f64> {
    const STRETCHES: usize = 1_000;
    const TRIPS: u64 = 100;
    let line = Arc::new(Line::default());
    // Whichever cannot be pinned takes part all the same: the other one would wait for ever.
    let echo = std::thread::spawn({
        let line = line.clone();
        move || -> anyhow::Result<()> {
            let is_pinned = pin(cores[1]);
            for trip in 0..TRIPS * STRETCHES as u64 {
                await_value(&line, 2 * trip + 1);
                line.0.store(2 * trip + 2, Ordering::Release);
            }
            is_pinned
        }
    });
    let ask = std::thread::spawn(move || -> anyhow::Result<Vec<f64>> {
        let is_pinned = pin(cores[0]);
        let mut stretches = Vec::with_capacity(STRETCHES);
        for stretch in 0..STRETCHES as u64 {
            let begin = Instant::now();
            for trip in stretch * TRIPS..(stretch + 1) * TRIPS {
                line.0.store(2 * trip + 1, Ordering::Release);
                await_value(&line, 2 * trip + 2);
            }
            stretches.push(begin.elapsed().as_nanos() as f64 / TRIPS as f64);
        }
        is_pinned.map(|()| stretches)
    });
    let mut stretches = ask.join().expect("the asking thread does not panic")?;
    echo.join().expect("the echoing thread does not panic")?;
    stretches.sort_by(f64::total_cmp);
    Ok(stretches[STRETCHES / 2])
}

fn await_value(line: &Line, value: u64) {
    let mut spins = 0u32;
    while line.0.load(Ordering::Acquire) != value {
        spins += 1;
        // Where both threads share a core after all, the other one must get to run.
        if spins.is_multiple_of(1 << 16) {
            std::thread::sleep(Duration::from_micros(1));
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_time() {
        let Ok(cores) = pair() else {
            println!("SKIPPED a_round_trip_takes_time: one core only");
            return;
        };
        assert!(round_trip_ns(cores).expect("both cores are allowed") > 0.0);
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let is_there = allowed().expect("a core")[0];
        for cores in [[is_there, usize::MAX], [usize::MAX, is_there]] {
            let error = round_trip_ns(cores).expect_err("no machine has so many");
            assert!(error.to_string().contains(&usize::MAX.to_string()), "{error}");
        }
    }
}
