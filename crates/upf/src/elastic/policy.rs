//! How many workers there are to be, and who owns which bucket: what is seen at a tick in, a decision out. Pure.
//!
//! Loads are in workers: 1 is all that one can do. A bucket's load is its part of its worker's, by packets, averaged over some
//! ticks.
//!
//! - *Rebalancing* takes buckets from the worker that has most, of those that have one to give, to the one that has least, as long
//!   as that lowers what the first has. It begins at a difference that is worth it, and ends when there is next to none, so that
//!   it comes to rest.
//! - *Scaling* adds a worker where those that there are have too much, on the average, and takes one away where one less
//!   would have little. Between the two lies a gap, and a pause.
//! - A bucket that fills a worker by itself cannot be divided. It stays where it is, others leave it, and it is reported.

use std::time::Duration;

use crate::tables::{BUCKETS, Bucket};

/// What the policy is to keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Fewest workers.
    pub min: usize,
    /// Most workers.
    pub max: usize,
    /// A worker is added where the mean load is over this.
    pub scale_out_above: f64,
    /// A worker is taken away where without it the mean load, and what workers are busy for, is under this.
    pub scale_in_below: f64,
    /// Buckets move from workers with at least this load.
    pub rebalance_above: f64,
    /// No worker is taken away before so long after the number has changed.
    pub cool_down: Duration,
}

impl Terms {
    /// All of so many workers, always.
    pub fn fixed(workers: usize) -> Self {
        Self { min: workers, max: workers, ..Self::default() }
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            min: 1,
            max: 1,
            scale_out_above: 0.8,
            scale_in_below: 0.5,
            rebalance_above: 0.5,
            cool_down: Duration::from_secs(1),
        }
    }
}

/// What is seen at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Look<'l> {
    /// Since the beginning.
    pub now: Duration,
    /// The load of each worker since the last tick, from 0 to 1.
    pub levels: &'l [f64],
    /// The part of that time for which workers had packets to treat, of all together.
    pub busy: f64,
    /// Packets of each bucket since the last tick.
    pub packets: &'l [u64; BUCKETS],
    /// Who owns which bucket. None are on their way.
    pub owners: &'l [u8; BUCKETS],
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Workers from here on: the first so many.
    pub workers: usize,
    /// Who is to own which bucket, if that changes.
    pub owners: Option<[u8; BUCKETS]>,
}

/// The policy with what it remembers.
#[derive(Clone, Debug)]
pub struct Policy {
    terms: Terms,
    workers: usize,
    /// Of each bucket, averaged.
    loads: [f64; BUCKETS],
    /// Of all workers, averaged.
    busy: f64,
    /// Ticks for which workers had too much, or too little.
    over: u32,
    under: u32,
    /// Ticks until what is seen is of the present owners.
    settling: u32,
    scaled_at: Duration,
    /// The bucket that may fill a worker, and for how many ticks it has.
    suspect: Option<(Bucket, u32)>,
    hot: Option<Bucket>,
}

/// How much of an average a new value is.
const WEIGHT: f64 = 0.5;
/// Ticks that a reason to add a worker lasts before one is.
const OVER_TICKS: u32 = 3;
/// Ticks that a reason to take one away lasts before that is done.
const UNDER_TICKS: u32 = 10;
/// Ticks after a change in which nothing is decided: packets from before it are still counted.
const SETTLING_TICKS: u32 = 1;
/// Rebalancing begins where the largest load is so much larger than the smallest.
const SPREAD_BEGIN: f64 = 0.15;
/// The same where the largest is all that a worker can do: it may have been given more than is seen.
const SPREAD_BEGIN_FULL: f64 = 0.08;
/// What is all.
const FULL: f64 = 0.98;
/// What a worker that has all it can do may have been given, in workers.
const DEMAND_MAX: f64 = 1.5;
/// To what others may be filled for what is only thought to be.
const ROOM_TO: f64 = 0.9;
/// It ends where the difference is next to none.
const SPREAD_END: f64 = 0.03;
/// No bucket is moved for less.
const GAIN_MIN: f64 = 0.001;
/// A bucket with such a load fills a worker.
const HOT_ABOVE: f64 = 0.85;
/// It does not any more.
const HOT_BELOW: f64 = 0.75;
/// Ticks for which a bucket has to fill a worker.
const HOT_TICKS: u32 = 3;

impl Policy {
    /// A policy for so many workers at first.
    pub fn new(terms: Terms, workers: usize) -> Self {
        Self {
            terms,
            workers,
            loads: [0.0; BUCKETS],
            busy: 0.0,
            over: 0,
            under: 0,
            settling: 0,
            scaled_at: Duration::ZERO,
            suspect: None,
            hot: None,
        }
    }

    /// Fewest workers.
    pub fn min(&self) -> usize {
        self.terms.min
    }

    /// Workers at present.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The bucket that fills a worker by itself, if one does.
    pub fn hot(&self) -> Option<Bucket> {
        self.hot
    }

    /// The load of each bucket.
    pub fn loads(&self) -> &[f64; BUCKETS] {
        &self.loads
    }

