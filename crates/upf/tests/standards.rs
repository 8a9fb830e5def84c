//! The table of what there is of the standards, in docs/upf.md: whatever works names a test that is there.

use std::path::Path;

/// The sources of the tests that the table may name.
fn sources() -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
    let folders = [
        "upf/tests/n4",
        "upf/tests/forwarding",
        "upf/tests/packets",
        "upf/src/n4",
        "upf/src/nat",
        "pfcp/tests",
        "gtpu/src",
        "traffic/tests",
    ]
    .map(|folder| crates.join(folder));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let rust = files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "rs"));
    rust.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn what_works_names_tests_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("../../docs/upf.md")).unwrap();
    let (_, section) = text.split_once("## What there is of the standards").unwrap();
    let sources = sources();
    let is_there = |name: &str| match name.ends_with(".pkt") {
        true => root.join("tests/packets").join(name).exists(),
        false => sources.contains(&format!("fn {name}(")),
    };
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.contains("| shown by |"));
    let mut works = 0;
    for row in rows {
        let [_, what, state, tests, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else { panic!("{row}") };
        let names: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        let missing: Vec<_> = names.iter().filter(|name| !is_there(name)).collect();
        assert!(missing.is_empty(), "{what}: there is no {missing:?}");
        assert_eq!(state == "works", !names.is_empty(), "{what}: what works names its tests, and nothing else does");
        works += usize::from(state == "works");
    }
    assert!(works > 30, "{works}");
}
