//! A channel between two threads of one process: one line after the other says where frames lie, and the receiver takes each as
//! it would have received it by itself.
//!
//! Frames that the sender holds ([`crate::held`]) stay where they are, and it gives them back to whoever sent them when the receiver
//! has dealt with them. All others it copies to a ring of the channel's own first.
//!
//! The sender can *mark* the place where an epoch of owners begins. There the receiver stops until it is let on.

mod entries;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use self::entries::{ENTRIES_A_LINE, Entry, entry, write, write_all, write_share};
use crate::counters::RxCounters;
use crate::epoch::reaches;
use crate::held::{Held, Origin, Place};
use crate::layout::RECORDS_PAD;
use crate::mapping::Mapping;
use crate::packet::{BLOCK, BURST_MAX, Burst, HEAD_MAX, PacketRef, Slot, copy_bytes};
use crate::prefetch::{self, CacheLevel};
use crate::registers::{self, Registers};
use crate::ring::Ring;
use crate::sync::{self, AtomicBool, AtomicU64};
use crate::writer::is_sendable;

/// So many bytes of the ring for copies there is an entry: more would be used only by frames that are smaller.
const BYTES_AN_ENTRY: u64 = 256;
/// Copies begin on lines.
const LINE: u64 = 64;
/// So many bytes ahead of a copy lines are asked for to be written.
const COPY_AHEAD: u64 = 512;
/// So many frames ahead lines are asked for to be read. Those of frames that come from memory, or from a far core, are many at a time: more
/// than the first level of a core's caches waits for.
const AHEAD: u64 = 32;

/// The receiver says what it has dealt with when nothing waits, or when that are so many entries, or frames of so many bytes: each time the
/// line is the sender's again soon, and stores behind it wait until it has come back.
const SAID_EVERY: u64 = 4 * BURST_MAX as u64;
const SAID_EVERY_BYTES: u64 = 32 << 10;
/// So many entries ahead their lines are asked for to be read.
const READ_AHEAD: u64 = 64;

/// The sending end.
#[derive(Debug)]
pub struct RelayTx {
    shared: Arc<Shared>,
    /// The entry that comes next.
    head: u64,
    /// Entries before this one are seen by the receiver.
    published: u64,
    /// Entries before this one are free again, as far as is known.
    tail: u64,
    /// Where the next copy goes, and up to where copies are needed.
    copied: u64,
    needed: u64,
    /// Entries of copies that are not known to be free again, and where each of these ends.
    copies: VecDeque<(u64, u64)>,
    /// What holds frames that are not copies, the newest last.
    kept: Vec<Kept>,
}

/// What keeps frames mapped.
#[derive(Debug)]
struct Kept {
    mapping: Arc<Mapping>,
    /// Entries for them are before this one.
    until: u64,
}

/// The receiving end.
pub struct RelayRx {
    shared: Arc<Shared>,
    slots: Box<[Slot]>,
    /// The entry that comes next.
    tail: u64,
    /// Entries before this one are there.
    head: u64,
    /// Entries before this one are dealt with as far as the sender can know, and the bytes counted then.
    said: u64,
    said_bytes: u64,
    peek: usize,
    /// How many bytes the frame had that was taken last.
    usual: usize,
    counters: RxCounters,
    registers: Registers,
}

/// What both ends have.
#[derive(Debug)]
struct Shared {
    entries: Box<[Entry]>,
    copies: Mapping,
    ring: Ring,
    head: Head,
    epochs: Epochs,
    taken: Taken,
    done: Done,
    /// What holds frames that are not copies, where the sender is gone.
    kept: Mutex<Vec<Kept>>,
}

/// The sender's: entries before this one are there.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Head(AtomicU64);

/// What the receiver looks at for each burst, on a line that is hardly ever written.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Epochs {
    /// The sender's: which has begun last.
    begun: AtomicU64,
    /// The sender's: the head before anything of it.
    mark: AtomicU64,
    /// The receiver's: whose packets it may take.
    open: AtomicU64,
    /// The sender's: nothing more comes.
    is_closed: AtomicBool,
}

