//! How long a packet takes in a function that has always one waiting.

use std::time::{Duration, Instant};

/// Turns between two looks at the clock.
const TURNS: usize = 512;

/// Nanoseconds of a packet, after a warm-up of a tenth of the window. `turn` returns the packets sent so far.
pub(super) fn nanoseconds(window: Duration, mut turn: impl FnMut() -> u64) -> f64 {
    let mut run = |time: Duration| {
        let before = turn();
        let begin = Instant::now();
        let mut sent = before;
        while begin.elapsed() < time {
            for _ in 0..TURNS {
                sent = turn();
            }
        }
        begin.elapsed().as_nanos() as f64 / (sent - before).max(1) as f64
    };
    run(window / 10);
    run(window)
}
