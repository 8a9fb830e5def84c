//! How associations come and go (TS 29.244, 6.2.6 to 6.2.8), whoever asks for them.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use pfcp::node::up_features;
use pfcp::node::{AssociationSetup, AssociationSetupResponse, AssociationUpdate, UpFeature, UpFeatures};
use pfcp::node::{NodeReport, RemoteGtpuPeer};
use pfcp::{Cause, Fault, Header, NodeId, ParseError, RecoveryTimeStamp, Request, Response};

use super::association::{Association, AssociationId};
use super::outbox::About;
use super::paths::Echo;
use super::{Datagram, Node, RuleTables};
use crate::log::Escaped;
use crate::tables::SessionUpdate;

/// What this UPF tells that it can do: delayed notifications of downlink data, choice of F-TEIDs, end markers, as many
/// packets buffered as is suggested, framed routes, traffic endpoints, descriptions of applications, FARs for used quotas, numbers
/// of packets, times for which quotas are valid.
const FEATURES: &[UpFeature] = &[
    UpFeatures::DDND,
    UpFeatures::FTUP,
    UpFeatures::EMPU,
    UpFeatures::UDBC,
    UpFeatures::FRRT,
    UpFeatures::PDIU,
    UpFeatures::PFDM,
    UpFeatures::QUOAC,
    UpFeatures::MNOP,
    UpFeatures::VTIME,
];

/// Most peers that one report names, so that it fits a datagram of any path.
const PEERS_OF_REPORT: usize = 32;

impl<T: RuleTables> Node<T> {
    /// All that it can do, by its configuration, too.
    fn features(&self) -> Vec<u8> {
        let predefined: &[_] = if self.config.predefined_rules.is_empty() { &[] } else { &[UpFeatures::ADPDP] };
        up_features(&[FEATURES, &self.addresses.borrow().features(), predefined].concat())
    }

    pub(super) fn association_of(&self, node_id: &NodeId) -> Result<AssociationId, Fault> {
        let found = self.associations.values().find(|association| association.node_id == *node_id);
        found.map(|association| association.id).ok_or(Fault::new(Cause::NoEstablishedPfcpAssociation))
    }

    // Set-up by a session manager.

    pub(super) fn set_up_by_manager(&mut self, setup: AssociationSetup, from: SocketAddr, now: Instant) -> Response {
        let (node_id, recovery) = (self.config.node_id.clone(), self.config.recovery);
        let AssociationSetup { node_id: peer, recovery: theirs, retain, .. } = setup;
        let at = SocketAddr::new(from.ip(), self.config.peer_port);
        let outcome = self.set_up(peer, theirs, retain.as_deref(), at, now);
        Response::AssociationSetup(AssociationSetupResponse {
            up_features: outcome.is_ok().then(|| self.features()),
            retained: outcome == Ok(true),
            ..AssociationSetupResponse::new(node_id, outcome.map(|_| ()), recovery)
        })
    }

    /// Associates with `node_id`. Of a former association those sessions are kept that `retain` says; whether any were.
    fn set_up(
        &mut self,
        node_id: NodeId,
        recovery: RecoveryTimeStamp,
        retain: Option<&[IpAddr]>,
        at: SocketAddr,
        now: Instant,
    ) -> Result<bool, Fault> {
        let former = self.association_of(&node_id).ok();
        if self.leaving || former.is_none() && self.associations.len() >= self.config.limits.associations {
            return Err(Fault::new(Cause::NoResourcesAvailable));
        }
        self.last_association += 1;
        let id = AssociationId(self.last_association);
        if let (Some(former), Some(addresses)) = (former, retain) {
            let is_meant = |address: IpAddr| addresses.is_empty() || addresses.contains(&address);
            let of_former = self.sessions.iter_mut().filter(|(_, held)| held.owner().association == former);
            for (up_seid, held) in of_former.filter(|(_, held)| is_meant(held.owner().cp_f_seid.address)) {
                held.set_association(id, &mut self.patterns);
                self.journal.session(up_seid);
            }
        }
        if let Some(former) = former {
            self.end_association(former, "set up anew", now);
        }
        // A peer that has restarted counts its requests anew.
        self.answers.forget_peer(at.ip());
        tracing::info!(node = %Escaped(&node_id), peer = %at, "associated");
        let mut association = Association::new(id, node_id, at, recovery, now + self.config.heartbeat);
        association.told_features = self.features();
        self.journal.association(id);
        self.associations.insert(id, association);
        for number in self.managers.associated(at.ip()) {
            self.outbox.forget(About::Manager(number));
        }
        Ok(former.is_some() && retain.is_some())
    }

