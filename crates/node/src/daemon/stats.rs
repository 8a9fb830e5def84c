//! Counters: of shared-memory ports from the broker, of kernel interfaces from the kernel, of functions from their cgroups.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use runtime::net::Namespace;
use runtime::{FunctionId, Sandbox};
use slice::{End, PortRef, Slice};
use vport::broker::PortStatus;
use vport::latency::Latency;

use super::Daemon;
use super::serve::{Answer, tell};
use crate::control::{Event, FunctionStats, LatencyStats, PortKind, PortStats, Process, ProcessKind, Reply, Stats};
use crate::link::pump_name;
use crate::logs;
use crate::node::Node;
use crate::worker::View;

/// Sends snapshots until the client hangs up, or one.
pub(super) fn serve(daemon: &Daemon, stream: &UnixStream, slice: Option<&str>, every: Option<Duration>) -> Answer {
    loop {
        tell(stream, &Event::Stats(snapshot(daemon, slice)))?;
        let Some(every) = every else { return Ok(Reply::Done) };
        if logs::hung_up(stream, every.clamp(Duration::from_millis(50), Duration::from_secs(3_600))) {
            return Ok(Reply::Done);
        }
    }
}

fn snapshot(daemon: &Daemon, slice: Option<&str>) -> Stats {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let mut stats = Stats { at_ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64, ..Stats::default() };
    let shared = daemon.node.broker.ports().unwrap_or_default();
    for (name, handle) in daemon.workers() {
        if slice.is_some_and(|slice| slice != name) {
            continue;
        }
        let view = handle.view().clone();
        let functions = view.actual.spec.functions.iter();
        for (container, function) in
            functions.flat_map(|function| function.containers().into_iter().map(move |container| (container, function)))
        {
            let id = format!("{name}/{container}");
            let own = || shared.iter().filter(|port| port.name.function == id);
            let interfaces = kernel_counters(&daemon.node, &name, &container, function);
            for port in &function.ports {
                let base = describe(&view.actual, function, &container, port);
                stats.ports.push(match &port.interface {
                    Some(interface) => {
                        let link =
                            view.actual.link_of(&PortRef { function: function.name.clone(), port: port.name.clone() });
                        let pump = link.and_then(|link| pump_name(&name, link));
                        let pump = shared.iter().find(|status| Some(&status.name.function) == pump.as_ref());
                        with_pump(of_interface(base, interfaces.get(interface)), pump)
                    }
                    None => of_shared(base, own().find(|status| status.name.port == port.name)),
                });
            }
            let usage = view.containers.get(&container).and_then(|container| container.usage().ok());
            stats.functions.push(FunctionStats {
                slice: name.clone(),
                function: container,
                cpu_ns: usage.map(|usage| usage.cpu_ns),
                memory_bytes: usage.map(|usage| usage.memory),
                counters: own().flat_map(|port| port.report.iter().cloned()).collect(),
            });
        }
    }
    stats
}

/// A port without counters.
fn describe(slice: &Slice, function: &slice::Function, container: &str, port: &slice::Port) -> PortStats {
    let at = PortRef { function: function.name.clone(), port: port.name.clone() };
    let own = |end: &&End| end.port() != Some(&at);
    let peer = slice.link_of(&at).and_then(|link| link.between.iter().find(own));
    PortStats {
        slice: slice.name().to_owned(),
        function: container.to_owned(),
        port: at.port.clone(),
        kind: if port.is_kernel() { PortKind::Kernel } else { PortKind::Shm },
        peer: peer.map(ToString::to_string),
        generation: 0,
        attached: false,
        quarantined: None,
        rx_packets: 0,
        rx_bytes: 0,
        tx_packets: 0,
        tx_bytes: 0,
        drops: BTreeMap::new(),
        latency: None,
    }
}

fn of_shared(mut port: PortStats, status: Option<&PortStatus>) -> PortStats {
    let Some(status) = status else { return port };
    port.generation = status.generation;
    port.attached = status.pid.is_some();
    port.quarantined = status.quarantined.clone();
    port.latency = of_samples(&status.latency);
    let mut drop = |reason: &str, count: u64| {
        if count > 0 {
            *port.drops.entry(reason.to_owned()).or_default() += count;
        }
    };
    for rx in &status.rx {
        port.rx_packets += rx.packets;
        port.rx_bytes += rx.bytes;
        drop("invalid", rx.invalid);
    }
    for tx in &status.tx {
        port.tx_packets += tx.packets;
        port.tx_bytes += tx.bytes;
        drop("peer-full", tx.refused);
        drop("no-peer", tx.no_peer);
    }
    port
}

