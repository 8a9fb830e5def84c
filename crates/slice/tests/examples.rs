//! Every descriptor among the examples, and every whole one in the documentation, is right.

use slice::{HostFacts, check};
use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn descriptors(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            descriptors(&path, found);
        } else if path.extension().is_some_and(|e| e == "yaml") {
            found.push(path);
        }
    }
}

fn assert_right(name: &str, text: &str) {
    let report = check(text, &HostFacts::default());
    assert_eq!(report.mistakes(), [], "{name}:\n{report}");
}

#[test]
fn every_example_is_right() {
    let mut found = Vec::new();
    descriptors(&root().join("examples"), &mut found);
    let texts = found.iter().map(|path| (path, fs::read_to_string(path).unwrap()));
    let slices: Vec<_> = texts.filter(|(_, text)| text.contains("kind: Slice")).collect();
    assert!(slices.len() > 1, "only {slices:?}");
    slices.iter().for_each(|(path, text)| assert_right(&path.display().to_string(), text));
}

#[test]
fn every_whole_descriptor_in_the_documentation_is_right() {
    let text = fs::read_to_string(root().join("docs/slice.md")).unwrap();
    let blocks: Vec<_> = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let whole: Vec<_> = blocks.iter().filter(|block| block.contains("apiVersion:")).collect();
    assert!(!whole.is_empty());
    whole.iter().for_each(|block| assert_right("docs/slice.md", block));
}
