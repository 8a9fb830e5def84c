//! The port trait and its backends behind one `open`.
//!
//! A function opens its ports by name and sees the same queues whatever is behind them: shared memory to another
//! function ([`vport`]), a TAP device, any Ethernet interface, or memory alone ([`synthetic`]).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

pub use kinds::{Kind, add_kind};
pub use leave::Leave;
pub use vport::counters::{RxCounters, TxCounters};
pub use vport::held::Held;
pub use vport::info::{PortInfo, Route};
pub use vport::owner::{self, Buckets, Decider, GroupError, Owner, PortSteering};
pub use vport::packet::{
    BURST_MAX, Burst, FRAME_MAX, HEAD_MAX, HEADROOM, LONG_BURST_MAX, Lease, PacketMut, PacketRef, Placed, Rest, Slot,
};
pub use vport::pool;
pub use vport::steering::{self, Steering};
pub use vport::{CacheLevel, prefetch, prefetch_into, prefetch_to_write};
pub use wait::{Sleep, Waiter, Woken};

mod checksum;
mod interface;
mod kernel;
mod kinds;
mod leave;
mod packet_socket;
pub mod relay;
mod shm;
pub mod synthetic;
mod wait;

/// The receiving half of a queue pair. One thread uses it.
pub trait RxQueue: Send {
    /// Takes up to [`BURST_MAX`] packets (see also [`RxQueue::set_burst_max`]), and gives back to the sender what the last call
    /// returned. Empty when nothing waits. Never blocks, allocates or makes a system call while packets flow (kernel backends: one
    /// call a packet).
    fn recv(&mut self) -> Burst<'_>;

    /// From here on [`RxQueue::recv`] may take up to so many packets at a time, at most [`LONG_BURST_MAX`], where long bursts cost
    /// less: of zero-copy links, whose packets stay where they are. For functions whose own work with a burst has no limit.
    fn set_burst_max(&mut self, _packets: usize) {}

    /// As [`RxQueue::recv`], of packets that stay where their sender put them until they are given back, so that another thread can
    /// take them from there by a [`relay`]. None where that is not possible; that may change when all is given back. The caller
    /// will spread them by `steering`, and what that reads is asked for beforehand; [`Steering::None`] where all go to the same thread.
    fn recv_held(&mut self, _steering: Steering) -> Option<Held<'_>> {
        None
    }

    /// Gives back what is held up to a position, which a [`Held`] has said the end of. While anything is held, nothing is received in
    /// any other way, and nobody sleeps.
    fn give_back(&mut self, _position: u64) {}

    /// Announces that the caller will sleep. True: sleep on [`RxQueue::poll_fds`], of which one is readable at once if
    /// anything waits after all. False: receive first.
    fn arm(&mut self) -> bool;

    /// Takes the announcement back after waking, and drains the doorbell.
    fn disarm(&mut self);

    /// The file descriptors of which one becomes readable when an armed queue has something to do.
    fn poll_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Whether nothing more comes than waits: of a port that another process of the function has taken over.
    fn is_closed(&self) -> bool {
        false
    }

    /// The same, and nothing waits.
    fn is_over(&self) -> bool {
        false
    }

    /// What this queue has counted.
    fn counters(&self) -> RxCounters;
}