/// The receiver's: entries before this one are taken. The sender never looks at its line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Taken(AtomicU64);

/// The receiver's, on a line that the sender rarely looks at: entries before this one are dealt with.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Done(AtomicU64);

/// Where an epoch begins: there the receiver stops until it is let on.
#[derive(Clone, Debug)]
pub struct Ford(Arc<Shared>);

/// What has been sent, and how far the receiver is with it.
#[derive(Clone, Debug)]
pub struct Outflow(Arc<Shared>);

/// A channel with so many bytes for copies, a power of two of at least 64 KiB; up to `peek` bytes of each frame are copied on
/// receive.
///
/// # Errors
/// It cannot have so many bytes, or there is no memory.
pub fn relay(ring_bytes: u64, peek: usize) -> io::Result<(RelayTx, RelayRx)> {
    const LEAST: u64 = 64 << 10;
    let ring = Ring::new(ring_bytes).filter(|ring| ring.size() >= LEAST).ok_or(io::ErrorKind::InvalidInput)?;
    relay_over(ring, peek)
}

fn relay_over(ring: Ring, peek: usize) -> io::Result<(RelayTx, RelayRx)> {
    let shared = Arc::new(Shared {
        entries: (0..ring.size() / BYTES_AN_ENTRY).map(|_| Entry::default()).collect(),
        copies: Mapping::anonymous(ring.size() as usize + RECORDS_PAD)?,
        ring,
        head: Head::default(),
        epochs: Epochs::default(),
        taken: Taken::default(),
        done: Done::default(),
        kept: Mutex::default(),
    });
    let copies = VecDeque::with_capacity(shared.entries.len());
    let tx =
        RelayTx { shared: shared.clone(), head: 0, published: 0, tail: 0, copied: 0, needed: 0, copies, kept: vec![] };
    let rx = RelayRx {
        shared,
        slots: (0..BURST_MAX).map(|_| Slot::new()).collect(),
        tail: 0,
        head: 0,
        said: 0,
        said_bytes: 0,
        peek: peek.clamp(64, HEAD_MAX),
        usual: 0,
        counters: RxCounters::default(),
        registers: Registers::here(),
    };
    Ok((tx, rx))
}

/// So many of the lowest bits that are set, or all, and the others.
#[inline(always)]
fn first(set: u64, count: usize) -> (u64, u64) {
    if set.count_ones() as usize <= count {
        return (set, 0);
    }
    let left = (0..count).fold(set, |left, _| left & left.wrapping_sub(1));
    (set & !left, left)
}

impl Shared {
    #[inline]
    fn is_done(&self, position: u64) -> bool {
        reaches(self.done.0.load(Ordering::Acquire), position)
    }
}

