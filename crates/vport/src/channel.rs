//! The two kinds of channel: records that are copied, and buffers that change hands. Which one it is stays the same for a
//! generation.

use std::sync::Arc;

use crate::giver::Giver;
use crate::held;
use crate::lent::{Lent, Place};
use crate::mapping::Mapping;
use crate::packet::{Coming, PacketRef, Slot, Slots};
use crate::reader::{Filled, Reader, Wanted};
use crate::ring::Violation;
use crate::source::{Mapped, Places, Source};
use crate::steering::Steering;
use crate::taker::Taker;
use crate::writer::{Pushed, Writer};

/// The receiving end of a channel. Positions count bytes of records, or descriptors.
#[derive(Debug)]
pub(crate) enum Inlet {
    Records { reader: Reader, source: Mapped },
    Buffers(Taker),
}

impl Inlet {
    /// See [`Reader::fill`].
    #[inline(always)]
    pub(crate) fn fill(&mut self, slots: &mut [Slot], peek: usize, wanted: impl FnMut(&Slot, u64) -> Wanted) -> Filled {
        match self {
            Self::Records { reader, source } => reader.fill(source.seen(), slots, peek, wanted),
            Self::Buffers(taker) => taker.fill(slots, peek, wanted),
        }
    }

    /// The same of all frames or none: `suits` says once they are copied. None where it says no, and where buffers change hands.
    #[inline(always)]
    pub(crate) fn fill_if(
        &mut self,
        slots: &mut [Slot],
        peek: usize,
        suits: impl FnOnce(&[Slot]) -> bool,
    ) -> Option<Filled> {
        let Self::Records { reader, source } = self else { return None };
        let begin = reader.tail();
        let filled = reader.fill(source.seen(), slots, peek, |_, _| Wanted::Yes);
        let suits = suits(&slots[..filled.packets as usize]);
        if !suits {
            reader.go_back_to(begin);
        }
        suits.then_some(filled)
    }

    /// Notes where every frame lies, for a caller that will spread them by `steering`. Nothing where buffers change hands.
    #[inline(always)]
    pub(crate) fn fill_unseen(&mut self, steering: Steering, places: &mut [held::Place]) -> Filled {
        match self {
            Self::Records { reader, source } => {
                reader.fill(source.unseen(source.seen(), steering), places, 0, |_, _| Wanted::Yes)
            }
            Self::Buffers(_) => Filled::default(),
        }
    }

    /// Takes every frame: of a zero-copy link into `lent`, where the caller has one, or else into slots.
    #[inline(always)]
    pub(crate) fn fill_all(&mut self, slots: &mut [Slot], lent: Option<&mut Lent>, peek: usize) -> Filled {
        match (self, lent) {
            (Self::Buffers(taker), Some(lent)) => taker.lend(lent, peek),
            (inlet, _) => inlet.fill(slots, peek, |_, _| Wanted::Yes),
        }
    }

    /// Where records' frames are, and what keeps them mapped; None where buffers change hands.
    #[inline(always)]
    pub(crate) fn places(&self) -> Option<(Places, &Arc<Mapping>)> {
        match self {
            Self::Records { reader, source } => Some((source.places(reader.ring()), source.mapping())),
            Self::Buffers(_) => None,
        }
    }

    /// See [`Reader::coming`].
    #[inline(always)]
    pub(crate) fn coming(&self, packets: usize) -> Option<Coming> {
        match self {
            Self::Records { reader, source } => reader.coming(source.places(reader.ring()), packets),
            Self::Buffers(_) => None,
        }
    }

    /// See [`Reader::release_to`].
    #[inline(always)]
    pub(crate) fn release_to(&mut self, position: u64) -> Option<u64> {
        match self {
            Self::Records { reader, .. } => reader.release_to(position),
            Self::Buffers(_) => None,
        }
    }

    /// See [`Reader::release`].
    #[inline(always)]
    pub(crate) fn release(&mut self, now: bool) -> Option<u64> {
        match self {
            Self::Records { reader, .. } => reader.release(now),
            Self::Buffers(taker) => taker.release(now),
        }
    }

    /// The head that the sender has published.
    pub(crate) fn head(&self) -> u64 {
        match self {
            Self::Records { source, .. } => source.seen().head(),
            Self::Buffers(taker) => taker.published(),
        }
    }

    /// See [`Reader::read_up_to`].
    pub(crate) fn read_up_to(&mut self, position: u64) {
        match self {
            Self::Records { reader, .. } => reader.read_up_to(position),
            Self::Buffers(taker) => taker.read_up_to(position),
        }
    }

    /// See [`Reader::has_more`].
    pub(crate) fn has_more(&self) -> bool {
        match self {
            Self::Records { reader, source } => reader.has_more(source.seen()),
            Self::Buffers(taker) => taker.has_more(),
        }
    }

    /// See [`Reader::broken`].
    #[inline(always)]
    pub(crate) fn broken(&self) -> Option<Violation> {
        match self {
            Self::Records { reader, .. } => reader.broken(),
            Self::Buffers(taker) => taker.broken(),
        }
    }

    /// See [`Reader::tail`].
    pub(crate) fn tail(&self) -> u64 {
        match self {
            Self::Records { reader, .. } => reader.tail(),
            Self::Buffers(taker) => taker.tail(),
        }
    }
}

/// The sending end of a channel.
#[derive(Debug)]
pub(crate) enum Outlet {
    Records(Writer),
    Buffers(Giver),
}

impl Outlet {
    /// See [`Writer::expect`].
    #[inline(always)]
    pub(crate) fn expect(&mut self, bytes: usize) {
        if let Self::Records(writer) = self {
            writer.expect(bytes);
        }
    }

    /// See [`Writer::push_burst`].
    #[inline(always)]
    pub(crate) fn push_burst(&mut self, packets: &[PacketRef<'_>]) -> Pushed {
        match self {
            Self::Records(writer) => writer.push_burst(packets),
            Self::Buffers(giver) => giver.push_burst(packets),
        }
    }

    /// See [`Writer::push_burst`]. None, and nothing done, where buffers change hands.
    #[inline(always)]
    pub(crate) fn push_slots(&mut self, slots: &Slots<'_>) -> Option<Pushed> {
        match self {
            Self::Records(writer) => Some(writer.push_burst(slots)),
            Self::Buffers(_) => None,
        }
    }

    /// See [`Giver::push_lent`].
    #[inline(always)]
    pub(crate) fn push_lent(&mut self, words: &[u64], place: Place) -> Option<Pushed> {
        match self {
            Self::Records(_) => None,
            Self::Buffers(giver) => giver.push_lent(words, place),
        }
    }

    /// See [`Writer::push`].
    #[inline(always)]
    pub(crate) fn push(&mut self, packet: &PacketRef<'_>) -> bool {
        match self {
            Self::Records(writer) => writer.push(packet),
            Self::Buffers(giver) => giver.push(packet),
        }
    }

    /// See [`Writer::publish`].
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> bool {
        match self {
            Self::Records(writer) => writer.publish(),
            Self::Buffers(giver) => giver.publish(),
        }
    }

    /// See [`Writer::broken`].
    #[inline(always)]
    pub(crate) fn broken(&self) -> Option<Violation> {
        match self {
            Self::Records(writer) => writer.broken(),
            Self::Buffers(giver) => giver.broken(),
        }
    }

    /// See [`Writer::published`].
    pub(crate) fn published(&self) -> u64 {
        match self {
            Self::Records(writer) => writer.published(),
            Self::Buffers(giver) => giver.published(),
        }
    }
}
