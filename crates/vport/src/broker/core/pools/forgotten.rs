//! A member that goes away under a broker which adopted its links is not waited for by the broker after that.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::halfway::{Deposits, Ending, LINKS, PATIENCE, serve, spec, start, until};
use crate::broker::Broker;
use crate::client::attach;
use crate::table::Standing;

/// Members that the current generation of each link names to the next broker, a bit each.
fn named(broker: &Broker) -> [u64; 2] {
    let standing = |core: &mut super::Core, link: &str| {
        let segment = core.links[link].segments.as_ref()?.ends[1].read_table().ok()?;
        Some(Standing::read(&segment, 2)?.members)
    };
    broker.call(move |core| LINKS.map(|link| standing(core, link).unwrap_or(0))).unwrap()
}

#[test]
fn a_member_that_leaves_an_adopted_link_is_not_in_its_next_generation() {
    let directory = tempfile::tempdir().unwrap();
    let sockets = ["a", "b", "c"].map(|function| (function, Broker::bind(&directory.path().join(function)).unwrap()));
    let deposits = Deposits::default();
    let start = || {
        let (broker, _) = start(&deposits);
        let each = sockets.iter();
        each.for_each(|(name, socket)| broker.listen(name, socket.try_clone().unwrap(), 0..u32::MAX).unwrap());
        broker
    };
    let mut broker = start();
    LINKS.iter().for_each(|link| broker.add_link(spec(link)).unwrap());
    let (halt, leave, stop) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let (received, ready) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending([&halt, &leave, &stop]);
        for (function, halt) in [("b", &halt), ("c", &leave)] {
            let (directory, received, ready) = (directory.path(), &received, &ready);
            scope.spawn(move || serve(directory, function, halt, received, ready));
        }
        until("members are there", || ready.load(Ordering::Acquire) == 2);
        let mut ports = LINKS.map(|port| attach(&directory.path().join("a"), port, PATIENCE, 192).unwrap());
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::Acquire) {
                for port in &mut ports {
                    assert_eq!(port.queues[0].1.send(&[]), 0);
                }
                std::thread::yield_now();
            }
        });
        let up = |broker: &Broker| broker.ports().unwrap().iter().all(|port| port.up && port.pid.is_some());
        until("all links are up", || up(&broker));

        drop(broker);
        broker = start();
        for link in LINKS {
            let segments = deposits.lock().unwrap().remove(link).unwrap();
            broker.adopt(spec(link), segments).unwrap();
        }
        until("all have come back", || up(&broker));
        assert_eq!(named(&broker), [0b11; 2]);
        leave.store(true, Ordering::Release);
        until("the one that left is named no more", || named(&broker) == [0b01; 2]);
        until("the next broker is left that generation", || deposits.lock().unwrap().len() == LINKS.len());
    });
}
