//! What is in force, from the point of view of whoever changes it.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use hashbrown::{HashMap, HashSet};

use super::blocks::{self, Blocks, Kind};
use super::compile::{self, Context, MeterKey};
use super::hops::Hops;
use super::image::Image;
use super::paths::Paths;
use super::policers::{Policer, PolicerPool};
use super::publish::Publisher;
use super::record::{Plain, Record, Tunnelled};
use super::rule::{self, Draft};
use super::version::{News, UeKey, Version};
use super::{Action, ApplyError, Bucket, SessionUpdate, Settings, Wanted};
use crate::path::PathKey;
use crate::policer::Meter;
use crate::rules::Session;
use crate::seids::BySeid;
use crate::side::{self, PortId, Sides};

pub(super) struct Writer {
    max_sessions: usize,
    sides: Sides,
    publisher: Publisher,
    blocks: Blocks,
    /// Blocks of the sessions in force.
    sessions: BySeid<u32>,
    policers: PolicerPool,
    hops: Hops,
    paths: Paths,
    wanted: Wanted,
}

/// A session's part in a change.
struct Step {
    up_seid: u64,
    home: Bucket,
    /// What it has had, and its block.
    before: Option<(u32, Record)>,
    /// What it gets, with the record as it is written down.
    after: Option<(Record, Vec<u8>, Image)>,
    /// Whether it is in force just as it is to be.
    is_unchanged: bool,
}

/// What there is before the first change.
pub(super) struct Ground {
    blocks: Blocks,
    sessions: BySeid<u32>,
    policers: PolicerPool,
    hops: Hops,
    paths: Paths,
    /// Neighbours that are to be resolved.
    wanted: Vec<(PortId, IpAddr)>,
}

impl Ground {
    /// Takes over what an earlier process has left in `blocks`, and puts it into `version`.
    pub fn new(settings: &Settings, sides: &Sides, mut blocks: Blocks, version: &mut Version) -> Self {
        let mut hops = Hops::new(sides, version);
        let mut paths = Paths::new(sides.clone());
        let mut policers = PolicerPool::new(settings);
        let (mut sessions, mut changes) = (BySeid::default(), vec![]);
        let mut found = blocks.take_over(fits(settings, sides, blocks.name()));
        let mut taken = HashSet::with_capacity(2 * found.len());
        // Of two that say the same the later one counts.
        found.sort_unstable_by_key(|found| std::cmp::Reverse(found.serial));
        for path in found.iter().filter(|found| found.kind == Kind::Path) {
            if !paths.restore(path.block, &path.record, blocks.end(), &mut hops) {
                blocks.free(path.block);
            }
        }
        for found in found.iter().filter(|found| found.kind == Kind::Session) {
            let record = Record::unpack(&found.record).filter(|record| {
                let is_new = !sessions.contains_key(&record.up_seid) && sessions.len() < settings.max_sessions;
                is_new
                    && record.keys().all(|key| !taken.contains(&key))
                    && record.paths.iter().all(|path| paths.has(*path))
            });
            let body = blocks.body(found.block).0;
            let lines = blocks.lines();
            let are_here =
                |record: &Record| record.lists(body).all(|list| rule::block(lines.lines(), list) == Some(found.block));
            let record = record.filter(are_here);
            let Some(record) = record.filter(|record| policers.restore(record)) else {
                blocks.free(found.block);
                continue;
            };
            taken.extend(record.keys());
            record.paths.iter().for_each(|path| paths.pin_again(*path));
            record.put_in(body, &mut changes);
            changes.drain(..).for_each(|change| version.make(change));
            sessions.insert(record.up_seid, found.block);
        }
        policers.settle();
        let left = paths.settle(&mut hops, &mut blocks, &mut changes);
        left.into_iter().for_each(|block| blocks.free(block));
        let wanted = hops.settle(&mut changes);
        changes.into_iter().for_each(|change| version.make(change));
        Self { blocks, sessions, policers, hops, paths, wanted }
    }
}

