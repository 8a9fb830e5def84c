//! Generations of a link: how they are made, handed out, joined, and how one is quarantined.

#[cfg(test)]
mod untold;

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::super::link::{Link, Segments, Stage};
use super::super::observer::Tap;
use super::super::pool::READ_WITHIN;
use super::super::seat::Seat;
use super::super::{Event, LinkKind};
use super::arenas::labelled;
use super::{Core, Fault};
use crate::ring::Violation;
use crate::table;
use crate::wire::Reply;

/// A client maps what it got within this time.
const MAPPING_WITHIN: Duration = Duration::from_secs(10);
/// Generations of one link are at least this far apart.
const GENERATION_EVERY: Duration = Duration::from_millis(20);
/// After a generation for which there was no memory.
const MEMORY_RETRY: Duration = Duration::from_secs(1);

impl Core {
    /// Makes and hands out a new generation, if both ends are there and it is time.
    pub(super) fn start_generation(&mut self, name: &str) {
        if self.is_awaited(name) {
            return;
        }
        let Some(link) = self.links.get_mut(name).filter(|link| link.is_held()) else { return };
        let now = Instant::now();
        if now < link.not_before {
            link.due = Some(link.not_before);
            return;
        }
        link.due = None;
        link.not_before = now + GENERATION_EVERY;
        link.look_at_past();
        if link.is_kept() {
            link.due = Some(now + MEMORY_RETRY);
            let reason = format!("no new generation of link {name}: its ends keep too many that are over");
            return self.complain_of(name, reason);
        }
        let created = Segments::create(&link.spec, self.config.hugepages).map_err(|error| error.to_string());
        let created = created.and_then(|created| Ok((self.stock(name, &created.0)?, created)));
        let Some(link) = self.links.get_mut(name) else { return };
        let (lease, (segments, ordinary)) = match created {
            Ok(created) => created,
            Err(error) => {
                link.due = Some(now + MEMORY_RETRY);
                return self.complain_of(name, format!("no memory for link {name}: {error}"));
            }
        };
        link.leases.extend(lease);
        let heir = link.ready_heir().filter(|_| link.stage == Stage::Up);
        link.passing = heir.map(|seat| (seat, link.generation));
        link.untold.clear();
        if let Some(reason) = ordinary
            && !std::mem::replace(&mut link.told_of_pages, true)
        {
            (self.events)(Event::OrdinaryPages { link: name.to_owned(), reason });
        }
        link.generation += 1;
        link.present = link.all_seats().filter(|seat| link.party(*seat).client.is_some()).collect();
        link.absent = link.all_seats().filter(|seat| !link.present.contains(seat)).collect();
        link.succeed_with(segments, now + READ_WITHIN);
        link.stage = Stage::Mapping(link.present.clone());
        if let Err(error) = self.write_table(name) {
            self.over(name);
            return self.complain_of(name, format!("no memory for link {name}: {error}"));
        }
        let seats = self.links.get(name).map(|link| link.present.clone()).unwrap_or_default();
        self.hand_out(name, seats, |link, segments, seat| {
            let end = &segments.ends[seat.end];
            let records_bytes = end.records_bytes as u64;
            (Reply::Own { generation: link.generation, records_bytes }, end.for_writer(link.queues_of(seat)))
        });
    }