/// The sending half of a queue pair. One thread uses it.
pub trait TxQueue: Send {
    /// Sends the packets in order and publishes them at once. Returns how many were accepted; the caller keeps those
    /// refused because the peer is full, slow or away.
    fn send(&mut self, packets: &[PacketRef<'_>]) -> usize;

    /// Sends the packets of a burst from number `from` on: as [`TxQueue::send`], but that packets cost less this way which go on in
    /// the buffers they came in: between zero-copy links where they were not changed, by backends that lend their buffers in any case.
    fn send_burst(&mut self, burst: &Burst<'_>, from: usize) -> usize {
        burst.send_views(from, |packets| self.send(packets))
    }

    /// What this queue has counted.
    fn counters(&self) -> TxCounters;
}

/// The two halves of one queue.
pub struct QueuePair {
    /// Receives.
    pub rx: Box<dyn RxQueue>,
    /// Sends.
    pub tx: Box<dyn TxQueue>,
}

/// An open port. Queues may be taken out and given to threads; the port stays attached as long as it or one of its
/// queues exists.
pub struct Port {
    /// Name, addresses, steering.
    pub info: PortInfo,
    /// The queue pairs, `info.queues` of them.
    pub queues: Vec<QueuePair>,
    control: Control,
    steering: Option<PortSteering>,
}

impl Port {
    /// A port of a backend that has no broker.
    pub fn new(info: PortInfo, queues: Vec<QueuePair>) -> Self {
        Self { info, queues, control: Control::default(), steering: None }
    }

    /// To change which of the port's queues owns which bucket, see [`owner::group`]. Only ports that a broker joined have
    /// this.
    pub fn steering(&self) -> Option<PortSteering> {
        self.steering.clone()
    }

    /// Publishes named counters of the function (drops by reason, say), replacing those of the last call. They reach the
    /// node within a second. At most 64; names of up to 48 letters, digits, `-`, `_`, `.` and `/`, with `_` for all others. Ports
    /// without a broker ignore them.
    pub fn report(&self, counters: &[(&str, u64)]) {
        self.control.report(counters);
    }

    /// A handle for [`Port::report`] that another thread may use.
    pub fn control(&self) -> Control {
        self.control.clone()
    }
}

/// What goes from an open port to its broker, beside the packets. Holding one keeps the port attached.
#[derive(Clone, Default)]
pub struct Control(Option<(vport::client::Reporter, vport::client::Succession)>);

impl Control {
    /// As [`Port::report`].
    pub fn report(&self, counters: &[(&str, u64)]) {
        if let Some((reporter, _)) = &self.0 {
            reporter.report(counters);
        }
    }

    /// Whether the port is this process's alone: not as long as another one works off what it has of it.
    pub fn has_port(&self) -> bool {
        self.0.as_ref().is_none_or(|(_, succession)| succession.has_port())
    }

    /// Of a port that was opened to be taken over ([`Succession::WhenReady`]): now. Peers send to this process from here on;
    /// it receives, and can send, as soon as the one that had the port has left it.
    pub fn take_over(&self) {
        if let Some((_, succession)) = &self.0 {
            succession.take_over();
        }
    }
}

/// How to open a port.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The broker's socket. By default `$KAISTA_PORTS`, or else `/run/kaista/ports.sock`.
    pub socket: PathBuf,
    /// How long to wait for the broker, and for it to know the port.
    pub timeout: Duration,
    /// How many bytes of a frame are copied to private memory on receive: 64 to [`HEAD_MAX`]. Headers beyond them cannot
    /// be read.
    pub peek_bytes: usize,
    /// Whether the port is taken over from another process of the function that may have it. By default it is, at once, where
    /// the node has started this process for that (`$KAISTA_SUCCEEDS`).
    pub succession: Succession,
}

/// Whether a port is taken over from another process of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Succession {
    /// No: it is opened once nobody has it.
    #[default]
    No,
    /// As soon as it is open.
    AtOnce,
    /// At [`Control::take_over`].
    WhenReady,
}

/// Waits until ports that were taken over are this process's alone, all of them: before, what comes by one could not leave by
/// another. True when they are.
pub fn await_ports(ports: &[Control], timeout: Duration) -> bool {
    let begin = std::time::Instant::now();
    while !ports.iter().all(Control::has_port) {
        if begin.elapsed() >= timeout {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    true
}

impl Succession {
    /// Whether the node has started this process to take its function's ports over from another one.
    pub fn is_wanted() -> bool {
        std::env::var_os("KAISTA_SUCCEEDS").is_some()
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            socket: std::env::var_os("KAISTA_PORTS").map_or_else(|| "/run/kaista/ports.sock".into(), PathBuf::from),
            timeout: Duration::from_secs(10),
            peek_bytes: 192,
            succession: if Succession::is_wanted() { Succession::AtOnce } else { Succession::No },
        }
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The broker did not answer in time.
    #[error("no broker at {socket}: {reason}")]
    NoBroker {
        /// Where it was looked for.
        socket: PathBuf,
        /// What happened instead.
        reason: String,
    },
    /// The broker refused.
    #[error("the broker refused port {port}: {reason}")]
    Refused {
        /// Name of the port.
        port: String,
        /// The broker's words.
        reason: String,
    },
    /// The name has no meaning.
    #[error("no such kind of port: {0} (expected NAME, tap:INTERFACE, packet:INTERFACE{more})", more = kinds::as_expected())]
    Name(String),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens a port: `n3` by shared memory at the broker, `tap:NAME` on a TAP device (made if it is not there),
/// `packet:INTERFACE` on any Ethernet interface; and whatever kinds the program has added ([`add_kind`]).
pub fn open(name: &str, options: &OpenOptions) -> Result<Port, OpenError> {
    match name.split_once(':') {
        None => shm::open(name, options),
        Some(("tap", interface)) => kernel::open_tap(interface, options),
        Some(("packet", interface)) => kernel::open_packet(interface, options),
        Some((kind, rest)) => match kinds::find(kind) {
            Some(kind) => (kind.open)(rest, options),
            None => Err(OpenError::Name(name.to_owned())),
        },
    }
}

/// A port over queues of a TAP device (`IFF_NO_PI`, no `IFF_VNET_HDR`), one file descriptor a queue pair.
pub fn from_tap_fd(info: PortInfo, queues: Vec<OwnedFd>) -> io::Result<Port> {
    kernel::from_tap_fd(info, queues, OpenOptions::default().peek_bytes)
}
