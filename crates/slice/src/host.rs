//! What the checks must know of the host, and by which mechanism a link is built on it.

use crate::descriptor::{End, Link, Outside, Slice};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What one host offers. Whoever checks fills in what it knows; what is unknown is not checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// Processor cores that functions may use, all told.
    pub cores: Option<u32>,
    /// How many of them other slices have for themselves.
    #[serde(default)]
    pub exclusive_elsewhere: u32,
    /// The lowest latency that this host reaches, from end to end, in nanoseconds.
    #[serde(default)]
    pub latency_floor_ns: BTreeMap<Mechanism, u64>,
    /// Names of its network interfaces.
    #[serde(default)]
    pub interfaces: Option<Vec<String>>,
}

/// How one link is carried on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Both ends are shared memory: rings between the two functions.
    SharedMemory,
    /// Both ends are kernel interfaces: a veth pair.
    Veth,
    /// One end is shared memory, the other a kernel interface: a TAP and a process that pumps.
    Pump,
    /// A kernel interface that shares an interface of the host (macvlan).
    Macvlan,
    /// A shared-memory port that shares an interface of the host: macvlan and a process that pumps.
    PumpedMacvlan,
}

impl Mechanism {
    /// The mechanism of a link; none if an end names no port of the slice, or both ends are outside.
    pub fn of(slice: &Slice, link: &Link) -> Option<Self> {
        let is_kernel = |end: &End| Some(slice.port(end.port()?)?.is_kernel());
        let [a, b] = &link.between;
        match (a, b) {
            (End::Port(_), End::Port(_)) => Some(match (is_kernel(a)?, is_kernel(b)?) {
                (false, false) => Self::SharedMemory,
                (true, true) => Self::Veth,
                _ => Self::Pump,
            }),
            (End::Outside { .. }, End::Outside { .. }) => None,
            (port, End::Outside { host }) | (End::Outside { host }, port) => Some(match (is_kernel(port)?, host) {
                (false, Outside::Interface(_)) => Self::PumpedMacvlan,
                (false, Outside::Veth { .. }) => Self::Pump,
                (true, Outside::Interface(_)) => Self::Macvlan,
                (true, Outside::Veth { .. }) => Self::Veth,
            }),
        }
    }

    /// What a message calls a link of this mechanism, after "a".
    pub fn phrase(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared-memory link",
            Self::Veth => "link between kernel interfaces",
            Self::Pump => "link between shared memory and a kernel interface",
            Self::Macvlan => "link of a kernel interface to an interface of the host",
            Self::PumpedMacvlan => "link of shared memory to an interface of the host",
        }
    }
}
