//! Where everything of a node lies: one directory for what runs, one for what stays, one cgroup name.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Directory of what exists while slices run: sockets, sandboxes, bundles, mounts.
pub const DEFAULT_RUN_DIR: &str = "/run/kaista";
/// Directory of what stays: images, uid ranges, state directories.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/kaista";

/// The places of one node. Two nodes with different layouts live side by side on one host (tests beside a live node).
///
/// Both directories must be traversable by everybody (mode 0755 or 0711 up to `/`), because a container's first process
/// opens its own mounts after it has given up root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    run: PathBuf,
    state: PathBuf,
    cgroup: String,
}

impl Layout {
    /// A layout with the given run and state directories.
    pub fn new(run: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        let run = run.into();
        let cgroup = cgroup_name(&run);
        Self { run, state: state.into(), cgroup }
    }

    /// The layout that `KAISTA_RUN_DIR` and `KAISTA_STATE_DIR` name, or `/run/kaista` and `/var/lib/kaista`.
    pub fn from_env() -> Self {
        let dir = |name, default: &str| env::var_os(name).map_or_else(|| PathBuf::from(default), PathBuf::from);
        Self::new(dir("KAISTA_RUN_DIR", DEFAULT_RUN_DIR), dir("KAISTA_STATE_DIR", DEFAULT_STATE_DIR))
    }

    /// The run directory.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Name of the cgroup under which those of all functions lie, without slashes.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// `<state>/images`: unpacked images by digest. Mode 0700, since images may hold anything.
    pub fn images(&self) -> PathBuf {
        self.state.join("images")
    }

    /// `<run>/.runc`: the OCI runtime's own records.
    pub fn runtime_root(&self) -> PathBuf {
        self.run.join(".runc")
    }

    /// `<run>/<slice>`.
    pub fn slice_dir(&self, slice: &str) -> PathBuf {
        self.run.join(slice)
    }

    /// `<run>/<slice>/<function>`: everything of a function that exists while its slice is up.
    pub fn function_dir(&self, id: &FunctionId) -> PathBuf {
        self.slice_dir(id.slice()).join(id.function())
    }

    /// Where bundle and root of a container lie: in the function's directory, or of its second container in one within.
    pub fn container_dir(&self, id: &FunctionId) -> PathBuf {
        let dir = self.function_dir(id);
        if id.second { dir.join("second") } else { dir }
    }

    /// `<run>/<slice>/<function>/ports`: the broker's socket lies here; the function sees it as `/run/kaista`.
    pub fn ports_dir(&self, id: &FunctionId) -> PathBuf {
        self.function_dir(id).join("ports")
    }

    /// `<state>/slices/<slice>/<function>`: the function's state directory on the host, if it asked for one.
    pub fn function_state_dir(&self, id: &FunctionId) -> PathBuf {
        self.state.join("slices").join(id.slice()).join(id.function())
    }
}

/// The default run directory gets the plain name; any other gets one of its own, the same for the same directory.
fn cgroup_name(run: &Path) -> String {
    if run == Path::new(DEFAULT_RUN_DIR) {
        return "kaista".into();
    }
    let digest = Sha256::digest(run.as_os_str().as_encoded_bytes());
    format!("kaista-{:02x}{:02x}{:02x}{:02x}", digest[0], digest[1], digest[2], digest[3])
}

/// A function of a slice, by names that are safe in paths, cgroup names and container identities.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId {
    slice: String,
    function: String,
    second: bool,
}

/// A name that is not a DNS label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a name: lower-case letters, digits and inner hyphens, at most 63")]
pub struct InvalidName(pub String);

impl FunctionId {
    /// Names a function. Both names are DNS labels (RFC 1123): lower-case letters, digits, inner hyphens, 1 to 63.
    pub fn new(slice: &str, function: &str) -> Result<Self, InvalidName> {
        for name in [slice, function] {
            if !is_label(name) {
                return Err(InvalidName(name.into()));
            }
        }
        Ok(Self { slice: slice.into(), function: function.into(), second: false })
    }

    /// The same function, by the other one of the two containers that it can have while one replaces the other.
    pub fn beside(&self) -> Self {
        Self { second: !self.second, ..self.clone() }
    }

    /// Whether it is named by its second container.
    pub fn is_second(&self) -> bool {
        self.second
    }

    /// The slice's name.
    pub fn slice(&self) -> &str {
        &self.slice
    }

    /// The function's name within the slice.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// The container's name within the slice.
    pub(crate) fn unit(&self) -> String {
        if self.second { format!("{}.2", self.function) } else { self.function.clone() }
    }

    /// The container's identity for the OCI runtime. Names have no dots, so this is unambiguous.
    pub fn container(&self) -> String {
        format!("{}.{}", self.slice, self.unit())
    }
}

impl fmt::Display for FunctionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.slice, self.function)
    }
}

fn is_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_directory_are_refused() {
        for name in ["", ".", "..", "a/b", "a.b", "A", "-a", "a-", "a b", &"x".repeat(64)] {
            assert!(FunctionId::new(name, "f").is_err(), "{name}");
            assert!(FunctionId::new("s", name).is_err(), "{name}");
        }
        assert!(FunctionId::new("first-slice", "upf2").is_ok());
    }

    #[test]
    fn layouts_with_different_run_directories_share_no_cgroup() {
        let default = Layout::new(DEFAULT_RUN_DIR, DEFAULT_STATE_DIR);
        let other = Layout::new("/run/other", DEFAULT_STATE_DIR);
        assert_eq!(default.cgroup(), "kaista");
        assert_ne!(other.cgroup(), default.cgroup());
        assert_eq!(other.cgroup(), Layout::new("/run/other", "/elsewhere").cgroup());
    }
}
