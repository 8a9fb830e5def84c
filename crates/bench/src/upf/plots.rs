//! A picture of each part, drawn from the report alone: right after a run, or from the file that it was written to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::published::{PIPELINE_OVER_RTC, SOURCE};
use super::scaling::MODELS;
use crate::metric::{Report, Summary};
use crate::plot::{Chart, Series};
use crate::rig::Way;

/// What draws a part, by the name of its file. None where the report has nothing of it.
type Draw = fn(&Report) -> Option<Chart>;
const PLOTS: [(&str, Draw); 9] = [
    ("worker", worker),
    ("payload", payload),
    ("sessions", sessions),
    ("workers", workers),
    ("latency", latency),
    ("models", models),
    ("scaling", scaling),
    ("skew", skew),
    ("container", container),
];

/// Names of the models as a reader says them, beside those in metrics.
const SAID: [(&str, &str); 2] = [("rtc", "run to completion"), ("pipeline", "pipeline")];

/// Draws what the report has into `folder`, which is made where it is not there. Returns the files.
pub(super) fn draw(report: &Report, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut files = vec![];
    for (name, draw) in PLOTS {
        let Some(chart) = draw(report) else { continue };
        let file = folder.join(format!("{name}.svg"));
        std::fs::write(&file, chart.to_svg()?).with_context(|| format!("cannot write {}", file.display()))?;
        files.push(file);
    }
    Ok(files)
}

/// A chart of these categories; None where no series has a point.
fn chart(
    report: &Report,
    title: &str,
    [x, y]: [&str; 2],
    categories: Vec<String>,
    series: Vec<Series>,
) -> Option<Chart> {
    let series: Vec<Series> = series.into_iter().filter(|series| !series.points.is_empty()).collect();
    (!series.is_empty()).then(|| Chart {
        title: title.into(),
        conditions: conditions(report),
        x: x.into(),
        y: y.into(),
        categories,
        series,
        notes: vec!["Mark: median. Bar: smallest to largest sample. Dots: all samples.".into()],
        ..Chart::default()
    })
}

/// One series: the metric that `name` gives for the number of a category.
fn series(report: &Report, said: impl Into<String>, count: usize, name: impl Fn(usize) -> String) -> Series {
    let points = (0..count).filter_map(|at| Some((at, report.metrics.get(&name(at))?.clone())));
    Series { name: said.into(), points: points.collect(), is_joined: true }
}

/// Millions a second in place of nanoseconds.
fn rates(mut series: Series) -> Series {
    for (_, found) in &mut series.points {
        let rates: Vec<f64> = found.samples.iter().map(|ns| 1e3 / ns).collect();
        *found = Summary::of(&rates, "Mpps").unwrap_or_else(|| found.clone());
    }
    series
}

fn apart(series: Series) -> Series {
    Series { is_joined: false, ..series }
}

