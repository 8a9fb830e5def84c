//! When a reader is past the beginning of an epoch on one channel. Pure and safe: what a sender shows in, a verdict out.
//!
//! A sender that begins an epoch writes down at which head it begins on each of its channels, then that it has begun, and
//! only then uses the new table. One that is between two bursts when the table has changed will see the change before its
//! next, so that all it has published is of the epoch before: its *burst counter* is odd within a burst. One that is
//! closed or dead publishes nothing more.

use crate::ring::Violation;

/// What a sender shows of one channel. Others write it at any time; every call loads.
pub(crate) trait Sender {
    /// Whether its head is final.
    fn is_over(&self) -> bool;
    /// Odd within a burst. What was published before an even value is visible afterwards.
    fn burst(&self) -> u64;
    /// The published head. What was written before it is visible afterwards.
    fn head(&self) -> u64;
    /// The epoch begun last. Its mark is visible afterwards.
    fn epoch(&self) -> u64;
    /// The head at which that epoch begins.
    fn mark(&self) -> u64;
}

/// Whether `position` is `other` or behind it.
#[inline]
pub(crate) fn reaches(position: u64, other: u64) -> bool {
    position.wrapping_sub(other) <= u64::MAX / 2
}

/// One channel on its way over the beginning of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crossing {
    epoch: u64,
    /// Everything before it is of an earlier epoch, as far as it is known. It stays, whatever the sender says later.
    begins: Option<u64>,
}

impl Crossing {
    /// Begins anew if `epoch` is another one.
    pub(crate) fn towards(&mut self, epoch: u64) {
        if self.epoch != epoch {
            *self = Self { epoch, begins: None };
        }
    }

    /// Whether it is known where the epoch begins. If not after a look, the sender is in a burst.
    pub(crate) fn is_known(&self) -> bool {
        self.begins.is_some()
    }

    /// Where the epoch begins, if that is known.
    pub(crate) fn begins(&self) -> Option<u64> {
        self.begins
    }

    /// Whether a published frame at `position` is of `epoch`, which its sender has begun. A reader may wait there: nothing of
    /// earlier epochs is behind it, also as far as a sender goes that has told [`Crossing::look`] something else.
    pub(crate) fn is_behind(&mut self, epoch: u64, sender: &impl Sender, position: u64) -> bool {
        if sender.epoch() != epoch {
            return false;
        }
        let mark = sender.mark();
        if !reaches(position, mark) {
            return false;
        }
        self.towards(epoch);
        reaches(position, *self.begins.get_or_insert(mark))
    }

    /// Whether a reader that has read up to `tail` is past everything of earlier epochs. The table must have been changed
    /// before, with a full fence after it.
    pub(crate) fn look(&mut self, sender: &impl Sender, tail: u64) -> Result<bool, Violation> {
        if self.begins.is_none() {
            self.begins = self.find(sender)?;
        }
        Ok(self.begins.is_some_and(|begins| reaches(tail, begins)))
    }

