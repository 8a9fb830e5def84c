//! A pool as the broker sees it: which member owns which bucket, and how far a change of that has come. No I/O.
//!
//! A change goes through two stages. First all members get ready: frames of a bucket that comes to them will wait until it is
//! there. Then senders are told, and each member gives away what leaves it, once nothing more can come to it by the old table.
//! A member that is gone gives nothing and waits for nothing: what it had arrives without state.
//!
//! A broker that takes the place of another finds the epoch that senders know of in the table segments, and hears from the
//! members who come back whether its change is complete. If it is not, it is gone through once more from the moment at which
//! senders know of it: givers have kept what they gave, and receivers say what has come.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Ownership;
use crate::steering::{BUCKETS, BucketTable};
use crate::table::Standing;
use crate::wire::Progress;

/// A function that has several processes at a time.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) functions: Vec<String>,
    /// Queues that each member has at every port of the pool.
    pub(super) queues_each: usize,
    /// The epoch that senders know of, and its table.
    pub(super) epoch: u64,
    pub(super) table: BucketTable,
    /// The table of the epoch before.
    before: BucketTable,
    /// The connections by which members steer.
    pub(super) members: Vec<Option<u64>>,
    /// How many ports each of them has, as it says.
    ports: Vec<u16>,
    /// Processes that have lost their member's place, until another one has it.
    outcasts: Vec<Option<i32>>,
    pub(super) change: Option<Change>,
    /// Whether the broker's owner knows who owns what.
    pub(super) is_told: bool,
    /// Until when readers are waited for who have not read all of what a member had sent that is gone.
    read_until: Option<Instant>,
    /// When to look again whether they have.
    pub(super) look_at: Option<Instant>,
    /// How long the members that a change waits for have before they are cut off.
    pub(super) members_until: Option<Instant>,
    /// The change waits for links alone, and no longer than until then for their other ends.
    links_until: Option<Instant>,
    /// It has waited that long: whoever was at an other end is let in when senders know of the table.
    pub(super) is_late: bool,
}

/// How long a reader may take for what a member had sent that is gone. One that does not read holds nobody up for longer.
pub(super) const READ_WITHIN: Duration = Duration::from_secs(1);
/// How long a change waits for other ends of the pool's links to take over a generation. They need milliseconds; one that does not
/// do it in this time is cut off, and comes again.
const LINKS_WITHIN: Duration = Duration::from_secs(1);
/// How long members may take until one of them has done something of a change. An owner waits ten seconds for what it has sent to be read
/// before it gives anything away.
pub(super) const MEMBERS_WITHIN: Duration = Duration::from_secs(15);
/// Between two looks at that.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A change of the table that is on its way.
#[derive(Debug)]
pub(super) enum Change {
    /// Under a former broker: members that may be in it are waited for.
    Resuming(Resuming),
    /// Members get ready for this table: who is not.
    Preparing { table: BucketTable, missing: BTreeSet<usize> },
    /// Senders know of it.
    Moving(Moving),
}

#[derive(Debug, Default)]
pub(super) struct Resuming {
    /// Members that have not come back.
    missing: BTreeSet<usize>,
    /// What those said who have.
    heard: BTreeMap<usize, Progress>,
    /// How long anybody is waited for. None when that is over.
    until: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Moving {
    /// Members that have not given everything.
    giving: BTreeSet<usize>,
    /// Buckets whose state has not left their old owner.
    held: u128,
    /// Buckets that have not come to their new owner.
    coming: u128,
    /// Buckets that had come to it under a former broker.
    come: u128,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Tell senders of the table, then members that the epoch has begun.
    Publish,
    /// Give these buckets to their new owners, without state.
    Deliver(Vec<u8>),
    /// The change is complete.
    Close,
    /// There was no change to be completed. Tell members that.
    Rest,
}

impl Pool {
    pub(super) fn new(functions: &[String], queues_each: usize) -> Self {
        // Until somebody decides, all is the first member's.
        let table = BucketTable::fixed(queues_each);
        Self {
            functions: functions.to_vec(),
            queues_each,
            epoch: 1,
            table,
            before: table,
            members: vec![None; functions.len()],
            ports: vec![0; functions.len()],
            outcasts: vec![None; functions.len()],
            change: None,
            is_told: false,
            read_until: None,
            look_at: None,
            members_until: None,
            links_until: None,
            is_late: false,
        }
    }

