//! The sending end of a link's channels by hand: frames are written as records, or into buffers of which descriptors are sent.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use vport::arena::{BUFFER_BYTES, Descriptor, FRAME_OFFSET};
use vport::layout::Exchange;

use crate::memory::Words;
use crate::raw::Lent;

/// Of one queue, towards all queues of the peer.
pub enum Outlet {
    /// Of a direct link: a ring of so many bytes for each.
    Records {
        /// Own record segment.
        records: Words,
        /// Bytes of each ring.
        ring: usize,
    },
    /// Of a zero-copy link.
    Buffers(Buffers),
}

/// Empty buffers come from the peer, who has put them where it returns others; full ones go to it.
pub struct Buffers {
    descriptors: Words,
    returns: Vec<Words>,
    /// Of the own segment, and of each of the peer's.
    layouts: [Exchange; 2],
    lent: Lent,
    frames: Words,
}

impl Outlet {
    /// Towards the peer whose record segments these are, in rings of `ring` bytes; on a zero-copy link with what was lent for it.
    pub fn new(records: Words, peer: Vec<Words>, ring: usize, lent: Option<Lent>) -> Result<Self> {
        let Some(lent) = lent else { return Ok(Self::Records { records, ring }) };
        // Whole huge pages.
        let bytes = (lent.present as usize * BUFFER_BYTES).next_multiple_of(2 << 20);
        let frames = Words::map(lent.fds.first().context("an arena")?, bytes, true)?;
        let layouts = [Exchange::new(ring, peer.len()), Exchange::new(ring, 1)];
        Ok(Self::Buffers(Buffers { descriptors: records, returns: peer, layouts, lent, frames }))
    }

    /// Writes a frame for a queue of the peer, at the head. Returns the next head.
    pub fn put(&self, queue: usize, head: usize, frame: &[u8]) -> usize {
        match self {
            Self::Records { records, ring } => {
                records.write_record(queue * ring + head, frame);
                head + (8 + frame.len()).next_multiple_of(8)
            }
            Self::Buffers(buffers) => {
                buffers.put(queue, head, frame);
                head + 1
            }
        }
    }
}

impl Buffers {
    /// In the first lap: what the broker has put there.
    fn put(&self, queue: usize, position: usize, frame: &[u8]) {
        let [own, peer] = self.layouts;
        let pair = self.returns[queue].load(peer.returns(0) + position / 2 * 8);
        let buffer = (pair >> (position % 2 * 32)) as u32;
        self.frames.write(buffer as usize * BUFFER_BYTES + FRAME_OFFSET, frame);
        self.lent.holders().of(buffer).store(self.lent.peer, Ordering::Relaxed);
        let descriptor = Descriptor { buffer, offset: FRAME_OFFSET as u16, len: frame.len() as u16 };
        self.descriptors.word(own.descriptors(queue) + position * 8).store(descriptor.word(), Ordering::Release);
    }
}
