//! The example slice, up: files arrive whole, captures decode, containers are confined, edits apply, nothing is left.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Census, Node, eventually, machine, root, skip};

fn pid_of(node: &Node, function: &str) -> i64 {
    process(node, function)["pid"].as_i64().unwrap_or_else(|| panic!("{function} runs"))
}

fn process(node: &Node, name: &str) -> serde_json::Value {
    let processes = node.json(&["ps"]);
    let found = processes.as_array().expect("an array").iter().find(|process| process["name"] == name).cloned();
    found.unwrap_or_else(|| panic!("{name} is in {processes}"))
}

/// What the web server says its file is, by HTTP from the UE, once it has made the file.
fn file_digest(node: &Node) -> String {
    eventually("the web server has its file", Duration::from_secs(30), || {
        let text = node.exec("ran", &["curl", "-sSf", "--interface", "ue0", "http://10.6.0.2/file.sha256"]).ok()?;
        text.split_whitespace().next().map(str::to_owned)
    })
}

#[test]
fn files_arrive_whole_in_both_directions() {
    if skip("files_arrive_whole_in_both_directions", Node::missing()) {
        return;
    }
    let _machine = machine();
    let node = Node::new();
    node.first_slice();

    let sum = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
    let script = |script: &str| node.exec("ran", &["/bin/sh", "-c", script]).expect("the transfer succeeds");
    // Downlink: what the web server has is what the UE gets.
    let served = file_digest(&node);
    let received = sum(&script("curl -sSf --interface ue0 http://10.6.0.2/file | sha256sum"));
    assert_eq!(served.len(), 64, "{served}");
    assert_eq!(received, served);
    // Uplink: what the UE sends is what can be fetched again.
    let sent = sum(&script(
        "head -c 20000000 /dev/urandom > /tmp/up && curl -sSf --interface ue0 -T /tmp/up http://10.6.0.2/upload/up >&2 && \
         sha256sum /tmp/up",
    ));
    let stored = sum(&script("curl -sSf http://10.6.0.2/upload/up | sha256sum"));
    assert_eq!(stored, sent);
}

#[test]
fn captures_of_every_hop_decode_without_a_malformed_packet() {
    if skip("captures_of_every_hop_decode_without_a_malformed_packet", Node::missing()) {
        return;
    }
    let _machine = machine();
    let node = Node::new();
    node.first_slice();

    let capture = |port: &str| {
        let file = node.path().join(port.replace('/', "-")).with_extension("pcapng");
        let out = fs::File::create(&file).expect("a capture file");
        let child = node.command(&["pcap", port]).stdout(out).stderr(Stdio::null()).spawn().expect("kaista runs");
        (file, child)
    };
    let captures = ["upf/n3", "upf/n4", "upf/n6"].map(capture);
    std::thread::sleep(Duration::from_millis(500));
    node.exec("ran", &["ping", "-c", "5", "-i", "0.2", "-I", "ue0", "10.6.0.2"]).expect("pings are answered");
    file_digest(&node);
    std::thread::sleep(Duration::from_millis(2500)); // heartbeats on N4
    let files = captures.map(|(file, mut child)| {
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)
            .expect("kaista pcap runs until it is told to stop");
        child.wait().expect("kaista pcap ends");
        file
    });

    // What passed both ways between two looks at shared memory is in no certain order (on a busy host that may be a whole
    // request and its answer), so each TCP segment is taken by itself.
    let by_segment = ["-o", "tcp.analyze_sequence_numbers:FALSE", "-o", "tcp.desegment_tcp_streams:FALSE"];
    let tshark = |file: &std::path::Path, filter: &str| {
        let output = Command::new("tshark")
            .args(by_segment)
            .args(["-r", file.to_str().expect("UTF-8"), "-Y", filter, "-T", "fields", "-e", "frame.protocols"])
            .output()
            .expect("tshark runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).lines().count()
    };
    let [n3, n4, n6] = &files;
    for file in &files {
        let malformed = tshark(file, "_ws.malformed || _ws.unreassembled");
        assert_eq!(malformed, 0, "{} has malformed packets", file.display());
    }
    assert!(tshark(n3, "gtp.ext_hdr.pdu_ses_con.pdu_type == 1 && icmp.type == 8") >= 5, "uplink with its container");
    assert!(tshark(n3, "gtp.ext_hdr.pdu_ses_con.pdu_type == 0 && icmp.type == 0") >= 5, "downlink with its container");
    assert!(tshark(n3, "gtp && http") >= 2, "HTTP inside the tunnel: {}", listing(n3));
    assert!(tshark(n4, "pfcp.msg_type == 1") >= 1 && tshark(n4, "pfcp.msg_type == 2") >= 1, "heartbeats both ways");
    assert_eq!(tshark(n6, "gtp || udp.port == 2152"), 0, "N6 is plain IP");
    assert!(tshark(n6, "icmp.type == 8") >= 5 && tshark(n6, "http") >= 2, "pings and HTTP: {}", listing(n6));
}

