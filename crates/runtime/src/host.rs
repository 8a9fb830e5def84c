//! What this host offers: cores, hugepages, cgroups, an OCI runtime, and how fast two of its cores reach each other.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cgroup::Hierarchies;
use crate::{Error, Layout, OciRuntime, Result};

/// Facts about the host, gathered once by the daemon and by `kaista check`.
#[derive(Debug)]
pub struct Host {
    /// Cores that are online.
    pub cores: Vec<usize>,
    /// Total memory in bytes.
    pub memory: u64,
    /// Reservable 2 MiB pages.
    pub hugepages: HugePages,
    /// How cgroups are mounted.
    pub cgroups: Hierarchies,
    /// The OCI runtime, or why none is usable.
    pub runtime: Result<OciRuntime, Error>,
    /// The least latency that a link can have here.
    pub latency: LatencyFloor,
}

/// 2 MiB pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// Reserved in all.
    pub total: u64,
    /// Not in use.
    pub free: u64,
}

/// Measured in a few milliseconds; the median of some hundred rounds, so a busy host does not exaggerate it much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyFloor {
    /// A cache line to another core and back; none on a host with one core.
    pub cache_line_round_trip: Option<Duration>,
    /// From a write to a pipe to the return of the poll of a thread that slept on another core.
    pub wake_up: Duration,
}

impl Host {
    /// Gathers all facts; some 100 ms, most of it the runtime's probe.
    pub fn facts(_layout: &Layout) -> Self {
        todo!()
    }

    /// Cores that are online, alone.
    pub fn online_cores() -> Result<Vec<usize>> {
        todo!()
    }
}

impl HugePages {
    /// Reads the kernel's counters; zeros where it has no hugepages.
    pub fn read() -> Self {
        todo!()
    }
}

impl LatencyFloor {
    /// Measures on two of the cores that the caller may use.
    pub fn measure() -> Result<Self> {
        todo!()
    }

    /// The least one-way latency of a link whose ends poll: half a cache line's round trip, twice (index, record).
    pub fn polling(&self) -> Duration {
        todo!()
    }

    /// The least one-way latency of a link whose consumer may sleep.
    pub fn sleeping(&self) -> Duration {
        todo!()
    }
}
