//! A client that speaks the handshake by hand, so that it can do what the library never does.
#![allow(dead_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketType, connect, recvmsg, sendmsg, socket,
};
use vport::broker::{Broker, Config, EndSpec, Event, LinkKind, LinkSpec, PortStatus, RING_BYTES_MIN};
use vport::client::{Attachment, attach};
use vport::info::PortInfo;
use vport::layout::{VERSION, VERSION_SHARED, VERSION_ZERO_COPY};
use vport::steering::Steering;
use vport::wire::{FDS_MAX, MESSAGE_MAX, Reply, Request};

pub const PATIENCE: Duration = Duration::from_secs(30);

/// A broker with functions `a` and `b`, whose ports `p` are linked.
pub struct Bench {
    pub broker: Broker,
    pub events: Receiver<Event>,
    pub directory: PathBuf,
    pub spec: LinkSpec,
}

fn start(directory: &Path, hugepages: bool, spec: &LinkSpec) -> (Broker, Receiver<Event>) {
    let (sender, events) = channel();
    let broker = Broker::start(Config { hugepages }, move |event| drop(sender.send(event))).unwrap();
    for (function, socket) in bind(directory, spec) {
        broker.listen(&function, socket, 0..u32::MAX).unwrap();
    }
    (broker, events)
}

/// Sockets of all functions.
fn bind(directory: &Path, spec: &LinkSpec) -> Vec<(String, OwnedFd)> {
    let functions = spec.ends.iter().flat_map(|end| &end.functions);
    functions.map(|function| (function.clone(), Broker::bind(&directory.join(function)).unwrap())).collect()
}

impl Bench {
    pub fn new(test: &str, hugepages: bool) -> Self {
        Self::between(test, hugepages, [PortInfo::named("p"), PortInfo::named("p")])
    }

    pub fn between(test: &str, hugepages: bool, ports: [PortInfo; 2]) -> Self {
        Self::linked(test, hugepages, ports, LinkKind::Direct)
    }

    /// A link of this kind.
    pub fn of(test: &str, kind: LinkKind) -> Self {
        Self::linked(test, false, [PortInfo::named("p"), PortInfo::named("p")], kind)
    }

    fn linked(test: &str, hugepages: bool, ports: [PortInfo; 2], kind: LinkKind) -> Self {
        let [a, b] = ports;
        let end = |function: &str, port| EndSpec::of(function, port);
        Self::with(test, hugepages, [end("a", a), end("b", b)], kind)
    }

    /// The other end is a pool: `b` and `c`.
    pub fn with_pool(test: &str) -> Self {
        let port = PortInfo { steering: Steering::UeAddress, ..PortInfo::named("p") };
        let pool = EndSpec { functions: ["b", "c"].map(str::to_owned).to_vec(), port };
        Self::with(test, false, [EndSpec::of("a", PortInfo::named("p")), pool], LinkKind::Direct)
    }