impl RelayTx {
    /// Sends packets in order and lets the receiver see them. How many there was room for; those of a length that no frame has
    /// count as sent.
    pub fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        let sent = packets.iter().take_while(|packet| self.push(packet)).count();
        self.publish();
        sent
    }

    /// Sends all packets of a burst that is held, from where they lie, in order, and lets the receiver see them. How many there was
    /// room for.
    #[inline]
    pub fn send_held(&mut self, held: &Held<'_>) -> usize {
        let count = held.len();
        if self.room() < count {
            self.look_for_room();
        }
        let sent = count.min(self.room());
        if sent > 0 {
            self.head = write_all(&self.shared.entries, self.head, &held.places()[..sent]);
            self.keep(held.mapping());
            self.publish();
        }
        sent
    }

    /// Sends those packets of a burst that is held whose bits are set in `share`, from where they lie, in order, and lets the receiver
    /// see them. The bits of those that there was no room for. Bits for which the burst has no packet say nothing.
    #[inline]
    pub fn send_share(&mut self, held: &Held<'_>, share: u64) -> u64 {
        let share = share & held.all();
        if self.room() < share.count_ones() as usize {
            self.look_for_room();
        }
        let (sent, left) = first(share, self.room());
        if sent != 0 {
            self.head = write_share(&self.shared.entries, self.head, held.all_places(), sent, held.registers());
            self.keep(held.mapping());
            self.publish();
        }
        left
    }

    /// Puts a copy of a packet behind those that were sent; the receiver sees it after [`RelayTx::publish`]. False while there is no
    /// room. One of a length that no frame has is discarded.
    #[inline]
    pub fn push(&mut self, packet: &PacketRef<'_>) -> bool {
        if !is_sendable(packet.len()) {
            return true;
        }
        let Some((at, next)) = self.place(packet.len()) else { return false };
        let ring = self.shared.ring;
        let copies = self.shared.copies.area_mut(0, ring.size() as usize + RECORDS_PAD);
        let copy = copies.wrapping_add(ring.offset(at));
        (0..next.wrapping_sub(at)).step_by(LINE as usize).for_each(|line| {
            let soon = next.wrapping_add(COPY_AHEAD).wrapping_add(line);
            prefetch::to_write(copies.wrapping_add(ring.offset(soon)));
        });
        // SAFETY: these bytes are of the ring, and the receiver has dealt with what was there.
        unsafe {
            sync::writes(copy, packet.len());
            copy_bytes(packet.head.as_ptr(), copy, packet.head.len());
            if !packet.rest.is_empty() {
                copy_bytes(packet.rest.as_ptr(), copy.add(packet.head.len()), packet.rest.len());
            }
        }
        let has_room = self.put(Place::new(copy, packet.len()));
        if has_room {
            self.copied = next;
            self.copies.push_back((self.head, next));
        }
        has_room
    }

    /// Where a copy of so many bytes goes, and the next one. None while there is no room.
    #[inline(always)]
    fn place(&mut self, len: usize) -> Option<(u64, u64)> {
        let (ring, bytes) = (self.shared.ring, (len as u64).next_multiple_of(LINE));
        let skip = if bytes > ring.to_end(self.copied) { ring.to_end(self.copied) } else { 0 };
        let at = self.copied.wrapping_add(skip);
        let next = at.wrapping_add(bytes);
        if next.wrapping_sub(self.needed) > ring.size() {
            self.look_for_room();
        }
        (next.wrapping_sub(self.needed) <= ring.size()).then_some((at, next))
    }

    /// Writes the entry of a copy. False while there is no room.
    #[inline(always)]
    fn put(&mut self, place: Place) -> bool {
        if self.is_full() {
            self.look_for_room();
            if self.is_full() {
                return false;
            }
        }
        write(&self.shared.entries, self.head, place);
        self.head = self.head.wrapping_add(1);
        true
    }

    /// Looks what the receiver has dealt with.
    #[cold]
    fn look_for_room(&mut self) {
        self.tail = self.shared.done.0.load(Ordering::Acquire);
        while let Some((_, end)) = self.copies.pop_front_if(|(until, _)| reaches(self.tail, *until)) {
            self.needed = end;
        }
    }

    /// Whether every entry is the receiver's.
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many entries are free, as far as is known.
    #[inline(always)]
    fn room(&self) -> usize {
        self.shared.entries.len() - self.head.wrapping_sub(self.tail) as usize
    }

    /// The frame that was put last, which nobody sees yet, lies there, and so do those that come next and are no copies.
    #[inline(always)]
    fn keep(&mut self, mapping: &Arc<Mapping>) {
        if !self.kept.last().is_some_and(|kept| Arc::ptr_eq(&kept.mapping, mapping)) {
            self.keep_anew(mapping);
        }
    }

    #[cold]
    fn keep_anew(&mut self, mapping: &Arc<Mapping>) {
        if let Some(last) = self.kept.last_mut() {
            last.until = self.head;
        }
        let done = self.shared.done.0.load(Ordering::Acquire);
        self.kept.retain(|kept| !reaches(done, kept.until));
        self.kept.push(Kept { mapping: mapping.clone(), until: self.head });
    }

    /// Lets go of what holds frames that are no copies, where the receiver has dealt with all of them.
    pub fn let_go(&mut self) {
        if self.is_done(self.head) {
            self.kept.clear();
        }
    }

    /// Lets the receiver see what was put.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.head {
            self.published = self.head;
            self.shared.head.0.store(self.head, Ordering::Release);
        }
    }

    /// The position behind everything that was put.
    #[inline]
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Whether the receiver has dealt with everything before a position. What it sends on is sent by then.
    #[inline]
    pub fn is_done(&self, position: u64) -> bool {
        self.shared.is_done(position)
    }

    /// What tells how far the receiver is.
    pub fn outflow(&self) -> Outflow {
        Outflow(self.shared.clone())
    }

    /// What is put from here on is of this epoch, which is larger than those before. The receiver sees what was put until now.
    pub fn mark(&mut self, epoch: u64) {
        self.publish();
        self.shared.epochs.mark.store(self.published, Ordering::Relaxed);
        self.shared.epochs.begun.store(epoch, Ordering::Release);
    }
}

