//! Words of an image, as an error may repeat them: whoever reads it has a terminal, and a log that others read as well.

use std::path::Path;

/// Characters of one name that are repeated.
const NAME: usize = 200;
/// Names of a list that are repeated.
const NAMES: usize = 10;
/// Characters of a whole reason, whatever it is made of.
const REASON: usize = 4_000;

/// A name, or its beginning.
pub(super) fn name(text: &str) -> String {
    begin(text, NAME)
}

/// The same of a path.
pub(super) fn path(path: &Path) -> String {
    name(&path.to_string_lossy())
}

/// The first ones of a list.
pub(super) fn names(mut all: impl Iterator<Item = String>) -> String {
    let first: Vec<String> = all.by_ref().take(NAMES).map(|text| name(&text)).collect();
    match all.count() {
        0 if first.is_empty() => "none".into(),
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// A reason, or its beginning.
pub(super) fn reason(text: &str) -> String {
    begin(text, REASON)
}

/// The first so many characters, and nothing that a terminal obeys.
fn begin(text: &str, most: usize) -> String {
    let mut chars = text.chars();
    let shown = chars.by_ref().take(most).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
    let mut shown: String = shown.collect();
    if chars.next().is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_repeated_as_far_as_anybody_reads_it() {
        assert_eq!(name("usr/bin/env"), "usr/bin/env");
        assert_eq!(name("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(name(&"\u{e9}".repeat(1 << 20)), "\u{e9}".repeat(NAME) + "...");
        assert_eq!(reason(&"x".repeat(1 << 20)).len(), REASON + 3);
    }

    #[test]
    fn a_list_says_how_much_of_it_is_left_out() {
        let list = |count: usize| names((0..count).map(|n| format!("v{n}")));
        assert_eq!(list(0), "none");
        assert_eq!(list(2), "v0, v1");
        assert!(list(NAMES).ends_with(", v9"), "{}", list(NAMES));
        assert!(list(NAMES + 7).ends_with(", v9 and 7 more"), "{}", list(NAMES + 7));
    }
}
