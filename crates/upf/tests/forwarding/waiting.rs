//! Packets that wait for their UE, and tunnels that are left: what becomes of packets when rules change under them.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sessions::{downlink, info, mark, session, stop};
use port::Steering;
use port::synthetic::{Captured, Synthetic};
use upf::alarms::Alarm;
use upf::counters::Counters;
use upf::drops::DropReason;
use upf::function::{Place, Plan, Upf};
use upf::marking::Marking;
use upf::rules::{Buffering, FarAction, Forwarding, Interface, OuterHeaderCreation, Parting, Session, Urr};
use upf::side::{PortId, PortKind};
use upf::tables::{Memory, SessionUpdate};
use upf::usage::{Usage, UsageId, UsageTerms};

const GNB: &str = "10.3.0.2";
const OTHER_GNB: &str = "2001:db8:3::2";

/// What sessions of these tests count by.
static COUNTERS: LazyLock<Counters> = LazyLock::new(|| Counters::private(10).unwrap());

/// A UPF of one worker, and what comes out of N3.
struct Bench {
    upf: Upf,
    to_n3: Captured,
}

impl Bench {
    /// With `frames` packets for UE 1 at N6, of which the worker has taken a burst by the rules that `first` puts in force.
    fn new(frames: u32, max_buffered_octets: usize, first: SessionUpdate) -> Self {
        Self::with((0..frames).map(|round| downlink(1, round, 100)).collect(), max_buffered_octets, first)
    }

    /// The same with these packets.
    fn with(from_n6: Vec<Vec<u8>>, max_buffered_octets: usize, first: SessionUpdate) -> Self {
        Self::planned(from_n6, &Plan { max_sessions: 10, max_buffered_octets, ..Plan::default() }, first)
    }

    fn planned(from_n6: Vec<Vec<u8>>, plan: &Plan, first: SessionUpdate) -> Self {
        let mut n3_info = info("n3", "10.3.0.1", 1, Steering::Teid);
        n3_info.addresses.push(("2001:db8:3::1".parse().unwrap(), 64));
        let (n3, to_n3) = Synthetic::new(vec![]).info(n3_info).open_captured();
        let n6 = Synthetic::new(from_n6).once().info(info("n6", "10.6.0.1", 1, Steering::UeAddress)).open();
        let place = |kind, port| Place { kind, network_instances: vec![], port };
        let memory = Memory { counters: COUNTERS.clone(), ..Memory::private(10).unwrap() };
        let places = vec![place(PortKind::N3, n3), place(PortKind::N6, n6)];
        let upf = Upf::with_memory(plan, places, memory).unwrap();
        let neighbours = [GNB, OTHER_GNB].map(|gnb| (PortId::N3, gnb.parse().unwrap(), Some([2; 6])));
        upf.tables.set_neighbours(&neighbours).unwrap();
        upf.tables.apply(vec![first]).unwrap();
        let mut bench = Self { upf, to_n3 };
        assert!(bench.upf.workers[0].run_once());
        bench
    }

    /// Applies the update while the worker goes on with its packets.
    fn apply(&mut self, update: SessionUpdate) {
        let tables = self.upf.tables.clone();
        std::thread::scope(|scope| {
            let change = scope.spawn(move || tables.apply(vec![update]));
            while !change.is_finished() {
                self.upf.workers[0].run_once();
            }
            change.join().unwrap().unwrap();
        });
        self.upf.workers[0].run_once();
    }

    fn run(&mut self) {
        while self.upf.workers[0].run_once() {}
    }

    /// Has the worker work by itself until it has dropped so many packets for this reason.
    fn work_until_dropped(&mut self, reason: DropReason, packets: u64) {
        let (worker, counts) = (&mut self.upf.workers[0], &self.upf.counts);
        let (stop, bell, begin) = (AtomicBool::new(false), worker.bell(), Instant::now());
        std::thread::scope(|scope| {
            let work = scope.spawn(|| worker.run(&stop));
            while counts.dropped(reason) < packets && begin.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
            bell.ring();
            work.join().unwrap().unwrap();
        });
        assert_eq!(counts.dropped(reason), packets);
    }

    fn dropped(&mut self, reason: DropReason) -> u64 {
        stop(&mut self.upf);
        self.upf.counts.dropped(reason)
    }

    fn alarms(&mut self) -> Vec<Alarm> {
        let receiver = &mut self.upf.meters.alarms[0];
        std::iter::from_fn(|| receiver.take()).collect()
    }
}

fn buffering(max_packets: u16) -> Session {
    let mut session = session(1, 1, 1);
    session.fars[1].action = FarAction::Buffer(Buffering { notify: true, max_packets, ..Buffering::default() });
    session
}

fn put(session: Session) -> SessionUpdate {
    SessionUpdate::Put(session)
}

fn teid(frame: &[u8]) -> u32 {
    let at = if frame[14] >> 4 == 6 { 14 + 48 } else { 14 + 28 };
    u32::from_be_bytes(frame[at + 4..][..4].try_into().unwrap())
}

