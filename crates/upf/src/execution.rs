//! What the configuration says of execution models and workers.
//!
//! ```yaml
//! execution:
//!   model: run-to-completion        # or pipeline
//!   sender: false                   # of a pipeline: one thread sends for all workers
//!   workers: {min: 1, max: 4}
//!   signal: busy                    # or backlog, ewma
//!   scaleOutAbove: 0.8
//!   scaleInBelow: 0.5
//!   rebalanceAbove: 0.5
//!   coolDownMs: 1000
//! ```

use std::time::Duration;

use serde::Deserialize;

use crate::elastic::{Elasticity, Signal, Terms};
use crate::model::Model;

/// The execution of the UPF.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Execution {
    /// How packets get to workers.
    pub model: Model,
    /// Whether a pipeline has a thread that sends for all workers: ports then need one queue pair each.
    pub sender: bool,
    /// How many there may be. All of them, one for each queue pair of the ports, where that is not said.
    pub workers: Option<Workers>,
    /// What says how loaded a worker is.
    pub signal: Signal,
    /// A worker is added where the mean load is over this part of what a worker can do.
    pub scale_out_above: f64,
    /// A worker is taken away where without it the mean load is under this.
    pub scale_in_below: f64,
    /// Buckets move from workers with at least this load.
    pub rebalance_above: f64,
    /// For so long after the number of workers has changed none is taken away, in milliseconds.
    pub cool_down_ms: u32,
}

/// How many workers there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workers {
    /// Fewest.
    pub min: usize,
    /// Most: not more than the ports have queue pairs, but with a sender.
    pub max: usize,
}

impl Default for Execution {
    fn default() -> Self {
        let terms = Terms::default();
        Self {
            model: Model::default(),
            sender: false,
            workers: None,
            signal: Signal::default(),
            scale_out_above: terms.scale_out_above,
            scale_in_below: terms.scale_in_below,
            rebalance_above: terms.rebalance_above,
            cool_down_ms: terms.cool_down.as_millis() as u32,
        }
    }
}

impl Execution {
    /// What cannot be meant: the field, and why.
    pub(crate) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if let Some(Workers { min, max }) = self.workers
            && !(1 <= min && min <= max && max <= port::steering::BUCKETS)
        {
            return Err(("execution.workers", "min must be from 1 to max, and max 128 at most"));
        }
        if self.sender && self.model != Model::Pipeline {
            return Err(("execution.sender", "is of a pipeline: give `model: pipeline`, or leave it away"));
        }
        if self.sender && self.workers.is_none() {
            return Err(("execution.sender", "says no number of workers, nor do queue pairs then: give `workers`"));
        }
        let is_part = |part: f64| part > 0.0 && part <= 1.0;
        if !is_part(self.scale_out_above) || !is_part(self.scale_in_below) || !is_part(self.rebalance_above) {
            let reason = "scaleOutAbove, scaleInBelow and rebalanceAbove are parts of a worker: over 0, and 1 at most";
            return Err(("execution", reason));
        }
        if self.scale_in_below > self.scale_out_above - 0.1 {
            let reason = "must be at least 0.1 under scaleOutAbove, or workers would come and go";
            return Err(("execution.scaleInBelow", reason));
        }
        Ok(())
    }

    /// Whether the number of workers may change.
    pub(crate) fn varies(&self) -> bool {
        self.workers.is_some_and(|workers| workers.min != workers.max)
    }

    /// How workers come and go.
    pub fn elasticity(&self) -> Elasticity {
        let all = Workers { min: usize::MAX, max: usize::MAX };
        let Workers { min, max } = self.workers.unwrap_or(all);
        let terms = Terms {
            min,
            max,
            scale_out_above: self.scale_out_above,
            scale_in_below: self.scale_in_below,
            rebalance_above: self.rebalance_above,
            cool_down: Duration::from_millis(self.cool_down_ms.into()),
        };
        Elasticity { signal: self.signal, terms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Execution, String> {
        let execution: Execution = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        execution.check().map_err(|(field, reason)| format!("{field}: {reason}"))?;
        Ok(execution)
    }

    #[test]
    fn what_is_said_is_understood_and_what_is_not_has_a_default() {
        let execution = parse("{model: pipeline, workers: {min: 2, max: 4}, signal: ewma, coolDownMs: 5}").unwrap();
        assert_eq!((execution.model, execution.signal), (Model::Pipeline, Signal::Ewma));
        let Elasticity { terms, .. } = execution.elasticity();
        assert_eq!(terms, Terms { min: 2, max: 4, cool_down: Duration::from_millis(5), ..Terms::default() });
        assert!(parse("{model: pipeline, sender: true, workers: {min: 1, max: 2}}").unwrap().sender);
        assert_eq!(parse("{}"), Ok(Execution::default()));
        assert_eq!(Execution::default().model, Model::RunToCompletion);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, part) in [
            ("model: threads", "threads"),
            ("signal: cpu", "cpu"),
            ("worker: 3", "worker"),
            ("workers: {min: 0, max: 4}", "execution.workers"),
            ("workers: {min: 3, max: 2}", "execution.workers"),
            ("workers: {min: 1, max: 129}", "execution.workers"),
            ("{sender: true, workers: {min: 1, max: 2}}", "execution.sender"),
            ("{model: pipeline, sender: true}", "execution.sender"),
            ("scaleOutAbove: 1.2", "scaleOutAbove"),
            ("rebalanceAbove: 0", "rebalanceAbove"),
            ("scaleOutAbove: .nan", "scaleOutAbove"),
            ("{scaleOutAbove: 0.6, scaleInBelow: 0.55}", "execution.scaleInBelow"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
