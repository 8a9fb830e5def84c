//! Links, and what becomes of them when an end comes or goes.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::super::group::Removed;
use super::super::link::{Link, Segments, Stage};
use super::super::observer::Tap;
use super::super::seat::{Leaving, Seat};
use super::super::{BrokerError, Event, LinkKind, LinkSpec, RING_BYTES_MAX, RING_BYTES_MIN};
use super::arenas::adopt_lease;
use super::{Client, Core, Fault, Holds, RETURN_WITHIN};
use crate::info::{ADDRESSES_MAX, PortInfo, QUEUES_MAX};
use crate::socket;
use crate::steering::Steering;
use crate::table;
use crate::wire::{Reply, is_name};

impl Core {
    /// See [`super::Broker::add_link`].
    pub fn add_link(&mut self, spec: LinkSpec) -> Result<(), BrokerError> {
        check(&spec)?;
        if let Some(link) = self.links.get(&spec.name) {
            let same = link.spec == spec;
            return if same { Ok(()) } else { Err(BrokerError::Exists(format!("link {}", spec.name))) };
        }
        let mut link = Link::new(spec);
        if let Some(taken) = link.all_seats().map(|seat| link.port(seat)).find(|port| self.ports.contains_key(port)) {
            return Err(BrokerError::Exists(format!("port {} of {}", taken.port, taken.function)));
        }
        if !self.add_pools(&link.spec) {
            let what = "a pool has the same members and the same number of queues at all its ports".into();
            return Err(BrokerError::Invalid(what));
        }
        for seat in link.all_seats() {
            self.ports.insert(link.port(seat), (link.spec.name.clone(), seat));
        }
        if let Some(group) = link.spec.kind.group().and_then(|group| self.groups.get_mut(group))
            && let Some(Removed { generation, leases, .. }) = group.removed.remove(&link.spec.name)
        {
            (link.generation, link.leases) = (generation, leases);
        }
        self.links.insert(link.spec.name.clone(), link);
        Ok(())
    }

    /// See [`super::Broker::adopt`].
    pub fn adopt(&mut self, spec: LinkSpec, segments: Vec<(String, OwnedFd)>) -> Result<(), BrokerError> {
        let name = spec.name.clone();
        self.add_link(spec)?;
        let Some(link) = self.links.get_mut(&name).filter(|link| link.segments.is_none()) else { return Ok(()) };
        let mut segments = of_one_generation(segments);
        let lease = match link.spec.kind.group() {
            None => None,
            Some(group) => match adopt_lease(&mut self.groups, group, &mut segments) {
                None => return Ok(()),
                lease => lease,
            },
        };
        link.leases.extend(lease);
        let Some((generation, segments)) = Segments::adopt(&link.spec, segments) else { return Ok(()) };
        let seats = self.adopt_pool(&name, &segments);
        if let (Some(seats), Some(link)) = (seats, self.links.get_mut(&name)) {
            link.generation = generation;
            link.segments = Some(segments);
            link.stage = Stage::Adopted(seats);
            link.adopted_until = Instant::now() + RETURN_WITHIN;
        }
        Ok(())
    }

