use proptest::prelude::*;

use super::*;

const TICK: Duration = Duration::from_millis(4);

/// Workers that treat what their buckets bring, as far as they can.
struct World {
    policy: Policy,
    owners: [u8; BUCKETS],
    /// What each bucket brings, in workers.
    demand: [f64; BUCKETS],
    /// What the signal says of a worker that has so much to do.
    level: fn(f64) -> f64,
    now: Duration,
    moves: usize,
}

impl World {
    fn new(terms: Terms, workers: usize, demand: [f64; BUCKETS]) -> Self {
        let owners = std::array::from_fn(|bucket| (bucket % workers) as u8);
        let (policy, level) = (Policy::new(terms, workers), |sum: f64| sum.min(1.0));
        Self { policy, owners, demand, level, now: Duration::ZERO, moves: 0 }
    }

    fn sums(&self) -> Vec<f64> {
        sums(&self.owners, &self.demand, self.policy.workers())
    }

    fn spread(&self) -> f64 {
        let sums = self.sums();
        largest(&sums) - sums[coolest(&sums)]
    }

    fn tick(&mut self) -> Decision {
        let sums = self.sums();
        let levels: Vec<_> = sums.iter().copied().map(self.level).collect();
        let busy = sums.iter().map(|sum| sum.min(1.0)).sum();
        // Of a worker that has too much, each bucket gets its part.
        let treated = |bucket: usize| {
            let all = sums[usize::from(self.owners[bucket])];
            (self.demand[bucket] / all.max(1.0) * 4_000.0) as u64
        };
        let packets = std::array::from_fn(treated);
        let look = Look { now: self.now, levels: &levels, busy, packets: &packets, owners: &self.owners };
        let decision = self.policy.decide(&look);
        if let Some(owners) = decision.owners {
            self.moves += (0..BUCKETS).filter(|&bucket| owners[bucket] != self.owners[bucket]).count();
            self.owners = owners;
        }
        assert!(self.owners.iter().all(|&owner| usize::from(owner) < self.policy.workers()));
        self.now += TICK;
        decision
    }

    fn run(&mut self, ticks: usize) {
        (0..ticks).for_each(|_| _ = self.tick());
    }
}

fn largest(sums: &[f64]) -> f64 {
    sums.iter().copied().fold(0.0, f64::max)
}

/// One bucket that brings `elephant`, and others that bring the rest together.
fn with_elephant(elephant: f64, others: f64) -> [f64; BUCKETS] {
    std::array::from_fn(|bucket| if bucket == 1 { elephant } else { others / (BUCKETS - 1) as f64 })
}

/// Workers 2 to 8, and what 128 buckets bring: mostly alike, some much more.
fn demands() -> impl Strategy<Value = (usize, [f64; BUCKETS])> {
    let weights = proptest::collection::vec(prop_oneof![4 => 0.8..1.2f64, 1 => 0.0..8.0f64], BUCKETS);
    (2..=8usize, weights, 0.3..0.95f64).prop_map(|(workers, weights, mean)| {
        let all: f64 = weights.iter().sum();
        (workers, std::array::from_fn(|bucket| weights[bucket] / all * mean * workers as f64))
    })
}

