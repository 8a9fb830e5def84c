//! A function between two zero-copy links whose peers write what the input says: into descriptors, returns, heads and tails,
//! between any two frames. It takes from one, and sends by the other what it took, or frames of its own.
//!
//! Whatever they write: it stays within rings and arena; what it takes lies in a buffer that was its to take, as a descriptor
//! says that was checked; it ends, looks at the head once a call, and stops for good at the first broken rule. It sends from
//! no buffer that is not its own, and none that is on its way.
//!
//! In every other input the peers write the holder table too, as no member of a trust group may: then the bounds still hold.
#![no_main]

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libfuzzer_sys::fuzz_target;
use vport::arena::{BUFFER_BYTES, Descriptor};
use vport::exposed::{Commons, Exposed, Words};
use vport::packet::{BURST_MAX, FRAME_MAX, HEAD_MAX, HEADROOM, LONG_BURST_MAX, PacketRef, Rest};
use vport::reader::Wanted;
use vport::ring::Violation;

/// Who sends to whom: the first peer to the function, the function to the second.
const SENDER: u16 = 10;
const TAKER: u16 = 11;
const GIVER: u16 = 20;
const RECEIVER: u16 = 21;
/// Frames that one call passes over or takes at most.
const FRAMES_MAX: u64 = 4 * BURST_MAX as u64;
/// Buffers that belong to nobody here.
const FOREIGN: u32 = 4;

type Set = [bool; 1024];

/// The peers, and the memory that they share with the function.
struct Peers<'a> {
    script: RefCell<&'a [u8]>,
    commons: Commons,
    first: Words,
    second: Words,
    /// Buffers of each channel.
    count: u64,
    /// They write the holder table as they like.
    scribble: bool,
    /// Where they are, as long as they keep the rules.
    sent: Cell<u64>,
    received: Cell<u64>,
    /// Buffers whose frames the function holds.
    lent: RefCell<Set>,
    /// Buffers on their way to the second peer.
    out: RefCell<Set>,
}

