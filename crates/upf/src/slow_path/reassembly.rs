//! Packets of tunnels that came in fragments (RFC 791, 3.2; RFC 8200, 4.5), made whole again before anybody looks at them.
//!
//! A state machine without clock or queue of its own: frames go in with the time, and whole frames come out. What it keeps
//! is bounded in octets, for each sender and in all, and in time. Fragments that overlap spoil their packet, whatever else
//! comes of it (RFC 5722; here for IPv4 too).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use port::FRAME_MAX;

use crate::drops::DropReason;
use crate::ip::{self, Packet, checksum, sum};
use crate::packet::ETHERNET_LEN;
use crate::side::{PortId, address};

/// How long a packet's fragments wait for the others. Identifications of IPv4 come again soon at high rates (RFC 4963).
const PATIENCE: Duration = Duration::from_secs(1);
/// Octets kept in all.
const OCTETS_MAX: usize = 4 << 20;
/// Octets kept of one sender.
const SENDER_OCTETS_MAX: usize = OCTETS_MAX / 8;
/// Fragments of a packet. The longest packet has 18 at the least MTU that every host must take.
const PIECES_MAX: usize = 32;
/// What a packet takes besides its octets, and what a fragment does.
const PACKET_COST: usize = 256;
const PIECE_COST: usize = 64;

const FRAGMENT_HEADER_LEN: usize = 8;

/// What comes of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole frame, now that all of its packet is here.
    Whole(Vec<u8>),
    /// It waits for others.
    Waits,
    /// So many fragments are discarded.
    Dropped(DropReason, u64),
}

/// Fragments that wait.
#[derive(Debug, Default)]
pub struct Reassembly {
    pending: HashMap<Key, Pending>,
    /// Packets in the order of their first fragments; some are gone meanwhile.
    order: VecDeque<(Instant, Key)>,
    octets: usize,
    /// Addresses are those of a port's network: anybody may have a gNB's elsewhere.
    by_sender: HashMap<(PortId, IpAddr), usize>,
}

/// What fragments of one packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    port: PortId,
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    protocol: u8,
}

impl Key {
    fn sender(&self) -> (PortId, IpAddr) {
        (self.port, self.source)
    }
}

#[derive(Debug)]
struct Pending {
    since: Instant,
    /// By their offsets, without overlap.
    pieces: Vec<Piece>,
    /// Ethernet and IP header of the first fragment.
    head: Vec<u8>,
    /// Length of the payload, once the last fragment is here.
    total: Option<usize>,
    /// Nothing comes of it any more.
    spoilt: bool,
    cost: usize,
}

#[derive(Debug)]
struct Piece {
    offset: usize,
    bytes: Vec<u8>,
}

/// A fragment as its headers say.
struct Fragment<'f> {
    key: Key,
    /// Headers of the frame as they are in front of the whole packet.
    head: Vec<u8>,
    offset: usize,
    is_last: bool,
    payload: &'f [u8],
}

impl Reassembly {
    /// Takes a frame that came in on `port` with a fragment in it.
    pub fn add(&mut self, port: PortId, frame: &[u8], now: Instant) -> Outcome {
        let Some(fragment) = parse(port, frame) else { return Outcome::Dropped(DropReason::FragmentMalformed, 1) };
        let cost = PIECE_COST + fragment.payload.len();
        if !self.has_room(&fragment.key, cost) {
            return Outcome::Dropped(DropReason::FragmentsFull, 1);
        }
        let key = fragment.key;
        if !self.pending.contains_key(&key) {
            self.charge(&key, PACKET_COST);
            self.pending.insert(key, Pending::new(now));
            self.order.push_back((now, key));
        }
        let pending = self.pending.get_mut(&key).expect("just put in");
        let before = pending.cost;
        let result = pending.add(fragment);
        let after = pending.cost;
        let whole = pending.whole();
        self.charge(&key, after - before.min(after));
        self.refund(&key, before - after.min(before));
        match (result, whole) {
            (Err((reason, fragments)), _) => Outcome::Dropped(reason, fragments),
            (Ok(()), None) => Outcome::Waits,
            (Ok(()), Some(frame)) => {
                self.remove(&key);
                Outcome::Whole(frame)
            }
        }
    }