/// A capture as tshark tells it.
fn listing(file: &std::path::Path) -> String {
    let output = Command::new("tshark").arg("-r").arg(file).output().expect("tshark runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_container_is_confined() {
    if skip("every_container_is_confined", Node::missing()) {
        return;
    }
    let _machine = machine();
    let node = Node::new();
    node.first_slice();

    for function in ["ran", "upf", "dn"] {
        let process = format!("/proc/{}", pid_of(&node, function));
        confined_status(function, &fs::read_to_string(format!("{process}/status")).expect("status"));
        confined_mounts(function, &fs::read_to_string(format!("{process}/mountinfo")).expect("mountinfo"));
        for kind in ["user", "net", "mnt", "pid", "ipc", "uts"] {
            let theirs = fs::read_link(format!("{process}/ns/{kind}")).expect("a namespace");
            assert_ne!(
                theirs,
                fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace"),
                "{function}: {kind}"
            );
        }
    }
    // What is executed in a container later is confined just the same, and sees itself so from inside.
    let status = node.exec("ran", &["cat", "/proc/self/status"]).expect("cat");
    confined_status("an executed program", &status.replace("Uid:\t0\t", "Uid:\tinside-root\t"));
}

fn confined_status(who: &str, status: &str) {
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {status}"));
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(field("Uid:").iter().chain(&field("Gid:")).all(|id| id != "0"), "{who} is root: {status}");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(set), ["0000000000000000"], "{who}: {set}");
    }
    assert_eq!(field("NoNewPrivs:"), ["1"], "{who}");
    assert_eq!(field("Seccomp:"), ["2"], "{who}");
}

/// Only the read-only image root, kernel file systems, tmpfs, the OCI default devices, ports and state.
fn confined_mounts(who: &str, mountinfo: &str) {
    for line in mountinfo.lines() {
        let (left, right) = line.split_once(" - ").expect("mountinfo separates with a dash");
        let left: Vec<&str> = left.split(' ').collect();
        let (at, options) = (left[4], left[5]);
        let kind = right.split(' ').next().expect("a file system type");
        let device = ["null", "zero", "full", "random", "urandom", "tty"].iter().any(|d| left[3] == format!("/{d}"));
        let allowed = match (at, kind) {
            ("/", _) => options.split(',').any(|option| option == "ro"),
            (_, "proc" | "sysfs" | "tmpfs" | "devpts" | "mqueue") => true,
            (_, "devtmpfs") => device,
            ("/run/kaista", _) => true,
            ("/data" | "/srv/data", _) => true, // the state directories that the descriptor asks for
            _ => false,
        };
        assert!(allowed, "{who} has a mount too many: {line}");
    }
}

