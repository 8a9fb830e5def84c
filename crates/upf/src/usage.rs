//! What a usage reporting rule counts. The worker that owns the session counts; N4 reads, and says how far it may go.
//!
//! Each side writes a cache line of its own, which may lie where it outlives the process ([`crate::counters`]). N4 changes the
//! terms while packets pass; a worker that has not seen them yet counts by the former ones for a moment, so N4 looks again a
//! little later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};
use vport::tally::Line;

use crate::alarms::{Alarm, Alarms};
use crate::counters::{Counters, Place, Words};

/// Which rule of which session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UsageId {
    /// The UPF's SEID of the session.
    pub up_seid: u64,
    /// URR ID.
    pub urr: u32,
}

/// The counters of a usage reporting rule, with their terms, as N4 has them. Two of them are equal if they are the same.
#[derive(Clone, Debug)]
pub struct Usage(Arc<Own>);

#[derive(Debug)]
struct Own {
    place: Place,
    /// The UPF's SEID of the session. Never changed.
    up_seid: AtomicU64,
    urr: u32,
}

/// The same as a worker has them.
#[derive(Clone, Copy)]
pub struct Gauge<'c> {
    words: Words<'c>,
    counters: &'c Counters,
    place: u32,
    /// The UPF's SEID of the session.
    up_seid: &'c AtomicU64,
}

/// All that a packet counts for.
#[derive(Clone, Copy)]
pub struct Gauges<'c> {
    counters: &'c Counters,
    places: Places<'c>,
    /// The UPF's SEID of the session.
    up_seid: &'c AtomicU64,
}

/// Places of counters.
#[derive(Clone, Copy)]
pub enum Places<'c> {
    /// None.
    None,
    /// One, as most rules have.
    One(u32),
    /// So many, two in each of these words.
    Many(&'c [AtomicU64], usize),
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

/// Words of N4's line: N4 is told when a count gets to the first three, and what would go beyond the next three does not pass.
/// Total, uplink, downlink.
const TELL_AT: usize = 0;
const STOP_AT: usize = 3;
/// Pauses between packets count as use for so many seconds; in the upper half the URR's ID.
const PAUSE: usize = 6;
/// Counts what N4 has done: it is told of the first packet and of the first refusal in each. In the upper half are flags.
const EPOCH: usize = 7;
/// Whether N4 is to be told of the first packet.
const TELL_FIRST: u32 = 1;
/// Whether packets count that gates and maximum bit rates stop.
const BEFORE_QOS: u32 = 2;

/// Words of dropped downlink traffic: packets and octets, and the bounds at which N4 is told.
const DROPPED: usize = 0;
const TELL_DROPPED_AT: usize = 2;
/// Whether dropped traffic is counted.
const IS_WATCHED: usize = 4;

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
    pub inactivity_s: Option<u32>,
    /// Whether N4 is to be told of the next packet.
    pub tell_first: bool,
    /// Whether packets count, too, that QoS enforcement stops.
    pub before_qos: bool,
    /// N4 is told when so many downlink packets, or octets, are dropped.
    pub tell_dropped_at: Option<[Option<u64>; 2]>,
}

const NEVER: u64 = u64::MAX;
const NEVER_S: u32 = u32::MAX;

impl Usage {
    /// Counters that lie at `place`, which is all zero, with the given terms.
    pub fn new(place: Place, id: UsageId, terms: &UsageTerms) -> Self {
        let usage = Self::of(place, id);
        usage.set(terms);
        usage
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.read(0).counts
    }

    /// Counters that an earlier process left at `place`, in its epoch `epoch` or a later one. None if they cannot be right at
    /// `now_ns`. Workers may count by them already.
    pub fn found(place: Place, id: UsageId, epoch: u32, now_ns: u64) -> Option<Self> {
        let Words { counted, terms } = place.words();
        let words = counted.each_ref().map(|word| word.load(Relaxed));
        let times = [words[FIRST_NS], words[LAST_NS], words[USED_NS]];
        if words[..FIRST_NS].iter().any(|&count| count > MOST) || times.iter().any(|&time| time > now_ns) {
            return None;
        }
        // A worker may have seen an epoch that nobody has written down.
        let (seen, [own, flags]) = (words[EPOCHS] as u32, halves(terms[EPOCH].load(Relaxed)));
        let epoch = epoch.max(own);
        let epoch = if seen > epoch { seen.checked_add(1).unwrap_or(1) } else { epoch };
        terms[EPOCH].store(whole(epoch, flags), Relaxed);
        Some(Self::of(place, id))
    }

