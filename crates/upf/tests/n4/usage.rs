//! What a session manager may rely on of usage reports (TS 29.244, 5.2.2).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use pfcp::node::Heartbeat;
use pfcp::report::{SessionReport, SessionReportResponse, UsageReport, UsageReportTrigger as Why};
use pfcp::rule::*;
use pfcp::session::{Establishment, FSeid, Modification, Modified};
use pfcp::{
    Cause, DroppedThreshold, Fault, Header, IeType, MessageType, RecoveryTimeStamp, Request, Response, RuleId, Volume,
};
use upf::alarms::{self, Alarm, AlarmReceiver, Alarms};
use upf::bell::Bell;
use upf::n4::Datagram;
use upf::usage::Usage;

use ReportingTriggers as On;

/// A session with usage reporting rules, a worker's hand on its counters, and the session manager.
struct Metered {
    bench: Bench,
    seid: u64,
    alarms: Alarms,
    heard: AlarmReceiver,
    reports: Vec<UsageReport>,
}

fn total(octets: u64) -> Option<Volume> {
    Some(Volume { total: Some(octets), ..Volume::default() })
}

fn urr(id: u32, triggers: ReportingTriggers, terms: UrrTerms) -> CreateUrr {
    let method = Some(MeasurementMethod(MeasurementMethod::VOLUM.0 | MeasurementMethod::DURAT.0));
    CreateUrr { id, method, triggers: Some(triggers), terms, others: vec![] }
}

fn volume(report: &UsageReport) -> (u64, u64) {
    let octets = report.volume.unwrap().octets;
    assert_eq!(octets.total, Some(octets.uplink.unwrap() + octets.downlink.unwrap()));
    (octets.uplink.unwrap(), octets.downlink.unwrap())
}

fn response(datagram: &Datagram, outcome: Result<(), Fault>) -> Vec<u8> {
    let (header, _) = Header::parse(&datagram.octets).unwrap();
    Response::SessionReport(SessionReportResponse::new(outcome)).encode(0x77, header.sequence)
}

impl Metered {
    fn new(urrs: Vec<CreateUrr>) -> Self {
        let mut bench = Bench::associated();
        let mut request = establishment(1);
        let ids: Vec<_> = urrs.iter().map(|urr| urr.id).collect();
        request.create_pdrs.iter_mut().for_each(|pdr| pdr.urr_ids = ids.clone());
        request.create_urrs = urrs;
        let Response::SessionEstablishment(response) = bench.ask(0, &Request::SessionEstablishment(request)) else {
            panic!()
        };
        let seid = response.outcome.unwrap().up_f_seid.seid;
        let (alarms, heard) = alarms::channel(Arc::new(Bell::new().unwrap()));
        Self { bench, seid, alarms, heard, reports: vec![] }
    }

    fn usage(&self, urr: u32) -> Usage {
        let session = &self.bench.seen().sessions[&self.seid];
        session.urrs.iter().find(|found| found.id == urr).unwrap().usage.clone()
    }

    /// A packet of the session, as the worker treats it. Whether it passed.
    fn packet(&mut self, uplink: bool, octets: usize) -> bool {
        let session = self.bench.seen().sessions[&self.seid].clone();
        let usages: Vec<_> = session.urrs.iter().filter(|urr| urr.measures).map(|urr| urr.usage.clone()).collect();
        let now_ns = self.bench.clock.ns(self.bench.now);
        let passes = usages.iter().all(|usage| usage.gauge().admits(uplink, octets as u64, &mut self.alarms));
        if passes {
            count(&usages, uplink, octets, now_ns, &mut self.alarms);
        }
        while let Some(alarm) = self.heard.take() {
            let datagrams = self.bench.node.alarm(alarm, self.bench.now);
            self.take_in(datagrams);
        }
        passes
    }

    /// Time passes. The association is kept alive.
    fn wait(&mut self, time: Duration) {
        let end = self.bench.now + time;
        while self.bench.now < end {
            let due = self.bench.node.due().unwrap_or(end);
            self.bench.now = due.clamp(self.bench.now + Duration::from_millis(1), end);
            let datagrams = self.bench.node.tick(self.bench.now);
            self.take_in(datagrams);
        }
    }