    /// Ends an association, and with it its sessions.
    pub(super) fn end_association(&mut self, id: AssociationId, why: &str, now: Instant) {
        let Some(association) = self.associations.remove(&id) else { return };
        self.journal.association(id);
        let theirs = self.sessions.iter().filter(|(_, held)| held.owner().association == id);
        let seids: Vec<_> = theirs.map(|(seid, _)| seid).collect();
        let (node, peer) = (&association.node_id, association.peer.ip());
        tracing::info!(node = %Escaped(node), %peer, why, sessions = seids.len(), "an association ended, and its sessions");
        self.answers.forget_peer(peer);
        self.outbox.forget(About::Association(id));
        self.managers.lost(peer, now);
        if let Err(error) = self.tables.apply(seids.iter().map(|&seid| SessionUpdate::Remove(seid)).collect()) {
            tracing::error!(%error, "cannot remove sessions from the tables");
        }
        seids.into_iter().for_each(|seid| self.forget(seid));
    }

    /// A node at this address says when it started.
    pub(super) fn heard_of(&mut self, address: IpAddr, recovery: RecoveryTimeStamp, now: Instant) {
        let restarted = self.associations.values().filter(|a| a.peer.ip() == address && a.is_restart(recovery));
        let ids: Vec<_> = restarted.map(|association| association.id).collect();
        ids.into_iter().for_each(|id| self.end_association(id, "lost: the peer has restarted", now));
    }

    pub(super) fn heartbeat_response(&mut self, header: &Header, body: &[u8], from: SocketAddr, now: Instant) {
        let next = now + self.config.heartbeat;
        let mut asked = self.associations.values_mut();
        let Some(association) = asked.find(|a| a.is_answer(from.ip(), header.sequence)) else { return };
        // Even a faulty response ends the wait (7.6.1).
        association.answered(next);
        match Response::parse(header, body) {
            Ok(Response::Heartbeat(heartbeat)) => self.heard_of(from.ip(), heartbeat.recovery, now),
            other => tracing::debug!(peer = %from, response = ?other, "no sound response to a heartbeat"),
        }
    }

    // Set-up by this UPF.

    /// Asks managers for an association, where that is due.
    pub(super) fn ask_managers(&mut self, now: Instant) -> Vec<Datagram> {
        let mut datagrams = vec![];
        for (number, to) in self.managers.take_due(now) {
            let setup = AssociationSetup {
                up_features: Some(self.features()),
                ..AssociationSetup::new(self.config.node_id.clone(), self.config.recovery)
            };
            datagrams.push(self.outbox.send(&Request::AssociationSetup(setup), About::Manager(number), 0, to, now));
        }
        datagrams
    }

    /// A manager that was asked for an association answers.
    pub(super) fn manager_answers(
        &mut self,
        number: usize,
        response: Result<Response, ParseError>,
        from: SocketAddr,
        now: Instant,
    ) {
        let accepted = match response {
            Ok(Response::AssociationSetup(response)) => response
                .outcome
                .and_then(|()| {
                    let AssociationSetupResponse { node_id, recovery, .. } = response;
                    self.set_up(node_id, recovery, None, from, now)
                })
                .map_err(|fault| fault.to_string()),
            other => Err(format!("{other:?}")),
        };
        if let Err(error) = accepted {
            tracing::warn!(peer = %from, error, "no association");
            self.managers.failed(number, now);
        }
    }

