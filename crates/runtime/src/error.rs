//! What can go wrong, said with what was being done.

use std::io;

use crate::{ImageError, InvalidName, Refusal};

/// Result of this crate's verbs.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted, with its path or name.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's network configuration refused something.
    #[error("{what}: {source}")]
    Netlink {
        /// What was attempted, with the interface's name.
        what: String,
        /// The kernel's answer.
        source: rtnetlink::Error,
    },
    /// A program that we drive failed.
    #[error("{program}: {reason}")]
    Program {
        /// Program and verb, for example `runc start`.
        program: String,
        /// Its standard error, or how it ended.
        reason: String,
    },
    /// The image is refused.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A slice or function name that may not become a path.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The container's specification asks for what cannot be given.
    #[error("{0}")]
    Spec(String),
    /// Neither runc nor crun works here.
    #[error("no usable OCI runtime: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    NoRuntime(Vec<Refusal>),
    /// Every uid range is taken.
    #[error("all {0} uid ranges of 65536 are taken; release those of deleted functions")]
    NoIds(u32),
    /// The host has an interface of this name, which is not to be touched.
    #[error(
        "the host has an interface {0} that is not this link's: give the link's end another name, or remove that \
         interface (ip link delete {0})"
    )]
    Taken(String),
    /// Something does not exist that must, because an earlier verb makes it.
    #[error("{0} does not exist")]
    Absent(String),
}

/// Adds what was attempted to an I/O error.
pub(crate) trait Attempt<T> {
    /// `what` is evaluated only on failure.
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Attempt<T> for std::result::Result<T, E> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source: source.into() })
    }
}