#[test]
fn what_waits_leaves_in_order_before_anything_newer_and_counts_once() {
    let place = COUNTERS.open(0).unwrap();
    let usage = Usage::new(place, UsageId { up_seid: 1, urr: 1 }, &UsageTerms::default());
    let metered = |mut session: Session| {
        session.urrs = vec![Urr { id: 1, measures: true, usage: usage.clone(), quota_far_id: None }];
        session.pdrs[1].urr_ids = vec![1];
        put(session)
    };
    let mut bench = Bench::new(320, 1 << 20, metered(buffering(1_000)));
    assert!(bench.to_n3.take().is_empty());
    assert_eq!(usage.read(0).counts.downlink_packets, 0, "what waits is not billed");
    assert_eq!(bench.alarms(), [Alarm::Data { up_seid: 1, pdr: 2 }]);
    bench.apply(metered(session(1, 1, 1)));
    bench.run();
    let marks: Vec<_> = bench.to_n3.take().iter().map(|frame| mark(frame)).collect();
    assert_eq!(marks, (0..320).collect::<Vec<_>>());
    assert_eq!(usage.read(0).counts.downlink_octets, 320 * 120);
    assert!(bench.upf.counts.all().is_empty());
}

#[test]
fn rules_that_still_buffer_keep_the_order_and_tell_again() {
    let mut bench = Bench::new(320, 1 << 20, put(buffering(1_000)));
    bench.apply(put(buffering(999)));
    assert_eq!(bench.alarms().len(), 2);
    bench.run();
    bench.apply(put(session(1, 1, 1)));
    let marks: Vec<_> = bench.to_n3.take().iter().map(|frame| mark(frame)).collect();
    assert_eq!(marks, (0..320).collect::<Vec<_>>());
}

#[test]
fn no_more_wait_than_may() {
    // So many of a session, and half of so many octets in all: frames have 134.
    for (max_packets, max_octets, kept) in [(20, 1 << 20, 20), (1_000, 134 * 100 + 133, 50), (0, 1 << 20, 0)] {
        let mut bench = Bench::new(64, max_octets, put(buffering(max_packets)));
        bench.run();
        assert_eq!(bench.dropped(DropReason::BufferFull), 64 - kept);
        bench.apply(put(session(1, 1, 1)));
        assert_eq!(bench.to_n3.take().len() as u64, kept);
    }
}

#[test]
fn what_waits_is_dropped_when_the_rules_say_so() {
    let mut dropping = session(1, 1, 1);
    dropping.fars[1].action = FarAction::Drop;
    let mut discarding = buffering(1_000);
    discarding.parting = Parting { drop_buffered: true, ..Parting::default() };
    let cases = [
        (put(dropping), DropReason::FarDrop),
        (SessionUpdate::Remove(1), DropReason::UnknownUe),
        (put(discarding), DropReason::BufferDiscarded),
    ];
    for (update, reason) in cases {
        let mut bench = Bench::new(64, 1 << 20, put(buffering(1_000)));
        bench.run();
        bench.apply(update);
        assert_eq!(bench.dropped(reason), 64);
        // Nothing is left.
        bench.apply(put(session(1, 1, 1)));
        assert_eq!(bench.to_n3.take().len(), 0);
    }
}

#[test]
fn what_has_waited_long_enough_is_dropped_and_leaves_its_room_though_nothing_comes() {
    let place = COUNTERS.open(0).unwrap();
    let usage = Usage::new(place, UsageId { up_seid: 1, urr: 1 }, &UsageTerms::default());
    usage.set(&UsageTerms { tell_dropped_at: Some([Some(u64::MAX); 2]), ..UsageTerms::default() });
    let mut asleep = buffering(1_000);
    asleep.urrs = vec![Urr { id: 1, measures: true, usage: usage.clone(), quota_far_id: None }];
    asleep.pdrs[1].urr_ids = vec![1];
    let age = Duration::from_millis(300);
    // Frames have 134 octets: the last ones find no room, as half is left for others.
    let plan = Plan { max_sessions: 10, max_buffered_octets: 134 * 40, max_buffered: age, ..Plan::default() };
    let frames = |count: u32| (0..count).map(|round| downlink(1, round, 100)).collect();
    let begin = Instant::now();
    let mut bench = Bench::planned(frames(32), &plan, put(asleep));
    bench.work_until_dropped(DropReason::BufferExpired, 20);
    assert!(begin.elapsed() >= age, "{:?}", begin.elapsed());
    assert_eq!(usage.read(0).dropped, [32, 32 * 120], "as traffic that was dropped");
    assert_eq!(bench.upf.counts.all(), [("drop.buffer_full", 12), ("drop.buffer_expired", 20)]);
    bench.apply(put(session(1, 1, 1)));
    assert!(bench.to_n3.take().is_empty());
}

/// Into this tunnel.
fn way(teid: u32, address: IpAddr) -> Forwarding {
    Forwarding {
        destination_interface: Interface::Access,
        network_instance: None,
        outer_header_creation: Some(OuterHeaderCreation { teid, address }),
        marking: Marking::default(),
    }
}

