//! Shares laid out as a sequence: who has a large one comes often and at even distances, not in a row.

/// Longest sequence that is laid out.
pub const LEN_MAX: usize = 1 << 22;

/// A sequence of numbers below `counts.len()` in which each occurs as often as its count says. The occurrences of a number
/// are as far from each other as they can be; where two numbers would begin together they are kept apart by the golden
/// ratio, so that those that occur once are spread over the whole sequence.
pub fn spread(counts: &[u32]) -> Vec<u32> {
    // 2^32 by the golden ratio: its multiples, modulo 2^32, never come close to each other.
    const APART: u32 = 0x9e37_79b9;
    let all = |number: usize| {
        let begin = u64::from((number as u32).wrapping_mul(APART));
        let count = u64::from(counts[number]);
        // Parts of the sequence in units of 2^-32.
        (0..count).map(move |k| ((k << 32 | begin) / count) << 32 | number as u64)
    };
    let mut places: Vec<u64> = (0..counts.len()).flat_map(all).collect();
    places.sort_unstable();
    places.into_iter().map(|place| place as u32).collect()
}

/// How often each of `weights` occurs in a sequence of `len`: nobody has one more or less than its exact share, and together
/// they fill it (the method of largest remainders).
pub fn counts(weights: &[f64], len: usize) -> Vec<u32> {
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| weight / sum * len as f64).collect();
    let mut counts: Vec<u32> = exact.iter().map(|share| *share as u32).collect();
    let left = len.saturating_sub(counts.iter().map(|count| *count as usize).sum());
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
    by_remainder.into_iter().take(left).for_each(|number| counts[number] += 1);
    counts
}

/// Whether nobody comes twice within `distance` places of an order that is gone through over and over.
pub fn are_apart(order: &[u32], distance: usize) -> bool {
    let numbers = order.iter().max().map_or(0, |number| *number as usize + 1);
    let mut last = vec![None; numbers];
    let mut twice_round = order.iter().chain(order.iter().take(distance)).enumerate();
    twice_round.all(|(at, number)| last[*number as usize].replace(at).is_none_or(|before| at - before >= distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrences(order: &[u32], of: u32) -> Vec<usize> {
        order.iter().enumerate().filter(|(_, number)| **number == of).map(|(at, _)| at).collect()
    }

    #[test]
    fn everyone_comes_as_often_as_was_asked_for() {
        let wanted: Vec<u32> = (0..300).map(|number| number * 7 % 31).collect();
        let order = spread(&wanted);
        for (number, count) in wanted.iter().enumerate() {
            assert_eq!(occurrences(&order, number as u32).len(), *count as usize, "number {number}");
        }
    }

    #[test]
    fn who_comes_often_comes_at_even_distances() {
        let mut wanted = vec![1; 600];
        wanted[7] = 200;
        wanted[8] = 100;
        let order = spread(&wanted);
        for (number, every) in [(7, 4.5), (8, 9.0)] {
            for pair in occurrences(&order, number).windows(2) {
                let distance = (pair[1] - pair[0]) as f64;
                assert!((distance - every).abs() <= 0.5 * every, "{number} came {distance} after itself");
            }
        }
    }

    #[test]
    fn those_that_come_once_are_spread_over_the_whole() {
        let mut wanted = vec![1; 1_000];
        wanted[0] = 1_000;
        let order = spread(&wanted);
        for hundred in order.chunks(100) {
            let rare = hundred.iter().filter(|number| **number != 0).count();
            assert!((40..=60).contains(&rare), "{rare} of 100");
        }
    }

    #[test]
    fn shares_are_exact_to_one_and_fill_the_sequence() {
        let weights: Vec<f64> = (1..=50).map(|rank| 1.0 / f64::from(rank)).collect();
        let sum: f64 = weights.iter().sum();
        for len in [1, 50, 999, 10_000] {
            let counts = counts(&weights, len);
            assert_eq!(counts.iter().sum::<u32>() as usize, len);
            for (weight, count) in weights.iter().zip(counts) {
                assert!((weight / sum * len as f64 - f64::from(count)).abs() < 1.0);
            }
        }
    }
}