    /// Where the counters lie, and the epoch: what [`Usage::found`] needs of them.
    pub fn place(&self) -> (u32, u32) {
        (self.0.place.index(), halves(self.words().terms[EPOCH].load(Relaxed))[0])
    }

    /// Whose counters these are.
    pub fn id(&self) -> UsageId {
        UsageId { up_seid: self.0.up_seid.load(Relaxed), urr: self.0.urr }
    }

    /// The counters as a worker has them.
    pub fn gauge(&self) -> Gauge<'_> {
        let (counters, place) = (self.0.place.counters(), self.0.place.index());
        Gauge { words: self.words(), counters, place, up_seid: &self.0.up_seid }
    }

    /// Sets the terms, and begins a new epoch: the next packet is the first again, and so is the next one refused.
    pub fn set(&self, terms: &UsageTerms) {
        self.resume(terms);
        let epoch = &self.words().terms[EPOCH];
        let [before, flags] = halves(epoch.load(Relaxed));
        // 0 is the epoch of counters that nothing has been counted in.
        epoch.store(whole(before.checked_add(1).unwrap_or(1), flags), Relaxed);
    }

    /// Sets the terms within the epoch that there is.
    pub fn resume(&self, terms: &UsageTerms) {
        let (Words { terms: own, .. }, dropped) = (self.words(), self.0.place.dropped());
        let store = |bounds: &Bounds, at: usize| {
            let bounds = [bounds.total, bounds.uplink, bounds.downlink];
            own[at..].iter().zip(bounds).for_each(|(to, bound)| to.store(bound.unwrap_or(NEVER), Relaxed));
        };
        store(&terms.tell_at, TELL_AT);
        store(&terms.stop_at, STOP_AT);
        own[PAUSE].store(whole(terms.inactivity_s.unwrap_or(NEVER_S), self.0.urr), Relaxed);
        let [epoch, _] = halves(own[EPOCH].load(Relaxed));
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(terms.tell_first, TELL_FIRST) | flag(terms.before_qos, BEFORE_QOS);
        own[EPOCH].store(whole(epoch, flags), Relaxed);
        if terms.tell_dropped_at.is_some() || dropped[IS_WATCHED].load(Relaxed) != 0 {
            let bounds = terms.tell_dropped_at.unwrap_or_default();
            let tell_at = dropped[TELL_DROPPED_AT..].iter();
            tell_at.zip(bounds).for_each(|(at, bound)| at.store(bound.unwrap_or(NEVER), Relaxed));
            dropped[IS_WATCHED].store(1, Relaxed);
        }
    }

    /// What was counted until `now_ns`.
    pub fn read(&self, now_ns: u64) -> Reading {
        let (Words { counted, terms }, dropped) = (self.words(), self.0.place.dropped());
        let at = |word: usize| counted[word].load(Relaxed);
        let [epoch, _] = halves(terms[EPOCH].load(Relaxed));
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
            used_ns: at(USED_NS) + pause.min(longest_pause_ns(terms)),
            first_ns: (seen == epoch).then(|| at(FIRST_NS)),
            last_ns: (seen != 0).then_some(last),
            refused: refused_in == epoch,
            dropped: [DROPPED, DROPPED + 1].map(|word| dropped[word].load(Relaxed)),
        }
    }

    fn of(place: Place, UsageId { up_seid, urr }: UsageId) -> Self {
        Self(Arc::new(Own { place, up_seid: up_seid.into(), urr }))
    }

    fn words(&self) -> Words<'_> {
        self.0.place.words()
    }
}

#[inline]
fn longest_pause_ns(terms: &Line) -> u64 {
    match halves(terms[PAUSE].load(Relaxed))[0] {
        NEVER_S => NEVER,
        seconds => u64::from(seconds) * 1_000_000_000,
    }
}

