//! What is measured of usage, and what passes by it (TS 29.244, 5.2.2).

use std::time::Duration;

use crate::support::metered::*;
use crate::support::*;
use pfcp::report::{SessionReport, UsageReportTrigger as Why};
use pfcp::rule::*;
use pfcp::session::{Establishment, Modification};
use pfcp::{Cause, DroppedThreshold, Fault, Header, IeType, MessageType, Request, Response, RuleId, Volume};

use ReportingTriggers as On;

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
fn of_two_quotas_only_the_one_that_is_granted_begins_anew() {
    let granted = UrrTerms { volume_quota: total(100), time_quota_s: Some(30), ..UrrTerms::default() };
    let terms = UrrTerms { measurement_information: Some(8), ..granted };
    let mut session = Metered::new(vec![urr(1, On(On::VOLQU.0 | On::TIMQU.0), terms)]);
    assert!(session.packet(true, 95));
    session.wait(Duration::from_secs(31));
    assert_eq!(session.told(), [(1, Why::TIMQU, 95)]);
    session.update(1, UrrTerms { time_quota_s: Some(30), ..UrrTerms::default() });
    assert!(session.packet(true, 5) && !session.packet(true, 1));
    session.wait(Duration::from_secs(20));
    assert_eq!(session.told(), [(1, Why::VOLQU, 5)]);
    session.update(1, UrrTerms { volume_quota: total(100), ..UrrTerms::default() });
    assert!(session.packet(true, 10));
    session.wait(Duration::from_secs(11));
    assert_eq!(session.told(), [(1, Why::TIMQU, 10)], "what was left of the time");
    assert!(!session.packet(true, 10));
    session.update(1, UrrTerms { volume_quota: total(100), ..UrrTerms::default() });
    assert!(!session.packet(true, 10), "no time is left");
    assert_eq!(session.told(), []);
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

/// The session manager has the rule report for these reasons, and no others.
fn ask_for(session: &mut Metered, triggers: On) {
    let update = UpdateUrr { id: 1, triggers: Some(triggers), ..UpdateUrr::default() };
    session.modify(Modification { update_urrs: vec![update], ..Modification::default() }).unwrap();
}

#[test]
fn a_quota_stays_in_force_when_its_trigger_is_withdrawn_and_is_told_when_that_is_asked_for_again() {
    let terms = UrrTerms { volume_quota: total(100), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::VOLQU, terms)]);
    assert!(session.packet(true, 40));
    ask_for(&mut session, On::default());
    assert!(session.packet(true, 60) && !session.packet(true, 1));
    session.wait(Duration::from_secs(1));
    assert_eq!(session.told(), []);
    ask_for(&mut session, On::VOLQU);
    session.wait(Duration::from_secs(1));
    assert_eq!(session.told(), [(1, Why::VOLQU, 100)]);
    // What lifts a quota is another one.
    session.update(1, UrrTerms { volume_quota: total(50), ..UrrTerms::default() });
    assert!(session.packet(true, 50) && !session.packet(true, 1));
}

#[test]
fn a_validity_time_stays_in_force_when_its_trigger_is_withdrawn_and_is_told_when_that_is_asked_for_again() {
    let terms = UrrTerms { volume_quota: total(100), quota_validity_time_s: Some(10), ..UrrTerms::default() };
    let mut session = Metered::new(vec![urr(1, On::QUVTI, terms)]);
    ask_for(&mut session, On::default());
    session.wait(Duration::from_secs(9));
    assert!(session.packet(true, 40));
    session.wait(Duration::from_secs(2));
    assert!(!session.packet(true, 1));
    assert_eq!(session.told(), []);
    ask_for(&mut session, On::QUVTI);
    session.wait(Duration::from_secs(1));
    assert_eq!(session.told(), [(1, Why::QUVTI, 40)]);
    assert!(!session.packet(true, 1));
    session.update(1, UrrTerms { volume_quota: total(50), ..UrrTerms::default() });
    assert!(session.packet(true, 50));
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
        (
            urr(1, On::VOLTH, UrrTerms { subsequent_volume_threshold: total(0), ..threshold(9) }),
            wrong(IeType::SubsequentVolumeThreshold),
        ),
        (
            urr(1, On::STOPT, UrrTerms { inactivity_detection_time_s: Some(0), ..UrrTerms::default() }),
            wrong(IeType::InactivityDetectionTime),
        ),
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
