//! What a session manager may rely on when packets wait for a UE, and when a tunnel is left (TS 29.244, 5.2.1, 5.2.4, 5.2.3).

use std::net::IpAddr;
use std::time::Duration;

use crate::support::*;
use pfcp::report::{DownlinkDataReport, SessionReport, SessionReportResponse};
use pfcp::rule::*;
use pfcp::session::{FSeid, Modification};
use pfcp::{Cause, Fault, Header, IeType, Request, Response, RuleId};
use upf::alarms::Alarm;
use upf::n4::{Config, Datagram, Limits};
use upf::rules::{Buffering, FarAction, OuterHeaderCreation as Tunnel, Parting};

const BUFF_NOCP: ApplyAction = ApplyAction(ApplyAction::BUFF.0 | ApplyAction::NOCP.0);

const NOT_SAID: BufferingDuration = BufferingDuration(0);

/// An idle UE's session.
fn idle(bench: &mut Bench, action: ApplyAction, bar: Option<CreateBar>) -> Result<u64, Fault> {
    let mut request = establishment(1);
    let bar_id = bar.as_ref().map(|bar| bar.id);
    request.create_fars[1] = CreateFar { apply_action: action, bar_id, ..request.create_fars[1].clone() };
    request.create_bars = bar.into_iter().collect();
    match bench.ask(0, &Request::SessionEstablishment(request)) {
        Response::SessionEstablishment(response) => response.outcome.map(|outcome| outcome.up_f_seid.seid),
        other => panic!("{other:?}"),
    }
}

fn modify(bench: &mut Bench, seid: u64, request: Modification) -> Result<(), Fault> {
    match bench.ask(seid, &Request::SessionModification(request)) {
        Response::SessionModification(response) => response.outcome.map(|_| ()),
        other => panic!("{other:?}"),
    }
}

fn act(action: ApplyAction) -> Modification {
    let update = UpdateFar {
        id: 2,
        apply_action: Some(action),
        forwarding_parameters: None,
        duplicating_parameters: vec![],
        bar_id: None,
        others: vec![],
    };
    Modification { update_fars: vec![update], ..Modification::default() }
}

fn packet_waits(bench: &mut Bench, up_seid: u64) -> Option<Datagram> {
    bench.node.alarm(Alarm::Data { up_seid, pdr: 2 }, bench.now).pop()
}

/// The PDRs that a report tells of; it is answered.
fn told(bench: &mut Bench, datagram: &Datagram) -> Vec<u16> {
    let (header, body) = Header::parse(&datagram.octets).unwrap();
    let Ok(Request::SessionReport(SessionReport { downlink_data: Some(DownlinkDataReport { pdr_ids }), .. })) =
        Request::parse(&header, body)
    else {
        panic!()
    };
    let answer = Response::SessionReport(SessionReportResponse::new(Ok(()))).encode(0, header.sequence);
    assert_eq!(bench.octets(&answer), None);
    pdr_ids
}

#[test]
fn the_first_packet_that_waits_is_told_once_for_each_apply_action() {
    let mut bench = Bench::associated();
    let seid = idle(&mut bench, BUFF_NOCP, None).unwrap();
    let far = bench.seen().sessions[&seid].fars[1].action.clone();
    assert_eq!(far, FarAction::Buffer(Buffering { notify: true, max_packets: 100, duration: NOT_SAID }));
    for _ in 0..2 {
        let report = packet_waits(&mut bench, seid).expect("a report");
        assert_eq!(told(&mut bench, &report), [2]);
        assert_eq!(packet_waits(&mut bench, seid), None);
        // A change of something else is no reason to tell again.
        let qer = UpdateQer { id: 1, qfi: Some(5), ..UpdateQer::default() };
        modify(&mut bench, seid, Modification { update_qers: vec![qer], ..Modification::default() }).unwrap();
        assert_eq!(packet_waits(&mut bench, seid), None);
        modify(&mut bench, seid, act(ApplyAction::FORW)).unwrap();
        assert_eq!(packet_waits(&mut bench, seid), None, "it does not buffer");
        modify(&mut bench, seid, act(BUFF_NOCP)).unwrap();
    }
    modify(&mut bench, seid, act(ApplyAction::BUFF)).unwrap();
    assert_eq!(packet_waits(&mut bench, seid), None, "nobody asked to be told");
    bench.check();
}

