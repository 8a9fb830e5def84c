//! The dispatcher: receives, finds the bucket of each packet as senders do where ports are steered, and hands it on.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use port::owner::{Buckets, Owner};
use port::relay::RelayTx;
use port::steering::BucketTable;
use port::{Burst, Held, Leave, PacketRef, RxQueue, Sleep, Steering, Waiter};

use super::Chart;
use super::tenure::Tenure;
use crate::bell::Bell;
use crate::board::Board;
use crate::clock::Clock;
use crate::side::PortKind;
use crate::tables::BUCKETS;

/// How long it polls for more before it sleeps, at most.
const SPIN: Duration = Duration::from_micros(50);
/// How often it looks for room in a full ring before it lets others have its core: a worker makes room within microseconds.
const SPINS: u32 = 2_000;
/// Every how many rounds it rings bells while there is more to do: to see who sleeps it waits until its stores have reached the cache, which
/// takes long where lines come from another core.
const RING_EVERY: u32 = 4;
/// Every how many rounds it looks at queues where nothing is expected.
const LOOK_EVERY: u32 = 64;

/// Where one port's packets come in.
pub(crate) struct Intake {
    /// How they are spread over buckets.
    steering: Steering,
    queues: Vec<Box<dyn RxQueue>>,
    /// Whether all come by the first queue, once senders know of it.
    is_steered: bool,
    /// Of the first queue.
    tenure: Tenure,
}

/// The dispatcher.
pub struct Dispatcher {
    intakes: Vec<Intake>,
    exits: Exits,
    /// Of the steered ports' queues: for as long as packets are on their way to others than the first.
    owners: Vec<Owner<()>>,
    bell: Arc<Bell>,
    waiter: Waiter,
    clock: Clock,
    rounds: u32,
    idle_since_ns: Option<u64>,
}

/// The ways to the workers.
struct Exits {
    /// By port, then by worker.
    rings: Vec<Vec<RelayTx>>,
    bells: Vec<Arc<Bell>>,
    chart: Chart,
    epoch: u64,
    table: BucketTable,
    /// The worker that has all buckets, if one has: nobody has to look at packets to find theirs.
    sole: Option<usize>,
    /// The workers, a bit each, that were given packets since their bells were rung.
    unrung: u128,
    /// Until when it waits for room, while it works off what is left.
    until: Option<Instant>,
    /// What there was no room for when it was to stop, in order: worker, port, frame.
    left: Vec<(usize, usize, Vec<u8>)>,
    /// The dispatcher's: packets are counted there by their buckets, where these have to be found.
    board: Board,
}

/// The queues of steered ports have no state.
struct Stateless;

impl Buckets for Stateless {
    type State = ();
    fn leave(&mut self, _bucket: u8, _to: usize) {}
    fn arrive(&mut self, _bucket: u8, _from: usize, (): ()) {}
}

impl Intake {
    /// Of a port of this kind: its packets' buckets are those of TEIDs, or of UE addresses.
    pub(crate) fn new(kind: PortKind, queues: Vec<Box<dyn RxQueue>>, is_steered: bool) -> Self {
        let tenure = Tenure::new(queues.len());
        Self { steering: kind.steering(), queues, is_steered, tenure }
    }
}

impl Dispatcher {
    /// Between these ports, by their numbers, and workers: for each its rings, by the ports' numbers, and its bell.
    pub(crate) fn new(
        intakes: Vec<Intake>,
        owners: Vec<Owner<()>>,
        ways: Vec<(Vec<RelayTx>, Arc<Bell>)>,
        chart: Chart,
        clock: Clock,
    ) -> io::Result<Self> {
        let mut rings: Vec<Vec<RelayTx>> = intakes.iter().map(|_| vec![]).collect();
        let mut bells = vec![];
        for (ways, bell) in ways {
            rings.iter_mut().zip(ways).for_each(|(rings, ring)| rings.push(ring));
            bells.push(bell);
        }
        let table = chart.table();
        let exits = Exits {
            rings,
            bells,
            epoch: 0,
            sole: sole(&table),
            table,
            chart,
            unrung: 0,
            until: None,
            left: vec![],
            board: Board::new(0),
        };
        let (bell, waiter) = (Arc::new(Bell::new()?), Waiter::new(Sleep::After(SPIN)));
        Ok(Self { intakes, exits, owners, bell, waiter, clock, rounds: 0, idle_since_ns: None })
    }

    /// The bell that wakes it.
    pub fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// What it shows of itself.
    pub fn board(&self) -> Board {
        self.exits.board.clone()
    }

