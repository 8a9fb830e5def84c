//! What shall be: it changes by a description, and goes back to the former one where that cannot be had.

use std::sync::mpsc::Sender;

use anyhow::{Result, anyhow};
use runtime::Sandbox;
use slice::Slice;

use super::{Outcome, Worker, empty_slice};
use crate::control::{Event, Failure, SliceState};
use crate::function::{self, Function};
use crate::link::Pump;
use crate::record::{self, Record};

impl Worker {
    /// Makes the slice be as described; where that fails, as it was to be before.
    pub(super) fn apply(&mut self, target: &Slice, events: &Sender<Event>) -> Outcome {
        let former = self.described();
        let target = &as_many_as_before(target, former.as_ref());
        if let Some(function) = self.is_replacing_for(target) {
            return Err(self.unchanged(&format!("function {function} is being replaced: ask again when it is")));
        }
        record::store_descriptor(&self.node.paths, target)
            .map_err(|e| self.unchanged(&format!("the descriptor cannot be kept: {e}")))?;
        if self.resume_at.take().is_none() {
            self.note_images();
        }
        self.publish(Some(SliceState::Changing));
        let error = match self.converge(target, events) {
            Ok(changes) => return Ok(changes),
            Err(error) => error,
        };
        let Failure { message, mut details } = self.failure(&error);
        details.push(match self.undo(former.as_ref(), events) {
            Ok(()) if former.is_none() => "nothing of the slice is left".into(),
            Ok(()) => "the slice is as it was before".into(),
            Err(e) => format!("and undoing it failed, too, and is tried again: {e:#}"),
        });
        Err(Failure { message, details })
    }

    /// What shall be: where that cannot be read, what there is.
    fn described(&self) -> Option<Slice> {
        let there = || Some(self.actual()).filter(|there| !there.spec.functions.is_empty());
        record::load_descriptor(&self.node.paths, &self.name).unwrap_or_else(|_| there())
    }

    pub(super) fn note_images(&mut self) {
        let of = |function: &Function| Some((function.spec.image.clone(), function.image()?.clone()));
        self.images =
            self.functions.iter().filter_map(|(name, function)| Some((name.clone(), of(function)?))).collect();
    }

    /// The former description holds again, and what is, is brought to it, now or later.
    fn undo(&mut self, former: Option<&Slice>, events: &Sender<Event>) -> Result<()> {
        match former {
            Some(former) => record::store_descriptor(&self.node.paths, former)?,
            None => record::remove_descriptor(&self.node.paths, &self.name)?,
        }
        let undone = self.become_as(former, events);
        if undone.is_err() {
            self.resume_later();
        }
        undone
    }

    /// Brings what is to what shall be; none: nothing.
    pub(super) fn become_as(&mut self, described: Option<&Slice>, events: &Sender<Event>) -> Result<()> {
        match described {
            Some(target) => self.converge(target, events).map(drop),
            None => self.clear(events),
        }
    }

    /// Takes everything away.
    pub(super) fn remove(&mut self, events: &Sender<Event>) -> Outcome {
        while let Some(name) = self.replacing.keys().next().cloned() {
            self.end_replacement(
                &name,
                Err(anyhow!("function {name}: is not replaced, since its slice is taken away")),
            );
        }
        self.resume_at = None;
        self.publish(Some(SliceState::Changing));
        let count = self.functions.len() + self.links.len();
        let removed = record::remove_descriptor(&self.node.paths, &self.name).map_err(Into::into);
        removed.and_then(|()| self.clear(events)).map(|()| count).map_err(|e: anyhow::Error| Failure {
            message: format!("slice {}: {e:#}", self.name),
            details: vec!["what is left is taken away by another `kaista down`".into()],
        })
    }

    fn clear(&mut self, events: &Sender<Event>) -> Result<()> {
        self.converge(&empty_slice(&self.name), events)?;
        self.sweep()?;
        Ok(Record::remove(&self.node.paths, &self.name)?)
    }

    /// Takes away by name what no record could tell of.
    fn sweep(&self) -> Result<()> {
        Pump::remove_all(&self.node, &self.name)?;
        for id in Sandbox::list(&self.node.layout)?.into_iter().filter(|id| id.slice() == self.name) {
            function::remove(&self.node, &self.name, id.function())?;
        }
        self.node.deposits.end_all(&self.name);
        Ok(())
    }

    fn unchanged(&self, reason: &str) -> Failure {
        Failure { message: format!("slice {}: {reason}", self.name), details: vec!["nothing was changed".into()] }
    }
}

/// The target, with the number of replicas that a pool was to have where it names none.
fn as_many_as_before(target: &Slice, former: Option<&Slice>) -> Slice {
    let mut target = target.clone();
    for function in &mut target.spec.functions {
        if let Some(pool) = &mut function.pool {
            let there = || former?.function(&function.name)?.pool?.replicas;
            pool.replicas = pool.replicas.or_else(there).or(Some(1)).map(|replicas| replicas.min(pool.max));
        }
    }
    target
}
