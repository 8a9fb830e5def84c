//! What the UPF keeps, so that its sessions outlive the process: a state directory with a store and a file of counters.
//!
//! ```text
//! sessions.redb   sessions, associations, TEIDs given out, answers, reports that wait: what N4 says, key by key
//! counters        what workers count, mapped (`counters`)
//! tables          the rules by which they forward, mapped (`tables::blocks`): the next process forwards by them at once
//! neighbours      Ethernet addresses of those that packets go to (`acquaintances`)
//! lock            held by the process whose directory it is
//! restoring       how many processes have ended while they read the store, and how far they had got
//! ```
//!
//! The store survives the process, not the host: a commit is durable once the kernel has it, and nothing waits for a disk.
//! So a file that was written before the host started is not believed. Whatever else is wrong with the directory's files,
//! they are put aside (`*.bad`), the log says why, and the UPF starts without sessions, under a new recovery time stamp.

mod backend;
mod database;
mod keeper;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use pfcp::RecoveryTimeStamp;
use serde::{Deserialize, Serialize};

pub use database::{Change, Database, Kind, StoreError};
pub use keeper::{Batch, Keeper};

use crate::clock::{Clock, Origin};
use crate::counters::Counters;
use crate::tables::{Blocks, Memory};

/// Of what is kept, and how. Another number is another format.
const FORMAT: u32 = 4;
/// So many processes may die at the same place of a store before it is put aside.
const ATTEMPTS: u32 = 3;

const STORE: &str = "sessions.redb";
const COUNTERS: &str = "counters";
const TABLES: &str = "tables";
/// The tables of a process that is to take over.
const HEIR_TABLES: &str = "tables.heir";
const NEIGHBOURS: &str = "neighbours";
const LOCK: &str = "lock";
const RESTORING: &str = "restoring";

/// Whose store it is: what peers know the UPF by, and what its sessions build on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Node ID and N4 address, as text.
    pub node: String,
    /// Addresses of tunnels, on N3 and N9, as text.
    pub access: Vec<String>,
}

/// What a store begins with.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Preface {
    format: u32,
    /// Shared with the file of counters that belongs to the store.
    name: u64,
    /// Which start of the host.
    boot: String,
    identity: Identity,
    recovery: u32,
    origin: Origin,
}

/// A state directory in use.
#[derive(Debug)]
pub struct State {
    directory: PathBuf,
    _lock: File,
    identity: Identity,
    preface: Preface,
    database: Database,
    memory: Option<Memory>,
    provenance: Provenance,
}

/// The store, with what its sessions have counted, and their rules as they were last in force.
type Kept = (Preface, Database, Memory);

/// Where a store comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provenance {
    /// It was made, and is empty.
    Created,
    /// An earlier process left it.
    Found,
    /// Another process still forwards by it.
    Inherited,
}

/// Why a state directory cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Two processes would spoil each other's sessions.
    #[error("state directory {0} is in use by another process")]
    InUse(PathBuf),
    /// The system refused.
    #[error("state directory {path}: {error}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// What another process hands over cannot be used. It goes on with it.
    #[error("sessions cannot be taken over: {0}")]
    NotInherited(String),
    /// There is no thread for it.
    #[error("cannot begin to keep sessions: {0}")]
    Thread(io::Error),
    /// A new store cannot be written.
    #[error("cannot make a store in {path}: {error}")]
    Store {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: StoreError,
    },
}

