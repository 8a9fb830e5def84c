//! The sender: sends for all workers, by one queue of each port, in a pipeline whose ports have fewer queue pairs than there are workers.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use port::relay::{Outflow, RelayRx, RelayTx, relay};
use port::{PacketRef, RxCounters, RxQueue, Sleep, TxCounters, TxQueue, Waiter};

use crate::bell::Bell;
use crate::board::Board;
use crate::clock::Clock;
use crate::drops::{DropBoard, Drops};
use crate::side::PortKind;

/// How long it polls for more before it sleeps, at most.
const SPIN: Duration = Duration::from_micros(50);
/// Bytes of the ring of a worker to a port.
const RING_BYTES: u64 = 1 << 20;
/// Bytes of a packet that are looked at: ports copy all of it.
const PEEK_BYTES: usize = 64;
/// Every how many rounds that found packets it shows what it has counted.
const PUBLISH_EVERY: u32 = 1_024;

/// The sender.
pub struct Sender {
    outlets: Vec<Outlet>,
    bell: Arc<Bell>,
    waiter: Waiter,
    clock: Clock,
    board: Board,
    drops: Drops,
    rounds: u32,
    idle_since_ns: Option<u64>,
}

/// Where one port's packets go out.
struct Outlet {
    kind: PortKind,
    /// The first is sent by.
    queues: Vec<Box<dyn TxQueue>>,
    /// Of each worker.
    rings: Vec<RelayRx>,
}

/// A worker's end of its ring to a port: to it, a queue like any other.
struct Exit {
    ring: RelayTx,
    bell: Arc<Bell>,
}

impl TxQueue for Exit {
    fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        let accepted = self.ring.send(packets);
        if accepted > 0 {
            self.bell.ring();
        }
        accepted
    }

    /// The sender counts what ports take.
    fn counters(&self) -> TxCounters {
        TxCounters::default()
    }
}

/// What a worker sends by: a queue for each port; with a sender also what tells how much of that it has dealt with.
pub(crate) type Outbound = (Vec<Box<dyn TxQueue>>, Vec<Outflow>);

impl Sender {
    /// Between so many workers and these ports, by their numbers; and what each worker sends by.
    pub(crate) fn new(
        ports: Vec<(PortKind, Vec<Box<dyn TxQueue>>)>,
        workers: usize,
        clock: Clock,
    ) -> io::Result<(Self, Vec<Outbound>)> {
        let (bell, board) = (Arc::new(Bell::new()?), Board::new(ports.len()));
        let mut outbound: Vec<Outbound> = (0..workers).map(|_| (vec![], vec![])).collect();
        let mut outlets = Vec::with_capacity(ports.len());
        for (kind, queues) in ports {
            let mut rings = Vec::with_capacity(workers);
            for (exits, outflows) in &mut outbound {
                let (to_sender, ring) = relay(RING_BYTES, PEEK_BYTES)?;
                outflows.push(to_sender.outflow());
                exits.push(Box::new(Exit { ring: to_sender, bell: bell.clone() }));
                rings.push(ring);
            }
            outlets.push(Outlet { kind, queues, rings });
        }
        let (waiter, drops) = (Waiter::new(Sleep::After(SPIN)), Drops::default());
        Ok((Self { outlets, bell, waiter, clock, board, drops, rounds: 0, idle_since_ns: None }, outbound))
    }

    /// The bell that wakes it.
    pub fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// What it shows of itself.
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// What it has dropped.
    pub fn drops(&self) -> DropBoard {
        self.drops.board()
    }