impl Peers<'_> {
    fn byte(&self) -> u8 {
        let mut script = self.script.borrow_mut();
        let Some((first, rest)) = script.split_first() else { return 0 };
        *script = rest;
        *first
    }

    fn is_over(&self) -> bool {
        self.script.borrow().is_empty()
    }

    fn wide(&self) -> u64 {
        (0..8).fold(0, |value, _| value << 8 | u64::from(self.byte()))
    }

    fn buffers(&self) -> u32 {
        2 * self.count as u32 + FOREIGN
    }

    /// Mostly one that exists.
    fn buffer(&self) -> u32 {
        match self.byte() {
            255 => self.wide() as u32,
            254 => self.buffers(),
            number => u32::from(number) % self.buffers(),
        }
    }

    /// A position near another, or any.
    fn position(&self, near: u64) -> u64 {
        match self.byte() {
            step @ 0..=199 => near.wrapping_add(u64::from(step % 40)).wrapping_sub(4),
            200..=239 => near.wrapping_add(self.count).wrapping_add(u64::from(self.byte() % 3)).wrapping_sub(1),
            _ => self.wide(),
        }
    }

    /// Mostly of a frame, or of one that just is none.
    fn descriptor(&self) -> u64 {
        let kind = self.byte();
        if kind == 255 {
            return self.wide();
        }
        let near = |edge: usize| (edge as u16).wrapping_add(u16::from(self.byte() % 8)).wrapping_sub(3);
        let offset = match kind % 4 {
            0 => near(HEADROOM),
            1 => near(BUFFER_BYTES - FRAME_MAX),
            2 => near(BUFFER_BYTES),
            _ => 256,
        };
        let len = match kind / 4 % 5 {
            0 => near(0),
            1 => near(FRAME_MAX),
            2 => near(BUFFER_BYTES.saturating_sub(usize::from(offset))),
            _ => 60 + u16::from(self.byte()),
        };
        Descriptor { buffer: self.buffer(), offset, len }.word()
    }

    /// A peer does something.
    fn act(&self) {
        let (first, second) = (&self.first, &self.second);
        match self.byte() % 16 {
            0..=3 => (0..1 + self.byte() % 64).for_each(|_| self.send_lawfully()),
            4..=6 => (0..1 + self.byte() % 64).for_each(|_| self.return_lawfully()),
            7 => first.head().store(self.position(self.sent.get()), Release),
            8 | 9 => first.descriptor(self.position(self.sent.get())).store(self.descriptor(), Relaxed),
            10 => second.tail().store(self.position(self.received.get()), Release),
            11 | 12 => second.set_returned(self.position(self.received.get()), self.buffer()),
            13 if self.scribble => {
                let ids = [0, SENDER, TAKER, GIVER, RECEIVER, 99];
                let buffer = self.buffer() % self.buffers();
                self.commons.set_holder(buffer, ids[usize::from(self.byte()) % ids.len()]);
            }
            _ => {}
        }
    }

    /// The first peer sends a frame, if it has a buffer.
    fn send_lawfully(&self) {
        let words = &self.first;
        let tail = words.tail().load(Acquire);
        // Frames were taken that it did not send.
        if tail.wrapping_sub(self.sent.get()) <= self.count {
            self.sent.set(tail);
        }
        let at = self.sent.get();
        if at.wrapping_sub(tail) >= self.count {
            return;
        }
        let buffer = words.returned(at);
        assert!(buffer < self.buffers(), "the function returns buffers");
        // Where it broke rules before, that need not be the sender's.
        if self.commons.holder(buffer) != SENDER || self.lent.borrow()[buffer as usize] {
            return;
        }
        let len = [60, 64, 200, 300, 1_500, FRAME_MAX as u16][usize::from(self.byte()) % 6];
        let offset = if len > 9_000 { 128 + u16::from(self.byte()) } else { 256 };
        self.commons.set_holder(buffer, TAKER);
        words.descriptor(at).store(Descriptor { buffer, offset, len }.word(), Relaxed);
        self.sent.set(at.wrapping_add(1));
        words.head().store(self.sent.get(), Release);
    }

    /// The second peer takes a frame, if there is one, and returns its buffer.
    fn return_lawfully(&self) {
        let (at, words) = (self.received.get(), &self.second);
        if at == words.head().load(Acquire) {
            return;
        }
        let buffer = words.descriptor(at).load(Relaxed) as u32;
        if !self.scribble {
            assert_eq!(self.commons.holder(buffer), RECEIVER, "what the function sent");
        }
        self.commons.set_holder(buffer, GIVER);
        self.out.borrow_mut()[buffer as usize] = false;
        words.set_returned(at, buffer);
        self.received.set(at.wrapping_add(1));
        words.tail().store(self.received.get(), Release);
    }

    /// What a descriptor says, and the rule that it breaks.
    fn judge(&self, word: u64, holder: u16) -> (u32, usize, usize, Option<Violation>) {
        let (buffer, offset, len) = (word as u32, (word >> 32) as usize & 0xffff, (word >> 48) as usize);
        let inside = (1..=FRAME_MAX).contains(&len) && offset >= HEADROOM && offset + len <= BUFFER_BYTES;
        let rule = if buffer >= self.buffers() || !inside {
            Some(Violation::BadDescriptor)
        } else if self.commons.holder(buffer) != holder {
            Some(Violation::ForeignBuffer)
        } else {
            None
        };
        (buffer, offset, len, rule)
    }
}

/// The function, and what it must know.
struct Function {
    first: Exposed,
    second: Exposed,
    /// Head of the first channel and tail of the second, as looked at last.
    head: u64,
    tail: u64,
    /// Where the next frame goes in the second.
    sends: u64,
    peek: usize,
    /// Where in the first channel the frames were that it holds.
    places: Vec<u64>,
    /// Sixteenths of the frames that it passes over.
    unwanted: u8,
}

