//! Telling the sender of a packet how long packets may be: ICMPv4's *fragmentation needed* (RFC 792, RFC 1191) and ICMPv6's
//! *packet too big* (RFC 4443, 3.2).

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::wire::{EthernetAddress, EthernetFrame, IpProtocol};

use super::answer::{ip_frame, unanswerable};
use crate::ip::{self, Packet, checksum, sum};
use crate::mail::TooLong;
use crate::oversize::{TOLD_V4_MAX, TOLD_V6_MAX};
use crate::side::{Side, address};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ICMP_LEN: usize = 8;

/// The frame for the sender of the packet in `frame`, from the data network's side of the UPF. To a UE it is as if it came
/// from there, and `most` octets long. None if the sender is not to be told (RFC 1122, 3.2.2; RFC 4443, 2.4).
pub fn message(side: &Side, too_long: &TooLong, frame: &[u8], most: usize) -> Option<Vec<u8>> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let to_mac = EthernetAddress(if too_long.from_ue { side.mac } else { frame.src_addr().0 });
    let quoted = frame.payload();
    let sender = match ip::is_v6(quoted)? {
        false => sender::<false>(quoted)?,
        true => sender::<true>(quoted)?,
    };
    let (from, header_len, protocol, longest) = match side.source_for(sender)? {
        from @ IpAddr::V4(_) => (from, 20, IpProtocol::Icmp, TOLD_V4_MAX),
        from @ IpAddr::V6(_) => (from, 40, IpProtocol::Icmpv6, TOLD_V6_MAX),
    };
    let room = longest.min(most).checked_sub(header_len + ICMP_LEN)?;
    let quoted = &quoted[..quoted.len().min(room)];
    Some(ip_frame(side, to_mac, from, sender, protocol, ICMP_LEN + quoted.len(), |message| {
        message[ICMP_LEN..].copy_from_slice(quoted);
        write_head(message, from, sender, too_long.mtu);
    }))
}

/// Who sent the packet, if that is to be told.
fn sender<const V6: bool>(packet: &[u8]) -> Option<IpAddr> {
    let whole = Packet::<V6>::parse(packet, usize::from(u16::MAX)).ok()?;
    let sender = address(V6, whole.source());
    let upper = whole.upper();
    let is_error = match (upper.protocol, upper.bytes?.first()) {
        (ICMP, Some(3 | 4 | 5 | 11 | 12)) => !V6,
        (ICMPV6, Some(0..128)) => V6,
        (_, None) => true,
        _ => false,
    };
    (!is_error && !unanswerable(sender) && !whole.is_multicast()).then_some(sender)
}

/// Type, code, checksum and MTU before what is quoted.
fn write_head(message: &mut [u8], from: IpAddr, to: IpAddr, mtu: u16) {
    let pseudo = match (from, to) {
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            message[..ICMP_LEN].copy_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0]);
            pseudo_header(from, to, message.len())
        }
        _ => {
            message[..ICMP_LEN].copy_from_slice(&[3, 4, 0, 0, 0, 0, 0, 0]);
            0
        }
    };
    message[6..8].copy_from_slice(&mtu.to_be_bytes());
    let checksum = checksum(pseudo + sum(message));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
}

fn pseudo_header(from: Ipv6Addr, to: Ipv6Addr, len: usize) -> u64 {
    sum(&from.octets()) + sum(&to.octets()) + len as u64 + u64::from(ICMPV6)
}