    /// Whether somebody is in it, or may come back to it.
    pub(super) fn is_used(&self) -> bool {
        self.members.iter().any(Option::is_some) || self.waits_until().is_some()
    }

    /// Queues of all members.
    pub(super) fn queues(&self) -> usize {
        self.functions.len() * self.queues_each
    }

    pub(super) fn member(&self, function: &str) -> Option<usize> {
        self.functions.iter().position(|other| other == function)
    }

    /// The member that has this queue.
    pub(super) fn member_of(&self, queue: usize) -> usize {
        queue / self.queues_each
    }

    fn is_here(&self, queue: usize) -> bool {
        self.members[self.member_of(queue)].is_some()
    }

    /// What is written to new table segments, of which `members` have the generation.
    pub(super) fn standing(&self, members: u64) -> Standing {
        Standing { epoch: self.epoch, table: self.table, before: self.before, members, open: 0 }
    }

    /// Takes over what a former broker left in the table segment of one of the pool's links. False if it cannot be true: then
    /// the link is of no use. Where that broker died while it wrote the tables of several links, the newest counts: all
    /// members were ready for it.
    pub(super) fn adopt(&mut self, standing: &Standing, until: Instant) -> bool {
        let Standing { epoch, table, before, members, .. } = *standing;
        let is_new = self.change.is_none() && self.epoch == 1 && self.members.iter().all(Option::is_none);
        let resuming = matches!(self.change, Some(Change::Resuming(_)));
        // No closed table could be brought up to the one that is to come.
        let preparing = matches!(self.change, Some(Change::Preparing { .. }));
        let possible = is_new
            || !preparing && epoch == self.epoch && table == self.table
            || resuming && epoch == self.epoch + 1 && before == self.table
            || resuming && epoch + 1 == self.epoch && table == self.before;
        if !possible {
            return false;
        }
        if is_new || epoch > self.epoch {
            (self.epoch, self.table, self.before) = (epoch, table, before);
        }
        if is_new {
            self.change = Some(Change::Resuming(Resuming::default()));
        }
        let missing = (0..self.functions.len()).filter(|member| members >> member & 1 == 1);
        if let Some(Change::Resuming(resuming)) = &mut self.change {
            resuming.missing.extend(missing.filter(|member| !resuming.heard.contains_key(member)));
            resuming.until = Some(until);
        }
        true
    }

    /// Members that own a bucket by one of these tables, a bit each.
    pub(super) fn owners(&self, tables: [&BucketTable; 2]) -> u64 {
        let queues = tables.into_iter().flat_map(|table| table.owners());
        queues.fold(0, |set, queue| set | 1 << self.member_of(usize::from(*queue)))
    }

