//! Bytes and descriptors from the clients of a direct or a zero-copy link, or of one with a pool, into a broker: it never
//! panics, keeps no descriptor it was sent, and afterwards still joins two honest ends. Nobody has a buffer then that is not
//! theirs, and no change of a pool is on its way.
#![no_main]

use std::cell::RefCell;
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use vport::broker::{Config, Core, EndSpec, LinkKind, LinkSpec, RING_BYTES_MIN};
use vport::info::PortInfo;
use vport::layout::{VERSION, VERSION_NEWEST, VERSION_POOL, VERSION_SHARED, VERSION_ZERO_COPY};
use vport::steering::Steering;
use vport::wire::{Progress, Reply, Request};

/// What a client does.
#[derive(Arbitrary, Debug)]
enum Move {
    Connect,
    Hello {
        oldest: u8,
        newest: u8,
        port: Port,
        resume: Generation,
    },
    Mapped(Generation),
    Ready(Generation),
    Quarantine {
        generation: Generation,
        queue: u8,
        violation: u8,
    },
    Report(Vec<(Name, u64)>),
    Holds(Vec<Generation>),
    Released(Generation),
    Away,
    /// Instead of a port, a member's place in its pool.
    Steer {
        oldest: u8,
        newest: u8,
        closed: u8,
        known: u8,
        come: u128,
    },
    Prepared(u8),
    Bucket {
        bucket: u8,
        to: u8,
        more: bool,
        state: Vec<u8>,
    },
    Gave(u8),
    Came {
        epoch: u8,
        buckets: u128,
    },
    /// Not the client, but whoever decides: a table.
    SetOwners(u64),
    Bytes(Vec<u8>),
    /// A lawful message with one byte changed, or cut.
    Mangled {
        what: u8,
        at: u8,
        byte: u8,
        cut: u8,
    },
    Descriptors(u8),
    Read,
    Close,
}

#[derive(Arbitrary, Debug)]
enum Port {
    P,
    Other(Name),
}

#[derive(Arbitrary, Debug)]
struct Name([u8; 5]);

#[derive(Arbitrary, Debug)]
enum Generation {
    Current,
    Small(u8),
    Any(u64),
}

impl Name {
    fn text(&self) -> String {
        self.0.iter().map(|byte| char::from(byte % 127)).collect()
    }
}

struct Client {
    socket: Option<OwnedFd>,
    /// One that loses its place in a pool has to be followed by another.
    process: i32,
    /// The version that its link is spoken with.
    version: u16,
    generation: u64,
}

impl Client {
    fn new(version: u16, process: i32) -> Self {
        Self { socket: None, process, version, generation: 0 }
    }

    fn connect(&mut self, core: &mut Core, function: &str) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        core.add_client(function, theirs, self.process).unwrap();
        self.socket = Some(ours);
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let Some(socket) = &self.socket else { return };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Reads one message; descriptors that come with it are dropped by the kernel.
    fn read(&mut self) -> Option<Reply> {
        let mut bytes = [0; 8192];
        let (len, _) = recv(self.socket.as_ref()?, bytes.as_mut_slice(), RecvFlags::DONTWAIT).ok()?;
        let reply = Reply::decode(&bytes[..len]).ok()?;
        if let Reply::Own { generation, .. } = reply {
            self.generation = generation;
        }
        Some(reply)
    }

    /// One of the steps by which a generation comes to be.
    fn go_along(&mut self, step: usize) {
        let request = match step {
            0 => return self.send(&hello(self.version, 0), &[]),
            1 if self.version != VERSION_ZERO_COPY => return,
            1 => Request::Holds(Vec::new()),
            2 => {
                while self.read().is_some() {}
                Request::Mapped { generation: self.generation }
            }
            // Of the peer's records.
            3 if self.version == VERSION_SHARED => Request::Mapped { generation: self.generation },
            _ => Request::Ready { generation: self.generation },
        };
        self.send(&request.encode(), &[]);
    }

    fn generation(&self, which: &Generation) -> u64 {
        match which {
            Generation::Current => self.generation,
            Generation::Small(number) => u64::from(*number),
            Generation::Any(number) => *number,
        }
    }

