//! A hostile peer: writes random and chosen values into every byte that it can reach, at any time, plays with doorbells,
//! lies about epochs, buckets and buffers, and plays the handshake wrong in every way. Goes on until it is killed.

mod exchange;

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType, connect, sendmsg,
    socket,
};
use vport::layout::VERSION;
use vport::ring::{Ring, frame_header};
use vport::steering::BUCKETS;
use vport::wire::{Progress, Request};

use crate::frames::{self, Stamp};
use crate::grip::{Grip, Half, Places};
use crate::journal::{Field, Journal};
use crate::memory::Words;
use crate::process::die_with_parent;
use crate::random::Random;
use crate::raw::Raw;
use crate::victim::{SHAPES, port, version};

/// Which process this is.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The function's socket.
    #[arg(long)]
    pub socket: PathBuf,
    /// Its journal, where it counts its attacks.
    #[arg(long)]
    pub journal: PathBuf,
    /// Where its random numbers begin.
    #[arg(long)]
    pub seed: u64,
}

/// Attacks until it is killed.
pub fn run(options: &Options) -> Result<()> {
    die_with_parent();
    let journal = Journal::open(&options.journal)?;
    let mut liar = Liar { socket: options.socket.clone(), random: Random::new(options.seed), idle: Vec::new() };
    loop {
        let spoilt = if liar.random.once_in(3) { liar.spoil_handshake() } else { liar.spoil_link(&journal) };
        // Some of what it does to its own segments keeps it from mapping them.
        if spoilt.is_ok() {
            journal.add(Field::Rounds, 1);
        }
    }
}

struct Liar {
    socket: PathBuf,
    random: Random,
    /// Connections on which nothing is said.
    idle: Vec<Raw>,
}

/// Kinds of attacks on a link.
const KINDS: usize = 20;
/// Connections of the idle kind: fewer than a function may have.
const IDLE_MAX: usize = 30;

impl Liar {
    fn connect(&self) -> Result<Raw> {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        Ok(Raw { socket })
    }

    // The handshake.

    /// One connection that breaks the handshake.
    fn spoil_handshake(&mut self) -> Result<()> {
        let raw = self.connect()?;
        let n = self.random.below(SHAPES.len());
        let name = port(n);
        match self.random.below(14) {
            0 => {
                self.idle.push(raw);
                if self.idle.len() > IDLE_MAX {
                    self.idle.drain(..IDLE_MAX / 2);
                }
                return Ok(());
            }
            1 => send(&raw, &self.junk(), &[]),
            2 => {
                let versions = [self.random.word() as u16, self.random.word() as u16];
                self.greet(&raw, versions, &name, 0);
            }
            3 => self.greet(&raw, [VERSION; 2], "no-such-port", 0),
            4 => {
                let resume = *self.random.pick(&[1, 2, 7, 1 << 32, u64::MAX]);
                self.greet(&raw, [version(n); 2], &name, resume);
            }
            5 => {
                let message = self.mutated();
                send(&raw, &message, &[]);
            }
            6 => self.send_descriptors(&raw, &name)?,
            7 => (0..300).for_each(|_| raw.say(&Request::Report(vec![("x".into(), 1)]))),
            8 => {
                self.greet(&raw, [version(n); 2], &name, 0);
                (0..1 + self.random.below(8)).for_each(|_| {
                    let message = self.mutated();
                    send(&raw, &message, &[]);
                });
            }
            9 => (0..1 + self.random.below(4)).for_each(|_| self.say_anything(&raw, 1)),
            10 | 11 => return self.spoil_succession(raw, n),
            _ => return self.spoil_segments(raw),
        }
        if self.random.once_in(2) {
            // Reads nothing of what it is told.
            std::thread::sleep(Duration::from_millis(self.random.below(5) as u64));
        }
        Ok(())
    }

    fn greet(&self, raw: &Raw, [oldest, newest]: [u16; 2], port: &str, resume: u64) {
        raw.say(&Request::Hello { oldest, newest, port: port.into(), resume });
    }

    fn junk(&mut self) -> Vec<u8> {
        let len = *self.random.pick(&[0, 1, 5, 6, 7, 40, 8_192, 8_193, 20_000]);
        let mut bytes: Vec<u8> = (0..len).map(|_| self.random.word() as u8).collect();
        if self.random.once_in(2) {
            bytes.iter_mut().zip(b"KPRT").for_each(|(byte, magic)| *byte = *magic);
        }
        bytes
    }

