//! `docs/security.md` names the tests that show its claims: they exist.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).expect("a source file"));
        }
    }
}

#[test]
fn every_test_and_file_that_the_threat_model_names_exists() {
    let mut text = String::new();
    ["crates", "tests"].iter().for_each(|folder| sources(&root().join(folder), &mut text));
    let mut tests: HashSet<&str> = text
        .split("#[test]")
        .skip(1)
        .filter_map(|after| after.split_once("fn ")?.1.split_once('('))
        .map(|(name, _)| name)
        .collect();
    // Those that run over links of every kind are named in a list.
    let lists = text.split("over_links_of_every_kind! {").skip(1).filter_map(|after| after.split_once('}'));
    tests.extend(lists.flat_map(|(list, _)| list.split_whitespace()));
    let page = std::fs::read_to_string(root().join("docs/security.md")).expect("the page");
    let quoted: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
    let named: Vec<&&str> =
        quoted.iter().filter(|word| word.matches('_').count() >= 3 && !word.contains('/')).collect();
    assert!(named.len() > 30, "{named:?}");
    let missing: Vec<_> = named.into_iter().filter(|name| !tests.contains(**name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
    for file in quoted.iter().filter(|word| word.starts_with("crates/") || word.starts_with("scripts/")) {
        assert!(root().join(file).exists(), "{file}");
    }
}
