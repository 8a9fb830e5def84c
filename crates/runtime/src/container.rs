//! A function's container, from bundle to removal.
//!
//! Order: [`prepare`](Container::prepare), spawn [`create_command`](Container::create_command) from the process that is to
//! be the container's parent (a subreaper), [`after_create`](Container::after_create), [`start`](Container::start). The
//! container's first process inherits standard input, output and error of the spawned command.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, Group};
use crate::error::Attempt;
use crate::sandbox::{self, remove_dir_all};
use crate::{Confinement, ContainerSpec, Error, FunctionId, Layout, OciRuntime, Result, Sandbox, bundle, rootfs};

/// A command for somebody else to spawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLine {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// The whole environment: nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub cwd: PathBuf,
}

impl CommandLine {
    /// The same as a [`std::process::Command`], with standard streams still to be chosen.
    pub fn to_command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env.iter().cloned()).current_dir(&self.cwd);
        command
    }
}

/// What the OCI runtime says of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No container of this name.
    Absent,
    /// Made, and waiting for [`Container::start`].
    Created(Pid),
    /// Its program runs.
    Running(Pid),
    /// Its first process has ended; [`Container::delete`] is due.
    Stopped,
}

/// A process beside a container's own, `kaista exec`.
#[derive(Debug, Clone, Default)]
pub struct Exec {
    /// Program and arguments.
    pub args: Vec<String>,
    /// Added to the container's environment.
    pub env: Vec<(String, String)>,
    /// Working directory; the container's, if absent.
    pub cwd: Option<String>,
    /// What it has for a terminal.
    pub terminal: Terminal,
}

/// The terminal of an [`Exec`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Terminal {
    /// None: it gets the streams of the spawned command, which ends with its status.
    #[default]
    None,
    /// One of its own, whose master is sent (SCM_RIGHTS) to a listening Unix socket. The spawned command ends at once; the
    /// process becomes a child of the nearest subreaper, and its pid is in the file.
    Sent {
        /// The listening socket's path.
        socket: PathBuf,
        /// Where the runtime writes the pid.
        pid_file: PathBuf,
    },
}

/// Most of the runtime's log that is told: what it has to say, and not all of a command line.
const LOG_MAX: u64 = 4 << 10;

/// What a container uses, from its cgroups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time in nanoseconds since it was created.
    pub cpu_ns: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Processes and threads.
    pub pids: u64,
}

/// The container of one function: a name, nothing that needs to be kept.
#[derive(Debug, Clone)]
pub struct Container {
    layout: Layout,
    runtime: OciRuntime,
    id: FunctionId,
}

impl Container {
    /// Names the container; it need not exist.
    pub fn new(layout: &Layout, runtime: &OciRuntime, id: &FunctionId) -> Self {
        Self { layout: layout.clone(), runtime: runtime.clone(), id: id.clone() }
    }

    /// Makes bundle, root filesystem (a read-only mount) and port directory anew. Removes an earlier container of this
    /// name, running or not.
    pub fn prepare(&self, sandbox: &Sandbox, spec: &ContainerSpec) -> Result<()> {
        self.delete()?;
        make_dir(&self.layout.runtime_root())?;
        bundle::make(&self.layout, &self.id, sandbox, spec)?;
        Group::of(&self.layout, &self.id)?.deny_hugepages()
    }

    /// `runc create`: spawn it from the process that is to be the parent, wait for its end, call `after_create`. The
    /// container gets its streams; a failure's reason is in [`create_log`](Self::create_log).
    pub fn create_command(&self) -> CommandLine {
        let (bundle, pid_file) = (bundle::directory(&self.layout, &self.id), self.pid_file());
        let log = self.log_file();
        let args: [OsString; 8] = [
            "--log".into(),
            log.into(),
            "create".into(),
            "--bundle".into(),
            bundle.clone().into(),
            "--pid-file".into(),
            pid_file.into(),
            self.id.container().into(),
        ];
        self.runtime.command(&self.layout, args, bundle)
    }

    /// Why `runc create` failed: the runtime's own log of its last run, or the beginning of it, since it repeats what the image says.
    pub fn create_log(&self) -> String {
        let mut log = Vec::new();
        let _ = File::open(self.log_file()).and_then(|file| file.take(LOG_MAX).read_to_end(&mut log));
        String::from_utf8_lossy(&log).trim().to_owned()
    }

    /// Applies what the runtime does not (hugetlb limit zero on every cgroup layout) and returns the first process, which
    /// waits for [`start`](Self::start).
    pub fn after_create(&self) -> Result<Pid> {
        let pid = self.first_process().ok_or_else(|| Error::Program {
            program: format!("{} create", self.runtime.name()),
            reason: match self.create_log() {
                log if log.is_empty() => "it left no process".into(),
                log => log,
            },
        })?;
        Group::of(&self.layout, &self.id)?.hold_without_hugepages(pid)?;
        Ok(pid)
    }

    /// Lets the container's program run.
    pub fn start(&self) -> Result<()> {
        self.runtime.run(&self.layout, "start", &["start".into(), self.id.container().into()]).map(drop)
    }

