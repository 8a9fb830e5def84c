//! Frames that are sent to a UPF, and those that come out of it.

use std::net::Ipv4Addr;

use port::{PacketRef, Port};

/// A packet of UDP, or what is to be taken for that.
pub fn ipv4(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    packet.extend(from.octets());
    packet.extend(to.octets());
    let checksum = upf::ip::checksum(upf::ip::sum(&packet));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// The number is at the beginning of the last 32 octets.
pub(super) fn set_number(frame: &mut [u8], number: u64) {
    let at = frame.len() - 32;
    frame[at..at + 8].copy_from_slice(&number.to_be_bytes());
}

/// Answers requests for the port's address; the numbers of other packets.
pub(super) fn arrivals(port: &mut Port) -> Vec<u64> {
    let mut numbers = vec![];
    each_frame(port, |frame| {
        if is_users(frame) {
            let at = frame.len().saturating_sub(32);
            numbers.extend(frame[at..].first_chunk().map(|octets| u64::from_be_bytes(*octets)));
        }
    });
    numbers
}

/// Whether a frame is a user's packet: IPv4, and not one of the UPF's own echo requests.
pub fn is_users(frame: &[u8]) -> bool {
    let echo = frame.get(36..38) == Some(&[0x08, 0x68]) && frame.get(43) != Some(&255);
    frame.get(12..14) == Some(&[8, 0]) && !echo
}

/// Answers requests for the port's address; how many other packets came.
pub(super) fn answer_arp(port: &mut Port) -> u64 {
    let mut others = 0;
    each_frame(port, |frame| others += u64::from(frame[12..14] == [8, 0]));
    others
}

/// Answers requests for the port's address; all other frames that came.
pub(super) fn take_frames(port: &mut Port) -> Vec<Vec<u8>> {
    let mut others = vec![];
    each_frame(port, |frame| others.push(frame.to_vec()));
    others
}

/// Takes a burst, and answers requests for the port's address; of how many frames it was.
pub(super) fn each_frame(port: &mut Port, mut other: impl FnMut(&[u8])) -> usize {
    let mac = port.info.mac;
    let (mut frame, mut answers) = (vec![], vec![]);
    let burst = port.queues[0].rx.recv();
    let count = burst.len();
    for at in 0..count {
        let packet = burst.get(at);
        frame.resize(packet.len(), 0);
        packet.copy_to(&mut frame);
        match frame.get(12..14) {
            Some([8, 6]) if frame.len() >= 42 => answers.push(arp_answer(&frame, mac)),
            Some(_) => other(&frame),
            None => {}
        }
    }
    for answer in answers {
        port.queues[0].tx.send(&[PacketRef::from_slice(&answer)]);
    }
    count
}

fn arp_answer(request: &[u8], mac: [u8; 6]) -> Vec<u8> {
    let mut answer = request[..42].to_vec();
    answer[..6].copy_from_slice(&request[6..12]);
    answer[6..12].copy_from_slice(&mac);
    answer[21] = 2;
    answer[22..28].copy_from_slice(&mac);
    answer[28..32].copy_from_slice(&request[38..42]);
    answer[32..42].copy_from_slice(&request[22..32]);
    answer
}
