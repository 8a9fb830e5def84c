//! The UPF as a node on N4: datagrams in, datagrams out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use pfcp::node::{AssociationSetup, AssociationSetupResponse, Heartbeat, NodeOutcome};
use pfcp::rule::{CreatedPdr, FTeid as WireFTeid};
use pfcp::session::{
    DeletionResponse, Established, Establishment, EstablishmentResponse, FSeid, Modification, ModificationResponse,
};
use pfcp::{Cause, Fault, Header, HeaderError, IeType, MessageType, NodeId, ParseError, RecoveryTimeStamp};
use pfcp::{Request, Response, RuleId, version_not_supported};

use super::answers::Answers;
use super::association::{Association, AssociationId, Beat, Pace};
use super::contents::{Contents, Draft, Surroundings};
use super::translate::Choice;
use super::{Config, RuleTables};
use crate::rules::{CpFSeid, FTeid, Interface, Pdi, Session, UeIp};
use crate::tables::{ApplyError, Bucket, SessionUpdate};

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Where to.
    pub to: SocketAddr,
    /// PFCP.
    pub octets: Vec<u8>,
}

/// The node.
pub struct Node<T> {
    config: Config,
    tables: T,
    local: Vec<IpAddr>,
    associations: BTreeMap<AssociationId, Association>,
    sessions: BTreeMap<u64, Held>,
    answers: Answers,
    last_association: u64,
    last_seid: u64,
    last_sequence: u32,
}

/// A session in force.
#[derive(Debug)]
struct Held {
    association: AssociationId,
    cp_f_seid: CpFSeid,
    contents: Contents,
    /// TEIDs reserved for it.
    teids: BTreeSet<u32>,
}

/// What is planned for a session: everything is decided, and nothing is changed but for reserved TEIDs.
struct Plan {
    contents: Contents,
    /// TEIDs reserved for this plan.
    reserved: BTreeSet<u32>,
    created: Vec<CreatedPdr>,
}

/// The answer to a request, and the SEID that its header gets.
type Answer = (Response, u64);

impl<T: RuleTables> Node<T> {
    /// A node without associations.
    pub fn new(config: Config, tables: T) -> Self {
        Self {
            local: tables.n3_addresses(),
            answers: Answers::new(config.limits),
            // SEIDs differ from those before a restart, so that a peer that missed it does not get at others' sessions.
            last_seid: u64::from(config.recovery.0) << 32,
            config,
            tables,
            associations: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last_association: 0,
            last_sequence: 0,
        }
    }

    /// Takes in a datagram that `from` sent, and returns what to answer.
    pub fn handle(&mut self, datagram: &[u8], from: SocketAddr, now: Instant) -> Option<Datagram> {
        let octets = match Header::parse(datagram) {
            Ok((header, body)) => self.message(&header, body, datagram, from, now),
            Err(error) => {
                tracing::debug!("from {from}: {error}");
                self.answer_header_error(error)
            }
        };
        octets.map(|octets| Datagram { to: from, octets })
    }