    fn find(&self, sender: &impl Sender) -> Result<Option<u64>, Violation> {
        let quiet = sender.is_over() || sender.burst().is_multiple_of(2);
        let head = sender.head();
        // After the head: whoever began the epoch before it is found out, and one may have to wait before that head.
        if sender.epoch() != self.epoch {
            return Ok(quiet.then_some(head));
        }
        let mark = sender.mark();
        if reaches(sender.head(), mark) { Ok(Some(mark)) } else { Err(Violation::BadMark) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::HashSet;

    /// A sender that shows the same at every look.
    #[derive(Clone, Copy, Default)]
    struct Still {
        over: bool,
        burst: u64,
        head: u64,
        epoch: u64,
        mark: u64,
    }

    impl Sender for Still {
        fn is_over(&self) -> bool {
            self.over
        }
        fn burst(&self) -> u64 {
            self.burst
        }
        fn head(&self) -> u64 {
            self.head
        }
        fn epoch(&self) -> u64 {
            self.epoch
        }
        fn mark(&self) -> u64 {
            self.mark
        }
    }

    fn look(sender: Still, tail: u64) -> Result<bool, Violation> {
        let mut crossing = Crossing::default();
        crossing.towards(7);
        crossing.look(&sender, tail)
    }

    #[test]
    fn a_sender_that_began_the_epoch_is_crossed_at_its_mark() {
        let sender = Still { burst: 5, head: 100, epoch: 7, mark: 64, ..Still::default() };
        assert_eq!(look(sender, 56), Ok(false));
        assert_eq!(look(sender, 64), Ok(true));
        assert_eq!(look(Still { over: true, ..sender }, 64), Ok(true), "also one that is over by now");
    }

    #[test]
    fn an_idle_closed_or_dead_sender_is_crossed_at_its_head() {
        for sender in [Still { burst: 4, ..Still::default() }, Still { burst: 5, over: true, ..Still::default() }] {
            let sender = Still { head: 100, epoch: 6, mark: 64, ..sender };
            assert_eq!(look(sender, 96), Ok(false));
            assert_eq!(look(sender, 100), Ok(true));
        }
    }

    #[test]
    fn a_sender_in_a_burst_that_has_not_begun_the_epoch_is_waited_for() {
        let mut crossing = Crossing::default();
        crossing.towards(7);
        let sender = Still { burst: 5, head: 100, epoch: 6, ..Still::default() };
        assert_eq!(crossing.look(&sender, 100), Ok(false));
        assert!(!crossing.is_known());
        assert_eq!(crossing.look(&Still { burst: 6, ..sender }, 100), Ok(true));
    }

    #[test]
    fn what_is_known_of_an_epoch_stays_and_does_not_count_for_the_next() {
        let mut crossing = Crossing::default();
        crossing.towards(7);
        let sender = Still { head: 100, ..Still::default() };
        assert_eq!(crossing.look(&sender, 50), Ok(false));
        assert_eq!(crossing.look(&Still { head: 200, ..sender }, 100), Ok(true));
        crossing.towards(8);
        assert_eq!(crossing.look(&Still { head: 200, ..sender }, 100), Ok(false));
    }

    #[test]
    fn an_epoch_cannot_begin_behind_the_head() {
        for mark in [108, u64::MAX / 2 + 100, u64::MAX] {
            let sender = Still { head: 100, epoch: 7, mark, ..Still::default() };
            assert_eq!(look(sender, 100) == Err(Violation::BadMark), reaches(mark, 101), "{mark}");
        }
    }

    #[test]
    fn a_frame_is_of_the_epoch_behind_its_mark_once_its_sender_has_begun_it() {
        let sender = Still { burst: 5, head: 100, epoch: 7, mark: 64, ..Still::default() };
        for (sender, at, is) in [(sender, 56, false), (sender, 64, true), (Still { epoch: 6, ..sender }, 64, false)] {
            assert_eq!(Crossing::default().is_behind(7, &sender, at), is);
        }
    }

    /// A reader that waited there would wait for others, and these perhaps for it.
    #[test]
    fn no_frame_is_of_the_epoch_before_what_a_reader_has_to_be_past() {
        let idle = Still { head: 100, epoch: 6, ..Still::default() };
        let mut crossing = Crossing::default();
        crossing.towards(7);
        assert_eq!(crossing.look(&idle, 0), Ok(false));
        let liar = Still { epoch: 7, mark: 0, ..idle };
        assert_eq!([0, 96, 100].map(|at| crossing.is_behind(7, &liar, at)), [false, false, true]);

        let mut crossing = Crossing::default();
        assert!(crossing.is_behind(7, &liar, 32));
        crossing.towards(7);
        assert_eq!(crossing.look(&Still { mark: 100, ..liar }, 32), Ok(true), "what it waits at, it is past");
    }

    /// Everything in the world of one sender, two queues and a table that changes once. Positions count records.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct World {
        // Shared.
        table: u64,
        burst: u64,
        heads: [u64; 2],
        epoch: u64,
        marks: [u64; 2],
        rings: [Vec<Record>; 2],
        // The decider and what it asks for.
        asked: bool,
        // The sender: where it is within its burst, and what it will send.
        step: usize,
        bursts: usize,
        in_use: u64,
        local: [u64; 2],
        next: [u64; 2],
        // The queues.
        tails: [u64; 2],
        begins: [Option<u64>; 2],
        loaded: [Vec<u64>; 2],
        /// Queue that has bucket 0 and queue that has bucket 1; none on the way.
        owner: [Option<usize>; 2],
        given: [bool; 2],
        delivered: [u64; 2],
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct Record {
        bucket: usize,
        number: u64,
    }

    const BURSTS: usize = 2;

    /// Before the change queue `b` owns bucket `b`; after it the other one does.
    fn owner(table: u64, bucket: usize) -> usize {
        if table == 0 { bucket } else { 1 - bucket }
    }

    impl World {
        fn new() -> Self {
            Self {
                table: 0,
                burst: 0,
                heads: [0; 2],
                epoch: 0,
                marks: [0; 2],
                rings: [Vec::new(), Vec::new()],
                asked: false,
                step: 0,
                bursts: 0,
                in_use: 0,
                local: [0; 2],
                next: [0; 2],
                tails: [0; 2],
                begins: [None; 2],
                loaded: [Vec::new(), Vec::new()],
                owner: [Some(0), Some(1)],
                given: [false; 2],
                delivered: [0; 2],
            }
        }

        /// The decider's next step, if there is one: the new table, then asking the queues.
        fn decide(&self) -> Option<Self> {
            let mut world = self.clone();
            if world.table == 0 {
                world.table = 1;
            } else if !world.asked {
                world.asked = true;
            } else {
                return None;
            }
            Some(world)
        }

        /// The sender's next step: each touches shared memory once.
        fn send(&self) -> Option<Self> {
            if self.bursts == BURSTS {
                return None;
            }
            let mut world = self.clone();
            world.step += 1;
            match self.step {
                0 => world.burst += 1,
                1 => {
                    // As it was seen, unless that is old news.
                    if self.table == self.in_use {
                        world.step = 5;
                    }
                    world.in_use = self.table;
                }
                2 | 3 => world.marks[self.step - 2] = self.heads[self.step - 2],
                4 => world.epoch = world.in_use,
                5 => {
                    for bucket in 0..2 {
                        let to = owner(world.in_use, bucket);
                        world.rings[to].push(Record { bucket, number: world.next[bucket] });
                        world.next[bucket] += 1;
                        world.local[to] += 1;
                    }
                }
                6 | 7 => world.heads[self.step - 6] = self.local[self.step - 6],
                _ => {
                    world.burst += 1;
                    world.step = 0;
                    world.bursts += 1;
                }
            }
            Some(world)
        }

        /// Queue `queue` takes one record, if one is there and it may.
        fn receive(&self, queue: usize) -> Option<Self> {
            if self.tails[queue] == self.heads[queue] {
                return None;
            }
            let Record { bucket, number } = self.rings[queue][self.tails[queue] as usize];
            if self.owner[bucket] != Some(queue) {
                let waits = self.table == 1 && owner(1, bucket) == queue && self.epoch == 1;
                assert!(waits && self.tails[queue] >= self.marks[queue], "lost: {self:?}");
                return None;
            }
            assert_eq!(number, self.delivered[bucket], "reordered: {self:?}");
            let mut world = self.clone();
            world.tails[queue] += 1;
            world.delivered[bucket] += 1;
            Some(world)
        }

        /// Queue `queue` loads one more value of its look, and acts when the look is complete.
        fn look(&self, queue: usize) -> Option<Self> {
            if !self.asked || self.given[queue] {
                return None;
            }
            let script = Script {
                world: self,
                queue,
                loaded: self.loaded[queue].clone().into(),
                at: Cell::new(0),
                short: Cell::new(false),
            };
            let mut crossing = Crossing { epoch: 1, begins: self.begins[queue] };
            let through = crossing.look(&script, self.tails[queue]);
            let mut world = self.clone();
            if script.short.get() {
                world.loaded[queue] = script.loaded.into_inner();
                return Some(world);
            }
            world.loaded[queue].clear();
            world.begins[queue] = crossing.begins;
            if through.unwrap() {
                world.given[queue] = true;
                world.owner[queue] = Some(1 - queue);
            }
            (world != *self).then_some(world)
        }
    }

    /// The values that a look has loaded, and the world for one more. After that it is short of values, and its result
    /// does not count.
    struct Script<'a> {
        world: &'a World,
        queue: usize,
        loaded: std::cell::RefCell<Vec<u64>>,
        at: Cell<usize>,
        short: Cell<bool>,
    }

    impl Script<'_> {
        fn load(&self, value: u64) -> u64 {
            let at = self.at.replace(self.at.get() + 1);
            let mut loaded = self.loaded.borrow_mut();
            if at == loaded.len() && !self.short.replace(true) {
                loaded.push(value);
            }
            loaded.get(at).copied().unwrap_or(value)
        }
    }

