//! A worker: it owns the state of the sessions whose buckets are its own, takes bursts from its queues (those of every port, or
//! a dispatcher's rings), has the packet function decide, carries the verdicts out, and sends by its own queue of each port.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use port::owner::Owner;
use port::relay::{Ford, Outflow};
use port::{
    BURST_MAX, Burst, FRAME_MAX, HEAD_MAX, PacketMut, PacketRef, QueuePair, Rest, RxQueue, Sleep, Slot, TxQueue, Waiter,
};

use crate::alarms::Alarms;
use crate::bell::Bell;
use crate::board::Board;
use crate::buffers::{Buffers, Room};
use crate::clock::Clock;
use crate::drops::{DropBoard, DropReason, Drops};
use crate::elastic::{FILL_WEIGHT, Timed};
use crate::limiter::{Limiter, Shares};
use crate::mail::{Inbox, Letter, Outbox};
use crate::nat::Nat;
use crate::nat::held::Held;
use crate::nat::translation::Translation;
use crate::packet::{
    Class, ETHERNET_LEN, Forward, Punt, UDP6_CHECKSUM, classify, classify_all, decide_usual, is_of_neighbours, uncount,
};
use crate::path::Path;
use crate::side::{PortId, PortKind};
use crate::state::State;
use crate::tables::{BUCKETS, Reader, Version};
use crate::trace::Tracer;

mod copies;
mod leaving;
mod letters;
mod moving;
mod nat;
mod news;
mod rare;
mod resting;
mod too_long;
mod trailing;

use moving::{AWAITED, Moving, Outflows};
use trailing::Trailing;

pub use leaving::Dryness;
pub use moving::{Assembly, Luggage};

/// Rounds between two publications of the counters while there is work; a multiple of [`TIME_EVERY`].
const PUBLISH_EVERY: u32 = 1_024;
/// One round in so many is timed.
const TIME_EVERY: u32 = 64;
const _: () = assert!(PUBLISH_EVERY.is_multiple_of(TIME_EVERY));
/// How long a worker polls for more before it sleeps, at most.
const SPIN: Duration = Duration::from_micros(50);

/// The worker.
pub struct Worker {
    reader: Reader,
    /// By the numbers of their ports.
    rx: Vec<Box<dyn RxQueue>>,
    tx: Vec<Box<dyn TxQueue>>,
    /// From the other workers and from the slow path.
    inboxes: Vec<Inbox>,
    hands: Hands,
    bell: Arc<Bell>,
    waiter: Waiter,
    rounds: u32,
    /// Polls that found packets, that found a whole burst, and packets in a poll by the burst size, averaged.
    polls: u64,
    full_polls: u64,
    fill: f32,
    /// Rounds that found packets, and the packets in them.
    busy_rounds: u64,
    packets: u64,
    timed: Timed,
    board: Board,
    /// Wakes whoever looks at workers' loads.
    watch: Option<Arc<Bell>>,
    /// Since when there is nothing to do, if that is so.
    idle_since_ns: Option<u64>,
    /// Its part in moves of buckets, where buckets move.
    owner: Option<Owner<Luggage>>,
    /// Whether it has a part in a move that is not done.
    is_unsettled: bool,
}

/// How a worker reaches the other threads, and they it.
pub struct Links {
    /// From the other workers and from the slow path.
    pub inboxes: Vec<Inbox>,
    /// To the workers by their index. What a worker leaves for itself it does in its next round.
    pub workers: Vec<Option<Outbox>>,
    /// To the slow path.
    pub slow_path: Outbox,
    /// To N4.
    pub alarms: Alarms,
    /// To whoever watches a UE.
    pub tracer: Tracer,
    /// All workers.
    pub assembly: Arc<Assembly>,
}

/// How workers treat packets.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Where frames may wait for their UEs, at all workers.
    pub room: Room,
    /// Leave the UDP checksum of outer IPv6 headers zero.
    pub ipv6_zero_checksum: bool,
    /// What time it is.
    pub clock: Clock,
}

