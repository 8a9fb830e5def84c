//! A packet must not come to cost more instructions than the recorded baseline says.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in the repository").to_path_buf()
}

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// The release build is counted, as `make build` leaves it: instructions of a debug build say nothing.
#[test]
fn a_packet_costs_no_more_instructions_than_its_baseline() {
    let kaista = root().join("target/release/kaista");
    if !runs("valgrind") {
        println!("SKIPPED a_packet_costs_no_more_instructions_than_its_baseline: valgrind is not installed");
        return;
    }
    if !kaista.is_file() {
        println!("SKIPPED a_packet_costs_no_more_instructions_than_its_baseline: target/release/kaista is not built");
        return;
    }
    let output = Command::new(kaista)
        .args(["bench", "instructions", "--baseline"])
        .arg(root().join("crates/bench/baseline.json"))
        .output()
        .expect("the program runs");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    // Fewer are never too many: a stage that no packet takes any more would go unseen.
    let mut ahead = said.lines().filter(|line| line.contains("_sessions.ahead")).peekable();
    assert!(ahead.peek().is_some() && ahead.all(|line| !line.contains(" 0.00 ")), "{said}");
    print!("{said}");
}
