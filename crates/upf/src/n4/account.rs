//! The account of a usage reporting rule (TS 29.244, 5.2.2): what was reported, what is granted, and what is due.
//!
//! Counts only grow. A report covers what was counted since the one before; thresholds count from the last report, quotas
//! from the last report before they were granted.

use pfcp::report::{UsageReport, UsageReportTrigger as Why};
use pfcp::rule::{MeasurementMethod, ReportingTriggers as Asked, UrrTerms};
use pfcp::{Volume, VolumeMeasurement};
use serde::{Deserialize, Serialize};

use super::particulars::Exchange;
use super::urr::Urr;
use crate::clock::Clock;
use crate::counters::Place;
use crate::usage::{ACTIVITY, Bounds, Counts, Reading, Usage, UsageId, UsageTerms};

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;
/// When to look again after the terms have changed: workers that counted by the former ones have seen the new ones by then.
const LOOK_AGAIN_NS: u64 = 20_000_000;
/// How long there is no traffic before it counts as stopped, where the rule does not say.
const STOPPED_AFTER_S: u32 = 10;
/// What is told of quotas.
const QUOTAS: u32 = Why::VOLQU.0 | Why::TIMQU.0 | Why::QUVTI.0 | Why::QUHTI.0;
/// Usage information: before, and after, the monitoring time; before QoS enforcement (8.2.62).
const BEF: u8 = 1;
const AFT: u8 = 2;
const UBE: u8 = 8;
/// So many monitoring times may pass without a report before usage is not told apart by further ones. All that there is to
/// report of a session has room in one message.
const BEFORE_MOST: usize = 4;

/// The account: the counters, and what is written down about them.
#[derive(Debug)]
pub(super) struct Account {
    usage: Usage,
    books: Books,
}

/// What an account has besides its counters.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Books {
    /// Number of the next report.
    sequence: u32,
    /// Where the next report begins.
    reported: Mark,
    /// What was used before each monitoring time that has passed, and is not reported yet.
    before: Vec<UsageReport>,
    /// Whether a monitoring time has passed since the last report.
    is_after: bool,
    /// Where thresholds begin.
    threshold: Grant,
    /// Downlink packets and octets that were dropped before the last report.
    dropped: [u64; 2],
    /// Where quotas begin.
    quota: Grant,
    /// Whether nothing passes any more, whatever the volume.
    stopped: bool,
    /// What was told since quotas were granted.
    told: Why,
    /// Whether traffic has started and not stopped.
    started: bool,
    /// When the next periodic report is due.
    period_ns: Option<u64>,
    /// When the subsequent thresholds and quotas begin.
    monitoring_ns: Option<u64>,
    /// When there is something to do.
    due_ns: Option<u64>,
    look_again: bool,
}

impl Books {
    /// What accounts that are otherwise the same do not have in common.
    pub fn exchange(&mut self, with: &mut Exchange) {
        with.word(&mut self.sequence);
        let marks = [&mut self.reported, &mut self.threshold.from, &mut self.quota.from];
        marks.into_iter().for_each(|mark| mark.exchange(with));
        self.dropped.iter_mut().for_each(|number| with.number(number));
        let times = [&mut self.period_ns, &mut self.monitoring_ns, &mut self.due_ns];
        times.into_iter().for_each(|at_ns| with.optional(at_ns));
    }

    /// What was used before monitoring times.
    pub fn before(&mut self) -> &mut Vec<UsageReport> {
        &mut self.before
    }
}

impl Mark {
    fn exchange(&mut self, with: &mut Exchange) {
        let Self { counts, used_ns, at_ns } = self;
        let Counts { uplink_octets, downlink_octets, uplink_packets, downlink_packets } = counts;
        let numbers = [uplink_octets, downlink_octets, uplink_packets, downlink_packets, used_ns, at_ns];
        numbers.into_iter().for_each(|number| with.number(number));
    }
}

