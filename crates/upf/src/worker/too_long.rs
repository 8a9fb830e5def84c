//! Packets that are longer than their way allows, which few are.

use std::net::IpAddr;

use port::{FRAME_MAX, PacketRef, Rest};

use super::Hands;
use crate::drops::DropReason;
use crate::mail::{Letter, TooLong};
use crate::oversize::{self, IPV4_HEADER_MAX, Remedy, TOLD_V6_MAX};
use crate::packet::{Class, ETHERNET_LEN, Forward, UDP6_CHECKSUM, uncount};
use crate::path::TUNNEL_MAX_LEN;
use crate::side::PortId;
use crate::tables::Version;

/// Most octets before the payload of a fragment.
pub(super) const FRONT_MAX: usize = ETHERNET_LEN + TUNNEL_MAX_LEN + IPV4_HEADER_MAX;

impl Hands {
    /// A packet that was found too long is cut, or its sender is told.
    #[cold]
    pub(super) fn relieve(&mut self, tables: &Version, from: PortId, class: &Class, packet: &PacketRef<'_>, now: u64) {
        match oversize::remedy(tables, &mut self.state, class, packet.head, now) {
            Remedy::Cut { forward, unresolved, mtu } => {
                self.cut(tables, class, &forward, unresolved, mtu.into(), packet, now);
            }
            Remedy::Tell { from_ue_to, mtu } => {
                self.drops.count(DropReason::TooLong);
                if self.too_long.allow(now) {
                    let (port, from_ue) = (from_ue_to.unwrap_or(from), from_ue_to.is_some());
                    self.tell(class, TooLong { port, from_ue, mtu }, packet);
                }
            }
            Remedy::Nothing => self.drops.count(DropReason::TooLong),
        }
    }

    /// Has the slow path tell the packet's sender.
    fn tell(&mut self, class: &Class, too_long: TooLong, packet: &PacketRef<'_>) {
        let &Class::User { at, len, .. } = class else { return };
        // Whatever is before the user's packet, an Ethernet header has room there.
        let (begin, len) = (usize::from(at) - ETHERNET_LEN, usize::from(len).min(TOLD_V6_MAX));
        let frame = linear(packet, &mut self.scratch);
        if let Some(before) = self.before {
            // Its sender knows it as it came.
            before.apply(&mut frame[usize::from(at)..]);
        }
        // Should there be no room, the next packet has its sender told.
        self.slow_path
            .post(Letter::TooLong(too_long), &PacketRef::from_slice(&frame[begin..begin + ETHERNET_LEN + len]));
    }

    /// Leaves the fragments of a packet to be sent behind the burst, or once the neighbour is resolved.
    #[expect(clippy::too_many_arguments, reason = "a packet with all that was found out about it")]
    pub(super) fn cut(
        &mut self,
        tables: &Version,
        class: &Class,
        forward: &Forward<'_>,
        unresolved: Option<IpAddr>,
        mtu: usize,
        packet: &PacketRef<'_>,
        now: u64,
    ) {
        if unresolved.is_some() && !self.may_wait(tables, class, now) {
            uncount(tables, forward.counted, forward.keep);
            return self.drops.count(DropReason::NeighbourUnresolved);
        }
        let (strip, keep) = (usize::from(forward.strip), usize::from(forward.keep));
        let whole = &linear(packet, &mut self.scratch)[strip..strip + keep];
        let zero_checksum = self.ipv6_zero_checksum;
        let (trailing, slow_path) = (&mut self.trailing, &mut self.slow_path);
        let before = trailing.len();
        // What is posted cannot be taken back.
        let mut has_room = unresolved.is_none() || slow_path.has_room(fragments(whole, mtu), FRONT_MAX, whole.len());
        let fits = oversize::fragment(whole, mtu, |header, payload| {
            let mut front = [0; FRONT_MAX];
            let front = write_front(forward, header, payload, zero_checksum, &mut front);
            let fragment = PacketRef { head: front, rest: Rest::from_slice(payload) };
            // The receiver has no use for the rest of a packet that has lost a part.
            has_room = has_room
                && match unresolved {
                    Some(address) => slow_path.post(Letter::Resolve(forward.port, address), &fragment),
                    None => trailing.push(forward.port, &fragment),
                };
        });
        if fits && has_room {
            return;
        }
        trailing.truncate(before);
        self.drops.count(match unresolved {
            _ if !fits => DropReason::TooLong,
            Some(_) => DropReason::SlowPathFull,
            None => DropReason::HandoverFull,
        });
        uncount(tables, forward.counted, forward.keep);
    }
}

/// How many fragments the packet becomes.
fn fragments(whole: &[u8], mtu: usize) -> usize {
    let mut count = 0;
    oversize::fragment(whole, mtu, |_, _| count += 1);
    count
}

/// Writes what stands before a fragment's payload, and returns it.
pub(super) fn write_front<'f>(
    forward: &Forward<'_>,
    header: &[u8],
    payload: &[u8],
    zero_checksum: bool,
    front: &'f mut [u8; FRONT_MAX],
) -> &'f [u8] {
    let at = forward.prepend.len();
    let front = &mut front[..at + header.len()];
    forward.prepend.write(header.len() + payload.len(), &mut front[..at]);
    front[at..].copy_from_slice(header);
    if !forward.marking.is_none() {
        forward.marking.apply(&mut front[at..]);
    }
    if let Some(path) = forward.prepend.checksummed()
        && !zero_checksum
    {
        let checksum = path.udp6_checksum(&front[ETHERNET_LEN..], payload);
        front[UDP6_CHECKSUM..UDP6_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    front
}

/// The whole packet in one piece.
pub(super) fn linear<'s>(packet: &PacketRef<'_>, scratch: &'s mut [u8; FRAME_MAX]) -> &'s mut [u8] {
    let len = packet.copy_to(&mut scratch[..]);
    &mut scratch[..len]
}
