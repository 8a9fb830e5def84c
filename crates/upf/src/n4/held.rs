//! A session at rest, and opened to be worked on.
//!
//! A UPF holds many sessions, and works on one at a time. So a session rests packed, which takes a fraction of the memory
//! of its maps and rules, and is opened, changed and put back whole. What it has in common with others is a pattern
//! (postcard's encoding), which they share; the numbers that it has for itself lie beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use pfcp::report::UsageReport;
use serde::{Deserialize, Serialize};

use super::Config;
use super::account::{Account, Books};
use super::association::AssociationId;
use super::contents::Contents;
use super::particulars::{Exchange, Patterns};
use super::reports::Paging;
use crate::counters::Counters;
use crate::few::Few;
use crate::rules::{CpFSeid, Session};
use crate::usage::{Usage, UsageId};

/// A session in force, at rest.
#[derive(Debug)]
pub(super) struct Held {
    packed: Packed,
    /// Counters of the usage reporting rules, in the order of their IDs.
    usages: Few<Usage>,
    /// When all that is to be looked at, as the node's timers have it.
    timer_ns: Option<NonZeroU64>,
}

/// A session but for its counters.
#[derive(Debug, PartialEq, Eq)]
struct Packed {
    /// An [`Owner`], and a [`Body`] behind it, with zeros for the numbers.
    pattern: Arc<[u8]>,
    /// The numbers, [`News`] behind them if there are any, and then for how long packets wait by BARs if that is said.
    own: Box<[u8]>,
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
    teids: Vec<u32>,
    /// In the order of the usage reporting rules' IDs.
    books: Vec<Books>,
}

/// What hardly any session has, and none for long.
#[derive(Default, PartialEq, Eq, Serialize, Deserialize)]
struct News {
    paging: Paging,
    /// Earlier processes have kept here when it was told that peers do not know tunnels.
    unknown: BTreeMap<(IpAddr, u32), u64>,
    /// What was used before monitoring times, with the numbers of the books. Earlier processes have kept a map from these.
    before: Vec<(usize, UsageReport)>,
}

impl Body {
    fn exchange(&mut self, owner: &mut Owner, with: &mut Exchange) {
        with.number(&mut owner.cp_f_seid.seid);
        self.contents.exchange(with);
        self.teids.iter_mut().for_each(|teid| with.word(teid));
        self.books.iter_mut().for_each(|books| books.exchange(with));
    }
}

/// A session as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept<'a> {
    /// Where the counters lie, and their epochs.
    usages: Vec<(u32, u32)>,
    pattern: &'a [u8],
    own: &'a [u8],
}

/// A session that was kept, read and not yet anybody's.
pub(super) struct Found {
    /// Where the counters lie, and their epochs.
    places: Vec<(u32, u32)>,
    unpacked: (Owner, Body, News),
    pattern: Box<[u8]>,
    own: Box<[u8]>,
}

impl Found {
    /// Reads what was kept.
    pub fn read(kept: &[u8]) -> postcard::Result<Self> {
        let kept: Kept = postcard::from_bytes(kept)?;
        let unpacked = unpack(kept.pattern, kept.own)?;
        Ok(Self { places: kept.usages, unpacked, pattern: kept.pattern.into(), own: kept.own.into() })
    }
}

/// The session that was packed.
fn unpack(pattern: &[u8], own: &[u8]) -> postcard::Result<(Owner, Body, News)> {
    let (mut owner, mut body): (Owner, Body) = postcard::from_bytes(pattern)?;
    let mut numbers = Exchange::back(own);
    body.exchange(&mut owner, &mut numbers);
    let rest = numbers.rest().ok_or(postcard::Error::DeserializeBadEncoding)?;
    let (mut news, rest) = if rest.is_empty() { (News::default(), rest) } else { postcard::take_from_bytes(rest)? };
    if !rest.is_empty() {
        body.contents.durations = postcard::from_bytes(rest)?;
    }
    for (at, before) in std::mem::take(&mut news.before) {
        body.books.get_mut(at).ok_or(postcard::Error::DeserializeBadEncoding)?.before().push(before);
    }
    Ok((owner, body, news))
}

