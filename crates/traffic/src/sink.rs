//! Takes stamped packets and says what became of them on the way: lost, doubled, late, how old.

use hdrhistogram::Histogram;
use port::{Burst, RxQueue};
use serde::{Deserialize, Serialize};

use crate::frame;
use crate::stamp::{Stamp, is_later};

/// How far back, in packets of a flow, a duplicate can be told from a late packet.
const WINDOW: u64 = 1_024;
const WORD: u64 = u64::BITS as u64;
/// Most flows that are told apart; what carries a higher number is not stamped by our generator.
const FLOWS_MAX: usize = 1 << 20;

/// What has been seen of one flow, in the run of a generator that came last: each begins its numbers anew.
#[derive(Clone)]
struct Seen {
    first: u64,
    highest: u64,
    /// When the packet of the highest number was due. Within a run no packet with a higher number is due earlier.
    highest_due_ns: u64,
    /// Ring of bits: whether each of the last [`WINDOW`] sequence numbers was seen.
    bits: [u64; (WINDOW / WORD) as usize],
    distinct: u64,
    /// Missing in runs before.
    missing_before: u64,
}

/// How a packet stands to those before it in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Next,
    Late,
    Duplicate,
    /// So far behind that it may have come before.
    TooLate,
}

impl Seen {
    const NOTHING: Self = Self {
        first: 0,
        highest: 0,
        highest_due_ns: 0,
        bits: [0; (WINDOW / WORD) as usize],
        distinct: 0,
        missing_before: 0,
    };

    fn beginning_with(Stamp { sequence, due_ns, .. }: Stamp) -> Self {
        let mut seen =
            Self { first: sequence, highest: sequence, highest_due_ns: due_ns, distinct: 1, ..Self::NOTHING };
        seen.set(sequence);
        seen
    }

    #[inline]
    fn take(&mut self, stamp: Stamp) -> Order {
        let Stamp { sequence, due_ns, .. } = stamp;
        if sequence > self.highest {
            if is_later(self.highest_due_ns, due_ns) {
                return self.take_of_a_run_before();
            }
            for skipped in self.highest + 1..sequence.min(self.highest.saturating_add(WINDOW)) {
                self.clear(skipped);
            }
            if sequence - self.highest >= WINDOW {
                self.bits.fill(0);
            }
            (self.highest, self.highest_due_ns) = (sequence, due_ns);
            self.set(sequence);
            self.distinct += 1;
            return Order::Next;
        }
        if is_later(due_ns, self.highest_due_ns) {
            *self = Self { missing_before: self.missing(), ..Self::beginning_with(stamp) };
            return Order::Next;
        }
        if self.highest - sequence >= WINDOW {
            // What is lower than all that came has not come.
            if sequence >= self.first {
                return Order::TooLate;
            }
        } else if self.is_set(sequence) {
            return Order::Duplicate;
        } else {
            self.set(sequence);
        }
        self.first = self.first.min(sequence);
        self.distinct += 1;
        Order::Late
    }

    /// It was overtaken by a whole run, and was missing.
    #[cold]
    fn take_of_a_run_before(&mut self) -> Order {
        self.missing_before = self.missing_before.saturating_sub(1);
        Order::Late
    }

    /// Sequence numbers between the lowest and the highest seen of each run that did not come.
    fn missing(&self) -> u64 {
        self.missing_before + (self.highest - self.first + 1).saturating_sub(self.distinct)
    }

    fn place(sequence: u64) -> (usize, u64) {
        ((sequence % WINDOW / WORD) as usize, 1 << (sequence % WORD))
    }

    fn set(&mut self, sequence: u64) {
        let (word, bit) = Self::place(sequence);
        self.bits[word] |= bit;
    }

    fn clear(&mut self, sequence: u64) {
        let (word, bit) = Self::place(sequence);
        self.bits[word] &= !bit;
    }

    fn is_set(&self, sequence: u64) -> bool {
        let (word, bit) = Self::place(sequence);
        self.bits[word] & bit != 0
    }
}

