//! What a container is to be: the runtime's half of a function's descriptor.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::Image;

/// A function's container, ready to be turned into an OCI bundle by [`Container::prepare`](crate::Container::prepare).
#[derive(Debug, Clone)]
pub struct ContainerSpec {
    /// Root filesystem and the image's own defaults.
    pub image: Image,
    /// Replaces the image's entrypoint; the image's command is then ignored, as in Kubernetes.
    pub command: Option<Vec<String>>,
    /// Replaces the image's command, if given.
    pub args: Option<Vec<String>>,
    /// Added to the image's environment; same names replace. `KAISTA_PORTS` is set by the runtime.
    pub env: BTreeMap<String, String>,
    /// Absolute; the image's, or `/`, if absent.
    pub working_directory: Option<String>,
    /// Small files laid over the image, absolute path to content; mode 0644, read-only.
    pub files: BTreeMap<PathBuf, String>,
    /// Host cores that the container may use; empty: all that are online.
    pub cores: Vec<usize>,
    /// Upper limit of memory in bytes, swap included where the kernel accounts for it.
    pub memory: Option<u64>,
    /// Upper limit of processes and threads.
    pub pids: u32,
    /// A directory of the function's own that stays.
    pub state_directory: Option<StateDirectory>,
    /// Host name inside, also in `/etc/hosts`.
    pub hostname: String,
}

impl ContainerSpec {
    /// A container that runs `image` as it says, on all cores, with up to 1024 threads and no memory limit.
    pub fn new(image: Image, hostname: impl Into<String>) -> Self {
        Self {
            image,
            command: None,
            args: None,
            env: BTreeMap::new(),
            working_directory: None,
            files: BTreeMap::new(),
            cores: Vec::new(),
            memory: None,
            pids: 1024,
            state_directory: None,
            hostname: hostname.into(),
        }
    }
}

/// A host directory that the function may write, and where it sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDirectory {
    /// On the host; made, and given to the function's user, if absent. See
    /// [`Layout::function_state_dir`](crate::Layout::function_state_dir).
    pub host: PathBuf,
    /// Absolute path inside.
    pub container: PathBuf,
}
