//! The null driver: frames without end, and a sink; enough to see that DPDK starts and a port lives and ends.

use dpdk::name::Name;
use port::steering::{BUCKETS, BucketTable};
use port::{BURST_MAX, OpenOptions, PacketRef};

/// DPDK needs hugepages. Where it does not start, tests say so and end.
fn starts() -> bool {
    dpdk::start(&dpdk::Settings::default()).inspect_err(|error| println!("SKIPPED null: {error}")).is_ok()
}

/// Whoever is killed could take nothing away.
#[test]
fn nothing_is_left_of_dpdk_on_disk_as_soon_as_it_has_started() {
    if !starts() {
        return;
    }
    let user = std::env::var("XDG_RUNTIME_DIR").unwrap_or_else(|_| "/tmp".to_owned());
    let folders = ["/run", &user].map(|parent| format!("{parent}/dpdk/kaista{}", std::process::id()));
    assert!(folders.iter().all(|folder| !std::path::Path::new(folder).exists()), "{folders:?}");
}

#[test]
fn frames_come_and_go() {
    if !starts() {
        return;
    }
    let name = Name::parse("net_null0,size=100").unwrap();
    let (mut port, device) = dpdk::open(&name, &OpenOptions::default()).unwrap();
    assert_eq!((device.driver().as_str(), port.info.name.as_str()), ("net_null", "net_null0"));
    let pair = &mut port.queues[0];
    const BURSTS: u64 = 1_000;
    for _ in 0..BURSTS {
        let burst = pair.rx.recv();
        assert_eq!((burst.len(), burst.get(0).len()), (BURST_MAX, 100));
        assert_eq!(pair.tx.send_burst(&burst, 0), BURST_MAX);
        assert_eq!(pair.tx.send(&[PacketRef::from_slice(&[1; 60])]), 1);
    }
    let (rx, tx) = (pair.rx.counters(), pair.tx.counters());
    let frames = BURSTS * BURST_MAX as u64;
    assert_eq!((rx.packets, rx.bytes, rx.empty_polls), (frames, 100 * frames, 0));
    let (sent, bytes) = (frames + BURSTS, 100 * frames + 60 * BURSTS);
    assert_eq!((tx.packets, tx.bytes, tx.refused, tx.discarded), (sent, bytes, 0, 0));
    assert_eq!(device.stats().sent, sent);
}

/// No buffer is lost, and none is given back twice: a pool would be empty long before, or give one to two frames.
#[test]
fn a_device_can_be_opened_as_often_as_one_likes() {
    if !starts() {
        return;
    }
    let name = Name::parse("net_null1,size=64,port-descriptors=64").unwrap();
    for _ in 0..200 {
        let (mut port, _device) = dpdk::open(&name, &OpenOptions::default()).unwrap();
        let taken = dpdk::open(&name, &OpenOptions::default()).err().unwrap().to_string();
        assert!(taken.contains("net_null1: cannot attach it"), "{taken}");
        assert_eq!(port.queues[0].rx.recv().len(), BURST_MAX);
    }
}

/// What was sent is out of the function's hands: it is not sent a second time, nor changed by what is done to the head.
#[test]
fn a_frame_is_sent_once() {
    if !starts() {
        return;
    }
    let (mut port, _device) = dpdk::open(&Name::parse("net_null2,size=300").unwrap(), &OpenOptions::default()).unwrap();
    let pair = &mut port.queues[0];
    let mut burst = pair.rx.recv();
    let twice = [burst.get(0), burst.get(0), burst.get(1)];
    assert_eq!(pair.tx.send(&twice), 3);
    burst.get_mut(0).head_mut()[0] = 7;
    let changed = PacketRef { head: &[9; 60], rest: burst.get(2).rest };
    assert_eq!(pair.tx.send(&[changed]), 1);
    let tx = pair.tx.counters();
    assert_eq!((tx.packets, tx.discarded), (3, 1));
}

#[test]
fn what_a_device_cannot_do_is_refused() {
    if !starts() {
        return;
    }
    let refused =
        |text: &str| dpdk::open(&Name::parse(text).unwrap(), &OpenOptions::default()).err().unwrap().to_string();
    let queues = refused("net_memif7,socket=/nowhere/at/all,socket-abstract=no,role=client,port-descriptors=64");
    assert!(queues.starts_with("net_memif7: cannot "), "{queues}");
    let absent = refused("0000:ff:1f.7");
    assert!(absent.starts_with("0000:ff:1f.7: cannot attach it"), "{absent}");
    // What was refused is not in the way.
    dpdk::open(&Name::parse("net_null3").unwrap(), &OpenOptions::default()).unwrap();
}

/// As cards do that spread frames themselves.
#[test]
fn a_device_with_a_table_of_its_own_is_told_ours_while_it_runs() {
    if !starts() {
        return;
    }
    let name = "net_null4,port-queues=4,port-steering=five-tuple,port-descriptors=64";
    let (mut port, device) = dpdk::open(&Name::parse(name).unwrap(), &OpenOptions::default()).unwrap();
    for owner in [0, 3, 1] {
        device.steer(&BucketTable::new([owner; BUCKETS], 4).unwrap()).unwrap();
        assert!(port.queues.iter_mut().all(|pair| pair.rx.recv().len() == BURST_MAX), "each has a queue of its own");
    }
    let table = BucketTable::new([4; BUCKETS], 5).unwrap();
    assert!(device.steer(&table).unwrap_err().to_string().ends_with("has no queue 4"));
}
