//! What the kernel says it enforces on a process, as opposed to what was asked for.

use std::fs;

use nix::unistd::Pid;

use crate::cgroup::parse_list;
use crate::error::Attempt;
use crate::{Error, Result};

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
    pub fn of(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let text = fs::read_to_string(&path).attempt(|| format!("reading {path}"))?;
        Self::parse(&text).ok_or_else(|| Error::Absent(format!("the confinement in {path}")))
    }

    fn parse(status: &str) -> Option<Self> {
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let ids = |name| {
            let mut numbers = field(name)?.split_whitespace().map(|n| n.parse::<u32>().ok());
            Some([numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??])
        };
        let set = |name| u64::from_str_radix(field(name)?, 16).ok();
        Some(Self {
            uids: ids("Uid")?,
            gids: ids("Gid")?,
            capabilities: [set("CapInh")?, set("CapPrm")?, set("CapEff")?, set("CapBnd")?, set("CapAmb")?],
            no_new_privileges: field("NoNewPrivs")? == "1",
            seccomp: field("Seccomp")?.parse().ok()?,
            cores: parse_list(field("Cpus_allowed_list")?),
        })
    }

    /// What falls short of an unprivileged function's confinement, in words; empty if nothing does.
    pub fn shortcomings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.uids.contains(&0) {
            found.push("it is root on the host".into());
        }
        if self.gids.contains(&0) {
            found.push("it is in the host's group 0".into());
        }
        for (name, set) in
            ["inheritable", "permitted", "effective", "bounding", "ambient"].iter().zip(self.capabilities)
        {
            if set != 0 {
                found.push(format!("its {name} capabilities are {set:#x}"));
            }
        }
        if !self.no_new_privileges {
            found.push("it may gain privileges by execve".into());
        }
        if self.seccomp != 2 {
            found.push("no filter holds its system calls".into());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFINED: &str = "Name:\tsleep\nUid:\t1879049192\t1879049192\t1879049192\t1879049192\n\
        Gid:\t1879049192\t1879049192\t1879049192\t1879049192\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
        CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n\
        Seccomp_filters:\t1\nCpus_allowed_list:\t0-1\n";

    #[test]
    fn an_unprivileged_process_has_no_shortcomings() {
        let confinement = Confinement::parse(CONFINED).expect("all fields");
        assert_eq!(confinement.shortcomings(), Vec::<String>::new());
        assert_eq!(confinement.cores, [0, 1]);
    }

    #[test]
    fn each_shortcoming_is_named() {
        let status = CONFINED
            .replace("CapBnd:\t0000000000000000", "CapBnd:\t000001ffffffffff")
            .replace("Uid:\t1879049192", "Uid:\t0")
            .replace("NoNewPrivs:\t1", "NoNewPrivs:\t0")
            .replace("Seccomp:\t2", "Seccomp:\t0");
        assert_eq!(Confinement::parse(&status).expect("all fields").shortcomings().len(), 4);
    }
}
