//! A passive reader of a link: copies records as they pass, and notices what it missed.
//!
//! It owns no tail, so a writer does not wait for it. A record was whole when it was copied if, afterwards, the head is
//! still less than three quarters of a ring away: a writer never has more than a quarter unpublished.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use super::link::Link;
use crate::layout::Index;
use crate::mapping::Mapping;
use crate::packet::FRAME_MAX;
use crate::ring::{HEADER, Ring, Step};

/// Which way a frame went, seen from the observed port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the port's function.
    Received,
    /// From the port's function.
    Sent,
}

/// A frame seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Which way.
    pub direction: Direction,
    /// Queue of the sender.
    pub queue: usize,
    /// The frame's bytes, without frame check sequence.
    pub frame: &'a [u8],
}

/// Where the broker leaves a link's current generation for its observers.
#[derive(Debug, Default)]
pub(super) struct Tap {
    version: AtomicU64,
    gone: AtomicBool,
    channels: Mutex<Vec<TapChannel>>,
}

#[derive(Clone, Debug)]
struct TapChannel {
    ring: Ring,
    records: Arc<Mapping>,
    offset: usize,
    index: Arc<Mapping>,
    layout: Index,
    /// The end that sends.
    from: usize,
    queue: usize,
    peer: usize,
}

impl Tap {
    /// Maps the current generation, if anyone looks.
    pub(super) fn renew(link: &Link) -> std::io::Result<()> {
        let watched = Arc::strong_count(&link.tap) > 1;
        let channels = if watched { channels(link)? } else { Vec::new() };
        *link.tap.channels.lock().unwrap_or_else(PoisonError::into_inner) = channels;
        link.tap.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The link is forgotten.
    pub(super) fn end(&self) {
        self.gone.store(true, Ordering::Release);
    }
}

fn channels(link: &Link) -> std::io::Result<Vec<TapChannel>> {
    if link.spec.kind.group().is_some() {
        return Ok(Vec::new());
    }
    let Some(segments) = &link.segments else { return Ok(Vec::new()) };
    let Some(ring) = Ring::new(u64::from(link.spec.ring_bytes)) else { return Ok(Vec::new()) };
    let mut channels = Vec::new();
    for (from, end) in segments.ends.iter().enumerate() {
        let layout = Index::new(link.queues(1 - from));
        for (queue, (records, index)) in end.records.iter().zip(&end.indices).enumerate() {
            let records = Arc::new(Mapping::read_only(records.as_fd(), records.len())?);
            channels.extend((0..link.queues(1 - from)).map(|peer| TapChannel {
                ring,
                records: records.clone(),
                offset: peer * ring.size() as usize,
                index: index.clone(),
                layout,
                from,
                queue,
                peer,
            }));
        }
    }
    Ok(channels)
}

/// Watches one port. Owned by the caller; needs nothing from the broker's thread while it looks.
#[derive(Debug)]
pub struct Observer {
    tap: Arc<Tap>,
    /// The end whose port is observed, and the port's queues there.
    end: usize,
    queues: Range<usize>,
    seen: u64,
    watched: Vec<Watched>,
    /// Whether the first generation was seen: later ones are watched from their start.
    started: bool,
    frame: Box<[u8; FRAME_MAX]>,
}

#[derive(Debug)]
struct Watched {
    channel: TapChannel,
    position: u64,
}

impl Observer {
    /// An observer of the port that has these queues of `end`. The broker must renew the tap next.
    pub(super) fn new(tap: Arc<Tap>, end: usize, queues: Range<usize>) -> Self {
        let frame = Box::new([0; FRAME_MAX]);
        Self { tap, end, queues, seen: 0, watched: Vec::new(), started: false, frame }
    }

