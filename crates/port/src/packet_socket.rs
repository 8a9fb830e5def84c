//! The calls of a packet socket: how one is made, and what the kernel tells beside a frame.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::interface::{check, index};

/// Makes a socket that receives and sends whole frames of the interface `name`, and never blocks.
pub(crate) fn open(name: &str) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // No protocol: nothing comes in before the socket is bound to its interface.
    // SAFETY: no memory is passed.
    let socket = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor was just made and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let index = index(&socket, name)?;
    prepare(&socket)?;
    promiscuous(&socket, index)?;
    // SAFETY: all zeros is a value of sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: address and length belong together.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

/// Accept frames for any address: a port's address is its function's, not the interface's.
fn promiscuous(socket: &OwnedFd, index: i32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Has the kernel put a `virtio_net_hdr` before every frame (without it, frames whose checksums or segmentation were left
/// to a network card come in unfinished, and nothing says so), hand over the tags that it takes out of frames, and keep back
/// what this host sends by the interface.
fn prepare(socket: &OwnedFd) -> io::Result<()> {
    for option in [libc::PACKET_IGNORE_OUTGOING, libc::PACKET_VNET_HDR, libc::PACKET_AUXDATA] {
        set_option(socket, option, &1_i32)?;
    }
    // Room for a burst of large packets; without the privilege, for as much as the host allows.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        rustix::net::sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER)?;
    }
    Ok(())
}

/// In bytes, as the kernel counts them, which is several times what frames take.
const RECEIVE_BUFFER: usize = 4 << 20;

fn set_option<T>(socket: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value = core::ptr::from_ref(value).cast();
    // SAFETY: value and length belong together.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, len) }).map(drop)
}

/// A tag of a virtual network (IEEE 802.1Q, 802.1ad), as it stands behind a frame's addresses.
pub(crate) type Tag = [u8; 4];

/// Reads one frame from a packet socket, and the tag that the kernel has taken out of it.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<(usize, Option<Tag>)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // Aligned as the headers in it.
    let mut control = [0_usize; 8];
    // SAFETY: all zeros is a value of msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: both places are as long as is said, and outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let len = usize::try_from(received).ok()?;
    Some((len, tag(&message)))
}

/// The tag that a received message tells of.
fn tag(message: &libc::msghdr) -> Option<Tag> {
    // SAFETY: the kernel has set the control data's length.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    // SAFETY: such a message holds one of these.
    let auxiliary = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
    let is = |status| auxiliary.tp_status & status != 0;
    let kind = if is(libc::TP_STATUS_VLAN_TPID_VALID) { auxiliary.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
    let ([a, b], [c, d]) = (kind.to_be_bytes(), auxiliary.tp_vlan_tci.to_be_bytes());
    is(libc::TP_STATUS_VLAN_VALID).then_some([a, b, c, d])
}
