//! Sends stamped packets back to where they came from, so that their sender can measure with one clock how long they were under
//! way.

use port::{BURST_MAX, PacketRef, QueuePair, TxQueue};
use serde::{Deserialize, Serialize};

use crate::frame::{Datagrams, ETHERNET, UDP};
use crate::stamp::Stamp;

/// The reflector of one queue. It does not try again what its port refuses: to the sender that is a loss.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reflector {
    /// Packets sent back.
    pub reflected: u64,
    /// Packets that were to go back and were refused by the port.
    pub refused: u64,
    /// Frames without a stamp.
    pub foreign: u64,
}

impl Reflector {
    /// Sends a burst back. Frames without a stamp go to `others`, with the half to answer by. Returns the number of frames
    /// that had come.
    pub fn turn(&mut self, queue: &mut QueuePair, mut others: impl FnMut(&mut dyn TxQueue, &[u8])) -> usize {
        let mut burst = queue.rx.recv();
        let (mut back, mut count) = ([0; BURST_MAX], 0);
        for i in 0..burst.len() {
            if turn_back(burst.get_mut(i).head_mut()).is_some() {
                back[count] = i;
                count += 1;
            } else {
                self.foreign += 1;
                let mut whole = vec![0; burst.get(i).len()];
                burst.get(i).copy_to(&mut whole);
                others(queue.tx.as_mut(), &whole);
            }
        }
        let mut packets = [PacketRef::from_slice(&[]); BURST_MAX];
        for (packet, i) in packets.iter_mut().zip(&back[..count]) {
            *packet = burst.get(*i);
        }
        let sent = queue.tx.send(&packets[..count]);
        self.reflected += sent as u64;
        self.refused += (count - sent) as u64;
        burst.len()
    }
}

/// Swaps source and destination of a stamped frame: Ethernet, IP and UDP, and of a G-PDU what it carries, too. A TEID stays.
/// No checksum changes by that. None, and nothing done, for any other frame.
fn turn_back(frame: &mut [u8]) -> Option<()> {
    let datagrams = Datagrams::of(frame)?;
    Stamp::read(frame.get(datagrams.payload()..)?)?;
    swap(frame, 0, 6);
    swap_ip(frame, ETHERNET);
    match datagrams.inner {
        // Both of the outer ports are GTP-U's.
        Some((at, inner)) => {
            swap_ip(frame, at);
            swap(frame, inner.payload - UDP, 2);
        }
        None => swap(frame, datagrams.outer.payload - UDP, 2),
    }
    Some(())
}

fn swap_ip(frame: &mut [u8], at: usize) {
    match frame[at] >> 4 {
        4 => swap(frame, at + 12, 4),
        _ => swap(frame, at + 8, 16),
    }
}

