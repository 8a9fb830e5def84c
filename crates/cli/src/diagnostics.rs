//! Findings in a descriptor, shown with the lines they are about.

use crate::out::{Paint, counted, plain};
use slice::{Mistake, Report, Severity};
use std::fmt::Write;

/// Longest part of a line that is shown.
const WIDTH: usize = 110;

/// Every finding with its line, a mark under the place, and the remedy.
pub fn render(name: &str, text: &str, report: &Report, paint: Paint) -> String {
    let mut shown = String::new();
    for mistake in report.mistakes() {
        let line = text.lines().nth(mistake.at.line.saturating_sub(1)).unwrap_or_default();
        finding(&mut shown, name, line, mistake, paint);
    }
    shown
}

/// How many findings there are: `2 errors, 1 warning`.
pub fn summary(report: &Report) -> String {
    let some = |count: usize, what: &str| (count > 0).then(|| counted(count, what));
    let parts = [some(report.errors().count(), "error"), some(report.warnings().count(), "warning")];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "no mistakes".into() } else { parts.join(", ") }
}

fn finding(shown: &mut String, name: &str, line: &str, mistake: &Mistake, paint: Paint) {
    let Mistake { severity, at, reason, remedy } = mistake;
    let colour = match severity {
        Severity::Error => Paint::red,
        Severity::Warning => Paint::yellow,
    };
    let place = paint.bold(&format!("{name}:{}:{}:", at.line, at.column));
    let _ = writeln!(shown, "{place} {} {}", colour(paint, &format!("{severity}:")), plain(reason));
    let (excerpt, column) = around(line, at.column);
    if !excerpt.trim().is_empty() {
        let number = at.line.to_string();
        let length = at.length.clamp(1, excerpt.chars().count().saturating_sub(column).max(1));
        let mark = format!("{}{}", " ".repeat(column), "^".repeat(length));
        let bar = paint.blue("|");
        let _ = writeln!(shown, "  {} {bar} {excerpt}", paint.blue(&number));
        let _ = writeln!(shown, "  {} {bar} {}", " ".repeat(number.len()), colour(paint, &mark));
    }
    let _ = writeln!(shown, "  {} {}", paint.blue("help:"), plain(remedy));
}

/// The part of a line that holds a column, and where in it the column is, both in characters.
fn around(line: &str, column: usize) -> (String, usize) {
    let at = column.saturating_sub(1);
    let skipped = at.saturating_sub(WIDTH * 3 / 4);
    let part: String = line.chars().skip(skipped).take(WIDTH).collect();
    (plain(&part), at - skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slice::{HostFacts, check};

    #[test]
    fn a_finding_points_at_its_place() {
        let text = "apiVersion: kaista.dev/v1alpha1\nkind: Slice\nmetadata: {nam: x}\nspec:\n  functions: [{name: a, image: {rootfs: r}}]\n";
        let report = check(text, &HostFacts::default());
        let expected = "\
f.yaml:3:12: error: metadata has no field \"nam\"
  3 | metadata: {nam: x}
    |            ^^^
  help: did you mean name?
";
        assert_eq!(render("f.yaml", text, &report, Paint::stderr()), expected);
        assert_eq!(summary(&report), "1 error");
    }

    #[test]
    fn a_long_line_is_shown_around_the_place() {
        let (part, column) = around(&"x".repeat(1000), 500);
        assert_eq!((part.len(), column), (WIDTH, WIDTH * 3 / 4));
        assert_eq!(around("", 7), (String::new(), 6));
    }
}
