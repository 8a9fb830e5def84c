//! What processes hold of ports: file descriptors, memfds, mappings, buffers of arenas.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Of some processes, in the order in which they were named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    processes: Vec<Holdings>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Holdings {
    /// Those of memfds among them.
    descriptors: Vec<String>,
    /// Those of memfds among its mappings.
    mappings: Vec<String>,
    /// Different segments that it holds by a descriptor or a mapping: their pages are not given back.
    segments: BTreeSet<u64>,
    /// Of each holder table among them, how many buffers of its arena somebody has.
    buffers: BTreeMap<u64, usize>,
}

/// Names of the broker's memfds begin so.
const SEGMENT: &str = "/memfd:kaista-";
/// So does that of a holder table, which has two bytes for each buffer: zero of those that the broker has.
const HOLDERS: &str = "/memfd:kaista-holders";

impl Census {
    /// Counts now. A process that is gone holds nothing.
    pub fn take(pids: &[i32]) -> Self {
        Self { processes: pids.iter().map(|pid| holdings(*pid)).collect() }
    }

    /// As soon as it has been the same for a while, or is not within ten seconds: what is given back beside the traffic is gone.
    pub fn at_rest(pids: &[i32]) -> Self {
        const WHILE: Duration = Duration::from_millis(200);
        let (begin, mut since, mut last) = (Instant::now(), Instant::now(), Self::take(pids));
        while since.elapsed() < WHILE && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
            let now = Self::take(pids);
            if now != last {
                (since, last) = (Instant::now(), now);
            }
        }
        last
    }

    /// Whether the first process named holds all segments of the last.
    pub fn first_has_all_of_last(&self) -> bool {
        let ends = self.processes.first().zip(self.processes.last());
        ends.is_some_and(|(first, last)| last.segments.is_subset(&first.segments))
    }

    /// How many segments there are with them all.
    fn segments(&self) -> usize {
        self.processes.iter().flat_map(|process| &process.segments).collect::<BTreeSet<_>>().len()
    }

    /// How many buffers of arenas somebody has.
    fn buffers(&self) -> usize {
        let all = self.processes.iter().flat_map(|process| &process.buffers).collect::<BTreeMap<_, _>>();
        all.into_values().sum()
    }

    /// How much more there is than in `before`, and what.
    pub fn beyond(&self, before: &Self) -> (u64, Vec<String>) {
        let (mut more, mut what) = (0, Vec::new());
        let mut note = |name: String, now: usize, then: usize| {
            if now > then {
                more += (now - then) as u64;
                what.push(format!("{name}: {now} instead of {then}"));
            }
        };
        for (n, (now, then)) in self.processes.iter().zip(&before.processes).enumerate() {
            let all =
                [("descriptors", &now.descriptors, &then.descriptors), ("mappings", &now.mappings, &then.mappings)];
            for (what, now, then) in all {
                let more = more_of(now, then);
                note(format!("{what} of process {n} (more of {})", more.join(", ")), now.len(), then.len());
            }
        }
        note("segments".into(), self.segments(), before.segments());
        note("buffers that somebody has".into(), self.buffers(), before.buffers());
        (more, what)
    }

    /// As [`Census::beyond`], of the best of what is there within a while: what is just being given back is not leaked. A campaign that
    /// was broken off waits, too: what it did not wait for would look leaked.
    pub fn settle(&self, pids: impl Fn() -> Vec<i32>, within: Duration) -> (u64, Vec<String>) {
        let start = Instant::now();
        loop {
            let found = Self::take(&pids()).beyond(self);
            if found.0 == 0 || start.elapsed() > within {
                return found;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn holdings(pid: i32) -> Holdings {
    let (mut descriptors, mut segments, mut buffers) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        if target.starts_with(SEGMENT)
            && let Ok(meta) = fs::metadata(entry.path())
        {
            segments.insert(meta.ino());
            if target.starts_with(HOLDERS) {
                let table = fs::read(entry.path()).unwrap_or_default();
                buffers.insert(meta.ino(), table.as_chunks::<2>().0.iter().filter(|holder| **holder != [0; 2]).count());
            }
        }
        // Sockets and pipes have numbers that no two have.
        descriptors.push(target.split(":[").next().unwrap_or_default().to_owned());
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut mappings = Vec::new();
    for line in maps.lines().filter(|line| line.contains(SEGMENT)) {
        let mut columns = line.split_whitespace().skip(1);
        let (access, inode, name) =
            (columns.next(), columns.nth(2).and_then(|inode| inode.parse().ok()), columns.next());
        segments.extend::<Option<u64>>(inode);
        mappings.push(format!("{} {}", name.unwrap_or_default(), access.unwrap_or_default()));
    }
    Holdings { descriptors, mappings, segments, buffers }
}

/// Names of which there are more than there were.
fn more_of(now: &[String], then: &[String]) -> Vec<String> {
    let count = |names: &[String], name: &String| names.iter().filter(|other| *other == name).count();
    let names: BTreeSet<&String> = now.iter().collect();
    let grown =
        names.into_iter().map(|name| (name, count(now, name), count(then, name))).filter(|(_, now, then)| now > then);
    grown.map(|(name, now, then)| format!("{} {name}", now - then)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::memory::Words;
    use vport::segment::Segment;

    /// Each looks at all of this process.
    static PROCESS: Mutex<()> = Mutex::new(());

    #[test]
    fn a_buffer_that_is_kept_is_noticed_and_one_that_the_broker_has_again_is_not() {
        let _process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let own = std::process::id() as i32;
        let table = Segment::create("kaista-holders", 4096, false).unwrap();
        let holders = Words::map(&table, 4096, true).unwrap();
        holders.word(8).store(7 << 16 | 7 << 32, Ordering::Relaxed);
        let before = Census::take(&[own]);
        holders.word(4088).store(1 << 48, Ordering::Relaxed);
        let (_, what) = Census::take(&[own]).beyond(&before);
        assert!(what.contains(&"buffers that somebody has: 3 instead of 2".to_owned()), "{what:?}");
        holders.word(8).store(0, Ordering::Relaxed);
        assert!(!Census::take(&[own]).beyond(&before).1.iter().any(|line| line.starts_with("buffers")));
    }

    #[test]
    fn a_segment_that_is_kept_is_noticed_and_one_that_is_given_back_is_not() {
        let _process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let own = std::process::id() as i32;
        let before = Census::take(&[own]);
        let kept = Segment::create("kaista-test", 4096, false).unwrap();
        let (more, what) = Census::take(&[own]).beyond(&before);
        assert!(more >= 2 && what.iter().any(|line| line.starts_with("segments")), "{what:?}");
        drop(kept);
        assert_eq!(Census::take(&[own]).beyond(&before).1.iter().filter(|l| l.starts_with("segments")).count(), 0);
    }
}