    fn with(test: &str, hugepages: bool, ends: [EndSpec; 2], kind: LinkKind) -> Self {
        let directory = std::env::temp_dir().join(format!("kaista-vport-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let spec = LinkSpec { name: "link".into(), ends, ring_bytes: RING_BYTES_MIN, kind };
        let (broker, events) = start(&directory, hugepages, &spec);
        broker.add_link(spec.clone()).unwrap();
        Self { broker, events, directory, spec }
    }

    /// Another broker takes this one's place, and adopts the link.
    pub fn replace_broker(&mut self) {
        self.replace_broker_later(|| ());
    }

    /// The same, but meanwhile there is none.
    pub fn replace_broker_later(&mut self, meanwhile: impl FnOnce()) {
        let segments = self.deposit();
        self.restart_broker(meanwhile);
        self.broker.adopt(self.spec.clone(), segments).unwrap();
    }

    /// The same, but what is said to it meanwhile it hears last.
    pub fn replace_broker_after(&mut self, meanwhile: impl FnOnce(&Self)) {
        let segments = self.deposit();
        self.broker = Broker::start(Config { hugepages: false }, |_| {}).unwrap();
        let sockets = bind(&self.directory, &self.spec);
        meanwhile(self);
        self.broker.adopt(self.spec.clone(), segments).unwrap();
        for (function, socket) in sockets {
            self.broker.listen(&function, socket, 0..u32::MAX).unwrap();
        }
    }

    fn deposit(&self) -> Vec<(String, OwnedFd)> {
        let deposit = |event| if let Event::Deposit { segments, .. } = event { Some(segments) } else { None };
        self.event("the segments are deposited", deposit)
    }

    /// Another broker takes this one's place, and knows nothing of the link's segments.
    pub fn forget_segments(&mut self) {
        self.restart_broker(|| ());
        self.broker.add_link(self.spec.clone()).unwrap();
    }

    fn restart_broker(&mut self, meanwhile: impl FnOnce()) {
        // The old one first: only one can serve a socket's path.
        self.broker = Broker::start(Config { hugepages: false }, |_| {}).unwrap();
        meanwhile();
        (self.broker, self.events) = start(&self.directory, false, &self.spec);
    }

    pub fn connect(&self, function: &str) -> Raw {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(self.directory.join(function)).unwrap()).unwrap();
        Raw { socket }
    }

    /// An honest function on `b`.
    pub fn honest(&self) -> Attachment {
        attach(&self.directory.join("b"), "p", PATIENCE, 192).unwrap()
    }

    pub fn until(&self, what: &str, mut happens: impl FnMut(&[PortStatus]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !happens(&self.broker.ports().unwrap()) {
            assert!(Instant::now() < deadline, "in vain: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The first event that `wanted` makes something of.
    pub fn event<T>(&self, what: &str, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).unwrap_or_else(|_| panic!("in vain: {what}"));
            if let Some(found) = wanted(event) {
                return found;
            }
        }
    }

    /// Both ends by hand, up to and with the peer's segments.
    pub fn handshake(&self) -> [Held; 2] {
        let [a, b] = ["a", "b"].map(|function| self.connect(function));
        let [a_own, b_own] = greet_and_take(&a, &b);
        let (a_map, b_map) = (a.map(&a_own), b.map(&b_own));
        let generation = a_own.generation;
        [&a, &b].into_iter().for_each(|raw| raw.say(&Request::Mapped { generation }));
        let [a_peer, b_peer] = [&a, &b].map(Raw::take_peer);
        [&a, &b].into_iter().for_each(|raw| raw.say(&Request::Ready { generation }));
        [
            Held { raw: a, generation, own: a_own.fds, peer: a_peer, memory: a_map },
            Held { raw: b, generation, own: b_own.fds, peer: b_peer, memory: b_map },
        ]
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// An end that holds a generation. Descriptors: index, records, doorbell, table.
pub struct Held {
    pub raw: Raw,
    pub generation: u64,
    pub own: Vec<OwnedFd>,
    pub peer: Vec<OwnedFd>,
    pub memory: Memory,
}

pub struct Own {
    pub generation: u64,
    pub records_bytes: usize,
    pub fds: Vec<OwnedFd>,
    /// On a zero-copy link, what came before.
    pub arena: Option<Lent>,
}

/// The arena of a generation, as an end is told of it.
pub struct Lent {
    pub generation: u64,
    pub buffers: u32,
    pub present: u32,
    /// Ids of this end and of its peer.
    pub own: u16,
    pub peer: u16,
    pub fds: Vec<OwnedFd>,
}

impl Lent {
    /// The holder table.
    pub fn holders(&self) -> Holders {
        let count = self.buffers as usize;
        Holders { start: map(self.fds[1].as_fd(), (count * 2).next_multiple_of(4096)), count }
    }
}

/// A holder table, mapped for writing.
pub struct Holders {
    start: *mut u8,
    count: usize,
}

impl Holders {
    /// Who holds a buffer.
    pub fn of(&self, buffer: u32) -> &AtomicU16 {
        assert!((buffer as usize) < self.count);
        // SAFETY: within the mapping, which is never undone.
        unsafe { AtomicU16::from_ptr(self.start.add(buffer as usize * 2).cast()) }
    }

    /// Buffers of a holder.
    pub fn held_by(&self, id: u16) -> Vec<u32> {
        (0..self.count as u32).filter(|buffer| self.of(*buffer).load(Ordering::Relaxed) == id).collect()
    }
}

/// Own segments (of several queues the first one's), mapped for writing.
pub struct Memory {
    /// Of the index segment.
    inode: u64,
    index: *mut u8,
    records: *mut u8,
    table: *mut u8,
}

// SAFETY: only used through atomics, and never unmapped.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    /// Whether the other end, which lives in this process, has mapped the index segment too.
    pub fn is_seen(&self) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_segment = |line: &&str| line.split_whitespace().nth(4) == Some(&self.inode.to_string());
        maps.lines().filter(of_segment).count() > 1
    }

    /// The word at `offset` of the index segment.
    pub fn index(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: tests use offsets within the first page; the mapping is never undone.
        unsafe { AtomicU64::from_ptr(self.index.add(offset).cast()) }
    }

    /// Lets the other end send by the first table, in which every bucket is the first queue's.
    pub fn open_table(&self) {
        self.table(0).store(1, Ordering::Release);
    }

    /// The word at `offset` of the table segment.
    pub fn table(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: tests use offsets within the page; the mapping is never undone.
        unsafe { AtomicU64::from_ptr(self.table.add(offset).cast()) }
    }

    /// Tries to free the first pages through the writable mappings.
    pub fn remove_first_pages(&self) -> bool {
        [self.index, self.records, self.table].into_iter().any(|start| {
            // SAFETY: the first page of a mapping that is never undone, used only through atomics.
            unsafe { rustix::mm::madvise(start.cast(), 4096, rustix::mm::Advice::LinuxRemove) }.is_ok()
        })
    }

    /// The word at `offset` of the record segment.
    pub fn records(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: tests use offsets within the ring; the mapping is never undone.
        unsafe { AtomicU64::from_ptr(self.records.add(offset).cast()) }
    }
}

/// Records that a peer writes, mapped for writing by their reader.
pub struct Inbox(*mut u8);

// SAFETY: only used through atomics, and never unmapped.
unsafe impl Sync for Inbox {}
// SAFETY: as above.
unsafe impl Send for Inbox {}

impl Inbox {
    pub fn map(records: BorrowedFd<'_>, len: usize) -> Self {
        Self(map(records, len))
    }

    /// The word at `offset`.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: tests use offsets within the ring; the mapping is never undone.
        unsafe { AtomicU64::from_ptr(self.0.add(offset).cast()) }
    }

    /// Tries to free the first page.
    pub fn remove_first_page(&self) -> bool {
        // SAFETY: the first page of a mapping that is never undone, used only through atomics.
        unsafe { rustix::mm::madvise(self.0.cast(), 4096, rustix::mm::Advice::LinuxRemove) }.is_ok()
    }
}

pub struct Raw {
    pub socket: OwnedFd,
}

impl Raw {
    pub fn say(&self, request: &Request) {
        self.send(&request.encode(), &[]);
    }

    pub fn hello(&self) {
        self.say(&Request::Hello { oldest: VERSION, newest: VERSION, port: "p".into(), resume: 0 });
    }

    /// Greets as one that can write the records that it reads.
    pub fn hello_shared(&self) {
        self.say(&Request::Hello { oldest: VERSION, newest: VERSION_SHARED, port: "p".into(), resume: 0 });
    }

    /// Greets on a zero-copy link, with nothing from before.
    pub fn hello_zero_copy(&self) {
        let version = VERSION_ZERO_COPY;
        self.say(&Request::Hello { oldest: version, newest: version, port: "p".into(), resume: 0 });
        self.say(&Request::Holds(Vec::new()));
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        // The broker may have closed its end already.
        let _ = self.try_send(bytes, fds);
    }

    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
    }

    /// The next message, or None once the broker has closed the connection.
    pub fn receive(&self) -> Option<(Reply, Vec<OwnedFd>)> {
        let mut bytes = vec![0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let len = got.map_or(0, |message| message.bytes);
        let fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds = fds.flatten().collect();
        (len > 0).then(|| (Reply::decode(&bytes[..len]).unwrap(), fds))
    }

    /// Whether a message waits.
    pub fn has_mail(&self) -> bool {
        self.has_mail_within(Duration::ZERO)
    }

    /// Whether one comes in time.
    pub fn has_mail_within(&self, time: Duration) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
        let time = rustix::event::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        rustix::event::poll(&mut fds, Some(&time)).unwrap() > 0
    }

    /// The words of a refusal, after which the connection is closed.
    pub fn refusal(&self) -> String {
        loop {
            match self.receive() {
                Some((Reply::Refused { reason, .. }, _)) => {
                    assert!(self.receive().is_none());
                    return reason;
                }
                Some(_) => {}
                None => panic!("closed without a word"),
            }
        }
    }

    /// Goes through the handshake of a generation, until the other end, `honest`, has taken it over and may send.
    pub fn join(&self, bench: &Bench, honest: &mut Attachment) -> Memory {
        let memory = self.take_over(bench, honest);
        memory.open_table();
        memory
    }

    /// The same, but does not let the other end send.
    pub fn take_over(&self, bench: &Bench, honest: &mut Attachment) -> Memory {
        let memory = self.agree(bench);
        assert!(honest.queues[0].0.recv().is_empty());
        memory
    }

    /// Goes through the handshake of a generation.
    pub fn agree(&self, bench: &Bench) -> Memory {
        self.agree_on(bench, &self.take_own())
    }

    /// The same, where the own segments have come.
    pub fn agree_on(&self, bench: &Bench, own: &Own) -> Memory {
        let memory = self.map(own);
        self.say(&Request::Mapped { generation: own.generation });
        self.take_peer();
        self.say(&Request::Ready { generation: own.generation });
        bench.until("the link is up", |ports| ports[0].up && ports[0].generation == own.generation);
        memory
    }

    /// As [`Raw::join`], of one that has greeted by [`Raw::hello_shared`]; with its peer's records, and the word that is its peer's
    /// head.
    pub fn join_shared(&self, bench: &Bench, honest: &mut Attachment) -> (Memory, Inbox, &AtomicU64) {
        const HEAD: usize = 3 * 128;
        let own = self.take_own();
        let memory = self.map(&own);
        self.say(&Request::Mapped { generation: own.generation });
        let inbox = Inbox::map(self.take_records()[0].as_fd(), own.records_bytes);
        self.say(&Request::Mapped { generation: own.generation });
        let index = self.take_peer().swap_remove(0);
        // SAFETY: a new mapping at an address that the kernel chooses, which is never undone.
        let head = unsafe {
            let index = mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &index, 0).unwrap();
            AtomicU64::from_ptr(index.cast::<u8>().add(HEAD).cast())
        };
        self.say(&Request::Ready { generation: own.generation });
        bench.until("the link is up", |ports| ports[0].up && ports[0].generation == own.generation);
        assert!(honest.queues[0].0.recv().is_empty());
        memory.open_table();
        (memory, inbox, head)
    }

