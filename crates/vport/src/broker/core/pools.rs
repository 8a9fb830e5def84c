//! Pools: members that steer, and changes of who owns which bucket.

#[cfg(test)]
mod forgotten;
#[cfg(test)]
mod halfway;
#[cfg(test)]
mod hung;
#[cfg(test)]
mod recalled;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use super::super::link::{Link, Segments, Stage};
use super::super::pool::{Change, Next, Pool};
use super::super::seat::Seat;
use super::super::{BrokerError, Event, LinkSpec, Ownership, PoolStatus};
use super::{Core, Fault, Holds, RETURN_WITHIN};
use crate::allowance::Allowance;
use crate::layout::VERSION_POOL;
use crate::steering::{BUCKETS, BucketTable};
use crate::sync::full_fence;
use crate::table::{self, Standing};
use crate::wire::{Place, Progress, Reply, Request};

/// Messages a second from one member, on average and at once, but for states of buckets. It says three things in each change.
const MESSAGES: (u32, u32) = (2_000, 10_000);

impl Core {
    /// See [`super::super::Broker::set_owners`].
    pub fn set_owners(&mut self, function: &str, owners: &[u8; BUCKETS]) -> Result<u64, BrokerError> {
        let unknown = || BrokerError::Unknown(format!("a pool with {function}"));
        let at = self.pool_of(function).ok_or_else(unknown)?;
        let table = BucketTable::new(*owners, self.pools[at].queues());
        let table = table.ok_or_else(|| BrokerError::Invalid("a bucket is given to no member's queue".into()))?;
        if let Some(reason) = self.why_busy(at, &table) {
            return Err(BrokerError::Busy(reason));
        }
        let pool = &mut self.pools[at];
        pool.begin(table);
        let (epoch, owners) = (pool.epoch + 1, *owners);
        self.tell_members(at, &Reply::Prepare { epoch, owners });
        self.advance(at);
        Ok(epoch)
    }

    /// What keeps a change to this table from beginning.
    fn why_busy(&mut self, at: usize, table: &BucketTable) -> Option<String> {
        let pool = &self.pools[at];
        if let Some(Change::Resuming(_)) = pool.change {
            return Some("what a former broker left is still being taken over".into());
        }
        if pool.change.is_some() {
            return Some(format!("the last change waits for {}", pool.waits_for().join(", ")));
        }
        let attached = |link: &Link, seat: &Seat| link.party(*seat).client.is_some();
        let links = || self.links.values().filter_map(|link| Some((link, end_of(pool, &link.spec)?)));
        let mut present = links().flat_map(|(link, end)| link.seats(end).filter(move |seat| attached(link, seat)));
        if let Some(seat) = present.find(|seat| pool.members[seat.member].is_none()) {
            return Some(format!("{} is not ready yet", pool.functions[seat.member]));
        }
        // One that has a port of a former broker only would not get what is sent to it until it has come back by that.
        let attached_to = |member| links().filter(|(link, end)| attached(link, &Seat { end: *end, member })).count();
        let is_whole = |(member, ports): &(usize, usize)| attached_to(*member) >= links().count().min(*ports);
        if let Some((member, _)) = pool.receivers(table).into_iter().find(|receiver| !is_whole(receiver)) {
            return Some(format!("{} has not come back by all of its ports yet", pool.functions[member]));
        }
        // Of a former broker's segments the tables cannot be written any more.
        let closed = links().find(|(link, _)| link.has_closed_table && link.is_held());
        let (closed, begun) = closed
            .map(|(link, _)| (link.spec.name.clone(), matches!(link.stage, Stage::Mapping(_) | Stage::Joining(_))))?;
        if !begun {
            self.renew_table(&closed);
        }
        Some(format!("link {closed} is being renewed"))
    }

    /// See [`super::super::Broker::pools`].
    pub fn pools(&self) -> Vec<PoolStatus> {
        let status = |pool: &Pool| PoolStatus {
            functions: pool.functions.clone(),
            queues_each: pool.queues_each,
            present: pool.members.iter().map(Option::is_some).collect(),
            epoch: pool.epoch,
            owners: *pool.table.owners(),
            waits_for: pool.waits_for(),
            is_changing: pool.change.is_some(),
        };
        self.pools.iter().map(status).collect()
    }

