//! Packets that wait for their UE to be paged (TS 23.501, 5.8.3): in order, so many of a session, so many octets in all, for so
//! long.
//!
//! Which packets have waited long enough is looked at now and then, and not packet by packet.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hashbrown::HashMap;
use pfcp::rule::BufferingDuration;
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
    /// For how long they wait, if the session manager says so.
    pub duration: BufferingDuration,
}

/// What became of a packet that was to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// It waits. There is no room otherwise.
    pub waits: bool,
    /// N4 is to be told of its PDR, and has not been: whether or not there is room, the UE is to be paged.
    pub is_news: bool,
}

/// How many octets may wait at all workers together, and for how long. Clones are the same.
#[derive(Clone, Debug)]
pub struct Room(Arc<RoomShared>);

#[derive(Debug)]
struct RoomShared {
    max_octets: usize,
    max_age_ns: u64,
    octets: AtomicUsize,
}

/// How long a packet waits at most, where nobody says so.
pub const MAX_AGE: Duration = Duration::from_secs(60);
/// Between two looks for packets that have waited long enough.
const LOOK_AGAIN_NS: u64 = 100_000_000;
/// Later than any packet has waited long enough.
const NEVER: u64 = u64::MAX;

/// A packet that waits.
#[derive(Debug)]
pub struct Frame {
    /// The port that it came from.
    pub port: PortId,
    /// The whole frame.
    pub octets: Box<[u8]>,
    /// When it has waited long enough.
    until_ns: u64,
}

/// The waiting packets of a worker's sessions.
#[derive(Debug)]
pub struct Buffers {
    /// By the sessions' home buckets.
    shelves: Box<[Shelf; BUCKETS]>,
    room: Room,
    packets: usize,
    /// Before that no packet has waited long enough.
    due_ns: u64,
}

/// The waiting packets of a bucket's sessions. They keep their room wherever they are.
#[derive(Debug, Default)]
pub struct Shelf {
    /// By the UPF's SEID.
    queues: HashMap<u64, Queue>,
    packets: usize,
    /// When the first packet of each queue has waited long enough, with the UPF's SEID.
    due: BTreeSet<(u64, u64)>,
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
    frames: VecDeque<Frame>,
    /// Of all frames.
    octets: usize,
    /// PDRs that N4 was told of.
    told: Vec<u16>,
}