    pub fn take_own(&self) -> Own {
        self.take_own_within(PATIENCE).unwrap()
    }

    /// None if they do not come in time.
    pub fn take_own_within(&self, time: Duration) -> Option<Own> {
        let (mut arena, deadline) = (None, Instant::now() + time);
        while self.has_mail_within(deadline.saturating_duration_since(Instant::now())) {
            match self.receive()? {
                (Reply::Arena { generation, buffers, present, own, peer }, fds) => {
                    arena = Some(Lent { generation, buffers, present, own, peer, fds });
                }
                (Reply::Own { generation, records_bytes }, fds) => {
                    return Some(Own { generation, records_bytes: records_bytes as usize, fds, arena });
                }
                _ => {}
            }
        }
        None
    }

    /// The peer's records, before they are closed.
    pub fn take_records(&self) -> Vec<OwnedFd> {
        loop {
            if let (Reply::Records { .. }, fds) = self.receive().unwrap() {
                return fds;
            }
        }
    }

    pub fn take_peer(&self) -> Vec<OwnedFd> {
        loop {
            if let (Reply::Peer { .. }, fds) = self.receive().unwrap() {
                return fds;
            }
        }
    }

    pub fn map(&self, own: &Own) -> Memory {
        self.map_queue(own, 0)
    }

    /// Of several queues this one's.
    pub fn map_queue(&self, own: &Own, queue: usize) -> Memory {
        let [index, records] = [0, 1].map(|kind| own.fds[3 * queue + kind].as_fd());
        Memory {
            inode: rustix::fs::fstat(index).unwrap().st_ino,
            index: map(index, 4096),
            records: map(records, own.records_bytes),
            table: map(own.fds.last().unwrap().as_fd(), 4096),
        }
    }
}

/// Attaches both ends; their own segments come when both are there.
pub fn greet_and_take(a: &Raw, b: &Raw) -> [Own; 2] {
    a.hello();
    b.hello();
    [a.take_own(), b.take_own()]
}

fn map(segment: BorrowedFd<'_>, len: usize) -> *mut u8 {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, segment, 0) }.unwrap().cast()
}
