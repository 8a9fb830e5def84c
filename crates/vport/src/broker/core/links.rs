//! Links, and what becomes of them when an end comes or goes.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::super::link::{Link, Segments, Stage};
use super::super::observer::Tap;
use super::super::{BrokerError, Event, LinkSpec, RING_BYTES_MAX, RING_BYTES_MIN};
use super::arenas::adopt_lease;
use super::{Core, Fault, RETURN_WITHIN};
use crate::info::{ADDRESSES_MAX, PortInfo, QUEUES_MAX};
use crate::wire::{Reply, is_name};

impl Core {
    /// See [`super::Broker::add_link`].
    pub fn add_link(&mut self, spec: LinkSpec) -> Result<(), BrokerError> {
        check(&spec)?;
        if let Some(link) = self.links.get(&spec.name) {
            let same = link.spec == spec;
            return if same { Ok(()) } else { Err(BrokerError::Exists(format!("link {}", spec.name))) };
        }
        let link = Link::new(spec);
        if let Some(taken) = (0..2).map(|end| link.port(end)).find(|port| self.ports.contains_key(port)) {
            return Err(BrokerError::Exists(format!("port {} of {}", taken.port, taken.function)));
        }
        for end in 0..2 {
            self.ports.insert(link.port(end), (link.spec.name.clone(), end));
        }
        self.links.insert(link.spec.name.clone(), link);
        Ok(())
    }

    /// See [`super::Broker::adopt`].
    pub fn adopt(&mut self, spec: LinkSpec, segments: Vec<(String, OwnedFd)>) -> Result<(), BrokerError> {
        let name = spec.name.clone();
        self.add_link(spec)?;
        let Some(link) = self.links.get_mut(&name).filter(|link| link.segments.is_none()) else { return Ok(()) };
        let mut segments = segments;
        let lease = match link.spec.kind.group() {
            None => None,
            Some(group) => match adopt_lease(&mut self.groups, group, &mut segments) {
                None => return Ok(()),
                lease => lease,
            },
        };
        link.leases.extend(lease);
        if let Some((generation, segments)) = Segments::adopt(&link.spec, segments) {
            link.generation = generation;
            link.segments = Some(segments);
            link.stage = Stage::Adopted([false; 2]);
            link.adopted_until = Instant::now() + RETURN_WITHIN;
        }
        Ok(())
    }

    /// See [`super::Broker::remove_link`].
    pub fn remove_link(&mut self, name: &str) -> Result<(), BrokerError> {
        let unknown = || BrokerError::Unknown(format!("link {name}"));
        let holders = self.links.get(name).ok_or_else(unknown)?.holders;
        self.over(name);
        for id in holders.into_iter().flatten() {
            self.turn_away(id, format!("link {name} was removed"));
        }
        let link = self.links.remove(name).ok_or_else(unknown)?;
        link.tap.end();
        let groups: Vec<_> = self.links.values().filter_map(|link| link.spec.kind.group()).collect();
        self.groups.retain(|group, _| groups.contains(&group.as_str()));
        (0..2).for_each(|end| drop(self.ports.remove(&link.port(end))));
        if link.segments.is_some() {
            (self.events)(Event::Deposit { link: name.to_owned(), generation: link.generation, segments: Vec::new() });
        }
        Ok(())
    }

    /// See [`super::Broker::renew`].
    pub fn renew(&mut self, name: &str) -> Result<(), BrokerError> {
        let link = self.links.get_mut(name).ok_or_else(|| BrokerError::Unknown(format!("link {name}")))?;
        link.quarantined = None;
        self.over(name);
        self.start_generation(name);
        Ok(())
    }