impl State {
    /// Takes the directory, and what an earlier process of the same `identity` left in it. `recovery` is the time stamp of a
    /// UPF that starts without sessions; `sessions` is how many there may be.
    pub fn open(
        directory: &Path,
        identity: Identity,
        sessions: usize,
        recovery: RecoveryTimeStamp,
    ) -> Result<Self, StateError> {
        let failed = |error| StateError::Io { path: directory.into(), error };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::create(directory.join(LOCK)).map_err(failed)?;
        lock.try_lock().map_err(|_| StateError::InUse(directory.into()))?;
        let (kept, provenance) = match find(directory, &identity, sessions, true) {
            Ok(kept) => (kept, Provenance::Found),
            Err(why) => {
                let latest = why.recovery.map_or(recovery.0, |old| recovery.0.max(old.wrapping_add(1)));
                why.tell();
                put_aside(directory, &[STORE, COUNTERS]).map_err(failed)?;
                let (preface, database) = create(directory, &identity, RecoveryTimeStamp(latest), &Clock::new())?;
                let memory = new_memory(directory, sessions, preface.name).map_err(failed)?;
                ((preface, database, memory), Provenance::Created)
            }
        };
        Ok(Self::of(directory, lock, identity, kept, provenance))
    }

    /// Takes the directory over from a process that still forwards by what is in it, and changes nothing.
    pub fn inherit(directory: &Path, identity: Identity, sessions: usize) -> Result<Self, StateError> {
        let failed = |error| StateError::Io { path: directory.into(), error };
        let lock = File::create(directory.join(LOCK)).map_err(failed)?;
        lock.try_lock().map_err(|_| StateError::InUse(directory.into()))?;
        let found = find(directory, &identity, sessions, false);
        let kept = found.map_err(|unfit| StateError::NotInherited(unfit.why))?;
        Ok(Self::of(directory, lock, identity, kept, Provenance::Inherited))
    }

    fn of(directory: &Path, lock: File, identity: Identity, kept: Kept, provenance: Provenance) -> Self {
        let (preface, database, memory) = kept;
        let memory = Some(memory);
        Self { directory: directory.into(), _lock: lock, identity, preface, database, memory, provenance }
    }

    /// Whether another process still forwards by it.
    pub fn is_inherited(&self) -> bool {
        self.provenance == Provenance::Inherited
    }

    /// This process is about to restore what there is, unless those before it have died of that.
    pub fn begin_to_restore(&self) -> Result<(), String> {
        if self.is_inherited() {
            return Ok(());
        }
        count_attempt(&self.directory).map_err(|unfit| unfit.why)
    }

    /// Whether rules of so many sessions are those of all that are kept.
    pub fn are_all(&self, sessions: usize) -> bool {
        self.database.count(Kind::Session).is_ok_and(|count| count == sessions as u64)
    }

    /// Whether there may be sessions to restore.
    pub fn is_found(&self) -> bool {
        self.provenance != Provenance::Created
    }

    /// Where neighbours are written down.
    pub fn neighbours(&self) -> PathBuf {
        self.directory.join(NEIGHBOURS)
    }

    /// The recovery time stamp that goes with what there is.
    pub fn recovery(&self) -> RecoveryTimeStamp {
        RecoveryTimeStamp(self.preface.recovery)
    }

    /// The clock that times in the store are of.
    pub fn clock(&self) -> Clock {
        Clock::since(&self.preface.origin).unwrap_or_default()
    }

    /// All that is kept.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// What sessions count by, and their rules.
    ///
    /// # Panics
    /// If it was taken before.
    pub fn take_memory(&mut self) -> Memory {
        self.memory.take().expect("taken once")
    }

    /// What is to be done when this process has taken over from the one that it inherits from.
    pub fn succession(&self) -> Succession {
        let own = |name| self.directory.join(name);
        Succession(self.is_inherited().then(|| (own(HEIR_TABLES), own(TABLES))))
    }

    /// Everything that was to be restored is.
    pub fn restored(&self) {
        // It may never have been there, and counts for nothing if it stays.
        let _ = std::fs::remove_file(self.directory.join(RESTORING));
    }