    /// Makes the pools of a new link known. False if they are, with another number of queues.
    pub(super) fn add_pools(&mut self, spec: &LinkSpec) -> bool {
        for end in spec.ends.iter().filter(|end| end.functions.len() > 1) {
            let each = usize::from(end.port.queues);
            let shares = |pool: &Pool| pool.functions.iter().any(|function| end.functions.contains(function));
            let is_same = |pool: &Pool| pool.functions == end.functions && pool.queues_each == each;
            self.forget(|pool| shares(pool) && !is_same(pool));
            match self.pools.iter().find(|pool| shares(pool)) {
                None => self.pools.push(Pool::new(&end.functions, each)),
                Some(pool) if is_same(pool) => {}
                Some(_) => return false,
            }
        }
        true
    }

    /// Forgets pools that have no link and that nobody is in: where all links of a pool are made anew, its members go on as they are.
    pub(super) fn forget_pools(&mut self) {
        self.forget(|pool| !pool.is_used());
    }

    /// Forgets those of the pools without links.
    fn forget(&mut self, which: impl Fn(&Pool) -> bool) {
        let has_link = |pool: &Pool| self.links.values().any(|link| end_of(pool, &link.spec).is_some());
        let gone: Vec<Pool> = self.pools.extract_if(.., |pool| which(pool) && !has_link(pool)).collect();
        for Pool { functions, members, .. } in gone {
            let function = functions[0].clone();
            members
                .into_iter()
                .flatten()
                .for_each(|id| self.turn_away(id, format!("the pool of {function} is no more")));
            (self.events)(Event::Ownership { function, ownership: None });
        }
    }

    /// See [`super::super::Broker::recall`].
    pub fn recall(&mut self, function: &str, left: &Ownership) -> Result<(), BrokerError> {
        let at = self.pools.iter().position(|pool| pool.functions[0] == function);
        let at = at.ok_or_else(|| BrokerError::Unknown(format!("a pool of {function}")))?;
        let pool = &mut self.pools[at];
        let tables = [left.owners, left.before].map(|owners| BucketTable::new(owners, pool.queues()));
        let (1.., [Some(table), Some(before)]) = (left.epoch, tables) else {
            return Err(BrokerError::Invalid(format!("what is known of the pool of {function} is of another one")));
        };
        let members = pool.owners([&table, &before]);
        let standing = Standing { epoch: left.epoch, table, before, members, open: 0 };
        pool.is_told = true;
        let is_there = pool.adopt(&standing, Instant::now() + RETURN_WITHIN);
        if is_there && matches!(pool.change, Some(Change::Resuming(_))) {
            let links = self.links.values_mut().filter(|link| end_of(pool, &link.spec).is_some());
            links.for_each(|link| link.has_closed_table = true);
        }
        Ok(())
    }

    /// Whether a link is to have its first generation later.
    pub(super) fn is_awaited(&self, name: &str) -> bool {
        let Some(link) = self.links.get(name) else { return false };
        self.pools.iter().any(|pool| is_awaited(pool, link))
    }

    /// A seat's place, if it is in a pool.
    pub(super) fn place(&self, link: &str, seat: Seat) -> Option<Place> {
        let link = self.links.get(link).filter(|link| link.is_pool(seat.end))?;
        let pool = &self.pools[self.pool_of(&link.spec.ends[seat.end].functions[0])?];
        Some(place(pool, seat.member))
    }

    /// Takes the epoch and the table of a pool over from the segments of one of its links. Returns the seats that had the
    /// generation; of other links, all. None where that cannot be: the segments are of no use then.
    pub(super) fn adopt_pool(&mut self, name: &str, segments: &Segments) -> Option<Vec<Seat>> {
        let link = self.links.get(name)?;
        let Some(end) = (0..2).find(|end| link.is_pool(*end)) else { return Some(link.all_seats().collect()) };
        let at = self.pool_of(&link.spec.ends[end].functions[0])?;
        let standing = Standing::read(&segments.ends[end].read_table().ok()?, link.queues(end))?;
        if !self.pools[at].adopt(&standing, Instant::now() + RETURN_WITHIN) {
            return None;
        }
        let link = self.links.get_mut(name)?;
        link.table_epoch = standing.open;
        link.has_closed_table = true;
        let had = |seat: &Seat| seat.end != end || standing.members >> seat.member & 1 == 1;
        let seats = link.all_seats().filter(had).collect();
        Some(seats)
    }