/// Counts at a moment.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Mark {
    counts: Counts,
    used_ns: u64,
    at_ns: u64,
}

/// So much may be used from a moment on.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Grant {
    from: Mark,
    volume: Option<Volume>,
    time_s: Option<u32>,
}

impl Account {
    /// The account of a new rule, with counters of its own.
    pub fn new(id: UsageId, urr: &Urr, place: Place, clock: &Clock, now_ns: u64) -> Self {
        let from = Mark { at_ns: now_ns, ..Mark::default() };
        let terms = &urr.terms;
        let books = Books {
            sequence: 0,
            reported: from,
            before: vec![],
            is_after: false,
            threshold: Grant { from, volume: terms.volume_threshold, time_s: terms.time_threshold_s },
            dropped: [0; 2],
            quota: Grant { from, volume: terms.volume_quota, time_s: terms.time_quota_s },
            stopped: false,
            told: Why::default(),
            // That nothing comes is inactivity from the beginning.
            started: id.urr == ACTIVITY,
            period_ns: None,
            monitoring_ns: still_to_come(terms, clock, now_ns),
            due_ns: None,
            look_again: false,
        };
        let mut account = Self { usage: Usage::new(place, id, &UsageTerms::default()), books };
        account.set_period(urr, now_ns);
        account.set_terms(urr, now_ns);
        account
    }

    /// The account that an earlier process kept. None if it cannot be one.
    pub fn found(usage: Usage, books: Books, urr: &Urr, now_ns: u64) -> Option<Self> {
        let mut account = Self { usage, books: Some(books).filter(|books| books.can_be(now_ns))? };
        // What is dropped is counted anew by each process.
        account.books.dropped = [0; 2];
        account.usage.resume(&account.terms(urr));
        Some(account)
    }

    /// The account with these counters and books.
    pub fn of(usage: Usage, books: Books) -> Self {
        Self { usage, books }
    }

    /// The counters and the books.
    pub fn into_parts(self) -> (Usage, Books) {
        (self.usage, self.books)
    }

    /// The counters.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// When there is something to do, should no packet come.
    pub fn due_ns(&self) -> Option<u64> {
        self.books.due_ns
    }

    /// The rule `before` has become `urr` by a request that stated `stated`. What is asked for now and was not is news, also
    /// where it has come to pass already. A quota does not depend on whether its end is to be told (8.2.19): it stays in force.
    pub fn change(&mut self, before: &Urr, urr: &Urr, stated: &UrrTerms, clock: &Clock, now_ns: u64) {
        self.books.told.0 &= !(Why::from(urr.triggers).0 & !Why::from(before.triggers).0);
        self.books.threshold.volume = stated.volume_threshold.or(self.books.threshold.volume);
        self.books.threshold.time_s = stated.time_threshold_s.or(self.books.threshold.time_s);
        let (volume, time_s) = (stated.volume_quota, stated.time_quota_s);
        let from = Mark { at_ns: now_ns, ..self.books.reported };
        self.books.quota = self.books.quota.renewed(from, volume, time_s);
        if volume.is_some() || time_s.is_some() || stated.quota_validity_time_s.is_some() {
            self.books.quota.from.at_ns = now_ns;
            self.lift(urr, volume.is_some(), time_s.is_some(), now_ns);
        }
        if stated.monitoring_time.is_some() {
            self.books.monitoring_ns = still_to_come(stated, clock, now_ns);
        }
        if stated.period_s.is_some() || self.books.period_ns.is_some() != urr.triggers.contains(Asked::PERIO) {
            self.set_period(urr, now_ns);
        }
        self.set_terms(urr, now_ns);
    }

    /// Quotas were granted anew, of these kinds: they stop nothing any more, and that they are used up is news again.
    fn lift(&mut self, urr: &Urr, volume: bool, time: bool, now_ns: u64) {
        let news = [(true, Why::QUHTI), (true, Why::QUVTI), (volume, Why::VOLQU), (time, Why::TIMQU)];
        let is_news = news.into_iter().filter(|(is_news, _)| *is_news).fold(0, |all, (_, why)| all | why.0);
        self.books.told.0 &= !is_news;
        let now = self.mark(urr, &self.usage.read(now_ns), now_ns);
        self.books.stopped &= self.books.quota.time_reached(&now);
    }