/// A number by which blocks of other surroundings, or of another store, are told apart.
fn fits(settings: &Settings, sides: &Sides, store: u64) -> u64 {
    // Fixed keys: it is another process that compares.
    let mut hasher = std::hash::DefaultHasher::new();
    (store, settings.policer_burst_ms, settings.workers).hash(&mut hasher);
    for (port, side) in sides.iter() {
        (port, side.kind, &side.name, side.mtu, &side.addresses, &side.network_instances).hash(&mut hasher);
        (side.gateways(), side.has_nat()).hash(&mut hasher);
    }
    hasher.finish()
}

impl Writer {
    pub fn new(settings: &Settings, sides: Sides, ground: Ground, publisher: Publisher, wanted: Wanted) -> Self {
        let Ground { blocks, sessions, policers, hops, paths, wanted: neighbours } = ground;
        neighbours.into_iter().for_each(|(port, address)| wanted(port, address));
        let max_sessions = settings.max_sessions;
        Self { max_sessions, sides, publisher, blocks, sessions, policers, hops, paths, wanted }
    }

    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    pub fn up_seids(&self) -> Vec<u64> {
        self.sessions.keys().collect()
    }

    pub fn in_force(&self) -> &Version {
        self.publisher.version()
    }

    pub fn version(&self) -> u64 {
        self.publisher.serial()
    }

    pub fn session_of(&self, ue: IpAddr) -> Option<u64> {
        // In the first data network that has it: whoever means another one names the session.
        let owner = |ue: UeKey| self.sides.iter().find_map(|(port, _)| self.publisher.version().owner_of_ue(port, ue));
        match ue {
            IpAddr::V4(address) => {
                let net = |len| UeKey::V4Net(address.to_bits() & side::mask(false, len) as u32, len);
                let exact = owner(UeKey::V4(address.to_bits()));
                exact.or_else(|| (0..=32).rev().find_map(|len| owner(net(len))))
            }
            IpAddr::V6(address) => {
                let key = |len| UeKey::V6(address.to_bits() & side::mask(true, len), len);
                (0..=128).rev().find_map(|len| owner(key(len)))
            }
        }
    }

    pub fn home_of(&self, up_seid: u64) -> Option<Bucket> {
        self.sessions.get(&up_seid).map(|&block| self.blocks.home(block))
    }

    pub fn leads_to(&self, port: PortId, address: IpAddr) -> bool {
        self.hops.is_pinned(port, address)
    }

    pub fn has_teid(&self, teid: u32) -> bool {
        self.publisher.version().by_teid(teid).is_some()
    }

