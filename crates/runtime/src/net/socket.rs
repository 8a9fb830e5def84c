//! File descriptors that carry Ethernet frames in and out of a namespace.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use rtnetlink::Handle;

use super::{Namespace, link, sysctl};
use crate::error::Attempt;
use crate::{Error, Result, ffi};

/// A TAP interface with one queue, up. It lives as long as the returned fd (or a copy of it), which is non-blocking and
/// carries Ethernet frames without any header before them. An error where there is an interface of this name, be it one that
/// waits for somebody to take hold of it.
///
/// Frames read from it are whole: segmented, with their checksums.
pub fn tap(namespace: &Namespace, name: &str) -> Result<OwnedFd> {
    link::refuse_taken(namespace, name)?;
    let fd = namespace.within(|| {
        // An open tun device belongs to the namespace of the thread that opens it.
        let tun = open_device(Path::new("/dev/net/tun"))?;
        ffi::make_tap(&tun, name).attempt(|| format!("making TAP interface {name}"))?;
        Ok::<_, Error>(OwnedFd::from(tun))
    })??;
    link::up(namespace, name)?;
    Ok(fd)
}

/// A macvtap interface (bridge mode) in `namespace` on an interface of the host, up, and its queue: an fd like that of
/// [`tap`], by which its reader takes part in the host interface's network with a MAC address of its own.
///
/// The interface stays when the fd is closed. It is the way for frames of the host's network into a port: a packet socket
/// would be handed what the network card's driver has merged, and what its sender left to hardware to complete.
pub fn macvtap(namespace: &Namespace, name: &str, host_interface: &str) -> Result<OwnedFd> {
    link::macvtap(namespace, name, host_interface)?;
    let what = || format!("opening the device of macvtap {name}");
    let device = namespace.within(|| {
        // The device's number is in the sysfs of its own network namespace, its node in nobody's /dev: so this thread gets
        // a mount namespace with both.
        unshare(CloneFlags::CLONE_NEWNS).attempt(what)?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).attempt(what)?;
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::MS_RDONLY, None::<&str>).attempt(what)?;
        mount(Some("tmpfs"), "/tmp", Some("tmpfs"), MsFlags::empty(), None::<&str>).attempt(what)?;
        let (major, minor) = device_number(name)?;
        let node = Path::new("/tmp/macvtap");
        mknod(node, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, makedev(major, minor)).attempt(what)?;
        let device = open_device(node)?;
        // It begins with a header before each frame.
        ffi::attach_macvtap(&device, name).attempt(what)?;
        Ok::<_, Error>(OwnedFd::from(device))
    })??;
    if Path::new("/proc/sys/net/ipv6").exists() {
        // A mere wire: its own stack must neither speak nor answer.
        sysctl(namespace, &format!("ipv6/conf/{name}/disable_ipv6"), "1")?;
    }
    Ok(device)
}

/// `major:minor` of a macvtap interface's character device.
fn device_number(name: &str) -> Result<(u64, u64)> {
    let dir = PathBuf::from(format!("/sys/class/net/{name}/macvtap"));
    let entries = fs::read_dir(&dir).attempt(|| format!("reading {}", dir.display()))?;
    for entry in entries.flatten() {
        let number = fs::read_to_string(entry.path().join("dev")).unwrap_or_default();
        if let Some((major, minor)) = number.trim().split_once(':')
            && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
        {
            return Ok((major, minor));
        }
    }
    Err(Error::Absent(format!("the device of macvtap {name}")))
}

fn open_device(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    options.open(path).attempt(|| format!("opening {}", path.display()))
}

/// A raw packet socket (`AF_PACKET`) bound to an interface of `namespace`: whole Ethernet frames, both ways. Non-blocking.
pub(super) fn packet_socket(namespace: &Namespace, interface: &str) -> Result<OwnedFd> {
    let index = namespace.netlink(async |handle: Handle| link::index(&handle, interface).await)?;
    let what = || format!("opening a packet socket on {interface}");
    let socket = namespace.within(|| ffi::packet_socket(index).attempt(what))??;
    // As much as the socket may have; a burst of large frames must not be lost for want of room.
    let _ = nix::sys::socket::setsockopt(&socket.as_fd(), nix::sys::socket::sockopt::RcvBufForce, &(4 << 20));
    Ok(socket)
}
