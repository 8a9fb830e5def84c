//! The least that a network function can be. Runs as a container of the node's own tests.
//!
//! `reflect PORT` answers ARP for the port's first address, and sends every IPv4 packet back to where it came from, so that
//! a UDP datagram comes back as an answer. `reflect PORT OTHER` passes frames from one port to the other, both ways.

use std::net::IpAddr;
use std::time::Duration;

use port::{BURST_MAX, OpenOptions, PacketMut, PacketRef, QueuePair, RxQueue, Sleep, TxQueue, Waiter};

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let open = |name: &String| port::open(name, &OpenOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut ports: Vec<port::Port> = names.iter().map(open).collect();
    let address = ports[0].info.addresses.first().map(|(address, _)| *address);
    let mac = ports[0].info.mac;
    let mut pairs: Vec<QueuePair> = ports.iter_mut().map(|port| port.queues.remove(0)).collect();
    println!("open");
    let mut waiter = Waiter::new(Sleep::After(Duration::from_micros(20)));
    loop {
        let moved = match &mut pairs[..] {
            [only] => pass(&mut *only.rx, &mut *only.tx, |packet| turn_round(packet, mac, address)),
            [a, b, ..] => pass(&mut *a.rx, &mut *b.tx, |_| true) + pass(&mut *b.rx, &mut *a.tx, |_| true),
            [] => panic!("which port?"),
        };
        if moved > 0 {
            waiter.worked();
        } else {
            let mut queues: Vec<&mut dyn RxQueue> =
                pairs.iter_mut().map(|pair| &mut *pair.rx as &mut dyn RxQueue).collect();
            waiter.wait(&mut queues, &[], None).expect("waiting works");
        }
    }
}

/// Sends on what `keep` leaves of a burst.
fn pass(from: &mut dyn RxQueue, to: &mut dyn TxQueue, keep: impl Fn(PacketMut<'_>) -> bool) -> usize {
    let mut burst = from.recv();
    let kept: Vec<usize> = (0..burst.len()).filter(|&i| keep(burst.get_mut(i))).collect();
    let mut packets = [PacketRef::from_slice(&[]); BURST_MAX];
    for (slot, &i) in packets.iter_mut().zip(&kept) {
        *slot = burst.get(i);
    }
    if !kept.is_empty() {
        to.send(&packets[..kept.len()]);
    }
    burst.len()
}

/// Makes an answer of an ARP request for our address, and of any IPv4 packet; false for everything else.
fn turn_round(mut packet: PacketMut<'_>, mac: [u8; 6], address: Option<IpAddr>) -> bool {
    let Some(IpAddr::V4(address)) = address else { return false };
    let frame = packet.head_mut();
    if frame.len() < 42 {
        return false;
    }
    match [frame[12], frame[13]] {
        [0x08, 0x06] if frame[20..22] == [0, 1] && frame[38..42] == address.octets() => {
            let asker: [u8; 10] = frame[22..32].try_into().expect("ten bytes");
            frame[21] = 2;
            frame[22..28].copy_from_slice(&mac);
            frame[28..32].copy_from_slice(&address.octets());
            frame[32..42].copy_from_slice(&asker);
        }
        [0x08, 0x00] => {
            // Sums over addresses and ports stay what they are when both change places.
            swap(frame, 26, 30, 4);
            swap(frame, 34, 36, 2);
        }
        _ => return false,
    }
    let sender: [u8; 6] = frame[6..12].try_into().expect("six bytes");
    frame[0..6].copy_from_slice(&sender);
    frame[6..12].copy_from_slice(&mac);
    true
}

fn swap(frame: &mut [u8], a: usize, b: usize, length: usize) {
    for i in 0..length {
        frame.swap(a + i, b + i);
    }
}