    /// Gives up what has waited too long, and returns how many fragments that were.
    pub fn tick(&mut self, now: Instant) -> u64 {
        let mut given_up = 0;
        while let Some(&(since, key)) = self.order.front() {
            let is_gone = self.pending.get(&key).is_none_or(|pending| pending.since != since);
            if !is_gone && now.saturating_duration_since(since) < PATIENCE {
                break;
            }
            self.order.pop_front();
            if !is_gone {
                given_up += self.remove(&key);
            }
        }
        // Behind one that waits many may be gone.
        if self.order.len() > 2 * self.pending.len() + 1_024 {
            let pending = &self.pending;
            self.order.retain(|(since, key)| pending.get(key).is_some_and(|pending| pending.since == *since));
        }
        given_up
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    fn has_room(&self, key: &Key, cost: usize) -> bool {
        let of_sender = self.by_sender.get(&key.sender()).copied().unwrap_or(0);
        let cost = cost + PACKET_COST;
        self.octets + cost <= OCTETS_MAX && of_sender + cost <= SENDER_OCTETS_MAX
    }

    fn charge(&mut self, key: &Key, cost: usize) {
        self.octets += cost;
        *self.by_sender.entry(key.sender()).or_default() += cost;
    }

    fn refund(&mut self, key: &Key, cost: usize) {
        self.octets -= cost;
        let of_sender = self.by_sender.get_mut(&key.sender()).expect("it was charged");
        *of_sender -= cost;
        if *of_sender == 0 {
            self.by_sender.remove(&key.sender());
        }
    }

    /// Returns how many fragments of the packet waited.
    fn remove(&mut self, key: &Key) -> u64 {
        let Some(pending) = self.pending.remove(key) else { return 0 };
        self.refund(key, PACKET_COST + pending.cost);
        pending.pieces.len() as u64
    }
}

impl Pending {
    fn new(since: Instant) -> Self {
        Self { since, pieces: vec![], head: vec![], total: None, spoilt: false, cost: 0 }
    }

    /// Puts the fragment in its place. On error, why and how many fragments are discarded.
    fn add(&mut self, fragment: Fragment<'_>) -> Result<(), (DropReason, u64)> {
        let Fragment { offset, is_last, payload, head, .. } = fragment;
        let end = offset + payload.len();
        if self.spoilt {
            return Err((DropReason::FragmentOverlap, 1));
        }
        let at = self.pieces.partition_point(|piece| piece.offset < offset);
        if self.pieces.get(at).is_some_and(|piece| piece.offset == offset && piece.bytes == payload) {
            return Err((DropReason::FragmentDuplicate, 1));
        }
        let overlaps = at > 0 && self.pieces[at - 1].end() > offset
            || self.pieces.get(at).is_some_and(|next| next.offset < end)
            || self.total.is_some_and(|total| end > total || is_last)
            || is_last && self.pieces.last().is_some_and(|piece| piece.end() > end);
        if overlaps {
            return Err((DropReason::FragmentOverlap, self.spoil() + 1));
        }
        if self.pieces.len() == PIECES_MAX {
            return Err((DropReason::FragmentMalformed, self.spoil() + 1));
        }
        if offset == 0 {
            self.head = head;
        }
        if is_last {
            self.total = Some(end);
        }
        self.cost += PIECE_COST + payload.len();
        self.pieces.insert(at, Piece { offset, bytes: payload.to_vec() });
        Ok(())
    }

    /// Returns how many fragments were discarded. The packet stays, so that no later fragment begins it anew.
    fn spoil(&mut self) -> u64 {
        let fragments = self.pieces.len() as u64;
        *self = Self { spoilt: true, ..Self::new(self.since) };
        fragments
    }

