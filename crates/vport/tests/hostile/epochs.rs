//! An honest function with two queues (`b`), of which a hostile sender (`a`, one queue) knows nothing good.

use super::*;
use vport::owner::{Buckets, Decider, Owner, group};
use vport::steering::BUCKETS;

/// Line of the burst counter and the epoch, of a peer with two queues.
const BURST: usize = (3 + 4) * 128;
const EPOCH: usize = BURST + 8;
const HEADS: [usize; 2] = [3 * 128, 4 * 128];
const MARKS: [usize; 2] = [HEADS[0] + 16, HEADS[1] + 16];
const RING: usize = vport::broker::RING_BYTES_MIN as usize;

/// Counts who has how many buckets.
#[derive(Default)]
struct Count(i64);

impl Buckets for Count {
    type State = ();

    fn leave(&mut self, _bucket: u8, _to: usize) {
        self.0 -= 1;
    }

    fn arrive(&mut self, _bucket: u8, _from: usize, (): ()) {
        self.0 += 1;
    }
}

struct Liar {
    hostile: Hostile,
    decider: Decider,
    owners: Vec<Owner<()>>,
    counts: [Count; 2],
}

impl Liar {
    fn new(test: &str) -> Self {
        let two = PortInfo { queues: 2, steering: Steering::UeAddress, ..PortInfo::named("p") };
        let bench = Bench::between(test, false, [PortInfo::named("p"), two]);
        let raw = bench.connect("a");
        raw.hello();
        let mut b = bench.honest();
        let memory = raw.join(&bench, &mut b);
        let (decider, owners) = group(std::slice::from_ref(&b.steering), &[]).unwrap();
        Self { hostile: Hostile { bench, raw, memory, b }, decider, owners, counts: Default::default() }
    }

    fn word(&self, offset: usize, value: u64) {
        self.hostile.memory.index(offset).store(value, Ordering::Release);
    }

    /// Publishes one more frame of bucket 0 (which is no IP packet) to `queue`.
    fn send_to(&self, queue: usize) {
        let head = self.hostile.memory.index(HEADS[queue]);
        let at = head.load(Ordering::Relaxed);
        self.hostile.memory.records(queue * RING + at as usize).store(60, Ordering::Relaxed);
        head.store(at + 72, Ordering::Release);
    }

    /// Lays frames with the addresses of UEs one behind the other, from the start of a queue's ring on. Where they end.
    fn lay(&self, queue: usize, addresses: impl IntoIterator<Item = IpAddr>) -> u64 {
        let mut at = queue * RING;
        for address in addresses {
            let mut frame = [0; 64];
            (frame[12], frame[14]) = (8, 0x45);
            let IpAddr::V4(address) = address else { panic!() };
            frame[30..34].copy_from_slice(&address.octets());
            let words = frame.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            for word in std::iter::once(60).chain(words) {
                self.hostile.memory.records(at).store(word, Ordering::Relaxed);
                at += 8;
            }
        }
        (at - queue * RING) as u64
    }

    /// Turns until the change is over.
    fn close(&mut self) {
        let start = Instant::now();
        while self.decider.is_open() {
            self.turn();
            assert!(start.elapsed() < PATIENCE, "held up");
        }
        assert_eq!(self.counts[0].0 + self.counts[1].0, 0, "no bucket was lost or doubled");
    }

    fn turn(&mut self) -> [usize; 2] {
        [0, 1].map(|queue| {
            let packets = self.hostile.b.queues[queue].0.recv().len();
            self.owners[queue].settle(&mut self.counts[queue]);
            packets
        })
    }

    fn invalid(&self) -> u64 {
        self.hostile.b.queues.iter().map(|(rx, _)| rx.counters().invalid).sum()
    }

    fn expect_quarantine(&self, rule: &str) {
        let reason = self.hostile.bench.event("quarantine", |event| match event {
            Event::Quarantined { reason, .. } => Some(reason),
            _ => None,
        });
        assert!(reason.starts_with(rule), "{reason}");
    }
}

