//! The control interface of `kaistad`: what can be asked, what is answered, and a blocking client.
//!
//! One connection carries one request: a line of JSON, with file descriptors beside it (`SCM_RIGHTS`) where the request
//! says so. The daemon answers with lines of JSON, each an [`Event`]; [`Event::Done`] or [`Event::Failed`] is the last.
//! Closing the connection ends what streams (`Logs`, `Stats`, `Pcap`) and hangs up what was executed.

mod client;
mod ensure;
pub(crate) mod wire;

pub use client::{CallError, Client, Stream};
pub use ensure::{EnsureError, ensure_daemon};

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a client can ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Request {
    /// Makes the slice be as described; answers [`Reply::Up`] after progress events.
    Up {
        /// The descriptor's text.
        descriptor: String,
        /// The directory that relative paths in it start from; absolute.
        base: PathBuf,
    },
    /// Makes a pool have so many replicas, whatever its descriptor said; answers [`Reply::Up`] after progress events.
    Scale {
        /// The pool.
        function: FunctionRef,
        /// How many.
        replicas: u16,
    },
    /// Has a new process of a function take over from the one that runs, while packets flow; answers [`Reply::Replaced`].
    Replace {
        /// Which.
        function: FunctionRef,
    },
    /// Takes slices away with everything that belonged to them; answers [`Reply::Down`]. A slice that is not there is no error.
    Down {
        /// Names; empty: every slice.
        slices: Vec<String>,
    },
    /// Answers [`Reply::Slices`].
    List,
    /// Answers [`Reply::Processes`].
    Processes {
        /// Only this slice.
        slice: Option<String>,
    },
    /// Answers with [`Event::Stats`] at once and then every interval, or once, followed by [`Event::Done`].
    Stats {
        /// Only this slice.
        slice: Option<String>,
        /// Milliseconds between snapshots; none: a single one.
        interval_ms: Option<u64>,
    },
    /// Answers with [`Event::Line`]s.
    Logs {
        /// Whose output.
        function: FunctionRef,
        /// Only the last so many lines.
        lines: Option<usize>,
        /// Go on with what is yet to come.
        follow: bool,
    },
    /// Runs a program in a function's container; answers [`Reply::Exited`]. Without `terminal` three descriptors come
    /// with the request: standard input, output and error. With it none comes, and [`Event::Console`] brings one.
    Exec {
        /// Where.
        function: FunctionRef,
        /// Program and arguments.
        command: Vec<String>,
        /// Added to the function's own environment.
        env: BTreeMap<String, String>,
        /// Working directory; none: the function's own.
        directory: Option<String>,
        /// Give the program a terminal.
        terminal: bool,
    },
    /// Writes a pcapng capture of the port to the one descriptor that comes with the request; answers
    /// [`Reply::Captured`] when the count is reached or a line `{"stop":true}` came; hanging up ends it, too.
    Pcap {
        /// Whose port.
        function: FunctionRef,
        /// The port's name.
        port: String,
        /// Bytes kept of each frame; none: all.
        snap_length: Option<u32>,
        /// Packets after which to end.
        count: Option<u64>,
    },
    /// Connects to a UPF's control socket; answers [`Event::Connected`], then [`Reply::Done`].
    Upf {
        /// Which; none: the only one that there is.
        function: Option<FunctionRef>,
    },
    /// Answers [`Reply::Status`].
    Status,
    /// Ends daemon and keeper; answers [`Reply::Done`]. Refused while slices are up, unless `leave_running`.
    Shutdown {
        /// Leave the slices' containers and pumps running, for the next daemon to adopt.
        leave_running: bool,
    },
}

/// Names a function; the slice may be left out where only one has such a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionRef {
    /// The slice.
    pub slice: Option<String>,
    /// The function.
    pub function: String,
}

impl std::str::FromStr for FunctionRef {
    type Err = String;

    /// `FUNCTION` or `SLICE/FUNCTION`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (slice, function) = match text.split_once('/') {
            Some((slice, function)) => (Some(slice.to_owned()), function),
            None => (None, text),
        };
        if function.is_empty() || function.contains('/') || slice.as_deref() == Some("") {
            return Err(format!("'{text}' is not FUNCTION or SLICE/FUNCTION"));
        }
        Ok(Self { slice, function: function.to_owned() })
    }
}

impl std::fmt::Display for FunctionRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.slice {
            Some(slice) => write!(f, "{slice}/{}", self.function),
            None => write!(f, "{}", self.function),
        }
    }
}

/// What the daemon answers, a line each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// A step of `Up` or `Down` was done.
    Progress {
        /// Function, link or slice.
        subject: String,
        /// What was done with it: `created`, `started`, `removed` ...
        action: String,
    },
    /// Something the person at the terminal should know, not a failure: what is accepted but not enforced, a fallback.
    Notice {
        /// A sentence.
        message: String,
    },
    /// A line of a function's output.
    Line {
        /// When it was captured, nanoseconds since 1970.
        at_ns: u64,
        /// Whether it came from standard error.
        error: bool,
        /// The text without its newline.
        text: String,
    },
    /// Counters as they are now.
    Stats(Stats),
    /// The terminal of an executed program: its controlling end is the descriptor beside this line.
    Console,
    /// A connection to a function: the descriptor beside this line.
    Connected,
    /// The end: success.
    Done(Reply),
    /// The end: what went wrong.
    Failed(Failure),
}

/// Why a request was refused or did not succeed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// One sentence.
    pub message: String,
    /// More, one line each: mistakes in a descriptor, the last output of a program that failed, what was undone.
    pub details: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.message)?;
        self.details.iter().try_for_each(|detail| write!(f, "\n  {detail}"))
    }
}

