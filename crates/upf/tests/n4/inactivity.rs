//! User plane inactivity: a session manager is told when a session has had no packets for a while (TS 29.244, 5.11).

use std::sync::Arc;
use std::time::Duration;

use pfcp::node::Heartbeat;
use pfcp::report::SessionReportResponse;
use pfcp::rule::{CreateUrr, MeasurementMethod, ReportingTriggers, UpdateUrr};
use pfcp::session::Modification;
use pfcp::{Cause, Fault, Header, IeType, MessageType, RecoveryTimeStamp, Request, Response, RuleId};
use upf::alarms::{self, AlarmReceiver, Alarms};
use upf::bell::Bell;
use upf::usage::ACTIVITY;

use crate::support::*;

/// A session whose inactivity is told after a minute, and a worker's hand on what sees its packets.
struct Watched {
    bench: Bench,
    seid: u64,
    alarms: Alarms,
    heard: AlarmReceiver,
    /// When it was told, in seconds since the beginning.
    told: Vec<u64>,
    seconds: u64,
}

impl Watched {
    fn new() -> Self {
        let mut bench = Bench::associated();
        let mut request = establishment(1);
        request.inactivity_timer_s = Some(60);
        let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
        let (alarms, heard) = alarms::channel(Arc::new(Bell::new().unwrap()));
        Self { bench, seid, alarms, heard, told: vec![], seconds: 0 }
    }

    /// Time passes, second by second.
    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.seconds += 1;
            self.bench.now += Duration::from_secs(1);
            for datagram in self.bench.node.tick(self.bench.now) {
                self.take_in(&datagram.octets);
            }
        }
    }

    fn take_in(&mut self, octets: &[u8]) {
        let (header, body) = Header::parse(octets).unwrap();
        let answer = match Request::parse(&header, body).unwrap() {
            Request::SessionReport(report) => {
                assert!(report.inactive && report.usage.is_empty() && report.downlink_data.is_none(), "{report:?}");
                assert_eq!(header.seid, Some(0x5001), "a report is for the session manager's SEID");
                self.told.push(self.seconds);
                Response::SessionReport(SessionReportResponse::new(Ok(())))
            }
            Request::Heartbeat(_) => Response::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) }),
            other => panic!("{other:?}"),
        };
        assert_eq!(self.bench.octets(&answer.encode(0x77, header.sequence)), None);
    }

    /// A packet comes, and is sent or not.
    fn packet(&mut self, is_sent: bool) {
        let session = self.bench.seen().sessions[&self.seid].clone();
        let usages = Vec::from_iter(session.activity.clone());
        let now_ns = self.bench.clock.ns(self.bench.now);
        match is_sent {
            true => count(&usages, true, 100, now_ns, &mut self.alarms),
            false => usages.iter().for_each(|usage| usage.gauge().note(now_ns, &mut self.alarms)),
        }
        while let Some(alarm) = self.heard.take() {
            assert_eq!(self.bench.node.alarm(alarm, self.bench.now), []);
        }
    }

    fn set_timer(&mut self, timer_s: u32) {
        let change = Modification { inactivity_timer_s: Some(timer_s), ..Modification::default() };
        modify(&mut self.bench, self.seid, change).unwrap();
    }
}

#[test]
fn inactivity_is_told_once_and_again_after_there_were_packets() {
    let mut session = Watched::new();
    session.wait(300);
    assert_eq!(session.told, [60], "also where there was never a packet");
    session.packet(true);
    session.wait(50);
    // A packet that is dropped is one, too.
    session.packet(false);
    session.wait(300);
    assert_eq!(session.told, [60, 410]);
    session.packet(false);
    session.wait(100);
    assert_eq!(session.told, [60, 410, 710]);
    assert_eq!(delete(&mut session.bench, session.seid), Ok(()), "there is no usage to tell of");
}

#[test]
fn the_time_of_inactivity_may_be_changed_or_no_more_be_watched() {
    let mut session = Watched::new();
    session.wait(10);
    session.set_timer(30);
    session.wait(100);
    assert_eq!(session.told, [40]);
    session.set_timer(30);
    session.wait(100);
    assert_eq!(session.told, [40, 140], "it counts anew");
    session.packet(true);
    session.set_timer(0);
    session.wait(1_000);
    assert_eq!(session.told, [40, 140]);
    assert_eq!(session.bench.seen().sessions[&session.seid].activity, None);
}

#[test]
fn what_watches_inactivity_is_no_rule_of_the_session_managers() {
    let mut session = Watched::new();
    let mut refused = |change: Modification| modify(&mut session.bench, session.seid, change).unwrap_err();
    let unknown = Fault::rule(RuleId::Urr(ACTIVITY));
    let update = UpdateUrr { id: ACTIVITY, ..UpdateUrr::default() };
    assert_eq!(refused(Modification { update_urrs: vec![update], ..Modification::default() }), unknown);
    assert_eq!(refused(Modification { remove_urrs: vec![ACTIVITY], ..Modification::default() }), unknown);
    assert_eq!(refused(Modification { query_urrs: vec![ACTIVITY], ..Modification::default() }), unknown);
    let create = CreateUrr {
        id: 1 << 31,
        method: Some(MeasurementMethod::VOLUM),
        triggers: Some(ReportingTriggers::default()),
        ..CreateUrr::default()
    };
    let wrong = Fault::of(Cause::MandatoryIeIncorrect, IeType::UrrId);
    assert_eq!(refused(Modification { create_urrs: vec![create], ..Modification::default() }), wrong);
    let all = Request::SessionModification(Modification { flags: Modification::QAURR, ..Modification::default() });
    let Response::SessionModification(response) = session.bench.ask(session.seid, &all) else { panic!() };
    assert_eq!(response.outcome.unwrap().usage, []);
}

#[test]
fn a_report_of_inactivity_is_sent_again_until_it_is_answered() {
    let mut session = Watched::new();
    let reports = |datagrams: Vec<upf::n4::Datagram>| {
        let is_report = |octets: &Vec<u8>| octets[1] == MessageType::SESSION_REPORT_REQUEST.0;
        datagrams.into_iter().map(|datagram| datagram.octets).filter(is_report).collect::<Vec<_>>()
    };
    session.bench.now += Duration::from_secs(60);
    let first = reports(session.bench.node.tick(session.bench.now));
    session.bench.now += Duration::from_secs(2);
    assert_eq!(reports(session.bench.node.tick(session.bench.now)), first);
    assert_eq!(first.len(), 1);
}