    /// What there is cannot be restored, because of `why`: begins anew, at `recovery` or later.
    ///
    /// The tables have no sessions, and nobody has any of the `counters`, which are used again.
    pub fn start_anew(
        &mut self,
        why: &str,
        recovery: RecoveryTimeStamp,
        counters: &Counters,
    ) -> Result<(), StateError> {
        let recovery = recovery.0.max(self.preface.recovery.wrapping_add(1));
        Unfit { why: why.into(), recovery: None }.tell();
        put_aside(&self.directory, &[STORE]).map_err(|error| StateError::Io { path: self.directory.clone(), error })?;
        // Peers' times go on: the workers have the clock already.
        let (preface, database) = create(&self.directory, &self.identity, RecoveryTimeStamp(recovery), &self.clock())?;
        counters.begin_anew(preface.name);
        (self.preface, self.database) = (preface, database);
        self.provenance = Provenance::Created;
        Ok(())
    }

    /// Hands the store to a thread of its own, see [`Keeper`].
    ///
    /// `last` is the number of the last changes that are in it.
    pub fn keep(
        self,
        counters: &Counters,
        last: u64,
        send: Box<dyn Fn(&crate::n4::Datagram) + Send>,
    ) -> io::Result<Keeper> {
        let path = self.directory.join(STORE);
        let preface = postcard::to_allocvec(&self.preface).map_err(io::Error::other)?;
        let paper = keeper::Paper { path, preface, name: self.preface.name, head: counters.head(), lock: self._lock };
        Keeper::start(self.database, paper, last, send)
    }
}

/// Why what there is cannot be used.
#[derive(Debug)]
struct Unfit {
    why: String,
    /// The time stamp of the UPF that left it, if it can be told.
    recovery: Option<u32>,
}

impl Unfit {
    fn tell(&self) {
        match &*self.why {
            "" => tracing::info!("no sessions are kept yet; starting with a new recovery time stamp"),
            why => tracing::warn!("sessions are not restored: {why}; starting with a new recovery time stamp"),
        }
    }
}

impl<E: std::fmt::Display> From<E> for Unfit {
    fn from(error: E) -> Self {
        Self { why: error.to_string(), recovery: None }
    }
}

fn find(directory: &Path, identity: &Identity, sessions: usize, counts: bool) -> Result<Kept, Unfit> {
    let path = directory.join(STORE);
    if !path.exists() {
        return Err("".into());
    }
    let database = Database::open(&path)?;
    let preface = database.get(Kind::Preface, 0)?.ok_or("the store has no beginning")?;
    let (format, _) = postcard::take_from_bytes::<u32>(&preface)?;
    if format != FORMAT {
        return Err(format!("the store has format {format}, and this is format {FORMAT}").into());
    }
    let preface: Preface = postcard::from_bytes(&preface)?;
    let unfit = |why: &str| Unfit { why: why.into(), recovery: Some(preface.recovery) };
    if preface.boot != boot()? {
        return Err(unfit("the host has been started since"));
    }
    if preface.identity != *identity {
        return Err(unfit("they belong to a UPF with another node ID or other addresses"));
    }
    if Clock::since(&preface.origin).is_none() {
        return Err(unfit("they are of the future"));
    }
    let counters = read_write(&directory.join(COUNTERS)).map_err(|error| unfit(&format!("counters: {error}")))?;
    let counters = Counters::find(counters, sessions, preface.name);
    let counters = counters.map_err(|error| unfit(&format!("counters: {error}")))?;
    let counters = counters.ok_or_else(|| unfit("their counters are not there"))?;
    let blocks = match counts {
        true => blocks_in(&directory.join(TABLES), sessions, false),
        false => inherited_blocks(directory, sessions),
    };
    let blocks = blocks.map_err(|error| unfit(&format!("tables: {error}")))?.of_store(preface.name);
    Ok((preface, database, Memory { blocks, counters }))
}

