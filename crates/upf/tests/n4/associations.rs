//! How associations with session managers come, are kept up and go, whoever asks for them.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use pfcp::node::{
    AssociationRelease, AssociationSetup, AssociationSetupResponse, AssociationUpdate, Heartbeat, NodeOutcome,
};
use pfcp::{Cause, Fault, Header, MessageType, NodeId, RecoveryTimeStamp, Request, Response};
use upf::bell::Bell;
use upf::clock::Clock;
use upf::function::Meters;
use upf::n4::{Config, Datagram, Endpoint, Node};

#[test]
fn an_association_tells_the_upfs_name_start_and_features() {
    let mut bench = Bench::new();
    let Response::AssociationSetup(response) = bench.ask(0, &setup("smf", 1_000)) else { panic!() };
    assert_eq!(response.outcome, Ok(()));
    assert_eq!((response.node_id, response.recovery), (config().node_id, config().recovery));
    // DDND, FTUP and PFDM, EMPU, PDIU, UDBC, QUOAC and FRRT, ADPDP, UEIP and MNOP, VTIME and IP6PL.
    assert_eq!(response.up_features, Some(vec![0x32, 0x2f, 0x16, 0x24]));
}

#[test]
fn heartbeats_are_answered_without_an_association() {
    let response = Bench::new().ask(0, &Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1) }));
    assert_eq!(response, Response::Heartbeat(Heartbeat { recovery: config().recovery }));
}

#[test]
fn without_an_association_there_is_no_session() {
    let mut bench = Bench::new();
    let none = Fault::new(Cause::NoEstablishedPfcpAssociation);
    assert_eq!(establish(&mut bench, establishment(1)), Err(none));
    let node_id = NodeId::Fqdn("smf".into());
    let release = Request::AssociationRelease(AssociationRelease { node_id: node_id.clone() });
    let Response::AssociationRelease(response) = bench.ask(0, &release) else { panic!() };
    assert_eq!(response.outcome, Err(none));
    let update = Request::AssociationUpdate(AssociationUpdate::new(node_id));
    let Response::AssociationUpdate(response) = bench.ask(0, &update) else { panic!() };
    assert_eq!(response.outcome, Err(none));
}

#[test]
fn a_peer_that_restarts_loses_its_sessions_and_gets_no_old_answers() {
    let mut bench = Bench::associated();
    let request = Request::SessionEstablishment(establishment(1)).encode(0, 2);
    let first = bench.octets(&request).unwrap();
    // It says so when it sets up its association anew ...
    bench.octets(&setup("smf", 2_000).encode(0, 1)).unwrap();
    assert_eq!(bench.seen(), Seen::default());
    // ... and then does the same as before, to the octet.
    let second = bench.octets(&request).unwrap();
    assert_ne!(first, second, "it is another session");
    assert_eq!(bench.seen().sessions.len(), 1);
    // Or its heartbeat says so. An old one says nothing.
    for (recovery, sessions) in [(1_999, 1), (2_000, 1), (2_001, 0)] {
        bench.ask(0, &Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(recovery) }));
        assert_eq!(bench.seen().sessions.len(), sessions, "{recovery}");
    }
    assert_eq!(establish(&mut bench, establishment(1)), Err(Fault::new(Cause::NoEstablishedPfcpAssociation)));
    bench.check();
}

#[test]
fn a_release_takes_the_sessions_along() {
    let mut bench = Bench::associated();
    bench.ask(0, &setup("other", 1));
    establish(&mut bench, establishment(1)).unwrap();
    let mut other = establishment(2);
    other.node_id = NodeId::Fqdn("other".into());
    establish(&mut bench, other).unwrap();
    let release = Request::AssociationRelease(AssociationRelease { node_id: NodeId::Fqdn("smf".into()) });
    let Response::AssociationRelease(response) = bench.ask(0, &release) else { panic!() };
    assert_eq!(response.outcome, Ok(()));
    assert_eq!(bench.seen().sessions.len(), 1, "the other's session stays");
    bench.check();
}

