//! The kernel calls that no crate offers safely. Each takes safe types and checks the answer.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Makes a detached mount show ids as a user namespace does: what the filesystem calls 0 belongs to the namespace's 0.
pub(crate) fn idmap_mount(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = MountAttributes {
        set: libc::MOUNT_ATTR_IDMAP,
        clear: 0,
        propagation: 0,
        user_namespace: user_namespace.as_raw_fd() as u64,
    };
    // SAFETY: the path is an empty C string and AT_EMPTY_PATH makes the call refer to `mount`; the kernel reads exactly
    // the size given from `attributes`, which lives through the call.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `struct mount_attr` of linux/mount.h, MOUNT_ATTR_SIZE_VER0.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Makes an open `/dev/net/tun` the queue of a new TAP interface, without a packet information header. `EBUSY` if there is an
/// interface of this name.
pub(crate) fn make_tap(tun: impl AsFd, name: &str) -> io::Result<()> {
    attach(tun, name, libc::IFF_TUN_EXCL)
}

/// Makes frames of an open macvtap device come without a header before them.
pub(crate) fn attach_macvtap(device: impl AsFd, name: &str) -> io::Result<()> {
    attach(device, name, 0)
}

fn attach(tun: impl AsFd, name: &str, more_flags: libc::c_int) -> io::Result<()> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['/', '\0', '%']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an interface name"));
    }
    let mut request = InterfaceRequest { name: [0; libc::IFNAMSIZ], flags: 0, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    request.flags = (libc::IFF_TAP | libc::IFF_NO_PI | more_flags) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which `request` is in size and layout, and lives through
    // the call.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::ioctl(tun.as_fd().as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `struct ifreq` of linux/if.h with its flags member: 40 bytes on 64-bit machines.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

/// A packet socket bound to an interface for frames of every protocol, both ways. Non-blocking.
pub(crate) fn packet_socket(interface: u32) -> io::Result<OwnedFd> {
    // No protocol before it is bound, so that no frame of another interface is ever queued.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads exactly the size given from `address`, which lives through the call.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    if answer == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// Frames that a packet socket dropped since this was last asked.
pub(crate) fn packet_drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut size = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to `statistics`; both live through the call.
    #[allow(unsafe_code)]
    let answer = unsafe {
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut statistics).cast(), &raw mut size)
    };
    if answer == 0 { Ok(statistics.tp_drops) } else { Err(io::Error::last_os_error()) }
}
