//! What is in force, from the point of view of whoever changes it: who owns which TEID and address, which policers and
//! neighbours are in use.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use super::compile::{self, Context, MeterKey};
use super::publish::Publisher;
use super::version::{Change, Hop, News, Rules, UeKey, Version};
use super::{Action, ApplyError, Bucket, Rule, SessionUpdate, Settings, Wanted};
use crate::policer::Meter;
use crate::rules::Session;
use crate::seids::BySeid;
use crate::side::{self, PortId, Sides};

pub(super) struct Writer {
    max_sessions: usize,
    workers: usize,
    sides: Sides,
    publisher: Publisher,
    sessions: BySeid<Packed>,
    policers: PolicerPool,
    hops: Hops,
    wanted: Wanted,
}

/// What a session has taken. It rests packed.
#[derive(Default, Serialize, Deserialize)]
struct Installed {
    /// Its bucket. The first, so that it can be read without the rest.
    home: Bucket,
    /// With whether the TEID is of the UPF's choice.
    teids: Vec<(u32, bool)>,
    ues: Vec<(PortId, UeKey)>,
    policers: Vec<(MeterKey, Policer)>,
    /// Whose correlation IDs its QERs have.
    manager: Option<IpAddr>,
    /// Neighbours that its tunnels lead to, as often as they do.
    hops: Vec<u32>,
    /// Whether packets may wait.
    buffers: bool,
}

/// An [`Installed`], in postcard's encoding.
struct Packed(Box<[u8]>);

impl Packed {
    fn of(installed: &Installed) -> Self {
        Self(postcard::to_allocvec(installed).expect("nothing in it is of unknown length").into())
    }

    fn open(&self) -> Installed {
        postcard::from_bytes(&self.0).expect("packed here")
    }

    fn home(&self) -> Bucket {
        self.0[0]
    }
}

impl Installed {
    fn policer(&self, key: &MeterKey) -> Option<Policer> {
        self.policers.iter().find(|(other, _)| other == key).map(|(_, policer)| *policer)
    }
}

/// A policer in use.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Policer {
    index: u32,
    generation: u32,
}

impl Writer {
    pub fn new(settings: &Settings, sides: Sides, hops: Hops, publisher: Publisher, wanted: Wanted) -> Self {
        Self {
            max_sessions: settings.max_sessions,
            workers: settings.workers,
            hops,
            sides,
            publisher,
            sessions: BySeid::default(),
            policers: PolicerPool::new(settings),
            wanted,
        }
    }

