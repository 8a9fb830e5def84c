//! Rates from two snapshots of counters.

use node::control::{FunctionStats, PortStats, Stats};

/// What a port did between two snapshots, a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PortRates {
    pub rx_packets: f64,
    pub rx_bits: f64,
    pub tx_packets: f64,
    pub tx_bits: f64,
    pub drops: f64,
}

/// The rates of a port; none for the first snapshot that has it.
pub fn port(before: &Stats, now: &Stats, port: &PortStats) -> Option<PortRates> {
    let seconds = seconds(before, now)?;
    let is_same = |p: &&PortStats| p.slice == port.slice && p.function == port.function && p.port == port.port;
    let old = before.ports.iter().find(is_same)?;
    let rate = |old: u64, new: u64| per_second(old, new, seconds);
    let sum = |p: &PortStats| p.drops.values().sum();
    Some(PortRates {
        rx_packets: rate(old.rx_packets, port.rx_packets),
        rx_bits: 8.0 * rate(old.rx_bytes, port.rx_bytes),
        tx_packets: rate(old.tx_packets, port.tx_packets),
        tx_bits: 8.0 * rate(old.tx_bytes, port.tx_bytes),
        drops: rate(sum(old), sum(port)),
    })
}

/// How many cores a function kept busy.
pub fn cores(before: &Stats, now: &Stats, function: &FunctionStats) -> Option<f64> {
    let seconds = seconds(before, now)?;
    let old = previous(before, function)?;
    Some(per_second(old.cpu_ns?, function.cpu_ns?, seconds) / 1e9)
}

/// How fast one of a function's own counters grows.
pub fn counter(before: &Stats, now: &Stats, function: &FunctionStats, name: &str) -> Option<f64> {
    let old = previous(before, function)?.counters.get(name)?;
    Some(per_second(*old, *function.counters.get(name)?, seconds(before, now)?))
}

fn previous<'a>(before: &'a Stats, function: &FunctionStats) -> Option<&'a FunctionStats> {
    before.functions.iter().find(|f| f.slice == function.slice && f.function == function.function)
}

fn seconds(before: &Stats, now: &Stats) -> Option<f64> {
    let elapsed = now.at_ns.checked_sub(before.at_ns)?;
    (elapsed > 0).then(|| elapsed as f64 / 1e9)
}

/// A counter that went back began anew with a restart of its owner, so all it shows now is growth.
fn per_second(old: u64, new: u64, seconds: f64) -> f64 {
    new.checked_sub(old).unwrap_or(new) as f64 / seconds
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use node::control::{LatencyStats, PortKind};

    /// Counters of one port and one function that saw `packets` of 100 bytes.
    pub fn stats(at_ns: u64, packets: u64) -> Stats {
        let port = PortStats {
            slice: "s".into(),
            function: "upf".into(),
            port: "n3".into(),
            kind: PortKind::Shm,
            peer: Some("ran/n3".into()),
            generation: 1,
            attached: true,
            quarantined: None,
            rx_packets: packets,
            rx_bytes: packets * 100,
            tx_packets: packets / 2,
            tx_bytes: packets * 50,
            drops: [("full".into(), packets / 10)].into(),
            latency: Some(LatencyStats {
                count: 5,
                p50_ns: 700,
                p99_ns: 2_000,
                p999_ns: 3_000,
                max_ns: 4_000,
                invalid: 0,
            }),
        };
        let function = FunctionStats {
            slice: "s".into(),
            function: "upf".into(),
            cpu_ns: Some(at_ns / 2),
            memory_bytes: Some(64 << 20),
            counters: [("uplink.forwarded".into(), packets)].into(),
        };
        Stats { at_ns, ports: vec![port], functions: vec![function] }
    }

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let (before, now) = (stats(1_000_000_000, 1000), stats(3_000_000_000, 5000));
        let rates = port(&before, &now, &now.ports[0]).unwrap();
        let expected = PortRates {
            rx_packets: 2000.0,
            rx_bits: 1_600_000.0,
            tx_packets: 1000.0,
            tx_bits: 800_000.0,
            drops: 200.0,
        };
        assert_eq!(rates, expected);
        assert_eq!(cores(&before, &now, &now.functions[0]), Some(0.5));
        assert_eq!(counter(&before, &now, &now.functions[0], "uplink.forwarded"), Some(2000.0));
        assert_eq!(counter(&before, &now, &now.functions[0], "nothing"), None);
    }

    #[test]
    fn a_counter_that_began_anew_is_not_negative() {
        let (before, now) = (stats(1_000_000_000, 1000), stats(2_000_000_000, 10));
        assert_eq!(port(&before, &now, &now.ports[0]).unwrap().rx_packets, 10.0);
        assert_eq!(port(&now, &before, &now.ports[0]), None, "time went back");
        assert_eq!(port(&Stats::default(), &now, &now.ports[0]), None, "there was no such port");
    }
}
