//! Looking at what passes an interface, both ways, without taking part.

use std::io::{self, ErrorKind, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};

use super::{Namespace, socket};
use crate::error::Attempt;
use crate::{Result, ffi};

/// A socket that sees a copy of every frame of one interface.
#[derive(Debug)]
pub struct PacketTap {
    socket: OwnedFd,
    dropped: AtomicU64,
}

/// A frame that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sniffed {
    /// When, as the kernel noted it.
    pub at: SystemTime,
    /// Whether the namespace sent it by this interface, rather than received it.
    pub outgoing: bool,
    /// The frame, from its Ethernet header. What the stack leaves to the device (checksums, segmentation) is not done yet.
    pub frame: Vec<u8>,
}

/// Opens a [`PacketTap`] on an interface of `namespace`.
pub fn packet_tap(namespace: &Namespace, interface: &str) -> Result<PacketTap> {
    let socket = socket::packet_socket(namespace, interface)?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true).attempt(|| "asking for time stamps".into())?;
    Ok(PacketTap { socket, dropped: AtomicU64::new(0) })
}

impl PacketTap {
    /// The next frame; none if there is none yet. Becomes readable (`poll`) when there is one.
    pub fn receive(&self) -> io::Result<Option<Sniffed>> {
        // Longer than any frame that a stack hands to a device for segmentation.
        const LONGEST: usize = 1 << 17;
        let mut frame = vec![0; LONGEST];
        let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let mut parts = [IoSliceMut::new(&mut frame)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let seen = recvmsg::<LinkAddr>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), flags);
        let seen = match seen.map_err(io::Error::from) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            answer => answer?,
        };
        let at = seen.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => Some(UNIX_EPOCH + Duration::from(time)),
            _ => None,
        });
        let outgoing = seen.address.is_some_and(|address| address.as_ref().sll_pkttype == libc::PACKET_OUTGOING);
        let length = seen.bytes;
        frame.truncate(length);
        frame.shrink_to_fit();
        Ok(Some(Sniffed { at: at.unwrap_or_else(SystemTime::now), outgoing, frame }))
    }

    /// How many frames were missed since it was opened, because nobody received them in time.
    pub fn dropped(&self) -> u64 {
        let more = ffi::packet_drops(self.socket.as_fd()).unwrap_or(0);
        self.dropped.fetch_add(u64::from(more), Ordering::Relaxed) + u64::from(more)
    }
}

impl AsFd for PacketTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