    /// What is to be reported now, if anything is. Has the monitoring time take effect, and stops what is used up.
    pub fn look(&mut self, urr: &Urr, clock: &Clock, now_ns: u64) -> Option<Why> {
        self.books.look_again = false;
        let (reading, now, used_up) = self.take_effect(urr, clock, now_ns);
        let why = self.news(urr, &reading, &now) | used_up & !self.books.told.0;
        // Once for each quota, whether or not anyone is told.
        self.books.told.0 |= why & QUOTAS;
        let asked = Why::from(urr.triggers).0;
        // Whoever asks for stops alone is told of those of traffic whose start was not told.
        self.books.started |= asked & (Why::START.0 | Why::STOPT.0) == Why::STOPT.0 && why & Why::START.0 != 0;
        let why = Why(why & asked);
        self.schedule(urr, &reading, now_ns);
        (why != Why::default()).then_some(why)
    }

    /// What there is to tell, whether or not anyone asks for it, but for quotas that are used up.
    fn news(&self, urr: &Urr, reading: &Reading, now: &Mark) -> u32 {
        let mut why = self.reached(now) | self.idle(reading, urr, now.at_ns);
        if self.too_much_is_dropped(reading, urr) {
            why |= Why::DROTH.0;
        }
        if self.books.period_ns.is_some_and(|at| at <= now.at_ns) {
            why |= Why::PERIO.0;
        }
        why & !self.books.told.0
    }

    /// What has an effect has it, though nothing can be reported. When there is more of that, and whether [`Account::look`] has
    /// something to do.
    pub fn keep_limits(&mut self, urr: &Urr, clock: &Clock, now_ns: u64) -> (Option<u64>, bool) {
        self.books.look_again = false;
        let (reading, now, used_up) = self.take_effect(urr, clock, now_ns);
        let why = self.news(urr, &reading, &now) | used_up & !self.books.told.0;
        let asked = Why::from(urr.triggers).0;
        // Stops follow from starts.
        let starts = if asked & Why::STOPT.0 != 0 { Why::START.0 } else { 0 };
        self.schedule(urr, &reading, now_ns);
        let quota_ns = self.time_used_ns(&self.books.quota, urr, &reading, &now);
        let times = [self.books.monitoring_ns, self.valid_until_ns(urr), quota_ns];
        let due_ns = times.into_iter().flatten().filter(|&at_ns| at_ns > now_ns).min();
        (due_ns, why & (asked | QUOTAS | starts) != 0)
    }

    /// Passes the monitoring time, and stops what is used up. The counts as they stand, and the quotas that are used up.
    fn take_effect(&mut self, urr: &Urr, clock: &Clock, now_ns: u64) -> (Reading, Mark, u32) {
        if self.books.monitoring_ns.is_some_and(|at| at <= now_ns) {
            self.pass_monitoring_time(urr, clock, now_ns);
        }
        let reading = self.usage.read(now_ns);
        let now = self.mark(urr, &reading, now_ns);
        let used_up = self.used_up(&reading, &now, urr);
        (reading, now, used_up)
    }