/// What carries verdicts out.
struct Hands {
    index: u8,
    /// To which worker packets of which bucket go: the owner, or [`AWAITED`].
    owners: [u8; BUCKETS],
    moving: Moving,
    /// What tells how far it has come with what a dispatcher has sent, if there is one.
    fords: Vec<Ford>,
    /// What tells how far a sender is, if there is one.
    outflows: Outflows,
    /// Room for a packet from the dispatcher.
    gathered: Vec<u8>,
    /// Counts packets by their sessions' buckets, where buckets move.
    counts: Option<Board>,
    /// Whether the ports count packets by the buckets that they are steered by.
    is_steered: bool,
    /// Whether there may be no room for a burst in the ring to some worker.
    is_crowded: bool,
    /// What the ports are for.
    kinds: Vec<PortKind>,
    state: State,
    nat: Nat,
    /// While a packet is treated that came in translated: what makes it again what came.
    before: Option<Translation>,
    /// Fragments that are to be translated as their first one is.
    held: Held,
    drops: Drops,
    tracer: Tracer,
    workers: Vec<Option<Outbox>>,
    slow_path: Outbox,
    /// Messages that packets without a tunnel may cause.
    complaints: Limiter,
    /// Pings, and what else is for the UPF itself; but for GTP-U and what finds neighbours.
    visits: Limiter,
    /// Packets that may wait for a neighbour to be resolved, by the home buckets of their sessions.
    unresolved: Shares,
    /// Messages to senders of packets that are too long.
    too_long: Limiter,
    ipv6_zero_checksum: bool,
    clock: Clock,
    /// What leaves behind the burst at hand.
    trailing: Trailing,
    /// For packets from other workers.
    slot: Slot,
    /// Room for the part of a packet that is not at hand, to sum it up.
    scratch: Box<[u8; FRAME_MAX]>,
}

/// Where a packet goes, and what it was counted as.
#[derive(Clone, Copy)]
struct Fate {
    port: PortId,
    /// Octets of the user's packet.
    octets: u16,
    /// As in [`Forward`].
    counted: u32,
}

impl Fate {
    /// The packet was not sent, and so does not count.
    #[cold]
    fn uncount(&self, tables: &Version) {
        uncount(tables, self.counted, self.octets);
    }
}

/// The sending halves of all ports, by their numbers.
type Exits = [Box<dyn TxQueue>];

impl Worker {
    /// A worker between N3 and one data network, see [`Worker::over`].
    pub fn new(reader: Reader, n3: QueuePair, n6: QueuePair, links: Links, habits: Habits) -> Self {
        Self::over(reader, vec![n3, n6], links, habits)
    }

    /// A worker with a queue pair of each port, by their numbers. It begins to see the tables at its first round.
    pub fn over(reader: Reader, queues: Vec<QueuePair>, links: Links, habits: Habits) -> Self {
        let workers = reader.workers();
        let owners = std::array::from_fn(|bucket| (bucket % workers) as u8);
        let index = reader.index() as u8;
        let hands = Hands {
            index,
            owners,
            moving: Moving::new(index, &owners, links.assembly),
            fords: vec![],
            outflows: Outflows::default(),
            gathered: Vec::with_capacity(FRAME_MAX),
            counts: None,
            is_steered: false,
            is_crowded: false,
            kinds: reader.sides().iter().map(|(_, side)| side.kind).collect(),
            state: State { buffers: Buffers::new(habits.room), alarms: links.alarms },
            nat: Nat::none(),
            before: None,
            held: Held::default(),
            drops: Drops::default(),
            tracer: links.tracer,
            workers: links.workers,
            slow_path: links.slow_path,
            complaints: Limiter::new(100, 32),
            visits: Limiter::new(1_000, 64),
            unresolved: Shares::new(1_000, 256),
            too_long: Limiter::new(1_000, 64),
            ipv6_zero_checksum: habits.ipv6_zero_checksum,
            clock: habits.clock,
            trailing: Trailing::new(),
            slot: Slot::new(),
            scratch: Box::new([0; FRAME_MAX]),
        };
        let bell = reader.bell(reader.index());
        let waiter = Waiter::new(Sleep::After(SPIN));
        let (rx, tx): (Vec<_>, Vec<_>) = queues.into_iter().map(|pair| (pair.rx, pair.tx)).unzip();
        let board = Board::new(rx.len());
        Self {
            reader,
            rx,
            tx,
            inboxes: links.inboxes,
            hands,
            bell,
            waiter,
            rounds: 0,
            polls: 0,
            full_polls: 0,
            fill: 0.0,
            busy_rounds: 0,
            packets: 0,
            timed: Timed::default(),
            board,
            watch: None,
            idle_since_ns: None,
            owner: None,
            is_unsettled: false,
        }
    }

