//! The second set of packet tests: scapy has made every frame, those that come and those that are to be sent
//! (tests/scapy/packets.py).

use std::process::Command;

use super::scenario::Scenario;

/// Debian's, which has scapy.
const PYTHON: &str = "/usr/bin/python3";

/// Names and contents of the tests. `None` where there is no scapy.
pub fn tests() -> Option<Vec<(String, String)>> {
    let import = Command::new(PYTHON).args(["-c", "import scapy.contrib.gtp"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scapy/packets.py");
    let output = Command::new(PYTHON).arg(script).env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let tests = text.split("=== ").skip(1).map(|test| test.split_once('\n').unwrap());
    Some(tests.map(|(name, text)| (name.to_owned(), text.to_owned())).collect())
}

#[test]
fn scapys_packets_come_out_as_scapy_says() {
    let Some(tests) = tests() else {
        println!("SKIPPED scapys_packets_come_out_as_scapy_says: {PYTHON} has no scapy");
        return;
    };
    assert!(tests.len() >= 40, "{}", tests.len());
    let run = |text: &str| Scenario::parse(text).and_then(Scenario::run);
    let wrong = tests.iter().filter_map(|(name, text)| Some(format!("{name}: {}", run(text).err()?)));
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