    /// See [`super::Broker::remove_link`].
    pub fn remove_link(&mut self, name: &str) -> Result<(), BrokerError> {
        for (id, _) in self.clients_at(name) {
            if self.clients.get(&id).is_some_and(|client| socket::is_hung_up(client.socket.as_fd())) {
                self.drop_client(id, true);
            }
        }
        self.over(name);
        let link = self.links.remove(name).ok_or_else(|| BrokerError::Unknown(format!("link {name}")))?;
        link.all_seats().for_each(|seat| drop(self.ports.remove(&link.port(seat))));
        self.forget_pools();
        link.tap.end();
        let groups: Vec<_> = self.links.values().filter_map(|link| link.spec.kind.group()).collect();
        self.groups.retain(|group, _| groups.contains(&group.as_str()));
        let mut processes = [Vec::new(), Vec::new()];
        for (id, end) in self.clients_at(name) {
            processes[end].extend(self.clients.get(&id).map(|client| client.pid));
            self.turn_away(id, format!("link {name} was removed"));
        }
        for seat in link.all_seats().filter(|seat| link.party(*seat).client.is_some()) {
            (self.events)(Event::Detached { port: link.port(seat) });
        }
        if link.segments.is_some() {
            (self.events)(Event::Deposit { link: name.to_owned(), generation: link.generation, segments: Vec::new() });
        }
        if let Some(group) = link.spec.kind.group().and_then(|group| self.groups.get_mut(group)) {
            let (generation, leases) = (link.generation, link.leases);
            group.removed.insert(name.to_owned(), Removed { generation, leases, processes });
            group.reclaim_removed();
        }
        self.advance_pools();
        Ok(())
    }

    /// Who is at a link, and at which end: heirs, and those who have been succeeded, too.
    fn clients_at(&self, name: &str) -> Vec<(u64, usize)> {
        let end = |client: &Client| match &client.holds {
            Holds::Port(link, seat) if link == name => Some(seat.end),
            _ => None,
        };
        self.clients.iter().filter_map(|(id, client)| Some((*id, end(client)?))).collect()
    }

    /// See [`super::Broker::renew`].
    pub fn renew(&mut self, name: &str) -> Result<(), BrokerError> {
        let link = self.links.get_mut(name).ok_or_else(|| BrokerError::Unknown(format!("link {name}")))?;
        link.quarantined = None;
        self.over(name);
        self.start_generation(name);
        Ok(())
    }

    /// A seat was taken by a process that holds nothing of the current generation.
    pub(super) fn attached(&mut self, name: &str, seat: Seat, id: u64, resume: u64) -> Result<(), Fault> {
        // Generations that a former broker gave out are not given out again.
        const BELIEVABLE: u64 = 1 << 32;
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        let first = std::mem::take(&mut link.party_mut(seat).awaited);
        if first && resume == 0 {
            link.party_mut(seat).succeeded = true;
            self.bury(name, seat);
        }
        // Members of a pool that are there go on with what they have until the next generation is up.
        if !self.links.get(name).is_some_and(|link| link.has_others(seat)) {
            self.over(name);
        }
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        (link.quarantined, link.unshared) = (None, false);
        link.generation = link.generation.max(if resume < BELIEVABLE { resume } else { 0 });
        // Where others are waited for, all go on with what they have.
        if resume != 0 && !link.is_recalled() {
            let dead =
                link.parties[seat.across()].iter().all(|party| first && party.succeeded || party.dead_until >= resume);
            self.send(id, &Reply::Over { generation: resume, dead }, Vec::new())?;
        }
        self.start_generation(name);
        Ok(())
    }

    /// A process came back to the generation that it held under a former broker.
    pub(super) fn returned(&mut self, name: &str, seat: Seat) {
        let Some(link) = self.links.get_mut(name) else { return };
        if let Stage::Adopted(missing) = &mut link.stage {
            missing.retain(|other| *other != seat);
            let all = missing.is_empty();
            link.party_mut(seat).awaited = false;
            link.present.push(seat);
            if all {
                link.stage = Stage::Up;
                let _ = Tap::renew(link);
                (self.events)(Event::LinkUp { link: name.to_owned(), generation: link.generation });
                self.tell_of_fallen(name);
                self.advance_pools();
                self.passed(name);
            }
        }
    }

