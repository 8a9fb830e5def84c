//! cgroups, whichever way the host mounts them: v2 alone, v1, or v1 with some controllers on a v2 tree (hybrid).

use std::path::PathBuf;

use crate::Result;

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
        todo!()
    }

    /// `v1`, `v2` or `hybrid`, for people.
    pub fn kind(&self) -> &'static str {
        todo!()
    }
}
