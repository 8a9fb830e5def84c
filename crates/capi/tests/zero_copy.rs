//! What the interface promises over zero-copy links, whose frames lie in buffers that change hands: called from here as C does.
#![expect(unsafe_code, reason = "functions for C")]

use std::ffi::CString;
use std::path::Path;
use std::time::{Duration, Instant};

use kaista_port::open::{OpenOptions, Port, kaista_port_close, kaista_port_open, kaista_port_rx, kaista_port_tx};
use kaista_port::packet::Packet;
use kaista_port::rx::{Rx, kaista_rx_burst};
use kaista_port::tx::{Tx, kaista_tx_burst};
use port::{PacketRef, PortInfo, QueuePair};
use vport::broker::{Broker, Config, EndSpec, LinkKind, LinkSpec, RING_BYTES_MIN};

const PATIENCE: Duration = Duration::from_secs(30);
const PORTS: [&str; 2] = ["p", "q"];

/// A broker with two functions, whose ports of the same names are joined by zero-copy links of one trust group.
fn start(folder: &Path) -> Broker {
    let broker = Broker::start(Config { hugepages: false }, |_| {}).unwrap();
    for function in ["program", "peer"] {
        broker.listen(function, Broker::bind(&folder.join(function)).unwrap(), 0..u32::MAX).unwrap();
    }
    for name in PORTS {
        let ends = ["program", "peer"].map(|function| EndSpec::of(function, PortInfo::named(name)));
        let kind = LinkKind::ZeroCopy { group: "group".into() };
        broker.add_link(LinkSpec { name: name.into(), ends, ring_bytes: RING_BYTES_MIN, kind }).unwrap();
    }
    broker
}

/// A port as C has it.
struct Opened(*mut Port);

impl Opened {
    fn new(folder: &Path, name: &str) -> Self {
        let socket = CString::new(folder.join("program").to_str().unwrap()).unwrap();
        let name = CString::new(name).unwrap();
        let options =
            OpenOptions { size: size_of::<OpenOptions>(), socket: socket.as_ptr(), timeout_ms: 0, peek_bytes: 0 };
        let mut port = std::ptr::null_mut();
        // SAFETY: strings, options and the place for the port are whole.
        let answer = unsafe { kaista_port_open(&mut port, name.as_ptr(), &options, std::ptr::null_mut(), 0) };
        assert_eq!(answer, 0);
        Self(port)
    }

    fn halves(&self) -> (*mut Rx, *mut Tx) {
        // SAFETY: the port is open.
        unsafe { (kaista_port_rx(self.0, 0), kaista_port_tx(self.0, 0)) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: open, and not used afterwards.
        unsafe { kaista_port_close(self.0) }
    }
}

fn open_peer(folder: &Path, name: &str) -> QueuePair {
    let options = port::OpenOptions { socket: folder.join("peer"), timeout: PATIENCE, ..port::OpenOptions::default() };
    port::open(name, &options).unwrap().queues.remove(0)
}

/// Calls until something comes of it.
fn until<T>(mut happens: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "in vain");
        if let Some(found) = happens() {
            return found;
        }
    }
}

fn receive(peer: &mut QueuePair) -> Vec<u8> {
    until(|| {
        let burst = peer.rx.recv();
        (!burst.is_empty()).then(|| {
            let mut frame = vec![0; burst.get(0).len()];
            burst.get(0).copy_to(&mut frame);
            frame
        })
    })
}

fn send(tx: *mut Tx, packet: &Packet) {
    // SAFETY: an open port's half, and a view that has not ended.
    until(|| (unsafe { kaista_tx_burst(tx, packet, 1) } == 1).then_some(()));
}

/// Frames with a rest, and such as are all head.
#[test]
fn what_was_accepted_may_be_overwritten_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let _broker = start(folder.path());
    let [p, q] = PORTS.map(|name| Opened::new(folder.path(), name));
    let [mut peer_p, mut peer_q] = PORTS.map(|name| open_peer(folder.path(), name));
    let ((rx, back), (_, on)) = (p.halves(), q.halves());
    for len in [1_000, 100] {
        let sent: Vec<u8> = (0..len).map(|at| at as u8).collect();
        until(|| (peer_p.tx.send(&[PacketRef::from_slice(&sent)]) == 1).then_some(()));
        let mut packet = std::mem::MaybeUninit::<Packet>::uninit();
        // SAFETY: an open port's half, and room for one packet.
        until(|| (unsafe { kaista_rx_burst(rx, packet.as_mut_ptr(), 1) } == 1).then_some(()));
        // SAFETY: written by the call before.
        let packet = unsafe { packet.assume_init() };

        send(on, &packet);
        // SAFETY: within the head, which is this program's until it receives again.
        unsafe { packet.head.write_bytes(0xee, 12) };
        send(back, &packet);
        let changed = [&[0xee; 12], &sent[12..]].concat();
        assert!(receive(&mut peer_q) == sent, "{len} bytes, sent first");
        assert!(receive(&mut peer_p) == changed, "{len} bytes, sent afterwards");
    }
}
