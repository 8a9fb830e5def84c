//! Succession: a process takes a port over from another one of its function, while packets flow.
//!
//! The heir connects while the other still has the port, and says when it is ready. Then it gets the next generation in the
//! other's place: first the heir, which lets senders begin in it, then the peer. So the peer always has somebody to send to,
//! and nothing is refused. The other one is told nothing: it works off what it has of the generation before, which the peer
//! has closed with the first frame that it sends in the next, and leaves. Until it has, the heir keeps the new generation's
//! queues to itself: frames wait in their rings.

use std::ops::RangeInclusive;

use super::super::link::{Link, Stage};
use super::super::seat::{Heir, Leaving, Seat};
use super::super::{BrokerError, PortName};
use super::clients::version_of;
use super::{Core, Fault};
use crate::wire::Reply;

impl Link {
    /// A seat that is to be taken over now.
    pub(super) fn ready_heir(&self) -> Option<Seat> {
        self.all_seats().find(|seat| self.party(*seat).heir.is_some_and(|heir| heir.is_ready))
    }
}

impl Core {
    /// See [`super::super::Broker::allow_succession`].
    pub fn allow_succession(&mut self, function: &str, allowed: bool) -> Result<(), BrokerError> {
        let function = self.functions.get_mut(function);
        function.ok_or_else(|| BrokerError::Unknown("the function".into()))?.may_be_succeeded = allowed;
        Ok(())
    }