    /// Takes reports in, and answers.
    fn take_in(&mut self, datagrams: Vec<Datagram>) {
        for datagram in datagrams {
            let (header, body) = Header::parse(&datagram.octets).unwrap();
            assert_eq!(datagram.to, (SMF, pfcp::PORT).into());
            let answer = match Request::parse(&header, body).unwrap() {
                Request::SessionReport(SessionReport { usage, downlink_data: None, .. }) => {
                    assert_eq!(header.seid, Some(0x5001), "a report is for the session manager's SEID");
                    self.reports.extend(usage);
                    response(&datagram, Ok(()))
                }
                Request::Heartbeat(_) => {
                    let recovery = pfcp::RecoveryTimeStamp(1_000);
                    Response::Heartbeat(pfcp::node::Heartbeat { recovery }).encode(0, header.sequence)
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(self.bench.octets(&answer), None);
        }
    }

    fn modify(&mut self, request: Modification) -> Result<Modified, Fault> {
        match self.bench.ask(self.seid, &Request::SessionModification(request)) {
            Response::SessionModification(response) => response.outcome,
            other => panic!("{other:?}"),
        }
    }

    fn update(&mut self, id: u32, terms: UrrTerms) {
        let update = UpdateUrr { id, terms, ..UpdateUrr::default() };
        self.modify(Modification { update_urrs: vec![update], ..Modification::default() }).unwrap();
    }

    fn delete(&mut self) -> Vec<UsageReport> {
        match self.bench.ask(self.seid, &Request::SessionDeletion) {
            Response::SessionDeletion(response) => response.outcome.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Reasons and volumes of the reports since the last call.
    fn told(&mut self) -> Vec<(u32, Why, u64)> {
        let told = |report: UsageReport| (report.urr_id, report.trigger, report.volume.unwrap().octets.total.unwrap());
        self.reports.drain(..).map(told).collect()
    }
}

#[test]
fn the_end_of_a_session_reports_what_was_used_to_the_octet() {
    let mut session = Metered::new(vec![urr(1, On::default(), UrrTerms::default())]);
    session.wait(Duration::from_secs(5));
    [(true, 100), (false, 1_400), (true, 41)].into_iter().for_each(|(up, len)| assert!(session.packet(up, len)));
    session.wait(Duration::from_secs(20));
    let [report] = &session.delete()[..] else { panic!() };
    assert_eq!((report.urr_id, report.sequence, report.trigger, volume(report)), (1, 0, Why::TERMR, (141, 1_400)));
    assert_eq!(report.duration_s, Some(20), "time counts from the first packet");
    let (start, end) = (report.start.unwrap(), report.end.unwrap());
    assert_eq!((end - start, report.first_packet), (25, Some(start + 5)));
    assert_eq!(report.volume.unwrap().packets, Volume::default(), "not asked for");
    assert_eq!(session.told(), []);
}

#[test]
fn a_volume_threshold_is_told_each_time_it_is_reached() {
    let terms = UrrTerms { volume_threshold: total(1_000), measurement_information: Some(0x10), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(7, On::VOLTH, terms)]);
    session.packet(true, 600);
    assert_eq!(session.told(), []);
    session.packet(false, 600);
    let packets = Volume { total: Some(2), uplink: Some(1), downlink: Some(1) };
    assert_eq!(session.reports[0].volume.unwrap().packets, packets);
    assert_eq!(session.told(), [(7, Why::VOLTH, 1_200)]);
    session.packet(true, 999);
    assert_eq!(session.told(), []);
    session.packet(true, 1);
    assert_eq!((session.reports[0].sequence, session.told()), (1, vec![(7, Why::VOLTH, 1_000)]));
    let uplink = Some(Volume { uplink: Some(10), ..Volume::default() });
    session.update(7, UrrTerms { volume_threshold: uplink, ..UrrTerms::default() });
    session.packet(false, 1_000);
    assert_eq!(session.told(), []);
    session.packet(true, 10);
    assert_eq!(session.told(), [(7, Why::VOLTH, 1_010)]);
}

#[test]
fn nothing_passes_beyond_a_volume_quota_until_there_is_another() {
    let terms = UrrTerms { volume_quota: total(1_000), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::VOLQU, terms)]);
    assert!(session.packet(true, 600) && !session.packet(false, 401) && !session.packet(true, 401));
    assert_eq!(session.told(), [(1, Why::VOLQU, 600)]);
    assert!(session.packet(true, 400) && !session.packet(true, 1));
    session.wait(Duration::from_secs(1));
    assert_eq!(session.told(), [], "it was told");
    session.update(1, UrrTerms { volume_quota: total(500), ..UrrTerms::default() });
    // What was used since the report is used of the new quota.
    assert!(session.packet(true, 100) && !session.packet(true, 1));
    assert_eq!(session.told(), [(1, Why::VOLQU, 500)]);
}

#[test]
fn a_far_may_apply_where_a_quota_is_used_up() {
    let terms = UrrTerms { volume_quota: total(1_000), quota_action_far_id: Some(3), ..UrrTerms::default() };
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    request.create_pdrs[0].urr_ids = vec![1];
    request.create_urrs = vec![urr(1, On::VOLQU, terms)];
    let portal = |action| CreateFar { apply_action: action, ..uplink_far(3) };
    let ask = |bench: &mut Bench, request: &Establishment| {
        let Response::SessionEstablishment(response) = bench.ask(0, &Request::SessionEstablishment(request.clone()))
        else {
            panic!()
        };
        response.outcome
    };
    request.create_fars.push(portal(ApplyAction::BUFF));
    let refused = Fault::of(Cause::ServiceNotSupported, IeType::ApplyAction);
    assert_eq!(ask(&mut bench, &request), Err(refused));
    // From the UE back to the UE there is no way without a tunnel.
    let parameters = portal(ApplyAction::FORW).forwarding_parameters.unwrap();
    let nowhere =
        ForwardingParameters { destination_interface: Interface::Access, network_instance: None, ..parameters };
    request.create_fars[2] = CreateFar { forwarding_parameters: Some(nowhere), ..portal(ApplyAction::FORW) };
    let missing = Fault::of(Cause::ConditionalIeMissing, IeType::OuterHeaderCreation);
    assert_eq!(ask(&mut bench, &request), Err(missing));
    request.create_fars[2] = portal(ApplyAction::FORW);
    let seid = ask(&mut bench, &request).unwrap().up_f_seid.seid;
    assert_eq!(bench.seen().sessions[&seid].urrs[0].quota_far_id, Some(3));
    let refused = modify(&mut bench, seid, Modification { remove_fars: vec![3], ..Modification::default() });
    let failed = Fault { offending_ie: Some(IeType::FarId as u16), ..Fault::rule(RuleId::Urr(1)) };
    assert_eq!(refused, Err(failed));
}

#[test]
fn downlink_traffic_that_is_dropped_is_told_when_it_gets_to_its_threshold() {
    let threshold = |packets, octets| Some(DroppedThreshold { packets, octets });
    let terms = UrrTerms { dropped_threshold: threshold(Some(3), None), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::DROTH, terms)]);
    let lose = |session: &mut Metered, packets: usize| {
        let usage = [session.usage(1)];
        (0..packets).for_each(|_| usage[0].gauge().lose(100, &mut session.alarms));
        while let Some(alarm) = session.heard.take() {
            let datagrams = session.bench.node.alarm(alarm, session.bench.now);
            session.take_in(datagrams);
        }
        session.told()
    };
    assert_eq!(lose(&mut session, 2), []);
    session.packet(false, 40);
    assert_eq!(lose(&mut session, 1), [(1, Why::DROTH, 40)]);
    assert_eq!(lose(&mut session, 2), []);
    assert_eq!(lose(&mut session, 1), [(1, Why::DROTH, 0)]);
    session.update(1, UrrTerms { dropped_threshold: threshold(None, Some(250)), ..UrrTerms::default() });
    assert_eq!(lose(&mut session, 2), []);
    assert_eq!(lose(&mut session, 1), [(1, Why::DROTH, 0)]);
    // Nobody asks for it any more.
    let triggers = Some(On::VOLTH);
    let update = UpdateUrr {
        id: 1,
        triggers,
        terms: UrrTerms { volume_threshold: total(1_000), ..UrrTerms::default() },
        ..UpdateUrr::default()
    };
    session.modify(Modification { update_urrs: vec![update], ..Modification::default() }).unwrap();
    assert_eq!(lose(&mut session, 10), []);
}

