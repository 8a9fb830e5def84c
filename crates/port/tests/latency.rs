//! What a broker says of how long packets are on their way between two ports.

mod bench;

use std::time::Duration;

use bench::{Bench, pump};
use port::{PacketRef, PortInfo, Steering};
use vport::broker::LinkKind;

over_links_of_every_kind! {
    the_broker_sees_how_long_packets_were_on_their_way
    queues_that_wait_are_seen_in_the_latency
    queues_are_counted_together_and_a_new_generation_begins_at_nothing
}

fn the_broker_sees_how_long_packets_were_on_their_way(kind: LinkKind) {
    let bench = Bench::of("latency", kind);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    pump(&mut a.queues[0], &mut b.queues[0], 100_000);
    let ports = bench.broker.ports().unwrap();
    let latency = &ports[1].latency;
    // One burst in a thousand, and bursts have up to 32 packets.
    assert!((3..=100_000).contains(&latency.count()), "{}", latency.count());
    let said = [0.5, 0.99, 0.999].map(|share| latency.quantile_ns(share).unwrap());
    assert!(said[0] > 0 && said.is_sorted() && said[2] <= latency.max_ns(), "{said:?} of {}", latency.max_ns());
    assert_eq!((latency.invalid, ports[0].latency.count()), (0, 0), "nothing came back");
}

fn queues_that_wait_are_seen_in_the_latency(kind: LinkKind) {
    const WAITED: Duration = Duration::from_millis(20);
    let bench = Bench::of("waiting", kind);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), PortInfo::named("p"));
    assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&[0; 60])]), 1);
    std::thread::sleep(WAITED);
    assert_eq!(b.queues[0].rx.recv().len(), 1);
    let latency = &bench.broker.ports().unwrap()[1].latency;
    assert_eq!(latency.count(), 1);
    assert!(latency.quantile_ns(0.5) == Some(latency.max_ns()) && latency.max_ns() >= WAITED.as_nanos() as u64);
}

fn queues_are_counted_together_and_a_new_generation_begins_at_nothing(kind: LinkKind) {
    let bench = Bench::of("together", kind);
    let mut info = PortInfo::named("p");
    (info.queues, info.steering) = (3, Steering::UeAddress);
    let (mut a, mut b) = bench.joined(PortInfo::named("p"), info);
    let mut cross = || {
        for host in 0..=255 {
            assert_eq!(a.queues[0].tx.send(&[PacketRef::from_slice(&bench::ip_frame(host))]), 1);
        }
        b.queues.iter_mut().map(|pair| bench::receive(&mut *pair.rx).len()).sum::<usize>()
    };
    let count = || bench.broker.ports().unwrap()[1].latency.count();
    assert_eq!(cross(), 256);
    assert_eq!(count(), 3, "the first burst to each queue");
    bench.broker.renew("link").unwrap();
    bench.until("a new generation is up", |ports| ports.iter().all(|port| port.up && port.generation == 2));
    assert_eq!(count(), 0);
}