    /// A lawful message with some bytes changed, cut or lengthened.
    fn mutated(&mut self) -> Vec<u8> {
        let message = self.message(1);
        let mut bytes = message.encode();
        for _ in 0..1 + self.random.below(3) {
            match self.random.below(3) {
                0 => bytes.truncate(self.random.below(bytes.len() + 1)),
                1 => bytes.push(self.random.word() as u8),
                _ if !bytes.is_empty() => {
                    let at = self.random.below(bytes.len());
                    bytes[at] = self.random.word() as u8;
                }
                _ => {}
            }
        }
        bytes
    }

    fn message(&mut self, generation: u64) -> Request {
        let generation = *self.random.pick(&[generation, generation + 1, 0, u64::MAX]);
        let (oldest, newest, port) = (0, u16::MAX, port(self.random.below(SHAPES.len() + 1)));
        match self.random.below(10) {
            0 => Request::Hello { oldest, newest, port, resume: generation },
            1 => Request::Mapped { generation },
            2 => Request::Ready { generation },
            3 => {
                let (queue, violation) = (self.random.below(5) as u16, self.random.below(14) as u16);
                Request::Quarantine { generation, queue, violation }
            }
            4 => Request::Report(vec![("lie".into(), self.random.word()); self.random.below(70)]),
            5 => Request::Succeed { oldest, newest, port },
            6 => Request::TakeOver,
            7 => self.message_of_other_links(generation),
            8 => self.message_of_members(generation),
            _ => Request::Away,
        }
    }

    /// What only ends of zero-copy links say.
    fn message_of_other_links(&mut self, generation: u64) -> Request {
        if self.random.once_in(2) {
            Request::Released { generation }
        } else {
            Request::Holds(vec![generation; self.random.below(70)])
        }
    }

    /// What only members of pools say.
    fn message_of_members(&mut self, epoch: u64) -> Request {
        let bucket = self.random.word() as u8;
        match self.random.below(5) {
            0 => {
                let progress =
                    Progress { closed: epoch, known: epoch, come: u128::MAX, ports: self.random.word() as u16 };
                Request::Steer { oldest: 0, newest: u16::MAX, progress }
            }
            1 => Request::Prepared { epoch },
            2 => Request::Gave { epoch },
            3 => Request::Came { epoch, buckets: 1 << (bucket % 128) },
            _ => {
                let (to, more) = (self.random.word() as u16, self.random.once_in(2));
                Request::Bucket { bucket, to, more, state: vec![0; self.random.below(8_001)] }
            }
        }
    }

    /// Comes to succeed whoever has the port, which is this process by another connection or nobody, and goes on or not.
    fn spoil_succession(&mut self, raw: Raw, n: usize) -> Result<()> {
        let holder = Half::take(self.connect()?, n)?;
        let grip = holder.filter(|_| self.random.once_in(2)).map(Half::join).transpose()?.flatten();
        raw.say(&Request::Succeed { oldest: version(n), newest: version(n), port: port(n) });
        for _ in 0..self.random.below(6) {
            let message = if self.random.once_in(2) { Request::TakeOver } else { self.message(1) };
            raw.say(&message);
            if let Some(grip) = grip.as_ref().filter(|_| self.random.once_in(3)) {
                self.say_anything(&grip.raw, grip.generation);
            }
        }
        // One goes first, or the other.
        if self.random.once_in(2) {
            drop(grip);
            std::thread::sleep(Duration::from_millis(self.random.below(5) as u64));
        }
        Ok(())
    }

    fn say_anything(&mut self, raw: &Raw, generation: u64) {
        let message = self.message(generation);
        raw.say(&message);
    }

    /// Descriptors of many kinds, which nobody asked for.
    fn send_descriptors(&mut self, raw: &Raw, name: &str) -> Result<()> {
        let pipe = rustix::pipe::pipe()?;
        let memfd = rustix::fs::memfd_create("kaista-lie", rustix::fs::MemfdFlags::ALLOW_SEALING)?;
        let kinds = [pipe.0.as_fd(), pipe.1.as_fd(), memfd.as_fd(), raw.socket.as_fd()];
        let count = *self.random.pick(&[1, 2, 7, 100, 250]);
        let fds: Vec<BorrowedFd<'_>> = (0..count).map(|_| *self.random.pick(&kinds)).collect();
        let hello = Request::Hello { oldest: VERSION, newest: VERSION, port: name.into(), resume: 0 };
        let space = rustix::cmsg_space!(ScmRights(250));
        let mut space = vec![MaybeUninit::uninit(); space];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let _ = sendmsg(&raw.socket, &[IoSlice::new(&hello.encode())], &mut ancillary, SendFlags::NOSIGNAL);
        Ok(())
    }

