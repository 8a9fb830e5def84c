//! Pools: replicas come and go under load, and no packet is lost, doubled or reordered by it.

use std::process::Child;
use std::time::Duration;

use e2e::{Census, Node, PATIENCE, assert_nothing_is_missing, eventually, machine, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// `load` sends by one port and takes by the other what the pool `fwd` passes on.
const SLICE: &str = "\
apiVersion: kaista.dev/v1alpha1
kind: Slice
metadata: {name: pools}
spec:
  functions:
    - name: load
      image: {rootfs: rootfs}
      command: [/bin/busybox, sleep, '1000000']
      ports: [{name: out, addresses: [198.51.100.1/25]}, {name: back, addresses: [198.51.100.129/25]}]
    - name: fwd
      image: {rootfs: rootfs}
      command: [/bin/kaista-traffic, forward, --port, in, --port, out, --addresses, keep, --retry, '1000000000']
      pool: {max: 4}
      ports: [{name: in, steering: five-tuple}, {name: out, steering: five-tuple}]
  links:
    - {between: [load/out, fwd/in]}
    - {between: [load/back, fwd/out]}
";

fn up(node: &Node) {
    node.up_with(&["kaista-traffic"], SLICE);
}

/// Packets of 512 flows, which go on until told to stop.
fn load(node: &Node) -> Child {
    node.generate("back", &["--port", "out", "--to", "198.51.100.129", "--flows", "512"])
}

/// Ends the load, of which nothing may be missing.
fn end(node: &Node, load: Child) {
    let result = node.end_load(load);
    assert_nothing_is_missing(&result);
    assert_eq!(result["found"]["flows"], 512, "{result}");
}

/// Names of the replicas, and what share each has.
fn shares(node: &Node) -> Vec<(String, f64)> {
    let processes = node.json(&["ps"]);
    let replicas = processes.as_array().unwrap().iter().filter(|process| process["replicaOf"] == "fwd");
    replicas.map(|one| (one["name"].as_str().unwrap().to_owned(), one["share"].as_f64().unwrap_or(0.0))).collect()
}

fn wait_for_shares(node: &Node, wanted: &[(&str, f64)]) {
    let wanted: Vec<(String, f64)> = wanted.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect();
    eventually(&format!("{wanted:?}"), PATIENCE, || (shares(node) == wanted).then_some(()));
}

#[test]
fn a_pool_grows_and_shrinks_under_load_without_losing_a_packet() {
    if skip("a_pool_grows_and_shrinks_under_load_without_losing_a_packet", Node::missing_for_load()) {
        return;
    }
    let _machine = machine();
    let before = Census::take();
    {
        let node = Node::new();
        up(&node);
        wait_for_shares(&node, &[("fwd-1", 1.0)]);
        let packets = load(&node);
        node.kaista(&["scale", "fwd", "4"]);
        let quarters = [("fwd-1", 0.25), ("fwd-2", 0.25), ("fwd-3", 0.25), ("fwd-4", 0.25)];
        wait_for_shares(&node, &quarters);
        node.wait_for_more("back", 5_000);
        assert!(node.kaista(&["scale", "pools/fwd", "4"]).contains("nothing to change"));
        // The descriptor names no number: what scale said stays.
        node.up_again();
        assert_eq!(shares(&node).len(), 4);
        node.kaista(&["scale", "fwd", "2"]);
        wait_for_shares(&node, &[("fwd-1", 0.5), ("fwd-2", 0.5)]);
        node.kaista(&["scale", "fwd", "3"]);
        node.wait_for_more("back", 5_000);
        node.kaista(&["scale", "fwd", "1"]);
        wait_for_shares(&node, &[("fwd-1", 1.0)]);
        node.wait_for_more("back", 5_000);
        end(&node, packets);
        node.kaista(&["down", "--all"]);
    }
    before.assert_restored(Duration::from_secs(10));
}

#[test]
fn a_daemon_that_is_killed_while_a_pool_changes_loses_nothing() {
    if skip("a_daemon_that_is_killed_while_a_pool_changes_loses_nothing", Node::missing_for_load()) {
        return;
    }
    let _machine = machine();
    let node = Node::new();
    up(&node);
    let packets = load(&node);
    for (round, replicas) in ["3", "1", "4", "2"].into_iter().enumerate() {
        let mut scale = node.spawn(&["scale", "fwd", replicas]);
        // Somewhere in it: another place each time.
        std::thread::sleep(Duration::from_millis(60 * round as u64));
        let daemon = eventually("a daemon", PATIENCE, || status(&node)?["daemonPid"].as_i64());
        kill(Pid::from_raw(daemon as i32), Signal::SIGKILL).unwrap();
        scale.wait().unwrap();
        // Where the daemon had not heard of it yet, it is said again.
        node.kaista(&["scale", "fwd", replicas]);
        assert_eq!(shares(&node).len(), replicas.parse::<usize>().unwrap());
        node.wait_for_more("back", 5_000);
    }
    wait_for_shares(&node, &[("fwd-1", 0.5), ("fwd-2", 0.5)]);
    end(&node, packets);
}

/// What the daemon says of itself, if one answers.
fn status(node: &Node) -> Option<Value> {
    serde_json::from_slice(&node.run(&["status", "--json"]).stdout).ok()
}

#[test]
fn a_replica_that_is_killed_comes_back_and_the_others_serve_its_flows_meanwhile() {
    if skip("a_replica_that_is_killed_comes_back_and_the_others_serve_its_flows_meanwhile", Node::missing_for_load()) {
        return;
    }
    let _machine = machine();
    let node = Node::new();
    up(&node);
    node.kaista(&["scale", "fwd", "2"]);
    let halves = [("fwd-1", 0.5), ("fwd-2", 0.5)];
    wait_for_shares(&node, &halves);
    let packets = load(&node);
    for victim in ["fwd-2", "fwd-1"] {
        let pid =
            node.json(&["ps"]).as_array().unwrap().iter().find(|one| one["name"] == victim).unwrap()["pid"].as_i64();
        kill(Pid::from_raw(pid.unwrap() as i32), Signal::SIGKILL).unwrap();
        node.wait_for_more("back", 5_000);
        wait_for_shares(&node, &halves);
        node.wait_for_more("back", 5_000);
    }
    let result = node.end_load(packets);
    assert_eq!((&result["found"]["duplicates"], &result["found"]["flows"]), (&0.into(), &512.into()), "{result}");
}

#[test]
fn what_cannot_be_scaled_is_refused_with_the_reason() {
    if skip("what_cannot_be_scaled_is_refused_with_the_reason", Node::missing_for_load()) {
        return;
    }
    let _machine = machine();
    let node = Node::new();
    up(&node);
    for (arguments, reason) in [
        (["fwd", "5"], "pool fwd has 1 to 4 replicas, not 5"),
        (["load", "2"], "function load of slice pools is no pool"),
        (["fwd-1", "2"], "there is no function fwd-1"),
        (["other/fwd", "2"], "there is no function other/fwd"),
    ] {
        let refused = node.run(&[&["scale"], &arguments[..]].concat());
        let words = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(1) && words.contains(reason), "{words}");
    }
    let logs = node.run(&["logs", "fwd"]);
    assert!(String::from_utf8_lossy(&logs.stderr).contains("say which of its replicas: fwd-1"));
}
