//! The UPF as a node on N4: datagrams in, datagrams out.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use pfcp::node::{AssociationSetupResponse, Heartbeat, NodeOutcome};
use pfcp::session::{DeletionResponse, Establishment, EstablishmentResponse, ModificationResponse};
use pfcp::{Cause, Fault, Header, HeaderError, MessageType, NodeId, ParseError, RecoveryTimeStamp};
use pfcp::{Request, Response, version_not_supported};

use super::addresses::{Addresses, PoolUsage, UeAddress};
use super::answers::Answers;
use super::applications::Applications;
use super::association::{Association, AssociationId, Beat, Pace};
use super::held::Held;
use super::journal::Journal;
use super::ledger::Holdings;
use super::managers::Managers;
use super::outbox::{About, Outbox};
use super::particulars::Patterns;
use super::paths::{Echo, Paths};
use super::postponed::Postponed;
use super::round::Round;
use super::tunnels::{Told, Tunnels};
use super::{Config, RuleTables};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::log::{Escaped, Hex};
use crate::rules::Session;
use crate::seids::BySeid;

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Where to.
    pub to: SocketAddr,
    /// PFCP.
    pub octets: Vec<u8>,
}

/// What a session has of what can be had once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// TEIDs of the UPF's choice.
    pub teids: BTreeSet<u32>,
    /// UE addresses, whoever chose them.
    pub addresses: BTreeSet<UeAddress>,
}

impl Datagram {
    /// Whether it is a heartbeat, or the answer to one.
    pub fn is_heartbeat(&self) -> bool {
        self.octets.get(1).is_some_and(|&kind| {
            [MessageType::HEARTBEAT_REQUEST, MessageType::HEARTBEAT_RESPONSE].contains(&MessageType(kind))
        })
    }
}

/// The node.
pub struct Node<T> {
    pub(super) config: Config,
    pub(super) tables: T,
    pub(super) clock: Clock,
    pub(super) local: Vec<IpAddr>,
    pub(super) associations: BTreeMap<AssociationId, Association>,
    /// Session managers that this UPF asks for an association.
    pub(super) managers: Managers,
    pub(super) sessions: BySeid<Held>,
    /// When a session's usage is to be looked at, in nanoseconds of the clock.
    pub(super) timers: BTreeSet<(u64, u64)>,
    /// Sessions whose reports wait until others are answered.
    pub(super) postponed: Postponed,
    /// A look at all sessions, since alarms were lost.
    pub(super) round: Round,
    /// What sessions have in common.
    pub(super) patterns: Patterns,
    /// Sessions by the tunnels that they have with peers.
    pub(super) tunnels: Tunnels,
    /// Those of which it was told that the peer does not know them.
    pub(super) told: Told,
    /// Applications that they may detect.
    pub(super) applications: Applications,
    /// Paths to the peers that these are with.
    pub(super) paths: Paths,
    /// Echo requests that are to be sent.
    pub(super) echoes: Vec<Echo>,
    /// Requests of its own that are not answered yet.
    pub(super) outbox: Outbox,
    pub(super) answers: Answers,
    /// UE addresses of its own choice. Every session in force holds those that its rules name.
    pub(super) addresses: RefCell<Addresses>,
    pub(super) journal: Journal,
    pub(super) counters: Counters,
    pub(super) last_association: u64,
    pub(super) last_seid: u64,
    /// Whether it asks for the release of all associations, as it is going to end.
    pub(super) leaving: bool,
}

/// The answer to a request, and the SEID that its header gets.
type Answer = (Response, u64);

impl<T: RuleTables> Node<T> {
    /// A node without associations, which keeps nothing. `clock` is the workers'.
    pub fn new(config: Config, tables: T, clock: Clock) -> Self {
        let pace = Pace { t1: config.t1, n1: config.n1 };
        Self {
            local: tables.tunnel_addresses(),
            addresses: RefCell::new(Addresses::new(&config.address_pools, config.address_cooling.as_nanos() as u64)),
            answers: Answers::new(config.limits, RandomState::new().hash_one(0)),
            journal: Journal::new(),
            counters: tables.counters(),
            outbox: Outbox::new(pace, config.limits.reports),
            timers: BTreeSet::new(),
            postponed: Postponed::default(),
            round: Round::default(),
            patterns: Patterns::default(),
            tunnels: Tunnels::default(),
            told: Told::default(),
            clock,
            applications: Applications::default(),
            paths: Paths::new(config.paths),
            echoes: vec![],
            managers: Managers::new(&config.managers, pace),
            // SEIDs differ from those before a restart, so that a peer that missed it does not get at others' sessions.
            last_seid: u64::from(config.recovery.0) << 32,
            config,
            tables,
            associations: BTreeMap::new(),
            sessions: BySeid::default(),
            last_association: 0,
            leaving: false,
        }
    }

