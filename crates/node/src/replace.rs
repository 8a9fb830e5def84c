//! A planned replacement: another container of a function takes its ports over from the one that runs, while packets flow.
//!
//! The new one, the *heir*, is made beside the old one, in the same namespaces, and told so (`KAISTA_SUCCEEDS`). Once it has taken
//! over what the old one has of ports, the function is said to be *handed over*, which outlives this process, and the old one is asked
//! to end. Whichever of the two ends first, the other one stays. The slice's worker looks how far it is between other things that
//! it does.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use runtime::{Container, FunctionId, Image, State};
use rustix::process::Signal;

use crate::function::{Function, hears_term};
use crate::logs::now_ns;
use crate::node::Node;
use crate::process::Process;
use crate::record::ProcessRecord;

/// How long an heir may take to be ready: it may have much to read.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long the old one may take to end once its ports are another's.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Where there are no ports to take over: how long the heir has to run before the old one is asked to end.
const RUNS_FOR: Duration = Duration::from_secs(1);
/// Between two looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replaced {
    /// The old process.
    pub(crate) former: i32,
    /// The new one.
    pub(crate) pid: i32,
}

/// A replacement under way.
pub(crate) struct Replacement {
    heir: Container,
    process: Process,
    image: Image,
    former: i32,
    /// The processes that had ports of the function.
    holders: BTreeSet<i32>,
    /// Those that the heir was started with.
    cores: Vec<usize>,
    begin: Instant,
    stage: Stage,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    GettingReady,
    HandedOver,
    /// The old process was asked to end.
    Leaving(Instant),
}

/// What there is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// To look again soon.
    Look,
    /// To keep the function's record: it is handed over.
    Record,
    /// To conclude.
    Conclude,
}

impl Replacement {
    /// Starts another container of a function that runs. On failure nothing is left of it.
    pub(crate) fn begin(function: &mut Function, node: &Node) -> Result<Self> {
        let (id, name) = (function.id().to_string(), function.id().function().to_owned());
        let Some(former) = function.run.process().map(|process| process.id.pid) else {
            bail!("function {name}: does not run, so that there is nothing to replace");
        };
        if function.spec.pool.is_some() {
            bail!("function {name}: is a replica; `kaista scale` starts and ends those without a loss");
        }
        let heir = Container::new(&node.layout, &node.runtime()?, &function.unit().beside());
        let (holders, cores) = (holders(node, &id), function.cores().to_vec());
        node.broker.allow_succession(&id, true)?;
        // Should a container that is to go not go, the next replacement tries again.
        let started = function.start_heir(&heir).inspect_err(|_| {
            let _ = node.broker.allow_succession(&id, false);
            let _ = heir.delete();
        });
        let (process, image) = started?;
        let (begin, stage) = (Instant::now(), Stage::GettingReady);
        Ok(Self { heir, process, image, former, holders, cores, begin, stage })
    }

    /// Goes on with it, and never waits. An error: it has failed, and is to be given up.
    pub(crate) fn proceed(&mut self, function: &mut Function, node: &Node) -> Result<Next> {
        let former = function.run.process().filter(|process| !process.has_ended());
        match (self.stage, former) {
            (Stage::GettingReady, former) => {
                if !self.is_ready(function, former.is_some(), node)? {
                    return Ok(Next::Look);
                }
                let (id, pid) = (function.id(), self.process.id.pid);
                tracing::info!("{id}: process {pid} has taken over from process {}", self.former);
                function.run.hand_over_to(self.process.id);
                self.stage = Stage::HandedOver;
                Ok(Next::Record)
            }
            (Stage::HandedOver, Some(former)) if hears_term(former.id.pid) => {
                former.signal(Signal::TERM);
                self.stage = Stage::Leaving(Instant::now());
                Ok(Next::Look)
            }
            (Stage::Leaving(since), Some(_)) if since.elapsed() < LEAVE_WITHIN => Ok(Next::Look),
            (_, Some(former)) => {
                let id = function.id();
                tracing::warn!("{id}: process {} is ended; what it had not handled is lost", former.id.pid);
                Ok(Next::Conclude)
            }
            (_, None) => Ok(Next::Conclude),
        }
    }