    /// Sends these a message with descriptors, and expects an answer.
    fn hand_out(
        &mut self,
        name: &str,
        mut seats: Vec<Seat>,
        message: impl Fn(&Link, &Segments, Seat) -> (Reply, io::Result<Vec<OwnedFd>>),
    ) {
        let Some(link) = self.links.get(name) else { return };
        let generation = link.generation;
        // Members of a pool last: what they send is read even if this process dies before it has told all of them. What is sent
        // to them waits until all have been told.
        seats.sort_by_key(|seat| link.is_pool(seat.end));
        for seat in seats {
            // Whoever cannot be told is cut off, and others of its pool go on, unless that was the end of the generation.
            let going = |link: &&Link| link.generation == generation && link.stage != Stage::Down;
            let Some(link) = self.links.get(name).filter(going) else { return };
            let Some(segments) = &link.segments else { return };
            let Some(id) = link.sitter(seat) else { continue };
            let (reply, fds) = message(link, segments, seat);
            let arena = if let Reply::Own { .. } = reply { self.lend_arena(name, id, seat.end) } else { Ok(()) };
            let fds = arena.and_then(|()| fds.map_err(|error| error.to_string()));
            let sent = fds.and_then(|fds| self.send(id, &reply, fds));
            match sent {
                Ok(()) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.deadline = Some(Instant::now() + MAPPING_WITHIN);
                    }
                    // An end that has not its peer's segments cannot use a buffer.
                    if let Reply::Peer { .. } = reply
                        && let Some(lease) = self.links.get_mut(name).and_then(|link| link.leases.last_mut())
                    {
                        lease.used[seat.end] = true;
                    }
                }
                Err(fault) => self.cut_off(id, fault),
            }
        }
    }

    /// A writer holds its mappings. When all do, the segments are closed to writers and shown to readers.
    pub(super) fn mapped(&mut self, name: &str, seat: Seat, generation: u64) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(name).filter(|link| link.generation == generation) else { return Ok(()) };
        let (Stage::Mapping(missing) | Stage::Sharing(missing)) = &mut link.stage else { return Ok(()) };
        missing.retain(|other| *other != seat);
        let client = link.sitter(seat);
        self.answered(client);
        self.proceed(name)
    }

    /// Goes to the next stage if nobody is missing in this.
    pub(super) fn proceed(&mut self, name: &str) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        match &link.stage {
            Stage::Mapping(missing) if missing.is_empty() => match self.can_share(name) {
                true => {
                    self.share(name);
                    Ok(())
                }
                false => self.join(name),
            },
            Stage::Sharing(missing) if missing.is_empty() => self.join(name),
            Stage::Joining(missing) if missing.is_empty() && !link.untold.is_empty() => {
                self.show_peers(name);
                Ok(())
            }
            Stage::Joining(missing) if missing.is_empty() => {
                link.stage = Stage::Up;
                // Nobody begins a burst in an earlier one any more.
                link.tables.drain(..link.tables.len().saturating_sub(1));
                link.shown_tables = link.tables.len();
                link.tables.last().into_iter().for_each(|segment| table::open(segment));
                link.has_closed_table = false;
                (self.events)(Event::LinkUp { link: name.to_owned(), generation: link.generation });
                self.tell_of_absent(name);
                self.advance_pools();
                self.passed(name);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A reader that waits for nothing from members who are not there reads the others' channels the short way.
    fn tell_of_absent(&mut self, name: &str) {
        let Some(link) = self.links.get(name) else { return };
        let news = |seat: &Seat| {
            let reply = link.gone(*seat, link.generation);
            link.clients(seat.across()).map(move |client| (client, reply.clone()))
        };
        let news: Vec<(u64, Reply)> = link.absent.iter().flat_map(news).collect();
        for (client, reply) in news {
            if let Err(fault) = self.send(client, &reply, Vec::new()) {
                self.cut_off(client, fault);
            }
        }
    }

    /// Whether each end is to write the records that it reads, too, and knows how.
    fn can_share(&self, name: &str) -> bool {
        let is_meant = |link: &&Link| link.spec.kind == LinkKind::SharedRecords && !link.unshared;
        let Some(link) = self.links.get(name).filter(is_meant) else { return false };
        let mut sitters = (0..2).flat_map(|end| link.sitters(end));
        let shares = |id| self.clients.get(&id).is_some_and(|client| client.shares);
        sitters.all(shares)
    }

    /// Shows each end its peer's records before they are closed, and after their writers have mapped them.
    fn share(&mut self, name: &str) {
        let Some(link) = self.links.get_mut(name) else { return };
        let seats = link.present.clone();
        link.stage = Stage::Sharing(seats.clone());
        self.hand_out(name, seats, |link, segments, seat| {
            let end = &segments.ends[seat.across()];
            let records_bytes = end.records_bytes as u64;
            (Reply::Records { generation: link.generation, records_bytes }, end.to_share())
        });
    }

    fn join(&mut self, name: &str) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(name) else { return Ok(()) };
        let Some(segments) = &link.segments else { return Ok(()) };
        let generation = link.generation;
        // A writer that spoilt its segments before they were closed is found out here.
        if let Err((end, error)) = segments.close_to_writers() {
            if matches!(link.stage, Stage::Sharing(_)) {
                // Or its reader has. The next ones are the writer's alone, until one of the two is attached anew.
                link.unshared = true;
                self.over(name);
                self.complain_of(name, format!("shared records of link {name} could not be closed: {error}"));
                self.start_generation(name);
                return Ok(());
            }
            let clients: Vec<u64> = link.sitters(end).collect();
            self.over(name);
            clients.into_iter().for_each(|id| self.cut_off(id, format!("segments could not be closed: {error}")));
            return Ok(());
        }
        let mut segments = segments.labelled(generation).map_err(|error| error.to_string())?;
        if let (Some(lease), Some(group)) = (link.leases.last(), link.spec.kind.group())
            && let Some(group) = self.groups.get(group)
        {
            segments.extend(labelled(lease, group).map_err(|error| error.to_string())?);
        }
        // An heir first: nobody sends to it before it can be sent to, and until then all go on with the generation before.
        let heir = link.passing.map(|(seat, _)| seat);
        let (first, then) = link.present.iter().partition(|seat| heir.is_none_or(|heir| heir == **seat));
        (link.stage, link.untold) = (Stage::Joining(first), then);
        link.shown_tables = link.tables.len();
        self.tell_first_ownership(name);
        (self.events)(Event::Deposit { link: name.to_owned(), generation, segments });
        self.show_peer(name);
        Ok(())
    }

    /// Those who were to wait are shown the peer's segments now.
    fn show_peers(&mut self, name: &str) {
        let Some(link) = self.links.get_mut(name) else { return };
        link.stage = Stage::Joining(std::mem::take(&mut link.untold));
        self.show_peer(name);
    }

    fn show_peer(&mut self, name: &str) {
        let Some(link) = self.links.get(name) else { return };
        let Stage::Joining(seats) = &link.stage else { return };
        let generation = link.generation;
        self.hand_out(name, seats.clone(), |link, segments, seat| {
            let peer = seat.across();
            let records_bytes = segments.ends[peer].records_bytes as u64;
            let steering = link.spec.ends[peer].port.steering;
            (Reply::Peer { generation, records_bytes, steering }, segments.ends[peer].for_reader())
        });
        let Some(link) = self.links.get_mut(name).filter(|link| link.untold.is_empty()) else { return };
        // The pipes are the ends' now: a sleeper must see when its waker is gone.
        if let Some(segments) = &mut link.segments {
            segments.ends.iter_mut().for_each(|end| end.doorbells.clear());
        }
        let _ = Tap::renew(link);
    }

    pub(super) fn ready(&mut self, name: &str, seat: Seat, generation: u64) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(name).filter(|link| link.generation == generation) else { return Ok(()) };
        let Stage::Joining(missing) = &mut link.stage else { return Ok(()) };
        missing.retain(|other| *other != seat);
        let client = link.sitter(seat);
        self.answered(client);
        self.proceed(name)
    }

    fn answered(&mut self, client: Option<u64>) {
        if let Some(client) = client.and_then(|id| self.clients.get_mut(&id)) {
            client.deadline = None;
        }
    }

    pub(super) fn quarantine(
        &mut self,
        name: &str,
        seat: Seat,
        generation: u64,
        queue: u16,
        code: u16,
    ) -> Result<(), Fault> {
        let violation = Violation::from_code(code).ok_or("no such rule")?;
        let Some(link) = self.links.get_mut(name).filter(|link| link.generation == generation) else { return Ok(()) };
        if usize::from(queue) >= link.queues_of(seat).len() {
            return Err("no such queue".into());
        }
        if !matches!(link.stage, Stage::Joining(_) | Stage::Up | Stage::Adopted(_)) {
            return Ok(());
        }
        let reason = format!("{violation} (seen at queue {queue})");
        link.quarantined = Some(reason.clone());
        // Of a pool whose members cannot be told apart here, the first.
        let (reporter, accused) = (link.port(seat), link.port(Seat { end: seat.across(), member: 0 }));
        self.over(name);
        (self.events)(Event::Quarantined { link: name.to_owned(), reporter, accused, reason });
        Ok(())
    }
}
