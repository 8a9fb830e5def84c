//! What zero-copy channels do together: frames arrive as they were sent, wherever their buffers have been; no buffer is
//! lost, held twice or given away by whoever does not hold it; and lies are noticed.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use crate::arena::Descriptor;
use crate::exposed::{Commons, Exposed};
use crate::packet::{BURST_MAX, HEADROOM, LONG_BURST_MAX, PacketRef};
use crate::reader::Wanted;
use crate::ring::Violation;

const PEEK: usize = 192;
/// A channel, and what its ends think of it.
struct Channel {
    exposed: Exposed,
    commons: Commons,
    ids: (u16, u16),
    /// Its receiver's bursts stay descriptors.
    lends: bool,
    /// The function has dealt with the last burst.
    dealt: bool,
    /// What was sent and not received.
    expected: VecDeque<Vec<u8>>,
}

impl Deref for Channel {
    type Target = Exposed;

    fn deref(&self) -> &Exposed {
        &self.exposed
    }
}

impl DerefMut for Channel {
    fn deref_mut(&mut self) -> &mut Exposed {
        &mut self.exposed
    }
}

impl Channel {
    fn new(commons: &Commons, first: u32, ids: (u16, u16)) -> Self {
        let exposed = Exposed::new(commons, COUNT, first, ids);
        Self { exposed, commons: commons.clone(), ids, lends: false, dealt: false, expected: VecDeque::new() }
    }

    /// Sends frames from private memory.
    fn send(&mut self, frames: &[Vec<u8>]) -> usize {
        let packets: Vec<_> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        let sent = self.push(&packets);
        self.expected.extend(frames[..sent].iter().cloned());
        sent
    }

    fn push(&mut self, packets: &[PacketRef<'_>]) -> usize {
        let done = self.exposed.push(packets);
        self.publish();
        done
    }

    /// Ends the last burst, and begins one of at most `most` frames, which must be the ones expected.
    fn receive(&mut self, most: usize) -> usize {
        self.release(true);
        self.dealt = false;
        let Self { exposed, expected, lends, .. } = self;
        if *lends {
            exposed.lend(most, PEEK);
        } else {
            exposed.fill(most, PEEK, |_, _| Wanted::Yes);
        }
        let burst = exposed.burst();
        for i in 0..burst.len() {
            assert!(burst.get(i).head.len() <= PEEK);
            assert!(Some(bytes(&burst.get(i))) == expected.pop_front(), "it arrives as it was sent");
        }
        burst.len()
    }

    fn descriptor(&self, at: u64) -> u64 {
        self.words().descriptor(at).load(Ordering::Relaxed)
    }

    fn returned(&self, at: u64) -> u32 {
        self.words().returned(at)
    }

    /// All buffers of the channel: those that are empty or have been taken, and those on their way. Each must be held by
    /// the end that may use it next.
    fn buffers(&self) -> Vec<u32> {
        let (head, tail) = (self.given().0, self.taken().0);
        let empty = (0..COUNT - (head.wrapping_sub(tail))).map(|n| self.returned(tail.wrapping_sub(n + 1)));
        let empty: Vec<u32> = empty.collect();
        let sent: Vec<u32> = (tail..head).map(|at| self.descriptor(at) as u32).collect();
        assert!(
            empty.iter().all(|&buffer| self.commons.holder(buffer) == self.ids.0),
            "an empty buffer is the sender's"
        );
        assert!(sent.iter().all(|&buffer| self.commons.holder(buffer) == self.ids.1), "a sent one is the receiver's");
        [empty, sent].concat()
    }
}

fn bytes(packet: &PacketRef<'_>) -> Vec<u8> {
    let mut frame = vec![0; packet.len()];
    packet.copy_to(&mut frame);
    frame
}

fn frame(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed.wrapping_mul(31).wrapping_add(at as u8)).collect()
}

/// Channels between functions 0, 1 and 2 in a circle, and how frames are sent on.
const COUNT: u64 = 16;

fn circle() -> Vec<Channel> {
    let commons = Commons::new(3 * COUNT as u32);
    let channel = |n: u16| Channel::new(&commons, u32::from(n) * COUNT as u32, (2 * n + 1, 2 * n + 2));
    (0..3).map(channel).collect()
}

/// The same, with either kind of burst.
fn circles() -> [Vec<Channel>; 2] {
    let [plain, mut lending] = [circle(), circle()];
    lending.iter_mut().for_each(|channel| channel.lends = true);
    [plain, lending]
}

