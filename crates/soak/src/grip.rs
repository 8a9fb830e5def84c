//! What an end of a link has in its hands after a handshake by hand: every byte that it can reach.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail};
use vport::layout::{Index, VERSION};
use vport::wire::{Reply, Request};

use crate::memory::Words;
use crate::raw::Raw;

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
}

/// A handshake up to one's own segments.
pub struct Half {
    /// The connection.
    pub raw: Raw,
    /// Number, size of a record segment, and descriptors.
    pub own: (u64, usize, Vec<OwnedFd>),
    queues: [usize; 2],
    ring: usize,
}

impl Half {
    /// Greets as `port`, which has so many queues as its peer, and waits for its segments. None if there is somebody else.
    pub fn take(raw: Raw, port: &str, queues: [usize; 2]) -> Result<Option<Self>> {
        raw.say(&Request::Hello { oldest: VERSION, newest: VERSION, port: port.into(), resume: 0 });
        let mut ring = 0;
        loop {
            match raw.receive() {
                Some((Reply::Welcome { ring_bytes, .. }, _)) => ring = ring_bytes as usize,
                Some((Reply::Own { generation, records_bytes }, fds)) => {
                    return Ok(Some(Self { raw, own: (generation, records_bytes as usize, fds), queues, ring }));
                }
                Some((Reply::Refused { try_again: true, .. }, _)) | None => return Ok(None),
                Some((Reply::Refused { reason, .. }, _)) => bail!("refused: {reason}"),
                Some(_) => {}
            }
        }
    }

    /// Goes all the way. None if the generation ends on the way.
    pub fn join(self) -> Result<Option<Grip>> {
        let Self { raw, own: (generation, bytes, fds), queues: [mine, theirs], ring } = self;
        let (own, table) = map(fds, mine, theirs, bytes, true)?;
        raw.say(&Request::Mapped { generation });
        loop {
            match raw.receive() {
                Some((Reply::Peer { generation: of, records_bytes, .. }, fds)) if of == generation => {
                    let (peer, peer_table) = map(fds, theirs, mine, records_bytes as usize, false)?;
                    raw.say(&Request::Ready { generation });
                    return Ok(Some(Grip { raw, generation, own, table, peer, peer_table, ring }));
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
