//! What a former broker left of a pool: members come back, and a change is gone through from where it was.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Change, Next, Pool, READ_WITHIN, Resuming};
use crate::table::Standing;

impl Pool {
    /// Takes over what a former broker left in the table segment of one of the pool's links. False if it cannot be true: then
    /// the link is of no use. Where that broker died while it wrote the tables of several links, the newest counts: all
    /// members were ready for it.
    pub(in crate::broker) fn adopt(&mut self, standing: &Standing, until: Instant) -> bool {
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

    /// Members of a former broker that are waited for, or have come back while others are.
    pub(in crate::broker) fn returning(&self) -> BTreeSet<usize> {
        match &self.change {
            Some(Change::Resuming(Resuming { missing, heard, until: Some(_) })) => {
                missing.iter().chain(heard.keys()).copied().collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// How many links the pool has, as far as members say who have come back.
    pub(in crate::broker) fn links(&self) -> usize {
        match &self.change {
            Some(Change::Resuming(resuming)) if resuming.until.is_some() => {
                resuming.heard.values().map(|progress| usize::from(progress.ports)).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// How long members of a former broker are waited for, while they are.
    pub(in crate::broker) fn waits_until(&self) -> Option<Instant> {
        if let Some(Change::Resuming(resuming)) = &self.change { resuming.until } else { None }
    }

    /// Whoever has not come back is gone.
    pub(in crate::broker) fn wait_no_more(&mut self) {
        if let Some(Change::Resuming(resuming)) = &mut self.change {
            resuming.missing.clear();
            resuming.until = None;
            self.read_until = Some(Instant::now() + READ_WITHIN);
        }
    }

    /// All are back who may have a part in a former broker's change: takes it up where one was left. One that was not
    /// published is none: nobody acts by it.
    pub(super) fn resume(&mut self, resuming: &Resuming) -> Next {
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
}