    /// Links of a pool that have an earlier table than it has by now get a generation with that. So do those that are over and of
    /// which a former broker's change cannot know whether their senders have heard so.
    fn renew_stale(&mut self, at: usize) {
        let Some(pool) = self.pools.get(at) else { return };
        let resuming = matches!(pool.change, Some(Change::Resuming(_)));
        let is_due = |link: &Link| match link.stage {
            Stage::Up => is_stale(pool, link),
            Stage::Down => resuming && link.due.is_none() && link.has_closed_table && link.is_held(),
            _ => false,
        };
        let stale = |link: &&Link| end_of(pool, &link.spec).is_some() && is_due(link);
        let names: Vec<String> = self.links.values().filter(stale).map(|link| link.spec.name.clone()).collect();
        names.iter().for_each(|name| self.renew_table(name));
    }

    /// A pool's link gets a generation for its table's sake, also out of quarantine: an end that was accused may go on sending by
    /// the table that it has until then.
    fn renew_table(&mut self, name: &str) {
        if let Some(link) = self.links.get_mut(name).filter(|link| link.stage == Stage::Down) {
            link.quarantined = None;
        }
        self.start_generation(name);
    }

    /// Members of a former broker that have not come back in time are gone. What is unread of one that is gone is looked at.
    pub(super) fn keep_pools(&mut self, now: Instant) {
        self.links.values_mut().for_each(|link| link.former.retain(|former| former.until > now));
        for at in 0..self.pools.len() {
            if self.pools[at].waits_until().is_some_and(|until| until <= now) {
                self.pools[at].wait_no_more();
                self.advance(at);
            } else if self.pools[at].look_at.is_some_and(|look_at| look_at <= now) {
                self.advance(at);
            }
            if self.pools[at].members_until.is_some_and(|until| until <= now) {
                let pool = &self.pools[at];
                let slow: Vec<u64> = pool.awaited().into_iter().filter_map(|member| pool.members[member]).collect();
                slow.into_iter().for_each(|id| self.cut_off(id, "it holds up a change of its pool".into()));
                self.advance(at);
            }
            if self.pools[at].links_until().is_some_and(|until| until <= now) {
                self.pools[at].hurry(now);
                for client in self.those_who_hold_up(at) {
                    self.cut_off(client, "it holds up a change of the pool at its link".into());
                }
            }
        }
        // The last member may have left.
        self.forget_pools();
    }

    /// Clients at a pool's links for which a change waits. At their other ends: they have not taken over a generation, keep so many that
    /// there is none with the table that there is by now, or have each new one end at once. Members, where the others can go on with
    /// the generation that they have, and there is no new one.
    fn those_who_hold_up(&self, at: usize) -> Vec<u64> {
        let Some(pool) = self.pools.get(at) else { return Vec::new() };
        let links = self.links.values().filter_map(|link| Some((link, 1 - end_of(pool, &link.spec)?)));
        let links = links.filter(|(link, _)| !is_settled(pool, link) && !is_awaited(pool, link));
        let clients = links.flat_map(|(link, peer)| {
            let holds_up = |seat: &Seat| match &link.stage {
                Stage::Up if !is_stale(pool, link) => !link.present.contains(seat),
                Stage::Mapping(missing) | Stage::Joining(missing) => seat.end == peer && missing.contains(seat),
                Stage::Down => seat.end == peer,
                _ => seat.end == peer && link.is_kept(),
            };
            link.all_seats().filter(holds_up).filter_map(|seat| link.sitter(seat)).collect::<Vec<_>>()
        });
        clients.collect()
    }

    /// Whether a seat is in a pool that is being changed: whoever comes now would not know to whom buckets go. Whoever comes
    /// back does. Or across the link from a pool whose change has waited for such too long.
    pub(super) fn is_changing(&self, link: &str, seat: Seat, resume: u64) -> bool {
        let Some(link) = self.links.get(link) else { return false };
        let pool = |end: usize| {
            let at = link.is_pool(end).then(|| self.pool_of(&link.spec.ends[end].functions[0]))??;
            self.pools.get(at)
        };
        let own = pool(seat.end).is_some_and(|pool| match &pool.change {
            None => false,
            Some(Change::Resuming(_)) => resume == 0,
            Some(_) => true,
        });
        let is_awaited = matches!(&link.stage, Stage::Adopted(missing) if missing.contains(&seat));
        own || !is_awaited && pool(seat.across()).is_some_and(|pool| pool.is_late)
    }