#[test]
fn a_quota_that_is_used_exactly_is_told_at_once() {
    let terms = UrrTerms { volume_quota: total(1_000), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::VOLQU, terms)]);
    assert!(session.packet(true, 1_000));
    assert_eq!(session.told(), [(1, Why::VOLQU, 1_000)]);
}

#[test]
fn a_rule_may_set_a_quota_that_nobody_is_told_of() {
    let terms = UrrTerms { volume_quota: total(10), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::default(), terms)]);
    assert!(session.packet(true, 10) && !session.packet(true, 1));
    assert_eq!(session.told(), []);
}

#[test]
fn time_counts_while_there_is_traffic() {
    let terms = UrrTerms { time_threshold_s: Some(10), inactivity_detection_time_s: Some(2), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::TIMTH, terms)]);
    session.wait(Duration::from_secs(60));
    for _ in 0..8 {
        session.packet(true, 1);
        session.wait(Duration::from_secs(1));
    }
    // A pause counts for two seconds.
    session.wait(Duration::from_secs(100));
    assert_eq!(session.told(), []);
    session.packet(true, 1);
    session.wait(Duration::from_millis(900));
    assert_eq!(session.told(), []);
    session.wait(Duration::from_millis(200));
    assert_eq!(session.reports[0].duration_s, Some(10));
    assert_eq!(session.told(), [(1, Why::TIMTH, 9)]);
}

#[test]
fn nothing_passes_beyond_a_time_quota() {
    let terms = UrrTerms { time_quota_s: Some(30), measurement_information: Some(8), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::TIMQU, terms)]);
    session.wait(Duration::from_secs(29));
    assert!(session.packet(true, 100) && session.told().is_empty());
    session.wait(Duration::from_secs(1));
    assert_eq!(session.told(), [(1, Why::TIMQU, 100)]);
    assert!(!session.packet(true, 100));
    session.update(1, UrrTerms { time_quota_s: Some(5), ..UrrTerms::default() });
    assert!(session.packet(true, 100));
    session.wait(Duration::from_secs(6));
    assert_eq!(session.told(), [(1, Why::TIMQU, 100)]);
}

#[test]
fn reports_come_periodically() {
    let mut session = Metered::new(vec![urr(1, On::PERIO, UrrTerms { period_s: Some(60), ..UrrTerms::default() })]);
    session.wait(Duration::from_secs(30));
    session.packet(true, 10);
    session.wait(Duration::from_secs(150));
    assert_eq!(session.told(), [(1, Why::PERIO, 10), (1, Why::PERIO, 0), (1, Why::PERIO, 0)]);
}