/// The sink of one queue.
pub struct Sink {
    flows: Vec<Option<Box<Seen>>>,
    latency_ns: Histogram<u64>,
    received: u64,
    bytes: u64,
    duplicates: u64,
    late: u64,
    too_late: u64,
    foreign: u64,
    stale: u64,
    begin_ns: u64,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Default for Sink {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink {
    /// A sink that has seen nothing.
    pub fn new() -> Self {
        // Three digits from 1 ns to a minute; what is older counts as a minute.
        let latency_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order");
        Self {
            flows: Vec::new(),
            latency_ns,
            received: 0,
            bytes: 0,
            duplicates: 0,
            late: 0,
            too_late: 0,
            foreign: 0,
            stale: 0,
            begin_ns: 0,
            first_ns: None,
            last_ns: 0,
        }
    }

    /// The same with memory for flows of numbers below `flows`, so that their first packets need none.
    pub fn expecting(flows: usize) -> Self {
        let seen = || Some(Box::new(Seen::NOTHING));
        Self { flows: std::iter::repeat_with(seen).take(flows.min(FLOWS_MAX)).collect(), ..Self::new() }
    }

    /// Forgets what it has seen, and keeps its memory. Packets that were due before `begin_ns` are stale from here on: they
    /// count as such and for nothing else.
    pub fn begin_again(&mut self, begin_ns: u64) {
        self.flows.iter_mut().flatten().for_each(|seen| **seen = Seen::NOTHING);
        self.latency_ns.reset();
        let (flows, latency_ns) = (std::mem::take(&mut self.flows), self.latency_ns.clone());
        *self = Self { flows, latency_ns, begin_ns, ..Self::new() };
    }

    /// Takes one burst from `rx`. Frames without a stamp go to `others`. Returns the number of packets.
    pub fn turn(&mut self, rx: &mut dyn RxQueue, now_ns: u64, mut others: impl FnMut(&[u8])) -> usize {
        let burst: Burst<'_> = rx.recv();
        for i in 0..burst.len() {
            let packet = burst.get(i);
            match frame::innermost_payload(packet.head).and_then(Stamp::read) {
                Some(stamp) if (stamp.flow as usize) < FLOWS_MAX => self.take(stamp, packet.len(), now_ns),
                _ => {
                    self.foreign += 1;
                    let mut whole = vec![0; packet.len()];
                    packet.copy_to(&mut whole);
                    others(&whole);
                }
            }
        }
        burst.len()
    }

    fn take(&mut self, stamp: Stamp, len: usize, now_ns: u64) {
        let age_ns = stamp.age_ns(now_ns);
        if age_ns > now_ns.saturating_sub(self.begin_ns) {
            self.stale += 1;
            return;
        }
        self.received += 1;
        self.bytes += len as u64;
        self.first_ns.get_or_insert(now_ns);
        self.last_ns = now_ns;
        self.latency_ns.saturating_record(age_ns.max(1));
        let flow = stamp.flow as usize;
        if flow >= self.flows.len() {
            self.flows.resize(flow + 1, None);
        }
        match &mut self.flows[flow] {
            empty @ None => *empty = Some(Box::new(Seen::beginning_with(stamp))),
            Some(seen) if seen.distinct == 0 => **seen = Seen::beginning_with(stamp),
            Some(seen) => match seen.take(stamp) {
                Order::Next => {}
                Order::Late => self.late += 1,
                Order::Duplicate => self.duplicates += 1,
                Order::TooLate => self.too_late += 1,
            },
        }
    }

    /// Stamped packets so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Packets so far, each counted once; what may have come before is not counted again.
    pub fn distinct(&self) -> u64 {
        self.received - self.duplicates - self.too_late
    }

    /// Latency of the packets since the last call, if any came: these are not in what [`Sink::found`] says of latency.
    pub fn take_latency(&mut self) -> Option<Latency> {
        let latency = (!self.latency_ns.is_empty()).then(|| Latency::of(&self.latency_ns));
        self.latency_ns.reset();
        latency
    }

    /// Packets that came again, so far.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Packets that came after one with a higher number of their flow, so far.
    pub fn reordered(&self) -> u64 {
        self.late
    }

    /// What the sink has found.
    pub fn found(&self) -> Found {
        let seconds = (self.last_ns - self.first_ns.unwrap_or(self.last_ns)) as f64 / 1e9;
        let seen = || self.flows.iter().flatten().filter(|flow| flow.distinct > 0);
        Found {
            flows: seen().count() as u64,
            received: self.received,
            bytes: self.bytes,
            lost: seen().map(|flow| flow.missing()).sum(),
            duplicates: self.duplicates,
            reordered: self.late,
            too_late: self.too_late,
            foreign: self.foreign,
            stale: self.stale,
            seconds,
            mpps: if seconds > 0.0 { self.received as f64 / seconds / 1e6 } else { 0.0 },
            latency_us: Latency::of(&self.latency_ns),
        }
    }
}

/// The sink's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Flows of which a packet came.
    pub flows: u64,
    /// Stamped packets that came.
    pub received: u64,
    /// Their bytes, whole frames.
    pub bytes: u64,
    /// Packets that are missing between the first and the last that came, over all flows and runs of their generators; where it is
    /// known how many were accepted, all of those that did not come ([`Found::of_accepted`]).
    pub lost: u64,
    /// Packets that came again.
    pub duplicates: u64,
    /// Packets that came after one with a higher number.
    pub reordered: u64,
    /// Packets 1,024 or more behind one of their flow: reordered or come again, nobody knows which. They fill no gap.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub too_late: u64,
    /// Frames without a stamp.
    pub foreign: u64,
    /// Packets of an earlier trial.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stale: u64,
    /// Time from the first to the last packet.
    pub seconds: f64,
    /// Packets a second, in millions.
    pub mpps: f64,
    /// From the time a packet was due until it came: one way, or there and back where a reflector sent it back.
    pub latency_us: Latency,
}

impl Found {
    /// Packets that came, each counted once.
    pub fn distinct(&self) -> u64 {
        self.received - self.duplicates - self.too_late
    }

