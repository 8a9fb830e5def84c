//! A member that hangs in a change of its pool.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Instant;

use super::halfway::{LINKS, PATIENCE, spec, until};
use crate::broker::pool::MEMBERS_WITHIN;
use crate::broker::{Broker, Config, Event};
use crate::client::attach;
use crate::layout::VERSION_POOL;
use crate::socket;
use crate::steering::BUCKETS;
use crate::wire::{Progress, Request};

fn say(connection: &OwnedFd, request: &Request) {
    socket::send(connection.as_fd(), &request.encode(), &[]).unwrap();
}

/// A member that steers, and says no more than it is made to.
fn steers(directory: &Path, function: &str, ports: u16) -> OwnedFd {
    let connection = socket::connected(&directory.join(function)).unwrap();
    let progress = Progress { ports, ..Progress::default() };
    say(&connection, &Request::Steer { oldest: VERSION_POOL, newest: VERSION_POOL, progress });
    connection
}

/// How long the members that the pool's change waits for have yet.
fn patience(broker: &Broker) -> Option<std::time::Duration> {
    let until = broker.call(|core| core.pools[0].members_until).unwrap();
    until.map(|until| until.saturating_duration_since(Instant::now()))
}

/// That time has passed.
fn wait_no_longer(broker: &Broker) {
    let left = patience(broker).expect("somebody is waited for");
    assert!(left > MEMBERS_WITHIN / 2 && left <= MEMBERS_WITHIN, "{left:?}");
    broker.call(|core| core.pools[0].members_until = Some(Instant::now())).unwrap();
}

#[test]
fn a_member_that_hangs_holds_a_change_up_for_a_while_and_then_has_no_port() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (events, outcasts) = channel();
    let tell = move |event| {
        if let Event::Outcast { function, .. } = event {
            events.send(function).unwrap();
        }
    };
    let broker = Broker::start(Config { hugepages: false }, tell).unwrap();
    LINKS.iter().for_each(|link| broker.add_link(spec(link)).unwrap());
    for function in ["b", "c"] {
        broker.listen(function, Broker::bind(&directory.join(function)).unwrap(), 0..u32::MAX).unwrap();
    }
    let [b, _c] = ["b", "c"].map(|function| {
        let ports = LINKS.map(|port| attach(&directory.join(function), port, PATIENCE, 192).unwrap());
        (steers(directory, function, 2), ports)
    });
    let pool = || broker.pools().unwrap().remove(0);
    until("both are there", || pool().present == [true; 2]);
    assert_eq!(patience(&broker), None);

    // Neither is ready for it; then `b` is.
    broker.set_owners("b", &[1; BUCKETS]).unwrap();
    say(&b.0, &Request::Prepared { epoch: 2 });
    until("the other one is waited for", || pool().waits_for == ["c"]);
    wait_no_longer(&broker);
    until("senders know of the table", || pool().epoch == 2);
    assert_eq!(outcasts.recv_timeout(PATIENCE).unwrap(), "c");
    let ports = |function: &str| {
        let ports = broker.ports().unwrap().into_iter().filter(|port| port.name.function == function);
        ports.filter(|port| port.pid.is_some()).count()
    };
    assert_eq!((ports("b"), ports("c"), pool().present), (LINKS.len(), 0, vec![true, false]));

    // What one gives away counts; that it has given all it does not say.
    assert_eq!(pool().waits_for, ["b"]);
    say(&b.0, &Request::Bucket { bucket: 0, to: 1, more: false, state: Vec::new() });
    wait_no_longer(&broker);
    assert_eq!(outcasts.recv_timeout(PATIENCE).unwrap(), "b");
    until("the change is complete", || !pool().is_changing);
    assert_eq!((ports("b"), patience(&broker)), (0, None));
}
