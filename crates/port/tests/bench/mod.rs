//! A broker with two functions, `a` and `b`, whose ports `p` are linked, and frames that can be recognised.
#![allow(dead_code)]

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use port::{OpenOptions, PacketRef, Port, PortInfo, QueuePair, RxQueue};
use vport::broker::{Broker, Config, EndSpec, Event, LinkKind, LinkSpec, PortStatus, RING_BYTES_DEFAULT};

pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Bench {
    pub broker: Broker,
    pub events: Receiver<Event>,
    directory: PathBuf,
    /// Where functions connect: kept, while brokers come and go.
    sockets: [(&'static str, OwnedFd); 2],
    kind: LinkKind,
}

/// Runs each test, a function of the kind of link, for every kind.
#[macro_export]
macro_rules! over_links_of_every_kind {
    ($($test:ident)*) => {
        mod direct {
            $(#[test]
            fn $test() {
                super::$test(vport::broker::LinkKind::Direct);
            })*
        }

        mod zero_copy {
            $(#[test]
            fn $test() {
                super::$test(vport::broker::LinkKind::ZeroCopy { group: "group".into() });
            })*
        }
    };
}

impl Bench {
    pub fn new(test: &str) -> Self {
        Self::of(test, LinkKind::Direct)
    }

    pub fn of(test: &str, kind: LinkKind) -> Self {
        let word = if kind == LinkKind::Direct { "direct" } else { "zero-copy" };
        let directory = std::env::temp_dir().join(format!("kaista-port-{}-{test}-{word}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let sockets = ["a", "b"].map(|function| (function, Broker::bind(&directory.join(function)).unwrap()));
        let (broker, events) = start(&sockets);
        Self { broker, events, directory, sockets, kind }
    }

    /// Another broker takes this one's place, which is empty for a while.
    pub fn restart_broker(&mut self, away: Duration) {
        self.broker = Broker::start(Config::default(), |_| {}).unwrap();
        std::thread::sleep(away);
        (self.broker, self.events) = start(&self.sockets);
    }

    pub fn options(&self, function: &str) -> OpenOptions {
        OpenOptions { socket: self.directory.join(function), timeout: PATIENCE, ..OpenOptions::default() }
    }

    pub fn spec(&self, a: PortInfo, b: PortInfo) -> LinkSpec {
        let end = |function: &str, port| EndSpec::of(function, port);
        let (name, ends, kind) = ("link".into(), [end("a", a), end("b", b)], self.kind.clone());
        LinkSpec { name, ends, ring_bytes: RING_BYTES_DEFAULT, kind }
    }

    pub fn link(&self, a: PortInfo, b: PortInfo) {
        self.broker.add_link(self.spec(a, b)).unwrap();
    }

    /// Both ports, open, with their first generation in the queues' hands.
    pub fn joined(&self, a: PortInfo, b: PortInfo) -> (Port, Port) {
        self.link(a, b);
        let mut a = port::open("p", &self.options("a")).unwrap();
        let mut b = port::open("p", &self.options("b")).unwrap();
        self.up(&mut a, &mut b);
        (a, b)
    }

    pub fn up(&self, a: &mut Port, b: &mut Port) {
        self.until("the link is up", |ports| ports.iter().all(|port| port.up));
        for pair in a.queues.iter_mut().chain(&mut b.queues) {
            assert!(pair.rx.recv().is_empty());
        }
    }

    pub fn until(&self, what: &str, mut happens: impl FnMut(&[PortStatus]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !happens(&self.broker.ports().unwrap()) {
            assert!(Instant::now() < deadline, "in vain: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn start(sockets: &[(&str, OwnedFd)]) -> (Broker, Receiver<Event>) {
    let (sender, events) = channel();
    let broker = Broker::start(Config { hugepages: false }, move |event| drop(sender.send(event))).unwrap();
    for (function, socket) in sockets {
        broker.listen(function, socket.try_clone().unwrap(), 0..u32::MAX).unwrap();
    }
    (broker, events)
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A frame of `len` bytes (16 at least) that carries its number, and bytes that follow from it.
pub fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len as u64).map(|n| (number.wrapping_mul(31) + n) as u8).collect();
    frame[..8].copy_from_slice(&number.to_le_bytes());
    frame[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    frame
}

/// The number of a frame; panics if one of its bytes is not as sent.
pub fn sent_number(received: &[u8]) -> u64 {
    let number = u64::from_le_bytes(received[..8].try_into().unwrap());
    let len = u64::from_le_bytes(received[8..16].try_into().unwrap());
    assert_eq!(received.len() as u64, len, "torn length");
    assert!(received == frame(number, received.len()), "torn frame {number}");
    number
}

/// An IPv4 frame to 10.0.0.`host`.
pub fn ip_frame(host: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[30..34].copy_from_slice(&[10, 0, 0, host]);
    frame
}

/// Everything that waits.
pub fn receive(rx: &mut dyn RxQueue) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    loop {
        let burst = rx.recv();
        if burst.is_empty() {
            return frames;
        }
        for i in 0..burst.len() {
            let packet = burst.get(i);
            let mut frame = vec![0; packet.len()];
            packet.copy_to(&mut frame);
            frames.push(frame);
        }
    }
}

/// Sends `count` frames of mixed lengths and checks that each arrives once, whole and in order.
pub fn pump(from: &mut QueuePair, to: &mut QueuePair, count: u64) {
    let (mut sent, mut received) = (0, 0);
    while received < count {
        let burst: Vec<Vec<u8>> =
            (sent..count.min(sent + 32)).map(|n| frame(n, 16 + (n as usize * 97) % 300)).collect();
        let packets: Vec<PacketRef<'_>> = burst.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        sent += from.tx.send(&packets) as u64;
        for frame in receive(&mut *to.rx) {
            assert_eq!(sent_number(&frame), received);
            received += 1;
        }
    }
}