    /// Works until `stop` is set and the bell rung.
    ///
    /// # Errors
    /// The system refuses.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if self.run_once(stop) {
                self.idle_since_ns = None;
                self.waiter.worked();
            } else {
                self.rest(stop)?;
            }
        }
        self.exits.ring();
        Ok(())
    }

    /// One round: a burst from each port. False if there was nothing. Where a worker's ring is full it waits for room, until
    /// `stop` is set: [`Dispatcher::work_off`] goes on with what is left then.
    pub fn run_once(&mut self, stop: &AtomicBool) -> bool {
        self.exits.look_at_chart();
        if !self.owners.is_empty() {
            self.settle();
        }
        self.rounds = self.rounds.wrapping_add(1);
        let looks_everywhere = !self.owners.is_empty() || self.rounds.is_multiple_of(LOOK_EVERY);
        let mut worked = self.pass(looks_everywhere, stop);
        if !worked && !looks_everywhere {
            worked = self.pass(true, stop);
        }
        if !worked {
            self.exits.ring();
        }
        worked
    }

    fn pass(&mut self, looks_everywhere: bool, stop: &AtomicBool) -> bool {
        let mut worked = false;
        for (port, Intake { steering, queues, is_steered, tenure }) in self.intakes.iter_mut().enumerate() {
            let count = if *is_steered && !looks_everywhere { 1 } else { queues.len() };
            for (at, queue) in queues[..count].iter_mut().enumerate() {
                let spread_by = self.exits.sole.map_or(*steering, |_| Steering::None);
                let held = (at == 0).then(|| queue.recv_held(spread_by)).flatten();
                if at == 0 && port == 0 && self.rounds.is_multiple_of(RING_EVERY) {
                    self.exits.ring();
                }
                let came = match held {
                    Some(held) => {
                        let came = !held.is_empty();
                        if came {
                            self.exits.refer(port, *steering, &held, stop);
                            tenure.received(held.end());
                        }
                        came
                    }
                    None => {
                        let burst = queue.recv();
                        if !burst.is_empty() {
                            self.exits.hand_on(port, *steering, &burst, stop);
                        }
                        !burst.is_empty()
                    }
                };
                if at == 0 {
                    tenure.look(&mut **queue, &mut self.exits.rings[port]);
                }
                worked |= came;
            }
        }
        worked
    }

    /// Has all packets come by the ports' first queues: a change of their tables as any other.
    #[cold]
    fn settle(&mut self) {
        let all = self.owners.iter_mut();
        let pending = all.fold(false, |pending, owner| owner.settle(&mut Stateless) | pending);
        if !pending && (0..BUCKETS as u8).all(|bucket| self.owners[0].owns(bucket)) {
            self.owners.clear();
        }
    }

    /// Nothing to do: polls on for a while, then sleeps until there is.
    fn rest(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let idle_since_ns = self.idle_since_ns.unwrap_or_else(|| self.clock.now_ns());
        self.exits.board.pauses(idle_since_ns);
        self.bell.doze();
        let is_holding = self.intakes.iter().any(|intake| intake.tenure.is_holding());
        let nothing_left = !self.exits.is_behind() && self.owners.is_empty() && !is_holding;
        if nothing_left && !stop.load(Ordering::Relaxed) {
            let queues = self.intakes.iter_mut().flat_map(|intake| &mut intake.queues);
            let mut queues: Vec<&mut dyn RxQueue> = queues.map(|queue| &mut **queue as _).collect();
            let woken = self.waiter.wait(&mut queues, &[self.bell.as_fd()], None)?;
            if !woken.extra.is_empty() {
                self.bell.silence();
            }
        } else {
            std::thread::yield_now();
        }
        self.bell.wake();
        let now_ns = self.clock.now_ns();
        self.exits.board.paused(now_ns);
        self.idle_since_ns = Some(now_ns);
        Ok(())
    }

    /// Works until nothing is left in ports that another process has taken over.
    pub fn work_off(&mut self) {
        let (mut leave, never) = (Leave::begin(), AtomicBool::new(false));
        // A worker may have left.
        self.exits.until = Some(leave.deadline());
        for (worker, port, frame) in std::mem::take(&mut self.exits.left) {
            self.exits.push_patiently(port, worker, &PacketRef::from_slice(&frame), &never);
        }
        loop {
            let found = self.run_once(&never);
            let queues = self.intakes.iter().flat_map(|intake| &intake.queues);
            if leave.is_done_or_pauses(found, queues.map(|queue| queue.as_ref() as &dyn RxQueue)) {
                break;
            }
        }
        self.exits.ring();
    }
}

