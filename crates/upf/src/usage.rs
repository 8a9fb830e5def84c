//! What a usage reporting rule counts. The worker that owns the session counts; N4 reads, and says how far it may go.
//!
//! Each side writes a cache line of its own; the worker's may lie where it outlives the process ([`crate::counters`]). N4 changes the terms while packets pass; a worker that has not seen them yet
//! counts by the former ones for a moment, so N4 looks again a little later.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use vport::tally::Tally;

use crate::alarms::{Alarm, Alarms};
use crate::counters::Line;

/// Which rule of which session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UsageId {
    /// The UPF's SEID of the session.
    pub up_seid: u64,
    /// URR ID.
    pub urr: u32,
}

/// The counters of a usage reporting rule, with their terms. Two of them are equal if they are the same.
#[derive(Clone, Debug)]
pub struct Usage(Arc<Lines>);

#[derive(Debug)]
struct Lines {
    /// Written by the worker alone.
    counted: Line,
    terms: Terms,
    id: UsageId,
    /// Downlink traffic that was dropped, where that is to be told.
    dropped: OnceLock<Box<Dropped>>,
}

/// Numbers of packets and of octets; N4 is told when either gets to its bound.
#[derive(Debug, Default)]
struct Dropped {
    /// Written by the worker alone.
    counted: [AtomicU64; 2],
    /// Written by N4 alone.
    tell_at: [AtomicU64; 2],
}

/// In place of a rule's ID: what the UPF watches by, for itself, whether a session has packets. IDs that session managers
/// give do not have the highest bit set (8.2.54).
pub const ACTIVITY: u32 = u32::MAX;

/// Words of the worker's line.
const UPLINK_OCTETS: usize = 0;
const DOWNLINK_OCTETS: usize = 1;
const UPLINK_PACKETS: usize = 2;
const DOWNLINK_PACKETS: usize = 3;
/// First packet of the epoch, in nanoseconds of the [`crate::clock::Clock`].
const FIRST_NS: usize = 4;
const LAST_NS: usize = 5;
/// Time of use up to the last packet.
const USED_NS: usize = 6;
/// The epoch of the last packet (0 before the first), and in the upper half that in which a packet was refused (0 if none was).
const EPOCHS: usize = 7;

/// What no count and no time of a UPF ever gets to, so that sums of them fit.
const MOST: u64 = 1 << 60;

/// Written by N4 alone.
#[derive(Debug)]
#[repr(align(64))]
struct Terms {
    /// N4 is told when a count gets here. Total, uplink, downlink.
    tell_at: [AtomicU64; 3],
    /// What would go beyond does not pass. Total, uplink, downlink.
    stop_at: [AtomicU64; 3],
    /// Longer pauses between packets do not count as use beyond this.
    inactivity_ns: AtomicU64,
    /// Counts what N4 has done: it is told of the first packet and of the first refusal in each.
    epoch: AtomicU32,
    /// Whether N4 is to be told of the first packet.
    tell_first: AtomicBool,
}

/// Octets of users' IP packets, and packets, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Octets uplink.
    pub uplink_octets: u64,
    /// Octets downlink.
    pub downlink_octets: u64,
    /// Packets uplink.
    pub uplink_packets: u64,
    /// Packets downlink.
    pub downlink_packets: u64,
}

/// What was counted until a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Volume.
    pub counts: Counts,
    /// Time of use.
    pub used_ns: u64,
    /// First packet since the terms were last set, if there was one.
    pub first_ns: Option<u64>,
    /// Last packet of all.
    pub last_ns: Option<u64>,
    /// Whether a packet was refused since the terms were last set.
    pub refused: bool,
    /// Downlink packets and octets that were dropped, since they are watched.
    pub dropped: [u64; 2],
}

/// Bounds on what may be counted; none where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Octets in both directions.
    pub total: Option<u64>,
    /// Octets uplink.
    pub uplink: Option<u64>,
    /// Octets downlink.
    pub downlink: Option<u64>,
}

