//! The least that a replica of a pool can be. Runs as a container of the node's own tests.
//!
//! `replica PORT` answers ARP for the port's first address, and every UDP datagram to it with how many have come of that flow's
//! bucket so far, whichever replica has counted them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use port::{BURST_MAX, Buckets, OpenOptions, PacketRef, RxQueue, Sleep, Steering, TxQueue, Waiter, pool};

/// Datagrams by bucket.
#[derive(Default)]
struct Counts(BTreeMap<u8, u32>);

impl Buckets for Counts {
    type State = Vec<u8>;

    fn leave(&mut self, bucket: u8, _to: usize) -> Vec<u8> {
        self.0.remove(&bucket).map(|count| count.to_be_bytes().to_vec()).unwrap_or_default()
    }

    fn arrive(&mut self, bucket: u8, _from: usize, state: Vec<u8>) {
        self.0.insert(bucket, state.try_into().map(u32::from_be_bytes).unwrap_or_default());
    }
}

fn main() {
    let name = std::env::args().nth(1).expect("which port?");
    let options = OpenOptions::default();
    let mut port = port::open(&name, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (address, mac) = (port.info.addresses.first().map(|(address, _)| *address), port.info.mac);
    let steering = port.steering().expect("a port of shared memory");
    let joined = pool::join(&options.socket, &[steering], &[], Duration::from_secs(30));
    let mut member = joined.unwrap_or_else(|e| panic!("{name}: {e}")).remove(0);
    println!("open");
    let mut counts = Counts::default();
    let mut waiter = Waiter::new(Sleep::After(Duration::from_micros(20)));
    let pair = &mut port.queues[0];
    loop {
        member.settle(&mut counts);
        if answer(&mut *pair.rx, &mut *pair.tx, mac, address, &mut counts) > 0 {
            waiter.worked();
        } else {
            let queues = &mut [&mut *pair.rx as &mut dyn RxQueue];
            waiter.wait(queues, &[], Some(Duration::from_millis(5))).expect("waiting works");
        }
    }
}

/// Answers a burst; how much came.
fn answer(
    rx: &mut dyn RxQueue,
    tx: &mut dyn TxQueue,
    mac: [u8; 6],
    address: Option<IpAddr>,
    counts: &mut Counts,
) -> usize {
    let mut burst = rx.recv();
    let answered = (0..burst.len()).filter(|&i| turn_round(burst.get_mut(i).head_mut(), mac, address, counts));
    let answered: Vec<usize> = answered.collect();
    let mut packets = [PacketRef::from_slice(&[]); BURST_MAX];
    for (slot, &i) in packets.iter_mut().zip(&answered) {
        *slot = burst.get(i);
    }
    if !answered.is_empty() {
        tx.send(&packets[..answered.len()]);
    }
    burst.len()
}

/// Makes an answer of an ARP request for our address, and of a UDP datagram of four bytes and more; false for everything else.
fn turn_round(frame: &mut [u8], mac: [u8; 6], address: Option<IpAddr>, counts: &mut Counts) -> bool {
    let Some(IpAddr::V4(address)) = address else { return false };
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
        [0x08, 0x00] if frame[23] == 17 && frame.len() >= 46 => {
            let count = counts.0.entry(Steering::FiveTuple.bucket(frame)).or_default();
            *count += 1;
            frame[42..46].copy_from_slice(&count.to_be_bytes());
            // No sum over what has changed.
            frame[40..42].fill(0);
            let (from, to) = frame[26..34].split_at_mut(4);
            from.swap_with_slice(to);
            let (from, to) = frame[34..38].split_at_mut(2);
            from.swap_with_slice(to);
        }
        _ => return false,
    }
    let sender: [u8; 6] = frame[6..12].try_into().expect("six bytes");
    frame[0..6].copy_from_slice(&sender);
    frame[6..12].copy_from_slice(&mac);
    true
}