    /// Reports what was used since the last report, because of `why`, and begins anew.
    pub fn report(&mut self, urr: &Urr, why: Why, clock: &Clock, now_ns: u64) -> Vec<UsageReport> {
        let reading = self.usage.read(now_ns);
        let mut reports = std::mem::take(&mut self.books.before);
        let information = if std::mem::take(&mut self.books.is_after) { AFT } else { 0 };
        reports.push(self.close(urr, &reading, why, information, clock, now_ns));
        for report in &mut reports {
            report.sequence = self.books.sequence;
            self.books.sequence = self.books.sequence.wrapping_add(1);
        }
        self.books.threshold.from = self.books.reported;
        self.books.dropped = reading.dropped;
        if why.contains(Why::START) {
            self.books.started = true;
        }
        if why.contains(Why::STOPT) {
            self.books.started = false;
        }
        if why.contains(Why::PERIO) || self.books.period_ns.is_some_and(|at| at <= now_ns) {
            self.set_period(urr, now_ns);
        }
        self.set_terms(urr, now_ns);
        reports
    }

    /// The report of what was used since the last one; the next one begins here.
    fn close(
        &mut self,
        urr: &Urr,
        reading: &Reading,
        trigger: Why,
        information: u8,
        clock: &Clock,
        now_ns: u64,
    ) -> UsageReport {
        let now = self.mark(urr, reading, now_ns);
        let since = now.since(&self.books.reported);
        let (first, last) = (reading.first_ns, reading.last_ns);
        let information = information | if urr.counts_before_qos() { UBE } else { 0 };
        let report = UsageReport {
            urr_id: self.usage.id().urr,
            sequence: 0,
            trigger,
            start: Some(clock.ntp_s(self.books.reported.at_ns)),
            end: Some(clock.ntp_s(now_ns)),
            volume: urr.method.contains(MeasurementMethod::VOLUM).then(|| since.measurement(urr.counts_packets())),
            // Of the whole, so that nothing is lost between two reports.
            duration_s: urr
                .method
                .contains(MeasurementMethod::DURAT)
                .then(|| (now.used_ns / SECOND_NS).saturating_sub(self.books.reported.used_ns / SECOND_NS) as u32),
            first_packet: first.map(|at| clock.ntp_s(at)),
            last_packet: first.and(last).map(|at| clock.ntp_s(at)),
            information: (information != 0).then_some(information),
            others: vec![],
        };
        self.books.reported = now;
        report
    }

    /// From here on the subsequent thresholds and quotas count; what was used before is reported for itself.
    fn pass_monitoring_time(&mut self, urr: &Urr, clock: &Clock, now_ns: u64) {
        self.books.monitoring_ns = None;
        let reading = self.usage.read(now_ns);
        if self.books.before.len() < BEFORE_MOST {
            let information = if self.books.is_after { BEF | AFT } else { BEF };
            let report = self.close(urr, &reading, Why::MONIT, information, clock, now_ns);
            self.books.before.push(report);
            self.books.is_after = true;
        }
        let (terms, from) = (&urr.terms, self.mark(urr, &reading, now_ns));
        let (volume, time_s) = (terms.subsequent_volume_threshold, terms.subsequent_time_threshold_s);
        self.books.threshold = self.books.threshold.renewed(from, volume, time_s);
        let (volume, time_s) = (terms.subsequent_volume_quota, terms.subsequent_time_quota_s);
        if volume.is_some() || time_s.is_some() {
            self.books.quota = self.books.quota.renewed(from, volume, time_s);
            self.lift(urr, volume.is_some(), time_s.is_some(), now_ns);
        }
        self.set_terms(urr, now_ns);
    }

    /// Thresholds that are reached.
    fn reached(&self, now: &Mark) -> u32 {
        let volume = if self.books.threshold.volume_reached(now) { Why::VOLTH.0 } else { 0 };
        let time = if self.books.threshold.time_reached(now) { Why::TIMTH.0 } else { 0 };
        volume | time
    }

    fn too_much_is_dropped(&self, reading: &Reading, urr: &Urr) -> bool {
        let bounds = self.dropped_bounds(urr).unwrap_or_default();
        reading.dropped.iter().zip(bounds).any(|(&dropped, bound)| bound.is_some_and(|bound| dropped >= bound))
    }

