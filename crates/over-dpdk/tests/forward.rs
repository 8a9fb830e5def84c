//! The forwarder over ports of DPDK, as an operator starts and ends it.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

mod program;
use program::program;

/// What the forwarder takes to start, at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether DPDK can start here: a run that ends by itself is a test of that.
fn starts() -> bool {
    let output = forwarder().args(["--seconds", "0.1"]).output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || said.contains("DPDK does not start"), "{said}");
    if !output.status.success() {
        println!("SKIPPED forwarder over DPDK: {said}");
    }
    output.status.success()
}

fn forwarder() -> Command {
    let mut command = program("kaista-traffic-dpdk");
    command.args(["forward", "--json", "--port", "dpdk:net_null0,size=64", "--port", "dpdk:net_null1,size=100"]);
    command
}

#[test]
fn it_forwards_until_ctrl_c_and_says_how_much() {
    if !starts() {
        return;
    }
    let mut child = forwarder().stdout(Stdio::piped()).spawn().expect("the program starts");
    // It is known to run when DPDK's thread is there; before, the signal finds nothing to end.
    let tasks = format!("/proc/{}/task", child.id());
    let has_started = || {
        let tasks = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        tasks
            .map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default())
            .any(|name| name == "dpdk\n")
    };
    let deadline = Instant::now() + PATIENCE;
    while !has_started() {
        assert!(Instant::now() < deadline, "it does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(1));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    let mut text = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
    let result: Value = serde_json::from_str(&text).expect("a JSON result");
    assert_eq!(result["refused"], 0, "{result}");
    let ports = result["ports"].as_array().expect("ports");
    assert_eq!(ports.len(), 2, "{result}");
    assert!(ports.iter().all(|port| port["empty_polls"] == 0 && port["invalid"] == 0), "{result}");
}

#[test]
fn what_cannot_be_opened_is_named_with_the_reason() {
    for (port, reason) in [
        ("dpdk:net_pcap0", "expected net_vhostN"),
        ("dpdk:net_memif0,zero-copy=yes", "zero-copy=yes would let the peer"),
        ("vpp:x", "dpdk:DEVICE[,ARGUMENT=VALUE...]"),
    ] {
        let mut command = program("kaista-traffic-dpdk");
        let output = command.args(["forward", "--port", port]).output().expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(&format!("cannot open port {port}")) && said.contains(reason),
            "{said}"
        );
    }
}
