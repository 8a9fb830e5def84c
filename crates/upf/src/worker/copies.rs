//! Copies of packets, which few sessions have made.

use port::{PacketRef, Rest};

use super::Hands;
use super::too_long::{FRONT_MAX, linear, write_front};
use crate::drops::DropReason;
use crate::mail::Letter;
use crate::packet::{Class, Duplicate, Rare, neighbour};
use crate::tables::Version;

impl Hands {
    /// Leaves copies of the user's packet to be sent behind the burst, or once the neighbour is resolved.
    #[cold]
    #[inline(never)]
    pub(super) fn duplicate(
        &mut self,
        tables: &Version,
        class: &Class,
        duplicate: &Duplicate,
        packet: &PacketRef<'_>,
        now: u64,
    ) {
        let begin = usize::from(duplicate.at);
        for verdict in duplicate.copies(tables) {
            let (forward, unresolved) = match verdict {
                Ok(forward) if forward.resolved => (forward, None),
                Ok(forward) if self.may_wait(tables, class, now) => {
                    (forward, Some(neighbour(tables, &forward, &packet.head[begin..])))
                }
                Ok(_) => {
                    self.drops.count(DropReason::NeighbourUnresolved);
                    continue;
                }
                Err(Rare::Drop(reason)) => {
                    self.drops.count(reason);
                    continue;
                }
                Err(Rare::Buffer(_) | Rare::Punt(_) | Rare::Duplicate(_) | Rare::Translate(_)) => continue,
            };
            let payload = &linear(packet, &mut self.scratch)[begin..begin + usize::from(duplicate.len)];
            let mut front = [0; FRONT_MAX];
            let front = write_front(&forward, &[], payload, self.ipv6_zero_checksum, &mut front);
            let copy = PacketRef { head: front, rest: Rest::from_slice(payload) };
            let (has_room, full) = match unresolved {
                Some(address) => {
                    (self.slow_path.post(Letter::Resolve(forward.port, address), &copy), DropReason::SlowPathFull)
                }
                None => (self.trailing.push(forward.port, &copy), DropReason::HandoverFull),
            };
            if !has_room {
                self.drops.count(full);
            }
        }
    }
}