#[test]
fn a_frame_for_a_queue_that_does_not_own_its_bucket_is_dropped() {
    let mut liar = Liar::new("foreign");
    liar.send_to(1);
    liar.send_to(0);
    assert_eq!((liar.turn(), liar.invalid()), ([1, 0], 1));
}

#[test]
fn a_sender_that_goes_on_with_the_old_table_loses_only_its_own_frames() {
    let mut liar = Liar::new("old-table");
    liar.decider.set_owners(&[1; BUCKETS]).unwrap();
    // It seems idle, and so passes.
    for _ in 0..3 {
        liar.turn();
    }
    assert!(!liar.decider.is_open());
    assert_eq!((liar.counts[0].0, liar.counts[1].0), (-64, 64));
    liar.send_to(0);
    assert_eq!((liar.turn(), liar.invalid()), ([0, 0], 1));
    liar.send_to(1);
    assert_eq!((liar.turn(), liar.invalid()), ([0, 1], 1));
}

#[test]
fn a_sender_that_uses_a_table_before_it_says_so_loses_its_frames() {
    let mut liar = Liar::new("too-early");
    liar.decider.set_owners(&[1; BUCKETS]).unwrap();
    liar.send_to(1);
    assert_eq!(liar.hostile.b.queues[1].0.recv().len(), 0);
    assert_eq!(liar.invalid(), 1);
    // Also where the mark says that the frame is of the epoch before.
    liar.send_to(1);
    liar.word(MARKS[1], 144);
    liar.word(EPOCH, 2);
    assert_eq!(liar.hostile.b.queues[1].0.recv().len(), 0);
    assert_eq!(liar.invalid(), 2);
}

#[test]
fn an_epoch_that_begins_behind_the_head_is_a_violation_and_holds_nobody_up() {
    let mut liar = Liar::new("mark");
    liar.decider.set_owners(&[1; BUCKETS]).unwrap();
    liar.word(MARKS[0], 8);
    liar.word(EPOCH, 2);
    for _ in 0..3 {
        liar.turn();
    }
    assert!(!liar.decider.is_open());
    liar.expect_quarantine("an epoch begins behind the head");
}

