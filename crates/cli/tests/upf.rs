//! `kaista upf`: a UPF without a slice, between real interfaces, with sessions by real PFCP.

mod lab;

use lab::{Lab, N6, value};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Stdio},
    time::Instant,
};

/// Octets of a ping of 56 octets.
const PING: u64 = 20 + 8 + 56;

#[test]
fn a_upf_without_a_slice_forwards_between_interfaces_and_ends_at_ctrl_c() {
    if lab::skip("a_upf_without_a_slice_forwards_between_interfaces_and_ends_at_ctrl_c") {
        return;
    }
    for n6 in [N6::Veth, N6::Tap] {
        let here = tempfile::tempdir().unwrap();
        let lab = Lab::start(here.path(), n6, "");
        let mut ran = lab.attach();
        assert_eq!(ran.tell("ping 20")["replies"], 20);
        assert_eq!(ran.tell("ping 3 1400")["replies"], 3);
        assert_eq!(ran.tell("delete")["cause"], 1);
        assert_eq!(lab.interrupt(), Some(0));
    }
}

#[test]
fn a_upf_that_cannot_run_says_why_and_fails() {
    let here = tempfile::tempdir().unwrap();
    let config = "n4: {listen: '127.0.0.1:0', nodeId: 127.0.0.1}\n\
        n3: {port: 'packet:kaista-none', addresses: [10.3.0.1/24]}\n\
        n6: {port: 'packet:kaista-none6', addresses: [10.6.0.1/24]}\n";
    std::fs::write(here.path().join("upf.yaml"), config).unwrap();
    for (file, said) in [("upf.yaml", "packet:kaista-none"), ("missing.yaml", "missing.yaml")] {
        let arguments = ["upf", "--config", file];
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_kaista"))
            .args(arguments)
            .current_dir(here.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{:?}", output.stderr);
    }
}

#[test]
fn operators_see_sessions_their_rules_and_drops() {
    if lab::skip("operators_see_sessions_their_rules_and_drops") {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let lab = Lab::start(here.path(), N6::Veth, "");
    assert_eq!(lab.json(here.path(), &["sessions"]), serde_json::json!([]));
    let mut ran = lab.attach();
    assert_eq!(ran.tell("ping 5")["replies"], 5);
    ran.tell("send 3 10.60.0.99");
    let seid = format!("{:#x}", ran.up_seid);

    let sessions = lab.json(here.path(), &["sessions"]);
    let expected = serde_json::json!([{
        "upSeid": seid, "cpSeid": "0x51f", "smf": "10.4.0.2", "ues": ["10.60.0.1"], "teids": [ran.teid], "pdrs": 2,
        "worker": 0, "uplinkOctets": 5 * PING, "downlinkOctets": 5 * PING,
    }]);
    assert_eq!(sessions, expected);
    let table = lab.ask(here.path(), &["sessions"]);
    assert!(table.contains(&seid) && table.contains("10.60.0.1") && table.contains("420 B"), "{table}");
    assert!(!table.contains('\x1b'), "colours are for terminals");

    let detail = lab.json(here.path(), &["session", &seid]);
    assert_eq!(detail["summary"]["upSeid"], seid);
    assert_eq!(lab.json(here.path(), &["session", &ran.up_seid.to_string()]), detail, "decimal is understood as well");
    assert_eq!(detail["pdrs"][0]["pdi"]["networkInstance"], "access");
    assert_eq!(detail["urrs"][0]["counts"]["uplinkPackets"], 5);
    let tables = lab.ask(here.path(), &["session", &seid]);
    for expected in ["PDR", "tunnel 0x1001 at 10.3.0.2", "forward to data network, internet", "1.00 Gbit/s", "420 B"] {
        assert!(tables.contains(expected), "{expected} is not in\n{tables}");
    }
    let unknown = lab.kaista(here.path(), &["session", "1"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no session 0x1"));

    let drops = lab.ask(here.path(), &["drops"]);
    assert!(drops.contains("spoofed_source") && drops.contains("The source address is not the UE's"), "{drops}");
    let drops = lab.json(here.path(), &["drops"]);
    let spoofed = drops.as_array().unwrap().iter().find(|drop| drop["reason"] == "drop.spoofed_source").unwrap();
    assert_eq!(spoofed["packets"], 3);
    assert_eq!(ran.tell("delete")["cause"], 1);
    assert_eq!(lab.json(here.path(), &["sessions"]), serde_json::json!([]));
}

#[test]
fn an_operator_may_name_the_control_socket_and_nobody_without_privilege_may_ask() {
    if lab::skip("an_operator_may_name_the_control_socket_and_nobody_without_privilege_may_ask") {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let socket = here.path().join("upf.sock").display().to_string();
    let lab = Lab::start(here.path(), N6::Veth, &format!("control: {socket}\n"));
    assert_eq!(lab.json(here.path(), &["sessions", "--socket", &socket]), serde_json::json!([]));
    let elsewhere = lab.kaista(here.path(), &["sessions"]).output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(1));
    drop(lab);

    let lab = Lab::start(here.path(), N6::Veth, "");
    let ask = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0kaista-upf'); \
        s.sendall(b'{\"request\":\"drops\"}\\n'); print(len(s.recv(10)))";
    let nobody = ["--reuid", "65534", "--clear-groups", "/usr/bin/python3", "-c", ask];
    let asked = lab.upf_net.command("setpriv").args(nobody).output().unwrap();
    let got = String::from_utf8_lossy(&asked.stdout).into_owned() + &String::from_utf8_lossy(&asked.stderr);
    assert!(got.trim() == "0" || got.contains("Error"), "{got}");
}

/// `kaista upf trace`, watching.
fn trace(lab: &Lab, directory: &std::path::Path, arguments: &[&str]) -> Child {
    let arguments = [&["trace"], arguments].concat();
    let mut command = lab.kaista(directory, &arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("watching session") || said.contains("no session"), "{said}");
    child
}

#[test]
fn a_trace_tells_why_each_packet_of_a_ue_went_where_it_went() {
    if lab::skip("a_trace_tells_why_each_packet_of_a_ue_went_where_it_went") {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let lab = Lab::start(here.path(), N6::Veth, "");
    let mut ran = lab.attach();
    assert_eq!(ran.tell("ping 1")["replies"], 1);

    let mut child = trace(&lab, here.path(), &["10.60.0.1", "--json", "-c", "6"]);
    let second = lab.kaista(here.path(), &["trace", "10.60.0.2"]).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "one at a time");
    assert_eq!(ran.tell("ping 2")["replies"], 2);
    ran.tell("send 1 10.60.0.99");
    ran.tell("send 1 10.60.0.1");
    let mut lines = String::new();
    child.stdout.take().unwrap().read_to_string(&mut lines).unwrap();
    assert!(child.wait().unwrap().success());
    let packets: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen: Vec<_> = packets
        .iter()
        .map(|packet| {
            let verdict = packet["verdict"].clone();
            (packet["uplink"] == true, packet["pdr"].as_u64(), packet["far"].as_u64(), verdict)
        })
        .collect();
    let sent = |port: &str, octets: u64| serde_json::json!({"kind": "sent", "port": port, "frameOctets": octets});
    let up = (true, Some(1), Some(11), sent("n6", 14 + PING));
    // Ethernet, IPv4, UDP, and GTP-U with its PDU session container.
    let down = (false, Some(2), Some(12), sent("n3", 14 + 20 + 8 + 16 + PING));
    assert_eq!(seen[..4], [up.clone(), down.clone(), up, down]);
    assert_eq!((seen[4].1, &seen[4].3["reason"]), (None, &serde_json::json!("drop.spoofed_source")));
    assert_eq!(seen[5], (true, Some(1), Some(11), sent("n6", 14 + 34)));
    assert_eq!((&packets[0]["qers"], &packets[0]["urrs"]), (&serde_json::json!([5]), &serde_json::json!([7])));
    assert_eq!(packets[5]["inner"]["destinationPort"], 9);

    // For people; and a UE whose session goes.
    let mut child = trace(&lab, here.path(), &["10.60.0.1"]);
    ran.tell("ping 1");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    ran.tell("delete");
    assert!(line.contains("10.60.0.1 > 10.6.0.2 icmp 84 B  PDR 1 FAR 11 QER 5 URR 7  sent by n6, 98 B"), "{line}");
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    assert!(said.contains("no session at present"), "{said}");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::SIGINT).unwrap();
    assert!(child.wait().unwrap().success());
    errors.read_to_string(&mut said).unwrap();
    assert!(said.contains("2 packets"), "{said}");
}

#[test]
fn metrics_agree_with_what_was_sent() {
    if lab::skip("metrics_agree_with_what_was_sent") || lab::skip_scrape("metrics_agree_with_what_was_sent") {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let address = "127.0.0.1:9464";
    let lab = Lab::start(here.path(), N6::Veth, &format!("metrics: '{address}'\n"));
    let before = lab.scrape(address);
    assert_eq!(value(&before, "sessions", &[]), 0.0);
    let mut ran = lab.attach();
    assert_eq!(ran.tell("ping 1")["replies"], 1);
    let first = lab.scrape(address);
    assert_eq!(ran.tell("ping 20")["replies"], 20);
    ran.tell("send 7 10.60.0.99");
    let second = lab::eventually("the last drops are shown", || {
        let samples = lab.scrape(address);
        (value(&samples, "dropped_packets_total", &[("reason", "spoofed_source")]) == 7.0).then_some(samples)
    });

    assert_eq!(value(&second, "sessions", &[]), 1.0);
    assert_eq!(value(&second, "associations", &[]), 1.0);
    assert!(value(&second, "table_version", &[]) >= 1.0);
    let message = |direction, kind, cause| {
        value(&second, "n4_messages_total", &[("direction", direction), ("type", kind), ("cause", cause)])
    };
    assert_eq!(message("received", "session_establishment_request", ""), 1.0);
    assert_eq!(message("sent", "session_establishment_response", "request_accepted"), 1.0);
    // ARP may come in between, which is why the difference is not exact where frames are counted; it has 42 octets.
    let since = |name: &str, port: &str, direction: &str| {
        let labels = [("port", port), ("direction", direction)];
        value(&second, name, &labels) - value(&first, name, &labels)
    };
    let frame = (14 + 20 + 8 + 16 + PING) as f64;
    for (port, direction, packets, octets) in [
        ("n3", "received", 27.0, 20.0 * frame + 7.0 * (14.0 + 20.0 + 8.0 + 16.0 + 34.0)),
        ("n3", "sent", 20.0, 20.0 * frame),
        ("n6", "sent", 20.0, 20.0 * (14 + PING) as f64),
        ("n6", "received", 20.0, 20.0 * (14 + PING) as f64),
    ] {
        let more = since("port_packets_total", port, direction) - packets;
        assert!((0.0..8.0).contains(&more), "{port} {direction}: {more} packets more than were sent");
        assert!((0.0..800.0).contains(&(since("port_bytes_total", port, direction) - octets)), "{port} {direction}");
    }
    let busy = value(&second, "worker_busy_seconds_total", &[("worker", "0")]);
    assert!(busy > 0.0 && busy < 30.0, "{busy}");
    assert_eq!(ran.tell("delete")["cause"], 1);
    lab::eventually("the session is gone", || (value(&lab.scrape(address), "sessions", &[]) == 0.0).then_some(()));
}

/// Sends 2,000 datagrams that are no PFCP. After each fifty it waits for the answer to a heartbeat, so that none is lost: the
/// UPF's socket holds a few hundred.
const FLOOD: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(60)
s.connect(('10.4.0.1', 8805))
for window in range(40):
  for _ in range(50):
    s.send(b'?')
  s.send(bytes.fromhex('2001000c' + '%06x00' % window + '0060000400000001'))
  assert s.recv(100)[1] == 2, 'no heartbeat response'
";

#[test]
fn what_hostile_peers_have_logged_is_kept_to_a_rate_and_counted() {
    if lab::skip("what_hostile_peers_have_logged_is_kept_to_a_rate_and_counted") {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let lab = Lab::start(here.path(), N6::Veth, "");
    let start = Instant::now();
    assert!(lab.ran.command("/usr/bin/python3").args(["-c", FLOOD]).status().unwrap().success());
    let log = || std::fs::read_to_string(here.path().join("upf.log")).unwrap();
    let left_out = |line: &str| {
        let number = line.split("left_out=").nth(1)?.split_whitespace().next()?;
        number.parse::<usize>().ok()
    };
    let (written, left_out) = lab::eventually("all are accounted for", || {
        let log = log();
        let written = log.lines().filter(|line| line.contains("no message")).count();
        let left_out: usize = log.lines().filter_map(left_out).sum();
        (written + left_out == 2_000).then_some((written, left_out))
    });
    // Twenty at once and ten a second, however long the machine takes.
    let most = 20 + 10 * (start.elapsed().as_secs() as usize + 1);
    assert!((20..=most).contains(&written), "{written} written of at most {most}, {left_out} left out");
    let log = log();
    let line = log.lines().find(|line| line.contains("no message")).unwrap();
    assert!(line.contains("peer=10.4.0.2:") && line.contains("error="), "{line}");
}
