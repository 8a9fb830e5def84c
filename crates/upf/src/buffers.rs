//! Packets that wait for their UE to be paged (TS 23.501, 5.8.3): in order, so many of a session, so many octets in all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;
use port::PacketRef;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::side::PortId;
use crate::tables::{BUCKETS, Bucket};

/// How packets of a PDR wait. Part of the compiled rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The UPF's SEID of the session.
    pub up_seid: u64,
    /// PDR ID.
    pub pdr: u16,
    /// Most packets of the session that wait.
    pub max_packets: u16,
    /// Whether N4 is told when packets begin to wait.
    pub notify: bool,
}

/// What became of a packet that was to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// It waits. There is no room otherwise.
    pub waits: bool,
    /// N4 is to be told of its PDR, and has not been: whether or not there is room, the UE is to be paged.
    pub is_news: bool,
}

/// How many octets may wait at all workers together. Clones are the same.
#[derive(Clone, Debug)]
pub struct Room(Arc<RoomShared>);

#[derive(Debug)]
struct RoomShared {
    max_octets: usize,
    octets: AtomicUsize,
}

/// The waiting packets of a worker's sessions.
#[derive(Debug)]
pub struct Buffers {
    /// By the sessions' home buckets.
    shelves: Box<[Shelf; BUCKETS]>,
    room: Room,
    packets: usize,
}

/// The waiting packets of a bucket's sessions. They keep their room wherever they are.
#[derive(Debug, Default)]
pub struct Shelf {
    /// By the UPF's SEID.
    queues: HashMap<u64, Queue>,
    packets: usize,
}

/// Waiting packets of a session, on their way to another process. Where there are many, further ones follow in another of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    up_seid: u64,
    /// The ports that frames came by, and how long these are.
    frames: Vec<(u8, u32)>,
    /// All frames, one behind the other.
    #[serde(serialize_with = "write_octets", deserialize_with = "read_octets")]
    octets: Vec<u8>,
    told: Vec<u16>,
}

/// As a whole: a list would be gone through octet by octet.
fn write_octets<S: Serializer>(octets: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(octets)
}

fn read_octets<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    <&[u8]>::deserialize(from).map(<[u8]>::to_vec)
}

/// With so many octets no further frame is parked beside others.
const PARKED_OCTETS_MOST: usize = 1 << 20;

#[derive(Debug, Default)]
struct Queue {
    /// Whole frames, as they came from these ports.
    frames: VecDeque<(PortId, Box<[u8]>)>,
    /// Of all frames.
    octets: usize,
    /// PDRs that N4 was told of.
    told: Vec<u16>,
}

impl Parked {
    fn all(up_seid: u64, queue: Queue) -> Vec<Self> {
        let of = |told| Self { up_seid, frames: vec![], octets: vec![], told };
        let (mut all, mut last) = (vec![], of(queue.told));
        for (port, frame) in queue.frames {
            if last.octets.len() >= PARKED_OCTETS_MOST {
                all.push(std::mem::replace(&mut last, of(vec![])));
            }
            last.frames.push((port.number() as u8, frame.len() as u32));
            last.octets.extend_from_slice(&frame);
        }
        all.push(last);
        all
    }

    /// The UPF's SEID of the session.
    pub fn up_seid(&self) -> u64 {
        self.up_seid
    }

    /// Frames, with the numbers of the ports that they came by.
    fn frames(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest = &self.octets[..];
        self.frames.iter().map_while(move |&(port, len)| {
            let (frame, others) = rest.split_at_checked(len as usize)?;
            rest = others;
            Some((port, frame))
        })
    }
}

impl Room {
    /// Room for `max_octets` octets of frames.
    pub fn new(max_octets: usize) -> Self {
        Self(Arc::new(RoomShared { max_octets, octets: AtomicUsize::new(0) }))
    }

