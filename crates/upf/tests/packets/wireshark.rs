//! What Wireshark makes of the frames that the UPF sends: all of them are what they are meant to be, with right lengths and
//! checksums.

use std::path::Path;
use std::process::Command;

/// Ports that users' packets have here, whose octets are not what usually comes by them.
const PORTS: [u16; 13] = [53, 54, 55, 56, 57, 67, 68, 80, 137, 443, 445, 1000, 5353];
const FIELDS: [&str; 4] = ["frame.protocols", "gtp.message", "_ws.expert.message", "_ws.malformed"];

/// What Wireshark finds wrong with the frames, by their places. `None` where there is no tshark.
pub fn complaints(frames: &[Vec<u8>]) -> Option<Vec<(usize, String)>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames.pcap");
    std::fs::write(&path, capture(frames)).unwrap();
    let seen = read(&path)?;
    assert_eq!(seen.len(), frames.len(), "tshark has not read all frames");
    let all = frames.iter().zip(&seen).enumerate();
    Some(all.filter_map(|(at, (frame, line))| Some((at, complaint(frame, line)?))).collect())
}

/// The [`FIELDS`] of each frame, one a line. What is a fragment stays one.
fn read(path: &Path) -> Option<Vec<String>> {
    let settings =
        ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE", "ip.defragment:FALSE", "ipv6.defragment:FALSE"];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path).args(["-n", "-T", "fields"]);
    settings.iter().for_each(|setting| _ = command.args(["-o", setting]));
    FIELDS.iter().for_each(|field| _ = command.args(["-e", field]));
    for port in PORTS {
        ["udp", "tcp"].iter().for_each(|over| _ = command.args(["-d", &format!("{over}.port=={port},data")]));
    }
    let output = command.output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

fn complaint(frame: &[u8], line: &str) -> Option<String> {
    let [protocols, message, expert, malformed] = line.split('\t').collect::<Vec<_>>()[..] else {
        return Some(format!("what is {line:?}?"));
    };
    if !expert.is_empty() || !malformed.is_empty() {
        return Some(format!("{expert} {malformed}").trim().to_owned());
    }
    // Of a G-PDU the user's packet is seen; of any message to or from a tunnel's port that it is one. There may be another in it.
    let is_read = match message.split(',').next() {
        Some("0xff") => protocols.contains(":udp:gtp:ip"),
        Some("") => !is_gtpu(frame),
        _ => protocols.ends_with(":udp:gtp"),
    };
    (!is_read).then(|| format!("read as {protocols}"))
}

/// Whether the frame is one of UDP from the port of GTP-U, or to it.
fn is_gtpu(frame: &[u8]) -> bool {
    let (protocol, udp) = match frame[12..14] {
        [0x08, 0x00] => (frame[23], 14 + 4 * usize::from(frame[14] & 0xf)),
        [0x86, 0xdd] => (frame[20], 54),
        _ => return false,
    };
    let port = 2_152_u16.to_be_bytes();
    protocol == 17 && frame[udp..udp + 4].chunks(2).any(|of| of == port)
}

/// A file as tcpdump writes it, of Ethernet frames.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let word = |value: usize| (value as u32).to_le_bytes();
    let mut file = [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65_535, 1].map(word).concat();
    for frame in frames {
        file.extend([0, 0, frame.len(), frame.len()].map(word).concat());
        file.extend(frame);
    }
    file
}
