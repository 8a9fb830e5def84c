//! What N4 has the store keep: which things have changed, and what they are when the changes are taken.
//!
//! A request touches what it changes; nothing is written down before all of it is done. So what is taken is always whole.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};
use std::time::Instant;

use pfcp::{NodeId, RecoveryTimeStamp};
use serde::{Deserialize, Serialize};

use super::association::{Association, AssociationId};
use super::{Node, RuleTables};
use crate::store::{Change, Kind};

/// What has changed since the changes were last taken.
#[derive(Debug)]
pub(super) struct Journal {
    /// None where nothing is kept.
    keeping: Option<Keeping>,
    associations: BTreeSet<AssociationId>,
    sessions: BTreeSet<u64>,
    teids: Vec<u32>,
    applications: bool,
    /// Number of the last changes of an earlier process.
    pub restored: u64,
}

#[derive(Debug)]
struct Keeping {
    /// Number of the changes that are being made.
    number: u64,
    /// Number of those that are durable.
    durable: Arc<AtomicU64>,
}

/// Numbers that are counted on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Numbers {
    /// Of the changes that these numbers are among.
    pub change: u64,
    pub last_association: u64,
    pub last_seid: u64,
    pub last_sequence: u32,
    /// Key of the digests of requests.
    pub digest: u64,
}

/// An association.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptAssociation {
    node_id: KeptNodeId,
    peer: SocketAddr,
    recovery: u32,
    /// Earlier processes have kept here what session managers tell of themselves.
    manager: (Option<Vec<u8>>, Option<String>, Vec<IpAddr>),
    told_features: Vec<u8>,
}

/// A node ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum KeptNodeId {
    Address(IpAddr),
    Fqdn(String),
}

impl From<&NodeId> for KeptNodeId {
    fn from(node_id: &NodeId) -> Self {
        match node_id {
            NodeId::Address(address) => Self::Address(*address),
            NodeId::Fqdn(name) => Self::Fqdn(name.clone()),
        }
    }
}

impl From<KeptNodeId> for NodeId {
    fn from(node_id: KeptNodeId) -> Self {
        match node_id {
            KeptNodeId::Address(address) => Self::Address(address),
            KeptNodeId::Fqdn(name) => Self::Fqdn(name),
        }
    }
}

impl KeptAssociation {
    fn of(association: &Association) -> Self {
        let Association { node_id, peer, recovery, told_features, .. } = association;
        Self {
            node_id: node_id.into(),
            peer: *peer,
            recovery: recovery.0,
            manager: Default::default(),
            told_features: told_features.clone(),
        }
    }

    /// The association again, with its next heartbeat at `first`.
    pub fn association(self, id: AssociationId, first: Instant) -> Association {
        let Self { node_id, peer, recovery, told_features, .. } = self;
        let mut association = Association::new(id, node_id.into(), peer, RecoveryTimeStamp(recovery), first);
        association.told_features = told_features;
        association
    }
}

impl Journal {
    /// A journal that nobody reads.
    pub fn new() -> Self {
        let (associations, sessions) = (BTreeSet::new(), BTreeSet::new());
        Self { keeping: None, associations, sessions, teids: vec![], applications: false, restored: 0 }
    }

    /// From now on changes are kept. `durable` is the number of those that are. Returns the number of the first ones.
    pub fn keep(&mut self, durable: Arc<AtomicU64>) -> u64 {
        let number = durable.load(Acquire) + 1;
        self.keeping = Some(Keeping { number, durable });
        number
    }

    /// The number of the changes that are durable; of all, where nothing is kept.
    pub fn durable(&self) -> u64 {
        self.keeping.as_ref().map_or(u64::MAX, |keeping| keeping.durable.load(Acquire))
    }

    /// The session has come, has changed or is gone.
    pub fn session(&mut self, up_seid: u64) {
        if self.keeping.is_some() {
            self.sessions.insert(up_seid);
        }
    }

