//! Paths to the peers of tunnels: asked whether they are alive, and told to session managers when they are not.

use std::net::IpAddr;
use std::time::Duration;

use crate::support::*;
use pfcp::node::{NodeOutcome, NodeReport, RemoteGtpuPeer};
use pfcp::{Header, NodeId, Request, Response};
use upf::alarms::Alarm;
use upf::n4::{Config, Datagram, Echo, Node, PathTerms};

const PEER: IpAddr = IpAddr::V4(GNB);

/// With associations of `smf` and `other`, and heartbeats that are not in the way.
fn bench() -> Bench {
    let mut bench = Bench::new();
    let paths = PathTerms { period: Duration::from_secs(60), t3: Duration::from_secs(3), n3: 3 };
    let config = Config { paths, heartbeat: Duration::from_secs(3_600), ..config() };
    bench.node = Node::new(config, Watched::new(64), bench.clock);
    bench.ask(0, &setup("smf", 1_000));
    bench.ask(0, &setup("other", 1_000));
    bench
}

/// Lets time pass second by second: what was sent to session managers, and echo requests by second.
fn pass(bench: &mut Bench, seconds: u32) -> (Vec<Datagram>, Vec<(u32, Echo)>) {
    let (mut sent, mut echoes) = (vec![], vec![]);
    for second in 0..seconds {
        sent.extend(bench.node.tick(bench.now));
        echoes.extend(bench.node.take_echoes().into_iter().map(|echo| (second, echo)));
        bench.now += Duration::from_secs(1);
    }
    (sent, echoes)
}

fn report(datagram: &Datagram) -> NodeReport {
    let (header, body) = Header::parse(&datagram.octets).unwrap();
    match Request::parse(&header, body) {
        Ok(Request::NodeReport(report)) => report,
        other => panic!("{other:?}"),
    }
}

/// The first of the peers' answers.
fn accept(bench: &mut Bench, datagram: &Datagram) {
    let (header, _) = Header::parse(&datagram.octets).unwrap();
    let outcome = NodeOutcome { node_id: NodeId::Fqdn("smf".into()), outcome: Ok(()) };
    assert_eq!(bench.octets(&Response::NodeReport(outcome).encode(0, header.sequence)), None);
}

#[test]
fn a_path_that_fails_and_recovers_is_told_to_every_session_manager() {
    let mut bench = bench();
    assert_eq!(pass(&mut bench, 5).1, [], "nobody is asked without a tunnel");
    establish(&mut bench, establishment(1)).unwrap();
    establish(&mut bench, establishment(2)).unwrap();
    let (sent, echoes) = pass(&mut bench, 9);
    assert_eq!(sent, []);
    let asked = |second| (second, Echo { peer: PEER, sequence: 1 });
    assert_eq!(echoes, [asked(0), asked(3), asked(6)], "one path, whatever the number of tunnels");
    let (sent, _) = pass(&mut bench, 1);
    let peer = RemoteGtpuPeer { address: PEER };
    let failed = NodeReport { node_id: config().node_id, failed: vec![peer], recovered: vec![], others: vec![] };
    assert_eq!(sent.iter().map(report).collect::<Vec<_>>(), [failed.clone(), failed]);
    // It is sent again until it is answered.
    accept(&mut bench, &sent[0]);
    let (again, _) = pass(&mut bench, 10);
    assert_eq!(again, [sent[1].clone(), sent[1].clone()]);
    assert_eq!(bench.seen().sessions.len(), 2, "sessions stay until their managers change them");

    // The peer is asked on, and answers.
    let (_, echoes) = pass(&mut bench, 55);
    let echo = echoes[0].1;
    assert_eq!(echo, Echo { peer: PEER, sequence: 2 });
    let late = Echo { peer: PEER, sequence: 1 };
    assert_eq!(bench.node.alarm(Alarm::Alive(late), bench.now), [], "that is no answer");
    let told = bench.node.alarm(Alarm::Alive(echo), bench.now);
    let recovered = NodeReport { node_id: config().node_id, failed: vec![], recovered: vec![peer], others: vec![] };
    assert_eq!(told.iter().map(report).collect::<Vec<_>>(), [recovered.clone(), recovered]);
}

#[test]
fn a_peer_without_tunnels_is_not_asked_any_more() {
    let mut bench = bench();
    let seid = establish(&mut bench, establishment(1)).unwrap().up_f_seid.seid;
    let (_, echoes) = pass(&mut bench, 1);
    assert_eq!(bench.node.alarm(Alarm::Alive(echoes[0].1), bench.now), []);
    let (sent, echoes) = pass(&mut bench, 61);
    assert_eq!((sent, echoes.len()), (vec![], 1));
    assert_eq!(bench.node.alarm(Alarm::Alive(echoes[0].1), bench.now), []);
    delete(&mut bench, seid).unwrap();
    assert_eq!(pass(&mut bench, 200), (vec![], vec![]));
}