    /// The same with a part in moves of buckets, as the owner of those that it has at first.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner<Luggage>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// The same with queues that are a dispatcher's rings, and what tells how far they are read.
    #[must_use]
    pub fn with_fords(mut self, fords: Vec<Ford>) -> Self {
        self.hands.fords = fords;
        self
    }

    /// The same with ports that a sender sends by, and what tells how far it is.
    #[must_use]
    pub fn with_outflows(mut self, outflows: Vec<Outflow>) -> Self {
        self.hands.outflows = Outflows::new(outflows);
        self
    }

    /// The same, watched: `watch` is rung when it has something to do again. Packets are counted by their sessions' buckets where
    /// nobody has found these before: not ports that are steered, `is_steered`, nor a dispatcher.
    #[must_use]
    pub fn with_watch(mut self, watch: Arc<Bell>, is_steered: bool) -> Self {
        self.watch = Some(watch);
        self.hands.is_steered = is_steered;
        self.hands.counts = Some(self.board.clone());
        self
    }

    /// The same with what it is to translate.
    #[must_use]
    pub fn with_nat(mut self, nat: Nat) -> Self {
        self.hands.nat = nat;
        self
    }

    /// What this worker has dropped.
    pub fn drops(&self) -> DropBoard {
        self.hands.drops.board()
    }

    /// What this worker shows of itself.
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// The bell that wakes this worker.
    pub fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// Works until `stop` is set and the bell rung.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if self.run_once() {
                if self.idle_since_ns.take().is_some() {
                    self.watch.iter().for_each(|watch| watch.ring());
                }
                self.waiter.worked();
            } else {
                self.rest(stop)?;
            }
        }
        self.publish();
        Ok(())
    }

    /// One round: what other threads left, then a burst from each port. False if there was nothing.
    #[inline]
    pub fn run_once(&mut self) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(TIME_EVERY) { self.timed_round() } else { self.round() }
    }

    #[inline(never)]
    fn timed_round(&mut self) -> bool {
        let (begin_ns, before) = (self.hands.now(), self.packets);
        let worked = self.round();
        let took_ns = self.hands.now().saturating_sub(begin_ns);
        self.timed.add(self.packets - before, took_ns);
        if self.rounds.is_multiple_of(PUBLISH_EVERY) {
            self.publish();
        }
        worked
    }

    #[inline]
    fn round(&mut self) -> bool {
        if self.reader.refresh() {
            self.hear();
        }
        if let Some(owner) = &mut self.owner {
            self.is_unsettled = owner.settle(&mut self.hands);
            // Whatever has come, the news of the version at hand are done before another one is taken.
            if self.hands.moving.is_stirred() {
                self.hands.catch_up(self.reader.version(), &mut self.tx);
            }
            // No packet of a bucket that has come is treated by an older version than its former owner had.
            if self.hands.moving.is_outdated() && self.reader.refresh() {
                self.hear();
            }
        }
        let tables = self.reader.version();
        let exits = &mut *self.tx;
        let (mut worked, before) = (false, self.packets);
        for (from, inbox) in self.inboxes.iter_mut().enumerate() {
            worked |= self.hands.read(tables, from, inbox, exits);
        }
        if self.hands.moving.is_stirred() {
            self.hands.unpack(&self.inboxes[usize::from(self.hands.index)]);
        }
        for (number, queue) in self.rx.iter_mut().enumerate() {
            if self.hands.is_crowded && self.hands.is_still_crowded() {
                break;
            }
            let burst = queue.recv();
            self.fill += FILL_WEIGHT * (burst.len() as f32 / BURST_MAX as f32 - self.fill);
            if burst.is_empty() {
                continue;
            }
            self.packets += burst.len() as u64;
            self.polls += 1;
            self.full_polls += u64::from(burst.len() == BURST_MAX);
            let port = PortId::new(number);
            if self.hands.moving.is_gathering() {
                self.hands.serve_gathering(tables, port, &burst, exits);
            } else {
                self.hands.serve(tables, port, burst, exits);
            }
            worked = true;
        }
        self.busy_rounds += u64::from(self.packets != before);
        worked
    }

    /// Has the news of the version done that was just taken.
    #[cold]
    fn hear(&mut self) {
        self.hands.hear(self.reader.version(), self.reader.serial(), &mut self.tx);
    }

    /// Shows what was counted.
    fn publish(&mut self) {
        self.sweep();
        self.hands.drops.publish();
        let counters = self.rx.iter().zip(&self.tx).map(|(rx, tx)| (rx.counters(), tx.counters()));
        self.board.publish_polls(self.polls, self.full_polls, self.fill);
        self.board.publish_rounds(self.busy_rounds, self.packets, &self.timed);
        self.board.publish(counters, self.hands.state.buffers.packets());
    }

    /// Drops what has waited long enough; forgets bindings of source NAT that are not needed any more, and shows how many there
    /// are.
    fn sweep(&mut self) {
        if self.hands.state.buffers.packets() > 0 {
            self.hands.expire(self.reader.version());
        }
        if self.hands.nat.is_any() {
            self.hands.sweep(self.reader.version());
            self.board.publish_nat(self.hands.nat.in_use());
        }
    }
}