#[test]
fn the_start_and_stop_of_traffic_are_told() {
    let terms = UrrTerms { inactivity_detection_time_s: Some(3), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::START.and(On::STOPT), terms)]);
    session.wait(Duration::from_secs(10));
    for _ in 0..2 {
        session.packet(true, 10);
        assert_eq!(session.told(), [(1, Why::START, 10)]);
        session.wait(Duration::from_secs(2));
        session.packet(true, 5);
        session.wait(Duration::from_millis(2_900));
        assert_eq!(session.told(), []);
        session.wait(Duration::from_millis(200));
        assert_eq!(session.told(), [(1, Why::STOPT, 5)]);
        session.wait(Duration::from_secs(10));
    }
}

#[test]
fn stops_of_traffic_are_told_though_nobody_asks_for_its_starts() {
    let terms = UrrTerms { inactivity_detection_time_s: Some(3), period_s: Some(7), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::STOPT, terms)]);
    session.wait(Duration::from_secs(10));
    for _ in 0..2 {
        session.packet(true, 10);
        session.packet(true, 5);
        session.wait(Duration::from_millis(2_900));
        assert_eq!(session.told(), []);
        session.wait(Duration::from_millis(200));
        assert_eq!(session.told(), [(1, Why::STOPT, 15)]);
        session.wait(Duration::from_secs(10));
        assert_eq!(session.told(), []);
    }
    // Traffic that there is already when that is asked for.
    session.packet(true, 7);
    let update = UpdateUrr { id: 1, triggers: Some(On::default()), ..UpdateUrr::default() };
    session.modify(Modification { update_urrs: vec![update], ..Modification::default() }).unwrap();
    session.wait(Duration::from_secs(10));
    let update = UpdateUrr { id: 1, triggers: Some(On::STOPT), ..UpdateUrr::default() };
    session.packet(true, 1);
    session.modify(Modification { update_urrs: vec![update], ..Modification::default() }).unwrap();
    session.packet(true, 1);
    session.wait(Duration::from_millis(3_100));
    assert_eq!(session.told(), [(1, Why::STOPT, 9)]);
}

#[test]
fn a_quota_that_nobody_uses_or_that_has_expired_is_told() {
    let terms = UrrTerms {
        volume_quota: total(1_000),
        quota_holding_time_s: Some(10),
        quota_validity_time_s: Some(60),
        ..UrrTerms::default()
    };
    let mut session = Metered::new(vec![urr(1, On::QUHTI.and(On::QUVTI), terms)]);
    session.wait(Duration::from_secs(5));
    session.packet(true, 10);
    session.wait(Duration::from_millis(9_900));
    assert_eq!(session.told(), []);
    session.wait(Duration::from_millis(200));
    assert_eq!(session.told(), [(1, Why::QUHTI, 10)]);
    assert!(session.packet(true, 10));
    session.wait(Duration::from_secs(45));
    assert_eq!(session.told(), [(1, Why::QUVTI, 10)]);
    assert!(!session.packet(true, 10));
    session.update(1, UrrTerms { volume_quota: total(1_000), ..UrrTerms::default() });
    assert!(session.packet(true, 10));
}

#[test]
fn a_quota_that_expires_stops_traffic_though_nobody_is_told() {
    let terms = UrrTerms { quota_validity_time_s: Some(60), volume_quota: total(1_000), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::default(), terms)]);
    session.wait(Duration::from_secs(61));
    assert!(!session.packet(true, 10));
    assert_eq!(session.told(), []);
    // Nothing is due any more but heartbeats.
    let due = session.bench.node.due().unwrap();
    assert!(due > session.bench.now + Duration::from_secs(1));
}

#[test]
fn a_monitoring_time_that_has_passed_means_nothing() {
    let terms = UrrTerms { monitoring_time: Some(1), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::default(), terms)]);
    session.packet(true, 10);
    session.wait(Duration::from_secs(5));
    let usage = session.delete();
    assert_eq!((usage.len(), usage[0].information), (1, None));
}

#[test]
fn usage_before_and_after_the_monitoring_time_is_told_apart() {
    let mut session = Metered::new(vec![urr(
        1,
        On::VOLTH,
        UrrTerms { volume_threshold: total(1_000), subsequent_volume_threshold: total(100), ..UrrTerms::default() },
    )]);
    let now = session.bench.clock.ntp_s(session.bench.clock.ns(session.bench.now));
    session.update(1, UrrTerms { monitoring_time: Some(now + 60), ..UrrTerms::default() });
    session.packet(true, 900);
    session.wait(Duration::from_secs(61));
    session.packet(false, 99);
    assert_eq!(session.reports, []);
    session.packet(true, 1);
    let [before, after] = &session.reports[..] else { panic!("{:?}", session.reports) };
    assert_eq!(
        (before.sequence, before.trigger, before.information, volume(before)),
        (0, Why::MONIT, Some(1), (900, 0))
    );
    assert_eq!((after.sequence, after.trigger, after.information, volume(after)), (1, Why::VOLTH, Some(2), (1, 99)));
    assert_eq!((before.end, before.end), (after.start, Some(now + 60)));
    session.reports.clear();
    session.packet(true, 100);
    assert_eq!(session.reports[0].information, None);
    assert_eq!(session.told(), [(1, Why::VOLTH, 100)], "the subsequent threshold goes on");
}