impl Exits {
    fn is_behind(&self) -> bool {
        self.chart.epoch() != self.epoch
    }

    /// Uses a new chart from here on, and says so in every ring.
    #[inline]
    fn look_at_chart(&mut self) {
        if self.is_behind() {
            self.begin_epoch();
        }
    }

    #[cold]
    fn begin_epoch(&mut self) {
        self.epoch = self.chart.epoch();
        self.table = self.chart.table();
        self.sole = sole(&self.table);
        self.rings.iter_mut().flatten().for_each(|ring| ring.mark(self.epoch));
        self.bells.iter().for_each(|bell| bell.ring());
    }

    /// Tells the workers that own the buckets of a burst's packets where these lie.
    #[inline]
    fn refer(&mut self, port: usize, steering: Steering, held: &Held<'_>, stop: &AtomicBool) {
        if let Some(worker) = self.sole.filter(|_| self.left.is_empty()) {
            let done = self.rings[port][worker].send_held(held);
            self.unrung |= 1 << worker;
            return (done..held.len()).for_each(|at| self.push_patiently(port, worker, &held.get(at), stop));
        }
        for (worker, share) in held.shares(steering, &self.table, self.board.packets()) {
            self.unrung |= 1 << worker;
            let left = if self.left.is_empty() { self.rings[port][worker].send_share(held, share) } else { share };
            bits(left.into()).for_each(|at| self.push_patiently(port, worker, &held.get(at), stop));
        }
    }

    /// Lets workers, as many as there are bits, see what they were given of a port.
    #[inline]
    fn publish(&mut self, port: usize, workers: u128) {
        self.unrung |= workers;
        bits(workers).for_each(|worker| self.rings[port][worker].publish());
    }

    /// Rings the bells of workers that were given packets since. A bell waits until its ringer's stores have reached the cache: after a
    /// receive, what was published before that has mostly done so.
    #[inline]
    fn ring(&mut self) {
        bits(std::mem::take(&mut self.unrung)).for_each(|worker| self.bells[worker].ring());
    }

    /// Hands a burst of a port to the workers that own its packets' buckets.
    #[inline]
    fn hand_on(&mut self, port: usize, steering: Steering, burst: &Burst<'_>, stop: &AtomicBool) {
        if let Some(worker) = self.sole.filter(|_| self.left.is_empty()) {
            let done = burst.send_views(0, |packets| self.rings[port][worker].send(packets));
            self.unrung |= 1 << worker;
            return (done..burst.len()).for_each(|at| self.push_patiently(port, worker, &burst.get(at), stop));
        }
        let mut touched = 0_u128;
        for at in 0..burst.len() {
            let packet = burst.get(at);
            let bucket = steering.bucket(packet.head);
            self.board.packets().count(bucket);
            let owner = self.table.queue(bucket);
            touched |= 1 << owner;
            if !self.left.is_empty() || !self.rings[port][owner].push(&packet) {
                self.push_patiently(port, owner, &packet, stop);
            }
        }
        self.publish(port, touched);
    }

    /// Waits for room in a worker's ring: what a port has brought is not dropped. Where it is to stop, the packet is left.
    #[cold]
    fn push_patiently(&mut self, port: usize, worker: usize, packet: &PacketRef<'_>, stop: &AtomicBool) {
        self.ring();
        let (ring, bell) = (&mut self.rings[port][worker], &self.bells[worker]);
        ring.publish();
        bell.ring();
        let mut looks = 0_u32;
        while !self.left.is_empty() || !ring.push(packet) {
            let is_late = || looks >= SPINS && self.until.is_some_and(|until| Instant::now() >= until);
            if stop.load(Ordering::Relaxed) || is_late() {
                return self.left.push((worker, port, copy(packet)));
            }
            looks += 1;
            if looks < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        ring.publish();
        bell.ring();
    }
}

/// The worker that has all buckets, if one has.
fn sole(table: &BucketTable) -> Option<usize> {
    let owners = table.owners();
    owners.iter().all(|owner| *owner == owners[0]).then_some(usize::from(owners[0]))
}

/// The numbers of the bits that are set.
#[inline(always)]
fn bits(mut set: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (bit < u128::BITS).then_some(bit as usize)
    })
}

#[cold]
fn copy(packet: &PacketRef<'_>) -> Vec<u8> {
    let mut frame = vec![0; packet.len()];
    packet.copy_to(&mut frame);
    frame
}
