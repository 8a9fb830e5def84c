//! The few calls by which queues get to Linux interfaces. With [`crate::packet_socket`] the only place of this crate that talks to
//! the system in a way the compiler cannot check.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::PortInfo;

/// Attaches to `queues` queues of the TAP device `name`, which is made if it is not there.
pub(crate) fn open_tap(name: &str, queues: u16) -> io::Result<Vec<OwnedFd>> {
    (0..queues).map(|_| open_tap_queue(name, queues > 1)).collect()
}

fn open_tap_queue(name: &str, multi_queue: bool) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &mut request) })?;
    Ok(device.into())
}

pub(crate) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

/// Address and MTU of the interface `name`.
pub(crate) fn describe(name: &str) -> io::Result<PortInfo> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    let mut info = PortInfo::named(name);
    let hardware = query(&socket, name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR has filled this member.
    let address = unsafe { hardware.ifr_ifru.ifru_hwaddr.sa_data };
    info.mac = core::array::from_fn(|n| address[n] as u8);
    // SAFETY: SIOCGIFMTU has filled this member.
    let mtu = unsafe { query(&socket, name, libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu };
    info.mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    Ok(info)
}

pub(crate) fn index(socket: &OwnedFd, name: &str) -> io::Result<i32> {
    // SAFETY: SIOCGIFINDEX has filled this member.
    Ok(unsafe { query(socket, name, libc::SIOCGIFINDEX)?.ifr_ifru.ifru_ifindex })
}

fn query(socket: &OwnedFd, name: &str, what: libc::Ioctl) -> io::Result<libc::ifreq> {
    let mut request = request(name)?;
    // SAFETY: these requests read and write one ifreq.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), what, &mut request) })?;
    Ok(request)
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a value of ifreq.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} cannot name an interface")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Reads one frame into two places.
pub(crate) fn read_into(fd: BorrowedFd<'_>, head: &mut [u8], rest: &mut [u8]) -> Option<usize> {
    let mut parts = [io::IoSliceMut::new(head), io::IoSliceMut::new(rest)];
    rustix::io::readv(fd, &mut parts).ok()
}

pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