    fn make(&mut self, core: &mut Core, function: &str, what: Move) {
        let request = match what {
            Move::Connect => return self.connect(core, function),
            Move::Close => return self.socket = None,
            Move::Read => return drop(self.read()),
            Move::Bytes(bytes) => return self.send(&bytes, &[]),
            Move::Descriptors(count) => {
                let null = File::open("/dev/null").unwrap();
                return self.send(&hello(self.version, 1), &vec![null.as_fd(); usize::from(count % 60)]);
            }
            Move::Mangled { what, at, byte, cut } => {
                let mut bytes = match what % 9 {
                    0 => hello(self.version, 0),
                    1 => Request::Mapped { generation: self.generation }.encode(),
                    2 => Request::Holds(vec![1, self.generation]).encode(),
                    3 => Request::Released { generation: self.generation }.encode(),
                    4 => Request::Away.encode(),
                    5 => {
                        let progress = Progress::default();
                        Request::Steer { oldest: VERSION_POOL, newest: VERSION_POOL, progress }.encode()
                    }
                    6 => Request::Came { epoch: 2, buckets: u128::MAX }.encode(),
                    7 => Request::Bucket { bucket: at % 128, to: 1, more: false, state: vec![byte; 20] }.encode(),
                    _ => Request::Report(vec![("x".into(), 1)]).encode(),
                };
                let len = bytes.len();
                bytes[usize::from(at) % len] = byte;
                bytes.truncate(len - usize::from(cut) % 3 * usize::from(cut) % len);
                return self.send(&bytes, &[]);
            }
            Move::Hello { oldest, newest, port, resume } => Request::Hello {
                oldest: u16::from(oldest) % (VERSION_NEWEST + 2),
                newest: u16::from(newest) % (VERSION_NEWEST + 2),
                port: match port {
                    Port::P => "p".into(),
                    Port::Other(name) => name.text(),
                },
                resume: self.generation(&resume),
            },
            Move::Mapped(generation) => Request::Mapped { generation: self.generation(&generation) },
            Move::Ready(generation) => Request::Ready { generation: self.generation(&generation) },
            Move::Quarantine { generation, queue, violation } => Request::Quarantine {
                generation: self.generation(&generation),
                queue: u16::from(queue % 3),
                violation: u16::from(violation % 18),
            },
            Move::Report(counters) => {
                Request::Report(counters.iter().map(|(name, value)| (name.text(), *value)).collect())
            }
            Move::Holds(generations) => {
                Request::Holds(generations.iter().map(|generation| self.generation(generation)).collect())
            }
            Move::Released(generation) => Request::Released { generation: self.generation(&generation) },
            Move::Away => Request::Away,
            Move::Steer { oldest, newest, closed, known, come } => Request::Steer {
                oldest: u16::from(oldest) % (VERSION_POOL + 1),
                newest: u16::from(newest) % 4 + VERSION_POOL,
                progress: Progress { closed: u64::from(closed % 8), known: u64::from(known % 8), come, ports: 1 },
            },
            Move::Prepared(epoch) => Request::Prepared { epoch: u64::from(epoch % 8) },
            Move::Bucket { bucket, to, more, state } => {
                Request::Bucket { bucket: bucket % 130, to: u16::from(to % 18), more, state }
            }
            Move::Gave(epoch) => Request::Gave { epoch: u64::from(epoch % 8) },
            Move::Came { epoch, buckets } => Request::Came { epoch: u64::from(epoch % 8), buckets },
            Move::SetOwners(seed) => {
                let owner = |bucket: usize| (seed.rotate_left(bucket as u32) & 1) as u8;
                let _ = core.set_owners("b", &core::array::from_fn(owner));
                return;
            }
        };
        self.send(&request.encode(), &[]);
    }
}

fn hello(version: u16, resume: u64) -> Vec<u8> {
    Request::Hello { oldest: version, newest: version, port: "p".into(), resume }.encode()
}

/// With a pool at the second end, or a function.
fn broker(kind: LinkKind, pool: bool) -> Core {
    let mut core = Core::new(Config { hugepages: false }, |_| {}).unwrap();
    let functions = if pool { vec!["b".to_owned(), "c".to_owned()] } else { vec!["b".to_owned()] };
    let port = PortInfo { steering: Steering::UeAddress, ..PortInfo::named("p") };
    let ends = [EndSpec::of("a", PortInfo::named("p")), EndSpec { functions, port }];
    core.add_link(LinkSpec { name: "link".into(), ends, ring_bytes: RING_BYTES_MIN, kind }).unwrap();
    core
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:kaista")).count()
}

