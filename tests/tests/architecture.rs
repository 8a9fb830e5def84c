//! The rules of the house that a compiler does not check: who may depend on whom, and where unsafe code may stand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Layers from the bottom; a crate depends only on crates of lower layers.
const LAYERS: &[&[&str]] = &[
    &["vport", "gtpu", "pfcp"],
    &["port", "slice", "runtime"],
    &["upf", "node", "capi", "dpdk"],
    &["traffic", "soak"],
    &["bench", "over-dpdk"],
    &["cli"],
    &["e2e", "kaista-fuzz"],
];

/// Crates that may contain unsafe code without saying so at each place.
const UNSAFE_CRATES: &[&str] = &["vport", "dpdk"];

/// Files elsewhere that are nothing but an edge to the kernel for which no library has a safe call, or to C, whose pointers
/// no compiler checks; and stay small.
const FFI_EDGES: &[&str] = &[
    "port/src/interface.rs",
    "port/src/packet_socket.rs",
    "capi/src/abi.rs",
    "capi/src/edge.rs",
    "capi/src/info.rs",
    "capi/src/open.rs",
    "capi/src/packet.rs",
    "capi/src/rx.rs",
    "capi/src/succession.rs",
    "capi/src/tx.rs",
];

/// Most lines of such a file.
const FFI_EDGE_LINES: usize = 150;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_path_buf()
}

fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo prints JSON")
}

#[test]
fn dependencies_point_downwards_only() {
    let layer: BTreeMap<&str, usize> =
        LAYERS.iter().enumerate().flat_map(|(i, crates)| crates.iter().map(move |name| (*name, i))).collect();
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let own = *layer.get(name).unwrap_or_else(|| panic!("crate {name} has no layer: add it to LAYERS"));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let dependency = dependency["name"].as_str().expect("a name");
            if layer.get(dependency).is_some_and(|theirs| *theirs >= own) {
                wrong.push(format!("{name} -> {dependency}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these dependencies point sideways or up: {wrong:?}");
}

#[test]
fn unsafe_code_stands_only_where_it_may() {
    let mut wrong = Vec::new();
    for file in rust_files(&root().join("crates")) {
        let owner = file.strip_prefix(root().join("crates")).expect("below crates/").iter().next().expect("a crate");
        if UNSAFE_CRATES.iter().any(|name| owner == *name) {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a source file");
        if FFI_EDGES.iter().any(|edge| file.ends_with(edge)) && text.lines().count() <= FFI_EDGE_LINES {
            continue;
        }
        // A tiny FFI edge elsewhere states that it is one, right where the lint is lifted.
        let lifted = text.matches("allow(unsafe_code)").count() + text.matches("expect(unsafe_code").count();
        let blocks = text.lines().filter(|line| line.contains("unsafe {") || line.contains("unsafe fn")).count();
        if blocks > lifted || text.contains("#![allow(unsafe_code)]") {
            wrong.push(format!("{} ({blocks} unsafe, {lifted} lifted)", file.display()));
        }
    }
    assert!(wrong.is_empty(), "unsafe code outside {UNSAFE_CRATES:?}: {wrong:#?}");
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}
