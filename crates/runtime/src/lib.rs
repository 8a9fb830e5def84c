//! Containers, their namespaces and their network, on one host.
//!
//! A *function* of a slice gets a [`Sandbox`] (user and network namespace with a uid range of its own, which outlive every
//! restart of its container) and a [`Container`] in it (an OCI bundle run by runc or crun: no capability, no root, no write
//! to its image, a system call filter, limits). [`net`] wires sandboxes together, [`Image`] turns what a descriptor names
//! into a root filesystem, [`LatencyFloor`] says what this host can do.
//!
//! Every verb is synchronous and takes milliseconds, may be repeated, and finds by itself (by path, name and namespace)
//! what an earlier, killed process left behind. Everything that exists below one [`Layout`] can be found from that layout
//! alone, so there is no database to lose.

mod bundle;
pub mod cgroup;
pub mod confinement;
mod container;
mod error;
mod ffi;
mod host;
mod ids;
mod image;
mod layout;
pub mod net;
mod oci;
mod rootfs;
mod sandbox;
mod seccomp;
mod spec;

pub use confinement::Confinement;
pub use container::{CommandLine, Container, Exec, State, Terminal, Usage};
pub use error::{Error, Result};
pub use host::{HugePages, LatencyFloor, online_cores};
pub use ids::{IdRange, IdRanges};
pub use image::{Image, ImageConfig, ImageError, Source, USER, User};
pub use layout::{FunctionId, InvalidName, Layout};
pub use oci::{OciRuntime, Refusal};
pub use sandbox::Sandbox;
pub use spec::{ContainerSpec, StateDirectory};