    fn message(
        &mut self,
        header: &Header,
        body: &[u8],
        datagram: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Option<Vec<u8>> {
        match header.message_type {
            MessageType::HEARTBEAT_RESPONSE => {
                self.heartbeat_response(header, body, from, now);
                None
            }
            // Heartbeats are answered alike whenever they come, so their answers need no keeping.
            MessageType::HEARTBEAT_REQUEST => self.answer(header, body, from, now),
            _ => {
                if let Some(kept) = self.answers.find(from, header, datagram, now) {
                    return Some(kept);
                }
                let octets = self.answer(header, body, from, now)?;
                self.answers.keep(from, header, datagram, &octets, now);
                Some(octets)
            }
        }
    }

    /// The answer to a request; none to a response, nor to what is to be discarded.
    fn answer(&mut self, header: &Header, body: &[u8], from: SocketAddr, now: Instant) -> Option<Vec<u8>> {
        let (response, seid) = match Request::parse(header, body) {
            Ok(request) => self.request(request, header.seid.unwrap_or(0), from, now),
            Err(ParseError::Fault(fault)) => {
                tracing::debug!("request of type {} from {from}: {fault}", header.message_type.0);
                (self.rejection(header.message_type, fault)?, self.peer_seid(header, body))
            }
            // Of requests that are not parsed some are answered; the rest are unknown or not for a UPF (7.6.4, 7.6.5).
            Err(ParseError::Type(other)) => {
                (self.rejection(other, Fault::new(Cause::ServiceNotSupported))?, header.seid.unwrap_or(0))
            }
            // Too short for, or longer than, the header that such a message has (7.6.3).
            Err(ParseError::SeidFlag(_)) => return None,
        };
        Some(response.encode(seid, header.sequence))
    }

    /// The answer to a datagram with such a header.
    fn answer_header_error(&self, error: HeaderError) -> Option<Vec<u8>> {
        match error {
            HeaderError::TooShort(_) => None,
            // Two nodes of other versions would otherwise tell each other so for ever.
            HeaderError::Version { message_type: MessageType::VERSION_NOT_SUPPORTED_RESPONSE, .. } => None,
            HeaderError::Version { sequence, .. } => Some(version_not_supported(sequence)),
            HeaderError::Length { header, .. } => {
                if header.seid.is_some() != header.message_type.is_session_related() {
                    return None;
                }
                let response = self.rejection(header.message_type, Fault::new(Cause::InvalidLength))?;
                Some(response.encode(self.peer_seid(&header, &[]), header.sequence))
            }
        }
    }

    fn request(&mut self, request: Request, seid: u64, from: SocketAddr, now: Instant) -> Answer {
        match request {
            Request::Heartbeat(heartbeat) => {
                self.heard_of(from.ip(), heartbeat.recovery);
                (Response::Heartbeat(Heartbeat { recovery: self.config.recovery }), 0)
            }
            Request::AssociationSetup(setup) => {
                let outcome = self.set_up(setup, from, now);
                (self.setup_response(outcome), 0)
            }
            Request::AssociationUpdate(change) => {
                let outcome = self.association_of(&change.node_id).map(|_| ());
                (Response::AssociationUpdate(self.outcome(outcome)), 0)
            }
            Request::AssociationRelease(change) => {
                let outcome = self.association_of(&change.node_id).map(|id| self.end_association(id, "released"));
                (Response::AssociationRelease(self.outcome(outcome)), 0)
            }
            Request::SessionEstablishment(establishment) => {
                let cp_seid = establishment.cp_f_seid.seid;
                let outcome = self.establish(&establishment);
                let response = EstablishmentResponse { node_id: self.config.node_id.clone(), outcome };
                (Response::SessionEstablishment(response), cp_seid)
            }
            Request::SessionModification(modification) => {
                let outcome = self.modify(seid, &modification);
                let cp_seid = self.cp_seid(seid);
                (Response::SessionModification(ModificationResponse { outcome }), cp_seid)
            }
            Request::SessionDeletion => {
                let cp_seid = self.cp_seid(seid);
                let outcome = self.delete(seid);
                (Response::SessionDeletion(DeletionResponse { outcome }), cp_seid)
            }
        }
    }

    /// The response of the type that rejects requests of type `request`.
    fn rejection(&self, request: MessageType, fault: Fault) -> Option<Response> {
        rejection(request, fault, &self.config.node_id, self.config.recovery)
    }

    /// The peer's SEID for a session that a faulty request is about; 0 where it is not known (7.2.2.4.2).
    fn peer_seid(&self, header: &Header, body: &[u8]) -> u64 {
        match header.message_type {
            MessageType::SESSION_ESTABLISHMENT_REQUEST => Establishment::cp_seid(body).unwrap_or(0),
            _ => self.cp_seid(header.seid.unwrap_or(0)),
        }
    }

    fn cp_seid(&self, up_seid: u64) -> u64 {
        self.sessions.get(&up_seid).map_or(0, |held| held.cp_f_seid.seid)
    }

    fn outcome(&self, outcome: Result<(), Fault>) -> NodeOutcome {
        NodeOutcome { node_id: self.config.node_id.clone(), outcome }
    }

    fn setup_response(&self, outcome: Result<(), Fault>) -> Response {
        setup_response(outcome, &self.config.node_id, self.config.recovery)
    }

    // Associations.

    fn set_up(&mut self, setup: AssociationSetup, from: SocketAddr, now: Instant) -> Result<(), Fault> {
        if let Ok(former) = self.association_of(&setup.node_id) {
            self.end_association(former, "set up anew");
        } else if self.associations.len() >= self.config.limits.associations {
            return Err(Fault::new(Cause::NoResourcesAvailable));
        }
        // A peer that has restarted counts its requests anew.
        self.answers.forget_peer(from.ip());
        self.last_association += 1;
        let id = AssociationId(self.last_association);
        let peer = SocketAddr::new(from.ip(), self.config.peer_port);
        tracing::info!("associated with {} at {}", setup.node_id, from.ip());
        let first = now + self.config.heartbeat;
        self.associations.insert(id, Association::new(id, setup.node_id, peer, setup.recovery, first));
        Ok(())
    }

    fn association_of(&self, node_id: &NodeId) -> Result<AssociationId, Fault> {
        let found = self.associations.values().find(|association| association.node_id == *node_id);
        found.map(|association| association.id).ok_or(Fault::new(Cause::NoEstablishedPfcpAssociation))
    }

    /// Ends an association, and with it its sessions.
    fn end_association(&mut self, id: AssociationId, why: &str) {
        let Some(association) = self.associations.remove(&id) else { return };
        let theirs = self.sessions.iter().filter(|(_, held)| held.association == id);
        let seids: Vec<_> = theirs.map(|(&seid, _)| seid).collect();
        let (node, peer) = (&association.node_id, association.peer.ip());
        tracing::info!("association with {node} at {peer} {why}; removing its {} sessions", seids.len());
        self.answers.forget_peer(peer);
        if let Err(error) = self.tables.apply(seids.iter().map(|&seid| SessionUpdate::Remove(seid)).collect()) {
            tracing::error!("cannot remove sessions from the tables: {error}");
        }
        for held in seids.iter().filter_map(|seid| self.sessions.remove(seid)) {
            held.teids.iter().for_each(|&teid| self.tables.release_teid(teid));
        }
    }

    /// A node at this address says when it started.
    fn heard_of(&mut self, address: IpAddr, recovery: RecoveryTimeStamp) {
        let restarted = self.associations.values().filter(|a| a.peer.ip() == address && a.is_restart(recovery));
        let ids: Vec<_> = restarted.map(|association| association.id).collect();
        ids.into_iter().for_each(|id| self.end_association(id, "lost: the peer has restarted"));
    }

    fn heartbeat_response(&mut self, header: &Header, body: &[u8], from: SocketAddr, now: Instant) {
        let next = now + self.config.heartbeat;
        let mut asked = self.associations.values_mut();
        let Some(association) = asked.find(|a| a.is_answer(from.ip(), header.sequence)) else { return };
        // Even a faulty response ends the wait (7.6.1).
        association.answered(next);
        match Response::parse(header, body) {
            Ok(Response::Heartbeat(heartbeat)) => self.heard_of(from.ip(), heartbeat.recovery),
            other => tracing::debug!("heartbeat response of {from}: {other:?}"),
        }
    }

    /// Does what is due at `now`: heartbeats, and farewell to peers that do not answer them.
    pub fn tick(&mut self, now: Instant) -> Vec<Datagram> {
        let pace = Pace { t1: self.config.t1, n1: self.config.n1 };
        let (mut datagrams, mut lost) = (vec![], vec![]);
        for association in self.associations.values_mut() {
            match association.beat(self.config.recovery, &mut self.last_sequence, pace, now) {
                Beat::Wait => {}
                Beat::Send(octets) => datagrams.push(Datagram { to: association.peer, octets }),
                Beat::Lost => lost.push(association.id),
            }
        }
        for id in lost {
            if let Some(association) = self.associations.get(&id) {
                let (node, peer, n1) = (&association.node_id, association.peer, self.config.n1);
                tracing::warn!("{node} at {peer} has not answered {n1} heartbeats");
            }
            self.end_association(id, "lost: the peer does not answer");
        }
        datagrams
    }

    /// When [`Node::tick`] has something to do next.
    pub fn due(&self) -> Option<Instant> {
        self.associations.values().map(Association::due).min()
    }

    // Sessions.

    fn establish(&mut self, request: &Establishment) -> Result<Established, Fault> {
        let association = self.association_of(&request.node_id)?;
        let draft = Draft::establish(request, self.surroundings())?;
        if self.sessions.len() >= self.config.limits.sessions {
            return Err(Fault::new(Cause::NoResourcesAvailable));
        }
        let plan = self.plan(draft)?;
        let up_seid = self.last_seid + 1;
        let cp_f_seid = CpFSeid { seid: request.cp_f_seid.seid, address: request.cp_f_seid.address() };
        let held = Held { association, cp_f_seid, contents: Contents::default(), teids: BTreeSet::new() };
        let created_pdrs = self.commit(up_seid, held, plan)?;
        self.last_seid = up_seid;
        Ok(Established { up_f_seid: FSeid::new(up_seid, self.config.address), created_pdrs })
    }

    fn modify(&mut self, up_seid: u64, request: &Modification) -> Result<Vec<CreatedPdr>, Fault> {
        let held = self.sessions.get(&up_seid).ok_or(Fault::new(Cause::SessionContextNotFound))?;
        let draft = Draft::modify(&held.contents, request, self.surroundings())?;
        let changed = request.cp_f_seid.map(|f_seid| CpFSeid { seid: f_seid.seid, address: f_seid.address() });
        let after = Held {
            association: held.association,
            cp_f_seid: changed.unwrap_or(held.cp_f_seid),
            contents: Contents::default(),
            teids: held.teids.clone(),
        };
        let plan = self.plan(draft)?;
        self.commit(up_seid, after, plan)
    }

    fn delete(&mut self, up_seid: u64) -> Result<(), Fault> {
        if !self.sessions.contains_key(&up_seid) {
            return Err(Fault::new(Cause::SessionContextNotFound));
        }
        self.tables.apply(vec![SessionUpdate::Remove(up_seid)]).map_err(|error| fault_of(&error, None))?;
        if let Some(held) = self.sessions.remove(&up_seid) {
            held.teids.iter().for_each(|&teid| self.tables.release_teid(teid));
        }
        Ok(())
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings { config: &self.config, local: &self.local }
    }

    /// Reserves what is to be chosen; all of it, or nothing.
    fn plan(&self, draft: Draft) -> Result<Plan, Fault> {
        let mut plan = Plan { contents: draft.contents, reserved: BTreeSet::new(), created: vec![] };
        let home = plan.contents.ue_ip().map_or(0, |ue_ip| self.tables.home_bucket(&ue_ip));
        let mut shared: BTreeMap<u8, (Choice, FTeid)> = BTreeMap::new();
        for (pdr, choice) in draft.choices {
            let known = choice.id.and_then(|id| shared.get(&id)).copied();
            let chosen = match known {
                Some((first, f_teid)) if first == choice => Ok(f_teid),
                // One CHOOSE ID, but different addresses.
                Some(_) => Err(Fault::of(Cause::InvalidFteidAllocationOption, IeType::Fteid)),
                None => self.choose(choice, home, &mut plan.reserved),
            };
            let f_teid = match chosen {
                Ok(f_teid) => f_teid,
                Err(fault) => {
                    self.give_back(&plan);
                    return Err(fault);
                }
            };
            if let Some(id) = choice.id {
                shared.insert(id, (choice, f_teid));
            }
            plan.contents.set_f_teid(pdr, f_teid);
            let FTeid { teid, v4, v6 } = f_teid;
            plan.created.push(CreatedPdr { id: pdr, f_teid: Some(WireFTeid::Given { teid, v4, v6 }) });
        }
        Ok(plan)
    }

    fn choose(&self, choice: Choice, home: Bucket, reserved: &mut BTreeSet<u32>) -> Result<FTeid, Fault> {
        let no_resources = Fault::of(Cause::NoResourcesAvailable, IeType::Fteid);
        let mut v4 =
            self.local.iter().filter_map(|address| if let IpAddr::V4(v4) = address { Some(*v4) } else { None });
        let mut v6 =
            self.local.iter().filter_map(|address| if let IpAddr::V6(v6) = address { Some(*v6) } else { None });
        let (v4, v6) = (choice.v4.then(|| v4.next()), choice.v6.then(|| v6.next()));
        if v4 == Some(None) || v6 == Some(None) {
            return Err(no_resources);
        }
        let teid = self.tables.reserve_teid(home).map_err(|_| no_resources)?;
        reserved.insert(teid);
        Ok(FTeid { teid, v4: v4.flatten(), v6: v6.flatten() })
    }

    fn give_back(&self, plan: &Plan) {
        plan.reserved.iter().for_each(|&teid| self.tables.release_teid(teid));
    }

    /// Puts `plan` into force as the session `up_seid`. From the tables' consent on nothing can fail.
    fn commit(&mut self, up_seid: u64, held: Held, plan: Plan) -> Result<Vec<CreatedPdr>, Fault> {
        let session = plan.contents.session(up_seid, held.cp_f_seid);
        if let Err(error) = self.tables.apply(vec![SessionUpdate::Put(session)]) {
            tracing::debug!("session {up_seid:#x}: {error}");
            self.give_back(&plan);
            return Err(fault_of(&error, Some(&plan.contents)));
        }
        let all = held.teids.union(&plan.reserved).copied();
        let (teids, unused) = all.partition(|&teid| plan.contents.uses_teid(teid));
        BTreeSet::<u32>::iter(&unused).for_each(|&teid| self.tables.release_teid(teid));
        self.sessions.insert(up_seid, Held { contents: plan.contents, teids, ..held });
        Ok(plan.created)
    }

    /// All sessions, as they are in force.
    pub fn sessions(&self) -> impl Iterator<Item = Session> {
        self.sessions.iter().map(|(&seid, held)| held.contents.session(seid, held.cp_f_seid))
    }

    /// The session with the UPF's SEID `up_seid`.
    pub fn session(&self, up_seid: u64) -> Option<Session> {
        self.sessions.get(&up_seid).map(|held| held.contents.session(up_seid, held.cp_f_seid))
    }

    /// When this node started, as its peers are told.
    pub fn recovery(&self) -> RecoveryTimeStamp {
        self.config.recovery
    }

    /// The tables.
    pub fn tables(&self) -> &T {
        &self.tables
    }
}

/// The response of the type that rejects requests of type `request`, if a UPF may get such.
fn rejection(request: MessageType, fault: Fault, own: &NodeId, recovery: RecoveryTimeStamp) -> Option<Response> {
    let outcome = || NodeOutcome { node_id: own.clone(), outcome: Err(fault) };
    Some(match request {
        MessageType::PFD_MANAGEMENT_REQUEST => Response::PfdManagement(Err(fault)),
        MessageType::ASSOCIATION_SETUP_REQUEST => setup_response(Err(fault), own, recovery),
        MessageType::ASSOCIATION_UPDATE_REQUEST => Response::AssociationUpdate(outcome()),
        MessageType::ASSOCIATION_RELEASE_REQUEST => Response::AssociationRelease(outcome()),
        MessageType::SESSION_SET_DELETION_REQUEST => Response::SessionSetDeletion(outcome()),
        MessageType::SESSION_SET_MODIFICATION_REQUEST => Response::SessionSetModification(Err(fault)),
        MessageType::SESSION_ESTABLISHMENT_REQUEST => {
            Response::SessionEstablishment(EstablishmentResponse { node_id: own.clone(), outcome: Err(fault) })
        }
        MessageType::SESSION_MODIFICATION_REQUEST => {
            Response::SessionModification(ModificationResponse { outcome: Err(fault) })
        }
        MessageType::SESSION_DELETION_REQUEST => Response::SessionDeletion(DeletionResponse { outcome: Err(fault) }),
        // A heartbeat response has no cause (7.4.2.2), so a faulty heartbeat request cannot be rejected.
        _ => return None,
    })
}

fn setup_response(outcome: Result<(), Fault>, own: &NodeId, recovery: RecoveryTimeStamp) -> Response {
    let up_features = outcome.is_ok().then(AssociationSetupResponse::features_ftup);
    Response::AssociationSetup(AssociationSetupResponse { node_id: own.clone(), outcome, recovery, up_features })
}

/// What to tell a peer of the tables' refusal of `contents`.
fn fault_of(error: &ApplyError, contents: Option<&Contents>) -> Fault {
    let blame = |kind: IeType, is_meant: &dyn Fn(&Pdi) -> bool| {
        let pdr = contents.and_then(|contents| contents.find_pdr(is_meant)).unwrap_or(0);
        Fault { offending_ie: Some(kind as u16), ..Fault::rule(RuleId::Pdr(pdr)) }
    };
    match *error {
        ApplyError::TeidInUse(teid) => {
            blame(IeType::Fteid, &|pdi| pdi.f_teid.is_some_and(|f_teid| f_teid.teid == teid))
        }
        ApplyError::UeAddressInUse(address) => blame(IeType::UeIpAddress, &|pdi| {
            let is_it =
                |ue: UeIp| if address.is_ipv4() { ue.v4.map(IpAddr::V4) == Some(address) } else { ue.v6.is_some() };
            pdi.source_interface == Interface::SgiLan && pdi.ue_ip.is_some_and(is_it)
        }),
        ApplyError::DanglingRule { pdr } => Fault::rule(RuleId::Pdr(pdr)),
        ApplyError::Full => Fault::new(Cause::NoResourcesAvailable),
        ApplyError::Stopped => Fault::new(Cause::SystemFailure),
    }
}