fn create(
    directory: &Path,
    identity: &Identity,
    recovery: RecoveryTimeStamp,
    clock: &Clock,
) -> Result<(Preface, Database), StateError> {
    let failed = |error| StateError::Io { path: directory.into(), error };
    let name = u64::from_ne_bytes(random().map_err(failed)?);
    let preface = Preface {
        format: FORMAT,
        name,
        boot: boot().map_err(failed)?,
        identity: identity.clone(),
        recovery: recovery.0,
        origin: clock.origin(),
    };
    let octets = postcard::to_allocvec(&preface).map_err(|error| failed(io::Error::other(error)))?;
    let database = Database::create(&directory.join(STORE));
    let database = database.and_then(|database| {
        database.commit([&Change { kind: Kind::Preface, key: 0, value: Some(octets.into()) }])?;
        Ok(database)
    });
    let database = database.map_err(|error| StateError::Store { path: directory.into(), error })?;
    Ok((preface, database))
}

/// Counters and rules of a store with this name, in which nothing is.
fn new_memory(directory: &Path, sessions: usize, name: u64) -> io::Result<Memory> {
    let counters = Counters::create(read_write(&directory.join(COUNTERS))?, sessions, name)?;
    Ok(Memory { blocks: blocks_in(&directory.join(TABLES), sessions, true)?.of_store(name), counters })
}

/// Rules in the file at `path`. Where there can be none they are this process's own, and the next one takes them from the store.
fn blocks_in(path: &Path, sessions: usize, anew: bool) -> io::Result<Blocks> {
    let file = if anew { new_file(path) } else { read_write(path) };
    file.and_then(|file| Blocks::in_file(file, sessions)).or_else(|error| {
        tracing::warn!(%error, "the next process will not find the rules, and forward later");
        Blocks::private(sessions)
    })
}

/// An empty file. A process that is about to end may still use the one that was there.
fn new_file(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => read_write(path),
    }
}

/// A copy of the rules by which another process still forwards, which goes on writing its own.
fn inherited_blocks(directory: &Path, sessions: usize) -> io::Result<Blocks> {
    let copy = new_file(&directory.join(HEIR_TABLES))?;
    Blocks::copied(read_write(&directory.join(TABLES))?, copy, sessions)
}

/// What an heir has to do when it has taken over.
#[derive(Debug)]
#[must_use]
pub struct Succession(Option<(PathBuf, PathBuf)>);

impl Succession {
    /// From now on the rules of this process are those that the next one finds.
    pub fn complete(self) -> io::Result<()> {
        self.0.map_or(Ok(()), |(own, former)| std::fs::rename(own, former))
    }
}

fn read_write(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

/// Moves away what is not to be used, for somebody to look at.
fn put_aside(directory: &Path, names: &[&str]) -> io::Result<()> {
    for name in names {
        match std::fs::rename(directory.join(name), directory.join(format!("{name}.bad"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let _ = std::fs::remove_file(directory.join(RESTORING));
    Ok(())
}

/// A store that processes die of must not keep the UPF from starting. Those that are killed, however soon, have got to one
/// place or another; those that die of it get to the same one each time.
fn count_attempt(directory: &Path) -> Result<(), Unfit> {
    let path = directory.join(RESTORING);
    let place = crate::counters::progress(&directory.join(COUNTERS)).unwrap_or(0);
    let before = std::fs::read_to_string(&path).ok();
    let before = before.as_deref().and_then(|text| text.trim().split_once(' '));
    let before = before.and_then(|(deaths, place)| Some((deaths.parse::<u32>().ok()?, place.parse::<u64>().ok()?)));
    let deaths = match before {
        None => 0,
        Some((deaths, there)) if there == place => deaths + 1,
        Some(_) => 1,
    };
    if deaths >= ATTEMPTS {
        return Err(format!("{deaths} processes have ended at the same place while they restored them").into());
    }
    Ok(std::fs::write(path, format!("{deaths} {place}"))?)
}

/// Which start of the host this is.
fn boot() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Random octets.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    use std::io::Read;
    let mut octets = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut octets)?;
    Ok(octets)
}