/// How far counting may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTerms {
    /// N4 is told when a count gets here.
    pub tell_at: Bounds,
    /// Packets that would take a count beyond this do not pass.
    pub stop_at: Bounds,
    /// Pauses count as use for so long at most; for ever where absent.
    pub inactivity_ns: Option<u64>,
    /// Whether N4 is to be told of the next packet.
    pub tell_first: bool,
    /// N4 is told when so many downlink packets, or octets, are dropped.
    pub tell_dropped_at: Option<[Option<u64>; 2]>,
}

const NEVER: u64 = u64::MAX;

impl Usage {
    /// Counters at zero, with the given terms, that nobody keeps.
    pub fn new(id: UsageId, terms: &UsageTerms) -> Self {
        Self::on(Line::lone(), id, terms)
    }

    /// Counters that lie on `line`, which is all zero, with the given terms.
    pub fn on(line: Line, id: UsageId, terms: &UsageTerms) -> Self {
        let usage = Self::unset(line, id, 0);
        usage.set(terms);
        usage
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.read(0).counts
    }

    /// Counters that an earlier process left on `line`, in its epoch `epoch`, without terms yet. None if they cannot be
    /// right at `now_ns`.
    pub fn found(line: Line, id: UsageId, epoch: u32, now_ns: u64) -> Option<Self> {
        let words = line.words().each_ref().map(|word| word.load(Relaxed));
        let times = [words[FIRST_NS], words[LAST_NS], words[USED_NS]];
        if words[..FIRST_NS].iter().any(|&count| count > MOST) || times.iter().any(|&time| time > now_ns) {
            return None;
        }
        // A worker may have seen an epoch that nobody has written down.
        let seen = words[EPOCHS] as u32;
        let epoch = if seen > epoch { seen.checked_add(1).unwrap_or(1) } else { epoch };
        Some(Self::unset(line, id, epoch))
    }

    fn unset(counted: Line, id: UsageId, epoch: u32) -> Self {
        let never = || [NEVER; 3].map(AtomicU64::new);
        let terms = Terms {
            tell_at: never(),
            stop_at: never(),
            inactivity_ns: AtomicU64::new(NEVER),
            epoch: AtomicU32::new(epoch),
            tell_first: AtomicBool::new(false),
        };
        Self(Arc::new(Lines { counted, terms, id, dropped: OnceLock::new() }))
    }

    /// Where the counters lie, and the epoch: what [`Usage::found`] needs of them.
    pub fn place(&self) -> (u32, u32) {
        (self.0.counted.index(), self.0.terms.epoch.load(Relaxed))
    }

    /// Whose counters these are.
    pub fn id(&self) -> UsageId {
        self.0.id
    }

    // The worker's side.

    /// Whether a packet of `octets` octets stays within the bounds. If not, N4 is told, once.
    #[inline]
    fn admits(&self, uplink: bool, octets: u64, alarms: &mut Alarms) -> bool {
        let within = self.has_room(uplink, octets);
        if !within {
            self.refuse(alarms);
        }
        within
    }

    #[inline]
    fn has_room(&self, uplink: bool, octets: u64) -> bool {
        let (counted, terms) = (self.0.counted.words(), &self.0.terms);
        let [total, up, down] = octets_of(counted);
        let one_way = if uplink { (up, &terms.stop_at[1]) } else { (down, &terms.stop_at[2]) };
        total + octets <= terms.stop_at[0].load(Relaxed) && one_way.0 + octets <= one_way.1.load(Relaxed)
    }

    #[cold]
    fn refuse(&self, alarms: &mut Alarms) {
        let epoch = self.0.terms.epoch.load(Relaxed);
        let epochs = &self.0.counted.words()[EPOCHS];
        let [seen, refused_in] = halves(epochs.load(Relaxed));
        if refused_in != epoch {
            epochs.store(whole(seen, epoch), Relaxed);
            alarms.tell(Alarm::Usage(self.0.id));
        }
    }

