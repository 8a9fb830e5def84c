//! How far a change has come, who is waited for in it, and what is to be done next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Change, LINKS_WITHIN, LOOK_EVERY, MEMBERS_WITHIN, Moving, Next, Pool, Resuming};
use crate::steering::{BUCKETS, BucketTable};

impl Pool {
    /// The members that `table` gives a bucket which another has, and how many ports each says that it has.
    pub(in crate::broker) fn receivers(&self, table: &BucketTable) -> BTreeMap<usize, usize> {
        let owner = |table: &BucketTable, bucket| self.member_of(table.queue(bucket));
        let moved = (0..BUCKETS as u8).filter(|&bucket| owner(table, bucket) != owner(&self.table, bucket));
        let to = moved.map(|bucket| owner(table, bucket)).filter(|to| self.members[*to].is_some());
        to.map(|to| (to, usize::from(self.ports[to]))).collect()
    }

    /// How long other ends of the pool's links are waited for, while a change does nothing else.
    pub(in crate::broker) fn links_until(&self) -> Option<Instant> {
        self.links_until
    }

    /// They are waited for no longer. Should there be others, they have as long.
    pub(in crate::broker) fn hurry(&mut self, now: Instant) {
        self.links_until = Some(now + LINKS_WITHIN);
        self.is_late = true;
    }

    /// Begins a change. False if one is on its way.
    pub(in crate::broker) fn begin(&mut self, table: BucketTable) -> bool {
        if self.change.is_some() {
            return false;
        }
        let missing = (0..self.members.len()).filter(|member| self.members[*member].is_some()).collect();
        self.change = Some(Change::Preparing { table, missing });
        true
    }

    /// The epoch that members are asked about: that which comes, or has come last.
    pub(in crate::broker) fn asked(&self) -> u64 {
        self.epoch + u64::from(matches!(self.change, Some(Change::Preparing { .. })))
    }

    pub(in crate::broker) fn prepared(&mut self, member: usize) {
        if let Some(Change::Preparing { missing, .. }) = &mut self.change
            && missing.remove(&member)
        {
            self.members_until = None;
        }
    }

