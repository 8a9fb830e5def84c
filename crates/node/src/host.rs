//! What this host offers, as descriptors are held against it.

use std::collections::BTreeMap;

use runtime::LatencyFloor;
use runtime::net::{self, Namespace};
use slice::{HostFacts, Mechanism};

/// Facts of this host; takes a few milliseconds, since latencies are measured. Cores that slices have for themselves are
/// not known here: `exclusive_elsewhere` is 0.
pub fn facts() -> HostFacts {
    HostFacts { latency_floor_ns: latency_floor(), ..unmeasured() }
}

/// The same without latencies: what there is at this moment.
pub(crate) fn unmeasured() -> HostFacts {
    HostFacts {
        cores: runtime::online_cores().ok().map(|cores| cores.len() as u32),
        interfaces: Namespace::host().and_then(|host| net::interfaces(&host)).ok(),
        ..HostFacts::default()
    }
}

/// What a link of each mechanism costs at least: polling ends for shared memory, a wake-up for each process or kernel thread
/// that must run in between for the others.
pub(crate) fn latency_floor() -> BTreeMap<Mechanism, u64> {
    let Ok(floor) = LatencyFloor::measure() else { return BTreeMap::new() };
    let (polling, sleeping) = (floor.polling().as_nanos() as u64, floor.sleeping().as_nanos() as u64);
    [
        (Mechanism::SharedMemory, polling),
        (Mechanism::Veth, sleeping),
        (Mechanism::Macvlan, sleeping),
        (Mechanism::Pump, polling + sleeping),
        (Mechanism::PumpedMacvlan, polling + sleeping),
    ]
    .into()
}
