//! A broker that is given no segments of a pool's links, and is told who owned what.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::halfway::{Deposits, Ending, LINKS, PATIENCE, arrives_without, feed, serve, spec, until};
use crate::broker::link::Stage;
use crate::broker::pool::Change;
use crate::broker::{Broker, Config, Event, Ownership};
use crate::client::attach;
use crate::steering::BUCKETS;

/// What the last broker left.
type Left = Arc<Mutex<Option<Ownership>>>;

fn start(left: &Left) -> Broker {
    start_with(left, &Deposits::default())
}

fn start_with(left: &Left, deposits: &Deposits) -> Broker {
    let (left, deposits) = (left.clone(), deposits.clone());
    let keep = move |event| match event {
        Event::Ownership { ownership, .. } => *left.lock().unwrap() = ownership,
        Event::Deposit { link, segments, .. } => drop(deposits.lock().unwrap().insert(link, segments)),
        _ => {}
    };
    let broker = Broker::start(Config { hugepages: false }, keep).unwrap();
    LINKS.iter().for_each(|link| broker.add_link(spec(link)).unwrap());
    broker
}

fn listen(broker: &Broker, directory: &Path, functions: &[&str]) {
    for function in functions {
        broker.listen(function, Broker::bind(&directory.join(function)).unwrap(), 0..u32::MAX).unwrap();
    }
}

/// Even buckets are `b`'s.
fn parity() -> [u8; BUCKETS] {
    core::array::from_fn(|bucket| bucket as u8 % 2)
}

fn are_up(broker: &Broker) -> bool {
    broker.ports().unwrap().iter().all(|port| port.up && port.pid.is_some())
}

/// Completes a change.
fn give(broker: &Broker, owners: &[u8; BUCKETS]) {
    until("a change begins", || broker.set_owners("b", owners).is_ok());
    until("it is complete", || !broker.pools().unwrap()[0].is_changing);
}

/// What the next broker is told, by what this one has, after which it dies; and the links of which that is given the segments.
fn goes_on(leave: impl FnOnce(&Broker, &Left), given: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let (directory, left, deposits) = (directory.path(), Left::default(), Deposits::default());
    let mut broker = start_with(&left, &deposits);
    listen(&broker, directory, &["a", "b", "c"]);
    let (stop, end, halt) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let (received, ready) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending([&stop, &end, &halt]);
        let members = ["b", "c"].map(|function| {
            let (halt, received, ready) = (&halt, &received, &ready);
            scope.spawn(move || serve(directory, function, halt, received, ready))
        });
        until("members are there", || ready.load(Ordering::Acquire) == 2);
        let ports = LINKS.map(|port| attach(&directory.join("a"), port, PATIENCE, 192).unwrap());
        let feeder = scope.spawn(|| feed(ports, &stop, &end));
        until("all links are up", || are_up(&broker));
        leave(&broker, &left);
        drop(broker);
        arrives_without(&received);

        broker = start(&left);
        let ownership = left.lock().unwrap().clone().unwrap();
        for link in LINKS {
            broker.recall("b", ownership.clone()).unwrap();
            let segments = deposits.lock().unwrap().remove(link).filter(|_| given.contains(&link));
            segments.into_iter().for_each(|segments| broker.adopt(spec(link), segments).unwrap());
        }
        listen(&broker, directory, &["a", "b"]);
        let back = || broker.ports().unwrap().iter().filter(|port| port.pid.is_some()).count();
        until("all but one are back", || back() == 2 * LINKS.len());
        let before = received.load(Ordering::Acquire);
        until("packets go on meanwhile", || received.load(Ordering::Acquire) > before + 20_000);
        assert!(broker.pools().unwrap()[0].is_changing);
        listen(&broker, directory, &["c"]);
        until("all links are up again", || are_up(&broker));
        until("nothing is left to be done", || !broker.pools().unwrap()[0].is_changing);
        let pool = broker.pools().unwrap().remove(0);
        assert_eq!((pool.epoch, pool.owners, pool.present), (2, parity(), vec![true; 2]));
        let generations = || {
            let ports = broker.ports().unwrap().into_iter().filter(|port| !given.contains(&&*port.link));
            ports.map(|port| port.generation).collect::<Vec<_>>()
        };
        let before = generations();
        give(&broker, &[1; BUCKETS]);
        assert_eq!(generations(), before, "the first generation was everybody's");

        stop.store(true, Ordering::Release);
        std::thread::sleep(Duration::from_millis(200));
        end.store(true, Ordering::Release);
        let accepted = feeder.join().unwrap();
        until("all has come", || received.load(Ordering::Acquire) >= accepted);
        halt.store(true, Ordering::Release);
        let [b, c] = members.map(|member| member.join().unwrap().0.into_keys().collect::<Vec<u8>>());
        assert_eq!((b, c), (vec![], (0..BUCKETS as u8).collect()));
        assert_eq!(received.load(Ordering::Acquire), accepted);
    });
}