    impl Sender for Script<'_> {
        fn is_over(&self) -> bool {
            false
        }
        fn burst(&self) -> u64 {
            self.load(self.world.burst)
        }
        fn head(&self) -> u64 {
            self.load(self.world.heads[self.queue])
        }
        fn epoch(&self) -> u64 {
            self.load(self.world.epoch)
        }
        fn mark(&self) -> u64 {
            self.load(self.world.marks[self.queue])
        }
    }

    /// Two queues exchange their buckets while a sender sends: in every order in which the steps of all can fall, nothing
    /// is lost, nothing overtakes, and nobody waits for ever.
    #[test]
    fn in_every_interleaving_two_queues_exchange_their_buckets_without_loss_or_reordering() {
        let mut seen = HashSet::new();
        let mut todo = vec![World::new()];
        let mut ends = 0;
        while let Some(world) = todo.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            let steps = [world.decide(), world.send(), world.receive(0), world.receive(1)];
            let mut next: Vec<World> = steps.into_iter().flatten().collect();
            next.extend((0..2).filter_map(|queue| world.look(queue)));
            if next.is_empty() {
                assert_eq!(world.delivered, [BURSTS as u64; 2], "stuck: {world:?}");
                assert_eq!((world.owner, world.given), ([Some(1), Some(0)], [true; 2]), "stuck: {world:?}");
                ends += 1;
            }
            todo.extend(next);
        }
        assert!(ends > 0 && seen.len() > 1_000, "{ends} ends, {} states", seen.len());
    }
}