#[test]
fn an_end_marker_comes_after_the_last_packet_of_the_old_tunnel_and_before_the_first_of_the_new() {
    let (old, new) = (GNB.parse().unwrap(), OTHER_GNB.parse().unwrap());
    for (from, to) in [(old, new), (new, old), (old, old)] {
        let tunnelled = |teid, address, end_markers| {
            let mut session = session(1, 1, 1);
            if let FarAction::Forward(forwarding) = &mut session.fars[1].action {
                forwarding.outer_header_creation = Some(OuterHeaderCreation { teid, address });
            }
            put(Session { parting: Parting { end_markers, ..Parting::default() }, ..session })
        };
        let mut bench = Bench::new(320, 1 << 20, tunnelled(0xa, from, vec![]));
        bench.apply(tunnelled(0xb, to, vec![way(0xa, from)]));
        bench.run();
        let frames = bench.to_n3.take();
        let is_marker = |frame: &Vec<u8>| frame[if frame[14] >> 4 == 6 { 14 + 49 } else { 14 + 29 }] == 254;
        let at = frames.iter().position(is_marker).expect("an end marker");
        assert_eq!(frames.iter().filter(|frame| is_marker(frame)).count(), 1);
        assert!(at > 0 && frames[..=at].iter().all(|frame| teid(frame) == 0xa));
        assert!(frames.len() == 321 && frames[at + 1..].iter().all(|frame| teid(frame) == 0xb));
        let marker = &frames[at];
        assert_eq!(marker.len(), 14 + if from == new { 40 } else { 20 } + 8 + 8);
        if from == new {
            let pseudo = upf::ip::sum(&marker[14 + 8..14 + 40]) + 16 + 17;
            assert_eq!(upf::ip::checksum(pseudo + upf::ip::sum(&marker[14 + 40..])), 0, "the UDP checksum is right");
        }
    }
}

#[test]
fn an_end_marker_comes_after_all_fragments_of_packets_that_were_too_long_for_the_old_tunnel() {
    let tunnelled = |teid, end_markers| {
        let mut session = session(1, 1, 1);
        if let FarAction::Forward(forwarding) = &mut session.fars[1].action {
            forwarding.outer_header_creation = Some(OuterHeaderCreation { teid, address: GNB.parse().unwrap() });
        }
        put(Session { parting: Parting { end_markers, ..Parting::default() }, ..session })
    };
    let count = 1_000;
    let too_long = (0..count).map(|round| downlink(1, round, 8_960)).collect();
    let mut bench = Bench::with(too_long, 0, tunnelled(0xa, vec![]));
    bench.apply(tunnelled(0xb, vec![way(0xa, GNB.parse().unwrap())]));
    bench.run();
    let frames = bench.to_n3.take();
    let at = frames.iter().position(|frame| frame[14 + 29] == 254).expect("an end marker");
    assert_eq!(frames.len(), 2 * count as usize + 1, "two fragments of each");
    assert!(at > 0 && frames[..at].iter().all(|frame| teid(frame) == 0xa));
    assert!(frames[at + 1..].iter().all(|frame| teid(frame) == 0xb));
}

#[test]
fn an_end_marker_comes_before_what_waited() {
    let mut bench = Bench::new(32, 1 << 20, put(buffering(1_000)));
    bench.run();
    let end_markers = vec![way(0xa, GNB.parse().unwrap())];
    bench.apply(put(Session { parting: Parting { end_markers, ..Parting::default() }, ..session(1, 1, 1) }));
    let teids: Vec<_> = bench.to_n3.take().iter().map(|frame| teid(frame)).collect();
    assert_eq!(teids, [vec![0xa], vec![1; 32]].concat());
}

#[test]
fn of_packets_that_are_cut_for_a_neighbour_which_is_not_resolved_some_wait_and_the_others_do_not_count() {
    let place = COUNTERS.open(0).unwrap();
    let usage = Usage::new(place, UsageId { up_seid: 1, urr: 1 }, &UsageTerms::default());
    let mut metered = session(1, 1, 1);
    metered.urrs = vec![Urr { id: 1, measures: true, usage: usage.clone(), quota_far_id: None }];
    metered.pdrs[1].urr_ids = vec![1];
    let nowhere = OuterHeaderCreation { teid: 1, address: "10.3.0.77".parse().unwrap() };
    if let FarAction::Forward(forwarding) = &mut metered.fars[1].action {
        forwarding.outer_header_creation = Some(nowhere);
    }
    let mut bench = Bench::with((0..100).map(|round| downlink(1, round, 8_960)).collect(), 0, put(metered));
    bench.run();
    let dropped = bench.dropped(DropReason::NeighbourUnresolved);
    assert!((1..100).contains(&dropped), "{dropped}");
    assert_eq!(bench.upf.counts.all(), [("drop.neighbour_unresolved", dropped)], "there is room for those that wait");
    assert_eq!(usage.read(0).counts.downlink_packets, 100 - dropped);
}