impl Drop for RelayTx {
    fn drop(&mut self) {
        // The receiver may still take frames from there.
        *self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner) = std::mem::take(&mut self.kept);
        self.shared.epochs.is_closed.store(true, Ordering::Release);
    }
}

impl RelayRx {
    /// Takes up to [`BURST_MAX`] packets, and gives back what the last call returned.
    #[inline]
    pub fn recv(&mut self) -> Burst<'_> {
        self.counters.polls += 1;
        let (dealt_with, bytes) = (self.tail, self.counters.bytes);
        let packets = self.fill();
        if packets == 0 || self.is_to_say(dealt_with, bytes) {
            self.say(dealt_with, bytes);
        }
        self.counters.packets += packets as u64;
        self.counters.empty_polls += u64::from(packets == 0);
        self.shared.taken.0.store(self.tail, Ordering::Release);
        Burst::new(&mut self.slots[..packets])
    }

    /// Whether the sender is to know by now that entries before this one are dealt with.
    #[inline(always)]
    fn is_to_say(&self, dealt_with: u64, bytes: u64) -> bool {
        // A short ring is not to stand still for it.
        let every = SAID_EVERY.min(self.shared.entries.len() as u64 / 4);
        dealt_with.wrapping_sub(self.said) >= every || bytes - self.said_bytes >= SAID_EVERY_BYTES
    }

    /// Gives entries before this one back.
    #[inline(always)]
    fn say(&mut self, dealt_with: u64, bytes: u64) {
        if self.said != dealt_with {
            (self.said, self.said_bytes) = (dealt_with, bytes);
            self.shared.done.0.store(dealt_with, Ordering::Release);
        }
    }

    #[inline(always)]
    fn fill(&mut self) -> usize {
        if self.head.wrapping_sub(self.tail) < BURST_MAX as u64 {
            self.head = self.shared.head.0.load(Ordering::Acquire);
        }
        if self.head == self.tail {
            return 0;
        }
        registers::dispatch!(self.registers, self.take())
    }

    /// Up to which entry packets may be taken. The epoch is loaded after the head that shows an entry: none of a later epoch is taken for
    /// one of this.
    #[inline(always)]
    fn limit(&self) -> u64 {
        let Epochs { begun, mark, open, .. } = &self.shared.epochs;
        if begun.load(Ordering::Acquire) == open.load(Ordering::Relaxed) {
            return self.head;
        }
        let mark = mark.load(Ordering::Relaxed);
        match (reaches(self.tail, mark), reaches(mark, self.head)) {
            (true, _) => self.tail,
            (false, true) => self.head,
            (false, false) => mark,
        }
    }

    #[inline(always)]
    fn take(&mut self) -> usize {
        let (head, limit, peek) = (self.head, self.limit(), self.peek);
        // In registers: what is written to slots could be these, for all that the compiler knows.
        let entries = &self.shared.entries[..];
        // So that it is not asked for each.
        if entries.is_empty() {
            return 0;
        }
        let packets = self.slots.len().min(limit.wrapping_sub(self.tail) as usize);
        let (slots, mut usual, mut tail) = (&mut self.slots[..packets], self.usual, self.tail);
        let (mut taken, mut bytes) = (0, 0);
        loop {
            let alike = take_alike(entries, (tail, head), usual, peek, &mut slots[taken..]);
            tail = tail.wrapping_add(alike as u64);
            (taken, bytes) = (taken + alike, bytes + alike * usual);
            let Some(slot) = slots.get_mut(taken) else { break };
            let place = Place(entry(entries, tail).load(Ordering::Relaxed));
            usual = place.len();
            let short = usual.min(peek);
            look_ahead(entries, (tail, head), short);
            // SAFETY: the sender found a frame of so many bytes there.
            unsafe { take_from(place.origin(), (short, usual - short), slot) };
            tail = tail.wrapping_add(1);
            (taken, bytes) = (taken + 1, bytes + usual);
        }
        (self.tail, self.usual) = (tail, usual);
        self.counters.bytes += bytes as u64;
        packets
    }

    /// Gives everything back, and says whether there is more. The burst of the last call must have been dealt with.
    pub fn look(&mut self) -> bool {
        self.say(self.tail, self.counters.bytes);
        self.has_more()
    }

    fn has_more(&self) -> bool {
        self.shared.head.0.load(Ordering::Acquire) != self.tail
    }

    /// Whether nothing more comes than waits.
    pub fn is_closed(&self) -> bool {
        self.shared.epochs.is_closed.load(Ordering::Acquire)
    }

    /// The same, and nothing waits.
    pub fn is_over(&self) -> bool {
        // In this order: what was sent before the end is seen.
        self.is_closed() && !self.has_more()
    }

    /// What this end has counted.
    pub fn counters(&self) -> RxCounters {
        self.counters
    }

    /// What tells how far this end is.
    pub fn ford(&self) -> Ford {
        Ford(self.shared.clone())
    }
}