impl Gauge<'_> {
    /// Whether a packet of `octets` octets stays within the bounds. If not, N4 is told, once.
    #[inline(always)]
    pub fn admits(&self, uplink: bool, octets: u64, alarms: &mut Alarms) -> bool {
        let within = self.has_room(uplink, octets);
        if !within {
            self.refuse(alarms);
        }
        within
    }

    #[inline(always)]
    fn has_room(&self, uplink: bool, octets: u64) -> bool {
        let Words { counted, terms } = self.words;
        let [total, up, down] = octets_of(counted);
        let one_way = if uplink { (up, &terms[STOP_AT + 1]) } else { (down, &terms[STOP_AT + 2]) };
        total + octets <= terms[STOP_AT].load(Relaxed) && one_way.0 + octets <= one_way.1.load(Relaxed)
    }

    #[cold]
    fn refuse(&self, alarms: &mut Alarms) {
        let [epoch, _] = halves(self.words.terms[EPOCH].load(Relaxed));
        let epochs = &self.words.counted[EPOCHS];
        let [seen, refused_in] = halves(epochs.load(Relaxed));
        if refused_in != epoch {
            epochs.store(whole(seen, epoch), Relaxed);
            self.tell(alarms);
        }
    }

    /// Counts a packet.
    #[inline(always)]
    pub fn count(&self, uplink: bool, octets: u64, now_ns: u64, alarms: &mut Alarms) {
        let Words { counted, terms } = self.words;
        let [total, up, down] = octets_of(counted);
        let (octets_at, packets_at, one_way, tell_at) = if uplink {
            (UPLINK_OCTETS, UPLINK_PACKETS, up, &terms[TELL_AT + 1])
        } else {
            (DOWNLINK_OCTETS, DOWNLINK_PACKETS, down, &terms[TELL_AT + 2])
        };
        add(&counted[octets_at], octets);
        add(&counted[packets_at], 1);
        let reached = |before: u64, at: &AtomicU64| {
            let at = at.load(Relaxed);
            before < at && at <= before + octets
        };
        let mut tell = reached(total, &terms[TELL_AT]) | reached(one_way, tell_at);
        let [epoch, flags] = halves(terms[EPOCH].load(Relaxed));
        let pause = now_ns.saturating_sub(counted[LAST_NS].load(Relaxed));
        let [seen, refused_in] = halves(counted[EPOCHS].load(Relaxed));
        if seen != 0 {
            add(&counted[USED_NS], pause.min(longest_pause_ns(terms)));
        }
        if seen != epoch {
            counted[FIRST_NS].store(now_ns, Relaxed);
            counted[EPOCHS].store(whole(epoch, refused_in), Relaxed);
            tell |= flags & TELL_FIRST != 0;
        }
        counted[LAST_NS].store(now_ns, Relaxed);
        if tell {
            self.tell(alarms);
        }
    }

    /// A packet came that is not sent.
    pub fn note(&self, now_ns: u64, alarms: &mut Alarms) {
        let Words { counted, terms } = self.words;
        let [epoch, flags] = halves(terms[EPOCH].load(Relaxed));
        let [seen, refused_in] = halves(counted[EPOCHS].load(Relaxed));
        if seen != epoch {
            counted[FIRST_NS].store(now_ns, Relaxed);
            counted[EPOCHS].store(whole(epoch, refused_in), Relaxed);
            if flags & TELL_FIRST != 0 {
                self.tell(alarms);
            }
        }
        counted[LAST_NS].store(now_ns, Relaxed);
    }

    /// A downlink packet was dropped.
    pub fn lose(&self, octets: u64, alarms: &mut Alarms) {
        let dropped = self.counters.dropped(self.place);
        if dropped[IS_WATCHED].load(Relaxed) == 0 {
            return;
        }
        let mut tell = false;
        for (at, number) in [1, octets].into_iter().enumerate() {
            let (before, bound) = (dropped[DROPPED + at].load(Relaxed), dropped[TELL_DROPPED_AT + at].load(Relaxed));
            dropped[DROPPED + at].store(before + number, Relaxed);
            tell |= before < bound && bound <= before + number;
        }
        if tell {
            self.tell(alarms);
        }
    }

    /// A packet that was counted could not be sent.
    pub fn uncount(&self, uplink: bool, octets: u64) {
        let counted = self.words.counted;
        let (octets_at, packets_at) =
            if uplink { (UPLINK_OCTETS, UPLINK_PACKETS) } else { (DOWNLINK_OCTETS, DOWNLINK_PACKETS) };
        add(&counted[octets_at], octets.wrapping_neg());
        add(&counted[packets_at], 1_u64.wrapping_neg());
    }

    #[cold]
    fn tell(&self, alarms: &mut Alarms) {
        let [_, urr] = halves(self.words.terms[PAUSE].load(Relaxed));
        alarms.tell(Alarm::Usage(UsageId { up_seid: self.up_seid.load(Relaxed), urr }));
    }

    fn is_before_qos(&self) -> bool {
        halves(self.words.terms[EPOCH].load(Relaxed))[1] & BEFORE_QOS != 0
    }

    fn is_activity(&self) -> bool {
        halves(self.words.terms[PAUSE].load(Relaxed))[1] == ACTIVITY
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
        self.0.place.index() == other.0.place.index()
    }
}