/// Lets time pass second by second, answering heartbeats with `recovery` if there is any; returns what was sent.
fn pass(bench: &mut Bench, seconds: u32, recovery: Option<u32>) -> Vec<Vec<u8>> {
    let mut sent = vec![];
    for _ in 0..seconds {
        bench.now += Duration::from_secs(1);
        for datagram in bench.node.tick(bench.now) {
            assert_eq!(datagram.to, bench.from);
            if let Some(recovery) = recovery {
                let (header, _) = Header::parse(&datagram.octets).unwrap();
                let heartbeat = Heartbeat { recovery: RecoveryTimeStamp(recovery) };
                let response = Response::Heartbeat(heartbeat).encode(0, header.sequence);
                assert_eq!(bench.octets(&response), None);
            }
            sent.push(datagram.octets);
        }
    }
    sent
}

#[test]
fn the_peer_is_asked_whether_it_lives_and_lost_if_it_does_not() {
    let mut bench = Bench::associated();
    establish(&mut bench, establishment(1)).unwrap();
    let sent = pass(&mut bench, 100, Some(1_000));
    assert_eq!(sent.len(), 10);
    let (header, body) = Header::parse(&sent[0]).unwrap();
    let heartbeat = Request::Heartbeat(Heartbeat { recovery: config().recovery });
    assert_eq!(Request::parse(&header, body), Ok(heartbeat));
    assert_eq!(bench.seen().sessions.len(), 1);

    let sent = pass(&mut bench, 12, None);
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|octets| *octets == sent[0]), "sent again with the same octets");
    assert_eq!(bench.seen().sessions.len(), 1);
    pass(&mut bench, 1, None);
    assert_eq!(bench.seen(), Seen::default());
    assert_eq!(bench.node.due(), None);
}

#[test]
fn the_answer_to_a_heartbeat_may_tell_of_a_restart() {
    let mut bench = Bench::associated();
    establish(&mut bench, establishment(1)).unwrap();
    pass(&mut bench, 10, Some(1_001));
    assert_eq!(bench.seen(), Seen::default());
}

/// A node that is to associate with `managers` by itself.
fn with_managers(managers: &[SocketAddr]) -> Bench {
    let mut bench = Bench::new();
    let config = Config { managers: managers.to_vec(), ..config() };
    bench.node = Node::new(config, Watched::new(64), bench.clock);
    bench
}

fn manager() -> SocketAddr {
    SocketAddr::new(SMF, 18_805)
}

fn understood(octets: &[u8]) -> (Header, Request) {
    let (header, body) = Header::parse(octets).unwrap();
    (header, Request::parse(&header, body).unwrap())
}

/// Everything sent within `seconds`, with the second.
fn sent(bench: &mut Bench, seconds: u32) -> Vec<(u32, Datagram)> {
    let mut sent = vec![];
    for second in 0..seconds {
        sent.extend(bench.node.tick(bench.now).into_iter().map(|datagram| (second, datagram)));
        bench.now += Duration::from_secs(1);
    }
    sent
}

/// The manager's answer to an association set-up with the sequence number.
fn answer(bench: &mut Bench, sequence: u32, outcome: Result<(), Fault>) {
    let response = AssociationSetupResponse::new(NodeId::Fqdn("smf".into()), outcome, RecoveryTimeStamp(1_000));
    let octets = Response::AssociationSetup(response).encode(0, sequence);
    assert_eq!(bench.node.handle(&octets, manager(), bench.now), None);
}

