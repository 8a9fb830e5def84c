//! An open-loop source: packets come when they are due, whether or not the worker has time for them, and wait in a queue
//! that overflows.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use port::{BURST_MAX, Burst, RxCounters, RxQueue, Slot};

/// Packets that the queue before the worker holds; what more comes is lost.
pub const QUEUE: u64 = 4_096;

/// A rate at which packets are always due.
pub const WITHOUT_PAUSE: u64 = u64::MAX;

/// What a source is told, and what it counts.
#[derive(Debug, Default)]
pub struct Pace {
    rate_pps: AtomicU64,
    /// Set with a new rate; the source takes it back when it has begun anew.
    changed: AtomicBool,
    taken: AtomicU64,
    lost: AtomicU64,
    longest_pause_ns: AtomicU64,
}

impl Pace {
    /// Sends `rate_pps` packets a second from now on; [`WITHOUT_PAUSE`] for as many as are taken.
    pub fn set(&self, rate_pps: u64) {
        self.rate_pps.store(rate_pps, Relaxed);
        self.changed.store(true, Relaxed);
    }

    /// Packets that the worker has taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// The longest time between two polls since the rate was set.
    pub fn longest_pause_ns(&self) -> u64 {
        self.longest_pause_ns.load(Relaxed)
    }

    /// Packets that the queue had no room for.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// What is given to a source while it runs.
pub enum Feed {
    /// Where the packets come from that the rate is about; it has always more.
    Stream(Box<dyn RxQueue>),
    /// One packet, to be taken before any other.
    Packet(Vec<u8>),
}

/// The source, as the queue of a port.
pub struct Source {
    feeds: Receiver<Feed>,
    pace: Arc<Pace>,
    stream: Option<Box<dyn RxQueue>>,
    slots: Box<[Slot; 1]>,
    rate_pps: u64,
    begin: Instant,
    /// Time from `begin` to the last poll.
    polled_ns: u64,
    /// Of the packets due since `begin`: taken or lost.
    done: u64,
}

impl Source {
    /// A source that has nothing to send, and what makes it send.
    pub fn new() -> (Self, Sender<Feed>, Arc<Pace>) {
        let (sender, feeds) = channel();
        let pace = Arc::new(Pace::default());
        let source = Self {
            feeds,
            pace: pace.clone(),
            stream: None,
            slots: Box::new([Slot::new()]),
            rate_pps: 0,
            begin: Instant::now(),
            polled_ns: 0,
            done: 0,
        };
        (source, sender, pace)
    }

    /// A packet that is to go first.
    fn packet(&mut self) -> Option<Vec<u8>> {
        match self.feeds.try_recv().ok()? {
            Feed::Packet(frame) => Some(frame),
            Feed::Stream(stream) => {
                self.stream = Some(stream);
                None
            }
        }
    }

    /// Whether a burst is due. What the queue has no room for is lost.
    fn is_due(&mut self) -> bool {
        if self.pace.changed.load(Relaxed) && self.pace.changed.swap(false, Relaxed) {
            (self.rate_pps, self.begin, self.done) = (self.pace.rate_pps.load(Relaxed), Instant::now(), 0);
            self.polled_ns = 0;
            self.pace.longest_pause_ns.store(0, Relaxed);
        }
        let now_ns = self.begin.elapsed().as_nanos() as u64;
        let pause_ns = now_ns - std::mem::replace(&mut self.polled_ns, now_ns);
        if pause_ns > self.pace.longest_pause_ns.load(Relaxed) {
            self.pace.longest_pause_ns.store(pause_ns, Relaxed);
        }
        if self.rate_pps == WITHOUT_PAUSE {
            return true;
        }
        let due = u128::from(now_ns) * u128::from(self.rate_pps) / 1_000_000_000;
        let waiting = (due as u64).saturating_sub(self.done);
        if waiting > QUEUE {
            add(&self.pace.lost, waiting - QUEUE);
            self.done += waiting - QUEUE;
        }
        waiting >= BURST_MAX as u64
    }
}

impl RxQueue for Source {
    fn recv(&mut self) -> Burst<'_> {
        if let Some(frame) = self.packet() {
            self.slots[0].fill_head(frame.len()).copy_from_slice(&frame);
            add(&self.pace.taken, 1);
            return Burst::new(&mut self.slots[..]);
        }
        if !self.is_due() {
            return Burst::new(&mut []);
        }
        let Some(stream) = &mut self.stream else { return Burst::new(&mut []) };
        let burst = stream.recv();
        self.done += burst.len() as u64;
        add(&self.pace.taken, burst.len() as u64);
        burst
    }

    /// Time goes on: there is no descriptor to sleep on.
    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![]
    }

    fn counters(&self) -> RxCounters {
        RxCounters::default()
    }
}

/// Adds, where nobody else writes.
fn add(to: &AtomicU64, number: u64) {
    to.store(to.load(Relaxed) + number, Relaxed);
}

#[cfg(test)]
mod tests {
    use port::synthetic::Synthetic;

    use super::*;

    fn stream() -> Feed {
        let port = Synthetic::new(vec![vec![1; 60]; 64]).open();
        Feed::Stream(port.queues.into_iter().next().expect("a queue").rx)
    }

    #[test]
    fn what_comes_while_nobody_takes_it_waits_and_is_lost_beyond_the_queue() {
        let (mut source, feed, pace) = Source::new();
        feed.send(stream()).expect("the source is there");
        assert!(source.recv().is_empty(), "no rate, no packets");
        pace.set(1_000_000);
        assert!(source.recv().is_empty(), "nothing is due yet");
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert_eq!(source.recv().len(), BURST_MAX);
        let lost = pace.lost();
        assert!(lost >= 10_000 - QUEUE, "{lost}");
        assert_eq!(pace.taken(), BURST_MAX as u64);
    }

    #[test]
    fn a_packet_goes_first() {
        let (mut source, feed, pace) = Source::new();
        feed.send(stream()).expect("the source is there");
        pace.set(WITHOUT_PAUSE);
        assert_eq!(source.recv().len(), BURST_MAX);
        feed.send(Feed::Packet(vec![7; 70])).expect("the source is there");
        let burst = source.recv();
        assert_eq!((burst.len(), burst.get(0).head), (1, &[7; 70][..]));
    }
}
