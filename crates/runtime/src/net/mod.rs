//! Network of sandboxes: interfaces, addresses and routes, set from outside by the daemon.
//!
//! Every verb may be repeated: what is there and right stays, what is there and wrong is made right.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::Result;

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
    path: PathBuf,
}

/// An address prefix: the address itself and the length of its network's prefix.
pub type Prefix = (IpAddr, u8);

/// What an interface is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// MAC address; left as it is if absent.
    pub mac: Option<[u8; 6]>,
    /// Largest frame without its Ethernet header; left as it is if absent.
    pub mtu: Option<u32>,
    /// All its addresses but the link-local; others are removed.
    pub addresses: Vec<Prefix>,
    /// Routes by this interface.
    pub routes: Vec<Route>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination network.
    pub to: Prefix,
    /// Next hop; none if the destination is on the link.
    pub via: Option<IpAddr>,
}

impl Namespace {
    /// The network namespace of the calling process.
    pub fn host() -> Result<Self> {
        todo!()
    }

    /// The namespace mounted at a path (or `/proc/<pid>/ns/net`).
    pub fn open(_path: impl Into<PathBuf>) -> Result<Self> {
        todo!()
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on a thread of its own that is in this namespace: sockets made there belong to it.
    pub fn within<T: Send>(&self, _work: impl FnOnce() -> T + Send) -> Result<T> {
        let _ = &self.fd;
        todo!()
    }
}

/// A veth pair, one end in each namespace, both up. An interface of either name that is not this pair is replaced.
pub fn veth(_a: (&Namespace, &str), _b: (&Namespace, &str)) -> Result<()> {
    todo!()
}

/// A TAP interface with one queue, up. It lives as long as the returned fd (or a copy of it), which is non-blocking and
/// carries Ethernet frames without any header before them. Fails with `EBUSY` while somebody holds the interface's fd.
pub fn tap(_namespace: &Namespace, _name: &str) -> Result<OwnedFd> {
    todo!()
}

/// A macvlan interface (bridge mode) in `namespace` on an interface of the host, up.
pub fn macvlan(_namespace: &Namespace, _name: &str, _host_interface: &str) -> Result<()> {
    todo!()
}

/// A raw packet socket (`AF_PACKET`) bound to an interface of `namespace`: whole Ethernet frames, those that the host's
/// own stack sends by the interface not included. Non-blocking.
pub fn packet_socket(_namespace: &Namespace, _interface: &str) -> Result<OwnedFd> {
    todo!()
}

/// Makes an existing interface what `wanted` says, and brings it up.
pub fn configure(_namespace: &Namespace, _wanted: &Interface) -> Result<()> {
    todo!()
}

/// Removes an interface; nothing if there is none.
pub fn remove(_namespace: &Namespace, _name: &str) -> Result<()> {
    todo!()
}

/// Names of the interfaces, loopback included.
pub fn interfaces(_namespace: &Namespace) -> Result<Vec<String>> {
    todo!()
}

/// Sets `/proc/sys/net/<key>` (with slashes, for example `ipv4/ip_forward`) in the namespace.
pub fn sysctl(_namespace: &Namespace, _key: &str, _value: &str) -> Result<()> {
    todo!()
}
