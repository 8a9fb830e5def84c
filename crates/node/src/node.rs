//! What the workers of all slices share.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, mpsc};

use runtime::{Layout, OciRuntime};
use slice::{HostFacts, Mechanism};
use vport::broker::{Broker, Event};

use crate::cores::Cores;
use crate::deposits::{self, Deposits};
use crate::host;
use crate::keeper::Keeper;
use crate::lines::Lines;
use crate::paths::Paths;
use crate::pools::{self, Pools};

/// The node's own things, whichever slice uses them.
pub(crate) struct Node {
    pub(crate) paths: Paths,
    pub(crate) layout: Layout,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) broker: Broker,
    pub(crate) deposits: Arc<Deposits>,
    pub(crate) pools: Pools,
    cores: Mutex<Cores>,
    runtime: OnceLock<Result<OciRuntime, String>>,
    latency_floor_ns: OnceLock<BTreeMap<Mechanism, u64>>,
    null: std::fs::File,
}

impl Node {
    pub(crate) fn new(paths: Paths, keeper: Arc<Keeper>) -> anyhow::Result<Arc<Self>> {
        let (events, incoming) = mpsc::channel();
        let (pools, woken) = Pools::new();
        let (deposits, come) = Deposits::new(keeper.clone(), paths.layout());
        let deposits = Arc::new(deposits);
        let node = Arc::new(Self {
            layout: paths.layout(),
            paths,
            keeper,
            broker: start_broker(events, deposits.clone())?,
            deposits,
            pools,
            cores: Mutex::new(Cores::new(runtime::online_cores()?)),
            runtime: OnceLock::new(),
            latency_floor_ns: OnceLock::new(),
            null: std::fs::File::options().read(true).write(true).open("/dev/null")?,
        });
        let heir = Arc::downgrade(&node.deposits);
        std::thread::Builder::new().name("deposits".into()).spawn(move || deposits::run(&heir, &come))?;
        let heir = Arc::downgrade(&node);
        std::thread::Builder::new().name("pools".into()).spawn(move || pools::run(&heir, &woken))?;
        let heir = Arc::downgrade(&node);
        std::thread::Builder::new().name("broker events".into()).spawn(move || {
            let mut lines = Lines::default();
            while let Ok(event) = incoming.recv() {
                let Some(node) = heir.upgrade() else { return };
                node.heard(event, &mut lines);
            }
        })?;
        Ok(node)
    }

    /// The OCI runtime, found at first need.
    pub(crate) fn runtime(&self) -> anyhow::Result<OciRuntime> {
        let found = self.runtime.get_or_init(|| OciRuntime::probe(&self.layout).map_err(|e| e.to_string()));
        found.clone().map_err(anyhow::Error::msg)
    }

    /// Goes on with the runtime that a former daemon has found, where that is still the same: to prove it again a container would be made,
    /// and ports would wait for that.
    pub(crate) fn goes_on_with(&self, runtime: &OciRuntime) {
        if runtime.is_as_probed() {
            // Another slice may have named it.
            let _ = self.runtime.set(Ok(runtime.clone()));
        }
    }

    /// The runtime, if there was a need for one.
    pub(crate) fn runtime_so_far(&self) -> Option<OciRuntime> {
        self.runtime.get()?.clone().ok()
    }

    /// Whose cores are whose.
    pub(crate) fn cores(&self) -> MutexGuard<'_, Cores> {
        self.cores.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What a descriptor of `slice` is held against: what there is now, and latencies, which are measured once.
    pub(crate) fn facts(&self, slice: Option<&str>) -> HostFacts {
        let prefix = slice.map_or_else(|| "\0".to_owned(), |slice| format!("{slice}/"));
        let exclusive_elsewhere = {
            let mut cores = self.cores();
            // Where the host does not say, none has come or gone.
            runtime::online_cores().into_iter().for_each(|online| cores.follow(online));
            cores.counts(&prefix).1 as u32
        };
        let latency_floor_ns = self.latency_floor_ns.get_or_init(host::latency_floor).clone();
        HostFacts { exclusive_elsewhere, latency_floor_ns, ..host::unmeasured() }
    }

    /// `/dev/null`, as a standard stream.
    pub(crate) fn null(&self) -> BorrowedFd<'_> {
        self.null.as_fd()
    }

    fn heard(&self, event: Event, lines: &mut Lines) {
        match event {
            Event::Attached { port, pid, resumed } => {
                let how = if resumed { "resumed" } else { "opened" };
                lines.say(format!("{}/{}", port.function, port.port), &format!("{how} by process {pid}"));
                self.pools.look();
            }
            Event::Detached { port } => {
                lines.say(format!("{}/{}", port.function, port.port), "closed");
                self.pools.look();
            }
            Event::Joined { function } => {
                tracing::info!("{function}: has its place in its pool");
                self.pools.look();
            }
            Event::LinkUp { link, generation } => {
                lines.say(format!("link {link}"), &format!("up, generation {generation}"));
            }
            Event::Quarantined { link, reporter, accused, reason } => tracing::error!(
                "link {link}: {}/{} broke the rules towards {}/{}: {reason}",
                accused.function,
                accused.port,
                reporter.function,
                reporter.port
            ),
            Event::Refused { function, reason } => tracing::warn!("{function}: refused: {reason}"),
            // The broker's thread has seen to them.
            Event::Deposit { .. } | Event::Ownership { .. } => {}
            Event::Outcast { function, pid } => pools::start_anew(self, &function, pid),
            Event::Steered { function, epoch } => {
                tracing::info!("pool of {function}: epoch {epoch} is complete");
                self.pools.look();
            }
            Event::OrdinaryPages { link, reason } => {
                tracing::warn!("link {link}: packets lie in ordinary pages, not in hugepages: {reason}");
            }
        }
    }
}

fn start_broker(events: Sender<Event>, deposits: Arc<Deposits>) -> std::io::Result<Broker> {
    Broker::start(vport::broker::Config::default(), move |event| match event {
        Event::Deposit { link, generation, segments } => deposits.replace(&link, generation, segments),
        Event::Ownership { function, ownership } => deposits.keep_ownership(&function, ownership),
        event => drop(events.send(event)),
    })
}
