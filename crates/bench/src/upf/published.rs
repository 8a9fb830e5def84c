//! What the published comparison of the two execution models found, for its figures to stand beside ours. What only its plots show
//! is not here.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};

use crate::metric::Summary;

/// Whose findings these are.
pub(super) const SOURCE: &str = "Agarwal, IIT Bombay: a 5G UPF, run to completion against pipeline";

/// Busy time of a packet in the pipeline by that in run to completion: RTC has 30 to 40 % more throughput a core.
pub(super) const PIPELINE_OVER_RTC: [f64; 2] = [1.3, 1.4];

/// One finding.
pub(super) struct Finding {
    what: &'static str,
    reported: &'static str,
    /// Our metrics that say the same of this run.
    metrics: &'static [&'static str],
}

/// All that is given in words.
pub(super) const FINDINGS: [Finding; 12] = [
    Finding {
        what: "throughput a core, RTC over pipeline",
        reported: "30-40 % more: the pipeline takes 1.3-1.4 times as long for a packet",
        metrics: &["upf.pipeline_over_rtc.cycles"],
    },
    Finding {
        what: "rate against the size of payloads",
        reported: "independent of it",
        metrics: &["upf.payload.uplink.22B.mpps", "upf.payload.uplink.1400B.mpps"],
    },
    Finding {
        what: "rate against the number of cores",
        reported: "linear",
        metrics: &["upf.workers.rtc.1.mpps", "upf.workers.rtc.2.mpps"],
    },
    Finding {
        what: "uplink against downlink",
        reported: "uplink is faster",
        metrics: &["upf.uplink.ns", "upf.downlink.ns"],
    },
    Finding {
        what: "rate of RTC against the number of sessions",
        reported: "hardly falls",
        metrics: &[
            "upf.sessions.downlink.1000held.1000active.rtc_ns",
            "upf.sessions.downlink.100000held.65536active.rtc_ns",
        ],
    },
    Finding {
        what: "downlink rate of the pipeline against the number of sessions",
        reported: "falls somewhat",
        metrics: &[
            "upf.sessions.downlink.1000held.1000active.pipeline_ns",
            "upf.sessions.downlink.100000held.65536active.pipeline_ns",
        ],
    },
    Finding {
        what: "latency",
        reported: "lower with RTC",
        metrics: &["upf.latency.rtc.50pct.p99_us", "upf.latency.pipeline.50pct.p99_us"],
    },
    Finding {
        what: "a core is added, RTC",
        reported: "about 400 ms of port restart, up to 100 ms of latency, heavy loss",
        metrics: &["upf.scaling.rtc.added_p999_us", "upf.scaling.rtc.lost"],
    },
    Finding {
        what: "a core is added, pipeline",
        reported: "about 130 us",
        metrics: &["upf.scaling.pipeline.added_p999_us", "upf.scaling.pipeline.lost"],
    },
    Finding {
        what: "a hot core, RTC",
        reported: "load cannot be moved away",
        metrics: &["upf.skew.rtc.over_uniform", "upf.skew.rtc.settle_ms"],
    },
    Finding {
        what: "a hot core, pipeline",
        reported: "UEs are moved until all capacity is used",
        metrics: &["upf.skew.pipeline.over_uniform", "upf.skew.pipeline.settle_ms"],
    },
    Finding {
        what: "cores that 40 Gb/s take, uplink (downlink)",
        reported: "64 B: 5 (6) with RTC, not by 6 with the pipeline; IMIX: 2 (3) with RTC, 3 (4) with the pipeline",
        metrics: &[],
    },
];

/// The findings with what this run found, for the report.
pub(super) fn beside(metrics: &BTreeMap<String, Summary>) -> Value {
    let finding = |finding: &Finding| {
        let here = finding.metrics.iter().filter_map(|name| Some((*name, metrics.get(*name)?.median)));
        let here: BTreeMap<&str, f64> = here.collect();
        json!({"what": finding.what, "reported": finding.reported, "here": here})
    };
    json!({"source": SOURCE, "findings": FINDINGS.iter().map(finding).collect::<Vec<_>>()})
}

/// Prints what [`beside`] made.
pub(super) fn print(published: &Value, to: &mut impl Write) -> std::io::Result<()> {
    let Some(findings) = published["findings"].as_array() else { return Ok(()) };
    writeln!(to, "\npublished ({}), and here (medians)", published["source"].as_str().unwrap_or_default())?;
    for finding in findings {
        let text = |key: &str| finding[key].as_str().unwrap_or_default();
        writeln!(to, "{}: {}", text("what"), text("reported"))?;
        let here = finding["here"].as_object();
        match here.filter(|here| !here.is_empty()) {
            None => writeln!(to, "    not measured in this run")?,
            Some(here) => {
                for (name, median) in here {
                    writeln!(to, "    {name} {:.2}", median.as_f64().unwrap_or(f64::INFINITY))?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_stands_beside_what_was_measured() {
        let summary = Summary::of(&[1.37], "1").expect("a sample");
        let published = beside(&BTreeMap::from([("upf.pipeline_over_rtc.cycles".to_owned(), summary)]));
        let mut printed = vec![];
        print(&published, &mut printed).expect("memory takes it");
        let printed = String::from_utf8(printed).expect("text");
        assert!(printed.contains("30-40 % more"), "{printed}");
        assert!(printed.contains("    upf.pipeline_over_rtc.cycles 1.37"), "{printed}");
        assert!(printed.contains("linear\n    not measured in this run"), "{printed}");
    }
}
