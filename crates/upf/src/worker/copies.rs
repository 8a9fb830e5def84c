//! Copies of packets, which few sessions have made.

use port::{PacketRef, Rest};

use super::Hands;
use super::too_long::{FRONT_MAX, linear, write_front};
use crate::drops::DropReason;
use crate::mail::Letter;
use crate::packet::{Duplicate, Rare, neighbour};
use crate::tables::Version;

impl Hands {
    /// Leaves copies of the user's packet to be sent in the next round, or once the neighbour is resolved.
    #[cold]
    #[inline(never)]
    pub(super) fn duplicate(&mut self, tables: &Version, duplicate: &Duplicate, packet: &PacketRef<'_>, now: u64) {
        let begin = usize::from(duplicate.at);
        for verdict in duplicate.copies(tables) {
            let (forward, letter) = match verdict {
                Ok(forward) if forward.resolved => (forward, Letter::Send(forward.port)),
                Ok(forward) if self.unresolved.allow(now) => {
                    let neighbour = neighbour(tables, &forward, &packet.head[begin..]);
                    (forward, Letter::Resolve(forward.port, neighbour))
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
            let (outbox, full) = match letter {
                Letter::Resolve(..) => (Some(&mut self.slow_path), DropReason::SlowPathFull),
                _ => (self.workers.get_mut(usize::from(self.index)).and_then(Option::as_mut), DropReason::HandoverFull),
            };
            if !outbox.is_some_and(|outbox| outbox.post(letter, &copy)) {
                self.drops.count(full);
            }
        }
    }
}
