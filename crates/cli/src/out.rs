//! Standard output and error: colours only where a terminal shows them, and no panic when nobody reads.

use comfy_table::{Table, presets};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Writes a line to standard output.
pub fn line(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Writes a line to standard error. What cannot be said there cannot be said at all.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes out what is buffered.
pub fn flush() -> io::Result<()> {
    io::stdout().lock().flush()
}

/// Writes a value as JSON for programs and readers alike.
pub fn json(value: &impl Serialize) -> io::Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// A table without lines: a row of capitals, then the rows.
pub fn table(head: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Writes a table, without the blanks that pad its last column.
pub fn print_table(table: &Table) -> io::Result<()> {
    table.to_string().lines().try_for_each(|text| line(text.trim_end()))
}

/// Colours, where they are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Paint(bool);

impl Paint {
    /// For text on standard output.
    pub fn stdout() -> Self {
        Self(io::stdout().is_terminal() && wanted())
    }

    /// For text on standard error.
    pub fn stderr() -> Self {
        Self(io::stderr().is_terminal() && wanted())
    }

    /// None at all.
    #[cfg(test)]
    pub fn none() -> Self {
        Self(false)
    }

    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub fn red(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub fn yellow(self, text: &str) -> String {
        self.with("1;33", text)
    }

    pub fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub fn blue(self, text: &str) -> String {
        self.with("1;34", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }
}

/// <https://no-color.org>, and terminals that know no colours.
fn wanted() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// `1 link`, `2 links`.
pub fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// `1.5 GiB`, for people.
pub fn bytes(count: u64) -> String {
    scaled(count, 1024, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// `1.25 M`, for people.
pub fn number(count: u64) -> String {
    scaled(count, 1000, &["", "k", "M", "G", "T", "P"])
}

/// `1.25 us`, for people.
pub fn nanoseconds(count: u64) -> String {
    scaled(count, 1000, &["ns", "us", "ms", "s"])
}

fn scaled(count: u64, step: u64, units: &[&str]) -> String {
    let mut size = 1u64;
    let mut unit = 0;
    while unit + 1 < units.len() && count / size >= step {
        size *= step;
        unit += 1;
    }
    if unit == 0 {
        return format!("{count} {}", units[0]).trim_end().into();
    }
    let value = count as f64 / size as f64;
    let decimals = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {}", units[unit])
}

/// `3m`, `2h05m`, `4d`: how long ago, to the precision that matters.
pub fn age(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// Text that others wrote, fit for a terminal: no control characters.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(number(0), "0");
        assert_eq!(number(999), "999");
        assert_eq!(number(12_345), "12.3 k");
        assert_eq!(number(u64::MAX), "18447 P");
        assert_eq!(bytes(256 << 20), "256 MiB");
        assert_eq!(bytes(1 << 30), "1.00 GiB");
        assert_eq!((nanoseconds(850), nanoseconds(45_300)), ("850 ns".into(), "45.3 us".into()));
    }

    #[test]
    fn an_age_is_as_precise_as_it_matters() {
        assert_eq!(age(1_500), "1s");
        assert_eq!(age(65_000), "1m05s");
        assert_eq!(age(3_700_000), "1h01m");
        assert_eq!(age(90_000_000), "1d01h");
    }

    #[test]
    fn text_of_others_cannot_move_the_cursor() {
        assert_eq!(plain("a\x1b[2Jb"), "a\u{fffd}[2Jb");
    }
}