    /// A client comes to succeed the one that has a port.
    pub(super) fn greet_heir(&mut self, id: u64, versions: RangeInclusive<u16>, port: String) -> Result<(), Fault> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        let name = PortName { function: client.function.clone(), port };
        let held = self.ports.get(&name).cloned();
        let holder = held.and_then(|(link, seat)| Some((self.holder(&link, seat)?, link, seat)));
        let Some((holder, link_name, seat)) = holder else {
            let welcomed = self.greet(id, versions, name.port, 0);
            return welcomed.and_then(|()| self.inherits(id));
        };
        let allowed = self.functions.get(&name.function).is_some_and(|function| function.may_be_succeeded);
        let Some(link) = self.links.get(&link_name) else { return Ok(()) };
        let version = version_of(link, versions)?;
        let party = link.party(seat);
        let why_not = if link.has_pool() {
            Some("is linked to a pool, and cannot be taken over".to_owned())
        } else if !allowed {
            Some(format!("is held by process {holder}, and may not be taken over"))
        } else if party.heir.is_some() || party.leaving.is_some() {
            Some(format!("is held by process {holder}, and is being taken over"))
        } else {
            None
        };
        if let Some(why_not) = why_not {
            self.turn_away(id, format!("port {} {why_not}", name.port));
            return Ok(());
        }
        if self.is_opened_too_often(id, &link_name, seat) {
            return Ok(());
        }
        let Some(link) = self.links.get_mut(&link_name) else { return Ok(()) };
        link.party_mut(seat).heir = Some(Heir { client: id, is_ready: false });
        self.welcome(id, version, &link_name, seat, false)
    }

    /// Whether the client is there to succeed, or has been succeeded: it is not the one that a port's state is of.
    pub(super) fn is_beside(&self, id: u64, name: &str, seat: Seat) -> bool {
        self.links.get(name).is_some_and(|link| link.party(seat).client != Some(id))
    }

    /// An heir is ready.
    pub(super) fn take_over(&mut self, id: u64, name: &str, seat: Seat) {
        let Some(link) = self.links.get_mut(name) else { return };
        let (stage, generation) = (link.stage.clone(), link.generation);
        let party = link.party_mut(seat);
        let Some(heir) = party.heir.as_mut().filter(|heir| heir.client == id) else { return };
        heir.is_ready = true;
        match stage {
            Stage::Up => self.start_generation(name),
            Stage::Down => {
                party.pass_on(generation);
                self.start_generation(name);
            }
            // When it is up.
            _ => {}
        }
    }

    /// Everybody has the current generation: an heir has its place.
    pub(super) fn passed(&mut self, name: &str) {
        let Some(link) = self.links.get_mut(name) else { return };
        if let Some((seat, former)) = link.passing.take() {
            link.party_mut(seat).pass_on(former);
        }
        if link.ready_heir().is_some() {
            self.start_generation(name);
        }
    }

    /// The one that has a seat leaves before everybody has said that it has the generation in which its heir takes the seat. Somebody
    /// sends in that already, else it would not have worked off the one before: so it goes on, and the heir has the seat.
    pub(super) fn pass_to_heir(&mut self, id: u64, name: &str, seat: Seat) {
        let Some(link) = self.links.get_mut(name) else { return };
        if !matches!(link.stage, Stage::Joining(_)) || link.party(seat).client != Some(id) {
            return;
        }
        if let Some((_, former)) = link.passing.take_if(|(passing, _)| *passing == seat) {
            link.party_mut(seat).pass_on(former);
        }
    }

    /// The current generation ends before everybody has it: its heir is whom the next one is for. Returns who had the one
    /// before, and which that is.
    pub(super) fn pass_early(&mut self, name: &str) -> Option<Leaving> {
        let link = self.links.get_mut(name)?;
        let (seat, former) = link.passing.take()?;
        link.untold.clear();
        let party = link.party_mut(seat);
        party.pass_on(former);
        party.leaving
    }

    /// A client that is not the one that has the seat is gone. False if it is the one.
    pub(super) fn left_beside(&mut self, id: u64, name: &str, seat: Seat, dead: bool) -> bool {
        let Some(link) = self.links.get_mut(name) else { return true };
        let party = link.party_mut(seat);
        if party.heir.is_some_and(|heir| heir.client == id) {
            party.heir = None;
            if link.passing.take_if(|(passing, _)| *passing == seat).is_some() {
                // Whoever has the seat goes on with the generation before, and so do all others that have not been shown this.
                link.untold.clear();
                link.stage = Stage::Up;
                let generation = link.generation;
                if dead {
                    self.let_go(name, seat, |other| other == generation);
                }
                self.start_generation(name);
            }
            return true;
        }
        let Some(leaving) = party.leaving.take_if(|leaving| leaving.client == id) else {
            return party.client != Some(id);
        };
        let (successor, across) = (party.client, seat.across());
        let peers: Vec<u64> = link.clients(across).collect();
        if dead {
            let over = Reply::Over { generation: leaving.generation, dead: true };
            for peer in peers {
                if let Err(fault) = self.send(peer, &over, Vec::new()) {
                    self.cut_off(peer, fault);
                }
            }
            self.let_go(name, seat, |generation| generation <= leaving.generation);
        }
        if let Some(Err(fault)) = successor.map(|id| self.inherits(id)) {
            self.cut_off(successor.unwrap_or_default(), fault);
        }
        true
    }

    /// Whoever had the seat is gone: its heir has it, or the one that it had taken it over from, if that is still there.
    pub(super) fn succeed(&mut self, name: &str, seat: Seat) {
        let Some(link) = self.links.get_mut(name) else { return };
        let party = link.party_mut(seat);
        if party.client.is_none() && party.heir.is_none() && party.leaving.is_none() {
            return;
        }
        // The generation that was on its way to an heir is over: it has the seat already.
        let heir = party.heir.take().map(|heir| heir.client).or(party.client);
        party.client = heir.or(party.leaving.take().map(|leaving| leaving.client));
        if let Some(Err(fault)) = heir.map(|id| self.inherits(id)) {
            self.cut_off(heir.unwrap_or_default(), fault);
        }
        self.start_generation(name);
    }

    fn inherits(&mut self, id: u64) -> Result<(), Fault> {
        self.send(id, &Reply::Inherit, Vec::new())
    }
}