/// Swaps `len` bytes at `at` with as many behind them.
fn swap(frame: &mut [u8], at: usize, len: usize) {
    let (first, second) = frame[at..at + 2 * len].split_at_mut(len);
    first.swap_with_slice(second);
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use gtpu::Direction;
    use port::synthetic::Synthetic;

    use super::*;
    use crate::frame::{self, IPV4};
    use crate::generator::{Flow, Generator, Macs, Pace, Tunnel};
    use crate::sink::Sink;

    const UE: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 1);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 2);
    const GNB: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 2);
    const UPF: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 1);
    const THERE: Macs = Macs { from: [2; 6], to: [4; 6] };
    const BACK: Macs = Macs { from: [4; 6], to: [2; 6] };

    fn sent(flow: Flow, macs: Macs) -> Vec<Vec<u8>> {
        let (mut port, captured) = Synthetic::new(vec![]).open_captured();
        let mut generator = Generator::new(&[flow; 3], 64, macs, Pace::PerSecond(1e9), 0);
        generator.turn(port.queues[0].tx.as_mut(), 5);
        captured.take()
    }

    #[test]
    fn plain_packets_and_those_in_tunnels_come_back_as_if_the_other_side_had_sent_them() {
        let tunnel = |from, to| Some(Tunnel { from, to, teid: 7, qfi: 9, direction: Direction::Uplink });
        for (there, back) in [(None, None), (tunnel(GNB, UPF), tunnel(UPF, GNB))] {
            let frames = sent(Flow { from: UE, to: SERVER, tunnel: there }, THERE);
            let (mut port, captured) = Synthetic::new(frames.clone()).once().open_captured();
            let mut reflector = Reflector::default();
            assert_eq!(reflector.turn(&mut port.queues[0], |_, _| panic!("all are stamped")), 6);
            assert_eq!((reflector.reflected, reflector.refused, reflector.foreign), (6, 0, 0));
            let expected = sent(Flow { from: SERVER, to: UE, tunnel: back }, BACK);
            for ((came, made), original) in captured.take().into_iter().zip(expected).zip(frames) {
                let payload = Datagrams::of(&came).expect("datagrams").payload();
                // Ports of the generator's are not symmetric.
                let mut ports_swapped = made;
                swap(&mut ports_swapped, payload - UDP, 2);
                assert_eq!(came, ports_swapped);
                assert_eq!(frame::ones_complement_sum(&came[payload - UDP - IPV4..payload - UDP]), 0xffff);
                assert_eq!(came[payload..], original[payload..]);
            }
        }
    }

    #[test]
    fn packets_over_ipv6_come_back_too() {
        let (from, to) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        let mut payload = [0; 18];
        Stamp { flow: 1, sequence: 2, due_ns: 3 }.write(&mut payload);
        let mut frame = frame::ethernet([4; 6], [2; 6], frame::ETHERTYPE_IPV6).to_vec();
        frame.extend(frame::ipv6(from, to, frame::PROTOCOL_UDP, UDP + payload.len()));
        frame.extend(frame::udp(1, 2, payload.len()));
        frame.extend(payload);
        turn_back(&mut frame).expect("it is stamped");
        let datagram = frame::datagram(&frame, ETHERNET).expect("a datagram");
        assert_eq!((datagram.from, datagram.to), (to.into(), from.into()));
        assert_eq!((datagram.from_port, datagram.to_port), (2, 1));
        assert_eq!((&frame[..6], &frame[6..12]), (&[2; 6][..], &[4; 6][..]));
    }

    #[test]
    fn what_has_no_stamp_is_for_others_and_stays_as_it_is() {
        let plain = Flow { from: UE, to: SERVER, tunnel: None };
        let mut unstamped = sent(plain, THERE).remove(0);
        let at = Datagrams::of(&unstamped).expect("datagrams").payload();
        unstamped[at] = 0;
        let mut port = Synthetic::new(vec![vec![0; 60], unstamped.clone()]).once().open();
        let mut handed = vec![];
        let mut reflector = Reflector::default();
        reflector.turn(&mut port.queues[0], |_, frame| handed.push(frame.to_vec()));
        assert_eq!(handed, [vec![0; 60], unstamped]);
        assert_eq!((reflector.reflected, reflector.foreign), (0, 2));
    }

    #[test]
    fn any_cut_of_a_frame_is_looked_at_without_harm() {
        let frame = sent(Flow { from: UE, to: SERVER, tunnel: None }, THERE).remove(0);
        for len in 0..frame.len() {
            let _ = turn_back(&mut frame[..len].to_vec());
        }
    }

    #[test]
    fn the_sender_measures_there_and_back_with_its_own_clock() {
        let frames = sent(Flow { from: UE, to: SERVER, tunnel: None }, THERE);
        let (mut far, captured) = Synthetic::new(frames).once().open_captured();
        Reflector::default().turn(&mut far.queues[0], |_, _| ());
        let mut near = Synthetic::new(captured.take()).once().open();
        let mut sink = Sink::new();
        sink.turn(near.queues[0].rx.as_mut(), 40_000, |_| {});
        let found = sink.found();
        assert_eq!((found.received, found.lost, found.duplicates, found.reordered), (6, 0, 0, 0));
        assert!((found.latency_us.p50 - 40.0).abs() < 0.1, "{:?}", found.latency_us);
    }
}