/// Copies a frame's first bytes, so many and at most [`HEAD_MAX`], into a slot, which names so many behind them.
///
/// # Safety
/// The sender must have found a frame of as many bytes there, in memory that goes on for 64 bytes behind it. It is kept mapped until
/// this end has dealt with it, which is when it receives again.
#[inline(always)]
unsafe fn take_from(origin: Origin, (short, rest): (usize, usize), slot: &mut Slot) {
    // SAFETY: by contract.
    unsafe {
        sync::reads(origin, short);
        slot.copy_head(origin, short, rest);
    }
}

/// Takes frames from entry number `tail` of those before `head` on, as long as they have this length and there are slots. How many.
#[inline(always)]
fn take_alike(entries: &[Entry], at: (u64, u64), usual: usize, peek: usize, slots: &mut [Slot]) -> usize {
    // How much is copied is known for all of them: a loop for each number of blocks.
    match usual.min(peek).div_ceil(BLOCK) {
        0 => 0,
        1 => take_blocks::<1>(entries, at, usual, peek, slots),
        2 => take_blocks::<2>(entries, at, usual, peek, slots),
        3 => take_blocks::<3>(entries, at, usual, peek, slots),
        _ => take_blocks::<4>(entries, at, usual, peek, slots),
    }
}

/// The same where so many blocks are copied.
#[inline(always)]
fn take_blocks<const BLOCKS: usize>(
    entries: &[Entry],
    (mut tail, head): (u64, u64),
    usual: usize,
    peek: usize,
    slots: &mut [Slot],
) -> usize {
    // As many bytes, for all that the compiler is to know.
    let short = usual.min(peek).clamp((BLOCKS - 1) * BLOCK + 1, BLOCKS * BLOCK);
    let mut taken = 0;
    while taken < slots.len() {
        let place = Place(entry(entries, tail).load(Ordering::Relaxed));
        if place.len() != usual {
            break;
        }
        look_ahead(entries, (tail, head), short);
        // SAFETY: the sender found a frame of so many bytes there.
        unsafe { take_from(place.origin(), (short, usual - short), &mut slots[taken]) };
        (tail, taken) = (tail.wrapping_add(1), taken + 1);
    }
    taken
}