    /// The frame, if nothing is missing.
    fn whole(&self) -> Option<Vec<u8>> {
        let total = self.total?;
        // Pieces do not overlap and end at the last one's end: their lengths tell whether there are gaps.
        if self.pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>() != total {
            return None;
        }
        let mut frame = self.head.clone();
        self.pieces.iter().for_each(|piece| frame.extend(&piece.bytes));
        fill_in_lengths(&mut frame);
        Some(frame)
    }
}

impl Piece {
    fn end(&self) -> usize {
        self.offset + self.bytes.len()
    }
}

/// None if the fragment cannot be part of any packet that fits a frame.
fn parse(port: PortId, frame: &[u8]) -> Option<Fragment<'_>> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET_LEN)?;
    let fragment = match ip::is_v6(packet)? {
        false => parse_v4(port, ethernet, packet)?,
        true => parse_v6(port, ethernet, packet)?,
    };
    let len = fragment.payload.len();
    let is_possible = len > 0 && (fragment.is_last || len.is_multiple_of(8));
    (is_possible && fragment.head.len() + fragment.offset + len <= FRAME_MAX).then_some(fragment)
}

fn parse_v4<'f>(port: PortId, ethernet: &[u8], packet: &'f [u8]) -> Option<Fragment<'f>> {
    let ip = Packet::<false>::parse(packet, packet.len()).ok()?;
    let (header, payload) = ip.bytes().split_at(ip.header_len());
    let place = u16::from_be_bytes([header[6], header[7]]);
    let mut head = [ethernet, header].concat();
    head[ETHERNET_LEN + 6..][..2].fill(0);
    let identification = u16::from_be_bytes([header[4], header[5]]).into();
    let key = key(port, &ip, identification, ip.next_header());
    Some(Fragment { key, head, offset: usize::from(place & 0x1fff) * 8, is_last: place & 0x2000 == 0, payload })
}

fn parse_v6<'f>(port: PortId, ethernet: &[u8], packet: &'f [u8]) -> Option<Fragment<'f>> {
    let ip = Packet::<true>::parse(packet, packet.len()).ok()?;
    let (header, behind) = ip.bytes().split_at(ip.header_len());
    let (&[next, _, p0, p1, i0, i1, i2, i3], payload) = behind.split_first_chunk::<FRAGMENT_HEADER_LEN>()?;
    let place = u16::from_be_bytes([p0, p1]);
    let mut head = [ethernet, header].concat();
    head[ETHERNET_LEN + 6] = next;
    // The next header may differ between fragments, and the first one's counts (RFC 8200, 4.5).
    let key = key(port, &ip, u32::from_be_bytes([i0, i1, i2, i3]), 0);
    Some(Fragment { key, head, offset: usize::from(place & 0xfff8), is_last: place & 1 == 0, payload })
}

fn key<const V6: bool>(port: PortId, ip: &Packet<'_, V6>, identification: u32, protocol: u8) -> Key {
    let (source, destination) = (address(V6, ip.source()), address(V6, ip.destination()));
    Key { port, source, destination, identification, protocol }
}