impl Hands {
    /// A burst from a port: finds all sessions, then decides and rewrites packet by packet, then sends.
    #[inline(always)]
    fn serve(&mut self, tables: &Version, from: PortId, burst: Burst<'_>, exits: &mut Exits) {
        match tables.network(from).side.kind.has_tunnels() {
            true => self.serve_from::<true>(tables, from, burst, exits),
            false => self.serve_from::<false>(tables, from, burst, exits),
        }
    }

    /// The same from a network whose packets are in tunnels, or not.
    #[inline(never)]
    fn serve_from<const TUNNELS: bool>(
        &mut self,
        tables: &Version,
        from: PortId,
        mut burst: Burst<'_>,
        exits: &mut Exits,
    ) {
        let now = self.now();
        self.tracer.look();
        let count = burst.len();
        let mut classes = [Class::Drop(DropReason::IpMalformed); BURST_MAX];
        classify_all::<TUNNELS>(tables, tables.network(from), &burst, &mut classes[..count]);
        if let Some(board) = self.counts.as_ref().filter(|_| !self.is_counted_before()) {
            let homes = classes[..count].iter().filter_map(|class| class.home(tables));
            homes.for_each(|home| board.packets().count(home));
        }
        let mut fates = [const { None::<Fate> }; BURST_MAX];
        let (mut left, mut ports) = (0, 0_u32);
        for at in 0..count {
            let mut packet = burst.get_mut(at);
            let owner = self.owner(tables, &classes[at]);
            if owner == self.index {
                fates[at] = self.conclude::<TUNNELS>(tables, from, &classes[at], &mut packet, now);
                if let Some(fate) = &fates[at] {
                    left += 1;
                    ports |= 1 << fate.port.number();
                }
            } else {
                self.pass_on(owner, tables, from, &classes[at], &packet.as_ref());
            }
        }
        while ports != 0 {
            let port = PortId::new(ports.trailing_zeros() as usize);
            let exit = &mut *exits[port.number()];
            let leaving = || fates[..count].iter().zip(&classes).filter(|(fate, _)| leaves_by(fate, port));
            // Nearly always all packets of a burst leave by one port.
            let (leave, sent) = match left == count && ports.is_power_of_two() {
                true => (count, exit.send_burst(&burst, 0)),
                false => send_some(exit, &burst, |at| leaves_by(&fates[at], port)),
            };
            if sent < leave {
                self.drops.add(self.full(port), (leave - sent) as u64);
                for (fate, class) in leaving().skip(sent) {
                    fate.iter().for_each(|fate| fate.uncount(tables));
                    self.trace_refused(tables, from, port, class, now);
                }
            }
            (left, ports) = (left - leave, ports & (ports - 1));
        }
        if !self.trailing.is_empty() {
            self.send_trailing(exits);
        }
        self.slow_path.deliver();
        self.state.alarms.deliver();
        self.workers.iter_mut().flatten().for_each(Outbox::deliver);
    }