#[test]
fn up_twice_changes_nothing_and_an_edit_changes_only_what_it_names() {
    if skip("up_twice_changes_nothing_and_an_edit_changes_only_what_it_names", Node::missing()) {
        return;
    }
    let _machine = machine();
    let node = Node::new();
    node.first_slice();
    let pids = || ["ran", "upf", "dn"].map(|function| pid_of(&node, function));
    let before = pids();

    let file = root().join("examples/first-slice/slice.yaml");
    node.kaista(&["up", file.to_str().expect("UTF-8")]);
    assert_eq!(pids(), before, "up a second time starts nothing");

    node.edited_slice(|text| text.replacen("- name: dn\n", "- name: dn\n      env: {EDITED: \"yes\"}\n", 1));

    let after = pids();
    assert_eq!(after[..2], before[..2], "ran and upf go on");
    assert_ne!(after[2], before[2], "dn was replaced");
    assert_eq!(node.exec("dn", &["/bin/sh", "-c", "echo $EDITED"]).expect("echo").trim(), "yes");
    node.wait_for_traffic(Duration::from_secs(10));

    let upf = || largest_segment(pid_of(&node, "upf"));
    assert!(upf() < 8 << 20);
    node.edited_slice(|text| text.replacen("kind: direct", "kind: direct, ringSize: 8MiB", 1));
    node.wait_for_traffic(Duration::from_secs(10));
    assert!(upf() >= 8 << 20, "rings are as large as they were");
}

/// Bytes of the largest piece of shared memory that a process has mapped.
fn largest_segment(pid: i64) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let bytes = maps.lines().filter(|line| line.contains("memfd:")).map(|line| {
        let (range, _) = line.split_once(' ').expect("columns");
        let (from, to) = range.split_once('-').expect("a range");
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).expect("an address"));
        to - from
    });
    bytes.max().expect("it has ports")
}

/// The link N3 of the example, between functions that trust each other.
fn without_copies(text: &str) -> String {
    let trusting = ["ran", "upf"].iter().fold(text.to_owned(), |text, name| {
        text.replacen(&format!("- name: {name}\n"), &format!("- name: {name}\n      trustGroup: vendor\n"), 1)
    });
    trusting.replacen("kind: direct", "kind: zero-copy", 1)
}

#[test]
fn functions_that_trust_each_other_pass_frames_on_without_a_copy_whoever_is_killed() {
    if skip("functions_that_trust_each_other_pass_frames_on_without_a_copy_whoever_is_killed", Node::missing()) {
        return;
    }
    let _machine = machine();
    let before = Census::take();
    {
        let node = Node::new();
        node.first_slice();
        node.edited_slice(without_copies);
        node.wait_for_traffic(Duration::from_secs(15));
        let refused = node.run(&["pcap", "upf/n3"]);
        assert!(!refused.status.success(), "frames that change where they lie cannot be watched");
        let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.contains("zero-copy"), "{refused}");

        let fetch = || {
            let script = "curl -sSf --interface ue0 http://10.6.0.2/file | sha256sum";
            node.exec("ran", &["/bin/sh", "-c", script]).expect("the transfer succeeds")
        };
        let served = file_digest(&node);
        assert!(fetch().starts_with(&served));
        for function in ["upf", "ran"] {
            let pid = nix::unistd::Pid::from_raw(pid_of(&node, function) as i32);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it runs");
            node.wait_for_traffic(Duration::from_secs(15));
        }
        assert!(fetch().starts_with(&served));
        node.kaista(&["down", "--all"]);
    }
    before.assert_restored(Duration::from_secs(10));
}

#[test]
fn down_leaves_nothing_behind() {
    if skip("down_leaves_nothing_behind", Node::missing()) {
        return;
    }
    let _machine = machine();
    let before = Census::take();
    {
        let node = Node::new();
        node.first_slice();
        assert!(!Census::take().left_since(&before).is_empty(), "the census sees a running slice");
        node.kaista(&["down", "--all"]);
        node.kaista(&["down", "--all"]); // a second time is no mistake
    }
    before.assert_restored(Duration::from_secs(10));
}