#[test]
fn what_was_used_before_each_of_several_monitoring_times_is_told() {
    let volume_threshold = total(1_000);
    let mut session = Metered::new(vec![urr(1, On::VOLTH, UrrTerms { volume_threshold, ..UrrTerms::default() })]);
    let monitor_in = |session: &mut Metered, seconds: u32| {
        let now = session.bench.clock.ntp_s(session.bench.clock.ns(session.bench.now));
        session.update(1, UrrTerms { monitoring_time: Some(now + seconds), ..UrrTerms::default() });
    };
    for octets in [400, 50] {
        monitor_in(&mut session, 60);
        session.packet(true, octets);
        session.wait(Duration::from_secs(61));
    }
    session.packet(false, 550);
    let told: Vec<_> = session.reports.iter().map(|r| (r.sequence, r.trigger, r.information, volume(r))).collect();
    assert_eq!(
        told,
        [(0, Why::MONIT, Some(1), (400, 0)), (1, Why::MONIT, Some(3), (50, 0)), (2, Why::VOLTH, Some(2), (0, 550))]
    );
    // However many there are, nothing is lost.
    session.reports.clear();
    for _ in 0..20 {
        monitor_in(&mut session, 2);
        session.packet(true, 1);
        session.wait(Duration::from_secs(3));
    }
    let reports = session.delete();
    assert_eq!((reports.len(), reports.iter().map(|report| volume(report).0).sum()), (5, 20));
}

#[test]
fn a_subsequent_quota_begins_at_its_monitoring_time_however_many_there_were_before() {
    let mut session = Metered::new(vec![urr(1, On::VOLQU, UrrTerms::default())]);
    let monitor_in_2_s = |session: &mut Metered, subsequent_volume_quota: Option<Volume>| {
        let monitoring_time = Some(session.bench.clock.ntp_s(session.bench.clock.ns(session.bench.now)) + 2);
        session.update(1, UrrTerms { monitoring_time, subsequent_volume_quota, ..UrrTerms::default() });
    };
    for quota in [None, None, None, None, None, total(100)] {
        monitor_in_2_s(&mut session, quota);
        assert!(session.packet(true, 100));
        session.wait(Duration::from_secs(3));
    }
    assert!(session.packet(true, 100), "of what there is now");
    assert!(!session.packet(true, 1));
}

#[test]
fn all_that_there_is_to_report_of_a_session_has_room_in_one_message() {
    // Everything that a report can tell, of as many rules as there may be, and more monitoring times than are told apart.
    let terms = UrrTerms { measurement_information: Some(0x11), ..UrrTerms::default() };
    let all = |ids: std::ops::RangeInclusive<u32>| Vec::from_iter(ids.map(|id| urr(id, On::default(), terms.clone())));
    let mut session = Metered::new(all(1..=1));
    session.modify(Modification { create_urrs: all(2..=64), ..Modification::default() }).unwrap();
    for _ in 0..8 {
        let monitoring_time = Some(session.bench.clock.ntp_s(session.bench.clock.ns(session.bench.now)) + 2);
        let terms = UrrTerms { monitoring_time, ..UrrTerms::default() };
        let update_urrs =
            Vec::from_iter((1..=64).map(|id| UpdateUrr { id, terms: terms.clone(), ..UpdateUrr::default() }));
        session.modify(Modification { update_urrs, ..Modification::default() }).unwrap();
        assert!(session.packet(true, 100) && session.packet(false, 100));
        session.wait(Duration::from_secs(3));
    }
    // All that no PDR names are replaced, and the usage of those in their place is asked for at once.
    let (remove_urrs, create_urrs) = (Vec::from_iter(2..=64), all(65..=127));
    let request = Modification { remove_urrs, create_urrs, flags: Modification::QAURR, ..Modification::default() };
    let usage = session.modify(request).unwrap().usage;
    assert_eq!(usage.iter().map(|report| volume(report).0).sum::<u64>(), 64 * 8 * 100);
    assert_eq!(usage.len(), 64 * 5 + 63);
    // UBE: it is usage before QoS enforcement.
    assert!(usage.iter().all(|report| report.information.is_some_and(|bits| bits & 8 != 0)));
}