    /// A member sends a part of a bucket's state, the last one unless there is `more`. Returns the queue that gets it, or what is
    /// wrong with that.
    pub(in crate::broker) fn sent(&mut self, member: usize, bucket: u8, more: bool) -> Result<usize, &'static str> {
        let (from, to) = (self.before.queue(bucket), self.table.queue(bucket));
        let its_own = self.member_of(from) == member && self.member_of(to) != member;
        match &mut self.change {
            Some(Change::Moving(moving)) if its_own => {
                let bit = 1 << bucket;
                if moving.held & bit == 0 {
                    return Err("was given twice");
                }
                if !more {
                    moving.held &= !bit;
                    self.members_until = None;
                }
                Ok(to)
            }
            _ => Err("is not this member's to give"),
        }
    }

    pub(in crate::broker) fn gave(&mut self, member: usize) {
        if let Some(Change::Moving(moving)) = &mut self.change
            && moving.giving.remove(&member)
        {
            self.members_until = None;
        }
    }

    pub(in crate::broker) fn came(&mut self, member: usize, buckets: u128) {
        let its_own = self.set(|pool, bucket| pool.member_of(pool.table.queue(bucket)) == member);
        if let Some(Change::Moving(moving)) = &mut self.change
            && moving.coming & buckets & its_own != 0
        {
            moving.coming &= !(buckets & its_own);
            self.members_until = None;
        }
    }

    /// Buckets that had come to their new owners when the change was taken over from a former broker.
    pub(in crate::broker) fn come(&self) -> u128 {
        if let Some(Change::Moving(moving)) = &self.change { moving.come } else { 0 }
    }

    /// Members that are gone, have buckets that are to go to others, and may have sent what was not read, which nobody shall
    /// overtake: a bit each.
    pub(in crate::broker) fn survived(&self, now: Instant) -> u64 {
        let Some(Change::Moving(moving)) = &self.change else { return 0 };
        if self.read_until.is_none_or(|until| until <= now) {
            return 0;
        }
        let buckets = (0..BUCKETS as u8).filter(|bucket| (moving.held & moving.coming) >> bucket & 1 == 1);
        let queues = buckets.map(|bucket| self.before.queue(bucket)).filter(|queue| !self.is_here(*queue));
        queues.fold(0, |set, queue| set | 1 << self.member_of(queue))
    }

    /// What the change needs now. Asked again after each answer, until there is nothing. `may_publish`: every generation that
    /// a sender may use is in the hands of all members. `unread`: [`Pool::survived`] by something that was not read.
    pub(in crate::broker) fn next(&mut self, may_publish: bool, unread: u64) -> Option<Next> {
        let next = self.take_step(may_publish, unread);
        let waits = !matches!(self.change, Some(Change::Resuming(_))) && !self.awaited().is_empty();
        self.members_until = waits.then(|| self.members_until.unwrap_or_else(|| Instant::now() + MEMBERS_WITHIN));
        next
    }

    fn take_step(&mut self, may_publish: bool, unread: u64) -> Option<Next> {
        self.look_at = (unread != 0).then(|| Instant::now() + LOOK_EVERY);
        let waits_for_links = !may_publish
            && match &self.change {
                Some(Change::Resuming(Resuming { missing, .. }) | Change::Preparing { missing, .. }) => {
                    missing.is_empty()
                }
                Some(Change::Moving(_)) | None => false,
            };
        self.is_late &= waits_for_links;
        let until = self.links_until.filter(|_| waits_for_links);
        self.links_until = until.or_else(|| waits_for_links.then(|| Instant::now() + LINKS_WITHIN));
        match self.change.take()? {
            Change::Resuming(resuming) if resuming.missing.is_empty() && may_publish => Some(self.resume(&resuming)),
            Change::Preparing { table, missing } if missing.is_empty() && may_publish => {
                self.before = std::mem::replace(&mut self.table, table);
                self.epoch += 1;
                self.begin_to_move(0);
                Some(Next::Publish)
            }
            Change::Moving(mut moving) => {
                let of = |set: u128| (0..BUCKETS as u8).filter(move |bucket| set >> bucket & 1 == 1);
                // To nobody: that is as good as there.
                moving.coming = of(moving.coming)
                    .filter(|&bucket| self.is_here(self.table.queue(bucket)))
                    .fold(0, |set, bucket| set | 1 << bucket);
                let lost: Vec<u8> = of(moving.held & moving.coming)
                    .filter(|&bucket| !moving.giving.contains(&self.member_of(self.before.queue(bucket))))
                    .filter(|&bucket| !self.is_within(bucket))
                    .filter(|&bucket| unread >> self.member_of(self.before.queue(bucket)) & 1 == 0)
                    .collect();
                lost.iter().for_each(|bucket| moving.held &= !(1 << bucket));
                if moving.giving.is_empty() && moving.coming == 0 {
                    return Some(Next::Close);
                }
                self.change = Some(Change::Moving(moving));
                (!lost.is_empty()).then_some(Next::Deliver(lost))
            }
            waiting => {
                self.change = Some(waiting);
                None
            }
        }
    }

    /// Buckets are to go from the owners before to those of the table, but for those that have.
    pub(super) fn begin_to_move(&mut self, come: u128) {
        let moves = self.set(|pool, bucket| pool.before.queue(bucket) != pool.table.queue(bucket)) & !come;
        let giving = (0..self.members.len()).filter(|member| self.members[*member].is_some()).collect();
        self.change = Some(Change::Moving(Moving { giving, held: moves, coming: moves, come }));
    }

    /// Whether a bucket moves between queues of one member, which needs nobody's help.
    fn is_within(&self, bucket: u8) -> bool {
        self.member_of(self.before.queue(bucket)) == self.member_of(self.table.queue(bucket))
    }

    /// The queue that had a bucket before the change.
    pub(in crate::broker) fn had(&self, bucket: u8) -> usize {
        match &self.change {
            Some(Change::Moving(_)) => self.before.queue(bucket),
            _ => self.table.queue(bucket),
        }
    }

    /// Members that a change waits for, by name.
    pub(in crate::broker) fn waits_for(&self) -> Vec<String> {
        self.awaited().into_iter().map(|member| self.functions[member].clone()).collect()
    }

    /// Members that a change waits for.
    pub(in crate::broker) fn awaited(&self) -> BTreeSet<usize> {
        match &self.change {
            None => BTreeSet::new(),
            Some(Change::Resuming(Resuming { missing, .. }) | Change::Preparing { missing, .. }) => missing.clone(),
            Some(Change::Moving(moving)) => {
                let coming = (0..BUCKETS as u8).filter(|bucket| moving.coming >> bucket & 1 == 1);
                let to = coming.map(|bucket| self.member_of(self.table.queue(bucket)));
                if moving.giving.is_empty() { to.collect() } else { moving.giving.clone() }
            }
        }
    }
}