    /// From now on [`Node::take_changes`] says what has changed. `durable` is the number of the changes that are durable.
    pub fn keep(&mut self, durable: Arc<AtomicU64>) {
        let first = self.journal.keep(durable);
        self.counters.change(first);
        self.answers.keep_changes();
        self.outbox.keep_changes();
    }

    /// The counters of usage.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes in a datagram that `from` sent, and returns what to answer.
    pub fn handle(&mut self, datagram: &[u8], from: SocketAddr, now: Instant) -> Option<Datagram> {
        self.addresses.get_mut().tick(self.clock.ns(now));
        let octets = match Header::parse(datagram) {
            Ok((header, body)) => self.message(&header, body, datagram, from, now),
            Err(error) => {
                tracing::debug!(peer = %from, %error, "no message");
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
        self.outbox.hear(from.ip());
        match header.message_type {
            MessageType::HEARTBEAT_RESPONSE => {
                self.heartbeat_response(header, body, from, now);
                None
            }
            MessageType::SESSION_REPORT_RESPONSE
            | MessageType::ASSOCIATION_SETUP_RESPONSE
            | MessageType::ASSOCIATION_UPDATE_RESPONSE
            | MessageType::NODE_REPORT_RESPONSE => {
                self.response(header, body, from, now);
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

    /// A response to a request of the UPF's own, other than a heartbeat.
    fn response(&mut self, header: &Header, body: &[u8], from: SocketAddr, now: Instant) {
        let Some(about) = self.outbox.answered(from.ip(), header.message_type, header.sequence) else { return };
        let response = Response::parse(header, body);
        match about {
            About::Session(up_seid) => self.report_response(up_seid, response, from, now),
            // There is nothing that it could still change.
            About::Ended(_) => {}
            About::Manager(number) => self.manager_answers(number, response, from, now),
            About::Association(id) => self.association_answers(id, response),
        }
    }

    /// The answer to a request; none to a response, nor to what is to be discarded.
    fn answer(&mut self, header: &Header, body: &[u8], from: SocketAddr, now: Instant) -> Option<Vec<u8>> {
        let (response, seid) = match Request::parse(header, body) {
            Ok(request) => self.request(request, header.seid.unwrap_or(0), from, now)?,
            Err(ParseError::Fault(fault)) => {
                tracing::debug!(peer = %from, message_type = header.message_type.0, %fault, "a faulty request");
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

    fn request(&mut self, request: Request, seid: u64, from: SocketAddr, now: Instant) -> Option<Answer> {
        Some(match request {
            Request::Heartbeat(heartbeat) => {
                self.heard_of(from.ip(), heartbeat.recovery, now);
                (Response::Heartbeat(Heartbeat { recovery: self.config.recovery }), 0)
            }
            Request::PfdManagement(request) => (Response::PfdManagement(self.manage_pfds(&request, from)), 0),
            Request::AssociationSetup(setup) => (self.set_up_by_manager(setup, from, now), 0),
            Request::AssociationUpdate(update) => {
                let outcome = self.association_of(&update.node_id).map(|_| ());
                (Response::AssociationUpdate(self.outcome(outcome)), 0)
            }
            Request::AssociationRelease(release) => {
                let outcome = self.association_of(&release.node_id).map(|id| self.end_association(id, "released", now));
                (Response::AssociationRelease(self.outcome(outcome)), 0)
            }
            Request::SessionEstablishment(establishment) => {
                let cp_seid = establishment.cp_f_seid.seid;
                let outcome = self.establish(&establishment, now);
                let response = EstablishmentResponse { node_id: self.config.node_id.clone(), outcome };
                (Response::SessionEstablishment(response), cp_seid)
            }
            Request::SessionModification(modification) => {
                let outcome = self.modify(seid, &modification, now);
                let cp_seid = self.cp_seid(seid);
                (Response::SessionModification(ModificationResponse { outcome }), cp_seid)
            }
            Request::SessionDeletion => {
                let cp_seid = self.cp_seid(seid);
                let outcome = self.delete(seid, now);
                (Response::SessionDeletion(DeletionResponse { outcome }), cp_seid)
            }
            // Only a UPF reports.
            Request::SessionReport(_) | Request::NodeReport(_) => return None,
        })
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
        self.sessions.get(&up_seid).map_or(0, |held| held.owner().cp_f_seid.seid)
    }

    fn outcome(&self, outcome: Result<(), Fault>) -> NodeOutcome {
        NodeOutcome { node_id: self.config.node_id.clone(), outcome }
    }

    /// Does what is due at `now`: reports, heartbeats, and farewell to peers that do not answer them.
    pub fn tick(&mut self, now: Instant) -> Vec<Datagram> {
        let pace = Pace { t1: self.config.t1, n1: self.config.n1 };
        self.addresses.get_mut().tick(self.clock.ns(now));
        let (mut datagrams, given_up) = self.outbox.tick(now);
        given_up.into_iter().for_each(|about| self.give_up(about, now));
        datagrams.extend(self.due_reports(now));
        datagrams.extend(self.ask_managers(now));
        datagrams.extend(self.tell_features(now));
        datagrams.extend(self.supervise_paths(now));
        let mut lost = vec![];
        for association in self.associations.values_mut() {
            match association.beat(self.config.recovery, || self.outbox.next_sequence(), pace, now) {
                Beat::Wait => {}
                Beat::Send(octets) => datagrams.push(Datagram { to: association.peer, octets }),
                Beat::Lost => lost.push(association.id),
            }
        }
        for id in lost {
            if let Some(association) = self.associations.get(&id) {
                let (node, peer, n1) = (&association.node_id, association.peer, self.config.n1);
                tracing::warn!(node = %Escaped(node), %peer, heartbeats = n1, "heartbeats were not answered");
            }
            self.end_association(id, "lost: the peer does not answer", now);
        }
        datagrams
    }

    /// A request was sent often enough without an answer.
    fn give_up(&mut self, about: About, now: Instant) {
        match about {
            About::Session(up_seid) => {
                let peer = self.sessions.get(&up_seid).map(|held| held.owner().cp_f_seid.address);
                tracing::warn!(?peer, up_seid = %Hex(up_seid), "a report was not answered");
            }
            About::Ended(up_seid) => {
                tracing::warn!(up_seid = %Hex(up_seid), "usage of a session that was deleted was told and not answered");
            }
            About::Manager(number) => self.managers.failed(number, now),
            About::Association(id) => {
                let node_id = self.associations.get(&id).map(|association| &association.node_id);
                tracing::warn!(node = ?node_id, "a message about an association was not answered");
            }
        }
    }

    /// When [`Node::tick`] has something to do next.
    pub fn due(&self) -> Option<Instant> {
        let heartbeats = self.associations.values().map(Association::due);
        let timers_ns = self.timers.first().map(|&(at_ns, _)| at_ns);
        let looks_ns = [timers_ns, self.postponed.due_ns(), self.round.due_ns()];
        let reports = looks_ns.into_iter().flatten().min().map(|at_ns| self.clock.instant(at_ns));
        heartbeats.chain(reports).chain(self.outbox.due()).chain(self.managers.due()).chain(self.paths.due()).min()
    }

    /// All sessions, as they are in force.
    pub fn sessions(&self) -> impl Iterator<Item = Session> {
        self.sessions.iter().map(|(seid, held)| held.open().session(seid, &self.config))
    }

    /// Sessions as they are in force, from the one with the UPF's SEID `first` on, in their order.
    pub fn sessions_from(&self, first: u64) -> impl Iterator<Item = Session> {
        let held = self.sessions.from(first);
        held.map(|(seid, held)| held.open().session(seid, &self.config))
    }

    /// What there is to be counted.
    pub(super) fn holdings(&self) -> Holdings {
        Holdings {
            sessions: self.sessions.len(),
            associations: self.associations.len(),
            unanswered_requests: self.outbox.len(),
        }
    }

    /// The UPF's SEIDs of all sessions.
    pub fn up_seids(&self) -> impl Iterator<Item = u64> {
        self.sessions.keys()
    }

    /// What the session has taken; none if there is no such session.
    pub fn taken(&self, up_seid: u64) -> Option<Taken> {
        let open = self.sessions.get(&up_seid)?.open();
        Some(Taken { addresses: open.contents.ue_addresses(), teids: open.teids })
    }

    /// The session with the UPF's SEID `up_seid`.
    pub fn session(&self, up_seid: u64) -> Option<Session> {
        self.sessions.get(&up_seid).map(|held| held.open().session(up_seid, &self.config))
    }

    /// How full the pools of UE addresses are.
    pub fn pool_usage(&self) -> Vec<PoolUsage> {
        self.addresses.borrow().usage()
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
        MessageType::ASSOCIATION_SETUP_REQUEST => {
            Response::AssociationSetup(AssociationSetupResponse::new(own.clone(), Err(fault), recovery))
        }
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