#[test]
fn packets_that_wait_by_another_far_or_pdr_are_told_again() {
    let mut bench = Bench::associated();
    let seid = idle(&mut bench, BUFF_NOCP, None).unwrap();
    let to_far = |far_id| UpdatePdr { far_id: Some(far_id), ..UpdatePdr::new(2) };
    let buffer = || CreateFar { apply_action: BUFF_NOCP, ..downlink_far(2, 0x7001) };
    let there_and_back = |bench: &mut Bench| {
        let dropping = CreateFar { apply_action: ApplyAction::DROP, ..downlink_far(3, 0x7001) };
        let away =
            Modification { create_fars: vec![dropping], update_pdrs: vec![to_far(3)], ..Modification::default() };
        modify(bench, seid, away).unwrap();
        Modification { update_pdrs: vec![to_far(2)], ..Modification::default() }
    };
    let anew =
        |_: &mut Bench| Modification { remove_fars: vec![2], create_fars: vec![buffer()], ..Modification::default() };
    let changes: [&dyn Fn(&mut Bench) -> Modification; 3] = [&anew, &there_and_back, &|_| Modification {
        remove_pdrs: vec![2],
        create_pdrs: vec![downlink_pdr(2, 1)],
        ..Modification::default()
    }];
    for change in changes {
        let report = packet_waits(&mut bench, seid).expect("a report");
        assert_eq!(told(&mut bench, &report), [2]);
        assert_eq!(packet_waits(&mut bench, seid), None);
        let change = change(&mut bench);
        modify(&mut bench, seid, change).unwrap();
    }
    // The same FAR again says nothing new.
    let report = packet_waits(&mut bench, seid).expect("a report");
    assert_eq!(told(&mut bench, &report), [2]);
    modify(&mut bench, seid, Modification { update_pdrs: vec![to_far(2)], ..Modification::default() }).unwrap();
    assert_eq!(packet_waits(&mut bench, seid), None);
    bench.check();
}

