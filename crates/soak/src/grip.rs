//! What an end of a link has in its hands after a handshake by hand: every byte that it can reach.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use vport::arena::BUFFER_BYTES;
use vport::layout::{Exchange, Index};
use vport::wire::{Reply, Request};

use crate::memory::Words;
use crate::raw::{Holders, Lent, Raw};
use crate::victim::{SHAPES, is_zero_copy, port, version};

/// Distance of lines in an index segment.
const LINE: usize = 128;

/// One queue's segments, and the end of its doorbell that one has.
pub struct Queue {
    /// Index segment.
    pub index: Words,
    /// Record segment.
    pub records: Words,
    /// Reading end of one's own doorbell, writing end of the peer's.
    pub bell: Option<OwnedFd>,
}

/// Both sides' segments, one's own for writing.
pub struct Grip {
    /// The connection.
    pub raw: Raw,
    /// The generation.
    pub generation: u64,
    /// Own queues.
    pub own: Vec<Queue>,
    /// Own bucket table.
    pub table: Words,
    /// The peer's queues.
    pub peer: Vec<Queue>,
    /// The peer's bucket table.
    pub peer_table: Words,
    /// Size of each ring.
    pub ring: usize,
    /// On a zero-copy link, the group's.
    pub arena: Option<Arena>,
}

/// What all members of a trust group can write.
pub struct Arena {
    /// The buffers that are there.
    pub frames: Words,
    /// Who may use which.
    pub holders: Holders,
    /// Buffers that are there, and that there can be.
    pub present: u32,
    /// The others are not there yet.
    pub buffers: u32,
    /// Ids of this end and of its peer.
    pub ids: [u16; 2],
}

impl Arena {
    fn map(lent: &Lent) -> Result<Self> {
        // Whole huge pages.
        let bytes = (lent.present as usize * BUFFER_BYTES).next_multiple_of(2 << 20);
        Ok(Self {
            frames: Words::map(lent.fds.first().context("an arena")?, bytes, true)?,
            holders: lent.holders(),
            present: lent.present,
            buffers: lent.buffers,
            ids: [lent.own, lent.peer],
        })
    }