#[test]
fn a_manager_in_the_configuration_is_asked_until_it_accepts() {
    let mut bench = with_managers(&[manager()]);
    let asked = sent(&mut bench, 8);
    let seconds: Vec<_> = asked.iter().map(|(second, _)| *second).collect();
    assert_eq!(seconds, [0, 1, 2, 4, 5, 6], "three times, a pause, three times");
    assert!(asked.iter().all(|(_, datagram)| datagram.to == manager()));
    assert_eq!((&asked[0].1, &asked[3].1), (&asked[2].1, &asked[5].1), "the same octets while it is one request");
    let (first, request) = understood(&asked[0].1.octets);
    let (second, _) = understood(&asked[3].1.octets);
    assert_ne!(first.sequence, second.sequence);
    let Request::AssociationSetup(setup) = request else { panic!("{request:?}") };
    assert_eq!((setup.node_id, setup.recovery), (config().node_id, config().recovery));
    assert_eq!(setup.up_features, Some(vec![0x32, 0x2f, 0x16, 0x24]));

    // It is late, and says no; then yes.
    answer(&mut bench, first.sequence, Ok(()));
    assert!(bench.node.is_alone(), "that was given up");
    answer(&mut bench, second.sequence, Err(Fault::new(Cause::RequestRejected)));
    let again = sent(&mut bench, 3);
    let (third, _) = understood(&again[0].1.octets);
    answer(&mut bench, third.sequence, Ok(()));
    establish(&mut bench, establishment(1)).unwrap();

    // From now on it is asked whether it lives, where it was asked before; lost, it is asked for an association again.
    let heartbeat = sent(&mut bench, 12);
    assert_eq!(heartbeat[0].1.to, manager());
    assert!(matches!(understood(&heartbeat[0].1.octets).1, Request::Heartbeat(_)));
    let again = sent(&mut bench, 6);
    assert_eq!(bench.seen(), Seen::default());
    assert!(matches!(understood(&again.last().unwrap().1.octets).1, Request::AssociationSetup(_)));
}

#[test]
fn a_manager_that_asks_itself_is_not_asked() {
    let mut bench = with_managers(&[manager()]);
    let asked = sent(&mut bench, 1);
    let (header, _) = understood(&asked[0].1.octets);
    bench.ask(0, &setup("smf", 1_000));
    establish(&mut bench, establishment(1)).unwrap();
    assert_eq!(sent(&mut bench, 5), []);
    answer(&mut bench, header.sequence, Ok(()));
    assert_eq!(bench.seen().sessions.len(), 1, "an answer that crosses the manager's own request changes nothing");
    // It may end the association; it is then asked whether it would like another one.
    let release = Request::AssociationRelease(AssociationRelease { node_id: NodeId::Fqdn("smf".into()) });
    bench.ask(0, &release);
    let again = sent(&mut bench, 3);
    assert!(matches!(understood(&again[0].1.octets).1, Request::AssociationSetup(_)));
}

#[test]
fn an_association_set_up_anew_keeps_the_sessions_that_the_manager_asks_to_keep() {
    let again = |retain: Option<Vec<IpAddr>>| {
        let node_id = NodeId::Fqdn("smf".into());
        Request::AssociationSetup(AssociationSetup {
            retain,
            ..AssociationSetup::new(node_id, RecoveryTimeStamp(1_000))
        })
    };
    let other: IpAddr = "10.4.0.3".parse().unwrap();
    for (retain, kept, retained) in
        [(None, 0, false), (Some(vec![]), 2, true), (Some(vec![SMF]), 1, true), (Some(vec![GNB.into()]), 0, true)]
    {
        let mut bench = Bench::associated();
        establish(&mut bench, establishment(1)).unwrap();
        let mut elsewhere = establishment(2);
        elsewhere.cp_f_seid = pfcp::session::FSeid::new(7, other);
        establish(&mut bench, elsewhere).unwrap();
        let Response::AssociationSetup(response) = bench.ask(0, &again(retain.clone())) else { panic!() };
        assert_eq!((response.outcome, response.retained), (Ok(()), retained), "{retain:?}");
        assert_eq!(bench.seen().sessions.len(), kept, "{retain:?}");
        // What was kept belongs to the association that there is now.
        let release = Request::AssociationRelease(AssociationRelease { node_id: NodeId::Fqdn("smf".into()) });
        bench.ask(0, &release);
        assert_eq!(bench.seen(), Seen::default());
        bench.check();
    }
    // Where there was no association nothing can be kept.
    let Response::AssociationSetup(response) = Bench::new().ask(0, &again(Some(vec![]))) else { panic!() };
    assert_eq!((response.outcome, response.retained), (Ok(()), false));
}

