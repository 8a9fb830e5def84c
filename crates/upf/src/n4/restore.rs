//! A node that goes on where another process ended: all of what that one kept, or nothing of it.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, SyncSender};
use std::time::Instant;

use super::answers::Answers;
use super::association::AssociationId;
use super::held::{Found, Held, Open};
use super::journal::{KeptAssociation, Numbers};
use super::{Config, Node, RuleTables};
use crate::clock::Clock;
use crate::seids::BySeid;
use crate::store::{Database, Kind, StoreError};
use crate::tables::SessionUpdate;

/// Sessions that are read, and put in force, together: enough to make the rest of the work small, few enough to lie in the
/// cache, and to take little memory.
const AT_ONCE: usize = 512;
/// So many times as many are read before they are put in force.
const READ_AHEAD: usize = 4;
/// Progress that has sessions taken in is beyond all that has them only seen.
const TAKEN_IN: u64 = 1 << 32;
/// Longer than it takes to restore everything.
const COUNTED_WITHIN_NS: u64 = 60_000_000_000;
/// Requests since the numbers were last kept are fewer than this. There are 2^24 sequence numbers.
const SEQUENCES_AHEAD: u32 = 1 << 23;

/// Why not everything can be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is in it cannot be.
    #[error("{kind:?} {key:#x} is broken: {why}")]
    Broken {
        /// Kind of thing.
        kind: Kind,
        /// Its number.
        key: u64,
        /// What is wrong.
        why: String,
    },
    /// The last changes are not in the store.
    #[error("the last changes are missing")]
    Lost,
    /// More than there may be.
    #[error("{found} sessions are more than the {most} that are allowed now")]
    TooMany {
        /// Sessions in the store.
        found: usize,
        /// Sessions that may be.
        most: usize,
    },
    /// Processes before have died of it.
    #[error("{0}")]
    Deadly(String),
    /// TEIDs do not fit.
    #[error("TEIDs in use do not fit the tables")]
    Teids,
}

/// What is left where not everything could be restored.
#[derive(Debug)]
pub struct NotRestored<T> {
    /// Why.
    pub error: RestoreError,
    /// As it was given.
    pub config: Config,
    /// As they were.
    pub tables: T,
}

fn broken(kind: Kind, key: u64, why: impl std::fmt::Display) -> RestoreError {
    RestoreError::Broken { kind, key, why: why.to_string() }
}

/// Sessions as they were read, or why they cannot be.
type Read = Vec<(u64, postcard::Result<Found>)>;

/// What sessions have that no other one may have.
#[derive(Default)]
struct Taken {
    places: BTreeSet<u32>,
    teids: BTreeSet<u32>,
}

/// Reads all sessions.
fn read_sessions(database: &Database, to: &SyncSender<Read>) -> Result<(), StoreError> {
    let mut some = Read::with_capacity(AT_ONCE);
    database.each(Kind::Session, |up_seid, value| {
        some.push((up_seid, Found::read(value)));
        if some.len() == AT_ONCE {
            // Fails when something was wrong with those before.
            let _ = to.send(std::mem::replace(&mut some, Read::with_capacity(AT_ONCE)));
        }
    })?;
    let _ = to.send(some);
    Ok(())
}

fn read<'v, V: serde::Deserialize<'v>>(kind: Kind, key: u64, value: &'v [u8]) -> Result<V, RestoreError> {
    postcard::from_bytes(value).map_err(|error| broken(kind, key, error))
}

impl<T: RuleTables> Node<T> {
    /// A node with everything that is in `database`, its sessions in force; or else nothing has happened, and a new node
    /// can be made of what is handed back.
    pub fn restore(
        config: Config,
        tables: T,
        clock: Clock,
        database: &Database,
        begun: Result<(), String>,
        now: Instant,
    ) -> Result<Self, Box<NotRestored<T>>> {
        let mut node = Self::new(config, tables, clock);
        node.tables.set_incomplete(true);
        let taken_in = begun.map_err(RestoreError::Deadly).and_then(|()| node.take_in(database, now));
        node.tables.set_incomplete(false);
        match taken_in {
            Ok(()) => Ok(node),
            Err(error) => {
                node.drop_everything();
                Err(Box::new(NotRestored { error, config: node.config, tables: node.tables }))
            }
        }
    }