    /// Spoils its own segments before they are sealed, or says that it has mapped what it has not.
    fn spoil_segments(&mut self, raw: Raw) -> Result<()> {
        let n = self.random.below(SHAPES.len());
        let Some(half) = Half::take(raw, n)? else { return Ok(()) };
        let (generation, _, fds) = &half.own;
        for fd in fds {
            spoil(fd, self.random.below(8));
        }
        (0..self.random.below(3)).for_each(|_| self.say_anything(&half.raw, *generation));
        match self.random.below(4) {
            // Silence; the next round's connection takes its place.
            0 => {}
            1 => half.raw.say(&Request::Ready { generation: *generation }),
            2 => {
                half.raw.say(&Request::Mapped { generation: *generation });
                half.raw.say(&Request::Mapped { generation: *generation });
            }
            _ => drop(half.join_after(|records| spoil(records, self.random.below(8)))?),
        }
        Ok(())
    }

    // The link.

    /// A lawful handshake, and then anything.
    fn spoil_link(&mut self, journal: &Journal) -> Result<()> {
        let n = self.random.below(SHAPES.len());
        let Some(half) = Half::take(self.connect()?, n)? else { return Ok(()) };
        let Some(mut grip) = half.join()? else { return Ok(()) };
        journal.add(Field::Received, 1);
        let mut heads = vec![vec![0; grip.peer.len()]; grip.own.len()];
        // A table that can be used, so that there is something to lie about.
        grip.table.word(0).store(1, Ordering::Release);
        // Some do nothing that can be noticed for a while.
        let gentle = self.random.below(30);
        for step in 0..gentle + self.random.below(20) {
            let kind = if step < gentle { self.random.below(6) } else { self.random.below(KINDS) };
            self.attack(kind, &mut grip, &mut heads);
            if self.random.once_in(4) {
                std::thread::sleep(Duration::from_micros(self.random.below(3_000) as u64));
            }
        }
        Ok(())
    }

    /// Those below 6 break no rule.
    fn attack(&mut self, kind: usize, grip: &mut Grip, heads: &mut [Vec<u64>]) {
        let queue = self.random.below(grip.own.len());
        let peer = self.random.below(grip.peer.len());
        if self.attack_exchange(kind, grip, [queue, peer], &mut heads[queue][peer]) {
            return;
        }
        let places = Places { peers: grip.peer.len() };
        let index = &grip.own[queue].index;
        let put = |offset: usize, value: u64| index.word(offset).store(value, Ordering::Release);
        match kind {
            0 | 1 => self.send_frames(grip, queue, peer, &mut heads[queue][peer]),
            2 => (0..self.random.below(500)).for_each(|_| put(Places::SLEEP, self.random.word())),
            3 => {
                self.ring_bells(grip);
                self.scribble_inbox(grip, peer);
            }
            4 => self.lie_about_epochs(grip, queue, false),
            5 => self.scribble_payload(grip, queue),
            6 => {
                let value = self.chosen(grip.reach());
                let at = [
                    places.head(peer),
                    places.closed(peer),
                    places.mark(peer),
                    places.tail(peer),
                    places.burst(),
                    places.epoch(),
                    Places::SLEEP,
                ];
                put(*self.random.pick(&at), value);
            }
            7 => put(self.random.below(index.len() / 8) * 8, self.random.word()),
            8 => index.byte(self.random.below(index.len())).store(self.random.word() as u8, Ordering::Release),
            9 | 10 => self.send_header(grip, queue, peer, &mut heads[queue][peer]),
            11 => {
                let tail = self.chosen(grip.reach());
                put(places.tail(peer), tail);
            }
            12 => self.spoil_table(grip),
            13 => self.lie_about_epochs(grip, queue, true),
            14 => self.storm(grip),
            15 => self.say_anything(&grip.raw, grip.generation),
            16 => {
                let which = if self.random.once_in(2) { &mut grip.own[queue] } else { &mut grip.peer[peer] };
                which.bell = None;
            }
            17 => self.run_over_the_end(grip, queue, peer, &mut heads[queue][peer]),
            _ => {
                // Lawful records, whose heads flicker.
                let to = heads[queue][peer];
                for _ in 0..200 {
                    let head = self.chosen(grip.reach());
                    put(places.head(peer), head);
                    put(places.head(peer), to);
                }
            }
        }
    }