fn conditions(report: &Report) -> String {
    let of = |name: &str| match &report.conditions[name] {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let rtt = report.metrics.get("link.rtt_ns");
    let rtt = rtt.map_or(String::new(), |Summary { median, min, max, .. }| {
        format!("; a cache line's round trip {median:.0} ns ({min:.0}-{max:.0})")
    });
    format!(
        "{}, {} cores{}, Linux {}; {} B of inner payload{rtt}; build {}",
        of("processor"),
        of("cores"),
        if report.conditions["virtual"] == true { " (virtual)" } else { "" },
        of("kernel"),
        of("payload_bytes"),
        of("profile"),
    )
}

/// The sessions of all parts but `worker` and `sessions`.
fn held(report: &Report) -> String {
    format!("{} sessions, {} with traffic.", report.conditions["sessions"], report.conditions["active"])
}

fn published(chart: Chart, says: &str) -> Chart {
    with_note(chart, format!("Published ({SOURCE}): {says}."))
}

fn with_note(mut chart: Chart, note: impl Into<String>) -> Chart {
    chart.notes.push(note.into());
    chart
}

/// Numbers in the names of metrics, between what is before and what is after.
fn numbers(report: &Report, before: &str, after: &str) -> Vec<u64> {
    let number = |name: &String| name.strip_prefix(before)?.strip_suffix(after)?.parse().ok();
    report.metrics.keys().filter_map(number).collect::<BTreeSet<u64>>().into_iter().collect()
}

fn worker(report: &Report) -> Option<Chart> {
    let kinds = [("upf", "shared memory"), ("upf.synthetic", "synthetic")];
    let places: Vec<_> = kinds.iter().flat_map(|kind| Way::BOTH.map(|way| (kind, way.name()))).collect();
    let categories = places.iter().map(|((_, kind), way)| format!("{way}, {kind}")).collect();
    let of = |said: &str, metric: &str| {
        apart(series(report, said, places.len(), |at| format!("{}.{}.{metric}", places[at].0.0, places[at].1)))
    };
    let all = vec![of("plain forwarder", "forwarder_ns"), of("UPF", "ns"), of("added by the UPF", "added_ns")];
    let found = &report.conditions["worker"];
    let note =
        format!("{} sessions, {} with traffic, frames in an order at random.", found["sessions"], found["active"]);
    let chart = chart(report, "One worker beside a plain forwarder", ["ports", "ns a packet"], categories, all)?;
    Some(with_note(Chart { lines: vec![(60.0, "aim for what is added".into())], ..chart }, note))
}

fn payload(report: &Report) -> Option<Chart> {
    let sizes = numbers(report, "upf.payload.uplink.", "B.mpps");
    let both = Way::BOTH.into_iter().flat_map(|way| {
        let of = |said: &str, metric: &'static str| {
            let name = |at: usize| format!("upf.payload.{}.{}B.{metric}", way.name(), sizes[at]);
            let found = series(report, format!("{}, {said}", way.name()), sizes.len(), name);
            // Nanoseconds of all threads of a model are a core's.
            if metric.ends_with("_ns") { rates(found) } else { found }
        };
        [of("run to completion", "mpps"), of("RTC, throttled", "rtc_ns"), of("pipeline, throttled", "pipeline_ns")]
    });
    let axes = ["inner UDP payload, bytes", "Mpps a core"];
    let categories = sizes.iter().map(u64::to_string).collect();
    let chart = chart(report, "Throughput against the size of payloads", axes, categories, both.collect())?;
    let note = "Synthetic ports. Throttled: from busy time, all threads of a model together; the source always has packets in the first.";
    Some(published(
        with_note(with_note(chart, note), held(report)),
        "the rate does not depend on the size; uplink is faster",
    ))
}

fn sessions(report: &Report) -> Option<Chart> {
    let count = |name: &String| {
        let (held, rest) = name.strip_prefix("upf.sessions.uplink.")?.split_once("held.")?;
        let active = rest.strip_suffix("active.added_ns")?;
        Some((held.parse::<u64>().ok()?, active.parse::<u64>().ok()?))
    };
    let counts: Vec<_> = report.metrics.keys().filter_map(count).collect::<BTreeSet<_>>().into_iter().collect();
    let all = Way::BOTH.into_iter().flat_map(|way| {
        let of = |said: &str, metric: &'static str| {
            let name = |at: usize| {
                let (held, active): (u64, u64) = counts[at];
                format!("upf.sessions.{}.{held}held.{active}active.{metric}", way.name())
            };
            series(report, format!("{}, {said}", way.name()), counts.len(), name)
        };
        [
            of("added to forwarder", "added_ns"),
            of("bare misses", "bare_misses_ns"),
            of("pipeline, both threads", "pipeline_ns"),
        ]
    });
    let categories = counts.iter().map(|(held, active)| format!("{held}/{active}")).collect();
    let axes = ["sessions held/with traffic, at random", "ns a packet"];
    let chart = chart(report, "Cost of a packet against the number of sessions", axes, categories, all.collect())?;
    let says = "the cost of lookups hardly grows with sessions; the pipeline's downlink rate falls somewhat, that of run to completion hardly";
    Some(published(with_note(chart, "Synthetic ports. Bare misses: a loop that touches as many cold lines."), says))
}

