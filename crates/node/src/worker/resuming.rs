//! A slice that a former daemon had: what runs goes on, and what is not as it shall be is made so.

use std::sync::mpsc;
use std::time::Instant;

use runtime::FunctionId;
use slice::Cores;

use super::Worker;
use crate::backoff::Backoff;
use crate::function::{self, Function};
use crate::link;
use crate::node::Node;
use crate::record::{self, ProcessRecord, Record};

/// Has what runs of a slice go on with the cores that it has for itself. To be done for every slice before anybody is given any:
/// what does not run takes what is left.
pub(crate) fn keep_cores(node: &Node, slice: &str) {
    let former = Record::load(&node.paths, slice).unwrap_or_else(|_| of_descriptor(node, slice));
    let Some(former) = former else { return };
    former.runtime.iter().for_each(|runtime| node.goes_on_with(runtime));
    for spec in &former.actual.spec.functions {
        let Cores::Exclusive(count) = spec.cores else { continue };
        for name in spec.containers() {
            let id = FunctionId::new(slice, &name).map_err(Into::into);
            if let Err(e) = id.and_then(|id| function::keep_cores(node, &id, count as usize)) {
                tracing::error!("slice {slice}: {e:#}");
            }
        }
    }
}

/// What can be known where there is no record to be read.
fn of_descriptor(node: &Node, slice: &str) -> Option<Record> {
    record::load_descriptor(&node.paths, slice).ok()?.map(Record::of_unknown)
}

impl Worker {
    /// Goes on with what a former daemon made. Whether there was or shall be anything.
    pub(super) fn adopt_former(&mut self) -> bool {
        let described = record::load_descriptor(&self.node.paths, &self.name);
        let former = Record::load(&self.node.paths, &self.name).unwrap_or_else(|e| {
            tracing::error!("slice {}: {e}; what runs is looked for by name", self.name);
            of_descriptor(&self.node, &self.name)
        });
        if let Some(former) = &former {
            self.since_ms = former.since_ms;
            former.runtime.iter().for_each(|runtime| self.node.goes_on_with(runtime));
            self.adopt(former);
            self.note_images();
        }
        former.is_some() || !matches!(described, Ok(None))
    }

    /// Brings what is to what shall be. What fails is tried again later: an image may be on a disk that is not there yet.
    pub(super) fn resume(&mut self) {
        let (events, _) = mpsc::channel();
        let described = record::load_descriptor(&self.node.paths, &self.name).map_err(Into::into);
        let resumed = described.and_then(|described| self.become_as(described.as_ref(), &events));
        self.resume_at = None;
        match resumed {
            Ok(()) => self.resumption = Backoff::default(),
            Err(e) => {
                tracing::error!("slice {}: {e:#}; it is tried again", self.name);
                self.resume_later();
            }
        }
    }

    pub(super) fn resume_later(&mut self) {
        let now = Instant::now();
        self.resume_at = Some(now + self.resumption.ended(None, now));
    }

    fn adopt(&mut self, former: &Record) {
        let nothing = ProcessRecord::default();
        let containers = |spec: &'_ slice::Function| spec.containers().into_iter();
        let specs = &former.actual.spec.functions;
        for (name, spec) in specs.iter().flat_map(|spec| containers(spec).map(move |name| (name, spec))) {
            let record = former.functions.get(&name).unwrap_or(&nothing);
            let id = FunctionId::new(&self.name, &name).map_err(Into::into);
            match id.and_then(|id| Function::adopt(&self.node, id, spec, record, former.images.get(&name))) {
                Ok(Some(function)) => {
                    self.functions.insert(name, function);
                }
                // Half made: made anew if it shall be.
                Ok(None) => {
                    let _ = function::remove(&self.node, &self.name, &name);
                }
                Err(e) => tracing::error!("slice {}: {e:#}", self.name),
            }
        }
        for link in &former.actual.spec.links {
            let pump = former.pumps.get(&link::key(link)).unwrap_or(&nothing);
            match self.establish(link, Some(pump)) {
                Ok(active) => {
                    self.links.insert(link::key(link), active);
                }
                Err(e) => {
                    tracing::warn!("slice {}: {e:#}; it is made anew", self.name);
                    let _ = link::remove(&self.node, &self.name, link, &|at| former.actual.port(at).cloned());
                }
            }
        }
        // Only now may functions ask for their ports: each finds its link known, with the segments it has.
        for function in self.functions.values() {
            if let Err(e) = function.serve_ports() {
                tracing::error!("slice {}: {e:#}", self.name);
            }
        }
    }
}
