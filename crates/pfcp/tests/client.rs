//! How the client asks, and asks again.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use pfcp::client::{Client, ClientError, Retry};
use pfcp::node::Heartbeat;
use pfcp::session::DeletionResponse;
use pfcp::{Header, MessageType, RecoveryTimeStamp, Request, Response};

const OWN: RecoveryTimeStamp = RecoveryTimeStamp(5);
const PEERS: RecoveryTimeStamp = RecoveryTimeStamp(9);

fn pair(retry: Retry) -> (Client, UdpSocket) {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    (Client::new(socket, peer.local_addr().unwrap(), OWN, retry), peer)
}

fn receive(peer: &UdpSocket) -> (Vec<u8>, std::net::SocketAddr) {
    let mut buffer = [0; 1_500];
    let (len, from) = peer.recv_from(&mut buffer).unwrap();
    (buffer[..len].to_vec(), from)
}

#[test]
fn a_request_is_sent_again_with_the_same_octets_until_it_is_answered() {
    let (mut client, peer) = pair(Retry { t1: Duration::from_millis(50), n1: 100 });
    let responder = thread::spawn(move || {
        let (first, _) = receive(&peer);
        let (second, from) = receive(&peer);
        assert_eq!(first, second);
        let sequence = Header::parse(&first).unwrap().0.sequence;
        let response =
            |sequence| Response::SessionDeletion(DeletionResponse { outcome: Ok(vec![]) }).encode(7, sequence);
        // Neither another number's answer nor nonsense is the answer.
        peer.send_to(&response(sequence + 1), from).unwrap();
        peer.send_to(b"?", from).unwrap();
        peer.send_to(&response(sequence), from).unwrap();
    });
    let response = client.request(7, &Request::SessionDeletion).unwrap();
    assert_eq!(response, Response::SessionDeletion(DeletionResponse { outcome: Ok(vec![]) }));
    responder.join().unwrap();
}

#[test]
fn a_silent_peer_is_given_up() {
    let (mut client, peer) = pair(Retry { t1: Duration::from_millis(1), n1: 3 });
    let error = client.request(7, &Request::SessionDeletion).unwrap_err();
    assert!(matches!(
        error,
        ClientError::NoAnswer { message_type: MessageType::SESSION_DELETION_REQUEST, tries: 3, .. }
    ));
    let copies: Vec<_> = (0..3).map(|_| receive(&peer).0).collect();
    assert!(copies.iter().all(|copy| *copy == copies[0]));
}

#[test]
fn heartbeats_are_answered_while_the_client_waits() {
    let (mut client, peer) = pair(Retry { t1: Duration::from_secs(10), n1: 1 });
    let responder = thread::spawn(move || {
        let (request, from) = receive(&peer);
        peer.send_to(&Request::Heartbeat(Heartbeat { recovery: PEERS }).encode(0, 77), from).unwrap();
        let (answer, _) = receive(&peer);
        assert_eq!(answer, Response::Heartbeat(Heartbeat { recovery: OWN }).encode(0, 77));
        let sequence = Header::parse(&request).unwrap().0.sequence;
        peer.send_to(&Response::Heartbeat(Heartbeat { recovery: PEERS }).encode(0, sequence), from).unwrap();
    });
    assert_eq!(client.peer_recovery(), None);
    client.request(0, &Request::Heartbeat(Heartbeat { recovery: OWN })).unwrap();
    assert_eq!(client.peer_recovery(), Some(PEERS));
    responder.join().unwrap();
}

#[test]
fn heartbeats_are_answered_when_there_is_nothing_to_ask() {
    let (mut client, peer) = pair(Retry::default());
    // The client's address is known to its peer from a request.
    let asker = thread::spawn(move || {
        let (request, from) = receive(&peer);
        let sequence = Header::parse(&request).unwrap().0.sequence;
        peer.send_to(&Response::Heartbeat(Heartbeat { recovery: PEERS }).encode(0, sequence), from).unwrap();
        let restarted = RecoveryTimeStamp(PEERS.0 + 1);
        peer.send_to(&Request::Heartbeat(Heartbeat { recovery: restarted }).encode(0, 78), from).unwrap();
        receive(&peer).0
    });
    client.request(0, &Request::Heartbeat(Heartbeat { recovery: OWN })).unwrap();
    while !asker.is_finished() {
        client.serve(Duration::from_millis(10)).unwrap();
    }
    assert_eq!(asker.join().unwrap(), Response::Heartbeat(Heartbeat { recovery: OWN }).encode(0, 78));
    assert_eq!(client.peer_recovery(), Some(RecoveryTimeStamp(PEERS.0 + 1)));
}
