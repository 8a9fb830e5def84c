//! Which cores this process may use, and how to stay on one.

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may use, lowest number first.
pub fn allowed() -> anyhow::Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot read the own CPU set")?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Keeps the calling thread on one core.
pub fn pin(core: usize) -> anyhow::Result<()> {
    anyhow::ensure!(core < CpuSet::MAX_CPU, "there is no core {core}");
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot stay on core {core}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_to_a_core_that_does_not_exist_says_which() {
        for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU] {
            let error = pin(core).expect_err("no machine here has so many");
            assert!(error.to_string().contains(&core.to_string()), "{error}");
        }
    }
}