    /// A connection is to steer.
    pub(super) fn join_pool(
        &mut self,
        id: u64,
        versions: RangeInclusive<u16>,
        progress: Progress,
    ) -> Result<(), Fault> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let function = client.function.clone();
        if !versions.contains(&VERSION_POOL) {
            let (oldest, newest) = versions.into_inner();
            return Err(format!(
                "this broker speaks version {VERSION_POOL} with members of pools, not {oldest} to {newest}"
            ));
        }
        let Some(at) = self.pools.iter().position(|pool| pool.member(&function).is_some()) else {
            self.turn_away(id, format!("{function} is in no pool (yet)"));
            return Ok(());
        };
        let pool = &mut self.pools[at];
        let Some(member) = pool.member(&function) else { return Ok(()) };
        if pool.members[member].is_some() || !pool.arrived(member, id, progress) {
            let reason = format!("the pool of {function} is being changed, has this member, or goes on without it");
            let (pid, is_stale) = (client.pid, pool.members[member].is_none() && pool.is_stale(&progress));
            self.turn_away(id, reason);
            if is_stale {
                self.cast_out(at, member, pid);
            }
            self.advance(at);
            return Ok(());
        }
        client.holds = Holds::Pool;
        client.deadline = None;
        client.messages = Allowance::new(MESSAGES.0, MESSAGES.1);
        let place = place(pool, member);
        self.send(id, &Reply::Steers(place), Vec::new())?;
        (self.events)(Event::Joined { function });
        self.advance(at);
        Ok(())
    }

    /// What a member says.
    pub(super) fn hear_pool(&mut self, id: u64, request: Request) -> Result<(), Fault> {
        let mut found = self.pools.iter().enumerate();
        let found = found.find_map(|(at, pool)| Some((at, pool.members.iter().position(|other| *other == Some(id))?)));
        let Some((at, member)) = found else { return Ok(()) };
        let pool = &mut self.pools[at];
        match request {
            Request::Prepared { epoch } if epoch == pool.asked() => pool.prepared(member),
            Request::Gave { epoch } if epoch == pool.asked() => pool.gave(member),
            Request::Came { epoch, buckets } if epoch == pool.asked() => pool.came(member, buckets),
            Request::Prepared { .. } | Request::Gave { .. } | Request::Came { .. } => {}
            Request::Bucket { bucket, more, state, .. } => self.pass_on(at, (member, id), bucket, more, state)?,
            _ => return Err("a member of a pool only steers by this connection".into()),
        }
        self.advance(at);
        Ok(())
    }

    /// Hands a bucket's state, or a part of it, to its new owner.
    fn pass_on(
        &mut self,
        at: usize,
        (member, giver): (usize, u64),
        bucket: u8,
        more: bool,
        state: Vec<u8>,
    ) -> Result<(), Fault> {
        let pool = &mut self.pools[at];
        let to = pool.sent(member, bucket, more).map_err(|wrong| format!("bucket {bucket} {wrong}"))?;
        let from = pool.had(bucket) as u16;
        if let Some(receiver) = pool.members[pool.member_of(to)] {
            self.tell_member(receiver, &Reply::Arrival { bucket, from, more, state });
            self.wait_for(giver, receiver);
        }
        Ok(())
    }

    /// A member's connection has ended. `cut_off`: by the broker, while its process goes on.
    pub(super) fn left_pool(&mut self, function: &str, id: u64, pid: i32, cut_off: bool) {
        let Some(at) = self.pool_of(function) else { return };
        let pool = &mut self.pools[at];
        if let Some(member) = pool.members.iter().position(|other| *other == Some(id)) {
            pool.left(member);
            if cut_off && matches!(pool.change, Some(Change::Preparing { .. } | Change::Moving(_))) {
                self.cast_out(at, member, pid);
            }
            self.advance(at);
        }
    }

    /// The pool goes on without what this process of a member knows, and has had: its ports are taken from it. Whatever it sends yet
    /// counts for nothing, as if it were dead.
    fn cast_out(&mut self, at: usize, member: usize, pid: i32) {
        let pool = &mut self.pools[at];
        if !pool.cast_out(member, pid) {
            return;
        }
        let function = pool.functions[member].clone();
        let seats =
            self.links.values().filter_map(|link| Some((link, Seat { end: end_of(pool, &link.spec)?, member })));
        let is_its_own = |id: &u64| self.clients.get(id).is_some_and(|client| client.pid == pid);
        let ports = seats.filter_map(|(link, seat)| link.party(seat).client).filter(is_its_own);
        for port in ports.collect::<Vec<_>>() {
            self.expel(port, &goes_on_without(&function));
        }
        (self.events)(Event::Outcast { function, pid });
    }

    /// Whether a port is asked for by a process that has lost its place in the pool.
    pub(super) fn is_outcast(&self, link: &str, seat: Seat, pid: i32) -> bool {
        let Some(link) = self.links.get(link) else { return false };
        let pool = self.pools.iter().find(|pool| end_of(pool, &link.spec) == Some(seat.end));
        pool.is_some_and(|pool| pool.is_outcast(seat.member, pid))
    }

    /// A link has come up, or is down: what waited for that goes on.
    pub(super) fn advance_pools(&mut self) {
        (0..self.pools.len()).for_each(|at| self.advance(at));
    }

    /// Takes a change as far as it goes.
    fn advance(&mut self, at: usize) {
        self.renew_stale(at);
        let Some(pool) = self.pools.get(at) else { return };
        let links = || self.links.values().filter(|link| end_of(pool, &link.spec).is_some());
        let settled = links().all(|link| is_settled(pool, link)) && links().count() >= pool.links();
        loop {
            let unread = self.unread(at);
            let Some(next) = self.pools.get_mut(at).and_then(|pool| pool.next(settled, unread)) else { return };
            match next {
                Next::Publish => self.publish(at),
                Next::Deliver(buckets) => buckets.into_iter().for_each(|bucket| self.deliver_empty(at, bucket)),
                Next::Close | Next::Rest => {
                    let Pool { epoch, functions, .. } = &self.pools[at];
                    let (epoch, function) = (*epoch, functions[0].clone());
                    self.tell_members(at, &Reply::Closed { epoch });
                    // When members know of it: whoever comes after this broker hears from them.
                    self.tell_ownership(at);
                    if next == Next::Close {
                        (self.events)(Event::Steered { function, epoch });
                    }
                }
            }
        }
    }

    /// Members that are gone and whose buckets are to go to others, where a peer has not read all that they had sent: a bit
    /// each. Whoever has such a bucket next would overtake it.
    fn unread(&self, at: usize) -> u64 {
        let Some(pool) = self.pools.get(at) else { return 0 };
        let gone = pool.survived(Instant::now());
        let links = self.links.values().filter(|link| gone != 0 && link.stage != Stage::Down);
        let seats = links.filter_map(|link| Some((link, end_of(pool, &link.spec)?)));
        let seats = seats.flat_map(|(link, end)| link.seats(end).map(move |seat| (link, seat)));
        let unread = seats.filter(|(link, seat)| gone >> seat.member & 1 == 1 && link.has_unread(*seat));
        unread.fold(0, |set, (_, seat)| set | 1 << seat.member)
    }

    /// A link's pool is known to the broker's owner before anybody uses the link: without segments, too, the next broker waits for all.
    pub(super) fn tell_first_ownership(&mut self, name: &str) {
        let Some(link) = self.links.get(name) else { return };
        let untold = |pool: &Pool| !pool.is_told && end_of(pool, &link.spec).is_some();
        if let Some(at) = self.pools.iter().position(untold) {
            self.tell_ownership(at);
        }
    }

    fn tell_ownership(&mut self, at: usize) {
        let pool = &mut self.pools[at];
        pool.is_told = true;
        let (function, ownership) = (pool.functions[0].clone(), Some(pool.ownership()));
        (self.events)(Event::Ownership { function, ownership });
    }

    fn publish(&mut self, at: usize) {
        self.tell_ownership(at);
        let pool = &self.pools[at];
        for link in self.links.values_mut().filter(|link| end_of(pool, &link.spec).is_some()) {
            link.tables.iter().for_each(|segment| table::publish(segment, pool.epoch, &pool.table));
            link.table_epoch = pool.epoch;
        }
        // Every sender that begins a burst from here on sees the new table; see `epoch`.
        full_fence();
        let (epoch, come) = (pool.epoch, pool.come());
        self.tell_members(at, &Reply::Begun { epoch, come });
    }

    fn deliver_empty(&mut self, at: usize, bucket: u8) {
        let pool = &self.pools[at];
        let (from, to) = (pool.had(bucket) as u16, pool.member_of(pool.table.queue(bucket)));
        let arrival = Reply::Arrival { bucket, from, more: false, state: Vec::new() };
        if let Some(id) = pool.members[to] {
            self.tell_member(id, &arrival);
        }
    }

    fn tell_members(&mut self, at: usize, reply: &Reply) {
        let members: Vec<u64> = self.pools[at].members.iter().copied().flatten().collect();
        members.into_iter().for_each(|id| self.tell_member(id, reply));
    }

    /// One that does not read what it is told is cut off.
    fn tell_member(&mut self, id: u64, reply: &Reply) {
        if let Err(fault) = self.send(id, reply, Vec::new()) {
            self.cut_off(id, fault);
        }
    }

    /// Gives a new generation of a pool's link the table in force.
    pub(super) fn write_table(&mut self, name: &str) -> std::io::Result<()> {
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        let found = self.pools.iter().find_map(|pool| Some((pool, end_of(pool, &link.spec)?)));
        let (Some((pool, end)), Some(segments)) = (found, &link.segments) else { return Ok(()) };
        let segment = Arc::new(segments.ends[end].map_table()?);
        let present = link.present.iter().filter(|seat| seat.end == end);
        pool.standing(present.fold(0, |set, seat| set | 1 << seat.member)).write(&segment);
        link.table_epoch = pool.epoch;
        link.add_table(segment);
        Ok(())
    }

    fn pool_of(&self, function: &str) -> Option<usize> {
        self.pools.iter().position(|pool| pool.member(function).is_some())
    }
}

