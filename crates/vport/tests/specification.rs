//! docs/ports.md specifies the handshake: each message by the number that it has, each rule by its words.

use vport::info::PortInfo;
use vport::ring::Violation;
use vport::steering::{BUCKETS, Steering};
use vport::wire::{Place, Progress, Reply, Request};

const DOCUMENT: &str = include_str!("../../../docs/ports.md");

fn assert_has(number: u16, name: &str) {
    let row = format!("| {number} | {name} |");
    assert!(DOCUMENT.contains(&row), "docs/ports.md has no row {row}");
}

/// The number of a message, and its name.
fn assert_has_message(datagram: &[u8], message: &str) {
    let name = message.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap();
    assert_has(u16::from_le_bytes([datagram[4], datagram[5]]), &format!("`{name}`"));
}

#[test]
fn every_request_is_specified() {
    let (generation, epoch, port) = (1, 1, "p".to_owned());
    let requests = [
        Request::Hello { oldest: 1, newest: 2, port: port.clone(), resume: 0 },
        Request::Succeed { oldest: 1, newest: 2, port },
        Request::TakeOver,
        Request::Mapped { generation },
        Request::Ready { generation },
        Request::Quarantine { generation, queue: 0, violation: 1 },
        Request::Report(vec![]),
        Request::Holds(vec![]),
        Request::Released { generation },
        Request::Away,
        Request::Steer { oldest: 1, newest: 2, progress: Progress::default() },
        Request::Prepared { epoch },
        Request::Bucket { bucket: 0, to: 0, more: false, state: vec![] },
        Request::Gave { epoch },
        Request::Came { epoch, buckets: 0 },
    ];
    requests.iter().for_each(|request| assert_has_message(&request.encode(), &format!("{request:?}")));
}

#[test]
fn every_reply_is_specified() {
    let (generation, epoch, records_bytes) = (1, 1, 4096);
    let place = Place { first_queue: 0, queues: 1, epoch, owners: [0; BUCKETS] };
    let info = PortInfo::named("p");
    let replies = [
        Reply::Welcome { version: 2, info, peer_queues: 1, ring_bytes: 1 << 20, resumed: false, place: None },
        Reply::Refused { reason: String::new(), try_again: false },
        Reply::Own { generation, records_bytes },
        Reply::Peer { generation, records_bytes, steering: Steering::None },
        Reply::Records { generation, records_bytes },
        Reply::Arena { generation, buffers: 1, present: 1, own: 2, peer: 3 },
        Reply::Over { generation, dead: false },
        Reply::Inherit,
        Reply::Gone { since: 0, generation, first_queue: 0, queues: 1 },
        Reply::Steers(place),
        Reply::Prepare { epoch, owners: [0; BUCKETS] },
        Reply::Begun { epoch, come: 0 },
        Reply::Closed { epoch },
        Reply::Arrival { bucket: 0, from: 0, more: false, state: vec![] },
    ];
    replies.iter().for_each(|reply| assert_has_message(&reply.encode(), &format!("{reply:?}")));
}

#[test]
fn every_rule_is_specified() {
    Violation::ALL.into_iter().for_each(|rule| assert_has(rule as u16, &rule.to_string()));
}