    fn take_in(&mut self, database: &Database, now: Instant) -> Result<(), RestoreError> {
        self.take_in_numbers(database)?;
        self.take_in_associations(database, now)?;
        if let Some(value) = database.get(Kind::Applications, 0)? {
            self.applications.take_in(read(Kind::Applications, 0, &value)?);
        }
        self.take_in_sessions(database, now)?;
        let now_ns = self.clock.ns(now);
        for (key, value) in database.all(Kind::Answer)? {
            let answer = read(Kind::Answer, key, &value)?;
            self.answers.take_in(key, answer, &self.clock, now_ns);
        }
        for (key, value) in database.all(Kind::Report)? {
            let sequence = u32::try_from(key).map_err(|error| broken(Kind::Report, key, error))?;
            self.outbox.take_in(sequence, read(Kind::Report, key, &value)?, now);
        }
        Ok(())
    }

    fn take_in_numbers(&mut self, database: &Database) -> Result<(), RestoreError> {
        let committed = self.counters.committed();
        // Without them nothing was ever kept.
        let Some(value) = database.get(Kind::Numbers, 0)?.filter(|_| committed > 0) else {
            return if committed > 0 { Err(RestoreError::Lost) } else { Ok(()) };
        };
        let numbers: Numbers = read(Kind::Numbers, 0, &value)?;
        // A database with a broken page in its last commit goes back to the one before.
        if numbers.change < committed {
            return Err(RestoreError::Lost);
        }
        self.journal.restored = numbers.change;
        self.last_association = numbers.last_association;
        self.last_seid = numbers.last_seid;
        // Peers may still have answers to the last requests, heartbeats among them, and would send them again.
        self.outbox.go_on_from(numbers.last_sequence.wrapping_add(SEQUENCES_AHEAD));
        self.answers = Answers::new(self.config.limits, numbers.digest);
        Ok(())
    }

    fn take_in_associations(&mut self, database: &Database, now: Instant) -> Result<(), RestoreError> {
        for (key, value) in database.all(Kind::Association)? {
            let kept: KeptAssociation = read(Kind::Association, key, &value)?;
            // Heartbeats go on at once: whoever waits for one has waited long enough.
            let association = kept.association(AssociationId(key), now);
            self.managers.associated(association.peer.ip());
            self.associations.insert(AssociationId(key), association);
        }
        Ok(())
    }

    fn take_in_sessions(&mut self, database: &Database, now: Instant) -> Result<(), RestoreError> {
        let mut given = vec![];
        for (key, value) in database.all(Kind::Teid)? {
            given.push(read::<u32>(Kind::Teid, key, &value)?);
        }
        let (found, most) = (database.count(Kind::Session)? as usize, self.config.limits.sessions);
        if found > most {
            return Err(RestoreError::TooMany { found, most });
        }
        given.sort_unstable();
        // Workers are to know which TEIDs are of the UPF's choice; which of them are in use comes to light.
        if !self.tables.claim_teids(&given, &given) {
            return Err(RestoreError::Teids);
        }
        self.counters.head().progress(0);
        self.leave_alone(database)?;
        let mut taken = Taken::default();
        std::thread::scope(|scope| {
            // While some are put in force the next ones are read.
            let (read, sessions) = mpsc::sync_channel(READ_AHEAD);
            let reader = scope.spawn(move || read_sessions(database, &read));
            for some in sessions {
                self.take_in_some(some, &given, &mut taken, now)?;
            }
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(RestoreError::from)
        })?;
        self.counters.settle(&Vec::from_iter(taken.places));
        if self.tables.claim_teids(&given, &Vec::from_iter(taken.teids)) { Ok(()) } else { Err(RestoreError::Teids) }
    }