    /// There are so many workers from now on, by somebody else's decision.
    pub fn set_workers(&mut self, workers: usize, now: Duration) {
        self.workers = workers.clamp(1, self.terms.max);
        (self.over, self.under, self.settling, self.scaled_at) = (0, 0, SETTLING_TICKS, now);
    }

    /// Looks, and decides.
    pub fn decide(&mut self, look: &Look<'_>) -> Decision {
        self.remember(look);
        let stay = Decision { workers: self.workers, owners: None };
        if self.settling > 0 {
            self.settling -= 1;
            return stay;
        }
        self.watch_for_hot();
        let owners = match self.scale(look) {
            Some(workers) => {
                self.set_workers(workers, look.now);
                Some(dealt(look.owners, &self.loads, workers))
            }
            None => self.rebalance(look),
        };
        if owners.is_some() {
            self.settling = SETTLING_TICKS;
        }
        Decision { workers: self.workers, owners }
    }

    fn remember(&mut self, look: &Look<'_>) {
        self.busy += WEIGHT * (look.busy - self.busy);
        let mut all = vec![0_u64; look.levels.len()];
        let owner = |bucket: usize| usize::from(look.owners[bucket]);
        for (bucket, &packets) in look.packets.iter().enumerate() {
            if let Some(sum) = all.get_mut(owner(bucket)) {
                *sum += packets;
            }
        }
        for (bucket, load) in self.loads.iter_mut().enumerate() {
            let (level, sum) = (look.levels.get(owner(bucket)), all.get(owner(bucket)));
            let part = look.packets[bucket] as f64 / sum.map_or(1, |&sum| sum.max(1)) as f64;
            *load += WEIGHT * (part * level.map_or(0.0, |level| level.clamp(0.0, 1.0)) - *load);
        }
    }

    /// How many workers there should be, if not as many as there are.
    fn scale(&mut self, look: &Look<'_>) -> Option<usize> {
        let Terms { min, max, scale_out_above, scale_in_below, cool_down, .. } = self.terms;
        let all: f64 = self.loads.iter().sum();
        let mean_of = |workers: usize| all / workers as f64;
        // Some signals say nothing of a worker until it has all that it can do.
        let busy_of = |workers: usize| self.busy / workers as f64;
        let count = |counter: u32, is_so: bool| if is_so { counter + 1 } else { 0 };
        self.over = count(self.over, self.workers < max && mean_of(self.workers) > scale_out_above);
        let one_less = self.workers.saturating_sub(1).max(1);
        let is_little = mean_of(one_less).max(busy_of(one_less)) < scale_in_below;
        self.under = count(self.under, self.workers > min && is_little);
        if self.over >= OVER_TICKS || self.workers < min {
            return Some(self.workers + 1);
        }
        let has_cooled = look.now.saturating_sub(self.scaled_at) >= cool_down;
        (self.under >= UNDER_TICKS && has_cooled).then_some(one_less)
    }

    fn rebalance(&self, look: &Look<'_>) -> Option<[u8; BUCKETS]> {
        let (owners, loads) = (look.owners, &self.demands(look));
        let sums = sums(owners, loads, self.workers);
        let first = next_move(owners, loads, &sums, &[false; BUCKETS])?;
        let (most, least) = (sums[first.from], sums[first.to]);
        let begin = if most < FULL { SPREAD_BEGIN } else { SPREAD_BEGIN_FULL };
        let is_worth_it = most >= self.terms.rebalance_above && most - least >= begin;
        is_worth_it.then(|| balanced(owners, loads, self.workers))
    }

    /// What buckets may bring, in workers. One that has all it can do may have been given more than is seen, and falls further behind
    /// with each step in which it is rid of too little: so it is thought to have been, as far as others have room.
    fn demands(&self, look: &Look<'_>) -> [f64; BUCKETS] {
        let levels = &look.levels[..self.workers.min(look.levels.len())];
        let is_full = |worker: usize| levels.get(worker).is_some_and(|&level| level >= FULL);
        let others: Vec<f64> = levels.iter().copied().filter(|&level| level < FULL).collect();
        let room = ROOM_TO - others.iter().sum::<f64>() / others.len().max(1) as f64;
        let of_full = if others.is_empty() { 1.0 } else { (1.0 + room).clamp(1.0, DEMAND_MAX) };
        let times = |bucket: usize| if is_full(usize::from(look.owners[bucket])) { of_full } else { 1.0 };
        std::array::from_fn(|bucket| times(bucket) * self.loads[bucket])
    }

    fn watch_for_hot(&mut self) {
        let (bucket, load) = (0..BUCKETS).map(|bucket| (bucket, self.loads[bucket])).fold((0, 0.0), larger);
        let bound = if self.hot == Some(bucket as Bucket) { HOT_BELOW } else { HOT_ABOVE };
        if load < bound {
            (self.suspect, self.hot) = (None, None);
            return;
        }
        let before = self.suspect.filter(|(suspect, _)| *suspect == bucket as Bucket).map_or(0, |(_, ticks)| ticks);
        self.suspect = Some((bucket as Bucket, before.saturating_add(1)));
        if before + 1 >= HOT_TICKS {
            self.hot = Some(bucket as Bucket);
        }
    }
}

