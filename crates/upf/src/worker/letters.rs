//! What other threads leave for a worker, and what it leaves for other workers.

use port::{BURST_MAX, Burst, HEAD_MAX, PacketRef, Rest};

use super::{AWAITED, Exits, Hands, classify_frame, whole};
use crate::drops::DropReason;
use crate::mail::{Inbox, Letter, Outbox};
use crate::packet::Class;
use crate::side::PortId;
use crate::tables::Version;

impl Hands {
    /// Frames that another thread left, up to a burst of them: a worker by its index, or behind these the slow path.
    pub(super) fn read(&mut self, tables: &Version, worker: usize, inbox: &mut Inbox, exits: &mut Exits) -> bool {
        let mut taken = 0;
        // What has waited for a bucket goes before what ports bring.
        let most = if self.moving.is_stirred() && worker == usize::from(self.index) { usize::MAX } else { BURST_MAX };
        while taken < most
            && let Some((letter, frame)) = inbox.take()
        {
            match letter {
                Letter::Process(from) => {
                    let class = classify_frame(tables, from, frame);
                    match self.is_here(tables, worker, &class) {
                        Some(true) => self.serve_one(tables, from, &class, frame, exits),
                        // The session moved meanwhile. It is not worth following.
                        Some(false) => self.drops.count(DropReason::HandoverLoop),
                        None => {
                            inbox.put_back();
                            break;
                        }
                    }
                }
                Letter::Marker(epoch) => self.moving.hear(worker, epoch),
                Letter::Enter(from) if worker == usize::from(self.index) => {
                    if !self.let_on(tables, from, frame, exits) {
                        inbox.put_back();
                        break;
                    }
                }
                Letter::Enter(from) => self.enter(tables, from, frame, exits),
                Letter::Send(port) => {
                    self.send(port, &[PacketRef::from_slice(frame)], exits);
                }
                Letter::Punt(..) | Letter::Resolve(..) | Letter::Await(..) | Letter::TooLong(_) => {
                    debug_assert!(false, "these go to the slow path");
                }
            }
            taken += 1;
        }
        taken > 0
    }

    /// A frame from the slow path, which does not know whose it is.
    #[inline(never)]
    fn enter(&mut self, tables: &Version, from: PortId, frame: &[u8], exits: &mut Exits) {
        let class = classify_frame(tables, from, frame);
        match self.owner(tables, &class) {
            owner if owner == self.index => self.serve_one(tables, from, &class, frame, exits),
            owner => {
                self.hand_over(owner, from, &PacketRef::from_slice(frame));
                self.workers.iter_mut().flatten().for_each(Outbox::deliver);
            }
        }
    }

    /// A frame from another worker, which found it to belong here.
    #[inline(never)]
    pub(super) fn serve_one(&mut self, tables: &Version, from: PortId, class: &Class, frame: &[u8], exits: &mut Exits) {
        let now = self.now();
        self.tracer.look();
        let (head, behind) = frame.split_at(frame.len().min(HEAD_MAX));
        let mut slot = std::mem::take(&mut self.slot);
        slot.fill_head(head.len()).copy_from_slice(head);
        let mut slots = [slot];
        let mut burst = Burst::new(&mut slots);
        let mut behind = Rest::from_slice(behind);
        let mut packet = burst.get_mut(0);
        if let Some(fate) = self.conclude_any(tables, from, class, &mut packet, &mut behind, now)
            && self.send(fate.port, &[whole(&packet, behind)], exits) == 0
        {
            fate.uncount(tables);
            self.trace_refused(tables, from, fate.port, class, now);
        }
        if !self.trailing.is_empty() {
            self.send_trailing(exits);
        }
        self.slow_path.deliver();
        self.state.alarms.deliver();
        // Others have packets that are to be translated.
        self.workers.iter_mut().flatten().for_each(Outbox::deliver);
        [self.slot] = slots;
    }

    #[cold]
    pub(super) fn hand_over(&mut self, owner: u8, from: PortId, packet: &PacketRef<'_>) {
        let owner = if owner == AWAITED { self.index } else { owner };
        let Some(outbox) = self.workers.get_mut(usize::from(owner)).and_then(Option::as_mut) else { return };
        if !post(outbox, &mut self.is_crowded, Letter::Process(from), packet) {
            self.drops.count(DropReason::HandoverFull);
        }
    }

    /// Whether packets have to wait in their ports, since a burst might not fit the ring to some worker.
    #[cold]
    pub(super) fn is_still_crowded(&mut self) -> bool {
        self.is_crowded = !self.workers.iter().flatten().all(Outbox::has_room_for_burst);
        self.is_crowded
    }
}

/// Leaves something for a worker, which may be this one: what ports bring waits there while a burst might not fit the ring.
#[inline]
pub(super) fn post(outbox: &mut Outbox, is_crowded: &mut bool, letter: Letter, packet: &PacketRef<'_>) -> bool {
    let posted = outbox.post(letter, packet);
    *is_crowded |= !outbox.has_room_for_burst();
    posted
}