/// The final answer to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Reply {
    /// Nothing to add.
    Done,
    /// To `Up` and `Scale`.
    Up {
        /// The slice's name.
        slice: String,
        /// How many functions and links were made, changed or removed; 0: all was as described already.
        changes: usize,
    },
    /// To `Replace`.
    Replaced {
        /// The slice's name.
        slice: String,
        /// The function.
        function: String,
        /// Its process now, on the host.
        pid: Option<i32>,
    },
    /// To `Down`.
    Down {
        /// The slices that were there and are gone.
        slices: Vec<String>,
        /// No slice is left and the daemon ends itself.
        stopping: bool,
    },
    /// To `List`.
    Slices {
        /// In the order of their names.
        slices: Vec<SliceSummary>,
    },
    /// To `Processes`.
    Processes {
        /// In the order of slice and function, pumps after functions.
        processes: Vec<Process>,
    },
    /// To `Exec`.
    Exited {
        /// As a shell reports it: the exit code, or 128 + signal.
        status: i32,
    },
    /// To `Pcap`.
    Captured {
        /// Packets written.
        packets: u64,
        /// Packets that passed while the observer was too slow; about, for shared memory.
        missed: u64,
    },
    /// To `Status`.
    Status(Status),
}

/// A slice in the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceSummary {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: SliceState,
    /// Functions described.
    pub functions: usize,
    /// Functions running.
    pub running: usize,
    /// Links described.
    pub links: usize,
    /// Links with both ends attached.
    pub connected: usize,
    /// When it was first brought up, milliseconds since 1970.
    pub since_ms: u64,
}

/// How a slice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SliceState {
    /// Being brought up, changed or taken down.
    Changing,
    /// Every function runs, or ended as its policy allows.
    Up,
    /// Something does not run and is being restarted, or could not be.
    Degraded,
}

/// A supervised process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// Its slice.
    pub slice: String,
    /// The function's name, or the link's that a pump serves.
    pub name: String,
    /// Function or pump.
    pub kind: ProcessKind,
    /// How it is.
    pub state: ProcessState,
    /// On the host; none while it does not run.
    pub pid: Option<i32>,
    /// The user id on the host.
    pub uid: u32,
    /// The CPUs it may use, as `0-1,4`.
    pub cpus: String,
    /// When it was last started, milliseconds since 1970.
    pub started_ms: Option<u64>,
    /// Times it was started again by its restart policy.
    pub restarts: u64,
    /// How it last ended: `exit 1`, `signal 9`.
    pub last_exit: Option<String>,
    /// Memory charged to it, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processor time used since it was created, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// The pool that it is a replica of.
    pub replica_of: Option<String>,
    /// Of a replica that has its place in its pool: the share of the pool's buckets, and so about of its flows, that is
    /// its own; 1 is all.
    pub share: Option<f64>,
}

/// What a supervised process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessKind {
    /// A function's container.
    Function,
    /// The pump of a link between a port and a kernel interface.
    Pump,
}

/// How a supervised process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessState {
    /// Running.
    Running,
    /// Ended; started again soon.
    Waiting,
    /// Ended, and its restart policy leaves it so.
    Ended,
}

/// Counters of everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// When, in nanoseconds of the monotonic clock; rates come from the difference of two.
    pub at_ns: u64,
    /// Every port.
    pub ports: Vec<PortStats>,
    /// Every function.
    pub functions: Vec<FunctionStats>,
}

/// Counters of a port, seen from its function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortStats {
    /// Its slice.
    pub slice: String,
    /// Its function.
    pub function: String,
    /// Its name.
    pub port: String,
    /// How it is reached.
    pub kind: PortKind,
    /// What it is linked to: `upf/n3`, `host:eth1`.
    pub peer: Option<String>,
    /// How often the link was made anew; 0 for kernel interfaces.
    pub generation: u64,
    /// Whether the function holds it open.
    pub attached: bool,
    /// Why it was cut off from its peer, if it was.
    pub quarantined: Option<String>,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets discarded, by reason.
    pub drops: BTreeMap<String, u64>,
    /// How long what it received was on its way. None where nothing was sampled: of a kernel interface, or of a function
    /// built before latencies were.
    #[serde(default)]
    pub latency: Option<LatencyStats>,
}

/// One-way latency of what a port received, from when its peer published a packet until the function was given it, sampled
/// since the link was made anew last. Claimed by the functions; at most a quarter too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyStats {
    /// Packets sampled.
    pub count: u64,
    /// Median, in nanoseconds.
    pub p50_ns: u64,
    /// Not exceeded by 99 of 100, in nanoseconds.
    pub p99_ns: u64,
    /// Not exceeded by 999 of 1,000, in nanoseconds.
    pub p999_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// Samples with a time that cannot be: of a peer that lies, or whose clock is another one.
    pub invalid: u64,
}

/// How a port is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PortKind {
    /// Shared memory.
    Shm,
    /// A kernel interface in the function's network namespace.
    Kernel,
}

/// Counters of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionStats {
    /// Its slice.
    pub slice: String,
    /// Its name.
    pub function: String,
    /// Processor time used since it was created, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Memory charged to it, in bytes.
    pub memory_bytes: Option<u64>,
    /// What the function reports of itself, by its own names.
    pub counters: BTreeMap<String, u64>,
}

/// The daemon itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub daemon_pid: i32,
    /// The keeper's process.
    pub keeper_pid: i32,
    /// Whether it stays when no slice is left.
    pub foreground: bool,
    /// Slices up.
    pub slices: usize,
    /// File descriptors that the keeper holds for a restart of the daemon.
    pub kept_descriptors: usize,
    /// Times the keeper started the daemon again, since the keeper started.
    pub daemon_restarts: u64,
}
