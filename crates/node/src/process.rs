//! Processes, named so that a number used again is not taken for the one it named before.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::{CpuSet, sched_setaffinity};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process over its whole life: its number, and when it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    /// The number.
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

impl ProcessId {
    /// The process that has this number now; none if there is none, or only its remains.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let (state, start) = stat(pid)?;
        (!matches!(state, 'Z' | 'X')).then_some(Self { pid, start })
    }
}

/// A process that can be waited for and signalled without mistaking it for another.
#[derive(Debug)]
pub(crate) struct Process {
    /// Which.
    pub id: ProcessId,
    fd: OwnedFd,
}

impl Process {
    /// Takes hold of a process; none if it is no more.
    pub(crate) fn open(id: ProcessId) -> Option<Self> {
        let fd = open(id.pid).ok()?;
        // Looked up after the descriptor was opened: what has this start time is what the descriptor refers to.
        (ProcessId::of(id.pid) == Some(id)).then_some(Self { id, fd })
    }

    /// Becomes readable when the process ends.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&now)), Ok(n) if n > 0)
    }

    /// A copy of one of its descriptors.
    pub(crate) fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        Ok(pidfd_getfd(&self.fd, number, PidfdGetfdFlags::empty())?)
    }

    /// Sends a signal; nothing if it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.fd, signal);
    }
}

/// A descriptor of the process with this number.
pub(crate) fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Lets all threads of a process run on these cores only.
pub(crate) fn set_cores(pid: i32, cores: &[usize]) {
    let mut set = CpuSet::new();
    for core in cores {
        let _ = set.set(*core);
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok()) {
        // A thread that has just ended needs no core.
        let _ = sched_setaffinity(nix::unistd::Pid::from_raw(thread), &set);
    }
}

/// The processes of a user that the node made up for what runs outside of containers. Another node on this host, with
/// directories of its own, may have given the same number away: what is in a container is that one's, and so are those whose
/// arguments name that node's files.
pub(crate) fn of_user(uid: u32, run: &Path) -> Vec<ProcessId> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let owned = entries.filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == uid));
    let ids = owned.filter_map(|entry| ProcessId::of(entry.file_name().to_str()?.parse().ok()?));
    ids.filter(|id| !is_in_a_container(id.pid) && !is_of_another_node(id.pid, run)).collect()
}

/// Each container has a user namespace of its own.
fn is_in_a_container(pid: i32) -> bool {
    let user_namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    user_namespace(&pid.to_string()) != user_namespace("self")
}

fn is_of_another_node(pid: i32, run: &Path) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut arguments = arguments.split(|byte| *byte == 0);
    let socket = arguments.find(|argument| *argument == b"--socket").and_then(|_| arguments.next());
    socket.is_some_and(|socket| !Path::new(OsStr::from_bytes(socket)).starts_with(run))
}

/// Kills every process of a user that the node made up, and waits for their ends.
pub(crate) fn kill_all_of(uid: u32, run: &Path) {
    for _ in 0..1_000 {
        let found = of_user(uid, run);
        if found.is_empty() {
            return;
        }
        for process in found.into_iter().filter_map(Process::open) {
            process.signal(Signal::KILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// State and start time from `/proc/<pid>/stat`. The name before them may contain anything, so they are counted from the
/// last parenthesis.
fn stat(pid: i32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Every segment, socket and pipe of every slice is held here, so the limit is raised as far as it goes.
pub(crate) fn allow_many_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// This program's file, as it is now: after an upgrade, the new one.
pub(crate) fn own_executable() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let name = path.as_os_str().as_bytes();
    Ok(OsStr::from_bytes(name.strip_suffix(b" (deleted)").unwrap_or(name)).into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};

    use super::*;

    #[test]
    fn this_process_is_found_and_a_wrong_start_time_is_not_it() {
        let own = ProcessId::of(std::process::id() as i32).unwrap();
        assert!(Process::open(own).is_some());
        assert!(Process::open(ProcessId { start: own.start + 1, ..own }).is_none());
    }

    #[test]
    fn a_zombie_counts_as_ended() {
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = child.id() as i32;
        while stat(pid).is_some_and(|(state, _)| state != 'Z') {
            std::thread::yield_now();
        }
        assert_eq!(ProcessId::of(pid), None);
        child.wait().unwrap();
    }

    #[test]
    fn what_another_node_has_in_a_container_of_the_same_user_is_left_alone() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED what_another_node_has_in_a_container_of_the_same_user_is_left_alone: needs root");
            return;
        }
        const UID: u32 = 1_999_999_999;
        let start = |program: &str, args: &[&str]| {
            let mut command = std::process::Command::new(program);
            command.args(args).uid(UID).gid(UID).spawn().unwrap()
        };
        let mut contained = start("unshare", &["--user", "sleep", "60"]);
        let mut plain = start("sleep", &["60"]);
        while !is_in_a_container(contained.id() as i32) {
            assert_eq!(contained.try_wait().unwrap(), None, "this kernel lets nobody make a user namespace");
            std::thread::yield_now();
        }
        kill_all_of(UID, Path::new("/run/kaista"));
        assert_eq!(plain.wait().unwrap().signal(), Some(9));
        assert_eq!(contained.try_wait().unwrap(), None);
        contained.kill().unwrap();
        contained.wait().unwrap();
    }
}