    pub fn sessions(&self) -> usize {
        self.sessions.len()
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

    pub fn worker_of(&self, up_seid: u64) -> Option<usize> {
        let home = self.sessions.get(&up_seid)?.home();
        (self.workers > 0).then(|| usize::from(home) % self.workers)
    }

    pub fn has_teid(&self, teid: u32) -> bool {
        self.publisher.version().by_teid(teid).is_some()
    }

    /// Puts the updates into force. `own` tells which TEIDs are of the UPF's choice.
    pub fn apply(&mut self, updates: Vec<SessionUpdate>, own: &dyn Fn(u32) -> bool) -> Result<(), ApplyError> {
        let updates = last_of_each(updates);
        self.check(&updates)?;
        let (mut changes, mut news) = (Vec::new(), Vec::new());
        // Everything is taken out first, so that what moves from one session to another ends up where it belongs.
        let mut former: HashMap<u64, Installed> = HashMap::new();
        for seid in updates.keys() {
            if let Some(installed) = self.sessions.remove(seid).map(|packed| packed.open()) {
                take_out(&installed, &mut changes);
                former.insert(*seid, installed);
            }
        }
        for (seid, update) in &updates {
            let before = former.remove(seid).unwrap_or_default();
            let (up_seid, home) = (*seid, before.home);
            if update.as_ref().is_some_and(|session| session.parting.drop_buffered) {
                news.push(News::Discard { up_seid, home });
            }
            if let Some(session) = update {
                self.put_in(session, &before, own, &mut changes, &mut news);
            }
            if before.buffers {
                news.push(News::Release { up_seid, home });
            }
            self.retire(*seid, before);
        }
        let wanted = self.hops.settle(&mut changes);
        let result = self.publisher.publish(&changes, news);
        wanted.into_iter().for_each(|(port, address)| (self.wanted)(port, address));
        result
    }

    pub fn set_neighbours(&mut self, neighbours: &[(PortId, IpAddr, Option<[u8; 6]>)]) -> Result<(), ApplyError> {
        let mut changes = Vec::new();
        for &(port, address, mac) in neighbours {
            self.hops.set(port, address, mac, &mut changes);
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
            let held = self.sessions.get(&session.up_seid).map(Packed::open);
            let new = |key: &MeterKey| held.as_ref().is_none_or(|held| held.policer(key).is_none());
            policers += compile::meters(session).iter().filter(|key| new(key)).count();
        }
        self.policers.check_correlated(updates, &self.sessions)?;
        let replaced = updates.keys().filter(|seid| self.sessions.contains_key(seid)).count();
        let sessions = self.sessions.len() - replaced + updates.values().flatten().count();
        if sessions > self.max_sessions || policers > self.policers.free() {
            return Err(ApplyError::Full);
        }
        Ok(())
    }

    fn put_in(
        &mut self,
        session: &Session,
        before: &Installed,
        own: &dyn Fn(u32) -> bool,
        changes: &mut Vec<Change>,
        news: &mut Vec<News>,
    ) {
        let mut installing = Installing {
            session,
            before,
            policers: &mut self.policers,
            hops: &mut self.hops,
            installed: Installed::default(),
        };
        let compiled = compile::compile(session, &self.sides, &mut installing);
        let mut installed = installing.installed;
        let home = compiled.home;
        installed.home = home;
        installed.buffers = compiled.downlinks.iter().flat_map(|downlink| &downlink.rules).any(buffers);
        news.extend(compiled.end_markers.into_iter().map(|marker| News::EndMarker { marker, home: before.home }));
        let rules = |rules: Vec<_>| Some(Rules { rules: Arc::from(rules), home: compiled.home });
        for (teid, tunnelled) in compiled.tunnelled {
            let own = own(teid);
            installed.teids.push((teid, own));
            let rules = rules(tunnelled);
            changes.push(if own { Change::Teid(teid, rules) } else { Change::OtherTeid(teid, rules) });
        }
        for downlink in compiled.downlinks {
            let rules = rules(downlink.rules);
            for ue in downlink.ues {
                installed.ues.push((downlink.port, ue));
                changes.push(Change::Ue(downlink.port, ue, rules.clone()));
            }
        }
        self.sessions.insert(session.up_seid, Packed::of(&installed));
    }

    /// Gives back what a session held before and does not hold now.
    fn retire(&mut self, seid: u64, before: Installed) {
        let now = if before.policers.is_empty() { None } else { self.sessions.get(&seid).map(Packed::open) };
        for (key, policer) in before.policers {
            if now.as_ref().is_none_or(|now| now.policer(&key) != Some(policer)) {
                self.policers.give_back(before.manager, key, policer);
            }
        }
        before.hops.into_iter().for_each(|hop| self.hops.unpin(hop));
    }
}

fn take_out(installed: &Installed, changes: &mut Vec<Change>) {
    for &(teid, own) in &installed.teids {
        changes.push(if own { Change::Teid(teid, None) } else { Change::OtherTeid(teid, None) });
    }
    for &(port, ue) in &installed.ues {
        changes.push(Change::Ue(port, ue, None));
    }
}

fn buffers(rule: &Rule) -> bool {
    matches!(rule.action(), Action::Buffer(_))
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
    before: &'w Installed,
    policers: &'w mut PolicerPool,
    hops: &'w mut Hops,
    installed: Installed,
}

impl Context for Installing<'_> {
    fn meter(&mut self, key: MeterKey, rate: u64) -> Meter {
        // Several PDRs share a QER and with it the policer.
        let policer = self.installed.policer(&key).unwrap_or_else(|| {
            let policer = self.policer(key);
            self.installed.policers.push((key, policer));
            policer
        });
        Meter::new(rate, self.policers.burst_ms, policer.index, policer.generation)
    }

    fn hop(&mut self, port: PortId, address: IpAddr) -> u32 {
        let hop = self.hops.pin(port, address);
        self.installed.hops.push(hop);
        hop
    }
}

