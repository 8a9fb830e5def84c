//! What only a packet socket has to do: to finish frames that the kernel leaves to network cards.

mod namespace;

use std::time::{Duration, Instant};

use port::{PacketRef, Port};

/// What the kernel's own UDP sends by an interface comes out of a packet port as a network card would send it.
#[test]
fn what_was_left_to_a_network_card_is_finished() {
    between_interfaces("what_was_left_to_a_network_card_is_finished", checksums_are_finished);
}

/// The kernel takes the outer tag out of a frame before a socket sees it.
#[test]
fn tags_of_all_kinds_are_where_they_were() {
    between_interfaces("tags_of_all_kinds_are_where_they_were", tags_are_kept);
}

/// Runs a test between kv0 and kv1, on a thread of its own: the namespace stays with it.
fn between_interfaces(test: &str, work: fn()) {
    let prepared = || {
        namespace::enter()?;
        namespace::ip("link add kv0 type veth peer name kv1");
        namespace::up(&["kv0", "kv1"]);
        Ok::<_, String>(())
    };
    match std::thread::spawn(move || prepared().map(|()| work())).join() {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => println!("SKIPPED {test}: {reason}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn tags_are_kept() {
    let (mut near, mut far) = (namespace::open("packet:kv0"), namespace::open("packet:kv1"));
    let customer = [0x81, 0x00, 0x60, 5];
    let service = [0x88, 0xa8, 0x0f, 0xfe];
    for tags in [vec![customer], vec![service], vec![service, customer], vec![]] {
        let mut frame = [2; 12].to_vec();
        frame.extend(tags.concat());
        frame.extend([[0x88, 0xb5].as_slice(), &[7; 60]].concat());
        assert_eq!(near.queues[0].tx.send(&[PacketRef::from_slice(&frame)]), 1);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !received(&mut far).contains(&frame) {
            assert!(Instant::now() < deadline, "{tags:x?}");
        }
    }
}

fn received(port: &mut Port) -> Vec<Vec<u8>> {
    let burst = port.queues[0].rx.recv();
    let copied = |i| {
        let mut frame = vec![0; burst.get(i).len()];
        burst.get(i).copy_to(&mut frame);
        frame
    };
    (0..burst.len()).map(copied).collect()
}

fn checksums_are_finished() {
    namespace::ip("addr add 10.9.0.1/24 dev kv0");
    namespace::ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:09 dev kv0");
    let mut far = namespace::open("packet:kv1");
    // Large UDP packets leave with checksums unfinished; a frame is sound if its checksum comes out as it should.
    let socket = std::net::UdpSocket::bind("10.9.0.1:0").unwrap();
    socket.send_to(&[5; 1_000], "10.9.0.2:9").unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        for frame in received(&mut far) {
            if frame[12..14] == [8, 0] && frame[23] == 17 {
                let pseudo = sum(&frame[26..34]) + 17 + 1_008;
                assert_eq!((pseudo + sum(&frame[34..])) % 0xffff, 0, "unfinished checksum");
                return;
            }
        }
        assert!(Instant::now() < deadline);
    }
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}
