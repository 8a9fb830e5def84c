//! What is in force, from the point of view of whoever changes it.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use hashbrown::{HashMap, HashSet};
use vport::tally::LINE_WORDS;

use super::blocks::{self, Blocks, Kind};
use super::compile::{self, Context, MeterKey};
use super::hops::Hops;
use super::image::Image;
use super::paths::Paths;
use super::policers::{Policer, SharedPolicers};
use super::publish::Publisher;
use super::record::{Plain, Record, Tunnelled};
use super::rule::{self, Draft, Policing};
use super::version::{News, UeKey, Version};
use super::{Action, ApplyError, Bucket, SessionUpdate, Settings, Wanted};
use crate::path::PathKey;
use crate::policer::{FULL, fill};
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
    /// Blocks that the last two versions left. Their policers are looked at by whoever has the news of such a version done, which may
    /// come with a bucket on its way to a worker that has both.
    left: [Vec<u32>; 2],
    policers: SharedPolicers,
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
    policers: SharedPolicers,
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
        let mut policers = SharedPolicers::new(settings.max_shared_policers());
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
            let record = record.filter(|record| is_whole(record, found.block, &blocks, version));
            let Some(record) = record.filter(|record| policers.restore(record)) else {
                blocks.free(found.block);
                continue;
            };
            taken.extend(record.keys());
            record.paths.iter().for_each(|path| paths.pin_again(*path));
            // What was left in its buckets was right at another time.
            let words = blocks.words(found.block);
            let tokens = record.policers.iter().filter_map(|&(_, word)| words.get(word as usize..)?.first_chunk());
            tokens.for_each(fill);
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

/// Whether what a block's record names is in the block, and its rules charge no policers but these.
fn is_whole(record: &Record, block: u32, blocks: &Blocks, version: &Version) -> bool {
    let (body, words) = (blocks.body(block).0, blocks.words(block).len());
    let is_own = |word: usize| {
        let of_body = word.checked_sub(body as usize * LINE_WORDS);
        record.policers.iter().any(|&(_, own)| of_body == Some(own as usize))
    };
    let is_shared = |word: u64| record.shared.iter().any(|(_, policer)| policer.word() == word);
    record.policers.iter().all(|&(_, own)| own as usize + FULL.len() <= words)
        && record.lists(body).all(|list| {
            rule::block(version.lines(), list) == Some(block)
                && version.rules(list).iter().all(|rule| rule.is_policed_by(version, is_own, is_shared))
        })
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
        Self { max_sessions, sides, publisher, blocks, sessions, left: [vec![], vec![]], policers, hops, paths, wanted }
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
        let (mut left, mut carried) = (vec![], vec![]);
        for step in &changed {
            match &step.after {
                Some((record, packed, image)) => {
                    let block = self.blocks.put(Kind::Session, step.home, packed, image);
                    record.put_in(self.blocks.body(block).0, &mut changes);
                    self.carry_over(step, (block, record), &mut carried);
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
        // What waits is held against the policers that go on.
        carried.append(&mut news);
        let result = match changes.is_empty() && carried.is_empty() {
            true => Ok(()),
            false => self.publisher.publish(&changes, carried),
        };
        self.leave(left);
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
            let shared = compile::shared(session);
            if !shared.is_empty() {
                let held = self.record(session.up_seid).map(|(_, record)| record);
                let new = |key: &MeterKey| held.as_ref().is_none_or(|held| held.shared(key).is_none());
                policers += shared.iter().filter(|key| new(key)).count();
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
            let rules = compiled.tunnelled.iter().map(|(_, rules)| rules);
            let rules = rules.chain(compiled.downlinks.iter().map(|downlink| &downlink.rules)).flatten();
            let mut policing = Policing::write(rules, &mut image);
            home = compiled.home;
            news.extend(compiled.end_markers.into_iter().map(|marker| News::EndMarker { marker, home: had }));
            for (teid, rules) in compiled.tunnelled {
                record.buffers |= rules.iter().any(buffers);
                let list = Draft::write_list(&rules, home, &mut policing, &mut image) as u32;
                record.tunnelled.push(Tunnelled { teid, list });
            }
            for downlink in compiled.downlinks {
                record.buffers |= downlink.rules.iter().any(buffers);
                let list = Draft::write_list(&downlink.rules, home, &mut policing, &mut image) as u32;
                record.plain.extend(downlink.ues.into_iter().map(|ue| Plain { port: downlink.port, ue, list }));
            }
            record.policers = policing.into_own();
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
                let is_token =
                    |word| before.policers.iter().any(|&(_, at)| word == at as usize || word == at as usize + 1);
                before == after && self.blocks.home(*block) == home && self.blocks.has_body(*block, image, is_token)
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
        self.give_back(after, step.before.as_ref().map(|(_, record)| record));
        after.paths.iter().for_each(|path| self.paths.unpin(*path));
    }

    /// Gives back what a session held before and does not hold now.
    fn retire(&mut self, step: &Step) {
        let Some((_, before)) = &step.before else { return };
        self.give_back(before, step.after.as_ref().map(|(record, ..)| record));
        before.paths.iter().for_each(|path| self.paths.unpin(*path));
    }

    /// Gives back the policers that a session shares by one record, and not by the other.
    fn give_back(&mut self, one: &Record, other: Option<&Record>) {
        let Some(manager) = one.manager else { return };
        for &(key, policer) in &one.shared {
            if other.is_none_or(|other| other.shared(&key) != Some(policer)) {
                self.policers.give_back(manager, key);
            }
        }
    }

    /// Lets the session's policers go on that it has had and still has.
    fn carry_over(&self, step: &Step, (block, record): (u32, &Record), news: &mut Vec<News>) {
        let Some((former, before)) = &step.before else { return };
        let [from, to] = [*former, block].map(|block| u64::from(self.blocks.body(block).0) * LINE_WORDS as u64);
        let home = self.blocks.home(*former);
        let kept = before.policers.iter().filter_map(|(key, word)| Some((*word, record.policer(key)?)));
        news.extend(kept.map(|(was, is)| News::CarryOver {
            from: from + u64::from(was),
            to: to + u64::from(is),
            home,
        }));
    }

    /// Blocks that no version leads to any more. What the version before the last one left is nobody's now: no worker has news of it yet to
    /// do, as each has taken two versions since.
    fn leave(&mut self, blocks: Vec<u32>) {
        blocks.iter().for_each(|block| self.blocks.retire(*block));
        let [older, old] = std::mem::take(&mut self.left);
        older.into_iter().for_each(|block| self.blocks.free(block));
        self.left = [old, blocks];
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
    policers: &'w mut SharedPolicers,
    hops: &'w mut Hops,
    paths: &'w mut Paths,
    record: Record,
}

impl Context for Installing<'_> {
    fn share(&mut self, key: MeterKey) -> Policer {
        // Several PDRs share a QER and with it the policer.
        self.record.shared(&key).unwrap_or_else(|| {
            let manager = self.session.cp_f_seid.address;
            let has_had = |before: &Record| before.manager == Some(manager) && before.shared(&key).is_some();
            let policer = self.policers.share(manager, key, self.before.is_some_and(has_had));
            self.record.manager = Some(manager);
            self.record.shared.push((key, policer));
            policer
        })
    }

    fn path(&mut self, key: PathKey) -> u32 {
        let path = self.paths.pin(key, self.hops);
        self.record.paths.push(path);
        path
    }
}