    /// Says that the peer may use a buffer. False, and nothing is said, if it is not this end's: what others in the group would
    /// miss is not taken from them.
    pub fn give(&self, buffer: u32) -> bool {
        let [own, peer] = self.ids;
        let holder = (buffer < self.present).then(|| self.holders.of(buffer));
        holder.is_some_and(|holder| holder.compare_exchange(own, peer, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }

    /// Says of a buffer of either end that it is the other's.
    pub fn swap(&self, buffer: u32) {
        let ([own, peer], holder) = (self.ids, self.holders.of(buffer));
        let _ = holder
            .compare_exchange(own, peer, Ordering::Relaxed, Ordering::Relaxed)
            .or_else(|_| holder.compare_exchange(peer, own, Ordering::Relaxed, Ordering::Relaxed));
    }
}

impl Grip {
    /// How many positions there are in a ring: bytes, or on a zero-copy link descriptors.
    pub fn reach(&self) -> usize {
        if self.arena.is_some() { self.exchange().buffers } else { self.ring }
    }

    /// Of a record segment of one's own, on a zero-copy link.
    pub fn exchange(&self) -> Exchange {
        Exchange::new(self.ring, self.peer.len())
    }
}

/// A handshake up to one's own segments.
pub struct Half {
    /// The connection.
    pub raw: Raw,
    /// Number, size of a record segment, and descriptors.
    pub own: (u64, usize, Vec<OwnedFd>),
    lent: Option<Lent>,
    queues: [usize; 2],
    ring: usize,
}

impl Half {
    /// Greets as the peer's port on link `n`, and waits for its segments. None if there is somebody else.
    pub fn take(raw: Raw, n: usize) -> Result<Option<Self>> {
        raw.say(&Request::Hello { oldest: version(n), newest: version(n), port: port(n), resume: 0 });
        if is_zero_copy(n) {
            raw.say(&Request::Holds(Vec::new()));
        }
        let (mut ring, mut lent, queues) = (0, None, SHAPES[n].map(usize::from));
        loop {
            match raw.receive() {
                Some((Reply::Welcome { ring_bytes, .. }, _)) => ring = ring_bytes as usize,
                Some((Reply::Arena { generation, buffers, present, own, peer }, fds)) => {
                    lent = Some(Lent { generation, buffers, present, own, peer, fds });
                }
                Some((Reply::Own { generation, records_bytes }, fds)) => {
                    return Ok(Some(Self { raw, own: (generation, records_bytes as usize, fds), lent, queues, ring }));
                }
                Some((Reply::Refused { try_again: true, .. }, _)) | None => return Ok(None),
                Some((Reply::Refused { reason, .. }, _)) => bail!("refused: {reason}"),
                Some(_) => {}
            }
        }
    }

    /// Goes all the way. None if the generation ends on the way.
    pub fn join(self) -> Result<Option<Grip>> {
        self.join_after(|_| {})
    }

    /// The same, after something was done to the peer's records, where these come before they are closed.
    pub fn join_after(self, mut spoil: impl FnMut(&OwnedFd)) -> Result<Option<Grip>> {
        let Self { raw, own: (generation, bytes, fds), lent, queues: [mine, theirs], ring } = self;
        let (own, table) = map(fds, mine, theirs, bytes, true)?;
        let arena = lent.as_ref().map(Arena::map).transpose()?;
        raw.say(&Request::Mapped { generation });
        let mut shared = Vec::new();
        loop {
            match raw.receive() {
                Some((Reply::Records { generation: of, records_bytes }, fds)) if of == generation => {
                    fds.iter().for_each(&mut spoil);
                    // What was spoilt cannot be.
                    shared = fds.iter().filter_map(|fd| Words::map(fd, records_bytes as usize, true).ok()).collect();
                    raw.say(&Request::Mapped { generation });
                }
                Some((Reply::Peer { generation: of, records_bytes, .. }, fds)) if of == generation => {
                    let (mut peer, peer_table) = map(fds, theirs, mine, records_bytes as usize, false)?;
                    peer.iter_mut().zip(shared).for_each(|(queue, shared)| queue.records = shared);
                    raw.say(&Request::Ready { generation });
                    return Ok(Some(Grip { raw, generation, own, table, peer, peer_table, ring, arena }));
                }
                Some((Reply::Over { generation: of, .. }, _)) if of == generation => return Ok(None),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

/// Maps the segments of `queues` queues, whose peer has so many, and the table.
fn map(fds: Vec<OwnedFd>, queues: usize, others: usize, bytes: usize, writable: bool) -> Result<(Vec<Queue>, Words)> {
    let index_bytes = Index::new(others).bytes();
    let mut fds = fds.into_iter();
    let mut mapped = Vec::new();
    for _ in 0..queues {
        let mut next = || fds.next().context("a descriptor");
        let index = Words::map(next()?, index_bytes, writable)?;
        let records = Words::map(next()?, bytes, writable)?;
        mapped.push(Queue { index, records, bell: Some(next()?) });
    }
    let table = Words::map(fds.next().context("a table")?, 4096, writable)?;
    Ok((mapped, table))
}

/// Where the words of an index segment lie.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Queues of the peer.
    pub peers: usize,
}

impl Places {
    /// The sleep word.
    pub const SLEEP: usize = 0;

    /// Head towards a queue of the peer.
    pub fn head(self, peer: usize) -> usize {
        (3 + peer) * LINE
    }

    /// Whether that head is final.
    pub fn closed(self, peer: usize) -> usize {
        self.head(peer) + 8
    }

    /// The mark of an epoch's beginning.
    pub fn mark(self, peer: usize) -> usize {
        self.head(peer) + 16
    }

    /// Tail of what comes from a queue of the peer.
    pub fn tail(self, peer: usize) -> usize {
        (3 + self.peers + peer) * LINE
    }

    /// The burst counter.
    pub fn burst(self) -> usize {
        (3 + 2 * self.peers) * LINE
    }

    /// The epoch begun last.
    pub fn epoch(self) -> usize {
        self.burst() + 8
    }
}