    /// For a session that has `own` octets waiting and is to have so many more. None has more than is left for others.
    fn take(&self, own: usize, octets: usize) -> bool {
        let RoomShared { max_octets, octets: taken } = &*self.0;
        let fits = |taken: usize| (own + octets <= max_octets.saturating_sub(taken)).then_some(taken + octets);
        taken.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    fn give_back(&self, octets: usize) {
        self.0.octets.fetch_sub(octets, Relaxed);
    }
}

impl Buffers {
    /// Buffers with a share in this room.
    pub fn new(room: Room) -> Self {
        Self { shelves: Box::new(std::array::from_fn(|_| Shelf::default())), room, packets: 0 }
    }

    /// Has the frame wait, which came from `port`, for a session with this home bucket.
    pub fn keep(&mut self, home: Bucket, waiting: &Waiting, port: PortId, frame: &PacketRef<'_>) -> Kept {
        let len = frame.len();
        let shelf = &mut self.shelves[usize::from(home) % BUCKETS];
        let queue = shelf.queues.entry(waiting.up_seid).or_default();
        let waits = queue.frames.len() < waiting.max_packets.into() && self.room.take(queue.octets, len);
        if waits {
            let mut copy = vec![0; len].into_boxed_slice();
            frame.copy_to(&mut copy);
            queue.frames.push_back((port, copy));
            queue.octets += len;
            shelf.packets += 1;
            self.packets += 1;
        }
        Kept { waits, is_news: waiting.notify && !queue.told.contains(&waiting.pdr) }
    }

    /// Packets that wait.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// N4 was told of packets that the PDR has matched.
    pub fn told(&mut self, home: Bucket, waiting: &Waiting) {
        if let Some(queue) = self.shelves[usize::from(home) % BUCKETS].queues.get_mut(&waiting.up_seid) {
            queue.told.push(waiting.pdr);
        }
    }

    /// All frames of the session that wait, in order; they do not any more.
    pub fn take(&mut self, home: Bucket, up_seid: u64) -> VecDeque<(PortId, Box<[u8]>)> {
        let shelf = &mut self.shelves[usize::from(home) % BUCKETS];
        let queue = shelf.queues.remove(&up_seid).unwrap_or_default();
        shelf.packets -= queue.frames.len();
        self.packets -= queue.frames.len();
        self.room.give_back(queue.octets);
        queue.frames
    }

    /// Takes out what waits for sessions of a bucket, for another worker.
    pub fn leave(&mut self, bucket: Bucket) -> Shelf {
        let shelf = std::mem::take(&mut self.shelves[usize::from(bucket) % BUCKETS]);
        self.packets -= shelf.packets;
        shelf
    }

    /// What waited at another worker waits here now.
    pub fn arrive(&mut self, bucket: Bucket, shelf: Shelf) {
        self.packets += shelf.packets;
        let own = &mut self.shelves[usize::from(bucket) % BUCKETS];
        own.packets += shelf.packets;
        // Mostly nothing is here before a bucket is.
        for (up_seid, mut queue) in shelf.queues {
            let waiting = own.queues.entry(up_seid).or_default();
            waiting.frames.append(&mut queue.frames);
            waiting.octets += queue.octets;
            waiting.told.append(&mut queue.told);
        }
    }

    /// Takes everything out.
    pub fn park(&mut self) -> Vec<Parked> {
        self.packets = 0;
        let queues: Vec<_> = self.shelves.iter_mut().flat_map(|shelf| std::mem::take(shelf).queues).collect();
        let parked = queues.into_iter().flat_map(|(up_seid, queue)| {
            self.room.give_back(queue.octets);
            Parked::all(up_seid, queue)
        });
        parked.collect()
    }