fn of_samples(latency: &Latency) -> Option<LatencyStats> {
    let quantile = |share| latency.quantile_ns(share);
    Some(LatencyStats {
        count: latency.count(),
        p50_ns: quantile(0.5)?,
        p99_ns: quantile(0.99)?,
        p999_ns: quantile(0.999)?,
        max_ns: latency.max_ns(),
        invalid: latency.invalid,
    })
}

fn of_interface(mut port: PortStats, counters: Option<&[u64; 16]>) -> PortStats {
    let Some(counters) = counters else { return port };
    port.attached = true;
    [port.rx_bytes, port.rx_packets] = [counters[0], counters[1]];
    [port.tx_bytes, port.tx_packets] = [counters[8], counters[9]];
    for (reason, count) in [("rx-errors", 2), ("rx-dropped", 3), ("tx-errors", 10), ("tx-dropped", 11)] {
        if counters[count] > 0 {
            port.drops.insert(reason.to_owned(), counters[count]);
        }
    }
    port
}

/// What the pump of a kernel interface could not pass on, to either side.
fn with_pump(mut port: PortStats, pump: Option<&PortStatus>) -> PortStats {
    let Some(pump) = pump else { return port };
    port.generation = pump.generation;
    let full = pump.tx.iter().map(|tx| ("pump-peer-full", tx.refused));
    let away = pump.tx.iter().map(|tx| ("pump-no-peer", tx.no_peer));
    let reported = pump.report.iter().map(|(reason, count)| (reason.as_str(), *count));
    for (reason, count) in full.chain(away).chain(reported).filter(|(_, count)| *count > 0) {
        *port.drops.entry(reason.to_owned()).or_default() += count;
    }
    port
}

/// The kernel's counters of a function's interfaces, by name.
fn kernel_counters(
    node: &Node,
    slice: &str,
    container: &str,
    function: &slice::Function,
) -> BTreeMap<String, [u64; 16]> {
    if !function.ports.iter().any(slice::Port::is_kernel) {
        return BTreeMap::new();
    }
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let namespace = || -> Option<Namespace> {
        let id = FunctionId::new(slice, container).ok()?;
        Sandbox::open(&node.layout, &id).ok()??.net().ok()
    };
    let text = namespace().and_then(|namespace| namespace.within(read).ok()).unwrap_or_default();
    text.lines().filter_map(parse_interface).collect()
}

/// A line of `/proc/net/dev`: a name, eight counters received, eight sent.
fn parse_interface(line: &str) -> Option<(String, [u64; 16])> {
    let (name, counters) = line.split_once(':')?;
    let counters: Vec<u64> = counters.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some((name.trim().to_owned(), counters.try_into().ok()?))
}

/// The process with what it uses at the moment.
pub(super) fn with_usage(process: &Process, view: &View) -> Process {
    let mut process = process.clone();
    match process.kind {
        ProcessKind::Function => {
            let usage = view.containers.get(&process.name).and_then(|container| container.usage().ok());
            process.cpu_ns = usage.map(|usage| usage.cpu_ns);
            process.memory_bytes = usage.map(|usage| usage.memory);
        }
        ProcessKind::Pump => {
            process.cpu_ns = process.pid.and_then(processor_time);
            process.memory_bytes = process.pid.and_then(resident);
        }
    }
    process
}

/// Time that all threads of a process have run, in nanoseconds.
fn processor_time(pid: i32) -> Option<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let times = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Some(times.sum())
}

/// Memory that a process has in use, in bytes.
fn resident(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_of_interfaces_is_read() {
        let (name, counters) = parse_interface("  eth0: 10 2 0 1 0 0 0 0 30 4 0 0 0 0 0 0").unwrap();
        assert_eq!((name.as_str(), counters[1], counters[3], counters[9]), ("eth0", 2, 1, 4));
        assert!(parse_interface(" face |bytes    packets errs").is_none());
        assert!(parse_interface("lo: 1 2 3").is_none());
    }
}
