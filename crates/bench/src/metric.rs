//! What a benchmark found: samples gathered under stable names, and the report that they become.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Deserializer, Serialize};

/// One metric over all rounds of a run.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Summary {
    /// Middle sample; the mean of the two middle ones where their number is even.
    #[serde(deserialize_with = "number")]
    pub median: f64,
    /// Smallest sample.
    #[serde(deserialize_with = "number")]
    pub min: f64,
    /// Largest sample.
    #[serde(deserialize_with = "number")]
    pub max: f64,
    /// Number of samples.
    pub n: usize,
    /// Unit of all values, `1` for a ratio.
    pub unit: String,
    /// All samples, in the order in which they were taken.
    #[serde(default, deserialize_with = "numbers")]
    pub samples: Vec<f64>,
}

/// JSON knows no infinity: what never happened is written as null.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let numbers: Vec<Option<f64>> = Vec::deserialize(from)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or(f64::INFINITY)).collect())
}

impl Summary {
    /// Condenses samples. None where there are none.
    pub fn of(samples: &[f64], unit: &str) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, min, max, n: sorted.len(), unit: unit.to_owned(), samples: samples.to_vec() })
    }
}

/// Samples by dotted name, in the order of the names.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    by_name: BTreeMap<String, (Vec<f64>, &'static str)>,
}

impl Samples {
    /// Adds one sample.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.by_name.entry(name.into()).or_insert_with(|| (Vec::new(), unit)).0.push(value);
    }

    /// The samples of one name.
    pub fn of(&self, name: &str) -> &[f64] {
        self.by_name.get(name).map_or(&[], |(samples, _)| samples)
    }

    /// One summary for each name.
    pub fn summaries(&self) -> BTreeMap<String, Summary> {
        let summary = |(name, (samples, unit)): (&String, &(Vec<f64>, &str))| {
            Summary::of(samples, unit).map(|summary| (name.clone(), summary))
        };
        self.by_name.iter().filter_map(summary).collect()
    }
}

/// A finished benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What was true of the machine and the run, and which limit each run hit.
    pub conditions: serde_json::Value,
    /// The figures, under names that stay the same from version to version.
    pub metrics: BTreeMap<String, Summary>,
}

impl Report {
    /// Reads what [`Report::write_json`] wrote.
    pub fn read_json(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))
    }

    /// Writes the report as JSON.
    pub fn write_json(&self, path: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Prints the metrics as a table.
    pub fn print(&self, to: &mut impl Write) -> std::io::Result<()> {
        let width = self.metrics.keys().map(String::len).max().unwrap_or(0);
        writeln!(to, "{:width$}  {:>10}  {:>10}  {:>10}  {:>3}  unit", "metric", "median", "min", "max", "n")?;
        for (name, Summary { median, min, max, n, unit, .. }) in &self.metrics {
            writeln!(to, "{name:width$}  {median:>10.2}  {min:>10.2}  {max:>10.2}  {n:>3}  {unit}")?;
        }
        Ok(())
    }
}

/// What was measured, and why that is not all.
pub struct Outcome {
    /// All that was measured.
    pub report: Report,
    /// Why a part could not be measured to its end.
    pub failure: Option<anyhow::Error>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_holds_the_median_and_the_range() {
        let summary = Summary::of(&[3.0, 1.0, 2.0], "ns").expect("three samples");
        assert_eq!(
            summary,
            Summary { median: 2.0, min: 1.0, max: 3.0, n: 3, unit: "ns".into(), samples: vec![3.0, 1.0, 2.0] }
        );
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0], "1").expect("four samples").median, 2.5);
    }

    #[test]
    fn a_name_without_samples_does_not_appear() {
        assert!(Summary::of(&[], "1").is_none());
        assert!(Samples::default().summaries().is_empty());
    }

    #[test]
    fn the_report_has_conditions_and_metrics() {
        let mut samples = Samples::default();
        samples.add("link.rtt_ns", 80.0, "ns");
        let report = Report { conditions: serde_json::json!({"cores": [0, 1]}), metrics: samples.summaries() };
        let json = serde_json::to_value(&report).expect("plain data");
        assert_eq!(json["metrics"]["link.rtt_ns"]["median"], 80.0);
        assert_eq!(json["metrics"]["link.rtt_ns"]["unit"], "ns");
        assert_eq!(json["conditions"]["cores"][1], 1);
    }

    #[test]
    fn a_report_can_be_read_again_with_all_samples() {
        let mut samples = Samples::default();
        [3.0, 1.0, f64::INFINITY].into_iter().for_each(|ms| samples.add("settle_ms", ms, "ms"));
        let report = Report { conditions: serde_json::json!({}), metrics: samples.summaries() };
        let path = std::env::temp_dir().join(format!("kaista-report-{}.json", std::process::id()));
        report.write_json(&path).expect("a file");
        let read = Report::read_json(&path);
        std::fs::remove_file(&path).expect("it was written");
        assert_eq!(read.expect("a report").metrics, report.metrics);
    }
}