    /// An end was attached by a process that holds nothing of the current generation.
    pub(super) fn attached(&mut self, name: &str, end: usize, id: u64, resume: u64) -> Result<(), Fault> {
        // Generations that a former broker gave out are not given out again.
        const BELIEVABLE: u64 = 1 << 32;
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        let first = std::mem::take(&mut link.awaited[end]);
        if first && resume == 0 {
            link.succeeded[end] = true;
            self.bury(name, end);
        }
        self.over(name);
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        link.quarantined = None;
        link.generation = link.generation.max(if resume < BELIEVABLE { resume } else { 0 });
        if resume != 0 {
            let dead = first && link.succeeded[1 - end] || link.dead_until[1 - end] >= resume;
            self.send(id, &Reply::Over { generation: resume, dead }, Vec::new())?;
        }
        self.start_generation(name);
        Ok(())
    }

    /// An end came back to the generation that it held under a former broker.
    pub(super) fn returned(&mut self, name: &str, end: usize) {
        let Some(link) = self.links.get_mut(name) else { return };
        if let Stage::Adopted(returned) = &mut link.stage {
            returned[end] = true;
            link.awaited[end] = false;
            if *returned == [true; 2] {
                link.stage = Stage::Up;
                let _ = Tap::renew(link);
                (self.events)(Event::LinkUp { link: name.to_owned(), generation: link.generation });
            }
        }
    }

    pub(super) fn detached(&mut self, name: &str, end: usize, dead: bool) {
        let Some(link) = self.links.get_mut(name) else { return };
        link.holders[end] = None;
        link.due = None;
        let port = link.port(end);
        if dead {
            self.bury(name, end);
        }
        self.over(name);
        if dead {
            self.let_go(name, end, |_| true);
        }
        if let Some(link) = self.links.get_mut(name) {
            link.earlier[end] = dead.then(Vec::new);
        }
        (self.events)(Event::Detached { port });
        let Some(link) = self.links.get_mut(name) else { return };
        if link.holders == [None; 2] && link.segments.take().is_some() {
            let _ = Tap::renew(link);
            (self.events)(Event::Deposit { link: name.to_owned(), generation: link.generation, segments: Vec::new() });
        }
    }

    /// The process that held an end in this generation, and those before it, write no more for sure. That is news for a
    /// reader that still waits for the end of a generation which is over already.
    fn bury(&mut self, name: &str, end: usize) {
        let Some(link) = self.links.get_mut(name) else { return };
        link.dead_until[end] = link.generation;
        let (is_over, generation, other) = (link.stage == Stage::Down, link.generation, link.holders[1 - end]);
        if let Some(other) = other.filter(|_| is_over && generation > 0)
            && let Err(fault) = self.send(other, &Reply::Over { generation, dead: true }, Vec::new())
        {
            self.cut_off(other, fault);
        }
    }

    /// Ends the current generation and tells those who hold it.
    pub(super) fn over(&mut self, name: &str) {
        let Some(link) = self.links.get_mut(name) else { return };
        if link.stage == Stage::Down {
            return;
        }
        link.stage = Stage::Down;
        let (generation, holders) = (link.generation, link.holders);
        let dead = link.dead_until.map(|until| until >= generation);
        for (end, id) in holders.into_iter().enumerate() {
            let Some(id) = id else { continue };
            if let Some(client) = self.clients.get_mut(&id) {
                client.deadline = None;
            }
            if let Err(fault) = self.send(id, &Reply::Over { generation, dead: dead[1 - end] }, Vec::new()) {
                self.cut_off(id, fault);
            }
        }
        self.settle(name);
    }
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
        let PortInfo { name, queues, addresses, routes, .. } = &end.port;
        if !is_name(name) || !is_name(&end.function) {
            return invalid(format!("{:?} of {:?} cannot name a port", name, end.function));
        }
        if !(1..=QUEUES_MAX).contains(&usize::from(*queues)) {
            return invalid(format!("port {name} has {queues} queues instead of 1 to {QUEUES_MAX}"));
        }
        if addresses.len() > ADDRESSES_MAX || routes.len() > ADDRESSES_MAX {
            return invalid(format!("port {name} has more than {ADDRESSES_MAX} addresses or routes"));
        }
    }
    if (&spec.ends[0].function, &spec.ends[0].port.name) == (&spec.ends[1].function, &spec.ends[1].port.name) {
        return invalid("a port cannot be linked to itself".into());
    }
    Ok(())
}