    /// How many downlink packets and octets may be dropped.
    fn dropped_bounds(&self, urr: &Urr) -> Option<[Option<u64>; 2]> {
        let threshold = urr.terms.dropped_threshold.filter(|_| urr.triggers.contains(Asked::DROTH))?;
        let [packets, octets] = self.books.dropped;
        let bound = |from: u64, number: Option<u64>| number.map(|number| from.saturating_add(number));
        Some([bound(packets, threshold.packets), bound(octets, threshold.octets)])
    }

    /// Quotas that are used up. Of volume the worker itself sees that no more passes.
    fn used_up(&mut self, reading: &Reading, now: &Mark, urr: &Urr) -> u32 {
        let mut why = 0;
        let has_volume = self.books.quota.volume.is_some();
        if has_volume && !self.books.stopped && (reading.refused || self.books.quota.volume_reached(now)) {
            why |= Why::VOLQU.0;
        }
        if self.books.quota.time_reached(now) {
            why |= Why::TIMQU.0;
        }
        if self.valid_until_ns(urr).is_some_and(|until| until <= now.at_ns) {
            why |= Why::QUVTI.0;
        }
        if why & (Why::TIMQU.0 | Why::QUVTI.0) != 0 && !self.books.stopped {
            self.books.stopped = true;
            self.usage.set(&self.terms(urr));
        }
        why
    }

    /// Starts and stops of traffic, and pauses of it.
    fn idle(&self, reading: &Reading, urr: &Urr, now_ns: u64) -> u32 {
        let mut why = 0;
        if !self.books.started && reading.first_ns.is_some() {
            why |= Why::START.0;
        }
        if self.stop_ns(reading, urr).is_some_and(|at| at <= now_ns) {
            why |= Why::STOPT.0;
        }
        if self.held_until_ns(reading, urr).is_some_and(|until| until <= now_ns) {
            why |= Why::QUHTI.0;
        }
        why
    }

    /// When traffic that does not go on will have stopped.
    fn stop_ns(&self, reading: &Reading, urr: &Urr) -> Option<u64> {
        let after_s = urr.terms.inactivity_detection_time_s.unwrap_or(STOPPED_AFTER_S);
        let last = reading.last_ns.unwrap_or(self.books.reported.at_ns);
        (self.books.started && urr.triggers.contains(Asked::STOPT)).then(|| last + u64::from(after_s) * SECOND_NS)
    }

    /// When a quota that nobody uses is to be told of.
    fn held_until_ns(&self, reading: &Reading, urr: &Urr) -> Option<u64> {
        let hold_s = urr.terms.quota_holding_time_s.filter(|_| !self.books.told.contains(Why::QUHTI))?;
        let last = reading.last_ns.unwrap_or(0).max(self.books.quota.from.at_ns);
        Some(last + u64::from(hold_s) * SECOND_NS)
    }

    fn valid_until_ns(&self, urr: &Urr) -> Option<u64> {
        let valid_s = urr.terms.quota_validity_time_s.filter(|_| !self.books.told.contains(Why::QUVTI))?;
        Some(self.books.quota.from.at_ns + u64::from(valid_s) * SECOND_NS)
    }

    fn set_period(&mut self, urr: &Urr, now_ns: u64) {
        let asked = urr.triggers.contains(Asked::PERIO);
        self.books.period_ns =
            urr.terms.period_s.filter(|_| asked).map(|period_s| now_ns + u64::from(period_s) * SECOND_NS);
    }

    fn set_terms(&mut self, urr: &Urr, now_ns: u64) {
        self.usage.set(&self.terms(urr));
        let limited = self.books.threshold.volume.is_some() || self.books.quota.volume.is_some();
        self.books.look_again = limited || self.dropped_bounds(urr).is_some();
        self.schedule(urr, &self.usage.read(now_ns), now_ns);
    }