    /// Has the packet function decide, and rewrites the packet. Returns where to send it, if anywhere, and what it
    /// was counted as.
    #[inline(always)]
    fn conclude<const TUNNELS: bool>(
        &mut self,
        tables: &Version,
        from: PortId,
        class: &Class,
        packet: &mut PacketMut<'_>,
        now: u64,
    ) -> Option<Fate> {
        if self.tracer.is_on() {
            return self.conclude_watched(tables, from, class, packet, &mut Rest::EMPTY.clone(), now);
        }
        match decide_usual::<TUNNELS>(tables, &mut self.state, class, packet.head(), now) {
            Some(Ok(forward)) => {
                self.rewrite(&forward, packet, &mut Rest::EMPTY.clone());
                Some(fate(&forward))
            }
            Some(Err(rare)) => self.conclude_rarely(tables, from, class, rare, packet, &mut Rest::EMPTY.clone(), now),
            None => self.conclude_any(tables, from, class, packet, &mut Rest::EMPTY.clone(), now),
        }
    }

    /// Takes off and puts on the headers that the verdict says. `behind` follows what `packet` holds.
    #[inline(always)]
    fn rewrite(&mut self, forward: &Forward<'_>, packet: &mut PacketMut<'_>, behind: &mut Rest<'_>) {
        let (strip, keep) = (usize::from(forward.strip), usize::from(forward.keep));
        behind.truncate((strip + keep).saturating_sub(packet.len()));
        // What is stripped was read, and the headroom holds the longest headers even where nothing is.
        if let Some(front) = packet.reshape(strip, keep, forward.prepend.len()) {
            forward.prepend.write(keep, front);
        }
        if !forward.marking.is_none() {
            forward.marking.apply(&mut packet.head_mut()[forward.prepend.len()..]);
        }
        if let Some(path) = forward.prepend.checksummed()
            && !self.ipv6_zero_checksum
        {
            fill_in_checksum(path, packet, *behind, &mut self.scratch);
        }
    }

    /// A packet that was to be sent by a port which does not take it.
    #[cold]
    fn trace_refused(&mut self, tables: &Version, from: PortId, port: PortId, class: &Class, now: u64) {
        if self.tracer.is_on() {
            self.tracer.record_refused(tables, from, class, self.full(port), now);
        }
    }

    /// Whether packets were counted by their buckets when they came: by ports that are steered, or by a dispatcher where it has several
    /// workers to choose from.
    #[inline]
    fn is_counted_before(&self) -> bool {
        self.is_steered || !self.fords.is_empty() && !self.moving.holds_all()
    }

    /// What came for another worker's session: by a route behind a UE, or before senders knew of a move. It is work for the owner of
    /// that session's bucket, too.
    #[cold]
    fn pass_on(&mut self, owner: u8, tables: &Version, from: PortId, class: &Class, packet: &PacketRef<'_>) {
        if let Some((board, home)) = self.counts.as_ref().zip(class.home(tables)).filter(|_| self.is_counted_before()) {
            board.packets().count(home);
        }
        self.hand_over(owner, from, packet);
    }

    #[inline]
    fn owner(&self, tables: &Version, class: &Class) -> u8 {
        class.home(tables).map_or(self.index, |home| self.owners[usize::from(home) % BUCKETS])
    }