    #[inline]
    fn count(&self, uplink: bool, octets: u64, now_ns: u64, alarms: &mut Alarms) {
        let (counted, terms) = (self.0.counted.words(), &self.0.terms);
        let [total, up, down] = octets_of(counted);
        let (octets_at, packets_at, one_way, tell_at) = if uplink {
            (UPLINK_OCTETS, UPLINK_PACKETS, up, &terms.tell_at[1])
        } else {
            (DOWNLINK_OCTETS, DOWNLINK_PACKETS, down, &terms.tell_at[2])
        };
        add(&counted[octets_at], octets);
        add(&counted[packets_at], 1);
        let reached = |before: u64, at: &AtomicU64| {
            let at = at.load(Relaxed);
            before < at && at <= before + octets
        };
        let mut tell = reached(total, &terms.tell_at[0]) | reached(one_way, tell_at);
        let epoch = terms.epoch.load(Relaxed);
        let pause = now_ns.saturating_sub(counted[LAST_NS].load(Relaxed));
        let [seen, refused_in] = halves(counted[EPOCHS].load(Relaxed));
        if seen != 0 {
            add(&counted[USED_NS], pause.min(terms.inactivity_ns.load(Relaxed)));
        }
        if seen != epoch {
            counted[FIRST_NS].store(now_ns, Relaxed);
            counted[EPOCHS].store(whole(epoch, refused_in), Relaxed);
            tell |= terms.tell_first.load(Relaxed);
        }
        counted[LAST_NS].store(now_ns, Relaxed);
        if tell {
            alarms.tell(Alarm::Usage(self.0.id));
        }
    }

    /// A packet came that is not sent.
    fn note(&self, now_ns: u64, alarms: &mut Alarms) {
        let (counted, terms) = (self.0.counted.words(), &self.0.terms);
        let epoch = terms.epoch.load(Relaxed);
        let [seen, refused_in] = halves(counted[EPOCHS].load(Relaxed));
        if seen != epoch {
            counted[FIRST_NS].store(now_ns, Relaxed);
            counted[EPOCHS].store(whole(epoch, refused_in), Relaxed);
            if terms.tell_first.load(Relaxed) {
                alarms.tell(Alarm::Usage(self.0.id));
            }
        }
        counted[LAST_NS].store(now_ns, Relaxed);
    }

    /// A downlink packet was dropped.
    fn lose(&self, octets: u64, alarms: &mut Alarms) {
        let Some(dropped) = self.0.dropped.get() else { return };
        let mut tell = false;
        for ((counted, tell_at), number) in dropped.counted.iter().zip(&dropped.tell_at).zip([1, octets]) {
            let (before, at) = (counted.load(Relaxed), tell_at.load(Relaxed));
            counted.store(before + number, Relaxed);
            tell |= before < at && at <= before + number;
        }
        if tell {
            alarms.tell(Alarm::Usage(self.0.id));
        }
    }

    fn uncount(&self, uplink: bool, octets: u64) {
        let counted = self.0.counted.words();
        let (octets_at, packets_at) =
            if uplink { (UPLINK_OCTETS, UPLINK_PACKETS) } else { (DOWNLINK_OCTETS, DOWNLINK_PACKETS) };
        add(&counted[octets_at], octets.wrapping_neg());
        add(&counted[packets_at], 1_u64.wrapping_neg());
    }

    // N4's side.

    /// Sets the terms, and begins a new epoch: the next packet is the first again, and so is the next one refused.
    pub fn set(&self, terms: &UsageTerms) {
        self.resume(terms);
        let own = &self.0.terms;
        // 0 is the epoch of counters that nothing has been counted in.
        own.epoch.store(own.epoch.load(Relaxed).checked_add(1).unwrap_or(1), Relaxed);
    }

    /// Sets the terms within the epoch that there is.
    pub fn resume(&self, terms: &UsageTerms) {
        let own = &self.0.terms;
        let store = |bounds: &Bounds, to: &[AtomicU64; 3]| {
            let bounds = [bounds.total, bounds.uplink, bounds.downlink];
            to.iter().zip(bounds).for_each(|(to, bound)| to.store(bound.unwrap_or(NEVER), Relaxed));
        };
        store(&terms.tell_at, &own.tell_at);
        store(&terms.stop_at, &own.stop_at);
        own.inactivity_ns.store(terms.inactivity_ns.unwrap_or(NEVER), Relaxed);
        own.tell_first.store(terms.tell_first, Relaxed);
        if terms.tell_dropped_at.is_some() || self.0.dropped.get().is_some() {
            let dropped = self.0.dropped.get_or_init(Box::default);
            let bounds = terms.tell_dropped_at.unwrap_or_default();
            dropped.tell_at.iter().zip(bounds).for_each(|(at, bound)| at.store(bound.unwrap_or(NEVER), Relaxed));
        }
    }

