//! What there is, as a description, as others may see it, and as the next daemon finds it.

use std::collections::BTreeMap;

use slice::{Link, Pool, Slice};

use super::{View, Worker, empty_slice};
use crate::control::{Process, ProcessKind, ProcessState, SliceState};
use crate::cores;
use crate::function::Function;
use crate::link;
use crate::record::Record;
use crate::supervised::Supervised;

impl Worker {
    /// What exists, as a description. Of a pool, that is as many replicas as the number of the last one says.
    pub(super) fn actual(&self) -> Slice {
        let mut slice = empty_slice(&self.name);
        let mut specs: BTreeMap<&str, slice::Function> = BTreeMap::new();
        for (name, function) in &self.functions {
            let described = &function.spec;
            let spec = specs.entry(&described.name).or_insert_with(|| {
                let pool = described.pool.map(|pool| Pool { replicas: None, ..pool });
                slice::Function { pool, ..described.clone() }
            });
            if let Some(pool) = &mut spec.pool {
                let number = described.members().iter().take_while(|member| *member != name).count() as u16 + 1;
                pool.replicas = pool.replicas.max(Some(number));
            }
        }
        slice.spec.functions = specs.into_values().collect();
        slice.spec.links = self.links.values().map(|link| link.spec.clone()).collect();
        slice
    }

    /// The containers that there are, and of each whether it was not started.
    pub(super) fn there(&self) -> BTreeMap<String, bool> {
        self.functions.iter().map(|(name, function)| (name.clone(), function.run.is_idle())).collect()
    }

    /// Notes what exists, and what is about to.
    pub(super) fn store_record(&self, functions: &[slice::Function], links: &[Link]) {
        let mut actual = self.actual();
        for function in functions {
            let same = |there: &&mut slice::Function| {
                there.name == function.name && there.pool.map(|pool| pool.max) == function.pool.map(|pool| pool.max)
            };
            match actual.spec.functions.iter_mut().find(same) {
                None => actual.spec.functions.push(function.clone()),
                Some(there) => {
                    if let Some((there, pool)) = there.pool.as_mut().zip(function.pool) {
                        there.replicas = there.replicas.max(pool.replicas);
                    }
                }
            }
        }
        for link in links {
            if !self.links.contains_key(&link::key(link)) {
                actual.spec.links.push(link.clone());
            }
        }
        let pumps =
            self.links.iter().filter_map(|(key, link)| Some((key.clone(), link.pump.as_ref()?.run.record().clone())));
        let record = Record {
            actual,
            since_ms: self.since_ms,
            functions: self
                .functions
                .iter()
                .map(|(name, function)| (name.clone(), function.run.record().clone()))
                .collect(),
            images: self
                .functions
                .iter()
                .filter_map(|(name, function)| Some((name.clone(), function.image()?.clone())))
                .collect(),
            pumps: pumps.collect(),
            runtime: self.node.runtime_so_far(),
        };
        if let Err(e) = record.store(&self.node.paths) {
            tracing::error!("slice {}: its record cannot be kept: {e}", self.name);
        }
    }

    pub(super) fn publish(&self, state: Option<SliceState>) {
        let processes: Vec<Process> =
            self.functions.values().map(|f| self.function_process(f)).chain(self.pump_processes()).collect();
        let waiting =
            self.resume_at.is_some() || processes.iter().any(|process| process.state == ProcessState::Waiting);
        let view = View {
            state: state.unwrap_or(if waiting { SliceState::Degraded } else { SliceState::Up }),
            since_ms: self.since_ms,
            actual: self.actual(),
            processes,
            containers: self.functions.iter().map(|(name, f)| (name.clone(), f.container().clone())).collect(),
        };
        *self.view.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = view;
    }

    fn function_process(&self, function: &Function) -> Process {
        let (name, cores) = (function.id().function(), cores::list(function.cores()));
        let described = process(&self.name, name, ProcessKind::Function, &function.run, function.uid(), cores);
        let replica_of = function.spec.pool.map(|_| function.spec.name.clone());
        Process { replica_of, ..described }
    }

    fn pump_processes(&self) -> impl Iterator<Item = Process> {
        let shared = cores::list(&self.node.cores().shared());
        self.links.values().filter_map(move |link| {
            let pump = link.pump.as_ref()?;
            Some(process(&self.name, &link.spec.label(), ProcessKind::Pump, &pump.run, pump.uid(), shared.clone()))
        })
    }
}

fn process(slice: &str, name: &str, kind: ProcessKind, run: &Supervised, uid: u32, cpus: String) -> Process {
    let record = run.record();
    Process {
        slice: slice.to_owned(),
        name: name.to_owned(),
        kind,
        state: run.state(),
        pid: run.process().map(|process| process.id.pid),
        uid,
        cpus,
        started_ms: record.started_ms,
        restarts: record.restarts,
        last_exit: record.last_exit.clone(),
        memory_bytes: None,
        cpu_ns: None,
        replica_of: None,
        share: None,
    }
}
