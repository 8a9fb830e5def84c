//! The number of a pool's replicas: an edit that needs no description, since it is made in the one that holds when its turn has come.

use std::path::Path;
use std::sync::mpsc::Sender;

use anyhow::{Context, anyhow};
use slice::{HostFacts, Slice};

use super::{Outcome, Worker};
use crate::control::{Event, Failure};
use crate::record;

impl Worker {
    /// Makes a pool have so many replicas; where that fails, as many as before.
    pub(super) fn scale(&mut self, pool: &str, replicas: u16, events: &Sender<Event>) -> Outcome {
        let described = record::load_descriptor(&self.node.paths, &self.name)?;
        let gone = || format!("slice {}: is half taken away; bring it up or take it down first", self.name);
        let target = scaled(described.with_context(gone)?, pool, replicas, &self.node.facts(Some(&self.name)))?;
        self.apply(&target, events)
    }
}

/// The description with so many replicas of a pool, as far as this host has cores for them.
fn scaled(mut slice: Slice, pool: &str, replicas: u16, host: &HostFacts) -> Result<Slice, Failure> {
    let name = slice.name().to_owned();
    let function = slice.spec.functions.iter_mut().find(|function| function.name == pool);
    let function = function.with_context(|| format!("there is no function {name}/{pool}"))?;
    let remedy = "give it pool: {max: N} in its descriptor";
    let of = function.pool.as_mut().with_context(|| format!("function {pool} of slice {name} is no pool; {remedy}"))?;
    if !(1..=of.max).contains(&replicas) {
        let words = format!("pool {pool} has 1 to {} replicas, not {replicas}", of.max);
        return Err(anyhow!("{words}; its descriptor says so (max)").into());
    }
    of.replicas = Some(replicas);
    let text = serde_json::to_string(&slice).map_err(anyhow::Error::from)?;
    Ok(slice::parse(&text, Path::new("/"), host)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> Slice {
        let text = r#"{"apiVersion": "kaista.dev/v1alpha1", "kind": "Slice", "metadata": {"name": "s"}, "spec": {"functions": [
            {"name": "one", "image": {"rootfs": "/"}},
            {"name": "many", "image": {"rootfs": "/"}, "pool": {"max": 4, "replicas": 2}, "cores": "exclusive"}]}}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn one_number_changes_and_nothing_else() {
        let mut expected = slice();
        expected.spec.functions[1].pool.as_mut().unwrap().replicas = Some(3);
        assert_eq!(scaled(slice(), "many", 3, &HostFacts::default()).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy() {
        let small = HostFacts { cores: Some(3), ..HostFacts::default() };
        for (pool, replicas, host, word) in [
            ("none", 1, HostFacts::default(), "no function s/none"),
            ("one", 2, HostFacts::default(), "give it pool"),
            ("many", 0, HostFacts::default(), "1 to 4 replicas"),
            ("many", 5, HostFacts::default(), "1 to 4 replicas"),
            ("many", 4, small, "cores"),
        ] {
            let said = scaled(slice(), pool, replicas, &host).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