impl Function {
    /// True if the burst stands in no slots.
    fn receive(&mut self, peers: &Peers<'_>) -> bool {
        if self.first.release(!peers.byte().is_multiple_of(8)).is_some() {
            *peers.lent.borrow_mut() = [false; 1024];
        }
        let choice = peers.byte();
        let lends = choice >= 128;
        let most = 1 + usize::from(choice) % if lends { LONG_BURST_MAX } else { BURST_MAX };
        let (start, broken) = self.first.taken();
        let mut expected = None;
        if broken.is_none() && self.head.wrapping_sub(start) < most as u64 {
            let published = peers.first.head().load(Acquire);
            if published.wrapping_sub(start) <= peers.count {
                self.head = published;
            } else if self.head == start {
                expected = Some(Violation::HeadOutOfRange);
            }
        }
        let (mut taken, mut unwanted, mut bytes, mut waits) = (0, 0, 0, false);
        let mut last = None;
        self.places.clear();
        if lends {
            let expected = if broken.is_some() { broken } else { expected };
            self.receive_all(peers, most, start, expected);
            return true;
        }
        let filled = self.first.fill(most, self.peek, |slot, at| {
            check_return(peers, last.take());
            assert!(at == start.wrapping_add(taken + unwanted) && at != self.head, "in order, up to the head");
            let word = peers.first.descriptor(at).load(Relaxed);
            let (buffer, offset, len, rule) = peers.judge(word, TAKER);
            assert_eq!(rule, None, "it takes what keeps the rules");
            assert_eq!(slot.head().as_ptr(), peers.commons.start(buffer).wrapping_add(offset));
            assert_eq!((slot.head().len(), slot.frame_len()), (len.min(self.peek), len));
            let wanted = match peers.byte() % 16 {
                0 => Wanted::NotYet,
                thought if thought <= self.unwanted => Wanted::No,
                _ => Wanted::Yes,
            };
            match wanted {
                Wanted::NotYet => waits = true,
                Wanted::No => unwanted += 1,
                Wanted::Yes => {
                    (taken, bytes) = (taken + 1, bytes + len as u64);
                    self.places.push(at);
                }
            }
            if wanted != Wanted::NotYet {
                peers.lent.borrow_mut()[buffer as usize] = true;
                last = Some((at, buffer));
            }
            peers.act();
            wanted
        });
        check_return(peers, last);
        assert_eq!((u64::from(filled.packets), u64::from(filled.unwanted), filled.bytes), (taken, unwanted, bytes));
        let (end, rule) = self.first.taken();
        assert!(filled.packets as usize <= most && taken + unwanted <= FRAMES_MAX.min(peers.count));
        assert_eq!(end, start.wrapping_add(taken + unwanted));
        if broken.is_some() {
            assert!(end == start && rule == broken, "nothing more after a broken rule");
        } else {
            let more = end != self.head && (filled.packets as usize) < most && !waits && taken + unwanted < FRAMES_MAX;
            if more {
                expected = peers.judge(peers.first.descriptor(end).load(Relaxed), TAKER).3;
                assert!(expected.is_some(), "it stops for a reason");
            }
            assert_eq!(rule, expected);
        }
        let burst = self.first.burst();
        for i in 0..burst.len() {
            let packet = burst.get(i);
            assert_eq!(packet.rest.as_ptr(), packet.head.as_ptr().wrapping_add(packet.head.len()));
        }
        false
    }

    /// Takes all that is there, into no slots: up to a descriptor that breaks a rule.
    fn receive_all(&mut self, peers: &Peers<'_>, most: usize, start: u64, broken: Option<Violation>) {
        let there = if broken.is_some() { 0 } else { self.head.wrapping_sub(start).min(most as u64) };
        let (mut expected, mut rule) = (Vec::<(u32, usize, usize)>::new(), broken);
        for at in (0..there).map(|n| start.wrapping_add(n)) {
            let (buffer, offset, len, broken) = peers.judge(peers.first.descriptor(at).load(Relaxed), TAKER);
            let twice = expected.iter().any(|(before, ..)| *before == buffer);
            rule = broken.or(twice.then_some(Violation::ForeignBuffer));
            if rule.is_some() {
                break;
            }
            expected.push((buffer, offset, len));
            self.places.push(at);
        }
        let filled = self.first.lend(most, self.peek);
        let bytes: usize = expected.iter().map(|(.., len)| len).sum();
        assert_eq!((filled.packets as usize, filled.unwanted, filled.bytes), (expected.len(), 0, bytes as u64));
        assert_eq!(self.first.taken(), (start.wrapping_add(expected.len() as u64), rule));
        let burst = self.first.burst();
        assert_eq!(burst.len(), expected.len());
        for (i, (buffer, offset, len)) in expected.into_iter().enumerate() {
            check_return(peers, Some((self.places[i], buffer)));
            peers.lent.borrow_mut()[buffer as usize] = true;
            let PacketRef { head, rest } = burst.get(i);
            assert_eq!(head.as_ptr(), peers.commons.start(buffer).wrapping_add(offset));
            assert_eq!((head.len(), head.len() + rest.len()), (len.min(self.peek), len));
            assert_eq!(rest.as_ptr(), head.as_ptr().wrapping_add(head.len()));
        }
    }