    fn terms(&self, urr: &Urr) -> UsageTerms {
        let threshold = self.books.threshold.bounds();
        let quota = self.books.quota.bounds();
        let nothing = Bounds { total: Some(0), ..Bounds::default() };
        UsageTerms {
            tell_at: threshold.sooner(&quota),
            stop_at: if self.books.stopped { nothing } else { quota },
            inactivity_s: urr.terms.inactivity_detection_time_s,
            before_qos: urr.counts_before_qos(),
            tell_dropped_at: self.dropped_bounds(urr),
            // Time counts from the first packet on, so its threshold is timed from there, as are stops.
            tell_first: !self.books.started && watches_traffic(urr) || self.times(urr),
        }
    }

    /// Whether time that is used matters before it is reported.
    fn times(&self, urr: &Urr) -> bool {
        let limited = self.books.threshold.time_s.is_some() || self.books.quota.time_s.is_some();
        limited && urr.method.contains(MeasurementMethod::DURAT)
    }

    /// Works out when there is something to do, if no packet comes.
    fn schedule(&mut self, urr: &Urr, reading: &Reading, now_ns: u64) {
        let now = self.mark(urr, reading, now_ns);
        let time = |grant: &Grant| self.time_used_ns(grant, urr, reading, &now);
        let asked = |trigger, at: Option<u64>| at.filter(|_| urr.triggers.contains(trigger));
        let times = [
            self.books.period_ns,
            self.books.monitoring_ns,
            self.stop_ns(reading, urr),
            asked(Asked::QUHTI, self.held_until_ns(reading, urr)),
            self.valid_until_ns(urr),
            time(&self.books.threshold),
            time(&self.books.quota),
            self.books.look_again.then_some(now_ns + LOOK_AGAIN_NS),
        ];
        self.books.due_ns = times.into_iter().flatten().min();
    }

    /// When the time that is granted will be used.
    fn time_used_ns(&self, grant: &Grant, urr: &Urr, reading: &Reading, now: &Mark) -> Option<u64> {
        // Without a packet no time is used, and the first one is told.
        let runs = self.times(urr) && (reading.last_ns.is_some() || urr.starts_at_once());
        grant.time_left_ns(now).filter(|&left_ns| runs && left_ns > 0).map(|left_ns| now.at_ns + left_ns)
    }

    /// The counts as they stand.
    fn mark(&self, urr: &Urr, reading: &Reading, now_ns: u64) -> Mark {
        let at_once = urr.starts_at_once() && urr.terms.inactivity_detection_time_s.is_none();
        let used_ns = if at_once {
            self.books.reported.used_ns + now_ns.saturating_sub(self.books.reported.at_ns)
        } else {
            reading.used_ns
        };
        // A packet that could not be sent was taken back after it was reported: the next one takes its place.
        Mark { counts: reading.counts.at_least(&self.books.reported.counts), used_ns, at_ns: now_ns }
    }
}

/// More than any count, so that sums of them fit.
const MOST: u64 = 1 << 60;
/// Later than any time that a request can name: `u32::MAX` seconds from now fit.
const LATEST_NS: u64 = 1 << 63;

impl Books {
    /// Whether they can have been kept by `now_ns`.
    fn can_be(&self, now_ns: u64) -> bool {
        let marks = [self.reported, self.threshold.from, self.quota.from];
        let times = [self.period_ns, self.monitoring_ns, self.due_ns];
        self.before.len() <= BEFORE_MOST
            && marks.iter().all(|mark| mark.can_be(now_ns))
            && times.into_iter().flatten().all(|at_ns| at_ns < LATEST_NS)
    }
}

/// Whether starts or stops of traffic are told.
fn watches_traffic(urr: &Urr) -> bool {
    urr.triggers.contains(Asked::START) || urr.triggers.contains(Asked::STOPT)
}

/// The monitoring time; none if it has passed.
fn still_to_come(terms: &UrrTerms, clock: &Clock, now_ns: u64) -> Option<u64> {
    terms.monitoring_time.map(|ntp_s| clock.ns_of_ntp(ntp_s)).filter(|&at_ns| at_ns > now_ns)
}