    /// Where it stands.
    pub fn state(&self) -> Result<State> {
        if !self.layout.runtime_root().join(self.id.container()).exists() {
            return Ok(State::Absent);
        }
        let text = self.runtime.run(&self.layout, "state", &["state".into(), self.id.container().into()])?;
        let said: Said = serde_json::from_str(&text)
            .map_err(|e| Error::Program { program: format!("{} state", self.runtime.name()), reason: e.to_string() })?;
        Ok(match said.status.as_str() {
            "creating" | "created" => State::Created(Pid::from_raw(said.pid)),
            "running" | "paused" => State::Running(Pid::from_raw(said.pid)),
            _ => State::Stopped,
        })
    }

    /// Takes the container away: its processes, cgroups, root mount, bundle. The sandbox stays.
    pub fn delete(&self) -> Result<()> {
        remove(&self.layout, &self.id)
    }

    /// `runc exec` with the container's confinement.
    pub fn exec_command(&self, exec: &Exec) -> Result<CommandLine> {
        let mut args: Vec<OsString> = vec!["exec".into()];
        match &exec.terminal {
            Terminal::None => {}
            Terminal::Sent { socket, pid_file } => {
                args.extend(["--tty".into(), "--detach".into(), "--console-socket".into(), socket.into()]);
                args.extend(["--pid-file".into(), pid_file.into()]);
            }
        }
        if let Some(cwd) = &exec.cwd {
            args.extend(["--cwd".into(), cwd.into()]);
        }
        for (name, value) in &exec.env {
            args.extend(["--env".into(), format!("{name}={value}").into()]);
        }
        args.push(self.id.container().into());
        if exec.args.is_empty() {
            return Err(Error::Spec("no command to execute".into()));
        }
        args.extend(exec.args.iter().map(OsString::from));
        Ok(self.runtime.command(&self.layout, args, "/".into()))
    }

    /// Changes the cores of a container that exists.
    pub fn set_cores(&self, cores: &[usize]) -> Result<()> {
        Group::of(&self.layout, &self.id)?.set_cores(cores)
    }

    /// The cores of a container that exists, running or not.
    pub fn cores(&self) -> Result<Vec<usize>> {
        Ok(Group::of(&self.layout, &self.id)?.cores())
    }

    /// What it uses now; zeros if it is not there.
    pub fn usage(&self) -> Result<Usage> {
        Ok(Group::of(&self.layout, &self.id)?.usage())
    }

    /// What the kernel enforces on its first process.
    pub fn confinement(&self) -> Result<Confinement> {
        let pid = self.first_process().ok_or_else(|| Error::Absent(format!("a process of {}", self.id)))?;
        Confinement::of(pid)
    }

    /// The process that the runtime made, if it still is one of this container.
    pub fn first_process(&self) -> Option<Pid> {
        let pid = Pid::from_raw(fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok()?);
        Group::of(&self.layout, &self.id).ok()?.contains(pid).then_some(pid)
    }

    fn pid_file(&self) -> PathBuf {
        bundle::directory(&self.layout, &self.id).join("pid")
    }

    fn log_file(&self) -> PathBuf {
        bundle::directory(&self.layout, &self.id).join("create.log")
    }
}

/// The part of `runc state` that is of interest.
#[derive(Deserialize)]
struct Said {
    status: String,
    #[serde(default)]
    pid: i32,
}

/// Removes a function's container by what there is of it, not by what somebody remembers: the runtime's own `delete` gives
/// up on a container that was half made when its maker was killed.
pub(crate) fn remove(layout: &Layout, id: &FunctionId) -> Result<()> {
    end_processes(layout, id)?;
    Group::of(layout, id)?.remove()?;
    let dir = layout.container_dir(id);
    // The last three are those of a container that an earlier version has made, which had them beside its bundle.
    for made in ["bundle", "rootfs", "lower", "skeleton"].map(|name| dir.join(name)) {
        rootfs::unmount_below(&made)?;
        remove_dir_all(&made)?;
    }
    remove_dir_all(&layout.runtime_root().join(id.container()))
}

/// Kills what is in the container's cgroups, and what is in its user namespace but slipped out of (or was not yet in) those.
/// What is in those of the function's other container stays.
fn end_processes(layout: &Layout, id: &FunctionId) -> Result<()> {
    let group = Group::of(layout, id)?;
    let other = Group::of(layout, &id.beside())?;
    let user_namespace = layout.function_dir(id).join("ns/user");
    cgroup::kill_all(|| {
        let mut pids = group.members();
        pids.extend(sandbox::inhabitants(&user_namespace));
        pids.sort_unstable();
        pids.dedup();
        let others = other.members();
        pids.retain(|pid| !others.contains(pid));
        pids
    })
}

fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).attempt(|| format!("making {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_create_command_inherits_nothing() {
        let layout = Layout::new("/run/kaista", "/var/lib/kaista");
        let id = FunctionId::new("s", "f").expect("names");
        let command = Container::new(&layout, &OciRuntime::untested("/usr/sbin/runc"), &id).create_command();
        assert_eq!(command.program, Path::new("/usr/sbin/runc"));
        assert!(command.args.contains(&"s.f".into()));
        assert_eq!(command.env.len(), 1);
        assert_eq!(command.cwd, Path::new("/run/kaista/s/f/bundle"));
    }
}