/// Buffers of the arena that somebody has.
fn buffers_out(core: &Core) -> u32 {
    core.arenas().iter().map(|arena| arena.buffers - arena.free).sum()
}

/// Two honest ends, which speak all versions, get as far as the peer's segments.
fn joins(core: &mut Core, version: u16) {
    /// Of both directions.
    const BUFFERS: u32 = 2 * RING_BYTES_MIN / 1024;
    let mut ends = [Client::new(version, 2), Client::new(version, 2)];
    for (client, function) in ends.iter_mut().zip(["a", "b"]) {
        client.connect(core, function);
        let (oldest, newest) = (VERSION, VERSION_NEWEST);
        client.send(&Request::Hello { oldest, newest, port: "p".into(), resume: 0 }.encode(), &[]);
    }
    let (mut joined, mut ids) = ([false; 2], [None; 2]);
    for _ in 0..100 {
        core.turn(Duration::from_millis(5)).unwrap();
        for (client, (joined, ids)) in ends.iter_mut().zip(joined.iter_mut().zip(&mut ids)) {
            while let Some(reply) = client.read() {
                match reply {
                    Reply::Welcome { version, .. } => {
                        assert_eq!(version, client.version);
                        if version == VERSION_ZERO_COPY {
                            client.send(&Request::Holds(Vec::new()).encode(), &[]);
                        }
                    }
                    Reply::Arena { generation, own, peer, .. } => *ids = Some((generation, own, peer)),
                    Reply::Own { generation, .. } => {
                        assert_eq!(ids.map(|(of, ..)| of), (client.version == VERSION_ZERO_COPY).then_some(generation));
                        client.send(&Request::Mapped { generation }.encode(), &[]);
                    }
                    Reply::Records { generation, .. } => client.send(&Request::Mapped { generation }.encode(), &[]),
                    Reply::Peer { .. } => *joined = true,
                    _ => {}
                }
            }
        }
        if joined == [true; 2] {
            if let [Some((_, own, peer)), Some(other)] = ids {
                assert!(own != peer && own * peer != 0 && (other.1, other.2) == (peer, own));
                assert_eq!(buffers_out(core), BUFFERS, "what others had is back");
            }
            drop(ends);
            core.turn(Duration::ZERO).unwrap();
            assert_eq!(buffers_out(core), 0, "what these had is back");
            return;
        }
    }
    panic!("honest ends were not joined");
}

thread_local! {
    /// Runs so far; what is slow is checked now and then.
    static RUNS: RefCell<u32> = const { RefCell::new(0) };
}

fuzz_target!(|input: &[u8]| {
    let before = descriptors();
    let Some((kind, input)) = input.split_first() else { return };
    let lawful_steps = usize::from(kind / 4) % 6;
    let (kind, version) = match kind % 4 {
        0 => (LinkKind::Direct, VERSION),
        1 => (LinkKind::Direct, VERSION_POOL),
        2 => (LinkKind::SharedRecords, VERSION_SHARED),
        _ => (LinkKind::ZeroCopy { group: "group".into() }, VERSION_ZERO_COPY),
    };
    let pool = version == VERSION_POOL;
    let mut core = broker(kind, pool);
    let mut clients = ["a", "b", if pool { "c" } else { "a" }].map(|name| (name, Client::new(version, 1)));
    for (function, client) in &mut clients {
        client.connect(&mut core, function);
    }
    for step in 0..lawful_steps {
        for (_, client) in &mut clients[..2] {
            client.go_along(step);
        }
        core.turn(Duration::ZERO).unwrap();
    }
    let mut input = Unstructured::new(input);
    while let Ok((who, what)) = <(u8, Move)>::arbitrary(&mut input) {
        let (function, client) = &mut clients[usize::from(who) % 3];
        client.make(&mut core, function, what);
        core.turn(Duration::ZERO).unwrap();
        if input.is_empty() {
            break;
        }
    }
    drop(clients);
    core.turn(Duration::ZERO).unwrap();
    let often = RUNS.with_borrow_mut(|runs| {
        *runs += 1;
        *runs % 8 == 0
    });
    assert!(core.pools().iter().all(|pool| !pool.is_changing), "nobody is there to wait for");
    if often {
        joins(&mut core, version);
    }
    drop(core);
    assert_eq!(descriptors(), before, "descriptors are left");
    if often {
        assert_eq!(mappings(), 0, "mappings are left");
    }
});