#[test]
fn limits_are_kept_while_nothing_can_be_reported() {
    let at_once = |terms: UrrTerms| UrrTerms { measurement_information: Some(8), ..terms };
    let quota = at_once(UrrTerms { time_quota_s: Some(30), ..UrrTerms::default() });
    let valid = UrrTerms { volume_quota: total(1_000), quota_validity_time_s: Some(60), ..UrrTerms::default() };
    let monitored = UrrTerms { subsequent_volume_quota: total(10), ..UrrTerms::default() };
    let silence = UrrTerms { period_s: Some(5), ..UrrTerms::default() };
    for (terms, seconds) in [(quota, 30), (valid, 60), (monitored, 90)] {
        let mut session = Metered::new(vec![urr(1, On::default(), terms), urr(2, On::PERIO, silence.clone())]);
        let begin = session.bench.now;
        if seconds == 90 {
            let monitoring_time = Some(session.bench.clock.ntp_s(session.bench.clock.ns(begin)) + 90);
            session.update(1, UrrTerms { monitoring_time, ..UrrTerms::default() });
        }
        let passes_at = |session: &mut Metered, second: u64| {
            while session.bench.now < begin + Duration::from_secs(second) {
                let due = session.bench.node.due().unwrap();
                session.bench.now = due.max(session.bench.now + Duration::from_millis(1));
                // Heartbeats are answered, reports are not.
                for datagram in session.bench.node.tick(session.bench.now) {
                    let (header, _) = Header::parse(&datagram.octets).unwrap();
                    let alive = Response::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) });
                    if header.message_type == MessageType::HEARTBEAT_REQUEST {
                        session.bench.octets(&alive.encode(0, header.sequence));
                    }
                }
            }
            let session = &session.bench.seen().sessions[&session.seid];
            let (alarms, _heard) = &mut alarms::channel(Arc::new(Bell::new().unwrap()));
            session.urrs.iter().all(|urr| urr.usage.gauge().admits(true, 11, alarms))
        };
        assert!(passes_at(&mut session, seconds - 2));
        assert!(!passes_at(&mut session, seconds + 2), "limit at {seconds} s");
    }
}

#[test]
fn linked_rules_are_reported_together() {
    let threshold = |octets| UrrTerms { volume_threshold: total(octets), ..UrrTerms::default() };
    let linked = UrrTerms { linked_urr_ids: vec![1], ..threshold(5_000) };
    let mut session = Metered::new(vec![
        urr(1, On::VOLTH, threshold(1_000)),
        urr(2, On::VOLTH.and(On::LIUSA), linked),
        urr(3, On::VOLTH, threshold(1_500)),
    ]);
    session.packet(true, 1_000);
    assert_eq!(session.told(), [(1, Why::VOLTH, 1_000), (2, Why::LIUSA, 1_000)]);
    session.packet(true, 500);
    assert_eq!(session.told(), [(3, Why::VOLTH, 1_500)]);
}

#[test]
fn usage_is_told_when_it_is_asked_for_and_when_its_rule_goes() {
    let mut session = Metered::new((1..=2).map(|id| urr(id, On::default(), UrrTerms::default())).collect());
    let told = |modified: Modified| -> Vec<_> {
        modified.usage.iter().map(|report| (report.urr_id, report.trigger, report.sequence, volume(report).0)).collect()
    };
    session.packet(true, 10);
    let query = Modification { query_urrs: vec![2], ..Modification::default() };
    assert_eq!(told(session.modify(query).unwrap()), [(2, Why::IMMER, 0, 10)]);
    session.packet(true, 5);
    let all = Modification { flags: Modification::QAURR, ..Modification::default() };
    assert_eq!(told(session.modify(all).unwrap()), [(1, Why::IMMER, 0, 15), (2, Why::IMMER, 1, 5)]);
    session.packet(true, 3);
    let pdr = |id| UpdatePdr { urr_ids: vec![1], ..UpdatePdr::new(id) };
    let removal = Modification { remove_urrs: vec![2], update_pdrs: vec![pdr(1), pdr(2)], ..Modification::default() };
    assert_eq!(told(session.modify(removal).unwrap()), [(2, Why::TERMR, 2, 3)]);
    assert_eq!(session.delete().len(), 1);
}

#[test]
fn a_rule_may_pause() {
    let mut session = Metered::new(vec![urr(1, On::default(), UrrTerms::default())]);
    session.packet(true, 10);
    session.update(1, UrrTerms { measurement_information: Some(2), ..UrrTerms::default() });
    session.packet(true, 100);
    session.update(1, UrrTerms { measurement_information: Some(0), ..UrrTerms::default() });
    session.packet(true, 1);
    assert_eq!(volume(&session.delete()[0]), (11, 0));
}

#[test]
fn a_report_is_sent_again_with_the_same_octets_until_it_is_answered() {
    let terms = UrrTerms { volume_threshold: total(1), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::VOLTH, terms)]);
    let usage = [session.usage(1)];
    let now_ns = session.bench.clock.ns(session.bench.now);
    let report = |session: &mut Metered| {
        count(&usage, true, 1, now_ns, &mut session.alarms);
        let alarm = session.heard.take().unwrap();
        session.bench.node.alarm(alarm, session.bench.now).pop()
    };
    // An answer ends it; one from elsewhere, or to another report, does not.
    let next = report(&mut session).unwrap();
    let answer = response(&next, Ok(()));
    assert_eq!(session.bench.node.handle(&answer, "10.4.0.9:8805".parse().unwrap(), session.bench.now), None);
    session.bench.now += Duration::from_secs(1);
    assert_eq!(session.bench.node.tick(session.bench.now), std::slice::from_ref(&next));
    assert_eq!(session.bench.octets(&answer), None);
    session.bench.now += Duration::from_secs(1);
    assert_eq!(session.bench.node.tick(session.bench.now), []);
}

