//! A port with two queues, a peer that sends to it, and two workers who may send on: what a change of the table concerns.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use super::direction::Direction;
use super::thread;
use crate::cell::Cell;
use crate::handover::{Generation, Handover};
use crate::home::Home;
use crate::owner::{Buckets, Decider, Owner, PortSteering, group};
use crate::packet::PacketRef;
use crate::rx::{Ownership, RxRing};
use crate::steering::{BUCKETS, BucketTable, Steering, address_bucket};
#[cfg(loom)]
use crate::sync::{Weak, checked};
use crate::tx::TxRing;

/// Heads are copied in blocks of so many bytes. Shorter frames would show the thread sanitizer what is copied behind them.
const FRAME_BYTES: usize = 64;
/// Room for 56 frames that are not published, and more than any model sends.
const RING_BYTES: usize = 16_384;
const QUEUES: usize = 2;
/// Buckets that move, and get frames. At first queue 0 has bucket 0 and queue 1 has bucket 1.
const MOVING: usize = 2;

/// A burst: how many frames of bucket 0, then of bucket 1.
pub(super) type Frames = [u8; MOVING];
/// Of the buckets that move.
pub(super) type Owners = [usize; MOVING];

/// What a model does not do right, on purpose.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Broken {
    /// Words of this name lose an ordering.
    #[cfg(loom)]
    pub(super) weak: Option<(&'static str, Weak)>,
    pub(super) sender_without_fences: bool,
    pub(super) decider_without_fences: bool,
}

pub(super) struct World {
    pub(super) sender: Sender,
    pub(super) workers: [Worker; QUEUES],
    pub(super) decider: Decider,
    /// As the receiving port sees it.
    pub(super) generation: Arc<Generation>,
}

/// The only queue of the peer.
pub(super) struct Sender {
    tx: TxRing,
    sent: Frames,
}

/// Receives by one queue.
pub(super) struct Worker {
    pub(super) rx: RxRing,
    pub(super) owner: Owner<u8>,
    mine: Mine,
    /// Where it sends what it received.
    onward: Option<TxRing>,
}

struct Mine {
    /// For each bucket that the worker has, the number of its next frame.
    next: [Option<u8>; MOVING],
    /// Buckets that came or went.
    moved: usize,
}

impl World {
    /// Of two workers who keep what they receive.
    pub(super) fn new(broken: Broken) -> Self {
        #[cfg(loom)]
        checked::begin();
        let (world, direction, home) = Self::with_outputs(&[], [None, None]);
        world.share(&direction, &home, broken);
        world
    }

    /// Of two workers who send on to the one queue of another port, which is returned. Shared is only what that queue and
    /// the workers tell each other.
    pub(super) fn with_sink() -> (Self, RxRing) {
        #[cfg(loom)]
        checked::begin();
        let direction = Direction::new(RING_BYTES, QUEUES, 1, Steering::None);
        let mailboxes: Vec<_> = (0..QUEUES).map(|_| Handover::new().unwrap()).collect();
        let fixed = BucketTable::fixed(QUEUES);
        let cells = mailboxes.iter().enumerate().map(|(n, mailbox)| Arc::new(Cell::new(n, &fixed, mailbox.clone())));
        let home = Arc::new(Home::new("n6", cells.collect()));
        home.renew(direction.at_sender(), |_| ());
        let mailbox = Handover::new().unwrap();
        let cell = Arc::new(Cell::new(0, &BucketTable::fixed(1), mailbox.clone()));
        let ownership = Ownership { steering: Steering::None, cell, queue: 0, queues: 1 };
        let mut sink = direction.receiver(ownership, &mailbox, 1);
        assert!(sink.recv().is_empty());
        let onward = core::array::from_fn(|queue| {
            let mut tx = direction.sender(queue);
            assert_eq!(tx.send(&[]), 0);
            Some(tx)
        });
        let (world, ..) = Self::with_outputs(&[PortSteering(home)], onward);
        for queue in 0..QUEUES {
            let Direction { from: (layout, from), to: (sink_layout, to), .. } = &direction;
            Broken::default().share("onward.head", layout.head(&from[queue], 0));
            Broken::default().share("onward.tail", sink_layout.tail(&to[0], queue));
        }
        (world, sink)
    }

