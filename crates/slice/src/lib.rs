//! The slice descriptor: its types, its JSON Schema, and the checks that find every mistake in a file at once.

mod address;
mod descriptor;
mod diff;
mod format;
mod host;
mod notice;
mod places;
mod quantity;
mod report;
mod rules;
mod schema;
mod shape;
mod tree;
mod wording;

pub use address::{Cidr, Mac};
pub use descriptor::{
    ApiVersion, Cores, End, Function, Image, Kind, Link, LinkKind, Metadata, Outside, Pool, Port, PortRef, Restart,
    Route, Slice, Spec, Steering,
};
pub use diff::{Changes, FunctionChange, diff};
pub use host::{HostFacts, Mechanism};
pub use notice::{Notice, unenforced};
pub use quantity::{BitRate, ByteSize, Latency, ValueError};
pub use report::{Mistake, Position, Report, Severity};
pub use schema::schema;
pub use tree::MAX_TEXT;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// Checks the text of a descriptor against everything that is known of the host; finds every mistake at once, except that
/// a text which is no YAML shows only that. Images are not looked for.
pub fn check(text: &str, host: &HostFacts) -> Report {
    examine(text, host, None).1
}

/// Reads a descriptor from its text. Paths of images are made absolute, from `directory`. A missing image is a warning, as
/// is everything else in the report that comes with a slice.
pub fn parse(text: &str, directory: &Path, host: &HostFacts) -> Result<(Slice, Report), Report> {
    let (slice, report) = examine(text, host, Some(directory));
    match slice {
        Some(mut slice) if report.is_ok() => {
            for function in &mut slice.spec.functions {
                let path = function.image.path_mut();
                *path = directory.join(&path);
            }
            Ok((slice, report))
        }
        _ => Err(report),
    }
}

/// The text of a descriptor file and the absolute directory that its paths start from.
pub fn read(path: &Path) -> io::Result<(String, PathBuf)> {
    use io::Read;
    // A little more than a descriptor may have, so that a wrong file name costs no memory.
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(tree::MAX_TEXT as u64 + 1).read_to_end(&mut bytes)?;
    let text =
        String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8 text"))?;
    let path = std::path::absolute(path)?;
    Ok((text, path.parent().unwrap_or(Path::new("/")).into()))
}

/// Reads a descriptor from a file: [`read`], then [`parse`].
pub fn load(path: &Path, host: &HostFacts) -> Result<(Slice, Report), LoadError> {
    let unreadable = |error| LoadError::Unreadable { path: path.into(), error };
    let (text, directory) = read(path).map_err(unreadable)?;
    parse(&text, &directory, host).map_err(|report| LoadError::Mistakes { report, text })
}

/// Why there is no slice.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file has mistakes.
    #[error("{report}")]
    Mistakes {
        /// All of them.
        report: Report,
        /// What the file says, to show the lines.
        text: String,
    },
}

fn examine(text: &str, host: &HostFacts, directory: Option<&Path>) -> (Option<Slice>, Report) {
    let mut report = Report::default();
    let Some(tree) = tree::read(text, &mut report) else { return (None, report) };
    static SCHEMA: LazyLock<serde_json::Value> = LazyLock::new(schema);
    let (fitted, places) = shape::fit(&SCHEMA, &tree, &mut report);
    let slice = match serde_json::from_value(fitted) {
        Ok(slice) => {
            rules::check(&slice, &places, host, directory, &mut report);
            Some(slice)
        }
        Err(error) => {
            report.error(tree.at, format!("the descriptor cannot be read: {error}"), "please report this as a fault");
            None
        }
    };
    report.sort();
    (slice, report)
}
