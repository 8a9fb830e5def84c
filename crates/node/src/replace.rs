//! A planned replacement: another container of a function takes its ports over from the one that runs, while packets flow.
//!
//! The new one, the *heir*, is made beside the old one, in the same namespaces, and told so (`KAISTA_SUCCEEDS`). Once it has taken
//! over what the old one has of ports, that is asked to end. Whichever of the two ends first, the other one stays.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use runtime::{Container, FunctionId, State};
use rustix::process::Signal;

use crate::function::{Function, hears_term};
use crate::node::Node;
use crate::process::Process;

/// How long an heir may take to be ready: it may have much to read.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long the old one may take to end once its ports are another's.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Where there are no ports to take over: how long the heir has to run before the old one is asked to end.
const RUNS_FOR: Duration = Duration::from_secs(1);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replaced {
    /// The old process.
    pub(crate) former: i32,
    /// The new one.
    pub(crate) pid: i32,
}

impl Function {
    /// Replaces the container that runs. On failure it goes on, and nothing is left of the other.
    pub(crate) fn replace(&mut self, node: &Node) -> Result<Replaced> {
        let name = self.id().function().to_owned();
        let Some(former) = self.run.process().map(|process| process.id.pid) else {
            bail!("function {name}: does not run, so that there is nothing to replace");
        };
        if self.spec.pool.is_some() {
            bail!("function {name}: is a replica; `kaista scale` starts and ends those without a loss");
        }
        let heir = Container::new(&node.layout, &node.runtime()?, &self.unit().beside());
        let replaced = self.replace_by(node, &heir, former);
        let _ = node.broker.allow_succession(&self.id().to_string(), false);
        replaced
    }

    fn replace_by(&mut self, node: &Node, heir: &Container, former: i32) -> Result<Replaced> {
        let id = self.id().to_string();
        let holders = holders(node, &id);
        node.broker.allow_succession(&id, true)?;
        // Should a container that is to go not go, the next replacement tries again.
        let (process, image) = self.start_heir(heir).inspect_err(|_| drop(heir.delete()))?;
        let pid = process.id.pid;
        if let Err(error) = self.await_heir(node, &process, &holders) {
            let _ = heir.delete();
            node.keeper.reap(pid);
            return Err(error);
        }
        tracing::info!("{id}: process {pid} has taken over from process {former}");
        self.dismiss();
        self.install(heir.clone(), process, image);
        Ok(Replaced { former, pid })
    }

    /// Until the heir has every port that the old one had. The old one may end before.
    fn await_heir(&self, node: &Node, heir: &Process, holders: &BTreeSet<i32>) -> Result<()> {
        let (id, name, begin) = (self.id().to_string(), self.id().function(), Instant::now());
        loop {
            if heir.has_ended() {
                bail!("function {name}: the new process has ended; the old one goes on");
            }
            if self.run.process().is_none_or(Process::has_ended) {
                return Ok(());
            }
            let done = match holders.is_empty() {
                true => begin.elapsed() >= RUNS_FOR,
                false => self::holders(node, &id).is_disjoint(holders),
            };
            if done {
                return Ok(());
            }
            if begin.elapsed() >= READY_WITHIN {
                let limit = READY_WITHIN.as_secs();
                bail!(
                    "function {name}: the new process has not taken the ports over within {limit} s; the old one goes on"
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The old process is to end.
    fn dismiss(&self) {
        let Some(process) = self.run.process() else { return };
        if hears_term(process.id.pid) {
            process.signal(Signal::TERM);
            let begin = Instant::now();
            while !process.has_ended() && begin.elapsed() < LEAVE_WITHIN {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        if !process.has_ended() {
            tracing::warn!("{}: process {} is ended; what it had not handled is lost", self.id(), process.id.pid);
        }
    }
}

/// The processes that have ports of a function.
fn holders(node: &Node, function: &str) -> BTreeSet<i32> {
    let ports = node.broker.ports().unwrap_or_default();
    ports.into_iter().filter(|port| port.name.function == function).filter_map(|port| port.pid).collect()
}

/// Which container of a function a daemon is to go on with, where it knew of `known`, whose process it knows to be alive or
/// not: the one that runs, or else the other. The daemon may have been killed in a replacement: nothing stays of the other one.
pub(crate) fn settle(node: &Node, known: &FunctionId, is_alive: bool) -> Result<FunctionId> {
    let (here, other) = (known.clone(), known.beside());
    let beside = Container::new(&node.layout, &node.runtime()?, &other);
    if !is_alive && matches!(beside.state(), Ok(State::Running(_))) {
        Container::new(&node.layout, &node.runtime()?, &here).delete()?;
        return Ok(other);
    }
    beside.delete()?;
    Ok(here)
}
