//! `kaista check`: every mistake in a descriptor.

use crate::{
    args::Check,
    diagnostics,
    out::{self, Paint, counted},
    outcome::{Failure, Outcome, printed},
};
use slice::{HostFacts, Report, Slice};
use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

pub fn run(args: &Check) -> Outcome {
    let host = if args.any_host { HostFacts::default() } else { host_facts() };
    let descriptor = Descriptor::read(&args.file)?;
    let (slice, report) = descriptor.parse(&host);
    printed(if args.json { out::json(&report.mistakes()) } else { print(&descriptor, slice.as_ref(), &report) })?;
    Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn print(descriptor: &Descriptor, slice: Option<&Slice>, report: &Report) -> io::Result<()> {
    let paint = Paint::stdout();
    let findings = diagnostics::render(&descriptor.name, &descriptor.text, report, paint);
    findings.lines().try_for_each(out::line)?;
    let summary = diagnostics::summary(report);
    let Some(slice) = slice else { return out::line(&paint.bold(&summary)) };
    let name = paint.bold(slice.name());
    let functions = counted(slice.spec.functions.len(), "function");
    let links = counted(slice.spec.links.len(), "link");
    out::line(&format!("{name}: {functions}, {links}; {summary}"))
}

/// What this host can give; what cannot be found out is not checked.
pub fn host_facts() -> HostFacts {
    node::host::facts()
}

/// A descriptor file as it was read.
pub struct Descriptor {
    /// What messages call the file.
    pub name: String,
    pub text: String,
    /// Where its relative paths start from.
    pub directory: PathBuf,
}

impl Descriptor {
    /// Reads a file, or standard input for `-`.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let unreadable = |error| Failure::failed(format!("cannot read {name}: {error}"));
        if path == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().lock().take(slice::MAX_TEXT as u64 + 1).read_to_string(&mut text).map_err(unreadable)?;
            let directory = std::env::current_dir().map_err(unreadable)?;
            return Ok(Self { name: "standard input".into(), text, directory });
        }
        let (text, directory) = slice::read(path).map_err(unreadable)?;
        Ok(Self { name, text, directory })
    }

    /// The slice, if it has no errors, and everything found.
    pub fn parse(&self, host: &HostFacts) -> (Option<Slice>, Report) {
        match slice::parse(&self.text, &self.directory, host) {
            Ok((slice, warnings)) => (Some(slice), warnings),
            Err(report) => (None, report),
        }
    }

    /// The slice of a descriptor that must be right; what is found goes to standard error.
    pub fn require(&self, host: &HostFacts) -> Result<Slice, Failure> {
        let (slice, report) = self.parse(host);
        let findings = diagnostics::render(&self.name, &self.text, &report, Paint::stderr());
        findings.lines().for_each(out::say);
        slice.ok_or_else(|| Failure::Usage(format!("{}: {}", self.name, diagnostics::summary(&report))))
    }
}