fn workers(report: &Report) -> Option<Chart> {
    let counts: BTreeSet<u64> =
        MODELS.iter().flat_map(|(model, _)| numbers(report, &format!("upf.workers.{model}."), ".mpps")).collect();
    let counts: Vec<u64> = counts.into_iter().collect();
    let of = |(model, said): (&str, &str)| {
        series(report, said, counts.len(), |at| format!("upf.workers.{model}.{}.mpps", counts[at]))
    };
    let categories = counts.iter().map(u64::to_string).collect();
    let chart = chart(report, "Throughput against workers", ["workers", "Mpps"], categories, SAID.map(of).into())?;
    let missing = report.conditions["workers"]["not_measurable"].as_array();
    let missing = missing.into_iter().flatten().filter_map(|text| text.as_str()).collect::<Vec<_>>().join("; ");
    let chart = if missing.is_empty() { chart } else { with_note(chart, format!("Not measurable here: {missing}.")) };
    let note = "Uplink, shared-memory ports; source and sink ride on the threads that receive, and are part of what a core does.";
    Some(published(with_note(with_note(chart, note), held(report)), "linear with cores"))
}

fn latency(report: &Report) -> Option<Chart> {
    let loads = numbers(report, "upf.latency.rtc.", "pct.p99_us");
    let all = SAID.into_iter().flat_map(|(model, said)| {
        [("p50", "p50"), ("p999", "p99.9"), ("max", "maximum")].map(|(metric, percentile)| {
            let name = |at: usize| format!("upf.latency.{model}.{}pct.{metric}_us", loads[at]);
            series(report, format!("{said}, {percentile}"), loads.len(), name)
        })
    });
    let axes = ["load, % of the highest rate without loss", "us, one way"];
    let categories = loads.iter().map(u64::to_string).collect();
    let chart = chart(report, "Latency against load", axes, categories, all.collect())?;
    let note = "Uplink, one worker, shared-memory ports; from when a packet is due to when the sink has it. Source and sink ride on the thread that receives.";
    let chart = with_note(with_note(Chart { logarithmic_from: Some(0.1), ..chart }, note), held(report));
    Some(published(chart, "lower with run to completion"))
}

fn models(report: &Report) -> Option<Chart> {
    let places = [
        ("cycles", "both threads, a core each"),
        ("worker_cycles", "worker, a core each"),
        ("one_core.cycles", "both threads, one core"),
        ("one_core.worker_cycles", "worker, one core"),
    ];
    let of = |at: usize| format!("upf.pipeline_over_rtc.{}", places[at].0);
    let all = vec![apart(series(report, "here, both ways", places.len(), of))];
    let categories = places.map(|(_, said)| said.to_owned()).into();
    let axes = ["", "busy time of a packet, pipeline over run to completion"];
    let chart = chart(report, "Pipeline beside run to completion", axes, categories, all)?;
    let lines = PIPELINE_OVER_RTC.map(|ratio| (ratio, format!("published: {ratio}"))).into();
    let says = "run to completion has 30-40 % more throughput a core, so a packet takes 1.3 to 1.4 times as long in the pipeline";
    Some(published(with_note(Chart { lines, ..chart }, held(report)), says))
}

