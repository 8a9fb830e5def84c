//! The OCI runtime that carries containers out: runc first, then crun, each proved by making a container with it.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{Layout, Result};

/// A runtime that has made a container on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciRuntime {
    program: PathBuf,
    version: String,
}

/// Why a runtime is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The program's name.
    pub program: String,
    /// What it said, or that it is not installed.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.program, self.reason)
    }
}

impl OciRuntime {
    /// The first of runc and crun (or only the program that `KAISTA_OCI_RUNTIME` names) that can make a container of the
    /// kind that we need here; takes some 100 ms. Fails with each one's reason.
    pub fn probe(_layout: &Layout) -> Result<Self> {
        todo!()
    }

    /// Its absolute path.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The first line of its `--version`.
    pub fn version(&self) -> &str {
        &self.version
    }
}