    /// Values that are just within a rule, or just beyond.
    fn chosen(&mut self, ring: usize) -> u64 {
        let ring = ring as u64;
        let base =
            *self.random.pick(&[0, 8, 64, 72, 9_600, 9_608, ring / 8, ring / 2, ring, 2 * ring, 1 << 32, u64::MAX]);
        let by = *self.random.pick(&[0, 0, 1, 7, 8, 16]);
        if self.random.once_in(2) { base.wrapping_add(by) } else { base.wrapping_sub(by) }
    }

    /// Frames as an honest sender writes them, as long as there is room; of any bucket.
    fn send_frames(&mut self, grip: &Grip, queue: usize, peer: usize, head: &mut u64) {
        let places = Places { peers: grip.peer.len() };
        let tail = grip.peer[peer].index.load(Places { peers: grip.own.len() }.tail(queue));
        let Some(ring) = Ring::new(grip.ring as u64).filter(|ring| ring.check_tail(*head, tail).is_ok()) else {
            return;
        };
        for _ in 0..1 + self.random.below(40) {
            let stamp = Stamp { flow: self.random.word() as u16, incarnation: 1, number: self.random.word() };
            let len = *self.random.pick(&[64, 64, 65, 191, 192, 193, 1_500, 9_600]);
            let Some(place) = ring.place(*head, tail, len) else { break };
            let offset = |position| peer * grip.ring + ring.offset(position);
            let records = &grip.own[queue].records;
            if place.at != *head {
                records.word(offset(*head)).store(ring.skip_header(*head), Ordering::Relaxed);
            }
            records.write_record(offset(place.at), &frames::frame(stamp, len));
            *head = place.next;
        }
        grip.own[queue].index.word(places.head(peer)).store(*head, Ordering::Release);
    }

    /// A record whose header is anything, at the head, and a head behind it.
    fn send_header(&mut self, grip: &Grip, queue: usize, peer: usize, head: &mut u64) {
        const SKIP: u64 = 1 << 32;
        let ring = grip.ring as u64;
        let to_end = ring - *head % ring;
        let any = self.random.word();
        let header = *self.random.pick(&[
            frame_header(1),
            frame_header(9_600),
            0,
            9_601,
            u64::from(u32::MAX),
            u64::MAX,
            SKIP,
            SKIP | 8,
            SKIP | to_end,
            SKIP | (to_end + 8),
            to_end.min(9_600),
            (to_end + 8).min(9_600),
            2 << 32 | 60,
            any,
        ]);
        let records = &grip.own[queue].records;
        records.word(peer * grip.ring + (*head % ring) as usize).store(header, Ordering::Relaxed);
        *head = head.wrapping_add(*self.random.pick(&[8, 16, 72, 9_608, to_end, to_end + 8, ring, ring + 8]));
        grip.own[queue].index.word(Places { peers: grip.peer.len() }.head(peer)).store(*head, Ordering::Release);
    }

    /// Records of the longest frames, of which the last does not fit.
    fn run_over_the_end(&mut self, grip: &Grip, queue: usize, peer: usize, head: &mut u64) {
        const LONGEST: usize = 9_600;
        let records = &grip.own[queue].records;
        if *head == 0 {
            for at in (0..grip.ring).step_by(8 + LONGEST) {
                records.word(peer * grip.ring + at).store(frame_header(LONGEST), Ordering::Relaxed);
            }
            *head = grip.ring as u64;
            grip.own[queue].index.word(Places { peers: grip.peer.len() }.head(peer)).store(*head, Ordering::Release);
        }
    }

    /// Anything where the peer's frames come: only this end reads there, so that breaks no rule.
    fn scribble_inbox(&mut self, grip: &Grip, peer: usize) {
        let records = &grip.peer[peer].records;
        if !records.is_writable() {
            return;
        }
        for _ in 0..self.random.below(2_000) {
            let header = *self.random.pick(&[0, 1, 72, 9_600, 9_601, 1 << 32, u64::MAX]);
            let word = if self.random.once_in(2) { header } else { self.random.word() };
            records.word(self.random.below(grip.ring / 8) * 8).store(word, Ordering::Relaxed);
        }
    }

