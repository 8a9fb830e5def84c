//! cgroups, whichever way the host mounts them: v2 alone, v1, or v1 with some controllers on a v2 tree (hybrid).
//!
//! The OCI runtime makes a container's cgroups and sets memory, processes and cores. What is done here is what it does not
//! do on every layout: deny hugepages, change cores, read usage, and find and remove what a killed process left.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::Attempt;
use crate::{Error, FunctionId, Layout, Result, Usage};

/// Where each controller of the host is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies {
    /// v1 mounts: controllers (or `name=...`) and mount point.
    pub v1: Vec<(Vec<String>, PathBuf)>,
    /// The v2 mount point, with the controllers that it has.
    pub v2: Option<(PathBuf, Vec<String>)>,
}

impl Hierarchies {
    /// Reads this process's mount table.
    pub fn read() -> Result<Self> {
        let table = fs::read_to_string("/proc/self/mountinfo").attempt(|| "reading /proc/self/mountinfo".into())?;
        let mut found = Self::parse(&table);
        if let Some((mount, controllers)) = &mut found.v2 {
            let text = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
            *controllers = text.split_whitespace().map(String::from).collect();
        }
        Ok(found)
    }

    /// The mounts in a mountinfo table, v2's controllers left open.
    fn parse(table: &str) -> Self {
        let mut found = Self { v1: Vec::new(), v2: None };
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let (Some(mount), Some((kind, rest))) = (left.split(' ').nth(4), right.split_once(' ')) else { continue };
            let mount = PathBuf::from(mount);
            match kind {
                "cgroup2" if found.v2.is_none() => found.v2 = Some((mount, Vec::new())),
                "cgroup" => {
                    let options = rest.split(' ').nth(1).unwrap_or_default();
                    let controllers: Vec<String> =
                        options.split(',').filter(|o| is_controller(o)).map(String::from).collect();
                    if found.v1.iter().all(|(known, _)| *known != controllers) {
                        found.v1.push((controllers, mount));
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// `v1`, `v2` or `hybrid`, for people.
    pub fn kind(&self) -> &'static str {
        match (self.v1.is_empty(), &self.v2) {
            (true, Some(_)) => "v2",
            (false, Some(_)) => "hybrid",
            (false, None) => "v1",
            (true, None) => "none",
        }
    }

    /// Whether the kernel can limit what `controller` counts.
    pub fn has(&self, controller: &str) -> bool {
        self.of(controller).is_some()
    }

    /// The hierarchy that a controller is on, and whether that is v2.
    fn of(&self, controller: &str) -> Option<(&Path, bool)> {
        let listed = |list: &[String]| list.iter().any(|name| name == controller);
        if let Some((_, mount)) = self.v1.iter().find(|(controllers, _)| listed(controllers)) {
            return Some((mount, false));
        }
        self.v2.as_ref().filter(|(_, controllers)| listed(controllers)).map(|(mount, _)| (mount.as_path(), true))
    }

    /// Every mount point.
    fn mounts(&self) -> impl Iterator<Item = &Path> {
        self.v1.iter().map(|(_, mount)| mount.as_path()).chain(self.v2.iter().map(|(mount, _)| mount.as_path()))
    }
}

/// An option of a v1 mount that names a controller or a hierarchy, as opposed to how it is mounted.
fn is_controller(option: &str) -> bool {
    !matches!(option, "rw" | "ro" | "xattr" | "noprefix" | "clone_children" | "cpuset_v2_mode" | "favordynmods")
        && !option.starts_with("release_agent=")
}

/// The cgroups of one function: the same path in every hierarchy.
#[derive(Debug)]
pub(crate) struct Group {
    hierarchies: Hierarchies,
    /// `/kaista/<slice>/<function>`, from each hierarchy's root.
    path: PathBuf,
}

impl Group {
    pub(crate) fn of(layout: &Layout, id: &FunctionId) -> Result<Self> {
        Ok(Self { hierarchies: Hierarchies::read()?, path: path(layout, id) })
    }

    /// Makes the group where hugepages are counted and sets every limit to zero, before a process is in it.
    pub(crate) fn deny_hugepages(&self) -> Result<()> {
        let Some((mount, unified)) = self.hierarchies.of("hugetlb") else {
            tracing::warn!("this kernel counts no hugepages per cgroup; only the system call filter denies them");
            return Ok(());
        };
        let mut dir = mount.to_path_buf();
        for part in self.path.strip_prefix("/").expect("an absolute path") {
            if unified {
                fs::write(dir.join("cgroup.subtree_control"), "+hugetlb")
                    .attempt(|| format!("enabling hugetlb limits below {}", dir.display()))?;
            }
            dir.push(part);
            make_dir(&dir)?;
        }
        for limit in huge_limits(&dir)? {
            fs::write(&limit, "0").attempt(|| format!("setting {}", limit.display()))?;
        }
        Ok(())
    }

    /// Puts a process where hugepages are denied, if it is not there, and reads the limits back.
    pub(crate) fn hold_without_hugepages(&self, pid: Pid) -> Result<()> {
        let Some((mount, _)) = self.hierarchies.of("hugetlb") else { return Ok(()) };
        let dir = self.dir(mount);
        let members = fs::read_to_string(dir.join("cgroup.procs")).attempt(|| format!("reading {}", dir.display()))?;
        if !members.lines().any(|line| line.parse() == Ok(pid.as_raw())) {
            fs::write(dir.join("cgroup.procs"), pid.to_string())
                .attempt(|| format!("putting process {pid} into {}", dir.display()))?;
        }
        for limit in huge_limits(&dir)? {
            let value = fs::read_to_string(&limit).attempt(|| format!("reading {}", limit.display()))?;
            if value.trim() != "0" {
                return Err(Error::Spec(format!("{} is {}, not 0", limit.display(), value.trim())));
            }
        }
        Ok(())
    }

    /// Restricts the group to some cores.
    pub(crate) fn set_cores(&self, cores: &[usize]) -> Result<()> {
        let (mount, _) = self.hierarchies.of("cpuset").ok_or_else(|| Error::Absent("the cpuset controller".into()))?;
        let file = self.dir(mount).join("cpuset.cpus");
        fs::write(&file, list_of(cores)).attempt(|| format!("setting {}", file.display()))
    }

    /// The cores that it is restricted to; none if nobody has said, or there is no such group.
    pub(crate) fn cores(&self) -> Vec<usize> {
        let Some((mount, _)) = self.hierarchies.of("cpuset") else { return Vec::new() };
        parse_list(&fs::read_to_string(self.dir(mount).join("cpuset.cpus")).unwrap_or_default())
    }

    /// What the group uses; zero for what the host does not count.
    pub(crate) fn usage(&self) -> Usage {
        let number = |controller: &str, v1: &str, v2: &str| {
            let (mount, unified) = self.hierarchies.of(controller)?;
            let text = fs::read_to_string(self.dir(mount).join(if unified { v2 } else { v1 })).ok()?;
            text.trim().parse().ok()
        };
        Usage {
            cpu_ns: self.cpu_ns().unwrap_or(0),
            memory: number("memory", "memory.usage_in_bytes", "memory.current").unwrap_or(0),
            pids: number("pids", "pids.current", "pids.current").unwrap_or(0),
        }
    }

    fn cpu_ns(&self) -> Option<u64> {
        if let Some((mount, false)) = self.hierarchies.of("cpuacct") {
            return fs::read_to_string(self.dir(mount).join("cpuacct.usage")).ok()?.trim().parse().ok();
        }
        let (mount, _) = self.hierarchies.v2.as_ref()?;
        let text = fs::read_to_string(self.dir(mount).join("cpu.stat")).ok()?;
        let micros: u64 = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.parse().ok()?;
        Some(micros * 1000)
    }

    /// Whether a process is in the group, or in one below it, in any hierarchy.
    pub(crate) fn contains(&self, pid: Pid) -> bool {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return false };
        text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| Path::new(path).starts_with(&self.path))
    }

    /// Every process in the group, in whichever hierarchy.
    pub(crate) fn members(&self) -> Vec<Pid> {
        let mut pids = Vec::new();
        for mount in self.hierarchies.mounts() {
            collect_members(&self.dir(mount), &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Removes the group, and those above it that are empty then. Its processes must be gone.
    pub(crate) fn remove(&self) -> Result<()> {
        for mount in self.hierarchies.mounts() {
            let dir = self.dir(mount);
            remove_tree(&dir)?;
            let ours = dir.ancestors().skip(1).take_while(|above| *above != mount);
            for above in ours {
                // Fails while another function or slice is there.
                if fs::remove_dir(above).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn dir(&self, mount: &Path) -> PathBuf {
        mount.join(self.path.strip_prefix("/").expect("an absolute path"))
    }
}

/// The function's cgroup, from each hierarchy's root.
pub(crate) fn path(layout: &Layout, id: &FunctionId) -> PathBuf {
    Path::new("/").join(layout.cgroup()).join(id.slice()).join(id.unit())
}

/// `0,2,3`.
pub(crate) fn list_of(cores: &[usize]) -> String {
    cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The inverse: `0-2,5` as the kernel writes it.
pub(crate) fn parse_list(list: &str) -> Vec<usize> {
    let mut cores = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cores.extend(first..=last);
        }
    }
    cores
}

/// Kills processes until `find` finds none. A pid is killed only if `find` still names it once a pidfd holds it, so a pid
/// that was reused meanwhile is left alone.
pub(crate) fn kill_all(find: impl Fn() -> Vec<Pid>) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let begun = Instant::now();
    loop {
        let pids = find();
        if pids.is_empty() {
            return Ok(());
        }
        let held: Vec<_> = pids
            .iter()
            .filter_map(|pid| rustix::process::Pid::from_raw(pid.as_raw()))
            .filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok().map(|fd| (pid, fd)))
            .collect();
        let still = find();
        for (pid, fd) in held {
            if still.contains(&Pid::from_raw(pid.as_raw_nonzero().get())) {
                let _ = pidfd_send_signal(fd, Signal::KILL);
            }
        }
        if begun.elapsed() > PATIENCE {
            let what = format!("ending processes {pids:?}");
            return Err(Error::Io { what, source: io::Error::from(ErrorKind::TimedOut) });
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Files with a hugetlb limit, reservations included.
fn huge_limits(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).attempt(|| format!("reading {}", dir.display()))?;
    let is_limit =
        |name: &str| name.starts_with("hugetlb.") && (name.ends_with(".max") || name.ends_with("limit_in_bytes"));
    Ok(entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| is_limit(&n.to_string_lossy())))
        .collect())
}

fn make_dir(dir: &Path) -> Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).attempt(|| format!("making cgroup {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn collect_members(dir: &Path, pids: &mut Vec<Pid>) {
    let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) else { return };
    pids.extend(text.lines().filter_map(|line| line.parse().ok()).map(Pid::from_raw));
    for below in subgroups(dir) {
        collect_members(&below, pids);
    }
}

/// The kernel may say "busy" for a moment after the last process of a group has ended.
fn remove_tree(dir: &Path) -> Result<()> {
    for below in subgroups(dir) {
        remove_tree(&below)?;
    }
    for _ in 0..1000 {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(error).attempt(|| format!("removing cgroup {}", dir.display())),
        }
    }
    Err(io::Error::from(ErrorKind::ResourceBusy)).attempt(|| format!("removing cgroup {}", dir.display()))
}

fn subgroups(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_host_has_v1_controllers_and_a_v2_tree() {
        let found = Hierarchies::parse(
            "30 20 0:25 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro\n\
             31 30 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             32 30 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
             33 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        );
        assert_eq!(found.kind(), "hybrid");
        assert_eq!(found.of("cpuacct"), Some((Path::new("/sys/fs/cgroup/cpu,cpuacct"), false)));
        assert_eq!(found.mounts().count(), 3);
        assert_eq!(found.v1[1].0, ["name=systemd"]);
    }

    #[test]
    fn a_v2_host_has_one_mount() {
        let found = Hierarchies::parse("30 20 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
        assert_eq!(found.kind(), "v2");
        assert_eq!(found.v2.expect("v2").0, Path::new("/sys/fs/cgroup"));
    }

    #[test]
    fn core_lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(parse_list("\n").is_empty());
        assert_eq!(parse_list(&list_of(&[1, 3])), [1, 3]);
    }
}