fn scaling(report: &Report) -> Option<Chart> {
    let part = |step: &serde_json::Value| step["part"].as_f64();
    // Of what counts, as in the metrics.
    let steps = |model: &str| {
        let stepped = report.conditions["scaling"][model]["stepped"].as_array().into_iter().flatten();
        let rounds =
            stepped.filter(|stepped| stepped["slower"] == false).filter_map(|stepped| stepped["rounds"].as_array());
        rounds.flatten().filter_map(|round| round["steps"].as_array()).flatten().cloned().collect::<Vec<_>>()
    };
    let parts: Vec<f64> = MODELS.iter().flat_map(|(model, _)| steps(model)).filter_map(|step| part(&step)).collect();
    let percents: BTreeSet<u64> = parts.iter().map(|part| (part * 100.0).round() as u64).collect();
    let percents: Vec<u64> = percents.into_iter().collect();
    let of = |(model, said): (&str, &str)| {
        let added =
            report.metrics.get(&format!("upf.scaling.{model}.added_p999_us")).map(|found| found.samples.clone());
        let (steps, added) = (steps(model), added.unwrap_or_default());
        let of_load = |percent: u64| {
            let is_of =
                |step: &serde_json::Value| part(step).is_some_and(|part| (part * 100.0).round() as u64 == percent);
            let found: Vec<f64> = steps.iter().zip(&added).filter(|(step, _)| is_of(step)).map(|(_, us)| *us).collect();
            Summary::of(&found, "us")
        };
        let points = percents.iter().enumerate().filter_map(|(at, percent)| Some((at, of_load(*percent)?)));
        Series { name: said.into(), points: points.collect(), is_joined: false }
    };
    let axes = ["load after the step, % of the highest rate without loss", "p99.9 added at a step, us"];
    let categories = percents.iter().map(u64::to_string).collect();
    let mut chart = chart(report, "Workers come and go while the load steps", axes, categories, SAID.map(of).into())?;
    for (model, said) in SAID {
        let of = |metric: &str| {
            let found = report.metrics.get(&format!("upf.scaling.{model}.{metric}"))?;
            Some(found.samples.iter().sum::<f64>())
        };
        if let (Some(lost), Some(reordered), Some(duplicated)) = (of("lost"), of("reordered"), of("duplicated")) {
            chart = with_note(
                chart,
                format!("{said}: lost {lost}, reordered {reordered}, duplicated {duplicated} packets."),
            );
        }
    }
    let lines = vec![(100.0, "aim".to_owned()), (130.0, "published: pipeline".to_owned())];
    let says = "a core is added to run to completion in about 400 ms, with up to 100 ms of latency and heavy loss; to the pipeline in about 130 us";
    let chart = with_note(chart, "Less than 0.1 us is drawn there.");
    Some(published(Chart { logarithmic_from: Some(0.1), lines, ..with_note(chart, held(report)) }, says))
}

fn skew(report: &Report) -> Option<Chart> {
    let of = |(model, said): (&str, &str)| {
        let found = series(report, said, 1, |_| format!("upf.skew.{model}.over_uniform"));
        apart(found)
    };
    let axes = ["", "throughput with skew over that with uniform load"];
    let categories = vec!["two workers, the buckets of one with four times the load".to_owned()];
    let chart = chart(report, "A hot worker's buckets move away", axes, categories, SAID.map(of).into())?;
    let mut chart = with_note(Chart { lines: vec![(0.95, "aim".to_owned())], ..chart }, held(report));
    for (model, said) in SAID {
        if let Some(found) = report.metrics.get(&format!("upf.skew.{model}.settle_ms")) {
            let text = format!("{said}: settled after {:.0} ms ({:.0}-{:.0}).", found.median, found.min, found.max);
            chart = with_note(chart, text);
        } else if let Some(reason) = report.conditions["skew"][model]["not_measurable"][0].as_str() {
            chart = with_note(chart, format!("{said}: not measurable here: {reason}."));
        }
        if let Some(unmoved) = report.metrics.get(&format!("upf.skew.{model}.unmoved_over_uniform")) {
            chart = with_note(chart, format!("{said}, where nothing is moved: {:.2}.", unmoved.median));
        }
    }
    let says = "run to completion cannot move load off a hot core; the pipeline moves UEs until all capacity is used";
    Some(published(chart, says))
}