#[test]
fn a_pool_at_rest_goes_on_as_it_was_without_its_segments() {
    // Nor with those of some of its links.
    for given in [&[][..], &LINKS[..1], &LINKS[1..]] {
        goes_on(|broker, _| give(broker, &parity()), given);
    }
}

#[test]
fn a_change_of_which_senders_may_know_goes_on_without_segments() {
    let leave = |broker: &Broker, left: &Left| {
        // As if one member had not one of the generations yet: so the broker waits with the table.
        broker.call(|core| core.links.get_mut("x").unwrap().present.clear()).unwrap();
        assert_eq!(broker.set_owners("b", &parity()).unwrap(), 2);
        let is_ready = |core: &mut super::Core| matches!(&core.pools[0].change, Some(Change::Preparing { missing, .. }) if missing.is_empty());
        until("members are ready", || broker.call(is_ready).unwrap());
        *left.lock().unwrap() = Some(Ownership { epoch: 2, owners: parity(), before: [0; BUCKETS] });
    };
    goes_on(leave, &[]);
}

#[test]
fn a_pool_that_was_never_changed_is_known_before_it_is_used_and_waited_for_without_its_segments() {
    let directory = tempfile::tempdir().unwrap();
    let (directory, left) = (directory.path(), Left::default());
    let mut broker = start(&left);
    listen(&broker, directory, &["a", "b"]);
    let (halt, received, ready) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending([&halt]);
        scope.spawn(|| serve(directory, "b", &halt, &received, &ready));
        until("a member is there", || ready.load(Ordering::Acquire) == 1);
        assert_eq!(*left.lock().unwrap(), None);
        let _ports = LINKS.map(|port| attach(&directory.join("a"), port, PATIENCE, 192).unwrap());
        until("all links are up", || {
            broker.call(|core| LINKS.iter().all(|link| core.links[*link].stage == Stage::Up)).unwrap()
        });
        let first = Ownership { epoch: 1, owners: [0; BUCKETS], before: [0; BUCKETS] };
        assert_eq!(*left.lock().unwrap(), Some(first.clone()));
        drop(broker);

        broker = start(&left);
        broker.recall("b", first).unwrap();
        assert_eq!(broker.pools().unwrap()[0].waits_for, ["b"]);
    });
}

#[test]
fn a_pool_whose_links_are_all_made_anew_goes_on_until_nobody_is_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let (directory, left) = (directory.path(), Left::default());
    let broker = start(&left);
    listen(&broker, directory, &["b"]);
    let (halt, received, ready) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending([&halt]);
        let member = scope.spawn(|| serve(directory, "b", &halt, &received, &ready));
        until("a member is there", || ready.load(Ordering::Acquire) == 1);
        give(&broker, &[0; BUCKETS]);
        let as_it_is =
            || broker.pools().unwrap().into_iter().map(|pool| (pool.epoch, pool.present)).collect::<Vec<_>>();
        LINKS.iter().for_each(|link| broker.remove_link(link).unwrap());
        assert_eq!((as_it_is(), left.lock().unwrap().is_some()), (vec![(2, vec![true, false])], true));
        // Also while it has no link.
        give(&broker, &parity());
        LINKS.iter().for_each(|link| broker.add_link(spec(link)).unwrap());
        let back = || broker.ports().unwrap().iter().filter(|port| port.pid.is_some()).count();
        until("it is back by all ports", || back() == LINKS.len());
        assert_eq!(as_it_is(), [(3, vec![true, false])]);

        LINKS.iter().for_each(|link| broker.remove_link(link).unwrap());
        halt.store(true, Ordering::Release);
        member.join().unwrap();
        until("nobody is in it", || as_it_is().is_empty());
        assert_eq!(*left.lock().unwrap(), None);
    });
}

#[test]
fn a_pool_that_is_no_more_is_not_recalled_and_its_members_hear_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let (directory, left) = (directory.path(), Left::default());
    let broker = start(&left);
    listen(&broker, directory, &["b"]);
    let (halt, received, ready) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending([&halt]);
        scope.spawn(|| serve(directory, "b", &halt, &received, &ready));
        until("a member is there", || ready.load(Ordering::Acquire) == 1);
        give(&broker, &[0; BUCKETS]);
        assert!(left.lock().unwrap().is_some());
        LINKS.iter().for_each(|link| broker.remove_link(link).unwrap());
        let of_three = |link: &&str| {
            let mut spec = spec(link);
            spec.ends[1].functions.push("d".into());
            spec
        };
        LINKS.iter().for_each(|link| broker.add_link(of_three(link)).unwrap());
        assert_eq!(*left.lock().unwrap(), None);
        assert_eq!(broker.pools().unwrap()[0].present, [false; 3], "what it knows is of the former pool");
        let outcast = |core: &mut super::Core| core.pools[0].is_outcast(0, std::process::id() as i32);
        until("it is to be started anew", || broker.call(outcast).unwrap());
    });
}