impl Mark {
    fn can_be(&self, now_ns: u64) -> bool {
        let Counts { uplink_octets, downlink_octets, uplink_packets, downlink_packets } = self.counts;
        let counts = [uplink_octets, downlink_octets, uplink_packets, downlink_packets];
        counts.iter().all(|&count| count < MOST) && self.used_ns <= now_ns && self.at_ns <= now_ns
    }

    fn since(&self, from: &Self) -> Counts {
        let (now, then) = (&self.counts, &from.counts);
        Counts {
            uplink_octets: now.uplink_octets - then.uplink_octets,
            downlink_octets: now.downlink_octets - then.downlink_octets,
            uplink_packets: now.uplink_packets - then.uplink_packets,
            downlink_packets: now.downlink_packets - then.downlink_packets,
        }
    }
}

impl Counts {
    fn measurement(&self, with_packets: bool) -> VolumeMeasurement {
        let volume = |uplink: u64, downlink: u64| Volume {
            total: Some(uplink + downlink),
            uplink: Some(uplink),
            downlink: Some(downlink),
        };
        VolumeMeasurement {
            octets: volume(self.uplink_octets, self.downlink_octets),
            packets: if with_packets { volume(self.uplink_packets, self.downlink_packets) } else { Volume::default() },
        }
    }
}

impl Grant {
    /// From `from` on so much; of the one that is not stated, what is left there.
    fn renewed(self, from: Mark, volume: Option<Volume>, time_s: Option<u32>) -> Self {
        if volume.is_none() && time_s.is_none() {
            return self;
        }
        Self { from, volume: volume.or(self.volume_left(&from)), time_s: time_s.or(self.time_left_s(&from)) }
    }

    fn volume_left(&self, at: &Mark) -> Option<Volume> {
        let (bounds, up, down) = (self.bounds(), at.counts.uplink_octets, at.counts.downlink_octets);
        let left = |bound: Option<u64>, is: u64| bound.map(|bound| bound.saturating_sub(is));
        let volume = Volume {
            total: left(bounds.total, up + down),
            uplink: left(bounds.uplink, up),
            downlink: left(bounds.downlink, down),
        };
        self.volume.map(|_| volume)
    }

    fn time_left_s(&self, at: &Mark) -> Option<u32> {
        self.time_left_ns(at).map(|left_ns| left_ns.div_ceil(SECOND_NS) as u32)
    }

    /// The counts at which the volume is used.
    fn bounds(&self) -> Bounds {
        let from = &self.from.counts;
        let volume = self.volume.unwrap_or_default();
        let at = |volume: Option<u64>, from: u64| volume.map(|volume| from.saturating_add(volume));
        Bounds {
            total: at(volume.total, from.uplink_octets + from.downlink_octets),
            uplink: at(volume.uplink, from.uplink_octets),
            downlink: at(volume.downlink, from.downlink_octets),
        }
    }

    fn volume_reached(&self, now: &Mark) -> bool {
        let bounds = self.bounds();
        let (up, down) = (now.counts.uplink_octets, now.counts.downlink_octets);
        let reached = |bound: Option<u64>, is: u64| bound.is_some_and(|bound| is >= bound);
        reached(bounds.total, up + down) || reached(bounds.uplink, up) || reached(bounds.downlink, down)
    }

    fn time_reached(&self, now: &Mark) -> bool {
        self.time_left_ns(now) == Some(0)
    }

    fn time_left_ns(&self, now: &Mark) -> Option<u64> {
        let used_ns = now.used_ns.saturating_sub(self.from.used_ns);
        self.time_s.map(|time_s| (u64::from(time_s) * SECOND_NS).saturating_sub(used_ns))
    }
}

impl Bounds {
    /// Of each number the lower one.
    fn sooner(&self, other: &Self) -> Self {
        let lower = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            total: lower(self.total, other.total),
            uplink: lower(self.uplink, other.uplink),
            downlink: lower(self.downlink, other.downlink),
        }
    }
}