fn container(report: &Report) -> Option<Chart> {
    let ways = Way::BOTH.map(Way::name);
    let of = |(metric, said): (&str, &str)| {
        apart(series(report, said, ways.len(), |at| format!("upf.container.{}.{metric}", ways[at])))
    };
    let all = [("bare_ns", "bare on the host"), ("container_ns", "in a container")].map(of).into();
    let categories = ways.map(str::to_owned).into();
    let axes = ["", "busy ns a packet"];
    let chart = chart(report, "A worker in an unprivileged container", axes, categories, all)?;
    Some(with_note(chart, "The same program and synthetic ports, in turns."))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::metric::Samples;

    /// With a metric of each part.
    fn report() -> Report {
        let mut samples = Samples::default();
        let mut add = |name: &str| [1.0, 2.0, 4.0].into_iter().for_each(|value| samples.add(name, value, "ns"));
        add("upf.uplink.ns");
        add("upf.payload.uplink.64B.mpps");
        add("upf.payload.uplink.1400B.mpps");
        add("upf.sessions.uplink.1000held.1000active.added_ns");
        add("upf.workers.rtc.1.mpps");
        add("upf.latency.rtc.50pct.p99_us");
        add("upf.latency.rtc.50pct.p50_us");
        add("upf.pipeline_over_rtc.cycles");
        add("upf.scaling.rtc.added_p999_us");
        add("upf.skew.rtc.over_uniform");
        add("upf.container.uplink.bare_ns");
        let step = |part: f64| json!({"part": part});
        let conditions = json!({
            "workers": {"not_measurable": ["rtc: 8 workers, 2 cores"]},
            "scaling": {"rtc": {"stepped": [
                {"slower": true, "rounds": [{"steps": [step(0.05)]}]},
                {"slower": false, "rounds": [{"steps": [step(0.05), step(0.8)]}, {"steps": [step(0.05)]}]},
            ]}},
            "skew": {"pipeline": {"not_measurable": ["where nothing is moved throughput stays at 0.97"]}},
        });
        Report { conditions, metrics: samples.summaries() }
    }

    #[test]
    fn every_part_has_a_picture_and_a_stable_file() {
        let folder = crate::folder::Folder::new().expect("a folder");
        let files = draw(&report(), folder.path()).expect("pictures");
        let names: Vec<_> = files.iter().filter_map(|file| file.file_stem()?.to_str()).collect();
        assert_eq!(names, PLOTS.map(|(name, _)| name));
        assert!(files.iter().all(|file| std::fs::read_to_string(file).is_ok_and(|svg| svg.ends_with("</svg>\n"))));
    }

    #[test]
    fn a_part_that_was_not_measured_has_no_picture() {
        let nothing = Report { conditions: json!({}), metrics: Default::default() };
        assert!(PLOTS.iter().all(|(_, draw)| draw(&nothing).is_none()));
    }

    #[test]
    fn what_has_no_cores_is_said_and_not_drawn() {
        let chart = workers(&report()).expect("a chart");
        assert_eq!(chart.categories, ["1"]);
        assert!(chart.notes.iter().any(|note| note.contains("8 workers, 2 cores")), "{:?}", chart.notes);
    }

    #[test]
    fn skew_says_why_it_was_not_measured() {
        let chart = skew(&report()).expect("a chart");
        assert!(chart.notes.iter().any(|note| note.contains("throughput stays at 0.97")), "{:?}", chart.notes);
    }

    #[test]
    fn steps_are_gathered_by_their_load() {
        let chart = scaling(&report()).expect("a chart");
        assert_eq!(chart.categories, ["5", "80"]);
        let samples: Vec<_> = chart.series[0].points.iter().map(|(_, found)| found.samples.clone()).collect();
        assert_eq!(samples, [vec![1.0, 4.0], vec![2.0]]);
    }
}