    /// Bytes of records that may be being read.
    fn scribble_payload(&mut self, grip: &Grip, queue: usize) {
        let records = &grip.own[queue].records;
        for _ in 0..200 {
            records.byte(self.random.below(records.len())).store(self.random.word() as u8, Ordering::Relaxed);
        }
    }

    fn ring_bells(&mut self, grip: &Grip) {
        for queue in &grip.peer {
            let Some(bell) = &queue.bell else { continue };
            let mut pipe = std::fs::File::from(bell.try_clone().expect("a descriptor"));
            for _ in 0..self.random.below(300) {
                let _ = pipe.write(&[7; 64][..1 + self.random.below(64)]);
            }
        }
        // Its own end is for reading only; it may look.
        for bell in grip.own.iter().filter_map(|queue| queue.bell.as_ref()) {
            let _ = rustix::io::read(bell, &mut [0; 64]);
        }
    }

    /// Epochs, marks and bursts. Unless `rude`, such that an honest sender could have written them.
    fn lie_about_epochs(&mut self, grip: &Grip, queue: usize, rude: bool) {
        let (places, index) = (Places { peers: grip.peer.len() }, &grip.own[queue].index);
        let epoch = grip.peer_table.load(0);
        if !rude {
            index.word(places.epoch()).store(epoch.saturating_sub(1), Ordering::Release);
            index.word(places.burst()).store(self.random.word() & !1, Ordering::Release);
            return;
        }
        for peer in 0..grip.peer.len() {
            let mark = self.chosen(grip.reach());
            index.word(places.mark(peer)).store(mark, Ordering::Release);
        }
        let epochs = [epoch, epoch + 1, epoch.wrapping_sub(1), 0, u64::MAX];
        index.word(places.epoch()).store(*self.random.pick(&epochs), Ordering::Release);
        index.word(places.burst()).store(self.random.word(), Ordering::Release);
        if self.random.once_in(20) {
            // A burst without end.
            index.word(places.burst()).store(1, Ordering::Release);
            std::thread::sleep(Duration::from_millis(1_200));
        }
    }

    fn spoil_table(&mut self, grip: &Grip) {
        let mine = grip.own.len();
        for n in 0..2 * BUCKETS / 8 {
            let lawful = u64::from_le_bytes(std::array::from_fn(|_| self.random.below(mine) as u8));
            let word = if self.random.once_in(8) { self.random.word() } else { lawful };
            grip.table.word(128 + 8 * n).store(word, Ordering::Relaxed);
        }
        let epoch = *self.random.pick(&[0, 1, 2, 3, u64::MAX, u64::MAX - 1]);
        grip.table.word(0).store(epoch, Ordering::Release);
        grip.table.word(self.random.below(grip.table.len() / 8) * 8).store(self.random.word(), Ordering::Release);
    }

    /// Random words at random places of all segments, as fast as it can, for some milliseconds.
    fn storm(&mut self, grip: &Grip) {
        let until = Instant::now() + Duration::from_millis(1 + self.random.below(8) as u64);
        let all = grip.own.iter().flat_map(|queue| [&queue.index, &queue.records]).chain([&grip.table]);
        let all: Vec<&Words> = all.collect();
        while Instant::now() < until {
            for _ in 0..100 {
                let words = *self.random.pick(&all);
                // Most of a segment of records is never looked at twice.
                let near = words.len().min(1 << (6 + self.random.below(16)));
                let value = if self.random.once_in(2) { self.random.word() } else { self.chosen(grip.reach()) };
                words.word(self.random.below(near / 8) * 8).store(value, Ordering::Relaxed);
            }
        }
    }
}

fn send(raw: &Raw, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    raw.send(bytes, fds);
}

/// What a writer could do to a segment before it is sealed.
fn spoil(segment: &OwnedFd, how: usize) {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match how {
        0 => drop(rustix::fs::ftruncate(segment, 0)),
        1 => drop(rustix::fs::ftruncate(segment, 1 << 30)),
        2 => drop(rustix::fs::fallocate(segment, punch, 0, 1 << 20)),
        3 => drop(rustix::fs::fcntl_add_seals(segment, SealFlags::SEAL)),
        4 => drop(rustix::fs::fcntl_add_seals(segment, SealFlags::WRITE)),
        5 => drop(rustix::io::write(segment, &[0xff; 4096])),
        _ => {}
    }
}