#[test]
fn a_upf_that_ends_asks_for_release_and_takes_nobody_on() {
    let mut bench = Bench::associated();
    establish(&mut bench, establishment(1)).unwrap();
    let asked = bench.node.leave(Duration::from_secs(30), bench.now);
    let (header, request) = understood(&asked[0].octets);
    let Request::AssociationUpdate(update) = request else { panic!("{request:?}") };
    assert_eq!((update.node_id, update.release), (config().node_id, true));
    assert_eq!(update.graceful_release, Some(Duration::from_secs(30)));
    assert_eq!(sent(&mut bench, 2)[0].1, asked[0], "sent again while it is not answered");
    let outcome = NodeOutcome { node_id: NodeId::Fqdn("smf".into()), outcome: Ok(()) };
    assert_eq!(bench.octets(&Response::AssociationUpdate(outcome).encode(0, header.sequence)), None);
    assert_eq!(sent(&mut bench, 5), []);
    let none = Fault::new(Cause::NoResourcesAvailable);
    let Response::AssociationSetup(response) = bench.ask(0, &setup("other", 1)) else { panic!() };
    assert_eq!(response.outcome, Err(none));
    assert_eq!(establish(&mut bench, establishment(2)), Err(none));
    // Sessions are served until the manager has done.
    let seid = *bench.seen().sessions.keys().next().unwrap();
    assert_eq!(delete(&mut bench, seid), Ok(()));
    let release = Request::AssociationRelease(AssociationRelease { node_id: NodeId::Fqdn("smf".into()) });
    bench.ask(0, &release);
    assert!(bench.node.is_alone());
}

/// A session manager's socket, which the endpoint asks for an association.
struct Smf(UdpSocket);

impl Smf {
    fn receive(&self) -> (Header, Request, SocketAddr) {
        let mut buffer = [0; 2_000];
        let (len, from) = self.0.recv_from(&mut buffer).expect("the UPF sends something");
        let (header, request) = understood(&buffer[..len]);
        (header, request, from)
    }
}

#[test]
fn an_endpoint_associates_by_itself_and_ends_when_it_is_released() {
    let smf = Smf(UdpSocket::bind("127.0.0.1:0").unwrap());
    smf.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let address = smf.0.local_addr().unwrap();
    let release = Duration::from_secs(600);
    let config = Config { managers: vec![address], peer_port: address.port(), release, ..config() };
    let meters = Meters { clock: Clock::new(), alarms: vec![], bell: Arc::new(Bell::new().unwrap()), echoes: None };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut endpoint = Endpoint::new(socket, config, Watched::new(64), meters);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || endpoint.run(&stopped));

    let (header, request, upf) = smf.receive();
    assert!(matches!(request, Request::AssociationSetup(_)));
    let response = AssociationSetupResponse::new(NodeId::Fqdn("smf".into()), Ok(()), RecoveryTimeStamp(1_000));
    smf.0.send_to(&Response::AssociationSetup(response).encode(0, header.sequence), upf).unwrap();
    // Its own heartbeat is answered once the response before it has been dealt with.
    smf.0.send_to(&Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) }).encode(0, 5), upf).unwrap();
    smf.0.recv_from(&mut [0; 2_000]).unwrap();
    let start = Instant::now();
    stop.store(true, Ordering::Relaxed);
    let (header, request, _) = smf.receive();
    assert!(matches!(request, Request::AssociationUpdate(AssociationUpdate { release: true, .. })), "{request:?}");
    let outcome = NodeOutcome { node_id: NodeId::Fqdn("smf".into()), outcome: Ok(()) };
    smf.0.send_to(&Response::AssociationUpdate(outcome).encode(0, header.sequence), upf).unwrap();
    let release = Request::AssociationRelease(AssociationRelease { node_id: NodeId::Fqdn("smf".into()) });
    smf.0.send_to(&release.encode(0, 6), upf).unwrap();
    let mut buffer = [0; 2_000];
    let (len, _) = smf.0.recv_from(&mut buffer).unwrap();
    assert_eq!(Header::parse(&buffer[..len]).unwrap().0.message_type, MessageType::ASSOCIATION_RELEASE_RESPONSE);
    thread.join().unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(300), "it does not wait for the end of the period");
}
