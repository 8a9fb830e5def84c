//! A pool as the broker sees it: which member owns which bucket, and how far a change of that has come. No I/O.
//!
//! A change goes through two stages. First all members get ready: frames of a bucket that comes to them will wait until it is
//! there. Then senders are told, and each member gives away what leaves it, once nothing more can come to it by the old table.
//! A member that is gone gives nothing and waits for nothing: what it had arrives without state.
//!
//! A broker that takes the place of another finds the epoch that senders know of in the table segments, and hears from the
//! members who come back whether its change is complete. If it is not, it is gone through once more from the moment at which
//! senders know of it: givers have kept what they gave, and receivers say what has come.

mod change;
mod former;
#[cfg(test)]
mod tests;

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

    /// Members that own a bucket by one of these tables, a bit each.
    pub(super) fn owners(&self, tables: [&BucketTable; 2]) -> u64 {
        let queues = tables.into_iter().flat_map(|table| table.owners());
        queues.fold(0, |set, queue| set | 1 << self.member_of(usize::from(*queue)))
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

    /// The buckets of which this is true.
    fn set(&self, is: impl Fn(&Self, u8) -> bool) -> u128 {
        (0..BUCKETS as u8).filter(|&bucket| is(self, bucket)).fold(0, |set, bucket| set | 1 << bucket)
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
}
