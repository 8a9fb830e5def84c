//! What the kernel says it enforces on a process, as opposed to what was asked for.

use nix::unistd::Pid;

use crate::Result;

/// A process's confinement, read from `/proc/<pid>/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    /// Real, effective, saved and filesystem uid, as the host numbers them.
    pub uids: [u32; 4],
    /// The same of the gid.
    pub gids: [u32; 4],
    /// Inheritable, permitted, effective, bounding and ambient capabilities.
    pub capabilities: [u64; 5],
    /// `NoNewPrivs`: execve grants nothing.
    pub no_new_privileges: bool,
    /// `Seccomp`: 0 none, 1 strict, 2 filter.
    pub seccomp: u8,
    /// Cores it may run on.
    pub cores: Vec<usize>,
}

impl Confinement {
    /// What holds for the process.
    pub fn of(_pid: Pid) -> Result<Self> {
        todo!()
    }

    /// What falls short of an unprivileged function's confinement, in words; empty if nothing does.
    pub fn shortcomings(&self) -> Vec<String> {
        todo!()
    }
}