    /// Sends on what it received last and has not looked at, all at once, where that stands in no slots: as many as there are
    /// empty buffers that are the function's.
    fn forward_all(&mut self, peers: &Peers<'_>, lends: bool) {
        let from = usize::from(peers.byte()) % LONG_BURST_MAX;
        let Self { first, second, tail, sends, places, .. } = self;
        let burst = first.burst();
        let (published, mut rule) = second.given();
        let given = second.push_on(&burst, from);
        if !lends || burst.is_empty() || from > burst.len() {
            assert_eq!(given, None);
            return;
        }
        let words = (burst.len() - from) as u64;
        let room = |tail: u64| tail.wrapping_add(peers.count).wrapping_sub(*sends);
        if rule.is_none() && room(*tail) < words {
            let seen = peers.second.tail().load(Acquire);
            if published.wrapping_sub(seen) > peers.count || seen.wrapping_sub(*tail) > peers.count {
                rule = Some(Violation::TailOutOfRange);
            } else {
                *tail = seen;
            }
        }
        let most = if rule.is_some() { 0 } else { room(*tail).min(words) as usize };
        assert!(given.is_some_and(|given| given <= most));
        for (i, &place) in places.iter().enumerate().skip(from).take(given.unwrap_or(0)) {
            if !peers.scribble {
                assert_eq!(peers.commons.holder(peers.first.returned(place)), SENDER);
            }
            check_sent(peers, *sends, &copy(&burst.get(i)));
            *sends = sends.wrapping_add(1);
        }
        if given.is_some_and(|given| given < most) {
            let empty = peers.second.returned(*sends);
            let lie = empty >= peers.buffers() || peers.commons.holder(empty) != GIVER;
            assert!(lie, "it stops for a reason");
            rule = Some(Violation::DoubleReturn);
        }
        assert_eq!(second.given(), (published, rule), "published when it is told to");
    }

    /// Sends on what it received, changed or not, one frame after the other.
    fn forward(&mut self, peers: &Peers<'_>) {
        for i in 0..self.first.burst().len() {
            let deed = peers.byte();
            let Self { first, second, tail, sends, places, .. } = self;
            let mut burst = first.burst();
            let mut packet = burst.get_mut(i);
            match deed % 8 {
                0 => continue,
                1 => packet.prepend(usize::from(peers.byte())).into_iter().for_each(|room| room.fill(deed)),
                2 => _ = packet.strip(usize::from(peers.byte())),
                3 => packet.truncate(usize::from(peers.byte()) * 40),
                4 => packet.head_mut().fill(deed),
                _ => {}
            }
            for _ in 0..1 + deed / 8 % 2 {
                let mut whole = packet.as_ref();
                if deed % 8 == 5 {
                    // Bytes out of its middle are left out.
                    whole.head = &whole.head[..whole.head.len().min(20)];
                }
                let back = || peers.first.returned(places[i]);
                let before = back();
                send(second, peers, (tail, sends), &[whole]);
                if back() != before && !peers.scribble {
                    assert_eq!(peers.commons.holder(back()), SENDER, "what goes back is the sender's");
                }
                if deed & 16 != 0 {
                    packet.head_mut().fill(deed);
                }
                if deed & 32 != 0 {
                    second.publish();
                }
                if deed & 64 != 0 {
                    (0..peers.byte() % 4).for_each(|_| peers.act());
                }
            }
        }
        self.second.publish();
    }

    /// Sends frames of its own, in one burst.
    fn originate(&mut self, peers: &Peers<'_>) {
        let bytes = [peers.byte(); FRAME_MAX + 1];
        let packets: Vec<_> = (0..1 + peers.byte() % BURST_MAX as u8)
            .map(|n| {
                let len = [60, usize::from(n), 1_500, FRAME_MAX, FRAME_MAX + 1][usize::from(peers.byte()) % 5];
                let (head, rest) = bytes[..len].split_at(len.min(usize::from(n) * 8));
                PacketRef { head, rest: Rest::from_slice(&rest[..rest.len().min(FRAME_MAX)]) }
            })
            .collect();
        send(&mut self.second, peers, (&mut self.tail, &mut self.sends), &packets);
        self.second.publish();
    }
}