/// The lengths and the checksum in the IP header of a whole frame.
fn fill_in_lengths(frame: &mut [u8]) {
    let packet = &mut frame[ETHERNET_LEN..];
    let len = packet.len();
    if ip::is_v6(packet) == Some(true) {
        packet[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        return;
    }
    let header_len = usize::from(packet[0] & 0xf) * 4;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[10..12].fill(0);
    let checksum = checksum(sum(&packet[..header_len]));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PORT: PortId = PortId::N3;

    /// A frame with a fragment of the packet with this identification, over either version.
    fn frame(v6: bool, source: u8, identification: u8, place: (usize, bool), payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        let (offset, more) = place;
        if v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((payload.len() as u16 + 8).to_be_bytes());
            bytes.extend([44, 64]);
            bytes.extend([[source; 16], [3; 16]].concat());
            bytes.extend([17, 0]);
            bytes.extend((offset as u16 | u16::from(more)).to_be_bytes());
            bytes.extend([0, 0, 0, identification]);
        } else {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend((payload.len() as u16 + 20).to_be_bytes());
            bytes.extend([0, identification]);
            bytes.extend(((offset / 8) as u16 | u16::from(more) << 13).to_be_bytes());
            bytes.extend([64, 17, 0, 0, 10, 0, 0, source, 10, 0, 0, 3]);
        }
        bytes.extend(payload);
        bytes
    }

    fn whole(v6: bool, payload: &[u8]) -> Vec<u8> {
        let mut bytes = frame(v6, 1, 1, (0, false), payload);
        if v6 {
            bytes.drain(ETHERNET_LEN + 40..ETHERNET_LEN + 48);
            bytes[ETHERNET_LEN + 6] = 17;
        }
        fill_in_lengths(&mut bytes);
        bytes
    }

    fn is_clean(fragments: &Reassembly) -> bool {
        fragments.is_empty() && fragments.octets == 0 && fragments.by_sender.is_empty()
    }

    #[test]
    fn overlaps_spoil_a_packet_for_as_long_as_its_fragments_would_have_waited() {
        let now = Instant::now();
        for v6 in [false, true] {
            for (second, lies) in
                [((8, true), 16), ((0, true), 24), ((0, false), 8), ((24, false), 8), ((16, false), 7)]
            {
                let mut fragments = Reassembly::default();
                let first = [frame(v6, 1, 1, (0, true), &[1; 16]), frame(v6, 1, 1, (16, false), &[1; 8])];
                assert_eq!(fragments.add(PORT, &first[1], now), Outcome::Waits);
                let outcome = fragments.add(PORT, &frame(v6, 1, 1, second, &vec![2; lies]), now);
                assert_eq!(outcome, Outcome::Dropped(DropReason::FragmentOverlap, 2), "{v6} {second:?}");
                for fragment in &first {
                    let outcome = fragments.add(PORT, fragment, now);
                    assert_eq!(outcome, Outcome::Dropped(DropReason::FragmentOverlap, 1), "{v6} {second:?}");
                }
                assert_eq!((fragments.tick(now + PATIENCE), is_clean(&fragments)), (0, true));
            }
        }
    }

    #[test]
    fn a_duplicate_does_no_harm() {
        let (mut fragments, now) = (Reassembly::default(), Instant::now());
        let first = frame(false, 1, 1, (0, true), &[1; 16]);
        assert_eq!(fragments.add(PORT, &first, now), Outcome::Waits);
        assert_eq!(fragments.add(PORT, &first, now), Outcome::Dropped(DropReason::FragmentDuplicate, 1));
        let last = frame(false, 1, 1, (16, false), &[1; 5]);
        assert_eq!(fragments.add(PORT, &last, now), Outcome::Whole(whole(false, &[1; 21])));
        assert!(is_clean(&fragments));
    }

    #[test]
    fn what_cannot_be_is_refused_and_leaves_nothing() {
        let (mut fragments, now) = (Reassembly::default(), Instant::now());
        let refused = Outcome::Dropped(DropReason::FragmentMalformed, 1);
        for v6 in [false, true] {
            for (place, len) in [((0, true), 15), ((0, true), 0), ((9_600, false), 8), ((65_528, false), 8)] {
                assert_eq!(fragments.add(PORT, &frame(v6, 1, 1, place, &vec![0; len]), now), refused);
            }
            let cut = frame(v6, 1, 1, (0, true), &[0; 16]);
            for len in 0..cut.len() {
                assert_eq!(fragments.add(PORT, &cut[..len], now), refused);
            }
        }
        assert!(is_clean(&fragments));
    }

    #[test]
    fn a_packet_in_too_many_pieces_is_spoilt() {
        let (mut fragments, now) = (Reassembly::default(), Instant::now());
        for at in 0..PIECES_MAX {
            assert_eq!(fragments.add(PORT, &frame(false, 1, 1, (at * 8, true), &[0; 8]), now), Outcome::Waits);
        }
        let outcome = fragments.add(PORT, &frame(false, 1, 1, (800, false), &[0; 8]), now);
        assert_eq!(outcome, Outcome::Dropped(DropReason::FragmentMalformed, PIECES_MAX as u64 + 1));
    }

    #[test]
    fn a_sender_and_all_senders_have_their_bounds_and_time_frees_them() {
        let (mut fragments, now) = (Reassembly::default(), Instant::now());
        let mut kept = vec![0_u64; 20];
        for (source, kept) in kept.iter_mut().enumerate() {
            for identification in 0..255 {
                for offset in [0, 1_400, 2_800] {
                    let frame = frame(true, source as u8, identification, (offset, true), &[0; 1_400]);
                    *kept += u64::from(fragments.add(PORT, &frame, now) == Outcome::Waits);
                }
            }
        }
        assert!(kept[0] > 300 && kept[0] < 400, "{kept:?}");
        assert!(kept[1] == kept[0] && kept[19] == 0, "{kept:?}");
        assert!(fragments.octets <= OCTETS_MAX);
        assert_eq!(fragments.tick(now + PATIENCE / 2), 0);
        assert_eq!(fragments.tick(now + PATIENCE), kept.iter().sum::<u64>());
        assert!(is_clean(&fragments) && fragments.order.is_empty());
    }

    #[test]
    fn whoever_sends_by_another_port_is_another_sender() {
        let (mut fragments, now) = (Reassembly::default(), Instant::now());
        let mut add =
            |port, identification| fragments.add(port, &frame(false, 1, identification, (0, true), &[0; 8_000]), now);
        assert!((0..255).any(|identification| add(PortId::N6, identification) != Outcome::Waits));
        assert_eq!(add(PortId::N3, 1), Outcome::Waits);
    }

    #[test]
    fn what_is_whole_behind_one_that_waits_is_forgotten() {
        let (mut fragments, now) = (Reassembly::default(), Instant::now());
        fragments.add(PORT, &frame(false, 9, 9, (0, true), &[0; 8]), now);
        for round in 0..10_000 {
            fragments.add(PORT, &frame(false, 1, round as u8, (0, true), &[0; 8]), now);
            assert!(matches!(
                fragments.add(PORT, &frame(false, 1, round as u8, (8, false), &[0; 8]), now),
                Outcome::Whole(_)
            ));
            fragments.tick(now);
        }
        assert!(fragments.order.len() < 1_100);
    }

    proptest! {
        #[test]
        fn fragments_in_any_order_make_the_packet(
            v6: bool,
            cuts in proptest::collection::btree_set(1usize..170, 1..20),
            tail in 1usize..40,
            order in proptest::collection::vec(any::<u64>(), 21),
        ) {
            let (mut fragments, now) = (Reassembly::default(), Instant::now());
            let total = 170 * 8 + tail;
            let payload: Vec<u8> = (0..total).map(|at| (at * 7) as u8).collect();
            let ends: Vec<usize> = cuts.iter().map(|cut| cut * 8).chain([total]).collect();
            let mut begin = 0;
            let mut frames: Vec<(u64, Vec<u8>)> = vec![];
            for (end, key) in ends.iter().zip(&order) {
                frames.push((*key, frame(v6, 1, 1, (begin, *end < total), &payload[begin..*end])));
                begin = *end;
            }
            frames.sort();
            let (last, others) = frames.split_last().expect("two at least");
            for (_, frame) in others {
                prop_assert_eq!(fragments.add(PORT, frame, now), Outcome::Waits);
            }
            prop_assert_eq!(fragments.add(PORT, &last.1, now), Outcome::Whole(whole(v6, &payload)));
            prop_assert!(is_clean(&fragments));
        }

        #[test]
        fn no_frames_make_it_keep_more_than_it_may_or_for_ever(
            frames in proptest::collection::vec((any::<bool>(), 0u8..3, 0u8..3, 0usize..64, any::<bool>(), 0usize..200), 0..200),
        ) {
            let (mut fragments, now) = (Reassembly::default(), Instant::now());
            let mut counted = 0;
            for &(v6, source, identification, offset, more, len) in &frames {
                match fragments.add(PORT, &frame(v6, source, identification, (offset * 8, more), &vec![7; len]), now) {
                    Outcome::Dropped(_, fragments) => counted += fragments,
                    Outcome::Waits | Outcome::Whole(_) => {}
                }
            }
            prop_assert!(counted <= frames.len() as u64);
            counted += fragments.tick(now + PATIENCE);
            prop_assert!(is_clean(&fragments) && counted <= frames.len() as u64);
        }
    }
}
