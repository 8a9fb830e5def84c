//! Procedures of N4 with users' packets, against a running UPF: scapy is the session manager, the gNB and the data network
//! (tests/scapy/procedures.py), and Wireshark reads all that the UPF has sent.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use super::scapy::{PYTHON, has_scapy, octets};
use crate::stage::{Side, Stage};

/// Of 127.9.0.0/16, among the tests that have stages.
const NET: u8 = 66;

const CONFIG: &str = "gtpu: {t3Ms: 500, n3Requests: 2}\n\
    addressPools: [{name: internet, networkInstances: [internet], ipv4: [10.64.1.10-10.64.1.10]}]\n";

/// The script.
struct World(Child);

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn scapy_and_wireshark_understand_what_the_upf_says_and_does() {
    if !has_scapy() {
        println!("SKIPPED scapy_and_wireshark_understand_what_the_upf_says_and_does: {PYTHON} has no scapy with PFCP");
        return;
    }
    let mut stage = Stage::with(NET, "", 16, CONFIG);
    stage.spawn();
    let capture = tempfile::NamedTempFile::new().unwrap();
    let done = play(&mut stage, capture.path());
    assert!(done.len() >= 14, "{done:?}");
    wireshark_understands(capture.path());
}

/// Passes frames between the script and the UPF until all procedures are done; their names.
fn play(stage: &mut Stage, capture: &Path) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scapy/procedures.py");
    let mut command = Command::new(PYTHON);
    command.arg(script).args(stage.release_n4()).arg(capture).args(stage.macs()).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut world = World(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let (mut to, from) = (world.0.stdin.take().unwrap(), BufReader::new(world.0.stdout.take().unwrap()));
    let (said, hears) = mpsc::channel();
    std::thread::spawn(move || from.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
    let mut done = vec![];
    loop {
        match hears.recv_timeout(std::time::Duration::from_millis(1)) {
            Ok(line) => match line.split_once(' ').unwrap() {
                ("n3", frame) => stage.send(Side::N3, &octets(frame)),
                ("n6", frame) => stage.send(Side::N6, &octets(frame)),
                (_, name) => done.push(name.to_owned()),
            },
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        for (side, frame) in stage.take() {
            let name = if side == Side::N3 { "n3" } else { "n6" };
            // Nobody listens any more when the script has failed.
            let _ = writeln!(to, "{name} {}", super::scapy::hex(&frame));
        }
    }
    let ended = world.0.wait().unwrap();
    assert!(ended.success(), "after {done:?}; the UPF's log: {}", stage.log());
    done
}

fn wireshark_understands(capture: &Path) {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("SKIPPED wireshark_understands: no tshark");
        return;
    }
    let output = Command::new("tshark").arg("-r").arg(capture).arg("-V").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = String::from_utf8(output.stdout).unwrap();
    for complaint in ["Malformed", "Expert Info", "not decoded", "undecoded"] {
        let found: Vec<_> = all.lines().filter(|line| line.contains(complaint)).collect();
        assert!(found.is_empty(), "{found:#?}");
    }
    for reading in [
        "Usage Report Trigger",
        "Downlink Data Report",
        "Error Indication Report",
        "User Plane Path Failure Report",
        "End Marker",
    ] {
        assert!(all.contains(reading), "{reading} is not in what Wireshark sees:\n{all}");
    }
}
