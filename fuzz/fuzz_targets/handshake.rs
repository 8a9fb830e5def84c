//! Bytes and descriptors from two clients into a broker: it never panics, keeps no descriptor it was sent, and afterwards
//! still joins two honest ends.
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
use vport::layout::VERSION;
use vport::wire::{Reply, Request};

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
    generation: u64,
}

impl Client {
    fn connect(&mut self, core: &mut Core, function: &str) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        core.add_client(function, theirs, 1).unwrap();
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
                return self.send(&hello(1), &vec![null.as_fd(); usize::from(count % 60)]);
            }
            Move::Mangled { what, at, byte, cut } => {
                let mut bytes = match what % 3 {
                    0 => hello(0),
                    1 => Request::Mapped { generation: self.generation }.encode(),
                    _ => Request::Report(vec![("x".into(), 1)]).encode(),
                };
                let len = bytes.len();
                bytes[usize::from(at) % len] = byte;
                bytes.truncate(len - usize::from(cut) % 3 * usize::from(cut) % len);
                return self.send(&bytes, &[]);
            }
            Move::Hello { oldest, newest, port, resume } => Request::Hello {
                oldest: u16::from(oldest) % (VERSION + 2),
                newest: u16::from(newest) % (VERSION + 2),
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
                violation: u16::from(violation % 12),
            },
            Move::Report(counters) => {
                Request::Report(counters.iter().map(|(name, value)| (name.text(), *value)).collect())
            }
        };
        self.send(&request.encode(), &[]);
    }
}

fn hello(resume: u64) -> Vec<u8> {
    Request::Hello { oldest: VERSION, newest: VERSION, port: "p".into(), resume }.encode()
}

fn broker() -> Core {
    let mut core = Core::new(Config { hugepages: false }, |_| {}).unwrap();
    let end = |function: &str| EndSpec { function: function.into(), port: PortInfo::named("p") };
    let ends = [end("a"), end("b")];
    core.add_link(LinkSpec { name: "link".into(), ends, ring_bytes: RING_BYTES_MIN, kind: LinkKind::Direct }).unwrap();
    core
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Two honest ends get as far as the peer's segments.
fn joins(core: &mut Core) {
    let mut ends = [Client { socket: None, generation: 0 }, Client { socket: None, generation: 0 }];
    for (client, function) in ends.iter_mut().zip(["a", "b"]) {
        client.connect(core, function);
        client.send(&hello(0), &[]);
    }
    let mut joined = [false; 2];
    for _ in 0..100 {
        core.turn(Duration::from_millis(5)).unwrap();
        for (client, joined) in ends.iter_mut().zip(&mut joined) {
            while let Some(reply) = client.read() {
                match reply {
                    Reply::Own { generation, .. } => client.send(&Request::Mapped { generation }.encode(), &[]),
                    Reply::Peer { .. } => *joined = true,
                    _ => {}
                }
            }
        }
        if joined == [true; 2] {
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
    let mut core = broker();
    let mut clients =
        [("a", 0), ("b", 0), ("a", 0)].map(|(name, generation)| (name, Client { socket: None, generation }));
    for (function, client) in &mut clients {
        client.connect(&mut core, function);
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
    if often {
        joins(&mut core);
    }
    drop(core);
    assert_eq!(descriptors(), before, "descriptors are left");
});
