//! Large files, as wrong as they can be, are checked in reasonable time and said to be wrong in reasonable length.

use slice::{HostFacts, MAX_TEXT, check};

/// Repeats lines until the text is as long as a text may be.
fn filled(head: &str, line: impl Fn(usize) -> String) -> String {
    let mut text = head.to_owned();
    for index in 0.. {
        let next = line(index);
        if text.len() + next.len() > MAX_TEXT {
            return text;
        }
        text += &next;
    }
    text
}

const HEAD: &str = "apiVersion: kaista.dev/v1alpha1\nkind: Slice\nmetadata: {name: s}\nspec:\n";

#[test]
fn a_file_full_of_mistakes_gives_a_report_that_can_be_read() {
    let functions = format!("{HEAD}  functions:\n");
    let texts = [
        filled("", |index| format!("f{index}: 1\n")),
        filled("", |_| "a: 1\n".into()),
        filled(&functions, |_| "  - {nmae: x, 1: 2}\n".into()),
        filled(&functions, |index| format!("  - {{name: F{index}, image: {{rootfs: r}}, cores: exlusive}}\n")),
        filled(&format!("{functions}  - name: a\n    image: {{rootfs: r}}\n    files:\n"), |index| {
            format!("      /{index}/x: y\n")
        }),
        filled(&format!("{functions}  - {{name: a, image: {{rootfs: r}}}}\n  links:\n"), |index| {
            format!("  - {{between: [a/p{index}, b/p]}}\n")
        }),
        filled(
            &format!("{functions}  - {{name: a, image: {{rootfs: r}}, ports: [{{name: p, addresses: [\n"),
            |index| format!("10.0.0.{index}/8, "),
        ),
        filled("", |index| format!("- &a{index} [")),
    ];
    for text in texts {
        let report = check(&text, &HostFacts::default());
        assert!(report.mistakes().len() <= 501, "{}", report.mistakes().len());
    }
}