impl Parked {
    fn all(up_seid: u64, queue: Queue) -> Vec<Self> {
        let of = |told| Self { up_seid, frames: vec![], octets: vec![], told };
        let (mut all, mut last) = (vec![], of(queue.told));
        for Frame { port, octets, .. } in queue.frames {
            if last.octets.len() >= PARKED_OCTETS_MOST {
                all.push(std::mem::replace(&mut last, of(vec![])));
            }
            last.frames.push((port.number() as u8, octets.len() as u32));
            last.octets.extend_from_slice(&octets);
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
    /// Room for `max_octets` octets of frames, each for [`MAX_AGE`] at most.
    pub fn new(max_octets: usize) -> Self {
        Self::for_at_most(max_octets, MAX_AGE)
    }

    /// Room for `max_octets` octets of frames, each for so long at most.
    pub fn for_at_most(max_octets: usize, age: Duration) -> Self {
        let max_age_ns = age.as_nanos() as u64;
        Self(Arc::new(RoomShared { max_octets, max_age_ns, octets: AtomicUsize::new(0) }))
    }

    /// When a packet that waits from now on has waited long enough.
    fn until_ns(&self, duration: BufferingDuration, now_ns: u64) -> u64 {
        let said_ns = duration.time().map(|time| u64::try_from(time.as_nanos()).unwrap_or(NEVER));
        now_ns.saturating_add(said_ns.unwrap_or(self.0.max_age_ns))
    }

    /// For a session that has `own` octets waiting and is to have so many more. None has more than is left for others.
    fn take(&self, own: usize, octets: usize) -> bool {
        let RoomShared { max_octets, octets: taken, .. } = &*self.0;
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
        let shelves = Box::new(std::array::from_fn(|_| Shelf::default()));
        Self { shelves, room, packets: 0, due_ns: NEVER }
    }

    /// Has the frame wait from `now_ns` on, which came from `port`, for a session with this home bucket.
    pub fn keep(&mut self, home: Bucket, waiting: &Waiting, port: PortId, frame: &PacketRef<'_>, now_ns: u64) -> Kept {
        let len = frame.len();
        let shelf = &mut self.shelves[usize::from(home) % BUCKETS];
        let queue = shelf.queues.entry(waiting.up_seid).or_default();
        let waits = queue.frames.len() < waiting.max_packets.into() && self.room.take(queue.octets, len);
        let is_news = waiting.notify && !queue.told.contains(&waiting.pdr);
        if waits {
            let mut octets = vec![0; len].into_boxed_slice();
            frame.copy_to(&mut octets);
            let until_ns = self.room.until_ns(waiting.duration, now_ns);
            shelf.add(waiting.up_seid, Frame { port, octets, until_ns });
            self.packets += 1;
            self.due_ns = self.due_ns.min(until_ns);
        }
        Kept { waits, is_news }
    }

    /// Takes out packets that have waited long enough, the oldest of each session first: `most` at most, and the others at the
    /// next calls.
    pub fn expire(&mut self, now_ns: u64, most: usize) -> Vec<Frame> {
        let mut expired = vec![];
        if now_ns < self.due_ns {
            return expired;
        }
        for shelf in self.shelves.iter_mut().filter(|shelf| shelf.packets > 0) {
            let left = most - expired.len();
            expired.extend(std::iter::from_fn(|| shelf.expire(now_ns)).take(left));
        }
        self.packets -= expired.len();
        self.room.give_back(expired.iter().map(|frame| frame.octets.len()).sum());
        let next_ns = self.shelves.iter().filter_map(Shelf::due_ns).min();
        self.due_ns = match next_ns {
            Some(next_ns) if expired.len() < most => next_ns.max(now_ns + LOOK_AGAIN_NS),
            next_ns => next_ns.unwrap_or(NEVER),
        };
        expired
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
    pub fn take(&mut self, home: Bucket, up_seid: u64) -> VecDeque<Frame> {
        let shelf = &mut self.shelves[usize::from(home) % BUCKETS];
        let queue = shelf.queues.remove(&up_seid).unwrap_or_default();
        if let Some(first) = queue.frames.front() {
            shelf.due.remove(&(first.until_ns, up_seid));
        }
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
        self.due_ns = self.due_ns.min(shelf.due_ns().unwrap_or(NEVER));
        let own = &mut self.shelves[usize::from(bucket) % BUCKETS];
        own.packets += shelf.packets;
        // Mostly nothing is here before a bucket is.
        for (up_seid, mut queue) in shelf.queues {
            let waiting = own.queues.entry(up_seid).or_default();
            if let Some(first) = queue.frames.front().filter(|_| waiting.frames.is_empty()) {
                own.due.insert((first.until_ns, up_seid));
            }
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
    /// room for them, since they have waited already. Their time begins anew at `now_ns`.
    pub fn unpark(&mut self, home: Bucket, parked: Parked, ports: usize, now_ns: u64) {
        let until_ns = self.room.until_ns(BufferingDuration::default(), now_ns);
        let shelf = &mut self.shelves[usize::from(home) % BUCKETS];
        for (port, frame) in parked.frames().filter(|(port, _)| usize::from(*port) < ports) {
            self.room.0.octets.fetch_add(frame.len(), Relaxed);
            let port = PortId::new(port.into());
            shelf.add(parked.up_seid, Frame { port, octets: frame.into(), until_ns });
            self.packets += 1;
        }
        self.due_ns = self.due_ns.min(until_ns);
        shelf.queues.entry(parked.up_seid).or_default().told.extend(parked.told);
    }
}

impl Shelf {
    /// Has the frame wait behind those of its session.
    fn add(&mut self, up_seid: u64, frame: Frame) {
        let queue = self.queues.entry(up_seid).or_default();
        if queue.frames.is_empty() {
            self.due.insert((frame.until_ns, up_seid));
        }
        queue.octets += frame.octets.len();
        queue.frames.push_back(frame);
        self.packets += 1;
    }

    /// The next packet that has waited long enough: the one whose time was over first.
    fn expire(&mut self, now_ns: u64) -> Option<Frame> {
        let up_seid = self.due.first().filter(|(until_ns, _)| *until_ns <= now_ns)?.1;
        self.due.pop_first();
        let queue = self.queues.get_mut(&up_seid)?;
        let frame = queue.frames.pop_front()?;
        queue.octets -= frame.octets.len();
        if let Some(next) = queue.frames.front() {
            self.due.insert((next.until_ns, up_seid));
        }
        self.packets -= 1;
        Some(frame)
    }

    fn due_ns(&self) -> Option<u64> {
        self.due.first().map(|&(until_ns, _)| until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITING: Waiting =
        Waiting { up_seid: 1, pdr: 2, max_packets: 3, notify: true, duration: BufferingDuration(0) };

    const HOME: Bucket = 77;

    const WAITS: Kept = Kept { waits: true, is_news: false };
    const IS_NEWS: Kept = Kept { waits: true, is_news: true };
    const FULL: Kept = Kept { waits: false, is_news: false };
    const FULL_AND_NEWS: Kept = Kept { waits: false, is_news: true };

    fn buffers(max_octets: usize) -> Buffers {
        Buffers::new(Room::new(max_octets))
    }

    fn keep(buffers: &mut Buffers, waiting: &Waiting, frame: &[u8]) -> Kept {
        keep_at(buffers, waiting, frame, 0)
    }

    fn keep_at(buffers: &mut Buffers, waiting: &Waiting, frame: &[u8], now_ns: u64) -> Kept {
        buffers.keep(HOME, waiting, PortId::N6, &PacketRef::from_slice(frame), now_ns)
    }

    /// Those that have waited long enough, ten at most.
    fn expired(buffers: &mut Buffers, now_ns: u64) -> Vec<u8> {
        buffers.expire(now_ns, 10).iter().map(|frame| frame.octets[0]).collect()
    }

    fn octets(buffers: &Buffers) -> usize {
        buffers.room.0.octets.load(Relaxed)
    }

    fn taken(buffers: &mut Buffers) -> Vec<u8> {
        buffers.take(HOME, 1).iter().map(|frame| frame.octets[0]).collect()
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
        before.park().into_iter().for_each(|parked| after.unpark(HOME, parked, 2, 0));
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
            after.unpark(HOME, postcard::from_bytes(&written).unwrap(), 2, 0);
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
        before.keep(HOME + 1, &other, PortId::N6, &PacketRef::from_slice(b"x"), 0);
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
        after.park().into_iter().for_each(|parked| heir.unpark(HOME, parked, 2, 0));
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

    #[test]
    fn frames_that_have_waited_long_enough_go_in_order_and_leave_their_room() {
        let room = Room::for_at_most(1_000, Duration::from_secs(1));
        let second = 1_000_000_000;
        let mut buffers = Buffers::new(room.clone());
        assert_eq!(buffers.due_ns, NEVER);
        keep_at(&mut buffers, &WAITING, b"a", 0);
        keep_at(&mut buffers, &Waiting { up_seid: 9, ..WAITING }, b"b", second / 4);
        keep_at(&mut buffers, &WAITING, b"c", second / 2);
        assert_eq!((buffers.due_ns, expired(&mut buffers, second - 1)), (second, vec![]));
        assert_eq!(expired(&mut buffers, second), b"a");
        assert_eq!((buffers.packets(), octets(&buffers), buffers.due_ns), (2, 2, second / 4 * 5));
        // What is taken out does not go a second time, and what has moved goes where it is.
        assert_eq!(taken(&mut buffers), b"c");
        keep_at(&mut buffers, &WAITING, b"d", second);
        let mut other = Buffers::new(room);
        other.arrive(HOME, buffers.leave(HOME));
        assert_eq!((expired(&mut buffers, 9 * second), expired(&mut other, 9 * second)), (vec![], b"bd".to_vec()));
        assert_eq!((other.packets(), octets(&other), other.due_ns), (0, 0, NEVER));
        // Of its PDR N4 was not told yet.
        assert_eq!(keep_at(&mut other, &WAITING, b"e", 9 * second), IS_NEWS);
        // Another process has it wait from then on.
        let mut heir = Buffers::new(Room::for_at_most(1_000, Duration::from_secs(1)));
        other.park().into_iter().for_each(|parked| heir.unpark(HOME, parked, 2, 20 * second));
        assert_eq!((expired(&mut heir, 21 * second - 1), expired(&mut heir, 21 * second)), (vec![], b"e".to_vec()));
    }

    #[test]
    fn a_session_manager_says_for_how_long_frames_wait() {
        let mut buffers = Buffers::new(Room::for_at_most(1_000, Duration::from_nanos(7)));
        let sessions = [(1, 0, b"a"), (2, 0x01, b"b"), (3, 0xff, b"c")];
        for (up_seid, octet, frame) in sessions {
            let waiting = Waiting { up_seid, duration: BufferingDuration(octet), ..WAITING };
            keep_at(&mut buffers, &waiting, frame, 1);
        }
        assert_eq!(expired(&mut buffers, 8), b"a");
        assert_eq!(
            (expired(&mut buffers, 2_000_000_000), expired(&mut buffers, 2_000_000_001)),
            (vec![], b"b".to_vec())
        );
        assert_eq!((expired(&mut buffers, u64::MAX - 1), buffers.packets()), (vec![], 1));
    }

    #[test]
    fn where_many_have_waited_long_enough_some_go_at_a_time() {
        let patient = Waiting { max_packets: 100, ..WAITING };
        let mut buffers = Buffers::new(Room::for_at_most(1_000, Duration::from_nanos(5)));
        (0..25).for_each(|number| _ = keep_at(&mut buffers, &patient, &[number], number.into()));
        assert_eq!(expired(&mut buffers, 100), (0..10).collect::<Vec<_>>());
        assert_eq!(buffers.due_ns, 15, "there are more");
        assert_eq!(expired(&mut buffers, 100), (10..20).collect::<Vec<_>>());
        assert_eq!(expired(&mut buffers, 100), (20..25).collect::<Vec<_>>());
        assert_eq!((octets(&buffers), buffers.due_ns), (0, NEVER));
    }
}
