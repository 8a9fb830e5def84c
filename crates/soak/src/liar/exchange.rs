//! What a hostile peer does on a zero-copy link only: descriptors, returns and holders that lie, and frames that change while
//! they are somebody else's.

use std::sync::atomic::Ordering;

use vport::arena::{BUFFER_BYTES, Descriptor, FRAME_OFFSET};
use vport::layout::Exchange;

use super::Liar;
use crate::frames::{self, Stamp};
use crate::grip::{Arena, Grip, Places};
use crate::memory::Words;

/// One channel each way: between a queue of this end and one of the peer's.
#[derive(Clone, Copy)]
struct Channel<'a> {
    grip: &'a Grip,
    arena: &'a Arena,
    queue: usize,
    peer: usize,
}

impl<'a> Channel<'a> {
    fn own(self) -> (Places, Exchange, &'a Words, &'a Words) {
        let queue = &self.grip.own[self.queue];
        (Places { peers: self.grip.peer.len() }, self.grip.exchange(), &queue.index, &queue.records)
    }

    fn peer(self) -> (Places, Exchange, &'a Words, &'a Words) {
        let (queue, queues) = (&self.grip.peer[self.peer], self.grip.own.len());
        (Places { peers: queues }, Exchange::new(self.grip.ring, queues), &queue.index, &queue.records)
    }

    /// Where position `at` of a ring is.
    fn place(self, at: u64) -> usize {
        (at % self.grip.reach() as u64) as usize
    }

    /// The empty buffer that the peer has put at a position, or the broker before it.
    fn empty(self, at: u64) -> u32 {
        let (_, exchange, _, records) = self.peer();
        let pair = records.load(exchange.returns(self.queue) + self.place(at) / 2 * 8);
        (pair >> (self.place(at) % 2 * 32)) as u32
    }

    /// The buffer that the peer has sent at a position.
    fn sent(self, at: u64) -> u32 {
        let (_, exchange, _, records) = self.peer();
        records.load(exchange.descriptors(self.queue) + self.place(at) * 8) as u32
    }

    fn describe(self, at: u64, descriptor: Descriptor) {
        let (_, exchange, _, records) = self.own();
        let place = exchange.descriptors(self.peer) + self.place(at) * 8;
        records.word(place).store(descriptor.word(), Ordering::Relaxed);
    }

    fn give_back(self, at: u64, buffer: u32) {
        let (_, exchange, _, records) = self.own();
        let pair = records.word(exchange.returns(self.peer) + self.place(at) / 2 * 8);
        let shift = self.place(at) % 2 * 32;
        let other = pair.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        pair.store(other | u64::from(buffer) << shift, Ordering::Relaxed);
    }
}

impl Liar {
    /// An attack between two queues, if it is of a kind that is another one on a zero-copy link. Those below 6 break no rule.
    pub(super) fn attack_exchange(
        &mut self,
        kind: usize,
        grip: &Grip,
        [queue, peer]: [usize; 2],
        head: &mut u64,
    ) -> bool {
        let Some(arena) = &grip.arena else { return false };
        let channel = Channel { grip, arena, queue, peer };
        match kind {
            0 => self.send_buffers(channel, head),
            1 => self.return_buffers(channel, false),
            5 => self.scribble_frames(arena),
            9 | 10 => self.send_descriptor(channel, head),
            17 => self.return_buffers(channel, true),
            19 => (0..200).for_each(|_| arena.swap(self.random.below(arena.present as usize) as u32)),
            _ => return false,
        }
        true
    }

    /// Frames as an honest sender puts them into buffers, as long as there are any.
    fn send_buffers(&mut self, channel: Channel<'_>, head: &mut u64) {
        let (places, _, index, _) = channel.own();
        let (peer_places, _, peer_index, _) = channel.peer();
        let tail = peer_index.load(peer_places.tail(channel.queue));
        for _ in 0..1 + self.random.below(40) {
            let buffer = channel.empty(*head);
            if head.wrapping_sub(tail) >= channel.grip.reach() as u64 || !channel.arena.give(buffer) {
                break;
            }
            let stamp = Stamp { flow: self.random.word() as u16, incarnation: 1, number: self.random.word() };
            let frame = frames::frame(stamp, *self.random.pick(&[64, 64, 65, 191, 192, 193, 1_500, 9_600]));
            channel.arena.frames.write(buffer as usize * BUFFER_BYTES + FRAME_OFFSET, &frame);
            channel.describe(*head, Descriptor { buffer, offset: FRAME_OFFSET as u16, len: frame.len() as u16 });
            *head += 1;
        }
        index.word(places.head(channel.peer)).store(*head, Ordering::Release);
    }

    /// A descriptor of anything, at the head, and a head behind it.
    fn send_descriptor(&mut self, channel: Channel<'_>, head: &mut u64) {
        let (places, _, index, _) = channel.own();
        let lawful = channel.empty(*head);
        let buffer = match self.random.below(4) {
            0 => self.any_buffer(channel.arena),
            1 => channel.empty(head.wrapping_sub(1)),
            _ => lawful,
        };
        let any = self.random.word() as u16;
        let end = BUFFER_BYTES as u16;
        let offset = *self.random.pick(&[FRAME_OFFSET as u16, 128, 127, 0, end - 60, end - 59, end, u16::MAX, any]);
        let len = *self.random.pick(&[60, 60, 60, 1, 9_600, 9_601, 0, u16::MAX, any]);
        if !self.random.once_in(3) {
            channel.arena.give(buffer);
        }
        channel.describe(*head, Descriptor { buffer, offset, len });
        let reach = channel.grip.reach() as u64;
        *head = head.wrapping_add(*self.random.pick(&[1, 1, 1, 2, reach, reach + 1]));
        index.word(places.head(channel.peer)).store(*head, Ordering::Release);
    }

    /// Returns buffers of what the peer has sent. If `rude`, others too, or twice, or too many.
    fn return_buffers(&mut self, channel: Channel<'_>, rude: bool) {
        let (places, _, index, _) = channel.own();
        let (peer_places, _, peer_index, _) = channel.peer();
        let head = peer_index.load(peer_places.head(channel.queue));
        let mut tail = index.load(places.tail(channel.peer));
        for _ in 0..1 + self.random.below(40) {
            let mut buffer = channel.sent(tail);
            if rude && self.random.once_in(8) {
                buffer = self.any_buffer(channel.arena);
            } else if tail == head && !rude {
                break;
            }
            if !(rude && self.random.once_in(8)) {
                channel.arena.give(buffer);
            }
            channel.give_back(tail, buffer);
            tail = tail.wrapping_add(1);
        }
        index.word(places.tail(channel.peer)).store(tail, Ordering::Release);
    }

    fn any_buffer(&mut self, arena: &Arena) -> u32 {
        let (there, any) = (self.random.below(arena.present as usize) as u32, self.random.word() as u32);
        *self.random.pick(&[there, there, arena.present, arena.buffers - 1, arena.buffers, u32::MAX, any])
    }

    /// Bytes of frames, whoever has them.
    fn scribble_frames(&mut self, arena: &Arena) {
        let bytes = arena.present as usize * BUFFER_BYTES;
        for _ in 0..200 {
            arena.frames.byte(self.random.below(bytes)).store(self.random.word() as u8, Ordering::Relaxed);
        }
    }
}