impl Installing<'_> {
    /// The policer that the session has had, or one that it shares with others, or a new one.
    fn policer(&mut self, key: MeterKey) -> Policer {
        let manager = self.session.cp_f_seid.address;
        if key.correlated {
            self.installed.manager = Some(manager);
            let is_held = self.before.manager == Some(manager) && self.before.policer(&key).is_some();
            return self.policers.share(manager, key, compile::home_of(self.session), is_held);
        }
        self.before.policer(&key).unwrap_or_else(|| self.policers.take())
    }
}

/// Policers in use and free. A freed policer gets another generation, by which workers notice that it starts anew.
struct PolicerPool {
    burst_ms: u32,
    generations: Vec<u32>,
    max: usize,
    freed: Vec<u32>,
    workers: usize,
    /// Those that several sessions of a session manager share, by its address.
    shared: HashMap<(IpAddr, MeterKey), Shared>,
}

/// A policer that sessions share: those of one worker, as its state belongs to one.
struct Shared {
    policer: Policer,
    sessions: u32,
    worker: usize,
}

impl PolicerPool {
    fn new(settings: &Settings) -> Self {
        Self {
            burst_ms: settings.policer_burst_ms,
            generations: vec![],
            max: settings.max_policers(),
            freed: vec![],
            workers: settings.workers.max(1),
            shared: HashMap::new(),
        }
    }

    fn worker(&self, home: Bucket) -> usize {
        usize::from(home) % self.workers
    }

    /// Whether sessions that share a policer will belong to one worker.
    fn check_correlated(
        &self,
        updates: &HashMap<u64, Option<Session>>,
        sessions: &BySeid<Packed>,
    ) -> Result<(), ApplyError> {
        let mut claims: HashMap<(IpAddr, MeterKey), usize> = HashMap::new();
        for session in updates.values().flatten() {
            let worker = self.worker(compile::home_of(session));
            for key in compile::meters(session).into_iter().filter(|key| key.correlated) {
                let name = (session.cp_f_seid.address, key);
                if *claims.entry(name).or_insert(worker) != worker {
                    return Err(ApplyError::OtherWorker(key.id));
                }
            }
        }
        for ((manager, key), worker) in claims {
            let Some(shared) = self.shared.get(&(manager, key)).filter(|shared| shared.worker != worker) else {
                continue;
            };
            let has = |held: &Installed| held.manager == Some(manager) && held.policer(&key).is_some();
            let moving = updates.keys().filter_map(|seid| sessions.get(seid)).map(Packed::open).filter(has).count();
            if moving < shared.sessions as usize {
                return Err(ApplyError::OtherWorker(key.id));
            }
        }
        Ok(())
    }

    /// The policer that sessions of `manager` share, for one with this home; `is_held` if the session has had it before.
    fn share(&mut self, manager: IpAddr, key: MeterKey, home: Bucket, is_held: bool) -> Policer {
        let worker = self.worker(home);
        if !self.shared.contains_key(&(manager, key)) {
            let policer = self.take();
            self.shared.insert((manager, key), Shared { policer, sessions: 0, worker });
        }
        let shared = self.shared.get_mut(&(manager, key)).expect("it is there now");
        shared.sessions += u32::from(!is_held);
        shared.worker = worker;
        shared.policer
    }

    fn free(&self) -> usize {
        self.max - self.generations.len() + self.freed.len()
    }

    /// # Panics
    /// If none is free.
    fn take(&mut self) -> Policer {
        let index = self.freed.pop().unwrap_or_else(|| {
            assert!(self.generations.len() < self.max, "checked before anything was changed");
            self.generations.push(0);
            self.generations.len() as u32 - 1
        });
        let generation = &mut self.generations[index as usize];
        // 0 is the generation of a state that nobody has used.
        *generation = generation.checked_add(1).unwrap_or(1);
        Policer { index, generation: *generation }
    }

    /// A session of `manager` does not use the policer any more.
    fn give_back(&mut self, manager: Option<IpAddr>, key: MeterKey, policer: Policer) {
        if let Some(manager) = manager.filter(|_| key.correlated)
            && let Some(shared) = self.shared.get_mut(&(manager, key))
        {
            shared.sessions -= 1;
            if shared.sessions > 0 {
                return;
            }
            self.shared.remove(&(manager, key));
        }
        self.freed.push(policer.index);
    }
}

