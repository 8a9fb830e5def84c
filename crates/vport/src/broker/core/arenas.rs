//! Arenas of trust groups: what a generation borrows of them, and when it comes back.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::super::group::Group;
use super::super::link::{Lease, Segments};
use super::super::seat::Seat;
use super::super::{ArenaStatus, Event};
use super::{Core, Fault, RETURN_WITHIN};
use crate::segment::Segment;
use crate::wire::Reply;

const ARENA: &str = "arena";
const HOLDERS: &str = "holders";

impl Core {
    /// Of the generations from before its connection, an end uses these and no others.
    pub(super) fn holds(&mut self, name: &str, seat: Seat, since: u64, generations: Vec<u64>) {
        self.let_go(name, seat, |generation| generation <= since && !generations.contains(&generation));
        if let Some(link) = self.links.get_mut(name) {
            let leased = |generation: &u64| link.leases.iter().any(|lease| lease.generation == *generation);
            let earlier = generations.into_iter().filter(|generation| !leased(generation)).collect();
            link.party_mut(seat).earlier = Some(earlier);
        }
        self.settle_orphans();
    }

    pub(super) fn let_go(&mut self, name: &str, seat: Seat, of: impl Fn(u64) -> bool) {
        let Some(link) = self.links.get_mut(name) else { return };
        let was_kept = link.is_kept();
        link.let_go(seat, of);
        let waited = was_kept && !link.is_kept() && link.due.is_some();
        self.settle(name);
        if waited {
            self.start_generation(name);
        }
    }

    /// Takes the buffers of generations that nobody uses back.
    pub(super) fn settle(&mut self, name: &str) {
        let Some(link) = self.links.get_mut(name) else { return };
        let ended = link.ended_leases();
        if let Some(group) = link.spec.kind.group().and_then(|group| self.groups.get_mut(group)) {
            ended.into_iter().for_each(|lease| group.reclaim(lease.ids));
        }
    }

    /// Takes back what a former broker had given out, once every end of a group has said that it uses nothing of it.
    pub(super) fn settle_orphans(&mut self) {
        let now = Instant::now();
        for (name, group) in self.groups.iter_mut().filter(|(_, group)| group.has_orphans()) {
            let mut links = self.links.values().filter(|link| link.spec.kind.group() == Some(name));
            let told = links.all(|link| {
                link.parties.iter().flatten().all(|party| party.earlier.as_ref().is_some_and(Vec::is_empty))
            });
            if told && group.adopted.is_none_or(|adopted| adopted + RETURN_WITHIN <= now) {
                group.reclaim_orphans();
            }
        }
    }

    /// Stocks the channels of a new generation. Nothing for direct links.
    pub(super) fn stock(&mut self, name: &str, segments: &Segments) -> Result<Option<Lease>, Fault> {
        let Some(link) = self.links.get(name) else { return Ok(None) };
        let Some(group_name) = link.spec.kind.group() else { return Ok(None) };
        if !self.groups.contains_key(group_name) {
            let (group, ordinary) =
                Group::create(group_name, self.config.hugepages).map_err(|error| error.to_string())?;
            if let Some(reason) = ordinary {
                (self.events)(Event::OrdinaryPages { link: name.to_owned(), reason });
            }
            self.groups.insert(group_name.to_owned(), group);
        }
        let Some(group) = self.groups.get_mut(group_name) else { return Ok(None) };
        group.reclaim_removed();
        let ids = group.new_ids().ok_or("all holder ids are in use")?;
        let stocked = segments.stock(&link.spec, |sender, count| group.give(count, ids + sender as u16));
        if let Err(error) = stocked {
            group.reclaim(ids);
            return Err(error.to_string());
        }
        Ok(Some(Lease { generation: link.generation + 1, ids, used: [false; 2] }))
    }

    /// Sends an end the arena for its next generation.
    pub(super) fn lend_arena(&mut self, name: &str, id: u64, end: usize) -> Result<(), Fault> {
        let Some(link) = self.links.get(name) else { return Ok(()) };
        let Some(group) = link.spec.kind.group().and_then(|group| self.groups.get(group)) else { return Ok(()) };
        let Some(lease) = link.leases.last() else { return Ok(()) };
        let (buffers, present, _) = group.counts();
        let (own, peer) = (lease.ids + end as u16, lease.ids + 1 - end as u16);
        let arena = Reply::Arena { generation: lease.generation, buffers, present, own, peer };
        let fds = [&group.frames, &group.holders].map(Segment::try_clone).into_iter().collect::<io::Result<_>>();
        self.send(id, &arena, fds.map_err(|error| error.to_string())?)
    }

    /// See [`super::Broker::arenas`].
    pub fn arenas(&self) -> Vec<ArenaStatus> {
        let status = |(name, group): (&String, &Group)| {
            let (_, buffers, free) = group.counts();
            ArenaStatus { group: name.clone(), buffers, free, hugepages: group.huge }
        };
        self.groups.iter().map(status).collect()
    }
}

/// The descriptors of a generation's arena, with labels.
pub(super) fn labelled(lease: &Lease, group: &Group) -> io::Result<[(String, OwnedFd); 2]> {
    let Lease { generation, ids, .. } = lease;
    Ok([
        (format!("vport/{generation}/{ARENA}/{ids}"), group.frames.try_clone()?),
        (format!("vport/{generation}/{HOLDERS}"), group.holders.try_clone()?),
    ])
}

/// Takes the arena of a generation over, by its labels.
pub(super) fn adopt_lease(
    groups: &mut BTreeMap<String, Group>,
    name: &str,
    labelled: &mut Vec<(String, OwnedFd)>,
) -> Option<Lease> {
    let mut take = |kind: &str| {
        let at = labelled.iter().position(|(label, _)| label.split('/').nth(2) == Some(kind))?;
        Some(labelled.swap_remove(at))
    };
    let ((label, frames), (_, holders)) = (take(ARENA)?, take(HOLDERS)?);
    let mut numbers = label.split('/').filter_map(|word| word.parse::<u64>().ok());
    let (generation, ids) = (numbers.next()?, u16::try_from(numbers.next()?).ok()?);
    if !groups.contains_key(name) {
        groups.insert(name.to_owned(), Group::adopt(frames.try_clone().ok()?, holders, Instant::now()).ok()?);
    }
    let group = groups.get_mut(name).filter(|group| group.is(&frames))?;
    group.adopted = Some(Instant::now());
    group.claim(ids).then_some(Lease { generation, ids, used: [true; 2] })
}
