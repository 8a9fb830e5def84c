//! A broker that dies after it told one end of a link of the other, and before it told the other.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{Seat, Stage};
use crate::broker::core::Core;
use crate::broker::{Broker, Config, EndSpec, Event, LinkKind, LinkSpec, RING_BYTES_MIN};
use crate::client::{Attachment, attach};
use crate::info::PortInfo;
use crate::packet::PacketRef;

const PATIENCE: Duration = Duration::from_secs(20);
const LINK: &str = "x";
const ENDS: [&str; 2] = ["a", "b"];
const FRAMES: u64 = 5_000;
/// A member that no link has: a stage that waits for it does not end.
const NOBODY: Seat = Seat { end: 0, member: usize::MAX };

fn spec(queues: u16) -> LinkSpec {
    let ends = ENDS.map(|function| EndSpec::of(function, PortInfo { queues, ..PortInfo::named(LINK) }));
    LinkSpec { name: LINK.into(), ends, ring_bytes: RING_BYTES_MIN, kind: LinkKind::SharedRecords }
}

fn start() -> (Broker, Receiver<Event>) {
    let (tell, events) = channel();
    let broker = Broker::start(Config { hugepages: false }, move |event| drop(tell.send(event))).unwrap();
    (broker, events)
}

fn wait_for<T>(events: &Receiver<Event>, what: &str, wanted: impl Fn(Event) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let event = events.recv_timeout(left).unwrap_or_else(|_| panic!("in vain: {what}"));
        if let Some(found) = wanted(event) {
            return found;
        }
    }
}

fn until(broker: &Broker, what: &str, happens: fn(&mut Core) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !broker.call(happens).unwrap() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends numbered frames of one flow.
fn feed(mut port: Attachment) -> Attachment {
    let deadline = Instant::now() + PATIENCE;
    let mut sent = 0_u64;
    while sent < FRAMES {
        assert!(Instant::now() < deadline, "{sent} frames were taken");
        let mut frame = [0; 60];
        frame[40..48].copy_from_slice(&sent.to_le_bytes());
        sent += port.queues[0].1.send(&[PacketRef::from_slice(&frame)]) as u64;
    }
    port
}

/// Receives until all is there.
fn take(port: &mut Attachment) {
    let deadline = Instant::now() + PATIENCE;
    let mut next = 0_u64;
    while next < FRAMES {
        assert!(Instant::now() < deadline, "{next} frames came");
        for (rx, _) in &mut port.queues {
            let burst = rx.recv();
            for n in 0..burst.len() {
                assert_eq!(burst.get(n).head[40..48], next.to_le_bytes(), "lost or out of order");
                next += 1;
            }
        }
    }
}

/// The end `untold` never hears of the other, which does; what the other sends from then on comes by the next generation.
fn dies_before_it_tells(untold: usize, queues: u16) {
    let name = format!("kaista-untold-{}-{untold}-{queues}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let sockets = ENDS.map(|function| Broker::bind(&directory.join(function)).unwrap());
    let listen = |broker: &Broker| {
        let each = ENDS.iter().zip(&sockets);
        each.for_each(|(name, socket)| broker.listen(name, socket.try_clone().unwrap(), 0..u32::MAX).unwrap());
    };
    let (broker, events) = start();
    broker.add_link(spec(queues)).unwrap();
    listen(&broker);
    broker.call(|core| core.links.get_mut(LINK).unwrap().not_before = Instant::now() + 10 * PATIENCE).unwrap();
    let [told, mut other] = [1 - untold, untold].map(|end| open(&directory, end));
    until(&broker, "both ends are there", |core| core.links[LINK].is_held());

    // It stops before it joins them.
    let hold = |core: &mut Core| {
        core.links.get_mut(LINK).unwrap().not_before = Instant::now();
        core.start_generation(LINK);
        let Stage::Mapping(missing) = &mut core.links.get_mut(LINK).unwrap().stage else { panic!("no generation") };
        missing.push(NOBODY);
    };
    broker.call(hold).unwrap();
    until(&broker, "both ends have mapped theirs", |core| core.links[LINK].stage == Stage::Mapping(vec![NOBODY]));
    let share = |core: &mut Core| {
        core.links.get_mut(LINK).unwrap().stage = Stage::Mapping(Vec::new());
        core.proceed(LINK).unwrap();
        let Stage::Sharing(missing) = &mut core.links.get_mut(LINK).unwrap().stage else { panic!("nothing is shared") };
        missing.push(NOBODY);
    };
    broker.call(share).unwrap();
    until(&broker, "and each other's records", |core| core.links[LINK].stage == Stage::Sharing(vec![NOBODY]));
    let (nowhere, _heard_by_nobody) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let join = move |core: &mut Core| {
        let id = core.links[LINK].party(Seat { end: untold, member: 0 }).client.unwrap();
        let socket = std::mem::replace(&mut core.clients.get_mut(&id).unwrap().socket, nowhere);
        core.links.get_mut(LINK).unwrap().stage = Stage::Sharing(Vec::new());
        core.proceed(LINK).unwrap();
        socket
    };
    let kept = broker.call(join).unwrap();
    let segments = wait_for(&events, "the keeper has the segments", |event| match event {
        Event::Deposit { segments, .. } => Some(segments),
        _ => None,
    });

    std::thread::scope(|scope| {
        let feeder = scope.spawn(|| feed(told));
        // What was lost would be lost by now.
        std::thread::sleep(Duration::from_millis(100));
        drop((broker, kept));
        let (next, events) = start();
        listen(&next);
        next.adopt(spec(queues), segments).unwrap();
        take(&mut other);
        wait_for(&events, "a generation that both have", |event| match event {
            Event::LinkUp { generation: 2, .. } => Some(()),
            _ => None,
        });
        drop(feeder.join().unwrap());
    });
    drop(std::fs::remove_dir_all(&directory));
}

fn open(directory: &Path, end: usize) -> Attachment {
    attach(&directory.join(ENDS[end]), LINK, PATIENCE, 192).unwrap()
}

#[test]
fn what_the_told_end_sends_to_one_queue_is_not_lost() {
    dies_before_it_tells(0, 1);
    dies_before_it_tells(1, 1);
}

#[test]
fn what_it_sends_to_several_queues_is_not_lost() {
    dies_before_it_tells(0, 2);
    dies_before_it_tells(1, 2);
}