    /// Puts sessions in force that were read.
    fn take_in_some(&mut self, some: Read, given: &[u32], taken: &mut Taken, now: Instant) -> Result<(), RestoreError> {
        // Workers of the process before may count while this one reads.
        let now_ns = self.clock.ns(now) + COUNTED_WITHIN_NS;
        let head = self.counters.head();
        let seids: Vec<_> = some.iter().map(|(up_seid, _)| *up_seid).collect();
        let mut updates = Vec::with_capacity(some.len());
        for (up_seid, found) in some {
            let failed = |why: String| broken(Kind::Session, up_seid, why);
            let found = found.map_err(|error| failed(error.to_string()))?;
            let (one, open) =
                Held::found(found, up_seid, &self.counters, &mut self.patterns, &mut taken.places, now_ns)
                    .map_err(failed)?;
            self.check_found(up_seid, &open).map_err(|why| failed(why.into()))?;
            let is_given = |teid: &u32| given.binary_search(teid).is_ok();
            if !open.teids.iter().all(|teid| is_given(teid) && taken.teids.insert(*teid)) {
                return Err(RestoreError::Teids);
            }
            updates.push(SessionUpdate::Put(open.session(up_seid, &self.config)));
            self.list(up_seid, &open.contents);
            self.applications.learn(&open.contents);
            self.settle_addresses(&BTreeSet::new(), &open.contents, &[]);
            self.timers.extend(one.timer_ns().map(|at_ns| (at_ns, up_seid)));
            self.sessions.insert(up_seid, one);
            head.progress(TAKEN_IN + self.sessions.len() as u64);
        }
        self.tables.apply(updates).or_else(|_| self.put_in_force_again(&seids))
    }

    /// Takes out of force what was left in force and is not in the store: requests that nobody was answered.
    fn leave_alone(&self, database: &Database) -> Result<(), RestoreError> {
        let mut left: BTreeSet<_> = self.tables.up_seids().into_iter().collect();
        let (head, mut seen) = (self.counters.head(), 0);
        if !left.is_empty() {
            database.each(Kind::Session, |up_seid, _| {
                left.remove(&up_seid);
                seen += 1;
                head.progress(seen);
            })?;
        }
        self.remove(left.into_iter().collect())
    }

    /// What was left in force of sessions that are still to be restored may be later than the store, and in the way of these.
    fn put_in_force_again(&self, seids: &[u64]) -> Result<(), RestoreError> {
        let left = self.tables.up_seids().into_iter().filter(|seid| !self.sessions.contains_key(seid));
        self.remove(left.collect())?;
        let held = seids.iter().filter_map(|&seid| Some((seid, self.sessions.get(&seid)?)));
        let put = |(seid, held): (u64, &Held)| SessionUpdate::Put(held.open().session(seid, &self.config));
        let first = seids.first().copied().unwrap_or_default();
        self.tables.apply(held.map(put).collect()).map_err(|error| broken(Kind::Session, first, error))
    }

    fn remove(&self, seids: Vec<u64>) -> Result<(), RestoreError> {
        let first = seids.first().copied().unwrap_or_default();
        let updates = seids.into_iter().map(SessionUpdate::Remove).collect();
        self.tables.apply(updates).map_err(|error| broken(Kind::Session, first, error))
    }

    /// Whether the session is one that could have been set up by now.
    fn check_found(&self, up_seid: u64, open: &Open) -> Result<(), &'static str> {
        if up_seid > self.last_seid {
            return Err("its SEID was not given out yet");
        }
        if !self.associations.contains_key(&open.owner.association) {
            return Err("its association is not there");
        }
        open.contents.check(self.surroundings()).map_err(|_| "its rules do not fit the configuration")
    }

    /// Back to where nothing was.
    fn drop_everything(&mut self) {
        if let Err(error) = self.remove(self.tables.up_seids()) {
            tracing::error!(%error, "cannot remove sessions from the tables");
        }
        // Their counters are nobody's from here on.
        self.sessions = BySeid::default();
        self.tables.claim_teids(&[], &[]);
    }
}
