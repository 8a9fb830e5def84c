//! What a session has taken, as it is written down with its rules.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::compile::MeterKey;
use super::policers::Policer;
use super::version::{Change, UeKey};
use crate::side::PortId;

/// The record of a session's block. Places of lists are so many lines behind the beginning of the block's body.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// In the first word, where rules find it.
    #[serde(with = "postcard::fixint::le")]
    pub up_seid: u64,
    pub tunnelled: Vec<Tunnelled>,
    pub plain: Vec<Plain>,
    /// Policers of its own: at which word of the body their tokens are.
    pub policers: Vec<(MeterKey, u32)>,
    pub shared: Vec<(MeterKey, Policer)>,
    /// Whose correlation IDs its QERs have.
    pub manager: Option<IpAddr>,
    /// Paths of its tunnels, as often as they are named.
    pub paths: Vec<u32>,
    /// Whether packets may wait.
    pub buffers: bool,
}

/// By which TEID a list of rules is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Tunnelled {
    pub teid: u32,
    pub list: u32,
}

/// By which UE address a list of rules is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Plain {
    pub port: PortId,
    pub ue: UeKey,
    pub list: u32,
}

impl Record {
    pub fn pack(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("nothing in it is of unknown length")
    }

    pub fn unpack(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// Where the tokens of a policer of its own are.
    pub fn policer(&self, key: &MeterKey) -> Option<u32> {
        self.policers.iter().find(|(other, _)| other == key).map(|(_, place)| *place)
    }

    /// The policer that it shares.
    pub fn shared(&self, key: &MeterKey) -> Option<Policer> {
        self.shared.iter().find(|(other, _)| other == key).map(|(_, policer)| *policer)
    }

    /// By what its rules are found: TEIDs, and addresses in data networks.
    pub fn keys(&self) -> impl Iterator<Item = (Option<u32>, Option<(PortId, UeKey)>)> {
        let teids = self.tunnelled.iter().map(|tunnelled| (Some(tunnelled.teid), None));
        teids.chain(self.plain.iter().map(|plain| (None, Some((plain.port, plain.ue)))))
    }

    /// Where its lists of rules begin, whose body begins at this line.
    pub fn lists(&self, body: u32) -> impl Iterator<Item = u32> {
        let lists = self.tunnelled.iter().map(|tunnelled| tunnelled.list);
        lists.chain(self.plain.iter().map(|plain| plain.list)).map(move |list| body.saturating_add(list))
    }

    /// Has its rules found, whose body begins at this line.
    pub fn put_in(&self, body: u32, changes: &mut Vec<Change>) {
        self.change(|list| body.checked_add(list), changes);
    }

    /// Has its rules not found any more.
    pub fn take_out(&self, changes: &mut Vec<Change>) {
        self.change(|_| None, changes);
    }

    fn change(&self, place: impl Fn(u32) -> Option<u32>, changes: &mut Vec<Change>) {
        changes.extend(self.tunnelled.iter().map(|&Tunnelled { teid, list }| Change::Teid(teid, place(list))));
        changes.extend(self.plain.iter().map(|&Plain { port, ue, list }| Change::Ue(port, ue, place(list))));
    }
}