    /// Members that came back to a former broker's generation and died before all had: those who came after that have not heard so, and
    /// the broker after this one would wait for them.
    fn tell_of_fallen(&mut self, name: &str) {
        let Some(link) = self.links.get(name) else { return };
        let fallen =
            |seat: &Seat| link.party(*seat).client.is_none() && link.party(*seat).dead_until >= link.generation;
        let fallen: Vec<Seat> = link.all_seats().filter(|seat| link.is_pool(seat.end)).filter(fallen).collect();
        let news = fallen.iter().flat_map(|seat| link.clients(seat.across()).map(|id| (id, link.gone(*seat, 0))));
        let news: Vec<(u64, Reply)> = news.collect();
        for (id, reply) in news {
            if let Err(fault) = self.send(id, &reply, Vec::new()) {
                self.cut_off(id, fault);
            }
        }
        if !fallen.is_empty() {
            self.start_generation(name);
        }
    }

    pub(super) fn detached(&mut self, name: &str, seat: Seat, dead: bool) {
        let Some(link) = self.links.get_mut(name) else { return };
        link.party_mut(seat).client = None;
        let port = link.port(seat);
        let others = link.has_others(seat);
        if dead {
            self.bury(name, seat);
        }
        if others {
            self.go_on_without(name, seat);
        } else {
            self.links.get_mut(name).into_iter().for_each(|link| link.due = None);
            self.over(name);
        }
        // Also where it was over before, or goes on: nobody is waited for here any more.
        self.advance_pools();
        if dead {
            self.let_go(name, seat, |_| true);
        }
        if let Some(link) = self.links.get_mut(name) {
            link.party_mut(seat).earlier = dead.then(Vec::new);
            if !link.is_pool(seat.end) {
                link.former.clear();
            }
        }
        (self.events)(Event::Detached { port });
        let Some(link) = self.links.get_mut(name) else { return };
        if (0..2).all(|end| link.clients(end).next().is_none())
            && let Some(segments) = link.segments.take()
        {
            let _ = Tap::renew(link);
            link.retire(segments);
            (self.events)(Event::Deposit { link: name.to_owned(), generation: link.generation, segments: Vec::new() });
        }
    }

    /// A member of a pool has left, and others are there.
    fn go_on_without(&mut self, name: &str, seat: Seat) {
        let Some(link) = self.links.get_mut(name) else { return };
        link.present.retain(|other| *other != seat);
        link.tables.iter().for_each(|segment| table::forget_member(segment, seat.member));
        if link.has_closed_table && link.stage == Stage::Up {
            // The member cannot be struck out: the broker after this one would wait for it.
            return self.start_generation(name);
        }
        let (Stage::Mapping(missing) | Stage::Joining(missing)) = &mut link.stage else { return };
        missing.retain(|other| *other != seat);
        if missing.is_empty()
            && let Err(fault) = self.proceed(name)
        {
            self.complain_of(name, fault);
        }
    }

    /// The process that held a seat in this generation, and those before it, writes no more for sure. For a reader, of an
    /// end that has others or of a generation which is over already, that is news.
    fn bury(&mut self, name: &str, seat: Seat) {
        let Some(link) = self.links.get_mut(name) else { return };
        let generation = link.generation;
        link.party_mut(seat).dead_until = generation;
        let news = match link.is_pool(seat.end) {
            false if link.stage == Stage::Down => Reply::Over { generation, dead: true },
            false => return,
            true => link.gone(seat, 0),
        };
        let others: Vec<u64> = link.clients(seat.across()).filter(|_| generation > 0).collect();
        for other in others {
            if let Err(fault) = self.send(other, &news, Vec::new()) {
                self.cut_off(other, fault);
            }
        }
    }

    /// Ends the current generation and tells those who hold it.
    pub(super) fn over(&mut self, name: &str) {
        let leaving = self.pass_early(name);
        let Some(link) = self.links.get_mut(name) else { return };
        if link.stage == Stage::Down {
            return;
        }
        link.stage = Stage::Down;
        let generation = link.generation;
        let dead = [0, 1].map(|end: usize| link.parties[end].iter().all(|party| party.dead_until >= generation));
        let clients: Vec<(usize, u64)> = (0..2).flat_map(|end| link.clients(end).map(move |id| (end, id))).collect();
        for (end, id) in clients {
            if let Some(client) = self.clients.get_mut(&id) {
                client.deadline = None;
            }
            if let Err(fault) = self.send(id, &Reply::Over { generation, dead: dead[1 - end] }, Vec::new()) {
                self.cut_off(id, fault);
            }
        }
        if let Some(Leaving { client, generation }) = leaving {
            // One that is gone will be found so.
            let _ = self.send(client, &Reply::Over { generation, dead: false }, Vec::new());
        }
        self.settle(name);
        self.advance_pools();
    }
}

