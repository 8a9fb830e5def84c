//! What a node can leave behind on a machine: processes, namespaces, mounts, cgroups, sockets, memfds, hugepages,
//! interfaces.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything on this machine that a node could have made, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    lines: BTreeSet<String>,
}

impl Census {
    /// Counts now.
    pub fn take() -> Self {
        let mut lines = BTreeSet::new();
        processes(&mut lines);
        mounts(&mut lines);
        cgroups(&mut lines);
        sockets(&mut lines);
        interfaces(&mut lines);
        hugepages(&mut lines);
        Self { lines }
    }

    /// Waits until everything that came since is gone again; panics with what stays.
    pub fn assert_restored(&self, within: Duration) {
        let start = Instant::now();
        loop {
            let left = Self::take().left_since(self);
            if left.is_empty() {
                return;
            }
            assert!(start.elapsed() < within, "still there after {within:?}: {left:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What is there now and was not in `before`.
    pub fn left_since(&self, before: &Self) -> Vec<String> {
        self.lines.difference(&before.lines).cloned().collect()
    }
}

/// Processes of ours or in a user namespace that is not this one; the namespaces they are in; the memfds they hold.
fn processes(lines: &mut BTreeSet<String>) {
    let own_user_namespace = fs::read_link("/proc/self/ns/user").unwrap_or_default();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let process = entry.path();
        let Some(pid) = process.file_name().and_then(|n| n.to_str()).filter(|n| n.parse::<u32>().is_ok()) else {
            continue;
        };
        let Ok(exe) = fs::read_link(process.join("exe")) else { continue }; // kernel thread, zombie, or gone
        let program = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let foreign = fs::read_link(process.join("ns/user")).is_ok_and(|namespace| namespace != own_user_namespace);
        if program.starts_with("kaista") || program.starts_with("runc") || foreign {
            lines.insert(format!("process {pid} {program}"));
        }
        for kind in ["user", "net", "mnt", "pid", "ipc", "uts", "cgroup"] {
            if let Ok(namespace) = fs::read_link(process.join("ns").join(kind)) {
                lines.insert(format!("namespace {}", namespace.display()));
            }
        }
        for fd in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            if let Ok(target) = fs::read_link(fd.path()) {
                let target = target.to_string_lossy().into_owned();
                if target.starts_with("/memfd:kaista") {
                    lines.insert(format!("memfd {target} in process {pid}"));
                }
            }
        }
    }
}

fn mounts(lines: &mut BTreeSet<String>) {
    for line in fs::read_to_string("/proc/self/mountinfo").expect("mountinfo").lines() {
        let at = line.split(' ').nth(4).unwrap_or_default();
        lines.insert(format!("mount {at}"));
    }
}

fn cgroups(lines: &mut BTreeSet<String>) {
    fn walk(folder: &Path, depth: usize, lines: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if depth < 6 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                lines.insert(format!("cgroup {}", entry.path().display()));
                walk(&entry.path(), depth + 1, lines);
            }
        }
    }
    walk(Path::new("/sys/fs/cgroup"), 0, lines);
}

/// Unix sockets with a name.
fn sockets(lines: &mut BTreeSet<String>) {
    for line in fs::read_to_string("/proc/net/unix").expect("/proc/net/unix").lines() {
        if let Some(path) = line.split_whitespace().nth(7).filter(|path| path.contains("kaista")) {
            lines.insert(format!("socket {path}"));
        }
    }
}

fn interfaces(lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir("/sys/class/net").expect("/sys/class/net").flatten() {
        lines.insert(format!("interface {}", entry.file_name().to_string_lossy()));
    }
}

fn hugepages(lines: &mut BTreeSet<String>) {
    for size in fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let count = |name: &str| read_number(size.path().join(name));
        let used = count("nr_hugepages") - count("free_hugepages");
        for page in 0..used {
            lines.insert(format!("hugepage {} #{page}", size.file_name().to_string_lossy()));
        }
    }
}

fn read_number(file: PathBuf) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