    #[cold]
    fn punt(&mut self, from: PortId, punt: Punt, packet: &PacketRef<'_>, now: u64) {
        let dropped = match punt {
            Punt::Host if is_of_neighbours(packet.head) || self.visits.allow(now) => None,
            Punt::Host => return self.drops.count(DropReason::NotAnswered),
            // However many fragments come, there is room for GTP-U's messages; and with these for ARP and neighbour discovery.
            Punt::Fragment if self.slow_path.is_busy() => return self.drops.count(DropReason::FragmentsFull),
            Punt::Gtpu if self.slow_path.is_nearly_full() => return self.drops.count(DropReason::SlowPathFull),
            Punt::Fragment | Punt::Gtpu => None,
            Punt::UnknownTeid => Some(DropReason::UnknownTeid),
            Punt::UnknownExtension => Some(DropReason::GtpuExtension),
        };
        if let Some(reason) = dropped {
            self.drops.count(reason);
            if !self.complaints.allow(now) {
                return;
            }
        }
        self.leave_to_slow_path(Letter::Punt(from, punt), packet);
    }

    fn leave_to_slow_path(&mut self, letter: Letter, packet: &PacketRef<'_>) -> bool {
        let posted = self.slow_path.post(letter, packet);
        if !posted {
            self.drops.count(DropReason::SlowPathFull);
        }
        posted
    }

    /// Sends as many of the packets as the port takes, and returns how many.
    #[inline]
    fn send(&mut self, port: PortId, packets: &[PacketRef<'_>], exits: &mut Exits) -> usize {
        if packets.is_empty() {
            return 0;
        }
        let sent = exits[port.number()].send(packets);
        if sent < packets.len() {
            self.drops.add(self.full(port), (packets.len() - sent) as u64);
        }
        sent
    }

    /// Why a port does not take a packet.
    #[cold]
    fn full(&self, port: PortId) -> DropReason {
        self.kinds[port.number()].full()
    }

    #[inline]
    fn now(&self) -> u64 {
        self.clock.now_ns()
    }
}

fn classify_frame(tables: &Version, from: PortId, frame: &[u8]) -> Class {
    classify(tables, from, &frame[..frame.len().min(HEAD_MAX)], frame.len())
}

/// Sends those packets of a burst that leave. Returns how many these are, and how many the port took.
#[inline(never)]
fn send_some(exit: &mut dyn TxQueue, burst: &Burst<'_>, leaves: impl Fn(usize) -> bool) -> (usize, usize) {
    let mut leaving = [PacketRef { head: &[], rest: Rest::EMPTY }; BURST_MAX];
    let mut leave = 0;
    for at in (0..burst.len()).filter(|at| leaves(*at)) {
        leaving[leave] = burst.get(at);
        leave += 1;
    }
    (leave, exit.send(&leaving[..leave]))
}

#[inline]
fn fate(forward: &Forward<'_>) -> Fate {
    Fate { port: forward.port, octets: forward.keep, counted: forward.counted }
}

#[inline]
fn leaves_by(fate: &Option<Fate>, port: PortId) -> bool {
    fate.as_ref().is_some_and(|fate| fate.port == port)
}

/// Computes the UDP checksum that IPv6 wants. The rest of the packet is summed up from a copy: should a peer rewrite it
/// before it is sent, the peer only spoils its own packet.
#[cold]
fn fill_in_checksum(path: &Path, packet: &mut PacketMut<'_>, behind: Rest<'_>, scratch: &mut [u8; FRAME_MAX]) {
    let whole = whole(packet, behind);
    whole.rest.copy_to(&mut scratch[..]);
    let checksum = path.udp6_checksum(&whole.head[ETHERNET_LEN..], &scratch[..whole.rest.len()]);
    packet.head_mut()[UDP6_CHECKSUM..UDP6_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// A packet with what follows the part that `packet` holds.
#[inline]
fn whole<'p>(packet: &'p PacketMut<'_>, behind: Rest<'p>) -> PacketRef<'p> {
    let own = packet.as_ref();
    if behind.is_empty() { own } else { PacketRef { head: own.head, rest: behind } }
}

const _: () = assert!(
    port::HEADROOM >= ETHERNET_LEN + crate::path::TUNNEL_MAX_LEN,
    "a packet's headroom holds the longest headers"
);
