//! Functions whose containers are being replaced while the slice is served.

use std::sync::mpsc::Sender;

use anyhow::{Result, anyhow};
use slice::Slice;

use super::{Outcome, Worker};
use crate::control::Event;
use crate::plan::Plan;
use crate::replace::{Next, Replaced, Replacement};

/// A replacement, and who waits for it.
pub(super) struct Replacing {
    replacement: Replacement,
    events: Sender<Event>,
    outcome: Sender<Outcome>,
}

impl Worker {
    /// Has another container of a function take over; where that fails, all is as it was.
    pub(super) fn replace(&mut self, name: String, events: Sender<Event>, outcome: Sender<Outcome>) {
        let begun = match self.functions.get_mut(&name) {
            None => Err(anyhow!("there is no function {name}")),
            Some(_) if self.replacing.contains_key(&name) => Err(anyhow!("function {name}: is being replaced already")),
            Some(function) => Replacement::begin(function, &self.node),
        };
        match begun {
            Ok(replacement) => drop(self.replacing.insert(name, Replacing { replacement, events, outcome })),
            Err(error) => drop(outcome.send(Err(self.failure(&error)))),
        }
    }

    /// Looks how far replacements are. Whether one was concluded.
    pub(super) fn go_on_replacing(&mut self) -> bool {
        let mut ended = Vec::new();
        let mut handed_over = false;
        for (name, Replacing { replacement, .. }) in &mut self.replacing {
            let Some(function) = self.functions.get_mut(name) else { continue };
            match replacement.proceed(function, &self.node) {
                Ok(Next::Look) => {}
                Ok(Next::Record) => handed_over = true,
                Ok(Next::Conclude) => ended.push((name.clone(), Ok(()))),
                Err(error) => ended.push((name.clone(), Err(error))),
            }
        }
        if handed_over {
            self.store_record(&[], &[]);
        }
        let any = !ended.is_empty();
        for (name, how) in ended {
            self.end_replacement(&name, how);
        }
        any
    }

    /// Concludes a replacement, or gives it up.
    pub(super) fn end_replacement(&mut self, name: &str, how: Result<()>) {
        let replacing = self.replacing.remove(name).zip(self.functions.get_mut(name));
        let Some((Replacing { replacement, events, outcome }, function)) = replacing else { return };
        let result = match how {
            Ok(()) => {
                let Replaced { former, pid } = replacement.conclude(function, &self.node);
                let action = format!("process {pid} has taken over from process {former}");
                let _ = events.send(Event::Progress { subject: format!("function {name}"), action });
                Ok(1)
            }
            Err(error) => {
                replacement.give_up(function, &self.node);
                Err(self.failure(&error))
            }
        };
        self.store_record(&[], &[]);
        self.publish(None);
        let _ = outcome.send(result);
    }

    /// A function that is being replaced and would have to change for this.
    pub(super) fn is_replacing_for(&self, target: &Slice) -> Option<String> {
        let plan = Plan::new(&self.actual(), target, &self.there());
        let down = plan.links_down.iter().filter_map(|key| self.links.get(key)).map(|link| &link.spec);
        let ends = down.chain(&plan.links_up).flat_map(|link| link.between.iter().filter_map(slice::End::port));
        let mut touched = ends.map(|at| &at.function).chain(&plan.stop).chain(&plan.start);
        touched.find(|name| self.replacing.contains_key(*name)).cloned()
    }
}
