//! The tables of what shows what, in README.md: they name what is there, and all of the files.

use std::path::Path;

/// The sources of the tests that the tables may name.
fn sources() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["tests/packets", "tests/n4", "tests/n4/restart", "src/n4", "../../tests/scapy"]
        .map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|file| file.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|kind| kind == "rs" || kind == "py"));
    sources.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn the_tables_name_what_is_there_and_every_file() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packets/README.md")).unwrap();
    let (_, tables) = text.split_once("## What shows what").unwrap();
    let rows: Vec<_> =
        tables.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| shown by |")).collect();
    assert!(rows.len() > 60, "{}", rows.len());
    let files: Vec<_> =
        super::files().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let sources = sources();
    let is_there = |name: &str| match name.ends_with(".pkt") {
        true => files.iter().any(|file| file == name),
        false => sources.contains(&format!("fn {name}(")) || sources.contains(&format!("def {name}(")),
    };
    for row in &rows {
        let [_, claim, inside, outside, tests, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let mut names = tests.split('`').skip(1).step_by(2).peekable();
        assert!(names.peek().is_some(), "{claim}: nothing is named");
        assert_eq!(names.find(|name| !is_there(name)), None, "{claim}: there is no such test");
        let versions = ["-", "4", "6", "4, 6", "6 (4 has none)"];
        assert!(versions.contains(&inside) && versions.contains(&outside), "{row}");
    }
    let unnamed: Vec<_> =
        files.iter().filter(|file| !rows.iter().any(|row| row.contains(&format!("`{file}`")))).collect();
    assert!(unnamed.is_empty(), "nothing is said of {unnamed:?}");
}