    /// Members of a former broker that are waited for, or have come back while others are.
    pub(super) fn returning(&self) -> BTreeSet<usize> {
        match &self.change {
            Some(Change::Resuming(Resuming { missing, heard, until: Some(_) })) => {
                missing.iter().chain(heard.keys()).copied().collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// What the next broker has to know, if it is given no segments.
    pub(super) fn ownership(&self) -> Ownership {
        let before = if let Some(Change::Moving(_)) = self.change { self.before } else { self.table };
        Ownership { epoch: self.epoch, owners: *self.table.owners(), before: *before.owners() }
    }

    /// A member is there, or there again. False if it cannot take its place (now).
    pub(super) fn arrived(&mut self, member: usize, id: u64, progress: Progress) -> bool {
        let Progress { closed, known, .. } = progress;
        let is_fresh = progress.is_fresh();
        let may = match &mut self.change {
            _ if self.outcasts[member].is_some() && !is_fresh => false,
            None => is_fresh || closed == self.epoch,
            // Whoever begins now did not take part; there is no former process of it any more.
            Some(Change::Resuming(resuming)) if is_fresh => {
                resuming.missing.remove(&member);
                false
            }
            // Of a link that is still to be adopted it may know more.
            Some(Change::Resuming(resuming)) => {
                let may = closed == self.epoch || closed == self.epoch - 1 && known == self.epoch;
                if may {
                    resuming.missing.remove(&member);
                    resuming.heard.insert(member, progress);
                }
                may
            }
            Some(_) => false,
        };
        if may {
            (self.members[member], self.ports[member], self.outcasts[member]) = (Some(id), progress.ports, None);
        }
        may
    }

    /// Whether somebody who could not take its place never can: what it knows is over.
    pub(super) fn is_stale(&self, progress: &Progress) -> bool {
        let may_yet = matches!(&self.change, Some(Change::Resuming(resuming)) if resuming.until.is_some());
        !progress.is_fresh() && !may_yet
    }

    /// This process has lost its member's place. False if that is known.
    pub(super) fn cast_out(&mut self, member: usize, pid: i32) -> bool {
        self.outcasts[member].replace(pid) != Some(pid)
    }

    /// Whether this process has lost the place. One that cannot be seen may be another.
    pub(super) fn is_outcast(&self, member: usize, pid: i32) -> bool {
        pid != 0 && self.outcasts[member] == Some(pid)
    }

    /// The members that `table` gives a bucket which another has, and how many ports each says that it has.
    pub(super) fn receivers(&self, table: &BucketTable) -> BTreeMap<usize, usize> {
        let owner = |table: &BucketTable, bucket| self.member_of(table.queue(bucket));
        let moved = (0..BUCKETS as u8).filter(|&bucket| owner(table, bucket) != owner(&self.table, bucket));
        let to = moved.map(|bucket| owner(table, bucket)).filter(|to| self.members[*to].is_some());
        to.map(|to| (to, usize::from(self.ports[to]))).collect()
    }

    /// How many links the pool has, as far as members say who have come back.
    pub(super) fn links(&self) -> usize {
        match &self.change {
            Some(Change::Resuming(resuming)) if resuming.until.is_some() => {
                resuming.heard.values().map(|progress| usize::from(progress.ports)).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// How long members of a former broker are waited for, while they are.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        if let Some(Change::Resuming(resuming)) = &self.change { resuming.until } else { None }
    }

    /// How long other ends of the pool's links are waited for, while a change does nothing else.
    pub(super) fn links_until(&self) -> Option<Instant> {
        self.links_until
    }

    /// They are waited for no longer. Should there be others, they have as long.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.links_until = Some(now + LINKS_WITHIN);
        self.is_late = true;
    }

    /// Whoever has not come back is gone.
    pub(super) fn wait_no_more(&mut self) {
        if let Some(Change::Resuming(resuming)) = &mut self.change {
            resuming.missing.clear();
            resuming.until = None;
            self.read_until = Some(Instant::now() + READ_WITHIN);
        }
    }

    /// Begins a change. False if one is on its way.
    pub(super) fn begin(&mut self, table: BucketTable) -> bool {
        if self.change.is_some() {
            return false;
        }
        let missing = (0..self.members.len()).filter(|member| self.members[*member].is_some()).collect();
        self.change = Some(Change::Preparing { table, missing });
        true
    }

    /// The epoch that members are asked about: that which comes, or has come last.
    pub(super) fn asked(&self) -> u64 {
        self.epoch + u64::from(matches!(self.change, Some(Change::Preparing { .. })))
    }

    pub(super) fn prepared(&mut self, member: usize) {
        if let Some(Change::Preparing { missing, .. }) = &mut self.change
            && missing.remove(&member)
        {
            self.members_until = None;
        }
    }

    /// A member sends a part of a bucket's state, the last one unless there is `more`. Returns the queue that gets it, or what is
    /// wrong with that.
    pub(super) fn sent(&mut self, member: usize, bucket: u8, more: bool) -> Result<usize, &'static str> {
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

    pub(super) fn gave(&mut self, member: usize) {
        if let Some(Change::Moving(moving)) = &mut self.change
            && moving.giving.remove(&member)
        {
            self.members_until = None;
        }
    }

    pub(super) fn came(&mut self, member: usize, buckets: u128) {
        let its_own = self.set(|pool, bucket| pool.member_of(pool.table.queue(bucket)) == member);
        if let Some(Change::Moving(moving)) = &mut self.change
            && moving.coming & buckets & its_own != 0
        {
            moving.coming &= !(buckets & its_own);
            self.members_until = None;
        }
    }

    /// The buckets of which this is true.
    fn set(&self, is: impl Fn(&Self, u8) -> bool) -> u128 {
        (0..BUCKETS as u8).filter(|&bucket| is(self, bucket)).fold(0, |set, bucket| set | 1 << bucket)
    }

    /// Buckets that had come to their new owners when the change was taken over from a former broker.
    pub(super) fn come(&self) -> u128 {
        if let Some(Change::Moving(moving)) = &self.change { moving.come } else { 0 }
    }

    /// A member is gone.
    pub(super) fn left(&mut self, member: usize) {
        self.members[member] = None;
        self.members_until = None;
        self.read_until = Some(Instant::now() + READ_WITHIN);
        match &mut self.change {
            // It may have grown impatient.
            Some(Change::Resuming(Resuming { missing, heard, until })) => {
                let may_return = heard.remove(&member).is_some() && until.is_some();
                missing.extend(may_return.then_some(member));
            }
            Some(Change::Preparing { missing, .. }) => drop(missing.remove(&member)),
            Some(Change::Moving(moving)) => drop(moving.giving.remove(&member)),
            None => {}
        }
    }

    /// Members that are gone, have buckets that are to go to others, and may have sent what was not read, which nobody shall
    /// overtake: a bit each.
    pub(super) fn survived(&self, now: Instant) -> u64 {
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
    pub(super) fn next(&mut self, may_publish: bool, unread: u64) -> Option<Next> {
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

    /// All are back who may have a part in a former broker's change: takes it up where one was left. One that was not
    /// published is none: nobody acts by it.
    fn resume(&mut self, resuming: &Resuming) -> Next {
        let mut heard = resuming.heard.values();
        if heard.len() == 0 || heard.any(|progress| progress.closed == self.epoch) {
            return Next::Rest;
        }
        let come = resuming.heard.iter().fold(0, |set, (member, progress)| {
            let its_own = self.set(|pool, bucket| pool.member_of(pool.table.queue(bucket)) == *member);
            set | progress.come & its_own
        });
        self.begin_to_move(come);
        Next::Publish
    }

    /// Buckets are to go from the owners before to those of the table, but for those that have.
    fn begin_to_move(&mut self, come: u128) {
        let moves = self.set(|pool, bucket| pool.before.queue(bucket) != pool.table.queue(bucket)) & !come;
        let giving = (0..self.members.len()).filter(|member| self.members[*member].is_some()).collect();
        self.change = Some(Change::Moving(Moving { giving, held: moves, coming: moves, come }));
    }

    /// Whether a bucket moves between queues of one member, which needs nobody's help.
    fn is_within(&self, bucket: u8) -> bool {
        self.member_of(self.before.queue(bucket)) == self.member_of(self.table.queue(bucket))
    }

    /// The queue that had a bucket before the change.
    pub(super) fn had(&self, bucket: u8) -> usize {
        match &self.change {
            Some(Change::Moving(_)) => self.before.queue(bucket),
            _ => self.table.queue(bucket),
        }
    }

    /// Members that a change waits for, by name.
    pub(super) fn waits_for(&self) -> Vec<String> {
        self.awaited().into_iter().map(|member| self.functions[member].clone()).collect()
    }

    /// Members that a change waits for.
    pub(super) fn awaited(&self) -> BTreeSet<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 100;
    const B: u64 = 101;

    /// Three members of one queue each, of which two are there.
    fn pool() -> Pool {
        let mut pool = Pool::new(&["a", "b", "c"].map(str::to_owned), 1);
        (pool.members[0], pool.members[1]) = (Some(A), Some(B));
        pool
    }

    fn table(owner: impl Fn(u8) -> u8) -> BucketTable {
        BucketTable::new(core::array::from_fn(|bucket| owner(bucket as u8)), 3).unwrap()
    }

    /// Up to the moment when senders know of a table by which all odd buckets go to `to`.
    fn moving(to: u8) -> Pool {
        let mut pool = pool();
        assert!(pool.begin(table(|bucket| bucket % 2 * to)));
        pool.prepared(0);
        assert_eq!(pool.next(true, 0), None, "b is not ready");
        pool.prepared(1);
        assert_eq!(pool.next(false, 0), None, "a member has not the generation that senders have");
        assert_eq!(pool.next(true, 0), Some(Next::Publish));
        assert_eq!(pool.next(true, 0), None);
        pool
    }

    const ODD: u128 = 0xaaaa_aaaa_aaaa_aaaa_aaaa_aaaa_aaaa_aaaa;

    #[test]
    fn a_change_is_complete_when_all_was_given_and_has_come() {
        let mut pool = moving(1);
        assert_eq!((pool.epoch, pool.had(3), pool.begin(table(|_| 0))), (2, 0, false));
        assert_eq!(pool.sent(0, 3, false).ok(), Some(1));
        assert_eq!(pool.sent(0, 3, false).ok(), None, "twice");
        assert_eq!(pool.sent(0, 2, false).ok(), None, "it does not move");
        assert_eq!(pool.sent(1, 5, false).ok(), None, "it is not that member's");
        assert!((1..128).step_by(2).all(|bucket| bucket == 3 || pool.sent(0, bucket, false).ok() == Some(1)));
        pool.gave(0);
        pool.gave(1);
        pool.came(1, ODD & !8);
        pool.came(0, 8);
        assert_eq!((pool.next(true, 0), pool.waits_for()), (None, vec!["b".to_owned()]));
        pool.came(1, 8);
        assert_eq!(pool.next(true, 0), Some(Next::Close));
        assert!(pool.change.is_none() && pool.begin(table(|_| 2)));
    }

    #[test]
    fn what_a_member_that_dies_had_arrives_without_state() {
        let mut pool = moving(1);
        assert_eq!(pool.sent(0, 1, false).ok(), Some(1));
        pool.left(0);
        let rest: Vec<u8> = (3..128).step_by(2).collect();
        assert_eq!(pool.next(true, 0), Some(Next::Deliver(rest)));
        assert_eq!(pool.next(true, 0), None);
        pool.gave(1);
        pool.came(1, ODD);
        assert_eq!(pool.next(true, 0), Some(Next::Close));
    }

    #[test]
    fn nobody_overtakes_what_a_member_that_died_had_sent() {
        let mut pool = moving(1);
        pool.gave(1);
        assert_eq!((pool.survived(Instant::now()), pool.look_at), (0, None));
        pool.left(0);
        assert_eq!(pool.survived(Instant::now()), 0b001);
        assert_eq!(pool.next(true, 0b001), None, "it was not read");
        assert!(pool.look_at.is_some_and(|look_at| look_at <= Instant::now() + LOOK_EVERY));
        assert_eq!(pool.survived(Instant::now() + READ_WITHIN), 0, "and may never be");
        assert!(matches!(pool.next(true, 0), Some(Next::Deliver(odd)) if odd.len() == 64));
        assert_eq!((pool.survived(Instant::now()), pool.look_at), (0, None));
    }

    #[test]
    fn nobody_waits_for_a_member_that_dies_before_its_buckets_come() {
        let mut pool = moving(1);
        pool.gave(0);
        pool.left(1);
        assert_eq!(pool.next(true, 0), Some(Next::Close));
        assert_eq!(pool.table.queue(1), 1, "they are its own when it is there again");
    }

    #[test]
    fn what_goes_to_nobody_is_given_all_the_same() {
        let mut pool = moving(2);
        assert_eq!(pool.sent(0, 1, false).ok(), Some(2));
        pool.gave(1);
        assert_eq!(pool.next(true, 0), None);
        pool.gave(0);
        assert_eq!(pool.next(true, 0), Some(Next::Close));
    }

    #[test]
    fn a_pool_without_members_changes_at_once() {
        let mut pool = Pool::new(&["a", "b"].map(str::to_owned), 2);
        assert_eq!((pool.table.queue(0), pool.table.queue(1), pool.queues()), (0, 1, 4));
        assert!(pool.begin(BucketTable::fixed(4)));
        assert_eq!(
            (pool.next(true, 0), pool.next(true, 0), pool.next(true, 0)),
            (Some(Next::Publish), Some(Next::Close), None)
        );
    }

    /// What a broker left that died after senders knew of `moving`'s table.
    fn left_by(pool: &Pool) -> Standing {
        pool.standing(0b011)
    }

    fn later() -> Instant {
        Instant::now() + std::time::Duration::from_secs(60)
    }

    /// A broker that has adopted both links of a pool.
    fn adopted(links: [&Standing; 2]) -> Pool {
        let mut pool = Pool::new(&["a", "b", "c"].map(str::to_owned), 1);
        assert!(links.into_iter().all(|standing| pool.adopt(standing, later())));
        pool
    }

    fn progress(closed: u64, known: u64, come: u128) -> Progress {
        Progress { closed, known, come, ports: 2 }
    }

    #[test]
    fn a_pool_at_rest_is_found_as_it_was() {
        let mut former = moving(1);
        former.change = None;
        let mut pool = adopted([&left_by(&former); 2]);
        assert_eq!((pool.epoch, pool.table, pool.links()), (2, former.table, 0));
        assert_eq!((pool.next(true, 0), pool.waits_for()), (None, ["a", "b"].map(str::to_owned).to_vec()));
        assert!(!pool.arrived(0, A, progress(1, 1, 0)), "of another epoch");
        assert!(!pool.arrived(0, A, progress(u64::MAX, 0, 0)));
        assert!(pool.arrived(0, A, progress(2, 3, 0)), "ready for an epoch that never was");
        assert_eq!((pool.next(true, 0), pool.links()), (None, 2), "b is missing");
        assert!(pool.arrived(1, B, progress(2, 2, 0)));
        assert_eq!(pool.next(false, 0), None, "a link is not there yet");
        assert_eq!(pool.next(true, 0), Some(Next::Rest));
        assert!(pool.change.is_none() && pool.begin(table(|_| 2)));
    }

    #[test]
    fn a_change_goes_on_with_what_has_not_come() {
        let mut pool = adopted([&left_by(&moving(1)); 2]);
        // Of what is not its own, nothing has come to it.
        assert!(pool.arrived(0, A, progress(1, 2, 1 << 5)));
        assert!(pool.arrived(1, B, progress(1, 2, 1 << 1 | 1 << 3)));
        assert_eq!((pool.next(true, 0), pool.come()), (Some(Next::Publish), 1 << 1 | 1 << 3));
        assert_eq!(
            (pool.sent(0, 3, false).ok(), pool.sent(1, 5, false).ok(), pool.sent(0, 5, false).ok()),
            (None, None, Some(1))
        );
        pool.gave(1);
        pool.gave(0);
        let rest: Vec<u8> = (7..128).step_by(2).collect();
        assert_eq!(pool.next(true, 0), Some(Next::Deliver(rest)), "what was not given when all was");
        pool.came(1, ODD);
        assert_eq!(pool.next(true, 0), Some(Next::Close));
    }

    #[test]
    fn a_change_is_over_if_one_member_knows_it() {
        let mut pool = adopted([&left_by(&moving(1)); 2]);
        assert!(pool.arrived(0, A, progress(1, 2, 0)) && pool.arrived(1, B, progress(2, 2, 0)));
        assert_eq!(pool.next(true, 0), Some(Next::Rest));
    }

    #[test]
    fn of_two_tables_the_newer_counts() {
        let former = moving(1);
        let before = Standing { epoch: 1, table: former.before, ..left_by(&pool()) };
        for links in [[&before, &left_by(&former)], [&left_by(&former), &before]] {
            let mut pool = adopted(links);
            assert_eq!((pool.epoch, pool.table), (2, former.table));
            assert!(pool.arrived(0, A, progress(1, 2, 0)) && pool.arrived(1, B, progress(1, 2, 0)));
            assert_eq!((pool.next(true, 0), pool.come()), (Some(Next::Publish), 0));
        }
    }

    #[test]
    fn tables_that_do_not_go_together_are_of_no_use() {
        let first = left_by(&moving(1));
        let mut pool = adopted([&first; 2]);
        for other in [
            Standing { table: table(|_| 2), ..first },
            Standing { epoch: 3, before: table(|_| 2), ..first },
            Standing { epoch: 4, ..first },
            Standing { epoch: 1, table: table(|_| 2), ..first },
        ] {
            assert!(!pool.adopt(&other, later()), "{other:?}");
        }
        assert_eq!((pool.epoch, pool.table), (2, first.table));
    }

    #[test]
    fn a_member_that_does_not_come_back_is_gone_in_the_end() {
        let mut pool = adopted([&left_by(&moving(1)); 2]);
        assert!(pool.arrived(1, B, progress(1, 2, 1 << 1)));
        // Its connection breaks, and it comes again.
        pool.left(1);
        assert_eq!(pool.waits_for().len(), 2);
        assert!(pool.arrived(1, B, progress(1, 2, 1 << 1)));
        // Another process of the same function is there: it holds nothing.
        assert!(!pool.arrived(0, A, Progress::default()));
        assert_eq!(pool.waits_for().len(), 0);
        pool.wait_no_more();
        assert_eq!((pool.next(true, 0), pool.waits_until()), (Some(Next::Publish), None));
        let rest: Vec<u8> = (3..128).step_by(2).collect();
        assert_eq!(pool.next(true, 0), Some(Next::Deliver(rest)));
    }
}