    /// Gives every frame that passed since the last call to `each`, oldest first on every channel, and returns how many
    /// bytes of records were overwritten before they could be copied. A port is watched from the first call on.
    /// Call it often (every millisecond); it never blocks.
    pub fn poll(&mut self, each: &mut dyn FnMut(Seen<'_>)) -> u64 {
        let mut missed = 0;
        let version = self.tap.version.load(Ordering::Acquire);
        if version != self.seen {
            missed += self.drain(each);
            self.seen = version;
            self.follow();
        }
        missed + self.drain(each)
    }

    /// Whether the link is still known to the broker.
    pub fn is_live(&self) -> bool {
        !self.tap.gone.load(Ordering::Acquire)
    }

    /// Turns to the current generation. Channels that are already watched stay where they are.
    fn follow(&mut self) {
        let channels = self.tap.channels.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let started = std::mem::replace(&mut self.started, true);
        let before = std::mem::take(&mut self.watched);
        self.watched = channels
            .into_iter()
            .filter(|channel| {
                let own = if channel.from == self.end { channel.queue } else { channel.peer };
                self.queues.contains(&own)
            })
            .map(|channel| {
                let known = before.iter().find(|watched| {
                    Arc::ptr_eq(&watched.channel.index, &channel.index) && watched.channel.peer == channel.peer
                });
                let position = match known {
                    Some(watched) => watched.position,
                    None if started => 0,
                    None => channel.head(),
                };
                Watched { channel, position }
            })
            .collect();
    }

    fn drain(&mut self, each: &mut dyn FnMut(Seen<'_>)) -> u64 {
        let mut missed = 0;
        for watched in &mut self.watched {
            let direction = if watched.channel.from == self.end { Direction::Sent } else { Direction::Received };
            missed += watched.drain(&mut self.frame, |queue, frame| each(Seen { direction, queue, frame }));
        }
        missed
    }
}

impl TapChannel {
    fn head(&self) -> u64 {
        self.layout.head(&self.index, self.peer).load(Ordering::Acquire)
    }

    /// Whether a record at `position` had not been written over when this began.
    fn is_whole(&self, position: u64) -> bool {
        // What was copied before must not be read after the head.
        fence(Ordering::Acquire);
        let distance = self.head().wrapping_sub(position);
        distance <= self.ring.size() - self.ring.unpublished_max()
    }

    fn header(&self, position: u64) -> u64 {
        self.records.word(self.offset + self.ring.offset(position)).load(Ordering::Relaxed)
    }

    /// Copies a frame that lies within the lap.
    fn copy(&self, position: u64, to: &mut [u8]) {
        let start = self.offset + self.ring.offset(position) + HEADER as usize;
        let from = self.records.area(start, to.len());
        // SAFETY: in bounds of a mapping that is kept; `to` is private. The writer may write meanwhile, which
        // `is_whole` finds afterwards.
        unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
}

impl Watched {
    /// Frames between the position and the head; returns the bytes that were missed.
    fn drain(&mut self, frame: &mut [u8; FRAME_MAX], mut each: impl FnMut(usize, &[u8])) -> u64 {
        let channel = &self.channel;
        let head = channel.head();
        // A head that is no multiple of 8, or goes back, is the writer's own trouble: its reader quarantines it.
        if !head.is_multiple_of(HEADER) || head.wrapping_sub(self.position) > u64::MAX / 2 {
            return 0;
        }
        while self.position != head {
            if !channel.is_whole(self.position) {
                return self.jump(head);
            }
            let header = channel.header(self.position);
            let next = match channel.ring.step(self.position, head, header) {
                Ok(Step::Skip { next }) => next,
                Ok(Step::Frame { len, next }) => {
                    channel.copy(self.position, &mut frame[..len]);
                    if !channel.is_whole(self.position) {
                        return self.jump(head);
                    }
                    each(channel.queue, &frame[..len]);
                    next
                }
                Err(_) => return self.jump(head),
            };
            self.position = next;
        }
        0
    }

    /// Goes on at the head, the only place behind the gap where a record is known to begin.
    fn jump(&mut self, head: u64) -> u64 {
        let missed = head.wrapping_sub(self.position);
        self.position = head;
        missed
    }
}
