//! The thread that writes the store. What waits is written together, and only then are the answers that depend on it sent.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::{self, Receiver, SyncSender};

use super::database::{Change, Database, Kind, StoreError};
use crate::counters::Head;
use crate::n4::Datagram;

/// Batches that may wait. Then N4 waits, too.
const WAITING: usize = 4_096;
/// Batches that are written together at most.
const GROUP: usize = 512;

/// Changes, and what is sent when they are durable.
#[derive(Debug, Default)]
pub struct Batch {
    /// The changes.
    pub changes: Vec<Change>,
    /// Their number, higher than that of those before.
    pub number: u64,
    /// Whether they are everything that there is.
    pub is_all: bool,
    /// The datagrams.
    pub datagrams: Vec<Datagram>,
}

/// What the store is made of again after it could not be written.
pub(super) struct Paper {
    pub path: PathBuf,
    pub preface: Vec<u8>,
    pub name: u64,
    pub head: Head,
    pub lock: File,
}

/// What the thread is to do.
enum Order {
    Write(Batch),
    /// Close the store, as it is to be another process's, and say whether that could be done.
    Rest(SyncSender<bool>),
    /// Open it again.
    Resume,
}

/// The thread's other end.
#[derive(Debug)]
pub struct Keeper {
    orders: SyncSender<Order>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Number of the changes that are durable, with all before them.
    durable: Arc<AtomicU64>,
    /// The store could not be written, and is no more.
    is_lost: AtomicBool,
}

impl Keeper {
    pub(super) fn start(
        database: Database,
        paper: Paper,
        last: u64,
        send: Box<dyn Fn(&Datagram) + Send>,
    ) -> io::Result<Self> {
        let (orders, received) = mpsc::sync_channel(WAITING);
        let shared = Arc::new(Shared { durable: Arc::new(AtomicU64::new(last)), is_lost: AtomicBool::new(false) });
        let mut writer = Writer { database: Some(database), paper, shared: shared.clone(), send };
        std::thread::Builder::new().name("store".into()).spawn(move || writer.run(&received))?;
        Ok(Self { orders, shared })
    }

    /// Has the changes written, and the datagrams sent afterwards, in the order of the calls.
    pub fn submit(&self, batch: Batch) {
        // Fails only when the thread has panicked, which ends the process.
        let _ = self.orders.send(Order::Write(batch));
    }

    /// Closes the store once all is written and sent, so that another process can open it. False if nothing is kept.
    pub fn rest(&self) -> bool {
        let (done, closed) = mpsc::sync_channel(1);
        let _ = self.orders.send(Order::Rest(done));
        closed.recv().unwrap_or(false)
    }

    /// Opens it again, after another process had it, which has changed nothing.
    pub fn resume(&self) {
        let _ = self.orders.send(Order::Resume);
    }

    /// Number of the changes that are durable.
    pub fn durable(&self) -> Arc<AtomicU64> {
        self.shared.durable.clone()
    }

    /// Whether nothing is kept at present, so that everything has to be written again.
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost.load(Relaxed)
    }
}

struct Writer {
    /// None while it cannot be written.
    database: Option<Database>,
    paper: Paper,
    shared: Arc<Shared>,
    send: Box<dyn Fn(&Datagram) + Send>,
}

impl Writer {
    fn run(&mut self, orders: &Receiver<Order>) {
        while let Ok(mut order) = orders.recv() {
            let mut group = vec![];
            let then = loop {
                match order {
                    Order::Write(batch) => group.push(batch),
                    other => break Some(other),
                }
                if group.len() == GROUP {
                    break None;
                }
                match orders.try_recv() {
                    Ok(next) => order = next,
                    Err(_) => break None,
                }
            };
            self.write(&group);
            group.iter().flat_map(|batch| &batch.datagrams).for_each(|datagram| (self.send)(datagram));
            match then {
                Some(Order::Rest(done)) => drop(done.send(self.close())),
                Some(Order::Resume) => self.open(),
                _ => {}
            }
        }
    }

    fn close(&mut self) -> bool {
        let was_open = self.database.take().is_some();
        was_open && self.paper.lock.unlock().is_ok()
    }

    fn open(&mut self) {
        // Whoever had it is gone, and with it its lock.
        let locked = self.paper.lock.lock().map_err(|error| StoreError::from(redb::Error::Io(error)));
        match locked.and_then(|()| Database::open(&self.paper.path)) {
            Ok(database) => self.database = Some(database),
            Err(error) => self.give_up(&error),
        }
    }

    fn write(&mut self, group: &[Batch]) {
        // Before a batch that has everything there is nothing that matters.
        if group.is_empty() {
            return;
        }
        let from = group.iter().rposition(|batch| batch.is_all);
        let changes = || group[from.unwrap_or(0)..].iter().flat_map(|batch| &batch.changes);
        let written = match (&self.database, from) {
            (_, Some(_)) => self.create(&Vec::from_iter(changes())),
            (Some(database), None) if changes().next().is_some() => database.commit(changes()),
            _ => Ok(()),
        };
        match written {
            Ok(()) if from.is_some() => {
                self.paper.head.set(self.paper.name);
                self.shared.is_lost.store(false, Relaxed);
                tracing::info!("sessions are kept again");
            }
            Ok(()) => {}
            Err(error) => self.give_up(&error),
        }
        if let Some(number) = group.iter().filter(|batch| !batch.changes.is_empty()).map(|batch| batch.number).max() {
            self.paper.head.commit(number);
            self.shared.durable.store(number, Release);
        }
    }

    fn create(&mut self, changes: &[&Change]) -> Result<(), StoreError> {
        self.database = None;
        let database = Database::create(&self.paper.path)?;
        let preface = Change { kind: Kind::Preface, key: 0, value: Some(self.paper.preface.clone().into()) };
        database.commit(changes.iter().copied().chain([&preface]))?;
        self.database = Some(database);
        Ok(())
    }

    /// Requests are answered as before, and no later process believes what is in the store: of its sessions some might be
    /// missing. Its counters say so at once, which needs no room anywhere.
    fn give_up(&mut self, error: &StoreError) {
        self.paper.head.set(0);
        self.database = None;
        if let Err(error) = std::fs::remove_file(&self.paper.path) {
            tracing::debug!("{}: {error}", self.paper.path.display());
        }
        if !self.shared.is_lost.swap(true, Relaxed) {
            tracing::error!("sessions would not survive a restart from now on: the store cannot be written: {error}");
        }
    }
}