    /// What was counted until `now_ns`.
    pub fn read(&self, now_ns: u64) -> Reading {
        let (counted, terms) = (self.0.counted.words(), &self.0.terms);
        let at = |word: usize| counted[word].load(Relaxed);
        let epoch = terms.epoch.load(Relaxed);
        let [seen, refused_in] = halves(at(EPOCHS));
        let last = at(LAST_NS);
        let pause = if seen == 0 { 0 } else { now_ns.saturating_sub(last) };
        Reading {
            counts: Counts {
                uplink_octets: at(UPLINK_OCTETS),
                downlink_octets: at(DOWNLINK_OCTETS),
                uplink_packets: at(UPLINK_PACKETS),
                downlink_packets: at(DOWNLINK_PACKETS),
            },
            used_ns: at(USED_NS) + pause.min(terms.inactivity_ns.load(Relaxed)),
            first_ns: (seen == epoch).then(|| at(FIRST_NS)),
            last_ns: (seen != 0).then_some(last),
            refused: refused_in == epoch,
            dropped: self.0.dropped.get().map_or([0; 2], |d| d.counted.each_ref().map(|number| number.load(Relaxed))),
        }
    }
}

impl Counts {
    /// Of each number the higher one.
    #[must_use]
    pub fn at_least(&self, other: &Self) -> Self {
        Self {
            uplink_octets: self.uplink_octets.max(other.uplink_octets),
            downlink_octets: self.downlink_octets.max(other.downlink_octets),
            uplink_packets: self.uplink_packets.max(other.uplink_packets),
            downlink_packets: self.downlink_packets.max(other.downlink_packets),
        }
    }
}

impl PartialEq for Usage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Usage {}

/// Total, uplink, downlink.
#[inline]
fn octets_of(counted: &Tally) -> [u64; 3] {
    let (up, down) = (counted[UPLINK_OCTETS].load(Relaxed), counted[DOWNLINK_OCTETS].load(Relaxed));
    [up + down, up, down]
}

