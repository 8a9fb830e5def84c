//! What only a packet socket has to do: to finish frames that the kernel leaves to network cards.

mod namespace;

use std::time::{Duration, Instant};

/// What the kernel's own UDP sends by an interface comes out of a packet port as a network card would send it.
#[test]
fn what_was_left_to_a_network_card_is_finished() {
    // A thread of its own: the namespace stays with it.
    match std::thread::spawn(|| namespace::enter().map(|()| checksums_are_finished())).join() {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => println!("SKIPPED what_was_left_to_a_network_card_is_finished: {reason}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn checksums_are_finished() {
    namespace::ip("link add kv0 type veth peer name kv1");
    namespace::up(&["kv0", "kv1"]);
    namespace::ip("addr add 10.9.0.1/24 dev kv0");
    namespace::ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:09 dev kv0");
    let mut far = namespace::open("packet:kv1");
    // Large UDP packets leave with checksums unfinished; a frame is sound if its checksum comes out as it should.
    let socket = std::net::UdpSocket::bind("10.9.0.1:0").unwrap();
    socket.send_to(&[5; 1_000], "10.9.0.2:9").unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let burst = far.queues[0].rx.recv();
        for i in 0..burst.len() {
            let mut frame = vec![0; burst.get(i).len()];
            burst.get(i).copy_to(&mut frame);
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