    /// The association has come or is gone.
    pub fn association(&mut self, id: AssociationId) {
        if self.keeping.is_some() {
            self.associations.insert(id);
        }
    }

    /// Applications are described, or described otherwise.
    pub fn applications(&mut self) {
        self.applications = self.keeping.is_some();
    }

    /// The TEIDs were given out.
    pub fn teids<'t>(&mut self, teids: impl IntoIterator<Item = &'t u32>) {
        if self.keeping.is_some() {
            self.teids.extend(teids);
        }
    }
}

fn octets(value: &impl Serialize) -> Option<Box<[u8]>> {
    Some(postcard::to_allocvec(value).expect("nothing in it is of unknown length").into())
}

impl<T: RuleTables> Node<T> {
    /// What has changed since the last call, and the number of these changes.
    pub fn take_changes(&mut self) -> (u64, Vec<Change>) {
        let mut changes = vec![];
        for id in std::mem::take(&mut self.journal.associations) {
            changes.push(Change { kind: Kind::Association, key: id.0, value: self.kept_association(id) });
        }
        for up_seid in std::mem::take(&mut self.journal.sessions) {
            let value = self.sessions.get(&up_seid).map(|held| held.kept());
            changes.push(Change { kind: Kind::Session, key: up_seid, value });
        }
        for teid in std::mem::take(&mut self.journal.teids) {
            changes.push(self.kept_teid(teid));
        }
        if std::mem::take(&mut self.journal.applications) {
            let value = octets(self.applications.described());
            changes.push(Change { kind: Kind::Applications, key: 0, value });
        }
        changes.extend(self.answers.take_changes(&self.clock));
        changes.extend(self.outbox.take_changes());
        if !changes.is_empty() {
            changes.push(self.kept_numbers());
        }
        let Some(keeping) = self.journal.keeping.as_mut() else { return (0, vec![]) };
        let number = keeping.number;
        if !changes.is_empty() {
            keeping.number += 1;
            self.counters.change(keeping.number);
        }
        (number, changes)
    }

    /// Everything that there is, as changes to an empty store.
    pub fn all_changes(&mut self) -> (u64, Vec<Change>) {
        self.answers.touch_all();
        self.outbox.touch_all();
        self.journal.associations = self.associations.keys().copied().collect();
        self.journal.sessions = self.sessions.keys().collect();
        self.journal.teids = self.tables.teids_given();
        self.journal.applications = !self.applications.described().is_empty();
        self.take_changes()
    }

    /// Number of the last changes that are in the store it was restored from.
    pub fn last_change(&self) -> u64 {
        self.journal.restored
    }

    fn kept_association(&self, id: AssociationId) -> Option<Box<[u8]>> {
        let association = self.associations.get(&id)?;
        octets(&KeptAssociation::of(association))
    }

    fn kept_teid(&self, teid: u32) -> Change {
        Change { kind: Kind::Teid, key: self.tables.teid_slot(teid).into(), value: octets(&teid) }
    }

    fn kept_numbers(&self) -> Change {
        let numbers = Numbers {
            change: self.journal.keeping.as_ref().map_or(0, |keeping| keeping.number),
            last_association: self.last_association,
            last_seid: self.last_seid,
            last_sequence: self.outbox.last_sequence(),
            digest: self.answers.digest_key(),
        };
        Change { kind: Kind::Numbers, key: 0, value: octets(&numbers) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn associations_that_earlier_processes_have_kept_are_read() {
        let peer: SocketAddr = "10.4.0.2:8805".parse().unwrap();
        let node_id = KeptNodeId::Fqdn("smf".into());
        let told_by_manager = (Some(vec![1_u8, 2]), Some("set"), vec![peer.ip()]);
        let kept = postcard::to_allocvec(&(&node_id, peer, 7_u32, told_by_manager, vec![3_u8])).unwrap();
        let read: KeptAssociation = postcard::from_bytes(&kept).unwrap();
        assert_eq!((read.node_id, read.peer, read.recovery, read.told_features), (node_id, peer, 7, vec![3]));
    }
}
