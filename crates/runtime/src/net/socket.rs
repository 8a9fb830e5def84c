//! File descriptors that carry Ethernet frames in and out of a namespace.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use rtnetlink::Handle;

use super::{Namespace, link, sysctl};
use crate::error::Attempt;
use crate::{Result, ffi};

/// A TAP interface with one queue, up. It lives as long as the returned fd (or a copy of it), which is non-blocking and
/// carries Ethernet frames without any header before them. Fails with `EBUSY` while somebody holds the interface's fd.
pub fn tap(namespace: &Namespace, name: &str) -> Result<OwnedFd> {
    let fd = namespace.within(|| {
        // An open tun device belongs to the namespace of the thread that opens it.
        let tun = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .attempt(|| "opening /dev/net/tun".into())?;
        ffi::attach_tap(&tun, name).attempt(|| format!("making TAP interface {name}"))?;
        Ok::<_, crate::Error>(OwnedFd::from(tun))
    })??;
    link::up(namespace, name)?;
    Ok(fd)
}

/// A raw packet socket (`AF_PACKET`) bound to an interface of `namespace`: whole Ethernet frames, without those that the
/// namespace's own stack sends by the interface. Non-blocking.
///
/// The interface becomes a mere wire: IPv6 is switched off on it, so that its stack neither speaks nor answers. Give it no
/// address either.
pub fn packet_socket(namespace: &Namespace, interface: &str) -> Result<OwnedFd> {
    let index = namespace.netlink(async |handle: Handle| link::index(&handle, interface).await)?;
    if std::path::Path::new("/proc/sys/net/ipv6").exists() {
        sysctl(namespace, &format!("ipv6/conf/{interface}/disable_ipv6"), "1")?;
    }
    namespace.within(|| ffi::packet_socket(index).attempt(|| format!("opening a packet socket on {interface}")))?
}