    /// Puts the updates into force.
    pub fn apply(&mut self, updates: Vec<SessionUpdate>) -> Result<(), ApplyError> {
        let updates = last_of_each(updates);
        self.check(&updates)?;
        let (mut changes, mut news) = (Vec::new(), Vec::new());
        let steps: Vec<_> = updates.iter().map(|(&seid, update)| self.step(seid, update.as_ref(), &mut news)).collect();
        if let Err(error) = self.provide(&steps) {
            steps.iter().for_each(|step| self.undo(step));
            self.paths.forget_fresh(&mut self.hops);
            return Err(error);
        }
        // What stays as it was is not touched; what it has pinned twice is let go of once.
        let (unchanged, changed): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.is_unchanged);
        unchanged.iter().for_each(|step| self.retire(step));
        // Everything is taken out first, so that what moves from one session to another ends up where it belongs.
        for (_, record) in changed.iter().filter_map(|step| step.before.as_ref()) {
            record.take_out(&mut changes);
        }
        let mut left = vec![];
        for step in &changed {
            match &step.after {
                Some((record, packed, image)) => {
                    let block = self.blocks.put(Kind::Session, step.home, packed, image);
                    record.put_in(self.blocks.body(block).0, &mut changes);
                    self.sessions.insert(step.up_seid, block);
                }
                None => {
                    self.sessions.remove(&step.up_seid);
                }
            }
            left.extend(step.before.as_ref().map(|(block, _)| *block));
            self.retire(step);
        }
        left.extend(self.paths.settle(&mut self.hops, &mut self.blocks, &mut changes));
        let wanted = self.hops.settle(&mut changes);
        let result = match changes.is_empty() && news.is_empty() {
            true => Ok(()),
            false => self.publisher.publish(&changes, news),
        };
        // No worker sees them any more.
        left.into_iter().for_each(|block| self.blocks.free(block));
        wanted.into_iter().for_each(|(port, address)| (self.wanted)(port, address));
        result
    }

    pub fn set_neighbours(&mut self, neighbours: &[(PortId, IpAddr, Option<[u8; 6]>)]) -> Result<(), ApplyError> {
        let mut changes = Vec::new();
        for &(port, address, mac) in neighbours {
            self.hops.set(port, address, mac, &mut changes);
        }
        if !changes.is_empty() {
            self.paths.follow(&self.hops, &mut changes);
        }
        if changes.is_empty() { Ok(()) } else { self.publisher.publish(&changes, vec![]) }
    }

    /// Everything that could be wrong, before anything is changed.
    fn check(&self, updates: &HashMap<u64, Option<Session>>) -> Result<(), ApplyError> {
        let mut teids = HashSet::new();
        let mut ues = HashSet::new();
        let mut policers = 0;
        // An owner that is itself updated has given up what it had.
        let version = self.publisher.version();
        let taken = |owner: Option<u64>| owner.is_some_and(|owner| !updates.contains_key(&owner));
        for session in updates.values().flatten() {
            compile::check(session)?;
            for teid in compile::teids(session) {
                if taken(version.owner_of_teid(teid)) || !teids.insert(teid) {
                    return Err(ApplyError::TeidInUse(teid));
                }
            }
            for ue in compile::ues(session, &self.sides) {
                if taken(version.owner_of_ue(ue.0, ue.1)) || !ues.insert(ue) {
                    return Err(ApplyError::UeAddressInUse(address(ue.1)));
                }
            }
            let meters = compile::meters(session);
            if !meters.is_empty() {
                let held = self.record(session.up_seid).map(|(_, record)| record);
                let new = |key: &MeterKey| held.as_ref().is_none_or(|held| held.policer(key).is_none());
                policers += meters.iter().filter(|key| new(key)).count();
            }
        }
        let replaced = updates.keys().filter(|seid| self.sessions.contains_key(seid)).count();
        let sessions = self.sessions.len() - replaced + updates.values().flatten().count();
        if sessions > self.max_sessions || policers > self.policers.free() {
            return Err(ApplyError::Full);
        }
        Ok(())
    }

    /// The session's block, and what it has.
    fn record(&self, up_seid: u64) -> Option<(u32, Record)> {
        let block = *self.sessions.get(&up_seid)?;
        // What an earlier process left was looked at when it was taken over.
        Some((block, Record::unpack(&self.blocks.record(block)).unwrap_or_default()))
    }

    /// Compiles what a session is to be, with all that it needs, and says what workers are to do.
    fn step(&mut self, up_seid: u64, update: Option<&Session>, news: &mut Vec<News>) -> Step {
        let before = self.record(up_seid);
        let had = before.as_ref().map_or(0, |(block, _)| self.blocks.home(*block));
        if update.is_some_and(|session| session.parting.drop_buffered) {
            news.push(News::Discard { up_seid, home: had });
        }
        let (mut home, mut after) = (had, None);
        if let Some(session) = update {
            let before = before.as_ref().map(|(_, record)| record);
            let mut installing = Installing {
                session,
                before,
                policers: &mut self.policers,
                hops: &mut self.hops,
                paths: &mut self.paths,
                record: Record { up_seid, ..Record::default() },
            };
            let compiled = compile::compile(session, &self.sides, &mut installing);
            let (mut record, mut image) = (installing.record, Image::default());
            home = compiled.home;
            news.extend(compiled.end_markers.into_iter().map(|marker| News::EndMarker { marker, home: had }));
            for (teid, rules) in compiled.tunnelled {
                record.buffers |= rules.iter().any(buffers);
                let list = Draft::write_list(&rules, home, &mut image) as u32;
                record.tunnelled.push(Tunnelled { teid, list });
            }
            for downlink in compiled.downlinks {
                record.buffers |= downlink.rules.iter().any(buffers);
                let list = Draft::write_list(&downlink.rules, home, &mut image) as u32;
                record.plain.extend(downlink.ues.into_iter().map(|ue| Plain { port: downlink.port, ue, list }));
            }
            let packed = record.pack();
            // Rules of blocks with an even number of lines, one behind the other, would share half of a cache's sets, or fewer.
            if blocks::lines_of(packed.len(), image.len()).is_multiple_of(2) {
                image.add(1);
            }
            after = Some((record, packed, image));
        }
        if before.as_ref().is_some_and(|(_, record)| record.buffers) {
            news.push(News::Release { up_seid, home: had });
        }
        let is_unchanged = match (&before, &after) {
            (Some((block, before)), Some((after, _, image))) => {
                before == after && self.blocks.home(*block) == home && self.blocks.has_body(*block, image)
            }
            _ => false,
        };
        Step { up_seid, home, before, after, is_unchanged }
    }

    /// Sees to it that there is room for all that is new.
    fn provide(&mut self, steps: &[Step]) -> Result<(), ApplyError> {
        let new = steps.iter().filter(|step| !step.is_unchanged).filter_map(|step| step.after.as_ref());
        let mut lines = self.paths.fresh_lines();
        for (_, packed, image) in new {
            if image.len() > LINES_MOST {
                return Err(ApplyError::TooLarge);
            }
            lines += blocks::lines_of(packed.len(), image.len());
        }
        self.blocks.provide(lines).map_err(|_| ApplyError::Full)
    }

    /// Gives back what a session was to get.
    fn undo(&mut self, step: &Step) {
        let Some((after, ..)) = &step.after else { return };
        let before = step.before.as_ref().map(|(_, record)| record);
        for &(key, policer) in &after.policers {
            if before.is_none_or(|before| before.policer(&key) != Some(policer)) {
                self.policers.give_back(after.manager, key, policer);
            }
        }
        after.paths.iter().for_each(|path| self.paths.unpin(*path));
    }

    /// Gives back what a session held before and does not hold now.
    fn retire(&mut self, step: &Step) {
        let Some((_, before)) = &step.before else { return };
        let now = step.after.as_ref().map(|(record, ..)| record);
        for &(key, policer) in &before.policers {
            if now.is_none_or(|now| now.policer(&key) != Some(policer)) {
                self.policers.give_back(before.manager, key, policer);
            }
        }
        before.paths.iter().for_each(|path| self.paths.unpin(*path));
    }
}