fn assert_conserved(channels: &[Channel]) {
    let mut all: Vec<u32> = channels.iter().flat_map(Channel::buffers).collect();
    all.sort_unstable();
    assert_eq!(all, (0..3 * COUNT as u32).collect::<Vec<_>>(), "each buffer in one place");
}

/// What a function does with a frame that it received.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Keep,
    Send,
    SendTwice,
    SendAndChange,
    Encapsulate(usize),
    Decapsulate(usize),
    Shorten(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        Just(Deed::Keep),
        Just(Deed::Send),
        Just(Deed::SendTwice),
        Just(Deed::SendAndChange),
        (1..=HEADROOM).prop_map(Deed::Encapsulate),
        (1..60_usize).prop_map(Deed::Decapsulate),
        (1..2_000_usize).prop_map(Deed::Shorten),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Send { on: usize, lengths: Vec<usize>, seed: u8 },
    Receive { on: usize, most: usize, lends: bool },
    Forward { from: usize, deeds: Vec<Deed> },
    ForwardAll { from: usize, first: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3_usize, prop::collection::vec(60..2_000_usize, 1..12), any::<u8>())
            .prop_map(|(on, lengths, seed)| Step::Send { on, lengths, seed }),
        (0..3_usize, 1..=BURST_MAX, any::<bool>()).prop_map(|(on, most, lends)| Step::Receive { on, most, lends }),
        (0..3_usize, 0..4_usize).prop_map(|(from, first)| Step::ForwardAll { from, first }),
        (0..3_usize, prop::collection::vec(deed(), 1..20)).prop_map(|(from, deeds)| Step::Forward { from, deeds }),
    ]
}

/// Does a deed with frame `i` of the last burst of `from`, and sends it by `to`.
fn forward(from: &mut Channel, to: &mut Channel, i: usize, deed: Deed) {
    let mut burst = from.burst();
    let mut packet = burst.get_mut(i);
    // A frame that was sent before may look as whoever has it now left it.
    let mut copies = 1;
    match deed {
        Deed::Keep => return,
        Deed::SendTwice => copies = 2,
        Deed::Encapsulate(bytes) => match packet.prepend(bytes) {
            Some(room) => room.fill(bytes as u8),
            None => return,
        },
        Deed::Decapsulate(bytes) => assert!(packet.strip(bytes.min(packet.head().len() - 1))),
        Deed::Shorten(bytes) => packet.truncate(bytes),
        Deed::Send | Deed::SendAndChange => {}
    }
    for _ in 0..copies {
        let sent = bytes(&packet.as_ref());
        if to.push(&[packet.as_ref()]) == 1 {
            to.expected.push_back(sent);
        }
    }
    if let Deed::SendAndChange = deed {
        packet.head_mut().fill(0xee);
    }
}

/// Sends the last burst of `from` by `to`, from packet `first` on, and what is left of it once more.
fn forward_all(from: &mut Channel, to: &mut Channel, first: usize) {
    let lends = from.lends;
    let burst = from.burst();
    let mut next = first.min(burst.len());
    for _ in 0..2 {
        let sent: Vec<_> = (next..burst.len()).map(|i| bytes(&burst.get(i))).collect();
        let Some(count) = to.exposed.push_on(&burst, next) else {
            assert!(!lends || burst.is_empty(), "none of it was sent on yet");
            break;
        };
        to.publish();
        to.expected.extend(sent.into_iter().take(count));
        next += count;
    }
    assert!(next == first || to.exposed.push_on(&burst, first).is_none_or(|count| count == 0), "nothing is sent twice");
}

proptest! {
    #[test]
    fn whatever_functions_do_frames_arrive_as_sent_and_no_buffer_is_lost_or_held_twice(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut channels = circle();
        for step in steps {
            match step {
                Step::Send { on, lengths, seed } => {
                    let frames: Vec<_> = lengths.iter().map(|&len| frame(seed, len)).collect();
                    channels[on].send(&frames);
                }
                Step::Receive { on, most, lends } => {
                    channels[on].lends = lends;
                    channels[on].receive(most);
                }
                Step::ForwardAll { from, first } => {
                    let [from, to] = channels.get_disjoint_mut([from, (from + 1) % 3]).unwrap();
                    if !std::mem::replace(&mut from.dealt, true) {
                        forward_all(from, to, first);
                    }
                }
                Step::Forward { from, deeds } => {
                    let [from, to] = channels.get_disjoint_mut([from, (from + 1) % 3]).unwrap();
                    if std::mem::replace(&mut from.dealt, true) {
                        continue;
                    }
                    for (i, deed) in deeds.into_iter().enumerate().take(from.burst().len()) {
                        forward(from, to, i, deed);
                    }
                }
            }
            assert_conserved(&channels);
        }
    }
}