/// Segments of one generation out of those of two, where their keeper was given the later one's when it was stopped: all of the
/// later one are there, or all of the earlier one.
fn of_one_generation(segments: Vec<(String, OwnedFd)>) -> Vec<(String, OwnedFd)> {
    let of = |label: &str| label.split('/').nth(1).and_then(|number| number.parse::<u64>().ok());
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    segments.iter().filter_map(|(label, _)| of(label)).for_each(|number| *counts.entry(number).or_default() += 1);
    let chosen = counts.into_iter().max_by_key(|(number, count)| (*count, *number)).map(|(number, _)| number);
    segments.into_iter().filter(|(label, _)| of(label) == chosen).collect()
}

fn check(spec: &LinkSpec) -> Result<(), BrokerError> {
    let invalid = |what: String| Err(BrokerError::Invalid(format!("link {}: {what}", spec.name)));
    if spec.kind.group().is_some_and(|group| !is_name(group)) {
        return invalid("its trust group cannot have such a name".into());
    }
    if !spec.ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&spec.ring_bytes) {
        return invalid(format!("{} is not a ring size", spec.ring_bytes));
    }
    for end in &spec.ends {
        let PortInfo { name, addresses, routes, .. } = &end.port;
        if let Some(function) = end.functions.iter().find(|function| !is_name(name) || !is_name(function)) {
            return invalid(format!("{name:?} of {function:?} cannot name a port"));
        }
        let queues = end.queues();
        if !(1..=QUEUES_MAX).contains(&queues) {
            return invalid(format!("port {name} has {queues} queues instead of 1 to {QUEUES_MAX}"));
        }
        if addresses.len() > ADDRESSES_MAX || routes.len() > ADDRESSES_MAX {
            return invalid(format!("port {name} has more than {ADDRESSES_MAX} addresses or routes"));
        }
    }
    let [a, b] = &spec.ends;
    if a.port.name == b.port.name && a.functions.iter().any(|function| b.functions.contains(function)) {
        return invalid("a port cannot be linked to itself".into());
    }
    if spec.ends.iter().any(|end| end.functions.len() > 1) {
        if spec.ends.iter().all(|end| end.functions.len() > 1) {
            return invalid("two pools cannot be linked to each other".into());
        }
        if spec.kind != LinkKind::Direct {
            return invalid("a pool has direct links only".into());
        }
        if spec.ends.iter().any(|end| end.functions.len() > 1 && end.port.steering == Steering::None) {
            return invalid("a pool's port needs a steering".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_generations_the_whole_one_is_taken() {
        let kept = |labels: &[&str]| {
            let fd = || std::fs::File::open("/dev/null").expect("the null device").into();
            let segments = labels.iter().map(|label| ((*label).to_owned(), fd())).collect();
            of_one_generation(segments).into_iter().map(|(label, _)| label).collect::<Vec<_>>()
        };
        // The later one was still coming; the earlier one was already going; nothing was on its way.
        assert_eq!(kept(&["vport/10/0/table", "vport/9/0/table", "vport/9/1/table"]).len(), 2);
        assert_eq!(kept(&["vport/10/0/table", "vport/10/1/table", "vport/9/0/table"])[0], "vport/10/0/table");
        assert_eq!(kept(&["vport/10/0/table", "vport/9/0/table"]), ["vport/10/0/table"]);
        assert!(kept(&[]).is_empty());
    }
}
