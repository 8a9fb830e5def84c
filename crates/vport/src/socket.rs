//! Datagrams with descriptors over a `SOCK_SEQPACKET` Unix socket that never blocks.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg, sendmsg,
    socket_with,
};

use crate::wire::{FDS_MAX, MESSAGE_MAX};

/// Descriptors that a datagram can have, whoever sends it: what does not fit would be closed by the kernel, on this thread.
const RIGHTS_MAX: usize = 253;
/// Of `<asm-generic/socket.h>`, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// What came in.
#[derive(Debug)]
pub(crate) enum Received {
    /// A datagram; `whole` unless bytes or descriptors did not fit.
    Message { bytes: Vec<u8>, fds: Vec<OwnedFd>, whole: bool },
    /// Nothing now.
    Nothing,
    /// The other side is gone.
    Closed,
}

pub(crate) fn listening(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => bind(&socket, &SocketAddrUnix::new(path)?)?,
    }
    pass_descriptors(socket.as_fd(), false);
    listen(&socket, 64)?;
    Ok(socket)
}

/// Whether the other side can send descriptors; of a listening socket, those that connect. False where the kernel cannot set that:
/// they can.
pub(crate) fn pass_descriptors(socket: BorrowedFd<'_>, passed: bool) -> bool {
    let (value, len) = (libc::c_int::from(passed), size_of::<libc::c_int>() as libc::socklen_t);
    let from = std::ptr::from_ref(&value).cast();
    // SAFETY: `from` and `len` describe `value`.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, from, len) == 0 }
}

/// Whether the kernel can keep descriptors from being sent.
pub(crate) fn can_refuse_descriptors() -> bool {
    new_socket().is_ok_and(|socket| pass_descriptors(socket.as_fd(), false))
}

pub(crate) fn connected(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends one datagram. `WouldBlock` where the other side does not read.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Receives one datagram.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> io::Result<Received> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
    if let Err(rustix::io::Errno::CONNRESET) = message {
        // The other side has gone without reading everything. What it had sent before is there all the same.
        message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
    }
    let message = match message {
        Ok(message) => message,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Received::Nothing),
        Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => return Ok(Received::Closed),
        Err(errno) => return Err(errno.into()),
    };
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let fds: Vec<OwnedFd> = rights.flatten().collect();
    // An empty datagram cannot be told from the end; no message is empty.
    if message.bytes == 0 {
        return Ok(Received::Closed);
    }
    let whole = !message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    bytes.truncate(message.bytes);
    Ok(Received::Message { bytes, fds, whole })
}

/// Process and user at the other side, as they were when it connected. The process is 0 where it cannot be seen.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = std::ptr::from_mut(&mut who).cast();
    // SAFETY: `to` and `len` describe `who`, for which any bytes are a value.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len) };
    if result == 0 { Ok((who.pid, who.uid)) } else { Err(io::Error::last_os_error()) }
}

/// Whether the other side has closed its end, whatever it sent before.
pub(crate) fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;

    #[test]
    fn descriptors_travel_with_their_datagram() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        send(a.as_fd(), b"one", &[null.as_fd(), null.as_fd()]).unwrap();
        send(a.as_fd(), b"two", &[]).unwrap();
        let Received::Message { bytes, fds, whole: true } = receive(b.as_fd()).unwrap() else { panic!() };
        assert_eq!((bytes.as_slice(), fds.len()), (b"one".as_slice(), 2));
        let Received::Message { bytes, fds, whole: true } = receive(b.as_fd()).unwrap() else { panic!() };
        assert_eq!((bytes.as_slice(), fds.len()), (b"two".as_slice(), 0));
        assert!(matches!(receive(b.as_fd()).unwrap(), Received::Nothing));
        assert!(!is_hung_up(b.as_fd()));
        drop(a);
        assert!(is_hung_up(b.as_fd()));
        assert!(matches!(receive(b.as_fd()).unwrap(), Received::Closed));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        send(a.as_fd(), &vec![1; MESSAGE_MAX + 1], &[]).unwrap();
        assert!(matches!(receive(b.as_fd()).unwrap(), Received::Message { whole: false, .. }));
    }
}