#[test]
fn a_worker_that_was_given_more_than_it_can_do_is_soon_rid_of_it() {
    // 1.44 and 0.36 workers.
    let demand = std::array::from_fn(|bucket| if bucket % 2 == 0 { 1.44 } else { 0.36 } / 64.0);
    let mut world = World::new(Terms::fixed(2), 2, [0.9 / 64.0; BUCKETS]);
    world.run(5);
    world.demand = demand;
    let is_behind = |world: &World| largest(&world.sums()) >= 1.0;
    let ticks = (0..10).take_while(|_| is_behind(&world) && world.tick().workers == 2).count();
    assert!(ticks <= 4, "{ticks}: {:?}", world.sums());
    world.run(5);
    let moves = world.moves;
    assert!(world.spread() < SPREAD_BEGIN, "{:?}", world.sums());
    world.run(100);
    assert_eq!(world.moves, moves, "it came to rest");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever has moved, nobody has more than the one who had most, and loads are more alike.
    #[test]
    fn what_moves_makes_loads_more_alike((workers, demand) in demands()) {
        let before = std::array::from_fn(|bucket| (bucket % workers) as u8);
        let after = balanced(&before, &demand, workers);
        let squares = |owners| sums(owners, &demand, workers).iter().map(|sum| sum * sum).sum::<f64>();
        if after != before {
            prop_assert!(squares(&after) < squares(&before));
        }
        let largest = |owners| largest(&sums(owners, &demand, workers));
        prop_assert!(largest(&after) <= largest(&before));
        prop_assert_eq!(balanced(&after, &demand, workers), after, "what is balanced stays");
    }

    /// Within 50 ms skew is gone as far as buckets can be divided, and from then on nothing moves.
    #[test]
    fn skew_is_levelled_within_12_ticks_and_then_nothing_moves((workers, demand) in demands()) {
        let mut world = World::new(Terms::fixed(workers), workers, demand);
        world.run(12);
        let grain = demand.iter().copied().fold(0.0, f64::max);
        let sums = world.sums();
        let is_level = world.spread() <= SPREAD_BEGIN + grain
            || largest(&sums) <= world.policy.terms.rebalance_above + grain;
        prop_assert!(is_level, "{:?}", world.sums());
        world.run(20);
        let moves = world.moves;
        world.run(200);
        prop_assert_eq!(world.moves, moves, "it came to rest");
    }

    /// Whatever one bucket brings, the others, for which there is room, are levelled among the other workers, and then nothing moves.
    #[test]
    fn beside_a_bucket_that_fills_a_worker_the_others_are_levelled(
        (workers, mut demand) in demands(), elephant in 0.86..1.5f64, bucket in 0..BUCKETS,
    ) {
        demand[bucket] = 0.0;
        // Workers that all have too much are alike.
        let room = (0.9 * (workers - 1) as f64 / demand.iter().sum::<f64>().max(0.01)).min(1.0);
        demand.iter_mut().for_each(|load| *load *= room);
        demand[bucket] = elephant;
        let mut world = World::new(Terms::fixed(workers), workers, demand);
        world.run(40);
        let grain = (0..BUCKETS).filter(|&other| other != bucket).map(|other| demand[other]).fold(0.0, f64::max);
        let mut others = world.sums();
        others.remove(usize::from(world.owners[bucket]));
        let (most, least) = (largest(&others), others[coolest(&others)]);
        let bound = world.policy.terms.rebalance_above;
        prop_assert!(most - least <= SPREAD_BEGIN + grain || most <= bound + grain, "{:?}", world.sums());
        let moves = world.moves;
        world.run(200);
        prop_assert_eq!(world.moves, moves, "it came to rest");
    }

    /// What is the same everywhere stays where it is, whatever the load.
    #[test]
    fn a_uniform_load_moves_nothing(workers in 1..=8usize, mean in 0.0..1.3f64, jitter in proptest::collection::vec(0.97..1.03f64, BUCKETS)) {
        let demand = std::array::from_fn(|bucket| mean * workers as f64 / BUCKETS as f64 * jitter[bucket]);
        let mut world = World::new(Terms::fixed(workers), workers, demand);
        world.run(100);
        prop_assert_eq!(world.moves, 0);
    }

    /// With a load that stays, the number of workers changes for a bounded time, in one direction, and is right then.
    #[test]
    fn the_number_of_workers_comes_to_rest(workers in 1..=8usize, per_bucket in 0.0005..0.05f64) {
        let cool_down = Duration::from_millis(40);
        let terms = Terms { min: 1, max: 8, cool_down, ..Terms::default() };
        let mut world = World::new(terms, workers, [per_bucket; BUCKETS]);
        let mut seen = vec![workers];
        for _ in 0..400 {
            let workers = world.tick().workers;
            if seen.last() != Some(&workers) {
                seen.push(workers);
            }
        }
        let up = seen.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let down = seen.windows(2).all(|pair| pair[1] + 1 == pair[0]);
        prop_assert!(up || down, "{seen:?}");
        let (end, all) = (world.policy.workers() as f64, per_bucket * BUCKETS as f64);
        prop_assert!(end == 8.0 || all / end <= terms.scale_out_above + 0.01, "{end} for {all}");
        prop_assert!(end == 1.0 || all / (end - 1.0) >= terms.scale_in_below - 0.01, "{end} for {all}");
        let moves = world.moves;
        world.run(100);
        prop_assert_eq!(world.moves, moves);
    }
}