impl Eq for Usage {}

/// Total, uplink, downlink.
#[inline]
fn octets_of(counted: &Line) -> [u64; 3] {
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
pub(crate) fn whole(lower: u32, upper: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

/// Adds, where nobody else writes.
#[inline]
fn add(to: &AtomicU64, number: u64) {
    to.store(to.load(Relaxed).wrapping_add(number), Relaxed);
}

impl<'c> Gauges<'c> {
    /// Those at `places` among `counters`, of the session with this SEID.
    #[inline(always)]
    pub fn new(counters: &'c Counters, places: Places<'c>, up_seid: &'c AtomicU64) -> Self {
        Self { counters, places, up_seid }
    }

    /// Whether a packet of `octets` octets stays within the bounds of all.
    #[inline(always)]
    pub fn admit(&self, uplink: bool, octets: usize, alarms: &mut Alarms) -> bool {
        match self.places {
            Places::None => true,
            Places::One(place) => self.at(place).is_none_or(|gauge| gauge.admits(uplink, octets as u64, alarms)),
            Places::Many(..) => self.admit_all(uplink, octets, alarms),
        }
    }

    #[inline(never)]
    fn admit_all(&self, uplink: bool, octets: usize, alarms: &mut Alarms) -> bool {
        self.each().all(|gauge| gauge.admits(uplink, octets as u64, alarms))
    }

    /// Counts a packet for all.
    #[inline(always)]
    pub fn count(&self, uplink: bool, octets: usize, now_ns: u64, alarms: &mut Alarms) {
        match self.places {
            Places::None => {}
            Places::One(place) => {
                if let Some(gauge) = self.at(place) {
                    gauge.count(uplink, octets as u64, now_ns, alarms);
                }
            }
            Places::Many(..) => self.count_all(uplink, octets, now_ns, alarms),
        }
    }

    #[inline(never)]
    fn count_all(&self, uplink: bool, octets: usize, now_ns: u64, alarms: &mut Alarms) {
        self.each().for_each(|gauge| gauge.count(uplink, octets as u64, now_ns, alarms));
    }

    /// The first that a packet would take beyond its bounds.
    #[cold]
    pub fn refusing(&self, uplink: bool, octets: usize) -> Option<usize> {
        self.each().position(|gauge| !gauge.has_room(uplink, octets as u64))
    }

    /// A packet that would count was stopped by QoS enforcement: it counts for those that count before.
    #[cold]
    pub fn count_before_qos(&self, uplink: bool, octets: usize, now_ns: u64, alarms: &mut Alarms) {
        let before = self.each().filter(Gauge::is_before_qos);
        before.for_each(|gauge| gauge.count(uplink, octets as u64, now_ns, alarms));
    }

    /// A downlink packet that would count was dropped.
    #[cold]
    pub fn lose(&self, octets: usize, alarms: &mut Alarms) {
        self.each().for_each(|gauge| gauge.lose(octets as u64, alarms));
    }

    /// A packet came that would count, and is not sent now.
    #[cold]
    pub fn note(&self, now_ns: u64, alarms: &mut Alarms) {
        self.each().filter(Gauge::is_activity).for_each(|gauge| gauge.note(now_ns, alarms));
    }

    /// Takes back a packet that was counted and could not be sent.
    #[cold]
    pub fn uncount(&self, uplink: bool, octets: usize) {
        self.each().for_each(|gauge| gauge.uncount(uplink, octets as u64));
    }

    /// In the order of the rule's usage reporting rules.
    fn each(&self) -> impl Iterator<Item = Gauge<'c>> {
        let count = match self.places {
            Places::None => 0,
            Places::One(_) => 1,
            Places::Many(_, count) => count,
        };
        let this = *self;
        (0..count).filter_map(move |number| match this.places {
            Places::One(place) => this.at(place),
            Places::Many(words, _) => {
                let word = words.get(number / 2)?.load(Relaxed);
                this.at(halves(word)[number % 2])
            }
            Places::None => None,
        })
    }

    #[inline(always)]
    fn at(&self, place: u32) -> Option<Gauge<'c>> {
        Some(Gauge { words: self.counters.words(place)?, counters: self.counters, place, up_seid: self.up_seid })
    }
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

    fn counting(terms: &UsageTerms) -> Usage {
        Usage::new(Counters::private(1).unwrap().open(0).unwrap(), ID, terms)
    }

    fn total(octets: u64) -> Bounds {
        Bounds { total: Some(octets), ..Bounds::default() }
    }

    #[test]
    fn each_direction_is_counted_for_itself() {
        let (mut alarms, _) = ends();
        let usage = counting(&UsageTerms::default());
        usage.gauge().count(true, 100, 5, &mut alarms);
        usage.gauge().count(false, 40, 9, &mut alarms);
        usage.gauge().count(false, 2, 9, &mut alarms);
        usage.gauge().uncount(false, 2);
        let reading = usage.read(20);
        let counts = Counts { uplink_octets: 100, downlink_octets: 40, uplink_packets: 1, downlink_packets: 1 };
        assert_eq!((reading.counts, reading.first_ns, reading.last_ns), (counts, Some(5), Some(9)));
        assert_eq!(reading.used_ns, 15);
    }

    #[test]
    fn n4_is_told_once_when_a_count_gets_to_a_bound() {
        let (mut alarms, mut told) = ends();
        let usage = counting(&UsageTerms { tell_at: total(100), ..UsageTerms::default() });
        for (octets, expected) in [(60, None), (39, None), (1, TOLD), (100, None)] {
            usage.gauge().count(true, octets, 1, &mut alarms);
            assert_eq!(told.take(), expected, "after {octets} more");
        }
    }

    #[test]
    fn what_would_go_beyond_a_bound_is_refused_and_told_once() {
        let (mut alarms, mut told) = ends();
        let usage = counting(&UsageTerms { stop_at: total(100), ..UsageTerms::default() });
        assert!(usage.gauge().admits(true, 100, &mut alarms));
        usage.gauge().count(true, 60, 1, &mut alarms);
        assert!(!usage.read(1).refused && !usage.gauge().admits(false, 41, &mut alarms));
        assert!(usage.read(1).refused && !usage.gauge().admits(false, 41, &mut alarms));
        assert_eq!((told.take(), told.take()), (TOLD, None));
        usage.set(&UsageTerms { stop_at: total(200), ..UsageTerms::default() });
        assert!(usage.gauge().admits(false, 41, &mut alarms) && !usage.read(1).refused);
    }

    #[test]
    fn pauses_count_as_use_up_to_the_inactivity_time() {
        let (mut alarms, _) = ends();
        let usage = counting(&UsageTerms { inactivity_s: Some(10), ..UsageTerms::default() });
        let s = |seconds: u64| seconds * 1_000_000_000;
        assert_eq!(usage.read(s(1_000)).used_ns, 0);
        [1_000, 1_004, 2_000].iter().for_each(|&at| usage.gauge().count(true, 1, s(at), &mut alarms));
        assert_eq!(usage.read(s(2_003)).used_ns, s(4 + 10 + 3));
        assert_eq!(usage.read(s(3_000)).used_ns, s(4 + 10 + 10));
    }

    #[test]
    fn the_first_packet_of_an_epoch_is_told_where_that_is_asked_for() {
        let (mut alarms, mut told) = ends();
        let terms = UsageTerms { tell_first: true, ..UsageTerms::default() };
        let usage = counting(&terms);
        assert_eq!(usage.read(1).first_ns, None);
        usage.gauge().count(true, 1, 7, &mut alarms);
        usage.gauge().count(true, 1, 8, &mut alarms);
        assert_eq!((told.take(), told.take()), (TOLD, None));
        usage.set(&terms);
        assert_eq!(usage.read(9).first_ns, None);
        usage.gauge().count(true, 1, 10, &mut alarms);
        assert_eq!((told.take(), usage.read(11).first_ns), (TOLD, Some(10)));
    }
}