/// So that everything in a block is within reach of 16 bits.
const LINES_MOST: usize = 60_000;

fn buffers(rule: &Draft) -> bool {
    matches!(rule.action, Action::Buffer(_))
}

/// The addresses of a key.
fn address(ue: UeKey) -> IpAddr {
    match ue {
        UeKey::V4(bits) | UeKey::V4Net(bits, _) => side::address(false, bits.into()),
        UeKey::V6(bits, _) => side::address(true, bits),
    }
}

/// The last update of each session; none for its removal.
fn last_of_each(updates: Vec<SessionUpdate>) -> HashMap<u64, Option<Session>> {
    let entry = |update| match update {
        SessionUpdate::Put(session) => (session.up_seid, Some(session)),
        SessionUpdate::Remove(seid) => (seid, None),
    };
    updates.into_iter().map(entry).collect()
}

/// A session on its way in.
struct Installing<'w> {
    session: &'w Session,
    before: Option<&'w Record>,
    policers: &'w mut PolicerPool,
    hops: &'w mut Hops,
    paths: &'w mut Paths,
    record: Record,
}

impl Context for Installing<'_> {
    fn meter(&mut self, key: MeterKey, rate: u64) -> Meter {
        // Several PDRs share a QER and with it the policer.
        let policer = self.record.policer(&key).unwrap_or_else(|| {
            let policer = self.policer(key);
            self.record.policers.push((key, policer));
            policer
        });
        self.policers.meter(key, rate, policer)
    }

    fn path(&mut self, key: PathKey) -> u32 {
        let path = self.paths.pin(key, self.hops);
        self.record.paths.push(path);
        path
    }
}

impl Installing<'_> {
    /// The policer that the session has had, or one that it shares with others, or a new one.
    fn policer(&mut self, key: MeterKey) -> Policer {
        let manager = self.session.cp_f_seid.address;
        let held = self.before.and_then(|before| before.policer(&key));
        if key.correlated {
            self.record.manager = Some(manager);
            let is_held = self.before.is_some_and(|before| before.manager == Some(manager)) && held.is_some();
            return self.policers.share(manager, key, is_held);
        }
        held.unwrap_or_else(|| self.policers.take())
    }
}