    /// Whether the heir has every port that the old process had, or that has ended.
    fn is_ready(&self, function: &Function, former_lives: bool, node: &Node) -> Result<bool> {
        let (id, name) = (function.id().to_string(), function.id().function());
        if self.process.has_ended() {
            bail!("function {name}: the new process has ended; the old one goes on");
        }
        let ready = match self.holders.is_empty() {
            true => self.begin.elapsed() >= RUNS_FOR,
            false => holders(node, &id).is_disjoint(&self.holders),
        };
        if !ready && former_lives && self.begin.elapsed() >= READY_WITHIN {
            let limit = READY_WITHIN.as_secs();
            bail!(
                "function {name}: the new process has not taken the ports over within {limit} s; the old one goes on"
            );
        }
        Ok(ready || !former_lives)
    }

    /// The heir is the function's process from now on; the old one is no more.
    pub(crate) fn conclude(self, function: &mut Function, node: &Node) -> Replaced {
        let replaced = Replaced { former: self.former, pid: self.process.id.pid };
        function.install(self.heir, self.process, self.image, &self.cores);
        let _ = node.broker.allow_succession(&function.id().to_string(), false);
        replaced
    }

    /// Ends it where it is: the old process goes on, unless the function was handed over. Nothing is left of the other.
    pub(crate) fn give_up(self, function: &mut Function, node: &Node) {
        if self.stage != Stage::GettingReady {
            self.conclude(function, node);
            return;
        }
        let _ = node.broker.allow_succession(&function.id().to_string(), false);
        if let Err(e) = self.heir.delete() {
            tracing::error!("{}: a container that was to take over stays: {e}", function.id());
        }
        node.keeper.reap(self.process.id.pid);
    }
}

/// The processes that have ports of a function.
fn holders(node: &Node, function: &str) -> BTreeSet<i32> {
    let ports = node.broker.ports().unwrap_or_default();
    ports.into_iter().filter(|port| port.name.function == function).filter_map(|port| port.pid).collect()
}

/// What a daemon is to go on with of a function that a former one knew so. That may have been killed in a replacement: nothing stays
/// of the process that is not in charge. Where the function was handed over that is the old one, which gets its time to end: its
/// ports are not served before that.
pub(crate) fn settle(node: &Node, id: &FunctionId, known: &ProcessRecord) -> Result<ProcessRecord> {
    let (first, second) = (id.clone(), id.beside());
    let (here, other) = if known.second { (second, first) } else { (first, second) };
    let container = |unit| Ok::<_, anyhow::Error>(Container::new(&node.layout, &node.runtime()?, unit));
    let former = known.process.and_then(Process::open);
    let heir = known.heir.and_then(Process::open);
    let moved = ProcessRecord { second: !known.second, heir: None, ..known.clone() };
    if let Some(heir) = heir {
        tracing::info!("{id}: was handed over to process {}", heir.id.pid);
        former.iter().for_each(dismiss);
        container(&here)?.delete()?;
        former.map(|process| node.keeper.reap(process.id.pid));
        return Ok(ProcessRecord { process: Some(heir.id), started_ms: Some(now_ns() / 1_000_000), ..moved });
    }
    if former.is_none() && matches!(container(&other)?.state(), Ok(State::Running(_))) {
        container(&here)?.delete()?;
        return Ok(moved);
    }
    container(&other)?.delete()?;
    Ok(ProcessRecord { heir: None, ..known.clone() })
}

/// A process is to end, and is waited for.
fn dismiss(process: &Process) {
    if !hears_term(process.id.pid) {
        return;
    }
    process.signal(Signal::TERM);
    let begin = Instant::now();
    while !process.has_ended() && begin.elapsed() < LEAVE_WITHIN {
        std::thread::sleep(LOOK_EVERY);
    }
}