/// Neighbours by port and address. Those that tunnels or routes lead to are pinned, and keep their index.
pub(super) struct Hops {
    /// The ports' own.
    macs: Vec<[u8; 6]>,
    entries: Vec<Entry>,
    by_address: HashMap<(PortId, IpAddr), u32>,
    free: Vec<u32>,
    /// Not yet published.
    fresh: Vec<u32>,
    /// Perhaps no longer needed.
    loose: Vec<u32>,
}

struct Entry {
    hop: Hop,
    pins: u32,
}

impl Hops {
    /// No neighbours but the gateways of data networks, which `version` gets to know.
    pub fn new(sides: &Sides, version: &mut Version) -> Self {
        let mut hops = Self::empty(sides.iter().map(|(_, side)| side.mac).collect());
        for (port, side) in sides.iter().filter(|(_, side)| !side.kind.has_tunnels()) {
            version.set_gateways(port, side.gateways().iter().map(|&gateway| hops.pin(port, gateway)).collect());
        }
        let mut changes = Vec::new();
        hops.settle(&mut changes);
        changes.into_iter().for_each(|change| version.make(change));
        hops
    }

    fn empty(macs: Vec<[u8; 6]>) -> Self {
        Self { macs, entries: vec![], by_address: HashMap::new(), free: vec![], fresh: vec![], loose: vec![] }
    }

    fn pin(&mut self, port: PortId, address: IpAddr) -> u32 {
        let index = match self.by_address.get(&(port, address)) {
            Some(&index) => index,
            None => self.add(port, address),
        };
        self.entries[index as usize].pins += 1;
        index
    }

    fn unpin(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.pins -= 1;
        if entry.pins == 0 {
            self.loose.push(index);
        }
    }

    fn add(&mut self, port: PortId, address: IpAddr) -> u32 {
        let entry = Entry { hop: Hop { port, address, ethernet: None }, pins: 0 };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.by_address.insert((port, address), index);
        self.fresh.push(index);
        index
    }

    /// Adds to `changes` what pinning and unpinning came to, and returns the neighbours that are to be resolved.
    fn settle(&mut self, changes: &mut Vec<Change>) -> Vec<(PortId, IpAddr)> {
        let mut wanted = Vec::new();
        let mut before = Vec::new();
        for index in std::mem::take(&mut self.fresh) {
            let entry = &self.entries[index as usize];
            before.push(Change::Hop(index, entry.hop));
            before.push(Change::Neighbour(entry.hop.port, entry.hop.address, Some(index)));
            wanted.push((entry.hop.port, entry.hop.address));
        }
        // Rules may name a hop only once it is there.
        changes.splice(0..0, before);
        for index in std::mem::take(&mut self.loose) {
            // A resolved neighbour stays until the slow path forgets it.
            let entry = &self.entries[index as usize];
            if entry.pins == 0 && entry.hop.ethernet.is_none() {
                self.remove(index, changes);
            }
        }
        wanted
    }

    fn set(&mut self, port: PortId, address: IpAddr, mac: Option<[u8; 6]>, changes: &mut Vec<Change>) {
        let own = self.macs[port.number()];
        let ethernet = mac.map(|mac| std::array::from_fn(|at| if at < 6 { mac[at] } else { own[at - 6] }));
        let index = match (self.by_address.get(&(port, address)), ethernet) {
            (Some(&index), _) => index,
            (None, Some(_)) => self.add(port, address),
            (None, None) => return,
        };
        let fresh = self.fresh.pop().is_some();
        let entry = &mut self.entries[index as usize];
        if entry.hop.ethernet == ethernet && !fresh {
            return;
        }
        entry.hop.ethernet = ethernet;
        changes.push(Change::Hop(index, entry.hop));
        if fresh {
            changes.push(Change::Neighbour(port, address, Some(index)));
        }
        if ethernet.is_none() && entry.pins == 0 {
            self.remove(index, changes);
        }
    }

    fn remove(&mut self, index: u32, changes: &mut Vec<Change>) {
        let entry = &self.entries[index as usize];
        self.by_address.remove(&(entry.hop.port, entry.hop.address));
        changes.push(Change::Neighbour(entry.hop.port, entry.hop.address, None));
        self.free.push(index);
    }
}