    /// Works until `stop` is set and the bell rung, and then on while there is something to send.
    ///
    /// # Errors
    /// The system refuses.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if self.run_once() {
                self.idle_since_ns = None;
                self.waiter.worked();
            } else {
                self.rest(stop)?;
            }
        }
        while self.run_once() {}
        self.publish();
        Ok(())
    }

    /// Works until the workers have ended and nothing of them is left.
    pub fn work_off(&mut self) {
        while !self.outlets.iter().flat_map(|outlet| &outlet.rings).all(RelayRx::is_over) {
            if !self.run_once() {
                std::thread::yield_now();
            }
        }
        self.publish();
    }

    /// One round: a burst of each worker for each port. What the port does not take is dropped. False if there was nothing.
    pub fn run_once(&mut self) -> bool {
        let mut worked = false;
        for Outlet { kind, queues, rings } in &mut self.outlets {
            let Some(queue) = queues.first_mut() else { continue };
            for ring in rings {
                let burst = ring.recv();
                if burst.is_empty() {
                    continue;
                }
                let sent = queue.send_burst(&burst, 0);
                if sent < burst.len() {
                    self.drops.add(kind.full(), (burst.len() - sent) as u64);
                }
                worked = true;
            }
        }
        if worked {
            self.rounds = self.rounds.wrapping_add(1);
            if self.rounds.is_multiple_of(PUBLISH_EVERY) {
                self.publish();
            }
        }
        worked
    }

    /// Nothing to do: polls on for a while, then sleeps until there is.
    fn rest(&mut self, stop: &AtomicBool) -> io::Result<()> {
        if self.idle_since_ns.is_none() {
            self.publish();
        }
        let idle_since_ns = self.idle_since_ns.unwrap_or_else(|| self.clock.now_ns());
        self.board.pauses(idle_since_ns);
        self.bell.doze();
        if !stop.load(Ordering::Relaxed) {
            let rings = self.outlets.iter_mut().flat_map(|outlet| &mut outlet.rings);
            let mut rings: Vec<&mut dyn RxQueue> = rings.map(|ring| ring as &mut dyn RxQueue).collect();
            let woken = self.waiter.wait(&mut rings, &[self.bell.as_fd()], None)?;
            if !woken.extra.is_empty() {
                self.bell.silence();
            }
        }
        self.bell.wake();
        let now_ns = self.clock.now_ns();
        self.board.paused(now_ns);
        self.idle_since_ns = Some(now_ns);
        Ok(())
    }

    /// Shows what was sent and dropped.
    fn publish(&mut self) {
        let sent = |outlet: &Outlet| outlet.queues.first().map_or_else(TxCounters::default, |queue| queue.counters());
        self.board.publish(self.outlets.iter().map(|outlet| (RxCounters::default(), sent(outlet))), 0);
        self.drops.publish();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::drops::DropReason;

    /// A port with room for so many packets, and what it took.
    #[derive(Clone, Default)]
    struct Narrow {
        room: Arc<AtomicUsize>,
        taken: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl TxQueue for Narrow {
        fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
            let taken = packets.len().min(self.room.load(Ordering::Relaxed));
            self.room.fetch_sub(taken, Ordering::Relaxed);
            let frames = packets[..taken].iter().map(|packet| {
                let mut frame = vec![0; packet.len()];
                packet.copy_to(&mut frame);
                frame
            });
            self.taken.lock().unwrap().extend(frames);
            taken
        }

        fn counters(&self) -> TxCounters {
            TxCounters { packets: self.taken.lock().unwrap().len() as u64, ..TxCounters::default() }
        }
    }

    /// N3 and N6, and two workers.
    fn rig(room: usize) -> (Sender, [Narrow; 2], Vec<Outbound>) {
        let ports = [(); 2].map(|()| Narrow { room: Arc::new(room.into()), ..Narrow::default() });
        let kinds = [PortKind::N3, PortKind::N6].into_iter();
        let outs = kinds.zip(&ports).map(|(kind, port)| (kind, vec![Box::new(port.clone()) as Box<dyn TxQueue>]));
        let (sender, outbound) = Sender::new(outs.collect(), 2, Clock::new()).unwrap();
        (sender, ports, outbound)
    }

    /// A worker sends frames with these numbers to a port.
    fn send(outbound: &mut [Outbound], worker: usize, port: usize, numbers: std::ops::Range<u8>) {
        for number in numbers {
            let frame = [worker as u8, port as u8, number];
            assert_eq!(outbound[worker].0[port].send(&[PacketRef::from_slice(&frame)]), 1);
        }
    }

    /// The numbers of a worker's frames that a port took, in order.
    fn taken(ports: &[Narrow; 2], worker: u8, port: usize) -> Vec<u8> {
        let frames = ports[port].taken.lock().unwrap();
        assert!(frames.iter().all(|frame| usize::from(frame[1]) == port));
        frames.iter().filter(|frame| frame[0] == worker).map(|frame| frame[2]).collect()
    }

    fn numbers(range: std::ops::Range<u8>) -> Vec<u8> {
        range.collect()
    }

    #[test]
    fn what_workers_send_goes_out_by_one_queue_in_the_order_of_each() {
        let (mut sender, ports, mut outbound) = rig(usize::MAX);
        let before: Vec<u64> = outbound[0].1.iter().map(Outflow::position).collect();
        for (worker, port) in [(0, 0), (1, 0), (0, 1)] {
            send(&mut outbound, worker, port, 0..100);
        }
        let outflow = &outbound[0].1[1];
        let position = outflow.position();
        assert!(position > before[1] && !outflow.is_done(position));
        while sender.run_once() {}
        assert!(outflow.is_done(position));
        for (worker, port) in [(0, 0), (1, 0), (0, 1)] {
            assert_eq!(taken(&ports, worker, port), numbers(0..100), "worker {worker}, port {port}");
        }
        sender.publish();
        assert_eq!([0, 1].map(|port| sender.board().port(port).tx_packets), [200, 100]);
    }

    #[test]
    fn what_a_port_does_not_take_is_dropped_and_counted_and_others_go_on() {
        let (mut sender, ports, mut outbound) = rig(usize::MAX);
        ports[0].room.store(30, Ordering::Relaxed);
        for (worker, port) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            send(&mut outbound, worker, port, 0..100);
        }
        while sender.run_once() {}
        assert_eq!([0, 1].map(|worker| taken(&ports, worker, 1)), [(); 2].map(|()| numbers(0..100)));
        assert_eq!([0, 1].map(|worker| taken(&ports, worker, 0)), [numbers(0..30), vec![]]);
        sender.publish();
        assert_eq!([DropReason::N3Full, DropReason::N6Full].map(|reason| sender.drops().get(reason)), [170, 0]);
    }

    #[test]
    fn a_worker_that_sends_rings_a_sender_that_sleeps() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let (sender, _ports, mut outbound) = rig(usize::MAX);
        let bell = sender.bell();
        let is_rung =
            || poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1);
        send(&mut outbound, 1, 1, 0..1);
        assert!(!is_rung());
        bell.doze();
        send(&mut outbound, 1, 1, 1..2);
        assert!(is_rung());
    }

    #[test]
    fn a_sleeping_sender_wakes_and_works_off_what_is_left_when_workers_have_ended() {
        let (mut sender, ports, mut outbound) = rig(usize::MAX);
        let (bell, stop) = (sender.bell(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                sender.run(&stop).unwrap();
                sender.work_off();
            });
            for number in 0..20 {
                std::thread::sleep(Duration::from_millis(1));
                send(&mut outbound, 1, 0, number..number + 1);
            }
            let begin = std::time::Instant::now();
            while taken(&ports, 1, 0).len() < 20 {
                assert!(begin.elapsed() < Duration::from_secs(10), "it sleeps");
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            bell.ring();
            send(&mut outbound, 0, 0, 0..200);
            drop(outbound);
            sending.join().unwrap();
        });
        assert_eq!(taken(&ports, 0, 0), numbers(0..200));
    }
}