/// What was taken goes back.
fn check_return(peers: &Peers<'_>, taken: Option<(u64, u32)>) {
    let Some((at, buffer)) = taken else { return };
    assert_eq!(peers.first.returned(at), buffer);
    assert_eq!(peers.commons.holder(buffer), SENDER);
}

fn is_frame(packet: &PacketRef<'_>) -> bool {
    (1..=FRAME_MAX).contains(&packet.len())
}

fn copy(packet: &PacketRef<'_>) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.copy_to(&mut bytes);
    bytes
}

/// Sends a burst: frames are accepted as long as there is an empty buffer that is the function's. Of frames that it
/// received, one a burst.
fn send(second: &mut Exposed, peers: &Peers<'_>, (tail, sends): (&mut u64, &mut u64), packets: &[PacketRef<'_>]) {
    let (published, mut rule) = second.given();
    let (mut done, mut accepted, mut used) = (0, Vec::new(), Vec::new());
    for packet in packets {
        if is_frame(packet) {
            let at = sends.wrapping_add(accepted.len() as u64);
            if rule.is_none() && at.wrapping_sub(*tail) == peers.count {
                let seen = peers.second.tail().load(Acquire);
                if published.wrapping_sub(seen) > peers.count || seen.wrapping_sub(*tail) > peers.count {
                    rule = Some(Violation::TailOutOfRange);
                } else {
                    *tail = seen;
                }
            }
            if rule.is_some() || at.wrapping_sub(*tail) == peers.count {
                break;
            }
            let empty = peers.second.returned(at);
            if empty >= peers.buffers() || peers.commons.holder(empty) != GIVER || used.contains(&empty) {
                rule = Some(Violation::DoubleReturn);
                break;
            }
            used.push(empty);
            accepted.push(copy(packet));
        }
        done += 1;
    }
    assert_eq!(second.push(packets), done);
    assert_eq!(second.given(), (published, rule), "published when it is told to");
    for bytes in accepted {
        check_sent(peers, *sends, &bytes);
        *sends = sends.wrapping_add(1);
    }
}

/// A frame went to the second peer: as it was, in a buffer that was not on its way already.
fn check_sent(peers: &Peers<'_>, at: u64, bytes: &[u8]) {
    let (buffer, offset, len, rule) = peers.judge(peers.second.descriptor(at).load(Relaxed), RECEIVER);
    assert!(rule.is_none() && len == bytes.len());
    if peers.scribble {
        return;
    }
    // SAFETY: within the buffer, as was checked; nobody else runs.
    #[allow(unsafe_code, reason = "the peers share memory with the function, and read it as they do")]
    let there = unsafe { std::slice::from_raw_parts(peers.commons.start(buffer).add(offset), len) };
    assert!(there == bytes, "it arrives as it was sent");
    assert!(!std::mem::replace(&mut peers.out.borrow_mut()[buffer as usize], true), "sent twice");
}

fuzz_target!(|input: &[u8]| {
    let Some((&[peek, kind], script)) = input.split_first_chunk::<2>() else { return };
    let count = [8, 64, 256][usize::from(kind / 2) % 3];
    let commons = Commons::new(2 * count as u32 + FOREIGN);
    let first = Exposed::new(&commons, count, 0, (SENDER, TAKER));
    let second = Exposed::new(&commons, count, count as u32, (GIVER, RECEIVER));
    let peers = Peers {
        script: RefCell::new(script),
        first: first.words().clone(),
        second: second.words().clone(),
        commons,
        count,
        scribble: kind % 2 == 1,
        sent: Cell::new(0),
        received: Cell::new(0),
        lent: RefCell::new([false; 1024]),
        out: RefCell::new([false; 1024]),
    };
    let peek = 64 + usize::from(peek) % (HEAD_MAX - 63);
    let unwanted = if kind < 128 { 1 } else { 14 };
    let mut function = Function { first, second, head: 0, tail: 0, sends: 0, peek, places: Vec::new(), unwanted };
    while !peers.is_over() {
        match peers.byte() % 4 {
            0 => peers.act(),
            1 => function.originate(&peers),
            _ => {
                let lends = function.receive(&peers);
                if peers.byte().is_multiple_of(4) {
                    function.forward_all(&peers, lends);
                }
                function.forward(&peers);
            }
        }
    }
    assert!(!peers.commons.is_overrun() && !peers.first.is_overrun() && !peers.second.is_overrun());
});