    fn with_outputs(outputs: &[PortSteering], onward: [Option<TxRing>; QUEUES]) -> (Self, Direction, Arc<Home>) {
        let direction = Direction::new(RING_BYTES, 1, QUEUES, Steering::UeAddress);
        let mailboxes: Vec<_> = (0..QUEUES).map(|_| Handover::new().unwrap()).collect();
        let fixed = BucketTable::fixed(QUEUES);
        let cells = mailboxes.iter().enumerate().map(|(n, mailbox)| Arc::new(Cell::new(n, &fixed, mailbox.clone())));
        let home = Arc::new(Home::new("n3", cells.collect()));
        let epoch = home.renew(direction.at_receiver(), |epoch| epoch);
        let (decider, owners) = group(&[PortSteering(home.clone())], outputs).unwrap();
        let mut workers = owners.into_iter().zip(onward).map(|(owner, onward)| {
            let (queue, steering) = (owner.queue(), Steering::UeAddress);
            let ownership = Ownership { steering, cell: home.cells[queue].clone(), queue, queues: QUEUES };
            let rx = direction.receiver(ownership, &mailboxes[queue], epoch);
            let mine = Mine { next: core::array::from_fn(|bucket| (bucket == queue).then_some(0)), moved: 0 };
            Worker { rx, owner, mine, onward }
        });
        let workers = core::array::from_fn(|_| workers.next().unwrap());
        let sender = Sender { tx: direction.sender(0), sent: [0; MOVING] };
        let mut world = Self { sender, workers, decider, generation: direction.generation.clone() };
        // All take the direction over, of which the workers were told by a wake-up.
        world.sender.burst([0, 0]);
        for worker in &mut world.workers {
            worker.round();
            assert!(worker.rx.arm());
            worker.rx.disarm();
        }
        (world, direction, home)
    }

    /// By what threads learn from each other.
    #[cfg(loom)]
    fn share(&self, direction: &Direction, home: &Home, broken: Broken) {
        use crate::layout::{table_epoch, table_word};
        let Direction { from: (layout, senders), table, .. } = direction;
        broken.share("burst", layout.burst(&senders[0]));
        broken.share("epoch", layout.epoch(&senders[0]));
        for queue in 0..QUEUES {
            broken.share("head", layout.head(&senders[0], queue));
            broken.share("mark", layout.mark(&senders[0], queue));
        }
        broken.share("table.epoch", table_epoch(table));
        (0..2).for_each(|epoch| broken.share("table", table_word(table, epoch, 0)));
        broken.share("fate", self.generation.word());
        home.cells.iter().flat_map(|cell| cell.words()).for_each(|(name, word)| broken.share(name, word));
        self.decider.words().into_iter().for_each(|(name, word)| broken.share(name, word));
    }

    #[cfg(not(loom))]
    fn share(&self, _: &Direction, _: &Home, _: Broken) {}

    /// What is under way arrives. Then every bucket is where it belongs, and so was every frame.
    pub(super) fn end(mut self, owners: Owners) {
        for _ in 0..4 {
            for worker in &mut self.workers {
                worker.round();
            }
        }
        for worker in &self.workers {
            assert!(worker.has(owners));
            let mine = |bucket| (owners[bucket] == worker.owner.queue()).then_some(self.sender.sent[bucket]);
            assert_eq!(worker.mine.next, core::array::from_fn(mine), "frames of worker {}", worker.owner.queue());
            assert_eq!(worker.rx.counters().invalid, 0, "a frame was dropped");
        }
        assert!(!self.decider.is_open(), "a change does not end");
    }
}

impl Broken {
    #[cfg(loom)]
    fn share(self, name: &'static str, word: &dyn checked::Atom) {
        checked::share(word, self.weak.filter(|(weak, _)| *weak == name).map(|(_, how)| how));
    }

