//! Packets in, packets out: every `.pkt` file beside this one is a test. See `README.md` there for the notation.

mod damaged;
mod frame;
mod hostile;
mod readme;
mod relayed;
mod rules;
mod scapy;
mod scenario;
mod wireshark;
mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use scenario::Scenario;
use upf::drops::DropReason;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packets");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pkt"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_file_comes_out_as_it_says() {
    let mut wrong = vec![];
    for path in files() {
        let scenario = Scenario::parse(&std::fs::read_to_string(&path).unwrap());
        if let Err(difference) = scenario.and_then(|scenario| scenario.run()) {
            wrong.push(format!("{}: {difference}", path.file_name().unwrap().display()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// What Wireshark finds wrong and is right: what the file is about is just that.
const RIGHTLY: [(&str, &str); 3] = [
    ("24-zero-checksum.pkt", "Illegal checksum value (0)"),
    // The user's octets, which nobody has read.
    ("28-filters.pkt", "Malformed Packet (Exception occurred) [Malformed Packet: ESP],_ws.malformed"),
    ("36-n6-marking.pkt", "4 NOP in a row - a router may have removed some options"),
];

/// All tests of both sets, with their names.
fn tests() -> Vec<(String, String)> {
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let files = files().into_iter().map(|path| (name(&path), std::fs::read_to_string(&path).unwrap()));
    files.chain(scapy::tests().into_iter().flatten()).collect()
}

#[test]
fn wireshark_understands_everything_that_is_sent() {
    let (mut frames, mut names) = (vec![], vec![]);
    for (name, text) in tests() {
        let sent = Scenario::parse(&text).unwrap().play().unwrap().sent.concat();
        names.extend(std::iter::repeat_n(name, sent.len()));
        frames.extend(sent);
    }
    let Some(complaints) = wireshark::complaints(&frames) else {
        println!("SKIPPED wireshark_understands_everything_that_is_sent: no tshark");
        return;
    };
    let all = complaints.iter().map(|(at, why)| (&names[*at][..], &why[..]));
    let wrong: Vec<_> = all.filter(|complaint| !RIGHTLY.contains(complaint)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_reason_to_drop_a_packet_has_an_example() {
    // These depend on how full rings and buffers are, not on packets; other tests show them.
    let elsewhere = [
        DropReason::FragmentsFull,
        DropReason::HandoverFull,
        DropReason::HandoverLoop,
        DropReason::SlowPathFull,
        DropReason::N3Full,
        DropReason::N9Full,
        DropReason::N6Full,
    ];
    let all: String = files().iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let shown: BTreeSet<_> = all.split_whitespace().filter(|word| word.starts_with("drop.")).collect();
    let missing: Vec<_> = DropReason::ALL
        .iter()
        .filter(|reason| !elsewhere.contains(reason))
        .map(|reason| reason.name())
        .filter(|name| !shown.contains(name))
        .collect();
    assert!(missing.is_empty(), "no file shows {missing:?}");
}