/// Whether everybody has the generation that a sender may use, if there is one: before the table names a member, as well as
/// before one gives anything away. One that has just come may be without it for a while.
fn is_settled(pool: &Pool, link: &Link) -> bool {
    match link.stage {
        // Whoever was told so may not have heard it yet, and would not see the next table.
        Stage::Down => !(link.has_closed_table && link.is_held() || is_awaited(pool, link)),
        Stage::Up if is_stale(pool, link) => false,
        Stage::Up => link.all_seats().all(|seat| link.party(seat).client.is_none() || link.present.contains(&seat)),
        _ => false,
    }
}

/// Whether somebody has not come back to a link that a former broker had, and of which no segments are here. What is sent in its first
/// generation to a member that is not there never gets to it, and a peer that is not there may send by an earlier table.
fn is_awaited(pool: &Pool, link: &Link) -> bool {
    let Some(end) = end_of(pool, &link.spec).filter(|_| link.is_recalled()) else { return false };
    let members = pool.returning().into_iter().map(|member| Seat { end, member }).collect::<Vec<_>>();
    let peers = link.seats(1 - end).filter(|_| !members.is_empty());
    peers.chain(members.iter().copied()).any(|seat| link.party(seat).client.is_none())
}

/// Whether a link's senders have an earlier table than those of the pool's other links, or none: a former broker left it so.
fn is_stale(pool: &Pool, link: &Link) -> bool {
    link.table_epoch != pool.epoch
}

/// Why a process that has lost its place has no ports.
pub(super) fn goes_on_without(function: &str) -> String {
    format!("the pool of {function} goes on without this process: it has to be started anew")
}

/// The end of a link that is the pool's.
fn end_of(pool: &Pool, spec: &LinkSpec) -> Option<usize> {
    spec.ends.iter().position(|end| end.functions == pool.functions)
}

fn place(pool: &Pool, member: usize) -> Place {
    Place {
        first_queue: (member * pool.queues_each) as u16,
        queues: pool.queues() as u16,
        epoch: pool.epoch,
        owners: *pool.table.owners(),
    }
}