impl Held {
    /// What is kept of the session.
    pub fn kept(&self) -> Box<[u8]> {
        let Packed { pattern, own } = &self.packed;
        let kept = Kept { usages: self.usages.iter().map(Usage::place).collect(), pattern, own };
        let room = Vec::with_capacity(pattern.len() + own.len() + 16 * (1 + kept.usages.len()));
        postcard::to_extend(&kept, room).expect(KNOWN).into()
    }

    /// The session that was kept, with its counters, which are added to those `taken`. Also as it is when it is opened.
    pub fn found(
        found: Found,
        up_seid: u64,
        counters: &Counters,
        patterns: &mut Patterns,
        taken: &mut BTreeSet<u32>,
        now_ns: u64,
    ) -> Result<(Self, Open), String> {
        let Found { places, unpacked: (owner, body, news), pattern, own } = found;
        let Body { contents, teids, books } = body;
        if contents.urrs().len() != books.len() || books.len() != places.len() {
            return Err("its usage reporting rules and their accounts do not match".into());
        }
        let mut usages = vec![];
        let mut accounts = BTreeMap::new();
        for ((&(place, epoch), books), (&urr, rule)) in places.iter().zip(books).zip(contents.urrs()) {
            let own = counters.claim(place).map_err(|error| error.to_string())?;
            let own = own.filter(|_| taken.insert(place)).ok_or("its counters are not there")?;
            let usage = Usage::found(own, UsageId { up_seid, urr }, epoch, now_ns).ok_or("its counters are broken")?;
            usages.push(usage.clone());
            accounts.insert(urr, Account::found(usage, books, rule, now_ns).ok_or("its accounts are broken")?);
        }
        let paging = news.paging;
        let open = Open { owner, contents, teids: teids.into_iter().collect(), accounts, paging };
        let packed = Packed { pattern: patterns.get(&pattern), own };
        let held =
            Self { packed, usages: usages.into_iter().collect(), timer_ns: open.due_ns().and_then(NonZeroU64::new) };
        Ok((held, open))
    }

    pub fn new(open: Open, patterns: &mut Patterns) -> Self {
        let (packed, usages) = open.pack(patterns);
        Self { packed, usages, timer_ns: None }
    }

    pub fn owner(&self) -> Owner {
        let Packed { pattern, own } = &self.packed;
        let (mut owner, _): (Owner, _) = postcard::take_from_bytes(pattern).expect(OWN);
        Exchange::back(own).number(&mut owner.cp_f_seid.seid);
        owner
    }

    pub fn open(&self) -> Open {
        let (owner, body, news) = unpack(&self.packed.pattern, &self.packed.own).expect(OWN);
        let Body { contents, teids, books } = body;
        let ids = contents.urrs().keys().copied();
        let accounts = ids.zip(books.into_iter().zip(self.usages.iter()));
        let accounts = accounts.map(|(id, (books, usage))| (id, Account::of(usage.clone(), books))).collect();
        Open { owner, contents, teids: teids.into_iter().collect(), accounts, paging: news.paging }
    }

    /// The session belongs to another association from now on.
    pub fn set_association(&mut self, association: AssociationId, patterns: &mut Patterns) {
        let mut open = self.open();
        open.owner.association = association;
        self.put_back(open, patterns);
    }

    /// Puts the session back as `open` is now. Whether something else is to be kept of it than before.
    pub fn put_back(&mut self, open: Open, patterns: &mut Patterns) -> bool {
        let (packed, usages) = open.pack(patterns);
        // A later epoch than the one that was kept is found again.
        let has_others = !self.usages.iter().map(Usage::place).eq(usages.iter().map(Usage::place));
        let is_other = has_others || packed != self.packed;
        (self.packed, self.usages) = (packed, usages);
        is_other
    }

