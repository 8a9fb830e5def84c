//! When usage is told, until it is answered (TS 29.244, 5.2.2.3).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::metered::*;
use crate::support::*;
use pfcp::node::Heartbeat;
use pfcp::report::{UsageReport, UsageReportTrigger as Why};
use pfcp::rule::*;
use pfcp::session::{FSeid, Modification, Modified};
use pfcp::{Cause, Fault, Header, RecoveryTimeStamp, Request, Response};
use upf::alarms::{self, Alarm};
use upf::bell::Bell;
use upf::clock::Clock;
use upf::n4::{Config, Datagram, Limits, Node};
use upf::store::Kind;
use upf::usage::Usage;

use ReportingTriggers as On;

#[test]
fn reports_come_periodically() {
    let mut session = Metered::new(vec![urr(1, On::PERIO, UrrTerms { period_s: Some(60), ..UrrTerms::default() })]);
    session.wait(Duration::from_secs(30));
    session.packet(true, 10);
    session.wait(Duration::from_secs(150));
    assert_eq!(session.told(), [(1, Why::PERIO, 10), (1, Why::PERIO, 0), (1, Why::PERIO, 0)]);
}

#[test]
fn a_period_that_is_not_asked_for_any_more_is_nothing_to_wait_for() {
    let mut session = Metered::new(vec![urr(1, On::PERIO, UrrTerms { period_s: Some(60), ..UrrTerms::default() })]);
    let without = UpdateUrr { id: 1, triggers: Some(On::START), ..UpdateUrr::default() };
    session.modify(Modification { update_urrs: vec![without], ..Modification::default() }).unwrap();
    session.wait(Duration::from_secs(61));
    assert_eq!(session.told(), []);
    assert!(session.bench.node.due() > Some(session.bench.now + Duration::from_millis(100)), "it is looked at in vain");
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

/// What the session manager is told of usage, by rule, reason, number and octets.
fn numbered(usage: &[UsageReport]) -> Vec<(u32, Why, u32, u64)> {
    usage.iter().map(|report| (report.urr_id, report.trigger, report.sequence, volume(report).0)).collect()
}

/// So many octets are used, and the report of that is not answered.
fn use_up(session: &mut Metered, octets: usize) -> Datagram {
    let now_ns = session.bench.clock.ns(session.bench.now);
    let usages: Vec<_> =
        session.bench.seen().sessions[&session.seid].urrs.iter().map(|urr| urr.usage.clone()).collect();
    count(&usages, true, octets, now_ns, &mut session.alarms);
    session.bench.node.alarm(session.heard.take().unwrap(), session.bench.now).pop().unwrap()
}

#[test]
fn usage_that_nobody_has_answered_is_told_when_the_session_is_deleted() {
    let terms = UrrTerms { volume_threshold: total(5), ..UrrTerms::default() };
    let rules = vec![urr(1, On::VOLTH, terms), urr(2, On::default(), UrrTerms::default())];
    let mut session = Metered::new(rules);
    let answered = use_up(&mut session, 5);
    assert_eq!(session.bench.octets(&response(&answered, Ok(()))), None);
    let late = use_up(&mut session, 6);
    use_up(&mut session, 7);
    session.packet(true, 3);
    let told = session.delete();
    let expected = [(1, Why::VOLTH, 1, 6), (1, Why::VOLTH, 2, 7), (1, Why::TERMR, 3, 3), (2, Why::TERMR, 0, 21)];
    assert_eq!(numbered(&told), expected);
    // It is told once: not again, and an answer that comes late changes nothing.
    assert_eq!(session.bench.octets(&response(&late, Ok(()))), None);
    session.bench.now += Duration::from_secs(2);
    assert_eq!(session.bench.node.tick(session.bench.now), []);
    session.bench.check();
}

#[test]
fn usage_of_a_rule_that_is_removed_is_told_until_it_is_answered_or_the_session_ends() {
    let terms = UrrTerms { volume_threshold: total(5), ..UrrTerms::default() };
    let rules = vec![urr(1, On::VOLTH, terms), urr(2, On::default(), UrrTerms::default())];
    let mut session = Metered::new(rules);
    let report = use_up(&mut session, 6);
    session.packet(true, 2);
    let pdr = |id| UpdatePdr { urr_ids: vec![2], ..UpdatePdr::new(id) };
    let removal = Modification { remove_urrs: vec![1], update_pdrs: vec![pdr(1), pdr(2)], ..Modification::default() };
    assert_eq!(numbered(&session.modify(removal).unwrap().usage), [(1, Why::TERMR, 1, 2)]);
    session.bench.now += Duration::from_secs(1);
    assert_eq!(session.bench.node.tick(session.bench.now), [report]);
    assert_eq!(numbered(&session.delete()), [(1, Why::VOLTH, 0, 6), (2, Why::TERMR, 0, 8)]);
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

/// So many sessions, each of which tells of a volume, and what they count by.
fn metered(sessions: u16) -> (Bench, Vec<Usage>) {
    metered_within(sessions, config().limits)
}

fn metered_within(sessions: u16, limits: Limits) -> (Bench, Vec<Usage>) {
    let limits = Limits { sessions: sessions.into(), ..limits };
    let (clock, tables) = (Clock::new(), Watched::new(sessions.into()));
    let mut bench = Bench::of(Node::new(Config { limits, ..config() }, tables, clock), clock, Instant::now());
    bench.ask(0, &setup("smf", 1_000));
    let threshold = UrrTerms { volume_threshold: total(1_000), ..UrrTerms::default() };
    let mut usages = vec![];
    for number in 0..sessions {
        let [high, low] = number.to_be_bytes();
        let mut request = establishment(1);
        request.cp_f_seid = FSeid::new(0x5000 + u64::from(number), SMF);
        request.create_urrs = vec![urr(1, On::VOLTH, threshold.clone())];
        for (pdr, destination) in request.create_pdrs.iter_mut().zip([false, true]) {
            let v4 = Some([10, 70, high, low].into());
            pdr.pdi.ue_ip = Some(UeIp { v4, destination, ..UeIp::default() });
            pdr.urr_ids = vec![1];
        }
        let up_seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
        usages.push(bench.seen().sessions[&up_seid].urrs[0].usage.clone());
    }
    // What is looked at once more as its rules are new.
    bench.now += Duration::from_secs(1);
    while bench.node.due().unwrap() <= bench.now {
        assert_eq!(bench.node.tick(bench.now), []);
    }
    (bench, usages)
}

/// The session manager's SEIDs of the sessions that a tick reports about.
fn told_in_a_tick(bench: &mut Bench) -> Vec<u64> {
    let datagrams = bench.node.tick(bench.now);
    datagrams.iter().map(|datagram| Header::parse(&datagram.octets).unwrap().0.seid.unwrap()).collect()
}

#[test]
fn when_alarms_are_lost_all_sessions_are_looked_at_and_peers_are_answered_in_between() {
    let (mut bench, usages) = metered(600);
    let (mut lost, _) = alarms::channel(Arc::new(Bell::new().unwrap()));
    count(&usages, true, 1_000, bench.clock.ns(bench.now), &mut lost);
    // As each of several workers says so.
    (0..3).for_each(|_| bench.node.look_at_all());
    let mut told = vec![];
    while bench.node.due().unwrap() <= bench.now {
        let some = told_in_a_tick(&mut bench);
        assert!((1..=256).contains(&some.len()), "{} at once", some.len());
        told.extend(some);
        if told.len() == 256 {
            count(&usages[..1], true, 1_000, bench.clock.ns(bench.now), &mut lost);
            bench.node.look_at_all();
        }
        if told.len() == 600 {
            break;
        }
    }
    assert_eq!(told, (0..600).map(|number| 0x5000 + number).collect::<Vec<_>>());
    let again: Vec<_> = (0..3).flat_map(|_| told_in_a_tick(&mut bench)).collect();
    assert_eq!(again, [0x5000], "of what was lost after it had been looked at");
    assert!(bench.node.due().unwrap() > bench.now, "nothing is looked at for ever");
}

#[test]
fn while_no_report_can_be_sent_only_sessions_with_something_to_report_wait_for_that() {
    let (mut bench, usages) = metered_within(20, Limits { reports: 2, ..config().limits });
    let (mut lost, _) = alarms::channel(Arc::new(Bell::new().unwrap()));
    let now_ns = bench.clock.ns(bench.now);
    count(&usages[..1], true, 1_000, now_ns, &mut lost);
    bench.node.look_at_all();
    let report = bench.node.tick(bench.now).pop().expect("a report");
    // It is not answered, and so there is no room for others.
    bench.now += Duration::from_millis(500);
    bench.node.look_at_all();
    assert!(told_in_a_tick(&mut bench).is_empty());
    bench.now += Duration::from_millis(500);
    assert_eq!(told_in_a_tick(&mut bench), [0x5000], "again");
    assert!(bench.node.due() > Some(bench.now + Duration::from_millis(900)), "nobody waits");
    // Now somebody has something to report.
    count(&usages[7..8], true, 1_000, now_ns, &mut lost);
    bench.node.look_at_all();
    assert!(told_in_a_tick(&mut bench).is_empty());
    assert_eq!(bench.octets(&response(&report, Ok(()))), None);
    bench.now += Duration::from_millis(1_100);
    assert_eq!(told_in_a_tick(&mut bench), [0x5007]);
}

#[test]
fn a_session_that_was_looked_at_in_vain_is_not_written_down_again() {
    let (mut bench, usages) = metered(3);
    bench.node.keep(Arc::default());
    let (mut lost, _) = alarms::channel(Arc::new(Bell::new().unwrap()));
    count(&usages[1..2], true, 1_000, bench.clock.ns(bench.now), &mut lost);
    bench.node.look_at_all();
    assert_eq!(told_in_a_tick(&mut bench), [0x5001]);
    let (_, changes) = bench.node.take_changes();
    let written = changes.iter().filter(|change| change.kind == Kind::Session).map(|change| change.key & 0xffff);
    assert_eq!(written.collect::<Vec<_>>(), [2]);
}