    #[cfg(not(loom))]
    fn share(self, _: &'static str, _: &crate::sync::AtomicU64) {}
}

impl Sender {
    pub(super) fn burst(&mut self, frames: Frames) {
        self.with_frames(frames, |tx, packets| assert_eq!(tx.send(packets), packets.len()));
    }

    /// Is killed within a burst.
    pub(super) fn die(&mut self, frames: Frames) {
        self.with_frames(frames, TxRing::send_and_die);
    }

    fn with_frames(&mut self, frames: Frames, send: impl FnOnce(&mut TxRing, &[PacketRef<'_>])) {
        let before = self.sent;
        (0..MOVING).for_each(|bucket| self.sent[bucket] += frames[bucket]);
        let numbers = |bucket: usize| before[bucket]..self.sent[bucket];
        let frames: Vec<_> = (0..MOVING).flat_map(|bucket| numbers(bucket).map(move |n| frame(bucket, n))).collect();
        let packets: Vec<_> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        send(&mut self.tx, &packets);
    }
}

impl Worker {
    /// Receives, deals with all of it, settles. True while there is more to come.
    pub(super) fn round(&mut self) -> bool {
        let burst = self.rx.recv();
        for i in 0..burst.len() {
            let packet = burst.get(i);
            self.mine.take(packet.head);
            if let Some(onward) = &mut self.onward {
                assert_eq!(onward.send(&[packet]), 1);
            }
        }
        self.owner.settle(&mut self.mine)
    }

    /// Goes on until so many buckets have moved, and all are where they shall be.
    pub(super) fn work(&mut self, owners: Owners, moves: usize) {
        while !self.has(owners) || self.mine.moved < moves {
            self.round();
            thread::yield_now();
        }
    }

    /// Whether it has the buckets that it shall have, and no others.
    pub(super) fn has(&self, owners: Owners) -> bool {
        (0..MOVING).all(|bucket| self.owner.owns(bucket as u8) == (owners[bucket] == self.owner.queue()))
    }
}

impl Mine {
    fn take(&mut self, frame: &[u8]) {
        let next = self.next[usize::from(Steering::UeAddress.bucket(frame))].as_mut();
        let next = next.expect("a frame of a bucket that is another worker's");
        assert_eq!(number(frame), *next, "a frame was lost, came twice, or was overtaken");
        *next += 1;
    }
}

impl Buckets for Mine {
    type State = u8;

    fn leave(&mut self, bucket: u8, _to: usize) -> u8 {
        self.moved += 1;
        self.next[usize::from(bucket)].take().expect("a bucket that is there")
    }

    fn arrive(&mut self, bucket: u8, _from: usize, next: u8) {
        self.moved += 1;
        assert_eq!(self.next[usize::from(bucket)].replace(next), None, "a bucket came twice");
    }
}

/// The table in which the buckets that move have these owners.
pub(super) fn table(owners: Owners) -> [u8; BUCKETS] {
    let fixed = BucketTable::fixed(QUEUES);
    core::array::from_fn(|bucket| owners.get(bucket).copied().unwrap_or(fixed.queue(bucket as u8)) as u8)
}

/// The frame with this number within its bucket.
fn frame(bucket: usize, number: u8) -> [u8; FRAME_BYTES] {
    static ADDRESSES: LazyLock<[[u8; 4]; MOVING]> = LazyLock::new(|| core::array::from_fn(address));
    let mut frame = [0; FRAME_BYTES];
    (frame[12], frame[14]) = (0x08, 0x45);
    frame[26] = number;
    frame[30..34].copy_from_slice(&ADDRESSES[bucket]);
    frame
}

pub(super) fn number(frame: &[u8]) -> u8 {
    frame[26]
}

/// An address whose bucket this is.
fn address(bucket: usize) -> [u8; 4] {
    let in_bucket = |octets: &[u8; 4]| usize::from(address_bucket(IpAddr::V4(Ipv4Addr::from(*octets)))) == bucket;
    (0..=255).map(|host| [10, 0, 0, host]).find(in_bucket).unwrap()
}