#[test]
fn a_frame_that_is_sent_on_stays_where_it_is() {
    for mut channels in circles() {
        channels[0].send(&[frame(1, 1_000)]);
        let first = channels[0].descriptor(0);
        for hop in 0..6_u64 {
            let [from, to] = channels.get_disjoint_mut([hop as usize % 3, (hop as usize + 1) % 3]).unwrap();
            assert_eq!(from.receive(BURST_MAX), 1);
            forward(from, to, 0, Deed::Send);
            assert_eq!(to.descriptor(to.given().0 - 1), first);
            from.receive(BURST_MAX);
        }
        assert_conserved(&channels);
    }
}

/// A received frame must have headroom; where a buffer has none left, the frame is copied to another.
#[test]
fn every_received_frame_has_headroom_however_often_headers_were_put_before_it() {
    for mut channels in circles() {
        channels[0].send(&[frame(1, 100)]);
        for hop in 0..30 {
            let [from, to] = channels.get_disjoint_mut([hop % 3, (hop + 1) % 3]).unwrap();
            assert_eq!(from.receive(BURST_MAX), 1);
            assert!(from.burst().get_mut(0).prepend(HEADROOM).is_some());
            assert!(from.burst().get_mut(0).strip(HEADROOM));
            forward(from, to, 0, Deed::Encapsulate(44));
            from.receive(BURST_MAX);
        }
        assert_conserved(&channels);
    }
}

/// While a function still looks at a frame that it sent on, the buffer may have gone round and be empty again. What is left of
/// the frame is sent, where it was put before and where not, with a head that was changed and as it is.
#[test]
fn a_frame_that_is_sent_again_when_its_buffer_has_come_back_is_moved_within_it() {
    let deeds = [(0, 0), (44, 0), (44, 7), (0, -30), (0, 60)];
    for ((prepended, changed), mut channels) in deeds.into_iter().flat_map(|deed| circles().map(|all| (deed, all))) {
        channels[2].send(&[frame(1, 1_000)]);
        let [first, from] = channels.get_disjoint_mut([2, 0]).unwrap();
        first.receive(1);
        forward(first, from, 0, if prepended > 0 { Deed::Encapsulate(prepended) } else { Deed::Send });
        first.receive(1);
        let [from, to] = channels.get_disjoint_mut([0, 1]).unwrap();
        from.receive(1);
        let buffer = from.descriptor(0) as u32;
        forward(from, to, 0, Deed::Send);
        to.receive(1);
        to.receive(1);
        to.send(&vec![frame(2, 100); COUNT as usize - 1]);
        to.receive(BURST_MAX);
        to.release(true);
        assert_eq!(to.returned(0), buffer);
        let mut burst = from.burst();
        let mut packet = burst.get_mut(0);
        match changed {
            0 => {}
            1.. => packet.prepend(changed as usize).unwrap().fill(9),
            _ => assert!(packet.strip(-changed as usize)),
        }
        let sent = bytes(&packet.as_ref());
        assert_eq!(to.push(&[packet.as_ref()]), 1);
        to.expected.push_back(sent);
        assert_eq!(to.receive(1), 1);
        from.receive(1);
        assert_conserved(&channels);
    }
}

#[test]
fn a_sender_without_empty_buffers_is_refused_until_one_comes_back() {
    let mut channels = circle();
    let channel = &mut channels[0];
    let burst = vec![frame(3, 60); 32];
    assert_eq!(channel.send(&burst), COUNT as usize);
    assert_eq!(channel.send(&burst), 0);
    assert_eq!(channel.receive(5), 5);
    assert_eq!(channel.send(&burst), 0, "what is looked at is not empty");
    channel.release(true);
    assert_eq!(channel.send(&burst), 5);
}

/// A sender's descriptor that is a lie: of the buffer of the first one it sent, and what was said to be in it.
fn descriptor_is_refused(lie: impl Fn(&Channel) -> u64, rule: Violation) {
    for mut channels in circles() {
        let channel = &mut channels[0];
        channel.send(&vec![frame(3, 60); 3]);
        channel.words().descriptor(1).store(lie(channel), Ordering::Relaxed);
        channel.expected.truncate(1);
        assert_eq!(channel.receive(BURST_MAX), 1, "what came before is delivered");
        assert_eq!(channel.taken().1, Some(rule));
        assert_eq!(channel.receive(BURST_MAX), 0);
    }
}