    /// The same where the path has accepted so many: whatever of them did not come is lost, whole flows, too, and the last ones of
    /// a flow.
    pub fn of_accepted(self, accepted: u64) -> Self {
        Self { lost: accepted.saturating_sub(self.distinct()), ..self }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Latency in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the packets took no longer.
    pub p50: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1,000.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: histogram.max() as f64 / 1e3 }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use port::synthetic::Synthetic;

    use super::*;
    use crate::generator::{Flow, packet};

    fn frame(flow: u32, sequence: u64, due_ns: u64) -> Vec<u8> {
        let plain = Flow { from: Ipv4Addr::new(10, 0, 0, 1), to: Ipv4Addr::new(10, 0, 0, 2), tunnel: None };
        let mut frame = frame::ethernet([2; 6], [4; 6], frame::ETHERTYPE_IPV4).to_vec();
        frame.extend(packet(&plain, flow, 64));
        let at = frame.len() - 64;
        Stamp { flow, sequence, due_ns }.write(&mut frame[at..]);
        frame
    }

    fn stamp(sequence: u64, due_ns: u64) -> Stamp {
        Stamp { flow: 0, sequence, due_ns }
    }

    fn found(frames: Vec<Vec<u8>>) -> Found {
        let mut port = Synthetic::new(frames).once().open();
        let mut sink = Sink::new();
        while sink.turn(port.queues[0].rx.as_mut(), 10_000, |_| {}) > 0 {}
        sink.found()
    }

    #[test]
    fn a_gap_is_a_loss() {
        let found = found([0, 1, 4, 5].map(|sequence| frame(0, sequence, 0)).into());
        assert_eq!((found.received, found.lost, found.reordered, found.duplicates), (4, 2, 0, 0));
    }

    #[test]
    fn a_late_packet_is_reordered_and_not_lost() {
        let found = found([0, 2, 1, 3].map(|sequence| frame(0, sequence, 0)).into());
        assert_eq!((found.lost, found.reordered, found.duplicates), (0, 1, 0));
    }

    #[test]
    fn a_packet_that_comes_again_is_a_duplicate() {
        let found = found([0, 1, 1, 0, 2].map(|sequence| frame(0, sequence, 0)).into());
        assert_eq!((found.lost, found.reordered, found.duplicates), (0, 0, 2));
    }

    #[test]
    fn flows_are_judged_one_by_one() {
        let found = found(vec![frame(0, 0, 0), frame(1, 7, 0), frame(0, 1, 0), frame(1, 9, 0)]);
        assert_eq!((found.flows, found.lost, found.reordered), (2, 1, 0));
    }

    #[test]
    fn a_long_gap_forgets_no_loss() {
        let mut seen = Seen::beginning_with(stamp(0, 0));
        assert_eq!(seen.take(stamp(5_000, 0)), Order::Next);
        assert_eq!(seen.take(stamp(4_999, 0)), Order::Late);
        assert_eq!(seen.take(stamp(4_999, 0)), Order::Duplicate);
        assert_eq!(seen.missing(), 5_001 - 3);
    }

    #[test]
    fn what_comes_again_after_the_window_fills_no_gap() {
        let mut seen = Seen::beginning_with(stamp(0, 0));
        (2..=1_030).for_each(|sequence| assert_eq!(seen.take(stamp(sequence, 0)), Order::Next));
        assert_eq!(seen.take(stamp(2, 0)), Order::TooLate);
        assert_eq!(seen.missing(), 1, "number 1 has not come");
        let mut seen = Seen::beginning_with(stamp(1, 0));
        assert_eq!(seen.take(stamp(2_000, 0)), Order::Next);
        assert_eq!(seen.take(stamp(0, 0)), Order::Late);
        assert_eq!(seen.missing(), 2_001 - 3, "nothing below number 1 had come");
    }

