//! What is true of the machine while a benchmark runs. Nothing in it names the machine or a person.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::cores::{self, NEAR_NS};
use crate::metric::Summary;

/// Facts about this machine that a reader needs to compare figures.
pub fn of_this_machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    json!({
        "kaista": env!("CARGO_PKG_VERSION"),
        "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map_or(1, |n| n.get()),
        "virtual": field(&read("/proc/cpuinfo"), "flags").split(' ').any(|flag| flag == "hypervisor"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "hugepages_2MiB": read("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").trim(),
        "load_average_before": read("/proc/loadavg").split(' ').next().unwrap_or_default(),
    })
}

/// Where the two cores were: near if a cache line's round trip stayed below [`NEAR_NS`], far if it never did; unknown where none was
/// measured.
pub fn placement(metrics: &BTreeMap<String, Summary>) -> &'static str {
    match metrics.get("link.rtt_ns") {
        Some(round_trips) if round_trips.max < NEAR_NS => "near",
        Some(round_trips) if round_trips.min >= NEAR_NS => "far",
        Some(_) => "moving",
        None if cores::pair().is_err() => "one core",
        None => "unknown",
    }
}

fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next().unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_and_the_kernel_are_named() {
        let conditions = of_this_machine();
        assert_ne!(conditions["processor"], "");
        assert_ne!(conditions["kernel"], "");
    }

    #[test]
    fn cores_are_near_far_moving_or_not_known_to_be_anywhere() {
        let trips = |samples: &[f64]| {
            let summary = Summary::of(samples, "ns").map(|summary| ("link.rtt_ns".to_owned(), summary));
            placement(&summary.into_iter().collect())
        };
        assert_eq!(trips(&[80.0, 120.0]), "near");
        assert_eq!(trips(&[300.0, 180.0]), "far");
        assert_eq!(trips(&[80.0, 300.0]), "moving");
        assert_eq!(trips(&[]), if cores::pair().is_ok() { "unknown" } else { "one core" });
    }

    #[test]
    fn a_missing_field_is_unknown() {
        assert_eq!(field("a : b", "a"), "b");
        assert_eq!(field("a : b", "c"), "unknown");
    }
}