    /// Puts packets of a session back in, behind others of it, but for what came by other ports than the first `ports`. There is
    /// room for them, since they have waited already.
    pub fn unpark(&mut self, home: Bucket, parked: Parked, ports: usize) {
        let shelf = &mut self.shelves[usize::from(home) % BUCKETS];
        let queue = shelf.queues.entry(parked.up_seid).or_default();
        for (port, frame) in parked.frames().filter(|(port, _)| usize::from(*port) < ports) {
            queue.frames.push_back((PortId::new(port.into()), frame.into()));
            queue.octets += frame.len();
            self.room.0.octets.fetch_add(frame.len(), Relaxed);
            shelf.packets += 1;
            self.packets += 1;
        }
        queue.told.extend(parked.told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITING: Waiting = Waiting { up_seid: 1, pdr: 2, max_packets: 3, notify: true };

    const HOME: Bucket = 77;

    const WAITS: Kept = Kept { waits: true, is_news: false };
    const IS_NEWS: Kept = Kept { waits: true, is_news: true };
    const FULL: Kept = Kept { waits: false, is_news: false };
    const FULL_AND_NEWS: Kept = Kept { waits: false, is_news: true };

    fn buffers(max_octets: usize) -> Buffers {
        Buffers::new(Room::new(max_octets))
    }

    fn keep(buffers: &mut Buffers, waiting: &Waiting, frame: &[u8]) -> Kept {
        buffers.keep(HOME, waiting, PortId::N6, &PacketRef::from_slice(frame))
    }

    fn octets(buffers: &Buffers) -> usize {
        buffers.room.0.octets.load(Relaxed)
    }

    fn taken(buffers: &mut Buffers) -> Vec<u8> {
        buffers.take(HOME, 1).iter().map(|(_, frame)| frame[0]).collect()
    }

    #[test]
    fn frames_wait_in_order_and_each_pdr_is_news_once() {
        let mut buffers = buffers(1_000);
        assert_eq!(keep(&mut buffers, &WAITING, b"a"), IS_NEWS);
        buffers.told(HOME, &WAITING);
        assert_eq!(keep(&mut buffers, &WAITING, b"b"), WAITS);
        assert_eq!(keep(&mut buffers, &Waiting { pdr: 3, ..WAITING }, b"c"), IS_NEWS);
        assert_eq!(buffers.take(HOME, 2).len(), 0);
        assert_eq!(taken(&mut buffers), b"abc");
        assert_eq!(keep(&mut buffers, &Waiting { notify: false, ..WAITING }, b"d"), WAITS);
    }

    #[test]
    fn what_a_bucket_brings_waits_beside_what_waits_here_already() {
        let room = Room::new(1_000);
        let [mut here, mut there] = [(); 2].map(|()| Buffers::new(room.clone()));
        keep(&mut here, &WAITING, b"a");
        keep(&mut there, &WAITING, b"b");
        keep(&mut there, &Waiting { up_seid: 9, ..WAITING }, b"c");
        let shelf = there.leave(HOME);
        here.arrive(HOME, shelf);
        assert_eq!((here.packets(), there.packets(), octets(&here)), (3, 0, 3));
        assert_eq!((taken(&mut here), here.take(HOME, 9).len()), (b"ab".to_vec(), 1));
        assert_eq!((here.packets(), octets(&here)), (0, 0), "all room is given back");
    }

    #[test]
    fn frames_that_were_parked_wait_as_before() {
        let mut before = buffers(1_000);
        keep(&mut before, &WAITING, b"a");
        before.told(HOME, &WAITING);
        keep(&mut before, &WAITING, b"b");
        let mut after = buffers(1_000);
        before.park().into_iter().for_each(|parked| after.unpark(HOME, parked, 2));
        assert_eq!((before.packets(), octets(&before), after.packets(), octets(&after)), (0, 0, 2, 2));
        assert_eq!(keep(&mut after, &WAITING, b"c"), WAITS);
        assert_eq!(taken(&mut after), b"abc");
    }

    #[test]
    fn many_frames_of_a_session_are_parked_by_parts_and_wait_in_order() {
        let patient = Waiting { max_packets: 100, ..WAITING };
        let mut before = buffers(16 << 20);
        (0..50).for_each(|number| _ = keep(&mut before, &patient, &[number; 60_000]));
        before.told(HOME, &patient);
        let parked = before.park();
        assert!(parked.len() > 1);
        let mut after = buffers(16 << 20);
        for part in parked {
            let written = postcard::to_allocvec(&part).unwrap();
            assert!(written.len() < PARKED_OCTETS_MOST + 60_000 + 200, "{}", written.len());
            after.unpark(HOME, postcard::from_bytes(&written).unwrap(), 2);
        }
        assert_eq!((after.packets(), octets(&after)), (50, 50 * 60_000));
        assert_eq!(keep(&mut after, &patient, b"z"), WAITS, "N4 was told");
        assert_eq!(taken(&mut after), (0..50).chain(*b"z").collect::<Vec<_>>());
        assert_eq!((after.packets(), octets(&after)), (0, 0));
    }

    #[test]
    fn frames_go_with_their_bucket_and_keep_their_room() {
        let room = Room::new(6);
        let (mut before, mut after) = (Buffers::new(room.clone()), Buffers::new(room));
        keep(&mut before, &WAITING, b"a");
        before.told(HOME, &WAITING);
        keep(&mut before, &WAITING, b"b");
        let other = Waiting { up_seid: 2, ..WAITING };
        before.keep(HOME + 1, &other, PortId::N6, &PacketRef::from_slice(b"x"));
        after.arrive(HOME, before.leave(HOME));
        assert_eq!((before.packets(), after.packets(), octets(&after)), (1, 2, 3));
        assert_eq!(before.leave(HOME).packets, 0, "it has left");
        assert_eq!(keep(&mut after, &WAITING, b"c"), WAITS, "N4 was told");
        assert_eq!(keep(&mut before, &other, b"xyz"), FULL_AND_NEWS, "the room is that of all");
        assert_eq!((taken(&mut after), octets(&after)), (b"abc".to_vec(), 1));
    }

    #[test]
    fn a_session_and_all_sessions_have_their_bounds() {
        let mut buffers = buffers(100);
        for kept in [IS_NEWS, IS_NEWS, IS_NEWS, FULL_AND_NEWS] {
            assert_eq!(keep(&mut buffers, &WAITING, &[0; 20]), kept);
        }
        let other = Waiting { up_seid: 2, ..WAITING };
        assert_eq!(keep(&mut buffers, &other, &[0; 41]), FULL_AND_NEWS);
        assert_eq!(keep(&mut buffers, &other, &[0; 40]), IS_NEWS);
        assert_eq!(buffers.take(HOME, 1).len(), 3);
        assert_eq!(keep(&mut buffers, &other, &[0; 10]), IS_NEWS);
        assert_eq!((buffers.take(HOME, 2).len(), octets(&buffers)), (2, 0));
        assert!(buffers.shelves[usize::from(HOME)].queues.is_empty());
    }

    #[test]
    fn no_session_has_more_than_it_leaves_others() {
        let room = Room::new(100);
        let (mut buffers, mut after) = (Buffers::new(room.clone()), Buffers::new(room));
        for kept in [IS_NEWS, IS_NEWS, FULL_AND_NEWS] {
            assert_eq!(keep(&mut buffers, &WAITING, &[0; 25]), kept);
        }
        let other = Waiting { up_seid: 2, ..WAITING };
        assert_eq!(keep(&mut buffers, &other, &[0; 40]), IS_NEWS);
        // Wherever it goes.
        after.arrive(HOME, buffers.leave(HOME));
        assert_eq!(keep(&mut after, &WAITING, b"a"), FULL_AND_NEWS);
        let mut heir = Buffers::new(Room::new(100));
        after.park().into_iter().for_each(|parked| heir.unpark(HOME, parked, 2));
        assert_eq!(keep(&mut heir, &WAITING, b"a"), FULL_AND_NEWS);
        assert_eq!(keep(&mut heir, &Waiting { up_seid: 3, ..WAITING }, b"a"), IS_NEWS);
        assert_eq!((heir.take(HOME, 1).len(), heir.take(HOME, 2).len(), octets(&heir)), (2, 1, 1));
    }

    #[test]
    fn a_pdr_is_news_once_whether_or_not_there_is_room() {
        let mut buffers = buffers(0);
        assert_eq!(keep(&mut buffers, &WAITING, b"a"), FULL_AND_NEWS);
        buffers.told(HOME, &WAITING);
        assert_eq!(keep(&mut buffers, &WAITING, b"b"), FULL);
        assert_eq!(keep(&mut buffers, &Waiting { pdr: 3, ..WAITING }, b"c"), FULL_AND_NEWS);
        assert_eq!(keep(&mut buffers, &Waiting { pdr: 4, notify: false, ..WAITING }, b"d"), FULL);
    }
}
