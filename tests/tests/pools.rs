//! Pools: replicas come and go under load, and no packet is lost, doubled or reordered by it.

use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::Duration;

use e2e::{Census, Node, eventually, machine, root, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Long enough to be no matter of a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

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
    let bin = node.path().join("rootfs/bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::set_permissions(node.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(root().join("target/release/kaista-traffic"), bin.join("kaista-traffic")).unwrap();
    std::fs::copy("/bin/busybox", bin.join("busybox")).unwrap();
    std::fs::write(node.path().join("slice.yaml"), SLICE).unwrap();
    up_again(node);
}

fn up_again(node: &Node) {
    node.kaista(&["up", node.path().join("slice.yaml").to_str().unwrap()]);
}

/// Why this does not run here, if it does not.
fn missing() -> Option<String> {
    let busybox = || (!std::path::Path::new("/bin/busybox").exists()).then(|| "busybox-static is not installed".into());
    Node::missing().or_else(busybox)
}

/// Packets of 512 flows, which go on until told to stop.
fn load(node: &Node) -> Child {
    let program =
        "/bin/kaista-traffic generate --port out --sink back --to 198.51.100.129 --flows 512 --rate 20k --json";
    let arguments: Vec<&str> = ["exec", "load", "--"].into_iter().chain(program.split(' ')).collect();
    let load = node.spawn(&[&arguments[..], &["--seconds", "100000"]].concat());
    let passed = || received(node).filter(|packets| *packets > 1_000);
    eventually("packets pass", PATIENCE, passed);
    load
}

/// What `load` has got back.
fn received(node: &Node) -> Option<u64> {
    let stats: Value = serde_json::from_slice(&node.run(&["top", "--once", "--json"]).stdout).ok()?;
    let back = stats["ports"].as_array()?.iter().find(|port| port["function"] == "load" && port["port"] == "back")?;
    back["rxPackets"].as_u64()
}

fn wait_for_more(node: &Node, packets: u64) {
    let begin = eventually("counters", PATIENCE, || received(node));
    eventually("packets go on", PATIENCE, || received(node).filter(|now| *now >= begin + packets));
}

/// Ends the load: what it has sent and found.
fn end(node: &Node, load: Child) -> Value {
    node.exec("load", &["/bin/busybox", "killall", "-INT", "kaista-traffic"]).unwrap();
    let output = load.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

fn assert_nothing_is_missing(result: &Value) {
    let (sent, found) = (&result["sent"], &result["found"]);
    assert_eq!(found["received"], sent["accepted"], "{result}");
    for what in ["lost", "duplicates", "reordered"] {
        assert_eq!(found[what], 0, "{result}");
    }
    assert_eq!(found["flows"], 512, "{result}");
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
    if skip("a_pool_grows_and_shrinks_under_load_without_losing_a_packet", missing()) {
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
        wait_for_more(&node, 5_000);
        assert!(node.kaista(&["scale", "pools/fwd", "4"]).contains("nothing to change"));
        // The descriptor names no number: what scale said stays.
        up_again(&node);
        assert_eq!(shares(&node).len(), 4);
        node.kaista(&["scale", "fwd", "2"]);
        wait_for_shares(&node, &[("fwd-1", 0.5), ("fwd-2", 0.5)]);
        node.kaista(&["scale", "fwd", "3"]);
        wait_for_more(&node, 5_000);
        node.kaista(&["scale", "fwd", "1"]);
        wait_for_shares(&node, &[("fwd-1", 1.0)]);
        wait_for_more(&node, 5_000);
        assert_nothing_is_missing(&end(&node, packets));
        node.kaista(&["down", "--all"]);
    }
    before.assert_restored(Duration::from_secs(10));
}

#[test]
fn a_daemon_that_is_killed_while_a_pool_changes_loses_nothing() {
    if skip("a_daemon_that_is_killed_while_a_pool_changes_loses_nothing", missing()) {
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
        wait_for_more(&node, 5_000);
    }
    wait_for_shares(&node, &[("fwd-1", 0.5), ("fwd-2", 0.5)]);
    assert_nothing_is_missing(&end(&node, packets));
}

/// What the daemon says of itself, if one answers.
fn status(node: &Node) -> Option<Value> {
    serde_json::from_slice(&node.run(&["status", "--json"]).stdout).ok()
}

#[test]
fn a_replica_that_is_killed_comes_back_and_the_others_serve_its_flows_meanwhile() {
    if skip("a_replica_that_is_killed_comes_back_and_the_others_serve_its_flows_meanwhile", missing()) {
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
        wait_for_more(&node, 5_000);
        wait_for_shares(&node, &halves);
        wait_for_more(&node, 5_000);
    }
    let result = end(&node, packets);
    assert_eq!((&result["found"]["duplicates"], &result["found"]["flows"]), (&0.into(), &512.into()), "{result}");
}

#[test]
fn what_cannot_be_scaled_is_refused_with_the_reason() {
    if skip("what_cannot_be_scaled_is_refused_with_the_reason", missing()) {
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