#[test]
fn a_receiver_notices_every_descriptor_that_lies() {
    let good = Descriptor { buffer: 1, offset: 256, len: 60 };
    descriptor_is_refused(|_| Descriptor { len: 0, ..good }.word(), Violation::BadDescriptor);
    descriptor_is_refused(|_| Descriptor { buffer: 48, ..good }.word(), Violation::BadDescriptor);
    descriptor_is_refused(|_| Descriptor { offset: 9_861, ..good }.word(), Violation::BadDescriptor);
    // Sent twice, held by the sender still, somebody else's, nobody's.
    descriptor_is_refused(|channel| channel.descriptor(0), Violation::ForeignBuffer);
    descriptor_is_refused(|_| Descriptor { buffer: 3, ..good }.word(), Violation::ForeignBuffer);
    descriptor_is_refused(|_| Descriptor { buffer: 20, ..good }.word(), Violation::ForeignBuffer);
    descriptor_is_refused(
        |channel| {
            channel.commons.set_holder(1, 0);
            channel.descriptor(1)
        },
        Violation::ForeignBuffer,
    );
}

/// A receiver's return that is a lie.
fn return_is_refused(lie: impl Fn(&Channel) -> u32) {
    let mut channels = circle();
    let channel = &mut channels[0];
    channel.send(&vec![frame(3, 60); COUNT as usize]);
    channel.receive(4);
    channel.words().set_returned(1, lie(channel));
    channel.release(true);
    assert_eq!(channel.send(&vec![frame(4, 60); 4]), 1, "what was returned before is used");
    assert_eq!(channel.given().1, Some(Violation::DoubleReturn));
    assert_eq!(channel.send(&vec![frame(5, 60); 4]), 0);
    return_is_refused_to_a_burst(lie);
}

/// The same where frames are sent on as they came.
fn return_is_refused_to_a_burst(lie: impl Fn(&Channel) -> u32) {
    let [_, mut channels] = circles();
    channels[2].send(&vec![frame(3, 60); 4]);
    channels[2].receive(4);
    let [channel, from] = channels.get_disjoint_mut([0, 2]).unwrap();
    channel.send(&vec![frame(3, 60); COUNT as usize]);
    channel.receive(4);
    channel.words().set_returned(1, lie(channel));
    channel.release(true);
    let burst = from.burst();
    assert_eq!(channel.push_on(&burst, 0), Some(1), "what was returned before is used");
    assert_eq!(channel.given().1, Some(Violation::DoubleReturn));
    assert_eq!(channel.push_on(&burst, 1), Some(0));
    channel.publish();
    let sent = channel.descriptor(COUNT);
    assert_eq!(channel.commons.holder(sent as u32), channel.ids.1);
}

#[test]
fn a_sender_notices_every_return_that_lies() {
    // Returned twice, kept all the same, somebody else's, nobody's.
    return_is_refused(|channel| channel.returned(0));
    return_is_refused(|_| 9);
    return_is_refused(|_| 20);
    return_is_refused(|_| 48);
    return_is_refused(|_| u32::MAX);
}

#[test]
fn positions_that_cannot_be_are_noticed() {
    let mut channels = circle();
    channels[0].words().head().store(COUNT + 1, Ordering::Relaxed);
    assert_eq!(channels[0].receive(1), 0);
    assert_eq!(channels[0].taken().1, Some(Violation::HeadOutOfRange));
    for tail in [COUNT + 1, u64::MAX, 17 * COUNT] {
        let mut channels = circle();
        assert_eq!(channels[0].send(&vec![frame(1, 60); 17]), COUNT as usize);
        channels[0].words().tail().store(tail, Ordering::Relaxed);
        assert_eq!(channels[0].send(&[frame(1, 60)]), 0);
        assert_eq!(channels[0].given().1, Some(Violation::TailOutOfRange), "{tail}");
    }
}

#[test]
fn what_was_seen_to_be_published_is_taken_though_the_sender_takes_its_head_back() {
    let mut channels = circle();
    channels[0].send(&[frame(1, 60), frame(2, 60), frame(3, 60)]);
    channels[0].words().head().store(0, Ordering::Relaxed);
    channels[0].read_up_to(3);
    channels[0].read_up_to(2);
    assert_eq!(channels[0].receive(BURST_MAX), 3);
    assert_eq!((channels[0].receive(1), channels[0].taken()), (0, (3, Some(Violation::HeadOutOfRange))));
    channels[1].read_up_to(COUNT + 1);
    assert_eq!(channels[1].taken().1, Some(Violation::HeadOutOfRange));
}