#[test]
fn a_burst_without_end_is_noticed_and_holds_nobody_up_for_ever() {
    let mut liar = Liar::new("endless");
    liar.word(BURST, 7);
    liar.decider.set_owners(&[1; BUCKETS]).unwrap();
    let start = Instant::now();
    while liar.decider.is_open() {
        liar.turn();
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(start.elapsed() >= Duration::from_secs(1), "it has a while");
    liar.expect_quarantine("a burst does not end");
}

#[test]
fn a_dead_sender_is_read_to_its_last_head() {
    let mut liar = Liar::new("dead");
    liar.send_to(0);
    liar.word(BURST, 7);
    liar.decider.set_owners(&[1; BUCKETS]).unwrap();
    let Liar { hostile, mut decider, mut owners, mut counts } = liar;
    let Hostile { bench, raw, memory: _memory, mut b } = hostile;
    drop(raw);
    bench.until("it is known to be gone", |ports| ports[0].pid.is_none());
    let (start, mut packets) = (Instant::now(), 0);
    while decider.is_open() {
        for queue in [0, 1] {
            packets += b.queues[queue].0.recv().len();
            owners[queue].settle(&mut counts[queue]);
        }
        assert!(start.elapsed() < Duration::from_millis(900), "not as long as a living one is waited for");
    }
    assert_eq!((packets, counts[1].0), (1, 64));
    assert!(decider.set_owners(&[0; BUCKETS]).is_ok());
}

/// Some address whose bucket a queue owns at first.
fn address_of(queue: usize) -> IpAddr {
    let mut addresses = (0..=255).map(|n| IpAddr::from([10, 0, 0, n]));
    addresses.find(|address| usize::from(address_bucket(*address)) % 2 == queue).unwrap()
}

/// Each queue has to be past its backlog, in which it comes to a frame of a bucket that the other one gives when that is
/// past its own.
#[test]
fn a_sender_that_says_two_things_of_where_an_epoch_begins_does_not_let_queues_wait_for_each_other() {
    let mut liar = Liar::new("two-marks");
    let mut heads = [0; 2];
    for queue in [0, 1] {
        // A burst that is lawful, so that the next frame waits for another look.
        let lawful = std::iter::repeat_n(address_of(queue), BURST_MAX);
        heads[queue] = liar.lay(queue, lawful.chain([address_of(1 - queue); 2]));
        liar.word(HEADS[queue], heads[queue]);
    }
    liar.decider.set_owners(&std::array::from_fn(|bucket| (bucket as u8 + 1) % 2)).unwrap();
    assert_eq!(liar.turn(), [BURST_MAX; 2], "it seems idle: the epoch begins behind what it has published");
    liar.word(EPOCH, 2);
    liar.close();
    assert_eq!(liar.invalid(), 4, "what comes before is of the old table, and not of these queues");
}

/// Whoever asks where the epoch begins and whoever reads then look at the head in turns.
#[test]
fn a_sender_that_takes_its_head_back_does_not_hold_a_change_up() {
    for round in 0..64 {
        let mut liar = Liar::new(&format!("taken-back{round}"));
        let end = liar.lay(0, [address_of(0)]);
        let flips = std::sync::atomic::AtomicBool::new(true);
        let head = liar.hostile.memory.index(HEADS[0]).as_ptr() as usize;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: a word of a mapping that is never undone, used only through atomics.
                let head = unsafe { std::sync::atomic::AtomicU64::from_ptr(head as *mut u64) };
                while flips.load(Ordering::Relaxed) {
                    for position in [end, 0] {
                        head.store(position, Ordering::Release);
                        (0..20).for_each(|_| std::hint::spin_loop());
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(1));
            liar.decider.set_owners(&[1; BUCKETS]).unwrap();
            liar.turn();
            flips.store(false, Ordering::Relaxed);
        });
        liar.close();
    }
}

/// A queue has to be past the epoch in the next generation too, in which it takes nothing before the first one has ended.
#[test]
fn a_sender_that_goes_on_in_a_channel_that_it_has_closed_does_not_hold_a_change_up() {
    let mut liar = Liar::new("goes-on");
    let Hostile { bench, raw, b, .. } = &mut liar.hostile;
    bench.broker.renew("link").unwrap();
    let next = raw.join(bench, b);
    next.records(0).store(60, Ordering::Relaxed);
    next.index(HEADS[0]).store(72, Ordering::Release);
    liar.word(HEADS[0] + 8, 1);
    liar.decider.set_owners(&[1; BUCKETS]).unwrap();
    // A lap of records that can be published over and over.
    const RECORD: usize = 64;
    (0..RING).step_by(RECORD).for_each(|at| liar.hostile.memory.records(at).store(56, Ordering::Relaxed));
    let (start, mut head) = (Instant::now(), 0);
    while liar.decider.is_open() {
        head += RECORD as u64;
        liar.word(HEADS[0], head);
        liar.turn();
        assert!(start.elapsed() < PATIENCE, "held up");
    }
    assert_eq!(liar.counts[1].0, 64);
}

#[test]
fn random_words_about_epochs_neither_stop_a_change_nor_break_single_ownership() {
    let mut liar = Liar::new("random");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let words = [BURST, EPOCH, MARKS[0], MARKS[1]].map(|offset| liar.hostile.memory.index(offset).as_ptr() as usize);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let word = words[(n >> 60) as usize % 4] as *mut u64;
                // SAFETY: a word of a mapping that is never undone, used only through atomics.
                unsafe { std::sync::atomic::AtomicU64::from_ptr(word) }.store(n >> 33 & 15, Ordering::Relaxed);
            }
        });
        for round in 0..200_u64 {
            liar.decider.set_owners(&[(round % 2) as u8; BUCKETS]).unwrap();
            liar.close();
        }
        stop.store(true, Ordering::Relaxed);
    });
}