    #[test]
    fn of_packets_accepted_those_before_the_first_and_behind_the_last_are_lost_too() {
        let found = found(vec![frame(0, 1, 0), frame(0, 2, 0), frame(0, 2, 0)]);
        assert_eq!(found.lost, 0, "a sink by itself sees no gap");
        // Of flow 0 the first and the last are missing, of flow 1 all four.
        assert_eq!(found.of_accepted(8).lost, 6);
    }

    #[test]
    fn bits_of_the_last_round_are_not_taken_for_this_one() {
        let mut seen = Seen::beginning_with(stamp(0, 0));
        for sequence in 1..1_000 {
            seen.take(stamp(sequence, 0));
        }
        assert_eq!(seen.take(stamp(1_500, 0)), Order::Next);
        assert_eq!(seen.take(stamp(1_200, 0)), Order::Late);
    }

    #[test]
    fn a_generator_that_runs_again_begins_its_numbers_anew() {
        let first = (0..2_000).filter(|n| n % 1_000 != 5).map(|n| frame(0, n, n));
        let second = [0, 1, 4, 3].map(|n| frame(0, n, 5_000 + n));
        let third = [0, 2].map(|n| frame(0, n, 6_000 + n));
        let found = found(first.chain(second).chain(third).collect());
        assert_eq!((found.received, found.lost, found.reordered, found.duplicates), (1_998 + 6, 2 + 1 + 1, 1, 0));
    }

    #[test]
    fn what_was_overtaken_within_a_run_begins_none() {
        let due = [(0, 10), (3, 40), (1, 20), (3, 40), (2, 30), (0, 10), (4, 40)];
        let found = found(due.map(|(sequence, due_ns)| frame(0, sequence, due_ns)).into());
        assert_eq!((found.lost, found.reordered, found.duplicates), (0, 2, 2));
    }

    #[test]
    fn what_a_whole_run_has_overtaken_is_late() {
        let due = [(0, 10), (9, 100), (0, 1_000), (8, 90), (1, 1_010)];
        let found = found(due.map(|(sequence, due_ns)| frame(0, sequence, due_ns)).into());
        assert_eq!((found.received, found.lost, found.reordered, found.duplicates), (5, 7, 1, 0));
    }

    #[test]
    fn age_counts_from_the_time_a_packet_was_due() {
        let found = found(vec![frame(0, 0, 9_000), frame(0, 1, 5_000)]);
        assert!((found.latency_us.p50 - 1.0).abs() < 0.01, "{:?}", found.latency_us);
        assert!((found.latency_us.max - 5.0).abs() < 0.01, "{:?}", found.latency_us);
    }

    #[test]
    fn latency_is_taken_by_and_by() {
        let mut port = Synthetic::new(vec![frame(0, 0, 9_000), frame(0, 1, 5_000)]).once().open();
        let mut sink = Sink::new();
        assert!(sink.take_latency().is_none());
        sink.turn(port.queues[0].rx.as_mut(), 10_000, |_| {});
        assert!((sink.take_latency().expect("two packets").max - 5.0).abs() < 0.01);
        assert!(sink.take_latency().is_none());
    }

    #[test]
    fn what_is_left_of_an_earlier_trial_counts_for_nothing_in_the_next() {
        let frames = vec![frame(0, 5, 100), frame(0, 6, 5_000), frame(0, 3, 200), frame(0, 8, 6_000)];
        let mut port = Synthetic::new(frames).once().open();
        let mut sink = Sink::expecting(2);
        sink.begin_again(5_000);
        sink.turn(port.queues[0].rx.as_mut(), 10_000, |_| {});
        let found = sink.found();
        assert_eq!((found.flows, found.received, found.stale, found.lost, found.reordered), (1, 2, 2, 1, 0));
        sink.begin_again(20_000);
        assert_eq!((sink.found().flows, sink.found().received, sink.found().lost), (0, 0, 0));
        assert!(sink.take_latency().is_none());
    }

    #[test]
    fn frames_without_a_stamp_are_handed_on() {
        let mut port = Synthetic::new(vec![vec![0; 60]]).once().open();
        let mut handed = Vec::new();
        let mut sink = Sink::new();
        sink.turn(port.queues[0].rx.as_mut(), 0, |frame| handed.push(frame.to_vec()));
        assert_eq!((handed.len(), sink.found().foreign, sink.received()), (1, 1, 0));
    }
}