    /// When it is to be looked at.
    pub fn timer_ns(&self) -> Option<u64> {
        self.timer_ns.map(NonZeroU64::get)
    }

    /// Sets when it is to be looked at, and returns when that was before.
    pub fn set_timer(&mut self, at_ns: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.timer_ns, at_ns.and_then(NonZeroU64::new)).map(NonZeroU64::get)
    }
}

/// Octets of a pattern that is not a long one.
const ROOM: usize = 512;
/// So it can be written without asking.
const KNOWN: &str = "nothing in it is of unknown length";
/// Nobody else has had a hand in what is unpacked.
const OWN: &str = "packed here";

impl Open {
    /// The session as it is in force.
    pub fn session(&self, up_seid: u64, config: &Config) -> Session {
        let usage = |id: u32| self.accounts[&id].usage().clone();
        self.contents.session(up_seid, self.owner.cp_f_seid, config, usage)
    }

    fn pack(self, patterns: &mut Patterns) -> (Packed, Few<Usage>) {
        let (usages, mut books): (Vec<_>, Vec<_>) = self.accounts.into_values().map(Account::into_parts).unzip();
        let Self { mut owner, mut contents, teids, paging, .. } = self;
        let durations = std::mem::take(&mut contents.durations);
        let of =
            |(at, books): (usize, &mut Books)| std::mem::take(books.before()).into_iter().map(move |one| (at, one));
        let before = books.iter_mut().enumerate().flat_map(of).collect();
        let news = News { paging, unknown: BTreeMap::new(), before };
        let mut body = Body { contents, teids: teids.into_iter().collect(), books };
        let mut numbers = Exchange::out();
        body.exchange(&mut owner, &mut numbers);
        let mut own = numbers.pack();
        if news != News::default() || !durations.is_empty() {
            own = postcard::to_extend(&news, own).expect(KNOWN);
        }
        // Earlier processes know of nothing behind the news.
        if !durations.is_empty() {
            own = postcard::to_extend(&durations, own).expect(KNOWN);
        }
        // Both are copied to where they stay: what is made shorter in place leaves holes that nobody fills.
        let pattern = postcard::to_extend(&(owner, body), Vec::with_capacity(ROOM)).expect(KNOWN);
        (Packed { pattern: patterns.get(&pattern), own: own[..].into() }, usages.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use pfcp::rule::BufferingDuration;

    use super::*;

    #[test]
    fn how_long_packets_wait_is_kept_beside_the_rest_and_need_not_be_there() {
        let address = IpAddr::from([10, 4, 0, 2]);
        let owner = Owner { association: AssociationId(1), cp_f_seid: CpFSeid { seid: 5, address } };
        for durations in [BTreeMap::new(), BTreeMap::from([(7, BufferingDuration(0x65))])] {
            let mut contents = Contents::default();
            contents.durations.clone_from(&durations);
            let (accounts, paging) = (BTreeMap::new(), Paging::default());
            let open = Open { owner, contents, teids: BTreeSet::new(), accounts, paging };
            let held = Held::new(open, &mut Patterns::default());
            assert_eq!(held.open().contents.durations, durations);
            assert_eq!(Found::read(&held.kept()).unwrap().unpacked.1.contents.durations, durations);
        }
    }

    #[test]
    fn what_earlier_processes_have_kept_of_monitoring_times_and_tunnels_is_read() {
        let report = |urr_id| UsageReport { urr_id, ..UsageReport::default() };
        let before = BTreeMap::from([(0_usize, Box::new(report(1))), (2, Box::new(report(3)))]);
        let unknown = BTreeMap::from([((IpAddr::from([10, 3, 0, 2]), 7_u32), 5_u64)]);
        let kept = postcard::to_allocvec(&(Paging::default(), unknown, before)).unwrap();
        let read: News = postcard::from_bytes(&kept).unwrap();
        assert_eq!(read.before, [(0, report(1)), (2, report(3))]);
    }
}
