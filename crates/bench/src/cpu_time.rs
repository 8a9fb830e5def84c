//! CPU time that processes have used, to the nanosecond.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

/// Some processes, all of their threads.
pub struct CpuTime {
    processes: Vec<PathBuf>,
}

impl CpuTime {
    /// Watches the processes with these numbers.
    pub fn of(pids: impl IntoIterator<Item = u32>) -> Self {
        Self { processes: pids.into_iter().map(|pid| PathBuf::from(format!("/proc/{pid}/task"))).collect() }
    }

    /// What they have used so far, in user and kernel. Threads that have ended are not counted.
    pub fn now(&self) -> anyhow::Result<Duration> {
        let mut sum_ns = 0;
        for process in &self.processes {
            let tasks = fs::read_dir(process).with_context(|| format!("cannot read {}", process.display()))?;
            for task in tasks {
                // `/proc/PID/stat` counts in hundredths of a second, `schedstat` begins with nanoseconds on a core.
                let text = fs::read_to_string(task?.path().join("schedstat"));
                let ns = text.ok().and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
                sum_ns += ns.context("this kernel does not tell the CPU time of threads (CONFIG_SCHED_INFO)")?;
            }
        }
        Ok(Duration::from_nanos(sum_ns))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn work_is_counted_and_that_of_others_is_not() {
        if !std::path::Path::new("/proc/self/schedstat").exists() {
            println!("SKIPPED work_is_counted_and_that_of_others_is_not: this kernel has no schedstat");
            return;
        }
        // A process of one thread: what others did who have ended is no longer in the sum.
        let mut worker = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        let time = CpuTime::of([worker.id()]);
        // Fails by never ending if work is not counted.
        while time.now().expect("the worker lives") < Duration::from_millis(5) {}
        worker.kill().expect("it runs");
        worker.wait().expect("it ends");
        assert!(CpuTime::of([]).now().expect("no process").is_zero());
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(CpuTime::of([u32::MAX]).now().is_err());
    }
}