#[test]
fn usage_that_nobody_hears_of_is_told_again_and_what_is_used_meanwhile_with_the_next_report() {
    let terms = UrrTerms { volume_threshold: total(1), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::VOLTH, terms)]);
    let usage = [session.usage(1)];
    let now_ns = session.bench.clock.ns(session.bench.now);
    let use_up = |session: &mut Metered| {
        count(&usage, true, 1, now_ns, &mut session.alarms);
        let alarm = session.heard.take();
        alarm.and_then(|alarm| session.bench.node.alarm(alarm, session.bench.now).pop())
    };
    let is_report = |datagram: &Datagram| datagram.octets[1] == 56;
    let first = use_up(&mut session).unwrap();
    // Three times in all, N1, then a pause, and three times again: always the same octets. Heartbeats are answered.
    let mut seconds = vec![];
    for second in 1..28 {
        session.bench.now += Duration::from_secs(1);
        for datagram in session.bench.node.tick(session.bench.now) {
            if is_report(&datagram) {
                assert_eq!(datagram, first);
                seconds.push(second);
            } else {
                let (header, _) = Header::parse(&datagram.octets).unwrap();
                let alive = Response::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) });
                assert_eq!(session.bench.octets(&alive.encode(0, header.sequence)), None);
            }
        }
        if second == 5 || second == 12 {
            // Nothing more is told of it, whether the peer is silent or has answered a heartbeat.
            assert_eq!(use_up(&mut session), None);
        }
    }
    assert_eq!(seconds, [1, 2, 13, 14, 15, 26, 27]);
    assert_eq!(session.bench.octets(&response(&first, Ok(()))), None);
    session.bench.now += Duration::from_secs(2);
    let next: Vec<_> = session.bench.node.tick(session.bench.now).into_iter().filter(is_report).collect();
    let (header, body) = Header::parse(&next[0].octets).unwrap();
    let Ok(Request::SessionReport(report)) = Request::parse(&header, body) else { panic!() };
    assert_eq!((report.usage[0].sequence, report.usage[0].volume.unwrap().octets.uplink), (1, Some(2)));
}

#[test]
fn a_report_that_nobody_answers_holds_back_those_of_other_sessions_until_the_peer_is_heard_of() {
    let terms = UrrTerms { volume_threshold: total(1), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::VOLTH, terms)]);
    let mut idle = establishment(2);
    let notify = ApplyAction(ApplyAction::BUFF.0 | ApplyAction::NOCP.0);
    idle.create_fars[1] = CreateFar { apply_action: notify, ..idle.create_fars[1].clone() };
    let other = establish(&mut session.bench, idle).unwrap().up_f_seid.seid;
    let usage = [session.usage(1)];
    count(&usage, true, 1, session.bench.clock.ns(session.bench.now), &mut session.alarms);
    let alarm = session.heard.take().unwrap();
    let bench = &mut session.bench;
    let mut datagrams = bench.node.alarm(alarm, bench.now);
    for _ in 0..4 {
        bench.now += Duration::from_secs(1);
        datagrams.extend(bench.node.tick(bench.now));
    }
    assert_eq!(datagrams.len(), 3, "{datagrams:?}");
    // It may be away.
    assert_eq!(bench.node.alarm(Alarm::Data { up_seid: other, pdr: 2 }, bench.now), []);
    let heartbeat = Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) });
    bench.ask(0, &heartbeat);
    bench.now += Duration::from_secs(1);
    let reports = bench.node.tick(bench.now);
    let seids: Vec<_> = reports.iter().map(|report| Header::parse(&report.octets).unwrap().0.seid).collect();
    assert_eq!(seids, [Some(0x5002)]);
}

#[test]
fn what_is_not_answered_follows_the_session_to_another_manager() {
    let terms = UrrTerms { volume_threshold: total(1), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::VOLTH, terms)]);
    let usage = [session.usage(1)];
    count(&usage, true, 1, 1, &mut session.alarms);
    let first = session.bench.node.alarm(session.heard.take().unwrap(), session.bench.now).pop().unwrap();
    // The former one is away for long.
    for _ in 0..5 {
        session.bench.now += Duration::from_secs(1);
        session.bench.node.tick(session.bench.now);
    }
    let address: IpAddr = "10.4.0.7".parse().unwrap();
    let cp_f_seid = Some(FSeid::new(0x99, address));
    session.modify(Modification { cp_f_seid, ..Modification::default() }).unwrap();
    let again = session.bench.node.tick(session.bench.now).pop().expect("a report");
    assert_eq!(again.to, (address, pfcp::PORT).into());
    let parsed = |datagram: &Datagram| {
        let (header, body) = Header::parse(&datagram.octets).unwrap();
        (header.seid, header.sequence, Request::parse(&header, body).unwrap())
    };
    let (_, sequence, report) = parsed(&first);
    assert_eq!(parsed(&again), (Some(0x99), sequence, report));
    // The new one answers, and is told what comes next.
    let answer = response(&again, Ok(()));
    assert_eq!(session.bench.node.handle(&answer, (address, pfcp::PORT).into(), session.bench.now), None);
    count(&usage, true, 1, 1, &mut session.alarms);
    let next = session.bench.node.alarm(session.heard.take().unwrap(), session.bench.now).pop().unwrap();
    assert_eq!((next.to, parsed(&next).0), (again.to, Some(0x99)));
}