/// What each of so many workers has.
pub fn sums(owners: &[u8; BUCKETS], loads: &[f64; BUCKETS], workers: usize) -> Vec<f64> {
    let mut sums = vec![0.0; workers.max(1)];
    for (bucket, load) in loads.iter().enumerate() {
        if let Some(sum) = sums.get_mut(usize::from(owners[bucket])) {
            *sum += load;
        }
    }
    sums
}

/// Owners after buckets have gone from the worker with the largest load that has one worth moving to that with the smallest, again
/// and again. Large buckets go first, so that few do.
pub fn balanced(owners: &[u8; BUCKETS], loads: &[f64; BUCKETS], workers: usize) -> [u8; BUCKETS] {
    let mut owners = *owners;
    let mut sums = sums(&owners, loads, workers);
    // Each bucket moves once at most.
    let mut moved = [false; BUCKETS];
    while let Some(Move { bucket, from, to }) = next_move(&owners, loads, &sums, &moved) {
        owners[bucket] = to as u8;
        moved[bucket] = true;
        sums[from] -= loads[bucket];
        sums[to] += loads[bucket];
    }
    owners
}

/// A bucket on its way from one worker to another.
struct Move {
    bucket: usize,
    from: usize,
    to: usize,
}

/// From the worker with the largest load to that with the smallest. One that has nothing worth moving, as a single bucket fills
/// it, does not keep those behind it from giving theirs.
fn next_move(owners: &[u8; BUCKETS], loads: &[f64; BUCKETS], sums: &[f64], moved: &[bool; BUCKETS]) -> Option<Move> {
    let to = coolest(sums);
    let mut givers: Vec<_> = (0..sums.len()).filter(|&from| sums[from] - sums[to] > SPREAD_END).collect();
    givers.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]));
    let best = |from| best_to_move(owners, loads, moved, from, sums[from] - sums[to]);
    givers.into_iter().find_map(|from| best(from).map(|bucket| Move { bucket, from, to }))
}

/// The bucket of worker `from` that comes next to half the gap between it and another one, if moving it gains anything. Of
/// two as good, the smaller one.
fn best_to_move(
    owners: &[u8; BUCKETS],
    loads: &[f64; BUCKETS],
    moved: &[bool; BUCKETS],
    from: usize,
    gap: f64,
) -> Option<usize> {
    // What the more loaded of the two has less afterwards.
    let gain = |bucket: usize| loads[bucket].min(gap - loads[bucket]);
    let own = (0..BUCKETS).filter(|&bucket| usize::from(owners[bucket]) == from && !moved[bucket]);
    let worth = own.filter(|&bucket| gain(bucket) >= GAIN_MIN && loads[bucket] < HOT_ABOVE);
    worth.max_by(|&a, &b| gain(a).total_cmp(&gain(b)).then(loads[b].total_cmp(&loads[a])).then(b.cmp(&a)))
}

/// Owners among so many workers, as few buckets as may be having moved: those of workers that are none any more go to others,
/// the largest first to whoever has least; then they are balanced. Buckets without load are spread by their number.
pub fn dealt(owners: &[u8; BUCKETS], loads: &[f64; BUCKETS], workers: usize) -> [u8; BUCKETS] {
    let mut owners = *owners;
    let mut sums = sums(&owners, loads, workers);
    let mut homeless: Vec<_> = (0..BUCKETS).filter(|&bucket| usize::from(owners[bucket]) >= workers).collect();
    homeless.sort_by(|&a, &b| loads[b].total_cmp(&loads[a]).then(a.cmp(&b)));
    for (number, bucket) in homeless.into_iter().enumerate() {
        let to = if loads[bucket] > 0.0 { coolest(&sums) } else { number % workers };
        owners[bucket] = to as u8;
        sums[to] += loads[bucket];
    }
    evened(&balanced(&owners, loads, workers), loads, workers)
}

/// The same with idle buckets spread evenly, so that a new worker has its part of what begins next.
fn evened(owners: &[u8; BUCKETS], loads: &[f64; BUCKETS], workers: usize) -> [u8; BUCKETS] {
    let mut owners = *owners;
    let mut counts = vec![0_usize; workers];
    owners.iter().for_each(|&owner| counts[usize::from(owner)] += 1);
    for bucket in (0..BUCKETS).filter(|&bucket| loads[bucket] < GAIN_MIN / 10.0) {
        let from = usize::from(owners[bucket]);
        let to = (0..workers).min_by_key(|&worker| counts[worker]).unwrap_or(from);
        if counts[from] > counts[to] + 1 {
            owners[bucket] = to as u8;
            counts[from] -= 1;
            counts[to] += 1;
        }
    }
    owners
}

fn larger(a: (usize, f64), b: (usize, f64)) -> (usize, f64) {
    if b.1 > a.1 { b } else { a }
}

fn coolest(sums: &[f64]) -> usize {
    sums.iter().map(|sum| -sum).enumerate().fold((0, f64::MIN), larger).0
}

#[cfg(test)]
mod tests;
