//! Pools: shares the buckets of each out among the replicas that are there.
//!
//! A thread of the node's own looks at all pools whenever a replica has come or gone, or a change is complete, and asks the
//! broker for the next change. It moves no more buckets than it must.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use runtime::{Container, FunctionId};
use rustix::process::Signal;
use vport::broker::{BrokerError, PoolStatus};
use vport::steering::BUCKETS;

use crate::node::Node;
use crate::process::{Process, ProcessId};
use crate::spread::spread;

/// How long a replica that is to go may take to give away what it serves.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);
/// Time until a change that could not be begun is tried again.
const AGAIN: Duration = Duration::from_millis(5);
/// Such times grow to this: a replica may have opened its ports and never take its place.
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// Who is to be given nothing, and how to wake the thread.
pub(crate) struct Pools {
    leaving: Mutex<BTreeSet<String>>,
    wake: Sender<()>,
}

impl Pools {
    /// With what [`run`] listens to.
    pub(crate) fn new() -> (Self, Receiver<()>) {
        let (wake, woken) = mpsc::channel();
        (Self { leaving: Mutex::default(), wake }, woken)
    }

    /// Something has happened to a pool.
    pub(crate) fn look(&self) {
        let _ = self.wake.send(());
    }

    /// Takes everything from these replicas (as the broker knows them) and waits until they have given it away. They get
    /// nothing until the answer is dropped.
    pub(crate) fn leave<'a>(&'a self, node: &Node, replicas: Vec<String>, say: &dyn Fn(String, &str)) -> Leaving<'a> {
        self.leaving().extend(replicas.iter().cloned());
        self.look();
        let begin = Instant::now();
        while let Some(last) = replicas.iter().find(|replica| serves(node, replica)) {
            if begin.elapsed() > LEAVE_WITHIN {
                tracing::warn!(
                    "{last} has not given away what it serves within {LEAVE_WITHIN:?}; it is stopped anyway"
                );
                say(format!("replica {last}"), "did not give away what it serves, and is stopped anyway:");
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Leaving { pools: self, replicas }
    }

    fn leaving(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replicas that are about to go.
pub(crate) struct Leaving<'a> {
    pools: &'a Pools,
    replicas: Vec<String>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.pools.leaving().retain(|replica| !self.replicas.contains(replica));
        self.pools.look();
    }
}

/// Whether a replica that is there owns a bucket, or may have to give one away yet.
fn serves(node: &Node, replica: &str) -> bool {
    let pools = node.broker.pools().unwrap_or_default();
    let found = pools.iter().find_map(|pool| Some((pool, pool.functions.iter().position(|name| name == replica)?)));
    found.is_some_and(|(pool, member)| pool.present[member] && (pool.is_changing || buckets(pool)[member] > 0))
}

/// How many buckets each member of a pool owns.
pub(crate) fn buckets(pool: &PoolStatus) -> Vec<u16> {
    let mut counts = vec![0; pool.functions.len()];
    pool.owners.iter().for_each(|owner| counts[usize::from(*owner) / pool.queues_each] += 1);
    counts
}

/// How many of the [`BUCKETS`] each replica owns that is there, by the name that the broker knows it by.
pub(crate) fn shares(node: &Node) -> BTreeMap<String, u16> {
    let pools = node.broker.pools().unwrap_or_default();
    let of_pool = |pool: PoolStatus| {
        let counts = buckets(&pool);
        let there = pool.functions.into_iter().zip(counts).zip(pool.present).filter(|(_, present)| *present);
        there.map(|(named, _)| named).collect::<Vec<_>>()
    };
    pools.into_iter().flat_map(of_pool).collect()
}

/// The replica that the broker knows by this name.
pub(crate) fn replica_id(name: &str) -> Option<FunctionId> {
    let (slice, function) = name.split_once('/')?;
    FunctionId::new(slice, function).ok()
}

/// Ends a replica of which this process has lost its place in its pool, by the name that the broker knows it by: as whatever ends, it
/// is started again.
pub(crate) fn start_anew(node: &Node, replica: &str, pid: i32) {
    // The next one may be there already.
    if pid != 0 && ProcessId::of(pid).is_none() {
        return;
    }
    let container =
        replica_id(replica).zip(node.runtime_so_far()).map(|(id, runtime)| Container::new(&node.layout, &runtime, &id));
    let first = container.and_then(|container| container.first_process());
    match first.and_then(|first| ProcessId::of(first.as_raw())).and_then(Process::open) {
        Some(process) => {
            tracing::warn!("{replica}: its pool goes on without process {pid}; it is started anew");
            process.signal(Signal::KILL);
        }
        None => tracing::error!("{replica}: its pool goes on without process {pid}, and its container is not found"),
    }
}

/// Serves until the node is no more.
pub(crate) fn run(heir: &Weak<Node>, woken: &Receiver<()>) {
    let mut again: Option<Duration> = None;
    loop {
        let heard = match again {
            None => woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(after) => woken.recv_timeout(after),
        };
        match heard {
            Ok(()) => again = None,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while woken.try_recv().is_ok() {}
        let Some(node) = heir.upgrade() else { return };
        again = (!share_out(&node)).then(|| again.map_or(AGAIN, |after| (2 * after).min(AGAIN_MAX)));
    }
}

/// Begins the changes that are due. False: one of them is to be tried again.
fn share_out(node: &Arc<Node>) -> bool {
    let Ok(pools) = node.broker.pools() else { return true };
    pools.iter().filter(|pool| !share_out_pool(node, pool)).count() == 0
}

fn share_out_pool(node: &Node, pool: &PoolStatus) -> bool {
    let owners = {
        let leaving = node.pools.leaving();
        let takes = |member: usize| pool.present[member] && !leaving.contains(&pool.functions[member]);
        let members = (0..pool.functions.len()).filter(|member| takes(*member));
        let queues = members.flat_map(|member| member * pool.queues_each..(member + 1) * pool.queues_each);
        spread(&pool.owners, &queues.map(|queue| queue as u8).collect::<Vec<_>>())
    };
    if owners == pool.owners {
        return true;
    }
    let moved = owners.iter().zip(&pool.owners).filter(|(new, old)| new != old).count();
    match node.broker.set_owners(&pool.functions[0], &owners) {
        Ok(epoch) => tracing::info!("pool of {}: epoch {epoch} moves {moved} of {BUCKETS} buckets", pool.functions[0]),
        Err(BrokerError::Busy(reason)) => {
            tracing::debug!("pool of {}: {reason}", pool.functions[0]);
            return false;
        }
        Err(error) => tracing::error!("pool of {}: {error}", pool.functions[0]),
    }
    true
}