#[test]
fn a_session_that_its_manager_does_not_know_any_more_is_removed() {
    let terms = UrrTerms { volume_threshold: total(1), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::VOLTH, terms)]);
    let usage = [session.usage(1)];
    for (cause, is_left) in [(Cause::SystemFailure, true), (Cause::SessionContextNotFound, false)] {
        count(&usage, true, 1, 1, &mut session.alarms);
        let report = session.bench.node.alarm(session.heard.take().unwrap(), session.bench.now).pop().unwrap();
        assert_eq!(session.bench.octets(&response(&report, Err(Fault::new(cause)))), None);
        assert_eq!(session.bench.seen().sessions.contains_key(&session.seid), is_left);
        session.bench.check();
    }
    assert_eq!(session.bench.node.due().map(|due| due > session.bench.now + Duration::from_secs(5)), Some(true));
}

#[test]
fn rules_that_would_not_be_carried_out_in_full_are_refused() {
    let volume_only = |triggers| urr(1, triggers, UrrTerms::default());
    let with = |terms| urr(1, On::default(), terms);
    let failed = Fault { offending_ie: Some(IeType::LinkedUrrId as u16), ..Fault::rule(RuleId::Urr(1)) };
    let no_far = Fault { offending_ie: Some(IeType::FarId as u16), ..failed };
    let not_supported = |kind| Fault::of(Cause::ServiceNotSupported, kind);
    let missing = |kind| Fault::of(Cause::ConditionalIeMissing, kind);
    let wrong = |kind| Fault::of(Cause::MandatoryIeIncorrect, kind);
    let threshold = |octets| UrrTerms { volume_threshold: total(octets), ..UrrTerms::default() };
    let cases = [
        (volume_only(On::VOLTH), missing(IeType::VolumeThreshold)),
        (volume_only(On::TIMTH), missing(IeType::TimeThreshold)),
        (volume_only(On::PERIO), missing(IeType::MeasurementPeriod)),
        (volume_only(On::QUHTI), missing(IeType::QuotaHoldingTime)),
        (volume_only(On::QUVTI), missing(IeType::QuotaValidityTime)),
        (urr(1, On::VOLTH, threshold(0)), wrong(IeType::VolumeThreshold)),
        (volume_only(On::DROTH), missing(IeType::DroppedDlTrafficThreshold)),
        (volume_only(On::MACAR), not_supported(IeType::ReportingTriggers)),
        (volume_only(On::EVETH), not_supported(IeType::ReportingTriggers)),
        (
            with(UrrTerms { measurement_information: Some(4), ..UrrTerms::default() }),
            not_supported(IeType::MeasurementInformation),
        ),
        (with(UrrTerms { quota_action_far_id: Some(9), ..UrrTerms::default() }), no_far),
        (with(UrrTerms { linked_urr_ids: vec![4], ..UrrTerms::default() }), failed),
        (
            CreateUrr { method: Some(MeasurementMethod::EVENT), ..volume_only(On::default()) },
            not_supported(IeType::MeasurementMethod),
        ),
        (
            CreateUrr { method: Some(MeasurementMethod(0)), ..volume_only(On::default()) },
            wrong(IeType::MeasurementMethod),
        ),
    ];
    let mut bench = Bench::associated();
    for (urr, fault) in cases {
        let mut request = establishment(1);
        request.create_urrs = vec![urr];
        let Response::SessionEstablishment(response) = bench.ask(0, &Request::SessionEstablishment(request)) else {
            panic!()
        };
        assert_eq!(response.outcome, Err(fault));
    }
    let mut request = establishment(1);
    request.create_pdrs[0].urr_ids = vec![9];
    let Response::SessionEstablishment(response) = bench.ask(0, &Request::SessionEstablishment(request)) else {
        panic!()
    };
    let fault = Fault { offending_ie: Some(IeType::UrrId as u16), ..Fault::rule(RuleId::Pdr(1)) };
    assert_eq!(response.outcome, Err(fault));
    assert_eq!(bench.seen(), Seen::default());
    // Only a UPF reports: who gets a report by mistake says nothing.
    let report = Request::SessionReport(SessionReport::default()).encode(1, 99);
    assert_eq!(Header::parse(&report).unwrap().0.message_type, MessageType::SESSION_REPORT_REQUEST);
    assert_eq!(bench.octets(&report), None);
}
