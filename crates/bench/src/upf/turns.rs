//! Turns that a run is cut into, so that all that is compared has its part of whatever else the machine does meanwhile.

/// How many.
pub(super) const TURNS: u32 = 50;
/// Of these so many do not count, the fastest ones, and as many of the slowest.
const ASIDE: usize = 5;

/// Of those that count. What neighbours do is fast at one time and slow at another, so that a median would be the one or the other, as
/// chance has it.
pub(super) fn mean(turns: impl Iterator<Item = f64>) -> f64 {
    let mut turns: Vec<f64> = turns.collect();
    turns.sort_by(f64::total_cmp);
    let counting = &turns[ASIDE..turns.len() - ASIDE];
    counting.iter().sum::<f64>() / counting.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_stand_out_do_not_count() {
        let turns = (0..TURNS).map(|turn| if turn < 5 { 1e9 } else { f64::from(turn % 2) });
        // Of 45 others, 22 take nothing, of which five do not count either.
        assert_eq!(mean(turns), 23.0 / 40.0);
    }
}