/// At entry number `tail` of those before `head`, asks for entries and frames that come later, as if so many bytes of these will be
/// copied, too.
#[inline(always)]
fn look_ahead(entries: &[Entry], (tail, head): (u64, u64), short: usize) {
    let waiting = head.wrapping_sub(tail);
    if waiting > AHEAD {
        expect(Place(entry(entries, tail.wrapping_add(AHEAD)).load(Ordering::Relaxed)).origin(), short);
    }
    if tail.is_multiple_of(ENTRIES_A_LINE) {
        // What is not there yet is the sender's line.
        let ahead = if waiting > READ_AHEAD { READ_AHEAD } else { 0 };
        prefetch::to_read(core::ptr::from_ref(entry(entries, tail.wrapping_add(ahead))).cast());
    }
}

/// Asks for the lines of a frame's head.
#[inline(always)]
fn expect(origin: Origin, len: usize) {
    prefetch::into(CacheLevel::Second, origin);
    // Where the last line is: most frames have two or three.
    prefetch::into(CacheLevel::Second, origin.wrapping_add(len).wrapping_sub(1));
    if len > 64 {
        prefetch::into(CacheLevel::Second, origin.wrapping_add(64));
    }
}

impl Outflow {
    /// The position behind everything that the receiver can see.
    pub fn position(&self) -> u64 {
        self.0.head.0.load(Ordering::Acquire)
    }

    /// Whether the receiver has dealt with everything before a position.
    pub fn is_done(&self, position: u64) -> bool {
        self.0.is_done(position)
    }
}

impl Ford {
    /// Whether the sender has begun the epoch, and the receiver has taken all that was sent before. Between two bursts of the
    /// receiver's, it has dealt with that, too.
    pub fn is_crossed(&self, epoch: u64) -> bool {
        let Shared { epochs, taken, .. } = &*self.0;
        epochs.begun.load(Ordering::Acquire) >= epoch
            && reaches(taken.0.load(Ordering::Acquire), epochs.mark.load(Ordering::Relaxed))
    }

    /// Lets the receiver on, into the epoch.
    pub fn open(&self, epoch: u64) {
        self.0.epochs.open.store(epoch, Ordering::Release);
    }
}

/// A channel with one entry, and room for one frame of [`ONE`](self::ONE) bytes: for models.
#[cfg(test)]
pub(crate) fn narrow() -> (RelayTx, RelayRx) {
    relay_over(Ring::new(ONE as u64).unwrap(), 64).unwrap()
}

#[cfg(test)]
pub(crate) const ONE: usize = BYTES_AN_ENTRY as usize;

#[cfg(all(test, loom))]
impl RelayTx {
    /// Lets the model checker have the words that both ends use, and the bytes of copies.
    pub(crate) fn share(&self, head: Option<sync::Weak>, done: Option<sync::Weak>) {
        let Shared { entries, copies, head: Head(sent), done: Done(dealt), .. } = &*self.shared;
        sync::checked::share(sent, head);
        sync::checked::share(dealt, done);
        entries.iter().for_each(|word| sync::checked::share(word, None));
        sync::checked::share_bytes(copies.area(0, ONE), ONE);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