#[test]
fn a_bucket_that_fills_a_worker_is_named_and_stays() {
    let mut demand = [0.4 / BUCKETS as f64; BUCKETS];
    demand[5] = 1.5;
    let mut world = World::new(Terms { max: 8, ..Terms::fixed(2) }, 2, demand);
    let before = world.owners[5];
    world.run(50);
    assert_eq!(world.policy.hot(), Some(5));
    assert_eq!((world.owners[5], world.policy.workers()), (before, 2), "no worker more would help it");
    let beside = (0..BUCKETS).filter(|&bucket| world.owners[bucket] == before).count();
    assert!(beside < BUCKETS / 2, "others leave it: {beside}");
    let moves = world.moves;
    world.run(200);
    assert_eq!(world.moves, moves, "nothing is shuffled around");
    world.demand[5] = 0.1;
    world.run(20);
    assert_eq!(world.policy.hot(), None);
}

#[test]
fn a_bucket_that_fills_a_worker_does_not_keep_the_others_where_they_are() {
    let mut world = World::new(Terms::fixed(3), 3, with_elephant(1.0, 1.2));
    for bucket in 0..BUCKETS {
        world.owners[bucket] = if bucket == 1 { 1 } else { 0 };
    }
    world.run(12);
    let sums = world.sums();
    assert!(sums.iter().all(|&sum| sum <= 1.0) && (sums[0] - sums[2]).abs() < SPREAD_BEGIN, "{sums:?}");
    assert_eq!((sums[1], world.policy.hot()), (1.0, Some(1)));
    let moves = world.moves;
    world.run(200);
    assert_eq!(world.moves, moves, "nothing is shuffled around");
}

#[test]
fn a_worker_that_comes_beside_a_bucket_that_fills_one_has_its_part_of_the_others() {
    let mut world = World::new(Terms { max: 3, ..Terms::fixed(2) }, 2, with_elephant(1.0, 0.85));
    for bucket in 0..BUCKETS {
        world.owners[bucket] = if bucket == 1 { 1 } else { 0 };
    }
    world.run(12);
    assert_eq!(world.policy.workers(), 3);
    let sums = world.sums();
    assert!((sums[0] - sums[2]).abs() < SPREAD_BEGIN, "the new one has its part: {sums:?}");
}

#[test]
fn one_group_of_buckets_at_four_times_the_others_load_is_divided() {
    let demand = std::array::from_fn(|bucket| if bucket % 2 == 0 { 4.0 } else { 1.0 } * 2.0 * 0.9 / 320.0);
    let mut world = World::new(Terms::fixed(2), 2, demand);
    world.run(12);
    assert!(world.sums().iter().all(|&sum| sum < 1.0), "{:?}", world.sums());
    assert!(world.moves < 40, "{}", world.moves);
}

#[test]
fn a_worker_is_added_at_once_and_taken_away_when_it_has_cooled() {
    let cool_down = Duration::from_millis(400);
    let mut world = World::new(Terms { max: 4, cool_down, ..Terms::default() }, 1, [0.95 / BUCKETS as f64; BUCKETS]);
    world.run(6);
    assert_eq!(world.policy.workers(), 2);
    assert!(world.spread() < SPREAD_BEGIN, "the new one has its part: {:?}", world.sums());
    world.demand = [0.1 / BUCKETS as f64; BUCKETS];
    world.run(80);
    assert_eq!(world.policy.workers(), 2, "it has not cooled");
    world.run(40);
    assert_eq!((world.policy.workers(), world.owners), (1, [0; BUCKETS]));
}

#[test]
fn a_signal_that_is_silent_below_full_load_does_not_have_workers_come_and_go() {
    let mut world = World::new(Terms { max: 4, ..Terms::default() }, 1, [1.3 / BUCKETS as f64; BUCKETS]);
    world.level = |sum| if sum > 1.0 { 1.0 } else { 0.0 };
    world.run(10);
    assert_eq!(world.policy.workers(), 2);
    let numbers: Vec<_> = (0..1_000).map(|_| world.tick().workers).collect();
    assert!(numbers.iter().all(|&workers| workers == 2), "one less would have too much to do");
    world.demand = [0.4 / BUCKETS as f64; BUCKETS];
    world.run(20);
    assert_eq!(world.policy.workers(), 1);
}

#[test]
fn buckets_without_load_are_spread_where_a_worker_comes() {
    let owners = dealt(&[0; BUCKETS], &[0.0; BUCKETS], 4);
    let counts: Vec<_> = (0..4).map(|worker| owners.iter().filter(|&&owner| owner == worker).count()).collect();
    assert!(counts.iter().all(|&count| count.abs_diff(BUCKETS / 4) <= 1), "{counts:?}");
    assert_eq!(dealt(&owners, &[0.0; BUCKETS], 1), [0; BUCKETS]);
}
