//! A function's container, from bundle to removal.
//!
//! Order: [`prepare`](Container::prepare), spawn [`create_command`](Container::create_command) from the process that is to
//! be the container's parent (a subreaper), [`after_create`](Container::after_create), [`start`](Container::start). The
//! container's first process inherits standard input, output and error of the spawned command.

use std::ffi::OsString;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::{Confinement, ContainerSpec, FunctionId, Layout, OciRuntime, Result, Sandbox};

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
    /// A terminal of its own: the runtime sends the master's fd to this listening Unix socket (SCM_RIGHTS).
    pub console: Option<PathBuf>,
}

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
    pub fn prepare(&self, _sandbox: &Sandbox, _spec: &ContainerSpec) -> Result<()> {
        todo!()
    }

    /// `runc create`: spawn it from the process that is to be the parent, wait for its end, call `after_create`. Whatever
    /// it prints goes to the container's standard error; a failure's reason is in [`create_log`](Self::create_log).
    pub fn create_command(&self) -> CommandLine {
        todo!()
    }

    /// Why `runc create` failed: the runtime's own log of its last run.
    pub fn create_log(&self) -> String {
        todo!()
    }

    /// Applies what the runtime does not (hugetlb limit zero on every cgroup layout) and returns the first process, which
    /// waits for [`start`](Self::start).
    pub fn after_create(&self) -> Result<Pid> {
        todo!()
    }

    /// Lets the container's program run.
    pub fn start(&self) -> Result<()> {
        todo!()
    }

    /// Where it stands.
    pub fn state(&self) -> Result<State> {
        todo!()
    }

    /// Sends a signal to the first process; nothing if there is none.
    pub fn signal(&self, _signal: Signal) -> Result<()> {
        todo!()
    }

    /// Kills every process of the container and waits until they are gone (at most 5 s).
    pub fn kill(&self) -> Result<()> {
        todo!()
    }

    /// Takes the container away: its processes, cgroups, root mount, bundle. The sandbox stays.
    pub fn delete(&self) -> Result<()> {
        todo!()
    }

    /// `runc exec` with the container's confinement: spawn it with the streams to use; it ends with the process's status.
    pub fn exec_command(&self, _exec: &Exec) -> Result<CommandLine> {
        todo!()
    }

    /// Changes the cores of a container that exists.
    pub fn set_cores(&self, _cores: &[usize]) -> Result<()> {
        todo!()
    }

    /// What it uses now.
    pub fn usage(&self) -> Result<Usage> {
        todo!()
    }

    /// What the kernel enforces on its first process.
    pub fn confinement(&self) -> Result<Confinement> {
        todo!()
    }
}
