//! A session at rest, and opened to be worked on.
//!
//! A UPF holds many sessions, and works on one at a time. So a session rests packed (postcard's encoding), which takes a
//! tenth of the memory of its maps and rules, and is opened, changed and put back whole.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Config;
use super::account::{Account, Books};
use super::association::AssociationId;
use super::contents::Contents;
use super::reports::Paging;
use crate::counters::Counters;
use crate::few::Few;
use crate::rules::{CpFSeid, Session};
use crate::usage::{Usage, UsageId};

/// A session in force, at rest.
#[derive(Debug)]
pub(super) struct Held {
    /// An [`Owner`], and a [`Body`] behind it.
    packed: Box<[u8]>,
    /// Counters of the usage reporting rules, in the order of their IDs.
    usages: Few<Usage>,
    /// When all that is to be looked at, as the node's timers have it.
    pub timer_ns: Option<u64>,
}

/// A session that is worked on.
#[derive(Debug)]
pub(super) struct Open {
    pub owner: Owner,
    pub contents: Contents,
    /// TEIDs reserved for it.
    pub teids: BTreeSet<u32>,
    /// One for each usage reporting rule, by its ID.
    pub accounts: BTreeMap<u32, Account>,
    /// Packets that wait.
    pub paging: Paging,
    /// Tunnels that their peers do not know, and when that was told.
    pub unknown: BTreeMap<(IpAddr, u32), u64>,
}

/// Whose session it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Owner {
    pub association: AssociationId,
    pub cp_f_seid: CpFSeid,
}

/// What is packed behind the owner.
#[derive(Serialize, Deserialize)]
struct Body {
    contents: Contents,
    teids: BTreeSet<u32>,
    /// In the order of the usage reporting rules' IDs.
    books: Vec<Books>,
    paging: Paging,
    unknown: BTreeMap<(IpAddr, u32), u64>,
}

/// A session as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept<'a> {
    /// Where the counters lie, and their epochs.
    usages: Vec<(u32, u32)>,
    packed: &'a [u8],
}

/// A session that was kept, read and not yet anybody's.
pub(super) struct Found {
    /// Where the counters lie, and their epochs.
    places: Vec<(u32, u32)>,
    owner: Owner,
    body: Body,
    packed: Box<[u8]>,
}

impl Found {
    /// Reads what was kept.
    pub fn read(kept: &[u8]) -> postcard::Result<Self> {
        let kept: Kept = postcard::from_bytes(kept)?;
        let (owner, body) = postcard::from_bytes(kept.packed)?;
        Ok(Self { places: kept.usages, owner, body, packed: kept.packed.into() })
    }
}

impl Held {
    /// What is kept of the session.
    pub fn kept(&self) -> Box<[u8]> {
        let kept = Kept { usages: self.usages.iter().map(Usage::place).collect(), packed: &self.packed };
        postcard::to_allocvec(&kept).expect("nothing in it is of unknown length").into()
    }

    /// The session that was kept, with its counters, whose `lines` no other session has. Also as it is when it is opened.
    pub fn found(
        found: Found,
        up_seid: u64,
        counters: &mut Counters,
        lines: &mut BTreeSet<u32>,
        now_ns: u64,
    ) -> Result<(Self, Open), String> {
        let Found { places, owner, body, packed } = found;
        let Body { contents, teids, books, paging, unknown } = body;
        if contents.urrs().len() != books.len() || books.len() != places.len() {
            return Err("its usage reporting rules and their accounts do not match".into());
        }
        let mut usages = vec![];
        let mut accounts = BTreeMap::new();
        for ((&(place, epoch), books), (&urr, rule)) in places.iter().zip(books).zip(contents.urrs()) {
            let line = counters.claim(place).map_err(|error| error.to_string())?;
            let line = line.filter(|_| lines.insert(place)).ok_or("its counters are not there")?;
            let usage = Usage::found(line, UsageId { up_seid, urr }, epoch, now_ns).ok_or("its counters are broken")?;
            usages.push(usage.clone());
            accounts.insert(urr, Account::found(usage, books, rule, now_ns).ok_or("its accounts are broken")?);
        }
        let open = Open { owner, contents, teids, accounts, paging, unknown };
        let held = Self { packed, usages: usages.into_iter().collect(), timer_ns: open.due_ns() };
        Ok((held, open))
    }

    pub fn new(open: Open) -> Self {
        let (packed, usages) = open.pack();
        Self { packed, usages, timer_ns: None }
    }

    pub fn owner(&self) -> Owner {
        postcard::take_from_bytes(&self.packed).expect(OWN).0
    }

    pub fn open(&self) -> Open {
        let (owner, body): (Owner, Body) = postcard::from_bytes(&self.packed).expect(OWN);
        let ids = body.contents.urrs().keys().copied();
        let accounts = ids.zip(body.books.into_iter().zip(self.usages.iter()));
        let accounts = accounts.map(|(id, (books, usage))| (id, Account::of(usage.clone(), books))).collect();
        let Body { contents, teids, paging, unknown, .. } = body;
        Open { owner, contents, teids, accounts, paging, unknown }
    }

    /// The session belongs to another association from now on.
    pub fn set_association(&mut self, association: AssociationId) {
        let mut open = self.open();
        open.owner.association = association;
        self.put_back(open);
    }

    /// Puts the session back as `open` is now.
    pub fn put_back(&mut self, open: Open) {
        (self.packed, self.usages) = open.pack();
    }
}

/// Nobody else has had a hand in what is unpacked.
const OWN: &str = "packed here";

impl Open {
    /// The session as it is in force.
    pub fn session(&self, up_seid: u64, config: &Config) -> Session {
        let usage = |id: u32| self.accounts[&id].usage().clone();
        self.contents.session(up_seid, self.owner.cp_f_seid, config, usage)
    }

    fn pack(self) -> (Box<[u8]>, Few<Usage>) {
        let (usages, books): (Vec<_>, Vec<_>) = self.accounts.into_values().map(Account::into_parts).unzip();
        let Self { owner, contents, teids, paging, unknown, .. } = self;
        let body = Body { contents, teids, books, paging, unknown };
        let packed = postcard::to_allocvec(&(owner, body)).expect("nothing in it is of unknown length");
        (packed.into(), usages.into_iter().collect())
    }
}
