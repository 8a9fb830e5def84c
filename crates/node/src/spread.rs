//! Who is to own which bucket: as many each as can be, with no more moves than that takes.

use vport::steering::BUCKETS;

/// New owners of all buckets, out of `queues`. With no queue nothing changes.
pub(crate) fn spread(owners: &[u8; BUCKETS], queues: &[u8]) -> [u8; BUCKETS] {
    let mut new = *owners;
    if queues.is_empty() {
        return new;
    }
    let held = |queue: &u8| owners.iter().filter(|owner| *owner == queue).count();
    // Those that have most keep the odd ones.
    let mut queues: Vec<(u8, usize)> = queues.iter().map(|queue| (*queue, held(queue))).collect();
    queues.sort_by_key(|(queue, held)| (usize::MAX - held, *queue));
    let (each, odd) = (BUCKETS / queues.len(), BUCKETS % queues.len());
    let mut room: Vec<(u8, usize)> =
        queues.iter().enumerate().map(|(at, (queue, _))| (*queue, each + usize::from(at < odd))).collect();
    let mut homeless = Vec::new();
    for (bucket, owner) in owners.iter().enumerate() {
        match room.iter_mut().find(|(queue, left)| queue == owner && *left > 0) {
            Some((_, left)) => *left -= 1,
            None => homeless.push(bucket),
        }
    }
    let places = room.into_iter().flat_map(|(queue, left)| std::iter::repeat_n(queue, left));
    homeless.into_iter().zip(places).for_each(|(bucket, queue)| new[bucket] = queue);
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(owners: &[u8; BUCKETS], queues: &[u8]) -> Vec<usize> {
        queues.iter().map(|queue| owners.iter().filter(|owner| *owner == queue).count()).collect()
    }

    #[test]
    fn one_takes_all_and_four_take_a_quarter_each() {
        let one = spread(&[3; BUCKETS], &[0]);
        assert_eq!(one, [0; BUCKETS]);
        assert_eq!(counts(&spread(&one, &[0, 1, 2, 3]), &[0, 1, 2, 3]), [32; 4]);
        assert_eq!(spread(&one, &[]), one);
    }

    proptest! {
        #[test]
        fn all_have_the_same_and_no_bucket_moves_that_need_not(
            owners in proptest::array::uniform32(0_u8..16),
            queues in proptest::collection::btree_set(0_u8..16, 1..=16),
        ) {
            let owners: [u8; BUCKETS] = std::array::from_fn(|bucket| owners[bucket % 32]);
            let queues: Vec<u8> = queues.into_iter().collect();
            let new = spread(&owners, &queues);
            let counts_new = counts(&new, &queues);
            let (least, most) = (counts_new.iter().min().unwrap(), counts_new.iter().max().unwrap());
            prop_assert!(counts_new.iter().sum::<usize>() == BUCKETS && most - least <= 1);
            // Whoever has too few must get what is missing, and nothing else moves.
            let moved = new.iter().zip(&owners).filter(|(new, old)| new != old).count();
            let missing: usize =
                counts_new.iter().zip(counts(&owners, &queues)).map(|(new, old)| new.saturating_sub(old)).sum();
            prop_assert_eq!(moved, missing);
            prop_assert_eq!(spread(&new, &queues), new);
        }
    }
}
