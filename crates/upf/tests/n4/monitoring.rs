//! Monitoring times: usage before and after them, and limits that begin with them (TS 29.244, 5.2.2.2).

use std::sync::Arc;
use std::time::Duration;

use crate::support::metered::*;
use pfcp::node::Heartbeat;
use pfcp::report::UsageReportTrigger as Why;
use pfcp::rule::*;
use pfcp::session::Modification;
use pfcp::{Header, MessageType, RecoveryTimeStamp, Response, Volume};
use upf::alarms;
use upf::bell::Bell;

use ReportingTriggers as On;

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
fn a_quota_that_was_used_up_begins_anew_with_its_monitoring_time_and_is_told_of_again() {
    let at_once = Some(8);
    let volumes = UrrTerms { volume_quota: total(100), subsequent_volume_quota: total(50), ..UrrTerms::default() };
    let times = UrrTerms { time_quota_s: Some(10), subsequent_time_quota_s: Some(5), ..UrrTerms::default() };
    for (kind, why, terms) in [(On::VOLQU, Why::VOLQU, volumes), (On::TIMQU, Why::TIMQU, times)] {
        let terms = UrrTerms { measurement_information: at_once, ..terms };
        let mut session = Metered::new(vec![urr(1, kind, terms)]);
        let now = session.bench.clock.ntp_s(session.bench.clock.ns(session.bench.now));
        session.update(1, UrrTerms { monitoring_time: Some(now + 60), ..UrrTerms::default() });
        assert!(session.packet(true, 100));
        session.wait(Duration::from_secs(11));
        assert!(!session.packet(true, 50));
        assert_eq!(session.told(), [(1, why, 100)]);
        session.wait(Duration::from_secs(50));
        assert!(session.packet(true, 50), "a monitoring time has passed");
        session.wait(Duration::from_secs(6));
        assert!(!session.packet(true, 1));
        assert_eq!(session.told(), [(1, Why::MONIT, 0), (1, why, 50)]);
    }
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
