//! What a check found: every mistake with its place, its reason and its remedy.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A place in the text, both counted from 1; columns are characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
    /// How many characters are meant, on this line; at least 1.
    pub length: usize,
}

impl Default for Position {
    fn default() -> Self {
        Self { line: 1, column: 1, length: 1 }
    }
}

/// Whether a finding stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The slice cannot be run as it is.
    Error,
    /// It can be run, but is probably not what was meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mistake {
    /// Whether it stands in the way.
    pub severity: Severity,
    /// Where it is.
    #[serde(flatten)]
    pub at: Position,
    /// What is wrong.
    pub reason: String,
    /// How to mend it.
    pub remedy: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, at: Position { line, column, .. }, reason, remedy } = self;
        write!(f, "{line}:{column}: {severity}: {reason}; {remedy}")
    }
}

/// So many findings are enough for one reading; a file with more is probably no descriptor.
const MOST: usize = 500;

/// All findings in one descriptor, in the order of the text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    mistakes: Vec<Mistake>,
}

impl Report {
    pub(crate) fn error(&mut self, at: Position, reason: impl Into<String>, remedy: impl Into<String>) {
        self.push(Severity::Error, at, reason.into(), remedy.into());
    }

    pub(crate) fn warning(&mut self, at: Position, reason: impl Into<String>, remedy: impl Into<String>) {
        self.push(Severity::Warning, at, reason.into(), remedy.into());
    }

    fn push(&mut self, severity: Severity, at: Position, reason: String, remedy: String) {
        if !self.is_full() {
            self.mistakes.push(Mistake { severity, at, reason, remedy });
        }
    }

    /// Whether nothing more is noted.
    pub(crate) fn is_full(&self) -> bool {
        self.mistakes.len() >= MOST
    }

    /// Puts the findings into the order of the text; what an alias repeats is said once.
    pub(crate) fn sort(&mut self) {
        self.mistakes.sort_by_key(|m| m.at);
        self.mistakes.dedup();
        if let Some(last) = self.mistakes.last()
            && self.is_full()
        {
            let (at, reason) = (last.at, format!("there is more; only {MOST} findings are shown"));
            let remedy = "mend these first".into();
            self.mistakes.push(Mistake { severity: Severity::Error, at, reason, remedy });
        }
    }

    /// Every finding, in the order of the text.
    pub fn mistakes(&self) -> &[Mistake] {
        &self.mistakes
    }

    /// Findings that stand in the way.
    pub fn errors(&self) -> impl Iterator<Item = &Mistake> {
        self.mistakes.iter().filter(|m| m.severity == Severity::Error)
    }

    /// Findings that do not.
    pub fn warnings(&self) -> impl Iterator<Item = &Mistake> {
        self.mistakes.iter().filter(|m| m.severity == Severity::Warning)
    }

    /// Whether the slice can be run.
    pub fn is_ok(&self) -> bool {
        self.errors().next().is_none()
    }
}

/// One line for each finding.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{mistake}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}
