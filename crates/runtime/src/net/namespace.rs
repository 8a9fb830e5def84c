//! Network namespaces, and work done inside one.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread;

use nix::sched::{CloneFlags, setns};
use rtnetlink::Handle;

use crate::Result;
use crate::error::Attempt;

/// Where the host's network namespace is opened.
const HOST: &str = "/proc/self/ns/net";

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
    path: PathBuf,
}

impl Namespace {
    /// The network namespace of the calling process.
    pub fn host() -> Result<Self> {
        Self::open(HOST)
    }

    /// Whether it is the host's, where others have interfaces too. All that is in a sandbox is Kaista's.
    pub(super) fn is_host(&self) -> bool {
        self.path == Path::new(HOST)
    }

    /// The namespace mounted at a path (or `/proc/<pid>/ns/net`).
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let file = File::open(&path).attempt(|| format!("opening the network namespace {}", path.display()))?;
        Ok(Self { fd: file.into(), path })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For a netlink message that names this namespace.
    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Runs `work` on a thread of its own that is in this namespace: sockets made there belong to it.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(self.fd.as_fd(), CloneFlags::CLONE_NEWNET)
                    .attempt(|| format!("entering the network namespace {}", self.path.display()))?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `talk` with a netlink connection of this namespace.
    pub(super) fn netlink<T: Send>(&self, talk: impl AsyncFnOnce(Handle) -> Result<T> + Send) -> Result<T> {
        self.within(|| {
            let executor = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .attempt(|| "starting an executor for netlink".into())?;
            executor.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().attempt(|| "opening netlink".into())?;
                tokio::spawn(connection);
                talk(handle).await
            })
        })?
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sets `/proc/sys/net/<key>` (with slashes, for example `ipv4/ip_forward`) in the namespace.
pub fn sysctl(namespace: &Namespace, key: &str, value: &str) -> Result<()> {
    let path = Path::new("/proc/sys/net").join(key);
    namespace.within(|| fs::write(&path, value).attempt(|| format!("setting {} to {value}", path.display())))?
}