#[test]
fn a_bar_says_how_many_wait_and_when_that_is_told() {
    let mut bench = Bench::associated();
    let bar = CreateBar { id: 7, notification_delay: Some(4), suggested_packets: Some(30), ..CreateBar::default() };
    let seid = idle(&mut bench, BUFF_NOCP, Some(bar)).unwrap();
    let max_packets = |bench: &Bench| match bench.seen().sessions[&seid].fars[1].action {
        FarAction::Buffer(Buffering { max_packets, .. }) => max_packets,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(max_packets(&bench), 30);
    assert_eq!(packet_waits(&mut bench, seid), None);
    bench.now += Duration::from_millis(199);
    assert_eq!(bench.node.tick(bench.now), []);
    bench.now += Duration::from_millis(1);
    assert!(bench.node.due().unwrap() <= bench.now);
    let [report] = &bench.node.tick(bench.now)[..] else { panic!() };
    assert_eq!(told(&mut bench, report), [2]);

    let update = UpdateBar { id: 7, notification_delay: Some(0), suggested_packets: Some(40), ..CreateBar::default() };
    modify(&mut bench, seid, Modification { update_bars: vec![update], ..act(BUFF_NOCP) }).unwrap();
    assert_eq!(max_packets(&bench), 40);
    let report = packet_waits(&mut bench, seid).expect("a report, at once");
    assert_eq!(told(&mut bench, &report), [2]);
    // The UE answers before the time has come: there is nothing to tell any more.
    let update = UpdateBar { id: 7, notification_delay: Some(4), suggested_packets: None, ..CreateBar::default() };
    modify(&mut bench, seid, Modification { update_bars: vec![update], ..act(BUFF_NOCP) }).unwrap();
    assert_eq!(packet_waits(&mut bench, seid), None);
    modify(&mut bench, seid, act(ApplyAction::FORW)).unwrap();
    bench.now += Duration::from_secs(1);
    assert_eq!(bench.node.tick(bench.now), []);
    let removal = Modification { remove_bars: vec![7], ..Modification::default() };
    modify(&mut bench, seid, removal).unwrap();
    bench.check();
}

#[test]
fn the_answer_to_a_report_says_for_how_long_packets_wait() {
    let mut bench = Bench::associated();
    let bar = CreateBar { id: 7, ..CreateBar::default() };
    let seid = idle(&mut bench, BUFF_NOCP, Some(bar)).unwrap();
    let duration = |bench: &Bench| match bench.seen().sessions[&seid].fars[1].action {
        FarAction::Buffer(Buffering { duration, .. }) => duration,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(duration(&bench), NOT_SAID);
    let report = packet_waits(&mut bench, seid).expect("a report");
    let hours = BufferingDuration(0x65);
    let update = UpdateBar { id: 7, buffering_duration: Some(hours), ..UpdateBar::default() };
    let answer = SessionReportResponse { update_bars: vec![update], ..SessionReportResponse::new(Ok(())) };
    let (header, _) = Header::parse(&report.octets).unwrap();
    assert_eq!(bench.octets(&Response::SessionReport(answer).encode(0, header.sequence)), None);
    assert_eq!(duration(&bench), hours);
    assert_eq!(packet_waits(&mut bench, seid), None, "no further notification");
    // It stays whatever else is updated, and goes with the BAR, or when it is said anew what is to become of packets.
    let update = UpdateBar { id: 7, suggested_packets: Some(9), ..UpdateBar::default() };
    modify(&mut bench, seid, Modification { update_bars: vec![update], ..Modification::default() }).unwrap();
    assert_eq!(duration(&bench), hours);
    let anew = Modification {
        remove_bars: vec![7],
        create_bars: vec![CreateBar { id: 7, ..CreateBar::default() }],
        ..Modification::default()
    };
    let say = || {
        let update = UpdateBar { id: 7, buffering_duration: Some(hours), ..UpdateBar::default() };
        Modification { update_bars: vec![update], ..Modification::default() }
    };
    for change in [anew, act(BUFF_NOCP)] {
        modify(&mut bench, seid, change).unwrap();
        assert_eq!(duration(&bench), NOT_SAID);
        modify(&mut bench, seid, say()).unwrap();
        assert_eq!(duration(&bench), hours);
    }
    bench.check();
}

#[test]
fn what_comes_by_a_tunnel_from_n9_or_the_session_manager_waits_as_what_comes_from_n6_does() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    for (id, interface) in [(3, Interface::Core), (4, Interface::Other(3))] {
        let pdi = Pdi { f_teid: Some(CHOOSE), ..Pdi::from_interface(interface) };
        request.create_pdrs.push(CreatePdr { pdi, far_id: Some(2), ..uplink_pdr(id, 1, CHOOSE) });
    }
    request.create_fars[1].apply_action = BUFF_NOCP;
    let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
    for _ in 0..2 {
        for pdr in [2, 3, 4] {
            let report = bench.node.alarm(Alarm::Data { up_seid: seid, pdr }, bench.now).pop().expect("a report");
            assert_eq!(told(&mut bench, &report), [pdr]);
        }
        // The UE is reached, and its connection released again.
        modify(&mut bench, seid, act(ApplyAction::FORW)).unwrap();
        modify(&mut bench, seid, act(BUFF_NOCP)).unwrap();
    }
    bench.check();
}

#[test]
fn packets_that_wait_are_discarded_on_request() {
    let mut bench = Bench::associated();
    let seid = idle(&mut bench, BUFF_NOCP, None).unwrap();
    modify(&mut bench, seid, Modification { flags: Modification::DROBU, ..Modification::default() }).unwrap();
    assert_eq!(bench.seen().parting, Parting { drop_buffered: true, end_markers: vec![] });
    modify(&mut bench, seid, act(ApplyAction::FORW)).unwrap();
    assert_eq!(bench.seen().parting, Parting::default());
}

#[test]
fn a_tunnel_that_is_left_gets_an_end_marker_if_that_is_asked_for() {
    let mut bench = Bench::associated();
    let seid = idle(&mut bench, ApplyAction::FORW, None).unwrap();
    let path_switch = |teid, send_end_marker| {
        let outer_header_creation = Some(OuterHeaderCreation::gtpu(teid, GNB.into()));
        let parameters = UpdateForwardingParameters {
            outer_header_creation,
            send_end_marker,
            ..UpdateForwardingParameters::default()
        };
        let update = forwarding_update(2, parameters);
        Modification { update_fars: vec![update], ..Modification::default() }
    };
    let left = |teid| vec![Tunnel { teid, address: GNB.into() }];
    for (teid, send, end_markers) in
        [(0x7101, true, left(0x7001)), (0x7102, false, vec![]), (0x7102, true, vec![]), (0x7103, true, left(0x7102))]
    {
        modify(&mut bench, seid, path_switch(teid, send)).unwrap();
        let parting = bench.seen().parting;
        let left: Vec<_> = parting.end_markers.iter().filter_map(|left| left.outer_header_creation).collect();
        assert_eq!((left, parting.drop_buffered), (end_markers, false));
    }
    // Nothing was sent into the tunnel of a UE that was idle.
    modify(&mut bench, seid, act(BUFF_NOCP)).unwrap();
    modify(&mut bench, seid, path_switch(0x7104, true)).unwrap();
    assert_eq!(bench.seen().parting, Parting::default());
    bench.check();
}

#[test]
fn what_would_not_be_buffered_as_it_is_asked_for_is_refused() {
    let mut bench = Bench::associated();
    let not_supported = Fault::of(Cause::ServiceNotSupported, IeType::ApplyAction);
    let wrong = Fault::of(Cause::MandatoryIeIncorrect, IeType::ApplyAction);
    assert_eq!(idle(&mut bench, ApplyAction(ApplyAction::FORW.0 | ApplyAction::NOCP.0), None), Err(wrong));
    let missing = Fault::of(Cause::ConditionalIeMissing, IeType::DuplicatingParameters);
    assert_eq!(idle(&mut bench, ApplyAction(ApplyAction::BUFF.0 | ApplyAction::DUPL.0), None), Err(missing));
    // Uplink packets do not wait.
    let mut request = establishment(1);
    request.create_fars[0].apply_action = ApplyAction::BUFF;
    let Response::SessionEstablishment(response) = bench.ask(0, &Request::SessionEstablishment(request)) else {
        panic!()
    };
    assert_eq!(response.outcome, Err(not_supported));
    // A BAR that is not there, twice there, or still needed.
    let mut request = establishment(1);
    request.create_fars[1] = CreateFar { apply_action: BUFF_NOCP, bar_id: Some(9), ..request.create_fars[1].clone() };
    let unknown = Fault { offending_ie: Some(IeType::BarId as u16), ..Fault::rule(RuleId::Far(2)) };
    let Response::SessionEstablishment(response) = bench.ask(0, &Request::SessionEstablishment(request)) else {
        panic!()
    };
    assert_eq!(response.outcome, Err(unknown));
    assert_eq!(bench.seen(), Seen::default());
    let bar = CreateBar { id: 1, ..CreateBar::default() };
    let seid = idle(&mut bench, BUFF_NOCP, Some(bar.clone())).unwrap();
    let failed = |id| Err(Fault::rule(RuleId::Bar(id)));
    let create = Modification { create_bars: vec![bar.clone()], ..Modification::default() };
    assert_eq!(modify(&mut bench, seid, create), failed(1));
    let update = Modification { update_bars: vec![CreateBar { id: 2, ..bar }], ..Modification::default() };
    assert_eq!(modify(&mut bench, seid, update), failed(2));
    let remove = |id| Modification { remove_bars: vec![id], ..Modification::default() };
    assert_eq!(modify(&mut bench, seid, remove(2)), failed(2));
    assert_eq!(modify(&mut bench, seid, remove(1)), Err(unknown));
    bench.check();
}

#[test]
fn a_tunnel_that_its_peer_does_not_know_is_told_now_and_then() {
    let mut bench = Bench::associated();
    let seid = idle(&mut bench, ApplyAction::FORW, None).unwrap();
    let unknown = |bench: &mut Bench, peer, teid| bench.node.alarm(Alarm::Unknown { peer, teid }, bench.now).pop();
    let gnb = IpAddr::V4(GNB);
    assert_eq!(unknown(&mut bench, gnb, 0x7002), None, "nobody sends there");
    assert_eq!(unknown(&mut bench, SMF, 0x7001), None, "nor there");
    for _ in 0..2 {
        let report = unknown(&mut bench, gnb, 0x7001).expect("a report");
        let (header, body) = Header::parse(&report.octets).unwrap();
        assert_eq!(header.seid, Some(0x5001));
        let Request::SessionReport(told) = Request::parse(&header, body).unwrap() else { panic!() };
        assert_eq!(told.unknown_tunnels, [FTeid::Given { teid: 0x7001, v4: Some(GNB), v6: None }]);
        let answer = Response::SessionReport(SessionReportResponse::new(Ok(()))).encode(0, header.sequence);
        assert_eq!(bench.octets(&answer), None);
        assert_eq!(unknown(&mut bench, gnb, 0x7001), None);
        bench.now += Duration::from_secs(10);
    }
    // The session has another tunnel, and then none.
    let outer_header_creation = Some(OuterHeaderCreation::gtpu(0x7009, GNB.into()));
    let parameters = UpdateForwardingParameters { outer_header_creation, ..UpdateForwardingParameters::default() };
    let update = forwarding_update(2, parameters);
    modify(&mut bench, seid, Modification { update_fars: vec![update], ..Modification::default() }).unwrap();
    assert_eq!(unknown(&mut bench, gnb, 0x7001), None);
    assert!(unknown(&mut bench, gnb, 0x7009).is_some());
    bench.ask(seid, &Request::SessionDeletion);
    bench.now += Duration::from_secs(20);
    assert_eq!(unknown(&mut bench, gnb, 0x7009), None);
}

#[test]
fn of_the_sessions_that_lead_into_an_unknown_tunnel_one_is_told_whose_manager_is_not_behind() {
    let limits = Limits { reports: 3, ..config().limits };
    let mut bench = Bench::with(Config { limits, ..config() }, &[N3.into()]);
    let other = "10.4.0.9".parse().unwrap();
    for (number, manager, teid) in [(1, SMF, 0x7001), (2, other, 0x7001), (3, SMF, 0x7003), (4, SMF, 0x7004)] {
        let mut request = establishment(number);
        request.cp_f_seid = FSeid::new(u64::from(number), manager);
        request.create_fars[1] = downlink_far(2, teid);
        establish(&mut bench, request).unwrap();
    }
    // As much as one manager may leave unanswered.
    let alarm = |teid| Alarm::Unknown { peer: GNB.into(), teid };
    for teid in [0x7003, 0x7004] {
        assert_eq!(bench.node.alarm(alarm(teid), bench.now)[0].to.ip(), SMF);
    }
    let [report] = &bench.node.alarm(alarm(0x7001), bench.now)[..] else { panic!() };
    assert_eq!(report.to.ip(), other);
    assert_eq!(bench.node.alarm(alarm(0x7001), bench.now), [], "it was told");
}

#[test]
fn the_answer_to_a_report_may_change_the_bar_and_discard_what_waits() {
    let mut bench = Bench::associated();
    let bar = CreateBar { id: 1, suggested_packets: Some(5), ..CreateBar::default() };
    let seid = idle(&mut bench, BUFF_NOCP, Some(bar)).unwrap();
    let report = packet_waits(&mut bench, seid).expect("a report");
    let (header, _) = Header::parse(&report.octets).unwrap();
    let response = SessionReportResponse {
        update_bars: vec![CreateBar { id: 1, suggested_packets: Some(9), ..CreateBar::default() }],
        drop_buffered: true,
        cp_f_seid: Some(FSeid::new(0x77, SMF)),
        ..SessionReportResponse::new(Ok(()))
    };
    assert_eq!(bench.octets(&Response::SessionReport(response).encode(0, header.sequence)), None);
    let seen = bench.seen();
    assert_eq!(
        seen.sessions[&seid].fars[1].action,
        FarAction::Buffer(Buffering { notify: true, max_packets: 9, duration: NOT_SAID })
    );
    assert_eq!((seen.parting.drop_buffered, seen.sessions[&seid].cp_f_seid.seid), (true, 0x77));
    bench.check();
    // What names no BAR of the session changes nothing.
    let report = packet_waits(&mut bench, seid).expect("a report, since nothing waits any more");
    let (header, _) = Header::parse(&report.octets).unwrap();
    let before = bench.seen();
    let wrong = SessionReportResponse {
        update_bars: vec![CreateBar { id: 2, ..CreateBar::default() }],
        ..SessionReportResponse::new(Ok(()))
    };
    assert_eq!(bench.octets(&Response::SessionReport(wrong).encode(0, header.sequence)), None);
    assert_eq!(bench.seen(), before);
}