    // What this UPF tells its associated peers.

    /// Tells those peers what this UPF can do that were told something else.
    pub(super) fn tell_features(&mut self, now: Instant) -> Vec<Datagram> {
        let features = self.features();
        let node_id = &self.config.node_id;
        let mut datagrams = vec![];
        for association in self.associations.values_mut().filter(|a| a.told_features != features) {
            association.told_features = features.clone();
            self.journal.association(association.id);
            let update =
                AssociationUpdate { up_features: Some(features.clone()), ..AssociationUpdate::new(node_id.clone()) };
            let (request, about) = (Request::AssociationUpdate(update), About::Association(association.id));
            datagrams.push(self.outbox.send(&request, about, 0, association.peer, now));
        }
        datagrams
    }

    /// Asks all associated peers to release their associations within `period`; nobody gets another association.
    pub fn leave(&mut self, period: Duration, now: Instant) -> Vec<Datagram> {
        self.leaving = true;
        self.managers.leave();
        let mut datagrams = vec![];
        for association in self.associations.values() {
            let update = AssociationUpdate {
                release: true,
                graceful_release: Some(period),
                ..AssociationUpdate::new(self.config.node_id.clone())
            };
            let (request, about) = (Request::AssociationUpdate(update), About::Association(association.id));
            datagrams.push(self.outbox.send(&request, about, 0, association.peer, now));
        }
        datagrams
    }

    /// Tells all associated peers of paths to GTP-U nodes that have failed, or are there again (6.2.9).
    fn report_paths(&mut self, failed: &[IpAddr], recovered: &[IpAddr], now: Instant) -> Vec<Datagram> {
        let peers = |of: &[IpAddr]| of.iter().map(|&address| RemoteGtpuPeer { address }).collect();
        let node_id = self.config.node_id.clone();
        let report = NodeReport { node_id, failed: peers(failed), recovered: peers(recovered), others: vec![] };
        let report = Request::NodeReport(report);
        let associations = self.associations.values();
        let send = |a: &Association| self.outbox.send(&report, About::Association(a.id), 0, a.peer, now);
        associations.map(send).collect()
    }

    /// Asks peers of tunnels whether they are alive, and tells of those that are not.
    pub(super) fn supervise_paths(&mut self, now: Instant) -> Vec<Datagram> {
        let tunnels = &self.tunnels;
        let (echoes, failed) = self.paths.tick(now, |peer| tunnels.lead_to(peer));
        self.echoes.extend(echoes);
        failed.iter().for_each(|peer| tracing::warn!(%peer, "GTP-U path failed"));
        failed.chunks(PEERS_OF_REPORT).flat_map(|failed| self.report_paths(failed, &[], now)).collect()
    }

    /// GTP-U echo requests that are to be sent.
    pub fn take_echoes(&mut self) -> Vec<Echo> {
        std::mem::take(&mut self.echoes)
    }

    /// A GTP-U echo response has come.
    pub(super) fn path_answers(&mut self, echo: Echo, now: Instant) -> Vec<Datagram> {
        if !self.paths.answered(echo, now) {
            return vec![];
        }
        tracing::info!(peer = %echo.peer, "GTP-U path recovered");
        self.report_paths(&[], &[echo.peer], now)
    }

    /// Whether there is no association.
    pub fn is_alone(&self) -> bool {
        self.associations.is_empty()
    }

    /// An associated peer answers an update or a report.
    pub(super) fn association_answers(&mut self, id: AssociationId, response: Result<Response, ParseError>) {
        let outcome = match response {
            Ok(Response::AssociationUpdate(response) | Response::NodeReport(response)) => {
                response.outcome.map_err(|fault| fault.to_string())
            }
            other => Err(format!("{other:?}")),
        };
        if let (Err(error), Some(association)) = (outcome, self.associations.get(&id)) {
            tracing::warn!(node = %Escaped(&association.node_id), error, "a message about an association was rejected");
        }
    }
}
