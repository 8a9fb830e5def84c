//! The packets of one receive.

use core::borrow::Borrow;
use core::mem::MaybeUninit;

use super::slot::slot_ref;
use super::{BURST_MAX, Coming, PacketMut, PacketRef, Packets, Placed, Slot};
use crate::lent::{Lent, Place};

/// The packets of one receive, held until the queue receives again.
pub struct Burst<'q> {
    slots: &'q mut [Slot],
    /// Where those stand whose shape was not changed; the others in their slots.
    lent: Option<&'q Lent>,
    /// What is asked for while these are changed, where they stand in slots.
    coming: Coming,
}

impl<'q> Burst<'q> {
    /// The filled slots of a queue.
    pub fn new(slots: &'q mut [Slot]) -> Self {
        Self::with_lent(slots, None)
    }

    /// Packets that stand in the slots of a queue or in `lent`.
    #[inline(always)]
    pub(crate) fn with_lent(slots: &'q mut [Slot], lent: Option<&'q Lent>) -> Self {
        let coming = Coming::nothing(slots.as_ptr().cast());
        Self { slots, lent, coming }
    }

    /// The same, with others behind them.
    #[inline(always)]
    pub(crate) fn before(self, coming: Option<Coming>) -> Self {
        Self { coming: coming.unwrap_or(self.coming), ..self }
    }

    /// What is behind them.
    #[cfg(test)]
    pub(crate) fn coming(&self) -> Coming {
        self.coming
    }

    /// Number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing was received.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Packet `i`, to send or look at.
    #[inline(always)]
    pub fn get(&self, i: usize) -> PacketRef<'_> {
        match self.lent {
            None => slot_ref(&self.slots[i]),
            Some(lent) => {
                lent.look(i);
                lent.packet(i).unwrap_or_else(|| slot_ref(&self.slots[i]))
            }
        }
    }

    /// Where packet `i` stands, if it lies in a buffer that a slot was lent: for a port that sends it on with its buffer, and
    /// needs to look at nothing else.
    #[inline(always)]
    pub fn placed(&self, i: usize) -> Option<Placed> {
        if self.lent.is_some() {
            return None;
        }
        self.slots[i].placed()
    }

    /// Packet `i`, to change.
    #[inline]
    pub fn get_mut(&mut self, i: usize) -> PacketMut<'_> {
        match self.lent {
            Some(lent) => lent.look(i),
            None => self.coming.ask(i),
        }
        PacketMut::new(&mut self.slots[i], self.lent, i)
    }

    /// Gives the packets from number `from` on to `send`, at most [`BURST_MAX`] at a time, until it does not accept all of
    /// them. How many it has accepted.
    #[inline]
    pub fn send_views(&self, from: usize, mut send: impl FnMut(&[PacketRef<'_>]) -> usize) -> usize {
        let mut accepted = 0;
        while from + accepted < self.len() {
            let (offered, some) = self.with_views(from + accepted, |packets| (packets.len(), send(packets)));
            accepted += some;
            if some < offered {
                break;
            }
        }
        accepted
    }

    /// Packets from number `from` on, at most [`BURST_MAX`].
    #[inline]
    fn with_views<R>(&self, from: usize, then: impl FnOnce(&[PacketRef<'_>]) -> R) -> R {
        let mut packets = [const { MaybeUninit::<PacketRef<'_>>::uninit() }; BURST_MAX];
        let count = self.len().saturating_sub(from).min(BURST_MAX);
        let packets = &mut packets[..count];
        if self.lent.is_some() {
            packets.iter_mut().zip(from..).for_each(|(packet, i)| _ = packet.write(self.get(i)));
        } else {
            let slots = self.slots.iter().skip(from);
            packets.iter_mut().zip(slots).for_each(|(packet, slot)| _ = packet.write(slot_ref(slot)));
        }
        // SAFETY: there are as many slots behind `from`, so each was written.
        let packets = unsafe { core::slice::from_raw_parts(packets.as_ptr().cast(), count) };
        then(packets)
    }

    /// The slots of packets from number `from` on, if they stand there.
    #[inline(always)]
    pub(crate) fn slots_from(&self, from: usize) -> Option<Slots<'_>> {
        self.lent.is_none().then(|| Slots(self.slots.get(from..).unwrap_or_default()))
    }

    /// Where packets from number `from` on stand, if that is not in slots.
    #[inline(always)]
    pub(crate) fn lent_from(&self, from: usize) -> Option<(&[u64], Place)> {
        self.lent?.all(from..self.len())
    }
}

/// Packets as they were received.
pub(crate) struct Slots<'a>(&'a [Slot]);

impl Packets for Slots<'_> {
    #[inline(always)]
    fn each(&self) -> impl ExactSizeIterator<Item: Borrow<PacketRef<'_>>> + Clone {
        self.0.iter().map(slot_ref)
    }
}
