//! Every file in `tests/mistakes` is a descriptor, followed by the findings that it must give, as comments.
//! `KAISTA_UPDATE_FIXTURES=1 cargo test -p slice` writes what is found now; read the difference before it is committed.

use slice::{HostFacts, Mechanism, check};
use std::{fs, path::Path};

const MARK: &str = "# findings:\n";

/// A host of four cores on which another slice has one for itself.
fn host() -> HostFacts {
    let latency_floor_ns = [(Mechanism::SharedMemory, 300), (Mechanism::Veth, 6_000), (Mechanism::Pump, 12_340)];
    HostFacts {
        cores: Some(4),
        exclusive_elsewhere: 1,
        latency_floor_ns: latency_floor_ns.into(),
        interfaces: Some(vec!["eth0".into(), "eth1".into()]),
    }
}

#[test]
fn every_mistake_is_found_where_it_is() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let mut differing = String::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let (descriptor, expected) = text.split_once(MARK).unwrap_or((&text, ""));
        let found: String = check(descriptor, &host()).mistakes().iter().map(|m| format!("# {m}\n")).collect();
        if found != expected {
            if std::env::var_os("KAISTA_UPDATE_FIXTURES").is_some() {
                fs::write(&file, format!("{descriptor}{MARK}{found}")).unwrap();
            }
            differing += &format!("{}:\nexpected\n{expected}found\n{found}", file.display());
        }
    }
    assert!(differing.is_empty(), "{differing}");
}