/// Frames of unwanted and late buckets: passed over ones go back, those that are not yet wanted stay.
#[test]
fn unwanted_frames_go_back_and_early_ones_stay() {
    let mut channels = circle();
    channels[0].send(&(0..6).map(|n| frame(n, 60)).collect::<Vec<_>>());
    let filled = channels[0].fill(BURST_MAX, PEEK, |_, at| match at {
        1 | 2 => Wanted::No,
        4 => Wanted::NotYet,
        _ => Wanted::Yes,
    });
    assert_eq!((filled.packets, filled.unwanted, channels[0].taken().0), (2, 2, 4));
    assert_conserved(&channels);
    channels[0].expected.drain(..4);
    assert_eq!(channels[0].receive(BURST_MAX), 2);
    assert_conserved(&channels);
}

/// As it came, and with packets among its first, middle and last ones that were taken apart and put together again.
#[test]
fn a_long_burst_is_sent_on_from_any_packet() {
    const RING: u64 = 2 * LONG_BURST_MAX as u64;
    let commons = Commons::new(2 * RING as u32);
    let changes: [&[usize]; 4] = [&[], &[0], &[63, 64], &[3, LONG_BURST_MAX - 1]];
    for (changed, from) in changes.into_iter().flat_map(|changed| [0, 1, 64, 100].map(|from| (changed, from))) {
        let mut first = Exposed::new(&commons, RING, 0, (1, 2));
        let mut second = Exposed::new(&commons, RING, RING as u32, (3, 4));
        let frames: Vec<_> = (0..RING).map(|n| frame(n as u8, 60 + n as usize)).collect();
        let packets: Vec<_> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        assert_eq!(first.push(&packets), packets.len());
        first.publish();
        for half in frames.chunks(LONG_BURST_MAX) {
            assert_eq!(first.lend(LONG_BURST_MAX, PEEK).packets as usize, LONG_BURST_MAX);
            let mut burst = first.burst();
            for &i in changed {
                let mut packet = burst.get_mut(i);
                assert!(packet.strip(14));
                packet.prepend(14).unwrap().copy_from_slice(&half[i][..14]);
            }
            let as_it_is = second.push_on(&burst, from);
            assert_eq!(as_it_is.is_some(), changed.iter().all(|i| *i < from), "{changed:?} from {from}");
            let sent = as_it_is.unwrap_or_else(|| burst.send_views(from, |packets| second.push(packets)));
            assert_eq!(sent, LONG_BURST_MAX - from);
            second.publish();
            assert_eq!(second.lend(LONG_BURST_MAX, PEEK).packets as usize, sent);
            let arrived = second.burst();
            assert!((from..LONG_BURST_MAX).all(|i| bytes(&arrived.get(i - from)) == half[i]));
        }
        assert_eq!((first.taken().1, second.given().1, second.taken().1), (None, None, None));
    }
}

#[test]
fn unwanted_frames_do_not_keep_a_receiver_for_a_whole_ring() {
    const RING: u64 = 8 * BURST_MAX as u64;
    let mut exposed = Exposed::new(&Commons::new(RING as u32), RING, 0, (1, 2));
    let bytes = frame(1, 60);
    assert_eq!(exposed.push(&vec![PacketRef::from_slice(&bytes); RING as usize]), RING as usize);
    exposed.publish();
    for turn in 1..=2 {
        assert_eq!(exposed.fill(BURST_MAX, PEEK, |_, _| Wanted::No).unwanted, RING as u32 / 2);
        assert_eq!(exposed.taken().0, turn * RING / 2);
    }
}

#[test]
fn one_burst_in_many_tells_how_long_its_first_frame_was_on_its_way() {
    let mut channels = circle();
    let channel = &mut channels[0];
    let mut stamps = Vec::new();
    for _ in 0..3_000 {
        channel.send(&[frame(1, 60), frame(2, 60)]);
        channel.receive(1);
        channel.receive(1);
        stamps.push(channel.words().stamp().load(Ordering::Relaxed));
    }
    stamps.dedup();
    assert_eq!((stamps.len(), channel.latency().count(), channel.latency().invalid), (3, 3, 0));
}

#[test]
fn a_stamp_that_lies_changes_nothing_else() {
    let mut channels = circle();
    let channel = &mut channels[0];
    for (n, stamp) in [u64::MAX, 1, 1 << 63, (1 << 40) - 1, 0].into_iter().enumerate() {
        assert_eq!(channel.send(&vec![frame(n as u8, 60); 6]), 6);
        channel.words().stamp().store(stamp, Ordering::Relaxed);
        assert_eq!(channel.receive(BURST_MAX), 6);
    }
    assert_conserved(&channels);
}