/// The lower and the upper half of a word.
#[inline]
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// The word of two halves.
#[inline]
fn whole(lower: u32, upper: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

/// Adds, where nobody else writes.
#[inline]
fn add(to: &AtomicU64, number: u64) {
    to.store(to.load(Relaxed).wrapping_add(number), Relaxed);
}

/// Whether a packet of `octets` octets stays within the bounds of all rules that it counts for.
#[inline]
pub fn admit(usages: &[Usage], uplink: bool, octets: usize, alarms: &mut Alarms) -> bool {
    usages.iter().all(|usage| usage.admits(uplink, octets as u64, alarms))
}

/// Counts a packet for all of them.
#[inline]
pub fn count(usages: &[Usage], uplink: bool, octets: usize, now_ns: u64, alarms: &mut Alarms) {
    usages.iter().for_each(|usage| usage.count(uplink, octets as u64, now_ns, alarms));
}

/// The first that a packet would take beyond its bounds.
#[cold]
pub fn refusing(usages: &[Usage], uplink: bool, octets: usize) -> Option<usize> {
    usages.iter().position(|usage| !usage.has_room(uplink, octets as u64))
}

/// A downlink packet that would count for them was dropped.
#[cold]
pub fn lose(usages: &[Usage], octets: usize, alarms: &mut Alarms) {
    usages.iter().for_each(|usage| usage.lose(octets as u64, alarms));
}

/// A packet came that would count for them, and is not sent now.
#[cold]
pub fn note(usages: &[Usage], now_ns: u64, alarms: &mut Alarms) {
    usages.iter().filter(|usage| usage.id().urr == ACTIVITY).for_each(|usage| usage.note(now_ns, alarms));
}

/// Takes back a packet that was counted and could not be sent.
#[cold]
pub fn uncount(usages: &[Usage], uplink: bool, octets: usize) {
    usages.iter().for_each(|usage| usage.uncount(uplink, octets as u64));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarms::{self, AlarmReceiver};
    use crate::bell::Bell;

    const ID: UsageId = UsageId { up_seid: 1, urr: 2 };
    const TOLD: Option<Alarm> = Some(Alarm::Usage(ID));

    fn ends() -> (Alarms, AlarmReceiver) {
        alarms::channel(Arc::new(Bell::new().unwrap()))
    }

    fn total(octets: u64) -> Bounds {
        Bounds { total: Some(octets), ..Bounds::default() }
    }

    #[test]
    fn each_direction_is_counted_for_itself() {
        let (mut alarms, _) = ends();
        let usage = Usage::new(ID, &UsageTerms::default());
        usage.count(true, 100, 5, &mut alarms);
        usage.count(false, 40, 9, &mut alarms);
        usage.count(false, 2, 9, &mut alarms);
        usage.uncount(false, 2);
        let reading = usage.read(20);
        let counts = Counts { uplink_octets: 100, downlink_octets: 40, uplink_packets: 1, downlink_packets: 1 };
        assert_eq!((reading.counts, reading.first_ns, reading.last_ns), (counts, Some(5), Some(9)));
        assert_eq!(reading.used_ns, 15);
    }

    #[test]
    fn n4_is_told_once_when_a_count_gets_to_a_bound() {
        let (mut alarms, mut told) = ends();
        let usage = Usage::new(ID, &UsageTerms { tell_at: total(100), ..UsageTerms::default() });
        for (octets, expected) in [(60, None), (39, None), (1, TOLD), (100, None)] {
            usage.count(true, octets, 1, &mut alarms);
            assert_eq!(told.take(), expected, "after {octets} more");
        }
    }

    #[test]
    fn what_would_go_beyond_a_bound_is_refused_and_told_once() {
        let (mut alarms, mut told) = ends();
        let usage = Usage::new(ID, &UsageTerms { stop_at: total(100), ..UsageTerms::default() });
        assert!(usage.admits(true, 100, &mut alarms));
        usage.count(true, 60, 1, &mut alarms);
        assert!(!usage.read(1).refused && !usage.admits(false, 41, &mut alarms));
        assert!(usage.read(1).refused && !usage.admits(false, 41, &mut alarms));
        assert_eq!((told.take(), told.take()), (TOLD, None));
        usage.set(&UsageTerms { stop_at: total(200), ..UsageTerms::default() });
        assert!(usage.admits(false, 41, &mut alarms) && !usage.read(1).refused);
    }

    #[test]
    fn pauses_count_as_use_up_to_the_inactivity_time() {
        let (mut alarms, _) = ends();
        let usage = Usage::new(ID, &UsageTerms { inactivity_ns: Some(10), ..UsageTerms::default() });
        assert_eq!(usage.read(1_000).used_ns, 0);
        [1_000, 1_004, 2_000].iter().for_each(|&at| usage.count(true, 1, at, &mut alarms));
        assert_eq!(usage.read(2_003).used_ns, 4 + 10 + 3);
        assert_eq!(usage.read(3_000).used_ns, 4 + 10 + 10);
    }

    #[test]
    fn the_first_packet_of_an_epoch_is_told_where_that_is_asked_for() {
        let (mut alarms, mut told) = ends();
        let terms = UsageTerms { tell_first: true, ..UsageTerms::default() };
        let usage = Usage::new(ID, &terms);
        assert_eq!(usage.read(1).first_ns, None);
        usage.count(true, 1, 7, &mut alarms);
        usage.count(true, 1, 8, &mut alarms);
        assert_eq!((told.take(), told.take()), (TOLD, None));
        usage.set(&terms);
        assert_eq!(usage.read(9).first_ns, None);
        usage.count(true, 1, 10, &mut alarms);
        assert_eq!((told.take(), usage.read(11).first_ns), (TOLD, Some(10)));
    }
}
